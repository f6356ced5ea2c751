//! A copy of a damaged database that the storage engine opens: without the unreadable parts of its
//! journals.

use std::fs::{self};
use std::io;
use std::path::Path;

use crate::check::{self, JournalFile};
use crate::group::{self, Group};
use crate::journal::{self, Flaw, FlawKind};

/// Copies a database, its journals without the unreadable parts. Tables are linked: they never
/// change.
pub(super) fn copy_database(directory: &Path, from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to.join("keyspaces"))?;
    fs::write(to.join("version"), b"FJL\x03")?;
    fs::write(to.join("lock"), b"")?;
    let mut copied = Ok(());
    let mut bridges = Bridges::default();
    check::check_journals(from, group::watermark(directory)?, |journal, flaws| {
        let name = journal.path.file_name().unwrap_or_default();
        let written = fs::write(to.join(name), bridges.patched(journal, flaws));
        if copied.is_ok() {
            copied = written;
        }
    })?;
    copied?;
    for entry in from.join("keyspaces").read_dir()? {
        let space = entry?.path();
        if space.is_dir() {
            let to = to.join("keyspaces").join(space.file_name().unwrap_or_default());
            copy_space(&space, &to)?;
        }
    }
    Ok(())
}

fn copy_space(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to.join("tables"))?;
    for entry in from.read_dir()? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    for entry in from.join("tables").read_dir().into_iter().flatten() {
        let entry = entry?;
        let link = to.join("tables").join(entry.file_name());
        if fs::hard_link(entry.path(), &link).is_err() {
            fs::copy(entry.path(), &link)?;
        }
    }
    Ok(())
}

/// Leaves flawed batches out of journals: a batch with nothing but a header stands for the lost
/// ones, so that the numbers go on.
#[derive(Default)]
struct Bridges {
    /// The last batch that was kept.
    last: Option<journal::JournalBatch>,
}

impl Bridges {
    fn patched(&mut self, journal: &JournalFile, flaws: &[(Flaw, FlawKind)]) -> Vec<u8> {
        let bytes = &journal.bytes[..];
        let mut patched = Vec::with_capacity(bytes.len());
        let mut at = 0;
        for (flaw, kind) in flaws {
            self.keep(bytes, at, flaw.at, &mut patched);
            at = match kind {
                FlawKind::Damaged { next: Some(next) } => {
                    self.bridge(next, &mut patched);
                    next.at
                }
                FlawKind::Damaged { next: None } | FlawKind::Torn => bytes.len(),
            };
        }
        self.keep(bytes, at, bytes.len(), &mut patched);
        patched
    }

    fn keep(&mut self, bytes: &[u8], mut at: usize, end: usize, patched: &mut Vec<u8>) {
        patched.extend(&bytes[at..end]);
        while let Some(batch) = journal::parse(bytes, at).ok().filter(|batch| batch.end <= end) {
            (at, self.last) = (batch.end, Some(batch));
        }
    }

    fn bridge(&self, next: &journal::JournalBatch, patched: &mut Vec<u8>) {
        let last = self.last.and_then(|last| last.header.map(|(group, _)| (group.last, last.seqno)));
        let (Some((last, seqno)), Some((group, keyspace))) = (last, next.header) else { return };
        // The lost batches had numbers of their own, so there is one left in between.
        if group.first > last + 1 && next.seqno > seqno + 1 {
            let header =
                Group { last: group.first - 1, first: last + 1, synced: last, seqno_floor: next.seqno - 1 };
            patched.extend(journal::bridge(header, keyspace));
        }
    }
}
