//! What clients ask for: schedule, cancel, reschedule, replay, purge.

use std::collections::VecDeque;
use std::collections::hash_map::Entry as Slot;
use std::sync::Arc;

use mtimer_protocol::{ErrorCode, OpReply, Request, RequestOp, ServerMessage};
use mtimer_store::{CancelAnswer, Op, Refusal, RequestId, RescheduleAnswer, ScheduleAnswer};
use mtimer_types::limits::{MAX_BATCH, MAX_SENT_AHEAD_MS, MAX_SESSION_INFLIGHT, REPEAT_HORIZON_MS};
use mtimer_types::{PartitionId, Target, Time, Timer, TimerId, timer::check_distance};

use super::partition::{KEY_OPS, Partition, Pending, QUEUE_OPS};
use super::purpose::{Edit, KeyEdits, KeyName, OpCtx, ReplyRef, failed};
use super::queue::Line;
use super::table::State;
use super::{Engine, Phase};
use crate::api::{Call, Counter, Effect, Now, SessionId};

/// A request some of whose operations are not answered yet.
#[derive(Debug)]
pub(super) struct OpenRequest {
    session: SessionId,
    corr: u64,
    /// When its client sent it for the first time, by the cluster clock.
    pub(super) first_sent: Time,
    replies: Vec<OpReply>,
    missing: usize,
}

/// Refuses what was first sent longer ago than outcomes are kept: whether a repeat was applied
/// before cannot be told any more. Refuses also what bears a time that this broker's clock has not
/// reached: its age is not known. The deciding clock may have stepped back since it was sent.
pub(super) fn check_age(now: Time, first_sent: Time) -> Option<OpReply> {
    let age = now.ms_since(first_sent);
    if age > REPEAT_HORIZON_MS {
        let text =
            format!("first sent {age} ms ago; outcomes are kept for {REPEAT_HORIZON_MS} ms: ask with get");
        return Some(failed(ErrorCode::Unknown, text));
    }
    let ahead = first_sent.ms_since(now);
    (ahead > MAX_SENT_AHEAD_MS).then(|| {
        let text = format!(
            "first sent {ahead} ms ahead of this broker's clock, at most {MAX_SENT_AHEAD_MS} ms are allowed: \
             try again later"
        );
        failed(ErrorCode::Unavailable, text)
    })
}

impl Engine {
    /// Takes a request. `denied`: operations that are refused, by their place, and why.
    pub(super) fn request(
        &mut self,
        now: Now,
        session: SessionId,
        request: Request,
        denied: Vec<(usize, String)>,
    ) {
        let Request { corr, first_sent, ops } = request;
        if ops.is_empty() || ops.len() > MAX_BATCH {
            let text =
                format!("a request has 1 to {MAX_BATCH} operations, this one has {}: split it", ops.len());
            return self.break_off(session, text);
        }
        let Some(s) = self.roster.sessions.get_mut(&session) else { return };
        let over = s.unanswered + ops.len() > MAX_SESSION_INFLIGHT;
        s.unanswered += ops.len();
        let n = ops.len();
        let replies = vec![OpReply::NotFound; n];
        let open = self.requests.insert(OpenRequest { session, corr, first_sent, replies, missing: n });
        let blanket = if self.phase != Phase::Running {
            Some(failed(ErrorCode::Stopping, "the broker is stopping: try another, or again later"))
        } else if over {
            let text = format!("more than {MAX_SESSION_INFLIGHT} operations unanswered: wait for answers");
            Some(failed(ErrorCode::Overloaded, text))
        } else {
            check_age(now.time, first_sent)
        };
        let mut denied = denied.into_iter().peekable();
        for (index, op) in ops.into_iter().enumerate() {
            let reply = ReplyRef { request: open, index };
            match (denied.next_if(|(at, _)| *at == index), &blanket) {
                (Some((_, why)), _) => self.refuse(&op, reply, failed(ErrorCode::Unauthorized, why)),
                (None, Some(refusal)) => self.reply(reply, refusal.clone()),
                (None, None) => self.admit(now, op, reply),
            }
        }
    }

