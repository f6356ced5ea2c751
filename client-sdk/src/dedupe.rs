//! The last timers that were handled ok, so that a repeat need not be handled again.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;

use mtimer_types::TimerId;

use crate::sync::Locked;

#[derive(Debug)]
pub(crate) struct Dedupe {
    most: usize,
    last: Mutex<(VecDeque<TimerId>, HashSet<TimerId>)>,
}

impl Dedupe {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, last: Mutex::default() }
    }

    pub(crate) fn knows(&self, id: TimerId) -> bool {
        self.last.locked().1.contains(&id)
    }

    pub(crate) fn add(&self, id: TimerId) {
        let (order, known) = &mut *self.last.locked();
        if known.insert(id) {
            order.push_back(id);
        }
        while order.len() > self.most {
            let Some(oldest) = order.pop_front() else { break };
            known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let dedupe = Dedupe::new(2);
        let id = TimerId::from_u128;
        for n in [1, 2, 2, 3] {
            dedupe.add(id(n));
        }
        assert_eq!([1, 2, 3].map(|n| dedupe.knows(id(n))), [false, true, true]);
    }
}
