//! Repairs a damaged data directory: what can be read is written to a new database, which takes the
//! place of the old one. The old one is kept.
//!
//! Batches that are missing in a journal are bridged, key intervals that cannot be read in a table
//! are left out, and rows that contradict each other are brought into agreement: the entry for
//! moved timers decides where a timer is. If anything answered was lost, at-most-once timers that
//! were due are filed as claimed and unconfirmed, since they may have been delivered.
//!
//! Invariant: the damaged database is not changed, only moved.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Buf, Bytes};
use fjall::Slice;
use mtimer_store::Record;
use mtimer_store::decide::{At, Row};
use mtimer_types::{Destination, Mode, PartitionId, Time, TimerId};

use crate::check::{self, Checked, JournalFile};
use crate::damage::Damage;
use crate::destinations::Destinations;
use crate::directory::{Directory, OpenError};
use crate::fault::Fault;
use crate::group::{self, Group, Watermark};
use crate::journal::{self, Flaw, Verdict};
use crate::layout::{
    Fact, Position, Shelf, Space, fact_key, parse_fact_key, parse_pending_key, parse_shelf_order, put_head,
    take_shelf_head,
};
use crate::partition::{Counters, Owner};
use crate::table::read_row;
use crate::tree::Tree;

/// Where the new database is made.
const WORK: &str = "repair.tmp";
/// Rows of one write.
const STEP: u64 = 4_096;
/// Names of destinations that are made up for lost ones, at most.
const MAX_LOST_NAMES: u32 = 65_536;
const CACHE_BYTES: u64 = 32 * 1024 * 1024;

/// What a repair has found and done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The places that are damaged.
    pub damages: Vec<Damage>,
    /// Bytes of a write that was not finished and not answered. Opening the directory cuts them
    /// off.
    pub unfinished_bytes: u64,
    /// Timers that are kept.
    pub timers_kept: u64,
    /// Rows that cannot be read or contradict others.
    pub rows_dropped: u64,
    /// Of the timers kept: at most once, due, and filed as claimed and unconfirmed, since they may
    /// have been delivered.
    pub unconfirmed: u64,
    /// Of the timers' destinations: so many whose names are lost. They are filed under the group
    /// `lost`, the app being a number.
    pub destinations_lost: u64,
    /// Where the damaged database is kept. `None`: nothing was changed.
    pub kept_in: Option<PathBuf>,
}

impl Report {
    /// Whether there is nothing to repair.
    pub fn is_clean(&self) -> bool {
        self.damages.is_empty() && self.rows_dropped == 0
    }
}

