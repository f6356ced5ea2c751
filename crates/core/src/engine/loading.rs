//! Into memory and out of it: timers that fire soon are loaded, within the budget; those that do
//! not fit go back.

use mtimer_store::ops::MoveAnswer;
use mtimer_store::{Listed, Listing, Load, Loaded, Page, Place, Record, Taken, Verdict};
use mtimer_types::{DeadReason, LateCause, PartitionId, Time, TimerId, limits::MAX_PAGE};

use super::calls::OpenCall;
use super::partition::OwnedPartition;
use super::pending::Own;
use super::table::ENTRY_BYTES;
use super::{Engine, EnginePhase};
use crate::api::{Call, Counter, Effect, Now};

/// Timers of one load: an answer is taken in in about a millisecond.
const LOAD_TIMERS: usize = 4_000;
/// Timers of one load however short memory is.
const LEAST_TIMERS: usize = 64;
/// Partitions that are read at once whose overdue timers are not in memory: after a takeover they
/// may be many.
const BEHIND_AT_ONCE: usize = 4;
/// Partitions that are read at once though the timers that they need are not near: while a load is
/// taken in, due timers wait.
const AHEAD_AT_ONCE: usize = 4;
/// Payload bytes of one load.
const LOAD_BYTES: usize = 4 * 1024 * 1024;
/// Due timers of one partition that wait for a claim, or on their way to the park; beyond them no
/// more are loaded. (Timers that a client has, or that wait for credit, do not keep others from
/// being loaded.)
const BACKLOG: usize = 20_000;
/// The same while memory is over its budget.
const LEAST_BACKLOG: usize = 500;
/// Timers that fire within this time are loaded even when memory is short, ms.
const NEAR_MS: u64 = 1_000;
/// Timers that fire within this time are loaded even when memory is full, ms: two rounds of
/// housekeeping.
const SCARCE_MS: u64 = 100;

/// How far ahead the first load of a partition reaches, ms: between half the reach of the following
/// ones and all of it, neighbours far apart (multiples of the golden ratio).
fn first_reach(id: PartitionId, preload: u64) -> u64 {
    let share = u64::from(id.0.wrapping_mul(40_503));
    preload - preload * share / (2 << 16)
}

/// How far ahead timers are loaded, ms: all of `preload` while half of the memory is free, then
/// less and less, because a timer that could not be loaded in time would be late.
fn reach(preload: u64, used: u64, budget: u64) -> u64 {
    let near = preload.min(NEAR_MS);
    match used {
        _ if used < budget / 2 => preload,
        _ if used < budget => {
            let left = u128::from(budget - used);
            // It is no more than `preload`.
            near + (u128::from(preload - near) * left / u128::from(budget - budget / 2)) as u64
        }
        // The reserve: timers that are overdue or nearly so are loaded in any case, a few at a
        // time; they leave by delivery or by park. Ahead of the present, so that there is not a
        // load in every turn.
        _ => SCARCE_MS,
    }
}

impl Engine {
    /// Asks for the timers that fire soon.
    pub(super) fn load_more(&mut self, now: Now) {
        if self.phase != EnginePhase::Running {
            return;
        }
        let (_, used) = self.memory();
        let budget = self.options.memory_bytes;
        let preload = reach(self.options.preload_ms, used, budget);
        let owned = self.partitions.owned().max(1) as u64;
        let free = budget.saturating_sub(used) / owned;
        let max_timers = ((free / ENTRY_BYTES) as usize).clamp(LEAST_TIMERS, LOAD_TIMERS);
        let max_bytes = (free as usize).clamp(64 * 1024, LOAD_BYTES);
        let backlog = if used >= budget { LEAST_BACKLOG } else { BACKLOG };
        let behind = |p: &OwnedPartition| p.horizon() < now.time;
        let wants = |p: &&mut OwnedPartition| {
            // Half of the window is a margin, so that loads come in large steps.
            let enough = p.horizon() >= now.time + preload / 2 && p.horizon() > now.time;
            let waiting = p.due().len() + p.queue.parks() > backlog;
            !(enough || p.calls.is_loading() || p.calls.is_unloading() || !p.is_active() || waiting)
        };
        let loading = || self.partitions.iter().filter(|p| p.calls.is_loading() && p.is_up());
        let mut behind_out = loading().filter(|p| behind(p)).count();
        let mut out = loading().count();
        let mut wanting: Vec<_> = self.partitions.iter_mut().filter(wants).collect();
        // After a takeover of many partitions they are read in about the order of due times, while
        // the broker goes on serving those that it has.
        wanting.sort_by_key(|p| p.horizon());
        for p in wanting {
            let overdue = behind(p);
            let urgent = p.horizon() < now.time + preload / 4;
            if (overdue && behind_out >= BEHIND_AT_ONCE) || (!urgent && out >= AHEAD_AT_ONCE) {
                continue;
            }
            behind_out += usize::from(overdue);
            out += 1;
            // The first load of each reaches differently far: so they do not come in step ever
            // after, all in the same moment.
            let ahead = if p.horizon() <= now.time { first_reach(p.id(), preload) } else { preload };
            let target = now.time + ahead;
            let claims = &mut p.claims;
            let claim =
                (overdue && claims.asked() < now.time + claims.lead()).then(|| now.time + claims.span());
            claims.ask(claim);
            p.calls.push(OpenCall::Load { claim, begun: now.mono_ms });
            let load = Load { until: target, max_timers, max_bytes, claim };
            self.effects.push(Effect::Call(p.id(), Call::Load(load)));
        }
    }

