//! A damaged place of a data directory, as the check before opening and a repair report it.

use std::fmt;
use std::path::{Path, PathBuf};

/// A place of a data directory that differs from what was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The damaged file.
    pub file: PathBuf,
    /// Where in the file.
    pub offset: u64,
    /// How many bytes cannot be read, if that is known.
    pub bytes: Option<u64>,
    /// How many answered write batches are lost with them, if that is known. Each holds operations
    /// that were answered together.
    pub batches: Option<u64>,
    /// The damage.
    pub what: String,
}

impl Damage {
    pub(crate) fn new(file: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), offset, bytes: None, batches: None, what: what.into() }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at offset {}: {}", self.file.display(), self.offset, self.what)?;
        match self.batches {
            Some(1) => write!(f, "; 1 answered batch is lost"),
            Some(n) => write!(f, "; {n} answered batches are lost"),
            None => Ok(()),
        }
    }
}
