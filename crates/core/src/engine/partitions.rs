//! The partitions that this broker owns, by number.

use mtimer_types::PartitionId;

use super::partition::OwnedPartition;

/// All partitions of the cluster; most may be another broker's.
#[derive(Debug)]
pub(super) struct Partitions(Vec<Option<Box<OwnedPartition>>>);

impl Partitions {
    /// `count` partitions, none of them owned.
    pub(super) fn new(count: u16) -> Self {
        Self((0..count).map(|_| None).collect())
    }

    /// The numbers of all partitions, owned or not.
    pub(super) fn ids(&self) -> impl Iterator<Item = PartitionId> + use<> {
        (0..self.0.len() as u16).map(PartitionId)
    }

    /// The partition, if it is owned.
    pub(super) fn get(&self, id: PartitionId) -> Option<&OwnedPartition> {
        self.0.get(usize::from(id.0))?.as_deref()
    }

    /// The partition, if it is owned.
    pub(super) fn get_mut(&mut self, id: PartitionId) -> Option<&mut OwnedPartition> {
        self.0.get_mut(usize::from(id.0))?.as_deref_mut()
    }

    /// Begins to own a partition. A number that is not one of the cluster's is ignored.
    pub(super) fn insert(&mut self, partition: OwnedPartition) {
        if let Some(slot) = self.0.get_mut(usize::from(partition.id().0)) {
            *slot = Some(Box::new(partition));
        }
    }

    /// Ends the ownership of a partition.
    pub(super) fn remove(&mut self, id: PartitionId) -> Option<OwnedPartition> {
        self.0.get_mut(usize::from(id.0))?.take().map(|p| *p)
    }

    /// Those that are owned.
    pub(super) fn iter(&self) -> impl Iterator<Item = &OwnedPartition> {
        self.0.iter().flatten().map(|p| &**p)
    }

    /// Those that are owned.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut OwnedPartition> {
        self.0.iter_mut().flatten().map(|p| &mut **p)
    }

    /// How many are owned.
    pub(super) fn owned(&self) -> usize {
        self.iter().count()
    }
}

#[cfg(test)]
mod tests {
    use mtimer_types::{Epoch, Time};

    use super::*;
    use crate::api::Now;
    use crate::engine::hash::Seeded;

    fn partition(id: u16) -> OwnedPartition {
        let since = Now { time: Time::ZERO, mono_ms: 0 };
        OwnedPartition::new(PartitionId(id), Epoch(1), Time::ZERO, since, Seeded(1))
    }

    #[test]
    fn a_partition_is_owned_from_its_insertion_to_its_removal() {
        let mut all = Partitions::new(3);
        [1, 2, 3].into_iter().for_each(|id| all.insert(partition(id)));
        assert_eq!((all.owned(), all.ids().count()), (2, 3), "there is no partition 3");
        assert!(all.remove(PartitionId(1)).is_some() && all.remove(PartitionId(1)).is_none());
        assert_eq!(all.iter().map(OwnedPartition::id).collect::<Vec<_>>(), [PartitionId(2)]);
        assert!([0, 1, 3, 9].into_iter().all(|id| all.get(PartitionId(id)).is_none()));
    }
}
