//! The timers that an owner has in memory, and its wheel.

use std::collections::BTreeMap;

use mtimer_store::Record;
use mtimer_types::{Destination, Key, LateCause, Mode, Time, TimerId};

use super::destination_members::{DestIx, MemberRef};
use super::hash::{Map, Seeded};
use crate::api::SessionId;

/// Bookkeeping bytes of one timer in memory, about: its entry, its record, its place in the wheel.
pub(super) const ENTRY_BYTES: u64 = 300;

/// One timer in memory.
#[derive(Debug)]
pub(super) struct TimerEntry {
    pub(super) record: Record,
    pub(super) dest: DestIx,
    pub(super) fire: Time,
    pub(super) covered: bool,
    /// At-most-once: how far its take has come.
    pub(super) take: TakeState,
    pub(super) waited: Option<Waited>,
    pub(super) state: EntryState,
}

/// What a timer has waited for since its time, first of all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waited {
    pub(super) cause: LateCause,
    /// How late it was already when it began to wait for that, ms.
    pub(super) from_ms: u32,
}

/// How far this epoch's take of an at-most-once timer has come. A taken timer is sent once at most,
/// and only by this owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TakeState {
    /// The store was not asked.
    NotAsked,
    /// It is being asked.
    Asked,
    /// It has taken the timer.
    Taken,
}

impl TimerEntry {
    pub(super) fn bytes(&self) -> u64 {
        ENTRY_BYTES + self.record.timer.content_bytes() as u64
    }

    /// Whether it is in the wheel at this time. Where it has been before, an entry of it may have
    /// stayed.
    pub(super) fn is_waiting_for(&self, fire: Time) -> bool {
        self.fire == fire && matches!(self.state, EntryState::Waiting)
    }

    /// Whether it may have been taken: no operation moves it any more.
    pub(super) fn may_be_taken(&self) -> bool {
        self.take != TakeState::NotAsked
    }

    /// Whether the store has taken it, or is being asked to, and it was not sent.
    pub(super) fn is_taken_and_unsent(&self) -> bool {
        let is_unsent = matches!(self.state, EntryState::Waiting | EntryState::Taking { .. });
        self.may_be_taken() && (is_unsent || self.state.is_idle())
    }

    /// Whether the take that was asked for is of use. It is not if the timer goes elsewhere.
    pub(super) fn needs_take(&self) -> bool {
        use EntryState::{Due, Held, Ready, Taking, Waiting};
        let waits = matches!(self.state, Waiting | Due | Held | Ready { .. } | Taking { .. });
        self.take == TakeState::Asked && waits
    }

    /// The take that was asked for does not leave.
    pub(super) fn drop_take(&mut self) {
        if self.take == TakeState::Asked {
            self.take = TakeState::NotAsked;
        }
    }

    /// The attempt that was sent and whose outcome the store has not confirmed.
    pub(super) fn unsettled_attempt(&self) -> Option<u32> {
        match &self.state {
            EntryState::InFlight(flight) => Some(flight.attempt),
            EntryState::Settling { attempt, .. } => *attempt,
            _ => None,
        }
    }

    /// The number of the next delivery, or of the one under way.
    pub(super) fn attempt(&self) -> u32 {
        self.record.attempt(self.covered)
    }
}

/// Where a timer in memory stands.
#[derive(Debug)]
pub(super) enum EntryState {
    /// In the wheel.
    Waiting,
    /// Its time has come; waits for a claim that covers it.
    Due,
    /// Its time has come, but an edit (cancel, reschedule, replace) or a late acknowledgement is
    /// under way.
    Held,
    /// Claimed; waits in its destination's queue since this monotonic time, ms.
    Ready { since: u64 },
    /// At-most-once: given to this member; the answer to the take is awaited.
    Taking { member: MemberRef },
    /// Sent.
    InFlight(Flight),
    /// An outcome is on its way to the store; this member's credit returns when it is there.
    /// `attempt`: of which delivery it is, if the timer was sent.
    Settling { member: Option<MemberRef>, attempt: Option<u32> },
    /// On its way to the park; `sent`: the store has been asked, and comes to it before any later
    /// edit.
    Parking { sent: bool },
    /// On its way back from the park.
    Unparking,
}

