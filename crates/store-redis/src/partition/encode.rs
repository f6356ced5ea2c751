//! Turns decisions into commands.
//!
//! The order of the commands makes a write that is cut off half way harmless until it is repeated:
//! index entries before the contents they announce, rows before keys, additions before removals.
//! Each key but an index has at most one removal, as its last command. A hash slot that is being
//! migrated cuts scripts off so.
//!
//! The entry in `moved` locates a timer; without one it is in a slot that its id implies. A copy
//! anywhere else is a leftover. So contents are written before entries: a timer that moves is at
//! one of the two places at every moment. If both places are in one slot, its contents change at
//! once, and the entry comes first. Entries go before contents do.
//!
//! A bulk job comes behind the timers on which it has acted: a job is never ahead of what it has
//! done. An operation that begins or ends one is the last of its turn ([`super::turn`]): so no timer
//! gets the mark of a job that is not stored, or lacks the mark of one that is.

use std::mem::discriminant;
use std::sync::Arc;

use mtimer_store::Controls;
use mtimer_store::listing::park_position;
use mtimer_store::record::Progress;
use mtimer_store::remembered::encode_ended;
use mtimer_store::settings::settings_to_bytes;
use mtimer_store::table::{At, Row};
use mtimer_store::view::{Changes, KeyChange, RowChange};
use mtimer_types::{Ended, SlotWidth, Time, TimerId};

use super::knowledge::Knowledge;
use super::locations::Locations;
use super::tally::{Aside, Shift};
use super::writes::{ByKey, Writes};
use crate::keyspace::catalog::{Filing, Placements};
use crate::keyspace::keys::{HashKey, IndexKey, ListingKey, OutcomeBucket, SlotKey};
use crate::keyspace::secret::{KeyField, KeyedHash};
use crate::keyspace::value::{
    LARGE, Location, encode_destination, encode_moved, encode_moved_to, encode_pending, request_field,
};

/// No destination's number.
pub(crate) const UNKNOWN_DESTINATION: u32 = 0;

/// Commands of one write, by kind, until they are put into order.
#[derive(Default)]
pub(crate) struct Draft {
    /// Fields of the owner record: field, value.
    facts: ByKey<(), 2>,
    /// Slots that enter an index: score, member.
    indexed: ByKey<IndexKey, 2>,
    /// Members that enter a listing: score, member.
    listed: ByKey<ListingKey, 2>,
    /// Fields of hashes: field, value. In the order of [`HashKey`].
    fields: ByKey<HashKey, 2>,
    /// Entries in `moved` of timers that stay in their slot, by shard: id, value.
    entries_in_place: ByKey<u8, 2>,
    /// Timers that leave a slot, each with the number of its destination.
    leaving: Vec<(SlotKey, TimerId, u32)>,
    /// Timers that leave a destination's park, by its number.
    unparked: ByKey<u32, 1>,
    /// Members that leave another listing.
    unlisted: ByKey<ListingKey, 1>,
    /// Timers that lose their entry in `moved`, by shard.
    unmoved: ByKey<u8, 1>,
    /// Keys that become free if they still name the timer: field, id.
    freed: ByKey<(), 2>,
    /// Slots that leave an index.
    leaving_index: ByKey<IndexKey, 1>,
    /// Bulk jobs that have changed: number, job.
    bulks: ByKey<(), 2>,
    /// Numbers of bulk jobs that go.
    bulks_gone: ByKey<(), 1>,
    /// Settings that have changed: destination, settings.
    settings: ByKey<(), 2>,
    /// Destinations whose settings go.
    settings_gone: ByKey<(), 1>,
    /// The store holds more afterwards.
    pub(crate) adds: bool,
    note: Note,
}

/// A write, and the changes that the owner notes once it is applied.
pub(crate) struct Drafted {
    pub(crate) writes: Writes,
    pub(crate) note: Note,
}

