//! The state of a client, and the changes that several inputs have in common.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use mtimer_protocol::{ClientMessage, Role};

use crate::ConnectError;
use crate::answer::Stats;
use crate::machine::caller::Caller;
use crate::machine::clock::Clock;
use crate::machine::closing::Closing;
use crate::machine::dial::{Dialling, Patience};
use crate::machine::handshake;
use crate::machine::io::Event;
use crate::machine::moment::Moment;
use crate::machine::outbox::{Barrier, Outboxes};
use crate::machine::queries::Queries;
use crate::machine::random::Random;
use crate::machine::registrations::Registrations;
use crate::machine::requests::Requests;
use crate::machine::routes::Routes;
use crate::machine::settling::{OutgoingOutcome, Pushed, Settling};

/// Settings of a machine. [`ClientBuilder`](crate::ClientBuilder) documents each.
#[derive(Clone)]
pub(crate) struct MachineSettings {
    /// Names of the places where brokers may be, for people.
    pub(crate) seeds: Vec<String>,
    pub(crate) one_broker: bool,
    pub(crate) software: String,
    pub(crate) token: String,
    pub(crate) role: Role,
    pub(crate) connect_timeout: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) answer_timeout: Duration,
}

/// A client; see the module.
#[derive(Debug)]
pub(crate) struct Machine<C: Caller> {
    pub(super) random: C::Random,
    pub(super) hello: ClientMessage,
    pub(super) request_timeout: Duration,
    /// Of the cluster; 0 until a broker has let the client in.
    pub(super) partitions: u16,
    /// Why there is no connection, for errors.
    pub(super) fault: String,
    /// Since when there is none, after one that was lost.
    pub(super) alone_since: Option<Moment>,
    pub(super) ready: bool,
    pub(super) closing: Closing,
    pub(super) dialling: Dialling,
    pub(super) clock: Clock,
    pub(super) routes: Routes,
    pub(super) outboxes: Outboxes,
    pub(super) requests: Requests<C::Call>,
    pub(super) queries: Queries<C::Question>,
    pub(super) settling: Settling,
    pub(super) registrations: Registrations<C::Callbacks>,
    pub(super) stats: Stats,
    pub(super) events: VecDeque<Event<C>>,
}

impl<C: Caller> Machine<C> {
    /// Makes a client that begins to connect at `now`.
    ///
    /// # Errors
    ///
    /// [`ConnectError::TokenTooLong`]
    pub(crate) fn new(
        settings: MachineSettings,
        mut random: C::Random,
        now: Moment,
    ) -> Result<Self, ConnectError> {
        let MachineSettings { software, token, role, .. } = &settings;
        let hello = handshake::hello(random.client(), software, token, *role)?;
        let patience = Patience::new(now, settings.connect_timeout);
        let mut dialling = Dialling::new(settings.seeds, settings.one_broker, patience);
        dialling.begin(now);
        Ok(Self {
            random,
            hello,
            request_timeout: settings.request_timeout,
            partitions: 0,
            fault: "not connected yet".to_owned(),
            alone_since: None,
            ready: false,
            closing: Closing::default(),
            dialling,
            clock: Clock::default(),
            routes: Routes::new(0),
            outboxes: Outboxes::default(),
            requests: Requests::new(settings.answer_timeout),
            queries: Queries::new(),
            settling: Settling::default(),
            registrations: Registrations::new(),
            stats: Stats::default(),
            events: VecDeque::new(),
        })
    }

    pub(crate) const fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) const fn routes(&self) -> &Routes {
        &self.routes
    }

    pub(crate) const fn stats(&self) -> Stats {
        self.stats
    }

    /// How far the client is on its way out.
    #[cfg(test)]
    pub(crate) const fn closing(&self) -> Closing {
        self.closing
    }

    /// Whether there is a connection.
    pub(crate) fn is_connected(&self) -> bool {
        !self.outboxes.is_empty()
    }

    /// Whether nothing waits for a broker.
    pub(crate) fn is_idle(&self) -> bool {
        self.settling.unconfirmed() == 0 && self.requests.is_empty() && self.queries.is_empty()
    }

    pub(super) fn renew(&mut self, registration: u32) {
        if self.closing.is_open() {
            self.registrations.renew(registration, self.routes.brokers(), &mut self.outboxes);
        }
    }

    /// Callbacks that came over a connection have ended.
    pub(super) fn left_out(&mut self, connection: u64, callbacks: u64) {
        if let Some(outbox) = self.outboxes.of_silently(connection) {
            outbox.unsettled = outbox.unsettled.saturating_sub(callbacks);
        }
    }

    /// Queues outcomes.
    pub(super) fn settle(&mut self, outcomes: Vec<OutgoingOutcome>) {
        // Neighbours mostly go the same way.
        let (mut way, mut over, mut left_out, mut woken) = (None, 0, 0, None);
        for outgoing in outcomes {
            let from = (outgoing.settlement.id.partition(), outgoing.over.connection);
            let to = match way {
                Some((same, to)) if same == from => to,
                _ => self.routes.settle_connection(from.0, &outgoing.over),
            };
            way = Some((from, to));
            if over != from.1 {
                self.left_out(over, std::mem::take(&mut left_out));
                over = from.1;
            }
            left_out += 1;
            match self.settling.push_to(to, outgoing, &self.routes) {
                Pushed::To(connection) if woken != Some(connection) => {
                    woken = Some(connection);
                    self.outboxes.wake(connection);
                }
                Pushed::To(_) | Pushed::Waits => {}
                Pushed::Pointless => self.stats.settle_refused += 1,
            }
        }
        self.left_out(over, left_out);
    }

    /// The routes have changed.
    pub(super) fn reroute(&mut self) {
        self.requests.reroute(&self.routes);
        self.queries.reroute(&self.routes);
        self.stats.settle_refused += self.settling.reroute(&self.routes);
        self.outboxes.wake_all();
        self.events.push_back(Event::Rerouted);
    }

    pub(super) fn plan(&mut self, now: Moment) {
        let ready = self.dialling.plan(self.routes.topology().map(Arc::as_ref), now, &mut self.random);
        if ready && !std::mem::replace(&mut self.ready, true) {
            self.events.push_back(Event::Ready);
        }
    }

    /// Something is to pass all connections.
    pub(super) fn barrier(&mut self, barrier: Barrier) {
        let barrier = Arc::new(barrier);
        self.outboxes.each(|outbox| outbox.barrier(Arc::clone(&barrier)));
        self.pass(barrier);
    }

    /// One copy of a barrier has passed.
    pub(super) fn pass(&mut self, barrier: Arc<Barrier>) {
        match Arc::into_inner(barrier) {
            None => {}
            Some(Barrier::Unregistered(number)) => self.registrations.end(number),
            Some(Barrier::Drained) => self.drained(),
        }
    }

    /// Everything that was on its way is in.
    pub(super) fn drained(&mut self) {
        if let Closing::Draining { .. } = self.closing {
            self.closing = Closing::Drained;
            self.registrations.end_all();
            self.events.push_back(Event::Drained);
        }
    }
}
