//! Timers that a measurement has put into a cluster that is not its own, and has to take out again.
//!
//! Invariant: an id is in here before its timer is sent, and until the timer is known to be gone.
//! So every timer can be cancelled by its id, even if its call or the measurement fails.

use mtimer_client::TimerId;
use parking_lot::{Mutex, MutexGuard};

/// Ids in the order in which they were made.
#[derive(Debug, Default)]
pub(super) struct Made {
    ids: Mutex<Vec<TimerId>>,
}

/// A place in that order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(usize);

impl Mark {
    /// Before all of them.
    pub(super) const FIRST: Self = Self(0);
}

impl Made {
    pub(super) fn add(&self, id: TimerId) {
        self.ids().push(id);
    }

    /// Here, as of now.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.ids().len())
    }

    /// Those that came after a mark.
    pub(super) fn since(&self, mark: Mark) -> Vec<TimerId> {
        self.ids().get(mark.0..).map(<[_]>::to_vec).unwrap_or_default()
    }

    /// Those that came after a mark are gone.
    pub(super) fn forget(&self, mark: Mark) {
        self.ids().truncate(mark.0);
    }

    fn ids(&self) -> MutexGuard<'_, Vec<TimerId>> {
        self.ids.lock()
    }
}

#[cfg(test)]
mod tests {
    use mtimer_client::{PartitionId, Time};

    use super::*;

    #[test]
    fn what_is_gone_is_forgotten_and_the_rest_is_kept() {
        let made = Made::default();
        let id = |n| TimerId::new(Time::from_ms(n), Time::from_ms(n), PartitionId(0), n);
        made.add(id(1));
        let mark = made.mark();
        made.add(id(2));
        made.add(id(3));
        assert_eq!(made.since(mark), [id(2), id(3)]);
        made.forget(mark);
        assert_eq!((made.since(mark).len(), made.since(Mark::FIRST)), (0, vec![id(1)]));
        // A mark behind the end: ids after it were forgotten together with those before.
        let late = made.mark();
        made.forget(Mark::FIRST);
        assert!(made.since(late).is_empty());
    }
}
