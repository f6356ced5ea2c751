//! What goes to the store and what comes back: acquisition, group commit, answers in order, the end
//! of an ownership.

use mtimer_protocol::{ErrorCode, OpReply};
use mtimer_store::{Answer, Batch, Health, InFlight, LaneError, Op, Refusal, Retained};
use mtimer_types::{Epoch, PartitionId, Time, TimerId};
use slab::Slab;

use super::partition::{GATHER_MS, Partition, Pending, TICK_MS};
use super::purpose::OpCtx;
use super::queue::Queued;
use super::recent::RecentIds;
use super::requests::{OpenRequest, check_age};
use super::table::{Entry, State};
use super::{Engine, Phase};
use crate::api::{Call, CallAnswer, Counter, Effect, Now};

/// Bytes of timers of one batch however small the budget is: one large timer.
const LEAST_BATCH_BYTES: u64 = 64 * 1024;

/// A client's operation that does not go to the store, and its answer.
type Overtaken = (PartitionId, OpCtx, OpReply);

impl Engine {
    pub(super) fn acquired(
        &mut self,
        now: Now,
        id: PartitionId,
        epoch: Epoch,
        prior_claim: Time,
        in_flight: Vec<InFlight>,
    ) {
        let Some(slot) = self.partitions.get_mut(usize::from(id.0)) else { return };
        let mut p = Partition::new(id, epoch, prior_claim, now.time, self.seed);
        p.inherited.take_over(in_flight);
        p.trim_at = now.mono_ms + u64::from(id.0) * 997 % 60_000;
        *slot = Some(Box::new(p));
        self.call(id, Pending::Taken, Call::Taken(0, mtimer_types::limits::MAX_PAGE));
        self.call(id, Pending::ParkedDestinations, Call::ParkedDestinations);
    }

    pub(super) fn call(&mut self, id: PartitionId, pending: Pending, call: Call) {
        if let Some(p) = self.partition(id) {
            p.calls.push_back(pending);
            self.effects.push(Effect::Call(id, call));
        }
    }

    pub(super) fn health(&mut self, id: PartitionId, health: Health) {
        let Some(p) = self.partition(id) else { return };
        match health {
            Health::Up => p.down = None,
            Health::Down(why) => p.down = Some(why),
            Health::Ended(error) => self.lane_ended(id, error),
        }
    }

    /// Makes batches of what is queued, each with a claim if one is wanted.
    pub(super) fn commit(&mut self, now: Now) {
        let tick = now.time.as_ms() / TICK_MS;
        let ticked = std::mem::replace(&mut self.ticked, tick) != tick;
        let all = std::mem::take(&mut self.short) || self.phase != Phase::Running;
        if self.phase == Phase::Releasing {
            return;
        }
        // What waited for an operation of the same key has its turn when that is answered.
        loop {
            let overtaken = self.make_batches(now, ticked, all);
            if overtaken.is_empty() {
                return;
            }
            self.answer_overtaken(overtaken);
        }
    }

    /// Returns what was overtaken, or has become too old, while it waited. `ticked`: a multiple of
    /// [`TICK_MS`] has passed, so claims go. `all`: what may wait goes now.
    fn make_batches(&mut self, now: Now, ticked: bool, all: bool) -> Vec<Overtaken> {
        let size = self.batch_size();
        let mut overtaken = Vec::new();
        self.gather_at = None;
        for p in self.partitions.iter_mut().flatten().filter(|p| !p.release_out) {
            if p.queue.may_wait() {
                // They wait also while a batch is under way.
                p.gather_at(now);
            }
            while p.applies_out == 0 {
                let waits = p.queue.may_wait() && !all && !p.leaving && p.queue.len() < size.0;
                let gather_at = waits.then(|| p.gather_at(now)).filter(|at| now.mono_ms < *at);
                let idle = p.queue.is_empty() || gather_at.is_some();
                let ahead = match idle {
                    true if ticked => TICK_MS,
                    true => 0,
                    false => GATHER_MS,
                };
                // A claim waits while the store is away: what it is for is asked anew when it is
                // back.
                let claim = p.claim_wanted(now.time, now.mono_ms, ahead).filter(|_| p.down.is_none());
                if idle && claim.is_none() {
                    self.gather_at = self.gather_at.into_iter().chain(gather_at).min();
                    break;
                }
                let queued = p.take_batch(now, size, &mut self.recent, &self.requests, &mut overtaken);
                if queued.is_empty() && claim.is_none() {
                    continue;
                }
                self.effects.push(Effect::Call(p.id, Call::Apply(p.batch_of(now, claim, queued))));
            }
        }
        overtaken
    }

