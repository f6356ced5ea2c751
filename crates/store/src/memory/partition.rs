//! One partition of the in-memory store: its stored state, and the lanes that lead to it.

use std::collections::{HashMap, VecDeque};

use mtimer_types::{Epoch, Nonce, PartitionId, Time};
use tokio::sync::{oneshot, watch};

use super::table::MemoryTable;
use crate::call::{Call, CallAnswer, InFlight};
use crate::cursor::LoadCursor;
use crate::error::LaneError;
use crate::lane::{Health, OwnerRecord};
use crate::ops::{Answer, Batch};
use crate::refusal::Refusal;
use crate::table::{Context, Table};

/// The state that survives every owner.
#[derive(Clone, Default)]
pub(super) struct Stored {
    pub(super) table: MemoryTable,
    pub(super) owner: OwnerRecord,
    /// `claimed_until` when the present owner acquired.
    pub(super) prior_claim: Time,
    pub(super) in_flight: Vec<InFlight>,
    /// Writes so far: a lane that finds fewer than it made knows that some were lost.
    pub(super) seq: u64,
}

/// Why a call that met [`Reachability::Cut`] has no answer.
pub(super) const CUT: &str = "the connection was lost";

/// How the way to a partition is disturbed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reachability {
    Up,
    /// Calls are carried out, answers wait.
    Held,
    /// Calls are carried out, answers are lost: the lane asks again when it can.
    Cut,
    /// Nothing gets through.
    Down(String),
}

/// The stored partition, the way to it, and who is on it.
pub(super) struct MemoryPartition {
    pub(super) id: PartitionId,
    pub(super) stored: Stored,
    pub(super) saved: Option<Box<Stored>>,
    pub(super) link: Reachability,
    pub(super) full: bool,
    /// The answer to the next acquisition is lost.
    pub(super) loses_acquisition: bool,
    pub(super) lanes: HashMap<u64, LaneState>,
}

/// One lane's state.
pub(super) struct LaneState {
    pub(super) epoch: Epoch,
    pub(super) nonce: Nonce,
    pub(super) prior_claim: Time,
    pub(super) seq: u64,
    pub(super) cursor: LoadCursor,
    pub(super) ended: Option<LaneError>,
    pub(super) health: watch::Sender<Health>,
    /// Calls made and not carried out. Not bounded: the owner bounds its calls.
    pub(super) waiting: VecDeque<(Call, Caller)>,
    /// Calls carried out and not answered.
    pub(super) unanswered: VecDeque<(Result<CallAnswer, LaneError>, Caller)>,
}

/// Who waits for a call's answer. Answers go nowhere if the caller has dropped the future.
pub(super) type Caller = oneshot::Sender<Result<CallAnswer, LaneError>>;

/// A call's turn: all it may touch.
pub(super) struct Turn<'a> {
    pub(super) stored: &'a mut Stored,
    pub(super) cursor: &'a mut LoadCursor,
    pub(super) seq: &'a mut u64,
    /// How the lane ends with this call, if it does.
    pub(super) after: &'a mut Option<LaneError>,
    pub(super) epoch: Epoch,
    pub(super) prior_claim: Time,
    pub(super) full: bool,
}

impl Turn<'_> {
    /// Carries out a call.
    fn carry_out(&mut self, call: Call) -> CallAnswer {
        let table = &self.stored.table;
        match call {
            Call::Apply(batch) => CallAnswer::Apply(self.apply(&batch)),
            Call::Load(load) => {
                if load.claim.is_some() {
                    self.wrote(load.claim);
                }
                let table = &self.stored.table;
                CallAnswer::Load(table.load(self.cursor, &load, self.epoch, self.prior_claim))
            }
            Call::Unload(beyond) => {
                self.cursor.unload(beyond);
                CallAnswer::Unload
            }
            Call::Get(target) => {
                CallAnswer::Get(table.find(&target).map(|row| (row.record.clone(), row.at.place())))
            }
            Call::ParkedDestinations => CallAnswer::ParkedDestinations(table.parked_destinations()),
            Call::List(listing) => CallAnswer::List(table.list(&listing)),
            Call::Pending(range) => CallAnswer::Pending(table.pending(&range)),
            Call::Counts(range) => CallAnswer::Counts(table.counts(&range)),
            Call::Forecast(range) => CallAnswer::Forecast(table.forecast(&range)),
            Call::Controls => CallAnswer::Controls(table.controls().clone().into()),
            Call::Census => CallAnswer::Census(table.census()),
            Call::Release(in_flight) => {
                self.release(in_flight);
                CallAnswer::Release
            }
        }
    }

    fn release(&mut self, in_flight: Vec<InFlight>) {
        self.wrote(None);
        self.stored.in_flight = in_flight;
        self.stored.owner.released = true;
        self.stored.owner.claimed_until = self.stored.prior_claim;
        *self.after = Some(LaneError::Closed);
    }

    /// Applies a batch.
    fn apply(&mut self, batch: &Batch) -> Vec<Answer> {
        self.wrote(batch.claim);
        let ctx = Context { epoch: self.epoch, prior_claim: self.prior_claim, now: batch.now };
        let mut answers = Vec::with_capacity(batch.ops.len());
        for op in &batch.ops {
            if self.full && op.adds() {
                answers.push(Answer::Refused(Refusal::OutOfMemory));
            } else {
                let Ok(answer) = op.decide(&mut self.stored.table, &ctx);
                answers.push(answer);
            }
        }
        for (fire, id) in self.stored.table.filed.drain(..) {
            self.cursor.filed(fire, id);
        }
        answers
    }

    /// Counts a write, with a claim that rides on it.
    fn wrote(&mut self, claim: Option<Time>) {
        self.stored.seq += 1;
        *self.seq = self.stored.seq;
        let claimed = &mut self.stored.owner.claimed_until;
        *claimed = claim.map_or(*claimed, |claim| claim.max(*claimed));
    }
}

