//! Errors, one type per kind of call. Each says whether a retry can help and whether anything was
//! done.

use mtimer_protocol::{DecodeError, ErrorCode};
use mtimer_types::{BulkId, Ended, InvalidSettings, InvalidTimer, TimerId};

/// Says why a client could not connect.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The builder got no address.
    #[error("no broker address given: name at least one host:port")]
    NoBroker,
    /// A text that does not name a broker, or of several not all.
    #[error(
        "{0:?} is not a broker address: write host:port, such as 127.0.0.1:7400, several separated by commas"
    )]
    Address(String),
    /// A Redis address that cannot be one. (It may have a password in it, so it is not shown.)
    #[cfg(feature = "redis")]
    #[error("the Redis address cannot be read: write redis://user:password@host:port")]
    RedisUrl,
    /// The leader could not be looked up.
    #[cfg(feature = "redis")]
    #[error("no leader found by the Redis at {redis}: {what}")]
    Redis {
        /// Its address.
        redis: String,
        /// Why not.
        what: String,
    },
    /// Nobody answers there.
    #[error("no connection to a broker at {broker}: {source}: is one running there?")]
    Unreachable {
        /// The address.
        broker: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The files for TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] mtimer_tls::TlsError),
    /// There is no encrypted connection: one side does not speak TLS, or does not accept the
    /// other's certificate.
    #[error("no encrypted connection to {broker}: {what}")]
    Encryption {
        /// The address.
        broker: String,
        /// The fault, and the fix.
        what: String,
    },
    /// The hello does not fit the frame that a stranger may send.
    #[error("the token is too long: the hello has {len} bytes, a broker takes {limit}: shorten the token")]
    TokenTooLong {
        /// Bytes of the hello.
        len: usize,
        /// Most bytes of a hello.
        limit: usize,
    },
    /// The handshake did not end in time.
    #[error("{broker} did not finish the handshake within {ms} ms: is it an mtimer broker?")]
    Timeout {
        /// The address.
        broker: String,
        /// How long it had.
        ms: u64,
    },
    /// The broker closed the connection in the handshake.
    #[error("{broker} closed the connection before the handshake was done")]
    Closed {
        /// The address.
        broker: String,
    },
    /// The broker refused the client.
    #[error("{broker} refused the connection: {message}")]
    Refused {
        /// The address.
        broker: String,
        /// The kind.
        code: ErrorCode,
        /// The broker's words.
        message: String,
    },
    /// The server at this address does not speak the protocol.
    #[error("{broker} does not speak mtimer's protocol: {what}")]
    Protocol {
        /// The address.
        broker: String,
        /// The fault.
        what: String,
    },
    /// The broker belongs to another cluster than the one the client first connected to.
    #[error(
        "{broker} belongs to cluster {found}, the client to {expected}: give it addresses of one cluster"
    )]
    OtherCluster {
        /// The address.
        broker: String,
        /// Name and partition count of the client's cluster.
        expected: String,
        /// Name and partition count of that broker's.
        found: String,
    },
}

impl ConnectError {
    /// Says whether trying again later, with the same settings, can help.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NoBroker
            | Self::Address(_)
            | Self::Tls(_)
            | Self::Encryption { .. }
            | Self::TokenTooLong { .. }
            | Self::Protocol { .. }
            | Self::OtherCluster { .. } => false,
            #[cfg(feature = "redis")]
            Self::RedisUrl => false,
            #[cfg(feature = "redis")]
            Self::Redis { .. } => true,
            Self::Unreachable { .. } | Self::Timeout { .. } | Self::Closed { .. } => true,
            Self::Refused { code, .. } => retryable(*code),
        }
    }
}

