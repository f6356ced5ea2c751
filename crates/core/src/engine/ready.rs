//! The timers that wait for a member of one destination.
//!
//! Invariant: every timer that waits has its id in the queue, and its deadline in the index if it
//! has one. The id of a timer that waits no longer may stay in the queue until it is passed over.

use std::collections::{BTreeSet, VecDeque};

use mtimer_types::{Time, TimerId};

/// Claimed timers in the order in which they came due.
#[derive(Debug, Default)]
pub(super) struct ReadyQueue {
    ids: VecDeque<TimerId>,
    deadlines: BTreeSet<(Time, TimerId)>,
    /// How many ids may be of timers that have expired in the queue.
    expired: usize,
}

impl ReadyQueue {
    /// A timer begins to wait.
    pub(super) fn push(&mut self, id: TimerId, deadline: Option<Time>) {
        self.ids.push_back(id);
        self.deadlines.extend(deadline.map(|deadline| (deadline, id)));
    }

    /// A timer that waited does so no longer. Its id may stay in the queue.
    pub(super) fn leave(&mut self, id: TimerId, deadline: Option<Time>) {
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, id));
        }
    }

    /// A timer that waits has another deadline.
    pub(super) fn change_deadline(&mut self, id: TimerId, old: Option<Time>, new: Option<Time>) {
        self.leave(id, old);
        self.deadlines.extend(new.map(|deadline| (deadline, id)));
    }

    /// Takes the first id out. The caller has to call [`Self::leave`] if the timer waits.
    pub(super) fn pop_front(&mut self) -> Option<TimerId> {
        self.ids.pop_front()
    }

    /// Takes the last id out, likewise.
    pub(super) fn pop_back(&mut self) -> Option<TimerId> {
        self.ids.pop_back()
    }

    /// The last id.
    pub(super) fn back(&self) -> Option<TimerId> {
        self.ids.back().copied()
    }

    /// The ids in order, with those of timers that wait no longer.
    pub(super) fn iter(&self) -> impl Iterator<Item = TimerId> + '_ {
        self.ids.iter().copied()
    }

    /// How many ids there are, with those of timers that wait no longer.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// About how many timers wait.
    pub(super) fn waiting(&self) -> usize {
        self.ids.len().saturating_sub(self.expired)
    }

    /// The earliest deadline of the timers that wait.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Takes out the deadline of a timer that waits and has missed it. Its id stays in the queue.
    pub(super) fn pop_missed(&mut self, now: Time) -> Option<TimerId> {
        self.next_deadline().filter(|deadline| *deadline < now)?;
        self.expired += 1;
        self.deadlines.pop_first().map(|(_, id)| id)
    }

    /// Removes the ids of timers that wait no longer, once they may be the majority, so that each
    /// costs little.
    pub(super) fn compact(&mut self, waits: impl Fn(TimerId) -> bool) {
        if 2 * self.expired > self.ids.len() {
            self.ids.retain(|id| waits(*id));
            self.expired = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u128) -> TimerId {
        TimerId::from_u128(n)
    }

    #[test]
    fn what_waits_has_missed_its_deadline_after_it() {
        let mut ready = ReadyQueue::default();
        ready.push(id(1), Some(Time::from_ms(10)));
        let missed = [10, 11, 12].map(|ms| ready.pop_missed(Time::from_ms(ms)));
        assert_eq!(missed, [None, Some(id(1)), None]);
    }

    #[test]
    fn ids_of_what_has_expired_are_removed_when_they_are_the_majority() {
        let mut ready = ReadyQueue::default();
        (0..6).for_each(|n| ready.push(id(n), Some(Time::from_ms(10))));
        let mut expire = |n| {
            (0..n).for_each(|_| _ = ready.pop_missed(Time::from_ms(11)));
            ready.compact(|of| of >= id(4));
            ready.len()
        };
        assert_eq!((expire(3), expire(1)), (6, 2));
    }
}
