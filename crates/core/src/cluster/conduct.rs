//! Handles each input of a node, and the passing of time.
//!
//! Not in here: what follows from winning or losing the lease (`election`).

use std::sync::Arc;

use mtimer_protocol::{Heartbeat, PeerAnswer, PeerRequest, Share, ShareRequest, Topology};
use mtimer_types::{Epoch, PartitionId};

use super::api::{LeadershipEnd, NodeEffect, NodeInput, PeerId};
use super::counters::ClusterCounter;
use super::follow::Due;
use super::leader::Leadership;
use super::lease::Ask;
use super::members::HeartbeatOutcome;
use super::node::Node;
use super::refusal::{contradiction, is_address};

/// How long a broker that stops waits for a leader, ms.
const STOP_WAIT_MS: u64 = 2_000;
/// Least time between heartbeats in a handover, and otherwise when the owned partitions have
/// changed, ms.
const HURRY_MS: (u64, u64) = (5, 50);

impl Node {
    /// Before any input: how long was this process away, and may it still lead?
    pub(super) fn wake(&mut self, now: u64) {
        let gap = now - self.last;
        self.last = now;
        if gap > self.options.heartbeat_ms {
            // It has listened to nobody meanwhile. Its lease runs by the clock all the same.
            self.counters.add(ClusterCounter::Stalls, 1);
            self.link.forgive(gap);
            if let Some(leadership) = &mut self.leadership {
                leadership.forgive(gap);
            }
        }
        if self.leadership.is_some() && !self.may_act(now) {
            self.step_down(now, LeadershipEnd::Expired);
        }
    }

    pub(super) fn take(&mut self, now: u64, input: NodeInput) {
        match input {
            NodeInput::Campaigned { sent, answer } => self.campaigned(now, sent, answer),
            NodeInput::Looked { sent, answer } => self.looked(now, sent, answer),
            NodeInput::Renewed { sent, answer } => {
                if self.keeper.renewed(now, sent, answer.ok()) {
                    self.step_down(now, LeadershipEnd::Taken);
                }
            }
            NodeInput::Published { term, version, answer } => {
                let of = |r: &&mut Leadership| r.lease.term == term;
                let leadership = self.leadership.as_mut().filter(of);
                let lost = leadership.is_some_and(|r| r.answered(now, version, answer.ok()));
                if lost {
                    self.step_down(now, LeadershipEnd::Taken);
                }
            }
            NodeInput::LinkUp => {
                self.link.up(now);
            }
            NodeInput::LinkDown(why) => {
                self.trouble.note(now, self.link.to(), why);
                if self.link.down() {
                    self.counters.add(ClusterCounter::LinksLost, 1);
                    self.keeper.back_off(now);
                }
            }
            NodeInput::FromLeader(answer) => self.leader_says(now, answer),
            NodeInput::FromPeer(peer, PeerRequest::Heartbeat(beat)) => self.peer_says(now, peer, beat),
            NodeInput::FromPeer(peer, PeerRequest::Shares { incarnation, asks }) => {
                let shares = self.lend(now, incarnation, &asks);
                self.out.extend(shares.map(|shares| NodeEffect::ToPeer(peer, PeerAnswer::Shares(shares))));
            }
            NodeInput::AskShares(asks) => self.ask_shares(now, asks),
            NodeInput::PeerGone(peer) => {
                if let Some(leadership) = &mut self.leadership {
                    leadership.members.gone(now, peer);
                }
            }
            NodeInput::Reached(reached) => self.reached(now, reached),
            NodeInput::Unreachable(list) => self.unreachable = list,
            NodeInput::Owned(partition, epoch) => self.owned(now, partition, epoch),
            NodeInput::Lost(partition) => self.lost(now, partition),
            NodeInput::Load(load) => self.load = load,
            NodeInput::Stop => self.stop(now),
            NodeInput::Tick => {}
        }
    }

    /// The link is of no use any more: the store knows who leads.
    fn unlink(&mut self, now: u64) {
        if self.link.down() {
            self.counters.add(ClusterCounter::LinksLost, 1);
            self.out.push(NodeEffect::Disconnect);
        }
        self.keeper.back_off(now);
    }

