//! Reads by range: loads, pages of queues, and the tidying that keeps them from scanning deleted
//! rows.
//!
//! A deleted row costs a scan time until the engine compacts it away, so nothing here starts at the
//! beginning: each partition knows a floor below which nothing is.

use std::ops::Bound;

use fjall::Slice;
use mtimer_store::pending::PAGE_READS;
use mtimer_store::table::{At, Row, Table};
use mtimer_store::{
    Census, CountsPage, CountsRange, Forecast, ForecastRange, ForecastSums, ListPage, Listed, Listing, Load,
    Loaded, LoadedTimer, PendingPage, PendingRange, Record,
};
use mtimer_types::{Destination, Time, TimerId};

use crate::fault::Fault;
use crate::layout::{QueuePart, RecordPosition, Space, parse_pending_key, pending_key};
use crate::partition::DestinationMirror;
use crate::remembered::{bucket_key, bucket_of};
use crate::table::{PartitionTable, read_row};

/// Removals from pending after which the floor is looked for again: a scan costs about as much as
/// the removals did.
const FLOOR_EVERY: u32 = 8_192;
/// The same while space is short: rows below the floor give space back.
const FLOOR_SOON: u32 = 512;
/// Bytes of payloads and headers after which a page of pending timers ends.
const PAGE_BYTES: usize = 1 << 20;
/// Forgotten outcomes cleared with a batch, besides those that its operations may add.
const CLEAR_WITH_BATCH: usize = 64;
/// Outcomes that an operation adds: a cancel its own answer and the end of its timer. (A trim adds
/// one for each dead letter that died lately; each of those came with an operation of its own.)
const ENDED_BY_OP: usize = 2;

