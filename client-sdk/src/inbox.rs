//! Callbacks of one registration that have arrived and not begun, and the places of its handlers.
//!
//! Credit is given for free places only, but of n brokers each has an n-th of it, rounded up, and a
//! broker may send what it could before it heard of a place that is taken. So callbacks can arrive
//! for which no handler is free. They wait for half of their timeout, and are then given back as
//! not begun, which uses no attempt. If hung handlers take all places
//! they are given back at once.
//!
//! Invariant: never more wait than the credit asks for; the oldest give way, which are given back.
//! While the number of brokers changes, one can still have its old share out and others their new
//! ones already, so twice the credit may wait then.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mtimer_protocol::Delivery;
use mtimer_types::{Destination, Mode, Time};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::RegisterError;
use crate::deadline::CallbackDeadline;
use crate::handle::{Fate, SessionHandle};
use crate::settling::OutgoingOutcome;
use crate::slots::{HungHandler, Slots};
use crate::sync::Locked;

/// How often callbacks that wait and handlers that run are looked at, at most.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Callbacks that came in one frame.
#[derive(Debug)]
pub(crate) struct Arrived {
    /// Over which connection.
    pub(crate) handle: Arc<SessionHandle>,
    /// By the cluster clock.
    pub(crate) received: Time,
    pub(crate) at: Instant,
    pub(crate) deliveries: VecDeque<Delivery>,
}

impl Arrived {
    /// When a callback of this frame has waited long enough; `None`: it is never given back, as its
    /// broker has given it up.
    fn patience(&self, delivery: &Delivery) -> Option<Instant> {
        let half = Duration::from_millis(u64::from(delivery.timeout_ms) / 2);
        (self.handle.fate() != Fate::Lost).then(|| self.at + half)
    }
}

/// A callback that is to begin.
#[derive(Debug)]
pub(crate) struct BeginningCallback {
    /// Over which connection it came.
    pub(crate) handle: Arc<SessionHandle>,
    /// By the cluster clock.
    pub(crate) received: Time,
    pub(crate) deadline: Arc<CallbackDeadline>,
    pub(crate) delivery: Delivery,
}

/// What the dispatcher is to do next.
#[derive(Debug)]
pub(crate) enum NextStep {
    Begin(BeginningCallback),
    /// Nothing can begin before [`Inbox::changed`].
    Wait,
    /// Nothing comes any more.
    End,
}

/// What a look at the time has found.
#[derive(Debug)]
pub(crate) struct Look {
    /// Callbacks that are given back.
    pub(crate) given_back: Vec<OutgoingOutcome>,
    /// Handlers whose time is over, each once.
    pub(crate) hung: Vec<HungHandler>,
    /// When to look again, unless [`Inbox::sooner`] completes before.
    pub(crate) next: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) dest: Destination,
    /// Handlers that may run at once.
    credit: u32,
    /// Cancelled once the last handler has ended.
    pub(crate) done: CancellationToken,
    state: Mutex<InboxState>,
    /// For the dispatcher: something has arrived, or a place is free.
    changed: Notify,
    /// For whoever looks at the time: it has to look earlier than it knows.
    sooner: Notify,
    /// Why a broker sends nothing, as said last.
    refused: watch::Sender<Option<RegisterError>>,
}

#[derive(Debug)]
struct InboxState {
    queue: VecDeque<Arrived>,
    waiting: usize,
    /// Most of those.
    capacity: usize,
    ending: bool,
    closed: bool,
    slots: Slots,
    /// When somebody looks at the time.
    look_at: Option<Instant>,
}

impl InboxState {
    /// Has somebody look at the time at `at`; says whether that is earlier than they know.
    fn look_by(&mut self, at: Instant) -> bool {
        let sooner = self.look_at.is_none_or(|known| at < known);
        if sooner {
            self.look_at = Some(at);
        }
        sooner
    }

    /// Takes out the callbacks that have waited long enough, or all if no place is to be had.
    fn give_back(&mut self, now: Instant) -> Vec<OutgoingOutcome> {
        let stuck = self.slots.is_stuck();
        let mut given_back = Vec::new();
        for arrived in &mut self.queue {
            let waiting = std::mem::take(&mut arrived.deliveries);
            let (over, kept): (VecDeque<_>, _) = waiting.into_iter().partition(|delivery| {
                arrived.patience(delivery).is_some_and(|patience| stuck || patience <= now)
            });
            arrived.deliveries = kept;
            let outcome =
                |d: &Delivery| OutgoingOutcome::not_begun(d, Arc::clone(&arrived.handle), arrived.at);
            given_back.extend(over.iter().map(outcome));
        }
        self.queue.retain(|arrived| !arrived.deliveries.is_empty());
        self.waiting -= given_back.len();
        given_back
    }

    /// When there is something to look at.
    fn next_look(&self) -> Option<Instant> {
        let waiting = self.queue.iter().flat_map(|a| a.deliveries.iter().filter_map(|d| a.patience(d)));
        waiting.chain(self.slots.next_deadline()).min()
    }
}

impl Inbox {
    pub(crate) fn new(dest: Destination, credit: u32) -> Self {
        Self {
            dest,
            credit,
            done: CancellationToken::new(),
            state: Mutex::new(InboxState {
                queue: VecDeque::new(),
                waiting: 0,
                capacity: credit as usize,
                ending: false,
                closed: false,
                slots: Slots::new(credit),
                look_at: None,
            }),
            changed: Notify::new(),
            sooner: Notify::new(),
            refused: watch::Sender::new(None),
        }
    }

    /// A broker refuses to send anything.
    pub(crate) fn refuse(&self, why: RegisterError) {
        self.refused.send_replace(Some(why));
    }

