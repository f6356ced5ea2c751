//! Cancelling and rescheduling many timers that are due much later, by id or by key.
//!
//! Invariant: answers are checked against the store. After a cancel nothing of the timers is there;
//! after a reschedule each is there once, at its new time. None is delivered meanwhile.

use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream;
use mtimer_client::{
    Cancelled, Client, Destination, Registration, RequestError, Rescheduled, Target, Time, TimerId,
    TimerState, TimerView,
};

use super::args;
use super::bed::Bed;
use super::made::Mark;
use super::report::Round;
use super::schedule::{AHEAD, fill, scattered};
use crate::exit::Failure;
use crate::moment::millis;
use crate::progress;
use crate::tally::CallbackTally;

/// Calls under way: enough for full batches in all partitions, a fifth of a session's limit.
const UNDER_WAY: usize = 4_000;

/// Schedules timers, cancels them all, and looks for the rest of them.
pub(super) async fn cancel(bed: &mut Bed, bench: &args::Edits, n: u32) -> Result<Round, Failure> {
    let mut pending = PendingTimers::schedule(bed, bench, n).await?;
    pending.measure(bed, "cancelling", async |_, _, target| is_cancelled(&bed.client, target).await).await?;
    pending.end(bed).await
}

/// Schedules timers, reschedules them all, looks whether each is at its new time, and cancels them.
pub(super) async fn reschedule(bed: &mut Bed, bench: &args::Edits, n: u32) -> Result<Round, Failure> {
    let mut pending = PendingTimers::schedule(bed, bench, n).await?;
    let client = &bed.client;
    // Behind every old time.
    let first = client.now() + 2 * millis(AHEAD) + millis(bench.over);
    let due = |n| first + scattered(n, bench.over);
    let is_rescheduled = async |n, _, target| {
        Ok(matches!(client.reschedule(target, due(n)).await?, Rescheduled::Rescheduled(_)))
    };
    pending.measure(bed, "rescheduling", is_rescheduled).await?;
    let found = pending.look(bed, due).await?;
    let cancel = async |_, _, target| is_cancelled(client, target).await;
    let cancelled =
        pending.each(bed, "cancelling", cancel).await?.into_iter().filter(|done| *done).count() as u64;
    pending.round.left += found.saturating_sub(cancelled);
    pending.end(bed).await
}

async fn is_cancelled(client: &Client, target: Target) -> Result<bool, RequestError> {
    Ok(matches!(client.cancel(target).await?, Cancelled::Cancelled(_)))
}

/// Where a rescheduled timer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FoundAt {
    AtNewTime,
    AtOtherTime,
    Nowhere,
}

impl FoundAt {
    fn of(view: Option<&TimerView>, id: TimerId, due: Time) -> Self {
        match view {
            Some(view) if view.timer.id != id => Self::Nowhere,
            Some(view) if view.timer.due == due && view.state == (TimerState::Pending { fire: due }) => {
                Self::AtNewTime
            }
            Some(_) => Self::AtOtherTime,
            None => Self::Nowhere,
        }
    }
}

/// Timers of a round, due much later.
struct PendingTimers {
    dest: Destination,
    /// Numbers and ids.
    timers: Vec<(u64, TimerId)>,
    mark: Mark,
    tally: Arc<CallbackTally>,
    registration: Registration,
    /// Findings so far.
    round: Round,
}

impl PendingTimers {
    async fn schedule(bed: &mut Bed, bench: &args::Edits, n: u32) -> Result<Self, Failure> {
        bed.renew().await?;
        let (dest, mark) = (bed.dest(&format!("round-{n}"))?, bed.mark());
        let (tally, registration) = bed.listen(&dest, bench.timers)?;
        let filled = fill(bed, &dest, 0..bench.timers, bench.over, true).await?;
        let mut round = Round { lost: filled.lost, ..Round::default() };
        round.more.insert("schedule_per_s", filled.rate_per_s());
        if bed.mix.keyed > 0 {
            let keyed = filled.stored.iter().filter(|(n, _)| bed.mix.of(*n).is_keyed).count();
            round.more.insert("keyed", keyed as f64);
        }
        Ok(Self { dest, timers: filled.stored, mark, tally, registration, round })
    }

