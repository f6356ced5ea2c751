//! The life of connections: the changes with each, and with the owners of partitions.

use std::sync::Arc;

use mtimer_protocol::{Topology, Welcome};

use crate::ConnectError;
use crate::error::LinkError;
use crate::machine::caller::Caller;
use crate::machine::dial::Unreached;
use crate::machine::io::{ConnectionsLeft, Event};
use crate::machine::moment::Moment;
use crate::machine::origin::{Fate, Origin};
use crate::machine::outbox::{Outbox, Unheard};
use crate::machine::routes::Routes;
use crate::machine::state::Machine;

impl<C: Caller> Machine<C> {
    /// A connection could not be made, or has not got past its handshake.
    pub(super) fn unreached(&mut self, connection: u64, error: ConnectError, now: Moment) {
        let text = error.to_string();
        let Some(unreached) = self.dialling.failed(connection, error, now, &mut self.random) else { return };
        if !self.is_connected() {
            self.fault = text;
        }
        self.events.push_back(match unreached {
            Unreached::ForNow(error) => Event::Unreached(error),
            Unreached::ForGood(error) => Event::GaveUp(error),
        });
        self.plan(now);
    }

    /// A broker has let the client in: the registrations are renewed over the connection.
    pub(super) fn opened(&mut self, connection: u64, welcome: Welcome, now: Moment) {
        let greeting = match self.dialling.welcomed(connection, &welcome, now) {
            Ok(Some(greeting)) => greeting,
            Ok(None) => return self.plan(now),
            Err(error) => return self.refuse(connection, error, now),
        };
        if self.partitions == 0 {
            self.partitions = welcome.partitions;
            self.routes = Routes::new(welcome.partitions);
            self.registrations.set_partitions(welcome.partitions);
        }
        let origin = Arc::new(Origin::new(connection, welcome.broker.clone()));
        self.clock.observe(connection, welcome.now, greeting.sent, now);
        self.stats.connections += 1;
        self.routes.opened(&origin);
        self.requests.opened(connection, welcome.max_frame, welcome.max_batch);
        self.queries.opened(connection);
        self.settling.opened(connection);
        let mut outbox = Outbox::new(origin, greeting.address.clone(), welcome.heartbeat_ms, now);
        match self.closing.is_open() {
            true => self.registrations.announce(self.routes.brokers(), &mut outbox),
            false => outbox.goodbye(),
        }
        self.outboxes.insert(outbox);
        let away = self.alone_since.take().map(|since| now.since(since));
        let (address, welcome) = (greeting.address, Box::new(welcome));
        self.events.push_back(Event::Opened { connection, address, welcome, away });
        self.reroute();
        self.plan(now);
    }

    /// A connection is gone, says the caller.
    pub(super) fn gone(&mut self, connection: u64, end: LinkError, now: Moment) {
        if self.dialling.is_trying(connection) {
            let error = end.before_welcome(self.dialling.address(connection));
            return self.unreached(connection, error, now);
        }
        let Some(outbox) = self.outboxes.remove(connection) else { return };
        self.fault = end.to_string();
        let Outbox { origin, .. } = &outbox;
        origin.ended(outbox.stopping);
        let (lost, broker) = (origin.fate() == Fate::Lost, outbox.broker().to_owned());
        self.dialling.lost(connection, now);
        self.clock.forget(connection);
        self.routes.closed(connection);
        outbox.into_barriers().for_each(|barrier| self.pass(barrier));
        self.requests.closed(connection, &self.routes);
        self.queries.closed(connection, &self.routes);
        self.stats.settle_refused += self.settling.closed(connection, &self.routes);
        let (fewer, dropped) = self.registrations.gone(connection, lost);
        fewer.into_iter().for_each(|number| self.renew(number));
        self.stats.dropped += dropped;
        self.reroute();
        let rest = match (self.closing.is_open(), self.is_connected()) {
            (false, _) => ConnectionsLeft::Closing,
            (true, true) => ConnectionsLeft::Some,
            (true, false) => ConnectionsLeft::None,
        };
        if rest == ConnectionsLeft::None {
            self.alone_since = Some(now);
        }
        self.events.push_back(Event::Lost { connection, broker, end, rest });
        self.plan(now);
    }

    /// Ends a connection.
    pub(super) fn end(&mut self, connection: u64, end: LinkError, now: Moment) {
        self.events.push_back(Event::Disconnect { connection });
        self.gone(connection, end, now);
    }

    /// Ends a connection that has not got past its handshake.
    pub(super) fn refuse(&mut self, connection: u64, error: ConnectError, now: Moment) {
        self.events.push_back(Event::Disconnect { connection });
        self.unreached(connection, error, now);
    }

    /// Takes a topology in, unless there is a newer one already.
    pub(super) fn topology(&mut self, topology: Topology, now: Moment) {
        let before = self.routes.brokers();
        if !self.routes.observe(topology) {
            return;
        }
        let (brokers, open) = (self.routes.brokers(), self.closing.is_open());
        if brokers != before {
            self.registrations.divide(brokers, open, &mut self.outboxes);
        }
        self.reroute();
        self.plan(now);
    }

    /// Sends the heartbeats that are due, and gives up brokers that are silent.
    pub(super) fn beat(&mut self, now: Moment) {
        let due = self.outboxes.iter().filter(|outbox| outbox.next_timeout() <= now);
        let due: Vec<u64> = due.map(|outbox| outbox.origin.connection).collect();
        for connection in due {
            let Some(outbox) = self.outboxes.of(connection) else { continue };
            match outbox.beat(now) {
                Ok(()) => {}
                Err(Unheard::Silent(ms)) => self.end(connection, LinkError::Silent(ms), now),
                Err(Unheard::Pings) => {
                    self.end(connection, LinkError::Protocol("it answers no pings"), now);
                }
            }
        }
    }

    /// Leaves the brokers that are to be left, once they owe nothing and are owed nothing.
    pub(super) fn leave(&mut self, now: Moment) {
        let done = |connection: &u64| {
            self.outboxes.unsettled(*connection) == 0
                && self.settling.none_open(*connection)
                && self.requests.none_sent(*connection)
                && self.queries.none_sent(*connection)
        };
        let leave: Vec<u64> = self.routes.departing().iter().copied().filter(done).collect();
        leave.into_iter().for_each(|connection| self.end(connection, LinkError::Left, now));
    }
}
