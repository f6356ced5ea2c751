//! What the limits of one destination let this broker deliver.
//!
//! Purpose: counts the deliveries that run, keeps to the share of the limits that the leader has
//! lent, and says when to ask for another. Without limits everything is allowed.
//! Invariants: nothing is given out without a share that lasts, a slot of it and a token of its
//! rate, taken together or not at all. A delivery runs until its handler has answered, or its
//! callback timeout has passed, whatever becomes of its timer or its session meanwhile.
//! Not in here: who lends (`cluster/lender.rs`), and when deliveries are given out (`delivery`).

use std::collections::BTreeMap;

use mtimer_protocol::{Share, ShareParts, ShareRequest};
use mtimer_types::{DeliveryLimits, DeliveryRate, Destination};

use super::token_bucket::{START_WITHIN_MS, TokenBucket};

/// A share is asked for again so long after it was lent, ms: three times before its end.
const RENEW_MS: u64 = 300;
/// The same if it was too small for what waits, ms.
const MORE_MS: u64 = 50;
/// A request that is not answered is made again after so long, ms.
const AGAIN_MS: u64 = 200;
/// Parked timers come back for the tokens of the next so many ms.
const AHEAD_MS: u64 = 50;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Limit {
    version: u64,
    limits: DeliveryLimits,
    share: OwnShare,
    bucket: TokenBucket,
    /// Deliveries that were given out and not settled, with those that wait for the store.
    running: u64,
    /// While there is a limit on them, by the ends of their callback timeouts, monotonic ms:
    /// deliveries whose handlers may still be running, though their timers or sessions are gone.
    /// Each keeps a slot, so they are hardly more than the limit.
    lingering: BTreeMap<u64, u64>,
    /// Their sum.
    lingering_sum: u64,
    /// The longest callback timeout of a timer, ms.
    longest_ms: u32,
    /// Deliveries given out since the last request.
    started: u32,
    /// When the last request was made, and the longest callback timeout that it told, if it is not
    /// answered.
    asked: Option<(u64, u32)>,
    /// When to ask again, and when to if there are too few slots.
    ask_at: u64,
    ask_more_at: u64,
    /// When a delivery was first given out that has not been sent yet.
    unsent_since: Option<u64>,
    /// Something was kept back when it was last tried to give something out.
    is_scarce: bool,
    /// When the destination is to be looked at, for its limits.
    wake: Option<u64>,
}

/// The part of the limits that this broker has.
#[derive(Clone, Copy, Debug, Default)]
struct OwnShare {
    parts: ShareParts,
    /// Monotonic ms.
    ends: u64,
    /// No timer with a longer callback timeout may be given out under it, ms.
    longest_ms: u32,
}

impl Limit {
    /// These limits hold now.
    pub(super) fn set(&mut self, version: u64, limits: DeliveryLimits) {
        // What was asked for other limits does not count by these.
        (self.version, self.limits, self.asked, self.ask_at) = (version, limits, None, 0);
        if limits.concurrency.is_none() {
            (self.lingering, self.lingering_sum) = (BTreeMap::new(), 0);
        }
        if limits.is_none() {
            (self.share, self.is_scarce) = (OwnShare::default(), false);
            self.bucket = TokenBucket::default();
        }
    }

    /// Whether there are limits.
    pub(super) fn is_set(&self) -> bool {
        !self.limits.is_none()
    }

    /// The limits.
    pub(super) fn limits(&self) -> DeliveryLimits {
        self.limits
    }

    /// Whether something is to be done for it later.
    pub(super) fn is_busy(&self) -> bool {
        self.wake.is_some()
    }

    /// Whether timers wait, or have lately, because of the limits alone.
    pub(super) fn is_scarce(&self) -> bool {
        self.is_scarce
    }

    pub(super) fn note_scarce(&mut self, is_scarce: bool) {
        self.is_scarce = is_scarce;
    }

    /// A timer of the destination may run so long, ms.
    pub(super) fn note_timeout(&mut self, ms: u32) {
        self.longest_ms = self.longest_ms.max(ms);
    }

    /// How many deliveries may be given out now.
    pub(super) fn allowance(&mut self, now: u64) -> u64 {
        if !self.is_set() {
            return u64::MAX;
        }
        if !self.may_start(now) {
            return 0;
        }
        let slots = self.free_slots(now);
        if self.limits.rate.is_none() { slots } else { slots.min(self.bucket.tokens(now)) }
    }

    /// How many parked timers may come back now.
    pub(super) fn may_return(&mut self, now: u64) -> u64 {
        if !self.is_set() {
            return u64::MAX;
        }
        if now >= self.share.ends {
            return 0;
        }
        let slots = self.free_slots(now);
        if self.limits.rate.is_none() { slots } else { slots.min(self.bucket.tokens_by(now + AHEAD_MS)) }
    }

    /// Whether what has a slot and a token may start now.
    pub(super) fn may_start(&self, now: u64) -> bool {
        !self.is_set() || now < self.share.ends && self.longest_ms <= self.share.longest_ms
    }

    fn free_slots(&mut self, now: u64) -> u64 {
        let Some(concurrency) = self.limits.concurrency else { return u64::MAX };
        let used = self.in_use(now);
        u64::from(concurrency.min(self.share.parts.slots)).saturating_sub(used)
    }

    /// Deliveries that run, or may.
    pub(super) fn in_use(&mut self, now: u64) -> u64 {
        while let Some(first) = self.lingering.first_entry().filter(|first| *first.key() <= now) {
            self.lingering_sum -= first.remove();
        }
        self.running + self.lingering_sum
    }

    /// A delivery is given to a member. It starts now, or when the store has taken its timer.
    pub(super) fn reserve(&mut self) {
        self.running += 1;
        if self.limits.rate.is_some() {
            self.bucket.reserve();
        }
    }

