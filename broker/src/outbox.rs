//! Messages that wait to be sent to sessions, bounded in bytes: of one session ([`Outbox`]), and of
//! all together ([`Outboxes`]).
//!
//! Purpose: the engine's task puts messages in without ever waiting; the session's writer takes
//! them out. Clients that do not read cost the broker a fixed amount of memory, however many they
//! are.
//! Invariant: a session that does not read costs at most its bound; one that is over is closed. No
//! message is queued beyond the limit of all: sessions are closed before that, those with the most
//! waiting first, so that one that reads has budget while others do not. Bytes count until they
//! have left for the socket.
//! Not in here: encoding (the writer's).

mod weight;

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use mtimer_protocol::{ErrorCode, ServerMessage};
use mtimer_types::TimerId;
use mtimer_types::limits::OUTBOX_RESERVE;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use self::weight::weight;

/// Why a session that does not read is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Overflow {
    /// It lets too much pile up.
    #[error("{queued} bytes wait to be read, the limit is {limit}: read faster, or ask for less at once")]
    Session { queued: usize, limit: usize },
    /// All sessions together do.
    #[error("{waiting} bytes wait to be read, and all sessions together are near their limit of {limit}")]
    All { waiting: usize, limit: usize },
}

/// The queue between the engine's task and a session's writer.
#[derive(Debug)]
pub(crate) struct Outbox {
    limit: usize,
    all: Arc<Outboxes>,
    /// Its number among all of them.
    number: u64,
    state: Mutex<OutboxState>,
    /// There are messages, or no more will come.
    changed: Notify,
    overflowed: Notify,
    withdrew: Notify,
}

#[derive(Debug)]
struct QueuedMessage {
    message: ServerMessage,
    bytes: usize,
    /// The monotonic time, ms, after which it may not leave any more.
    by: Option<u64>,
}

#[derive(Debug, Default)]
struct OutboxState {
    messages: VecDeque<QueuedMessage>,
    /// Deliveries that were not taken in time.
    withdrawn: Vec<TimerId>,
    /// Weight of everything put in and not sent yet.
    bytes: usize,
    /// No more messages are taken; the writer ends when it has sent those that are there.
    closed: bool,
    overflow: Option<Overflow>,
}

impl Outbox {
    /// An outbox of so many bytes, which count among those of `all`.
    pub(crate) fn open(limit: usize, all: &Arc<Outboxes>) -> Arc<Self> {
        all.add(|number| Self {
            limit,
            all: all.clone(),
            number,
            state: Mutex::default(),
            changed: Notify::new(),
            overflowed: Notify::new(),
            withdrew: Notify::new(),
        })
    }

    /// Puts a message in; if it is full, ends the session instead ([`Outbox::overflowed`]).
    /// After [`Outbox::close`] messages vanish: the session is ending.
    pub(crate) fn push(&self, message: ServerMessage) {
        self.push_by(message, None);
    }

    /// The same for deliveries that may not leave after this monotonic time, ms: what the writer
    /// has not taken by then comes out of [`Outbox::withdrawn`].
    pub(crate) fn push_by(&self, message: ServerMessage, by: Option<u64>) {
        let bytes = weight(&message);
        let mut state = self.state();
        if state.closed {
            return;
        }
        let queued = state.bytes + bytes;
        // One message always fits, so that a limit below the largest frame does not shut a session
        // out.
        let over = if !state.messages.is_empty() && queued > self.limit {
            Some(Overflow::Session { queued, limit: self.limit })
        } else if !self.all.take(bytes) {
            Some(Overflow::All { waiting: state.bytes, limit: self.all.limit() })
        } else {
            state.bytes = queued;
            state.messages.push_back(QueuedMessage { message, bytes, by });
            None
        };
        drop(state);
        match over {
            Some(over) => self.overflow(over),
            None => {
                self.changed.notify_one();
                self.all.relieve();
            }
        }
    }

