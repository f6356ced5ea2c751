//! The small steps that every stage takes on the engine's state: a look at a partition, an
//! operation queued, a call begun, an answer sent.
//!
//! Nothing in here decides; nothing in here calls a stage.

use mtimer_protocol::{OpReply, QueryAnswer, RequestOp, ServerMessage, SettleRefusal};
use mtimer_types::{PartitionId, TimerId};

use super::Engine;
use super::calls::OpenCall;
use super::open_requests::AnsweredRequest;
use super::partition::OwnedPartition;
use super::pending::{Own, ReplyRef};
use super::settle_reports::SettleReport;
use super::table::EntryState;
use crate::api::{Call, Counter, Effect, SessionId};

impl Engine {
    /// A partition, if it is owned.
    pub(super) fn partition(&mut self, id: PartitionId) -> Option<&mut OwnedPartition> {
        self.partitions.get_mut(id)
    }

    pub(super) fn count(&mut self, counter: Counter, n: u64) {
        self.counters[counter as usize] += n;
    }

    /// Counters since the start, by name.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Counter::ALL.iter().map(|(c, name)| (*name, self.counters[*c as usize]))
    }

    /// Ends a session that has broken the protocol.
    pub(super) fn break_off(&mut self, session: SessionId, reason: impl Into<String>) {
        self.count(Counter::ProtocolErrors, 1);
        self.effects.push(Effect::Close(session, reason.into()));
    }

    /// Timers in memory, and their bytes.
    pub(super) fn memory(&self) -> (u64, u64) {
        let tables = self.partitions.iter().map(|p| &p.table);
        tables.fold((0, 0), |(n, bytes), t| (n + t.len() as u64, bytes + t.bytes()))
    }

    /// Timers in memory.
    pub fn in_memory(&self) -> u64 {
        self.memory().0
    }

    pub(super) fn set_state(&mut self, id: TimerId, state: EntryState) {
        if let Some(entry) = self.partition(id.partition()).and_then(|p| p.table.get_mut(id)) {
            entry.state = state;
        }
    }

    /// Queues an operation of the owner's own for the next batch.
    pub(super) fn enqueue(&mut self, at: PartitionId, own: Own) {
        if let Some(p) = self.partition(at) {
            p.queue.push_own(own);
        }
    }

    /// Begins a call of a partition's lane.
    pub(super) fn call(&mut self, id: PartitionId, open: OpenCall, call: Call) {
        if let Some(p) = self.partition(id) {
            p.calls.push(open);
            self.effects.push(Effect::Call(id, call));
        }
    }

    /// Answers one operation of a request; with the last one the request is answered.
    pub(super) fn reply(&mut self, to: ReplyRef, reply: impl Into<OpReply>) {
        let reply = reply.into();
        self.tallies.replied(&reply);
        let Some(AnsweredRequest { session, corr, replies }) = self.requests.answer(to, reply) else {
            return;
        };
        if self.roster.end_operations(session, replies.len()) {
            self.effects.push(Effect::Send(session, ServerMessage::Reply { corr, replies }));
        }
    }

    /// Answers one operation of a request, and counts a schedule or an import that was not done.
    pub(super) fn reply_to(&mut self, op: &RequestOp, to: ReplyRef, reply: OpReply) {
        let is_refused_schedule = op.subject().brings().is_some() && reply.not_done().is_some();
        self.count(Counter::ScheduleRefused, u64::from(is_refused_schedule));
        self.reply(to, reply);
    }

    /// One settlement of a message is done.
    pub(super) fn report(&mut self, report: Option<usize>, id: TimerId, refused: Option<SettleRefusal>) {
        let Some(done) = report.and_then(|report| self.reports.note(report, id, refused)) else { return };
        let SettleReport { session, accepted, refused, .. } = done;
        if self.roster.is_open(session) {
            self.effects.push(Effect::Send(session, ServerMessage::Settled { accepted, refused }));
        }
    }

    /// Answers a question. By the answer a client that takes no more callbacks knows that all have
    /// come, so it goes behind the deliveries of this turn.
    pub(super) fn answer(&mut self, session: SessionId, corr: u64, answer: QueryAnswer) {
        if self.roster.is_open(session) {
            self.answers.push(Effect::Send(session, ServerMessage::Answer { corr, answer }));
        }
    }
}
