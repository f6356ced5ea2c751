//! How a timer comes into memory, is read anew, and leaves it, and which resources it then gives
//! back.

use std::sync::Arc;

use mtimer_store::Record;
use mtimer_types::{LateCause, Mode, PartitionId, Target, Time, TimerId};

use super::Engine;
use super::calls::OpenCall;
use super::deferral::together_by;
use super::destination_members::DestIx;
use super::lateness::not_read;
use super::table::{EntryState, Flight, TakeState, TimerEntry};
use crate::api::{Call, Effect, Now};

impl Engine {
    /// Takes a pending timer into memory, unless it is there.
    pub(super) fn adopt(&mut self, now: Now, mut record: Record, fire: Time, covered: bool) {
        let id = record.timer.id;
        let at = id.partition();
        if self.partition(at).is_none_or(|p| p.table.contains(id)) {
            return;
        }
        let dest = self.roster.dest_ix(&record.timer.dest);
        self.roster.dest_mut(dest).enter();
        let Some(p) = self.partitions.get_mut(at) else { return };
        if p.inherited.current(&record).is_none() {
            p.inherited.remove(id);
        }
        let sent = p.inherited.get(id);
        let covered = covered || sent.is_some();
        if let Some(f) = sent {
            // The store knows of one attempt at most that a claim covers; the inherited delivery
            // may be of a later one.
            record.progress.failed = f.attempt - 1;
        }
        let state = match sent.filter(|f| f.until > now.time) {
            Some(f) => {
                let until = now.mono_ms + f.until.ms_since(now.time);
                self.timeouts.add(until, id, f.attempt);
                self.flights.begin(at, dest);
                self.roster.dest_mut(dest).limit.inherit(f.until.ms_since(now.time));
                self.unsettled += 1;
                EntryState::InFlight(Flight {
                    attempt: f.attempt,
                    member: None,
                    session: None,
                    client: f.session,
                    sent: Time::ZERO,
                    until,
                })
            }
            None => self.await_fire(now, id, fire, record.timer.mode),
        };
        let Some(p) = self.partition(at) else { return };
        record.extensions.abridge_story();
        let (take, waited) = (TakeState::NotAsked, None);
        let mut entry = TimerEntry { record, dest, fire, covered, take, waited, state };
        if let Some(since) = entry.late_since(now.time) {
            entry.has_waited_for(not_read(p, since));
        }
        p.table.insert(entry);
    }

    /// A timer that is not under way waits for its time in the wheel; or it is due, and waits to be
    /// made ready. Returns which: its new state.
    pub(super) fn await_fire(&mut self, now: Now, id: TimerId, fire: Time, mode: Mode) -> EntryState {
        let Some(p) = self.partitions.get_mut(id.partition()) else { return EntryState::Due };
        if fire <= now.time {
            p.push_due(id);
            return EntryState::Due;
        }
        if p.table.arm(fire, id, mode) {
            self.effects.push(Effect::Alarm(together_by(now.time, fire - p.claims.lead())));
            self.effects.push(Effect::Alarm(fire));
        }
        EntryState::Waiting
    }

    /// Takes a timer out of memory in any state, and gives back the resources that it held. With it
    /// goes its inherited delivery: the store has the outcome, or has counted it.
    pub(super) fn forget(&mut self, id: TimerId) -> Option<Record> {
        self.partition(id.partition())?.inherited.remove(id);
        self.take_out(id)
    }

    /// The same for a timer that is going to be read anew: its inherited delivery still counts.
    pub(super) fn take_out(&mut self, id: TimerId) -> Option<Record> {
        let entry = self.partition(id.partition())?.table.remove(id)?;
        self.retire(id, &entry);
        Some(entry.record)
    }

    /// Reads a timer, so that memory agrees with the store.
    pub(super) fn fetch(&mut self, id: TimerId) {
        let Some(p) = self.partition(id.partition()) else { return };
        p.calls.push(OpenCall::Fetch(id));
        self.effects.push(Effect::Call(id.partition(), Call::Get(Target::Id(id))));
    }

    /// Reads a timer that is not in memory: an edit has changed it, or may have.
    pub(super) fn look(&mut self, at: PartitionId, target: Target) {
        let Some(p) = self.partition(at) else { return };
        p.calls.push(OpenCall::Look);
        self.effects.push(Effect::Call(at, Call::Get(target)));
    }

