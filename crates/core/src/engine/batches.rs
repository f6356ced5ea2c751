//! Group commit: which operations go to the store in one batch, and when.
//!
//! Operations queued for a partition go at the end of the turn, in one batch; while a batch is
//! under way the next gathers. A batch carries a claim if one is wanted.
//! Not in here: the order in the queue (`queue`), answers (`answers`).

use std::collections::BTreeMap;

use mtimer_protocol::OpReply;
use mtimer_store::{Batch, Op};
use mtimer_types::{PartitionId, Time};

use super::calls::OpenCall;
use super::deferral::{DEFER_MS, Flush, TICK_MS};
use super::destination_members::DestIx;
use super::open_requests::OpenRequests;
use super::partition::OwnedPartition;
use super::pending::{Asked, Pending};
use super::recent::RecentIds;
use super::requests::{away, check_age};
use super::{Engine, EnginePhase};
use crate::api::{Call, Effect, Now};

/// Bytes of timers of one batch however small the budget is: one large timer.
const LEAST_BATCH_BYTES: u64 = 64 * 1024;

/// A client's operation that does not go to the store, and its answer.
type AnsweredHere = (PartitionId, Asked, OpReply);

/// Operations that leave, each as the store gets it and as it was asked for.
struct Leaving {
    ops: Vec<Op>,
    pending: Vec<Pending>,
}

impl Leaving {
    fn with_capacity(n: usize) -> Self {
        Self { ops: Vec::with_capacity(n), pending: Vec::with_capacity(n) }
    }

    fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
}

/// The most that a batch carries.
#[derive(Clone, Copy, Debug)]
struct BatchSize {
    ops: usize,
    /// Bytes of timers.
    bytes: u64,
}

/// Whether a partition sends a batch in this turn.
enum NextBatch {
    /// It sends the queued operations, with this claim.
    Send { claim: Option<Time> },
    /// It has nothing to send before this time, monotonic ms.
    Wait { until: Option<u64> },
}

impl Engine {
    /// Makes batches of the queued operations, each with a claim if one is wanted.
    pub(super) fn commit(&mut self, now: Now) {
        let mut flush = self.deferral.begin_turn(now);
        flush.acknowledgements |= self.phase != EnginePhase::Running;
        if self.phase == EnginePhase::Releasing {
            return;
        }
        self.decline_waiting(now);
        // An operation that waited for another of the same key has its turn when that is answered.
        loop {
            let overtaken = self.make_batches(now, flush);
            if overtaken.is_empty() {
                return;
            }
            self.answer_overtaken(overtaken);
        }
    }

    /// Refuses clients' operations that have waited too long to be sent to a store that is away.
    /// An operation that waits for one of these is refused next, in the same way.
    fn decline_waiting(&mut self, now: Now) {
        for at in (0..self.options.partitions).map(PartitionId) {
            while let Some(p) = self.partitions.get_mut(at)
                && let Some(answer) = p.away(now).map(away)
            {
                let waiting = p.queue.take_sessions();
                if waiting.is_empty() {
                    break;
                }
                waiting.into_iter().for_each(|asked| self.answer_asked(at, asked, answer.clone()));
            }
        }
    }

    /// Returns the operations that were overtaken, or became too old, while they waited.
    fn make_batches(&mut self, now: Now, flush: Flush) -> Vec<AnsweredHere> {
        let size = self.batch_size();
        let takes = self.phase == EnginePhase::Running;
        let owned = self.partitions.owned().max(1) as u64;
        let mut overtaken = Vec::new();
        self.deferral.forget_waits();
        for p in self.partitions.iter_mut().filter(|p| !p.is_releasing()) {
            if p.queue.may_wait() {
                // They wait also while a batch is under way.
                p.flush.set(p.id(), now);
            }
            while !p.calls.has_batch() {
                let claim = match p.next_batch(now, flush, size) {
                    NextBatch::Send { claim } => claim,
                    NextBatch::Wait { until } => {
                        self.deferral.note_wait(until);
                        break;
                    }
                };
                if let Some(until) = claim.filter(|_| takes) {
                    p.take_ahead(until, |dest| self.roster.free(dest).div_ceil(owned));
                }
                let leaving = p.take_batch(now, size, &mut self.recent, &self.requests, &mut overtaken);
                if leaving.is_empty() && claim.is_none() {
                    continue;
                }
                let batch = p.begin_batch(now, claim, leaving);
                self.effects.push(Effect::Call(p.id(), Call::Apply(batch)));
            }
        }
        overtaken
    }

    /// Sends the acknowledgements of a partition that may wait for others, with all that would go
    /// in a batch with them, so that the next calls of the store find them done. Acknowledgements
    /// beyond the batch's size, or that arrive while another batch is under way, stay queued.
    /// Called when the turn ends, see [`Engine::take_back`].
    pub(super) fn flush_deferred(&mut self, now: Now, at: PartitionId) {
        let size = self.batch_size();
        let mut overtaken = Vec::new();
        let ready =
            |p: &&mut OwnedPartition| p.queue.has_deferrable() && !p.is_releasing() && !p.calls.has_batch();
        let Some(p) = self.partitions.get_mut(at).filter(ready) else { return };
        let leaving = p.take_batch(now, size, &mut self.recent, &self.requests, &mut overtaken);
        if !leaving.is_empty() {
            self.effects.push(Effect::Call(at, Call::Apply(p.begin_batch(now, None, leaving))));
        }
        self.answer_overtaken(overtaken);
    }