/// Changes to the owner's state, made once a write has been applied.
#[derive(Default)]
pub(crate) struct Note {
    pub(crate) placements: Placements,
    /// In the order of the commands.
    pub(crate) leaving: Vec<Leaving>,
    /// Timers that are filed anew in the slot in which they are.
    refiled: Vec<(SlotKey, TimerId, u32)>,
    /// Timers that get to, or leave, a place other than a slot.
    shifted: Vec<Shift>,
    /// Timers that get, or lose, an entry in `moved`.
    moved: Vec<TimerId>,
    moved_back: Vec<TimerId>,
    /// At-most-once timers that are taken, and that are not taken any more.
    taken: Vec<TimerId>,
    no_more_taken: Vec<TimerId>,
    /// Fields of outcomes, the bucket into which they go, and for how long it is kept, ms.
    remembered: Vec<KeyedHash>,
    bucket: Option<(OutcomeBucket, u64)>,
    /// The keys have [`LARGE`] beside them.
    makes_hash_table: bool,
    /// Keys that name a timer and named none before.
    keyed: Vec<KeyedHash>,
    /// Keys that become free if they still name the timer.
    pub(crate) freed_keys: Vec<KeyedHash>,
    /// The number of the command that frees them, if there are any.
    pub(crate) freeing: Option<usize>,
    /// The controls, if some have changed.
    pub(crate) controls: Option<Arc<Controls>>,
    position: u64,
    claimed: Time,
}

/// A timer that left a slot, with the number of its destination, and the number of the command.
pub(crate) type Leaving = (usize, SlotKey, TimerId, u32);

impl Draft {
    /// Sets a field of the owner record.
    pub(crate) fn set_fact(&mut self, field: &str, value: &[u8]) {
        self.facts.push((), [field.as_bytes(), value]);
    }

    /// A slot enters an index.
    pub(crate) fn enter(&mut self, index: IndexKey, slot: SlotKey) {
        self.indexed.push(index, [slot.start.to_string().as_bytes(), slot.to_string().as_bytes()]);
    }

    /// A slot leaves an index.
    pub(crate) fn leave_index(&mut self, index: IndexKey, slot: SlotKey) {
        self.leaving_index.push(index, [slot.to_string().as_bytes()]);
    }

    /// A timer leaves a listing, other than a park.
    pub(crate) fn unlist(&mut self, listing: ListingKey, id: TimerId) {
        if listing == ListingKey::Taken {
            self.note.no_more_taken.push(id);
        }
        self.unlisted.push(listing, [&id.to_local()]);
    }

    /// A timer leaves its slot. `dest`: the number of its destination, or [`UNKNOWN_DESTINATION`].
    pub(crate) fn leave(&mut self, slot: SlotKey, id: TimerId, dest: u32) {
        self.leaving.push((slot, id, dest));
    }

    /// A key becomes free if it still names the timer.
    pub(crate) fn free(&mut self, key: KeyField, id: TimerId) {
        self.freed.push((), [&key, &id.to_local()]);
        self.note.freed_keys.push(KeyedHash::of_key(&key));
    }

    /// A timer that this owner has taken ends.
    pub(crate) fn end_taken(&mut self, shard: u8, id: TimerId, dest: u32) {
        self.note.shifted.push(Shift { id, dest, before: Some(Aside::Taken), after: None });
        self.unmoved.push(shard, [&id.to_local()]);
        self.note.moved_back.push(id);
        self.unlist(ListingKey::Taken, id);
    }

    /// Controls have changed. These are all of them.
    pub(crate) fn set_controls(&mut self, mut controls: Controls) {
        for (number, job) in controls.bulks.take_changes() {
            let number = number.to_string();
            match job {
                Some(job) => _ = self.bulks.push((), [number.as_bytes(), &job.to_bytes()]),
                None => _ = self.bulks_gone.push((), [number.as_bytes()]),
            }
        }
        for (dest, row) in controls.settings.take_changes() {
            let dest = encode_destination(&dest);
            match row {
                Some(row) => _ = self.settings.push((), [dest.as_bytes(), &settings_to_bytes(&row)]),
                None => _ = self.settings_gone.push((), [dest.as_bytes()]),
            }
        }
        self.note.controls = Some(Arc::new(controls));
    }

    /// Sets a field of a hash.
    pub(crate) fn set(&mut self, hash: HashKey, field: &[u8], value: &[u8]) {
        self.fields.push(hash, [field, value]);
    }

    /// The placements of this write.
    pub(crate) const fn placements(&mut self) -> &mut Placements {
        &mut self.note.placements
    }
}

impl Knowledge {
    /// Adds the decided changes of a batch.
    pub(crate) fn draft(&mut self, draft: &mut Draft, changes: &Changes, locations: &Locations, now: Time) {
        draft.adds |= changes.adds();
        for row in &changes.rows {
            self.draft_row(draft, row, locations.get(row.id()), now);
        }
        for key in &changes.keys {
            self.draft_key(draft, key);
        }
        if !self.keys_are_hash_table && changes.keys.iter().any(|key| key.after.is_some()) {
            draft.set(HashKey::AppKeys, b"", &LARGE);
            draft.note.makes_hash_table = true;
        }
        for (id, how) in &changes.ended {
            self.remember_end(draft, *id, *how, now);
        }
        for (request, answer) in &changes.answered {
            self.remember(draft, &request_field(*request), &answer.encode(), now);
        }
    }

