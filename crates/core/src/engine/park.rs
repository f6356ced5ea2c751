//! Set aside until somebody can take it: parking costs no memory and no attempts, and holds up
//! nobody else.

use mtimer_store::{Answer, Op, Page, Record, Verdict};
use mtimer_types::{Destination, PartitionId, Time, Timer, TimerId};

use super::Engine;
use super::partition::Pending;
use super::purpose::OpCtx;
use super::roster::{DestIx, Park};
use super::table::{Entry, State};
use crate::api::{Call, Counter, Now};

/// A destination that takes nothing for so long while memory is short is given no more to wait for,
/// ms.
const IDLE_MS: u64 = 150;
/// Timers that come back from the park at once.
const RETURN_PAGE: u32 = 500;
/// Parked timers that one step of a sweep looks at. With one step at most every [`SWEEP_MS`] a
/// sweep costs little, however many are parked.
const SWEEP_PAGE: u32 = 200;
/// Pause between two steps, ms.
const SWEEP_MS: u64 = 100;

/// The sweep under way.
#[derive(Debug)]
pub(super) struct Sweep {
    at: PartitionId,
    dest: Destination,
    /// The next step: when (monotonic ms), and where it goes on. `None`: a page is asked for.
    next: Option<(u64, u64)>,
}

impl Park {
    fn note_deadline(&mut self, deadline: Option<Time>) {
        self.deadline = [self.deadline, deadline].into_iter().flatten().min();
    }

    fn note_due(&mut self, due: Time) {
        self.oldest = Some(self.oldest.map_or(due, |oldest| oldest.min(due)));
    }
}

impl Engine {
    /// Whether a destination has taken nothing for so long, for want of credit, that waiting for it
    /// is no use.
    pub(super) fn is_stuck(&self, dest: DestIx) -> bool {
        let since = self.roster.dest(dest).full_since;
        let waited = since.map_or(0, |since| self.attended.saturating_sub(since));
        since.is_some() && waited >= self.options.park_after_ms && !self.is_settling(dest)
    }

    /// Whether a destination has taken nothing, for want of credit, for a moment that is longer
    /// than a busy one's between two deliveries.
    fn is_idle(&self, dest: DestIx) -> bool {
        let patience = match self.roster.has_members(dest) {
            true => IDLE_MS.min(self.options.park_after_ms),
            false => 0,
        };
        let since = self.roster.dest(dest).full_since;
        since.is_some_and(|since| self.attended.saturating_sub(since) >= patience)
    }

    /// Whether most of the credit is missing because the store has not taken its outcomes yet, and
    /// not because the clients are busy. Parking would only give the store more to do; what memory
    /// is there for may wait.
    fn is_settling(&self, dest: DestIx) -> bool {
        let settling = self.roster.dest(dest).settling;
        settling > 0 && !self.full && 2 * settling >= self.roster.outstanding(dest)
    }

    /// Whether more is waiting for a destination without credit than memory is there for: then the
    /// rest is parked without delay. What it takes in a quarter of a second may wait.
    pub(super) fn is_crowded(&self, dest: DestIx) -> bool {
        let d = self.roster.dest(dest);
        let over = d.ready.len() as u64 >= d.sent_lately;
        self.pressed && over && self.is_idle(dest) && !self.is_settling(dest)
    }

    /// Notes since when a destination has had no credit and taken nothing.
    pub(super) fn mark_room(&mut self, dest: DestIx, sent: usize) {
        let (full, attended) = (self.roster.free(dest) == 0, self.attended);
        let d = self.roster.dest_mut(dest);
        d.sent_lately += sent as u64;
        let since = if sent > 0 { attended } else { d.full_since.unwrap_or(attended) };
        d.full_since = full.then_some(since);
    }

