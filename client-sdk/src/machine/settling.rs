//! Outcomes on their way to the brokers.
//!
//! An outcome goes back over the connection that its delivery came over while the broker there owns
//! the partition, and to the owner after that. It counts as stored once a broker says so. Over a
//! new connection to the same broker only an `ok` is worth repeating: it still settles a live
//! timer, while that broker has counted everything else as a failed attempt with the old
//! outcomes. Another broker may have been handed the in-flight list with the delivery, so it gets
//! every outcome; so does the next process of one that stopped gracefully.
//!
//! Invariant: the outcomes in here are bounded by the credit that was given, and a few that were
//! confirmed already.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mtimer_protocol::{Delivery, SettleRefusal, Settlement};
use mtimer_types::{HandlerOutcome, TimerId};

use crate::machine::backoff::RETRY;
use crate::machine::moment::{Moment, earlier};
use crate::machine::origin::Origin;
use crate::machine::random::Random;
use crate::machine::routes::Routes;

/// Outcomes in one frame: with the longest errors still under the frame limit.
const FRAME_OUTCOMES: usize = 2_000;
/// How long after its time an outcome is still offered to a partition's next owner.
const REPEAT_FOR: Duration = Duration::from_secs(30);
/// Outcomes kept of frames of one size because it is not certain which of them was confirmed.
const DOUBTFUL: usize = 256;

/// An outcome, and where the delivery came from.
#[derive(Debug)]
pub(crate) struct OutgoingOutcome {
    pub(crate) settlement: Settlement,
    pub(crate) over: Arc<Origin>,
    until: Moment,
    tries: u32,
}

impl OutgoingOutcome {
    /// `deadline`: when the handler's time is over.
    pub(crate) fn new(settlement: Settlement, over: Arc<Origin>, deadline: Moment) -> Self {
        Self { settlement, over, until: deadline + REPEAT_FOR, tries: 0 }
    }

    /// Says that no handler has seen a callback, which came at `at`, and none will.
    pub(crate) fn not_begun(delivery: &Delivery, over: Arc<Origin>, at: Moment) -> Self {
        let Delivery { id, epoch, attempt, timeout_ms, .. } = *delivery;
        let settlement = Settlement { id, epoch, attempt, outcome: HandlerOutcome::NotBegun };
        Self { settlement, over, until: at + Duration::from_millis(u64::from(timeout_ms)), tries: 0 }
    }

    /// Whether it may be sent again although it may have arrived. The same attempt may have been
    /// delivered again since, after it was given back.
    fn is_repeatable(&self) -> bool {
        self.settlement.outcome != HandlerOutcome::NotBegun
    }

    fn is_ok(&self) -> bool {
        self.settlement.outcome == HandlerOutcome::Ok
    }

    /// When it is given up if no owner is connected; `None`: never, as it settles a timer that
    /// lives.
    fn limit(&self) -> Option<Moment> {
        (!self.is_ok()).then_some(self.until)
    }
}

/// Where an outcome went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pushed {
    /// It waits for its turn on this connection.
    To(u64),
    /// It waits for its partition's owner.
    Waits,
    /// Nobody can do anything with it any more.
    Pointless,
}

/// The outcomes of one connection.
#[derive(Debug, Default)]
struct ConnectionOutcomes {
    queue: VecDeque<OutgoingOutcome>,
    /// Frames that are not known to be confirmed. One confirmation answers one frame, but not in
    /// the order of sending; of several frames with as many outcomes it stays open which one it
    /// was, until all of them are confirmed.
    sent: VecDeque<Vec<OutgoingOutcome>>,
    /// How many frames of that many outcomes are not confirmed.
    open: BTreeMap<usize, usize>,
}

impl ConnectionOutcomes {
    fn unconfirmed(&self) -> usize {
        self.queue.len() + self.open.iter().map(|(size, n)| size * n).sum::<usize>()
    }

