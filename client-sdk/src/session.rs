//! One connection's life: a reader and a writer.
//!
//! The writer sends what is queued whenever it is free, as much as there is: callers that come
//! while it writes travel together, and a lone one goes at once. The reader takes answers in and
//! hands callbacks to their registrations.
//!
//! Invariant: whatever arrives, a session ends with a reason; it does not panic, and it keeps
//! nothing without a bound.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::StreamExt;
use mtimer_protocol::{Delivery, ServerMessage, UNASKED_PONG, decode, encode_frame};
use mtimer_tls::{ReadHalf, WriteHalf};
use mtimer_types::limits::{HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};
use tokio_util::task::AbortOnDropHandle;

use crate::counters::count;
use crate::error::LinkError;
use crate::handle::SessionHandle;
use crate::inbox::Arrived;
use crate::link::BrokerConnection;
use crate::registering::AcceptedDeliveries;
use crate::router::Outgoing;
use crate::settling::OutgoingOutcome;
use crate::state::ClientState;
use crate::sync::Locked;

/// Heartbeats in which the other side is to be heard.
const BEATS: u64 = HEARTBEAT_TIMEOUT_MS / HEARTBEAT_MS;
/// Round trips measured at the beginning, to see the cluster's clock sharply.
const FIRST_SAMPLES: u32 = 4;

/// Serves a connection until it ends.
pub(crate) async fn run(
    state: &Arc<ClientState>,
    connection: BrokerConnection,
    handle: &Arc<SessionHandle>,
) -> LinkError {
    let BrokerConnection { welcome, mut frames, write, .. } = connection;
    let heartbeat = Duration::from_millis(welcome.heartbeat_ms.clamp(100, 60_000));
    let silence = heartbeat * BEATS as u32;
    let writer = SessionWriter {
        state: Arc::clone(state),
        handle: Arc::clone(handle),
        write,
        heartbeat,
        write_timeout: silence,
    };
    let mut writer = AbortOnDropHandle::new(state.tasks.spawn(writer.run()));
    let mut reader = Reader { state, handle, samples: 0 };
    let end = tokio::select! {
        end = reader.run(&mut frames, silence) => end,
        end = &mut writer => end.unwrap_or(LinkError::Closed),
    };
    // The writer must not touch the router any more when the connection is given up.
    writer.abort();
    if !writer.is_finished() {
        let _ = writer.await;
    }
    end
}

struct Reader<'a> {
    state: &'a Arc<ClientState>,
    handle: &'a Arc<SessionHandle>,
    samples: u32,
}

