//! The places of a registration's handlers: as many as may run at once.
//!
//! A broker counts a delivery against the credit that it was given until it has the outcome, until
//! the delivery has timed out, or until the connection is gone. A handler that runs on after that
//! still takes a place, which no broker knows of: by each such handler the registration offers less
//! credit.
//!
//! Invariant: the offered credit and the handlers that no broker counts are together no more than
//! the places.

use std::collections::BTreeMap;
use std::sync::Arc;

use mtimer_types::TimerId;

use crate::machine::deadline::CallbackDeadline;
use crate::machine::moment::Moment;
use crate::machine::origin::{Fate, Origin};

/// A handler that has not ended within its callback timeout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HungHandler {
    pub(crate) id: TimerId,
    pub(crate) attempt: u32,
}

/// The place of a handler with a task of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptSlot {
    pub(crate) number: u64,
    /// When the handler's time is over.
    pub(crate) deadline: Moment,
}

#[derive(Debug)]
struct Slot {
    handler: HungHandler,
    over: Arc<Origin>,
    deadline: Arc<CallbackDeadline>,
    /// Its broker counts it.
    charged: bool,
    /// Its time is over, and that was said.
    hung: bool,
}

#[derive(Debug)]
pub(crate) struct Slots {
    limit: u32,
    /// The handler that is polled by the dispatcher just now: nothing else can begin meanwhile.
    current: Option<Slot>,
    /// Handlers with a task of their own, by number.
    running: BTreeMap<u64, Slot>,
    last: u64,
    /// How many of those no broker counts.
    uncharged: u32,
}

impl Slots {
    pub(crate) fn new(limit: u32) -> Self {
        Self { limit, current: None, running: BTreeMap::new(), last: 0, uncharged: 0 }
    }

    /// Whether no handler can begin.
    pub(crate) fn is_full(&self) -> bool {
        self.running.len() >= self.limit as usize
    }

    /// Whether no handler has a task of its own.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// How much credit may be offered, to all brokers together.
    pub(crate) fn offered(&self) -> u32 {
        match &self.current {
            Some(current) if current.hung => 0,
            _ => self.limit.saturating_sub(self.uncharged),
        }
    }

    /// Whether no place is to be had: all are taken by handlers that hang.
    pub(crate) fn is_stuck(&self) -> bool {
        let blocked = self.current.as_ref().is_some_and(|slot| slot.hung);
        blocked || self.is_full() && self.running.values().all(|slot| slot.hung)
    }

    /// The dispatcher begins a handler.
    pub(crate) fn begin(
        &mut self,
        id: TimerId,
        attempt: u32,
        over: Arc<Origin>,
        deadline: Arc<CallbackDeadline>,
    ) {
        let handler = HungHandler { id, attempt };
        self.current = Some(Slot { handler, over, deadline, charged: true, hung: false });
    }

    /// The dispatcher is back from the handler that it has begun. Returns whether that changes the
    /// offered credit.
    pub(crate) fn returned(&mut self) -> bool {
        self.current.take().is_some_and(|slot| slot.hung)
    }

    /// The handler that was begun goes on in a task of its own. Returns whether that changes the
    /// offered credit.
    pub(crate) fn keep(&mut self) -> Option<(KeptSlot, bool)> {
        let mut slot = self.current.take()?;
        let was_hung = slot.hung;
        slot.charged &= slot.over.fate() == Fate::Open;
        self.uncharged += u32::from(!slot.charged);
        let changed = was_hung || !slot.charged;
        let deadline = slot.deadline.at();
        self.last += 1;
        self.running.insert(self.last, slot);
        Some((KeptSlot { number: self.last, deadline }, changed))
    }

    /// The task of a handler has ended. Returns whether that changes the offered credit.
    pub(crate) fn vacate(&mut self, number: u64) -> bool {
        let uncharged = self.running.remove(&number).is_some_and(|slot| !slot.charged);
        self.uncharged -= u32::from(uncharged);
        uncharged
    }