    pub(super) fn loaded(&mut self, now: Now, at: PartitionId, loaded: Loaded) {
        for t in loaded.timers {
            self.adopt(now, t.record, t.fire, t.covered);
        }
        if let Some(p) = self.partition(at) {
            p.extend_horizon(loaded.horizon);
            p.drop_old_inherited();
        }
    }

    /// Updates memory with a timer that [`Engine::fetch`] has read from the store.
    pub(super) fn fetched(&mut self, now: Now, id: TimerId, found: Option<(Record, Place)>) {
        let Some(p) = self.partition(id.partition()) else { return };
        let (epoch, prior_claim, horizon) = (p.epoch(), p.prior_claim(), p.horizon());
        match found {
            Some((record, Place::Pending { fire, .. })) => {
                if let Some(entry) = p.table.get_mut(id) {
                    entry.record.progress.stopped = record.progress.stopped;
                    self.set_deadline(id, record.timer.deadline);
                } else if fire <= horizon {
                    let covered = record.covered(fire, epoch, prior_claim);
                    self.adopt(now, record, fire, covered);
                    // It is read anew because it was edited, or may have been.
                    let entry = self.partition(id.partition()).and_then(|p| p.table.get_mut(id));
                    let late = entry.filter(|entry| entry.late_since(now.time).is_some());
                    late.into_iter().for_each(|entry| entry.has_waited_for(LateCause::Edit));
                }
            }
            // Taken in this ownership and not in memory: it was not sent, and nobody else will see
            // to it. It may have been taken ahead of its time.
            Some((record, Place::Taken { epoch: of, unconfirmed: false })) if of == epoch => {
                let fire = record.timer.due.max(now.time);
                self.adopt(now, record, fire, false);
                // One that is in memory may wait for just this.
                self.taken(now, id, MoveAnswer::Done);
            }
            Some((record, Place::Parked)) => self.found_parked(record),
            Some((_, Place::Taken { .. })) => {}
            Some((_, Place::Dead)) | None => _ = self.forget(id),
        }
    }

    /// A timer is read that was not in memory when it was asked for ([`Engine::look`]).
    pub(super) fn looked(&mut self, now: Now, found: Option<(Record, Place)>) {
        let Some((record, place)) = found else { return };
        let id = record.timer.id;
        let in_memory = self.partition(id.partition()).is_some_and(|p| p.table.contains(id));
        if place == Place::Parked && !record.progress.stopped && !in_memory {
            let dest = self.roster.dest_ix(&record.timer.dest);
            self.note_parked_again(dest, id.partition(), &record);
        } else {
            self.fetched(now, id, Some((record, place)));
        }
    }

    /// A timer was found parked. If it is not in memory, everything that was sent of it is counted
    /// in its record. It may be one that this owner has parked without a confirmation, so its park
    /// is noted.
    fn found_parked(&mut self, record: Record) {
        let id = record.timer.id;
        let Some(p) = self.partition(id.partition()) else { return };
        if p.table.contains(id) {
            return self.set_deadline(id, record.timer.deadline);
        }
        p.inherited.remove(id);
        if !record.progress.stopped {
            let dest = self.roster.dest_ix(&record.timer.dest);
            self.roster.touch(dest);
            self.note_parked(dest, id.partition(), &record);
        } else {
            // The cancel took it for being under way.
            let failed = record.progress.failed;
            let error = record.progress.last_error.unwrap_or_default();
            let verdict = Verdict::Dead { reason: DeadReason::Stopped, failed, error };
            p.queue.push_own(Own::settle(id, verdict));
        }
    }

