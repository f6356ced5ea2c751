//! Limits of tokens and groups, counted at this broker.
//!
//! Purpose: says which schedules of a request, and which connections, are over a limit, and whose
//! it is.
//! Invariant: the tokens and groups that are tracked are bounded ([`MAX_LIMITED`]); a refused
//! operation uses up nothing of any limit.
//! Not in here: the kinds of limits ([`mtimer_access::Limits`]), permissions
//! ([`crate::admission`]).
//!
//! Pending timers are those in memory or parked. The engine's task counts them every second
//! ([`Limiter::note_pending`]); schedules that are due within the preload window are added until
//! the next count.

pub(crate) mod connections;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mtimer_access::{Limit, Limits, Principal, TokenBucket, Verb};
use mtimer_core::{DeniedOp, Now};
use mtimer_protocol::{ErrorCode, Request};
use mtimer_types::limits::MAX_LIMITED;
use mtimer_types::{Destination, Timer};
use parking_lot::{Mutex, MutexGuard};

use crate::counters::{ShellCounter, ShellCounters};

/// Stands for every group that has no limits of its own.
pub(crate) const EVERY_GROUP: &str = "*";
/// How often pending timers are counted, ms.
const COUNT_EVERY_MS: u64 = 1_000;
/// The pause between two counts, in relation to the time that one takes.
const PAUSE_FACTOR: u64 = 50;
/// Tokens and groups whose refusals are named in the log; those of others are added up.
const MAX_NAMED: usize = 20;

/// Whose limit it is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Whose {
    Token(Arc<str>),
    Group(Box<str>),
    /// More tokens and groups than are named.
    Others,
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(id) => write!(f, "token {id}"),
            Self::Group(name) => write!(f, "group {name}"),
            Self::Others => f.write_str("others"),
        }
    }
}

/// The usage of a token or a group.
#[derive(Debug)]
struct Usage {
    bucket: Option<TokenBucket>,
    connections: u32,
    /// Of all its connections.
    registrations: usize,
    /// Pending timers at the last count.
    pending: u64,
    /// The number of that count.
    counted: u64,
    /// Schedules admitted since, due within the preload window.
    added: u64,
}

impl Usage {
    const fn new() -> Self {
        Self { bucket: None, connections: 0, registrations: 0, pending: 0, counted: 0, added: 0 }
    }

    /// Says whether it can be forgotten: a new one would allow the same.
    fn is_idle(&mut self, now_ms: u64) -> bool {
        let forgettable = |bucket: &TokenBucket| bucket.is_idle(now_ms);
        self.connections == 0 && self.added == 0 && self.bucket.as_ref().is_none_or(forgettable)
    }

    /// Takes in the count of this number, if it has not yet.
    fn refresh(&mut self, number: u64, pending: impl FnOnce() -> u64) {
        if self.counted != number {
            (self.pending, self.counted, self.added) = (pending(), number, 0);
        }
    }

    /// Says which limit one more schedule would be over.
    fn check(&mut self, limits: &Limits, now_ms: u64) -> Result<(), Limit> {
        if limits.pending.is_some_and(|most| self.pending.saturating_add(self.added) >= most) {
            return Err(Limit::Pending);
        }
        match limits.rate() {
            None => self.bucket = None,
            Some(rate) => {
                let bucket = self.bucket.get_or_insert_with(|| TokenBucket::full(rate, now_ms));
                bucket.fill(rate, now_ms);
                if !bucket.has_one() {
                    return Err(Limit::Schedules);
                }
            }
        }
        Ok(())
    }

    /// Takes note of a schedule that was admitted.
    fn admit(&mut self, is_soon: bool) {
        self.added += u64::from(is_soon);
        if let Some(bucket) = &mut self.bucket {
            bucket.take();
        }
    }
}

/// The last count of pending timers.
#[derive(Debug, Default)]
struct PendingCounts {
    number: u64,
    total: u64,
    groups: HashMap<Box<str>, u64>,
    destinations: HashMap<Destination, u64>,
}

impl PendingCounts {
    fn of_group(&self, group: &str) -> u64 {
        self.groups.get(group).copied().unwrap_or(0)
    }

    fn of_token(&self, who: &Principal) -> u64 {
        let one = |dest: &Destination| self.destinations.get(dest).copied().unwrap_or(0);
        who.sum_over(Verb::Schedule, || self.total, |group| self.of_group(group), one)
    }
}

