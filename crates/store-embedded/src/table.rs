//! One partition as the decisions see it: rows, keys and remembered outcomes over the tree.
//!
//! Invariant: counters, floors and entries for moved timers change with the rows they tell of, in
//! the same write.

mod batch;
mod queues;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use fjall::Slice;
use mtimer_store::listing::park_position;
use mtimer_store::remembered::{RememberedAnswer, decode_ended, encode_ended};
use mtimer_store::settings::settings_to_bytes;
use mtimer_store::table::{At, Context, Row, Table};
use mtimer_store::{Controls, InFlight, LaneError, Place, Record, RequestId, Retained};
use mtimer_types::{Destination, Ended, Key, Priority, Target, Time, TimerId};

use crate::destinations::DestinationNumbers;
use crate::fault::Fault;
use crate::lane_shared::LaneShared;
use crate::layout::{
    FactName, Queue, RecordPosition, Space, app_key, fact_key, pending_key, put_head, take_queue_head,
};
use crate::partition::{PartitionMirror, encode_counts};
use crate::remembered::{RememberedKey, bucket_of, decode_value, encode_value, ended_key};
use crate::tree::Tree;

/// The table that one call of a lane works on.
pub(crate) struct PartitionTable<'a> {
    pub(crate) tree: &'a mut Tree,
    pub(crate) destinations: &'a mut DestinationNumbers,
    pub(crate) partition: &'a mut PartitionMirror,
    pub(crate) lane: &'a Arc<LaneShared>,
    /// The disk has too little space to add anything: where, and how many bytes are free.
    pub(crate) full: Option<(&'a Arc<Path>, u64)>,
    /// Locations read by the present operation, of timers that are not where they were filed at
    /// birth.
    memo: HashMap<TimerId, RecordPosition>,
    /// The key that was read or written last, and the timer that it names.
    named: Option<(Slice, Option<TimerId>)>,
    /// The value that is written next; kept for its capacity.
    value: Vec<u8>,
    /// Filed as pending by this call.
    filed: Vec<(Time, TimerId)>,
    counted: bool,
    /// Destinations whose counts have changed.
    recounted: Vec<u32>,
}

impl<'a> PartitionTable<'a> {
    pub(crate) fn new(
        tree: &'a mut Tree,
        destinations: &'a mut DestinationNumbers,
        partition: &'a mut PartitionMirror,
        lane: &'a Arc<LaneShared>,
    ) -> Self {
        let (memo, value, filed) = (HashMap::new(), Vec::new(), Vec::new());
        Self {
            tree,
            destinations,
            partition,
            lane,
            full: None,
            memo,
            named: None,
            value,
            filed,
            counted: false,
            recounted: Vec::new(),
        }
    }

    /// Gives the partition up.
    pub(crate) fn release(&mut self, in_flight: Vec<InFlight>) {
        self.partition.in_flight = in_flight;
        let owner = &mut self.partition.owner;
        owner.record.released = true;
        owner.record.claimed_until = owner.prior_claim;
        self.partition.store_owner(self.tree);
        self.partition.store_in_flight(self.tree);
        self.lane.end(LaneError::Closed);
    }

    pub(crate) fn find(&mut self, target: &Target) -> Result<Option<(Record, Place)>, Fault> {
        let id = match target {
            Target::Id(id) => Some(*id),
            Target::Key(dest, key) => self.key(dest, key)?,
        };
        let row = id.map(|id| self.row(id)).transpose()?.flatten();
        Ok(row.map(|row| (row.record, row.at.place())))
    }

    /// Stores what has changed of the mirror with the rows of this call.
    pub(crate) fn store_mirror(&mut self) -> Result<(), Fault> {
        self.partition.store_bulks(self.tree);
        for (dest, row) in self.partition.controls.settings.take_changes() {
            let dest = self.destinations.number(&dest, self.tree)?;
            let key = fact_key(FactName::Settings(self.partition.id, dest));
            match row {
                Some(row) => self.tree.put(Space::Facts, key, &settings_to_bytes(&row)[..]),
                None => self.tree.remove(Space::Facts, key),
            }
        }
        if std::mem::take(&mut self.counted) {
            self.partition.store_counters(self.tree);
        }
        self.recounted.sort_unstable();
        self.recounted.dedup();
        for dest in self.recounted.drain(..) {
            let key = fact_key(FactName::Counts(self.partition.id, dest));
            let Some(mirror) = self.partition.dests.get(&dest) else { continue };
            if mirror.counts.total() > 0 {
                self.tree.put(Space::Facts, key, encode_counts(&mirror.counts));
            } else {
                self.partition.dests.remove(&dest);
                self.tree.remove(Space::Facts, key);
            }
        }
        Ok(())
    }

