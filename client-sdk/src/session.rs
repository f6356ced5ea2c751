//! One connection's life: a reader and a writer.
//!
//! The writer sends what is queued whenever it is free, as much as there is: callers that come while it writes travel
//! together, and a lone one goes at once. The reader takes answers in and hands callbacks to their registrations.
//!
//! Invariant: whatever arrives, a session ends with a reason; it does not panic, and it keeps nothing without a bound.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::StreamExt;
use mtimer_protocol::{ClientMessage, Delivery, ServerMessage, decode};
use mtimer_types::limits::{HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS};
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};
use tokio_util::task::AbortOnDropHandle;

use crate::error::LinkError;
use crate::inbox::Arrived;
use crate::link::{Connection, put_frame};
use crate::outbox::Outgoing;
use crate::shared::{Shared, count};
use crate::sync::Locked;

/// Heartbeats in which the other side is to be heard.
const BEATS: u64 = HEARTBEAT_TIMEOUT_MS / HEARTBEAT_MS;
/// Round trips measured at the beginning, to see the cluster's clock sharply.
const FIRST_SAMPLES: u32 = 4;

/// Serves a connection until it ends. `epochs` has the highest epoch seen of each partition.
pub(crate) async fn run(shared: &Arc<Shared>, connection: Connection, epochs: &mut [u64]) -> LinkError {
    let Connection { welcome, mut frames, write, .. } = connection;
    let heartbeat = Duration::from_millis(welcome.heartbeat_ms.clamp(100, 60_000));
    let silence = heartbeat * BEATS as u32;
    let writer = Writer { shared: Arc::clone(shared), write, heartbeat, patience: silence };
    let mut writer = AbortOnDropHandle::new(shared.tasks.spawn(writer.run()));
    let session = shared.outbox.locked().session;
    let mut reader = Reader { shared, epochs, session, samples: 0 };
    let end = tokio::select! {
        end = reader.run(&mut frames, silence) => end,
        end = &mut writer => end.unwrap_or(LinkError::Closed),
    };
    // The writer must not touch the outbox any more when the next session begins.
    writer.abort();
    if !writer.is_finished() {
        let _ = writer.await;
    }
    end
}

struct Reader<'a> {
    shared: &'a Arc<Shared>,
    epochs: &'a mut [u64],
    session: u64,
    samples: u32,
}

