//! The messages that one connection owes its broker besides requests, questions and outcomes, and
//! when the broker has to be heard.
//!
//! Invariant: all state in here is bounded: registrations and barriers by their limit, pongs and
//! pings by their own, extensions by the deliveries that are under way.
//!
//! Not in here: messages that may have to find another connection
//! ([`Machine`](crate::machine::Machine)).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mtimer_protocol::{ClientMessage, Query};
use mtimer_types::limits::{HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS, MAX_REGISTRATIONS};
use mtimer_types::{Destination, Epoch, TimerId};

use crate::machine::moment::Moment;
use crate::machine::origin::Origin;

/// Pongs and the like that may wait for a connection that takes nothing.
const MAX_CONTROL: usize = 2 * MAX_REGISTRATIONS + 64;
/// Pings without an answer.
const MAX_PINGS: usize = 64;
/// Round trips measured at the beginning, to see the cluster's clock sharply.
const FIRST_SAMPLES: u32 = 4;
/// Heartbeats in which the other side is to be heard.
const BEATS: u32 = (HEARTBEAT_TIMEOUT_MS / HEARTBEAT_MS) as u32;

/// A caller that comes so long after a timeout has not listened.
const LATE: Duration = Duration::from_secs(1);

/// An event that happens once every broker has taken in all earlier messages, and everything that
/// they sent until then has come in. A pong does not tell that: it is sent past everything else.
/// The answer to a question does, so one is asked, about [`TimerId::NOBODYS`]: a store that hangs
/// holds up nobody who closes. Each connection holds a copy; the last one to pass tells.
#[derive(Debug)]
pub(crate) enum Barrier {
    /// Nothing comes for this registration any more.
    Unregistered(u32),
    /// Nothing comes any more at all.
    Drained,
}

/// Why a broker counts as gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unheard {
    /// It was silent for so many ms.
    Silent(u64),
    /// It answers no pings.
    Pings,
}

#[derive(Debug)]
pub(crate) struct Outbox {
    pub(crate) origin: Arc<Origin>,
    /// Where it was made to.
    address: String,
    /// The broker wants to stop: it gets outcomes only.
    pub(crate) stopping: bool,
    /// Deliveries of this connection whose outcome was not queued yet.
    pub(crate) unsettled: u64,
    /// By number: destination and credit.
    registers: BTreeMap<u32, (Destination, u32)>,
    control: VecDeque<ClientMessage>,
    extends: BTreeMap<(TimerId, Epoch, u32), u32>,
    barriers: VecDeque<Arc<Barrier>>,
    /// By the number of the question.
    barriers_sent: BTreeMap<u64, Arc<Barrier>>,
    ping: bool,
    pings_sent: BTreeMap<u64, Moment>,
    last_ping: u64,
    /// Pings answered at the beginning.
    samples: u32,
    heartbeat: Duration,
    /// When the next heartbeat is due.
    next_beat: Moment,
    /// When the broker was heard last.
    heard: Moment,
}

impl Outbox {
    /// Of a connection that was made at `now`, to a broker with heartbeats of so many ms.
    pub(crate) fn new(origin: Arc<Origin>, address: String, heartbeat_ms: u64, now: Moment) -> Self {
        let heartbeat = Duration::from_millis(heartbeat_ms.clamp(100, 60_000));
        Self {
            origin,
            address,
            stopping: false,
            unsettled: 0,
            registers: BTreeMap::new(),
            control: VecDeque::new(),
            extends: BTreeMap::new(),
            barriers: VecDeque::new(),
            barriers_sent: BTreeMap::new(),
            ping: true,
            pings_sent: BTreeMap::new(),
            last_ping: 0,
            samples: 0,
            heartbeat,
            next_beat: now + heartbeat,
            heard: now,
        }
    }

    /// The broker has sent something.
    pub(crate) const fn heard(&mut self, now: Moment) {
        self.heard = now;
    }

    /// When [`Outbox::beat`] is due.
    pub(crate) fn next_timeout(&self) -> Moment {
        self.next_beat.min(self.heard + self.silence())
    }

    /// Looks at the time: sends a heartbeat if it is due.
    ///
    /// A caller that comes late, such as a process that was stopped, has not listened meanwhile: the
    /// broker has another heartbeat then.
    pub(crate) fn beat(&mut self, now: Moment) -> Result<(), Unheard> {
        let silent = self.heard + self.silence();
        if silent + LATE <= now {
            self.heard = now;
            self.ping = true;
        } else if silent <= now {
            return Err(Unheard::Silent(self.silence().as_millis() as u64));
        }
        if self.next_beat > now {
            return Ok(());
        }
        self.next_beat = now + self.heartbeat;
        self.ping = true;
        match self.is_unanswered() {
            true => Err(Unheard::Pings),
            false => Ok(()),
        }
    }

    /// The broker's name, for people.
    pub(crate) fn broker(&self) -> &str {
        self.origin.name.as_deref().unwrap_or(&self.address)
    }

    fn silence(&self) -> Duration {
        self.heartbeat * BEATS
    }

    pub(crate) fn register(&mut self, number: u32, dest: Destination, credit: u32) {
        self.registers.insert(number, (dest, credit));
    }

    pub(crate) fn unregister(&mut self, number: u32) {
        self.control.push_back(ClientMessage::Unregister { registration: number });
    }