    /// Sends one operation on its way, or refuses it.
    fn admit(&mut self, now: Now, op: RequestOp, reply: ReplyRef) {
        let partitions = self.options.partitions;
        let of = |target: &Target| match target {
            Target::Id(id) => id.partition(),
            Target::Key(dest, key) => PartitionId::of_key(dest, key, partitions),
        };
        let at = match &op {
            RequestOp::Schedule { timer, .. } => timer.id.partition(),
            RequestOp::Cancel { target, .. } | RequestOp::Reschedule { target, .. } => of(target),
            RequestOp::Replay { id } | RequestOp::Purge { id } => id.partition(),
        };
        if let Err(refusal) = self.check(now, &op, at) {
            return self.refuse(&op, reply, refusal);
        }
        let name = match &op {
            RequestOp::Schedule { timer, .. } => timer.key.clone().map(|key| (timer.dest.clone(), key)),
            RequestOp::Cancel { target: Target::Key(dest, key), .. }
            | RequestOp::Reschedule { target: Target::Key(dest, key), .. } => {
                Some((dest.clone(), key.clone()))
            }
            _ => None,
        };
        let Some(p) = self.partitions.get_mut(usize::from(at.0)).and_then(|p| p.as_deref_mut()) else {
            return;
        };
        if let RequestOp::Schedule { timer, .. } = &op
            && let Some(known) = p.known(&mut self.recent, now, timer)
        {
            return self.reply_known(reply, known);
        }
        if let Some(name) = &name {
            match p.key_edits.entry(name.clone()) {
                Slot::Occupied(edits) if edits.get().waiting.len() >= KEY_OPS => {
                    let key = name.1.as_str();
                    let text = format!("key {key} has {KEY_OPS} operations waiting: try again later");
                    return self.refuse(&op, reply, failed(ErrorCode::Overloaded, text));
                }
                Slot::Occupied(mut edits) => {
                    p.waiting += 1;
                    return edits.get_mut().waiting.push_back(Edit { op, reply });
                }
                Slot::Vacant(free) => _ = free.insert(KeyEdits::default()),
            }
        }
        // Behind a backlog it holds its timer only once it leaves for the store.
        let soon = p.queue.len() < self.options.batch_ops;
        self.submit(at, op, reply, name, soon);
    }

    /// Answers an operation that was not admitted.
    fn refuse(&mut self, op: &RequestOp, reply: ReplyRef, refusal: OpReply) {
        self.count(Counter::ScheduleRefused, u64::from(matches!(op, RequestOp::Schedule { .. })));
        self.reply(reply, refusal);
    }

    fn check(&mut self, now: Now, op: &RequestOp, at: PartitionId) -> Result<(), OpReply> {
        let partitions = self.options.partitions;
        let invalid = |e: &dyn std::fmt::Display| failed(ErrorCode::Invalid, e.to_string());
        if at.0 >= partitions {
            return Err(invalid(&format_args!(
                "partition {at} of the id is not one of {partitions}: make a new id"
            )));
        }
        match op {
            RequestOp::Schedule { timer, .. } => {
                timer.validate(now.time).map_err(|e| invalid(&e))?;
                let belongs = timer.key.as_ref().map(|key| PartitionId::of_key(&timer.dest, key, partitions));
                if let Some(p) = belongs.filter(|p| *p != at) {
                    let text =
                        format_args!("the key belongs to partition {p}, the id to {at}: make a new id");
                    return Err(invalid(&text));
                }
            }
            RequestOp::Reschedule { due, .. } => check_distance(*due, now.time).map_err(|e| invalid(&e))?,
            _ => {}
        }
        if !self.serves(at) {
            return Err(self.not_served(at));
        }
        let Some(p) = self.partition(at) else { return Err(self.not_served(at)) };
        if let Some(why) = &p.down {
            return Err(failed(
                ErrorCode::Unavailable,
                format!("the store is away, nothing was done: {why}"),
            ));
        }
        if let RequestOp::Cancel { target: Target::Key(dest, key), .. }
        | RequestOp::Reschedule { target: Target::Key(dest, key), .. } = op
            && p.awaits_timers()
            && p.table.by_key(&(dest.clone(), key.clone())).is_none()
        {
            // Inherited deliveries name no keys: it may be one that the predecessor has sent, and
            // no claim in the store shows it.
            let text = format!("partition {at} was taken over and is still being read: try again later");
            return Err(failed(ErrorCode::Overloaded, text));
        }
        if p.is_full() {
            let text = format!("partition {at} has {QUEUE_OPS} operations waiting: try again later");
            return Err(failed(ErrorCode::Overloaded, text));
        }
        Ok(())
    }