#[derive(Debug, Default)]
struct UsageTable {
    tokens: HashMap<Arc<str>, Usage>,
    groups: HashMap<Box<str>, Usage>,
    pending: PendingCounts,
    /// When idle tokens and groups were last looked for, monotonic ms.
    swept_ms: u64,
    /// Refusals since they were last logged.
    refused: BTreeMap<(Whose, Limit), u64>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Limiter {
    of_groups: BTreeMap<String, Limits>,
    preload_ms: u64,
    counters: Arc<ShellCounters>,
    /// Somebody has a limit of pending timers.
    wants_pending: AtomicBool,
    /// When pending timers are to be counted again, monotonic ms.
    count_at: AtomicU64,
    state: Mutex<UsageTable>,
}

impl Limiter {
    /// `of_groups`: the limits of groups by name, [`EVERY_GROUP`] among them.
    pub(crate) fn new(
        of_groups: BTreeMap<String, Limits>,
        preload_ms: u64,
        counters: Arc<ShellCounters>,
    ) -> Self {
        let wants_pending = of_groups.values().any(|limits| limits.pending.is_some());
        Self {
            of_groups,
            preload_ms,
            counters,
            wants_pending: AtomicBool::new(wants_pending),
            count_at: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    /// Adds the schedules of a request that are over a limit to those operations that are denied
    /// already. `who`: whose request it is; `None` without tokens.
    pub(crate) fn screen(
        &self,
        now: impl FnOnce() -> Now,
        who: Option<&Principal>,
        request: &Request,
        denied: Vec<DeniedOp>,
    ) -> Vec<DeniedOp> {
        let who = who.filter(|who| !who.limits().is_empty());
        if who.is_none() && self.of_groups.is_empty() {
            return denied;
        }
        if let Some(who) = who {
            self.note_pending_limit(&who.limits());
        }
        let now = now();
        let mut state = self.state();
        state.sweep(now.mono_ms);
        let mut all = Vec::with_capacity(denied.len());
        let mut denied = denied.into_iter().peekable();
        for (at, op) in request.ops.iter().enumerate() {
            if let Some(one) = denied.next_if(|one| one.at == at) {
                all.push(one);
            } else if let Some(timer) = op.subject().brings()
                && let Err(over) = self.admit(&mut state, now, who, timer)
            {
                all.push(DeniedOp { at, code: over.code(), why: over.to_string() });
                self.count(&mut state, over.whose, over.limit);
            }
        }
        all
    }

    /// Takes note of one schedule, or says which limit it is over.
    fn admit(
        &self,
        state: &mut UsageTable,
        now: Now,
        who: Option<&Principal>,
        timer: &Timer,
    ) -> Result<(), OverLimit> {
        let group = timer.dest.group();
        let of_group = self.of_group(group);
        let of_token = who.map(Principal::limits);
        let over = |is_token: bool, limit, limits: &Limits, found| {
            let whose = match who {
                Some(who) if is_token => Whose::Token(who.shared_id()),
                _ => Whose::Group(group.into()),
            };
            Err(OverLimit { whose, limit, limits: *limits, found })
        };
        let bytes = timer.content_bytes();
        for (is_token, limits) in [(true, &of_token), (false, &of_group)] {
            if let Some(limits) = limits
                && limits.payload.is_some_and(|most| bytes > most as usize)
            {
                return over(is_token, Limit::Payload, limits, bytes as u64);
            }
        }
        let UsageTable { tokens, groups, pending, .. } = state;
        let mut token = who.map(|who| {
            let usage = tokens.entry(who.shared_id()).or_insert(Usage::new());
            usage.refresh(pending.number, || pending.of_token(who));
            usage
        });
        let mut group = of_group.map(|_| {
            // Beyond the bound, groups without limits of their own share one rate, and one count of
            // the timers added since pending timers were last counted. The backlog that counts is
            // the group's own.
            let is_new = !groups.contains_key(group) && !self.of_groups.contains_key(group);
            let is_shared = is_new && groups.len() >= MAX_LIMITED;
            let name = if is_shared { EVERY_GROUP } else { group };
            let usage = groups.entry(name.into()).or_insert(Usage::new());
            usage.refresh(pending.number, || pending.of_group(group));
            if is_shared {
                usage.pending = pending.of_group(group);
            }
            usage
        });
        for (is_token, limits, usage) in [(true, &of_token, &mut token), (false, &of_group, &mut group)] {
            if let (Some(limits), Some(usage)) = (limits, usage)
                && let Err(limit) = usage.check(limits, now.mono_ms)
            {
                return over(is_token, limit, limits, usage.pending.saturating_add(usage.added));
            }
        }
        let is_soon = timer.due <= now.time + self.preload_ms;
        token.into_iter().chain(group).for_each(|usage| usage.admit(is_soon));
        Ok(())
    }

    fn note_pending_limit(&self, limits: &Limits) {
        if limits.pending.is_some() {
            self.wants_pending.store(true, Ordering::Relaxed);
        }
    }

    /// Returns when pending timers are to be counted again, monotonic ms; `None`: nobody wants it.
    pub(crate) fn next_count(&self) -> Option<u64> {
        let is_wanted = self.wants_pending.load(Ordering::Relaxed);
        is_wanted.then(|| self.count_at.load(Ordering::Relaxed))
    }

    /// Takes a count of pending timers that began at `began_ms` and has ended at `now_ms`,
    /// monotonic.
    pub(crate) fn note_pending<'a>(
        &self,
        began_ms: u64,
        counts: impl Iterator<Item = (&'a Destination, u64)>,
        now_ms: impl Fn() -> u64,
    ) {
        let mut pending = PendingCounts::default();
        for (dest, n) in counts.filter(|(_, n)| *n > 0) {
            pending.total += n;
            match pending.groups.get_mut(dest.group()) {
                Some(sum) => *sum += n,
                None => _ = pending.groups.insert(dest.group().into(), n),
            }
            pending.destinations.insert(dest.clone(), n);
        }
        let mut state = self.state();
        pending.number = state.pending.number + 1;
        let before = std::mem::replace(&mut state.pending, pending);
        drop(state);
        drop(before);
        let took = now_ms().saturating_sub(began_ms);
        self.count_at.store(began_ms + COUNT_EVERY_MS.max(took * PAUSE_FACTOR), Ordering::Relaxed);
    }

    /// Returns the refusals since the last call: whose limit, and how often.
    pub(crate) fn take_refused(&self) -> Vec<(String, u64)> {
        let refused = std::mem::take(&mut self.state().refused);
        refused.into_iter().map(|((whose, limit), n)| (format!("{limit} of {whose}"), n)).collect()
    }

    fn of_group(&self, group: &str) -> Option<Limits> {
        self.of_groups.get(group).or_else(|| self.of_groups.get(EVERY_GROUP)).copied()
    }

    fn count(&self, state: &mut UsageTable, whose: Whose, limit: Limit) {
        self.counters.count(match (&whose, limit) {
            (Whose::Token(_) | Whose::Others, Limit::Schedules) => ShellCounter::LimitTokenSchedules,
            (Whose::Token(_) | Whose::Others, Limit::Pending) => ShellCounter::LimitTokenPending,
            (Whose::Token(_) | Whose::Others, Limit::Payload) => ShellCounter::LimitTokenPayload,
            (_, Limit::Connections) => ShellCounter::LimitTokenConnections,
            (Whose::Group(_), Limit::Schedules) => ShellCounter::LimitGroupSchedules,
            (Whose::Group(_), Limit::Pending) => ShellCounter::LimitGroupPending,
            (Whose::Group(_), Limit::Payload) => ShellCounter::LimitGroupPayload,
        });
        let is_named = state.refused.len() < MAX_NAMED || state.refused.contains_key(&(whose.clone(), limit));
        let whose = if is_named { whose } else { Whose::Others };
        *state.refused.entry((whose, limit)).or_default() += 1;
    }

    fn state(&self) -> MutexGuard<'_, UsageTable> {
        self.state.lock()
    }
}

impl UsageTable {
    /// Forgets the tokens and groups that have used nothing lately, if there are many.
    fn sweep(&mut self, now_ms: u64) {
        let many = self.tokens.len() >= MAX_LIMITED || self.groups.len() >= MAX_LIMITED;
        if many && self.swept_ms + COUNT_EVERY_MS <= now_ms {
            self.swept_ms = now_ms;
            let counted = self.pending.number;
            let is_used = |usage: &mut Usage| {
                if usage.counted != counted {
                    usage.added = 0;
                }
                !usage.is_idle(now_ms)
            };
            self.tokens.retain(|_, usage| is_used(usage));
            self.groups.retain(|_, usage| is_used(usage));
        }
    }
}

/// A limit that is exceeded, for messages.
#[derive(Debug)]
struct OverLimit {
    whose: Whose,
    limit: Limit,
    limits: Limits,
    /// How much there is.
    found: u64,
}

impl OverLimit {
    /// A payload is not smaller the next time.
    fn code(&self) -> ErrorCode {
        if self.limit == Limit::Payload { ErrorCode::Invalid } else { ErrorCode::LimitReached }
    }
}

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { whose, limits, found, .. } = self;
        match self.limit {
            Limit::Schedules => {
                let (rate, burst) = limits.rate().map_or((0, 0), |rate| (rate.per_second, rate.burst));
                write!(
                    f,
                    "the limit schedules of {whose} is reached, {rate} a second and {burst} at once at each \
                     broker: try again later, or raise it"
                )
            }
            Limit::Pending => write!(
                f,
                "the limit pending of {whose} is reached, {found} of {} timers in memory or parked at this \
                 broker: wait until some are settled, or raise it",
                limits.pending.unwrap_or(0)
            ),
            Limit::Payload => write!(
                f,
                "payload and headers have {found} bytes, the limit payload of {whose} is {}: store them elsewhere \
                 and send a reference, or raise it",
                limits.payload.unwrap_or(0)
            ),
            Limit::Connections => write!(
                f,
                "the limit connections of {whose} is reached, {found} of {} at this broker: close one, or raise \
                 it",
                limits.connections.unwrap_or(0)
            ),
        }
    }
}

#[cfg(test)]
mod tests;
