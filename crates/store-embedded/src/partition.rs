//! A partition's mirror in memory: its owner, its counters, its lanes. Nothing that grows with its
//! timers.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use bytes::{Buf, BufMut};
use fjall::Slice;
use mtimer_store::bulk::BulkJob;
use mtimer_store::settings::settings_from_bytes;
use mtimer_store::{Census, Controls, Counts, InFlight, LaneError, OwnerRecord};
use mtimer_types::{Epoch, Nonce, PartitionId, Priority, StoredSettings, Term, Time, TimerId};

use crate::lane_shared::LaneShared;
use crate::layout::{FactName, QueuePart, Space, fact_key};
use crate::tree::Tree;

pub(crate) struct PartitionMirror {
    pub(crate) id: PartitionId,
    pub(crate) owner: StoredOwner,
    pub(crate) in_flight: Vec<InFlight>,
    pub(crate) counters: PartitionCounters,
    /// By number, those that have timers.
    pub(crate) dests: HashMap<u32, DestinationMirror>,
    /// What has changed of them is stored with the batch that changed it.
    pub(crate) controls: Controls,
    /// No taken, no unconfirmed, no dead timer has a lower order.
    taken_floor: u64,
    unconfirmed_floor: u64,
    dead_floor: u64,
    /// Pending timers removed since the floor was last looked for.
    pub(crate) removed: u32,
    /// Where the clearing of old outcomes goes on.
    pub(crate) clear_from: Option<Slice>,
    /// The present owner's.
    pub(crate) lanes: Vec<Weak<LaneShared>>,
}

/// The owner record, with the facts about predecessors that its owner was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct StoredOwner {
    pub(crate) record: OwnerRecord,
    pub(crate) prior_claim: Time,
}

/// One destination's timers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct DestinationMirror {
    /// Stored with every batch.
    pub(crate) counts: Counts,
    /// No parked one of a class has a lower order.
    pub(crate) park_floors: [u64; Priority::COUNT],
}

/// Counts that are stored with every batch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct PartitionCounters {
    /// `residue` counts the entries for moved timers.
    pub(crate) census: Census,
    /// Unconfirmed timers.
    pub(crate) unconfirmed: u64,
    /// The last order given out.
    pub(crate) order: u64,
    /// No pending timer fires earlier, in ms.
    pub(crate) floor: u64,
    /// Remembered outcomes, at most, by bucket.
    pub(crate) ended: BTreeMap<u32, u64>,
}

impl PartitionMirror {
    pub(crate) fn new(id: PartitionId) -> Self {
        Self {
            id,
            owner: StoredOwner::default(),
            in_flight: Vec::new(),
            counters: PartitionCounters::default(),
            dests: HashMap::new(),
            controls: Controls::default(),
            taken_floor: 0,
            unconfirmed_floor: 0,
            dead_floor: 0,
            removed: 0,
            clear_from: None,
            lanes: Vec::new(),
        }
    }

    pub(crate) fn store_counters(&self, tree: &mut Tree) {
        tree.put(Space::Facts, fact_key(FactName::Counters(self.id)), self.counters.encode());
    }

    pub(crate) fn store_owner(&self, tree: &mut Tree) {
        tree.put(Space::Facts, fact_key(FactName::Owner(self.id)), self.owner.encode());
    }

    pub(crate) fn store_in_flight(&self, tree: &mut Tree) {
        tree.put(Space::Facts, fact_key(FactName::InFlight(self.id)), encode_in_flight(&self.in_flight));
    }

    /// Stores the bulk jobs that have changed.
    pub(crate) fn store_bulks(&mut self, tree: &mut Tree) {
        for (number, job) in self.controls.bulks.take_changes() {
            let key = fact_key(FactName::Bulk(self.id, number));
            match job {
                Some(job) => tree.put(Space::Facts, key, &job.to_bytes()[..]),
                None => tree.remove(Space::Facts, key),
            }
        }
    }

