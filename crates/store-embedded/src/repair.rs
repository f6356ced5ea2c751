//! Repairs a damaged data directory: writes all readable rows to a new database, which takes the
//! place of the old one. The old one is kept.
//!
//! Batches that are missing in a journal are bridged, key intervals that cannot be read in a table
//! are left out, and rows that contradict each other are brought into agreement: the entry for
//! moved timers decides where a timer is. If anything answered was lost, every at-most-once timer
//! that waits and was not written since is filed as claimed and unconfirmed: a lost write may have
//! taken it, or rescheduled it to a time at which it was taken.
//!
//! Invariant: the damaged database is not changed, only moved.

mod between;
mod copy;
mod report;
mod rows;

use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::check::{self, JournalCheck};
use crate::damage::Damage;
use crate::directory::Directory;
use crate::fault::Fault;
use crate::group::{self, Watermark};
use crate::open_error::OpenError;
use crate::tree::Tree;

use self::copy::copy_database;
pub use self::report::RepairReport;
use self::rows::Rebuild;

/// Where the new database is made.
const WORK: &str = "repair.tmp";
const CACHE_BYTES: u64 = 32 * 1024 * 1024;

/// Repairs a data directory that no broker has open, or only reports the effect of a repair.
///
/// # Errors
///
/// If the directory is in use, is not mtimer's, cannot be written, or is damaged where nothing can
/// be kept without a backup: in a manifest, or in the part of a table that says where its rows are.
pub fn repair(path: &Path, dry_run: bool) -> Result<RepairReport, OpenError> {
    let directory = Directory::existing(path)?;
    let io = |what| move |source| OpenError::Io { what, path: path.to_owned(), source };
    let work = path.join(WORK);
    if !directory.database.try_exists().map_err(io("look into"))? && work.join("new").is_dir() {
        // A repair was interrupted when everything was written.
        finish(path, &directory).map_err(io("repair"))?;
        return Ok(RepairReport { kept_in: Some(path.to_owned()), ..RepairReport::default() });
    }
    let checked = check::check(path, &directory.database, u64::MAX).map_err(io("check"))?;
    remove(&work).map_err(io("clear"))?;
    let rebuilt = catch_unwind(AssertUnwindSafe(|| rebuild(path, &directory, &checked)));
    let report = match rebuilt.unwrap_or(Err(Fault::Panicked)) {
        Ok(report) => report,
        Err(fault) => {
            remove(&work).map_err(io("clear"))?;
            let first = checked.damages.first().map(Damage::to_string);
            let what = first.unwrap_or_else(|| fault.to_string());
            return Err(OpenError::Unrepairable { path: path.to_owned(), what });
        }
    };
    if dry_run || report.is_clean() {
        remove(&work).map_err(io("clear"))?;
        return Ok(report);
    }
    let kept = finish(path, &directory).map_err(io("repair"))?;
    Ok(RepairReport { kept_in: Some(kept), ..report })
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Puts the new database in the place of the old one, which is kept.
fn finish(path: &Path, directory: &Directory) -> io::Result<PathBuf> {
    // Without a database, but with a watermark, the directory does not open: an interruption
    // between the two renames is noticed.
    let watermark = Watermark::open(path)?;
    watermark.set(group::watermark(path)?.unwrap_or(0).max(1))?;
    watermark.sync()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let kept = path.join(format!("before-repair-{now}"));
    if directory.database.try_exists()? {
        fs::create_dir(&kept)?;
        fs::rename(&directory.database, kept.join("db"))?;
        fs::copy(path.join(group::WATERMARK), kept.join(group::WATERMARK))?;
        File::open(path)?.sync_all()?;
    }
    fs::rename(path.join(WORK).join("new"), &directory.database)?;
    File::open(path)?.sync_all()?;
    fs::remove_file(path.join(group::WATERMARK))?;
    remove(&path.join(WORK))?;
    File::open(path)?.sync_all()?;
    Ok(kept)
}

/// Writes all readable rows to a new database.
fn rebuild(path: &Path, directory: &Directory, checked: &JournalCheck) -> Result<RepairReport, Fault> {
    let work = path.join(WORK);
    let (old, new) = (work.join("old"), work.join("new"));
    fs::create_dir_all(&work)?;
    copy_database(path, &directory.database, &old)?;
    let report = RepairReport {
        damages: checked.damages.clone(),
        unfinished_bytes: checked.torn_bytes(),
        ..RepairReport::default()
    };
    let from = Tree::open_damaged(&old, CACHE_BYTES)?;
    let mut to = Tree::open(&new, CACHE_BYTES)?;
    to.raise_group(from.group().max(group::watermark(path)?.unwrap_or(0)));
    Rebuild::new(from, to, directory.partitions(), report, checked.intact_from).run()
}

#[cfg(test)]
mod tests {
    use mtimer_store::bulk::BulkJob;
    use mtimer_types::{Bulk, BulkAction, BulkId, Filter, PartitionId, Time};

    use super::*;
    use crate::layout::{FactName, Space, fact_key};
    use crate::options::EmbeddedOptions;
    use crate::{EmbeddedStore, SpaceLimits};

    fn open(path: &Path) -> Result<EmbeddedStore, OpenError> {
        let space = SpaceLimits { watermark: 0, reserve: 0 };
        EmbeddedStore::open(EmbeddedOptions { space, ..EmbeddedOptions::new(path, 4) })
    }

    #[tokio::test]
    async fn a_bulk_job_that_cannot_be_read_is_damage_and_dropped_by_a_repair() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path()).unwrap().close().await;
        let database = dir.path().join("db");
        let job = |number| {
            let bulk = Bulk::new(BulkAction::Cancel, Filter::default());
            BulkJob::new(number, BulkId(1), bulk, Time::ZERO).to_bytes()
        };
        // One that is whole; one in another's place, one that is cut off, one of no partition.
        let key = |p, number| fact_key(FactName::Bulk(PartitionId(p), number));
        let mut tree = Tree::open(&database, CACHE_BYTES).unwrap();
        for (key, value) in
            [(key(1, 7), job(7)), (key(1, 8), job(9)), (key(1, 9), job(9).slice(..20)), (key(4, 1), job(1))]
        {
            tree.put(Space::Facts, key, &value[..]);
        }
        tree.write().unwrap();
        tree.sync().unwrap();
        drop(tree);

        let refused = open(dir.path()).err().unwrap().to_string();
        assert!(refused.contains("a bulk job is unreadable"), "{refused}");
        let report = repair(dir.path(), false).unwrap();
        assert_eq!((report.rows_dropped, report.damages), (3, Vec::new()));
        open(dir.path()).unwrap().close().await;
        let tree = Tree::open(&database, CACHE_BYTES).unwrap();
        let kept = |p, number| tree.get(Space::Facts, &key(p, number)).unwrap();
        assert_eq!(
            [(1, 7), (1, 8), (1, 9), (4, 1)].map(|(p, n)| kept(p, n)),
            [Some(job(7)), None, None, None]
        );
    }
}
