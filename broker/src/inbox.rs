//! The way from the sessions to the engine's task.
//!
//! Purpose: events with a permit each. A permit stands for the memory that a frame costs and, of a
//! request or query, for its operations; the engine's task keeps it until the answer has gone out.
//! Invariant: a session has at most [`MAX_SESSION_INFLIGHT`] unanswered operations and
//! [`MAX_SESSION_INGRESS`] bytes of them, all sessions together [`MAX_INGRESS`] bytes, counted
//! before a frame is decoded. A session that is over waits, and is not read meanwhile.
//! Not in here: sockets, the engine.

use std::sync::Arc;

use mtimer_core::{DeniedOp, SessionEvent, SessionId};
use mtimer_protocol::{RequestOp, Settlement};
use mtimer_types::Timer;
use mtimer_types::limits::{MAX_BATCH, MAX_CREDIT, MAX_INGRESS, MAX_SESSION_INFLIGHT, MAX_SESSION_INGRESS};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::access::Guard;
use crate::outbox::Outbox;

/// Events that wait for the engine's task: enough to keep it busy; their memory is bounded by the
/// permits.
pub(crate) const INBOX: usize = 1_024;
/// Unanswered operations that a query counts as: 50 of them are enough for any display, and each
/// may walk through a partition.
const QUERY_OPS: usize = MAX_SESSION_INFLIGHT / 50;

/// An event of a session, on its way to the engine.
#[derive(Debug)]
pub(crate) struct FromSession {
    pub(crate) session: SessionId,
    pub(crate) what: What,
}

/// The kinds of events.
#[derive(Debug)]
pub(crate) enum What {
    /// The first one: the handshake is done.
    Opened { client: u128, outbox: Arc<Outbox>, guard: Option<Arc<Guard>> },
    /// A message.
    Message { event: SessionEvent, permit: IngressPermit },
    /// The last one.
    Closed,
}

/// The cost of a message until it is answered. Dropping the permit gives it back.
#[derive(Debug, Default)]
pub(crate) struct IngressPermit {
    ops: Option<OwnedSemaphorePermit>,
    session_bytes: Option<OwnedSemaphorePermit>,
    bytes: Option<OwnedSemaphorePermit>,
}

impl IngressPermit {
    /// Gives back the permits beyond so many bytes.
    fn shrink(&mut self, bytes: usize) {
        for permit in [&mut self.session_bytes, &mut self.bytes].into_iter().flatten() {
            drop(permit.split(permit.num_permits().saturating_sub(bytes)));
        }
    }
}

/// The engine's task has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EngineGone;

/// Hands permits and the inbox to sessions.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    inbox: mpsc::Sender<FromSession>,
    bytes: Arc<Semaphore>,
}

/// A session's sending end of the engine's inbox, with the session's limits.
#[derive(Debug)]
pub(crate) struct Ingress {
    session: SessionId,
    gate: Gate,
    ops: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

impl Gate {
    /// The gate and the end where the events come out.
    pub(crate) fn new() -> (Self, mpsc::Receiver<FromSession>) {
        let (inbox, events) = mpsc::channel(INBOX);
        (Self { inbox, bytes: Arc::new(Semaphore::new(MAX_INGRESS)) }, events)
    }

    /// Bytes of requests that are not answered, and their limit.
    pub(crate) fn used(&self) -> (u64, u64) {
        (MAX_INGRESS.saturating_sub(self.bytes.available_permits()) as u64, MAX_INGRESS as u64)
    }

    pub(crate) fn ingress(&self, session: SessionId) -> Ingress {
        Ingress {
            session,
            gate: self.clone(),
            ops: Arc::new(Semaphore::new(MAX_SESSION_INFLIGHT)),
            bytes: Arc::new(Semaphore::new(MAX_SESSION_INGRESS)),
        }
    }
}

impl Ingress {
    /// Completes when the engine's task has ended.
    pub(crate) async fn engine_gone(&self) {
        self.gate.inbox.closed().await;
    }

    /// Sends the first or last event.
    pub(crate) async fn send(&self, what: What) -> Result<(), EngineGone> {
        self.gate.inbox.send(FromSession { session: self.session, what }).await.map_err(|_| EngineGone)
    }

    /// Waits for the budget of a frame of so many bytes, and of its decoded message.
    pub(crate) async fn reserve(&self, frame: usize) -> Result<IngressPermit, EngineGone> {
        let bytes = frame + most_decoded(frame);
        // Asked for in the same order by everybody, and the engine gives back without asking: no
        // deadlock.
        let session_bytes = acquire(&self.bytes, bytes, MAX_SESSION_INGRESS).await?;
        let bytes = acquire(&self.gate.bytes, bytes, MAX_SESSION_INGRESS).await?;
        Ok(IngressPermit { ops: None, session_bytes: Some(session_bytes), bytes: Some(bytes) })
    }

