//! How `mtimer` ends: every exit code, with its causes.
//!
//! Invariant: a failure that a script may want to tell from others has a code of its own, and the
//! codes never change.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use mtimer_broker::config::ConfigError;
use mtimer_broker::{BrokerError, StartError};
use mtimer_client::{
    BulkError, CloseError, ConfigureError, ConnectError, ErrorCode, RegisterError, RequestError,
    ScheduleError,
};
use mtimer_store::StoreError;

/// The exit codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    NoConnection = 3,
    Refused = 4,
    NotFound = 5,
    TooLate = 6,
    Conflict = 7,
    Unknown = 8,
    Partly = 9,
    Inexact = 10,
    Fenced = 11,
    StoreUnusable = 12,
    NotNow = 13,
    Listen = 14,
    AddressTaken = 15,
    Interrupted = 130,
}

use Exit as E;

/// Code, name in JSON, meaning.
const ALL: [(Exit, &str, &str); 17] = [
    (E::Done, "done", "what was asked for was done"),
    (E::Failed, "failed", "something else: a file, the output, a defect"),
    (E::Usage, "usage", "flags, variables or the settings file are not right"),
    (E::NoConnection, "no-connection", "no broker could be reached in time; nothing was done"),
    (E::Refused, "refused", "refused for good: a limit, a token, a bad line; nothing was done"),
    (E::NotFound, "not-found", "there is no such timer"),
    (E::TooLate, "too-late", "the timer was delivered, or may have been"),
    (E::Conflict, "conflict", "the key or the id belongs to another timer, or the timer has ended"),
    (E::Unknown, "unknown", "it may or may not have been done: ask with get, or repeat"),
    (E::Partly, "partly", "some of it was done, some was not"),
    (E::Inexact, "inexact", "demo and bench: timers were lost, early or duplicated"),
    (E::Fenced, "fenced", "another broker was started on the same store and has taken over"),
    (
        E::StoreUnusable,
        "store-unusable",
        "the store answers, but cannot be used; the message says what to do",
    ),
    (E::NotNow, "not-now", "the store or the broker cannot do it for now; nothing was done, try again"),
    (E::Listen, "listen", "the address to listen on cannot be used"),
    (
        E::AddressTaken,
        "address-taken",
        "another broker of the cluster answers at the address that this one advertises",
    ),
    (E::Interrupted, "interrupted", "stopped by a signal before the work was done"),
];

impl Exit {
    /// Its name in JSON.
    pub(crate) fn name(self) -> &'static str {
        ALL.iter().find(|(e, ..)| *e == self).map_or("failed", |(_, name, _)| name)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The table of exit codes, for `mtimer --help`.
pub(crate) fn table() -> String {
    let row =
        |(exit, name, meaning): &(Exit, &str, &str)| format!("  {:>3}  {name:<14}  {meaning}\n", *exit as u8);
    ALL.iter().map(row).collect()
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// For people. Empty if there is nothing to say (any more).
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    /// Everything that there is to say has been said.
    pub(crate) fn silent(exit: Exit) -> Self {
        Self::new(exit, "")
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(E::Usage, message)
    }

    /// Reading or writing `path` has failed.
    pub(crate) fn file(what: &str, path: &Path, error: &io::Error) -> Self {
        Self::new(E::Failed, format!("cannot {what} {}: {error}", path.display()))
    }

    /// The output has failed. Its reader wants no more of it: that is no failure.
    pub(crate) fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::silent(E::Done);
        }
        Self::new(E::Failed, format!("cannot write the output: {error}"))
    }
}

fn refused(code: ErrorCode) -> Exit {
    match code {
        ErrorCode::NotOwner
        | ErrorCode::Unavailable
        | ErrorCode::StoreFull
        | ErrorCode::Overloaded
        | ErrorCode::LimitReached
        | ErrorCode::Stopping => E::NotNow,
        ErrorCode::Unknown | ErrorCode::NotReplicated => E::Unknown,
        ErrorCode::Invalid | ErrorCode::Unauthorized | ErrorCode::Version | ErrorCode::Protocol => E::Refused,
    }
}

/// The exit code of a request's error.
pub(crate) fn of_request(error: &RequestError) -> Exit {
    match error {
        RequestError::Refused { code, .. } => refused(*code),
        RequestError::NotSent { .. } | RequestError::Unanswered { .. } => E::NoConnection,
        RequestError::NotReplicated { .. } | RequestError::Unknown { .. } | RequestError::Mismatched => {
            E::Unknown
        }
        RequestError::Closed => E::Interrupted,
        RequestError::Observer => E::Refused,
    }
}

