//! One rule, one test: a node alone with the messages that others would send it.

mod address;
mod epochs;
mod follow;
mod lease;
mod members;
mod own;
mod refusal;
mod topology;

use std::collections::BTreeMap;

use mtimer_protocol::{BrokerEntry, BrokerLoad, Heartbeat, PeerAnswer, PeerRequest, encode};
use mtimer_store::{Campaigned, LeaseHolder, StoreError};
use mtimer_types::{Epoch, PartitionId, Time};

use super::*;

const ME: &str = "b:7000";
const P: u16 = 6;

/// A node and its time.
struct Lab {
    node: Node,
    now: u64,
    /// The cluster clock; it stands still.
    clock: Time,
    /// Effects that were not looked at.
    out: Vec<NodeEffect>,
    seqs: BTreeMap<u64, u64>,
}

impl Lab {
    fn new() -> Self {
        let mut lab = Self::before_the_first_input();
        lab.feed(NodeInput::Tick);
        lab
    }

    fn before_the_first_input() -> Self {
        let options = NodeOptions {
            cluster: "c".into(),
            partitions: P,
            address: ME.into(),
            incarnation: 1,
            software: "test".into(),
            ..NodeOptions::default()
        };
        Self {
            node: Node::new(options, 1_000),
            now: 1_000,
            clock: Time::from_ms(0),
            out: Vec::new(),
            seqs: BTreeMap::new(),
        }
    }

    /// A leader of this term, with the topology published before.
    fn leading(term: u64, published: Option<&Topology>) -> Self {
        let mut lab = Self::new();
        lab.win(term, published);
        lab
    }

    fn feed(&mut self, input: NodeInput) {
        self.node.handle(Now { time: self.clock, mono_ms: self.now }, input);
        self.out.append(&mut self.node.effects());
    }

    fn win(&mut self, term: u64, published: Option<&Topology>) {
        let published = published.map(|t| encode(t).unwrap());
        let answer = Ok(Campaigned::Won { term: Term(term), published });
        self.feed(NodeInput::Campaigned { sent: self.now, answer });
    }

    fn held(&mut self, address: &str, term: u64, remaining_ms: Option<u64>) {
        let holder = LeaseHolder { address: address.into(), term: Term(term), remaining_ms };
        let answer = Ok(Campaigned::Held(holder));
        self.feed(NodeInput::Campaigned { sent: self.now, answer });
    }

    /// The store says who has the lease.
    fn looked(&mut self, holder: Option<(&str, u64)>) {
        let holder = holder.map(|(address, term)| LeaseHolder {
            address: address.into(),
            term: Term(term),
            remaining_ms: Some(2_500),
        });
        self.feed(NodeInput::Looked { sent: self.now, answer: Ok(holder) });
    }

    /// Time passes, and a node that looks at the lease finds it free.
    fn pass_while_free(&mut self, ms: u64) {
        let until = self.now + ms;
        while self.now < until {
            self.pass(1, true);
            if matches!(self.out.last(), Some(NodeEffect::Look)) {
                self.looked(None);
            }
        }
    }

    /// Time passes; the lease is renewed and every topology kept if `well`. Others stay silent.
    fn pass(&mut self, ms: u64, well: bool) {
        let until = self.now + ms;
        while self.now < until {
            self.now = self.node.next_tick().min(until);
            self.feed(NodeInput::Tick);
            if well {
                self.be_well();
            }
        }
    }

    fn be_well(&mut self) {
        let asked: Vec<NodeInput> = self
            .out
            .iter()
            .filter_map(|e| match e {
                NodeEffect::Renew(..) => Some(NodeInput::Renewed { sent: self.now, answer: Ok(true) }),
                NodeEffect::Publish(_, t) => {
                    Some(NodeInput::Published { term: t.term, version: t.version, answer: Ok(true) })
                }
                _ => None,
            })
            .collect();
        self.out.retain(|e| !matches!(e, NodeEffect::Renew(..) | NodeEffect::Publish(..)));
        asked.into_iter().for_each(|input| self.feed(input));
    }

    /// Time passes, and these send heartbeats of their own accord.
    fn pass_with(&mut self, ms: u64, peers: &[(u64, &str, u64)]) {
        for _ in 0..ms / 250 {
            self.pass(250, true);
            peers.iter().for_each(|(peer, address, inc)| self.beat(*peer, beat(address, *inc)));
        }
    }

