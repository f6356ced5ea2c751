//! Reads the clocks every second, counts steps and outliers, and logs changes.

use std::sync::Arc;
use std::time::Duration;

use mtimer_core::clock::{ALARM_MS, Decider, Doubt, Observation, StoreReading};
use mtimer_store::Store;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::BrokerClock;
use crate::counters::{ShellCounter, ShellCounters};

/// How often the clocks are read.
const ROUND: Duration = Duration::from_secs(1);

/// Reads the clocks every second until cancelled.
pub(crate) async fn keep(
    clock: Arc<BrokerClock>,
    store: Arc<dyn Store>,
    counters: Arc<ShellCounters>,
    stop: CancellationToken,
) {
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reporter = ClockReporter { counters, doubt: None, host_is_off: false, suspended_us: 0 };
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = rounds.tick() => {}
        }
        let (readings, seen) = clock.round(&*store).await;
        reporter.report(&readings, &seen);
        reporter.report_suspension(clock.suspended_us());
    }
}

/// Counts the results of rounds, and logs changes.
struct ClockReporter {
    counters: Arc<ShellCounters>,
    /// The doubt that was logged last.
    doubt: Option<Doubt>,
    host_is_off: bool,
    /// How long this host has been suspended in all, as it was logged last, µs.
    suspended_us: u64,
}

impl ClockReporter {
    fn report(&mut self, readings: &[StoreReading], seen: &Observation) {
        let missed = readings.iter().filter(|r| r.reading.is_none()).count();
        self.counters.add(ShellCounter::ClockReadingsMissed, missed as u64);
        self.counters.add(ShellCounter::ClockOutliers, seen.outliers as u64);
        if seen.is_step() {
            self.counters.count(ShellCounter::ClockSteps);
            let by_ms = seen.moved_us / 1_000;
            tracing::warn!(by_ms, clock = decider(seen.decider), "the cluster clock was corrected by a step");
        }
        let doubt = seen.doubt();
        if doubt.is_some() {
            self.counters.count(ShellCounter::ClockDoubtful);
        }
        let kind = |doubt: &Option<Doubt>| doubt.as_ref().map(std::mem::discriminant);
        if kind(&doubt) != kind(&self.doubt) {
            log_doubt(doubt);
        }
        self.doubt = doubt;
        self.report_host(seen);
    }

    /// `total_us`: how long this host has been suspended since the start.
    fn report_suspension(&mut self, total_us: u64) {
        let for_ms = (total_us - self.suspended_us) / 1_000;
        if for_ms > ALARM_MS {
            self.suspended_us = total_us;
            tracing::warn!(for_ms, "this host was suspended; what became due meanwhile is sent now");
        }
    }

    /// The host's clock decides nothing beside a store's, but a reader of its logs should know.
    fn report_host(&mut self, seen: &Observation) {
        let off_ms = seen.host_us / 1_000;
        let is_off = off_ms.unsigned_abs() > ALARM_MS;
        if is_off && !self.host_is_off {
            tracing::warn!(
                off_ms,
                "this host's clock is off; timers follow the store's clocks, log lines do not"
            );
        } else if !is_off && self.host_is_off {
            tracing::info!("this host's clock agrees with the cluster clock again");
        }
        self.host_is_off = is_off;
    }
}

fn log_doubt(doubt: Option<Doubt>) {
    match doubt {
        None => tracing::info!("the time is known well enough again"),
        Some(Doubt::Ahead(ms)) => tracing::warn!(
            ms,
            "the deciding clock has stepped back: time stands still until it has caught up; restart the brokers to go on \
             from it at once"
        ),
        Some(Doubt::Disagreement(ms)) => tracing::warn!(
            ms,
            "the store's clocks disagree: their lower median decides; check the time service of their hosts"
        ),
        Some(Doubt::Silence(ms)) => tracing::warn!(
            ms,
            "too few of the store's clocks are heard: the time is carried on by this host's monotonic clock"
        ),
    }
}

const fn decider(decider: Decider) -> &'static str {
    match decider {
        Decider::Store => "store",
        Decider::Host => "host",
        Decider::Monotonic => "monotonic",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rounds_show_is_counted() {
        let counters = Arc::new(ShellCounters::default());
        let mut reporter =
            ClockReporter { counters: counters.clone(), doubt: None, host_is_off: false, suspended_us: 0 };
        let silent = StoreReading { clock: "a".into(), reading: None };
        let quiet = Observation {
            decider: Decider::Store,
            moved_us: 0,
            ahead_us: 0,
            outliers: 0,
            spread_us: 0,
            host_us: 0,
            silent_us: 0,
        };
        reporter.report(std::slice::from_ref(&silent), &quiet);
        reporter.report(&[], &Observation { moved_us: -2_000_000, ahead_us: 2_000_000, ..quiet });
        reporter.report(&[], &Observation { ahead_us: 1_000_000, outliers: 2, host_us: 1 << 40, ..quiet });
        let mut counted = Vec::new();
        counters.merge_into(&mut counted);
        counted.retain(|(name, _)| name.starts_with("clock_"));
        let expected = [
            ("clock_doubtful_total", 2),
            ("clock_outliers_total", 2),
            ("clock_readings_missed_total", 1),
            ("clock_steps_total", 1),
        ];
        assert_eq!(counted, expected.map(|(name, n)| (name.to_owned(), n)));
    }
}