impl Reader<'_> {
    async fn run(
        &mut self,
        frames: &mut FramedRead<OwnedReadHalf, LengthDelimitedCodec>,
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
        let shared = self.shared;
        match decode(body)? {
            ServerMessage::Reply { corr, replies } => {
                let retried = shared.outbox.locked().requests.reply(corr, replies, now);
                count(&shared.counters.retried, retried.map_err(LinkError::Protocol)?);
                self.progress()
            }
            ServerMessage::Answer { corr, answer } => {
                shared.outbox.locked().answer(corr, answer, now).map_err(LinkError::Protocol)?;
                self.progress()
            }
            ServerMessage::Deliver { registration, deliveries } => {
                self.deliver(registration, deliveries, now)
            }
            ServerMessage::Settled { accepted, refused } => {
                let all = accepted as usize + refused.len();
                shared.outbox.locked().settling.settled(all).map_err(LinkError::Protocol)?;
                count(&shared.counters.settled, u64::from(accepted));
                count(&shared.counters.settle_refused, refused.len() as u64);
                self.progress()
            }
            ServerMessage::Ping(number) => {
                shared.outbox.locked().pong(number).map_err(LinkError::Protocol)?;
                shared.to_send.notify_one();
                Ok(())
            }
            ServerMessage::Pong(number, time) => {
                let sent = shared.outbox.locked().ponged(number).map_err(LinkError::Protocol)?;
                shared.clock.observe(time, sent, now);
                self.samples += 1;
                if self.samples < FIRST_SAMPLES {
                    shared.outbox.locked().ping();
                    shared.to_send.notify_one();
                }
                Ok(())
            }
            ServerMessage::Closing => {
                shared.outbox.locked().stopping = true;
                self.progress()
            }
            ServerMessage::Refused { message, .. } => Err(LinkError::Refused { message }),
            ServerMessage::Welcome(_) => Err(LinkError::Protocol("a second welcome")),
        }
    }

    fn deliver(
        &mut self,
        registration: u32,
        deliveries: Vec<Delivery>,
        at: Instant,
    ) -> Result<(), LinkError> {
        let counters = &self.shared.counters;
        let arrived = deliveries.len();
        count(&counters.received, arrived as u64);
        let mut kept = std::collections::VecDeque::with_capacity(arrived);
        for delivery in deliveries {
            let partition = usize::from(delivery.id.partition().0);
            let seen = self.epochs.get_mut(partition);
            let seen = seen.ok_or(LinkError::Protocol("a callback of a partition that is not there"))?;
            if delivery.epoch.0 >= *seen {
                *seen = delivery.epoch.0;
                kept.push_back(delivery);
            }
        }
        count(&counters.stale, (arrived - kept.len()) as u64);
        if kept.is_empty() {
            return Ok(());
        }
        let mut outbox = self.shared.outbox.locked();
        let Some(inbox) = outbox.inbox(registration).cloned() else {
            // It was on its way when the registration ended over a connection before this one.
            count(&counters.dropped, kept.len() as u64);
            return match outbox.knows(registration) {
                true => Ok(()),
                false => Err(LinkError::Protocol("a callback under a registration that was never made")),
            };
        };
        outbox.unsettled += kept.len() as u64;
        drop(outbox);
        let received = self.shared.clock.at(at);
        let evicted = inbox.push(Arrived { session: self.session, received, at, deliveries: kept });
        if evicted > 0 {
            self.shared.drop_unstarted(self.session, evicted);
        }
        Ok(())
    }

    /// Something was answered. A broker that wants to stop is left once nothing is open with it.
    fn progress(&self) -> Result<(), LinkError> {
        self.shared.progress.notify_waiters();
        if self.shared.outbox.locked().may_leave() { Err(LinkError::Stopping) } else { Ok(()) }
    }
}

struct Writer {
    shared: Arc<Shared>,
    write: OwnedWriteHalf,
    heartbeat: Duration,
    patience: Duration,
}

impl Writer {
    async fn run(mut self) -> LinkError {
        let mut next_beat = Instant::now() + self.heartbeat;
        let (mut gathered, mut bytes) = (Vec::new(), BytesMut::new());
        loop {
            let now = Instant::now();
            {
                let mut outbox = self.shared.outbox.locked();
                if now >= next_beat {
                    next_beat = now + self.heartbeat;
                    outbox.ping();
                    if outbox.is_unanswered() {
                        return LinkError::Protocol("it answers no pings");
                    }
                }
                outbox.gather(self.shared.clock.at(now), now, &mut gathered);
            }
            if gathered.is_empty() {
                tokio::select! {
                    () = self.shared.to_send.notified() => {}
                    () = sleep_until(next_beat) => {}
                }
                continue;
            }
            for outgoing in gathered.drain(..) {
                self.put(&mut bytes, outgoing);
            }
            match timeout(self.patience, self.write.write_all_buf(&mut bytes)).await {
                Ok(Ok(())) => bytes.clear(),
                Ok(Err(error)) => return error.into(),
                Err(_) => return LinkError::Stuck(self.patience.as_millis() as u64),
            }
        }
    }

    fn put(&self, bytes: &mut BytesMut, outgoing: Outgoing) {
        let message = match outgoing {
            Outgoing::Message(message) => message,
            Outgoing::Frame(mut frame) => {
                count(&self.shared.counters.repeated, frame.repeats() as u64);
                let message = ClientMessage::Request(frame.take_request());
                let put = put_frame(bytes, &message);
                if let ClientMessage::Request(request) = message {
                    frame.put_back(request);
                }
                let mut outbox = self.shared.outbox.locked();
                match put {
                    Ok(()) => outbox.requests.sent(frame),
                    // The bounds of a frame are far below the limit; a value that cannot be encoded fails its callers.
                    Err(error) => frame.fail(&error.to_string()),
                }
                return;
            }
        };
        if let Err(error) = put_frame(bytes, &message) {
            tracing::error!(%error, "a message could not be encoded and was left out");
        }
    }
}