    /// Reads a timer anew that is not under way; one that is under way learns whether it was
    /// stopped.
    pub(super) fn read_anew(&mut self, id: TimerId) {
        let entry = self.partition(id.partition()).and_then(|p| p.table.get(id));
        if entry.is_some_and(|e| !e.state.is_under_way()) {
            self.take_out(id);
        }
        self.fetch(id);
    }

    /// A timer in memory has this deadline.
    pub(super) fn set_deadline(&mut self, id: TimerId, deadline: Option<Time>) {
        let entry = self.partition(id.partition()).and_then(|p| p.table.get_mut(id));
        let Some(entry) = entry.filter(|e| e.record.timer.deadline != deadline) else { return };
        let old = std::mem::replace(&mut Arc::make_mut(&mut entry.record.timer).deadline, deadline);
        if entry.state.is_ready() {
            let dest = entry.dest;
            self.roster.dest_mut(dest).ready.change_deadline(id, old, deadline);
        }
    }

    /// The timer waits for the end of an edit or a late acknowledgement.
    pub(super) fn hold(&mut self, now: Now, id: TimerId) {
        self.set_state(id, EntryState::Held);
        let entry = self.partition(id.partition()).and_then(|p| p.table.get_mut(id));
        entry.into_iter().for_each(|e| e.waits_for(now, LateCause::Edit));
    }

    /// Goes on with a timer that was held, if no edit holds it and no late acknowledgement of it is
    /// under way any more.
    pub(super) fn unhold(&mut self, id: TimerId) {
        let Some(p) = self.partition(id.partition()) else { return };
        if p.is_undecided(id) {
            return;
        }
        if let Some(entry) = p.table.get_mut(id).filter(|e| e.state.is_held()) {
            entry.state = EntryState::Due;
            p.push_due(id);
        }
    }

    /// Gives back the resources of a timer that leaves memory.
    pub(super) fn retire(&mut self, id: TimerId, entry: &TimerEntry) {
        let dest = entry.dest;
        let member = match &entry.state {
            EntryState::Ready { .. } => {
                self.roster.dest_mut(dest).ready.leave(id, entry.record.timer.deadline);
                None
            }
            EntryState::InFlight(flight) => {
                self.flights.end(id.partition(), dest);
                let limit = &mut self.roster.dest_mut(dest).limit;
                limit.finish();
                limit.linger(flight.until);
                if let Some(session) = flight.session {
                    self.roster.end_flight(session, id);
                }
                if let Some(member) = flight.member {
                    self.roster.withdraw(member, id);
                }
                self.unsettled -= 1;
                flight.member
            }
            EntryState::Settling { member, .. } => {
                self.unsettled -= 1;
                if member.is_some() {
                    self.roster.dest_mut(dest).flow.end_settling();
                }
                *member
            }
            EntryState::Taking { member } => {
                self.unsettled -= 1;
                self.roster.dest_mut(dest).limit.unreserve();
                Some(*member)
            }
            EntryState::Unparking => {
                self.one_returned(dest, id.partition());
                None
            }
            EntryState::Waiting | EntryState::Due | EntryState::Held | EntryState::Parking { .. } => None,
        };
        if let Some(member) = member {
            self.roster.give_back(member);
        }
        self.roster.dest_mut(dest).exit();
        self.roster.forget_unused(dest);
    }

    /// Notes a parked timer, so that it is fetched when there is credit and expires at its
    /// deadline.
    pub(super) fn note_parked(&mut self, dest: DestIx, at: PartitionId, record: &Record) {
        if !self.serves(at) {
            return;
        }
        self.roster.change_park(dest, at, |parks| parks.add(at, record));
    }

    /// Notes a parked timer anew whose record has changed.
    pub(super) fn note_parked_again(&mut self, dest: DestIx, at: PartitionId, record: &Record) {
        if self.serves(at) {
            self.roster.change_park(dest, at, |parks| parks.add_again(at, record));
        }
    }

    /// A timer has left the park, or memory on its way back; the next page may be fetched when the
    /// last one is here.
    pub(super) fn one_returned(&mut self, dest: DestIx, at: PartitionId) {
        self.roster.change_park(dest, at, |parks| parks.one_returned(at));
    }
}