    /// The order below which a part of a queue has no rows; `None`: a park without timers.
    pub(crate) fn queue_floor(&mut self, part: QueuePart) -> Option<&mut u64> {
        match part {
            QueuePart::Class { dest, priority } => {
                let dest = self.dests.get_mut(&dest).filter(|dest| dest.counts.parked > 0);
                dest.map(|dest| &mut dest.park_floors[priority.rank()])
            }
            QueuePart::Taken => Some(&mut self.taken_floor),
            QueuePart::Unconfirmed => Some(&mut self.unconfirmed_floor),
            QueuePart::Dead => Some(&mut self.dead_floor),
        }
    }

    /// Raises `claimed-until`.
    pub(crate) fn claim(&mut self, until: Option<Time>, tree: &mut Tree) {
        if let Some(until) = until.filter(|until| *until > self.owner.record.claimed_until) {
            self.owner.record.claimed_until = until;
            self.store_owner(tree);
        }
    }

    /// Tells the owner's lanes of timers that were filed as pending.
    pub(crate) fn filed(&mut self, filed: &[(Time, TimerId)]) {
        self.lanes.retain(|lane| lane.upgrade().is_some());
        for lane in self.lanes.iter().filter_map(Weak::upgrade) {
            let mut cursor = lane.cursor();
            filed.iter().for_each(|(fire, id)| cursor.filed(*fire, *id));
        }
    }

    pub(crate) fn join(&mut self, lane: &Arc<LaneShared>) {
        self.lanes.push(Arc::downgrade(lane));
    }

    /// Ends every lane.
    pub(crate) fn end_lanes(&mut self, end: &LaneError) {
        for lane in self.lanes.drain(..).filter_map(|lane| lane.upgrade()) {
            lane.end(end.clone());
        }
    }
}

impl StoredOwner {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(44);
        out.put_u64(self.record.epoch.0);
        out.put_u64(self.record.nonce.0);
        out.put_u64(self.record.term.0);
        out.put_u64(self.record.version);
        out.put_uint(self.record.claimed_until.as_ms(), 6);
        out.put_uint(self.prior_claim.as_ms(), 6);
        out
    }

    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        if bytes.len() != 44 {
            return None;
        }
        let record = OwnerRecord {
            epoch: Epoch(bytes.get_u64()),
            nonce: Nonce(bytes.get_u64()),
            term: Term(bytes.get_u64()),
            version: bytes.get_u64(),
            claimed_until: Time::from_ms(bytes.get_uint(6)),
            // Not stored: the process that opens the store is the only one.
            released: false,
        };
        Some(Self { record, prior_claim: Time::from_ms(bytes.get_uint(6)) })
    }
}

impl PartitionCounters {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(88 + self.ended.len() * 12);
        let c = &self.census;
        let census = [c.pending, c.retrying, c.parked, c.taken, c.dead, c.keys, c.staged, c.residue];
        for n in census.into_iter().chain([self.order, self.floor]) {
            out.put_u64(n);
        }
        for (bucket, count) in &self.ended {
            out.put_u32(*bucket);
            out.put_u64(*count);
        }
        out.put_u64(self.unconfirmed);
        out
    }

    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        // 80 bytes, 12 for each bucket, and the number of unconfirmed timers.
        let (rest, unconfirmed) = bytes.split_last_chunk::<8>()?;
        if !rest.len().checked_sub(80)?.is_multiple_of(12) {
            return None;
        }
        bytes = rest;
        let unconfirmed = u64::from_be_bytes(*unconfirmed);
        let census = Census {
            pending: bytes.get_u64(),
            retrying: bytes.get_u64(),
            parked: bytes.get_u64(),
            taken: bytes.get_u64(),
            dead: bytes.get_u64(),
            keys: bytes.get_u64(),
            staged: bytes.get_u64(),
            residue: bytes.get_u64(),
        };
        let (order, floor) = (bytes.get_u64(), bytes.get_u64());
        let mut ended = BTreeMap::new();
        while bytes.has_remaining() {
            ended.insert(bytes.get_u32(), bytes.get_u64());
        }
        Some(Self { census, unconfirmed, order, floor, ended })
    }
}

