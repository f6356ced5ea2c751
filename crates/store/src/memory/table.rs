//! One partition of the in-memory store: its rows and the indexes over them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::hash::Hash;

use mtimer_types::extensions::BULK_MARK;
use mtimer_types::{Destination, Ended, Epoch, Extensions, Key, Target, Time, TimerId};

use crate::call::{Load, Loaded, LoadedTimer};
use crate::census::Census;
use crate::controls::Controls;
use crate::counts::{Counts, CountsPage, CountsRange};
use crate::cursor::LoadCursor;
use crate::forecast::{Forecast, ForecastRange, ForecastSums};
use crate::listing::{ListPage, Listed, Listing, park_position};
use crate::pending::{PAGE_READS, PendingPage, PendingRange};
use crate::place::Retained;
use crate::remembered::{RememberedAnswer, RequestId};
use crate::table::{At, Context, Row, Table};

/// Rows, keys and remembered outcomes of a partition.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryTable {
    rows: HashMap<TimerId, Row>,
    keys: HashMap<(Destination, Key), TimerId>,
    pending: BTreeSet<(Time, TimerId)>,
    /// By destination, in the order of their positions in its park.
    parked: BTreeMap<Destination, BTreeMap<u64, TimerId>>,
    /// In the order of taking.
    taken: BTreeMap<u64, TimerId>,
    /// In the order of becoming unconfirmed.
    unconfirmed: BTreeMap<u64, TimerId>,
    /// In the order of dying.
    dead: BTreeMap<u64, TimerId>,
    /// Where in `parked`, `taken`, `unconfirmed` or `dead` a timer stands.
    order: HashMap<TimerId, u64>,
    last_order: u64,
    ended: Remembered<TimerId, Ended>,
    answered: Remembered<RequestId, RememberedAnswer>,
    census: Census,
    counts: HashMap<Destination, Counts>,
    controls: Controls,
    /// See [`super::Faults::forget_bulk_marks`].
    pub(super) forgets_bulk_marks: bool,
    /// Timers filed as pending since somebody last looked.
    pub(super) filed: Vec<(Time, TimerId)>,
}

/// Values that are forgotten when the repeat horizon has passed.
#[derive(Clone, Debug)]
struct Remembered<K, V> {
    values: HashMap<K, (V, Time)>,
    by_time: BTreeMap<Time, Vec<K>>,
}

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Self { values: HashMap::new(), by_time: BTreeMap::new() }
    }
}

impl<K: Copy + Eq + Hash, V: Clone> Remembered<K, V> {
    fn get(&self, key: K, now: Time) -> Option<V> {
        let (value, at) = self.values.get(&key)?;
        Context::remembers(now, *at).then(|| value.clone())
    }

    fn set(&mut self, key: K, value: V, now: Time) {
        while let Some(oldest) = self.by_time.first_entry()
            && !Context::remembers(now, *oldest.key())
        {
            let (at, keys) = oldest.remove_entry();
            for key in keys {
                if self.values.get(&key).is_some_and(|(_, newest)| *newest == at) {
                    self.values.remove(&key);
                }
            }
        }
        self.values.insert(key, (value, now));
        self.by_time.entry(now).or_default().push(key);
    }
}

impl MemoryTable {
    /// Loads pending timers and moves the cursor.
    pub(super) fn load(
        &self,
        cursor: &mut LoadCursor,
        load: &Load,
        epoch: Epoch,
        prior_claim: Time,
    ) -> Loaded {
        let mut timers: Vec<LoadedTimer> = Vec::new();
        let mut bytes = 0;
        let mut take = |id: TimerId, at: Option<Time>| {
            if let Some(Row { record, at: At::Pending { fire, tier } }) = self.rows.get(&id)
                && at.is_none_or(|at| at == *fire)
            {
                let covered = record.covered(*fire, epoch, prior_claim);
                bytes += record.timer.content_bytes();
                timers.push(LoadedTimer { record: record.clone(), fire: *fire, tier: *tier, covered });
            }
            timers.len() >= load.max_timers.max(1) || bytes >= load.max_bytes.max(1)
        };
        let mut full = false;
        if let Some((at, inside)) = cursor.start() {
            while !full && let Some(id) = cursor.pop_behind() {
                full = take(id, Some(at));
            }
            if full {
                return Loaded { timers, horizon: cursor.horizon(), is_claim_unconfirmed: false };
            }
            let from = (at, inside.unwrap_or(TimerId::from_u128(0)));
            let mut last = None;
            let rest = self.pending.range(from..).skip_while(|p| inside.is_some() && **p == from);
            for (fire, id) in rest.take_while(|(fire, _)| *fire <= load.until) {
                if let (true, Some(last)) = (full, last) {
                    cursor.stopped(last, *fire);
                    return Loaded { timers, horizon: cursor.horizon(), is_claim_unconfirmed: false };
                }
                full = take(*id, None);
                last = Some((*fire, *id));
            }
            cursor.all_until(load.until);
        }
        Loaded { timers, horizon: cursor.horizon(), is_claim_unconfirmed: false }
    }