    /// Remembers how a timer has ended.
    pub(crate) fn remember_end(&self, draft: &mut Draft, id: TimerId, how: Ended, now: Time) {
        self.remember(draft, &id.to_local(), &encode_ended(how), now);
    }

    fn remember(&self, draft: &mut Draft, field: &[u8], outcome: &[u8], now: Time) {
        let bucket = OutcomeBucket::of(now);
        draft.set(HashKey::Ended(bucket), field, outcome);
        draft.note.remembered.push(self.secret.outcome_field(field));
        // Counted from the moment at which it is applied, since the server's clock may be any
        // other. It is never less than outcomes are remembered for, and more if a write is applied
        // later, or again.
        draft.note.bucket = Some((bucket, bucket.expires().ms_since(now)));
    }

    fn draft_key(&self, draft: &mut Draft, key: &KeyChange) {
        let field = self.secret.key(&key.dest, &key.key);
        match (key.after, key.before) {
            (Some(id), before) => {
                draft.set(HashKey::AppKeys, &field, &id.to_local());
                draft.note.keyed.extend(before.is_none().then(|| KeyedHash::of_key(&field)));
            }
            (None, Some(id)) => draft.free(field, id),
            (None, None) => {}
        }
    }

    fn draft_row(&mut self, draft: &mut Draft, change: &RowChange, from: Option<Location>, now: Time) {
        let (id, before, after) = (change.id(), change.before.as_ref(), change.after.as_ref());
        let was = before.map(|row| row.at);
        let stays = was == after.map(|row| row.at);
        let to = after.map(|row| self.draft_contents(draft, row, from, stays, now));
        let dest = before.or(after).and_then(|row| self.dests.number(&row.record.timer.dest));
        let dest = dest.unwrap_or(UNKNOWN_DESTINATION);
        if let Some(Location::Slot { slot, .. }) = from {
            let is_in_place = matches!(to, Some(Location::Slot { slot: new, .. }) if new == slot);
            if !is_in_place {
                draft.leave(slot, id, dest);
            } else if !stays {
                draft.note.refiled.push((slot, id, dest));
            }
        }
        match (from.is_some_and(has_entry), to.is_some_and(has_entry)) {
            (true, false) => {
                let shard = self.secret.id(id).shard();
                draft.unmoved.push(shard, [&id.to_local()]);
                draft.note.moved_back.push(id);
            }
            (false, true) => draft.note.moved.push(id),
            _ => {}
        }
        if !stays {
            let (left, reached) = (was.and_then(Aside::of), after.and_then(|row| Aside::of(row.at)));
            if left != reached {
                draft.note.shifted.push(Shift { id, dest, before: left, after: reached });
            }
            // One that stays in its listing gets a new position there.
            let is_listed_anew = before
                .zip(after)
                .is_some_and(|(before, after)| discriminant(&before.at) == discriminant(&after.at));
            if let Some(row) = before.filter(|_| !is_listed_anew) {
                self.unlist(draft, row);
            }
            if let Some(row) = after {
                self.list(draft, row);
            }
        }
    }