    /// A frame of `size` outcomes was answered. Returns it if it is certain which one: the latest
    /// with the outcome that was refused. An earlier one, with the outcome of an earlier attempt,
    /// has been answered: without that there was no later attempt.
    fn answered(
        &mut self,
        size: usize,
        refused: Option<TimerId>,
    ) -> Result<Vec<OutgoingOutcome>, &'static str> {
        let open = self.open.get_mut(&size).ok_or("more outcomes confirmed than were sent")?;
        *open -= 1;
        let left = *open;
        let has =
            |frame: &Vec<OutgoingOutcome>, id| frame.iter().any(|outgoing| outgoing.settlement.id == id);
        let at = refused.and_then(|id| self.sent.iter().rposition(|f| f.len() == size && has(f, id)));
        let frame = at.and_then(|at| self.sent.remove(at)).unwrap_or_default();
        let mut doubtful = self.sent.iter().filter(|f| f.len() == size).count() - left.min(self.sent.len());
        if left == 0 {
            self.open.remove(&size);
            self.sent.retain(|f| f.len() != size);
        } else if doubtful * size > DOUBTFUL {
            // Answers come nearly in order.
            self.sent.retain(|f| f.len() != size || std::mem::replace(&mut doubtful, 0) == 0);
        }
        Ok(frame)
    }
}

/// All outcomes of a client.
#[derive(Debug, Default)]
pub(crate) struct Settling {
    connections: BTreeMap<u64, ConnectionOutcomes>,
    /// The owners of their partitions are not connected.
    unrouted: Vec<OutgoingOutcome>,
    /// None of those is to be given up before.
    unrouted_until: Option<Moment>,
    /// Their partitions are moving: offered again at that time; with the connection over which they
    /// were refused.
    waiting: BTreeMap<(Moment, u64), (u64, OutgoingOutcome)>,
    last_number: u64,
}

impl Settling {
    pub(crate) fn opened(&mut self, connection: u64) {
        self.connections.insert(connection, ConnectionOutcomes::default());
    }

    /// Queues an outcome.
    pub(crate) fn push(&mut self, outgoing: OutgoingOutcome, routes: &Routes) -> Pushed {
        let to = routes.settle_connection(outgoing.settlement.id.partition(), &outgoing.over);
        self.push_to(to, outgoing, routes)
    }

    /// Queues an outcome for the connection that the routes name for it
    /// ([`Routes::settle_connection`]).
    pub(crate) fn push_to(&mut self, to: Option<u64>, outgoing: OutgoingOutcome, routes: &Routes) -> Pushed {
        match to.and_then(|to| Some((to, self.connections.get_mut(&to)?))) {
            Some((to, outcomes)) if outgoing.is_ok() || routes.may_know(to, &outgoing.over) => {
                outcomes.queue.push_back(outgoing);
                Pushed::To(to)
            }
            Some(_) => Pushed::Pointless,
            // Nobody but a broker of a cluster hands deliveries over.
            None if !outgoing.is_ok() && outgoing.over.name.is_none() => Pushed::Pointless,
            None => {
                self.unrouted_until = earlier(self.unrouted_until, outgoing.limit());
                self.unrouted.push(outgoing);
                Pushed::Waits
            }
        }
    }

    /// Outcomes that no broker has confirmed.
    pub(crate) fn unconfirmed(&self) -> usize {
        let connections = self.connections.values().map(ConnectionOutcomes::unconfirmed).sum::<usize>();
        connections + self.unrouted.len() + self.waiting.len()
    }

    /// Whether nothing is open with this broker.
    pub(crate) fn none_open(&self, connection: u64) -> bool {
        self.connections.get(&connection).is_none_or(|outcomes| outcomes.unconfirmed() == 0)
    }

    /// When [`Settling::sweep`] is due.
    pub(crate) fn next_timeout(&self) -> Option<Moment> {
        earlier(self.unrouted_until, self.waiting.keys().next().map(|(at, _)| *at))
    }

    pub(crate) fn next(&mut self, connection: u64) -> Option<Vec<Settlement>> {
        let outcomes = self.connections.get_mut(&connection).filter(|outcomes| !outcomes.queue.is_empty())?;
        let frame: Vec<OutgoingOutcome> =
            outcomes.queue.drain(..outcomes.queue.len().min(FRAME_OUTCOMES)).collect();
        let settlements = frame.iter().map(|outgoing| outgoing.settlement.clone()).collect();
        *outcomes.open.entry(frame.len()).or_default() += 1;
        outcomes.sent.push_back(frame);
        Some(settlements)
    }