    /// Takes back the deliveries to a registration that the writer has not taken.
    pub(crate) fn recall(&self, registration: u32) -> Vec<TimerId> {
        let mut recalled = Vec::new();
        let mut state = self.state();
        let mut bytes = 0;
        state.messages.retain(|queued| match &queued.message {
            ServerMessage::Deliver { registration: of, deliveries } if *of == registration => {
                recalled.extend(deliveries.iter().map(|delivery| delivery.id));
                bytes += queued.bytes;
                false
            }
            _ => true,
        });
        state.bytes -= bytes;
        self.all.give_back(bytes, state.closed);
        recalled
    }

    /// Takes no more messages after this last one.
    pub(crate) fn close(&self, last: Option<ServerMessage>) {
        self.close_in(&mut self.state(), last);
    }

    fn close_in(&self, state: &mut OutboxState, last: Option<ServerMessage>) {
        if !std::mem::replace(&mut state.closed, true) {
            self.all.end(state.bytes);
            if let Some(message) = last {
                let bytes = weight(&message);
                state.bytes += bytes;
                self.all.take_anyway(bytes);
                state.messages.push_back(QueuedMessage { message, bytes, by: None });
            }
        }
        self.changed.notify_one();
    }

    /// Throws away the waiting messages, and ends the session. It is told why, unless memory has
    /// run out.
    pub(crate) fn overflow(&self, over: Overflow) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        let thrown = std::mem::take(&mut state.messages);
        let bytes: usize = thrown.iter().map(|queued| queued.bytes).sum();
        state.bytes -= bytes;
        self.all.give_back(bytes, false);
        state.overflow = Some(over);
        let last = match over {
            Overflow::Session { .. } => {
                Some(ServerMessage::Refused { code: ErrorCode::Overloaded, message: over.to_string() })
            }
            Overflow::All { .. } => None,
        };
        self.close_in(&mut state, last);
        drop(state);
        self.overflowed.notify_one();
    }

    /// Completes when the session is to end because it does not read. For one caller.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again.
    pub(crate) async fn overflowed(&self) -> Overflow {
        loop {
            if let Some(over) = self.why_overflowed() {
                return over;
            }
            self.overflowed.notified().await;
        }
    }

    /// The deliveries that were not taken in time, and are withdrawn. For one caller.
    ///
    /// # Cancel safety
    ///
    /// Nothing is taken out unless it is returned.
    pub(crate) async fn withdrawn(&self) -> Vec<TimerId> {
        loop {
            let withdrawn = std::mem::take(&mut self.state().withdrawn);
            if !withdrawn.is_empty() {
                return withdrawn;
            }
            self.withdrew.notified().await;
        }
    }

    /// The next messages: as many as have `most` bytes, and one at least, with the weight to give
    /// back with [`Outbox::sent`]. `None`: closed and empty. `now`: the monotonic time, ms; what
    /// may not leave any more is withdrawn.
    ///
    /// # Cancel safety
    ///
    /// Nothing is taken out unless it is returned.
    pub(crate) async fn take(
        &self,
        most: usize,
        now: impl Fn() -> u64,
    ) -> Option<(Vec<ServerMessage>, usize)> {
        loop {
            let (taken, closed) = {
                let mut state = self.state();
                let (taken, bytes, withdrawn) = take_from(&mut state, most, now());
                if withdrawn > 0 {
                    self.all.give_back(withdrawn, state.closed);
                    self.withdrew.notify_one();
                }
                ((taken, bytes), state.closed)
            };
            if !taken.0.is_empty() {
                return Some(taken);
            }
            if closed {
                return None;
            }
            self.changed.notified().await;
        }
    }

    /// So many bytes have left.
    pub(crate) fn sent(&self, bytes: usize) {
        let mut state = self.state();
        state.bytes -= bytes;
        self.all.give_back(bytes, state.closed);
    }

    /// Bytes that are neither sent nor thrown away.
    pub(crate) fn waiting(&self) -> usize {
        self.state().bytes
    }

    /// Why the session is to end because it does not read, if it is.
    pub(crate) fn why_overflowed(&self) -> Option<Overflow> {
        self.state().overflow
    }

    fn state(&self) -> MutexGuard<'_, OutboxState> {
        // No code in here panics between two changes that belong together.
        self.state.lock()
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        let (bytes, closed) = {
            let state = self.state();
            (state.bytes, state.closed)
        };
        self.all.give_back(bytes, closed);
        self.all.remove(self.number);
    }
}

