//! Level `redis-replicated`: what is answered is on enough replicas, or the answer says that it is
//! not.
//!
//! What adds, takes or cancels waits for them, also if it was written earlier (a repeat).
//! Settlements do not: if a failover undoes one the timer is delivered again. A claim waits without
//! limit, because deliveries begin once it is stored.
//!
//! Not in here: the other level, which waits for nothing.

use mtimer_store::{Answer, LaneError, Op, Refusal};

use super::owner::Owner;

impl Owner {
    /// Waits until the answers to a batch may be given, and refuses those that may not.
    ///
    /// # Errors
    ///
    /// The lane has ended.
    pub(super) async fn confirm(&mut self, ops: &[Op], answers: &mut [Answer]) -> Result<(), LaneError> {
        let waiting = ops.iter().zip(answers).filter(|(op, answer)| waits(op) && !is_refusal(answer));
        let waiting: Vec<_> = waiting.map(|(_, answer)| answer).collect();
        if waiting.is_empty() || self.writer.wait_for_replicas().await? {
            return Ok(());
        }
        for answer in waiting {
            *answer = Answer::Refused(Refusal::NotReplicated);
        }
        Ok(())
    }

    /// Waits until a claim may be relied on, and everything before it.
    ///
    /// # Errors
    ///
    /// The lane has ended.
    pub(super) async fn confirm_claim(&mut self) -> Result<(), LaneError> {
        while !self.writer.wait_for_replicas().await? {
            self.writer.pause("too few replicas have confirmed what is claimed").await?;
        }
        self.writer.mark_up();
        Ok(())
    }
}

/// Whether nothing was done, for a reason of its own.
const fn is_refusal(answer: &Answer) -> bool {
    matches!(answer, Answer::Refused(_))
}

/// Whether the answer to an operation waits for replicas.
const fn waits(op: &Op) -> bool {
    op.adds() || matches!(op, Op::Cancel { .. } | Op::Take { .. })
}
