//! Callbacks of one registration that have arrived and not begun, and the places of its handlers.
//!
//! Credit is given for free places only, but of n brokers each has an n-th of it, rounded up, and a
//! broker may still send callbacks that it had credit for before it heard of a place that is taken.
//! So callbacks can arrive for which no handler is free. They wait for half of their timeout, and
//! are then given back as not begun, which uses no attempt. If hung handlers take all places they
//! are given back at once.
//!
//! Invariant: never more wait than the credit asks for; the oldest give way, which are given back.
//! While the number of brokers changes, one can still have its old share out and others their new
//! ones already, so twice the credit may wait then.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use mtimer_protocol::Delivery;
use mtimer_types::{Destination, Mode, Time};

use crate::machine::deadline::CallbackDeadline;
use crate::machine::moment::{Moment, earlier};
use crate::machine::origin::{Fate, Origin};
use crate::machine::settling::OutgoingOutcome;
use crate::machine::slots::{HungHandler, KeptSlot, Slots};

/// How often callbacks that wait and handlers that run are looked at, at most.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Callbacks that came in one frame.
#[derive(Debug)]
pub(crate) struct Arrived {
    /// Over which connection.
    pub(crate) origin: Arc<Origin>,
    /// By the cluster clock.
    pub(crate) received: Time,
    pub(crate) at: Moment,
    pub(crate) deliveries: VecDeque<Delivery>,
}

impl Arrived {
    /// When a callback of this frame has waited long enough; `None`: it is never given back, as its
    /// broker has given it up.
    fn patience(&self, delivery: &Delivery) -> Option<Moment> {
        let half = Duration::from_millis(u64::from(delivery.timeout_ms) / 2);
        (self.origin.fate() != Fate::Lost).then(|| self.at + half)
    }
}

/// A callback that is to begin.
#[derive(Debug)]
pub(crate) struct BeginningCallback {
    /// Over which connection it came.
    pub(crate) origin: Arc<Origin>,
    /// By the cluster clock.
    pub(crate) received: Time,
    pub(crate) deadline: Arc<CallbackDeadline>,
    pub(crate) delivery: Delivery,
}

impl BeginningCallback {
    /// Whether the broker has given this delivery up already and will make another.
    pub(crate) fn is_pointless(&self, now: Moment) -> bool {
        let given_up = self.deadline.at() <= now || self.origin.fate() == Fate::Lost;
        given_up && self.delivery.mode != Mode::AtMostOnce
    }
}

/// The next step of the dispatcher, which begins handlers.
#[derive(Debug)]
pub(crate) enum NextStep {
    Begin(BeginningCallback),
    /// Nothing can begin before [`Inbox::take_changed`] says so.
    Wait,
    /// Nothing comes any more.
    End,
}

/// The result of a look at the time.
#[derive(Debug)]
pub(crate) struct Look {
    /// Callbacks that are given back.
    pub(crate) given_back: Vec<OutgoingOutcome>,
    /// Handlers whose time is over, each once.
    pub(crate) hung: Vec<HungHandler>,
}

#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) dest: Destination,
    /// Handlers that may run at once.
    credit: u32,
    queue: VecDeque<Arrived>,
    waiting: usize,
    /// Most of those.
    capacity: usize,
    closed: bool,
    slots: Slots,
    /// When the machine looks at the time.
    look_at: Option<Moment>,
    /// [`Inbox::next`] may have another answer than before.
    changed: bool,
}

impl Inbox {
    pub(crate) fn new(dest: Destination, credit: u32) -> Self {
        Self {
            dest,
            credit,
            queue: VecDeque::new(),
            waiting: 0,
            capacity: credit as usize,
            closed: false,
            slots: Slots::new(credit),
            look_at: None,
            changed: false,
        }
    }

    /// How many deliveries each of so many brokers may have unsettled.
    pub(crate) fn share(&self, brokers: u32) -> u32 {
        self.slots.offered().div_ceil(brokers.max(1))
    }

    /// So many brokers send callbacks.
    pub(crate) fn divide(&mut self, brokers: u32) {
        let (credit, brokers) = (self.credit as usize, brokers as usize);
        // Callbacks that one broker left behind may still wait when there is no other any more.
        self.capacity = if brokers > 1 || self.capacity > credit { 2 * credit + brokers } else { credit };
    }

    /// Takes callbacks in; returns those that gave way.
    pub(crate) fn push(&mut self, arrived: Arrived) -> Vec<OutgoingOutcome> {
        let patience = arrived.deliveries.iter().filter_map(|delivery| arrived.patience(delivery)).min();
        let stuck = self.slots.is_stuck();
        self.look_at =
            earlier(self.look_at, patience.map(|patience| if stuck { arrived.at } else { patience }));
        self.waiting += arrived.deliveries.len();
        self.queue.push_back(arrived);
        let mut evicted = Vec::new();
        while self.waiting > self.capacity {
            let Some(oldest) = self.queue.front_mut() else { break };
            if let Some(delivery) = oldest.deliveries.pop_front() {
                self.waiting -= 1;
                evicted.push(OutgoingOutcome::not_begun(&delivery, Arc::clone(&oldest.origin), oldest.at));
            } else {
                self.queue.pop_front();
            }
        }
        self.changed = true;
        evicted
    }