/// Takes messages out until they weigh `most`. Deliveries that may not leave at `now` any more are
/// withdrawn instead. Returns the messages, their weight, and that of what was withdrawn.
fn take_from(state: &mut OutboxState, most: usize, now: u64) -> (Vec<ServerMessage>, usize, usize) {
    let (mut taken, mut sum, mut withdrawn) = (Vec::new(), 0, 0);
    while sum < most
        && let Some(QueuedMessage { message, bytes, by }) = state.messages.pop_front()
    {
        match message {
            ServerMessage::Deliver { deliveries, .. } if by.is_some_and(|by| by < now) => {
                state.withdrawn.extend(deliveries.iter().map(|delivery| delivery.id));
                withdrawn += bytes;
            }
            message => {
                taken.push(message);
                sum += bytes;
            }
        }
    }
    state.bytes -= withdrawn;
    (taken, sum, withdrawn)
}

/// The bytes in all outboxes of a broker, and their limit.
#[derive(Debug)]
pub(crate) struct Outboxes {
    limit: usize,
    /// Bytes that count against the limit.
    bytes: AtomicUsize,
    /// Those among them of sessions that are ending: they are free in a moment.
    ending: AtomicUsize,
    open: Mutex<OpenOutboxes>,
}

/// The outboxes that there are, by number.
#[derive(Debug, Default)]
struct OpenOutboxes {
    last: u64,
    outboxes: HashMap<u64, Weak<Outbox>>,
}

impl Outboxes {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, bytes: AtomicUsize::new(0), ending: AtomicUsize::new(0), open: Mutex::default() }
    }

    /// Adds an outbox, made with the number that it has here.
    pub(crate) fn add(&self, outbox: impl FnOnce(u64) -> Outbox) -> Arc<Outbox> {
        let mut open = self.open();
        open.last += 1;
        let number = open.last;
        let outbox = Arc::new(outbox(number));
        open.outboxes.insert(number, Arc::downgrade(&outbox));
        outbox
    }

    /// Forgets an outbox.
    pub(crate) fn remove(&self, number: u64) {
        self.open().outboxes.remove(&number);
    }

    /// Bytes that wait to be sent, and their limit.
    pub(crate) fn used(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed) as u64, self.limit as u64)
    }

    /// Takes so many bytes for a message; `false`: they are not there.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        let fits = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Takes so many bytes for the last words of a session. They are few, and are not refused.
    pub(crate) fn take_anyway(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.ending.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The session that has these bytes is ending.
    pub(crate) fn end(&self, bytes: usize) {
        self.ending.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives bytes back. `ending`: they are of a session that is ending.
    pub(crate) fn give_back(&self, bytes: usize, ending: bool) {
        if ending {
            self.ending.fetch_sub(bytes, Ordering::Relaxed);
        }
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Closes the sessions with the most waiting if the reserve is touched.
    pub(crate) fn relieve(&self) {
        let most = self.limit - self.limit / OUTBOX_RESERVE;
        if self.staying() <= most {
            return;
        }
        // Dropped behind the lock: the last reference to an outbox takes it, too.
        let mut all: Vec<(usize, Arc<Outbox>)> = Vec::new();
        let open = self.open();
        let outboxes = open.outboxes.values().filter_map(Weak::upgrade);
        all.extend(outboxes.map(|outbox| (outbox.waiting(), outbox)));
        all.sort_unstable_by_key(|(bytes, _)| Reverse(*bytes));
        for (waiting, outbox) in &all {
            if self.staying() <= most {
                break;
            }
            outbox.overflow(Overflow::All { waiting: *waiting, limit: self.limit });
        }
        drop(open);
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes of sessions that are not ending.
    fn staying(&self) -> usize {
        let ending = self.ending.load(Ordering::Relaxed);
        self.bytes.load(Ordering::Relaxed).saturating_sub(ending)
    }

    fn open(&self) -> MutexGuard<'_, OpenOutboxes> {
        // No code in here panics between two changes that belong together.
        self.open.lock()
    }
}

#[cfg(test)]
mod tests;