    /// A heartbeat of another broker that hears everything.
    fn beat(&mut self, peer: u64, mut beat: Heartbeat) {
        let seq = self.seqs.entry(peer).or_default();
        (beat.seq, beat.heard) = (*seq + 1, *seq);
        *seq += 1;
        self.feed(NodeInput::FromPeer(PeerId(peer), PeerRequest::Heartbeat(beat)));
    }

    fn take(&mut self) -> Vec<NodeEffect> {
        std::mem::take(&mut self.out)
    }

    /// Follows this leader of this term.
    fn follow(&mut self, leader: &str, term: u64, topology: Option<Topology>) {
        self.held(leader, term, Some(2_500));
        self.feed(NodeInput::LinkUp);
        self.hear(term, topology);
    }

    /// The leader answers the last heartbeat.
    fn hear(&mut self, term: u64, topology: Option<Topology>) {
        let seq = self.sent().last().map_or(0, |b| b.seq);
        self.feed(NodeInput::FromLeader(heard(seq, term, topology)));
    }

    /// Heartbeats sent.
    fn sent(&self) -> Vec<&Heartbeat> {
        let beats = self.out.iter().filter_map(|e| match e {
            NodeEffect::ToLeader(PeerRequest::Heartbeat(beat)) => Some(beat),
            _ => None,
        });
        beats.collect()
    }

    fn topology(&self) -> &Topology {
        self.node.topology().expect("a topology")
    }

    fn share(&self, address: &str) -> usize {
        self.topology().partitions_of(address).count()
    }

    fn counter(&self, name: &str) -> u64 {
        self.node.counters().find(|(n, _)| *n == name).expect("a counter").1
    }
}

/// The answer of a leader that has seen no epoch.
fn heard(seq: u64, term: u64, topology: Option<Topology>) -> PeerAnswer {
    PeerAnswer::Heard { seq, term: Term(term), topology, epoch: Epoch(0) }
}

fn beat(address: &str, incarnation: u64) -> Heartbeat {
    Heartbeat {
        cluster: "c".into(),
        partitions: P,
        address: address.into(),
        incarnation,
        software: "test".into(),
        weight: 100,
        seq: 0,
        heard: 0,
        term: Term(0),
        topology: (Term(0), 0),
        stopping: false,
        owned: Vec::new(),
        unreachable: Vec::new(),
        load: BrokerLoad::default(),
        epoch: Epoch(0),
    }
}

/// A topology of these brokers, all partitions in turn.
fn topology(term: u64, version: u64, leader: &str, brokers: &[&str]) -> Topology {
    let entry = |a: &&str| BrokerEntry { address: (*a).into(), draining: false };
    Topology {
        term: Term(term),
        version,
        leader: leader.into(),
        brokers: brokers.iter().map(entry).collect(),
        owners: (0..P).map(|p| Some(p % brokers.len() as u16)).collect(),
    }
}

fn owns(effects: &[NodeEffect]) -> Vec<u16> {
    let own = |e: &NodeEffect| match e {
        NodeEffect::Own { partition, .. } => Some(partition.0),
        _ => None,
    };
    effects.iter().filter_map(own).collect()
}

fn disowns(effects: &[NodeEffect]) -> Vec<u16> {
    let disown = |e: &NodeEffect| match e {
        NodeEffect::Disown(partition) => Some(partition.0),
        _ => None,
    };
    effects.iter().filter_map(disown).collect()
}

fn campaigns(effects: &[NodeEffect]) -> usize {
    effects.iter().filter(|e| matches!(e, NodeEffect::Campaign(_))).count()
}

fn looks(effects: &[NodeEffect]) -> usize {
    effects.iter().filter(|e| matches!(e, NodeEffect::Look)).count()
}

fn resigned(effects: &[NodeEffect]) -> bool {
    effects.iter().any(|e| matches!(e, NodeEffect::Resign(_)))
}

/// The terms of leaderships that ended, and why.
fn ended(effects: &[NodeEffect]) -> Vec<(u64, LeadershipEnd)> {
    let ended = effects.iter().filter_map(|e| match e {
        NodeEffect::SteppedDown(term, why) => Some((term.0, *why)),
        _ => None,
    });
    ended.collect()
}

fn refused(effects: &[NodeEffect]) -> Option<&str> {
    effects.iter().find_map(|e| match e {
        NodeEffect::ToPeer(_, PeerAnswer::Refused { message }) => Some(message.as_str()),
        _ => None,
    })
}

fn has_left(effects: &[NodeEffect]) -> bool {
    effects.contains(&NodeEffect::Left)
}