    /// When memory is over its budget the farthest timers of the partition that reaches farthest go
    /// back.
    pub(super) fn shed(&mut self, now: Now) {
        let (_, used) = self.memory();
        if used <= self.options.memory_bytes {
            return;
        }
        let candidates = self.partitions.iter_mut().filter(|p| !p.calls.is_unloading() && p.is_up());
        let reach = |t: Option<Time>| t.filter(|t| *t > now.time + NEAR_MS);
        let farthest =
            candidates.filter(|p| reach(p.table.last_fire()).is_some()).max_by_key(|p| p.table.last_fire());
        let Some(p) = farthest else { return };
        let last = p.table.last_fire().unwrap_or(now.time);
        let most = (self.options.preload_ms / 2).max(NEAR_MS);
        let beyond = now.time + (last.ms_since(now.time) / 2).clamp(NEAR_MS, most);
        let id = p.id();
        self.call(id, OpenCall::Unload { beyond }, Call::Unload(beyond));
    }

    pub(super) fn unloaded(&mut self, at: PartitionId, beyond: Time) {
        let Some(p) = self.partition(at) else { return };
        p.limit_horizon(beyond);
        let ids = p.table.take_beyond(beyond);
        self.count(Counter::Unloaded, ids.len() as u64);
        for id in ids {
            self.forget(id);
        }
    }

    /// At-most-once timers found taken at an acquisition: nobody will settle them, but for those
    /// that the predecessor left under way in good order.
    pub(super) fn taken_page(&mut self, now: Now, at: PartitionId, page: Page<Taken>) {
        let Some(epoch) = self.partition(at).map(|p| p.epoch()) else { return };
        for row in page.rows.into_iter().filter(|r| r.epoch != epoch) {
            let id = row.record.timer.id;
            let inherited = self.partition(at).and_then(|p| p.inherited.current(&row.record));
            let awaited = inherited.is_some_and(|f| f.until > now.time);
            if awaited {
                let fire = row.record.timer.due;
                self.adopt(now, row.record, fire, false);
            } else {
                self.count(Counter::Unconfirmed, 1);
                self.enqueue(at, Own::settle(id, Verdict::Unconfirmed));
            }
        }
        if let Some(next) = page.next {
            self.ask_taken(at, next);
        }
    }

    /// Asks for at-most-once timers that earlier ownerships have taken.
    pub(super) fn ask_taken(&mut self, at: PartitionId, cursor: u64) {
        let listing = Listing { of: Listed::Taken, cursor, limit: MAX_PAGE };
        self.call(at, OpenCall::Taken, Call::List(listing));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_is_loaded_ahead_as_memory_fills() {
        let reaches = [0, 499, 500, 625, 750, 999, 1_000, 2_000].map(|used| reach(5_000, used, 1_000));
        assert_eq!(reaches, [5_000, 5_000, 5_000, 4_000, 3_000, 1_008, SCARCE_MS, SCARCE_MS]);
        // A short preload is not shortened further; nothing overflows.
        assert_eq!([0, 900, 1_000].map(|used| reach(300, used, 1_000)), [300, 300, SCARCE_MS]);
        assert!(reach(u64::MAX, u64::MAX / 2 + 1, u64::MAX) > u64::MAX / 2);
        assert_eq!((reach(5_000, 0, 0), reach(5_000, 0, 1)), (SCARCE_MS, 5_000));
    }

    #[test]
    fn first_loads_reach_differently_far() {
        let mut reaches: Vec<u64> = (0..64).map(|id| first_reach(PartitionId(id), 5_000)).collect();
        assert!(reaches.iter().all(|reach| (2_500..=5_000).contains(reach)), "{reaches:?}");
        assert_eq!(reaches[0], 5_000);
        reaches.sort_unstable();
        assert!(reaches[0] < 2_600, "{reaches:?}");
        let widest = reaches.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(widest <= Some(80), "64 within 2,500 ms are 40 ms apart: {reaches:?}");
        assert!((0..=u16::MAX).all(|id| (50..=100).contains(&first_reach(PartitionId(id), 100))));
    }
}
