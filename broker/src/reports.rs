//! Log lines about timers for operators: a few every ten seconds, and none while all is well.
//!
//! Purpose: a destination that nobody serves, that falls behind, or whose handlers always fail; a
//! store that answers slowly; bulk jobs; dead letters, deliveries without an outcome in time,
//! refused operations, limits that were reached, and connections and messages that were refused,
//! summed up.
//! Invariant: the number of lines does not depend on the number of timers, and of destinations
//! there are [`MOST_LINES`] at most.
//! Not in here: the figures ([`mtimer_core::figures`]); metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mtimer_core::Counter;
use mtimer_core::figures::{
    BUCKETS_MS, Backlog, BulkFigure, DEAD_REASONS, Durations, Figures, REFUSALS, RedeliveryCause, Tallies,
};
use mtimer_store::Store;
use mtimer_store::counters::{LOG_DROPPED_RECORDS, LOG_REPLAYED_RECORDS, LOST_SLOTS};
use mtimer_types::{BulkId, Destination, Filter, Time};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, interval_at};

use crate::counters::{ShellCounter, ShellCounters};
use crate::error::BrokerError;
use crate::lanes::ENDS;
use crate::limits::Limiter;
use crate::losses::{LossTotals, Losses};
use crate::observed::Observed;
use crate::refused::RefusalSummary;
use crate::shell::Control;

/// How often the figures are looked at.
const EVERY: Duration = Duration::from_secs(10);
/// Destinations that are looked at: those with the most pending timers and failed attempts.
const DESTINATIONS: usize = 200;
/// Lines about destinations at one look.
const MOST_LINES: usize = 20;
/// A destination is behind if a timer waits for longer.
const BEHIND_MS: u64 = 10_000;
/// Handlers of a destination always fail if so many attempts have failed since the last success.
const FAILURES: u64 = 10;
/// Calls of the store that timers and clients wait for.
const AWAITED_CALLS: [&str; 2] = ["apply", "load"];
/// A call is slow if it takes longer, ms: above about that, deliveries wait for claims. One of
/// [`BUCKETS_MS`].
const SLOW_MS: u64 = 100;
/// The store is slow if so many calls were, and one in [`SLOW_SHARE`] of all.
const SLOW_CALLS: u64 = 5;
/// See [`SLOW_CALLS`].
const SLOW_SHARE: u64 = 10;
/// Refusals that mean that something is wrong. The others are answers: a key is taken, another
/// broker has the partition. Limits that were reached have a line of their own.
const WRONG: [&str; 8] = [
    "invalid",
    "unauthorized",
    "unavailable",
    "store_full",
    "overloaded",
    "not_replicated",
    "protocol",
    "stopping",
];

/// Refusals that `mtimer status` tells of, and by which name: the store's, not clients' mistakes.
const REFUSED_BY_STORE: [(&str, &str); 4] = [
    ("unavailable", "refused_unavailable_lately"),
    ("store_full", "refused_store_full_lately"),
    ("overloaded", "refused_overloaded_lately"),
    ("not_replicated", "refused_not_replicated_lately"),
];

