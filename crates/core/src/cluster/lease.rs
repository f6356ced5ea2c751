//! Leading, in time: when to campaign, when to renew, and until when a won lease may be acted on.
//!
//! Purpose: at most one broker acts as leader at any time.
//! Invariant: the deadline counts from before the request left, by the own monotonic clock
//! (suspensions included), less a margin for clocks that differ in rate: a leader that keeps
//! to it has stopped before the store can have given the lease to another.
//! Not in here: a leader's actions, the connections between brokers.

use mtimer_store::{Candidate, Lease};
use mtimer_types::Term;

use crate::rng::Rng;

/// Least time between two campaigns, ms, except for the one when a lease has run out.
pub(super) const CAMPAIGN_EVERY_MS: u64 = 250;
/// How often the lease is looked at while it names no leader to connect to, or never runs out, ms.
const LOOK_EVERY_MS: u64 = 1_000;
/// How long after a failed renewal it is tried again, ms.
const RENEW_AGAIN_MS: u64 = 100;
/// So long after a lease has run out, at most, its candidates come, ms: not all at the same moment.
const SPREAD_MS: u64 = 50;
/// Least time between any two campaigns, ms.
const FLOOR_MS: u64 = 20;

/// A request for the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    Campaign(Candidate),
    Renew(Lease, u64),
}

/// The lease, wanted or held.
#[derive(Debug)]
pub(super) struct Keeper {
    address: String,
    incarnation: u64,
    ttl_ms: u64,
    renew_ms: u64,
    rng: Rng,
    state: KeeperState,
    /// Answers to campaigns sent until then say nothing any more: the lease was given up or lost
    /// since.
    void: Option<u64>,
    /// When the last campaign was sent.
    asked: Option<u64>,
    /// A campaign is under way.
    asking: bool,
    /// Which broker had the lease when last looked, and until when if it did not renew it.
    rival: Option<(String, u64)>,
}

/// Whether this broker has the lease.
#[derive(Debug)]
enum KeeperState {
    /// Somebody else may lead. `at`: when to campaign; `None`: a leader answers, or it is over for
    /// good.
    Seeking { at: Option<u64> },
    /// The lease is ours until the deadline.
    Holding { lease: Lease, won: u64, deadline: u64, renew: u64, renewing: bool },
}

impl Keeper {
    pub(super) fn new(
        address: &str,
        incarnation: u64,
        ttl_ms: u64,
        renew_ms: u64,
        rng: Rng,
        now: u64,
    ) -> Self {
        let state = KeeperState::Seeking { at: Some(now) };
        let address = address.to_owned();
        Self {
            address,
            incarnation,
            ttl_ms,
            renew_ms,
            rng,
            state,
            void: None,
            asked: None,
            asking: false,
            rival: None,
        }
    }

    pub(super) fn lease(&self) -> Option<&Lease> {
        match &self.state {
            KeeperState::Holding { lease, .. } => Some(lease),
            KeeperState::Seeking { .. } => None,
        }
    }

    /// Until when the lease may be acted on.
    pub(super) fn deadline(&self) -> Option<u64> {
        match &self.state {
            KeeperState::Holding { deadline, .. } => Some(*deadline),
            KeeperState::Seeking { .. } => None,
        }
    }

    fn deadline_of(&self, sent: u64) -> u64 {
        let margin = (self.ttl_ms / 10).max(100);
        sent + self.ttl_ms.saturating_sub(margin)
    }

    /// The request that is due, if any; counts as sent. A term that is won is to be above `seen`.
    pub(super) fn due(&mut self, now: u64, seen: Term) -> Option<Ask> {
        match &mut self.state {
            KeeperState::Seeking { at } => {
                let lost = self.asked.filter(|_| self.asking).map_or(0, |asked| asked + 4 * self.ttl_ms);
                at.filter(|at| *at <= now && lost <= now)?;
                // An answer that never comes is given up.
                *at = Some(now + 4 * self.ttl_ms);
                self.asking = true;
                self.asked = Some(now);
                let (address, incarnation, ttl_ms) = (self.address.clone(), self.incarnation, self.ttl_ms);
                Some(Ask::Campaign(Candidate { address, incarnation, ttl_ms, seen }))
            }
            KeeperState::Holding { lease, renew, renewing, .. } => {
                if *renewing || *renew > now {
                    return None;
                }
                *renewing = true;
                Some(Ask::Renew(lease.clone(), self.ttl_ms))
            }
        }
    }

