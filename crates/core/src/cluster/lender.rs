//! Lends the limits of destinations to the brokers that deliver: so many deliveries at the same
//! time, so many starts in a time.
//!
//! Purpose: the leader has one [`Lender`]. A broker asks for a share when it has something to
//! deliver, and again while that lasts; it uses no share beyond its end.
//! Invariants: what is lent at any time is no more than the limit. A share that was not given back
//! counts until its end, and deliveries that may have begun under it until the longest callback
//! timeout after that. Nothing that an earlier leader may have lent is lent before it has ended,
//! but to the broker that has it. The tokens of a rate are in the pool or at one broker, never at
//! both, so all starts together keep to one token bucket.
//! Not in here: how a broker keeps to its share (`engine/limit.rs`).

use std::collections::BTreeMap;

use mtimer_protocol::{Share, ShareParts, ShareRequest};
use mtimer_types::{DeliveryLimits, DeliveryRate, Destination};

/// How long a share lasts, ms, from when the broker asked. It asks again well before that.
pub const SHARE_MS: u32 = 1_000;
/// So much longer a share counts at the lender, ms: two clocks may run at different speeds, by one
/// in a thousand at most.
const MARGIN_MS: u64 = 50;

/// If there is too little for all, a broker that uses its share keeps it so long, ms. While a share
/// changes hands, which takes up to 100 ms, nobody uses it.
const TURN_MS: u64 = 2_000;

/// A broker is lent so many slots more than twice as many as it can use at once, if there are.
const RESERVE_SLOTS: u32 = 8;

/// See the module.
#[derive(Debug)]
pub struct Lender {
    /// No share of an earlier lender is used any more, ms by the monotonic clock.
    alone_from: u64,
    loans: BTreeMap<Destination, Loan>,
    /// When it was last looked which loans are over.
    looked: u64,
}

impl Lender {
    /// A lender that begins now, ms by the monotonic clock. Others may have lent until now.
    pub const fn new(now: u64) -> Self {
        Self { alone_from: now + SHARE_MS as u64 + MARGIN_MS, loans: BTreeMap::new(), looked: now }
    }

    /// Lends a share to a broker, in place of the one that it has. `broker`: its incarnation.
    /// `None`: the broker has made a later request already, over another connection.
    pub fn lend(&mut self, now: u64, broker: u64, ask: &ShareRequest) -> Option<Share> {
        if now >= self.looked + u64::from(SHARE_MS) {
            self.looked = now;
            self.loans.retain(|_, loan| !loan.is_over(now));
        }
        let alone_from = self.alone_from;
        let loan = self.loans.entry(ask.dest.clone()).or_insert_with(|| Loan::new(alone_from));
        if loan.version == 0 {
            loan.learn(ask);
        }
        loan.pass(now);
        if loan.borrowers.get(&broker).is_some_and(|b| ask.made < b.asked) {
            return None;
        }
        loan.learn(ask);
        loan.report(now, broker, ask);
        let (parts, tokens) = loan.grant(now, broker);
        Some(Share { dest: ask.dest.clone(), made: ask.made, parts, tokens, lasts_ms: SHARE_MS })
    }
}

/// The limits of one destination, and who has which part of them.
#[derive(Debug)]
struct Loan {
    alone_from: u64,
    version: u64,
    limits: DeliveryLimits,
    borrowers: BTreeMap<u64, Borrower>,
    /// The longest callback timeout that any broker has told, ms.
    longest_ms: u64,
    /// Tokens that nobody has, in parts of `per_ms`, as of `at`.
    pool: u64,
    at: u64,
}

/// A broker that has a share, or wants one.
#[derive(Clone, Copy, Debug, Default)]
struct Borrower {
    /// Its share.
    parts: ShareParts,
    /// Of the share before, what may be in use until it has told that it has this one.
    counted: ShareParts,
    /// When it has made its last request, by its own clock, ms.
    asked: u64,
    /// The end of its share, ms.
    until: u64,
    running: u32,
    /// How many deliveries it would like to have at the same time.
    wanted: u32,
    /// How many starts it would make in the rate's time.
    pace: u64,
    /// Since when it has a share, or waits for one, ms.
    since: u64,
    /// It has started a delivery since it has its share.
    has_started: bool,
    longest_ms: u64,
}

impl Borrower {
    fn has_share(&self) -> bool {
        self.parts.slots > 0 || self.parts.starts > 0
    }

    /// How many deliveries it may be running, by its last word and its share.
    fn occupied(&self) -> u32 {
        self.counted.slots.max(self.running)
    }

    /// When nothing that began under its share can be running any more.
    fn over_at(&self) -> u64 {
        self.until + self.longest_ms
    }