/// Says why a request was not answered as hoped.
///
/// [`RequestError::is_retryable`] says whether asking again can help,
/// [`RequestError::has_no_side_effects`] whether it is certain that nothing was done. By then the
/// client has repeated by itself all requests that it could.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The broker said no, after repeats where they could help. Nothing was done: a repeat that is
    /// refused after a sending that may have been done is [`RequestError::Unknown`].
    #[error("refused by the broker: {message}")]
    Refused {
        /// The kind; never [`ErrorCode::Unknown`] or [`ErrorCode::NotReplicated`].
        code: ErrorCode,
        /// The broker's words.
        message: String,
    },
    /// Done, but not confirmed by as many replicas as the cluster asks for.
    #[error("stored, but not confirmed by enough replicas in time: {message}")]
    NotReplicated {
        /// The broker's words.
        message: String,
    },
    /// There was no connection to send it over in time. Nothing was done.
    #[error("not sent{}: {reason}", within(*ms))]
    NotSent {
        /// How long it waited.
        ms: u64,
        /// Why there was no connection, as far as known.
        reason: String,
    },
    /// A question that no broker answered in time.
    #[error("no answer{}: {reason}", within(*ms))]
    Unanswered {
        /// How long it waited.
        ms: u64,
        /// Why, as far as known.
        reason: String,
    },
    /// It may or may not have been done, and a repeat can no longer find out, because it comes too
    /// late or is refused; `get` tells the present state.
    #[error("the outcome is unknown ({reason}): ask with get")]
    Unknown {
        /// How that came about.
        reason: String,
    },
    /// The answer does not fit the request.
    #[error("the broker's answer does not fit the request: the outcome is unknown, ask with get")]
    Mismatched,
    /// The client is closed. Nothing was done.
    #[error("the client is closed")]
    Closed,
    /// The client was built to look on
    /// ([`ClientBuilder::observer`](crate::ClientBuilder::observer)). Nothing was done.
    #[error("this client only looks on: build one that is no observer")]
    Observer,
}

impl RequestError {
    /// Says whether asking again can help.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Refused { code, .. } => retryable(*code),
            Self::NotReplicated { .. } | Self::NotSent { .. } | Self::Unanswered { .. } => true,
            Self::Unknown { .. } | Self::Mismatched | Self::Closed | Self::Observer => false,
        }
    }

    /// Says whether it is certain that nothing was done.
    pub fn has_no_side_effects(&self) -> bool {
        match self {
            Self::Refused { .. }
            | Self::NotSent { .. }
            | Self::Unanswered { .. }
            | Self::Closed
            | Self::Observer => true,
            Self::NotReplicated { .. } | Self::Unknown { .. } | Self::Mismatched => false,
        }
    }
}

/// Says why a timer was not scheduled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// It breaks a limit. It was not sent.
    #[error(transparent)]
    Invalid(#[from] InvalidTimer),
    /// The key names this live timer ([`KeyPolicy::Create`](crate::KeyPolicy::Create)).
    #[error("the key names the live timer {0}: choose another key, or replace or keep that timer")]
    KeyTaken(TimerId),
    /// The id is in use with other content. Nothing changed.
    #[error("the id {id} is in use by another timer: make a new id")]
    Conflict {
        /// The id.
        id: TimerId,
    },
    /// The timer of this id has ended already.
    #[error("the timer {id} has ended already ({how:?}): make a new id to schedule another")]
    Ended {
        /// The id.
        id: TimerId,
        /// How it ended.
        how: Ended,
    },
    /// The request failed.
    #[error("timer {id}: {error}")]
    Request {
        /// The id it was sent under, for `get` or for a repeat.
        id: TimerId,
        /// Why.
        #[source]
        error: RequestError,
    },
}

impl ScheduleError {
    /// Says whether scheduling the same timer again (with the same id, see
    /// [`Client::prepare`](crate::Client::prepare)) can help.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Request { error, .. } if error.is_retryable())
    }

    /// Says whether it is certain that this call stored nothing.
    pub fn has_no_side_effects(&self) -> bool {
        match self {
            Self::Invalid(_) | Self::KeyTaken(_) | Self::Conflict { .. } => true,
            Self::Ended { .. } => false,
            Self::Request { error, .. } => error.has_no_side_effects(),
        }
    }
}