    /// Makes batches of all that is queued of a partition.
    pub(super) fn commit_rest(&mut self, now: Now, at: PartitionId) {
        let size = self.batch_size();
        let mut overtaken = Vec::new();
        if let Some(p) = self.partitions.get_mut(at) {
            p.queue_put_off();
            while !p.queue.is_empty() {
                let leaving = p.take_batch(now, size, &mut self.recent, &self.requests, &mut overtaken);
                self.effects.push(Effect::Call(at, Call::Apply(p.begin_batch(now, None, leaving))));
            }
        }
        self.answer_overtaken(overtaken);
    }

    /// Bounds the operations on their way to the store and to the park to a part of the memory
    /// budget, however many overdue timers are scheduled at once.
    fn batch_size(&self) -> BatchSize {
        let owned = self.partitions.owned().max(1) as u64;
        let bytes = self.options.memory_bytes / (16 * owned);
        BatchSize { ops: self.options.batch_ops.max(1), bytes: bytes.max(LEAST_BATCH_BYTES) }
    }

    fn answer_overtaken(&mut self, overtaken: Vec<AnsweredHere>) {
        for (at, asked, answer) in overtaken {
            self.answer_asked(at, asked, answer);
        }
    }
}

impl OwnedPartition {
    /// Decides whether a batch goes now. Queued operations go at once, unless all of them may wait;
    /// then they go at their deadline, with a claim that goes, or when a batch is full.
    fn next_batch(&mut self, now: Now, flush: Flush, size: BatchSize) -> NextBatch {
        let defers = self.queue.may_wait()
            && !flush.acknowledgements
            && !self.is_leaving()
            && self.queue.len() < size.ops;
        let until = defers.then(|| self.flush.set(self.id(), now)).filter(|at| now.mono_ms < *at);
        let is_idle = self.queue.is_empty() || until.is_some();
        let ahead = match is_idle {
            true if flush.claims => TICK_MS,
            true => 0,
            false => DEFER_MS,
        };
        let claim = self.claim_wanted(now, ahead);
        if is_idle && claim.is_none() { NextBatch::Wait { until } } else { NextBatch::Send { claim } }
    }

    /// Asks for the at-most-once timers that a claim up to `until` covers, so that no turn of the
    /// store is needed for each when it is due: see "Timers taken ahead" in
    /// `docs/performance-notes.md`. Of a destination no more than `credit`, which it has now: a
    /// crash makes those unconfirmed that were taken and not sent. The others are taken when they
    /// are given out.
    fn take_ahead(&mut self, until: Time, credit: impl Fn(DestIx) -> u64) {
        let mut left = BTreeMap::new();
        for id in self.table.pass_to_take(until) {
            let is_undecided = self.is_undecided(id);
            let Some(entry) = self.table.get(id).filter(|e| !is_undecided && !e.may_be_taken()) else {
                continue;
            };
            if entry.record.progress.stopped || entry.record.timer.is_past_deadline(entry.fire) {
                continue;
            }
            let left = left.entry(entry.dest).or_insert_with(|| credit(entry.dest));
            if *left > 0 {
                *left -= 1;
                self.ask_take(id);
            }
        }
    }

    /// Takes the operations of the next batch, completed ([`Self::complete`]). Two kinds go to
    /// `overtaken` instead, with their answers: a schedule that must not be asked of the store any
    /// more ([`Self::known`]), and an operation that a client first sent longer ago than outcomes
    /// are kept, since it may be a repeat whose outcome is forgotten.
    fn take_batch(
        &mut self,
        now: Now,
        size: BatchSize,
        recent: &mut RecentIds,
        requests: &OpenRequests,
        overtaken: &mut Vec<AnsweredHere>,
    ) -> Leaving {
        self.flush.clear();
        let queued = self.queue.take(size.ops, size.bytes);
        let mut leaving = Leaving::with_capacity(queued.len());
        for pending in queued {
            let mut pending = match pending {
                Pending::Own(_) => pending,
                Pending::Asked(asked) => {
                    let known = self.known(recent, now, &asked.op);
                    let too_old = || check_age(now.time, requests.first_sent(asked.reply)?);
                    if let Some(answer) = known.or_else(too_old) {
                        overtaken.push((self.id(), asked, answer));
                        continue;
                    }
                    Pending::Asked(asked)
                }
            };
            if let Some(op) = self.complete(now.time, &mut pending) {
                leaving.ops.push(op);
                leaving.pending.push(pending);
            }
        }
        leaving
    }

    /// Makes a batch, which is under way from here on.
    fn begin_batch(&mut self, now: Now, claim: Option<Time>, leaving: Leaving) -> Batch {
        let Leaving { ops, pending } = leaving;
        self.claims.ask(claim);
        self.calls.push(OpenCall::Apply { pending, claim, begun: now.mono_ms });
        Batch { now: now.time, claim, ops }
    }
}
