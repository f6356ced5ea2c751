//! One leadership: learns which brokers are there and which partitions they have, then decides,
//! again and again.
//!
//! Purpose: from members to topologies, each published and pushed.
//! Invariant: versions rise within the term; nothing is decided before the brokers of the last
//! topology had their time to be heard; a topology differs from the one before it.
//! Not in here: the lease, which ends all of this.

use std::collections::BTreeMap;
use std::sync::Arc;

use mtimer_protocol::{BrokerEntry, Topology};
use mtimer_store::Lease;
use mtimer_types::Epoch;

use super::api::NodeOptions;
use super::assignment::assign;
use super::lender::Lender;
use super::members::Members;

/// How long a leader that let its lease run out is waited for in addition to a heartbeat, ms.
const CONNECT_MS: u64 = 100;
/// How long after a failure it is published again, ms.
const PUBLISH_AGAIN_MS: u64 = 200;

/// The known state from before a leadership.
#[derive(Clone, Copy, Debug)]
pub(super) struct Past<'a> {
    /// The last topology of the cluster.
    pub(super) published: Option<&'a Topology>,
    /// The newest that this broker has itself.
    pub(super) adopted: Option<&'a Topology>,
    /// Who had the lease, and let it run out.
    pub(super) silent: Option<&'a str>,
}

/// The time from this broker's election to the end of its term.
#[derive(Debug)]
pub(super) struct Leadership {
    options: NodeOptions,
    pub(super) lease: Lease,
    pub(super) members: Members,
    pub(super) lender: Lender,
    /// Who is to be heard before the first decision, and until when; `None`: decided.
    awaited: Option<BTreeMap<String, u64>>,
    /// By partition: the address of the broker that it is assigned to.
    owners: Vec<Option<String>>,
    current: Option<Arc<Topology>>,
    /// The last version under this term.
    version: u64,
    /// Something has changed since the last decision.
    dirty: bool,
    /// When time alone may change the decision.
    recheck: u64,
    /// The version that is kept in the store, the one on its way there, and when to try again.
    published: u64,
    publishing: Option<u64>,
    publish_at: u64,
}

impl Leadership {
    /// Begins.
    pub(super) fn new(now: u64, options: &NodeOptions, lease: Lease, past: Past<'_>) -> Self {
        let Past { published, adopted, silent } = past;
        let me = options.address.as_str();
        let drained = |t: &Topology| -> Vec<String> {
            t.brokers.iter().filter(|b| b.draining).map(|b| b.address.clone()).collect()
        };
        // A mark for this broker is meant for this incarnation only if the broker has seen it.
        let mine = adopted.map(drained).is_some_and(|d| d.iter().any(|a| a == me));
        let drained = published.map(drained).unwrap_or_default();
        let drained = drained.into_iter().filter(|a| a != me || mine);
        let owner = |p: u16| published.and_then(|t| t.owner(mtimer_types::PartitionId(p))).map(str::to_owned);
        let owners: Vec<_> = (0..options.partitions).map(owner).collect();
        let wait = |address: &String| {
            // A leader that did not renew is most likely dead. One that the store kept from
            // renewing is alive, and comes like all others.
            let brief = options.heartbeat_ms + CONNECT_MS;
            let dead = silent == Some(address);
            now + if dead { brief.min(options.member_timeout_ms) } else { options.member_timeout_ms }
        };
        // Who was to have nothing can have nothing taken away.
        let others = owners.iter().flatten().filter(|a| *a != me);
        let awaited = others.map(|a| (a.clone(), wait(a))).collect();
        let version = adopted.filter(|t| t.term == lease.term).map_or(0, |t| t.version);
        Self {
            options: options.clone(),
            members: Members::new(now, options, drained),
            lender: Lender::new(now),
            lease,
            awaited: Some(awaited),
            owners,
            current: None,
            version,
            dirty: true,
            recheck: u64::MAX,
            published: version,
            publishing: None,
            publish_at: 0,
        }
    }

    /// The newest topology of this leadership.
    pub(super) fn current(&self) -> Option<&Arc<Topology>> {
        self.current.as_ref()
    }

    /// Owners may have to change.
    pub(super) fn touch(&mut self) {
        self.dirty = true;
    }

    pub(super) fn forgive(&mut self, ms: u64) {
        self.members.forgive(ms);
        if let Some(awaited) = &mut self.awaited {
            awaited.values_mut().for_each(|until| *until += ms);
        }
    }

