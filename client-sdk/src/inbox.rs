//! Callbacks of one registration that have arrived and not begun.
//!
//! Invariant: never more than the credit asks for. A broker counts a callback that timed out as settled and may send
//! another while a stuck handler keeps the first ones waiting here; then the oldest give way, which the broker is going to
//! deliver again.

use std::collections::VecDeque;
use std::sync::Mutex;

use mtimer_protocol::Delivery;
use mtimer_types::{Destination, Mode, Time};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::sync::Locked;

/// Callbacks that came in one frame.
#[derive(Debug)]
pub(crate) struct Arrived {
    /// Over which connection.
    pub(crate) session: u64,
    /// By the cluster clock.
    pub(crate) received: Time,
    pub(crate) at: Instant,
    pub(crate) deliveries: VecDeque<Delivery>,
}

#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) dest: Destination,
    pub(crate) credit: u32,
    /// Cancelled once the last handler has ended.
    pub(crate) done: CancellationToken,
    state: Mutex<State>,
    arrived: Notify,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<Arrived>,
    waiting: usize,
    ending: bool,
    closed: bool,
}

impl Inbox {
    pub(crate) fn new(dest: Destination, credit: u32) -> Self {
        Self {
            dest,
            credit,
            done: CancellationToken::new(),
            state: Mutex::new(State { queue: VecDeque::new(), waiting: 0, ending: false, closed: false }),
            arrived: Notify::new(),
        }
    }

    /// Takes callbacks in; returns how many others gave way.
    pub(crate) fn push(&self, arrived: Arrived) -> u64 {
        let mut state = self.state.locked();
        state.waiting += arrived.deliveries.len();
        state.queue.push_back(arrived);
        let mut evicted = 0;
        while state.waiting > self.credit as usize {
            let Some(oldest) = state.queue.front_mut() else { break };
            if oldest.deliveries.pop_front().is_some() {
                state.waiting -= 1;
                evicted += 1;
            } else {
                state.queue.pop_front();
            }
        }
        drop(state);
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

    /// The connection is gone: what has not begun is left to the next delivery, unless there will be none.
    pub(crate) fn disconnected(&self) -> u64 {
        let mut state = self.state.locked();
        let before = state.waiting;
        state.queue.iter_mut().for_each(|a| a.deliveries.retain(|d| d.mode == Mode::AtMostOnce));
        state.queue.retain(|a| !a.deliveries.is_empty());
        state.waiting = state.queue.iter().map(|a| a.deliveries.len()).sum();
        (before - state.waiting) as u64
    }

    /// Says whether this call began the end.
    pub(crate) fn begin_end(&self) -> bool {
        !std::mem::replace(&mut self.state.locked().ending, true)
    }

    /// Nothing comes any more.
    pub(crate) fn close(&self) {
        self.state.locked().closed = true;
        self.arrived.notify_one();
    }
}
