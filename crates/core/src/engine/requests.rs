//! The operations that clients ask for. They are checked, and queued for the store.
//!
//! Not in here: the effects of the answers (`replies`), questions (`queries`).

use mtimer_protocol::ops::Subject;
use mtimer_protocol::{ErrorCode, OpReply, Request, RequestOp};
use mtimer_store::ops::{self as stored, Memory};
use mtimer_types::limits::{MAX_BATCH, MAX_SENT_AHEAD_MS, MAX_SESSION_INFLIGHT, REPEAT_HORIZON_MS};
use mtimer_types::{PartitionId, Target, Time};

use super::key_edits::{Admission, KEY_OPS};
use super::partition::{OwnedPartition, QUEUE_OPS};
use super::pending::{Asked, ReplyRef, failed};
use super::queue::QueueClass;
use super::table::{EntryState, TakeState};
use super::{Engine, EnginePhase};
use crate::api::{DeniedOp, Now, SessionId};

/// Returns the reply to a request that did not leave for the store.
pub(super) fn away(why: &str) -> OpReply {
    failed(ErrorCode::Unavailable, format!("the store is away, nothing was done: {why}"))
}

/// Refuses a request that was first sent longer ago than outcomes are kept: whether a repeat was
/// applied before cannot be told any more. Refuses also a request whose time this broker's clock
/// has not reached: its age is not known. The deciding clock may have stepped back since it was
/// sent.
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
    /// Takes a request. `denied`: operations that are refused, in the order of their places.
    pub(super) fn request(&mut self, now: Now, session: SessionId, request: Request, denied: Vec<DeniedOp>) {
        let Request { corr, first_sent, ops } = request;
        if ops.is_empty() || ops.len() > MAX_BATCH {
            let text =
                format!("a request has 1 to {MAX_BATCH} operations, this one has {}: split it", ops.len());
            return self.break_off(session, text);
        }
        let Some(unanswered) = self.roster.begin_operations(session, ops.len()) else { return };
        let over = unanswered > MAX_SESSION_INFLIGHT;
        let open = self.requests.open(session, corr, first_sent, ops.len());
        let blanket = if self.phase != EnginePhase::Running {
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
            match (denied.next_if(|denied| denied.at == index), &blanket) {
                (Some(denied), _) => self.reply_to(&op, reply, failed(denied.code, denied.why)),
                (None, Some(refusal)) => self.reply(reply, refusal.clone()),
                (None, None) => self.admit(now, op, reply),
            }
        }
    }

    /// Sends one operation on its way, or refuses it.
    fn admit(&mut self, now: Now, op: RequestOp, reply: ReplyRef) {
        let at = op.subject().partition(self.options.partitions);
        if let Err(refusal) = self.check(now, &op, at) {
            return self.reply_to(&op, reply, refusal);
        }
        let Some(p) = self.partitions.get_mut(at) else { return };
        if let Some(known) = p.known(&mut self.recent, now, &op) {
            return self.reply_to(&op, reply, known);
        }
        // Behind a backlog it holds its timer only once it leaves for the store.
        let soon = p.queue.len() < self.options.batch_ops;
        match p.key_edits.admit(Asked::new(op, reply)) {
            Admission::Go(asked) => self.submit(at, asked, soon),
            Admission::Waits => {}
            Admission::TooMany(Asked { op, reply, key, .. }) => {
                let key = key.as_ref().map_or("", |(_, key)| key.as_str());
                let text = format!("key {key} has {KEY_OPS} operations waiting: try again later");
                self.reply_to(&op, reply, failed(ErrorCode::Overloaded, text));
            }
        }
    }

    fn check(&mut self, now: Now, op: &RequestOp, at: PartitionId) -> Result<(), OpReply> {
        let partitions = self.options.partitions;
        let invalid = |e: &dyn std::fmt::Display| failed(ErrorCode::Invalid, e.to_string());
        if at.0 >= partitions {
            return Err(invalid(&format_args!(
                "partition {at} of the id is not one of {partitions}: make a new id"
            )));
        }
        op.check(now.time).map_err(|e| invalid(&e))?;
        let new = op.subject().brings().and_then(|timer| Some((&timer.dest, timer.key.as_ref()?)));
        let belongs = new.map(|(dest, key)| PartitionId::of_key(dest, key, partitions));
        if let Some(p) = belongs.filter(|p| *p != at) {
            let text = format_args!("the key belongs to partition {p}, the id to {at}: make a new id");
            return Err(invalid(&text));
        }
        if !self.serves(at) {
            return Err(self.not_served(at));
        }
        let Some(p) = self.partition(at) else { return Err(self.not_served(at)) };
        if let Some(why) = p.down() {
            return Err(away(why));
        }
        if let Subject::Named(Target::Key(dest, key)) = op.subject()
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
    /// ([`OwnedPartition::complete`]).
    pub(super) fn submit(&mut self, at: PartitionId, mut asked: Asked, soon: bool) {
        let session = self.requests.session(asked.reply).unwrap_or(SessionId(0));
        let Some(p) = self.partition(at) else {
            let refusal = self.not_served(at);
            return self.reply_to(&asked.op, asked.reply, refusal);
        };
        if soon {
            p.hold(&mut asked);
        }
        p.unheld_edits += u32::from(stored::changes_unheld(&asked.op));
        let class = p.class_behind(&asked).unwrap_or(QueueClass::Session(session));
        p.queue.push_asked(class, asked);
    }
}

impl OwnedPartition {
    /// Returns the queue in which the owner's own operation on the same timer, or on the timer that
    /// has the same key, waits or has waited until its batch was made. A client's operation has to
    /// follow it there. An operation that the store refused for now is in no queue, so a client's
    /// may overtake it ([`OwnedPartition::queue_put_off`]).
    fn class_behind(&self, asked: &Asked) -> Option<QueueClass> {
        let (id, holder) = match asked.op.subject() {
            Subject::New(timer) => {
                (Some(timer.id), asked.key.as_ref().and_then(|key| self.table.by_key(key)))
            }
            Subject::Named(target) => (self.named(target), None),
            Subject::Retained(_) | Subject::Partition { .. } => (None, None),
        };
        let of = |id| {
            let entry = self.table.get(id);
            let is_being_taken = entry.is_some_and(|e| e.take == TakeState::Asked);
            match entry.map(|e| &e.state) {
                Some(EntryState::Parking { .. } | EntryState::Unparking) => Some(QueueClass::Parks),
                Some(EntryState::Settling { .. } | EntryState::Taking { .. }) => Some(QueueClass::Prompt),
                Some(
                    EntryState::Waiting
                    | EntryState::Due
                    | EntryState::Held
                    | EntryState::Ready { .. }
                    | EntryState::InFlight(_),
                )
                | None => (is_being_taken || self.late_acks.holds(id)).then_some(QueueClass::Prompt),
            }
        };
        [id, holder].into_iter().flatten().find_map(of)
    }
}
