//! What one connection owes its broker besides requests, questions and outcomes.
//!
//! Invariant: what is in here is bounded: registrations and barriers by their limit, pongs and
//! pings by their own, extensions by the deliveries that are under way.
//!
//! Not in here: sockets and tasks, and what may have to find another connection
//! ([`Router`](crate::router::Router)).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use mtimer_protocol::{ClientMessage, Query};
use mtimer_types::limits::MAX_REGISTRATIONS;
use mtimer_types::{Destination, Epoch, TimerId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::handle::SessionHandle;

/// Pongs and the like that may wait for a connection that takes nothing.
const MAX_CONTROL: usize = 2 * MAX_REGISTRATIONS + 64;
/// Pings without an answer.
const MAX_PINGS: usize = 64;

/// What happens once every broker has taken in what was sent to it before, and everything that they
/// sent until then has come in. A pong does not tell that: it is sent past everything else. The
/// answer to a question does, so one is asked, about [`TimerId::NOBODYS`]: a store that hangs holds
/// up nobody who closes. Each connection holds a copy; the last one to pass tells.
#[derive(Debug)]
pub(crate) enum Barrier {
    /// Nothing comes for this registration any more.
    Unregistered(u32),
    /// Somebody waits.
    Notify(oneshot::Sender<()>),
}

#[derive(Debug)]
pub(crate) struct SessionOutbox {
    pub(crate) handle: Arc<SessionHandle>,
    /// The broker wants to stop: it gets outcomes only.
    pub(crate) stopping: bool,
    /// Deliveries of this connection whose outcome was not queued yet.
    pub(crate) unsettled: u64,
    /// By number: destination and credit.
    registers: BTreeMap<u32, (Destination, u32)>,
    control: VecDeque<ClientMessage>,
    extends: HashMap<(TimerId, Epoch, u32), u32>,
    barriers: VecDeque<Arc<Barrier>>,
    /// By the number of the question.
    barriers_sent: BTreeMap<u64, Arc<Barrier>>,
    ping: bool,
    pings_sent: BTreeMap<u64, Instant>,
    last_ping: u64,
}

impl SessionOutbox {
    pub(crate) fn new(handle: Arc<SessionHandle>) -> Self {
        Self {
            handle,
            stopping: false,
            unsettled: 0,
            registers: BTreeMap::new(),
            control: VecDeque::new(),
            extends: HashMap::new(),
            barriers: VecDeque::new(),
            barriers_sent: BTreeMap::new(),
            ping: true,
            pings_sent: BTreeMap::new(),
            last_ping: 0,
        }
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

    pub(crate) fn ping(&mut self) {
        self.ping = true;
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
    pub(crate) fn ponged(&mut self, number: u64) -> Result<Instant, &'static str> {
        self.pings_sent.remove(&number).ok_or("a pong to a ping that was never sent")
    }

    /// Whether the broker leaves pings unanswered.
    pub(crate) fn is_unanswered(&self) -> bool {
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

    /// What can be sent now, in this order. `number` makes numbers for questions.
    pub(crate) fn gather(
        &mut self,
        now: Instant,
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
        for ((id, epoch, attempt), by_ms) in self.extends.drain() {
            out(ClientMessage::Extend { id, epoch, attempt, by_ms });
        }
    }
}
