//! The way from the sessions to the engine's task.
//!
//! Purpose: events with a ticket each. A ticket stands for the memory that a frame costs and, of a request or query,
//! for its operations; the engine's task keeps it until the answer has gone out.
//! Invariant: a session has at most [`MAX_SESSION_INFLIGHT`] unanswered operations and [`MAX_SESSION_INGRESS`] bytes of
//! them, all sessions together [`MAX_INGRESS`] bytes. Who is over waits, and is not read meanwhile.
//! Not in here: sockets, the engine.

use std::sync::Arc;

use mtimer_core::{SessionEvent, SessionId};
use mtimer_protocol::{ClientMessage, PeerRequest, Query, RequestOp, Role, Settlement};
use mtimer_types::limits::{MAX_INGRESS, MAX_SESSION_INFLIGHT, MAX_SESSION_INGRESS};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::outbox::Outbox;

/// Events that wait for the engine's task: enough to keep it busy; what they hold is bounded by the tickets.
pub(crate) const INBOX: usize = 1_024;
/// What a query costs of a session's unanswered operations: it may walk through a partition.
const QUERY_OPS: usize = 100;

/// Something of a session, on its way to the engine.
#[derive(Debug)]
pub(crate) struct FromSession {
    pub(crate) session: SessionId,
    pub(crate) what: What,
}

/// What it is.
#[derive(Debug)]
pub(crate) enum What {
    /// The first one: the handshake is done.
    Opened { client: u128, handle: Handle },
    /// A message.
    Message { event: SessionEvent, ticket: Ticket },
    /// The last one.
    Closed,
}

/// What the engine's task has of a session.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) outbox: Arc<Outbox>,
    /// Ends the session without sending what waits.
    pub(crate) kill: CancellationToken,
}

/// What a message costs until it is answered. Dropping it gives that back.
#[derive(Debug, Default)]
pub(crate) struct Ticket(Vec<OwnedSemaphorePermit>);

/// The engine's task has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EngineGone;

/// Hands tickets and the inbox to sessions.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    inbox: mpsc::Sender<FromSession>,
    bytes: Arc<Semaphore>,
}

/// One session's way in.
#[derive(Debug)]
pub(crate) struct Way {
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

    pub(crate) fn way(&self, session: SessionId) -> Way {
        Way {
            session,
            gate: self.clone(),
            ops: Arc::new(Semaphore::new(MAX_SESSION_INFLIGHT)),
            bytes: Arc::new(Semaphore::new(MAX_SESSION_INGRESS)),
        }
    }
}

impl Way {
    /// Completes when the engine's task has ended.
    pub(crate) async fn engine_gone(&self) {
        self.gate.inbox.closed().await;
    }

    /// Sends the first or last event.
    pub(crate) async fn send(&self, what: What) -> Result<(), EngineGone> {
        self.gate.inbox.send(FromSession { session: self.session, what }).await.map_err(|_| EngineGone)
    }

    /// Sends a message that came in a frame of `frame` bytes, once there is room for it.
    pub(crate) async fn send_message(&self, event: SessionEvent, frame: usize) -> Result<(), EngineGone> {
        let ops = match &event {
            SessionEvent::Request(request) => request.ops.len(),
            SessionEvent::Query { .. } => QUERY_OPS,
            _ => 0,
        };
        let bytes = frame + decoded(&event);
        let mut ticket = Ticket::default();
        // Asked for in the same order by everybody, and the engine gives back without asking: no deadlock.
        for (semaphore, n, most) in [
            (&self.ops, ops, MAX_SESSION_INFLIGHT),
            (&self.bytes, bytes, MAX_SESSION_INGRESS),
            (&self.gate.bytes, bytes, MAX_SESSION_INGRESS),
        ] {
            // What is over a session's whole allowance alone (the engine will refuse it) takes all of it.
            let n = u32::try_from(n.min(most)).unwrap_or(u32::MAX);
            let permit = semaphore.clone().acquire_many_owned(n).await.map_err(|_| EngineGone)?;
            ticket.0.push(permit);
        }
        self.send(What::Message { event, ticket }).await
    }
}

/// Bytes that a message takes beyond its frame: small operations grow when they are decoded.
fn decoded(event: &SessionEvent) -> usize {
    match event {
        SessionEvent::Request(request) => request.ops.len() * size_of::<RequestOp>(),
        SessionEvent::Settle(settlements) => settlements.len() * size_of::<Settlement>(),
        _ => 0,
    }
}

/// A message that is not allowed where it came, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutOfPlace(pub(crate) &'static str);

/// What the session itself answers, and what goes to the engine.
#[derive(Debug)]
pub(crate) enum Sorted {
    ForEngine(SessionEvent),
    ForCluster(ForCluster),
    Ping(u64),
    Pong,
}

/// What the cluster's task answers.
#[derive(Debug)]
pub(crate) enum ForCluster {
    Request(PeerRequest),
    Query { corr: u64, query: Query },
}