    /// The counters have changed.
    pub(crate) fn mark_counted(&mut self) {
        self.counted = true;
    }

    fn location(&self, id: TimerId) -> Result<Option<RecordPosition>, Fault> {
        if let Some(location) = self.memo.get(&id) {
            return Ok(Some(*location));
        }
        // Most partitions have moved nothing most of the time.
        if self.partition.counters.census.residue == 0 {
            return Ok(None);
        }
        let Some(bytes) = self.tree.get(Space::Moved, &id.to_bytes())? else { return Ok(None) };
        RecordPosition::decode(&bytes)
            .map(Some)
            .ok_or(Fault::Damaged("a moved timer's location is unreadable"))
    }

    fn position_of(&self, row: &Row) -> Result<RecordPosition, Fault> {
        match row.at {
            At::Pending { fire, .. } => Ok(RecordPosition::Pending { fire }),
            At::Parked | At::Taken { .. } | At::Unconfirmed { .. } | At::Dead { .. } => {
                self.location(row.id())?.ok_or(Fault::Damaged("a moved timer's location is missing"))
            }
        }
    }

    /// Where a row goes. It stays where it is if it stays in its place.
    fn next_position(&mut self, dest: u32, row: &Row, old: Option<RecordPosition>) -> RecordPosition {
        let at = row.at;
        match (at, old) {
            (At::Pending { fire, .. }, _) => return RecordPosition::Pending { fire },
            (At::Parked, Some(old @ RecordPosition::Parked { .. }))
            | (At::Taken { .. }, Some(old @ RecordPosition::Taken { .. }))
            | (At::Unconfirmed { .. }, Some(old @ RecordPosition::Unconfirmed { .. }))
            | (At::Dead { .. }, Some(old @ RecordPosition::Dead { .. })) => return old,
            _ => {}
        }
        self.partition.counters.order += 1;
        let order = self.partition.counters.order;
        match at {
            At::Parked => {
                RecordPosition::Parked { dest, order: park_position(row.record.timer.priority(), order) }
            }
            At::Taken { .. } => RecordPosition::Taken { order },
            At::Unconfirmed { .. } => RecordPosition::Unconfirmed { order },
            At::Pending { .. } | At::Dead { .. } => RecordPosition::Dead { order },
        }
    }

    /// Takes a row out of its location.
    fn leave(&mut self, id: TimerId, location: RecordPosition) {
        let (space, key) = location.key(self.partition.id, id);
        self.tree.remove(space, key);
        match location {
            RecordPosition::Pending { .. } => self.partition.removed += 1,
            RecordPosition::Unconfirmed { .. } => {
                let unconfirmed = &mut self.partition.counters.unconfirmed;
                *unconfirmed = unconfirmed.saturating_sub(1);
            }
            RecordPosition::Parked { .. } | RecordPosition::Taken { .. } | RecordPosition::Dead { .. } => {}
        }
    }

    /// Counts that a timer of a destination goes from one place to another.
    fn count(&mut self, dest: u32, before: Option<At>, after: Option<At>) {
        let counters = &mut self.partition.counters;
        counters.census.shift(before, after);
        let mirror = self.partition.dests.entry(dest).or_default();
        if mirror.counts.parked == 0 {
            mirror.park_floors = Priority::ALL.map(|priority| park_position(priority, counters.order));
        }
        mirror.counts.shift(before, after);
        if self.recounted.last() != Some(&dest) {
            self.recounted.push(dest);
        }
        self.counted = true;
    }

