//! The token bucket of one destination's share of its rate.
//!
//! A token is taken when a delivery is given out, and the delivery starts a little later, when its
//! frame leaves for the socket; or not at all. Until it is certain that it cannot start any more
//! the token counts against the burst, so that in any time no more deliveries start than the rate
//! and the burst allow, whenever in between they do.

use std::collections::VecDeque;

use mtimer_types::DeliveryRate;

/// A delivery that has not left for its socket so long after it was given out, ms, is withdrawn.
pub(super) const START_WITHIN_MS: u64 = 5;

/// See the module. Amounts are in parts: `per_ms` of them are a token.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenBucket {
    starts: u64,
    burst: u64,
    per_ms: u64,
    level: u64,
    /// As of when, monotonic ms.
    at: u64,
    /// Deliveries that were given out, and until when they may start.
    given: VecDeque<(u64, u64)>,
    /// Their number.
    starting: u64,
    /// Tokens that are kept for deliveries which wait for the store.
    reserved: u64,
}

impl TokenBucket {
    /// The share of the rate is this from now on; so many parts come with it.
    pub(super) fn set(&mut self, now: u64, rate: DeliveryRate, tokens: u64) {
        self.pass(now);
        if self.per_ms != u64::from(rate.per_ms) {
            self.level = 0;
        }
        (self.starts, self.burst, self.per_ms) = (rate.starts.into(), rate.burst.into(), rate.per_ms.into());
        self.level = self.level.saturating_add(tokens).min(self.most());
    }

    /// There is no share any more. Returns the parts that were not used.
    pub(super) fn close(&mut self, now: u64) -> u64 {
        self.pass(now);
        (self.starts, self.burst) = (0, 0);
        std::mem::take(&mut self.level)
    }

    /// How many deliveries may be given out now.
    pub(super) fn tokens(&mut self, now: u64) -> u64 {
        self.pass(now);
        self.level / self.per_ms.max(1)
    }

    /// How many may be at a later time, if none is until then.
    pub(super) fn tokens_by(&self, then: u64) -> u64 {
        let more = then.saturating_sub(self.at).saturating_mul(self.starts);
        self.level.saturating_add(more).min(self.burst * self.per_ms) / self.per_ms.max(1)
    }

    /// When there is a token, if there is to be one: now or later.
    pub(super) fn next(&self, now: u64) -> Option<u64> {
        let missing = self.per_ms.saturating_sub(self.level);
        if missing == 0 {
            return Some(now);
        }
        if self.starts == 0 || self.burst == 0 {
            return None;
        }
        let filled = self.at + missing.div_ceil(self.starts);
        // The bucket is no larger than what is not being started.
        let first = self.given.front().map_or(0, |(until, _)| *until);
        Some(if self.most() < self.per_ms { filled.max(first) } else { filled }.max(now + 1))
    }

    /// Keeps a token for a delivery.
    pub(super) fn reserve(&mut self) {
        self.level = self.level.saturating_sub(self.per_ms);
        self.reserved += 1;
    }

    /// The delivery does not come.
    pub(super) fn unreserve(&mut self) {
        self.reserved = self.reserved.saturating_sub(1);
        self.level = self.level.saturating_add(self.per_ms).min(self.most());
    }

    /// The delivery is given out now.
    pub(super) fn give(&mut self, now: u64) {
        self.reserved = self.reserved.saturating_sub(1);
        self.starting += 1;
        let until = now + START_WITHIN_MS;
        match self.given.back_mut().filter(|(last, _)| *last == until) {
            Some((_, deliveries)) => *deliveries += 1,
            None => self.given.push_back((until, 1)),
        }
    }

    /// A delivery that was given out has not left: it may be given out anew.
    pub(super) fn take_back(&mut self) {
        self.reserved += 1;
    }

    fn most(&self) -> u64 {
        self.burst.saturating_sub(self.starting + self.reserved) * self.per_ms
    }

    /// Time passes: tokens come, and what was given out has started, or does not.
    fn pass(&mut self, now: u64) {
        while let Some((until, deliveries)) = self.given.front().copied().filter(|(until, _)| *until < now) {
            // Until then the bucket was smaller.
            self.fill(until + 1);
            self.starting -= deliveries;
            self.given.pop_front();
        }
        self.fill(now);
    }

    fn fill(&mut self, now: u64) {
        let more = now.saturating_sub(self.at).saturating_mul(self.starts);
        self.level = self.level.saturating_add(more).min(self.most());
        self.at = self.at.max(now);
    }
}
