//! Places for connections that have not been admitted.
//!
//! Purpose: bounds their number without shutting anybody out for long: where all places are taken,
//! a newcomer gets that of the oldest connection. So idle connections hold up nobody.
//! Invariants: at most `most` connections have a place; nobody loses one within `kept_for`, so that
//! many handshakes that begin at once do not push each other out.
//! Not in here: deadlines, sockets.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// A number of places.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    kept_for: Duration,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    taken: u64,
    /// Since when each connection has its place, and what tells that it has lost it; the oldest
    /// first.
    by_age: BTreeMap<u64, (Instant, CancellationToken)>,
}

impl Places {
    /// Makes `most` places, one at least. Each is its connection's own for `kept_for`.
    pub(crate) fn new(most: usize, kept_for: Duration) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), kept_for, held: Mutex::default() })
    }

    /// Takes a place, that of the oldest connection if there is no other; `None`: that one may
    /// still keep it.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Place> {
        let (evicted, now) = (CancellationToken::new(), Instant::now());
        let mut held = self.held();
        if held.by_age.len() >= self.most {
            let oldest = held.by_age.first_entry()?;
            if now.duration_since(oldest.get().0) < self.kept_for {
                return None;
            }
            oldest.remove().1.cancel();
        }
        held.taken += 1;
        let number = held.taken;
        held.by_age.insert(number, (now, evicted.clone()));
        drop(held);
        Some(Place { number, evicted, places: self.clone() })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock()
    }
}

/// One place. Dropping it gives it up.
#[derive(Debug)]
pub(crate) struct Place {
    number: u64,
    evicted: CancellationToken,
    places: Arc<Places>,
}

impl Place {
    /// Completes when a newcomer has got this place: the connection has to be closed.
    pub(crate) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }

    /// Gives the place up: the connection is not closed for the sake of others any more.
    pub(crate) fn give_up(&self) {
        self.places.held().by_age.remove(&self.number);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newcomer_gets_the_place_of_the_oldest() {
        let places = Places::new(2, Duration::ZERO);
        let take = || places.take().unwrap();
        let (first, second) = (take(), take());
        let third = take();
        let evicted = |all: &[&Place]| all.iter().map(|p| p.evicted.is_cancelled()).collect::<Vec<_>>();
        assert_eq!(evicted(&[&first, &second, &third]), [true, false, false]);
        // Who has lost its place gives up none.
        drop(first);
        second.give_up();
        let fourth = take();
        assert_eq!(evicted(&[&second, &third, &fourth]), [false; 3]);
        drop(fourth);
        let _fifth = take();
        assert!(!third.evicted.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn newcomers_that_come_too_fast_are_refused() {
        let places = Places::new(2, Duration::from_secs(1));
        let (first, second) = (places.take().unwrap(), places.take().unwrap());
        tokio::time::advance(Duration::from_millis(999)).await;
        assert!(places.take().is_none() && !first.evicted.is_cancelled());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(places.take().is_some_and(|_| first.evicted.is_cancelled()));
        drop(second);
        assert!(places.take().is_some());
    }
}