    /// Notes any answer to a campaign; `false`: the answer says nothing any more.
    pub(super) fn answered(&mut self, sent: u64) -> bool {
        if self.asked.is_none_or(|asked| sent >= asked) {
            self.asking = false;
        }
        self.void.is_none_or(|void| sent > void)
    }

    /// Won; `false`: so late that it is as good as lost.
    pub(super) fn won(&mut self, now: u64, sent: u64, term: Term) -> bool {
        let until = self.deadline_of(sent);
        if until <= now {
            self.seek(now + FLOOR_MS);
            return false;
        }
        if let KeeperState::Holding { lease, deadline, .. } = &mut self.state
            && lease.term == term
        {
            *deadline = until.max(*deadline);
            return true;
        }
        let lease = Lease { address: self.address.clone(), incarnation: self.incarnation, term };
        self.state = KeeperState::Holding {
            lease,
            won: sent,
            deadline: until,
            renew: (sent + self.renew_ms).max(now),
            renewing: false,
        };
        true
    }

    /// A renewal was answered: `Some(true)` it is ours, `Some(false)` it is not, `None` nobody
    /// knows. Says whether the lease was lost by it.
    pub(super) fn renewed(&mut self, now: u64, sent: u64, answer: Option<bool>) -> bool {
        let until = self.deadline_of(sent);
        let KeeperState::Holding { won, deadline, renew, renewing, .. } = &mut self.state else {
            return false;
        };
        if sent < *won {
            // Of an earlier lease.
            return false;
        }
        *renewing = false;
        match answer {
            Some(true) => {
                *deadline = until.max(*deadline);
                *renew = (sent + self.renew_ms).max(now + FLOOR_MS);
            }
            Some(false) => return true,
            None => *renew = now + RENEW_AGAIN_MS,
        }
        false
    }

    /// The lease is held no longer. `void`: for sure, so that no earlier answer can bring it back.
    pub(super) fn lose(&mut self, now: u64, void: bool) {
        if void {
            self.void = Some(now);
        }
        self.state = KeeperState::Seeking { at: None };
    }

    /// Campaign no more until asked to.
    pub(super) fn rest(&mut self) {
        if let KeeperState::Seeking { at } = &mut self.state {
            *at = None;
        }
    }

    /// Campaign at this time, unless an earlier one is set.
    pub(super) fn seek(&mut self, when: u64) {
        let floor = self.asked.map_or(0, |asked| asked + FLOOR_MS);
        if let KeeperState::Seeking { at } = &mut self.state {
            let when = when.max(floor);
            *at = Some(at.map_or(when, |at| at.min(when)));
        }
    }

    /// A campaign has failed: who has the lease is not known any more.
    pub(super) fn failed(&mut self, now: u64) {
        self.rival = None;
        self.back_off(now);
    }

    /// The broker that let the lease run out before the campaign that was sent then: it had all its
    /// time to renew it, and no failure of the store excuses it.
    pub(super) fn silent(&mut self, sent: u64) -> Option<String> {
        let (address, until) = self.rival.take()?;
        (sent < until + CAMPAIGN_EVERY_MS).then_some(address)
    }

    /// Campaign within the usual time of backing off: 100 to 500 ms.
    pub(super) fn back_off(&mut self, now: u64) {
        let wait = 100 + self.rng.below(401);
        let floor = self.asked.map_or(0, |asked| asked + CAMPAIGN_EVERY_MS);
        self.seek((now + wait).max(floor));
    }

    /// Somebody else has the lease. `leader`: the broker that it names, if it names one to connect
    /// to. Campaigns when it runs out.
    pub(super) fn held(&mut self, now: u64, leader: Option<&str>, remaining_ms: Option<u64>) {
        let over = remaining_ms.map_or(u64::MAX, |ms| now.saturating_add(ms));
        self.rival = leader.filter(|_| over < u64::MAX).map(|address| (address.to_owned(), over));
        let spread = self.rng.below(SPREAD_MS + 1);
        let over = over.saturating_add(1 + spread);
        // A lease that names no leader, or never runs out, may be removed at any time.
        let look = if self.rival.is_some() { u64::MAX } else { now + LOOK_EVERY_MS };
        self.seek(over.min(look));
    }

    /// When something is due next.
    pub(super) fn next(&self) -> u64 {
        match &self.state {
            KeeperState::Seeking { at } => {
                let lost = self.asked.filter(|_| self.asking).map_or(0, |asked| asked + 4 * self.ttl_ms);
                at.map_or(u64::MAX, |at| at.max(lost))
            }
            KeeperState::Holding { deadline, renew, renewing, .. } => {
                if *renewing {
                    *deadline
                } else {
                    (*deadline).min(*renew)
                }
            }
        }
    }
}