    pub(crate) fn goodbye(&mut self) {
        self.control.push_back(ClientMessage::Goodbye);
    }

    pub(crate) fn barrier(&mut self, barrier: Arc<Barrier>) {
        self.barriers.push_back(barrier);
    }

    pub(crate) fn extend(&mut self, id: TimerId, epoch: Epoch, attempt: u32, by_ms: u32) {
        self.extends.insert((id, epoch, attempt), by_ms);
    }

    /// Asks for the broker's time.
    pub(crate) fn ask_time(&mut self) {
        self.ping |= !self.is_unanswered();
    }

    /// An error is a breach of the protocol.
    pub(crate) fn pong(&mut self, number: u64) -> Result<(), &'static str> {
        if self.control.len() >= MAX_CONTROL {
            return Err("pings faster than they can be answered");
        }
        self.control.push_back(ClientMessage::Pong(number));
        Ok(())
    }

    /// A ping was answered: when it was sent. An error is a breach of the protocol.
    pub(crate) fn ponged(&mut self, number: u64) -> Result<Moment, &'static str> {
        let sent = self.pings_sent.remove(&number).ok_or("a pong to a ping that was never sent")?;
        self.samples = self.samples.saturating_add(1);
        self.ping |= self.samples < FIRST_SAMPLES;
        Ok(sent)
    }

    /// Whether the broker leaves pings unanswered.
    fn is_unanswered(&self) -> bool {
        self.pings_sent.len() >= MAX_PINGS
    }

    /// The barrier that this answer belongs to.
    pub(crate) fn passed(&mut self, corr: u64) -> Option<Arc<Barrier>> {
        self.barriers_sent.remove(&corr)
    }

    /// The connection is gone: nothing more comes over it.
    pub(crate) fn into_barriers(self) -> impl Iterator<Item = Arc<Barrier>> {
        self.barriers.into_iter().chain(self.barriers_sent.into_values())
    }

    /// Gathers the messages that can be sent now, in this order. `number` makes numbers for
    /// questions.
    pub(crate) fn gather(
        &mut self,
        now: Moment,
        mut number: impl FnMut() -> u64,
        mut out: impl FnMut(ClientMessage),
    ) {
        let registers = std::mem::take(&mut self.registers).into_iter();
        for (registration, (dest, credit)) in registers {
            out(ClientMessage::Register { registration, dest, credit });
        }
        self.control.drain(..).for_each(&mut out);
        for barrier in std::mem::take(&mut self.barriers) {
            let corr = number();
            self.barriers_sent.insert(corr, barrier);
            out(ClientMessage::Query { corr, query: Query::Get(TimerId::NOBODYS.into()) });
        }
        if std::mem::take(&mut self.ping) {
            self.last_ping += 1;
            self.pings_sent.insert(self.last_ping, now);
            out(ClientMessage::Ping(self.last_ping));
        }
        for ((id, epoch, attempt), by_ms) in std::mem::take(&mut self.extends) {
            out(ClientMessage::Extend { id, epoch, attempt, by_ms });
        }
    }
}

/// The outboxes of all connections.
#[derive(Debug, Default)]
pub(crate) struct Outboxes {
    all: BTreeMap<u64, Outbox>,
    /// Connections that may have something to send, for the caller.
    to_send: BTreeSet<u64>,
}

impl Outboxes {
    /// A connection is there.
    pub(crate) fn insert(&mut self, outbox: Outbox) {
        self.to_send.insert(outbox.origin.connection);
        self.all.insert(outbox.origin.connection, outbox);
    }

    /// A connection is gone.
    pub(crate) fn remove(&mut self, connection: u64) -> Option<Outbox> {
        self.to_send.remove(&connection);
        self.all.remove(&connection)
    }

    /// The client is closed.
    pub(crate) fn clear(&mut self) {
        self.to_send.clear();
        self.all.clear();
    }

    /// Deliveries of a connection whose outcome was not queued yet.
    pub(crate) fn unsettled(&self, connection: u64) -> u64 {
        self.all.get(&connection).map_or(0, |outbox| outbox.unsettled)
    }

    /// Gives a connection something to send.
    pub(crate) fn of(&mut self, connection: u64) -> Option<&mut Outbox> {
        let outbox = self.all.get_mut(&connection)?;
        self.to_send.insert(connection);
        Some(outbox)
    }

    /// Changes a connection's outbox without giving it something to send.
    pub(crate) fn of_silently(&mut self, connection: u64) -> Option<&mut Outbox> {
        self.all.get_mut(&connection)
    }

    /// Gives all connections something to send.
    pub(crate) fn each(&mut self, mut work: impl FnMut(&mut Outbox)) {
        for (connection, outbox) in &mut self.all {
            work(outbox);
            self.to_send.insert(*connection);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Outbox> {
        self.all.values()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Something may have been queued for this connection.
    pub(crate) fn wake(&mut self, connection: u64) {
        if self.all.contains_key(&connection) {
            self.to_send.insert(connection);
        }
    }

    /// Something may have been queued for any connection.
    pub(crate) fn wake_all(&mut self) {
        self.to_send.extend(self.all.keys());
    }

    /// Returns the next connection that may have something to send.
    pub(crate) fn poll_to_send(&mut self) -> Option<u64> {
        self.to_send.pop_first()
    }
}