    /// Parks what waits for credit beyond what the destination is going to take soon: everything if
    /// it is stuck; if it makes progress, and memory is full, what is beyond some two seconds'
    /// worth at its present pace. Called every [`HOUSEKEEPING_MS`](super::HOUSEKEEPING_MS).
    pub(super) fn park_waiting(&mut self, now: Now) {
        let park_after = self.options.park_after_ms;
        let all: Vec<DestIx> = self.roster.dests().map(|(ix, _)| ix).collect();
        for dest in all {
            let stuck = self.is_stuck(dest);
            let d = self.roster.dest_mut(dest);
            let pace = d.sent_lately;
            // Decays to about what was sent in the last 250 ms.
            d.sent_lately = pace * 4 / 5;
            if self.is_settling(dest) {
                continue;
            }
            let hurry = self.pressed && self.is_idle(dest);
            let patience = match pace {
                _ if stuck => 0,
                pace if hurry => pace,
                pace if self.full => pace * 8,
                // Memory is free: who makes progress is not parked.
                _ => continue,
            };
            let patience = usize::try_from(patience).unwrap_or(usize::MAX);
            let wait = if hurry { 0 } else { park_after };
            while self.roster.dest(dest).ready.len() > patience {
                let Some(id) = self.roster.dest(dest).ready.back().copied() else { break };
                let entry = self.partition(id.partition()).and_then(|p| p.table.get(id));
                let since =
                    entry.and_then(|e| if let State::Ready { since } = e.state { Some(since) } else { None });
                if since.is_some_and(|since| now.mono_ms.saturating_sub(since) < wait) {
                    break;
                }
                self.roster.dest_mut(dest).ready.pop_back();
                if since.is_some() {
                    self.park(id);
                }
            }
        }
    }

    pub(super) fn park(&mut self, id: TimerId) {
        let Some(p) = self.partitions.get_mut(usize::from(id.partition().0)).and_then(|p| p.as_deref_mut())
        else {
            return;
        };
        let edited = p.edited(id);
        let Some(entry) = p.table.get_mut(id) else { return };
        if let State::Ready { .. } = entry.state {
            self.roster.dest_mut(entry.dest).leave_ready(id, entry.record.timer.deadline);
        }
        if edited && !entry.taken {
            // The edit may move it to a later time; from the park it would come back before that.
            // (What is taken is not moved.)
            entry.state = State::Held;
            return;
        }
        entry.state = State::Parking { sent: false };
        let failed = entry.attempt() - 1;
        p.queue.push_own(Op::Park { id, failed }, OpCtx::Park { id, failed });
    }

    pub(super) fn parked(&mut self, id: TimerId, answer: &Answer) {
        let at = id.partition();
        let entry = self.partition(at).and_then(|p| p.table.get(id));
        let Some(entry) = entry.filter(|e| matches!(e.state, State::Parking { .. })) else { return };
        let (dest, timer) = (entry.dest, entry.record.timer.clone());
        if matches!(answer, Answer::Done) {
            self.count(Counter::Parked, 1);
            self.note_parked(dest, at, &timer);
        }
        self.forget(id);
    }

    /// Notes a parked timer, so that it is fetched when there is credit and expires at its
    /// deadline.
    pub(super) fn note_parked(&mut self, dest: DestIx, at: PartitionId, timer: &Timer) {
        if !self.serves(at) {
            return;
        }
        let park = self.roster.dest_mut(dest).parks.entry(at).or_default();
        park.count += 1;
        park.note_deadline(timer.deadline);
        park.note_due(timer.due);
        self.roster.touch(dest);
    }

    /// What a new owner finds parked.
    pub(super) fn parks_known(&mut self, at: PartitionId, list: Vec<(Destination, u64)>) {
        if !self.serves(at) {
            return;
        }
        for (name, count) in list {
            let dest = self.roster.dest_ix(&name);
            let park = self.roster.dest_mut(dest).parks.entry(at).or_default();
            park.count += count;
            park.note_deadline(Some(Time::ZERO));
            self.roster.touch(dest);
        }
    }

