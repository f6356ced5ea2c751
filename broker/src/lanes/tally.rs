//! Figures of the lanes.

use std::time::Duration;

use mtimer_core::figures::Durations;
use mtimer_store::{Call, LaneError};

/// Kinds of calls, by name.
const CALLS: [&str; 7] = ["apply", "load", "unload", "get", "list", "census", "release"];
/// How ownerships end, by name.
pub(crate) const ENDS: [&str; 4] = ["fenced", "rolled_back", "broken", "released"];

/// Figures of the lanes, past and present calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaneFigures {
    /// How long answers took, by kind of call.
    pub(crate) calls: Vec<(&'static str, Durations)>,
    /// Batches that were sent.
    pub(crate) batches: u64,
    /// Operations in them.
    pub(crate) operations: u64,
    /// Ownerships that have ended, in the order of [`ENDS`].
    pub(crate) ended: [u64; ENDS.len()],
    /// Calls that are not answered.
    pub(crate) under_way: u64,
}

/// Counts of the lanes.
#[derive(Debug, Default)]
pub(super) struct LaneTally {
    took: [Durations; CALLS.len()],
    batches: u64,
    operations: u64,
    ended: [u64; ENDS.len()],
}

impl LaneTally {
    /// A call is made. Returns its kind, for [`Self::answered`].
    pub(super) fn count(&mut self, call: &Call) -> usize {
        if let Call::Apply(batch) = call {
            self.batches += 1;
            self.operations += batch.ops.len() as u64;
        }
        kind(call)
    }

    /// A call of this kind was answered.
    pub(super) fn answered(&mut self, kind: usize, took: Duration) {
        self.took[kind].add_us(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// An ownership has ended.
    pub(super) fn ended(&mut self, error: &LaneError) {
        self.ended[end_of(error)] += 1;
    }

    /// The numbers, while so many calls are not answered.
    pub(super) fn figures(&self, under_way: usize) -> LaneFigures {
        let Self { took, batches, operations, ended } = self;
        LaneFigures {
            calls: CALLS.into_iter().zip(took.iter().copied()).collect(),
            batches: *batches,
            operations: *operations,
            ended: *ended,
            under_way: under_way as u64,
        }
    }
}

/// The place of a call in [`CALLS`].
fn kind(call: &Call) -> usize {
    match call {
        Call::Apply(_) => 0,
        Call::Load(_) => 1,
        Call::Unload(_) => 2,
        Call::Get(_) => 3,
        Call::ParkedDestinations | Call::List(_) | Call::Pending(_) => 4,
        Call::Counts(_) | Call::Forecast(_) | Call::Controls => 4,
        Call::Census => 5,
        Call::Release(_) => 6,
    }
}

/// The place of an ownership's end in [`ENDS`].
fn end_of(error: &LaneError) -> usize {
    match error {
        LaneError::Fenced { .. } => 0,
        LaneError::RolledBack(_) => 1,
        LaneError::Broken(_) => 2,
        LaneError::Closed => 3,
    }
}