    pub(super) fn find(&self, target: &Target) -> Option<&Row> {
        let id = match target {
            Target::Id(id) => *id,
            Target::Key(dest, key) => *self.keys.get(&(dest.clone(), key.clone()))?,
        };
        self.rows.get(&id)
    }

    pub(super) fn parked_destinations(&self) -> Vec<(Destination, u64)> {
        self.parked.iter().map(|(dest, ids)| (dest.clone(), ids.len() as u64)).collect()
    }

    /// A page of a listing. It looks at `limit` entries, so a filtered page may have fewer rows.
    pub(crate) fn list(&self, listing: &Listing) -> ListPage {
        let none = BTreeMap::new();
        let index = match &listing.of {
            Listed::Dead(_) => self.retained(Retained::Dead),
            Listed::Taken => &self.taken,
            Listed::Unconfirmed => self.retained(Retained::Unconfirmed),
            Listed::Parked(dest) => self.parked.get(dest).unwrap_or(&none),
        };
        let mut entries = index.range(listing.cursor..);
        let ids = entries.by_ref().take(listing.limit.max(1) as usize);
        let rows: Vec<Row> = ids.filter_map(|(_, id)| self.rows.get(id).cloned()).collect();
        listing.of.page(rows, entries.next().map(|(order, _)| *order))
    }

    /// A page of the pending timers.
    pub(super) fn pending(&self, range: &PendingRange) -> PendingPage {
        let mut rows = Vec::new();
        let places = self.pending.range(range.from..).take_while(|(fire, _)| *fire <= range.until);
        for (read, place) in places.enumerate() {
            if read >= PAGE_READS || rows.len() >= range.limit.max(1) as usize {
                return PendingPage { rows, next: Some(*place) };
            }
            rows.extend(self.rows.get(&place.1).cloned().and_then(|row| range.pick(row)));
        }
        PendingPage { rows, next: None }
    }

    /// A page of the counts of destinations.
    pub(super) fn counts(&self, range: &CountsRange) -> CountsPage {
        range.page(self.counts.iter().map(|(dest, counts)| (dest.clone(), *counts)), 0)
    }

    /// How many pending timers fire when.
    pub(super) fn forecast(&self, range: &ForecastRange) -> Forecast {
        let mut sums = ForecastSums::default();
        for (fire, id) in self.pending.range(range.from..) {
            let step = range.step(*fire);
            let row =
                self.rows.get(id).filter(|row| range.filter.accepts_destination(&row.record.timer.dest));
            if row.is_some() && step.0 <= range.until {
                sums.add(step, 1);
            }
        }
        let (spans, next) = sums.page();
        Forecast { spans, next, uncounted: 0 }
    }

    /// Counts that a timer of a destination goes from one place to another.
    fn count(&mut self, dest: &Destination, before: Option<At>, after: Option<At>) {
        self.census.shift(before, after);
        let counts = self.counts.entry(dest.clone()).or_default();
        counts.shift(before, after);
        if counts.total() == 0 {
            self.counts.remove(dest);
        }
    }

    /// The order of one kind of retained timers.
    const fn retained(&self, of: Retained) -> &BTreeMap<u64, TimerId> {
        match of {
            Retained::Dead => &self.dead,
            Retained::Unconfirmed => &self.unconfirmed,
        }
    }

    pub(super) fn census(&self) -> Census {
        let indexed = self.pending.len()
            + self.parked.values().map(BTreeMap::len).sum::<usize>()
            + self.taken.len()
            + self.unconfirmed.len()
            + self.dead.len();
        let residue = indexed.abs_diff(self.rows.len()) as u64;
        Census { keys: self.keys.len() as u64, residue, ..self.census }
    }