    /// Looks at everything once; a new topology, if it is another, and how many partitions change
    /// hands by it.
    pub(super) fn decide(&mut self, now: u64) -> Option<(Arc<Topology>, u64)> {
        if let Some(awaited) = &mut self.awaited {
            awaited.retain(|address, until| *until > now && !self.members.knows(address));
            if !awaited.is_empty() {
                return None;
            }
            self.awaited = None;
            self.learn();
        }
        if !self.dirty && self.recheck > now {
            return None;
        }
        let (topology, moved) = self.compute(now);
        self.dirty = false;
        self.recheck = self.members.recheck(now);
        let same = |t: &Arc<Topology>| t.brokers == topology.brokers && t.owners == topology.owners;
        if self.current.as_ref().is_some_and(same) {
            return None;
        }
        self.version += 1;
        let topology = Arc::new(Topology { version: self.version, ..topology });
        self.current = Some(Arc::clone(&topology));
        Some((topology, moved))
    }

    /// Ownership by the members' own word goes before the published one; of several the highest
    /// epoch.
    fn learn(&mut self) {
        let mut best: BTreeMap<u16, (Epoch, String)> = BTreeMap::new();
        for (address, m) in self.members.iter() {
            for (p, epoch) in &m.owned {
                if best.get(&p.0).is_none_or(|(other, _)| other < epoch) {
                    best.insert(p.0, (*epoch, address.clone()));
                }
            }
        }
        for (p, (_, address)) in best {
            if let Some(owner) = self.owners.get_mut(usize::from(p)) {
                *owner = Some(address);
            }
        }
    }

    fn compute(&mut self, now: u64) -> (Topology, u64) {
        let present: Vec<String> =
            self.members.iter().filter(|(_, m)| !m.left).map(|(address, _)| address.clone()).collect();
        let candidates: Vec<_> =
            present.iter().filter_map(|a| self.members.candidate(now, a, &self.owners)).collect();
        let index = |a: &Option<String>| present.binary_search(a.as_ref()?).ok();
        let before: Vec<_> = self.owners.iter().map(index).collect();
        let after = assign(&candidates, &before);
        let moved = before.iter().zip(&after).filter(|(b, a)| b != a).count() as u64;
        self.owners = after.iter().map(|m| m.and_then(|m| present.get(m).cloned())).collect();
        let orderly: Vec<String> =
            self.members.iter().filter(|(_, m)| m.is_orderly()).map(|(address, _)| address.clone()).collect();
        for address in orderly {
            if address != self.options.address && !self.owners.contains(&Some(address.clone())) {
                self.members.leave(&address);
            }
        }
        (self.topology(), moved)
    }

    /// The present decision, without a version.
    fn topology(&self) -> Topology {
        let entry = |(address, _): (&String, _)| BrokerEntry {
            address: address.clone(),
            draining: self.members.is_draining(address),
        };
        let brokers: Vec<_> = self.members.iter().filter(|(_, m)| !m.left).map(entry).collect();
        let index = |a: &Option<String>| {
            let a = a.as_ref()?;
            // At most 128 brokers: see `MAX_BROKERS`.
            brokers.binary_search_by(|b| b.address.cmp(a)).ok().map(|i| i as u16)
        };
        let owners = self.owners.iter().map(index).collect();
        Topology { term: self.lease.term, version: 0, leader: self.options.address.clone(), brokers, owners }
    }

    /// The topology to be published now, if any: one at a time, so that none overtakes another.
    pub(super) fn publish(&mut self, now: u64) -> Option<Topology> {
        let t = self.current.as_ref()?;
        if t.version <= self.published || self.publishing.is_some() || self.publish_at > now {
            return None;
        }
        self.publishing = Some(t.version);
        Some(Topology::clone(t))
    }

    /// It was published, or not (`None`: nobody knows). `true`: the lease is another's.
    pub(super) fn answered(&mut self, now: u64, version: u64, answer: Option<bool>) -> bool {
        if self.publishing != Some(version) {
            return false;
        }
        self.publishing = None;
        match answer {
            Some(true) => self.published = version,
            Some(false) => return true,
            None => self.publish_at = now + PUBLISH_AGAIN_MS,
        }
        false
    }

    /// When there is something to look at again, if nothing is heard.
    pub(super) fn next(&self) -> u64 {
        let awaited = self.awaited.as_ref().and_then(|a| a.values().min().copied()).unwrap_or(u64::MAX);
        let wants = self.current.as_ref().is_some_and(|t| t.version > self.published);
        let publish = if wants && self.publishing.is_none() { self.publish_at } else { u64::MAX };
        let recheck = if self.awaited.is_some() { u64::MAX } else { self.recheck };
        awaited.min(publish).min(recheck).min(self.members.next())
    }
}
