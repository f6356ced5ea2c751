//! Why the store cannot go on.

use std::io::ErrorKind;
use std::sync::Arc;

use mtimer_store::{LaneError, RecordError, StoreError};

/// A read or a write of the data directory that failed. After one, nothing more is written and
/// every lane ends: writes that were answered are on disk, others may or may not be.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Fault {
    #[error(
        "the data directory cannot be used ({0}): free space on its disk or replace it, then restart the broker"
    )]
    Storage(Arc<str>),
    /// A write failed for want of space, before it was synced: the store opens the directory again
    /// when there is space.
    #[error(
        "the disk of the data directory has too little space ({0}): free space there, the broker goes on by itself"
    )]
    NoSpace(Arc<str>),
    /// A background thread of the storage engine failed; it does not say why.
    #[error(
        "the data directory cannot be used (an earlier write in the background failed): restart the broker"
    )]
    Background,
    /// The storage engine cannot read its own files.
    #[error(
        "the data directory is damaged ({0}): stop the broker, then see what can be kept with \
         `mtimer repair --data DIR --dry-run`, or restore it from a backup"
    )]
    Unreadable(Arc<str>),
    #[error("{0}: run `mtimer repair --data DIR`, or restore the data directory from a backup")]
    Record(#[from] RecordError),
    #[error(
        "the data directory is damaged ({0}): run `mtimer repair --data DIR`, or restore it from a backup"
    )]
    Damaged(&'static str),
    #[error("the store failed unexpectedly and has stopped: restart the broker; the log says more")]
    Panicked,
    #[error("the store was closed")]
    Closed,
}

impl From<fjall::Error> for Fault {
    fn from(error: fjall::Error) -> Self {
        let text = describe(&error).into();
        match error {
            fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error))
                if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
            {
                Self::NoSpace(text)
            }
            fjall::Error::Poisoned => Self::Background,
            fjall::Error::Io(_) | fjall::Error::Storage(fjall::LsmError::Io(_)) | fjall::Error::Locked => {
                Self::Storage(text)
            }
            _ => Self::Unreadable(text),
        }
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self::Storage(error.to_string().into())
    }
}

impl From<&Fault> for LaneError {
    fn from(fault: &Fault) -> Self {
        Self::Broken(fault.to_string())
    }
}

impl From<&Fault> for StoreError {
    fn from(fault: &Fault) -> Self {
        match fault {
            Fault::NoSpace(_) => Self::Unavailable(fault.to_string()),
            fault => Self::Unusable(fault.to_string()),
        }
    }
}

/// The storage engine's error, in words.
pub(crate) fn describe(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => error.to_string(),
        fjall::Error::Poisoned => "an earlier write in the background failed".to_owned(),
        fjall::Error::Locked => "another process has it open".to_owned(),
        other => other.to_string(),
    }
}