    /// Keeps the entry that tells where a moved timer is.
    fn keep_moved(&mut self, id: TimerId, old: Option<RecordPosition>, new: Option<RecordPosition>) {
        let moved = |location: Option<RecordPosition>| location.filter(|p| *p != birth(id));
        let residue = &mut self.partition.counters.census.residue;
        match (moved(old), moved(new)) {
            (old, Some(new)) if old != Some(new) => {
                *residue += u64::from(old.is_none());
                self.tree.put(Space::Moved, id.to_bytes().into(), new.encode());
            }
            (Some(_), None) => {
                *residue = residue.saturating_sub(1);
                self.tree.remove(Space::Moved, id.to_bytes().into());
            }
            _ => {}
        }
    }

    /// The timer that a key names. A decision that changes a key has just read it.
    fn holder(&mut self, name: Slice) -> Result<Option<TimerId>, Fault> {
        if let Some((_, id)) = self.named.as_ref().filter(|(named, _)| *named == name) {
            return Ok(*id);
        }
        let bytes = self.tree.get(Space::Keys, &name)?;
        let id = bytes.map(|bytes| {
            let id = <[u8; 16]>::try_from(&bytes[..]);
            id.map(TimerId::from_bytes).map_err(|_| Fault::Damaged("a key's entry is unreadable"))
        });
        let id = id.transpose()?;
        self.named = Some((name, id));
        Ok(id)
    }

    fn remembered<T>(
        &self,
        memory: RememberedKey,
        now: Time,
        decode: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, Fault> {
        let first = bucket_of(now).saturating_sub(1);
        for bucket in self.partition.counters.ended.range(first..).rev().map(|(bucket, _)| *bucket) {
            if let Some(bytes) = self.tree.get(Space::Ended, &ended_key(self.partition.id, bucket, memory))? {
                let (at, remembered) = decode_value(&bytes, decode)
                    .ok_or(Fault::Damaged("a remembered outcome is unreadable"))?;
                return Ok(Context::remembers(now, at).then_some(remembered));
            }
        }
        Ok(None)
    }

    fn remember_until_horizon(&mut self, memory: RememberedKey, now: Time, bytes: &[u8]) {
        let bucket = bucket_of(now);
        *self.partition.counters.ended.entry(bucket).or_default() += 1;
        let key = ended_key(self.partition.id, bucket, memory);
        self.tree.put(Space::Ended, key, encode_value(now, bytes));
        self.counted = true;
    }
}

/// Where a timer is filed at birth: it needs no entry to be found there.
fn birth(id: TimerId) -> RecordPosition {
    RecordPosition::Pending { fire: id.birth_due() }
}

/// Reads a row from the value at its location.
pub(crate) fn read_row(
    destinations: &DestinationNumbers,
    id: TimerId,
    location: RecordPosition,
    mut value: Bytes,
) -> Result<Row, Fault> {
    let queue = match location {
        RecordPosition::Pending { fire } => {
            let tier = value.try_get_u8().map_err(|_| Fault::Damaged("a pending timer is empty"))?;
            let record = Record::decode(id, &value, |number| destinations.name(number))?;
            return Ok(Row { record, at: At::Pending { fire, tier } });
        }
        RecordPosition::Parked { dest, .. } => Queue::Parked { dest },
        RecordPosition::Taken { .. } => Queue::Taken,
        RecordPosition::Unconfirmed { .. } => Queue::Unconfirmed,
        RecordPosition::Dead { .. } => Queue::Dead,
    };
    let head = take_queue_head(queue, &mut value).filter(|(found, _)| *found == id);
    let (_, at) = head.ok_or(Fault::Damaged("a timer in a queue is unreadable"))?;
    Ok(Row { record: Record::decode(id, &value, |number| destinations.name(number))?, at })
}

impl Table for PartitionTable<'_> {
    type Error = Fault;

    fn row(&mut self, id: TimerId) -> Result<Option<Row>, Fault> {
        let p = self.partition.id;
        if let Some(value) = self.tree.get(Space::Pending, &pending_key(p, id.birth_due(), id))? {
            return read_row(self.destinations, id, birth(id), value).map(Some);
        }
        let Some(location) = self.location(id)? else { return Ok(None) };
        self.memo.insert(id, location);
        let (space, key) = location.key(p, id);
        let value = self.tree.get(space, &key)?.ok_or(Fault::Damaged("a moved timer is missing"))?;
        read_row(self.destinations, id, location, value).map(Some)
    }