    /// Completes once a broker has refused to send anything.
    pub(crate) async fn refused(&self) -> RegisterError {
        let mut refused = self.refused.subscribe();
        loop {
            if let Some(why) = refused.borrow_and_update().clone() {
                return why;
            }
            // The sender is this inbox's own: it outlives the call.
            let _ = refused.changed().await;
        }
    }

    /// What each of so many brokers may have unsettled.
    pub(crate) fn share(&self, brokers: u32) -> u32 {
        self.state.locked().slots.offered().div_ceil(brokers.max(1))
    }

    /// So many brokers send callbacks.
    pub(crate) fn divide(&self, brokers: u32) {
        let (credit, brokers) = (self.credit as usize, brokers as usize);
        let mut state = self.state.locked();
        // What one broker left behind may still be waiting when there is no other any more.
        state.capacity = if brokers > 1 || state.capacity > credit { 2 * credit + brokers } else { credit };
    }

    /// Takes callbacks in; returns those that gave way.
    pub(crate) fn push(&self, arrived: Arrived) -> Vec<OutgoingOutcome> {
        let mut guard = self.state.locked();
        let state = &mut *guard;
        let patience = arrived.deliveries.iter().filter_map(|delivery| arrived.patience(delivery)).min();
        let sooner = patience.is_some_and(|at| state.look_by(at));
        state.waiting += arrived.deliveries.len();
        state.queue.push_back(arrived);
        let mut evicted = Vec::new();
        while state.waiting > state.capacity {
            let Some(oldest) = state.queue.front_mut() else { break };
            if let Some(delivery) = oldest.deliveries.pop_front() {
                state.waiting -= 1;
                evicted.push(OutgoingOutcome::not_begun(&delivery, Arc::clone(&oldest.handle), oldest.at));
            } else {
                state.queue.pop_front();
            }
        }
        drop(guard);
        self.changed.notify_one();
        if sooner {
            self.sooner.notify_one();
        }
        evicted
    }

    /// The dispatcher is back from the handler that it began last: what it is to do next, and
    /// whether what is offered has changed.
    pub(crate) fn next(&self) -> (NextStep, bool) {
        let mut guard = self.state.locked();
        let state = &mut *guard;
        let renewed = state.slots.returned();
        while state.queue.front().is_some_and(|arrived| arrived.deliveries.is_empty()) {
            state.queue.pop_front();
        }
        let Some(arrived) = state.queue.front_mut() else {
            return (if state.closed { NextStep::End } else { NextStep::Wait }, renewed);
        };
        if state.slots.is_full() {
            return (NextStep::Wait, renewed);
        }
        let Some(delivery) = arrived.deliveries.pop_front() else { return (NextStep::Wait, renewed) };
        state.waiting -= 1;
        let deadline = Arc::new(CallbackDeadline::new(arrived.at, delivery.timeout_ms));
        let (handle, received) = (Arc::clone(&arrived.handle), arrived.received);
        state.slots.begin(delivery.id, delivery.attempt, Arc::clone(&handle), Arc::clone(&deadline));
        (NextStep::Begin(BeginningCallback { handle, received, deadline, delivery }), renewed)
    }

    /// Completes when [`Inbox::next`] may have another answer.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The handler that was begun last goes on in a task of its own. Returns its number for
    /// [`Inbox::vacate`], and whether what is offered has changed.
    pub(crate) fn keep(&self) -> (u64, bool) {
        let mut state = self.state.locked();
        let Some((slot, renewed)) = state.slots.keep() else { return (0, false) };
        if state.look_by(slot.deadline) {
            drop(state);
            self.sooner.notify_one();
        }
        (slot.number, renewed)
    }

    /// The task of a handler has ended. Says whether what is offered has changed.
    pub(crate) fn vacate(&self, number: u64) -> bool {
        let renewed = self.state.locked().slots.vacate(number);
        self.changed.notify_one();
        renewed
    }

    /// Completes once no handler runs in a task of its own.
    pub(crate) async fn idle(&self) {
        while !self.state.locked().slots.is_idle() {
            self.changed.notified().await;
        }
    }

    /// Looks at the time.
    pub(crate) fn look(&self, now: Instant) -> Look {
        let mut state = self.state.locked();
        let hung = state.slots.find_hung(now);
        let given_back = state.give_back(now);
        state.look_at = state.next_look().map(|at| at.max(now + LOOK_EVERY));
        Look { given_back, hung, next: state.look_at }
    }

    /// Completes when it is time to look earlier than [`Look::next`] said.
    pub(crate) async fn sooner(&self) {
        self.sooner.notified().await;
    }

    /// A connection is gone: its broker counts the handlers of it no more. Says whether that
    /// changes what is offered.
    pub(crate) fn gone(&self, session: u64) -> bool {
        self.state.locked().slots.lost(session)
    }

    /// A connection broke: what came over it and has not begun is left to the next delivery, unless
    /// there will be none.
    pub(crate) fn lost(&self, session: u64) -> u64 {
        let mut state = self.state.locked();
        let before = state.waiting;
        let lost = state.queue.iter_mut().filter(|a| a.handle.session == session);
        lost.for_each(|a| a.deliveries.retain(|d| d.mode == Mode::AtMostOnce));
        state.queue.retain(|a| !a.deliveries.is_empty());
        state.waiting = state.queue.iter().map(|a| a.deliveries.len()).sum();
        (before - state.waiting) as u64
    }

    /// Says whether this call began the end.
    pub(crate) fn begin_end(&self) -> bool {
        !std::mem::replace(&mut self.state.locked().ending, true)
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.state.locked().ending
    }

    /// Nothing comes any more.
    pub(crate) fn close(&self) {
        self.state.locked().closed = true;
        self.changed.notify_one();
    }
}
