//! Registrations over all connections: their beginning, their end, and the deliveries to them.
//!
//! Invariant: an inbox is closed only when nothing more can come for it over any connection, or
//! when a broker has not said so for as long as a request may take; a callback that still comes
//! then is left to its next delivery.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mtimer_protocol::Delivery;
use mtimer_types::Epoch;
use mtimer_types::limits::MAX_REGISTRATIONS;

use crate::RegisterError;
use crate::machine::caller::Callbacks;
use crate::machine::inbox::{Inbox, Look};
use crate::machine::moment::{Moment, earlier};
use crate::machine::outbox::{Barrier, Outbox, Outboxes};

#[derive(Debug)]
struct Registration<K> {
    callbacks: K,
    /// The credit for each broker, as the brokers were told last.
    told: Option<u32>,
    /// It takes no more callbacks.
    ending: bool,
    /// When its inbox looks at the time, as far as the machine knows.
    look_at: Option<Moment>,
}

/// When inboxes look at the time, with the numbers of their registrations. The first is asked for
/// with every input of a machine: of 1,000 registrations, which are the most, a walk found it in
/// 32 µs, and this in 10 ns, where a lone schedule takes 130 µs altogether.
#[derive(Debug)]
struct Looks(BTreeSet<(Moment, u32)>);

impl Looks {
    fn change(&mut self, number: u32, from: Option<Moment>, to: Option<Moment>) {
        if from == to {
            return;
        }
        if let Some(at) = from {
            self.0.remove(&(at, number));
        }
        if let Some(at) = to {
            self.0.insert((at, number));
        }
    }
}

impl<K: Callbacks> Registration<K> {
    /// Works with the inbox, and learns when it looks at the time.
    fn with<R>(&mut self, number: u32, looks: &mut Looks, work: impl FnOnce(&mut Inbox) -> R) -> R {
        let (result, look_at) = self.callbacks.with(|inbox| {
            let result = work(inbox);
            (result, inbox.look_at())
        });
        looks.change(number, self.look_at, look_at);
        self.look_at = look_at;
        result
    }
}

/// Deliveries that were taken in.
#[derive(Debug)]
pub(crate) struct AcceptedDeliveries {
    /// Their registration has not ended.
    pub(crate) wanted: bool,
    pub(crate) deliveries: Vec<Delivery>,
    /// How many came from an owner that has been replaced, and are refused.
    pub(crate) stale: u64,
}

/// All registrations of a client.
#[derive(Debug)]
pub(crate) struct Registrations<K> {
    all: BTreeMap<u32, Registration<K>>,
    looks: Looks,
    last: u32,
    /// Registrations that take no more callbacks, in the order of when they are closed in any case.
    ending: VecDeque<(Moment, u32)>,
    /// By partition: the highest epoch seen, over all connections.
    epochs: Vec<Epoch>,
}

impl<K: Callbacks> Registrations<K> {
    pub(crate) const fn new() -> Self {
        Self {
            all: BTreeMap::new(),
            looks: Looks(BTreeSet::new()),
            last: 0,
            ending: VecDeque::new(),
            epochs: Vec::new(),
        }
    }

    /// The cluster has so many partitions.
    pub(crate) fn set_partitions(&mut self, partitions: u16) {
        self.epochs = vec![Epoch(0); usize::from(partitions)];
    }

    /// Begins a registration; the brokers hear of it.
    pub(crate) fn add(
        &mut self,
        callbacks: K,
        brokers: u32,
        outboxes: &mut Outboxes,
    ) -> Result<u32, RegisterError> {
        if self.all.len() >= MAX_REGISTRATIONS {
            return Err(RegisterError::TooMany { limit: MAX_REGISTRATIONS });
        }
        self.last += 1;
        callbacks.with(|inbox| inbox.divide(brokers));
        self.all.insert(self.last, Registration { callbacks, told: None, ending: false, look_at: None });
        self.renew(self.last, brokers, outboxes);
        Ok(self.last)
    }

