//! The rows of a damaged database, rewritten: contradicting rows are brought into agreement.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Buf, Bytes};
use fjall::Slice;
use mtimer_store::listing::park_number;
use mtimer_store::table::{At, Row};
use mtimer_store::{Counts, Record};
use mtimer_types::extensions::STAGING;
use mtimer_types::{Destination, ImportGoal, Mode, PartitionId, Time, TimerId};

use crate::destinations::DestinationNumbers;
use crate::fault::Fault;
use crate::layout::{
    FactName, Queue, RecordPosition, Space, fact_key, parse_fact_key, parse_pending_key, parse_queue_order,
    put_head, take_queue_head,
};
use crate::partition::{PartitionCounters, StoredOwner, decode_bulk, decode_settings, encode_counts};
use crate::table::read_row;
use crate::tree::Tree;

use super::between::{NUMBER, Number, add_bit, between, number};
use super::report::RepairReport;

/// Rows of one write.
const STEP: u64 = 4_096;
/// Names of destinations that are made up for lost ones, at most.
const MAX_LOST_NAMES: u32 = 65_536;

/// Copies rows from one tree to another.
pub(super) struct Rebuild {
    from: Tree,
    to: Tree,
    destinations: DestinationNumbers,
    partitions: Vec<PartitionCounters>,
    owners: BTreeMap<PartitionId, StoredOwner>,
    counts: BTreeMap<(PartitionId, u32), Counts>,
    /// Rows of this sequence number or a later one were written after everything that is lost.
    intact_from: u64,
    /// By the host's clock, in ms.
    now: u64,
    report: RepairReport,
    unwritten: u64,
}

impl Rebuild {
    pub(super) fn new(from: Tree, to: Tree, partitions: u16, report: RepairReport, intact_from: u64) -> Self {
        Self {
            from,
            to,
            destinations: DestinationNumbers::default(),
            partitions: vec![PartitionCounters::default(); usize::from(partitions)],
            owners: BTreeMap::new(),
            counts: BTreeMap::new(),
            intact_from,
            now: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
            report,
            unwritten: 0,
        }
    }

    pub(super) fn run(mut self) -> Result<RepairReport, Fault> {
        self.rows(Space::Facts, Self::fact)?;
        self.rows(Space::Pending, Self::pending)?;
        self.rows(Space::Queues, Self::queue)?;
        self.to.write()?;
        // Entries for moved timers are made from the timers.
        self.rows(Space::Keys, Self::key)?;
        self.rows(Space::Ended, Self::ended)?;
        for (n, counters) in self.partitions.iter().enumerate() {
            let p = PartitionId(n as u16);
            self.to.put(Space::Facts, fact_key(FactName::Counters(p)), counters.encode());
        }
        for ((p, dest), counts) in &self.counts {
            self.to.put(Space::Facts, fact_key(FactName::Counts(*p, *dest)), encode_counts(counts));
        }
        self.to.write()?;
        self.to.sync()?;
        Ok(self.report)
    }

    /// Visits every row of a space that can be read.
    fn rows(
        &mut self,
        space: Space,
        visit: impl Fn(&mut Self, &Slice, Bytes) -> Result<bool, Fault>,
    ) -> Result<(), Fault> {
        let mut from: Bound<Vec<u8>> = Bound::Unbounded;
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
                return Ok(());
            }
            self.intact_from = u64::MAX;
            let reached = match (last, &from) {
                (Some(last), _) => last,
                (None, Bound::Included(key) | Bound::Excluded(key)) => key.clone(),
                (None, Bound::Unbounded) => Vec::new(),
            };
            let Some(next) = self.readable_after(space, &reached) else { return Ok(()) };
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
            FactName::Counters(p) => {
                let (Some(counters), Some(old)) = (self.counters(p), PartitionCounters::decode(&value))
                else {
                    return Ok(false);
                };
                counters.order = old.order;
                return Ok(true);
            }
            // Recounted, or renumbered.
            FactName::Counts(..) | FactName::Group => return Ok(true),
            FactName::Owner(p) => match StoredOwner::decode(&value) {
                Some(owner) => {
                    self.owners.insert(p, owner);
                }
                None => return Ok(false),
            },
            FactName::Destination(n) => {
                let Some(name) = DestinationNumbers::parse(&value) else { return Ok(false) };
                self.name_lost(n)?;
                self.destinations.number(&name, &mut self.to)?;
                return Ok(true);
            }
            FactName::Bulk(p, number) => {
                if self.counters(p).is_none() || decode_bulk(number, &value).is_none() {
                    return Ok(false);
                }
            }
            FactName::Settings(p, _) => {
                let Some(row) = decode_settings(&value).filter(|_| self.counters(p).is_some()) else {
                    return Ok(false);
                };
                // Destinations are renumbered.
                let dest = self.destinations.number(&row.dest, &mut self.to)?;
                self.to.put(Space::Facts, fact_key(FactName::Settings(p, dest)), value.to_vec());
                return Ok(true);
            }
            FactName::InFlight(_) | FactName::Term => {}
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

