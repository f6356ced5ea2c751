//! How late a delivery is, and what it has waited for.

use mtimer_types::story::LATE_MS;
use mtimer_types::{Attempt, LateCause, Time, TimerId};

use super::Engine;
use super::table::{Flight, TimerEntry};

impl TimerEntry {
    /// Its time has come, and it waits for this, unless it has waited for something before.
    pub(super) fn waits_for(&mut self, cause: LateCause) {
        self.waited.get_or_insert(cause);
    }

    /// By how much its delivery is late at this time, ms. The first one is late since the timer is
    /// due, a later one since the time that was set for it.
    pub(super) fn late_ms(&self, at: Time) -> u64 {
        at.ms_since(if self.attempt() == 1 { self.record.late_from() } else { self.fire })
    }

    /// What a delivery that is late by so much has waited for; `None`: it is not late.
    pub(super) fn late_by(&self, late_ms: u64) -> Option<LateCause> {
        (late_ms >= LATE_MS).then(|| self.waited.unwrap_or(LateCause::Broker))
    }

    /// It is given to a client after it has waited for one for so long, ms.
    pub(super) fn had_credit_after(&mut self, now: Time, waited_ms: u64) {
        let late_ms = self.late_ms(now);
        if late_ms >= LATE_MS && waited_ms >= late_ms / 2 {
            self.waited = Some(LateCause::Credit);
        }
    }
}

/// Why a timer was not read in time that is due since then, by an owner since then.
pub(super) fn not_read(owned_since: Time, due: Time) -> LateCause {
    if owned_since > due { LateCause::Takeover } else { LateCause::Store }
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
            client: f.client,
            sent: f.sent(),
            late_ms: u32::try_from(late_ms).unwrap_or(u32::MAX),
            late_by: entry.late_by(late_ms),
        })
    }
}