    /// Sends the acknowledgements of a partition that may wait for others, with all that would go
    /// in a batch with them, so that what is asked of the store next finds them done. Only those
    /// are overtaken that the batch cannot take, or that come while another one is under way.
    /// Called when the turn ends, see [`Engine::take_back`].
    pub(super) fn flush_deferred(&mut self, now: Now, at: PartitionId) {
        let size = self.batch_size();
        let mut overtaken = Vec::new();
        let p = self.partitions.get_mut(usize::from(at.0)).and_then(Option::as_deref_mut);
        let ready = |p: &&mut Partition| p.queue.has_patient() && !p.release_out && p.applies_out == 0;
        let Some(p) = p.filter(ready) else { return };
        let queued = p.take_batch(now, size, &mut self.recent, &self.requests, &mut overtaken);
        if !queued.is_empty() {
            self.effects.push(Effect::Call(at, Call::Apply(p.batch_of(now, None, queued))));
        }
        self.answer_overtaken(overtaken);
    }

    /// How many operations a batch has, and how many bytes of timers. However many are scheduled
    /// overdue at once, what is on its way to the store and what is on its way to the park take a
    /// part of the budget only.
    fn batch_size(&self) -> (usize, u64) {
        let owned = self.partitions.iter().flatten().count().max(1) as u64;
        let bytes = self.options.memory_bytes / (16 * owned);
        (self.options.batch_ops.max(1), bytes.max(LEAST_BATCH_BYTES))
    }

    fn answer_overtaken(&mut self, overtaken: Vec<Overtaken>) {
        for (at, ctx, answer) in overtaken {
            self.decline(at, ctx, answer);
        }
    }

    /// Makes batches of all that is queued of a partition.
    pub(super) fn commit_rest(&mut self, now: Now, at: PartitionId) {
        let size = self.batch_size();
        let mut overtaken = Vec::new();
        if let Some(p) = self.partitions.get_mut(usize::from(at.0)).and_then(Option::as_deref_mut) {
            p.queue_put_off();
            while !p.queue.is_empty() {
                let queued = p.take_batch(now, size, &mut self.recent, &self.requests, &mut overtaken);
                self.effects.push(Effect::Call(p.id, Call::Apply(p.batch_of(now, None, queued))));
            }
        }
        self.answer_overtaken(overtaken);
    }

