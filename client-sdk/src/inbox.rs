//! Callbacks of one registration that have arrived and not begun.
//!
//! Invariant: never more than the credit asks for. A broker counts a callback that timed out as
//! settled and may send another while a stuck handler keeps the first ones waiting here; then the
//! oldest give way, which the broker is going to deliver again. Of n brokers each has an n-th of
//! the credit; while n changes, one can still have its old share out and others their new ones
//! already, so twice the credit may wait then.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use mtimer_protocol::Delivery;
use mtimer_types::{Destination, Mode, Time};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::RegisterError;
use crate::handle::SessionHandle;
use crate::sync::Locked;

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

#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) dest: Destination,
    /// Handlers that may run at once.
    pub(crate) credit: u32,
    /// Cancelled once the last handler has ended.
    pub(crate) done: CancellationToken,
    state: Mutex<InboxState>,
    arrived: Notify,
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
            }),
            arrived: Notify::new(),
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
        self.credit.div_ceil(brokers.max(1))
    }

    /// So many brokers send callbacks.
    pub(crate) fn divide(&self, brokers: u32) {
        let (credit, brokers) = (self.credit as usize, brokers as usize);
        let mut state = self.state.locked();
        // What one broker left behind may still be waiting when there is no other any more.
        state.capacity = if brokers > 1 || state.capacity > credit { 2 * credit + brokers } else { credit };
    }

    /// Takes callbacks in; for each that gave way, returns the connection that it came over.
    pub(crate) fn push(&self, arrived: Arrived) -> Vec<Arc<SessionHandle>> {
        let mut guard = self.state.locked();
        let state = &mut *guard;
        state.waiting += arrived.deliveries.len();
        state.queue.push_back(arrived);
        let mut evicted = Vec::new();
        while state.waiting > state.capacity {
            let Some(oldest) = state.queue.front_mut() else { break };
            if oldest.deliveries.pop_front().is_some() {
                state.waiting -= 1;
                evicted.push(Arc::clone(&oldest.handle));
            } else {
                state.queue.pop_front();
            }
        }
        drop(guard);
        self.arrived.notify_one();
        evicted
    }

    /// The next callbacks; `None` once the inbox is closed and empty.
    pub(crate) async fn next(&self) -> Option<Arrived> {
        loop {
            {
                let mut state = self.state.locked();
                if let Some(arrived) = state.queue.pop_front() {
                    state.waiting -= arrived.deliveries.len();
                    return Some(arrived);
                }
                if state.closed {
                    return None;
                }
            }
            self.arrived.notified().await;
        }
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
        self.arrived.notify_one();
    }
}
