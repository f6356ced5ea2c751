//! Slots for connections that have not been admitted.
//!
//! Purpose: bounds their number without shutting anybody out for long: where all slots are taken, a
//! newcomer gets that of the oldest connection. So idle connections hold up nobody. An address that
//! holds more than half of the slots gives way to all others, and to itself, so that an address
//! that connects without end pushes out no other.
//! Invariants: at most `most` connections have a slot; of an address that holds no more than half
//! of them nobody loses one within `kept_for`, so that many handshakes that begin at once do not
//! push each other out.
//! Not in here: deadlines, sockets.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// The bits of an address of IPv6 that one customer of a network shares with no other: within them
/// anybody has as many addresses as he likes.
const NETWORK_BITS: u32 = 64;

/// A number of slots.
#[derive(Debug)]
pub(crate) struct ConnectionSlots {
    most: usize,
    kept_for: Duration,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    taken: u64,
    /// The connections that have a slot, the oldest first.
    by_age: BTreeMap<u64, Holder>,
    /// How many of them each address has.
    by_address: HashMap<IpAddr, usize>,
}

/// A connection that has a slot.
#[derive(Debug)]
struct Holder {
    address: IpAddr,
    since: Instant,
    evicted: CancellationToken,
}

impl ConnectionSlots {
    /// Makes `most` slots, one at least. Each is its connection's own for `kept_for`, unless its
    /// address has more than half of them.
    pub(crate) fn new(most: usize, kept_for: Duration) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), kept_for, held: Mutex::default() })
    }

    /// Takes a slot for a connection from this address: if there is no other, that of the oldest
    /// connection, or of the oldest from the address that has more than half. `None`: that one may
    /// still keep it.
    pub(crate) fn take(self: &Arc<Self>, from: IpAddr) -> Option<ConnectionSlot> {
        let (address, evicted, since) = (network(from), CancellationToken::new(), Instant::now());
        let mut held = self.held();
        if held.by_age.len() >= self.most {
            let oldest = held.gives_way(self.most.div_ceil(2), address, since, self.kept_for)?;
            held.remove(oldest).into_iter().for_each(|holder| holder.evicted.cancel());
        }
        held.taken += 1;
        let number = held.taken;
        held.by_age.insert(number, Holder { address, since, evicted: evicted.clone() });
        *held.by_address.entry(address).or_default() += 1;
        drop(held);
        Some(ConnectionSlot { number, evicted, slots: self.clone() })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock()
    }
}

impl Held {
    /// Which connection gives way to a newcomer. `share`: how many one address may have before it
    /// gives way first.
    fn gives_way(&self, share: usize, to: IpAddr, now: Instant, kept_for: Duration) -> Option<u64> {
        let greedy = self.by_address.iter().find_map(|(address, n)| (*n > share).then_some(*address));
        let mut all = self.by_age.iter();
        let (number, holder) =
            all.find(|(_, holder)| greedy.is_none_or(|greedy| holder.address == greedy))?;
        let is_kept = now.duration_since(holder.since) < kept_for;
        // Among connections of one address none has a better right to its slot than another.
        let is_other = greedy.is_some_and(|greedy| greedy != to);
        (!is_kept || is_other).then_some(*number)
    }

    fn remove(&mut self, number: u64) -> Option<Holder> {
        let holder = self.by_age.remove(&number)?;
        if let Some(n) = self.by_address.get_mut(&holder.address) {
            *n -= 1;
            if *n == 0 {
                self.by_address.remove(&holder.address);
            }
        }
        Some(holder)
    }
}

/// The network that counts as one address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> NETWORK_BITS << NETWORK_BITS).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// One slot. Dropping it gives it up.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    number: u64,
    evicted: CancellationToken,
    slots: Arc<ConnectionSlots>,
}

impl ConnectionSlot {
    /// Completes when a newcomer has got this slot: the connection has to be closed.
    pub(crate) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }

    /// Gives the slot up: the connection is not closed for the sake of others any more.
    pub(crate) fn give_up(&self) {
        self.slots.held().remove(self.number);
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address of its own for each number.
    fn from(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    #[test]
    fn a_newcomer_gets_the_slot_of_the_oldest() {
        let slots = ConnectionSlots::new(2, Duration::ZERO);
        let take = || slots.take(from(1)).unwrap();
        let (first, second) = (take(), take());
        let third = take();
        let evicted =
            |all: &[&ConnectionSlot]| all.iter().map(|p| p.evicted.is_cancelled()).collect::<Vec<_>>();
        assert_eq!(evicted(&[&first, &second, &third]), [true, false, false]);
        // Who has lost its slot gives up none.
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
        let slots = ConnectionSlots::new(2, Duration::from_secs(1));
        let take = || slots.take(from(1));
        let (first, second) = (take().unwrap(), take().unwrap());
        tokio::time::advance(Duration::from_millis(999)).await;
        assert!(take().is_none() && !first.evicted.is_cancelled());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(take().is_some_and(|_| first.evicted.is_cancelled()));
        drop(second);
        assert!(take().is_some());
    }

    #[test]
    fn an_address_with_more_than_half_of_the_slots_gives_way() {
        let slots = ConnectionSlots::new(4, Duration::from_secs(1_000));
        let others = [slots.take(from(1)).unwrap()];
        let greedy: Vec<ConnectionSlot> = (0..3).map(|_| slots.take(from(2)).unwrap()).collect();
        let lost = |slots: &[ConnectionSlot]| slots.iter().filter(|p| p.evicted.is_cancelled()).count();
        // Not to itself before the time that every connection keeps its slot.
        assert!(slots.take(from(2)).is_none());
        let third = slots.take(from(3)).unwrap();
        assert_eq!((lost(&others), lost(&greedy)), (0, 1));
        assert!(greedy[0].evicted.is_cancelled(), "the oldest of them");
        // With half of them it keeps its slots.
        assert!(slots.take(from(4)).is_none());
        drop(third);
        assert!(slots.take(from(4)).is_some());
        drop((others, greedy));
        assert!(slots.held().by_address.is_empty());
    }

    #[test]
    fn whoever_connects_without_end_pushes_out_only_himself() {
        let slots = ConnectionSlots::new(4, Duration::ZERO);
        let other = slots.take(from(1)).unwrap();
        let greedy: Vec<ConnectionSlot> = (0..1_000).map(|_| slots.take(from(2)).unwrap()).collect();
        assert!(!other.evicted.is_cancelled());
        assert_eq!(greedy.iter().filter(|p| !p.evicted.is_cancelled()).count(), 3);
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_are_one() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1:2:3"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
