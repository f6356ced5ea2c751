//! Why a data directory cannot be opened.

use std::io;
use std::path::{Path, PathBuf};

/// Why a data directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process (or another store in this one) has it open.
    #[error(
        "the data directory {path} is in use by another mtimer process: stop that one or choose another directory"
    )]
    Locked {
        /// Which directory.
        path: PathBuf,
    },
    /// It was made for another number of partitions.
    #[error(
        "the data directory {path} has {stored} partitions, asked for were {given}: \
         set the partition count to {stored} or choose another directory"
    )]
    Partitions {
        /// Which directory.
        path: PathBuf,
        /// It has so many.
        stored: u16,
        /// Asked for.
        given: u16,
    },
    /// No cluster has that many partitions.
    #[error("{given} partitions were asked for, allowed are 1 to {max}")]
    PartitionCount {
        /// Asked for.
        given: u16,
        /// Most.
        max: u16,
    },
    /// Something else lives there.
    #[error("the directory {path} is not empty and not an mtimer data directory: choose another one")]
    Foreign {
        /// Which directory.
        path: PathBuf,
    },
    /// Written by another version of mtimer.
    #[error(
        "the data directory {path} has format {stored}, this version reads only format {ours} and converts no other: \
         use the version that wrote it, or start with an empty directory"
    )]
    Format {
        /// Which directory.
        path: PathBuf,
        /// Its format.
        stored: u32,
        /// Ours.
        ours: u32,
    },
    /// It is an mtimer data directory, but its contents cannot be read.
    #[error(
        "the data directory {path} is damaged: {what}. Nothing was changed. See what can be kept with \
         `mtimer repair --data {path} --dry-run`, or restore it from a backup"
    )]
    Damaged {
        /// Which directory.
        path: PathBuf,
        /// The fault, in words.
        what: String,
    },
    /// It is damaged where a repair can keep nothing.
    #[error("the data directory {path} is damaged beyond repair: {what}. Restore it from a backup")]
    Unrepairable {
        /// Which directory.
        path: PathBuf,
        /// The fault, in words.
        what: String,
    },
    /// The operating system refused.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// The attempted step, in words.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Makes an error of the system's refusal, with the place.
pub(crate) fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io { what, path, source }
}