    /// Nothing parked in this partition concerns this broker any more.
    pub(super) fn forget_parks(&mut self, at: PartitionId) {
        let dests: Vec<DestIx> =
            self.roster.dests().filter(|(_, d)| d.parks.contains_key(&at)).map(|(ix, _)| ix).collect();
        for dest in dests {
            self.roster.dest_mut(dest).parks.remove(&at);
            self.roster.touch(dest);
        }
        // Its page may still come, or not.
        if self.sweep.as_ref().is_some_and(|s| s.at == at) {
            self.sweep = None;
        }
    }

    /// Fetches parked timers back while the destination has more credit than it has timers to send.
    pub(super) fn unpark_more(&mut self, dest: DestIx) {
        loop {
            let free = self.roster.free(dest);
            let d = self.roster.dest(dest);
            let coming = d.ready.len() as u64 + u64::from(d.returning);
            let fetches = d.parks.values().filter(|p| p.fetching).count() as u64;
            let wanted = free.saturating_sub(coming + fetches * u64::from(RETURN_PAGE));
            // The partitions take turns, so that one that is parked in all the time does not keep
            // the others' waiting.
            let turns = d.parks.range(d.unpark_from..).chain(&d.parks);
            let next = turns.filter(|(_, p)| !p.fetching && p.count > 0).map(|(at, _)| *at).next();
            let Some(at) = next.filter(|_| wanted > 0) else { return };
            let (name, limit) = (d.name.clone(), wanted.min(u64::from(RETURN_PAGE)) as u32);
            let d = self.roster.dest_mut(dest);
            d.unpark_from = PartitionId(at.0.saturating_add(1));
            if let Some(park) = d.parks.get_mut(&at) {
                park.fetching = true;
            }
            // A partition that is not owned any more has no parks.
            self.call(at, Pending::Parked { dest: name.clone() }, Call::Parked(name, 0, limit));
        }
    }

    /// Takes a page of parked timers into memory. Of a partition that is being given up it stays
    /// where it is: nothing would come of it before the release.
    pub(super) fn parked_page(&mut self, now: Now, at: PartitionId, dest: &Destination, page: Page<Record>) {
        if !self.serves(at) {
            return;
        }
        let dest = self.roster.dest_ix(dest);
        let oldest = page.rows.iter().map(|record| record.timer.due).min();
        let mut coming = 0;
        for record in page.rows {
            let id = record.timer.id;
            let Some(p) = self.partition(at) else { break };
            if p.table.contains(id) {
                continue;
            }
            p.queue.push_own(Op::Unpark { id, fire: now.time }, OpCtx::Unpark { id });
            let (fire, state) = (now.time, State::Unparking);
            let entry = Entry { record, dest, fire, covered: false, taken: false, state };
            p.table.insert(entry);
            self.roster.dest_mut(dest).entries += 1;
            coming += 1;
        }
        let d = self.roster.dest_mut(dest);
        d.returning += coming;
        if let Some(park) = d.parks.get_mut(&at) {
            park.returning += coming;
            // What has been parked for longest comes first, so what is left is hardly older.
            park.oldest = oldest;
            park.fetching = coming > 0;
            if coming == 0 && page.next.is_none() {
                d.parks.remove(&at);
            }
        }
        self.roster.touch(dest);
    }

    pub(super) fn unparked(&mut self, now: Now, id: TimerId, answer: &Answer) {
        let at = id.partition();
        let entry = self.partition(at).and_then(|p| p.table.get_mut(id));
        let Some(entry) = entry else {
            if matches!(answer, Answer::Done) {
                // It was taken out of memory meanwhile, to be read anew: what was read may have
                // been parked still.
                self.fetch(id);
            }
            return;
        };
        // It may have been moved meanwhile.
        if !matches!(entry.state, State::Unparking) {
            return;
        }
        let dest = entry.dest;
        if matches!(answer, Answer::Done) {
            entry.state = State::Due;
            // The store has filed it at the time of the batch. What may be sent before a claim
            // covers that time a successor would take for unsent.
            entry.fire = now.time;
            if let Some(p) = self.partition(at) {
                p.due.push(id);
            }
            self.count(Counter::Unparked, 1);
            self.one_returned(dest, at);
        } else {
            self.forget(id);
        }
    }

