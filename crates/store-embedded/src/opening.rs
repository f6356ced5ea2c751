//! Opens a data directory that is locked: checks it, has the engine read it, and makes the
//! committer.
//!
//! Invariant: a damaged database is refused and not changed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::check::{self, JournalCheck};
use crate::committer::Committer;
use crate::damage::Damage;
use crate::fault::{self, Fault};
use crate::group::{self, Watermark};
use crate::open_error::OpenError;
use crate::options::{EmbeddedDurability, EmbeddedOptions};
use crate::space::DiskSpace;
use crate::tree::Tree;

/// Facts of a directory that are known without opening it.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    path: PathBuf,
    database: PathBuf,
    cache_bytes: u64,
    partitions: u16,
    durability: EmbeddedDurability,
}

impl Opening {
    pub(crate) fn new(database: PathBuf, options: &EmbeddedOptions) -> Self {
        let EmbeddedOptions { path, partitions, durability, cache_bytes, .. } = options.clone();
        Self { path, database, cache_bytes, partitions, durability }
    }

    /// Opens the directory.
    ///
    /// # Errors
    ///
    /// If it is damaged, or cannot be written.
    pub(crate) fn committer(self, space: DiskSpace) -> Result<Committer, OpenError> {
        let path = self.path.clone();
        let checked = prepare(&path, &self.database)?;
        // The engine panics on some kinds of damage.
        catch_unwind(AssertUnwindSafe(|| {
            let mut tree = Tree::open(&self.database, self.cache_bytes).map_err(|e| unreadable(&path, &e))?;
            is_complete(&path, &tree, &checked)?;
            let watermark = Watermark::open(&path).and_then(|watermark| tree.keep_watermark(watermark));
            watermark.map_err(|source| OpenError::Io {
                what: "write",
                path: path.join(group::WATERMARK),
                source,
            })?;
            let Self { partitions, durability, .. } = self;
            let reopen = Box::new(move |space| self.committer(space));
            let committer = Committer::new(tree, partitions, durability, space, reopen);
            committer.restored().map_err(|fault: Fault| damaged(&path, fault.to_string()))
        }))
        .unwrap_or_else(|_| Err(damaged(&path, "the storage engine could not make sense of it".to_owned())))
    }
}

/// Checks the database, refuses a damaged one, and cuts off a batch that was never synced.
fn prepare(path: &Path, database: &Path) -> Result<JournalCheck, OpenError> {
    let io = |source| OpenError::Io { what: "check", path: path.to_owned(), source };
    let checked = check::check(path, database, check::CHECKED_AT_OPEN).map_err(io)?;
    if let Some(damage) = checked.damages.first() {
        let more = match checked.damages.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more places)"),
        };
        return Err(damaged(path, format!("{damage}{more}")));
    }
    if let Some(torn) = checked.cut_torn().map_err(io)? {
        tracing::warn!(
            file = %torn.path.display(),
            offset = torn.at,
            bytes = torn.bytes,
            "cut off a write that was not finished; what it was for was not answered as stored"
        );
    }
    Ok(checked)
}

/// Refuses a database of which the engine has read less than there was.
fn is_complete(path: &Path, tree: &Tree, checked: &JournalCheck) -> Result<(), OpenError> {
    let io = |source| OpenError::Io { what: "read", path: path.join(group::WATERMARK), source };
    let synced = group::watermark(path).map_err(io)?.unwrap_or(0);
    let expected = synced.max(checked.walk.last.unwrap_or(0));
    if tree.group() < expected {
        let mut damage = Damage::new(&path.join("db"), 0, "journals or tables are missing");
        damage.batches = Some(expected - tree.group());
        return Err(damaged(path, damage.to_string()));
    }
    Ok(())
}

fn damaged(path: &Path, what: String) -> OpenError {
    OpenError::Damaged { path: path.to_owned(), what }
}

fn unreadable(path: &Path, error: &fjall::Error) -> OpenError {
    match error {
        fjall::Error::Locked => OpenError::Locked { path: path.to_owned() },
        error => damaged(path, fault::describe(error)),
    }
}