/// One line of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
enum LogReport {
    /// A destination's state is another one than at the last look.
    Destination { dest: Destination, state: DestinationHealth, backlog: Backlog, oldest_ms: u64 },
    /// So many more changed, and have no line.
    MoreDestinations(usize),
    /// Dead letters, by reason.
    Died(Vec<(&'static str, u64)>),
    /// Deliveries without an outcome within the callback timeout.
    TimedOut(u64),
    /// Operations that were refused, by reason.
    Refused(Vec<(&'static str, u64)>),
    /// Writes that the store had lost and that were applied again.
    Replayed(u64),
    /// So many of these calls of the store were slow.
    SlowStore { slow: u64, calls: u64 },
    /// Ownerships of partitions that have ended unexpectedly, by reason.
    Lost(Vec<(&'static str, u64)>),
    /// Refusals because of a limit, by limit and owner.
    Limited(Vec<(String, u64)>),
    /// A bulk job has begun, goes on here, or has ended here.
    Bulk { id: BulkId, figure: BulkFigure },
    /// Connections and messages of unauthenticated clients, and of clients that lack a permission.
    AccessRefused(RefusalSummary),
}

/// How a destination fares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DestinationHealth {
    /// Due timers are delivered.
    Served,
    /// Due timers wait for handlers.
    Behind,
    /// Nobody is registered.
    Unserved,
    /// Every attempt fails.
    Failing,
    /// Somebody has paused it.
    Paused,
    /// Its limits alone hold back what is due.
    Limited,
}

/// Derives log lines by comparing the figures of one look with those of the last.
#[derive(Default)]
struct HealthReporter {
    tallies: Tallies,
    /// Rounds of readings in which the time was not known well enough, up to the last look.
    doubtful: u64,
    /// Writes that were applied again, up to the last look.
    replayed: u64,
    /// Ownerships that have ended, up to the last look.
    ended: [u64; ENDS.len()],
    /// Slow calls of the store, and all, up to the last look.
    calls: (u64, u64),
    /// Slow calls between the last two looks, if the store was slow.
    slow: u64,
    losses: Losses,
    /// Deliveries without an outcome in time, between the last two looks.
    timed_out: u64,
    /// Operations that were refused between the last two looks, by reason.
    refused: Vec<(&'static str, u64)>,
    /// Bulk jobs that are under way.
    bulks: BTreeSet<BulkId>,
    /// When the last look was.
    looked: Option<Time>,
    /// Destinations that are not served.
    troubled: BTreeMap<Destination, DestinationHealth>,
}

impl HealthReporter {
    fn look(&mut self, now: Time, figures: &Figures) -> Vec<LogReport> {
        let mut reports = self.destinations(now, &figures.top);
        let tallies = &figures.tallies;
        let died = grown(DEAD_REASONS.map(|(_, name)| name), &self.tallies.dead, &tallies.dead);
        let refused = grown(REFUSALS, &self.tallies.refusals, &tallies.refusals);
        let refused: Vec<_> = refused.into_iter().filter(|(name, _)| WRONG.contains(name)).collect();
        let timeout = RedeliveryCause::Timeout as usize;
        self.timed_out = tallies.redeliveries[timeout].saturating_sub(self.tallies.redeliveries[timeout]);
        if !died.is_empty() {
            reports.push(LogReport::Died(died));
        }
        if self.timed_out > 0 {
            reports.push(LogReport::TimedOut(self.timed_out));
        }
        self.refused.clone_from(&refused);
        if !refused.is_empty() {
            reports.push(LogReport::Refused(refused));
        }
        self.tallies = tallies.clone();
        reports.extend(self.bulks(now, &figures.bulks));
        reports
    }

    /// Bulk jobs that have begun or ended since the last look. Of those that end in between, the
    /// end alone is told.
    fn bulks(&mut self, now: Time, bulks: &BTreeMap<BulkId, BulkFigure>) -> Vec<LogReport> {
        let looked = self.looked.replace(now);
        let under_way = bulks.iter().filter(|(_, figure)| figure.under_way > 0).map(|(id, _)| *id);
        let before = std::mem::replace(&mut self.bulks, under_way.collect());
        let has_changed = |(id, figure): &(&BulkId, &BulkFigure)| match figure.ended {
            _ if figure.under_way > 0 => !before.contains(id),
            // Before the first look it was not this broker's.
            ended => before.contains(id) || looked.is_some() && ended > looked,
        };
        let report =
            |(id, figure): (&BulkId, &BulkFigure)| LogReport::Bulk { id: *id, figure: figure.clone() };
        bulks.iter().filter(has_changed).map(report).collect()
    }

    /// Changes of partitions since the last look. `replayed`, `ended`: counts since the start.
    fn partitions(&mut self, replayed: u64, ended: [u64; ENDS.len()]) -> Vec<LogReport> {
        let again = replayed.saturating_sub(std::mem::replace(&mut self.replayed, replayed));
        let lost = grown(ENDS, &std::mem::replace(&mut self.ended, ended), &ended);
        let lost: Vec<_> = lost.into_iter().filter(|(reason, _)| *reason != "released").collect();
        let replayed = (again > 0).then_some(LogReport::Replayed(again));
        let lost = (!lost.is_empty()).then_some(LogReport::Lost(lost));
        replayed.into_iter().chain(lost).collect()
    }

    /// Whether the store was slow since the last look. `calls`: durations of calls since the start,
    /// by kind.
    fn store(&mut self, calls: &[(&'static str, Durations)]) -> Option<LogReport> {
        let first_slow = BUCKETS_MS.partition_point(|bound| *bound <= SLOW_MS);
        let awaited = calls.iter().filter(|(kind, _)| AWAITED_CALLS.contains(kind));
        let (slow, all) = awaited.fold((0, 0), |(slow, all), (_, took)| {
            (slow + took.buckets[first_slow..].iter().sum::<u64>(), all + took.count())
        });
        let before = std::mem::replace(&mut self.calls, (slow, all));
        let (slow, calls) = (slow.saturating_sub(before.0), all.saturating_sub(before.1));
        let is_slow = slow >= SLOW_CALLS && slow * SLOW_SHARE >= calls;
        self.slow = if is_slow { slow } else { 0 };
        is_slow.then_some(LogReport::SlowStore { slow, calls })
    }

    /// Troubles as of the last look, in numbers, by the names that `mtimer status` knows. 0 is
    /// well, but for the budget and bulk jobs.
    fn troubles(&mut self, now: Time, figures: &Figures, doubtful: u64) -> Vec<(&'static str, u64)> {
        let in_state = |state| self.troubled.values().filter(|s| **s == state).count() as u64;
        let newly_doubtful = doubtful.saturating_sub(std::mem::replace(&mut self.doubtful, doubtful));
        let troubles = [
            ("destinations_behind", in_state(DestinationHealth::Behind)),
            ("destinations_unserved", in_state(DestinationHealth::Unserved)),
            ("destinations_failing", in_state(DestinationHealth::Failing)),
            ("timeouts_lately", self.timed_out),
            ("store_slow_lately", self.slow),
            ("clock_doubtful_lately", newly_doubtful),
            ("memory_budget_bytes", figures.memory_budget),
            ("bulk_job_partitions", figures.bulk_partitions()),
        ];
        let refused = REFUSED_BY_STORE.map(|(reason, name)| {
            (name, self.refused.iter().find(|(other, _)| *other == reason).map_or(0, |(_, n)| *n))
        });
        troubles.into_iter().chain(refused).chain(self.losses.numbers(now)).collect()
    }

    fn destinations(&mut self, now: Time, top: &[(Destination, Backlog)]) -> Vec<LogReport> {
        let before = std::mem::take(&mut self.troubled);
        let was = |dest: &Destination| before.get(dest).copied().unwrap_or(DestinationHealth::Served);
        let mut reports = Vec::new();
        for (dest, backlog) in top {
            let oldest_ms = backlog.oldest.map_or(0, |due| now.ms_since(due));
            let limited_ms = backlog.oldest_limited.map_or(0, |due| now.ms_since(due));
            let state = DestinationHealth::of(backlog, oldest_ms, limited_ms);
            if state != DestinationHealth::Served {
                self.troubled.insert(dest.clone(), state);
            }
            // Handlers that have only gone away are not served again: their next attempt may fail,
            // too.
            let still_fails = state == DestinationHealth::Served && backlog.failures >= FAILURES;
            if state != was(dest) && !still_fails {
                reports.push(LogReport::Destination {
                    dest: dest.clone(),
                    state,
                    backlog: *backlog,
                    oldest_ms,
                });
            }
        }
        // A destination that is not looked at any more has no pending timers, or fewer than others.
        // Whether an attempt has succeeded meanwhile is not known.
        let gone = before.into_iter().filter(|(dest, state)| {
            *state != DestinationHealth::Failing && top.iter().all(|(other, _)| other != dest)
        });
        reports.extend(gone.map(|(dest, _)| LogReport::Destination {
            dest,
            state: DestinationHealth::Served,
            backlog: Backlog::default(),
            oldest_ms: 0,
        }));
        if reports.len() > MOST_LINES {
            let more = reports.len() - MOST_LINES;
            reports.truncate(MOST_LINES);
            reports.push(LogReport::MoreDestinations(more));
        }
        reports
    }
}

impl DestinationHealth {
    const fn of(backlog: &Backlog, oldest_ms: u64, limited_ms: u64) -> Self {
        match backlog {
            Backlog { paused: 1.., .. } => Self::Paused,
            Backlog { parked: 1.., sessions: 0, .. } => Self::Unserved,
            _ if oldest_ms >= BEHIND_MS && backlog.parked + backlog.waiting > 0 => Self::Behind,
            Backlog { failures: FAILURES.., sessions: 1.., .. } => Self::Failing,
            _ if limited_ms >= BEHIND_MS => Self::Limited,
            _ => Self::Served,
        }
    }

    /// The likely reason. Clients that are busy have deliveries.
    const fn why_behind(in_flight: u64) -> &'static str {
        match in_flight {
            0 => "no delivery is under way: see whether the store answers slowly",
            _ => "its handlers take less than what is due",
        }
    }

    /// Says that a destination has come to this.
    fn log(self, dest: &Destination, backlog: &Backlog, oldest_s: u64) {
        let Backlog { parked, waiting, sessions, in_flight, failures, .. } = *backlog;
        match self {
            Self::Served => tracing::info!(%dest, "the destination is served again"),
            Self::Behind => {
                let why = Self::why_behind(in_flight);
                tracing::warn!(
                    %dest, waiting, parked, in_flight, sessions, oldest_s, why, "the destination falls behind"
                );
            }
            Self::Unserved => tracing::warn!(
                %dest, parked, oldest_s,
                "nobody is registered for the destination: what is due is parked until somebody is"
            ),
            Self::Paused => tracing::info!(%dest, parked, "the destination is paused"),
            Self::Limited => tracing::info!(
                %dest, waiting, parked, in_flight,
                "the limits of the destination hold back what has been due for 10 s and more"
            ),
            Self::Failing => tracing::warn!(
                %dest, failures, sessions,
                "handlers of the destination always fail: failures counts the attempts since the last success"
            ),
        }
    }
}

/// By how much each number has grown, of those that have.
fn grown<const N: usize>(
    names: [&'static str; N],
    before: &[u64; N],
    now: &[u64; N],
) -> Vec<(&'static str, u64)> {
    let each = names.into_iter().zip(before.iter().zip(now));
    each.map(|(name, (before, now))| (name, now.saturating_sub(*before))).filter(|(_, n)| *n > 0).collect()
}

/// Names and numbers as one text.
fn listed(counts: &[(impl fmt::Display, u64)]) -> String {
    counts.iter().map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", ")
}

impl LogReport {
    fn log(&self) {
        let within_s = EVERY.as_secs();
        match self {
            Self::Destination { dest, state, backlog, oldest_ms } => {
                state.log(dest, backlog, oldest_ms / 1_000);
            }
            Self::MoreDestinations(more) => {
                tracing::warn!(more, "more destinations changed state: see the metrics");
            }
            Self::Died(reasons) => tracing::warn!(
                within_s,
                reasons = listed(reasons),
                "timers became dead letters: mtimer dead list shows them"
            ),
            Self::TimedOut(deliveries) => tracing::warn!(
                within_s,
                deliveries,
                "handlers gave no outcome within their callback timeout, so these are delivered again"
            ),
            Self::Refused(reasons) => {
                tracing::warn!(within_s, reasons = listed(reasons), "operations of clients were refused");
            }
            Self::Replayed(writes) => {
                tracing::warn!(within_s, writes, "the store had lost writes; they were applied again")
            }
            Self::SlowStore { slow, calls } => tracing::warn!(
                within_s,
                slow,
                calls,
                slower_than_ms = SLOW_MS,
                "the store answers slowly: callbacks are late, and schedules take long"
            ),
            Self::Lost(reasons) => tracing::warn!(
                within_s,
                reasons = listed(reasons),
                "ownerships of partitions have ended: with rolled_back, what was answered last may be lost"
            ),
            Self::Limited(limits) => tracing::warn!(
                within_s,
                limits = listed(limits),
                "schedules or connections were refused because a limit was reached"
            ),
            Self::Bulk { id, figure } => log_bulk(*id, figure),
            Self::AccessRefused(RefusalSummary { reasons, peers, tokens }) => tracing::warn!(
                within_s,
                reasons = listed(&reasons.iter().map(|(name, n)| (*name, *n)).collect::<Vec<_>>()),
                %peers,
                %tokens,
                "connections, or messages without permission, were refused"
            ),
        }
    }
}

/// Says how a bulk job fares on this broker. All brokers that have a part in it do.
fn log_bulk(id: BulkId, BulkFigure { bulk, under_way, is_stopped, .. }: &BulkFigure) {
    let Filter { group, app, key_prefix, header } = &bulk.filter;
    let (group, app, key_prefix) = (group.as_deref(), app.as_deref(), key_prefix.as_deref());
    let header = header.as_ref().map(|(name, value)| format!("{name}={value}"));
    let (action, dry_run) = (bulk.action.name(), bulk.dry_run);
    let what = match (under_way, is_stopped) {
        (1.., _) => "a bulk job is under way: mtimer bulk list shows how far it is",
        (0, true) => "a bulk job was stopped: mtimer bulk list shows how far it had come",
        (0, false) => {
            "a bulk job has ended in the partitions of this broker: mtimer bulk list shows what it has done"
        }
    };
    tracing::info!(job = %id, action, dry_run, group, app, key_prefix, header, "{what}");
}

/// Losses since the start.
fn lost_by_now(observed: &Observed, of_store: impl Fn(&str) -> u64) -> LossTotals {
    let rolled_back = ENDS.iter().position(|reason| *reason == "rolled_back");
    let Figures { tallies, counters, .. } = &observed.engine;
    LossTotals {
        rolled_back: rolled_back.map_or(0, |at| observed.lanes.ended[at]),
        dead_letters: tallies.dead.iter().sum(),
        unconfirmed: counters.get(Counter::Unconfirmed as usize).copied().unwrap_or(0),
        log_dropped: of_store(LOG_DROPPED_RECORDS),
        lost_slots: of_store(LOST_SLOTS),
    }
}

/// Looks at the figures and logs, until the engine's task has ended.
pub(crate) async fn run(
    control: mpsc::Sender<Control>,
    limiter: Arc<Limiter>,
    counters: Arc<ShellCounters>,
    store: Arc<dyn Store>,
) -> Result<(), BrokerError> {
    let mut reporter = HealthReporter::default();
    let mut looks = interval_at(Instant::now() + EVERY, EVERY);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            () = control.closed() => return Ok(()),
        }
        let (to, observed) = oneshot::channel();
        if control.send(Control::Observe(DESTINATIONS, to)).await.is_err() {
            return Ok(());
        }
        let Ok(observed) = observed.await else { return Ok(()) };
        reporter.look(observed.now, &observed.engine).iter().for_each(LogReport::log);
        let stored = store.counters();
        let of_store = |name: &str| stored.iter().find(|(other, _)| *other == name).map_or(0, |(_, n)| *n);
        let replayed = of_store(LOG_REPLAYED_RECORDS);
        reporter.partitions(replayed, observed.lanes.ended).iter().for_each(LogReport::log);
        reporter.losses.look(observed.now, lost_by_now(&observed, of_store));
        reporter.store(&observed.lanes.calls).iter().for_each(LogReport::log);
        let doubtful = counters.read().get(ShellCounter::ClockDoubtful);
        counters.note_troubles(reporter.troubles(observed.now, &observed.engine, doubtful));
        let limited = limiter.take_refused();
        if !limited.is_empty() {
            LogReport::Limited(limited).log();
        }
        let refused = counters.take_refused();
        if !refused.reasons.is_empty() {
            LogReport::AccessRefused(refused).log();
        }
    }
}

#[cfg(test)]
mod tests;
