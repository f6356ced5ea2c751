//! Level `redis-replicated`: how many replicas must have a write, and which partitions' writes they
//! do not confirm, by the last wait of each.
//!
//! Not in here: waiting ([`super::writer`]).

use std::collections::HashSet;
use std::sync::Arc;

use mtimer_types::PartitionId;
use parking_lot::Mutex;

use crate::wire::Replicas;

/// How many replicas must have a write.
#[derive(Clone)]
pub(crate) struct Quorum {
    /// Waits for them as long as the level says.
    pub(crate) confirmations: Arc<dyn Replicas>,
    pub(crate) replicas: u32,
    pub(crate) shortage: Arc<Shortage>,
}

/// The partitions of a store that lack replicas.
#[derive(Default, Debug)]
pub(crate) struct Shortage(Mutex<HashSet<PartitionId>>);

impl Shortage {
    /// How many partitions there are.
    pub(crate) fn partitions(&self) -> usize {
        self.0.lock().len()
    }

    /// Logs when the first one comes, and when the last one goes.
    fn set(&self, partition: PartitionId, is_short: bool) {
        let mut partitions = self.0.lock();
        match is_short {
            true if partitions.insert(partition) && partitions.len() == 1 => tracing::warn!(
                partition = partition.0,
                "too few replicas confirm what is written: schedules are answered as stored, not confirmed, and what is \
                 due is not delivered unless an earlier claim covers it, until they do (see why replicas lag or are \
                 missing, or lower replicas, or use the level redis)"
            ),
            false if partitions.remove(&partition) && partitions.is_empty() => {
                tracing::info!("replicas confirm what is written again");
            }
            _ => {}
        }
    }
}

/// The last wait of one partition.
#[derive(Debug)]
pub(super) struct LastWait {
    shortage: Arc<Shortage>,
    partition: PartitionId,
    /// `None`: nobody has waited yet.
    is_short: Option<bool>,
}

impl LastWait {
    pub(super) fn new(quorum: Option<&Quorum>, partition: PartitionId) -> Self {
        let shortage = quorum.map(|quorum| quorum.shortage.clone()).unwrap_or_default();
        Self { shortage, partition, is_short: None }
    }

    /// Notes whether replicas did not confirm in time.
    pub(super) fn note(&mut self, is_short: bool) {
        self.is_short = Some(is_short);
        self.shortage.set(self.partition, is_short);
    }

    /// Whether replicas did not confirm in time. `None`: nobody has waited yet.
    pub(super) const fn is_short(&self) -> Option<bool> {
        self.is_short
    }
}

impl Drop for LastWait {
    fn drop(&mut self) {
        self.shortage.set(self.partition, false);
    }
}
