//! Which class of timers goes next, among those that wait.
//!
//! Invariant: while all classes wait, of 15 turns in a row each has its weight. A class that does
//! not wait saves no turns up, so it has no more than its share when it waits again.

use mtimer_types::Priority;

/// Something for each class.
pub(super) type EachClass<T> = [T; Priority::COUNT];

/// The turns of the classes of one destination.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    /// By how much each class is behind its share, in parts of a turn.
    behind: EachClass<i64>,
}

impl Turns {
    /// The class that goes next, of those that wait; the most urgent of them if `is_strict`.
    pub(super) fn next(&self, waits: EachClass<bool>, is_strict: bool) -> Option<Priority> {
        let waiting = Priority::ALL.into_iter().filter(|class| waits[class.rank()]);
        if is_strict {
            return waiting.into_iter().next();
        }
        // Of several that are as far behind, the most urgent.
        let behind = |class: Priority| self.behind[class.rank()] + i64::from(class.weight());
        waiting.reduce(|first, other| if behind(other) > behind(first) { other } else { first })
    }

    /// A class has had a turn, while these waited.
    pub(super) fn took(&mut self, class: Priority, waits: EachClass<bool>) {
        let mut sum = 0;
        for other in Priority::ALL {
            let behind = &mut self.behind[other.rank()];
            if waits[other.rank()] || other == class {
                *behind += i64::from(other.weight());
                sum += i64::from(other.weight());
            } else {
                *behind = 0;
            }
        }
        self.behind[class.rank()] -= sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: EachClass<bool> = [true; Priority::COUNT];

    fn take(turns: &mut Turns, waits: EachClass<bool>, count: usize) -> EachClass<usize> {
        let mut taken = [0; Priority::COUNT];
        for _ in 0..count {
            let class = turns.next(waits, false).unwrap();
            turns.took(class, waits);
            taken[class.rank()] += 1;
        }
        taken
    }

    #[test]
    fn of_any_fifteen_turns_in_a_row_each_class_has_its_weight() {
        let mut turns = Turns::default();
        for _ in 0..20 {
            assert_eq!(take(&mut turns, ALL, 15), [8, 4, 2, 1]);
            // From here on another fifteen.
            take(&mut turns, ALL, 1);
        }
    }

    #[test]
    fn those_that_wait_share_all_turns_and_nothing_is_saved_up() {
        let mut turns = Turns::default();
        assert_eq!(take(&mut turns, [false, true, false, true], 50), [0, 40, 0, 10]);
        assert_eq!(take(&mut turns, [false, false, false, true], 1_000), [0, 0, 0, 1_000]);
        assert_eq!(take(&mut turns, ALL, 15), [8, 4, 2, 1]);
        assert_eq!(turns.next([false; 4], false), None);
    }

    #[test]
    fn strictly_the_most_urgent_goes_first() {
        let turns = Turns::default();
        assert_eq!(turns.next(ALL, true), Some(Priority::Urgent));
        assert_eq!(turns.next([false, false, true, true], true), Some(Priority::Normal));
        assert_eq!(turns.next([false; 4], true), None);
    }
}
