//! Places for connections that have not been admitted.
//!
//! Purpose: bounds their number without shutting anybody out: where all places are taken, a
//! newcomer gets that of the oldest connection. So idle connections hold up nobody, and a handshake
//! completes unless so many others begin in the meantime.
//! Invariant: at most `most` connections have a place.
//! Not in here: deadlines, sockets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// A number of places.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    taken: u64,
    /// What tells each connection that it has lost its place, the oldest first.
    by_age: BTreeMap<u64, CancellationToken>,
}

impl Places {
    /// Makes `most` places, one at least.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), held: Mutex::default() })
    }

    /// Takes a place, that of the oldest connection if there is no other.
    pub(crate) fn take(self: &Arc<Self>) -> Place {
        let evicted = CancellationToken::new();
        let mut held = self.held();
        while held.by_age.len() >= self.most {
            if let Some((_, oldest)) = held.by_age.pop_first() {
                oldest.cancel();
            }
        }
        held.taken += 1;
        let number = held.taken;
        held.by_age.insert(number, evicted.clone());
        drop(held);
        Place { number, evicted, places: self.clone() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
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
        let places = Places::new(2);
        let (first, second) = (places.take(), places.take());
        let third = places.take();
        let evicted = |all: &[&Place]| all.iter().map(|p| p.evicted.is_cancelled()).collect::<Vec<_>>();
        assert_eq!(evicted(&[&first, &second, &third]), [true, false, false]);
        // Who has lost its place gives up none.
        drop(first);
        second.give_up();
        let fourth = places.take();
        assert_eq!(evicted(&[&second, &third, &fourth]), [false; 3]);
        drop(fourth);
        let _fifth = places.take();
        assert!(!third.evicted.is_cancelled());
    }
}
