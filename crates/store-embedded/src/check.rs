//! Checks a database before the engine opens it.
//!
//! Purpose: finds damage in answered batches; truncates an unanswered torn batch. The engine does
//! neither.
//!
//! Invariant: only [`JournalCheck::cut_torn`] changes files, and only unsynced bytes.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::damage::Damage;
use crate::group;
use crate::journal::{Flaw, FlawKind, Walk};
use crate::layout::Space;
use crate::tables;

/// Bytes of tables that are read and checked when a directory is opened: a few seconds' reading.
/// Tables beyond them are checked block by block when they are read.
pub(crate) const CHECKED_AT_OPEN: u64 = 1024 * 1024 * 1024;
/// The engine's key spaces: ours and its own, which holds their names.
const SPACES: usize = Space::ALL.len() + 1;

/// A journal's file.
#[derive(Debug)]
pub(crate) struct JournalFile {
    pub(crate) path: PathBuf,
    /// Without the zeros at its end.
    pub(crate) bytes: Vec<u8>,
    /// Whether a newer one exists.
    pub(crate) is_sealed: bool,
}

/// The unsynced bytes after the last whole batch of the newest journal.
#[derive(Debug)]
pub(crate) struct Torn {
    pub(crate) path: PathBuf,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

/// Contents of the journals.
#[derive(Debug, Default)]
pub(crate) struct JournalCheck {
    pub(crate) walk: Walk,
    pub(crate) damages: Vec<Damage>,
    /// Rows with this sequence number of the engine or a later one were written after everything
    /// that is lost. 0: nothing is lost. `u64::MAX`: it is not known.
    pub(crate) intact_from: u64,
    torn: Option<Torn>,
}

impl JournalCheck {
    /// Cuts off the unsynced bytes, and returns how many they were.
    pub(crate) fn cut_torn(&self) -> io::Result<Option<&Torn>> {
        if let Some(torn) = &self.torn {
            let file = File::options().write(true).open(&torn.path)?;
            file.set_len(torn.at)?;
            file.sync_all()?;
        }
        Ok(self.torn.as_ref())
    }