    /// When several want more than there is, in this order: those that have not used their share
    /// for long, those that wait for one, those that have used it.
    fn turn(&self, now: u64) -> (u8, u64) {
        let has_had_turn = self.has_started && now >= self.since + TURN_MS;
        let rank = match (self.has_share(), has_had_turn) {
            (true, false) => 0,
            (false, _) => 1,
            (true, true) => 2,
        };
        (rank, self.since)
    }
}

impl Loan {
    fn new(alone_from: u64) -> Self {
        Self {
            alone_from,
            version: 0,
            limits: DeliveryLimits::default(),
            borrowers: BTreeMap::new(),
            longest_ms: 0,
            pool: 0,
            // Tokens that came into being before may have been used.
            at: alone_from,
        }
    }

    fn rate(&self) -> DeliveryRate {
        self.limits.rate.unwrap_or(DeliveryRate { starts: 0, per_ms: 1, burst: 0 })
    }

    /// Nobody has anything of it, and the pool is full: it is as a new one would be.
    fn is_over(&self, now: u64) -> bool {
        let rate = self.rate();
        let filled = now.saturating_sub(self.at).saturating_mul(rate.starts.into());
        let is_full = self.pool.saturating_add(filled) >= u64::from(rate.burst) * u64::from(rate.per_ms);
        is_full && now >= self.alone_from && self.borrowers.values().all(|b| b.over_at() <= now)
    }

    /// Time passes: tokens come into the pool, and shares end.
    fn pass(&mut self, now: u64) {
        let rate = self.rate();
        let (mut starts, mut burst) = (rate.starts, rate.burst);
        for b in self.borrowers.values() {
            starts = starts.saturating_sub(b.counted.starts);
            burst = burst.saturating_sub(b.counted.burst);
        }
        let most = u64::from(burst) * u64::from(rate.per_ms);
        let filled = now.saturating_sub(self.at).saturating_mul(starts.into());
        self.pool = self.pool.saturating_add(filled).min(most);
        self.at = self.at.max(now);
        for b in self.borrowers.values_mut().filter(|b| b.until <= now) {
            // What was lent of the rate has ended with the share, what was lent of the slots may be
            // in use.
            (b.parts, b.wanted) = (ShareParts::default(), 0);
            (b.counted.starts, b.counted.burst) = (0, 0);
        }
        self.borrowers.retain(|_, b| b.over_at() > now);
    }

    /// Brokers tell the limits: those of the highest version hold.
    fn learn(&mut self, ask: &ShareRequest) {
        if ask.version > self.version {
            if self.limits.rate.map(|rate| rate.per_ms) != ask.limits.rate.map(|rate| rate.per_ms) {
                self.pool = 0;
            }
            (self.version, self.limits) = (ask.version, ask.limits);
        }
        self.longest_ms = self.longest_ms.max(ask.longest_ms.into());
    }

    /// What a broker says of the share that it had.
    fn report(&mut self, now: u64, broker: u64, ask: &ShareRequest) {
        let rate = self.rate();
        let b = self.borrowers.entry(broker).or_insert(Borrower { since: now, ..Borrower::default() });
        let most = u64::from(b.counted.burst) * u64::from(rate.per_ms);
        // Also if another lender has lent it to it.
        (b.parts, b.counted) = (ask.held, ask.held);
        let waiting = ask.waiting > 0;
        let past_ms = (now + u64::from(SHARE_MS) + MARGIN_MS).saturating_sub(b.until).max(1);
        let pace = u64::from(ask.started) * u64::from(rate.per_ms) / past_ms;
        // One that has nothing waiting may need half as much again soon.
        b.pace = if waiting { u64::MAX } else { pace + pace / 2 + 1 };
        (b.asked, b.running) = (ask.made, ask.running);
        // With a few in reserve, so that what comes due next need not wait for another share.
        b.wanted = match ask.running.saturating_add(ask.waiting) {
            0 => 0,
            wanted => wanted.saturating_mul(2).saturating_add(RESERVE_SLOTS),
        };
        b.has_started |= ask.started > 0;
        b.longest_ms = ask.longest_ms.into();
        self.pool = self.pool.saturating_add(ask.returned.min(most));
    }

    /// Those that want something, in the order of their turns.
    fn claimants(&self, now: u64) -> Vec<(u64, Borrower)> {
        let mut all: Vec<_> =
            self.borrowers.iter().filter(|(_, b)| b.wanted > 0).map(|(id, b)| (*id, *b)).collect();
        all.sort_by_key(|(id, b)| (b.turn(now), *id));
        all
    }

