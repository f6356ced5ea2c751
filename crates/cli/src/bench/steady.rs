//! A steady load: how late timers fire under it, and whether it is borne.
//!
//! Invariant: open loop. Each timer has its own time to be sent, fixed beforehand; a broker that is
//! slow does not slow the load down, and so cannot make its own lateness look better.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use mtimer_client::{Destination, PartitionId, Schedule, ScheduleError, Scheduled, Time, TimerId};
use tokio::time::MissedTickBehavior;

use super::args::{LatenessBench, LifecycleBench};
use super::bed::Bed;
use super::report::Round;
use crate::exit::Failure;
use crate::moment::millis;
use crate::progress;
use crate::tally::CallbackTally;

/// How often timers are sent.
const BEAT: Duration = Duration::from_millis(5);
/// How long nothing may happen, once everything is due, before the rest is taken for lost.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// The times at which timers are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Timers a second.
    pub(super) rate: u64,
    /// How long.
    pub(super) over: Duration,
    /// How long before its due time each is sent.
    pub(super) ahead: Duration,
    /// Each in another partition than the one before, instead of in runs: then a slot holds one, if
    /// there are partitions enough.
    pub(super) sparse: bool,
}

impl Plan {
    /// Timers of a round.
    pub(super) fn timers(&self) -> u64 {
        let timers = u128::from(self.rate) * self.over.as_millis() / 1_000;
        u64::try_from(timers).unwrap_or(u64::MAX).max(1)
    }

    /// When timer `n` is due, ms after the first.
    fn offset(&self, n: u64) -> u64 {
        (u128::from(n) * 1_000 / u128::from(self.rate)) as u64
    }
}

/// One round.
pub(super) async fn round(bed: &Bed, plan: &Plan, n: u32) -> Result<Round, Failure> {
    run(bed, plan, &format!("rate-{}-round-{n}", plan.rate)).await
}

/// Schedules, fires and settles the timers of a plan.
pub(super) async fn run(bed: &Bed, plan: &Plan, part: &str) -> Result<Round, Failure> {
    let dest = bed.dest(part)?;
    let (stored, parked) = (bed.census().await?, bed.parked().await?);
    let mark = bed.mark();
    let (tally, registration) = bed.listen(&dest, plan.timers())?;
    let before = bed.client.stats().settled;
    let reading = bed.meter.read().await?;
    let first = bed.client.now() + millis(plan.ahead) + 2 * millis(BEAT);
    let sent = send(bed, &dest, plan, first).await?;
    wait(bed, plan, &tally, first, &sent, before).await;
    let (ended, settled) = (bed.meter.read().await?, bed.client.stats().settled - before);
    registration.stop().await;
    let seconds = tally.last_us().saturating_sub(first.as_ms() * 1_000).max(1) as f64 / 1_000_000.0;
    let mut round = Round::of(&tally, sent.stored, settled, tally.fired() as f64 / seconds);
    round.add_mix(&tally, bed.mix);
    round.left = bed.left(stored).await?;
    round.cpu_us_per_timer = ended.since(&reading).per(sent.stored);
    round.more.insert("planned_rate_per_s", plan.rate as f64);
    round.more.insert("behind", sent.behind as f64);
    round.more.insert("answered_late", sent.answered_late as f64);
    round.more.insert("parked", bed.parked().await?.saturating_sub(parked) as f64);
    round.add_commands(ended.commands_since(&reading, bed.meter.masters()), sent.stored);
    if round.is_exact() && settled == sent.stored + tally.retried() {
        bed.forget(mark);
    }
    Ok(round)
}

/// The timers that were sent.
#[derive(Default)]
struct SentTimers {
    stored: u64,
    /// Timers that could only be sent when more than half of the time before they were due had
    /// gone: this machine is too slow for the load.
    behind: u64,
    /// Timers that were stored only when more than half of that time had gone: the queue of timers
    /// to be stored grows, though nothing may be late yet.
    answered_late: u64,
}