impl PartitionTable<'_> {
    /// Loads pending timers from where the lane's cursor stands.
    pub(crate) fn load(&mut self, load: &Load) -> Result<Loaded, Fault> {
        self.partition.claim(load.claim, self.tree);
        self.tree.write()?;
        let lane = self.lane.clone();
        let mut cursor = lane.cursor();
        let mut loading =
            LoadBuilder { load, epoch_claim: (lane.epoch, lane.prior_claim), timers: Vec::new(), bytes: 0 };
        let Some((at, inside)) = cursor.start() else {
            return Ok(Loaded {
                timers: loading.timers,
                horizon: cursor.horizon(),
                is_claim_unconfirmed: false,
            });
        };
        while !loading.is_full()
            && let Some(id) = cursor.pop_behind()
        {
            if let Some(Row { record, at: At::Pending { fire, tier } }) = self.row(id)?
                && fire == at
            {
                loading.add(record, fire, tier);
            }
        }
        if loading.is_full() {
            return Ok(Loaded {
                timers: loading.timers,
                horizon: cursor.horizon(),
                is_claim_unconfirmed: false,
            });
        }
        self.lift_floor_of_nothing();
        let p = self.partition.id;
        let floor = self.partition.counters.floor;
        let (from, at_floor) = if at.as_ms() <= floor && inside.is_none() {
            (Bound::Included(pending_key(p, Time::from_ms(floor), TimerId::from_u128(0))), true)
        } else {
            let id = inside.unwrap_or(TimerId::from_u128(0));
            let key = pending_key(p, at, id);
            (if inside.is_some() { Bound::Excluded(key) } else { Bound::Included(key) }, false)
        };
        let to = pending_key(p, load.until, TimerId::from_u128(u128::MAX));
        // A range that begins after its end would be an error.
        if cursor.reaches(load.until) || (at_floor && floor > load.until.as_ms()) {
            cursor.all_until(load.until);
            return Ok(Loaded {
                timers: loading.timers,
                horizon: cursor.horizon(),
                is_claim_unconfirmed: false,
            });
        }
        let mut last = None;
        let mut first = None;
        for row in self.tree.scan(Space::Pending, from.as_ref().map(|key| &key[..]), Bound::Included(&to)) {
            let (key, value) = row?;
            let (fire, id) =
                parse_pending_key(&key).ok_or(Fault::Damaged("a pending timer's key is unreadable"))?;
            first = first.or(Some(fire));
            if let (true, Some(last)) = (loading.is_full(), last) {
                cursor.stopped(last, fire);
                self.raise_floor(at_floor, first, load.until);
                return Ok(Loaded {
                    timers: loading.timers,
                    horizon: cursor.horizon(),
                    is_claim_unconfirmed: false,
                });
            }
            let row = read_row(self.destinations, id, RecordPosition::Pending { fire }, value)?;
            if let At::Pending { tier, .. } = row.at {
                loading.add(row.record, fire, tier);
            }
            last = Some((fire, id));
        }
        cursor.all_until(load.until);
        self.raise_floor(at_floor, first, load.until);
        Ok(Loaded { timers: loading.timers, horizon: cursor.horizon(), is_claim_unconfirmed: false })
    }

    /// Without any pending timer there is nothing to scan for, however many there were.
    fn lift_floor_of_nothing(&mut self) {
        let counters = &mut self.partition.counters;
        let Census { pending, retrying, staged, .. } = counters.census;
        if pending + retrying + staged == 0 {
            counters.floor = Time::MAX.as_ms() + 1;
        }
    }

    /// A scan from the floor up to `until` found its first timer at `first`.
    fn raise_floor(&mut self, from_floor: bool, first: Option<Time>, until: Time) {
        if from_floor {
            let floor = first.map_or(until.as_ms() + 1, Time::as_ms);
            self.partition.counters.floor = floor.max(self.partition.counters.floor);
        }
    }

    pub(crate) fn parked_destinations(&self) -> Result<Vec<(Destination, u64)>, Fault> {
        let name =
            |dest| self.destinations.name(dest).ok_or(Fault::Damaged("a parked destination is unknown"));
        let parked = self.partition.dests.iter().map(|(dest, mirror)| (*dest, mirror.counts.parked));
        parked.filter(|(_, count)| *count > 0).map(|(dest, count)| Ok((name(dest)?, count))).collect()
    }

    /// A page of a listing. Reading it from the beginning raises its floor.
    pub(crate) fn list(&mut self, listing: &Listing) -> Result<ListPage, Fault> {
        let Listing { of, cursor, limit } = listing;
        let limit = (*limit as usize).max(1);
        let part = match of {
            Listed::Dead(_) => QueuePart::Dead,
            Listed::Taken => QueuePart::Taken,
            Listed::Unconfirmed => QueuePart::Unconfirmed,
            Listed::Parked(dest) => {
                let Some(dest) = self.destinations.find(dest) else { return Ok(of.page([], None)) };
                let (rows, next) = self.park(dest, *cursor, limit)?;
                return Ok(of.page(rows.into_iter().map(|(_, row)| row), next));
            }
        };
        let Some(floor) = self.partition.queue_floor(part).copied() else { return Ok(of.page([], None)) };
        let (rows, next) = self.queue(part, (*cursor).max(floor), limit)?;
        if *cursor <= floor {
            self.raise_queue_floor(part, rows.first().map(|(order, _)| *order));
        }
        Ok(of.page(rows.into_iter().map(|(_, row)| row), next))
    }

    /// A page of the counts of destinations.
    pub(crate) fn counts(&self, range: &CountsRange) -> CountsPage {
        let named = |(dest, mirror): (&u32, &DestinationMirror)| {
            Some((self.destinations.name(*dest)?, mirror.counts))
        };
        range.page(self.partition.dests.iter().filter_map(named), 0)
    }

    /// A page of the pending timers.
    pub(crate) fn pending(&mut self, range: &PendingRange) -> Result<PendingPage, Fault> {
        // Rows that are not written would not be seen.
        self.tree.write()?;
        self.lift_floor_of_nothing();
        let p = self.partition.id;
        let floor = (Time::from_ms(self.partition.counters.floor), TimerId::from_u128(0));
        let (fire, id) = range.from.max(floor);
        let mut page = PendingPage { rows: Vec::new(), next: None };
        if fire > range.until || self.partition.counters.floor > range.until.as_ms() {
            return Ok(page);
        }
        let (from, to) =
            (pending_key(p, fire, id), pending_key(p, range.until, TimerId::from_u128(u128::MAX)));
        let rows = self.tree.scan(Space::Pending, Bound::Included(&from), Bound::Included(&to));
        let mut bytes = 0;
        for (read, row) in rows.enumerate() {
            let (key, value) = row?;
            let (fire, id) =
                parse_pending_key(&key).ok_or(Fault::Damaged("a pending timer's key is unreadable"))?;
            if read >= PAGE_READS || page.rows.len() >= range.limit.max(1) as usize || bytes > PAGE_BYTES {
                page.next = Some((fire, id));
                break;
            }
            let row = read_row(self.destinations, id, RecordPosition::Pending { fire }, value)?;
            if let Some(row) = range.pick(row) {
                bytes += row.record.timer.content_bytes();
                page.rows.push(row);
            }
        }
        Ok(page)
    }

    /// How many pending timers fire when. They are counted as they are read, [`PAGE_READS`] at a
    /// time.
    pub(crate) fn forecast(&mut self, range: &ForecastRange) -> Result<Forecast, Fault> {
        // Rows that are not written would not be seen.
        self.tree.write()?;
        self.lift_floor_of_nothing();
        let p = self.partition.id;
        let (floor, last) = (self.partition.counters.floor, range.last());
        if floor.max(range.from.0.as_ms()) > last.as_ms() {
            return Ok(Forecast::default());
        }
        let (fire, id) = range.from.max((Time::from_ms(floor), TimerId::from_u128(0)));
        let (from, to) = (pending_key(p, fire, id), pending_key(p, last, TimerId::from_u128(u128::MAX)));
        let (mut sums, mut next) = (ForecastSums::default(), None);
        let rows = self.tree.scan(Space::Pending, Bound::Included(&from), Bound::Included(&to));
        for (read, row) in rows.enumerate() {
            let (key, value) = row?;
            let (fire, id) =
                parse_pending_key(&key).ok_or(Fault::Damaged("a pending timer's key is unreadable"))?;
            if read >= PAGE_READS {
                next = Some((fire, id));
                break;
            }
            let row = read_row(self.destinations, id, RecordPosition::Pending { fire }, value)?;
            if range.filter.accepts_destination(&row.record.timer.dest) {
                sums.add(range.step(fire), 1);
            }
        }
        let (spans, rest) = sums.page();
        Ok(Forecast { spans, next: rest.or(next), uncounted: 0 })
    }

    /// A bounded piece of upkeep before a batch: forgets old outcomes, raises the floor of pending
    /// timers.
    pub(crate) fn tidy(&mut self, now: Time, ops: usize) -> Result<(), Fault> {
        let every = if self.full.is_some() { FLOOR_SOON } else { FLOOR_EVERY };
        if self.partition.removed >= every {
            self.partition.removed = 0;
            self.find_floor()?;
        }
        let oldest = self.partition.counters.ended.first_key_value().map(|(bucket, _)| *bucket);
        // Everything in a bucket is over the horizon when the one after it is over, too.
        match oldest.filter(|bucket| bucket.saturating_add(1) < bucket_of(now)) {
            Some(bucket) => self.forget(bucket, ops * ENDED_BY_OP + CLEAR_WITH_BATCH),
            None => Ok(()),
        }
    }

    fn find_floor(&mut self) -> Result<(), Fault> {
        // Rows that are not written would not be seen, and might be lower.
        self.tree.write()?;
        let p = self.partition.id;
        let from = pending_key(p, Time::from_ms(self.partition.counters.floor), TimerId::from_u128(0));
        let to = pending_key(p, Time::MAX, TimerId::from_u128(u128::MAX));
        let first = self.tree.scan(Space::Pending, Bound::Included(&from), Bound::Included(&to)).next();
        let first = first.transpose()?.and_then(|(key, _)| parse_pending_key(&key)).map(|(fire, _)| fire);
        self.raise_floor(true, first, Time::MAX);
        Ok(())
    }

    /// Forgets outcomes of a bucket, from where the last call has left off: in the same group of
    /// calls, the rows that it has removed can still be read.
    fn forget(&mut self, bucket: u32, limit: usize) -> Result<(), Fault> {
        let start = bucket_key(self.partition.id, bucket);
        let from = self.partition.clear_from.take().filter(|key| key.starts_with(&start));
        let from = from.as_ref().map_or(Bound::Included(&start[..]), |key| Bound::Excluded(&key[..]));
        let mut keys = self.remembered_in(bucket, from, limit)?;
        if keys.len() < limit {
            // The end of the bucket: rows that are not written may belong to it, too.
            self.tree.write()?;
            keys = self.remembered_in(bucket, from, limit)?;
        }
        if keys.len() < limit {
            self.partition.counters.ended.remove(&bucket);
        } else {
            self.partition.clear_from = keys.last().cloned();
        }
        for key in keys {
            self.tree.remove(Space::Ended, key);
        }
        self.mark_counted();
        Ok(())
    }

    fn remembered_in(&self, bucket: u32, from: Bound<&[u8]>, limit: usize) -> Result<Vec<Slice>, Fault> {
        let to = bucket_key(self.partition.id, bucket.saturating_add(1));
        self.tree.scan(Space::Ended, from, Bound::Excluded(&to)).take(limit).map(|row| Ok(row?.0)).collect()
    }
}

