//! What stands behind the engine under test.

use std::collections::VecDeque;
use std::sync::Arc;

use mtimer_core::{Call, CallAnswer, Now};
use mtimer_protocol::Delivery;
use mtimer_store::{Health, InFlight, LaneError};
use mtimer_types::{Epoch, PartitionId, Time, Timer};

use super::input::Program;

/// What stands behind the engine.
pub(super) trait Backend {
    /// A call that was made and not answered to the engine yet.
    type Open;

    /// The partition is acquired again. `None`: not for now.
    fn acquire(&mut self, at: PartitionId, world: &Known, program: &mut Program<'_>) -> Option<Acquired>;
    /// A call is made on the partition's lane.
    fn call(&mut self, at: PartitionId, call: Call) -> Self::Open;
    /// The answer to the oldest open call. `Err`: it is not there yet.
    fn answer(
        &mut self,
        at: PartitionId,
        open: Self::Open,
        world: &Known,
        program: &mut Program<'_>,
    ) -> Result<Result<CallAnswer, LaneError>, Self::Open>;
    /// Something that a store may do by itself.
    fn disturb(&mut self, at: PartitionId, program: &mut Program<'_>) -> Option<Health>;
    /// The lane has ended; these calls get no answer.
    fn ended(&mut self, at: PartitionId, open: VecDeque<Self::Open>);
    /// A delivery is on its way to a client.
    fn delivered(&mut self, world: &Known, delivery: &Delivery);
}

/// A partition acquired.
pub(super) struct Acquired {
    pub(super) epoch: Epoch,
    pub(super) prior_claim: Time,
    pub(super) in_flight: Vec<InFlight>,
}

/// What a backend may look at.
pub(super) struct Known {
    pub(super) now: Now,
    /// Every timer that a client has asked for, and some that it has not.
    pub(super) timers: Vec<Arc<Timer>>,
}

impl Known {
    /// The timers of one partition.
    pub(super) fn of(&self, at: PartitionId) -> Vec<Arc<Timer>> {
        self.timers.iter().filter(|t| t.id.partition() == at).cloned().collect()
    }
}