    /// Writes a row to where it belongs; `stays`: that is where it is.
    fn draft_contents(
        &mut self,
        draft: &mut Draft,
        row: &Row,
        from: Option<Location>,
        stays: bool,
        now: Time,
    ) -> Location {
        let dest = self.dests.intern(&row.record.timer.dest);
        let (id, field) = (row.id(), row.id().to_local());
        let At::Pending { fire, tier } = row.at else {
            let value = encode_moved(row, dest).unwrap_or_default();
            draft.set(HashKey::Moved(self.secret.id(id).shard()), &field, &value);
            return Location::Moved;
        };
        let (slot, may_be_implied) = match from {
            Some(Location::Slot { slot, is_implied }) if stays => (slot, is_implied),
            _ => {
                let is_at_birth = tier == 0 && fire == id.birth_due();
                let width = SlotWidth::for_distance(fire.ms_since(now));
                let width = if is_at_birth { id.birth_width() } else { width };
                let size = row.record.timer.content_bytes() + 32;
                let filing = Filing { id, fire, dest, track: tier, width, size };
                let place = self.catalog.place(filing, &mut draft.note.placements);
                (place.slot, place.is_implied)
            }
        };
        // One without an entry may be taken for untouched without reading it.
        let progress = &row.record.progress;
        let is_first = *progress == Progress { fresh: progress.fresh, ..Progress::default() };
        let is_implied = may_be_implied && (is_first || broken!(LaterAttemptsImplied));
        let location = Location::Slot { slot, is_implied };
        let value = encode_pending(&row.record, fire, tier, !has_entry(location), dest);
        draft.set(HashKey::Slot(slot), &field, &value);
        if has_entry(location) && from != Some(location) {
            let shard = self.secret.id(id).shard();
            let is_in_place = matches!(from, Some(Location::Slot { slot: old, .. }) if old == slot);
            if is_in_place {
                draft.entries_in_place.push(shard, [&field, &encode_moved_to(slot)]);
            } else {
                draft.set(HashKey::Moved(shard), &field, &encode_moved_to(slot));
            }
        }
        location
    }

    /// The listing of a timer's place. One that is pending is in none.
    fn listing_of(&mut self, row: &Row) -> Option<ListingKey> {
        match row.at {
            At::Pending { .. } => None,
            At::Parked => Some(ListingKey::ParkOf(self.dests.intern(&row.record.timer.dest))),
            At::Taken { .. } => Some(ListingKey::Taken),
            At::Unconfirmed { .. } => Some(ListingKey::Unconfirmed),
            At::Dead { .. } => Some(ListingKey::Dead),
        }
    }

    /// Puts a timer at the end of the listing of its place.
    fn list(&mut self, draft: &mut Draft, row: &Row) {
        let Some(listing) = self.listing_of(row) else { return };
        if let ListingKey::ParkOf(number) = listing {
            draft.listed.push(ListingKey::Park, [b"0", number.to_string().as_bytes()]);
        } else if listing == ListingKey::Taken {
            draft.note.taken.push(row.id());
        }
        self.position += 1;
        let position = match row.at {
            At::Parked => park_position(row.record.timer.priority(), self.position),
            At::Pending { .. } | At::Taken { .. } | At::Unconfirmed { .. } | At::Dead { .. } => self.position,
        };
        draft.listed.push(listing, [position.to_string().as_bytes(), &row.id().to_local()]);
    }

    /// Takes a timer out of the listing of its place.
    fn unlist(&mut self, draft: &mut Draft, row: &Row) {
        match self.listing_of(row) {
            Some(ListingKey::ParkOf(number)) => _ = draft.unparked.push(number, [&row.id().to_local()]),
            Some(listing) => draft.unlist(listing, row.id()),
            None => {}
        }
    }

    /// Puts the commands into order.
    pub(crate) fn finish(&self, mut draft: Draft, claim: Option<Time>) -> Drafted {
        let mut writes = Writes::default();
        if draft.adds {
            writes.set_adds();
        }
        if !draft.listed.is_empty() {
            draft.set_fact("o", self.position.to_string().as_bytes());
        }
        let claimed = claim.map_or(self.claimed, |until| until.max(self.claimed));
        if claimed > self.claimed {
            draft.set_fact("c", claimed.as_ms().to_string().as_bytes());
        }
        let space = &self.space;
        writes.commands("HSET", &mut draft.facts, |()| space.owner());
        let names = self.dests.unstored();
        let names = names.flat_map(|(number, dest)| [number.to_string(), encode_destination(dest)]);
        writes.command("HSET", &space.destinations(), 2, names.collect::<Vec<_>>());
        let new = draft.note.placements.new_slots().to_vec();
        new.into_iter().for_each(|slot| draft.enter(self.catalog.index(slot), slot));
        if !broken!(IndexBehindContents) {
            writes.commands("ZADD", &mut draft.indexed, |index| space.index(*index));
        }
        writes.commands("ZADD", &mut draft.listed, |listing| space.listing(*listing));
        writes.commands("HSET", &mut draft.entries_in_place, |shard| space.hash(HashKey::Moved(*shard)));
        if broken!(KeysBeforeRows) {
            let keys = draft.fields.groups().filter(|(hash, _)| **hash == HashKey::AppKeys);
            keys.for_each(|(_, pairs)| writes.command("HSET", &space.hash(HashKey::AppKeys), 2, pairs));
        }
        writes.commands("HSET", &mut draft.fields, |hash| space.hash(*hash));
        if let Some((bucket, lives_ms)) = draft.note.bucket.filter(|_| !broken!(NoExpiry)) {
            // Nothing stands between a bucket and its expiry: hash fields are in the order of
            // `HashKey`, in which it is the last one.
            let bucket = self.space.hash(HashKey::Ended(bucket));
            writes.command("PEXPIRE", &bucket, 1, [lives_ms.to_string()]);
        }
        if broken!(BulksAheadOfTimers) {
            writes.commands("HSET", &mut draft.bulks, |()| space.bulks());
        }
        let (leaving, freeing) = self.finish_removals(&mut writes, &mut draft);
        if !broken!(BulksAheadOfTimers) {
            writes.commands("HSET", &mut draft.bulks, |()| space.bulks());
        }
        writes.commands("HDEL", &mut draft.bulks_gone, |()| space.bulks());
        writes.commands("HSET", &mut draft.settings, |()| space.settings());
        writes.commands("HDEL", &mut draft.settings_gone, |()| space.settings());
        if broken!(IndexBehindContents) {
            writes.commands("ZADD", &mut draft.indexed, |index| space.index(*index));
        }
        let note = Note { leaving, freeing, position: self.position, claimed, ..draft.note };
        Drafted { writes, note }
    }

