//! The data directory: who may open it, and whether it is what it should be.
//!
//! | file | what |
//! |---|---|
//! | `mtimer.lock` | locked by the process that has the directory open |
//! | `mtimer-store` | text: format, partition count, a checksum; written before what it tells of |
//! | `mtimer-synced` | the number of the last synced batch ([`crate::group::Watermark`]) |
//! | `db/` | the storage engine's |
//! | `before-repair-*/` | what a repair has replaced |

use std::ffi::OsStr;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use mtimer_types::limits;
use xxhash_rust::xxh3::xxh3_64;

use crate::{check, group};

const LOCK: &str = "mtimer.lock";
const MARKER: &str = "mtimer-store";
const DATABASE: &str = "db";
const TITLE: &str = "mtimer embedded store";
/// The only format that is read. A change of what is stored needs another one.
const FORMAT: u32 = 4;
const CHECK: &str = "check ";

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
    /// It is an mtimer data directory, but what is in it cannot be read.
    #[error(
        "the data directory {path} is damaged: {what}. Nothing was changed. See what can be kept with \
         `mtimer repair --data {path} --dry-run`, or restore it from a backup"
    )]
    Damaged {
        /// Which directory.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// It is damaged where a repair can keep nothing.
    #[error("the data directory {path} is damaged beyond repair: {what}. Restore it from a backup")]
    Unrepairable {
        /// Which directory.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The operating system refused.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// A data directory that is ours alone.
pub(crate) struct Directory {
    /// Unlocked when it is dropped.
    pub(crate) lock: File,
    pub(crate) database: PathBuf,
    partitions: u16,
}

impl Directory {
    pub(crate) fn open(path: &Path, partitions: u16) -> Result<Self, OpenError> {
        if !(1..=limits::MAX_PARTITIONS).contains(&partitions) {
            return Err(OpenError::PartitionCount { given: partitions, max: limits::MAX_PARTITIONS });
        }
        std::fs::create_dir_all(path).map_err(io_error("create the directory", path))?;
        let marker = path.join(MARKER);
        let is_ours = marker.try_exists().map_err(io_error("look for", &marker))?;
        if !is_ours && !is_empty(path)? {
            return Err(OpenError::Foreign { path: path.to_owned() });
        }
        let lock = lock(path)?;
        // Whoever held the lock may have made the directory meanwhile.
        if marker.try_exists().map_err(io_error("look for", &marker))? {
            check_marker(path, &marker, partitions)?;
        } else {
            write_marker(path, &marker, partitions)?;
        }
        let database = path.join(DATABASE);
        clear_unfinished(path, &database)?;
        check_names(path, &database)?;
        Ok(Self { lock, database, partitions })
    }

    /// Locks a directory that exists, to repair it. Changes nothing.
    pub(crate) fn existing(path: &Path) -> Result<Self, OpenError> {
        let marker = path.join(MARKER);
        if !marker.try_exists().map_err(io_error("look for", &marker))? {
            return Err(OpenError::Foreign { path: path.to_owned() });
        }
        let lock = lock(path)?;
        let partitions = read_marker(path, &marker)?;
        let database = path.join(DATABASE);
        Ok(Self { lock, database, partitions })
    }

    pub(crate) const fn partitions(&self) -> u16 {
        self.partitions
    }
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io { what, path, source }
}

/// Whether there is nothing in the directory but what opening leaves behind.
fn is_empty(path: &Path) -> Result<bool, OpenError> {
    let leftovers = [LOCK, &temporary_name()];
    for entry in path.read_dir().map_err(io_error("list", path))? {
        let name = entry.map_err(io_error("list", path))?.file_name();
        if !leftovers.iter().any(|leftover| name == **leftover) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn lock(path: &Path) -> Result<File, OpenError> {
    let file = path.join(LOCK);
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&file)
        .map_err(io_error("open the lock file", &file))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => Err(io_error("lock", &file)(source)),
    }
}

/// Refuses a directory of another format or another number of partitions.
fn check_marker(path: &Path, marker: &Path, partitions: u16) -> Result<(), OpenError> {
    let stored = read_marker(path, marker)?;
    if stored != partitions {
        return Err(OpenError::Partitions { path: path.to_owned(), stored, given: partitions });
    }
    Ok(())
}

/// The directory's partition count, if the directory has the format that is read.
fn read_marker(path: &Path, marker: &Path) -> Result<u16, OpenError> {
    let damaged = || OpenError::Damaged {
        path: path.to_owned(),
        what: format!("{MARKER} at offset 0: it does not say its format and partition count"),
    };
    let bytes = std::fs::read(marker).map_err(io_error("read", marker))?;
    let text = String::from_utf8(bytes).map_err(|_| damaged())?;
    let (text, checksum) = match text.rsplit_once(CHECK) {
        Some((text, checksum)) => (text, Some(checksum)),
        None => (&text[..], None),
    };
    let mut lines = text.lines();
    if lines.next() != Some(TITLE) || checksum.is_some_and(|checksum| checksum != checksum_of(text)) {
        return Err(damaged());
    }
    let number = |line: Option<&str>, name: &str| line?.strip_prefix(name)?.trim().parse::<u32>().ok();
    let format = number(lines.next(), "format").ok_or_else(damaged)?;
    // Formats 1 and 2 have no checksum.
    if format != FORMAT {
        return Err(OpenError::Format { path: path.to_owned(), stored: format, ours: FORMAT });
    }
    if checksum.is_none() {
        return Err(damaged());
    }
    number(lines.next(), "partitions").and_then(|n| u16::try_from(n).ok()).ok_or_else(damaged)
}

fn temporary_name() -> String {
    format!("{MARKER}.new")
}

/// Writes the marker so that it is there whole or not at all.
fn write_marker(path: &Path, marker: &Path, partitions: u16) -> Result<(), OpenError> {
    let temporary = path.join(temporary_name());
    let write = || {
        let text = format!("{TITLE}\nformat {FORMAT}\npartitions {partitions}\n");
        let mut file = File::create(&temporary)?;
        write!(file, "{text}{CHECK}{}", checksum_of(&text))?;
        file.sync_all()?;
        std::fs::rename(&temporary, marker)?;
        File::open(path)?.sync_all()
    };
    write().map_err(io_error("write", marker))
}

fn checksum_of(text: &str) -> String {
    format!("{:016x}\n", xxh3_64(text.as_bytes()))
}

/// Removes a database whose creation was cut off. The engine writes its version last, before
/// anything is stored. A database without a whole one that holds anything was not cut off in
/// creation, but is a part of a backup, or damaged: it stays.
fn clear_unfinished(path: &Path, database: &Path) -> Result<(), OpenError> {
    let look = io_error("look for", database);
    let unfinished = is_unfinished(path, database).map_err(look)?;
    if unfinished {
        std::fs::remove_dir_all(database).map_err(io_error("clear the unfinished", database))?;
    }
    Ok(())
}

fn is_unfinished(path: &Path, database: &Path) -> io::Result<bool> {
    if !database.try_exists()? || check::has_version(database)? {
        return Ok(false);
    }
    if group::watermark(path)?.is_some_and(|synced| synced > 0) {
        return Ok(false);
    }
    for journal in check::journals(database)? {
        if !check::read_journal(&journal)?.is_empty() {
            return Ok(false);
        }
    }
    Ok(!database.join("keyspaces").join("1").try_exists()?)
}

/// Refuses what does not belong in a database: the engine takes every name in it for one of its
/// own, and aborts the process over one that it cannot read.
fn check_names(path: &Path, database: &Path) -> Result<(), OpenError> {
    let is_number = |name: &OsStr| name.to_str().is_some_and(|name| name.parse::<u64>().is_ok());
    check_entries(path, database, |name, is_dir| {
        let name = Path::new(name);
        !name.extension().is_some_and(|ext| ext.eq_ignore_ascii_case("jnl"))
            || (!is_dir
                && name.extension() == Some(OsStr::new("jnl"))
                && name.file_stem().is_some_and(is_number))
    })?;
    check_entries(path, &database.join("keyspaces"), |name, is_dir| !is_dir || is_number(name))
}

fn check_entries(
    path: &Path,
    folder: &Path,
    belongs: impl Fn(&OsStr, bool) -> bool,
) -> Result<(), OpenError> {
    if !folder.try_exists().map_err(io_error("look for", folder))? {
        return Ok(());
    }
    for entry in folder.read_dir().map_err(io_error("list", folder))? {
        let entry = entry.map_err(io_error("list", folder))?;
        let is_dir = !entry.file_type().map_err(io_error("look at", folder))?.is_file();
        if !belongs(&entry.file_name(), is_dir) {
            let what = format!("{} at offset 0: it does not belong there", entry.path().display());
            return Err(OpenError::Damaged { path: path.to_owned(), what });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path, partitions: u16) -> String {
        Directory::open(path, partitions).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_second_opener_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let first = Directory::open(dir.path(), 4).unwrap();
        assert!(refusal(dir.path(), 4).contains("is in use by another mtimer process"));
        drop(first);
        Directory::open(dir.path(), 4).unwrap();
    }

    #[test]
    fn another_partition_count_is_refused_with_both_numbers() {
        let dir = tempfile::tempdir().unwrap();
        drop(Directory::open(dir.path(), 4).unwrap());
        let text = refusal(dir.path(), 8);
        assert!(text.contains("has 4 partitions, asked for were 8: set the partition count to 4"), "{text}");
        assert!(refusal(dir.path(), 0).contains("allowed are 1 to 1024"));
    }

    #[test]
    fn a_directory_of_something_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("thesis.tex"), "x").unwrap();
        assert!(refusal(dir.path(), 4).contains("is not empty and not an mtimer data directory"));
        assert_eq!(dir.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_marker_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for marker in [
            &b"\xff\xfe"[..],
            b"mtimer embedded store\n",
            b"mtimer embedded store\nformat 4\npartitions 4\n",
            b"mtimer embedded store\nformat 4\npartitions 5\ncheck 0000000000000000\n",
            b"mtimer embedded store\nformat 2\npartitions 4\ncheck 0000000000000000\n",
        ] {
            std::fs::write(dir.path().join(MARKER), marker).unwrap();
            assert!(refusal(dir.path(), 4).contains("is damaged"));
        }
    }

    #[test]
    fn another_format_is_refused_with_its_number_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let marker = dir.path().join(MARKER);
        let newer = "mtimer embedded store\nformat 9\npartitions 4\n";
        let newer = format!("{newer}{CHECK}{}", checksum_of(newer));
        let older = "mtimer embedded store\nformat 3\npartitions 4\n";
        let older = format!("{older}{CHECK}{}", checksum_of(older));
        for (text, format) in [
            ("mtimer embedded store\nformat 1\npartitions 4\n", 1),
            ("mtimer embedded store\nformat 2\npartitions 4\n", 2),
            (&older, 3),
            (&newer, 9),
        ] {
            std::fs::write(&marker, text).unwrap();
            let says = format!(
                "has format {format}, this version reads only format 4 and converts no other: \
                 use the version that wrote it, or start with an empty directory"
            );
            assert!(refusal(dir.path(), 4).contains(&says), "{}", refusal(dir.path(), 4));
            let repair = Directory::existing(dir.path()).err().unwrap();
            assert!(repair.to_string().contains(&says), "{repair}");
            assert_eq!(std::fs::read_to_string(&marker).unwrap(), text);
        }
    }

    #[test]
    fn a_database_cut_off_in_creation_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        drop(Directory::open(dir.path(), 4).unwrap());
        let database = dir.path().join(DATABASE);
        std::fs::create_dir_all(&database).unwrap();
        std::fs::write(database.join("0.jnl"), "").unwrap();
        drop(Directory::open(dir.path(), 4).unwrap());
        assert!(!database.exists());
    }

    #[test]
    fn a_database_without_its_version_that_holds_anything_stays() {
        let dir = tempfile::tempdir().unwrap();
        drop(Directory::open(dir.path(), 4).unwrap());
        let journal = dir.path().join(DATABASE).join("0.jnl");
        std::fs::create_dir_all(journal.parent().unwrap()).unwrap();
        std::fs::write(&journal, [0, 0, 1, 0]).unwrap();
        drop(Directory::open(dir.path(), 4).unwrap());
        assert!(journal.exists(), "part of a backup");
        std::fs::write(&journal, [0; 4]).unwrap();
        group::Watermark::open(dir.path()).unwrap().set(1).unwrap();
        drop(Directory::open(dir.path(), 4).unwrap());
        assert!(journal.exists(), "something was answered");
    }
}
