//! Reads the data that decisions need.
//!
//! Much of it the owner knows without asking: an id that cannot be in any hash is not stored. The
//! rest is read with one command a hash, mostly in one round. Each indirection takes another one:
//! from a key to its timer, from an entry in `moved` to a slot.

use std::sync::Arc;

use bytes::Bytes;
use mtimer_store::record::Record;
use mtimer_store::table::{At, Row, Table};
use mtimer_store::view::{Fact, Need, View};
use mtimer_store::{LaneError, Retained};
use mtimer_types::{Destination, Key, Time, Timer, TimerId};

use super::fields::{FieldIndex, FieldLookup};
use super::knowledge::Knowledge;
use super::locations::Locations;
use super::owner::Owner;
use crate::keyspace::keys::{HashKey, OutcomeBucket, SlotKey};
use crate::keyspace::secret::KeyedHash;
use crate::keyspace::value::{self, Location, MovedEntry, decode_ended, decode_moved, decode_pending};

/// Where the answer to a need comes from.
enum NeedSource {
    /// From these fields.
    Fields(NeedFields),
    /// The owner knows it.
    Known(Fact),
    /// From a listing: see [`Owner::read_retained`].
    Listing { of: Retained, limit: usize },
}

/// Where the fields that answer a need are in a [`FieldLookup`].
enum NeedFields {
    Row { id: TimerId, moved: Option<FieldIndex>, candidates: Vec<(SlotKey, FieldIndex)> },
    Key { dest: Destination, key: Key, holder: FieldIndex },
    Ended { id: TimerId, buckets: Vec<FieldIndex> },
    Answered { request: mtimer_store::RequestId, buckets: Vec<FieldIndex> },
}

/// References found in the values that were read: timers to read next, and rows to remove.
#[derive(Default)]
struct Indirect {
    /// Timers that `moved` says are in these slots.
    elsewhere: Vec<(TimerId, SlotKey)>,
    /// Keys, and the timers that they name.
    held: Vec<(Destination, Key, TimerId)>,
    /// Rows of timers that are in other places now.
    leftovers: Vec<(SlotKey, TimerId)>,
}

impl Owner {
    /// Finds the facts that are needed and tells them to the view. Where the rows are goes into
    /// `locations`.
    ///
    /// # Errors
    ///
    /// The lane has ended.
    pub(crate) async fn learn(
        &mut self,
        view: &mut View,
        locations: &mut Locations,
        needs: impl IntoIterator<Item = Need>,
        now: Time,
    ) -> Result<(), LaneError> {
        let (mut lookup, mut queries) = (FieldLookup::default(), Vec::new());
        for need in needs {
            if view.knows(&need) {
                continue;
            }
            match self.known.query(&mut lookup, need, now) {
                NeedSource::Fields(fields) => queries.push(fields),
                NeedSource::Known(fact) => view.learn(fact),
                NeedSource::Listing { of, limit } => {
                    view.learn(self.read_retained(of, limit, locations).await?);
                }
            }
        }
        let found = self.look_up(lookup).await?;
        let Indirect { elsewhere, held, leftovers } = self.interpret(queries, &found, view, locations);
        self.remove_leftovers(&leftovers).await?;
        for (id, row, at) in self.read_in_slots(elsewhere).await? {
            locations.insert(id, if row.is_some() { at } else { Location::Moved });
            view.learn(Fact::Row(id, row));
        }
        self.find_holders(held, view, locations, now).await
    }

    /// Tells the view the values that were read. Returns the references to follow.
    fn interpret(
        &mut self,
        queries: Vec<NeedFields>,
        found: &[Option<Bytes>],
        view: &mut View,
        locations: &mut Locations,
    ) -> Indirect {
        let mut indirect = Indirect::default();
        for query in queries {
            match query {
                NeedFields::Row { id, moved, candidates } => {
                    match self.find_row(id, moved, &candidates, found, &mut indirect.leftovers) {
                        Sought::Row(row, at) => {
                            locations.insert(id, at);
                            view.learn(Fact::Row(id, Some(row)));
                        }
                        Sought::Nothing => view.learn(Fact::Row(id, None)),
                        Sought::Damaged => {
                            locations.insert(id, Location::Moved);
                            view.learn(Fact::Row(id, None));
                        }
                        Sought::In(slot) => indirect.elsewhere.push((id, slot)),
                    }
                }
                NeedFields::Key { dest, key, holder: index } => {
                    match found[index].as_ref().and_then(|id| self.known.space.id(id)) {
                        Some(holder) => indirect.held.push((dest, key, holder)),
                        None => view.learn(Fact::Key(dest, key, None)),
                    }
                }
                NeedFields::Ended { id, buckets } => {
                    let value = buckets.into_iter().find_map(|index| found[index].as_ref());
                    let how = value.and_then(|value| self.readable(decode_ended(id, value)));
                    view.learn(Fact::Ended(id, how));
                }
                NeedFields::Answered { request, buckets } => {
                    let value = buckets.into_iter().find_map(|index| found[index].as_ref());
                    view.learn(Fact::Answered(request, value.and_then(|value| self.readable_answer(value))));
                }
            }
        }
        indirect
    }

