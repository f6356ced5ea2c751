//! The store that the simulated brokers share: a lease, a topology, owner records.

use bytes::Bytes;
use mtimer_store::{Campaigned, Candidate, Lease, LeaseHolder};
use mtimer_types::{Epoch, PartitionId, Term};

use super::Sabotage;

#[derive(Debug, Clone)]
struct Held {
    address: String,
    incarnation: u64,
    term: u64,
    until: u64,
}

impl Held {
    fn shown(&self, now: u64) -> LeaseHolder {
        let remaining_ms = Some(self.until - now);
        LeaseHolder { address: self.address.clone(), term: Term(self.term), remaining_ms }
    }
}

/// The lease key as another program has written it.
fn nobody() -> LeaseHolder {
    LeaseHolder { address: "a string".into(), term: Term(0), remaining_ms: None }
}

/// Who owns a partition, by its record.
#[derive(Debug, Clone, Default)]
pub(crate) struct Owner {
    pub(crate) holder: Option<(usize, u64)>,
    pub(crate) epoch: u64,
    pub(crate) stamp: (Term, u64),
    pub(crate) released: bool,
    /// The record as it was before the last acquisition.
    before: Option<Box<Self>>,
}

#[derive(Debug)]
pub(crate) struct Store {
    held: Option<Held>,
    term: u64,
    published: Option<Bytes>,
    /// Another program has written the lease key: it names no leader and does not run out.
    pub(crate) names_no_leader: bool,
    pub(crate) owners: Vec<Owner>,
    /// By how much its clock is ahead, ms.
    pub(crate) ahead: u64,
    sabotage: Option<Sabotage>,
}

impl Store {
    pub(crate) fn new(partitions: u16, sabotage: Option<Sabotage>) -> Self {
        let owners = vec![Owner::default(); usize::from(partitions)];
        Self { held: None, term: 0, published: None, names_no_leader: false, owners, ahead: 0, sabotage }
    }

    pub(crate) fn campaign(&mut self, now: u64, c: &Candidate) -> Campaigned {
        if self.names_no_leader {
            return Campaigned::Held(nobody());
        }
        let held =
            self.held.as_ref().filter(|h| h.until > now && self.sabotage != Some(Sabotage::LeaseForAll));
        if let Some(h) = held
            && h.address != c.address
        {
            return Campaigned::Held(h.shown(now));
        }
        let same = held.filter(|h| h.incarnation == c.incarnation).map(|h| h.term);
        let rise = u64::from(self.sabotage != Some(Sabotage::SameTermForAll));
        let term = same.unwrap_or(self.term.max(c.seen.0 * rise) + rise);
        self.term = term;
        let until = now + c.ttl_ms;
        self.held = Some(Held { address: c.address.clone(), incarnation: c.incarnation, term, until });
        Campaigned::Won { term: Term(term), published: self.published.clone() }
    }

    pub(crate) fn holder(&self, now: u64) -> Option<LeaseHolder> {
        if self.names_no_leader {
            return Some(nobody());
        }
        self.held.as_ref().filter(|h| h.until > now).map(|h| h.shown(now))
    }

    fn is_held(&self, now: u64, lease: &Lease) -> bool {
        !self.names_no_leader
            && self.held.as_ref().is_some_and(|h| {
                h.until > now
                    && (h.incarnation, h.term) == (lease.incarnation, lease.term.0)
                    && h.address == lease.address
            })
    }

    pub(crate) fn renew(&mut self, now: u64, lease: &Lease, ttl_ms: u64) -> bool {
        let ours = self.is_held(now, lease);
        if let Some(h) = self.held.as_mut().filter(|_| ours) {
            h.until = now + ttl_ms;
        }
        ours
    }

    pub(crate) fn resign(&mut self, now: u64, lease: &Lease) {
        if self.is_held(now, lease) {
            self.held = None;
        }
    }

    pub(crate) fn publish(&mut self, now: u64, lease: &Lease, topology: Bytes) -> bool {
        let ours = self.is_held(now, lease);
        if ours {
            self.published = Some(topology);
        }
        ours
    }

    pub(crate) fn owner(&mut self, p: PartitionId) -> &mut Owner {
        &mut self.owners[usize::from(p.0)]
    }

    /// Gives a partition away.
    pub(crate) fn acquire(
        &mut self,
        now: u64,
        partition: PartitionId,
        floor: Epoch,
        holder: (usize, u64),
        stamp: (Term, u64),
    ) -> Epoch {
        let clock = now + self.ahead;
        let record = self.owner(partition);
        let before = Owner { before: None, ..record.clone() };
        let epoch = clock.max(record.epoch + 1).max(floor.0 + 1);
        *record =
            Owner { holder: Some(holder), epoch, stamp, released: false, before: Some(Box::new(before)) };
        Epoch(epoch)
    }

    /// A failover to a replica without the last acquisition of each partition, on a host whose
    /// clock is right. The ownerships are forgotten.
    pub(crate) fn forget(&mut self) -> Vec<(PartitionId, Owner)> {
        self.ahead = 0;
        let all = (0..).map(PartitionId).zip(&mut self.owners);
        let forgotten = all.filter_map(|(p, record)| {
            let before = *record.before.take()?;
            Some((p, std::mem::replace(record, before)))
        });
        forgotten.collect()
    }
}
