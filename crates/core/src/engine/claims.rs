//! The claims of one partition: up to which time the store counts timers as possibly sent, and when
//! it last confirmed the ownership.
//!
//! Invariants: `claimed` is stored and only rises, `asked` is never less. It falls only when a
//! claim is stored that replicas have not confirmed: then it is asked for again.
//! Not in here: putting a claim into a call (`batches`, `loading`), taking at-most-once timers.

use mtimer_types::Time;

use super::deferral::{DEFER_MS, TICK_MS};
use super::table::TimerTable;
use crate::api::Now;

/// How long before a timer is due its claim is asked for, ms, beyond the time that the store takes
/// to answer; earlier by up to [`TICK_MS`] so that it goes together with others, and by up to
/// [`DEFER_MS`] with another write.
const CLAIM_LEAD_MS: u64 = 20;
/// How far a claim reaches ahead, ms, beyond that time: under a steady load it lasts until the next
/// acknowledgements take the next claim along. A crash may redeliver the timers that fire within
/// it.
const CLAIM_SPAN_MS: u64 = CLAIM_LEAD_MS + DEFER_MS + TICK_MS;
/// The highest value of [`Claims::lag`], ms.
const MAX_LAG_MS: u64 = 250;
/// Nothing is sent unless the store has accepted a write of this epoch that began within this time,
/// ms.
pub(super) const OWNERSHIP_MS: u64 = 1_000;

/// See the module.
#[derive(Debug)]
pub(super) struct Claims {
    /// Stored: everything that fires up to here may be sent.
    claimed: Time,
    /// Asked for.
    asked: Time,
    /// The beginning of the latest write that the store has accepted, monotonic ms.
    confirmed_at: Option<u64>,
    /// How long the store takes to answer a call, by the slowest recent batch, ms.
    lag: u64,
}

impl Claims {
    /// The claims of a new owner: the previous one has claimed up to `prior`.
    pub(super) fn new(prior: Time) -> Self {
        Self { claimed: prior, asked: prior, confirmed_at: None, lag: 0 }
    }

    /// Whether the store has accepted a write that began lately.
    pub(super) fn owned_lately(&self, mono_ms: u64) -> bool {
        self.confirmed_at.is_some_and(|at| mono_ms.saturating_sub(at) <= OWNERSHIP_MS)
    }

    /// Whether the store knows that a timer that fires at `fire` may have been sent.
    pub(super) fn covers(&self, fire: Time) -> bool {
        fire <= self.claimed
    }

    /// The latest claim that was asked for.
    pub(super) fn asked(&self) -> Time {
        self.asked
    }

    /// Notes the claim that a call carries.
    pub(super) fn ask(&mut self, claim: Option<Time>) {
        self.asked = self.asked.max(claim.unwrap_or(Time::ZERO));
    }

    /// A fenced write was answered that was begun at `begun` (monotonic ms) and carried `claim`.
    pub(super) fn confirm(&mut self, claim: Option<Time>, begun: u64) {
        self.confirmed_at = self.confirmed_at.max(Some(begun));
        self.claimed = self.claimed.max(claim.unwrap_or(Time::ZERO));
        self.asked = self.asked.max(self.claimed);
    }

    /// A claim that a call carried is stored, but not confirmed: nothing may rely on it.
    pub(super) fn unconfirmed(&mut self) {
        self.asked = self.claimed;
    }

    /// A batch was answered that was begun at `begun`, monotonic ms.
    pub(super) fn note_lag(&mut self, begun: u64, mono_ms: u64) {
        // A call made while a batch is under way has to wait for that one first.
        let took = mono_ms.saturating_sub(begun).saturating_mul(2).min(MAX_LAG_MS);
        // A slow answer is reckoned with at once, and forgotten over some twenty quick ones.
        self.lag = took.max(self.lag - self.lag.div_ceil(8));
    }

    /// How long before a timer is due its claim is asked for, ms.
    pub(super) fn lead(&self) -> u64 {
        CLAIM_LEAD_MS + self.lag
    }