    /// Sends a message that came in a frame of so many bytes, once there are permits for its
    /// operations.
    pub(crate) async fn send_message(
        &self,
        event: SessionEvent,
        frame: usize,
        mut permit: IngressPermit,
    ) -> Result<(), EngineGone> {
        permit.shrink(frame + decoded(&event));
        let ops = match &event {
            SessionEvent::Request(request) | SessionEvent::Screened { request, .. } => request.ops.len(),
            SessionEvent::Query { .. } => QUERY_OPS,
            _ => 0,
        };
        permit.ops = Some(acquire(&self.ops, ops, MAX_SESSION_INFLIGHT).await?);
        self.send(What::Message { event, permit }).await
    }
}

/// Acquires so many permits; a request beyond a session's whole allowance takes all of it, and the
/// engine refuses it.
async fn acquire(from: &Arc<Semaphore>, n: usize, most: usize) -> Result<OwnedSemaphorePermit, EngineGone> {
    let n = u32::try_from(n.min(most)).unwrap_or(u32::MAX);
    from.clone().acquire_many_owned(n).await.map_err(|_| EngineGone)
}

/// Bytes that an operation takes once it is decoded, beside its payload.
const OP_BYTES: usize = size_of::<RequestOp>() + size_of::<Timer>();
/// Bytes that an operation or a settlement takes in a frame at least.
const LEAST_ENCODED: usize = 2;

/// Bytes that a message takes beyond its frame: small operations grow when they are decoded.
fn decoded(event: &SessionEvent) -> usize {
    match event {
        SessionEvent::Request(request) => request.ops.len() * OP_BYTES,
        SessionEvent::Screened { request, denied } => {
            let texts: usize =
                denied.iter().map(|denied| denied.why.capacity() + size_of::<DeniedOp>()).sum();
            request.ops.len() * OP_BYTES + texts
        }
        SessionEvent::Settle(settlements) => settlements.len() * size_of::<Settlement>(),
        _ => 0,
    }
}

/// The most that [`decoded`] can be for a frame of so many bytes.
fn most_decoded(frame: usize) -> usize {
    let elements = frame / LEAST_ENCODED;
    let ops = elements.min(MAX_BATCH) * OP_BYTES;
    ops.max(elements.min(MAX_CREDIT as usize) * size_of::<Settlement>())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use mtimer_protocol::ops::Purge;
    use mtimer_protocol::{Query, Request};
    use mtimer_types::{Time, TimerId};

    use super::*;

    fn request(ops: usize) -> SessionEvent {
        let ops = (0..ops).map(|n| RequestOp::Purge(Purge { id: TimerId::from_u128(n as u128) })).collect();
        SessionEvent::Request(Request { corr: 1, first_sent: Time::ZERO, ops })
    }

    /// Sends a message that came in a frame of so many bytes.
    async fn send(ingress: &Ingress, event: SessionEvent, frame: usize) -> Result<(), EngineGone> {
        let permit = ingress.reserve(frame).await?;
        ingress.send_message(event, frame, permit).await
    }

    #[tokio::test]
    async fn a_session_waits_for_answers_when_it_has_too_many_operations_open() {
        let (gate, mut events) = Gate::new();
        let ingress = gate.ingress(SessionId(1));
        for _ in 0..MAX_SESSION_INFLIGHT / 2_000 {
            send(&ingress, request(2_000), 40_000).now_or_never().expect("within the budget").unwrap();
        }
        assert!(send(&ingress, request(1), 20).now_or_never().is_none());
        send(&gate.ingress(SessionId(2)), request(1), 20).now_or_never().expect("others go on").unwrap();
        let first = events.recv().await.unwrap();
        assert!(send(&ingress, request(1), 20).now_or_never().is_none(), "handled is not answered");
        drop(first);
        send(&ingress, request(1), 20).now_or_never().expect("answered").unwrap();
    }

    #[tokio::test]
    async fn bytes_are_bounded_for_one_and_for_all() {
        let (gate, mut events) = Gate::new();
        let query = || SessionEvent::Query { corr: 1, query: Query::Status };
        let all: Vec<Ingress> =
            (0..=MAX_INGRESS / MAX_SESSION_INGRESS).map(|n| gate.ingress(SessionId(n as u64))).collect();
        let (last, others) = all.split_last().unwrap();
        for ingress in others {
            // A task that never waits is made to, now and then, which would look like a full gate
            // here.
            tokio::task::yield_now().await;
            send(ingress, query(), MAX_SESSION_INGRESS).now_or_never().expect("within the budget").unwrap();
            assert!(send(ingress, query(), 1).now_or_never().is_none(), "its own share is used");
        }
        assert!(send(last, query(), 1).now_or_never().is_none(), "all together are at the limit");
        drop(events.recv().await.unwrap());
        tokio::task::yield_now().await;
        send(last, query(), 1).now_or_never().expect("there is budget again").unwrap();
        drop(events);
        assert_eq!(last.send(What::Closed).await, Err(EngineGone));
    }

    #[tokio::test]
    async fn what_a_frame_may_decode_to_is_reserved_and_what_it_does_not_need_is_given_back() {
        let (gate, mut events) = Gate::new();
        let ingress = gate.ingress(SessionId(1));
        let held = || MAX_INGRESS - gate.bytes.available_permits();
        let permit = ingress.reserve(4_000).await.unwrap();
        assert_eq!(held(), 4_000 + MAX_BATCH * OP_BYTES);
        ingress.send_message(request(10), 4_000, permit).await.unwrap();
        assert_eq!(held(), 4_000 + 10 * OP_BYTES);
        drop(events.recv().await.unwrap());
        assert_eq!(held(), 0);
    }

    #[tokio::test]
    async fn one_message_over_the_whole_allowance_waits_for_nothing_but_itself() {
        let (gate, _events) = Gate::new();
        let ingress = gate.ingress(SessionId(1));
        send(&ingress, request(300_000), 4 << 20).now_or_never().expect("alone it may").unwrap();
    }
}