    /// Queues a client's operation. If it goes `soon`, no timer that it can change is sent from
    /// here on until it is answered; else from when it leaves for the store
    /// ([`Partition::leaves`]).
    fn submit(&mut self, at: PartitionId, op: RequestOp, reply: ReplyRef, name: Option<KeyName>, soon: bool) {
        let session = self.requests.get(reply.request).map_or(SessionId(0), |r| r.session);
        let Some(p) = self.partition(at) else {
            let refusal = self.not_served(at);
            return self.reply(reply, refusal);
        };
        let named = match &op {
            RequestOp::Schedule { timer, .. } => Some(timer.id),
            RequestOp::Cancel { target, .. } | RequestOp::Reschedule { target, .. } => p.named(target),
            RequestOp::Replay { .. } | RequestOp::Purge { .. } => None,
        };
        // What they say of a delivery under way, and the time to fire, is filled in when the batch
        // is made.
        let (op, mut ctx) = match op {
            RequestOp::Schedule { timer, policy } => {
                (Op::Schedule { timer: timer.clone(), policy }, OpCtx::Schedule { reply, timer, name })
            }
            RequestOp::Cancel { target, request } => {
                let request = RequestId(request);
                (Op::Cancel { target, in_flight: None, request }, OpCtx::Cancel { reply, id: None, name })
            }
            RequestOp::Reschedule { target, due, request } => {
                let request = RequestId(request);
                (
                    Op::Reschedule { target, due, in_flight: false, request },
                    OpCtx::Reschedule { reply, id: None, name, due },
                )
            }
            RequestOp::Replay { id } => (Op::Replay { id, fire: Time::ZERO }, OpCtx::Replay { reply, id }),
            RequestOp::Purge { id } => (Op::Purge { id }, OpCtx::Purge { reply }),
        };
        if soon {
            p.hold(&op, &mut ctx);
        }
        let line = p.line_behind(named, &ctx).unwrap_or(Line::Session(session));
        p.queue.push(line, op, ctx);
    }

    /// Answers a schedule without the store.
    fn reply_known(&mut self, reply: ReplyRef, known: OpReply) {
        if !matches!(known, OpReply::Scheduled { .. }) {
            self.count(Counter::ScheduleRefused, 1);
        }
        self.reply(reply, known);
    }

    /// Answers an operation of a client that the store has not applied, or not confirmed.
    pub(super) fn decline(&mut self, at: PartitionId, ctx: OpCtx, answer: OpReply) {
        let is_schedule = matches!(ctx, OpCtx::Schedule { .. });
        let (reply, id, name) = match ctx {
            OpCtx::Schedule { reply, name, .. } => (reply, None, name),
            OpCtx::Cancel { reply, id, name } | OpCtx::Reschedule { reply, id, name, .. } => {
                (reply, id, name)
            }
            OpCtx::Replay { reply, .. } | OpCtx::Purge { reply } => (reply, None, None),
            _ => return,
        };
        self.end_edit(at, id, name);
        if is_schedule { self.reply_known(reply, answer) } else { self.reply(reply, answer) }
    }

    /// An edit was answered: releases the timer that it held, and the key.
    fn end_edit(&mut self, at: PartitionId, id: Option<TimerId>, name: Option<KeyName>) {
        let Some(p) = self.partition(at) else { return };
        if let Some(id) = id {
            p.edits.release(id);
        }
        let mut holder = None;
        if let Some(name) = name {
            holder = p.table.by_key(&name);
            let mut next = None;
            if let Slot::Occupied(mut edits) = p.key_edits.entry(name.clone()) {
                edits.get_mut().holds = false;
                next = edits.get_mut().waiting.pop_front();
                if next.is_none() {
                    edits.remove();
                }
            }
            if let Some(Edit { op, reply }) = next {
                p.waiting -= 1;
                // Between two of them a timer that is due is sent, however many there are.
                self.submit(at, op, reply, Some(name), false);
            }
        }
        for held in [id, holder].into_iter().flatten() {
            self.unhold(held);
        }
    }

    /// Goes on with a timer that was held, if no edit holds it and no late acknowledgement of it is
    /// under way any more.
    pub(super) fn unhold(&mut self, id: TimerId) {
        let Some(p) = self.partition(id.partition()) else { return };
        if p.is_undecided(id) {
            return;
        }
        if let Some(entry) = p.table.get_mut(id).filter(|e| matches!(e.state, State::Held)) {
            entry.state = State::Due;
            p.due.push(id);
        }
    }