    fn counters(&mut self, p: PartitionId) -> Option<&mut PartitionCounters> {
        self.partitions.get_mut(usize::from(p.0))
    }

    /// Reads a row. Its destination's name may be lost.
    fn row(&mut self, id: TimerId, location: RecordPosition, value: &Bytes) -> Result<Option<Row>, Fault> {
        let asked = Cell::new(None);
        let mut rest = value.clone();
        match location {
            RecordPosition::Pending { .. } if rest.is_empty() => return Ok(None),
            RecordPosition::Pending { .. } => rest.advance(1),
            RecordPosition::Parked { dest, .. } => {
                take_queue_head(Queue::Parked { dest }, &mut rest);
            }
            RecordPosition::Taken { .. } => {
                take_queue_head(Queue::Taken, &mut rest);
            }
            RecordPosition::Unconfirmed { .. } => {
                take_queue_head(Queue::Unconfirmed, &mut rest);
            }
            RecordPosition::Dead { .. } => {
                take_queue_head(Queue::Dead, &mut rest);
            }
        }
        // It fails, and says which destination it asks for.
        let _ = Record::decode(id, &rest, |n| {
            asked.set(Some(n));
            self.destinations.name(n)
        });
        self.name_lost(asked.get().map_or(0, |n: u32| n.saturating_add(1)))?;
        Ok(read_row(&self.destinations, id, location, value.clone()).ok())
    }

    /// Whether a timer stands elsewhere, according to the entry for moved timers.
    fn is_elsewhere(&self, p: PartitionId, id: TimerId, here: RecordPosition) -> bool {
        let moved = self.lookup(Space::Moved, &id.to_bytes());
        let other =
            moved.and_then(|bytes| RecordPosition::decode(&bytes)).filter(|location| *location != here);
        other.is_some_and(|location| {
            let (space, key) = location.key(p, id);
            self.lookup(space, &key).is_some()
        })
    }

    fn pending(&mut self, key: &Slice, value: Bytes) -> Result<bool, Fault> {
        let Some((fire, id)) = parse_pending_key(key) else { return Ok(false) };
        let p = PartitionId(u16::from_be_bytes([key[0], key[1]]));
        let here = RecordPosition::Pending { fire };
        if self.counters(p).is_none() || self.is_elsewhere(p, id, here) {
            return Ok(false);
        }
        let Some(row) = self.row(id, here, &value)? else { return Ok(false) };
        if self.may_have_been_sent(Space::Pending, key, &row) {
            return self.unconfirmed(p, row);
        }
        self.keep(p, &row, here, key.clone(), value);
        Ok(true)
    }

    /// Whether a lost write may have taken a timer that waits: it is delivered at most once, and
    /// was not written since. Its time says nothing: a lost write may have rescheduled it.
    fn may_have_been_sent(&self, space: Space, key: &Slice, row: &Row) -> bool {
        let is_old = || self.from.written_at(space, key).is_none_or(|seqno| seqno < self.intact_from);
        let is_to_live = row.staging().is_none_or(|staging| matches!(staging.goal, ImportGoal::Live { .. }));
        row.record.timer.mode == Mode::AtMostOnce && is_to_live && is_old()
    }

    /// Files a timer that may have been delivered as claimed and unconfirmed.
    fn unconfirmed(&mut self, p: PartitionId, row: Row) -> Result<bool, Fault> {
        let epoch = self.owners.get(&p).map(|owner| owner.record.epoch).unwrap_or_default();
        let since = Time::from_ms(self.now);
        let Some(counters) = self.counters(p) else { return Ok(false) };
        counters.order += 1;
        let here = RecordPosition::Unconfirmed { order: counters.order };
        // A lost write may have released it.
        let extensions = row.record.extensions.without(STAGING);
        let record = Record { extensions, ..row.record };
        let row = Row { at: At::Unconfirmed { epoch, since }, record };
        let dest = self.destinations.number(&row.record.timer.dest, &mut self.to)?;
        let mut value = Vec::new();
        put_head(row.at, row.id(), &mut value);
        row.record.encode(dest, &mut value);
        let (_, key) = here.key(p, row.id());
        self.keep(p, &row, here, key, value.into());
        self.report.unconfirmed += 1;
        Ok(true)
    }