    /// It does not come to a start.
    pub(super) fn unreserve(&mut self) {
        self.running = self.running.saturating_sub(1);
        if self.limits.rate.is_some() {
            self.bucket.unreserve();
        }
    }

    /// It goes on its way. Says whether it is the first one since [`Limit::sent`]: call that when
    /// it has been sent.
    pub(super) fn start(&mut self, now: u64) -> bool {
        if !self.is_set() {
            return false;
        }
        self.started = self.started.saturating_add(1);
        if self.limits.rate.is_some() {
            self.bucket.give(now);
        }
        let is_first = self.unsent_since.is_none();
        self.unsent_since.get_or_insert(now);
        is_first
    }

    /// It is as before it was on its way: it has not left.
    pub(super) fn take_back(&mut self) {
        if self.limits.rate.is_some() {
            self.bucket.take_back();
        }
    }

    /// A delivery that an earlier owner has started runs for so long at most, ms.
    pub(super) fn inherit(&mut self, ms: u64) {
        self.running += 1;
        self.note_timeout(u32::try_from(ms).unwrap_or(u32::MAX));
    }

    /// A delivery has ended: its handler has answered, or its time is over.
    pub(super) fn finish(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    /// A handler may go on until then, though its delivery is not known here any more.
    pub(super) fn linger(&mut self, until: u64) {
        if self.limits.concurrency.is_some() {
            *self.lingering.entry(until).or_default() += 1;
            self.lingering_sum += 1;
        }
    }

    /// Until when what was given out and not sent may leave; `None`: whenever.
    pub(super) fn leave_by(&self) -> Option<u64> {
        let since = self.unsent_since?;
        // What was given out in the last ms of the share may not leave after it.
        Some((since + START_WITHIN_MS).min(self.share.ends.saturating_sub(1)))
    }

    /// Whether what was given out and not sent may leave now.
    pub(super) fn may_leave(&self, now: u64) -> bool {
        self.leave_by().is_none_or(|by| now <= by)
    }

    /// All that was given out is sent, or is not to be sent any more.
    pub(super) fn sent(&mut self) {
        self.unsent_since = None;
    }

    /// The request to make now, if any. `waiting`: timers that could be given out at once, but for
    /// the limits.
    pub(super) fn ask(&mut self, now: u64, dest: &Destination, waiting: u64) -> Option<ShareRequest> {
        if !self.is_set() || self.asked.is_some_and(|(asked, _)| now < asked + AGAIN_MS) {
            return None;
        }
        let running = self.in_use(now);
        let is_idle = running == 0 && waiting == 0;
        let has_share = now < self.share.ends && self.share.parts != ShareParts::default();
        if is_idle && !has_share || now < self.next_ask(now, waiting) && self.may_start(now) {
            return None;
        }
        let mut returned = 0;
        if is_idle {
            // Nothing is given out under it any more.
            returned = self.bucket.close(now);
        }
        if is_idle || !has_share {
            self.share = OwnShare::default();
        }
        self.asked = Some((now, self.longest_ms));
        let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        Some(ShareRequest {
            dest: dest.clone(),
            version: self.version,
            limits: self.limits,
            made: now,
            held: self.share.parts,
            running: narrow(running),
            waiting: narrow(waiting),
            started: std::mem::take(&mut self.started),
            longest_ms: self.longest_ms,
            returned,
        })
    }

    /// The answer to a request.
    pub(super) fn answered(&mut self, now: u64, share: &Share, waiting: u64) {
        let Some((_, longest_ms)) = self.asked.filter(|(asked, _)| *asked == share.made && self.is_set())
        else {
            return;
        };
        self.asked = None;
        let (before, parts) = (self.share.parts, share.parts);
        let ends = share.made + u64::from(share.lasts_ms);
        self.share = OwnShare { parts, ends, longest_ms };
        if let Some(rate) = self.limits.rate {
            let (starts, burst) = (parts.starts, parts.burst);
            self.bucket.set(now, DeliveryRate { starts, burst, ..rate }, share.tokens);
        }
        let is_short = waiting > 0 && self.allowance(now) == 0;
        // The leader lends what was given up when it hears that it was.
        let is_less =
            parts.slots < before.slots || parts.starts < before.starts || parts.burst < before.burst;
        self.ask_at = now + if is_short || is_less { MORE_MS } else { RENEW_MS };
        self.ask_more_at = now + MORE_MS;
    }

    fn next_ask(&mut self, now: u64, waiting: u64) -> u64 {
        let is_short = waiting > 0 && self.free_slots(now) == 0;
        if is_short { self.ask_at.min(self.ask_more_at) } else { self.ask_at }
    }

    /// Says when to look at the destination again, for its limits. `waiting`: as for
    /// [`Limit::ask`].
    pub(super) fn wake_at(&mut self, now: u64, waiting: u64) -> Option<u64> {
        self.wake = self.next(now, waiting).map(|at| at.max(now + 1));
        self.wake
    }

    fn next(&mut self, now: u64, waiting: u64) -> Option<u64> {
        if !self.is_set() {
            return None;
        }
        let has_share = now < self.share.ends && self.share.parts != ShareParts::default();
        if self.in_use(now) == 0 && waiting == 0 && !has_share && self.asked.is_none() {
            return None;
        }
        let next_ask = self.next_ask(now, waiting).min(self.share.ends);
        let ask = self.asked.map_or(next_ask, |(asked, _)| asked + AGAIN_MS);
        let token =
            (waiting > 0 && has_share && self.limits.rate.is_some()).then(|| self.bucket.next(now)).flatten();
        let slot = self.lingering.keys().next().copied().filter(|_| waiting > 0);
        [Some(ask), token, slot].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests;