    /// Adds the removals: entries before contents, keys last. Returns [`Note::leaving`] and
    /// [`Note::freeing`].
    fn finish_removals(&self, writes: &mut Writes, draft: &mut Draft) -> (Vec<Leaving>, Option<usize>) {
        writes.commands("HDEL", &mut draft.unmoved, |shard| self.space.hash(HashKey::Moved(*shard)));
        draft.leaving.sort_by_key(|(slot, ..)| *slot);
        let mut leaving = Vec::with_capacity(draft.leaving.len());
        for timers in draft.leaving.chunk_by(|(one, ..), (other, ..)| one == other) {
            let slot = timers[0].0;
            let index = self.space.index(self.catalog.index(slot));
            let fields = timers.iter().map(|(_, id, _)| id.to_local());
            let command =
                writes.take_out(&self.space.hash(HashKey::Slot(slot)), &index, &slot.to_string(), fields);
            leaving.extend(timers.iter().map(|(slot, id, dest)| (command, *slot, *id, *dest)));
        }
        for (number, ids) in draft.unparked.groups() {
            let park = self.space.listing(ListingKey::ParkOf(*number));
            writes.take_out_sorted(&park, &self.space.listing(ListingKey::Park), &number.to_string(), ids);
        }
        writes.commands("ZREM", &mut draft.unlisted, |listing| self.space.listing(*listing));
        writes.commands("ZREM", &mut draft.leaving_index, |index| self.space.index(*index));
        let mut freeing = None;
        for ((), pairs) in draft.freed.groups() {
            let key = self.space.hash(HashKey::AppKeys);
            if broken!(FreedWithoutComparing) {
                writes.command("HDEL", &key, 1, pairs.step_by(2));
                continue;
            }
            freeing = Some(writes.free(&key, pairs));
        }
        (leaving, freeing)
    }

    /// Takes note of an applied write. The timers that left slots are the caller's: see
    /// [`Note::leaving`].
    pub(crate) fn note(&mut self, note: Note) {
        // They were counted a second time when they were placed.
        note.refiled.into_iter().for_each(|(slot, id, dest)| self.catalog.removed(slot, [(id, dest)]));
        note.shifted.into_iter().for_each(|shift| self.tally.shift(shift));
        note.moved.into_iter().for_each(|id| self.moved.add(self.secret.id(id)));
        note.moved_back.into_iter().for_each(|id| self.moved.remove(self.secret.id(id)));
        self.taken.extend(note.taken);
        note.no_more_taken.iter().for_each(|id| _ = self.taken.remove(id));
        if let Some((bucket, _)) = note.bucket {
            note.remembered.iter().for_each(|field| self.ended.add(bucket, *field));
        }
        note.keyed.into_iter().for_each(|key| self.keys.add(key));
        self.keys_are_hash_table |= note.makes_hash_table;
        if let Some(controls) = note.controls {
            self.controls = controls;
        }
        self.position = note.position;
        self.claimed = note.claimed;
        self.dests.set_stored();
    }
}

/// Whether a timer that is there has an entry in `moved`.
const fn has_entry(at: Location) -> bool {
    !matches!(at, Location::Slot { is_implied: true, .. })
}