    /// A connection is gone: its broker counts nothing of it any more. Returns whether that changes
    /// the offered credit.
    pub(crate) fn lost(&mut self, connection: u64) -> bool {
        let before = self.uncharged;
        for slot in
            self.running.values_mut().filter(|slot| slot.over.connection == connection && slot.charged)
        {
            slot.charged = false;
            self.uncharged += 1;
        }
        self.uncharged != before
    }

    /// Finds handlers whose time is over, each once.
    pub(crate) fn find_hung(&mut self, now: Moment) -> Vec<HungHandler> {
        let mut found = Vec::new();
        for slot in self.running.values_mut().filter(|slot| !slot.hung && slot.deadline.at() <= now) {
            slot.hung = true;
            self.uncharged += u32::from(std::mem::take(&mut slot.charged));
            found.push(slot.handler);
        }
        for slot in self.current.iter_mut().filter(|slot| !slot.hung && slot.deadline.at() <= now) {
            (slot.hung, slot.charged) = (true, false);
            found.push(slot.handler);
        }
        found
    }

    /// When the next handler's time is over.
    pub(crate) fn next_deadline(&self) -> Option<Moment> {
        let slots = self.running.values().chain(&self.current);
        slots.filter(|slot| !slot.hung).map(|slot| slot.deadline.at()).min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_no_broker_counts_is_not_offered() {
        let now = Moment::ORIGIN;
        let at = |ms| now + Duration::from_millis(ms);
        let over = |connection| Arc::new(Origin::new(connection, None));
        let (first, second) = (over(1), over(2));
        let mut slots = Slots::new(3);
        let run = |slots: &mut Slots, n, over: &Arc<Origin>| {
            let deadline = Arc::new(CallbackDeadline::new(now, 100));
            slots.begin(TimerId::from_u128(n), 1, Arc::clone(over), deadline);
            let (slot, changed) = slots.keep().unwrap();
            assert_eq!(changed, over.fate() != Fate::Open);
            slot.number
        };
        let (a, b) = (run(&mut slots, 1, &first), run(&mut slots, 2, &second));
        assert_eq!((slots.offered(), slots.is_full(), slots.next_deadline()), (3, false, Some(at(100))));
        assert!(slots.lost(1) && !slots.lost(1));
        assert_eq!(slots.offered(), 2, "the first one runs on, over no connection");
        assert_eq!(slots.find_hung(at(99)), []);
        assert_eq!(slots.find_hung(at(100)).len(), 2);
        assert_eq!((slots.offered(), slots.find_hung(at(200)).len()), (1, 0));
        let c = run(&mut slots, 3, &second);
        assert!(slots.is_full() && !slots.is_stuck(), "the third may end");
        assert!(slots.vacate(a) && slots.vacate(b) && !slots.vacate(c));
        assert!(slots.is_idle() && slots.offered() == 3 && slots.next_deadline().is_none());
        // One that begins after its connection broke.
        first.ended(false);
        run(&mut slots, 4, &first);
        assert_eq!(slots.offered(), 2);
    }

    #[test]
    fn while_a_handler_blocks_the_dispatcher_nothing_is_offered() {
        let now = Moment::ORIGIN;
        let over = Arc::new(Origin::new(1, None));
        let mut slots = Slots::new(3);
        let deadline = Arc::new(CallbackDeadline::new(now, 100));
        slots.begin(TimerId::from_u128(1), 1, over, Arc::clone(&deadline));
        deadline.extend(now, 150);
        let late = now + Duration::from_millis(200);
        assert_eq!(slots.find_hung(now + Duration::from_millis(100)), []);
        assert_eq!((slots.find_hung(late).len(), slots.offered(), slots.is_stuck()), (1, 0, true));
        assert!(slots.returned() && !slots.returned());
        assert_eq!(slots.offered(), 3);
    }
}