    pub(super) fn answered(&mut self, now: Now, id: PartitionId, epoch: Epoch, answer: CallAnswer) {
        let Some(p) = self.partition(id).filter(|p| p.epoch == epoch) else { return };
        if let CallAnswer::Ended(error) = answer {
            return self.lane_ended(id, error);
        }
        let Some(pending) = p.calls.pop_front() else { return };
        match (pending, answer) {
            (Pending::Apply { ctxs, claim, begun }, CallAnswer::Apply(answers)) => {
                p.applies_out -= 1;
                if answers.len() != ctxs.len() {
                    // Every operation's caller is to be told, so the batch counts as unanswered.
                    let text = format!("{} answers to {} operations", answers.len(), ctxs.len());
                    p.calls.push_front(Pending::Apply { ctxs, claim, begun });
                    return self.lane_ended(id, LaneError::Broken(text));
                }
                p.note_lag(begun, now.mono_ms);
                // A store may refuse before it looks at the owner record; one that lacks replicas
                // has written.
                let unseen = |a: &Answer| {
                    matches!(a, Answer::Refused(Refusal::OutOfMemory | Refusal::ReadOnly | Refusal::MayEvict))
                };
                if claim.is_some() || !answers.iter().all(unseen) {
                    p.confirm(claim, begun);
                }
                for (ctx, answer) in ctxs.into_iter().zip(answers) {
                    self.applied(now, id, ctx, answer);
                }
            }
            (Pending::Load { claim, begun }, CallAnswer::Load(loaded)) => {
                p.load_out = false;
                if claim.is_some() {
                    p.confirm(claim, begun);
                }
                self.loaded(now, id, loaded);
            }
            (Pending::Unload { beyond }, CallAnswer::Unload) => self.unloaded(id, beyond),
            (Pending::Fetch(timer), CallAnswer::Get(found)) => self.fetched(now, timer, found),
            (Pending::ParkedDestinations, CallAnswer::ParkedDestinations(list)) => self.parks_known(id, list),
            (Pending::Parked { dest }, CallAnswer::Parked(page)) => self.parked_page(now, id, &dest, page),
            (Pending::Sweep { dest }, CallAnswer::Parked(page)) => self.swept(now, id, &dest, page),
            (Pending::Taken, CallAnswer::Taken(page)) => self.taken_page(now, id, page),
            (Pending::Query(part), answer) => self.query_answered(id, part, answer),
            // Whoever still waits for something behind it is told.
            (Pending::Release, CallAnswer::Release) => self.lane_ended(id, LaneError::Closed),
            (pending, _) => {
                let text = format!("an answer of another kind than the call: {pending:?}");
                self.lane_ended(id, LaneError::Broken(text));
            }
        }
    }

    fn applied(&mut self, now: Now, at: PartitionId, ctx: OpCtx, answer: Answer) {
        match (ctx, answer) {
            (ctx, Answer::Refused(refusal)) => match ctx.own_op() {
                Some(op) => self.put_off(at, op, ctx),
                None => self.refused(at, ctx, refusal),
            },
            (OpCtx::Take { id, .. }, answer) => self.taken(now, id, &answer),
            (OpCtx::Settle { id, verdict, report, late }, answer) => {
                self.settled(now, id, verdict, report, late, &answer)
            }
            (OpCtx::Park { id, .. }, answer) => self.parked(id, &answer),
            (OpCtx::Unpark { id }, answer) => self.unparked(now, id, &answer),
            (OpCtx::Trim(of), Answer::Trimmed { removed, more }) => {
                let counter = match of {
                    Retained::Dead => Counter::DeadTrimmed,
                    Retained::Unconfirmed => Counter::UnconfirmedTrimmed,
                };
                self.count(counter, u64::from(removed));
                if let Some(p) = self.partition(at).filter(|_| more) {
                    p.trim_at = now.mono_ms;
                }
            }
            (OpCtx::Trim(_), _) => {}
            (OpCtx::Schedule { reply, timer, name }, Answer::Schedule(a)) => {
                self.scheduled(now, reply, timer, name, a)
            }
            (OpCtx::Cancel { reply, id, name }, Answer::Cancel(a)) => self.cancelled(at, reply, id, name, a),
            (OpCtx::Reschedule { reply, id, name, due }, Answer::Reschedule(a)) => {
                self.rescheduled(at, (reply, id, name, due), a);
            }
            (OpCtx::Replay { reply, id }, answer) => self.replayed(reply, id, &answer),
            (OpCtx::Purge { reply }, answer) => {
                let done = matches!(answer, Answer::Done);
                self.reply(
                    reply,
                    if done { mtimer_protocol::OpReply::Done } else { mtimer_protocol::OpReply::NotFound },
                );
            }
            (ctx, answer) => {
                let text = format!("an answer of another kind than the operation: {answer:?}");
                self.not_applied(at, ctx, ErrorCode::Unknown, &text);
                self.lane_ended(at, LaneError::Broken(text));
            }
        }
    }

