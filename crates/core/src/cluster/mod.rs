//! The cluster as one broker takes part in it: always a member, the leader while it holds the
//! lease.
//!
//! Purpose: who leads, which brokers are there, which partitions each is to own; and the effects on
//! this broker. A pure state machine: answers of the store, frames of other brokers and the
//! partitions that the shell owns go in through [`Node::handle`], [`NodeEffect`]s come out. `lease`
//! decides when to campaign and how long a win counts, `address` whether this broker is reached
//! well enough for that, `follow` watches the link to the leader, `own` compares the topology with
//! the owned partitions; while this broker leads, `leader` decides with the picture in `members`
//! and the pure function in `assignment`.
//!
//! Invariants: at most one node acts as leader at any time, by lease and monotonic clock; terms and
//! topologies never go back; owners go on while there is no leader. All of it is advice: the truth
//! about a partition is its owner record.
//!
//! Not in here: sockets, the store, acquiring and releasing partitions, clocks, randomness but a
//! seed.

mod address;
mod api;
pub mod assignment;
mod conduct;
mod counters;
mod election;
mod follow;
mod leader;
mod lease;
mod lender;
mod lost;
mod members;
mod node;
mod own;
mod refusal;
#[cfg(test)]
mod tests;
mod trouble;

use std::sync::Arc;

use mtimer_protocol::{ClusterView, Topology};
use mtimer_store::Lease;
use mtimer_types::{Epoch, Term};

pub use self::api::{DrainError, LeadershipEnd, NodeEffect, NodeInput, NodeOptions, PeerId};
use self::leader::Leadership;
pub use self::lender::{Lender, SHARE_MS};
pub use self::node::Node;
pub use self::refusal::is_address;
use crate::api::Now;

/// A leader that is not reached for so long, ms, is told of.
const UNREACHED_LEADER_MS: u64 = 5_000;

impl Node {
    /// Takes one input, and does the work that is due by now; `now` never steps back.
    pub fn handle(&mut self, now: Now, input: NodeInput) {
        if self.refused {
            return;
        }
        self.clock = now.time;
        let now = now.mono_ms.max(self.last);
        self.wake(now);
        self.take(now, input);
        self.advance(now);
    }

    /// Takes the effects of the inputs so far.
    pub fn effects(&mut self) -> Vec<NodeEffect> {
        std::mem::take(&mut self.out)
    }

    /// When to feed [`NodeInput::Tick`], monotonic ms; at least every half heartbeat, so that a
    /// standstill is noticed.
    pub fn next_tick(&self) -> u64 {
        if self.refused {
            return u64::MAX;
        }
        let pulse = self.last + (self.options.heartbeat_ms / 2).max(1);
        let leadership = self.leadership.as_ref().map_or(u64::MAX, Leadership::next);
        let keeper = if self.wants_lease() { self.keeper.next() } else { u64::MAX };
        let all = [pulse, keeper, self.link.next(), self.holdings.next(), leadership];
        all.into_iter().min().unwrap_or(pulse).max(self.last + 1)
    }

    /// Whether it leads, as of the last input.
    pub fn leads(&self) -> bool {
        self.leadership.is_some()
    }

    /// The highest term that it has seen.
    pub fn term(&self) -> Term {
        self.seen
    }

    /// The highest epoch that it has had or heard of, of any partition: the next one has to be
    /// above it. A store that loses an acquisition, and whose clock was ahead, would give its epoch
    /// again.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The newest topology that it has.
    pub fn topology(&self) -> Option<&Arc<Topology>> {
        self.topology.as_ref()
    }

    /// The lease that it holds, as of the last input.
    pub fn lease(&self) -> Option<Lease> {
        self.leadership.as_ref().map(|r| r.lease.clone())
    }

    /// Names and values of the counters since the start.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counters.iter()
    }

    /// The cluster as this broker sees it.
    pub fn view(&self, now: u64) -> ClusterView {
        let leadership = self.leadership.as_ref().filter(|_| self.may_act(now));
        ClusterView {
            topology: self.topology.as_deref().cloned().unwrap_or_default(),
            answered_by: self.options.address.clone(),
            leads: leadership.is_some(),
            members: leadership.map(|r| r.members.views(now)).unwrap_or_default(),
        }
    }

    /// Brokers that the cluster has lost within the last hour and that have not come back, and when
    /// this broker has seen it, monotonic ms.
    pub fn lost_brokers(&self) -> impl Iterator<Item = (&str, u64)> {
        self.lost.iter(self.last)
    }

    /// The leader that this broker has not reached for a while although the lease is in its name:
    /// its address, and why, for people.
    pub fn unreached_leader(&self) -> Option<(&str, &str)> {
        // The lease of a leader that has died runs out first.
        self.trouble.after(self.last, UNREACHED_LEADER_MS.max(2 * self.options.lease_ttl_ms))
    }

    /// Empties a broker for maintenance, or gives it partitions again; only the leader does it.
    ///
    /// # Errors
    /// See [`DrainError`].
    pub fn drain(&mut self, now: u64, broker: &str, drain: bool) -> Result<(), DrainError> {
        let now = now.max(self.last);
        if !self.refused {
            self.wake(now);
        }
        let Some(leadership) = &mut self.leadership else {
            return Err(DrainError::NotLeader(self.link.leader().map(|(address, _)| address.to_owned())));
        };
        let listed = self.topology.as_ref().is_some_and(|t| t.brokers.iter().any(|b| b.address == broker));
        if !listed && !leadership.members.knows(broker) {
            let known = leadership.members.iter().map(|(a, _)| a.clone()).collect();
            return Err(DrainError::Unknown { broker: broker.to_owned(), known });
        }
        leadership.members.drain(now, broker, drain);
        leadership.touch();
        self.advance(now);
        Ok(())
    }
}
