//! The data directory: its lock, and the checks before it is opened.
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
use std::io;
use std::path::{Path, PathBuf};

use mtimer_types::limits;

use crate::marker::{MARKER, check_marker, read_marker, temporary_name, write_marker};
use crate::open_error::{OpenError, io_error};
use crate::{check, group};

const LOCK: &str = "mtimer.lock";
const DATABASE: &str = "db";

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
        // The process that held the lock may have made the directory meanwhile.
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

/// Whether the directory has nothing but the files that opening leaves behind.
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

/// Refuses names that do not belong in a database: the engine takes every name in it for one of its
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
    use crate::marker::check_line;

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
            b"mtimer embedded store\nformat 13\npartitions 4\n",
            b"mtimer embedded store\nformat 13\npartitions 5\ncheck 0000000000000000\n",
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
        let newer = "mtimer embedded store\nformat 14\npartitions 4\n";
        let newer = format!("{newer}{}", check_line(newer));
        let older = [3, 4, 5, 6].map(|format| {
            let text = format!("mtimer embedded store\nformat {format}\npartitions 4\n");
            format!("{text}{}", check_line(&text))
        });
        for (text, format) in [
            ("mtimer embedded store\nformat 1\npartitions 4\n", 1),
            ("mtimer embedded store\nformat 2\npartitions 4\n", 2),
            (&older[0], 3),
            (&older[1], 4),
            (&older[2], 5),
            (&older[3], 6),
            (&newer, 14),
        ] {
            std::fs::write(&marker, text).unwrap();
            let says = format!(
                "has format {format}, this version reads only format 13 and converts no other: \
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
