//! Reads the mirror in memory back when a directory is opened.

use std::ops::Bound;

use bytes::Bytes;
use mtimer_store::bulk::Bulks;
use mtimer_types::{PartitionId, Term};

use crate::committer::Committer;
use crate::fault::Fault;
use crate::layout::{FactName, Space, parse_fact_key};
use crate::partition::{
    DestinationMirror, PartitionCounters, PartitionMirror, StoredOwner, decode_bulk, decode_counts,
    decode_in_flight, decode_settings,
};

impl Committer {
    /// The committer with everything that the directory's facts say.
    pub(crate) fn restored(mut self) -> Result<Self, Fault> {
        let facts = self.tree.scan(Space::Facts, Bound::Unbounded, Bound::Unbounded);
        for fact in facts {
            let (key, value) = fact?;
            self.restore(&key, &value)?;
        }
        Ok(self)
    }

    fn restore(&mut self, key: &[u8], value: &Bytes) -> Result<(), Fault> {
        let fact = parse_fact_key(key).ok_or(Fault::Damaged("a fact's key is unreadable"))?;
        let unreadable = Fault::Damaged("a fact is unreadable");
        match fact {
            FactName::Owner(p) => self.partition(p)?.owner = StoredOwner::decode(value).ok_or(unreadable)?,
            FactName::InFlight(p) => {
                self.partition(p)?.in_flight = decode_in_flight(value).ok_or(unreadable)?
            }
            FactName::Counters(p) => {
                self.partition(p)?.counters = PartitionCounters::decode(value).ok_or(unreadable)?
            }
            FactName::Counts(p, dest) => {
                let counts = decode_counts(value).ok_or(unreadable)?;
                self.partition(p)?
                    .dests
                    .insert(dest, DestinationMirror { counts, ..DestinationMirror::default() });
            }
            FactName::Bulk(p, number) => {
                let job = decode_bulk(number, value).ok_or(Fault::Damaged("a bulk job is unreadable"))?;
                let bulks = &mut self.partition(p)?.controls.bulks;
                *bulks = Bulks::stored([bulks.all(), &[job]].concat());
            }
            FactName::Settings(p, _) => {
                let row = decode_settings(value)
                    .ok_or(Fault::Damaged("a destination's settings are unreadable"))?;
                self.partition(p)?.controls.settings.restore(row);
            }
            FactName::Destination(dest) => self.destinations.restore(dest, value)?,
            // The tree keeps count of its batches.
            FactName::Group => {}
            FactName::Term => self.term = Term(number(value).ok_or(unreadable)?),
        }
        Ok(())
    }

    fn partition(&mut self, p: PartitionId) -> Result<&mut PartitionMirror, Fault> {
        self.partitions
            .get_mut(usize::from(p.0))
            .ok_or(Fault::Damaged("it has facts of a partition too many"))
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}