/// Says why a bulk job was not begun in every partition.
///
/// Where it was begun it is done. Begin it again under the same id
/// ([`Client::begin_bulk_as`](crate::Client::begin_bulk_as)), or stop it
/// ([`Client::stop_bulk`](crate::Client::stop_bulk)).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BulkError {
    /// It breaks a limit. It was not sent.
    #[error(transparent)]
    Invalid(#[from] InvalidTimer),
    /// Some partitions have as many jobs under way as may be.
    #[error(
        "{jobs} bulk jobs are at work or wait, as many as may: stop one, or wait for the end of one, and begin {id} \
         again; it was begun in {} so far", partitions(*begun)
    )]
    TooMany {
        /// The job's id.
        id: BulkId,
        /// Partitions that have it.
        begun: u16,
        /// Jobs under way where there are most.
        jobs: u32,
    },
    /// A request failed.
    #[error("bulk job {id}: {error}; it was begun in {}", partitions(*begun))]
    Request {
        /// The job's id.
        id: BulkId,
        /// Partitions that have it, and have said so.
        begun: u16,
        /// Why another does not have it.
        #[source]
        error: RequestError,
    },
}

impl BulkError {
    /// Says whether beginning it again under the same id can help.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Invalid(_) => false,
            Self::TooMany { .. } => true,
            // A partition that has the job already keeps it.
            Self::Request { error: RequestError::Unknown { .. }, .. } => true,
            Self::Request { error, .. } => error.is_retryable(),
        }
    }

    /// Says whether it is certain that no partition has the job by this call.
    pub fn has_no_side_effects(&self) -> bool {
        match self {
            Self::Invalid(_) => true,
            Self::TooMany { begun, .. } => *begun == 0,
            Self::Request { begun, error, .. } => *begun == 0 && error.has_no_side_effects(),
        }
    }
}

/// Says why a destination's settings were not changed in every partition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigureError {
    /// They break a limit. They were not sent.
    #[error(transparent)]
    Invalid(#[from] InvalidSettings),
    /// Somebody else has changed them: the present ones have another version than was expected.
    /// Nothing was changed.
    #[error("the settings have version {version}, not {expected}: read them again")]
    Changed {
        /// The version that was expected.
        expected: u64,
        /// The present one.
        version: u64,
    },
    /// As many destinations have settings as may. Nothing was changed.
    #[error("{limit} destinations have settings, as many as may: resume or reset others first")]
    TooMany {
        /// How many.
        limit: u32,
    },
    /// A request failed.
    #[error("{error}; {}", has(*stored))]
    Request {
        /// Partitions that have the new settings, and have said so.
        stored: u16,
        /// Why another does not have them, or may not.
        #[source]
        error: RequestError,
    },
}

impl ConfigureError {
    /// Says whether doing the same again can help.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Invalid(_) | Self::TooMany { .. } => false,
            Self::Changed { .. } => true,
            // A partition that has the settings already keeps them.
            Self::Request { error: RequestError::Unknown { .. }, .. } => true,
            Self::Request { error, .. } => error.is_retryable(),
        }
    }

    /// Says whether it is certain that no partition has the settings by this call.
    pub fn has_no_side_effects(&self) -> bool {
        match self {
            Self::Invalid(_) | Self::Changed { .. } | Self::TooMany { .. } => true,
            Self::Request { stored, error } => *stored == 0 && error.has_no_side_effects(),
        }
    }
}

/// So many partitions have something, for a message.
fn has(n: u16) -> String {
    match n {
        0 => "no partition has the settings".to_owned(),
        1 => "1 partition has the settings".to_owned(),
        n => format!("each of {n} partitions has the settings"),
    }
}

/// A number of partitions, for a message.
fn partitions(n: u16) -> String {
    match n {
        0 => "no partition".to_owned(),
        1 => "1 partition".to_owned(),
        n => format!("{n} partitions"),
    }
}