/// The bulk job of a number. `None`: it is damaged.
pub(crate) fn decode_bulk(number: u32, bytes: &[u8]) -> Option<BulkJob> {
    BulkJob::from_bytes(bytes).ok().filter(|job| job.number == number)
}

/// The settings of a destination. `None`: they are damaged.
pub(crate) fn decode_settings(bytes: &[u8]) -> Option<StoredSettings> {
    settings_from_bytes(bytes).ok()
}

pub(crate) fn encode_counts(counts: &Counts) -> Vec<u8> {
    let Counts { pending, retrying, parked, taken, unconfirmed, dead, staged } = *counts;
    let all = [pending, retrying, parked, taken, unconfirmed, dead, staged];
    all.into_iter().flat_map(u64::to_be_bytes).collect()
}

pub(crate) fn decode_counts(mut bytes: &[u8]) -> Option<Counts> {
    (bytes.len() == 56).then(|| Counts {
        pending: bytes.get_u64(),
        retrying: bytes.get_u64(),
        parked: bytes.get_u64(),
        taken: bytes.get_u64(),
        unconfirmed: bytes.get_u64(),
        dead: bytes.get_u64(),
        staged: bytes.get_u64(),
    })
}

pub(crate) fn encode_in_flight(list: &[InFlight]) -> Vec<u8> {
    let mut out = Vec::with_capacity(list.len() * 42);
    for entry in list {
        out.put_slice(&entry.id.to_bytes());
        out.put_u32(entry.attempt);
        out.put_u128(entry.session);
        out.put_uint(entry.until.as_ms(), 6);
    }
    out
}

pub(crate) fn decode_in_flight(mut bytes: &[u8]) -> Option<Vec<InFlight>> {
    if !bytes.len().is_multiple_of(42) {
        return None;
    }
    let mut list = Vec::with_capacity(bytes.len() / 42);
    while bytes.has_remaining() {
        list.push(InFlight {
            id: TimerId::from_u128(bytes.get_u128()),
            attempt: bytes.get_u32(),
            session: bytes.get_u128(),
            until: Time::from_ms(bytes.get_uint(6)),
        });
    }
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mirrored_reads_back() {
        let record = OwnerRecord {
            epoch: Epoch(1),
            nonce: Nonce(2),
            term: Term(3),
            version: 4,
            claimed_until: Time::from_ms(5),
            released: false,
        };
        let owner = StoredOwner { record, prior_claim: Time::from_ms(6) };
        assert_eq!(StoredOwner::decode(&owner.encode()), Some(owner));
        let census =
            Census { pending: 1, retrying: 2, parked: 3, taken: 4, dead: 5, keys: 6, staged: 15, residue: 7 };
        let ended = BTreeMap::from([(10, 11), (12, 13)]);
        let counters = PartitionCounters { census, unconfirmed: 14, order: 8, floor: 9, ended };
        let bytes = counters.encode();
        assert_eq!(PartitionCounters::decode(&bytes), Some(counters));
        assert_eq!(PartitionCounters::decode(&bytes[..bytes.len() - 8]), None);
        let counts =
            Counts { pending: 1, retrying: 2, parked: 3, taken: 4, unconfirmed: 5, dead: 6, staged: 7 };
        assert_eq!(decode_counts(&encode_counts(&counts)), Some(counts));
        assert_eq!(decode_counts(&[0; 55]), None);
        let flight = InFlight { id: TimerId::from_u128(1), attempt: 2, session: 3, until: Time::from_ms(4) };
        let list = vec![flight.clone(), flight];
        assert_eq!(decode_in_flight(&encode_in_flight(&list)), Some(list));
        assert_eq!(decode_in_flight(&[0; 41]), None);
        for length in [0, 79, 80, 87, 89, 91] {
            assert_eq!(PartitionCounters::decode(&vec![0; length]), None);
        }
    }
}