    /// The credit that a registration offers may have changed: the brokers hear of it if it has.
    pub(crate) fn renew(&mut self, number: u32, brokers: u32, outboxes: &mut Outboxes) {
        let Some(registration) = self.all.get_mut(&number) else { return };
        let (dest, share) =
            registration.with(number, &mut self.looks, |inbox| (inbox.dest.clone(), inbox.share(brokers)));
        if !registration.ending && registration.told.replace(share) != Some(share) {
            outboxes.each(|outbox| outbox.register(number, dest.clone(), share));
        }
    }

    /// A connection is there: it hears of all registrations.
    pub(crate) fn announce(&mut self, brokers: u32, outbox: &mut Outbox) {
        for (number, registration) in self.all.iter_mut().filter(|(_, registration)| !registration.ending) {
            let offer = |inbox: &mut Inbox| (inbox.dest.clone(), inbox.share(brokers));
            let (dest, share) = registration.with(*number, &mut self.looks, offer);
            // The others have not heard of this share yet.
            registration.told.take_if(|told| *told != share);
            outbox.register(*number, dest, share);
        }
    }

    /// Each of so many brokers is offered a part. `open`: they hear of it if it has changed.
    pub(crate) fn divide(&mut self, brokers: u32, open: bool, outboxes: &mut Outboxes) {
        for registration in self.all.values() {
            registration.callbacks.with(|inbox| inbox.divide(brokers));
        }
        let numbers: Vec<u32> = self.all.keys().copied().filter(|_| open).collect();
        numbers.into_iter().for_each(|number| self.renew(number, brokers, outboxes));
    }

    /// A connection is gone. `lost`: it broke. Returns which registrations offer less for it, and
    /// how many callbacks are left to their next delivery.
    pub(crate) fn gone(&mut self, connection: u64, lost: bool) -> (Vec<u32>, u64) {
        let (mut fewer, mut dropped) = (Vec::new(), 0);
        for (number, registration) in &mut self.all {
            if registration.with(*number, &mut self.looks, |inbox| inbox.gone(connection)) {
                fewer.push(*number);
            }
            if lost {
                dropped += registration.with(*number, &mut self.looks, |inbox| inbox.lost(connection));
            }
        }
        (fewer, dropped)
    }

    /// Takes no more callbacks; the inbox closes when everything that was on its way is in it, or
    /// at `by`. `open`: the brokers hear of it. Returns the barrier that is to pass all connections
    /// first.
    pub(crate) fn remove(
        &mut self,
        number: u32,
        by: Moment,
        open: bool,
        outboxes: &mut Outboxes,
    ) -> Option<Barrier> {
        let registration = self.all.get_mut(&number)?;
        if std::mem::replace(&mut registration.ending, true) {
            return None;
        }
        if open {
            outboxes.each(|outbox| outbox.unregister(number));
        }
        self.ending.push_back((by, number));
        Some(Barrier::Unregistered(number))
    }

    /// Nothing more comes for a registration; its handlers may still run.
    pub(crate) fn end(&mut self, number: u32) {
        if let Some(registration) = self.all.remove(&number) {
            self.looks.change(number, registration.look_at, None);
            registration.callbacks.with(Inbox::close);
        }
    }

    /// Nothing more comes for any registration.
    pub(crate) fn end_all(&mut self) {
        self.all.values().for_each(|registration| registration.callbacks.with(Inbox::close));
    }

    /// The client is closed.
    pub(crate) fn close(&mut self) {
        self.end_all();
        self.all.clear();
        self.looks.0.clear();
        self.ending.clear();
    }

    /// The callbacks of a registration.
    pub(crate) fn callbacks(&self, number: u32) -> Option<&K> {
        self.all.get(&number).map(|registration| &registration.callbacks)
    }

    /// Works with the inbox of a registration.
    pub(crate) fn with<R>(&mut self, number: u32, work: impl FnOnce(&mut Inbox) -> R) -> Option<R> {
        let registration = self.all.get_mut(&number)?;
        Some(registration.with(number, &mut self.looks, work))
    }