    pub(super) fn scheduled(
        &mut self,
        now: Now,
        reply: ReplyRef,
        timer: Arc<Timer>,
        name: Option<KeyName>,
        answer: ScheduleAnswer,
    ) {
        let (id, at) = (timer.id, timer.id.partition());
        let said = match answer {
            ScheduleAnswer::Scheduled { new, replaced } => {
                self.supersede(id, name.as_ref(), replaced);
                self.count(Counter::Scheduled, u64::from(new));
                let within =
                    self.partition(at).is_some_and(|p| timer.due <= p.horizon && !p.table.contains(id));
                if within && new {
                    let due = timer.due;
                    self.adopt(now, mtimer_store::Record::new(timer), due, false);
                } else if within {
                    // Stored earlier; by now it may be anywhere.
                    self.fetch(id);
                }
                OpReply::Scheduled { new, replaced }
            }
            ScheduleAnswer::Kept(id) => OpReply::Kept(id),
            ScheduleAnswer::KeyTaken(id) => OpReply::KeyTaken(id),
            ScheduleAnswer::Conflict => OpReply::Conflict,
            ScheduleAnswer::Ended(ended) => OpReply::Ended(ended),
        };
        if !matches!(said, OpReply::Scheduled { .. } | OpReply::Kept(_)) {
            self.count(Counter::ScheduleRefused, 1);
        }
        self.end_edit(at, None, name);
        self.reply(reply, said);
    }

    /// The timer that had the key of a newly scheduled one has ended as replaced, unless this is
    /// the answer to a repeat and the key has passed on since.
    fn supersede(&mut self, id: TimerId, name: Option<&KeyName>, replaced: Option<TimerId>) {
        if let Some(old) = replaced {
            self.forget(old);
        }
        let Some(name) = name else { return };
        let holder = self.partition(id.partition()).and_then(|p| p.table.by_key(name));
        if let Some(holder) = holder.filter(|holder| *holder != id) {
            self.fetch(holder);
        }
    }

    pub(super) fn cancelled(
        &mut self,
        at: PartitionId,
        reply: ReplyRef,
        id: Option<TimerId>,
        name: Option<KeyName>,
        answer: CancelAnswer,
    ) {
        let said = match answer {
            CancelAnswer::Cancelled(id) => {
                self.count(Counter::Cancelled, 1);
                self.forget(id);
                OpReply::Cancelled(id)
            }
            CancelAnswer::TooLate(id) => {
                self.count(Counter::CancelTooLate, 1);
                self.stop_attempts(id);
                OpReply::TooLate(id)
            }
            CancelAnswer::NotFound => OpReply::NotFound,
        };
        self.end_edit(at, id, name);
        self.reply(reply, said);
    }

    /// A cancel came too late: the delivery under way is the last; what waits for another was
    /// buried by the store. (If this is the answer to a repeat, a replay may have given the timer
    /// new attempts: what is read tells.)
    fn stop_attempts(&mut self, id: TimerId) {
        let entry = self.partition(id.partition()).and_then(|p| p.table.get_mut(id));
        if let Some(entry) = entry.filter(|e| e.state.is_under_way()) {
            entry.record.progress.stopped = true;
        }
        self.read_anew(id);
    }

    pub(super) fn rescheduled(
        &mut self,
        at: PartitionId,
        ctx: (ReplyRef, Option<TimerId>, Option<KeyName>, Time),
        answer: RescheduleAnswer,
    ) {
        let (reply, id, name, due) = ctx;
        let said = match answer {
            RescheduleAnswer::Rescheduled(id) => {
                self.count(Counter::Rescheduled, 1);
                self.move_to(id, due);
                OpReply::Rescheduled(id)
            }
            RescheduleAnswer::TooLate(id) => OpReply::TooLate(id),
            RescheduleAnswer::PastDeadline(id) => {
                let text = format!("timer {id} has a deadline before {due} ms: nothing was changed");
                failed(ErrorCode::Invalid, text)
            }
            RescheduleAnswer::NotFound => OpReply::NotFound,
        };
        self.end_edit(at, id, name);
        self.reply(reply, said);
    }

    /// The store has moved a timer to another time, now or when this request was first sent; since
    /// then it may have gone on. What is under way is not touched: it was begun after the move. All
    /// else is read anew.
    fn move_to(&mut self, id: TimerId, due: Time) {
        let Some(p) = self.partition(id.partition()) else { return };
        let horizon = p.horizon;
        match p.table.get(id).map(|e| &e.state) {
            Some(state) if state.is_under_way() => {}
            Some(_) => self.read_anew(id),
            None if due <= horizon => self.fetch(id),
            None => {}
        }
    }

    pub(super) fn replayed(&mut self, reply: ReplyRef, id: TimerId, answer: &mtimer_store::Answer) {
        let said = match answer {
            mtimer_store::Answer::Done => {
                self.fetch(id);
                OpReply::Done
            }
            mtimer_store::Answer::KeyTaken(by) => OpReply::KeyTaken(*by),
            _ => OpReply::NotFound,
        };
        self.reply(reply, said);
    }

