//! Takes in the messages that brokers send.

use std::sync::Arc;

use mtimer_protocol::{
    Delivery, ErrorCode, OpReply, QueryAnswer, ServerMessage, SettleRefusal, UNASKED_PONG,
};
use mtimer_types::{Time, TimerId};

use crate::error::LinkError;
use crate::machine::caller::Caller;
use crate::machine::handshake;
use crate::machine::inbox::Arrived;
use crate::machine::io::Event;
use crate::machine::moment::Moment;
use crate::machine::origin::Origin;
use crate::machine::registrations::AcceptedDeliveries;
use crate::machine::settling::OutgoingOutcome;
use crate::machine::state::Machine;

impl<C: Caller> Machine<C> {
    /// A broker has sent something.
    pub(super) fn frame(&mut self, connection: u64, message: ServerMessage, now: Moment) {
        if self.dialling.is_trying(connection) {
            let broker = self.dialling.address(connection);
            return match handshake::welcome(&broker, message) {
                Ok(welcome) => self.opened(connection, welcome, now),
                Err(error) => self.refuse(connection, error, now),
            };
        }
        let Some(outbox) = self.outboxes.of_silently(connection) else { return };
        outbox.heard(now);
        let origin = Arc::clone(&outbox.origin);
        if let Err(end) = self.message(&origin, message, now) {
            self.end(connection, end, now);
        }
    }

    fn message(&mut self, over: &Arc<Origin>, message: ServerMessage, now: Moment) -> Result<(), LinkError> {
        let connection = over.connection;
        match message {
            ServerMessage::Reply { corr, replies } => self.reply(connection, corr, replies, now),
            ServerMessage::Answer { corr, answer } => self.answer(connection, corr, answer, now),
            ServerMessage::Deliver { registration, deliveries } => {
                self.deliver(over, registration, deliveries, now)
            }
            ServerMessage::Settled { accepted, refused } => self.settled(connection, accepted, &refused, now),
            ServerMessage::Ping(number) => {
                self.outboxes.of(connection).map_or(Ok(()), |outbox| outbox.pong(number))
            }
            ServerMessage::Pong(number, time) => self.pong(connection, number, time, now),
            ServerMessage::Closing => {
                self.stopping(connection);
                Ok(())
            }
            ServerMessage::Refused { message, .. } => return Err(LinkError::Refused { message }),
            ServerMessage::Welcome(_) => Err("a second welcome"),
            ServerMessage::Topology(topology) => {
                // Without a name of its own the broker has no cluster around it.
                if over.name.is_some() {
                    self.topology(topology, now);
                }
                Ok(())
            }
            ServerMessage::RegisterRefused { registration, code, message } => {
                self.registration_refused(registration, code, message);
                Ok(())
            }
            ServerMessage::Peer(_) => Err("a message for another broker"),
        }
        .map_err(LinkError::Protocol)
    }

    fn reply(
        &mut self,
        connection: u64,
        corr: u64,
        replies: Vec<OpReply>,
        now: Moment,
    ) -> Result<(), &'static str> {
        let (routes, random) = (&mut self.routes, &mut self.random);
        let retried = self.requests.reply(connection, corr, replies, now, routes, random)?;
        self.stats.retried += retried;
        if retried > 0 {
            self.outboxes.wake_all();
        }
        Ok(())
    }

    fn answer(
        &mut self,
        connection: u64,
        corr: u64,
        answer: QueryAnswer,
        now: Moment,
    ) -> Result<(), &'static str> {
        let barrier = self.outboxes.of_silently(connection).and_then(|outbox| outbox.passed(corr));
        if let Some(barrier) = barrier {
            self.pass(barrier);
            return Ok(());
        }
        let (routes, random) = (&mut self.routes, &mut self.random);
        self.queries.answer(connection, corr, answer, now, routes, random)?;
        self.outboxes.wake_all();
        Ok(())
    }

    fn settled(
        &mut self,
        connection: u64,
        accepted: u32,
        refused: &[(TimerId, SettleRefusal)],
        now: Moment,
    ) -> Result<(), &'static str> {
        let (routes, random) = (&self.routes, &mut self.random);
        let over = self.settling.settled(connection, accepted, refused, now, routes, random)?;
        self.stats.settled += u64::from(accepted);
        self.stats.settle_refused += over;
        if !refused.is_empty() {
            self.outboxes.wake_all();
        }
        Ok(())
    }

    fn pong(&mut self, connection: u64, number: u64, time: Time, now: Moment) -> Result<(), &'static str> {
        let Some(outbox) = self.outboxes.of(connection) else { return Ok(()) };
        if number == UNASKED_PONG {
            // Half a round trip old, at least: a ping tells more.
            outbox.ask_time();
            self.clock.corrected(connection, time, now);
            return Ok(());
        }
        let sent = outbox.ponged(number)?;
        self.clock.observe(connection, time, sent, now);
        Ok(())
    }

    /// A broker wants to stop: it gets outcomes only.
    fn stopping(&mut self, connection: u64) {
        if let Some(outbox) = self.outboxes.of_silently(connection) {
            outbox.stopping = true;
        }
        self.routes.stopping(connection);
        self.reroute();
    }

    /// A broker sends nothing for this registration. One that has ended is of no interest.
    fn registration_refused(&mut self, registration: u32, code: ErrorCode, message: String) {
        if let Some(callbacks) = self.registrations.callbacks(registration).cloned() {
            self.events.push_back(Event::RegistrationRefused { callbacks, code, message });
        }
    }

    fn deliver(
        &mut self,
        over: &Arc<Origin>,
        registration: u32,
        deliveries: Vec<Delivery>,
        now: Moment,
    ) -> Result<(), &'static str> {
        self.stats.received += deliveries.len() as u64;
        let accepted = self.registrations.delivered(registration, deliveries)?;
        let AcceptedDeliveries { wanted, deliveries, stale } = accepted;
        self.stats.stale += stale;
        let Some(outbox) = self.outboxes.of_silently(over.connection) else { return Ok(()) };
        outbox.unsettled += deliveries.len() as u64;
        let not_begun = if wanted {
            let Some(due) = deliveries.iter().map(|delivery| delivery.due).max() else { return Ok(()) };
            if self.clock.proved(over.connection, due, now)
                && let Some(outbox) = self.outboxes.of(over.connection)
            {
                outbox.ask_time();
            }
            let (received, deliveries) = (self.clock.at(now), deliveries.into());
            let arrived = Arrived { origin: Arc::clone(over), received, at: now, deliveries };
            self.registrations.with(registration, |inbox| inbox.push(arrived)).unwrap_or_default()
        } else {
            // It was on its way when the registration ended over a connection before this one.
            let outcome = |d| OutgoingOutcome::not_begun(d, Arc::clone(over), now);
            deliveries.iter().map(outcome).collect()
        };
        self.stats.not_begun += not_begun.len() as u64;
        self.settle(not_begun);
        Ok(())
    }
}