impl EntryState {
    /// Sent or about to be, or an outcome is on its way to the store.
    pub(super) fn is_under_way(&self) -> bool {
        matches!(self, Self::InFlight(_) | Self::Taking { .. } | Self::Settling { .. })
    }

    /// The delivery under way, if it was sent.
    pub(super) fn flight(&self) -> Option<&Flight> {
        if let Self::InFlight(flight) = self { Some(flight) } else { None }
    }

    /// The same, to be changed.
    pub(super) fn flight_mut(&mut self) -> Option<&mut Flight> {
        if let Self::InFlight(flight) = self { Some(flight) } else { None }
    }

    /// Its time has come; it waits for a claim, or to be looked at.
    pub(super) fn is_due(&self) -> bool {
        matches!(self, Self::Due)
    }

    /// An edit or a late acknowledgement holds it.
    pub(super) fn is_held(&self) -> bool {
        matches!(self, Self::Held)
    }

    /// It waits for credit.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self, Self::Ready { .. })
    }

    /// Since when it waits for credit, monotonic ms.
    pub(super) fn ready_since(&self) -> Option<u64> {
        if let Self::Ready { since } = self { Some(*since) } else { None }
    }

    /// Its time has come, and nothing of it is on its way anywhere.
    pub(super) fn is_idle(&self) -> bool {
        self.is_due() || self.is_held() || self.is_ready()
    }

    /// The member that it is being taken for.
    pub(super) fn taking(&self) -> Option<MemberRef> {
        if let Self::Taking { member } = self { Some(*member) } else { None }
    }

    /// An outcome is on its way to the store.
    pub(super) fn is_settling(&self) -> bool {
        matches!(self, Self::Settling { .. })
    }

    /// It is on its way to the park.
    pub(super) fn is_parking(&self) -> bool {
        matches!(self, Self::Parking { .. })
    }

    /// Whether its move to the park has left for the store, if it is on its way there.
    pub(super) fn park_sent(&mut self) -> Option<&mut bool> {
        if let Self::Parking { sent } = self { Some(sent) } else { None }
    }

    /// It is on its way back from the park.
    pub(super) fn is_unparking(&self) -> bool {
        matches!(self, Self::Unparking)
    }
}

/// A delivery under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) attempt: u32,
    /// Whose credit it uses; `None`: it was sent by the predecessor.
    pub(super) member: Option<MemberRef>,
    pub(super) session: Option<SessionId>,
    /// The durable name of the client that has it.
    pub(super) client: u128,
    /// When it was sent; [`Time::ZERO`]: by the predecessor. (An option would make the entry of
    /// each timer in memory 16 bytes larger.)
    pub(super) sent: Time,
    /// Callback timeout, monotonic ms.
    pub(super) until: u64,
}

impl Flight {
    /// When this owner has sent it.
    pub(super) fn sent(&self) -> Option<Time> {
        (self.sent != Time::ZERO).then_some(self.sent)
    }
}

/// All timers of one partition in memory.
#[derive(Debug)]
pub(super) struct TimerTable {
    entries: Map<TimerId, TimerEntry>,
    keys: Map<(Destination, Key), TimerId>,
    /// Timers by the millisecond at which they fire. A timer that is not `Waiting` for just that
    /// time any more is passed over.
    wheel: BTreeMap<u64, Vec<TimerId>>,
    /// Those of them that are delivered at most once, until a claim has come to them.
    to_take: BTreeMap<u64, Vec<TimerId>>,
    bytes: u64,
}