/// The exit code of a schedule's error.
pub(crate) fn of_schedule(error: &ScheduleError) -> Exit {
    match error {
        ScheduleError::Invalid(_) => E::Refused,
        ScheduleError::KeyTaken(_) | ScheduleError::Conflict { .. } | ScheduleError::Ended { .. } => {
            E::Conflict
        }
        ScheduleError::Request { error, .. } => of_request(error),
    }
}

/// The exit code of a bulk job that was not begun everywhere.
fn of_bulk(error: &BulkError) -> Exit {
    match error {
        BulkError::Invalid(_) => E::Refused,
        BulkError::TooMany { begun: 1.., .. } | BulkError::Request { begun: 1.., .. } => E::Partly,
        BulkError::TooMany { begun: 0, .. } => E::NotNow,
        BulkError::Request { begun: 0, error, .. } => of_request(error),
    }
}

fn of_configure(error: &ConfigureError) -> Exit {
    match error {
        ConfigureError::Invalid(_) | ConfigureError::TooMany { .. } => E::Refused,
        ConfigureError::Changed { .. } => E::Conflict,
        ConfigureError::Request { stored: 1.., .. } => E::Partly,
        ConfigureError::Request { stored: 0, error } => of_request(error),
    }
}

fn of_store(error: &StoreError) -> Exit {
    match error {
        StoreError::Unavailable(_) => E::NotNow,
        StoreError::Unusable(_) => E::StoreUnusable,
    }
}

fn of_broker(error: &BrokerError) -> Exit {
    match error {
        BrokerError::Fenced { .. } => E::Fenced,
        BrokerError::Store { source, .. } => of_store(source),
        BrokerError::Refused(_) => E::Refused,
        BrokerError::AddressTaken { .. } => E::AddressTaken,
        _ => E::Failed,
    }
}

fn of_start(error: &StartError) -> Exit {
    match error {
        StartError::Options(_) | StartError::Access(_) => E::Usage,
        StartError::Listen { .. } | StartError::Http { .. } => E::Listen,
        StartError::Store(error) => of_store(error),
        StartError::StoreAway { .. } | StartError::NotJoined { .. } => E::NotNow,
        StartError::Ended(error) => of_broker(error),
        _ => E::Failed,
    }
}

fn of_connect(error: &ConnectError) -> Exit {
    match error {
        ConnectError::NoBroker
        | ConnectError::Address(_)
        | ConnectError::Tls(_)
        | ConnectError::TokenTooLong { .. } => E::Usage,
        ConnectError::Encryption { .. } => E::Refused,
        ConnectError::Refused { code, .. } => refused(*code),
        _ => E::NoConnection,
    }
}

fn of_register(error: &RegisterError) -> Exit {
    match error {
        RegisterError::Refused { .. } => E::Refused,
        RegisterError::TooMany { .. }
        | RegisterError::Concurrency { .. }
        | RegisterError::Closed
        | RegisterError::Observer => E::Usage,
    }
}

macro_rules! failure_from {
    ($($error:ty => $exit:expr),* $(,)?) => { $(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                let exit: fn(&$error) -> Exit = $exit;
                Self::new(exit(&error), error.to_string())
            }
        }
    )* };
}
failure_from! {
    ConnectError => of_connect,
    RequestError => of_request,
    ScheduleError => of_schedule,
    BulkError => of_bulk,
    ConfigureError => of_configure,
    StoreError => of_store,
    BrokerError => of_broker,
    StartError => of_start,
    ConfigError => |_| E::Usage,
    RegisterError => of_register,
    CloseError => |_| E::Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_told_once() {
        let mut codes: Vec<u8> = ALL.iter().map(|(e, ..)| *e as u8).collect();
        assert!(codes.is_sorted());
        codes.dedup();
        assert_eq!(codes.len(), ALL.len());
        assert_eq!(table().lines().count(), ALL.len());
        assert_eq!(Exit::TooLate.name(), "too-late");
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let failure = Failure::output(&io::ErrorKind::BrokenPipe.into());
        assert_eq!((failure.exit, failure.message.as_str()), (Exit::Done, ""));
        assert_eq!(Failure::output(&io::ErrorKind::StorageFull.into()).exit, Exit::Failed);
    }

    #[test]
    fn what_may_be_repeated_differs_from_what_may_not() {
        let request = |code| RequestError::Refused { code, message: String::new() };
        assert_eq!(of_request(&request(ErrorCode::StoreFull)), Exit::NotNow);
        assert_eq!(of_request(&request(ErrorCode::Invalid)), Exit::Refused);
        assert_eq!(of_request(&RequestError::Unknown { reason: String::new() }), Exit::Unknown);
    }
}