    /// Tells the view which timers have the keys that name them. If an owner died while its write
    /// was cut off, a key may name a timer that has ended or that has another key. Such a key is
    /// free.
    async fn find_holders(
        &mut self,
        held: Vec<(Destination, Key, TimerId)>,
        view: &mut View,
        locations: &mut Locations,
        now: Time,
    ) -> Result<(), LaneError> {
        let mut to_read = Vec::new();
        for (dest, key, holder) in &held {
            if view.knows(&Need::Row(*holder)) {
                continue;
            }
            match self.known.row_of_key(dest, key, *holder).filter(|_| locations.may_be_unread()) {
                Some((row, at)) => {
                    locations.insert_unread(*holder, at);
                    view.learn(Fact::Row(*holder, Some(row)));
                }
                None => to_read.push(Need::Row(*holder)),
            }
        }
        if !to_read.is_empty() {
            Box::pin(self.learn(view, locations, to_read, now)).await?;
        }
        for (dest, key, holder) in held {
            let holds = |row: &Row| row.at.retained().is_none() && row.key() == Some((&dest, &key));
            let is_held = view.row(holder).is_ok_and(|row| row.as_ref().is_some_and(holds));
            view.learn(Fact::Key(dest, key, is_held.then_some(holder)));
        }
        Ok(())
    }

    /// Finds a timer, and in which slots leftovers of it are.
    fn find_row(
        &mut self,
        id: TimerId,
        moved: Option<FieldIndex>,
        candidates: &[(SlotKey, FieldIndex)],
        found: &[Option<Bytes>],
        leftovers: &mut Vec<(SlotKey, TimerId)>,
    ) -> Sought {
        let entry = moved.and_then(|index| found[index].as_ref()).map(|value| {
            let entry = decode_moved(id, value, |number| self.known.dests.name(number));
            self.readable(entry)
        });
        let mut sought = match entry {
            Some(Some(MovedEntry::Row(row))) => Sought::Row(row, Location::Moved),
            Some(Some(MovedEntry::Slot(slot))) => Sought::In(slot),
            Some(None) => return Sought::Damaged,
            None => Sought::Nothing,
        };
        for (slot, index) in candidates {
            let Some(value) = &found[*index] else { continue };
            let read = decode_pending(id, value, |number| self.known.dests.name(number));
            let Some((row, is_implied)) = self.readable(read) else { continue };
            match &sought {
                Sought::Nothing if is_implied => {
                    sought = Sought::Row(row, Location::Slot { slot: *slot, is_implied });
                }
                Sought::In(of) if of == slot => {}
                _ => leftovers.push((*slot, id)),
            }
        }
        sought
    }

    /// Reads timers that `moved` says are in these slots.
    pub(crate) async fn read_in_slots(
        &mut self,
        timers: Vec<(TimerId, SlotKey)>,
    ) -> Result<Vec<(TimerId, Option<Row>, Location)>, LaneError> {
        let mut lookup = FieldLookup::default();
        for (id, slot) in &timers {
            lookup.push(HashKey::Slot(*slot), [&id.to_local()]);
        }
        let found = self.look_up(lookup).await?;
        let mut rows = Vec::with_capacity(timers.len());
        for ((id, slot), value) in timers.into_iter().zip(found) {
            let row = value.map(|value| decode_pending(id, &value, |n| self.known.dests.name(n)));
            let row = row.and_then(|row| self.readable(row)).map(|(row, _)| row);
            rows.push((id, row, Location::Slot { slot, is_implied: false }));
        }
        Ok(rows)
    }
}