impl Reader<'_> {
    async fn run(
        &mut self,
        frames: &mut FramedRead<ReadHalf, LengthDelimitedCodec>,
        silence: Duration,
    ) -> LinkError {
        let mut heard = Instant::now();
        let deadline = sleep_until(heard + silence);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                biased;
                frame = frames.next() => {
                    heard = Instant::now();
                    let end = match frame {
                        None => return LinkError::Closed,
                        Some(Err(error)) => return error.into(),
                        Some(Ok(body)) => self.frame(&body, heard),
                    };
                    if let Err(end) = end {
                        return end;
                    }
                }
                () = &mut deadline => {
                    if heard + silence <= Instant::now() {
                        return LinkError::Silent(silence.as_millis() as u64);
                    }
                    deadline.as_mut().reset(heard + silence);
                }
            }
        }
    }

    fn frame(&mut self, body: &BytesMut, now: Instant) -> Result<(), LinkError> {
        let (state, session) = (self.state, self.handle.session);
        match decode(body)? {
            ServerMessage::Reply { corr, replies } => {
                let retried =
                    state.with_router_if(|router| router.reply(session, corr, replies, now), |n| *n > 0);
                count(&state.counters.retried, retried.map_err(LinkError::Protocol)?);
                self.progress()
            }
            ServerMessage::Answer { corr, answer } => {
                let answered = state.with_router(|router| router.answer(session, corr, answer, now));
                answered.map_err(LinkError::Protocol)?;
                self.progress()
            }
            ServerMessage::Deliver { registration, deliveries } => {
                self.deliver(registration, deliveries, now)
            }
            ServerMessage::Settled { accepted, refused } => {
                let over = state.settled(session, accepted, &refused, now);
                let over = over.map_err(LinkError::Protocol)?;
                count(&state.counters.settled, u64::from(accepted));
                count(&state.counters.settle_refused, over);
                self.progress()
            }
            ServerMessage::Ping(number) => {
                let mut router = state.router.locked();
                let pong = router.outbox(session).map(|outbox| outbox.pong(number));
                drop(router);
                self.handle.to_send.notify_one();
                pong.unwrap_or(Ok(())).map_err(LinkError::Protocol)
            }
            ServerMessage::Pong(number, time) => self.pong(number, time, now),
            ServerMessage::Closing => {
                state.stopping(session);
                self.progress()
            }
            ServerMessage::Refused { message, .. } => Err(LinkError::Refused { message }),
            ServerMessage::Welcome(_) => Err(LinkError::Protocol("a second welcome")),
            ServerMessage::Topology(topology) => {
                // Without a name of its own the broker has no cluster around it.
                if self.handle.name.is_some() {
                    state.topology(topology);
                }
                Ok(())
            }
            ServerMessage::RegisterRefused { registration, code, message } => {
                state.register_refused(registration, code, message);
                Ok(())
            }
            ServerMessage::Peer(_) => Err(LinkError::Protocol("a message for another broker")),
        }
    }

    fn pong(&mut self, number: u64, time: mtimer_types::Time, now: Instant) -> Result<(), LinkError> {
        let session = self.handle.session;
        let mut router = self.state.router.locked();
        let Some(outbox) = router.outbox(session) else { return Ok(()) };
        if number == UNASKED_PONG {
            drop(router);
            // Half a round trip old, at least: a ping tells more.
            self.ask_time();
            self.state.clock.corrected(session, time, now);
            return Ok(());
        }
        let sent = outbox.ponged(number).map_err(LinkError::Protocol)?;
        self.samples = self.samples.saturating_add(1);
        if self.samples < FIRST_SAMPLES {
            outbox.ping();
            self.handle.to_send.notify_one();
        }
        drop(router);
        self.state.clock.observe(session, time, sent, now);
        Ok(())
    }

    /// Sends a ping, whose answer tells the broker's time.
    fn ask_time(&self) {
        let mut router = self.state.router.locked();
        if let Some(outbox) = router.outbox(self.handle.session).filter(|outbox| !outbox.is_unanswered()) {
            outbox.ping();
            self.handle.to_send.notify_one();
        }
    }

    fn deliver(
        &mut self,
        registration: u32,
        deliveries: Vec<Delivery>,
        at: Instant,
    ) -> Result<(), LinkError> {
        let counters = &self.state.counters;
        count(&counters.received, deliveries.len() as u64);
        let session = self.handle.session;
        let taken = self.state.router.locked().delivered(session, registration, deliveries);
        let AcceptedDeliveries { inbox, deliveries, stale } = taken.map_err(LinkError::Protocol)?;
        count(&counters.stale, stale);
        let Some(inbox) = inbox else {
            // It was on its way when the registration ended over a connection before this one.
            count(&counters.not_begun, deliveries.len() as u64);
            let outcome = |d| OutgoingOutcome::not_begun(d, Arc::clone(self.handle), at);
            self.state.settle(&mut deliveries.iter().map(outcome).collect());
            return Ok(());
        };
        if deliveries.is_empty() {
            return Ok(());
        }
        let due = deliveries.iter().map(|delivery| delivery.due).max();
        if due.is_some_and(|due| self.state.clock.proved(session, due, at)) {
            self.ask_time();
        }
        let received = self.state.clock.at(at);
        let deliveries = deliveries.into();
        let mut evicted = inbox.push(Arrived { handle: Arc::clone(self.handle), received, at, deliveries });
        count(&counters.not_begun, evicted.len() as u64);
        self.state.settle(&mut evicted);
        Ok(())
    }

    /// Something was answered. A broker that wants to stop is left once nothing is open with it.
    fn progress(&self) -> Result<(), LinkError> {
        self.state.progress.notify_waiters();
        match self.state.router.locked().may_leave(self.handle.session) {
            true => Err(LinkError::Left),
            false => Ok(()),
        }
    }
}

struct SessionWriter {
    state: Arc<ClientState>,
    handle: Arc<SessionHandle>,
    write: WriteHalf,
    heartbeat: Duration,
    write_timeout: Duration,
}

impl SessionWriter {
    async fn run(mut self) -> LinkError {
        let mut next_beat = Instant::now() + self.heartbeat;
        let (mut gathered, mut bytes) = (Vec::new(), Vec::new());
        loop {
            let now = Instant::now();
            {
                let mut router = self.state.router.locked();
                if let Some(outbox) = router.outbox(self.handle.session).filter(|_| now >= next_beat) {
                    next_beat = now + self.heartbeat;
                    outbox.ping();
                    if outbox.is_unanswered() {
                        return LinkError::Protocol("it answers no pings");
                    }
                }
                let time = self.state.clock.at_broker(self.handle.session, now);
                router.gather(self.handle.session, time, now, &mut gathered);
                if gathered.is_empty() && router.may_leave(self.handle.session) {
                    return LinkError::Left;
                }
            }
            if gathered.is_empty() {
                tokio::select! {
                    () = self.handle.to_send.notified() => {}
                    () = sleep_until(next_beat) => {}
                }
                continue;
            }
            for outgoing in gathered.drain(..) {
                self.put(&mut bytes, outgoing);
            }
            let written = async {
                self.write.write_all(&bytes).await?;
                self.write.flush().await
            };
            match timeout(self.write_timeout, written).await {
                Ok(Ok(())) => bytes.clear(),
                Ok(Err(error)) => return error.into(),
                Err(_) => return LinkError::Stuck(self.write_timeout.as_millis() as u64),
            }
        }
    }

    fn put(&self, bytes: &mut Vec<u8>, outgoing: Outgoing) {
        let message = match outgoing {
            Outgoing::Message(message) => message,
            Outgoing::Frame(frame) => {
                match encode_frame(&frame.message, bytes) {
                    Ok(()) => {
                        let repeated = self.state.router.locked().sent(frame);
                        count(&self.state.counters.repeated, repeated);
                    }
                    // The bounds of a frame are far below the limit; a value that cannot be encoded
                    // fails its callers.
                    Err(error) => {
                        self.state.router.locked().unsent(frame, Instant::now(), &error.to_string());
                    }
                }
                return;
            }
        };
        if let Err(error) = encode_frame(&message, bytes) {
            tracing::error!(%error, "a message could not be encoded and was left out");
        }
    }
}