    /// Calls `call` for each timer, many at a time; the answers in no order. Ends at the first
    /// error, and begins no more calls when told to stop.
    async fn each<T>(
        &self,
        bed: &Bed,
        what: &str,
        call: impl AsyncFn(u64, TimerId, Target) -> Result<T, RequestError>,
    ) -> Result<Vec<T>, Failure> {
        let bar = progress::bar(what, self.timers.len() as u64);
        let wanted = self.timers.iter().take_while(|_| !bed.stop.is_asked());
        let calls = wanted.map(|(n, id)| call(*n, *id, bed.mix.target(*n, *id, &self.dest)));
        let mut running = stream::iter(calls).buffer_unordered(UNDER_WAY);
        let mut answers = Vec::new();
        while let Some(answer) = running.next().await {
            answers.push(answer?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(answers)
    }

    /// The same, with its cost; a timer whose answer is not true counts as lost.
    async fn measure(
        &mut self,
        bed: &Bed,
        what: &str,
        edit: impl AsyncFn(u64, TimerId, Target) -> Result<bool, RequestError>,
    ) -> Result<(), Failure> {
        let (reading, began) = (bed.meter.read().await?, Instant::now());
        let answers = self.each(bed, what, edit).await?;
        let (took, ended) = (began.elapsed(), bed.meter.read().await?);
        let done = answers.into_iter().filter(|done| *done).count() as u64;
        self.round.rate_per_s = done as f64 / took.as_secs_f64().max(1e-6);
        self.round.cpu_us_per_timer = ended.since(&reading).per(done);
        self.round.add_commands(ended.commands_since(&reading, bed.meter.masters()), done);
        self.round.lost += (self.timers.len() as u64).saturating_sub(done);
        Ok(())
    }

    /// Asks for each timer; how many are there. One at another time than the new one counts as
    /// early, since all new times are behind the old ones.
    async fn look(&mut self, bed: &Bed, due: impl Fn(u64) -> Time) -> Result<u64, Failure> {
        let look = async |n, id, target| Ok(FoundAt::of(bed.client.get(target).await?.as_ref(), id, due(n)));
        let found = self.each(bed, "looking", look).await?;
        let count = |what| found.iter().filter(|one| **one == what).count() as u64;
        self.round.lost += count(FoundAt::Nowhere);
        self.round.early += count(FoundAt::AtOtherTime);
        if bed.is_own() {
            let there = bed.census().await?.timers;
            self.round.duplicates += there.saturating_sub(self.timers.len() as u64);
        }
        Ok(count(FoundAt::AtNewTime) + count(FoundAt::AtOtherTime))
    }

    /// After everything was cancelled: nothing should have been delivered, and nothing should be
    /// left.
    async fn end(self, bed: &Bed) -> Result<Round, Failure> {
        self.registration.stop().await;
        let (tally, mut round) = (self.tally, self.round);
        round.early += tally.early();
        round.duplicates += tally.fired() + tally.retried() + tally.duplicates();
        round.left += bed.residue().await?;
        if round.is_exact() {
            bed.forget(self.mark);
        }
        Ok(round)
    }
}

#[cfg(test)]
mod tests {
    use mtimer_client::{PartitionId, Timer};

    use super::*;

    #[test]
    fn a_timer_is_found_where_it_should_be_or_not() {
        let (old, new) = (Time::from_ms(5), Time::from_ms(9));
        let id = |random| TimerId::new(old, old, PartitionId(0), random);
        let view = |id, due, fire| {
            let timer = Timer::new(id, Destination::new("g", "a").unwrap(), due);
            TimerView::new(timer, TimerState::Pending { fire })
        };
        assert_eq!(FoundAt::of(Some(&view(id(1), new, new)), id(1), new), FoundAt::AtNewTime);
        assert_eq!(FoundAt::of(Some(&view(id(1), old, old)), id(1), new), FoundAt::AtOtherTime);
        assert_eq!(FoundAt::of(Some(&view(id(1), new, old)), id(1), new), FoundAt::AtOtherTime);
        let delivered = TimerView { state: TimerState::Parked, ..view(id(1), new, new) };
        assert_eq!(FoundAt::of(Some(&delivered), id(1), new), FoundAt::AtOtherTime);
        assert_eq!(FoundAt::of(Some(&view(id(2), new, new)), id(1), new), FoundAt::Nowhere);
        assert_eq!(FoundAt::of(None, id(1), new), FoundAt::Nowhere);
    }
}