impl Knowledge {
    /// The timer that a key names, without its contents, and where it is, if the owner knows that
    /// without reading it: it has written the key, so the timer is stored.
    fn row_of_key(&self, dest: &Destination, key: &Key, id: TimerId) -> Option<(Row, Location)> {
        let field = self.secret.key(dest, key);
        let is_ours = !self.found_keys.may_have(KeyedHash::of_key(&field));
        let is_ours = is_ours || broken!(FoundKeysTakenForOurs);
        let timer = || Timer { key: Some(key.clone()), ..Timer::new(id, dest.clone(), id.birth_due()) };
        is_ours.then(|| self.first_attempt(id, || timer().into())).flatten()
    }

    /// A stored timer that need not be read, and where it is. All of this must hold:
    ///
    /// - It has no entry in `moved`: it is in a slot that its id implies, its first attempt is to
    ///   come, and it was not stopped.
    /// - Only one of the slots that its id implies can have it.
    /// - No owner before has claimed its time.
    ///
    /// `bench cancel --keyed 100` makes 14 to 30 % more a second with it, `bench fire
    /// --at-most-once 100` 13 %.
    pub(crate) fn first_attempt(
        &self,
        id: TimerId,
        timer: impl FnOnce() -> Arc<Timer>,
    ) -> Option<(Row, Location)> {
        let fire = id.birth_due();
        let has_entry = self.moved.may_have(self.secret.id(id)) && !broken!(EntriesIgnored);
        if has_entry || fire <= self.prior_claim {
            return None;
        }
        let [slot] = self.catalog.candidates(id)[..] else { return None };
        let row = || Row { record: Record::new(timer()), at: At::Pending { fire, tier: 0 } };
        self.catalog.knows_ids(slot).then(|| (row(), Location::Slot { slot, is_implied: true }))
    }

    /// Returns the data to read for a need, or the fact if the owner knows it. Fields are added to
    /// `lookup`.
    fn query(&self, lookup: &mut FieldLookup, need: Need, now: Time) -> NeedSource {
        match need {
            Need::Row(id) => {
                let hash = self.secret.id(id);
                let field = id.to_local();
                let moved = self.moved.may_have(hash);
                let moved = moved.then(|| lookup.push(HashKey::Moved(hash.shard()), [&field]));
                let candidates = self.catalog.candidates(id).into_iter();
                let candidates: Vec<_> =
                    candidates.map(|slot| (slot, lookup.push(HashKey::Slot(slot), [&field]))).collect();
                if moved.is_none() && candidates.is_empty() {
                    return NeedSource::Known(Fact::Row(id, None));
                }
                NeedSource::Fields(NeedFields::Row { id, moved, candidates })
            }
            Need::Key(dest, key) => {
                let field = self.secret.key(&dest, &key);
                if self.dests.number(&dest).is_none() || !self.keys.may_have(KeyedHash::of_key(&field)) {
                    return NeedSource::Known(Fact::Key(dest, key, None));
                }
                let holder = lookup.push(HashKey::AppKeys, [&field]);
                NeedSource::Fields(NeedFields::Key { dest, key, holder })
            }
            Need::Ended(id) => match self.look_up_outcome(lookup, &id.to_local(), now) {
                buckets if buckets.is_empty() => NeedSource::Known(Fact::Ended(id, None)),
                buckets => NeedSource::Fields(NeedFields::Ended { id, buckets }),
            },
            Need::Answered(request) => {
                match self.look_up_outcome(lookup, &value::request_field(request), now) {
                    buckets if buckets.is_empty() => NeedSource::Known(Fact::Answered(request, None)),
                    buckets => NeedSource::Fields(NeedFields::Answered { request, buckets }),
                }
            }
            Need::Retained { of, limit } => NeedSource::Listing { of, limit },
        }
    }

    /// Adds the look-ups of an outcome, one for each bucket that may have it. Returns their places.
    fn look_up_outcome(&self, lookup: &mut FieldLookup, field: &[u8], now: Time) -> Vec<FieldIndex> {
        let hash = self.secret.outcome_field(field);
        let buckets =
            OutcomeBucket::around(now).into_iter().filter(|bucket| self.ended.may_have(*bucket, hash));
        buckets.map(|bucket| lookup.push(HashKey::Ended(bucket), [field])).collect()
    }
}

/// The result of looking for a timer.
enum Sought {
    Row(Row, Location),
    Nothing,
    /// Its entry in `moved` cannot be read.
    Damaged,
    /// It is in this slot, which is not implied by its id.
    In(SlotKey),
}
