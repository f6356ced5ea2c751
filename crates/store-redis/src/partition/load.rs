//! Loading the wheel, and unloading it.
//!
//! The next slots are read whole, in the order of need; dense wide slots are split into narrower
//! ones first. How far everything is loaded is the catalog's business.

use std::collections::HashMap;

use bytes::Bytes;
use mtimer_store::table::{At, Row};
use mtimer_store::{LaneError, Load, Loaded, LoadedTimer};
use mtimer_types::{Time, TimerId};
use redis::Value;

use super::encode::Draft;
use super::fields::FieldLookup;
use super::owner::Owner;
use crate::keyspace::catalog::{Filing, LoadStep};
use crate::keyspace::keys::{HashKey, IndexKey, SlotKey};
use crate::keyspace::value::{decode_pending, encode_moved_to};
use crate::wire::Reply;

/// Split steps (of up to five slots of about 128 timers) of one load.
const SPLITS: u32 = 8;
/// The same of one load that splits slots that are not needed yet: a few ms.
const SPLITS_AHEAD: u32 = 2;
/// Slots that one write moves from the copy to the list.
const UNLOAD_STEP: usize = 200;
/// Timers, and bytes, that one write moves out of wide slots.
const SPLIT_STEP: usize = 128;
const SPLIT_BYTES: usize = 64 << 10;

/// A timer of a slot, as it is stored.
struct StoredTimer {
    id: TimerId,
    value: Bytes,
    row: Row,
    is_implied: bool,
}

/// A slot, as it was read.
struct StoredSlot {
    /// The timers that can be read.
    timers: Vec<StoredTimer>,
    /// Nothing is in it, not even a record that cannot be read.
    is_empty: bool,
    /// It had nothing when it was read. A slot that is emptied leaves its index with the same
    /// write, so its timers were lost.
    is_lost: bool,
}

impl Owner {
    /// See [`mtimer_store::Call::Load`].
    pub(crate) async fn load(&mut self, load: Load) -> Result<Loaded, LaneError> {
        let (mut timers, mut bytes, mut splits, mut claim) = (Vec::new(), 0, 0, load.claim);
        let mut is_done = false;
        while timers.len() < load.max_timers.max(1) && bytes < load.max_bytes.max(1) {
            match self.known.catalog.step(load.until) {
                LoadStep::Done => {
                    is_done = true;
                    break;
                }
                LoadStep::Split(slots) => {
                    splits += 1;
                    if splits > SPLITS {
                        break;
                    }
                    self.split(&slots).await?;
                }
                LoadStep::Read(slots) => bytes += self.load_slots(&slots, claim.take(), &mut timers).await?,
            }
        }
        if claim.is_some() {
            self.write_anyway(Draft::default(), claim).await?;
        }
        let is_claim_unconfirmed = load.claim.is_some() && !self.confirm_claim().await?;
        self.known.catalog.advance(load.until);
        // A load that claims delays deliveries: it does not split ahead.
        if is_done && load.claim.is_none() {
            for _ in 0..SPLITS_AHEAD {
                let slots = self.known.catalog.split_ahead(load.until);
                if slots.is_empty() {
                    break;
                }
                self.split(&slots).await?;
            }
        }
        Ok(Loaded { timers, horizon: self.known.catalog.horizon(), is_claim_unconfirmed })
    }

    /// Reads slots and moves them to the copy. Bytes of payloads and headers.
    async fn load_slots(
        &mut self,
        slots: &[SlotKey],
        claim: Option<Time>,
        timers: &mut Vec<LoadedTimer>,
    ) -> Result<usize, LaneError> {
        let contents = self.read_stored(slots).await?;
        let mut draft = Draft::default();
        for (slot, StoredSlot { is_empty, is_lost, .. }) in slots.iter().zip(&contents) {
            if *is_lost && !broken!(LostSlotsPassedOver) {
                let key = self.known.space.hash(HashKey::Slot(*slot));
                self.writer.log().incidents().lost_key(self.partition(), &key);
            }
            let index = self.known.catalog.index(*slot);
            if *is_empty || index != IndexKey::Copy {
                draft.leave_index(index, *slot);
            }
            if !*is_empty && index != IndexKey::Copy {
                draft.enter(IndexKey::Copy, *slot);
            }
        }
        self.write_anyway(draft, claim).await?;
        let mut content = 0;
        for (slot, StoredSlot { timers: stored, .. }) in slots.iter().zip(contents) {
            let bytes = stored.iter().map(|timer| timer.value.len()).sum();
            self.known.catalog.read_whole(*slot, stored.iter().map(|timer| timer.id), bytes);
            self.note_destinations(*slot, &stored);
            for StoredTimer { row, .. } in stored {
                let At::Pending { fire, tier } = row.at else { continue };
                content += row.record.timer.content_bytes();
                let covered = row.record.covered(fire, self.epoch(), self.known.prior_claim);
                timers.push(LoadedTimer { record: row.record, fire, tier, covered });
            }
        }
        Ok(content)
    }

