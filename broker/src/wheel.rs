//! The wheel: wakes the engine when the cluster clock reaches a time.
//!
//! Purpose: many alarms, one per millisecond at most, in a [`DelayQueue`]; the last stretch before
//! each is waited for with the precision of the system's timers instead of the runtime's
//! ([`Precise`]).
//! Invariant: never early by the cluster clock. The queue only says *soon*; *now* is said by
//! comparing the clock.
//!
//! Deadlines are instants of the runtime, derived from the clock's present estimate:
//! [`Wheel::rederive`] when the two have moved against each other. The queue cannot hold more than
//! 2^36-1 ms, so it is given a day at most, and a deadline that comes back too soon goes in again.
//!
//! Not in here: which timer an alarm is for (the engine knows).

use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use mtimer_types::Time;
use tokio::time::Instant;
use tokio_util::time::{DelayQueue, delay_queue::Key};

use crate::clock::BrokerClock;
use crate::precise::Precise;

/// How long before it is due an alarm leaves the queue: the queue's rounding (1 ms), the runtime's
/// (1 ms), and a margin.
const SOON: Duration = Duration::from_millis(3);
/// Longest stay in the queue before its deadline is derived again.
const LONGEST: Duration = Duration::from_secs(86_400);

/// All alarms of the broker.
pub(crate) struct Wheel {
    clock: Arc<BrokerClock>,
    queue: DelayQueue<Time>,
    /// Deadlines in the queue.
    far: HashMap<Time, Key>,
    /// Deadlines that have left the queue and are not due yet.
    near: BTreeSet<Time>,
    precise: Precise,
}

impl Wheel {
    /// An empty wheel.
    pub(crate) fn new(clock: Arc<BrokerClock>) -> io::Result<Self> {
        Ok(Self {
            clock,
            queue: DelayQueue::new(),
            far: HashMap::new(),
            near: BTreeSet::new(),
            precise: Precise::new()?,
        })
    }

    /// Wakes at `time`. Asking twice for one time is asking once.
    pub(crate) fn arm(&mut self, time: Time) {
        if self.near.contains(&time) || self.far.contains_key(&time) {
            return;
        }
        self.file(time);
    }

    fn file(&mut self, time: Time) {
        let due = self.clock.instant_of(time);
        let now = Instant::now();
        if due.saturating_duration_since(now) <= SOON {
            self.near.insert(time);
        } else {
            let key = self.queue.insert_at(time, (due - SOON).min(now + LONGEST));
            self.far.insert(time, key);
        }
    }

    /// Removes every alarm at or before `now`; says whether there was one.
    pub(crate) fn take_due(&mut self, now: Time) -> bool {
        let mut any = false;
        while self.near.first().is_some_and(|time| *time <= now) {
            self.near.pop_first();
            any = true;
        }
        any
    }

    /// Waits until an alarm is due; for ever if there is none.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: deadlines that have left the queue are kept beside it.
    pub(crate) async fn due(&mut self) {
        loop {
            let Some(first) = self.near.first() else {
                let time = expired(&mut self.queue).await;
                self.leave_queue(time);
                continue;
            };
            let at = self.clock.instant_of(*first);
            if at <= Instant::now() {
                return;
            }
            tokio::select! {
                biased;
                time = expired(&mut self.queue) => self.leave_queue(time),
                () = self.precise.reached(at) => {}
            }
        }
    }

    /// Derives all deadlines again, after the cluster clock has moved against the one of the
    /// runtime.
    pub(crate) fn rederive(&mut self) {
        self.queue.clear();
        let times: Vec<Time> =
            self.far.drain().map(|(time, _)| time).chain(std::mem::take(&mut self.near)).collect();
        times.into_iter().for_each(|time| self.file(time));
    }

    fn leave_queue(&mut self, time: Time) {
        if self.far.remove(&time).is_some() {
            self.file(time);
        }
    }
}

/// The next time that leaves the queue; waits for ever on an empty one.
async fn expired(queue: &mut DelayQueue<Time>) -> Time {
    poll_fn(|cx| match queue.poll_expired(cx) {
        std::task::Poll::Ready(Some(expired)) => std::task::Poll::Ready(expired.into_inner()),
        _ => std::task::Poll::Pending,
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::tests::clock_at;

    const START: u64 = 1_000_000;

    fn wheel() -> (Wheel, Arc<BrokerClock>) {
        let clock = Arc::new(clock_at(START * 1_000));
        (Wheel::new(clock.clone()).unwrap(), clock)
    }

    fn at(ahead: u64) -> Time {
        Time::from_ms(START + ahead)
    }

    #[tokio::test(start_paused = true)]
    async fn alarms_ring_once_each_in_order_and_never_early() {
        let (mut wheel, clock) = wheel();
        // Beyond the range of the queue, far, near, due already, and some of them twice.
        let ahead = [0, 1, 2, 3, 4, 5, 400, 401, 86_400_000 + 7, 200_000_000_000, 3 * 86_400_000];
        ahead.iter().chain(&ahead).for_each(|ms| wheel.arm(at(*ms)));
        let mut sorted = ahead;
        sorted.sort_unstable();
        for ms in sorted {
            wheel.due().await;
            assert_eq!(clock.now().time, at(ms), "rings in its millisecond");
            assert!(wheel.take_due(clock.now().time));
            assert!(!wheel.take_due(clock.now().time), "once");
        }
        assert!(wheel.far.is_empty() && wheel.near.is_empty() && wheel.queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_empty_wheel_never_rings_and_can_be_filled_while_it_is_waited_for() {
        let (mut wheel, clock) = wheel();
        let none = tokio::time::timeout(Duration::from_secs(3_600), wheel.due()).await;
        assert!(none.is_err());
        wheel.arm(at(3_600_500));
        let given_up = tokio::time::timeout(Duration::from_millis(499), wheel.due()).await;
        assert!(given_up.is_err(), "not early");
        wheel.due().await;
        assert_eq!(clock.now().time, at(3_600_500));
    }

    #[tokio::test(start_paused = true)]
    async fn deadlines_follow_the_clock() {
        for (says, expected_mono) in [(10_050, 60_000 - 50), (9_950, 60_000 + 50)] {
            let (mut wheel, clock) = wheel();
            wheel.arm(at(60_000));
            tokio::time::advance(Duration::from_secs(10)).await;
            clock.observe_all(START + says);
            wheel.rederive();
            wheel.due().await;
            assert_eq!((clock.now().time, clock.now().mono_ms), (at(60_000), expected_mono));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_runs_behind_makes_nothing_early_even_before_deadlines_are_derived_anew() {
        let (mut wheel, clock) = wheel();
        wheel.arm(at(20_000));
        tokio::time::advance(Duration::from_secs(10)).await;
        clock.observe_all(START + 9_900);
        wheel.due().await;
        assert_eq!(clock.now().time, at(20_000));
    }
}
