//! Admission: whether a message of a session may pass, what of it is refused, and who answers it.
//!
//! Purpose: permissions, limits and the order of the protocol, the same for every transport.
//! Invariant: what is refused has changed nothing and uses up nothing of any limit.
//! Not in here: how messages come and answers go (`session`), memory (`inbox`), the permission that
//! a message needs ([`mtimer_access::needs`]), the kinds of limits (`limits`).

use std::net::SocketAddr;
use std::sync::Arc;

use mtimer_access::{Principal, denied_ops, needs};
use mtimer_core::{DeniedOp, SessionEvent};
use mtimer_protocol::{
    ClientMessage, ErrorCode, PeerRequest, Query, QueryAnswer, Role, ServerMessage, SettleRefusal,
};

use crate::access::Guard;
use crate::clock::BrokerClock;
use crate::counters::{ShellCounter, ShellCounters};
use crate::handshake::ConnectionRefusal;
use crate::limits::Limiter;
use crate::limits::connections::CountedConnection;

/// A message that was looked at.
#[derive(Debug)]
pub(crate) enum Admitted {
    /// The engine answers it.
    ForEngine(SessionEvent),
    /// The cluster's task answers it.
    ForCluster(ForCluster),
    /// Answered here, by this message if its kind has an answer.
    Answered(Option<ServerMessage>),
}

/// Messages that the cluster's task answers.
#[derive(Debug)]
pub(crate) enum ForCluster {
    Request(PeerRequest),
    Query { corr: u64, query: Query },
}

/// The rules and limits of one broker.
pub(crate) struct Admission {
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) clock: Arc<BrokerClock>,
    pub(crate) counters: Arc<ShellCounters>,
    /// There is a cluster around this broker.
    pub(crate) has_cluster: bool,
}

/// The session from which a message comes.
#[derive(Clone, Copy)]
pub(crate) struct Sender<'a> {
    pub(crate) peer: SocketAddr,
    pub(crate) role: Role,
    /// `None`: it may do everything.
    pub(crate) guard: Option<&'a Guard>,
    /// Its count among the connections of its token.
    pub(crate) connection: Option<&'a CountedConnection>,
}

impl Admission {
    /// Looks at a message that came after the handshake.
    ///
    /// # Errors
    ///
    /// If the session has to end for it.
    pub(crate) fn admit(
        &self,
        from: Sender<'_>,
        mut message: ClientMessage,
    ) -> Result<Admitted, ConnectionRefusal> {
        let principal = from.guard.map(Guard::principal);
        let mut denied = Vec::new();
        if let Some(who) = &principal {
            let screened = screen(who, message);
            if !matches!(&screened, Screened::Allowed(_, denied) if denied.is_empty()) {
                self.counters.refuse(ShellCounter::AccessDenied, from.peer, Some(who.id()));
            }
            (message, denied) = match screened {
                Screened::Allowed(message, denied) => (message, denied),
                Screened::Answered(answer) => return Ok(Admitted::Answered(answer)),
                Screened::Refused(why) => {
                    let code = ErrorCode::Unauthorized;
                    return Err(ConnectionRefusal::new(ShellCounter::FramesOutOfPlace, code, why));
                }
            };
        }
        if let Some(refusal) = from.connection.and_then(|connection| count_registration(connection, &message))
        {
            return Ok(Admitted::Answered(Some(refusal)));
        }
        if let ClientMessage::Request(request) = &message {
            denied = self.limiter.screen(|| self.clock.now(), principal.as_deref(), request, denied);
        }
        match self.sort(message, from.role) {
            Ok(Admitted::ForEngine(SessionEvent::Request(request))) if !denied.is_empty() => {
                Ok(Admitted::ForEngine(SessionEvent::Screened { request, denied }))
            }
            Ok(admitted) => Ok(admitted),
            Err(what) => {
                let text = format!("{what} is not allowed here");
                Err(ConnectionRefusal::protocol(ShellCounter::FramesOutOfPlace, text))
            }
        }
    }