    /// Queues an operation of the owner's own for the next batch.
    pub(super) fn enqueue(&mut self, at: PartitionId, op: Op, ctx: OpCtx) {
        if let Some(p) = self.partition(at) {
            p.queue.push_own(op, ctx);
        }
    }

    /// An operation of the owner's own that the store would not take for now: again after a pause.
    fn put_off(&mut self, at: PartitionId, op: Op, ctx: OpCtx) {
        if let Some(p) = self.partition(at) {
            if let Op::Park { id, .. } = &op
                && let Some(State::Parking { sent }) = p.table.get_mut(*id).map(|e| &mut e.state)
            {
                *sent = false;
            }
            p.put_off.push((op, ctx));
        }
    }

    /// Drops everything of a partition: what was sent is not ours any more, what was asked was not
    /// done.
    pub(super) fn lane_ended(&mut self, id: PartitionId, error: LaneError) {
        let Some(p) = self.partitions.get_mut(usize::from(id.0)).and_then(Option::take) else { return };
        self.count(Counter::LanesEnded, 1);
        let Partition { table, mut queue, calls, key_edits, put_off, mut questions, .. } = *p;
        for (timer, entry) in table.iter() {
            self.retire(*timer, entry);
        }
        let code = match &error {
            LaneError::Fenced { .. } | LaneError::Closed => ErrorCode::NotOwner,
            LaneError::RolledBack(_) | LaneError::Broken(_) => ErrorCode::Unavailable,
        };
        let text = error.to_string();
        // What has left may have been applied, whatever has ended the lane: its answer may be lost,
        // or on its way here.
        let unknown = format!("{error}; whether it was done is not known, repeat it");
        let of_calls = calls.into_iter().flat_map(|call| match call {
            Pending::Apply { ctxs, .. } => ctxs.into_iter().map(|ctx| (ctx, true)).collect(),
            Pending::Query(part) => vec![(OpCtx::Query(part), true)],
            _ => Vec::new(),
        });
        let of_calls = of_calls.chain(questions.take_waiting().map(|part| (OpCtx::Query(part), false)));
        let of_calls: Vec<(OpCtx, bool)> = of_calls.collect();
        let queued = queue.take_all().into_iter().chain(put_off).map(|(_, ctx)| (ctx, false));
        for (ctx, left) in of_calls.into_iter().chain(queued) {
            match ctx {
                OpCtx::Settle { id, report, .. } => {
                    let why = self.settled_elsewhere();
                    self.report(report, id, Some(why));
                }
                OpCtx::Query(part) => self.query_failed(id, part, code, &text),
                ctx if left => self.not_applied(id, ctx, ErrorCode::Unknown, &unknown),
                ctx => self.not_applied(id, ctx, code, &text),
            }
        }
        for (_, edits) in key_edits {
            self.drop_waiting_edits(edits.waiting, code, &text);
        }
        self.forget_parks(id);
        self.effects.push(Effect::LaneEnded(id, error));
        if self.phase == Phase::Releasing {
            self.check_released();
        }
    }