    /// The broker has dealt with a frame. Returns how many outcomes were refused for good. An error
    /// is a breach of the protocol.
    pub(crate) fn settled(
        &mut self,
        connection: u64,
        accepted: u32,
        refused: &[(TimerId, SettleRefusal)],
        now: Moment,
        routes: &Routes,
        random: &mut impl Random,
    ) -> Result<u64, &'static str> {
        let size = accepted as usize + refused.len();
        let Some(outcomes) = self.connections.get_mut(&connection) else { return Ok(0) };
        let mut frame = outcomes.answered(size, refused.first().map(|(id, _)| *id))?;
        let mut over = 0;
        for (id, why) in refused {
            let at = frame.iter().position(|outgoing| outgoing.settlement.id == *id);
            let outgoing = at.map(|at| frame.swap_remove(at)).filter(|_| *why == SettleRefusal::Moved);
            let kept = outgoing.is_some_and(|outgoing| self.moved(connection, outgoing, now, routes, random));
            over += u64::from(!kept);
        }
        Ok(over)
    }

    /// An outcome was refused because its partition is another broker's; false: it is too late for
    /// another try.
    fn moved(
        &mut self,
        connection: u64,
        mut outgoing: OutgoingOutcome,
        now: Moment,
        routes: &Routes,
        random: &mut impl Random,
    ) -> bool {
        let to = routes.settle_connection(outgoing.settlement.id.partition(), &outgoing.over);
        if to.is_some_and(|to| to != connection) && outgoing.tries == 0 {
            outgoing.tries = 1;
            return self.push(outgoing, routes) != Pushed::Pointless;
        }
        let again = now + RETRY.jittered(outgoing.tries, random.jitter());
        outgoing.tries += 1;
        if again >= outgoing.until {
            return false;
        }
        self.last_number += 1;
        self.waiting.insert((again, self.last_number), (connection, outgoing));
        true
    }

    /// A connection is gone. Returns how many outcomes are pointless now.
    pub(crate) fn closed(&mut self, connection: u64, routes: &Routes) -> u64 {
        let Some(outcomes) = self.connections.remove(&connection) else { return 0 };
        let sent: Vec<OutgoingOutcome> = outcomes.sent.into_iter().flatten().collect();
        let repeated = sent.into_iter().filter(OutgoingOutcome::is_repeatable);
        self.push_all(repeated.chain(outcomes.queue), routes)
    }

    /// The routes have changed: everything that is queued finds its way again, also outcomes that
    /// wait for another owner than the one that refused them. Returns how many outcomes are
    /// pointless now.
    pub(crate) fn reroute(&mut self, routes: &Routes) -> u64 {
        let queues = self.connections.values_mut().map(|outcomes| std::mem::take(&mut outcomes.queue));
        let mut all: Vec<OutgoingOutcome> = queues.flatten().collect();
        all.append(&mut self.unrouted);
        self.unrouted_until = None;
        for (key, (connection, outgoing)) in std::mem::take(&mut self.waiting) {
            let to = routes.settle_connection(outgoing.settlement.id.partition(), &outgoing.over);
            if to.is_some_and(|to| to != connection) {
                all.push(outgoing);
            } else {
                self.waiting.insert(key, (connection, outgoing));
            }
        }
        self.push_all(all.into_iter(), routes)
    }

    /// Queues outcomes that have waited long enough, and gives up outcomes that have waited too
    /// long. Says whether something was queued, and how many were given up.
    pub(crate) fn sweep(&mut self, now: Moment, routes: &Routes) -> (bool, u64) {
        let (mut queued, mut over) = (false, 0);
        while let Some(entry) = self.waiting.first_entry().filter(|e| e.key().0 <= now) {
            let (_, outgoing) = entry.remove();
            over += u64::from(self.push(outgoing, routes) == Pushed::Pointless);
            queued = true;
        }
        let before = self.unrouted.len();
        if self.unrouted_until.is_some_and(|until| until <= now) {
            self.unrouted.retain(|outgoing| outgoing.limit().is_none_or(|limit| limit > now));
            self.unrouted_until = self.unrouted.iter().filter_map(OutgoingOutcome::limit).min();
        }
        (queued, over + (before - self.unrouted.len()) as u64)
    }

    fn push_all(&mut self, all: impl Iterator<Item = OutgoingOutcome>, routes: &Routes) -> u64 {
        all.filter_map(|outgoing| (self.push(outgoing, routes) == Pushed::Pointless).then_some(1)).sum()
    }
}

#[cfg(test)]
mod tests;