    fn leader_says(&mut self, now: u64, answer: PeerAnswer) {
        if self.link.to().is_none() || self.link.connecting() {
            return;
        }
        match answer {
            // Its answer to a heartbeat that names the newer term comes behind this one.
            PeerAnswer::Heard { term, .. } | PeerAnswer::NotLeader { term, .. } if term < self.seen => {
                self.counters.add(ClusterCounter::StaleFrames, 1);
            }
            PeerAnswer::Heard { seq, term, topology, epoch } => {
                self.see(now, term);
                self.see_epoch(epoch);
                if self.link.heard(now, seq, term) {
                    self.trouble.end();
                    self.answered = now;
                    self.keeper.rest();
                }
                let topology = topology.filter(|t| t.term == term && self.is_sound(t));
                if let Some(topology) = topology {
                    self.adopt(now, Arc::new(topology));
                }
            }
            PeerAnswer::NotLeader { leader, term } => {
                self.see(now, term);
                let from = self.link.to().map(str::to_owned);
                self.unlink(now);
                let known = leader
                    .filter(|a| is_address(a) && *a != self.options.address && Some(a) != from.as_ref());
                if let Some(address) = known {
                    self.connect(now, &address);
                }
            }
            PeerAnswer::Shares(shares) => self.out.push(NodeEffect::Lent(shares)),
            PeerAnswer::Refused { message } => {
                self.refused = true;
                self.out.push(NodeEffect::Refused(message));
            }
        }
    }

    fn peer_says(&mut self, now: u64, peer: PeerId, beat: Heartbeat) {
        if contradiction(&self.options, &beat).is_none() {
            self.see(now, beat.term);
            self.see_epoch(beat.epoch);
        }
        let epoch = self.epoch;
        let Some(leadership) = &mut self.leadership else {
            let leader = self.link.leader().map(|(address, _)| address.to_owned());
            let answer = PeerAnswer::NotLeader { leader, term: self.seen };
            self.out.push(NodeEffect::ToPeer(peer, answer));
            return;
        };
        let (seq, has) = (beat.seq, beat.topology);
        self.address.heard(now);
        match leadership.members.heartbeat(now, peer, beat) {
            HeartbeatOutcome::Refused(message) => {
                self.counters.add(ClusterCounter::MembersRefused, 1);
                self.out.push(NodeEffect::ToPeer(peer, PeerAnswer::Refused { message }));
            }
            HeartbeatOutcome::Old => {}
            HeartbeatOutcome::Heard { changed } => {
                if changed {
                    leadership.touch();
                }
                // A decision caused by this heartbeat goes out in the answer, rather than in a push
                // after it.
                self.decide(now, Some(peer));
                let Some(leadership) = &self.leadership else { return };
                let newer = leadership.current().filter(|t| t.stamp() != has).map(|t| Topology::clone(t));
                let answer = PeerAnswer::Heard { seq, term: leadership.lease.term, topology: newer, epoch };
                self.out.push(NodeEffect::ToPeer(peer, answer));
            }
        }
    }

    /// The engine wants shares: this broker lends them, or the leader does. If nobody leads they
    /// are asked for again.
    fn ask_shares(&mut self, now: u64, asks: Vec<ShareRequest>) {
        let incarnation = self.options.incarnation;
        if let Some(shares) = self.lend(now, incarnation, &asks) {
            self.out.push(NodeEffect::Lent(shares));
        } else if self.link.is_up() {
            self.out.push(NodeEffect::ToLeader(PeerRequest::Shares { incarnation, asks }));
        }
    }

    /// Lends shares as leader.
    fn lend(&mut self, now: u64, incarnation: u64, asks: &[ShareRequest]) -> Option<Vec<Share>> {
        let lender = &mut self.leadership.as_mut()?.lender;
        Some(asks.iter().filter_map(|ask| lender.lend(now, incarnation, ask)).collect())
    }

    fn owned(&mut self, now: u64, partition: PartitionId, epoch: Epoch) {
        self.see_epoch(epoch);
        let me = &self.options.address;
        let change = self.holdings.gained(now, partition, epoch, self.topology.as_deref(), me);
        self.change_ownership(change);
        self.hurry(now);
    }

    fn lost(&mut self, now: u64, partition: PartitionId) {
        let me = Some(self.options.address.as_str());
        let assigned = self.topology.as_ref().is_some_and(|t| t.owner(partition) == me);
        let hands_over = self.holdings.hands_over();
        self.holdings.lost(now, partition, assigned && self.stopping.is_none());
        if hands_over {
            self.link.hurry(now, HURRY_MS.0);
        }
        self.hurry(now);
    }

    fn hurry(&mut self, now: u64) {
        let urgent = self.stopping.is_some() || self.holdings.hands_over();
        self.link.hurry(now, if urgent { HURRY_MS.0 } else { HURRY_MS.1 });
    }

    fn stop(&mut self, now: u64) {
        if self.stopping.is_some() {
            return;
        }
        self.stopping = Some(now);
        let changes = self.holdings.stop();
        self.change_ownership(changes);
        self.link.hurry(now, 0);
    }