/// Whether whoever has this role may send a message.
fn fits(role: Role, message: &ClientMessage) -> bool {
    match message {
        ClientMessage::Hello(_)
        | ClientMessage::Query { .. }
        | ClientMessage::Ping(_)
        | ClientMessage::Pong(_)
        | ClientMessage::Goodbye => true,
        ClientMessage::Peer(_) => role == Role::Broker,
        ClientMessage::Register { .. }
        | ClientMessage::Unregister { .. }
        | ClientMessage::Request(_)
        | ClientMessage::Settle(_)
        | ClientMessage::Extend { .. } => role == Role::Client,
    }
}

/// Sorts a message that came after the handshake. `cluster`: whether there is one around this broker.
pub(crate) fn sort(message: ClientMessage, role: Role, cluster: bool) -> Result<Sorted, OutOfPlace> {
    if !fits(role, &message) {
        return Err(OutOfPlace(match role {
            Role::Client => "a message for another broker",
            Role::Broker => "a client's message from a broker",
            Role::Observer => "a client's message from an observer",
        }));
    }
    Ok(Sorted::ForEngine(match message {
        ClientMessage::Hello(_) => return Err(OutOfPlace("a second hello")),
        ClientMessage::Ping(n) => return Ok(Sorted::Ping(n)),
        ClientMessage::Pong(_) => return Ok(Sorted::Pong),
        ClientMessage::Register { registration, dest, credit } => {
            SessionEvent::Register { registration, dest, credit }
        }
        ClientMessage::Unregister { registration } => SessionEvent::Unregister { registration },
        ClientMessage::Request(request) => SessionEvent::Request(request),
        ClientMessage::Settle(settlements) => SessionEvent::Settle(settlements),
        ClientMessage::Extend { id, epoch, attempt, by_ms } => {
            SessionEvent::Extend { id, epoch, attempt, by_ms }
        }
        ClientMessage::Query { corr, query: query @ (Query::Cluster | Query::Drain { .. }) } if cluster => {
            return Ok(Sorted::ForCluster(ForCluster::Query { corr, query }));
        }
        ClientMessage::Query { corr, query } => SessionEvent::Query { corr, query },
        ClientMessage::Goodbye => SessionEvent::Goodbye,
        ClientMessage::Peer(request) if cluster => {
            return Ok(Sorted::ForCluster(ForCluster::Request(request)));
        }
        ClientMessage::Peer(_) => return Err(OutOfPlace("a message for another broker")),
    }))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use mtimer_protocol::Request;
    use mtimer_types::{Time, TimerId};

    use super::*;

    fn request(ops: usize) -> SessionEvent {
        let ops = (0..ops).map(|n| RequestOp::Purge { id: TimerId::from_u128(n as u128) }).collect();
        SessionEvent::Request(Request { corr: 1, first_sent: Time::ZERO, ops })
    }

    #[tokio::test]
    async fn a_session_waits_for_answers_when_it_has_too_many_operations_open() {
        let (gate, mut events) = Gate::new();
        let way = gate.way(SessionId(1));
        for _ in 0..MAX_SESSION_INFLIGHT / 2_000 {
            way.send_message(request(2_000), 40_000).now_or_never().expect("there is room").unwrap();
        }
        assert!(way.send_message(request(1), 20).now_or_never().is_none());
        gate.way(SessionId(2)).send_message(request(1), 20).now_or_never().expect("others go on").unwrap();
        let first = events.recv().await.unwrap();
        assert!(way.send_message(request(1), 20).now_or_never().is_none(), "handled is not answered");
        drop(first);
        way.send_message(request(1), 20).now_or_never().expect("answered").unwrap();
    }

    #[tokio::test]
    async fn bytes_are_bounded_for_one_and_for_all() {
        let (gate, mut events) = Gate::new();
        let frame = MAX_SESSION_INGRESS / 4;
        let query = || SessionEvent::Query { corr: 1, query: Query::Status };
        let ways: Vec<Way> =
            (0..=MAX_INGRESS / MAX_SESSION_INGRESS).map(|n| gate.way(SessionId(n as u64))).collect();
        let (last, others) = ways.split_last().unwrap();
        for way in others {
            // A task that never waits is made to, now and then, which would look like a full gate here.
            tokio::task::yield_now().await;
            for _ in 0..4 {
                way.send_message(query(), frame).now_or_never().expect("there is room").unwrap();
            }
            assert!(way.send_message(query(), 1).now_or_never().is_none(), "its own share is used");
        }
        assert!(last.send_message(query(), 1).now_or_never().is_none(), "all together are at the limit");
        drop(events.recv().await.unwrap());
        tokio::task::yield_now().await;
        last.send_message(query(), 1).now_or_never().expect("room again").unwrap();
        drop(events);
        assert_eq!(last.send(What::Closed).await, Err(EngineGone));
    }

    #[tokio::test]
    async fn one_message_over_the_whole_allowance_waits_for_nothing_but_itself() {
        let (gate, _events) = Gate::new();
        let way = gate.way(SessionId(1));
        way.send_message(request(300_000), 4 << 20).now_or_never().expect("alone it may").unwrap();
    }
}
