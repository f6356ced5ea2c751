//! The wheel: wakes the engine when the cluster clock reaches a time.
//!
//! Purpose: many alarms, one per millisecond at most, in a [`DelayQueue`]; the last stretch before each is waited for
//! with the precision of the system's timers instead of the runtime's ([`Precise`]).
//! Invariant: never early by the cluster clock. The queue only says *soon*; *now* is said by comparing the clock.
//!
//! Deadlines are monotonic and derived from the clock's present estimate: [`Wheel::rederive`] when that has moved. The
//! queue cannot hold more than 2^36-1 ms, so it is given a day at most, and what comes back too soon goes in again.
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

use crate::clock::Clock;
use crate::precise::Precise;

/// How long before its time an alarm leaves the queue: the queue's rounding (1 ms), the runtime's (1 ms), and a margin.
const SOON: Duration = Duration::from_millis(3);
/// Longest stay in the queue before its deadline is derived anew.
const LONGEST: Duration = Duration::from_secs(86_400);

/// All alarms of the broker.
pub(crate) struct Wheel {
    clock: Arc<Clock>,
    queue: DelayQueue<Time>,
    /// What is in the queue.
    far: HashMap<Time, Key>,
    /// What has left the queue and is not due yet.
    near: BTreeSet<Time>,
    precise: Precise,
}

impl Wheel {
    /// An empty wheel.
    pub(crate) fn new(clock: Arc<Clock>) -> io::Result<Self> {
        Ok(Self {
            clock,
            queue: DelayQueue::new(),
            far: HashMap::new(),
            near: BTreeSet::new(),
            precise: Precise::start()?,
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
        let at = self.clock.instant_of(time);
        let now = Instant::now();
        if at.saturating_duration_since(now) <= SOON {
            self.near.insert(time);
        } else {
            let key = self.queue.insert_at(time, (at - SOON).min(now + LONGEST));
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
    /// Nothing is lost: what has left the queue is kept beside it.
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
                () = self.precise.reached(at) => {}
                time = expired(&mut self.queue) => self.leave_queue(time),
            }
        }
    }

    /// Derives all deadlines anew, after the cluster clock has moved against the monotonic one.
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