    /// A timer has left the park, or memory on its way back; the next page may be fetched when the
    /// last one is here.
    pub(super) fn one_returned(&mut self, dest: DestIx, at: PartitionId) {
        let d = self.roster.dest_mut(dest);
        d.returning = d.returning.saturating_sub(1);
        if let Some(park) = d.parks.get_mut(&at) {
            park.count = park.count.saturating_sub(1);
            park.returning = park.returning.saturating_sub(1);
            park.fetching = park.returning > 0;
            if park.count == 0 && !park.fetching {
                d.parks.remove(&at);
            }
        }
        self.roster.touch(dest);
    }

    /// Begins a sweep where a deadline has passed among parked timers, one at a time.
    pub(super) fn sweep_parks(&mut self, now: Now) {
        if self.sweep.is_some() || now.mono_ms < self.sweep_at {
            return;
        }
        let missed = |p: &Park| !p.fetching && p.deadline.is_some_and(|d| d < now.time);
        let up = |at: &PartitionId| {
            let p = self.partitions.get(usize::from(at.0)).and_then(|p| p.as_deref());
            p.is_some_and(|p| p.down.is_none() && !p.leaving)
        };
        let due = self.roster.dests().find_map(|(ix, d)| {
            let (at, _) = d.parks.iter().find(|(at, p)| missed(p) && up(at))?;
            Some((ix, *at, d.name.clone()))
        });
        let Some((ix, at, dest)) = due else { return };
        if let Some(park) = self.roster.dest_mut(ix).parks.get_mut(&at) {
            park.deadline = None;
        }
        self.sweep = Some(Sweep { at, dest: dest.clone(), next: None });
        self.call(at, Pending::Sweep { dest: dest.clone() }, Call::Parked(dest, 0, SWEEP_PAGE));
    }

    /// One step of a sweep: what has missed its deadline ends as expired. The page of a partition
    /// that was given up since is passed over.
    pub(super) fn swept(&mut self, now: Now, at: PartitionId, dest: &Destination, page: Page<Record>) {
        if self.sweep.as_ref().is_none_or(|s| s.at != at || s.dest != *dest) {
            return;
        }
        self.sweep_at = now.mono_ms + SWEEP_MS;
        let next = page.next.map(|cursor| (self.sweep_at, cursor));
        self.sweep = next.is_some().then(|| Sweep { at, dest: dest.clone(), next });
        let oldest = page.rows.iter().map(|record| record.timer.due).min();
        let mut earliest = None;
        for record in page.rows {
            let (id, deadline) = (record.timer.id, record.timer.deadline);
            let here = self.partition(at).is_some_and(|p| p.table.contains(id));
            match deadline {
                Some(_) if record.timer.is_past_deadline(now.time) && !here => {
                    let verdict = Verdict::Expired;
                    let op = Op::settle(id, verdict.clone());
                    self.enqueue(at, op, OpCtx::Settle { id, verdict, report: None, late: false });
                }
                Some(d) => earliest = Some(earliest.map_or(d, |e: Time| e.min(d))),
                None => {}
            }
        }
        let ix = self.roster.dest_ix(dest);
        if let Some(park) = self.roster.dest_mut(ix).parks.get_mut(&at) {
            park.note_deadline(earliest);
            oldest.into_iter().for_each(|due| park.note_due(due));
        }
        self.roster.touch(ix);
    }

    /// Goes on with a sweep after its pause.
    pub(super) fn continue_sweep(&mut self, now: Now) {
        let Some(sweep) = &mut self.sweep else { return };
        let Some((_, cursor)) = sweep.next.take_if(|(when, _)| *when <= now.mono_ms) else { return };
        let (at, dest) = (sweep.at, sweep.dest.clone());
        self.call(at, Pending::Sweep { dest: dest.clone() }, Call::Parked(dest, cursor, SWEEP_PAGE));
    }
}