impl TimerTable {
    pub(super) fn new(seed: Seeded) -> Self {
        Self {
            entries: Map::with_hasher(seed),
            keys: Map::with_hasher(seed),
            wheel: BTreeMap::new(),
            to_take: BTreeMap::new(),
            bytes: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn get(&self, id: TimerId) -> Option<&TimerEntry> {
        self.entries.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: TimerId) -> Option<&mut TimerEntry> {
        self.entries.get_mut(&id)
    }

    pub(super) fn contains(&self, id: TimerId) -> bool {
        self.entries.contains_key(&id)
    }

    pub(super) fn by_key(&self, key: &(Destination, Key)) -> Option<TimerId> {
        self.keys.get(key).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&TimerId, &TimerEntry)> {
        self.entries.iter()
    }

    /// Adds a timer that is not there yet.
    pub(super) fn insert(&mut self, entry: TimerEntry) {
        let id = entry.record.timer.id;
        self.bytes += entry.bytes();
        if let Some(key) = &entry.record.timer.key {
            self.keys.insert((entry.record.timer.dest.clone(), key.clone()), id);
        }
        self.entries.insert(id, entry);
    }

    pub(super) fn remove(&mut self, id: TimerId) -> Option<TimerEntry> {
        let entry = self.entries.remove(&id)?;
        self.bytes -= entry.bytes();
        if let Some(key) = &entry.record.timer.key {
            let name = (entry.record.timer.dest.clone(), key.clone());
            if self.keys.get(&name) == Some(&id) {
                self.keys.remove(&name);
            }
        }
        Some(entry)
    }

    /// Puts a timer into the wheel. True if it is the first of its millisecond.
    pub(super) fn arm(&mut self, fire: Time, id: TimerId, mode: Mode) -> bool {
        if mode == Mode::AtMostOnce {
            self.to_take.entry(fire.as_ms()).or_default().push(id);
        }
        let bucket = self.wheel.entry(fire.as_ms()).or_default();
        bucket.push(id);
        bucket.len() == 1
    }

    /// The time of the first timer in the wheel (it may be one that is passed over).
    pub(super) fn next_fire(&self) -> Option<Time> {
        self.wheel.keys().next().map(|ms| Time::from_ms(*ms))
    }

    /// The time of the first timer in the wheel after `after`.
    pub(super) fn next_fire_after(&self, after: Time) -> Option<Time> {
        self.wheel.range(after.as_ms() + 1..).next().map(|(ms, _)| Time::from_ms(*ms))
    }

    /// The time of the last timer in the wheel.
    pub(super) fn last_fire(&self) -> Option<Time> {
        self.wheel.keys().next_back().map(|ms| Time::from_ms(*ms))
    }

    /// Takes the first millisecond of the wheel that has come: its timers, also those that wait for
    /// it no more (see [`TimerEntry::is_waiting_for`]).
    pub(super) fn take_due(&mut self, now: Time) -> Option<(Time, Vec<TimerId>)> {
        let bucket = self.wheel.first_entry().filter(|b| *b.key() <= now.as_ms())?;
        Some((Time::from_ms(*bucket.key()), bucket.remove()))
    }

    /// At-most-once timers that wait in the wheel and fire up to `until`. Each is told once.
    pub(super) fn pass_to_take(&mut self, until: Time) -> Vec<TimerId> {
        let later = self.to_take.split_off(&(until.as_ms() + 1));
        let passed = std::mem::replace(&mut self.to_take, later);
        let waits = |id: &TimerId| {
            let entry = self.entries.get(id);
            entry.is_some_and(|e| e.fire <= until && matches!(e.state, EntryState::Waiting))
        };
        passed.into_values().flatten().filter(waits).collect()
    }

    /// Takes every waiting timer that fires after `beyond` out of the wheel; returns which.
    pub(super) fn take_beyond(&mut self, beyond: Time) -> Vec<TimerId> {
        self.to_take.split_off(&(beyond.as_ms() + 1));
        let tail = self.wheel.split_off(&(beyond.as_ms() + 1));
        let mut ids = Vec::new();
        for (ms, bucket) in tail {
            let waits = |id: &TimerId| {
                self.entries
                    .get(id)
                    .is_some_and(|e| e.fire.as_ms() == ms && matches!(e.state, EntryState::Waiting))
            };
            ids.extend(bucket.into_iter().filter(waits));
        }
        ids
    }
}

#[cfg(test)]
mod tests {
    use mtimer_types::{PartitionId, Timer};

    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_ms(ms)
    }

    /// A table in which timers wait for these times.
    fn waiting(times: &[u64]) -> (TimerTable, Vec<TimerId>) {
        let mut table = TimerTable::new(Seeded(1));
        let ids = times.iter().enumerate().map(|(n, ms)| {
            let id = insert(&mut table, n as u64, *ms);
            table.arm(at(*ms), id, Mode::AtLeastOnce);
            id
        });
        let ids = ids.collect();
        (table, ids)
    }

    fn insert(table: &mut TimerTable, random: u64, ms: u64) -> TimerId {
        let timer = Timer {
            key: Key::new("k").ok(),
            payload: vec![0; 10].into(),
            ..Timer::new(
                TimerId::new(at(ms), at(0), PartitionId(0), random),
                Destination::new("test", "a").unwrap(),
                at(ms),
            )
        };
        let id = timer.id;
        let record = Record::new(timer.into());
        let (covered, take, state) = (false, TakeState::NotAsked, EntryState::Waiting);
        table.insert(TimerEntry { record, dest: 0, fire: at(ms), covered, take, waited: None, state });
        id
    }

    #[test]
    fn the_first_timer_of_a_millisecond_is_told_from_the_others() {
        let (mut table, ids) = waiting(&[]);
        assert_eq!(ids, []);
        let arm = |ms| table.arm(at(ms), TimerId::from_u128(u128::from(ms)), Mode::AtLeastOnce);
        let armed = [7, 7, 8, 7].map(arm);
        assert_eq!(armed, [true, false, true, false]);
    }

    #[test]
    fn the_wheel_knows_its_first_and_its_last_time_and_what_comes_after_another() {
        let (table, _) = waiting(&[10, 12, 20]);
        assert_eq!((table.next_fire(), table.last_fire()), (Some(at(10)), Some(at(20))));
        let after = [9, 10, 11, 12, 20].map(|ms| table.next_fire_after(at(ms)).map(Time::as_ms));
        assert_eq!(after, [Some(10), Some(12), Some(12), Some(20), None]);
    }

    #[test]
    fn what_fires_at_the_bound_is_due_and_is_not_beyond_it() {
        let (mut table, ids) = waiting(&[9, 10, 11]);
        assert_eq!(table.take_beyond(at(10)), [ids[2]]);
        assert!(table.take_due(at(8)).is_none());
        assert_eq!(table.take_due(at(9)), Some((at(9), vec![ids[0]])));
        assert_eq!(table.take_due(at(10)), Some((at(10), vec![ids[1]])));
        assert!(table.take_due(at(100)).is_none());
    }

    #[test]
    fn what_waits_for_another_time_or_not_at_all_is_not_taken_for_waiting() {
        let (mut table, ids) = waiting(&[20, 20, 20]);
        table.get_mut(ids[0]).unwrap().fire = at(15);
        table.get_mut(ids[1]).unwrap().state = EntryState::Due;
        assert_eq!(table.take_beyond(at(10)), [ids[2]]);
        let waits = |n: usize| table.get(ids[n]).unwrap().is_waiting_for(at(20));
        assert_eq!([0, 1, 2].map(waits), [false, false, true]);
    }

    #[test]
    fn a_timer_that_is_to_be_taken_is_told_once_if_it_waits_for_that_time() {
        let (mut table, ids) = waiting(&[10, 20, 20, 30, 40]);
        let times = [10, 20, 20, 30, 40].into_iter().zip(&ids);
        times.skip(1).for_each(|(ms, id)| _ = table.arm(at(ms), *id, Mode::AtMostOnce));
        assert_eq!((table.pass_to_take(at(19)), table.pass_to_take(at(20))), (vec![], ids[1..3].to_vec()));
        assert_eq!(table.pass_to_take(at(20)), []);
        table.get_mut(ids[3]).unwrap().state = EntryState::Due;
        assert_eq!(table.take_beyond(at(30)), [ids[4], ids[4]], "armed twice");
        assert_eq!(table.pass_to_take(at(99)), []);
    }

    #[test]
    fn a_key_names_its_present_holder_until_that_is_removed() {
        let mut table = TimerTable::new(Seeded(1));
        let name = (Destination::new("test", "a").unwrap(), Key::new("k").unwrap());
        let old = insert(&mut table, 1, 10);
        let new = insert(&mut table, 2, 20);
        assert_eq!((table.len(), table.bytes()), (2, 2 * (ENTRY_BYTES + 10)));
        assert!(table.remove(old).is_some() && table.remove(old).is_none());
        assert_eq!(table.by_key(&name), Some(new));
        assert!(table.contains(new) && !table.contains(old));
        table.remove(new);
        assert_eq!((table.by_key(&name), table.len(), table.bytes()), (None, 0, 0));
    }
}