    /// Takes deliveries in. An error is a breach of the protocol.
    pub(crate) fn delivered(
        &mut self,
        registration: u32,
        mut deliveries: Vec<Delivery>,
    ) -> Result<AcceptedDeliveries, &'static str> {
        let arrived = deliveries.len();
        if deliveries.iter().any(|d| usize::from(d.id.partition().0) >= self.epochs.len()) {
            return Err("a callback of a partition that is not there");
        }
        deliveries.retain(|delivery| {
            let seen = &mut self.epochs[usize::from(delivery.id.partition().0)];
            let current = delivery.epoch >= *seen;
            *seen = delivery.epoch.max(*seen);
            current
        });
        let stale = (arrived - deliveries.len()) as u64;
        if !(1..=self.last).contains(&registration) {
            return Err("a callback under a registration that was never made");
        }
        Ok(AcceptedDeliveries { wanted: self.all.contains_key(&registration), deliveries, stale })
    }

    /// When [`Registrations::sweep`] is due.
    pub(crate) fn next_timeout(&self) -> Option<Moment> {
        earlier(self.looks.0.first().map(|(at, _)| *at), self.ending.front().map(|(by, _)| *by))
    }

    /// Looks at the time: closes the inboxes whose time is over, and returns the results of the
    /// others.
    pub(crate) fn sweep(&mut self, now: Moment) -> Vec<(u32, K, Look)> {
        while let Some((by, number)) = self.ending.front().copied()
            && (by <= now || !self.all.contains_key(&number))
        {
            self.ending.pop_front();
            self.end(number);
        }
        let mut found = Vec::new();
        let later = self.looks.0.split_off(&(now, u32::MAX));
        for (_, number) in std::mem::replace(&mut self.looks.0, later) {
            let Some(registration) = self.all.get_mut(&number) else { continue };
            registration.look_at = None;
            let look = registration.with(number, &mut self.looks, |inbox| inbox.look(now));
            found.push((number, registration.callbacks.clone(), look));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use mtimer_types::{Destination, Headers, Mode, Time, TimerId};

    use super::*;
    use crate::machine::inbox::Arrived;
    use crate::machine::origin::Origin;
    use crate::machine::tests::Local;

    /// A callback that arrives at `at` and waits for so many ms until it is given back.
    fn waiting(ms: u32, at: Moment) -> Arrived {
        let delivery = Delivery {
            id: TimerId::from_u128(ms.into()),
            key: None,
            due: Time::ZERO,
            epoch: Epoch(1),
            attempt: 1,
            mode: Mode::AtLeastOnce,
            timeout_ms: 2 * ms,
            payload: Default::default(),
            headers: Headers::default(),
        };
        let origin = Arc::new(Origin::new(1, None));
        Arrived { origin, received: Time::ZERO, at, deliveries: [delivery].into() }
    }

    #[test]
    fn the_first_look_of_all_registrations_is_the_timeout() {
        let now = Moment::ORIGIN;
        let at = |ms| now + Duration::from_millis(ms);
        let dest = Destination::new("test", "a").unwrap();
        let (mut outboxes, mut all) = (Outboxes::default(), Registrations::new());
        for ms in [300, 100, 200] {
            let number = all.add(Local::new(dest.clone(), 2), 1, &mut outboxes).unwrap();
            all.with(number, |inbox| inbox.push(waiting(ms, now)));
        }
        assert_eq!(all.next_timeout(), Some(at(100)));
        assert!(all.sweep(at(99)).is_empty());
        let looked: Vec<_> =
            all.sweep(at(100)).iter().map(|(n, _, look)| (*n, look.given_back.len())).collect();
        assert_eq!((looked, all.next_timeout()), (vec![(2, 1)], Some(at(200))));
        all.end(3);
        assert_eq!(all.next_timeout(), Some(at(300)));
        all.close();
        assert_eq!(all.next_timeout(), None);
    }
}
