//! Set aside until somebody can take it: parking costs no memory and no attempts, and holds up
//! nobody else.

use mtimer_store::ops::MoveAnswer;
use mtimer_store::{Listed, Listing, Page, Record};
use mtimer_types::{Destination, LateCause, PartitionId, Priority, TimerId};

use super::Engine;
use super::backlog_limit::{BacklogLimit, backlog_limit};
use super::calls::OpenCall;
use super::destination_members::DestIx;
use super::flow::StallThresholds;
use super::parks::{ArrivedPage, FetchedPage, classes_of};
use super::pending::Own;
use super::table::{EntryState, TakeState, TimerEntry};
use crate::api::{Call, Counter, Now};

impl Engine {
    /// Returns the limit on the timers that wait in memory for a destination's credit.
    fn backlog_limit(&self, dest: DestIx) -> BacklogLimit {
        if self.roster.dest(dest).policy.is_paused() {
            return BacklogLimit::AtMost(0);
        }
        let flow = &self.roster.dest(dest).flow;
        let thresholds = StallThresholds::new(self.options.park_after_ms, self.roster.has_members(dest));
        let in_use = || self.roster.outstanding(dest);
        let condition = flow.condition(self.attended.ms(), thresholds, self.pressure, in_use);
        backlog_limit(condition, self.pressure, flow.pace())
    }

    /// Whether a timer of this destination that comes due is parked at once. Less urgent ones that
    /// wait do not count: they are parked before it.
    pub(super) fn parks_new(&self, dest: DestIx, priority: Priority) -> bool {
        self.backlog_limit(dest).parks_new(self.roster.dest(dest).ready.len_before(priority))
    }

    /// Parks the timers that wait for credit beyond the limit. Called every
    /// [`HOUSEKEEPING_MS`](super::HOUSEKEEPING_MS).
    pub(super) fn park_waiting(&mut self, now: Now) {
        for dest in self.roster.busy_dests() {
            let limit = self.backlog_limit(dest).limit(self.options.park_after_ms);
            self.roster.dest_mut(dest).flow.decay();
            if let Some((most, after_ms)) = limit {
                self.park_beyond(now, dest, most, after_ms);
            }
            let d = self.roster.dest(dest);
            if d.policy.is_releasing() {
                self.roster.touch(dest);
            } else if d.ready.is_empty() && d.flow.pace() == 0 {
                self.roster.rest(dest);
            }
        }
    }

    /// Parks timers that wait beyond the first `most`, the last one of the least urgent class
    /// first, as far as they have waited for `after_ms`.
    fn park_beyond(&mut self, now: Now, dest: DestIx, most: usize, after_ms: u64) {
        while self.roster.dest(dest).ready.len() > most {
            let Some(id) = self.roster.dest(dest).ready.back() else { return };
            let entry = self.partition(id.partition()).and_then(|p| p.table.get(id));
            let since = entry.and_then(|e| e.state.ready_since());
            if since.is_some_and(|since| now.mono_ms.saturating_sub(since) < after_ms) {
                return;
            }
            self.roster.dest_mut(dest).ready.pop_back();
            if since.is_some() {
                self.park(now, id);
            }
        }
    }

    pub(super) fn park(&mut self, now: Now, id: TimerId) {
        let Some(p) = self.partitions.get_mut(id.partition()) else { return };
        let edited = p.edited(id);
        let Some(entry) = p.table.get_mut(id) else { return };
        if entry.state.is_ready() {
            self.roster.dest_mut(entry.dest).ready.leave(id, entry.record.timer.deadline);
        }
        if edited && !entry.may_be_taken() {
            // The edit may move it to a later time; from the park it would come back before that.
            // (A taken timer is not moved.)
            return self.hold(now, id);
        }
        entry.state = EntryState::Parking { sent: false };
        p.queue.push_own(Own::Park(id));
    }

    pub(super) fn parked(&mut self, id: TimerId, answer: MoveAnswer) {
        let at = id.partition();
        let entry = self.partition(at).and_then(|p| p.table.get(id));
        let Some(entry) = entry.filter(|e| e.state.is_parking()) else { return };
        let (dest, record) = (entry.dest, entry.record.clone());
        if answer == MoveAnswer::Done {
            self.count(Counter::Parked, 1);
            self.note_parked(dest, at, &record);
        }
        self.forget(id);
    }