impl SentTimers {
    /// Notes the answers to some timers, by number. Fails with the first that was refused.
    fn note(
        &mut self,
        results: impl Iterator<Item = (u64, Result<Scheduled, ScheduleError>)>,
        is_late: impl Fn(u64) -> u64,
    ) -> Result<(), ScheduleError> {
        let mut refused = Ok(());
        for (n, result) in results {
            match result {
                Ok(_) => {
                    self.stored += 1;
                    self.answered_late += is_late(n);
                }
                Err(error) => refused = refused.and(Err(error)),
            }
        }
        refused
    }
}

/// Sends every timer at its time. No more after the first that is refused, or when told to stop;
/// waits for those that were sent.
async fn send(bed: &Bed, dest: &Destination, plan: &Plan, first: Time) -> Result<SentTimers, Failure> {
    let (timers, ahead) = (plan.timers(), millis(plan.ahead));
    let due = |n| first + plan.offset(n);
    let is_late = |n, now: Time| u64::from(due(n).ms_since(now) < ahead / 2);
    let partitions = u64::from(bed.client.info().partitions);
    let make = |n| {
        let mut schedule = Schedule::at(dest.clone(), due(n));
        // A key has a partition of its own.
        let is_free = plan.sparse && !bed.mix.of(n).is_keyed;
        if is_free {
            let partition = PartitionId((n % partitions) as u16);
            schedule = schedule.id(TimerId::new(due(n), bed.client.now(), partition, rand::random()));
        }
        bed.timer(n, schedule)
    };
    let bar = progress::bar("scheduling", timers);
    let mut beat = tokio::time::interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut running = FuturesUnordered::new();
    let (mut next, mut end, mut sent) = (0, timers, SentTimers::default());
    let mut failed = None;
    while next < end || !running.is_empty() {
        tokio::select! {
            biased;
            _ = beat.tick(), if next < end => {
                if bed.stop.is_asked() {
                    end = next;
                    continue;
                }
                let now = bed.client.now();
                let begin = next;
                while next < end && due(next).as_ms() <= now.as_ms() + ahead {
                    sent.behind += is_late(next, now);
                    next += 1;
                }
                if next > begin {
                    let call = bed.client.schedule_all((begin..next).map(make).collect());
                    running.push(async move { (begin, call.await) });
                }
            }
            Some((begin, results)) = running.next() => {
                let results: Vec<Result<Scheduled, ScheduleError>> = results;
                let now = bed.client.now();
                bar.inc(results.len() as u64);
                if let Err(error) = sent.note((begin..).zip(results), |n| is_late(n, now)) {
                    end = next;
                    failed = failed.or(Some(error));
                }
            }
        }
    }
    bar.finish_and_clear();
    failed.map_or(Ok(sent), |error| Err(error.into()))
}

/// Waits until everything has fired and is settled, or nothing changes any more.
async fn wait(bed: &Bed, plan: &Plan, tally: &CallbackTally, first: Time, sent: &SentTimers, before: u64) {
    let last = first + plan.offset(plan.timers());
    let bar = progress::bar("firing", sent.stored);
    let (mut seen, mut changed) = ((0, 0), Instant::now());
    loop {
        let now = (tally.fired(), bed.client.stats().settled - before);
        let done = now.0 >= sent.stored && now.1 >= sent.stored + tally.retried();
        if done || changed.elapsed() > IDLE_LIMIT || bed.stop.is_asked() {
            break;
        }
        if now != seen || bed.client.now() < last {
            (seen, changed) = (now, Instant::now());
        }
        bar.set_position(now.0);
        tokio::time::sleep(BEAT).await;
    }
    bar.finish_and_clear();
}

impl LatenessBench {
    pub(super) fn plan(&self, rate: u64) -> Plan {
        Plan { rate, over: self.over, ahead: self.ahead, sparse: false }
    }
}

impl LifecycleBench {
    pub(super) fn plan(&self, rate: u64, over: Duration) -> Plan {
        Plan { rate, over, ahead: self.ahead, sparse: self.sparse }
    }
}