impl MemoryPartition {
    pub(super) fn new(id: PartitionId) -> Self {
        Self {
            id,
            stored: Stored::default(),
            saved: None,
            link: Reachability::Up,
            full: false,
            loses_acquisition: false,
            lanes: HashMap::new(),
        }
    }

    /// Carries out and answers the calls that a lane can by now.
    pub(super) fn pump(&mut self, lane: u64) {
        let Some(lane) = self.lanes.get_mut(&lane) else { return };
        while lane.ended.is_some() || !matches!(self.link, Reachability::Down(_)) {
            let Some((call, caller)) = lane.waiting.pop_front() else { break };
            let mut after = None;
            let answer = lane.gate(self.id, &self.stored).map(|()| {
                let mut turn = Turn {
                    stored: &mut self.stored,
                    cursor: &mut lane.cursor,
                    seq: &mut lane.seq,
                    after: &mut after,
                    epoch: lane.epoch,
                    prior_claim: lane.prior_claim,
                    full: self.full,
                };
                turn.carry_out(call)
            });
            let after = answer.as_ref().err().cloned().or(after);
            lane.unanswered.push_back((answer, caller));
            if let Some(end) = after {
                lane.end(end);
            }
        }
        if self.link == Reachability::Up {
            lane.unanswered.drain(..).for_each(|(answer, caller)| drop(caller.send(answer)));
        }
    }

    /// Changes the way to the partition, tells the lanes, and lets them go on.
    pub(super) fn set_link(&mut self, link: Reachability) {
        let lost = self.link == Reachability::Cut && link == Reachability::Up;
        self.link = link;
        let numbers: Vec<u64> = self.lanes.keys().copied().collect();
        for number in numbers {
            if let Some(lane) = self.lanes.get_mut(&number) {
                if lost && let Err(end) = lane.owns(self.id, &self.stored) {
                    // Whether the unanswered calls were carried out can no longer be found out.
                    lane.end(end.clone());
                    lane.unanswered.drain(..).for_each(|(_, caller)| drop(caller.send(Err(end.clone()))));
                }
                if lane.ended.is_none() {
                    lane.health.send_replace(self.link.health());
                }
            }
            self.pump(number);
        }
    }

    /// Ends every lane.
    pub(super) fn end_lanes(&mut self, end: &LaneError) {
        let numbers: Vec<u64> = self.lanes.keys().copied().collect();
        for number in numbers {
            if let Some(lane) = self.lanes.get_mut(&number) {
                lane.end(end.clone());
            }
            self.pump(number);
        }
    }
}

impl LaneState {
    /// Whether this lane may still touch the partition.
    fn gate(&self, partition: PartitionId, stored: &Stored) -> Result<(), LaneError> {
        match &self.ended {
            Some(end) => Err(end.clone()),
            None => self.owns(partition, stored),
        }
    }

    /// Whether the partition is as this lane left it.
    fn owns(&self, partition: PartitionId, stored: &Stored) -> Result<(), LaneError> {
        if (stored.owner.epoch, stored.owner.nonce) != (self.epoch, self.nonce) {
            return Err(if stored.owner.epoch < self.epoch {
                LaneError::RolledBack(partition)
            } else {
                LaneError::Fenced { partition, stored: stored.owner.epoch, ours: self.epoch }
            });
        }
        if stored.seq != self.seq { Err(LaneError::RolledBack(partition)) } else { Ok(()) }
    }

    /// Ends the lane, unless it has ended already.
    pub(super) fn end(&mut self, end: LaneError) {
        if self.ended.is_none() {
            self.health.send_replace(Health::Ended(end.clone()));
            self.ended = Some(end);
        }
    }
}

impl Reachability {
    fn health(&self) -> Health {
        match self {
            Self::Up | Self::Held => Health::Up,
            Self::Cut => Health::Down(CUT.into()),
            Self::Down(why) => Health::Down(why.clone()),
        }
    }
}
