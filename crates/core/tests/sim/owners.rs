//! Who is to own which partition, and how a broker comes by one: the least of a leader.

use futures_util::FutureExt;
use mtimer_core::Input;
use mtimer_protocol::{BrokerEntry, Topology};
use mtimer_store::{Acquire, InFlight, Store};
use mtimer_types::{Nonce, PartitionId, Term, Time};
use std::sync::Arc;

use super::lanes::State;
use super::{Event, PARTITIONS, World};

/// An owner that does not let go is treated as dead after so long, ms.
const FORCE_MS: u64 = 2_000;

pub(super) fn address(b: usize) -> String {
    format!("b{b}:7000")
}

pub(super) fn index(address: &str) -> Option<usize> {
    address.strip_prefix('b')?.strip_suffix(":7000")?.parse().ok()
}

pub(super) fn first_topology(brokers: usize) -> Topology {
    let entry = |b| BrokerEntry { address: address(b), draining: false };
    Topology {
        term: Term(1),
        version: 1,
        leader: address(0),
        brokers: (0..brokers).map(entry).collect(),
        owners: (0..PARTITIONS).map(|p| Some(p % brokers as u16)).collect(),
    }
}

impl World {
    pub(super) fn assigned(&self, p: u16) -> usize {
        self.topology.owners[usize::from(p)].map_or(0, usize::from)
    }

    /// A broker sets out to acquire a partition, if it is to have it.
    pub(super) fn want(&mut self, b: usize, p: u16) {
        let Some(inc) = self.brokers[b].process.as_ref().filter(|x| !x.stopping).map(|x| x.inc) else {
            return;
        };
        if self.assigned(p) == b {
            let after = self.rng.between(1, 20);
            self.at(after, Event::Acquire(b, inc, p));
        }
    }

    /// Assigns a partition to a broker; the present owner gives it up gracefully, unless it is
    /// `deaf` and does not hear of it.
    pub(super) fn hand_over(&mut self, p: u16, to: usize, deaf: Option<usize>) {
        let mut topology = (*self.topology).clone();
        topology.version += 1;
        topology.owners[usize::from(p)] = Some(to as u16);
        self.topology = Arc::new(topology);
        self.history.note(self.ms, None, || format!("partition {p} is to be broker {to}'s"));
        for b in (0..self.brokers.len()).filter(|b| Some(*b) != deaf) {
            let Some(inc) = self.brokers[b].process.as_ref().map(|x| x.inc) else { continue };
            let after = self.hop();
            if self.plan.clustered {
                self.at(after, Event::Topology(b, inc));
            }
            if b != to || self.brokers.len() == 1 {
                self.at(after, Event::Arrive(b, inc, Input::Disown(PartitionId(p))));
            }
        }
        self.forced[usize::from(p)] = self.ms + FORCE_MS;
        self.want(to, p);
    }

    /// Whether another broker that lives has the partition and has not released it.
    fn is_held(&self, b: usize, p: u16) -> bool {
        let owner = self.owner_epoch(PartitionId(p));
        let has = |x: &usize| {
            let process = self.brokers[*x].process.as_ref();
            let lane = process.and_then(|x| x.lanes[usize::from(p)]);
            lane.is_some_and(|lane| self.epoch_of(lane) == owner)
        };
        let holder = (0..self.brokers.len()).filter(|x| *x != b).find(has);
        let released = self.store.owner(PartitionId(p)).now_or_never().and_then(Result::ok);
        holder.is_some() && !released.is_some_and(|o| o.released)
    }

    pub(super) fn try_acquire(&mut self, b: usize, inc: u64, p: u16) {
        let assigned = self.assigned(p) == b;
        let Some(process) = self.brokers[b].process.as_ref().filter(|x| x.inc == inc && !x.stopping) else {
            return;
        };
        if !assigned || process.lanes[usize::from(p)].is_some() || self.acquiring.contains(&(b, p)) {
            return;
        }
        let reachable = self.links[usize::from(p)].state == State::Up;
        let held = self.is_held(b, p);
        if process.paused || !reachable || held && self.ms < self.forced[usize::from(p)] {
            self.at(20, Event::Acquire(b, inc, p));
            return;
        }
        let partition = PartitionId(p);
        self.acquisitions += 1;
        let (nonce, expected) = (Nonce(self.rng.next_u64()), self.owner_epoch(partition));
        let acquire = Acquire {
            partition,
            expected,
            floor: expected,
            nonce,
            term: Term(1),
            version: self.acquisitions,
        };
        let acquired = self.store.acquire(acquire).now_or_never();
        let epoch = self.owner_epoch(partition);
        if epoch != expected {
            let monos = self.monos();
            self.history.acquired(self.ms, partition, epoch, monos, held);
        }
        match acquired {
            Some(Ok(a)) => {
                let lane = self.lanes.add(a.lane, b, inc, partition);
                self.acquiring.insert((b, p));
                let (prior_claim, in_flight) = (a.prior_claim, a.in_flight);
                let after = self.rng.below(self.plan.store_ms + 2);
                self.at(after, Event::Acquired { broker: b, inc, lane, prior_claim, in_flight });
            }
            _ => self.at(50, Event::Acquire(b, inc, p)),
        }
    }

    pub(super) fn acquired(
        &mut self,
        b: usize,
        inc: u64,
        lane: u64,
        prior_claim: Time,
        in_flight: Vec<InFlight>,
    ) {
        let Some((partition, epoch)) = self.lanes.get(lane).map(|l| (l.at, l.lane.epoch())) else { return };
        self.acquiring.remove(&(b, partition.0));
        let Some(process) = self.process(b, inc) else {
            self.lanes.abandon(lane);
            return self.want(b, partition.0);
        };
        if process.paused {
            self.acquiring.insert((b, partition.0));
            self.at(20, Event::Acquired { broker: b, inc, lane, prior_claim, in_flight });
            return;
        }
        if process.releasing {
            // As the broker's shell does: the engine is told of nothing that it would not give up.
            return self.lanes.abandon(lane);
        }
        process.lanes[usize::from(partition.0)] = Some(lane);
        process.epochs[usize::from(partition.0)] = epoch;
        if let Some(now) = self.now_of(b) {
            self.history.begun(partition, epoch, now.time);
        }
        self.arrive(b, inc, Input::Acquired { partition, epoch, prior_claim, in_flight });
        if self.assigned(partition.0) != b {
            self.arrive(b, inc, Input::Disown(partition));
        }
    }

    /// Each host's monotonic clock, ms.
    pub(super) fn monos(&self) -> Vec<u64> {
        let us = self.us();
        self.brokers.iter().map(|b| b.host.mono_us(us) / 1_000).collect()
    }
}