/// Says why a handler was not registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// Too many at once.
    #[error(
        "the client has {limit} registrations, the most there can be: stop one first, or use another client"
    )]
    TooMany {
        /// Most registrations.
        limit: usize,
    },
    /// The concurrency is out of range.
    #[error("the concurrency is {given}, allowed are 1 to {limit}")]
    Concurrency {
        /// The concurrency that was asked for.
        given: u32,
        /// Most.
        limit: u32,
    },
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
    /// The client was built to look on
    /// ([`ClientBuilder::observer`](crate::ClientBuilder::observer)).
    #[error("this client only looks on: build one that is no observer")]
    Observer,
    /// A broker sends no callbacks of this destination, such as when the token lacks the verb
    /// `register` there. Told by [`Registration::refused`](crate::Registration::refused).
    #[error("the broker refused the registration: {message}")]
    Refused {
        /// The kind.
        code: ErrorCode,
        /// The broker's words.
        message: String,
    },
}

/// Reports work that could not be finished before the client closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloseError {
    /// The broker did not confirm these outcomes; it may deliver their timers again.
    #[error("{settlements} outcomes were not confirmed within {ms} ms: their timers may be delivered again")]
    Unsettled {
        /// How many.
        settlements: usize,
        /// How long the client waited after the last handler.
        ms: u64,
    },
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("the broker closed the connection")]
    Closed,
    #[error("the broker stops, or is no part of the cluster any more, and nothing is open with it")]
    Left,
    #[error("nothing was heard of the broker for {0} ms")]
    Silent(u64),
    #[error("the broker has taken nothing for {0} ms")]
    Stuck(u64),
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    #[error("the broker ended the connection: {message}")]
    Refused { message: String },
    #[error("the broker sent a {0}")]
    Decode(#[from] DecodeError),
    #[error("the broker broke the protocol: {0}")]
    Protocol(&'static str),
}

impl LinkError {
    /// Says why a client could not connect, if the connection ends before the broker has let it in.
    pub(crate) fn before_welcome(self, broker: String) -> ConnectError {
        match self {
            Self::Decode(error) => ConnectError::Protocol { broker, what: error.to_string() },
            Self::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                ConnectError::Protocol { broker, what: error.to_string() }
            }
            Self::Refused { .. }
            | Self::Protocol(_)
            | Self::Closed
            | Self::Left
            | Self::Silent(_)
            | Self::Stuck(_)
            | Self::Io(_) => ConnectError::Closed { broker },
        }
    }
}

/// Whether a repeat of something refused with this code can help.
pub(crate) fn retryable(code: ErrorCode) -> bool {
    match code {
        ErrorCode::NotOwner
        | ErrorCode::Unavailable
        | ErrorCode::StoreFull
        | ErrorCode::Overloaded
        | ErrorCode::NotReplicated
        | ErrorCode::LimitReached
        | ErrorCode::Stopping => true,
        ErrorCode::Invalid
        | ErrorCode::Unauthorized
        | ErrorCode::Version
        | ErrorCode::Unknown
        | ErrorCode::Protocol => false,
    }
}

/// How long somebody waited, for a message; nothing if nobody did.
pub(crate) fn within(ms: u64) -> String {
    if ms == 0 { String::new() } else { format!(" within {ms} ms") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_not_waited_is_told_no_time() {
        let unanswered = |ms| RequestError::Unanswered { ms, reason: "b1 is not connected".to_owned() };
        assert_eq!(unanswered(0).to_string(), "no answer: b1 is not connected");
        assert_eq!(unanswered(20).to_string(), "no answer within 20 ms: b1 is not connected");
        let not_sent = |ms| RequestError::NotSent { ms, reason: "b1 is not connected".to_owned() };
        assert_eq!(not_sent(0).to_string(), "not sent: b1 is not connected");
        assert_eq!(not_sent(20).to_string(), "not sent within 20 ms: b1 is not connected");
    }
}
