//! Registrations over all connections: their beginning, their end, and what is delivered to them.
//!
//! Invariant: an inbox is closed only when nothing more can come for it over any connection, or
//! when a broker has not said so for as long as a request may take; what still comes then is left
//! to its next delivery.

use std::sync::Arc;

use mtimer_protocol::Delivery;
use mtimer_types::limits::MAX_REGISTRATIONS;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::RegisterError;
use crate::inbox::Inbox;
use crate::outbox::{Barrier, SessionOutbox};
use crate::router::{ClientStage, Router};

/// Deliveries that were taken in.
#[derive(Debug)]
pub(crate) struct AcceptedDeliveries {
    /// Where they go; `None`: they were on their way when their registration ended.
    pub(crate) inbox: Option<Arc<Inbox>>,
    pub(crate) deliveries: Vec<Delivery>,
    /// How many came from an owner that has been replaced, and are refused.
    pub(crate) stale: u64,
}

impl Router {
    pub(crate) fn register(&mut self, inbox: Arc<Inbox>) -> Result<u32, RegisterError> {
        if self.stage != ClientStage::Open {
            return Err(RegisterError::Closed);
        }
        if self.registrations.len() >= MAX_REGISTRATIONS {
            return Err(RegisterError::TooMany { limit: MAX_REGISTRATIONS });
        }
        self.last_registration += 1;
        let brokers = self.routes.brokers();
        inbox.divide(brokers);
        for outbox in self.sessions.values_mut() {
            outbox.register(self.last_registration, inbox.dest.clone(), inbox.share(brokers));
        }
        self.registrations.insert(self.last_registration, inbox);
        Ok(self.last_registration)
    }

    /// What a registration offers has changed: the brokers hear of it.
    pub(crate) fn renew(&mut self, number: u32) {
        if self.stage != ClientStage::Open {
            return;
        }
        let Some(inbox) = self.registrations.get(&number).filter(|inbox| !inbox.is_ending()) else { return };
        let share = inbox.share(self.routes.brokers());
        for outbox in self.sessions.values_mut() {
            outbox.register(number, inbox.dest.clone(), share);
        }
    }

    /// Takes no more callbacks; the inbox closes when everything that was on its way is in it, or
    /// at `by`.
    pub(crate) fn unregister(&mut self, number: u32, by: Option<Instant>) {
        if !self.registrations.get(&number).is_some_and(|inbox| inbox.begin_end()) {
            return;
        }
        if self.stage == ClientStage::Open {
            self.sessions.values_mut().for_each(|outbox| outbox.unregister(number));
        }
        self.ending.extend(by.map(|by| (by, number)));
        self.barrier(Barrier::Unregistered(number));
    }

    /// Closes the inboxes whose time is over; those that are closed already are forgotten.
    pub(crate) fn close_ending(&mut self, now: Instant) {
        while let Some((by, number)) = self.ending.front().copied()
            && (by <= now || !self.registrations.contains_key(&number))
        {
            self.ending.pop_front();
            self.end(number);
        }
    }

    /// Nothing more comes for a registration; its handlers may still run.
    fn end(&mut self, number: u32) {
        let Some(inbox) = self.registrations.remove(&number) else { return };
        inbox.close();
        self.finishing.retain(|inbox| !inbox.done.is_cancelled());
        self.finishing.push(inbox);
    }

    /// Takes no more callbacks at all. What it returns ends when everything that was on its way is
    /// in.
    pub(crate) fn drain(&mut self) -> oneshot::Receiver<()> {
        let (notify, passed) = oneshot::channel();
        if self.stage == ClientStage::Open {
            self.sessions.values_mut().for_each(SessionOutbox::goodbye);
        }
        self.stage = self.stage.max(ClientStage::Draining);
        self.barrier(Barrier::Notify(notify));
        passed
    }

    /// The registrations there are, and those whose handlers still run; they get no more callbacks.
    pub(crate) fn end_registrations(&mut self) -> Vec<Arc<Inbox>> {
        let inboxes: Vec<_> = self.registrations.values().chain(&self.finishing).cloned().collect();
        inboxes.iter().for_each(|inbox| inbox.close());
        inboxes
    }

    pub(crate) fn inbox(&self, registration: u32) -> Option<&Arc<Inbox>> {
        self.registrations.get(&registration)
    }

    /// Takes deliveries in. An error is a breach of the protocol.
    pub(crate) fn delivered(
        &mut self,
        session: u64,
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
        let inbox = self.registrations.get(&registration).cloned();
        if !(1..=self.last_registration).contains(&registration) {
            return Err("a callback under a registration that was never made");
        }
        if let Some(outbox) = self.sessions.get_mut(&session) {
            outbox.unsettled += deliveries.len() as u64;
        }
        Ok(AcceptedDeliveries { inbox, deliveries, stale })
    }

    fn barrier(&mut self, barrier: Barrier) {
        let barrier = Arc::new(barrier);
        for outbox in self.sessions.values_mut() {
            outbox.barrier(Arc::clone(&barrier));
        }
        self.pass(barrier);
    }

    /// One copy of a barrier has passed.
    pub(crate) fn pass(&mut self, barrier: Arc<Barrier>) {
        match Arc::into_inner(barrier) {
            None => {}
            Some(Barrier::Unregistered(number)) => self.end(number),
            // The caller may have stopped waiting.
            Some(Barrier::Notify(notify)) => drop(notify.send(())),
        }
    }
}
