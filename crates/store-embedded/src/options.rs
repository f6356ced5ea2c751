//! Options of an embedded store.

use std::path::PathBuf;
use std::time::Duration;

use crate::space::SpaceLimits;

/// How an embedded store is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EmbeddedOptions {
    /// The data directory; made if it does not exist. On a local disk: a lock file keeps other
    /// processes away.
    pub path: PathBuf,
    /// How many partitions; fixed when the directory is made.
    pub partitions: u16,
    /// The durability of an answered write.
    pub durability: EmbeddedDurability,
    /// Bytes of memory for rows read from disk. Up to about 150 MiB more are in memory to be
    /// written.
    pub cache_bytes: u64,
    /// When to warn of little free space, and when to refuse operations that add.
    pub space: SpaceLimits,
}

/// The durability of a write when the store answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EmbeddedDurability {
    /// `embedded-sync`: everything, synced; survives a power cut.
    #[default]
    Sync,
    /// `embedded-fast`: handed to the operating system, synced every so often; survives a crash of
    /// the process. A power cut may lose writes since the last sync.
    Fast {
        /// Longest time between a write and its sync.
        every: Duration,
    },
}

impl EmbeddedDurability {
    /// [`EmbeddedDurability::Fast`] with its usual 50 ms.
    pub const fn fast() -> Self {
        Self::Fast { every: Duration::from_millis(50) }
    }

    /// The level's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sync => "embedded-sync",
            Self::Fast { .. } => "embedded-fast",
        }
    }
}

impl EmbeddedOptions {
    /// The usual settings for a directory: synced, 32 MiB of cache.
    pub fn new(path: impl Into<PathBuf>, partitions: u16) -> Self {
        let (durability, cache_bytes) = (EmbeddedDurability::default(), 32 * 1024 * 1024);
        Self { path: path.into(), partitions, durability, cache_bytes, space: SpaceLimits::default() }
    }
}