    /// An operation of a client that was not applied.
    pub(super) fn not_applied(&mut self, at: PartitionId, ctx: OpCtx, code: ErrorCode, message: &str) {
        self.decline(at, ctx, failed(code, message));
    }

    pub(super) fn refused(&mut self, at: PartitionId, ctx: OpCtx, refusal: Refusal) {
        let code = match refusal {
            Refusal::OutOfMemory => ErrorCode::StoreFull,
            Refusal::ReadOnly | Refusal::MayEvict => ErrorCode::Unavailable,
            Refusal::NotReplicated => {
                self.reread(at, &ctx);
                ErrorCode::NotReplicated
            }
        };
        self.not_applied(at, ctx, code, &refusal.to_string());
    }

    /// An operation was applied but not confirmed, so it counts as unanswered; memory has to agree
    /// with the store all the same: what is cancelled, replaced or moved must not be sent, what is
    /// filed must be.
    fn reread(&mut self, at: PartitionId, ctx: &OpCtx) {
        match ctx {
            OpCtx::Schedule { timer, name, .. } => {
                let id = timer.id;
                let holder =
                    name.as_ref().and_then(|name| self.partition(id.partition())?.table.by_key(name));
                if let Some(holder) = holder.filter(|holder| *holder != id) {
                    self.read_anew(holder);
                }
                if self.partition(id.partition()).is_some_and(|p| timer.due <= p.horizon) {
                    self.fetch(id);
                }
            }
            OpCtx::Cancel { id, name, .. } | OpCtx::Reschedule { id, name, .. } => {
                // A timer that is named by its key may have come into memory since.
                let holder = || self.partition(at)?.table.by_key(name.as_ref()?);
                if let Some(id) = id.or_else(holder) {
                    self.read_anew(id);
                }
            }
            OpCtx::Replay { id, .. } => self.fetch(*id),
            _ => {}
        }
    }

    /// Reads a timer anew that is not under way; one that is under way learns whether it was
    /// stopped.
    fn read_anew(&mut self, id: TimerId) {
        let entry = self.partition(id.partition()).and_then(|p| p.table.get(id));
        if entry.is_some_and(|e| !e.state.is_under_way()) {
            self.take_out(id);
        }
        self.fetch(id);
    }

    /// Every operation that waits for an earlier one on its key will not be applied.
    pub(super) fn drop_waiting_edits(&mut self, waiting: VecDeque<Edit>, code: ErrorCode, message: &str) {
        for Edit { reply, .. } in waiting {
            self.reply(reply, failed(code, message));
        }
    }

    /// Reads a timer, so that memory agrees with the store.
    pub(super) fn fetch(&mut self, id: TimerId) {
        let Some(p) = self.partition(id.partition()) else { return };
        p.calls.push_back(Pending::Fetch(id));
        self.effects.push(Effect::Call(id.partition(), Call::Get(Target::Id(id))));
    }

    pub(super) fn reply(&mut self, to: ReplyRef, reply: OpReply) {
        self.tallies.replied(&reply);
        let Some(open) = self.requests.get_mut(to.request) else { return };
        open.replies[to.index] = reply;
        open.missing -= 1;
        if open.missing > 0 {
            return;
        }
        let OpenRequest { session, corr, replies, .. } = self.requests.remove(to.request);
        if let Some(s) = self.roster.sessions.get_mut(&session) {
            s.unanswered = s.unanswered.saturating_sub(replies.len());
            self.effects.push(Effect::Send(session, ServerMessage::Reply { corr, replies }));
        }
    }
}

impl Partition {
    /// The owner's line in which something of the timer that an operation names, or of the one that
    /// has its key, waits or has waited until its batch was made: the operation comes after it
    /// there. What the store would not take for now is in no line, so the operation may come before
    /// it ([`Partition::queue_put_off`]).
    fn line_behind(&self, id: Option<TimerId>, ctx: &OpCtx) -> Option<Line> {
        let holder = match ctx {
            OpCtx::Schedule { name: Some(name), .. } => self.table.by_key(name),
            _ => None,
        };
        let of = |id: TimerId| match self.table.get(id).map(|e| &e.state) {
            Some(State::Parking { .. } | State::Unparking) => Some(Line::Parks),
            Some(State::Settling { .. } | State::Taking { .. }) => Some(Line::Prompt),
            _ if self.late_acks.holds(id) => Some(Line::Prompt),
            _ => None,
        };
        [id, holder].into_iter().flatten().find_map(of)
    }
}