    /// What this broker is to have at best.
    fn target(&self, now: u64, broker: u64) -> ShareParts {
        let mut claimants = self.claimants(now);
        let limits = [
            self.limits.concurrency,
            self.limits.rate.map(|rate| rate.starts),
            self.limits.rate.map(|rate| rate.burst),
        ];
        // Half a share is of no use: if there is too little of something, some wait for their
        // turns.
        let most = limits.into_iter().flatten().min().unwrap_or(u32::MAX);
        claimants.truncate(most as usize);
        let Some(at) = claimants.iter().position(|(id, _)| *id == broker) else {
            return ShareParts::default();
        };
        let wanted: Vec<u64> = claimants.iter().map(|(_, b)| b.wanted.into()).collect();
        let paces: Vec<u64> = claimants.iter().map(|(_, b)| b.pace).collect();
        let of = |total: Option<u32>, wanted: &[u64]| {
            total.map_or(0, |total| divide(total, wanted).get(at).copied().unwrap_or(0))
        };
        let rate = self.rate();
        let slots = of(self.limits.concurrency, &wanted);
        let starts = of(self.limits.rate.map(|rate| rate.starts), &paces);
        let burst = u64::from(rate.burst) * u64::from(starts) / u64::from(rate.starts.max(1));
        let burst = if starts > 0 { burst.max(1) } else { 0 };
        ShareParts { slots, starts, burst: u32::try_from(burst).unwrap_or(u32::MAX) }
    }

    /// Gives a broker as much of what it is to have as others do not have. Returns it, and the
    /// tokens that come with it.
    fn grant(&mut self, now: u64, broker: u64) -> (ShareParts, u64) {
        let rate = self.rate();
        let had = self.borrowers.get(&broker).map(|b| b.parts).unwrap_or_default();
        let others = || self.borrowers.iter().filter(|(id, _)| **id != broker).map(|(_, b)| b);
        // While shares of an earlier lender may be in use each broker has its own, and no more.
        let free = |total: u32, own: u32, others: u32, alone_from: u64| {
            let free = total.saturating_sub(others);
            if now < alone_from { free.min(own) } else { free }
        };
        let sum = |of: fn(&Borrower) -> u32| others().map(of).fold(0, u32::saturating_add);
        let target = self.target(now, broker);
        let slots = self.limits.concurrency.map_or(0, |total| {
            let alone_from = self.alone_from + self.longest_ms;
            target.slots.min(free(total, had.slots, sum(Borrower::occupied), alone_from))
        });
        let starts =
            target.starts.min(free(rate.starts, had.starts, sum(|b| b.counted.starts), self.alone_from));
        let burst = target.burst.min(free(rate.burst, had.burst, sum(|b| b.counted.burst), self.alone_from));
        let mut parts = ShareParts { slots, starts, burst };
        if self.limits.rate.is_some() && (starts == 0 || burst == 0) {
            parts = ShareParts::default();
        }
        if self.limits.concurrency.is_some() && slots == 0 {
            // It could start nothing.
            parts = ShareParts::default();
        }
        let more = u64::from(parts.burst.saturating_sub(had.burst)) * u64::from(rate.per_ms);
        let tokens = self.pool.min(more);
        self.pool -= tokens;
        if let Some(b) = self.borrowers.get_mut(&broker) {
            if (parts == ShareParts::default()) != (had == ShareParts::default()) {
                (b.since, b.has_started) = (now, false);
            }
            b.parts = parts;
            b.counted = ShareParts {
                slots: parts.slots.max(had.slots),
                starts: parts.starts.max(had.starts),
                burst: parts.burst.max(had.burst),
            };
            b.until = now + u64::from(SHARE_MS) + MARGIN_MS;
        }
        (parts, tokens)
    }
}

/// Divides a total among those who want so much each: nobody gets more than it wants, and nobody
/// less than another who wants more (max-min fairness). What cannot be divided goes to the first
/// ones.
fn divide(total: u32, wanted: &[u64]) -> Vec<u32> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|at| wanted.get(*at).copied());
    let mut parts = vec![0u32; wanted.len()];
    let mut left = total;
    for (n, at) in order.iter().enumerate() {
        let fair = left / u32::try_from(order.len() - n).unwrap_or(u32::MAX);
        let part = u64::from(fair).min(wanted.get(*at).copied().unwrap_or(0));
        let part = u32::try_from(part).unwrap_or(fair);
        parts.get_mut(*at).into_iter().for_each(|of| *of = part);
        left -= part;
    }
    for (part, wanted) in parts.iter_mut().zip(wanted) {
        if left > 0 && u64::from(*part) < *wanted {
            (*part, left) = (*part + 1, left - 1);
        }
    }
    parts
}
