//! What waits to be sent to all sessions together, bounded in bytes.
//!
//! Purpose: clients that do not read cost the broker a fixed amount of memory, however many they
//! are.
//! Invariant: no message is queued beyond the limit. Sessions are closed before that, those with
//! the most waiting first, so that one that reads has budget while others do not.
//! Not in here: the bound of a single session, and when its bytes have left (the outbox's).

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use mtimer_types::limits::OUTBOX_RESERVE;

use crate::outbox::{Outbox, Overflow};

/// The bytes in all outboxes of a broker, and their limit.
#[derive(Debug)]
pub(crate) struct Outboxes {
    limit: usize,
    /// Bytes that count against the limit.
    bytes: AtomicUsize,
    /// Those among them of sessions that are ending: they are free in a moment.
    ending: AtomicUsize,
    open: Mutex<Open>,
}

/// The outboxes that there are, by number.
#[derive(Debug, Default)]
struct Open {
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

    fn open(&self) -> MutexGuard<'_, Open> {
        // No code in here panics between two changes that belong together.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use mtimer_protocol::ServerMessage;

    use super::*;

    /// What the smallest message weighs.
    const MESSAGE: usize = 256;

    fn outboxes(messages: usize) -> Arc<Outboxes> {
        Arc::new(Outboxes::new(messages * MESSAGE))
    }

    fn push(outbox: &Outbox, messages: usize) {
        (0..messages).for_each(|n| outbox.push(ServerMessage::Ping(n as u64)));
    }

    fn bytes(outboxes: &Outboxes) -> usize {
        outboxes.bytes.load(Ordering::Relaxed)
    }

    #[test]
    fn the_session_with_the_most_waiting_is_closed_and_others_go_on() {
        let all = outboxes(80);
        let [small, most, other, mine] = [(); 4].map(|()| Outbox::open(1 << 20, &all));
        push(&small, 10);
        push(&most, 35);
        push(&other, 25);
        assert!(most.why_overflowed().is_none(), "the reserve is not touched");
        push(&mine, 1);
        let over = most.why_overflowed().expect("closed");
        assert_eq!(over, Overflow::All { waiting: 35 * MESSAGE, limit: 80 * MESSAGE });
        assert_eq!(bytes(&all), (10 + 25 + 1) * MESSAGE);
        assert!([small, other, mine].iter().all(|outbox| outbox.why_overflowed().is_none()));
    }

    #[tokio::test]
    async fn no_message_is_queued_beyond_the_limit() {
        let all = outboxes(80);
        let mut taken = Vec::new();
        // Their writers have taken what waited, and their connections take nothing.
        for _ in 0..200 {
            let outbox = Outbox::open(1 << 20, &all);
            push(&outbox, 3);
            let waiting = outbox.take(usize::MAX).await;
            taken.push((outbox, waiting));
        }
        let held = bytes(&all);
        assert!((70 * MESSAGE..=80 * MESSAGE).contains(&held), "{held} bytes are held");
        taken.clear();
        assert_eq!((bytes(&all), all.staying(), all.open().outboxes.len()), (0, 0, 0));
    }
}