/// Repairs a data directory that no broker has open, or only says what a repair would do.
///
/// # Errors
///
/// If the directory is in use, is not mtimer's, cannot be written, or is damaged where nothing can
/// be kept without a backup: in a manifest, or in the part of a table that says where its rows are.
pub fn repair(path: &Path, dry_run: bool) -> Result<Report, OpenError> {
    let directory = Directory::existing(path)?;
    let io = |what| move |source| OpenError::Io { what, path: path.to_owned(), source };
    let work = path.join(WORK);
    if !directory.database.try_exists().map_err(io("look into"))? && work.join("new").is_dir() {
        // A repair was interrupted when everything was written.
        finish(path, &directory).map_err(io("repair"))?;
        return Ok(Report { kept_in: Some(path.to_owned()), ..Report::default() });
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
    Ok(Report { kept_in: Some(kept), ..report })
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

/// Writes what can be read to a new database.
fn rebuild(path: &Path, directory: &Directory, checked: &Checked) -> Result<Report, Fault> {
    let work = path.join(WORK);
    let (old, new) = (work.join("old"), work.join("new"));
    fs::create_dir_all(&work)?;
    copy_database(path, &directory.database, &old)?;
    let report = Report {
        damages: checked.damages.clone(),
        unfinished_bytes: checked.torn_bytes(),
        ..Report::default()
    };
    let from = Tree::open(&old, CACHE_BYTES)?;
    let mut to = Tree::open(&new, CACHE_BYTES)?;
    to.raise_group(from.group().max(group::watermark(path)?.unwrap_or(0)));
    let mut rebuild = Rebuild {
        from,
        to,
        destinations: Destinations::default(),
        partitions: vec![Counters::default(); usize::from(directory.partitions())],
        owners: BTreeMap::new(),
        parked: BTreeMap::new(),
        is_lossy: !report.damages.is_empty(),
        now: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
        report,
        unwritten: 0,
    };
    rebuild.run()?;
    Ok(rebuild.report)
}

/// Copies a database, its journals without what cannot be read. Tables are linked: they never
/// change.
fn copy_database(directory: &Path, from: &Path, to: &Path) -> io::Result<()> {
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

/// Leaves out of journals what is flawed: a batch with nothing but a header stands for the lost
/// ones, so that the numbers go on.
#[derive(Default)]
struct Bridges {
    /// The last batch that was kept.
    last: Option<journal::Batch>,
}

impl Bridges {
    fn patched(&mut self, journal: &JournalFile, flaws: &[(Flaw, Verdict)]) -> Vec<u8> {
        let bytes = &journal.bytes[..];
        let mut patched = Vec::with_capacity(bytes.len());
        let mut at = 0;
        for (flaw, verdict) in flaws {
            self.keep(bytes, at, flaw.at, &mut patched);
            at = match verdict {
                Verdict::Damaged { next: Some(next) } => {
                    self.bridge(next, &mut patched);
                    next.at
                }
                Verdict::Damaged { next: None } | Verdict::Torn => bytes.len(),
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

    fn bridge(&self, next: &journal::Batch, patched: &mut Vec<u8>) {
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

/// Copies rows from one tree to another.
struct Rebuild {
    from: Tree,
    to: Tree,
    destinations: Destinations,
    partitions: Vec<Counters>,
    owners: BTreeMap<PartitionId, Owner>,
    parked: BTreeMap<(PartitionId, u32), u64>,
    /// Something answered is lost.
    is_lossy: bool,
    /// By the host's clock, in ms.
    now: u64,
    report: Report,
    unwritten: u64,
}

impl Rebuild {
    fn run(&mut self) -> Result<(), Fault> {
        let facts = self.rows(Space::Facts, Self::fact)?;
        let pending = self.rows(Space::Pending, Self::pending)?;
        let shelf = self.rows(Space::Shelf, Self::shelf)?;
        self.to.write()?;
        let keys = self.rows(Space::Keys, Self::key)?;
        let ended = self.rows(Space::Ended, Self::ended)?;
        // Entries for moved timers are made from the timers.
        self.is_lossy |= facts || pending || shelf || keys || ended;
        for (n, counters) in self.partitions.iter().enumerate() {
            let p = PartitionId(n as u16);
            self.to.put(Space::Facts, fact_key(Fact::Counters(p)), counters.encode());
        }
        for ((p, dest), count) in &self.parked {
            self.to.put(Space::Facts, fact_key(Fact::Parked(*p, *dest)), count.to_be_bytes());
        }
        self.to.write()?;
        self.to.sync()
    }

    /// Visits every row of a space that can be read. Returns whether some cannot.
    fn rows(
        &mut self,
        space: Space,
        visit: impl Fn(&mut Self, &Slice, Bytes) -> Result<bool, Fault>,
    ) -> Result<bool, Fault> {
        let mut from: Bound<Vec<u8>> = Bound::Unbounded;
        let mut is_lossy = false;
        loop {
            let bound = match &from {
                Bound::Included(key) | Bound::Excluded(key) => Bound::Included(&key[..]),
                Bound::Unbounded => Bound::Unbounded,
            };
            let mut last: Option<Vec<u8>> = None;
            let mut broken = false;
            for row in self.from.scan(space, bound, Bound::Unbounded) {
                let Ok((key, value)) = row else {
                    broken = true;
                    break;
                };
                if !visit(self, &key, value)? {
                    self.report.rows_dropped += 1;
                }
                self.unwritten += 1;
                if self.unwritten >= STEP {
                    self.unwritten = 0;
                    self.to.write()?;
                }
                last = Some(key.to_vec());
            }
            if !broken {
                return Ok(is_lossy);
            }
            is_lossy = true;
            let reached = match (last, &from) {
                (Some(last), _) => last,
                (None, Bound::Included(key) | Bound::Excluded(key)) => key.clone(),
                (None, Bound::Unbounded) => Vec::new(),
            };
            let Some(next) = self.readable_after(space, &reached) else { return Ok(true) };
            from = Bound::Included(next);
        }
    }

    /// A key behind another from which rows can be read again. A block that cannot be read covers
    /// an unknown interval of keys: its end is searched for in growing steps, then by halves.
    fn readable_after(&self, space: Space, key: &[u8]) -> Option<Vec<u8>> {
        let reads = |key: &Number| {
            let mut rows = self.from.scan(space, Bound::Included(&key[..]), Bound::Unbounded);
            !matches!(rows.next(), Some(Err(_)))
        };
        let mut low = number(key);
        let mut high = None;
        for bit in 0..NUMBER * 8 {
            let Some(candidate) = add_bit(number(key), bit) else { break };
            if reads(&candidate) {
                high = Some(candidate);
                break;
            }
            low = candidate;
        }
        let mut high = high?;
        while let Some(middle) = between(&low, &high) {
            if reads(&middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        Some(high.to_vec())
    }

    /// The value of a key, found without the tables' filters, which may be damaged.
    fn lookup(&self, space: Space, key: &[u8]) -> Option<Bytes> {
        let mut rows = self.from.scan(space, Bound::Included(key), Bound::Included(key));
        rows.next()?.ok().map(|(_, value)| value)
    }

    fn fact(&mut self, key: &Slice, value: Bytes) -> Result<bool, Fault> {
        let Some(fact) = parse_fact_key(key) else { return Ok(false) };
        match fact {
            Fact::Counters(p) => {
                if let (Some(counters), Some(old)) = (self.counters(p), Counters::decode(&value)) {
                    counters.order = old.order;
                }
                return Ok(true);
            }
            // Counted anew, or numbered anew.
            Fact::Parked(..) | Fact::Group => return Ok(true),
            Fact::Owner(p) => match Owner::decode(&value) {
                Some(owner) => {
                    self.owners.insert(p, owner);
                }
                None => return Ok(false),
            },
            Fact::Destination(n) => {
                let Some(name) = Destinations::parse(&value) else { return Ok(false) };
                self.name_lost(n)?;
                self.destinations.number(&name, &mut self.to)?;
                return Ok(true);
            }
            Fact::InFlight(_) | Fact::Term => {}
        }
        self.to.put(Space::Facts, key.clone(), value.to_vec());
        Ok(true)
    }

    /// Makes up names for all destinations below a number that have none.
    fn name_lost(&mut self, below: u32) -> Result<(), Fault> {
        while self.destinations.count() < below.min(MAX_LOST_NAMES) {
            let name = Destination::new("lost", &self.destinations.count().to_string())
                .map_err(|_| Fault::Damaged("a destination's name is lost"))?;
            self.destinations.number(&name, &mut self.to)?;
            self.report.destinations_lost += 1;
        }
        Ok(())
    }

    fn counters(&mut self, p: PartitionId) -> Option<&mut Counters> {
        self.partitions.get_mut(usize::from(p.0))
    }

    /// Reads a row. Its destination's name may be lost.
    fn row(&mut self, id: TimerId, position: Position, value: &Bytes) -> Result<Option<Row>, Fault> {
        let asked = Cell::new(None);
        let mut rest = value.clone();
        match position {
            Position::Pending { .. } if rest.is_empty() => return Ok(None),
            Position::Pending { .. } => rest.advance(1),
            Position::Parked { dest, .. } => {
                take_shelf_head(Shelf::Parked { dest }, &mut rest);
            }
            Position::Taken { .. } => {
                take_shelf_head(Shelf::Taken, &mut rest);
            }
            Position::Unconfirmed { .. } => {
                take_shelf_head(Shelf::Unconfirmed, &mut rest);
            }
            Position::Dead { .. } => {
                take_shelf_head(Shelf::Dead, &mut rest);
            }
        }
        // It fails, and says which destination it asks for.
        let _ = Record::decode(id, &rest, |n| {
            asked.set(Some(n));
            self.destinations.name(n)
        });
        self.name_lost(asked.get().map_or(0, |n: u32| n.saturating_add(1)))?;
        Ok(read_row(&self.destinations, id, position, value.clone()).ok())
    }

    /// Whether a timer stands elsewhere, according to the entry for moved timers.
    fn is_elsewhere(&self, p: PartitionId, id: TimerId, here: Position) -> bool {
        let moved = self.lookup(Space::Moved, &id.to_bytes());
        let other = moved.and_then(|bytes| Position::decode(&bytes)).filter(|position| *position != here);
        other.is_some_and(|position| {
            let (space, key) = position.key(p, id);
            self.lookup(space, &key).is_some()
        })
    }

    fn pending(&mut self, key: &Slice, value: Bytes) -> Result<bool, Fault> {
        let Some((fire, id)) = parse_pending_key(key) else { return Ok(false) };
        let p = PartitionId(u16::from_be_bytes([key[0], key[1]]));
        let here = Position::Pending { fire };
        if self.counters(p).is_none() || self.is_elsewhere(p, id, here) {
            return Ok(false);
        }
        let Some(row) = self.row(id, here, &value)? else { return Ok(false) };
        let may_be_delivered = self.is_lossy && fire.as_ms() <= self.now;
        if row.record.timer.mode == Mode::AtMostOnce && may_be_delivered {
            return self.unconfirmed(p, row);
        }
        self.keep(p, &row, here, key.clone(), value);
        Ok(true)
    }

    /// Files a timer that may have been delivered as claimed and unconfirmed.
    fn unconfirmed(&mut self, p: PartitionId, row: Row) -> Result<bool, Fault> {
        let epoch = self.owners.get(&p).map(|owner| owner.record.epoch).unwrap_or_default();
        let since = Time::from_ms(self.now);
        let Some(counters) = self.counters(p) else { return Ok(false) };
        counters.order += 1;
        let here = Position::Unconfirmed { order: counters.order };
        let row = Row { at: At::Unconfirmed { epoch, since }, record: row.record };
        let dest = self.destinations.number(&row.record.timer.dest, &mut self.to)?;
        let mut value = Vec::new();
        put_head(row.at, row.id(), &mut value);
        row.record.encode(dest, &mut value);
        let (_, key) = here.key(p, row.id());
        self.keep(p, &row, here, key, value.into());
        self.report.unconfirmed += 1;
        Ok(true)
    }

    fn shelf(&mut self, key: &Slice, value: Bytes) -> Result<bool, Fault> {
        let (Some(order), Some(id)) = (parse_shelf_order(key), value.first_chunk::<16>()) else {
            return Ok(false);
        };
        let id = TimerId::from_bytes(*id);
        let (here, p) = match (key[0], key.len()) {
            (1, 15) => {
                let dest = u32::from_be_bytes([key[3], key[4], key[5], key[6]]);
                (Position::Parked { dest, order }, &key[1..3])
            }
            (2, 11) => (Position::Taken { order }, &key[1..3]),
            (3, 11) => (Position::Dead { order }, &key[1..3]),
            (4, 11) => (Position::Unconfirmed { order }, &key[1..3]),
            _ => return Ok(false),
        };
        let p = PartitionId(u16::from_be_bytes([p[0], p[1]]));
        if self.counters(p).is_none() || self.is_elsewhere(p, id, here) || self.is_kept(p, id)? {
            return Ok(false);
        }
        let Some(row) = self.row(id, here, &value)? else { return Ok(false) };
        self.keep(p, &row, here, key.clone(), value);
        Ok(true)
    }

    /// Whether a timer has been written to the new tree.
    fn is_kept(&self, p: PartitionId, id: TimerId) -> Result<bool, Fault> {
        let (space, key) = Position::Pending { fire: id.birth_due() }.key(p, id);
        Ok(self.to.get(space, &key)?.is_some() || self.to.get(Space::Moved, &id.to_bytes())?.is_some())
    }

    /// Writes a row, and counts it.
    fn keep(&mut self, p: PartitionId, row: &Row, here: Position, key: Slice, value: Bytes) {
        let id = row.id();
        let is_moved = here != Position::Pending { fire: id.birth_due() };
        let (space, _) = here.key(p, id);
        self.to.put(space, key, value.to_vec());
        if is_moved {
            self.to.put(Space::Moved, id.to_bytes().into(), here.encode());
        }
        if let Position::Parked { dest, .. } = here {
            *self.parked.entry((p, dest)).or_default() += 1;
        }
        if let Some(counters) = self.counters(p) {
            counters.census.shift(None, Some(row.at));
            counters.census.residue += u64::from(is_moved);
            counters.unconfirmed += u64::from(matches!(here, Position::Unconfirmed { .. }));
            if let Position::Parked { order, .. }
            | Position::Taken { order }
            | Position::Unconfirmed { order }
            | Position::Dead { order } = here
            {
                counters.order = counters.order.max(order);
            }
        }
        self.report.timers_kept += 1;
    }

    fn key(&mut self, key: &Slice, value: Bytes) -> Result<bool, Fault> {
        let (Some(p), Ok(id)) = (key.first_chunk::<2>(), <[u8; 16]>::try_from(&value[..])) else {
            return Ok(false);
        };
        let (p, id) = (PartitionId(u16::from_be_bytes(*p)), TimerId::from_bytes(id));
        if self.counters(p).is_none() || !self.is_kept(p, id)? {
            return Ok(false);
        }
        if let Some(counters) = self.counters(p) {
            counters.census.keys += 1;
        }
        self.to.put(Space::Keys, key.clone(), value.to_vec());
        Ok(true)
    }

    fn ended(&mut self, key: &Slice, value: Bytes) -> Result<bool, Fault> {
        let mut rest = &key[..];
        let (Ok(p), Ok(bucket)) = (rest.try_get_u16(), rest.try_get_u32()) else { return Ok(false) };
        let Some(counters) = self.counters(PartitionId(p)) else { return Ok(false) };
        *counters.ended.entry(bucket).or_default() += 1;
        self.to.put(Space::Ended, key.clone(), value.to_vec());
        Ok(true)
    }
}

/// A key as a number, to search between keys: longer than those of timers.
const NUMBER: usize = 32;
type Number = [u8; NUMBER];

fn number(key: &[u8]) -> Number {
    let mut number = [0; NUMBER];
    let length = key.len().min(NUMBER);
    number[..length].copy_from_slice(&key[..length]);
    number
}

/// Adds a power of two, unless it does not fit.
fn add_bit(mut number: Number, bit: usize) -> Option<Number> {
    let mut carry = 1_u16 << (bit % 8);
    for byte in number[..NUMBER - bit / 8].iter_mut().rev() {
        let sum = u16::from(*byte) + carry;
        *byte = sum as u8;
        carry = sum >> 8;
        if carry == 0 {
            return Some(number);
        }
    }
    None
}

/// The middle of two numbers, if there is one between them.
fn between(low: &Number, high: &Number) -> Option<Number> {
    let mut middle = [0; NUMBER];
    let mut carry = 0;
    for (n, byte) in middle.iter_mut().enumerate().rev() {
        let sum = u16::from(low[n]) + u16::from(high[n]) + carry;
        *byte = sum as u8;
        carry = sum >> 8;
    }
    let mut carry = carry << 7;
    for byte in &mut middle {
        let next = u16::from(*byte & 1) << 7;
        *byte = (*byte >> 1) | carry as u8;
        carry = next;
    }
    (middle != *low && middle != *high).then_some(middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_between_keys_narrows_down_to_neighbours() {
        let (mut low, mut high) = (number(b"abc"), number(b"abd"));
        let target = number(b"abc\x07\xff\x31");
        while let Some(middle) = between(&low, &high) {
            if middle >= target { high = middle } else { low = middle }
        }
        assert_eq!(high, target);
        assert_eq!(add_bit(low, 0), Some(target));
        assert_eq!(add_bit([0xff; NUMBER], 0), None);
        assert_eq!(add_bit(number(b"a"), NUMBER * 8 - 8), Some(number(b"b")));
    }
}