    /// How far a claim that is asked for now reaches, ms.
    pub(super) fn span(&self) -> u64 {
        CLAIM_SPAN_MS + self.lag
    }

    /// The claim that a call begun now should carry, if any: up to [`Self::span`] ahead, if
    /// something fires soon (or within `ahead` ms beyond that) and the claim asked for does not
    /// reach that far, or if the fence is getting old. `is_due`: timers whose time has come wait.
    /// `claim_out`: a call that carries a claim is under way.
    pub(super) fn wanted(
        &self,
        now: Now,
        ahead: u64,
        table: &TimerTable,
        is_due: bool,
        claim_out: impl FnOnce() -> bool,
    ) -> Option<Time> {
        let soon = now.time + self.lead() + ahead;
        let uncovered = is_due && now.time > self.asked;
        let coming =
            || self.asked < soon && table.next_fire_after(self.asked).is_some_and(|fire| fire <= soon);
        let active = || is_due || table.next_fire().is_some_and(|fire| fire <= soon);
        let stale = self.confirmed_at.is_none_or(|at| now.mono_ms.saturating_sub(at) > OWNERSHIP_MS / 2);
        let wanted = uncovered || coming() || stale && active() && !claim_out();
        wanted.then(|| (now.time + self.span()).max(self.asked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::hash::Seeded;

    #[test]
    fn claims_are_asked_for_earlier_while_the_store_is_slow() {
        let mut claims = Claims::new(Time::ZERO);
        assert_eq!((claims.lead(), claims.span()), (20, 70));
        claims.note_lag(1_000, 1_040);
        assert_eq!((claims.lead(), claims.span()), (100, 150));
        claims.note_lag(1_000, 61_000);
        assert_eq!(claims.lead(), 20 + MAX_LAG_MS, "a store that was away is no measure");
        (0..50).for_each(|_| claims.note_lag(2_000, 2_001));
        assert_eq!(claims.lead(), 22);
    }

    #[test]
    fn a_claim_that_reaches_far_is_written_again_before_the_fence_is_too_old() {
        let table = TimerTable::new(Seeded(1));
        let mut claims = Claims::new(Time::ZERO);
        claims.ask(Some(Time::from_ms(10_000)));
        claims.confirm(None, 1_000);
        let wanted = |mono_ms, is_due, claim_out| {
            let now = Now { time: Time::from_ms(5_000), mono_ms };
            claims.wanted(now, 0, &table, is_due, || claim_out).is_some()
        };
        assert!(!wanted(1_501, false, false), "nothing is due");
        assert_eq!((wanted(1_500, true, false), wanted(1_501, true, false)), (false, true));
        assert!(!wanted(1_501, true, true), "one is under way");
    }

    #[test]
    fn a_claim_that_is_not_confirmed_is_asked_for_again() {
        let table = TimerTable::new(Seeded(1));
        let mut claims = Claims::new(Time::from_ms(100));
        let wanted = |claims: &Claims| {
            let now = Now { time: Time::from_ms(150), mono_ms: 1_000 };
            claims.wanted(now, 0, &table, true, || false).is_some()
        };
        claims.ask(Some(Time::from_ms(200)));
        claims.confirm(None, 1_000);
        assert!(!wanted(&claims), "it is under way");
        claims.unconfirmed();
        assert!(wanted(&claims) && !claims.covers(Time::from_ms(150)));
        claims.confirm(Some(Time::from_ms(200)), 1_000);
        assert!(!wanted(&claims) && claims.covers(Time::from_ms(150)));
    }

    #[test]
    fn what_is_confirmed_is_covered_and_never_less() {
        let mut claims = Claims::new(Time::from_ms(100));
        assert!(claims.covers(Time::from_ms(100)) && !claims.owned_lately(0));
        claims.confirm(Some(Time::from_ms(200)), 5_000);
        claims.confirm(Some(Time::from_ms(150)), 4_000);
        assert!(claims.covers(Time::from_ms(200)) && !claims.covers(Time::from_ms(201)));
        assert_eq!([6_000, 6_001].map(|ms| claims.owned_lately(ms)), [true, false]);
    }
}