    fn write(&mut self, before: Option<&Row>, after: Row) -> Result<(), Fault> {
        let id = after.id();
        let old = before.map(|row| self.position_of(row)).transpose()?;
        let dest = self.destinations.number(&after.record.timer.dest, self.tree)?;
        let new = self.next_position(dest, &after, old);
        if old != Some(new) {
            if let Some(old) = old {
                self.leave(id, old);
            }
            match new {
                RecordPosition::Unconfirmed { .. } => self.partition.counters.unconfirmed += 1,
                RecordPosition::Pending { .. }
                | RecordPosition::Parked { .. }
                | RecordPosition::Taken { .. }
                | RecordPosition::Dead { .. } => {}
            }
            self.keep_moved(id, old, Some(new));
        }
        if let RecordPosition::Pending { fire } = new {
            let floor = &mut self.partition.counters.floor;
            *floor = fire.as_ms().min(*floor);
            self.tree.lower_floor(self.partition.id, fire.as_ms());
            self.filed.push((fire, id));
        }
        self.value.clear();
        put_head(after.at, id, &mut self.value);
        after.record.encode(dest, &mut self.value);
        let (space, key) = new.key(self.partition.id, id);
        self.tree.put(space, key, &self.value[..]);
        if new != birth(id) {
            self.memo.insert(id, new);
        } else if !self.memo.is_empty() {
            self.memo.remove(&id);
        }
        self.count(dest, before.map(|row| row.at), Some(after.at));
        Ok(())
    }

    fn remove(&mut self, before: &Row) -> Result<(), Fault> {
        let old = self.position_of(before)?;
        self.leave(before.id(), old);
        self.keep_moved(before.id(), Some(old), None);
        if !self.memo.is_empty() {
            self.memo.remove(&before.id());
        }
        let dest = self.destinations.number(&before.record.timer.dest, self.tree)?;
        self.count(dest, Some(before.at), None);
        Ok(())
    }

    fn key(&mut self, dest: &Destination, key: &Key) -> Result<Option<TimerId>, Fault> {
        let Some(number) = self.destinations.find(dest) else { return Ok(None) };
        self.holder(app_key(self.partition.id, number, key.as_str()))
    }

    fn set_key(&mut self, dest: &Destination, key: &Key, id: Option<TimerId>) -> Result<(), Fault> {
        let number = self.destinations.number(dest, self.tree)?;
        let name = app_key(self.partition.id, number, key.as_str());
        let had = self.holder(name.clone())?.is_some();
        self.named = Some((name.clone(), id));
        let keys = &mut self.partition.counters.census.keys;
        match id {
            Some(id) => {
                *keys += u64::from(!had);
                self.tree.put(Space::Keys, name, id.to_bytes());
            }
            None => {
                *keys = keys.saturating_sub(u64::from(had));
                self.tree.remove(Space::Keys, name);
            }
        }
        self.counted = true;
        Ok(())
    }

    fn ended(&mut self, id: TimerId, now: Time) -> Result<Option<Ended>, Fault> {
        self.remembered(RememberedKey::Ended(id), now, decode_ended)
    }

    fn set_ended(&mut self, id: TimerId, how: Ended, now: Time) -> Result<(), Fault> {
        self.remember_until_horizon(RememberedKey::Ended(id), now, &encode_ended(how));
        Ok(())
    }

    fn answered(&mut self, request: RequestId, now: Time) -> Result<Option<RememberedAnswer>, Fault> {
        self.remembered(RememberedKey::Answered(request.0), now, RememberedAnswer::decode)
    }

    fn set_answered(&mut self, request: RequestId, answer: RememberedAnswer, now: Time) -> Result<(), Fault> {
        self.remember_until_horizon(RememberedKey::Answered(request.0), now, &answer.encode());
        Ok(())
    }

    fn controls(&self) -> &Controls {
        &self.partition.controls
    }

    fn controls_mut(&mut self) -> &mut Controls {
        &mut self.partition.controls
    }

    fn retained_count(&mut self, of: Retained) -> Result<u64, Fault> {
        let counters = &self.partition.counters;
        Ok(match of {
            Retained::Dead => counters.census.dead,
            Retained::Unconfirmed => counters.unconfirmed,
        })
    }

    fn oldest_retained(&mut self, of: Retained, limit: usize) -> Result<Vec<Row>, Fault> {
        self.store_mirror()?;
        self.first_retained(of, limit)
    }
}