    /// Bytes behind the last whole batch that were not synced.
    pub(crate) fn torn_bytes(&self) -> u64 {
        self.torn.as_ref().map_or(0, |torn| torn.bytes)
    }
}

/// The journals' paths, the oldest first.
pub(crate) fn journals(database: &Path) -> io::Result<Vec<PathBuf>> {
    let mut numbered = Vec::new();
    if database.try_exists()? {
        for entry in database.read_dir()? {
            let path = entry?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let number = stem.and_then(|stem| stem.parse::<u64>().ok());
            if let Some(number) = number.filter(|_| path.extension().is_some_and(|ext| ext == "jnl")) {
                numbered.push((number, path));
            }
        }
    }
    numbered.sort();
    Ok(numbered.into_iter().map(|(_, path)| path).collect())
}

/// Reads a journal without the zeros at its end.
pub(crate) fn read_journal(path: &Path) -> io::Result<Vec<u8>> {
    const CHUNK: usize = 64 * 1024;
    static ZEROS: [u8; CHUNK] = [0; CHUNK];
    let mut file = File::open(path)?;
    let (mut bytes, mut used) = (Vec::new(), 0);
    loop {
        let start = bytes.len();
        if file.by_ref().take(CHUNK as u64).read_to_end(&mut bytes)? == 0 {
            bytes.truncate(used);
            return Ok(bytes);
        }
        let chunk = &bytes[start..];
        if chunk != &ZEROS[..chunk.len()] {
            used = start + chunk.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        }
    }
}

/// Goes through the journals. `on_journal` sees each of them, with the damage in it.
pub(crate) fn check_journals(
    database: &Path,
    watermark: Option<u64>,
    mut on_journal: impl FnMut(&JournalFile, &[(Flaw, FlawKind)]),
) -> io::Result<JournalCheck> {
    let mut checked = JournalCheck::default();
    let paths = journals(database)?;
    for (n, path) in paths.iter().enumerate() {
        let journal =
            JournalFile { path: path.clone(), bytes: read_journal(path)?, is_sealed: n + 1 < paths.len() };
        let flaws = checked.journal(&journal, watermark);
        on_journal(&journal, &flaws);
    }
    let JournalCheck { walk, damages, torn, intact_from } = &mut checked;
    let last = walk.last.unwrap_or(0);
    if let (Some(path), Some(synced)) = (paths.last(), watermark.filter(|synced| *synced > last))
        && (walk.last.is_some() && torn.is_none() && damages.is_empty())
    {
        let mut damage = Damage::new(path, read_journal(path)?.len() as u64, "the journal ends too early");
        damage.batches = Some(synced - last);
        damages.push(damage);
        *intact_from = u64::MAX;
    }
    Ok(checked)
}

impl JournalCheck {
    fn journal(&mut self, journal: &JournalFile, watermark: Option<u64>) -> Vec<(Flaw, FlawKind)> {
        let bytes = &journal.bytes[..];
        let mut flaws = Vec::new();
        let (mut at, mut flaw) = self.walk.take(bytes, 0);
        while let Some(found) = flaw {
            let kind = self.walk.judge(bytes, found, watermark, journal.is_sealed);
            flaws.push((found, kind));
            let lost_from = self.walk.last;
            let FlawKind::Damaged { next } = kind else {
                let bytes = (bytes.len() - at) as u64;
                self.torn = Some(Torn { path: journal.path.clone(), at: at as u64, bytes });
                break;
            };
            self.intact_from = self.intact_from.max(next.map_or(u64::MAX, |next| next.seqno));
            let end = next.map_or(bytes.len(), |next| next.at);
            let until = next.and_then(|next| next.header).map(|(group, _)| group.first - 1);
            let until = until.or(watermark.filter(|_| !journal.is_sealed));
            self.damages.push(Damage {
                file: journal.path.clone(),
                offset: found.at as u64,
                bytes: Some((end - found.at) as u64),
                batches: lost_from.zip(until).map(|(from, until)| until.saturating_sub(from)),
                what: found.what.to_owned(),
            });
            let Some(next) = next else { break };
            self.walk.skip_to(&next);
            (at, flaw) = self.walk.take(bytes, next.at);
        }
        flaws
    }
}

/// Whether the engine's version is there, which it writes when it has made a database.
pub(crate) fn has_version(database: &Path) -> io::Result<bool> {
    match fs::read(database.join("version")) {
        Ok(bytes) => Ok(bytes == b"FJL\x03"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Checks the engine's own files and its tables. Reads up to `limit` bytes of tables.
pub(crate) fn check_tables(database: &Path, has_batches: bool, limit: u64) -> io::Result<Vec<Damage>> {
    let mut damages = Vec::new();
    if !has_version(database)? {
        let version = database.join("version");
        let what = if version.try_exists()? {
            "it does not say the engine's version"
        } else {
            "the file is missing"
        };
        damages.push(Damage::new(&version, 0, what));
    }
    let folder = database.join("keyspaces");
    let mut whole = 0;
    let mut left = limit;
    for entry in folder.read_dir().into_iter().flatten() {
        let space = entry?.path();
        if !space.is_dir() {
            continue;
        }
        if !space.join("current").try_exists()? {
            // The engine removes a key space without `current`: its creation was cut off.
            if has_tables(&space) {
                damages.push(Damage::new(&space.join("current"), 0, "the file is missing"));
            }
            continue;
        }
        whole += 1;
        match tables::manifest(&space) {
            Err(damage) => damages.push(damage),
            Ok(listed) => {
                for table in listed {
                    let bytes = table.bytes();
                    if bytes > left && table.path.is_file() {
                        continue;
                    }
                    left -= bytes.min(left);
                    damages.extend(table.check().err());
                }
            }
        }
    }
    // The first batch is written when all key spaces exist.
    if has_batches && whole < SPACES && damages.is_empty() {
        let what = format!("{} of the {SPACES} key spaces are missing", SPACES - whole);
        damages.push(Damage::new(&folder, 0, what));
    }
    damages.sort_by(|a, b| (&a.file, a.offset).cmp(&(&b.file, b.offset)));
    Ok(damages)
}

fn has_tables(space: &Path) -> bool {
    space.join("tables").read_dir().is_ok_and(|mut entries| entries.next().is_some())
}

/// Checks everything before the engine opens it. Returns the contents of the journals.
pub(crate) fn check(directory: &Path, database: &Path, limit: u64) -> io::Result<JournalCheck> {
    let watermark = group::watermark(directory)?;
    let mut checked = check_journals(database, watermark, |_, _| {})?;
    let has_batches = checked.walk.batches > 0 || watermark.is_some_and(|synced| synced > 0);
    if database.try_exists()? || has_batches {
        let mut others = check_tables(database, has_batches, limit)?;
        if has_batches && journals(database)?.is_empty() {
            others.push(Damage::new(&database.join("0.jnl"), 0, "the journal is missing"));
        }
        if !others.is_empty() {
            checked.intact_from = u64::MAX;
        }
        checked.damages.extend(others);
    }
    Ok(checked)
}