    /// Everything that is due.
    pub(super) fn advance(&mut self, now: u64) {
        let changes = self.holdings.due(now);
        self.change_ownership(changes);
        if self.leadership.is_some() && !self.address.may_lead(now) {
            self.step_down(now, LeadershipEnd::Unreached);
        }
        self.decide(now, None);
        let leaves = self.leaves(now);
        match self.link.due(now) {
            Some(Due::Silent) => {
                let ms = self.options.member_timeout_ms;
                self.trouble.note(now, self.link.to(), format!("it does not answer within {ms} ms"));
                self.unlink(now);
            }
            Some(Due::Heartbeat { seq, heard }) => self.beat(seq, heard),
            None => {}
        }
        if leaves {
            self.out.push(NodeEffect::Left);
        }
        if self.wants_lease() {
            match self.keeper.due(now, self.seen) {
                Some(Ask::Campaign(_)) if !self.may_campaign(now) => self.out.push(NodeEffect::Look),
                Some(Ask::Campaign(candidate)) => {
                    self.counters.add(ClusterCounter::Campaigns, 1);
                    self.out.push(NodeEffect::Campaign(candidate));
                }
                Some(Ask::Renew(lease, ttl_ms)) => self.out.push(NodeEffect::Renew(lease, ttl_ms)),
                None => {}
            }
        }
    }

    fn beat(&mut self, seq: u64, heard: u64) {
        let o = &self.options;
        let beat = Heartbeat {
            cluster: o.cluster.clone(),
            partitions: o.partitions,
            address: o.address.clone(),
            incarnation: o.incarnation,
            software: o.software.clone(),
            weight: o.weight,
            seq,
            heard,
            term: self.seen,
            topology: self.topology.as_ref().map(|t| t.stamp()).unwrap_or_default(),
            stopping: self.stopping.is_some(),
            owned: self.holdings.owned().collect(),
            unreachable: self.unreachable.clone(),
            load: self.load,
            epoch: self.epoch,
        };
        self.out.push(NodeEffect::ToLeader(PeerRequest::Heartbeat(beat)));
    }

    /// As leader: looks at the members once, and tells everybody if that changes something.
    /// `asking`: who is answered anyway.
    fn decide(&mut self, now: u64, asking: Option<PeerId>) {
        let Some(leadership) = &mut self.leadership else { return };
        let owned = self.holdings.owned().collect();
        if leadership.members.own(now, owned, &self.unreachable, self.load, self.stopping.is_some()) {
            leadership.touch();
        }
        let (deaths, gone) = leadership.members.sweep(now);
        self.counters.add(ClusterCounter::MemberDeaths, deaths);
        if gone > 0 {
            leadership.touch();
        }
        let decided = leadership.decide(now);
        if let Some((topology, moved)) = &decided {
            self.counters.add(ClusterCounter::TopologiesDecided, 1);
            self.counters.add(ClusterCounter::PartitionsMoved, *moved);
            let term = leadership.lease.term;
            for peer in leadership.members.sessions().filter(|p| Some(*p) != asking) {
                let topology = Some(Topology::clone(topology));
                let answer = PeerAnswer::Heard { seq: 0, term, topology, epoch: self.epoch };
                self.out.push(NodeEffect::ToPeer(peer, answer));
            }
        }
        if let Some(topology) = leadership.publish(now) {
            self.out.push(NodeEffect::Publish(leadership.lease.clone(), topology));
        }
        if let Some((topology, _)) = decided {
            self.adopt(now, topology);
        }
    }

    /// Whether a broker that stops can go now.
    fn leaves(&mut self, now: u64) -> bool {
        let Some(since) = self.stopping.filter(|_| !self.left) else { return false };
        let me = self.options.address.as_str();
        let told = |t: &&Arc<Topology>| t.brokers.iter().any(|b| b.address == me && b.draining);
        let topology = self.topology.as_ref().filter(told);
        let stuck = topology.is_some_and(|t| self.holdings.stays(t, me));
        if let Some(leadership) = &self.leadership {
            if leadership.current().is_none() || !stuck {
                return false;
            }
            self.left = true;
            if self.holdings.is_empty() {
                self.step_down(now, LeadershipEnd::Resigned);
            }
            return true;
        }
        let alone = now >= since.max(self.answered) + STOP_WAIT_MS;
        if !self.holdings.is_empty() && !stuck && !alone {
            return false;
        }
        self.left = true;
        // The last word: nothing is owned any more.
        self.link.hurry(now, 0);
        true
    }
}