    /// Sorts a message by who answers it. The error names one that is not allowed where it came.
    fn sort(&self, message: ClientMessage, role: Role) -> Result<Admitted, &'static str> {
        if !fits(role, &message) {
            return Err(match role {
                Role::Client => "a message for another broker",
                Role::Broker => "a client's message from a broker",
                Role::Observer => "a client's message from an observer",
            });
        }
        Ok(Admitted::ForEngine(match message {
            ClientMessage::Hello(_) => return Err("a second hello"),
            ClientMessage::Ping(n) => {
                let pong = ServerMessage::Pong(n, self.clock.now().time);
                return Ok(Admitted::Answered(Some(pong)));
            }
            ClientMessage::Pong(_) => return Ok(Admitted::Answered(None)),
            ClientMessage::Register { registration, dest, credit } => {
                SessionEvent::Register { registration, dest, credit }
            }
            ClientMessage::Unregister { registration } => SessionEvent::Unregister { registration },
            ClientMessage::Request(request) => SessionEvent::Request(request),
            ClientMessage::Settle(settlements) => SessionEvent::Settle(settlements),
            ClientMessage::Extend { id, epoch, attempt, by_ms } => {
                SessionEvent::Extend { id, epoch, attempt, by_ms }
            }
            ClientMessage::Query { corr, query: query @ (Query::Cluster | Query::Drain { .. }) }
                if self.has_cluster =>
            {
                return Ok(Admitted::ForCluster(ForCluster::Query { corr, query }));
            }
            ClientMessage::Query { corr, query } => SessionEvent::Query { corr, query },
            ClientMessage::Goodbye => SessionEvent::Goodbye,
            ClientMessage::Peer(request) if self.has_cluster => {
                return Ok(Admitted::ForCluster(ForCluster::Request(request)));
            }
            ClientMessage::Peer(_) => return Err("a message for another broker"),
        }))
    }
}

/// Whether a session of this role may send a message.
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

/// Counts the registrations of a token. Returns the answer to one too many.
fn count_registration(connection: &CountedConnection, message: &ClientMessage) -> Option<ServerMessage> {
    match message {
        ClientMessage::Register { registration, .. } => {
            let (registration, code) = (*registration, ErrorCode::LimitReached);
            let message = connection.register(registration).err()?;
            Some(ServerMessage::RegisterRefused { registration, code, message })
        }
        ClientMessage::Unregister { registration } => {
            connection.unregister(*registration);
            None
        }
        _ => None,
    }
}

/// A message, compared with what its token allows.
#[derive(Debug)]
enum Screened {
    /// Goes on; these operations of it are refused, in the order of their places.
    Allowed(ClientMessage, Vec<DeniedOp>),
    /// Refused, with this answer if its kind has one.
    Answered(Option<ServerMessage>),
    /// Refused, and no message but the end of the session can say so.
    Refused(String),
}

/// Checks whether a message is allowed.
fn screen(who: &Principal, message: ClientMessage) -> Screened {
    if let ClientMessage::Request(request) = &message {
        let code = ErrorCode::Unauthorized;
        let denied = denied_ops(who, request).into_iter().map(|(at, why)| DeniedOp { at, code, why });
        let denied = denied.collect();
        return Screened::Allowed(message, denied);
    }
    let Err(denied) = needs::of_message(&message).check(who) else {
        return Screened::Allowed(message, Vec::new());
    };
    let (code, text) = (ErrorCode::Unauthorized, denied.to_string());
    match message {
        ClientMessage::Query { corr, .. } => {
            let answer = QueryAnswer::Failed { code, message: text };
            Screened::Answered(Some(ServerMessage::Answer { corr, answer }))
        }
        ClientMessage::Register { registration, .. } => {
            Screened::Answered(Some(ServerMessage::RegisterRefused { registration, code, message: text }))
        }
        // A client that may not register has no deliveries to settle.
        ClientMessage::Settle(settlements) => {
            let refused = settlements.into_iter().map(|s| (s.id, SettleRefusal::NotYours)).collect();
            Screened::Answered(Some(ServerMessage::Settled { accepted: 0, refused }))
        }
        ClientMessage::Extend { .. } => Screened::Answered(None),
        _ => Screened::Refused(text),
    }
}
