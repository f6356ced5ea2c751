//! Winning and losing the lease: how a node handles the store's answers about it, and the terms
//! that it hears of.
//!
//! Not in here: when the store is asked (`lease`), a leader's decisions (`leader`), whether a
//! broker that nobody reaches may lead (`address`).

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use mtimer_protocol::{PeerAnswer, Topology, decode};
use mtimer_store::{Campaigned, Lease, LeaseHolder, StoreError};
use mtimer_types::Term;
use mtimer_types::limits::MAX_TERM;

use super::api::{LeadershipEnd, NodeEffect};
use super::counters::ClusterCounter;
use super::leader::{Leadership, Past};
use super::node::Node;
use super::refusal::is_address;

impl Node {
    /// A term was seen. If it is higher than the one this broker leads under, it leads no more.
    pub(super) fn see(&mut self, now: u64, term: Term) {
        if term.0 >= MAX_TERM.0 / 2 {
            // No store gives out such a term, so its sender is no broker of ours. Terms that are
            // won after this one have to stay below the limit, too.
            self.counters.add(ClusterCounter::StaleFrames, 1);
            return;
        }
        self.seen = self.seen.max(term);
        if self.leadership.as_ref().is_some_and(|r| r.lease.term < term) {
            self.step_down(now, LeadershipEnd::Outdated);
        }
    }

    pub(super) fn campaigned(&mut self, now: u64, sent: u64, answer: Result<Campaigned, StoreError>) {
        let is_wanted = !self.left && (self.leadership.is_some() || self.may_campaign(now));
        let valid = self.keeper.answered(sent) && is_wanted;
        match answer {
            Ok(Campaigned::Won { term, published }) if valid => self.won(now, sent, term, published),
            Ok(Campaigned::Won { term, .. }) if !is_wanted => {
                self.give_up(self.lease_of(term));
                self.keeper.back_off(now);
            }
            Ok(Campaigned::Won { .. }) => self.keeper.back_off(now),
            Ok(Campaigned::Held(holder)) => self.held(now, &holder),
            Err(_) => self.unanswered(now),
        }
    }

    /// Handles the answer to a look at the lease: a broker that is not to lead finds the leader all
    /// the same.
    pub(super) fn looked(&mut self, now: u64, sent: u64, answer: Result<Option<LeaseHolder>, StoreError>) {
        self.keeper.answered(sent);
        match answer {
            Ok(Some(holder)) => self.held(now, &holder),
            Ok(None) => {
                self.trouble.end();
                self.keeper.back_off(now);
            }
            Err(_) => self.unanswered(now),
        }
    }

    /// The store has not said who leads.
    fn unanswered(&mut self, now: u64) {
        self.trouble.end();
        self.keeper.failed(now);
    }

    /// Whether this broker is reached has been looked at.
    pub(super) fn reached(&mut self, now: u64, reached: bool) {
        if self.address.set(reached) && self.leadership.is_none() && self.link.leader().is_none() {
            self.keeper.seek(now);
        }
    }

    /// Whether it may take the lease, and not only look who has it.
    ///
    /// One that nobody reaches any more may, if others are there that may be in the same condition,
    /// and after it has waited for one of them.
    pub(super) fn may_campaign(&self, now: u64) -> bool {
        let me = &self.options.address;
        let has_others = |t: &Arc<Topology>| t.brokers.iter().any(|broker| broker.address != *me);
        let others = self.topology.as_ref().is_some_and(has_others);
        self.address.may_campaign(now, self.answered, others)
    }

    pub(super) fn won(&mut self, now: u64, sent: u64, term: Term, published: Option<Bytes>) {
        let published: Option<Topology> = published.and_then(|b| decode(&BytesMut::from(&b[..])).ok());
        let published = published.filter(|t| self.is_sound(t));
        published.iter().for_each(|topology| self.lost.see(now, topology));
        let known = self.seen.max(published.as_ref().map_or(Term(0), |t| t.term));
        if known > term || self.given_up >= Some(term) {
            // The store has forgotten terms, or does not know yet that the lease was given up. It
            // comes back under a higher one.
            self.seen = known;
            if self.leadership.is_some() {
                self.step_down(now, LeadershipEnd::Outdated);
            } else {
                self.give_up(self.lease_of(term));
                self.keeper.lose(now, true);
                self.keeper.back_off(now);
            }
            return;
        }
        if self.leadership.as_ref().is_some_and(|r| r.lease.term < term) {
            self.step_down(now, LeadershipEnd::Taken);
        }
        if !self.keeper.won(now, sent, term) {
            return;
        }
        let silent = self.keeper.silent(sent);
        self.seen = term;
        let Some(lease) = self.keeper.lease().cloned() else { return };
        if self.leadership.is_some() {
            return;
        }
        if self.link.down() {
            self.out.push(NodeEffect::Disconnect);
        }
        self.trouble.end();
        self.address.heard(now);
        self.counters.add(ClusterCounter::TermsLed, 1);
        let adopted = self.topology.as_deref();
        let past = Past { published: published.as_ref(), adopted, silent: silent.as_deref() };
        self.leadership = Some(Leadership::new(now, &self.options, lease, past));
    }

    pub(super) fn lease_of(&self, term: Term) -> Lease {
        Lease { address: self.options.address.clone(), incarnation: self.options.incarnation, term }
    }

    /// Somebody else has the lease.
    fn held(&mut self, now: u64, holder: &LeaseHolder) {
        let (address, term) = (holder.address.as_str(), holder.term);
        self.see(now, term);
        if self.leadership.is_some() {
            return;
        }
        // Whether there is a broker to connect to: not this one, nor a value of another program.
        let names_a_leader = term > Term(0) && is_address(address) && address != self.options.address;
        let linked = self.link.leader();
        if linked.is_some_and(|(_, of)| of >= term) {
            // The linked leader has spoken meanwhile, and is the same or newer.
            return;
        }
        self.keeper.held(now, names_a_leader.then_some(address), holder.remaining_ms);
        if names_a_leader && self.link.to() != Some(address) {
            self.connect(now, address);
        }
    }

    pub(super) fn step_down(&mut self, now: u64, end: LeadershipEnd) {
        let Some(leadership) = self.leadership.take() else { return };
        self.counters.add(ClusterCounter::SteppedDown, 1);
        self.out.push(NodeEffect::SteppedDown(leadership.lease.term, end));
        for peer in leadership.members.sessions() {
            let answer = PeerAnswer::NotLeader { leader: None, term: self.seen };
            self.out.push(NodeEffect::ToPeer(peer, answer));
        }
        self.keeper.lose(now, end != LeadershipEnd::Expired);
        match end {
            LeadershipEnd::Expired => self.keeper.seek(now),
            LeadershipEnd::Taken => self.keeper.back_off(now),
            LeadershipEnd::Outdated | LeadershipEnd::Unreached => {
                self.give_up(leadership.lease);
                self.keeper.back_off(now);
            }
            LeadershipEnd::Resigned => self.give_up(leadership.lease),
        }
    }

    fn give_up(&mut self, lease: Lease) {
        self.given_up = self.given_up.max(Some(lease.term));
        self.out.push(NodeEffect::Resign(lease));
    }

    /// Whether a topology can be one of this cluster.
    pub(super) fn is_sound(&self, t: &Topology) -> bool {
        let n = t.brokers.len();
        t.version > 0
            && t.term < MAX_TERM
            && t.owners.len() == usize::from(self.options.partitions)
            && t.owners.iter().flatten().all(|i| usize::from(*i) < n)
    }
}