    /// Gives back what a timer holds that leaves memory.
    pub(super) fn retire(&mut self, id: TimerId, entry: &Entry) {
        let dest = entry.dest;
        let member = match &entry.state {
            State::Ready { .. } => {
                self.roster.dest_mut(dest).leave_ready(id, entry.record.timer.deadline);
                None
            }
            State::InFlight(flight) => {
                if let Some(session) = flight.session {
                    self.roster.end_flight(session, id);
                }
                if let Some(member) = flight.member {
                    self.roster.withdraw(member, id);
                }
                self.unsettled -= 1;
                flight.member
            }
            State::Settling { member, .. } => {
                self.unsettled -= 1;
                if member.is_some() {
                    self.roster.dest_mut(dest).settling -= 1;
                }
                *member
            }
            State::Taking { member } => {
                self.unsettled -= 1;
                Some(*member)
            }
            State::Unparking => {
                self.one_returned(dest, id.partition());
                None
            }
            _ => None,
        };
        if let Some(member) = member {
            self.roster.give_back(member);
        }
        self.roster.dest_mut(dest).entries -= 1;
        self.roster.sweep(dest);
    }
}

/// When what must go to the store by `at` is to go: with others if it can.
pub(super) fn together_by(now: Time, at: Time) -> Time {
    let shared = at - at.as_ms() % TICK_MS;
    if shared > now { shared } else { at }
}

impl Partition {
    /// Takes the operations of the next batch. Two kinds go to `overtaken` instead, with their
    /// answers: a schedule that must not be asked of the store any more ([`Self::known`]), and what
    /// a client first sent longer ago than outcomes are kept, since it may be a repeat whose
    /// outcome is forgotten. The others leave for the store, but for those that have become
    /// pointless ([`Self::leaves`]).
    fn take_batch(
        &mut self,
        now: Now,
        (ops, bytes): (usize, u64),
        recent: &mut RecentIds,
        requests: &Slab<OpenRequest>,
        overtaken: &mut Vec<Overtaken>,
    ) -> Vec<Queued> {
        self.gather_at = None;
        let mut queued = self.queue.take(ops, bytes);
        let known = |recent: &mut RecentIds, ctx: &OpCtx| match ctx {
            OpCtx::Schedule { timer, .. } => self.known(recent, now, timer),
            _ => None,
        };
        let refused = |ctx: &OpCtx| {
            let request = requests.get(ctx.reply()?.request)?;
            check_age(now.time, request.first_sent)
        };
        let mut answer = |ctx: &OpCtx| known(recent, ctx).or_else(|| refused(ctx));
        if queued.iter().any(|(_, ctx)| answer(ctx).is_some()) {
            for (op, ctx) in std::mem::take(&mut queued) {
                match answer(&ctx) {
                    Some(reply) => overtaken.push((self.id, ctx, reply)),
                    None => queued.push((op, ctx)),
                }
            }
        }
        queued.retain_mut(|(op, ctx)| self.leaves(op, ctx));
        queued
    }

    /// When the acknowledgements that may wait go, monotonic ms: once every [`GATHER_MS`], at
    /// another tick than most other partitions.
    pub(super) fn gather_at(&mut self, now: Now) -> u64 {
        let phase = u64::from(self.id.0) * TICK_MS;
        let wait = GATHER_MS - (now.time.as_ms() + phase) % GATHER_MS;
        *self.gather_at.get_or_insert(now.mono_ms + wait)
    }

    fn batch_of(&mut self, now: Now, claim: Option<Time>, queued: Vec<Queued>) -> Batch {
        let (mut ops, ctxs): (Vec<Op>, Vec<OpCtx>) = queued.into_iter().unzip();
        for op in &mut ops {
            if let Op::Replay { fire, .. } | Op::Unpark { fire, .. } = op {
                *fire = now.time;
            }
        }
        self.claim_asked = self.claim_asked.max(claim.unwrap_or(Time::ZERO));
        self.applies_out += 1;
        self.calls.push_back(Pending::Apply { ctxs, claim, begun: now.mono_ms });
        Batch { now: now.time, claim, ops }
    }

    /// A fenced write was answered that was begun at `begun` (monotonic ms).
    fn confirm(&mut self, claim: Option<Time>, begun: u64) {
        self.fenced_at = self.fenced_at.max(Some(begun));
        self.claimed = self.claimed.max(claim.unwrap_or(Time::ZERO));
    }
}