/// The rows that a load has gathered.
struct LoadBuilder<'a> {
    load: &'a Load,
    epoch_claim: (mtimer_types::Epoch, Time),
    timers: Vec<LoadedTimer>,
    bytes: usize,
}

impl LoadBuilder<'_> {
    fn is_full(&self) -> bool {
        self.timers.len() >= self.load.max_timers.max(1) || self.bytes >= self.load.max_bytes.max(1)
    }

    fn add(&mut self, record: Record, fire: Time, tier: u8) {
        let covered = record.covered(fire, self.epoch_claim.0, self.epoch_claim.1);
        self.bytes += record.timer.content_bytes();
        self.timers.push(LoadedTimer { record, fire, tier, covered });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

    use mtimer_store::ops::{Cancel, Schedule};
    use mtimer_store::{Batch, Op, RequestId};
    use mtimer_types::{Epoch, KeyPolicy, Nonce, PartitionId, Target, Timer};

    use super::*;
    use crate::destinations::DestinationNumbers;
    use crate::lane_shared::LaneShared;
    use crate::partition::PartitionMirror;
    use crate::tree::Tree;

    const P: PartitionId = PartitionId(3);
    const START: u64 = 1_900_000_000_000;

    /// A partition whose calls are not written until the test says so: calls of one commit group.
    struct Committed {
        tree: Tree,
        destinations: DestinationNumbers,
        partition: PartitionMirror,
        lane: std::sync::Arc<LaneShared>,
        next: u64,
        _dir: tempfile::TempDir,
    }

    impl Committed {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let tree = Tree::open(dir.path(), 1 << 20).unwrap();
            let lane = LaneShared::new(P, Epoch(1), Nonce(1), Time::ZERO).into();
            let (destinations, partition) = (DestinationNumbers::default(), PartitionMirror::new(P));
            Self { tree, destinations, partition, lane, next: 0, _dir: dir }
        }

        fn timer(&mut self) -> Timer {
            self.next += 1;
            let due = Time::from_ms(START + 3_600_000);
            Timer::new(
                TimerId::new(due, Time::ZERO, P, self.next),
                Destination::new("orders", "billing").unwrap(),
                due,
            )
        }

        fn view(&mut self) -> PartitionTable<'_> {
            PartitionTable::new(&mut self.tree, &mut self.destinations, &mut self.partition, &self.lane)
        }

        /// Schedules timers and cancels them, at `second`.
        fn churn(&mut self, timers: usize, second: u64) {
            let mut ops = Vec::new();
            for _ in 0..timers {
                let timer = self.timer();
                let (target, request) = (Target::Id(timer.id), RequestId(self.next));
                ops.push(Op::Schedule(Schedule::new(timer.into(), KeyPolicy::Create)));
                ops.push(Op::Cancel(Cancel { target, sent_attempt: None, request }));
            }
            let batch = Batch { now: Time::from_ms(START + second * 1_000), claim: None, ops };
            self.view().apply(&batch).unwrap();
        }

        fn remembered(&mut self) -> usize {
            self.tree.write().unwrap();
            self.tree.scan(Space::Ended, Bound::Unbounded, Bound::Unbounded).count()
        }
    }

    #[test]
    fn outcomes_are_forgotten_as_fast_as_they_come_however_many_batches_a_group_has() {
        let mut store = Committed::new();
        let (per_second, ends) = (50, ENDED_BY_OP);
        for second in 0..600 {
            store.churn(per_second, second);
            if second % 40 == 39 {
                store.tree.write().unwrap();
            }
        }
        // Those of the horizon, of the bucket before it, and of the one that is being cleared.
        let most = 4 * 30 * per_second * ends;
        assert!(store.remembered() <= most, "{} remembered, at most {most} expected", store.remembered());
        let buckets = &store.partition.counters.ended;
        assert!(buckets.len() <= 4, "{buckets:?}");
    }

    #[test]
    fn what_was_remembered_before_a_long_pause_in_the_same_group_is_forgotten_too() {
        let mut store = Committed::new();
        store.churn(5, 0);
        (600..610).for_each(|second| store.churn(0, second));
        assert_eq!(store.remembered(), 0);
        assert_eq!(store.partition.counters.ended.len(), 0);
    }

    #[test]
    fn the_floor_is_not_raised_above_what_is_not_written_yet() {
        let mut store = Committed::new();
        let (timer, now) = (store.timer(), Time::from_ms(START));
        let ops = vec![Op::Schedule(Schedule::new(timer.clone().into(), KeyPolicy::Create))];
        store.view().apply(&Batch { now, claim: None, ops }).unwrap();
        store.partition.removed = FLOOR_EVERY;
        store.churn(0, 1);
        assert_eq!(store.partition.counters.floor, timer.due.as_ms());
        let load = Load { until: timer.due, max_timers: 10, max_bytes: 1_000, claim: None };
        assert_eq!(store.view().load(&load).unwrap().timers.len(), 1);
    }
}