    fn index(&mut self, row: &Row) {
        let id = row.id();
        self.last_order += 1;
        let order = match row.at {
            At::Parked => park_position(row.record.timer.priority(), self.last_order),
            At::Pending { .. } | At::Taken { .. } | At::Unconfirmed { .. } | At::Dead { .. } => {
                self.last_order
            }
        };
        match row.at {
            At::Pending { fire, .. } => {
                self.pending.insert((fire, id));
                self.filed.push((fire, id));
                return;
            }
            At::Parked => self.parked.entry(row.record.timer.dest.clone()).or_default().insert(order, id),
            At::Taken { .. } => self.taken.insert(order, id),
            At::Unconfirmed { .. } => self.unconfirmed.insert(order, id),
            At::Dead { .. } => self.dead.insert(order, id),
        };
        self.order.insert(id, order);
    }

    fn unindex(&mut self, row: &Row) {
        let id = row.id();
        let order = self.order.remove(&id).unwrap_or_default();
        match row.at {
            At::Pending { fire, .. } => {
                self.pending.remove(&(fire, id));
            }
            At::Parked => {
                let dest = &row.record.timer.dest;
                if let Some(ids) = self.parked.get_mut(dest) {
                    ids.remove(&order);
                    if ids.is_empty() {
                        self.parked.remove(dest);
                    }
                }
            }
            At::Taken { .. } => {
                self.taken.remove(&order);
            }
            At::Unconfirmed { .. } => {
                self.unconfirmed.remove(&order);
            }
            At::Dead { .. } => {
                self.dead.remove(&order);
            }
        }
    }
}

impl Table for MemoryTable {
    type Error = Infallible;

    fn row(&mut self, id: TimerId) -> Result<Option<Row>, Infallible> {
        Ok(self.rows.get(&id).cloned())
    }

    fn write(&mut self, before: Option<&Row>, mut after: Row) -> Result<(), Infallible> {
        if self.forgets_bulk_marks {
            let others = after.record.extensions.iter().filter(|(tag, _)| *tag != BULK_MARK);
            after.record.extensions = Extensions::new(others).unwrap_or_default();
        }
        // A timer that stays in its place keeps its position in the listings.
        let stays = match (before.map(|row| row.at), after.at) {
            (Some(before), after) => before == after && !matches!(after, At::Pending { .. }),
            (None, _) => false,
        };
        if !stays {
            if let Some(before) = before {
                self.unindex(before);
            }
            self.index(&after);
        }
        self.count(&after.record.timer.dest, before.map(|row| row.at), Some(after.at));
        self.rows.insert(after.id(), after);
        Ok(())
    }

    fn remove(&mut self, before: &Row) -> Result<(), Infallible> {
        self.unindex(before);
        self.count(&before.record.timer.dest, Some(before.at), None);
        self.rows.remove(&before.id());
        Ok(())
    }

    fn key(&mut self, dest: &Destination, key: &Key) -> Result<Option<TimerId>, Infallible> {
        Ok(self.keys.get(&(dest.clone(), key.clone())).copied())
    }

    fn set_key(&mut self, dest: &Destination, key: &Key, id: Option<TimerId>) -> Result<(), Infallible> {
        let name = (dest.clone(), key.clone());
        match id {
            Some(id) => self.keys.insert(name, id),
            None => self.keys.remove(&name),
        };
        Ok(())
    }

    fn ended(&mut self, id: TimerId, now: Time) -> Result<Option<Ended>, Infallible> {
        Ok(self.ended.get(id, now))
    }

    fn set_ended(&mut self, id: TimerId, how: Ended, now: Time) -> Result<(), Infallible> {
        self.ended.set(id, how, now);
        Ok(())
    }

    fn answered(&mut self, request: RequestId, now: Time) -> Result<Option<RememberedAnswer>, Infallible> {
        Ok(self.answered.get(request, now))
    }

    fn set_answered(
        &mut self,
        request: RequestId,
        answer: RememberedAnswer,
        now: Time,
    ) -> Result<(), Infallible> {
        self.answered.set(request, answer, now);
        Ok(())
    }

    fn controls(&self) -> &Controls {
        &self.controls
    }

    fn controls_mut(&mut self) -> &mut Controls {
        &mut self.controls
    }

    fn retained_count(&mut self, of: Retained) -> Result<u64, Infallible> {
        Ok(self.retained(of).len() as u64)
    }

    fn oldest_retained(&mut self, of: Retained, limit: usize) -> Result<Vec<Row>, Infallible> {
        let ids = self.retained(of).values().take(limit);
        Ok(ids.filter_map(|id| self.rows.get(id)).cloned().collect())
    }
}