    /// Reads slots. First removes leftovers of writes that were cut off when an earlier owner died.
    async fn read_stored(&mut self, slots: &[SlotKey]) -> Result<Vec<StoredSlot>, LaneError> {
        let keys = slots.iter().map(|slot| self.known.space.hash(HashKey::Slot(*slot)));
        let contents = self.writer.read_each("HGETALL", keys).await?.into_iter().map(Reply::into_pairs);
        let mut contents: Vec<_> = contents.map(|pairs| (pairs.len(), self.stored(pairs))).collect();
        let lost: Vec<bool> = contents.iter().map(|(count, _)| *count == 0).collect();
        let mut lookup = FieldLookup::default();
        let mut doubtful = HashMap::new();
        for (slot, (_, stored)) in slots.iter().zip(&contents) {
            let is_own = self.known.catalog.knows_ids(*slot);
            for StoredTimer { id, is_implied, .. } in stored.iter().filter(|_| !is_own) {
                let hash = self.known.secret.id(*id);
                if !is_implied || self.known.moved.may_have(hash) {
                    let entry = lookup.push(HashKey::Moved(hash.shard()), [&id.to_local()]);
                    doubtful.insert((*slot, *id), entry);
                }
            }
        }
        let found = self.look_up(lookup).await?;
        let mut leftovers = Vec::new();
        for (slot, (count, stored)) in slots.iter().zip(&mut contents) {
            let is_leftover = |timer: &mut StoredTimer| {
                let Some(entry) = doubtful.get(&(*slot, timer.id)) else { return false };
                // A leftover: its entry does not name this slot, or its value needs an entry and
                // has none.
                found[*entry].as_ref().map_or(!timer.is_implied, |entry| encode_moved_to(*slot) != entry[..])
            };
            let before = leftovers.len();
            leftovers.extend(stored.extract_if(.., is_leftover).map(|timer| (*slot, timer.id)));
            *count -= leftovers.len() - before;
        }
        self.remove_leftovers(&leftovers).await?;
        let slot = |((count, timers), is_lost)| StoredSlot { timers, is_empty: count == 0, is_lost };
        Ok(contents.into_iter().zip(lost).map(slot).collect())
    }

    /// Notes of which destinations a slot has timers.
    fn note_destinations(&mut self, slot: SlotKey, stored: &[StoredTimer]) {
        let dests = &self.known.dests;
        let dests = stored.iter().filter_map(|timer| dests.number(&timer.row.record.timer.dest));
        self.known.catalog.read_destinations(slot, dests);
    }

    /// Reads the pending timers of slots, and notes of which destinations each has some.
    pub(super) async fn read_pending(&mut self, slots: &[SlotKey]) -> Result<Vec<Row>, LaneError> {
        let contents = self.read_stored(slots).await?;
        let mut rows = Vec::new();
        for (slot, StoredSlot { timers, .. }) in slots.iter().zip(contents) {
            self.note_destinations(*slot, &timers);
            rows.extend(timers.into_iter().map(|timer| timer.row));
        }
        Ok(rows)
    }

    /// The timers of a slot that can be read.
    fn stored(&mut self, pairs: Vec<(Value, Value)>) -> Vec<StoredTimer> {
        let timer = |(id, value): (Value, Value)| {
            let (id, value) = (self.known.space.id(id.bytes()?)?, value.into_bytes()?);
            let read = decode_pending(id, &value, |number| self.known.dests.name(number));
            let (row, is_implied) = self.readable(read)?;
            Some(StoredTimer { id, value, row, is_implied })
        };
        pairs.into_iter().filter_map(timer).collect()
    }

    /// Moves the timers of dense slots into narrower ones.
    async fn split(&mut self, slots: &[SlotKey]) -> Result<(), LaneError> {
        let contents = self.read_stored(slots).await?;
        let mut timers = Vec::new();
        for (from, StoredSlot { timers: stored, .. }) in slots.iter().zip(contents) {
            if stored.is_empty() {
                // Empty: loading it takes it out of its index. All damaged: loading it moves it to
                // the index of loaded slots.
                self.load_slots(&[*from], None, &mut Vec::new()).await?;
            }
            self.known.catalog.read_ids(*from, stored.iter().map(|timer| timer.id));
            self.note_destinations(*from, &stored);
            timers.extend(stored.into_iter().map(|timer| (*from, timer)));
        }
        // Those of one narrow slot go together, whichever wide ones they come from.
        timers.sort_by_key(|(_, timer)| match timer.row.at {
            At::Pending { fire, .. } => fire,
            _ => Time::ZERO,
        });
        let mut rest = &timers[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |(_, timer): &&(SlotKey, StoredTimer)| {
                bytes += timer.value.len();
                bytes <= SPLIT_BYTES
            };
            let count = rest.iter().take(SPLIT_STEP).take_while(fits).count().max(1);
            let (some, later) = rest.split_at(count);
            self.split_some(some).await?;
            rest = later;
        }
        Ok(())
    }

    async fn split_some(&mut self, timers: &[(SlotKey, StoredTimer)]) -> Result<(), LaneError> {
        let mut draft = Draft::default();
        for (from, timer) in timers {
            let At::Pending { fire, .. } = timer.row.at else { continue };
            let (id, width) = (timer.id.to_local(), self.known.catalog.split_width(*from));
            let (track, size) = (from.track, timer.value.len());
            let dest = self.known.dests.intern(&timer.row.record.timer.dest);
            let filing = Filing { id: timer.id, fire, dest, track, width, size };
            let place = self.known.catalog.place(filing, draft.placements());
            draft.set(HashKey::Slot(place.slot), &id, &timer.value);
            if !timer.is_implied {
                let shard = self.known.secret.id(timer.id).shard();
                draft.set(HashKey::Moved(shard), &id, &encode_moved_to(place.slot));
            }
            draft.leave(*from, timer.id, dest);
        }
        self.write_anyway(draft, None).await
    }

    /// See [`mtimer_store::Call::Unload`].
    pub(crate) async fn unload(&mut self, beyond: Time) -> Result<(), LaneError> {
        let moving = self.known.catalog.unload(beyond);
        for slots in moving.chunks(UNLOAD_STEP) {
            let mut draft = Draft::default();
            for slot in slots {
                draft.enter(IndexKey::List, *slot);
                draft.leave_index(IndexKey::Copy, *slot);
            }
            self.write_anyway(draft, None).await?;
            slots.iter().for_each(|slot| self.known.catalog.listed(*slot));
        }
        Ok(())
    }
}