    fn queue(&mut self, key: &Slice, value: Bytes) -> Result<bool, Fault> {
        let (Some(order), Some(id)) = (parse_queue_order(key), value.first_chunk::<16>()) else {
            return Ok(false);
        };
        let id = TimerId::from_bytes(*id);
        let (here, p) = match (key[0], key.len()) {
            (1, 15) => {
                let dest = u32::from_be_bytes([key[3], key[4], key[5], key[6]]);
                (RecordPosition::Parked { dest, order }, &key[1..3])
            }
            (2, 11) => (RecordPosition::Taken { order }, &key[1..3]),
            (3, 11) => (RecordPosition::Dead { order }, &key[1..3]),
            (4, 11) => (RecordPosition::Unconfirmed { order }, &key[1..3]),
            _ => return Ok(false),
        };
        let p = PartitionId(u16::from_be_bytes([p[0], p[1]]));
        if self.counters(p).is_none() || self.is_elsewhere(p, id, here) || self.is_kept(p, id)? {
            return Ok(false);
        }
        let Some(row) = self.row(id, here, &value)? else { return Ok(false) };
        if row.at == At::Parked && self.may_have_been_sent(Space::Queues, key, &row) {
            return self.unconfirmed(p, row);
        }
        self.keep(p, &row, here, key.clone(), value);
        Ok(true)
    }

    /// Whether a timer has been written to the new tree.
    fn is_kept(&self, p: PartitionId, id: TimerId) -> Result<bool, Fault> {
        let (space, key) = RecordPosition::Pending { fire: id.birth_due() }.key(p, id);
        Ok(self.to.get(space, &key)?.is_some() || self.to.get(Space::Moved, &id.to_bytes())?.is_some())
    }

    /// Whether a timer that was kept can have a key: not one that is staged, though a lost write
    /// may have released it.
    fn has_key(&self, p: PartitionId, id: TimerId) -> Result<bool, Fault> {
        let moved = self.to.get(Space::Moved, &id.to_bytes())?;
        Ok(match moved.and_then(|at| RecordPosition::decode(&at)) {
            Some(RecordPosition::Pending { fire }) => !fire.is_staged(),
            _ => self.is_kept(p, id)?,
        })
    }

    /// Writes a row, and counts it.
    fn keep(&mut self, p: PartitionId, row: &Row, here: RecordPosition, key: Slice, value: Bytes) {
        let id = row.id();
        let is_moved = here != RecordPosition::Pending { fire: id.birth_due() };
        let (space, _) = here.key(p, id);
        self.to.put(space, key, value.to_vec());
        if is_moved {
            self.to.put(Space::Moved, id.to_bytes().into(), here.encode());
        }
        if let Some(dest) = self.destinations.find(&row.record.timer.dest) {
            self.counts.entry((p, dest)).or_default().shift(None, Some(row.at));
        }
        if let Some(counters) = self.counters(p) {
            counters.census.shift(None, Some(row.at));
            counters.census.residue += u64::from(is_moved);
            counters.unconfirmed += u64::from(matches!(here, RecordPosition::Unconfirmed { .. }));
            let number = match here {
                RecordPosition::Parked { order, .. } => park_number(order),
                RecordPosition::Taken { order }
                | RecordPosition::Unconfirmed { order }
                | RecordPosition::Dead { order } => order,
                RecordPosition::Pending { .. } => 0,
            };
            counters.order = counters.order.max(number);
        }
        self.report.timers_kept += 1;
    }

    fn key(&mut self, key: &Slice, value: Bytes) -> Result<bool, Fault> {
        let (Some(p), Ok(id)) = (key.first_chunk::<2>(), <[u8; 16]>::try_from(&value[..])) else {
            return Ok(false);
        };
        let (p, id) = (PartitionId(u16::from_be_bytes(*p)), TimerId::from_bytes(id));
        if self.counters(p).is_none() || !self.has_key(p, id)? {
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
