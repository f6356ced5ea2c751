//! The sessions, as the engine's task sees them.
//!
//! Purpose: messages to a session go into its outbox, screened by the permissions of its token.
//! Invariant: the permit of a request or a query is kept until the answer is sent, or the session
//! is over.
//! Not in here: which messages are sent, and why ([`crate::shell`]); the connection
//! ([`crate::session`]).

use std::collections::HashMap;
use std::sync::Arc;

use mtimer_core::{SessionEvent, SessionId};
use mtimer_protocol::{ErrorCode, ServerMessage};
use mtimer_types::TimerId;

use crate::access::Guard;
use crate::inbox::IngressPermit;
use crate::outbox::Outbox;

/// All sessions that are open.
#[derive(Default)]
pub(crate) struct Sessions(HashMap<SessionId, OpenSession>);

/// A session that is open.
struct OpenSession {
    outbox: Arc<Outbox>,
    /// Its permissions; `None`: all.
    guard: Option<Arc<Guard>>,
    /// Of requests and queries that are not answered. A client may use a number twice.
    permits: HashMap<CorrelationId, Vec<IngressPermit>>,
}

/// The number that a client gave to a request or a query, and that comes back in the answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum CorrelationId {
    Request(u64),
    Query(u64),
}

impl CorrelationId {
    /// The number that an event brings.
    fn by(event: &SessionEvent) -> Option<Self> {
        match event {
            SessionEvent::Request(request) | SessionEvent::Screened { request, .. } => {
                Some(Self::Request(request.corr))
            }
            SessionEvent::Query { corr, .. } => Some(Self::Query(*corr)),
            _ => None,
        }
    }

    /// The number that a message answers.
    const fn answered_by(message: &ServerMessage) -> Option<Self> {
        match message {
            ServerMessage::Reply { corr, .. } => Some(Self::Request(*corr)),
            ServerMessage::Answer { corr, .. } => Some(Self::Query(*corr)),
            _ => None,
        }
    }
}

impl Sessions {
    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// Their numbers.
    pub(crate) fn ids(&self) -> Vec<SessionId> {
        self.0.keys().copied().collect()
    }

    /// Adds a session.
    pub(crate) fn open(&mut self, session: SessionId, outbox: Arc<Outbox>, guard: Option<Arc<Guard>>) {
        self.0.insert(session, OpenSession { outbox, guard, permits: HashMap::new() });
    }

    /// Removes a session; whether it was there.
    pub(crate) fn remove(&mut self, session: SessionId) -> bool {
        self.0.remove(&session).is_some()
    }

    /// Keeps the permit of a session's message until it is answered; one that needs no answer gives
    /// it back at once. Returns whether the session is open.
    pub(crate) fn keep(&mut self, session: SessionId, event: &SessionEvent, permit: IngressPermit) -> bool {
        let Some(open) = self.0.get_mut(&session) else { return false };
        if let Some(id) = CorrelationId::by(event) {
            open.permits.entry(id).or_default().push(permit);
        }
        true
    }

    /// Sends a message, unless the session is over. `by`: the monotonic time, ms, after which
    /// deliveries may not leave any more.
    pub(crate) fn send(&mut self, session: SessionId, mut message: ServerMessage, by: Option<u64>) {
        let Some(open) = self.0.get_mut(&session) else { return };
        if let Some(id) = CorrelationId::answered_by(&message) {
            open.give_permit_back(id);
        }
        if let (Some(guard), ServerMessage::Answer { answer, .. }) = (&open.guard, &mut message) {
            mtimer_access::screen(&guard.principal(), answer);
        }
        open.outbox.push_by(message, by);
    }

    /// Takes back the deliveries to a registration that have not left for the socket.
    pub(crate) fn recall(&self, session: SessionId, registration: u32) -> Vec<TimerId> {
        self.0.get(&session).map_or_else(Vec::new, |open| open.outbox.recall(registration))
    }

    /// Closes a session that has broken the protocol, and says why. Whether it is open.
    pub(crate) fn close(&self, session: SessionId, why: String) -> bool {
        let Some(open) = self.0.get(&session) else { return false };
        open.outbox.close(Some(ServerMessage::Refused { code: ErrorCode::Protocol, message: why }));
        true
    }

    /// Closes all sessions, with a last message if there is one.
    pub(crate) fn close_all(&self, last: Option<&ServerMessage>) {
        self.0.values().for_each(|open| open.outbox.close(last.cloned()));
    }
}

impl OpenSession {
    fn give_permit_back(&mut self, id: CorrelationId) {
        if let Some(permits) = self.permits.get_mut(&id) {
            permits.pop();
            if permits.is_empty() {
                self.permits.remove(&id);
            }
        }
    }
}
