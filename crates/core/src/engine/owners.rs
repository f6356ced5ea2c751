//! Who owns a partition, as far as this broker knows, and the answer to a request that reaches the
//! wrong one.

use mtimer_protocol::{ErrorCode, OpReply, QueryAnswer, SettleRefusal};
use mtimer_types::PartitionId;

use super::Engine;

impl Engine {
    /// Whether this broker answers for a partition.
    pub(super) fn serves(&self, at: PartitionId) -> bool {
        self.partitions.get(at).is_some_and(|p| !p.is_leaving())
    }

    /// Another broker that a partition is assigned to.
    pub(super) fn other_owner(&self, at: PartitionId) -> Option<&str> {
        let own = self.options.address.as_deref();
        self.topology.as_ref()?.owner(at).filter(|owner| Some(*owner) != own)
    }

    /// Whether there may be other brokers. Clients may know the topology before this broker has
    /// heard of it: one that has just started may be asked about partitions that it is about to
    /// own.
    pub(super) fn is_in_cluster(&self) -> bool {
        self.options.address.is_some()
    }

    /// The answer to an operation on a partition that this broker does not serve.
    pub(super) fn not_served(&self, at: PartitionId) -> OpReply {
        match self.other_owner(at) {
            Some(owner) => OpReply::Moved { owner: owner.to_owned() },
            None => OpReply::Failed { code: ErrorCode::NotOwner, message: not_owner(at) },
        }
    }

    /// The answer to a question about such a partition.
    pub(super) fn not_asked(&self, at: PartitionId) -> QueryAnswer {
        match self.other_owner(at) {
            Some(owner) => QueryAnswer::Moved { owner: owner.to_owned() },
            None => QueryAnswer::Failed { code: ErrorCode::NotOwner, message: not_owner(at) },
        }
    }

    /// Why an outcome is refused whose partition has gone: in a cluster another owner can still
    /// take it.
    pub(super) fn settled_elsewhere(&self) -> SettleRefusal {
        if self.is_in_cluster() { SettleRefusal::Moved } else { SettleRefusal::Late }
    }
}

fn not_owner(at: PartitionId) -> String {
    format!("this broker does not own partition {at}")
}
