//! How late a delivery is, and what it has waited for.

use mtimer_types::story::{LATE_MS, client_shown};
use mtimer_types::{Attempt, LateCause, Time, TimerId};

use super::Engine;
use super::partition::OwnedPartition;
use super::table::{Flight, TimerEntry, Waited};
use crate::api::Now;

impl TimerEntry {
    /// Its time has come, and it waits for this, unless it has waited for something before.
    pub(super) fn waits_for(&mut self, now: Now, cause: LateCause) {
        let from_ms = u32::try_from(self.late_ms(now.time)).unwrap_or(u32::MAX);
        self.waited.get_or_insert(Waited { cause, from_ms });
    }

    /// Since when it is late at this time, if it is.
    pub(super) fn late_since(&self, at: Time) -> Option<Time> {
        Some(self.late_ms(at)).filter(|ms| *ms >= LATE_MS).map(|ms| at - ms)
    }

    /// It has waited for this since its time.
    pub(super) fn has_waited_for(&mut self, cause: LateCause) {
        self.waited = Some(Waited { cause, from_ms: 0 });
    }

    /// It is given to a client after it has waited for that for so long, ms, for this reason.
    pub(super) fn was_ready_for(&mut self, now: Now, waited_ms: u64, cause: LateCause) {
        let late_ms = self.late_ms(now.time);
        if late_ms >= LATE_MS && waited_ms >= late_ms / 2 {
            self.has_waited_for(cause);
        }
    }

    /// By how much its delivery is late at this time, ms. The first one is late since the timer is
    /// due, a later one since the time that was set for it.
    pub(super) fn late_ms(&self, at: Time) -> u64 {
        let since = self.record.late_from();
        at.ms_since(if self.attempt() == 1 { since } else { since.max(self.fire) })
    }

    /// What a delivery that is late by so much has waited for; `None`: it is not late. (The time
    /// that was set for one that was parked is not known any more.)
    fn late_by(&self, late_ms: u64) -> Option<LateCause> {
        match self.waited {
            Some(Waited { cause: cause @ (LateCause::Parked | LateCause::Paused), .. }) => Some(cause),
            _ if late_ms < LATE_MS => None,
            // It was late before it could wait for anything.
            Some(Waited { from_ms, .. }) if late_ms < 2 * u64::from(from_ms) => Some(LateCause::Broker),
            Some(Waited { cause, .. }) => Some(cause),
            None => Some(LateCause::Broker),
        }
    }
}

/// Why a timer that is due since then was not read in time by the owner of its partition.
pub(super) fn not_read(p: &OwnedPartition, due: Time) -> LateCause {
    if p.since() > due || !p.has_read_past() { LateCause::Takeover } else { LateCause::Store }
}

impl Engine {
    /// The attempt that a flight is.
    pub(super) fn attempt(&self, id: TimerId, f: &Flight) -> Option<Attempt> {
        let p = self.partitions.get(id.partition())?;
        let entry = p.table.get(id)?;
        let late_ms = f.sent().map_or(0, |sent| entry.late_ms(sent));
        Some(Attempt {
            number: f.attempt,
            epoch: p.epoch(),
            client: client_shown(f.client),
            sent: f.sent(),
            late_ms: u32::try_from(late_ms).unwrap_or(u32::MAX),
            late_by: entry.late_by(late_ms),
        })
    }
}