    /// The handler that was begun last has returned, or goes on on its own ([`Inbox::keep`]):
    /// returns the next step, and whether the offered credit has changed.
    pub(crate) fn next(&mut self) -> (NextStep, bool) {
        let renewed = self.slots.returned();
        while self.queue.front().is_some_and(|arrived| arrived.deliveries.is_empty()) {
            self.queue.pop_front();
        }
        let Some(arrived) = self.queue.front_mut() else {
            return (if self.closed { NextStep::End } else { NextStep::Wait }, renewed);
        };
        if self.slots.is_full() {
            return (NextStep::Wait, renewed);
        }
        let Some(delivery) = arrived.deliveries.pop_front() else { return (NextStep::Wait, renewed) };
        self.waiting -= 1;
        let deadline = Arc::new(CallbackDeadline::new(arrived.at, delivery.timeout_ms));
        let (origin, received) = (Arc::clone(&arrived.origin), arrived.received);
        self.slots.begin(delivery.id, delivery.attempt, Arc::clone(&origin), Arc::clone(&deadline));
        (NextStep::Begin(BeginningCallback { origin, received, deadline, delivery }), renewed)
    }

    /// Whether [`Inbox::next`] may have another answer since this was asked last.
    pub(crate) const fn take_changed(&mut self) -> bool {
        std::mem::replace(&mut self.changed, false)
    }

    /// The handler that was begun last goes on on its own. Returns its number for
    /// [`Inbox::vacate`], and whether the machine has to hear of it ([`Input::Renew`]).
    ///
    /// [`Input::Renew`]: crate::machine::Input::Renew
    pub(crate) fn keep(&mut self) -> (u64, bool) {
        let Some((KeptSlot { number, deadline }, renewed)) = self.slots.keep() else { return (0, false) };
        let sooner = self.look_at.is_none_or(|known| deadline < known);
        if sooner {
            self.look_at = Some(deadline);
        }
        (number, renewed || sooner)
    }

    /// A handler that went on on its own has ended. Returns whether the offered credit has changed.
    pub(crate) fn vacate(&mut self, number: u64) -> bool {
        self.changed = true;
        self.slots.vacate(number)
    }

    /// Whether no handler goes on on its own.
    pub(crate) fn is_idle(&self) -> bool {
        self.slots.is_idle()
    }

    /// When the machine is to look at the time.
    pub(crate) const fn look_at(&self) -> Option<Moment> {
        self.look_at
    }

    /// Looks at the time.
    pub(crate) fn look(&mut self, now: Moment) -> Look {
        let hung = self.slots.find_hung(now);
        let given_back = self.give_back(now);
        self.look_at = self.next_look().map(|at| at.max(now + LOOK_EVERY));
        Look { given_back, hung }
    }

    /// A connection is gone: its broker counts the handlers of it no more. Returns whether that
    /// changes the offered credit.
    pub(crate) fn gone(&mut self, connection: u64) -> bool {
        self.slots.lost(connection)
    }

    /// A connection broke: callbacks that came over it and have not begun are left to the next
    /// delivery, unless there will be none.
    pub(crate) fn lost(&mut self, connection: u64) -> u64 {
        let before = self.waiting;
        let lost = self.queue.iter_mut().filter(|a| a.origin.connection == connection);
        lost.for_each(|a| a.deliveries.retain(|d| d.mode == Mode::AtMostOnce));
        self.queue.retain(|a| !a.deliveries.is_empty());
        self.waiting = self.queue.iter().map(|a| a.deliveries.len()).sum();
        (before - self.waiting) as u64
    }

    /// Nothing comes any more.
    pub(crate) const fn close(&mut self) {
        (self.closed, self.changed) = (true, true);
    }

    /// Takes out the callbacks that have waited long enough, or all if no place is to be had.
    fn give_back(&mut self, now: Moment) -> Vec<OutgoingOutcome> {
        let stuck = self.slots.is_stuck();
        let mut given_back = Vec::new();
        for arrived in &mut self.queue {
            let waiting = std::mem::take(&mut arrived.deliveries);
            let (over, kept): (VecDeque<_>, _) = waiting.into_iter().partition(|delivery| {
                arrived.patience(delivery).is_some_and(|patience| stuck || patience <= now)
            });
            arrived.deliveries = kept;
            let outcome =
                |d: &Delivery| OutgoingOutcome::not_begun(d, Arc::clone(&arrived.origin), arrived.at);
            given_back.extend(over.iter().map(outcome));
        }
        self.queue.retain(|arrived| !arrived.deliveries.is_empty());
        self.waiting -= given_back.len();
        given_back
    }

    /// When there is something to look at.
    fn next_look(&self) -> Option<Moment> {
        let waiting = self.queue.iter().flat_map(|a| a.deliveries.iter().filter_map(|d| a.patience(d)));
        earlier(waiting.min(), self.slots.next_deadline())
    }
}
