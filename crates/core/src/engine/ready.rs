//! The timers that wait for a member of one destination.
//!
//! Invariant: every timer that waits has its id in the queue of its class, and its deadline in the
//! index if it has one. The id of a timer that waits no longer may stay in the queue until it is
//! passed over.

use std::collections::{BTreeSet, VecDeque};

use mtimer_types::{Priority, Time, TimerId};

use super::turns::{EachClass, Turns};

/// Claimed timers by class, those of one class in the order in which they came due.
#[derive(Debug, Default)]
pub(super) struct ReadyQueue {
    classes: EachClass<VecDeque<TimerId>>,
    turns: Turns,
    deadlines: BTreeSet<(Time, TimerId)>,
    /// How many ids may be of timers that have expired in the queue.
    expired: usize,
}

impl ReadyQueue {
    /// A timer begins to wait.
    pub(super) fn push(&mut self, id: TimerId, priority: Priority, deadline: Option<Time>) {
        self.classes[priority.rank()].push_back(id);
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

    /// Takes out the first id of the class that goes next. The caller has to call [`Self::leave`]
    /// if the timer waits, and [`Self::took`] if it is sent.
    pub(super) fn pop_next(&mut self, is_strict: bool) -> Option<(TimerId, Priority)> {
        let class = self.turns.next(self.waits(), is_strict)?;
        Some((self.classes[class.rank()].pop_front()?, class))
    }

    /// The class of the timer that was taken out last has had its turn.
    pub(super) fn took(&mut self, class: Priority) {
        let waits = self.waits();
        self.turns.took(class, waits);
    }

    /// Takes the last id of the least urgent class out, likewise.
    pub(super) fn pop_back(&mut self) -> Option<TimerId> {
        self.classes.iter_mut().rev().find_map(VecDeque::pop_back)
    }

    /// The last id of the least urgent class.
    pub(super) fn back(&self) -> Option<TimerId> {
        self.classes.iter().rev().find_map(VecDeque::back).copied()
    }

    /// The ids of each class in order, with those of timers that wait no longer.
    pub(super) fn by_class(&self) -> impl Iterator<Item = impl Iterator<Item = TimerId> + '_> + '_ {
        self.classes.iter().map(|ids| ids.iter().copied())
    }

    /// How many ids there are, with those of timers that wait no longer.
    pub(super) fn len(&self) -> usize {
        self.classes.iter().map(VecDeque::len).sum()
    }

    /// How many of them are of this class or of a more urgent one.
    pub(super) fn len_before(&self, class: Priority) -> usize {
        self.classes[..=class.rank()].iter().map(VecDeque::len).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.classes.iter().all(VecDeque::is_empty)
    }

    fn waits(&self) -> EachClass<bool> {
        self.classes.each_ref().map(|ids| !ids.is_empty())
    }

    /// About how many timers wait.
    pub(super) fn waiting(&self) -> usize {
        self.len().saturating_sub(self.expired)
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
        if 2 * self.expired > self.len() {
            self.classes.iter_mut().for_each(|ids| ids.retain(|id| waits(*id)));
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
        ready.push(id(1), Priority::Normal, Some(Time::from_ms(10)));
        let missed = [10, 11, 12].map(|ms| ready.pop_missed(Time::from_ms(ms)));
        assert_eq!(missed, [None, Some(id(1)), None]);
    }

    #[test]
    fn ids_of_what_has_expired_are_removed_when_they_are_the_majority() {
        let mut ready = ReadyQueue::default();
        (0..6).for_each(|n| ready.push(id(n), Priority::ALL[n as usize % 4], Some(Time::from_ms(10))));
        let mut expire = |n| {
            (0..n).for_each(|_| _ = ready.pop_missed(Time::from_ms(11)));
            ready.compact(|of| of >= id(4));
            ready.len()
        };
        assert_eq!((expire(3), expire(1)), (6, 2));
    }

    fn queue(counts: EachClass<u128>) -> ReadyQueue {
        let mut ready = ReadyQueue::default();
        for (class, count) in Priority::ALL.into_iter().zip(counts) {
            (0..count).for_each(|n| ready.push(id(100 * class as u128 + n), class, None));
        }
        ready
    }

    fn take(ready: &mut ReadyQueue, count: usize, is_strict: bool) -> Vec<u128> {
        let one = |_| {
            let (id, class) = ready.pop_next(is_strict)?;
            ready.took(class);
            Some(id.as_u128())
        };
        (0..count).filter_map(one).collect()
    }

    #[test]
    fn of_fifteen_that_go_each_class_has_its_weight_in_the_order_of_time() {
        let mut ready = queue([100; 4]);
        for round in 0..6 {
            let taken = take(&mut ready, 15, false);
            for (class, weight) in [(0, 8), (100, 4), (200, 2), (300, 1)] {
                let of_class: Vec<u128> =
                    taken.iter().copied().filter(|n| (class..class + 100).contains(n)).collect();
                let expected: Vec<u128> = (0..weight).map(|n| class + round * weight + n).collect();
                assert_eq!(of_class, expected);
            }
        }
    }

    #[test]
    fn strictly_no_class_goes_before_a_more_urgent_one() {
        let mut ready = queue([2, 1, 2, 1]);
        assert_eq!(take(&mut ready, 99, true), [0, 1, 100, 200, 201, 300]);
        assert!(ready.is_empty());
    }

    #[test]
    fn what_waits_no_longer_uses_no_turn() {
        let mut ready = queue([30, 8, 4, 2]);
        // The first ids of the urgent ones are passed over.
        for _ in 0..14 {
            assert!(ready.pop_next(false).is_some_and(|(id, _)| id.as_u128() < 14));
        }
        let taken = take(&mut ready, 15, false);
        assert_eq!(taken.iter().filter(|n| **n < 100).count(), 8);
    }

    #[test]
    fn the_last_of_the_least_urgent_class_is_parked_first() {
        let mut ready = queue([1, 0, 1, 2]);
        assert_eq!(Priority::ALL.map(|class| ready.len_before(class)), [1, 1, 2, 4]);
        let parked: Vec<u128> = (0..5)
            .filter_map(|_| {
                let last = ready.back();
                assert_eq!(ready.pop_back(), last);
                last.map(TimerId::as_u128)
            })
            .collect();
        assert_eq!(parked, [301, 300, 200, 0]);
    }
}