    /// Notes the parked timers that a new owner finds.
    pub(super) fn parks_known(&mut self, at: PartitionId, list: Vec<(Destination, u64)>) {
        if !self.serves(at) {
            return;
        }
        for (name, count) in list {
            let dest = self.roster.dest_ix(&name);
            self.roster.change_park(dest, at, |parks| parks.add_found(at, count));
        }
    }

    /// Nothing parked in this partition concerns this broker any more.
    pub(super) fn forget_parks(&mut self, at: PartitionId) {
        for dest in self.roster.parked_in(at) {
            self.roster.change_park(dest, at, |parks| parks.forget(at));
        }
        self.sweeps.abandon(at);
    }

    /// Fetches parked timers back while the destination has more credit than it has timers to send,
    /// as far as its policy allows.
    pub(super) fn unpark_more(&mut self, now: Now, dest: DestIx) {
        loop {
            let credit = self.roster.free(dest);
            let d = self.roster.dest_mut(dest);
            let credit = credit.min(d.limit.may_return(now.mono_ms));
            let parked = d.parks.count().saturating_sub(u64::from(d.parks.returning()));
            let credit = d.policy.may_return(now.time, parked).map_or(credit, |may| may.min(credit));
            let waiting = |class| d.ready.len_before(class) as u64;
            let Some(page) = d.parks.begin_fetch(credit, waiting, d.policy.is_strict()) else { return };
            let FetchedPage { at, cursor, limit } = page;
            d.policy.return_begins(u64::from(limit));
            let name = d.name().clone();
            // A partition that is not owned any more has no parks.
            let listing = Listing { of: Listed::Parked(name.clone()), cursor, limit };
            self.call(at, OpenCall::Parked { dest: name }, Call::List(listing));
        }
    }

    /// Takes a page of parked timers into memory. Of a partition that is being given up it stays
    /// where it is: nothing would come of it before the release.
    pub(super) fn parked_page(&mut self, now: Now, at: PartitionId, dest: &Destination, page: Page<Record>) {
        if !self.serves(at) {
            return;
        }
        let dest = self.roster.dest_ix(dest);
        let oldest = page.rows.iter().map(Record::late_from).min();
        let classes = classes_of(&page.rows);
        let d = self.roster.dest(dest);
        let (resumed, is_limited) = (d.policy.resumed(), d.limit.is_scarce());
        let mut coming = 0;
        for mut record in page.rows {
            let id = record.timer.id;
            let Some(p) = self.partition(at) else { break };
            if p.table.contains(id) {
                continue;
            }
            p.queue.push_own(Own::Unpark(id));
            let (fire, state) = (now.time, EntryState::Unparking);
            record.extensions.abridge_story();
            let (covered, take, waited) = (false, TakeState::NotAsked, None);
            let mut entry = TimerEntry { record, dest, fire, covered, take, waited, state };
            let was_paused = resumed >= Some(entry.record.late_from());
            entry.has_waited_for(match (was_paused, is_limited) {
                (true, _) => LateCause::Paused,
                (false, true) => LateCause::Limited,
                (false, false) => LateCause::Parked,
            });
            p.table.insert(entry);
            self.roster.dest_mut(dest).enter();
            coming += 1;
        }
        let arrived = ArrivedPage { coming, oldest, classes, next: page.next };
        self.roster.change_park(dest, at, |parks| parks.page_arrived(at, &arrived));
    }

    pub(super) fn unparked(&mut self, now: Now, id: TimerId, answer: MoveAnswer) {
        let at = id.partition();
        let entry = self.partition(at).and_then(|p| p.table.get_mut(id));
        // It was taken out of memory meanwhile, to be read anew: the copy read then may have been
        // parked still. If it has left the park, a bulk job may have moved it.
        let Some(entry) = entry else { return self.fetch(id) };
        // It may have been moved meanwhile.
        if !entry.state.is_unparking() {
            return;
        }
        let (dest, mode) = (entry.dest, entry.record.timer.mode);
        if answer == MoveAnswer::Done {
            // The store has filed it at the time of the batch, or at its due time if that is later.
            // If the timer were sent before a claim covers that time, a successor would take it for
            // unsent.
            let fire = now.time.max(entry.record.timer.due);
            entry.fire = fire;
            // It may have been parked before its time.
            entry.waited = entry.waited.filter(|_| fire == now.time);
            let state = self.await_fire(now, id, fire, mode);
            self.set_state(id, state);
            self.count(Counter::Unparked, 1);
            self.one_returned(dest, at);
        } else {
            // It is gone, or a bulk job has moved it.
            self.read_anew(id);
        }
    }
}
