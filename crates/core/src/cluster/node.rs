//! The state of a node, and the changes of it that everything else makes.
//!
//! Not in here: which inputs lead to them (`conduct`, `election`).

use std::sync::Arc;

use mtimer_protocol::{BrokerLoad, Topology};
use mtimer_types::{Epoch, PartitionId, Term, Time};

use super::address::OwnAddress;
use super::api::{NodeEffect, NodeOptions};
use super::counters::{ClusterCounter, ClusterCounters};
use super::follow::LeaderLink;
use super::leader::Leadership;
use super::lease::Keeper;
use super::lost::LostBrokers;
use super::own::{Holdings, OwnershipChange};
use super::trouble::LeaderTrouble;
use crate::rng::Rng;

/// So far ahead of the cluster clock an epoch is still believed, ms. Epochs are times in ms of a
/// Redis clock, which may be ahead.
const EPOCH_AHEAD_MS: u64 = 86_400_000;

/// One broker's part in the cluster.
#[derive(Debug)]
pub struct Node {
    pub(super) options: NodeOptions,
    /// The highest term seen anywhere.
    pub(super) seen: Term,
    /// The last term whose lease was given up. That may arrive late at the store, so a lease that is
    /// won under the same term again cannot be relied on.
    pub(super) given_up: Option<Term>,
    /// The highest epoch that this broker has had or heard of, of any partition.
    pub(super) epoch: Epoch,
    /// The cluster clock, as of the last input.
    pub(super) clock: Time,
    pub(super) keeper: Keeper,
    pub(super) link: LeaderLink,
    pub(super) trouble: LeaderTrouble,
    pub(super) address: OwnAddress,
    /// While this broker leads.
    pub(super) leadership: Option<Leadership>,
    pub(super) holdings: Holdings,
    pub(super) topology: Option<Arc<Topology>>,
    pub(super) lost: LostBrokers,
    pub(super) unreachable: Vec<PartitionId>,
    pub(super) load: BrokerLoad,
    /// Since when this broker stops.
    pub(super) stopping: Option<u64>,
    /// It has said that it has left.
    pub(super) left: bool,
    /// It is no part of the cluster.
    pub(super) refused: bool,
    /// When a leader answered last.
    pub(super) answered: u64,
    /// When something was handled last.
    pub(super) last: u64,
    pub(super) counters: ClusterCounters,
    pub(super) out: Vec<NodeEffect>,
}

impl Node {
    /// A node that campaigns with its first input; `now`: ms by the host's monotonic clock.
    pub fn new(options: NodeOptions, now: u64) -> Self {
        let mut options = options;
        options.lease_ttl_ms = options.lease_ttl_ms.max(1);
        options.heartbeat_ms = options.heartbeat_ms.max(1);
        let rng = Rng::new(options.seed);
        let keeper = Keeper::new(
            &options.address,
            options.incarnation,
            options.lease_ttl_ms,
            options.renew_ms.max(1),
            rng,
            now,
        );
        let link = LeaderLink::new(options.heartbeat_ms, options.member_timeout_ms);
        Self {
            options,
            seen: Term::default(),
            given_up: None,
            epoch: Epoch::default(),
            clock: Time::from_ms(0),
            keeper,
            link,
            trouble: LeaderTrouble::default(),
            address: OwnAddress::new(),
            leadership: None,
            holdings: Holdings::default(),
            topology: None,
            lost: LostBrokers::default(),
            unreachable: Vec::new(),
            load: BrokerLoad::default(),
            stopping: None,
            left: false,
            refused: false,
            answered: now,
            last: now,
            counters: ClusterCounters::default(),
            out: Vec::new(),
        }
    }

    pub(super) fn connect(&mut self, now: u64, address: &str) {
        self.link.connect(now, address);
        self.out.push(NodeEffect::Connect(address.to_owned()));
    }

    /// Whether the lease lets this broker act as leader.
    pub(super) fn may_act(&self, now: u64) -> bool {
        self.keeper.deadline().is_some_and(|deadline| now < deadline)
    }

    /// Whether it campaigns, or renews the lease that it has: not after it has left.
    pub(super) fn wants_lease(&self) -> bool {
        !self.left || self.leadership.is_some()
    }

    /// An epoch was seen. One that is far ahead is neither believed nor told: all later
    /// ones would be as far ahead.
    pub(super) fn see_epoch(&mut self, epoch: Epoch) {
        if epoch.0 > self.clock.as_ms().saturating_add(EPOCH_AHEAD_MS) {
            self.counters.add(ClusterCounter::StaleFrames, 1);
            return;
        }
        self.epoch = self.epoch.max(epoch);
    }

    /// A newer topology, from whomever.
    pub(super) fn adopt(&mut self, now: u64, topology: Arc<Topology>) {
        if self.topology.as_ref().is_some_and(|t| t.stamp() >= topology.stamp()) {
            return;
        }
        self.counters.add(ClusterCounter::TopologiesAdopted, 1);
        self.lost.see(now, &topology);
        self.out.push(NodeEffect::Adopt(Arc::clone(&topology)));
        let changes = self.holdings.adopt(now, &topology, &self.options.address, self.stopping.is_some());
        self.topology = Some(topology);
        self.change_ownership(changes);
    }

    pub(super) fn change_ownership(&mut self, changes: impl IntoIterator<Item = OwnershipChange>) {
        let (term, version) = self.topology.as_ref().map(|t| t.stamp()).unwrap_or_default();
        self.out.extend(changes.into_iter().map(|change| match change {
            OwnershipChange::Own(partition) => NodeEffect::Own { partition, term, version },
            OwnershipChange::Disown(partition) => NodeEffect::Disown(partition),
        }));
    }
}
