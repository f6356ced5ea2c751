//! A turn: read the data that a batch needs, decide, write the result, answer.
//!
//! An acknowledgement of a timer that can only be at one place is written without reading it first:
//! nearly all timers end so. If it was not there after all it goes through a second turn, which
//! looks for it.
//!
//! A full store refuses operations that add, and the rest is decided anew without them. Client
//! requests that have waited for too long are refused, too: they may repeat requests that the store
//! has forgotten by now.
//!
//! Not in here: the decisions ([`mtimer_store::ops`]), the handling of a lost answer
//! ([`super::writer`]).

use std::borrow::Cow;
use std::time::Duration;

use mtimer_store::ops::{Cancel, CancelAnswer, Origin, SettleAnswer, Subject, Take};
use mtimer_store::table::Context;
use mtimer_store::view::{Changes, Decided, Fact, View, first_needs};
use mtimer_store::{Answer, Batch, BulkPlace, LaneError, Op, Refusal, Verdict};
use mtimer_types::{Ended, Target, Time};

use super::commit::WriteOutcome;
use super::encode::Draft;
use super::handed::HandedOver;
use super::locations::Locations;
use super::owner::Owner;
use super::writes::MAX_ARGUMENTS;
use crate::keyspace::keys::{LOOKED_UP_WITHIN_MS, OutcomeBucket};

/// Operations of one turn: its write takes the server about a millisecond. Each frees one key at
/// most, and [`Writes::free`] must free them in one command: a field and a value each.
///
/// With 5 ms to Redis schedules are 24 % faster than with turns of 256
/// (`tests/bench/compare --delay 5`).
///
/// [`Writes::free`]: super::writes::Writes::free
const TURN_OPS: usize = MAX_ARGUMENTS / 2;
/// Payload bytes of one turn.
const TURN_BYTES: usize = 256 << 10;

/// The refusals of a turn.
#[derive(Clone)]
struct TurnRefusals {
    /// Why operations that add are refused; `None`: they are not.
    adding: Option<Refusal>,
    /// Client requests come too late.
    is_late: bool,
    /// The store is away, and nothing of this turn was sent to be written: client requests need not
    /// wait for it.
    is_away: bool,
}

/// The outcome of an attempt at a turn.
enum TurnOutcome {
    Answered(Vec<Answer>),
    /// More is refused than before. None of its operations was written.
    Refused(TurnRefusals),
}

impl TurnRefusals {
    /// Why an operation is refused, if it is.
    fn why(&self, op: &Op) -> Option<Refusal> {
        if self.is_late && is_request(op) || self.is_away && op.is().origin != Origin::Owner {
            return Some(Refusal::ReadOnly);
        }
        self.adding.clone().filter(|_| op.adds())
    }
}

impl Owner {
    /// See [`mtimer_store::Call::Apply`].
    pub(crate) async fn apply(&mut self, batch: Batch, handed: HandedOver) -> Result<Vec<Answer>, LaneError> {
        let Batch { now, mut claim, ops } = batch;
        self.known.ended.begin(OutcomeBucket::of(now));
        let claims = claim.is_some();
        let mut answers = Vec::with_capacity(ops.len());
        let (mut rest, mut most) = (&ops[..], TURN_OPS);
        while !rest.is_empty() {
            let length = turn_length(rest).min(most);
            let some = self.turn(&rest[..length], (now, handed), claim.take()).await?;
            // After a turn that was cut short, the next one tries twice as many operations: little
            // is read in vain.
            most = if some.len() < length { 2 * some.len() } else { TURN_OPS.min(2 * most) };
            rest = &rest[some.len()..];
            answers.extend(some);
        }
        if ops.is_empty() {
            // The store is asked all the same: it tells whether the partition is still ours.
            self.turn(&[], (now, handed), claim).await?;
        }
        self.confirm(&ops, claims, &mut answers).await?;
        Ok(answers)
    }

    /// Executes the first operations: all, unless they write too many bytes. The number of answers
    /// says how many.
    async fn turn(
        &mut self,
        ops: &[Op],
        when: (Time, HandedOver),
        claim: Option<Time>,
    ) -> Result<Vec<Answer>, LaneError> {
        let adding = self.writer.may_evict().then_some(Refusal::MayEvict);
        let mut refused = TurnRefusals { adding, is_late: false, is_away: false };
        loop {
            let is_refused = |op: &Op| refused.why(op).is_some();
            if claim.is_none() && !ops.is_empty() && ops.iter().all(is_refused) {
                // Everything is refused: the store need not be asked.
                return Ok(ops.iter().filter_map(|op| refused.why(op)).map(Answer::Refused).collect());
            }
            let some = if ops.iter().any(is_refused) {
                ops.iter().filter(|op| !is_refused(op)).cloned().collect()
            } else {
                Cow::Borrowed(ops)
            };
            match self.attempt(&some, when, claim, refused.clone()).await? {
                TurnOutcome::Answered(answers) => {
                    let mut answers = answers.into_iter();
                    let answer = |op: &Op| refused.why(op).map(Answer::Refused).or_else(|| answers.next());
                    return Ok(ops.iter().map_while(answer).collect());
                }
                TurnOutcome::Refused(more) => refused = more,
            }
        }
    }

    /// One attempt at a turn, or at half of it if it writes too many bytes.
    async fn attempt(
        &mut self,
        ops: &[Op],
        (now, handed): (Time, HandedOver),
        claim: Option<Time>,
        refused: TurnRefusals,
    ) -> Result<TurnOutcome, LaneError> {
        let (position, blind) = (self.known.position, self.known.blind_acks(ops));
        let mut is_blind = vec![false; ops.len()];
        blind.iter().for_each(|ack| is_blind[ack.at] = true);
        let others = || ops.iter().enumerate().filter(|(at, _)| !is_blind[*at]);
        let decided_ops =
            if blind.is_empty() { Cow::Borrowed(ops) } else { others().map(|(_, op)| op.clone()).collect() };

        // Reading changes nothing, so client requests need not wait for a store that is away.
        self.writer.set_may_give_up(decided_ops.iter().any(|op| op.is().origin != Origin::Owner));
        let decided = self.decide(&decided_ops, now).await;
        self.writer.set_may_give_up(false);
        let (mut decided, locations) = match decided {
            Err(_) if self.writer.take_gave_up() => {
                return Ok(TurnOutcome::Refused(TurnRefusals { is_away: true, ..refused }));
            }
            decided => decided?,
        };
        if decided_ops.iter().any(is_request) && is_late(handed) {
            return Ok(TurnOutcome::Refused(TurnRefusals { is_late: true, ..refused }));
        }
        let rows = decided.changes.rows.iter().filter_map(|row| row.after.as_ref());
        if rows.map(|row| row.record.timer.content_bytes()).sum::<usize>() > TURN_BYTES && ops.len() > 1 {
            return Box::pin(self.attempt(&ops[..ops.len() / 2], (now, handed), claim, refused)).await;
        }
        if let Some(why @ (Refusal::OutOfMemory | Refusal::ReadOnly)) = &refused.adding {
            refuse_unseen(why, &decided_ops, &mut decided.answers, &mut decided.changes);
        }

        let mut draft = Draft::default();
        draft.adds = decided.changes.answered.iter().any(|(_, answer)| answer.is_unseen());
        self.known.draft(&mut draft, &decided.changes, &locations, now);
        if let Some(controls) = decided.changes.controls {
            draft.set_controls(controls);
        }
        blind.iter().for_each(|ack| self.known.draft_ack(&mut draft, ack, &ops[ack.at], now));
        let drafted = self.known.finish(draft, claim);
        // A refusal is true under any owner.
        let all_refused = !ops.is_empty() && decided.answers.iter().all(|a| matches!(a, Answer::Refused(_)));
        let missed = match self.write(drafted, !all_refused).await? {
            WriteOutcome::Applied { missed } => missed,
            WriteOutcome::Refused(why) => {
                self.known.position = position;
                return Ok(TurnOutcome::Refused(TurnRefusals { adding: Some(why), ..refused }));
            }
        };

        let mut answers: Vec<Option<Answer>> = vec![None; ops.len()];
        others().map(|(at, _)| at).zip(decided.answers).for_each(|(at, answer)| answers[at] = Some(answer));
        let (again, done): (Vec<_>, Vec<_>) = blind.into_iter().partition(|ack| missed.contains(&ack.id));
        done.iter().for_each(|ack| answers[ack.at] = Some(Answer::Settle(SettleAnswer::Done)));
        if !again.is_empty() {
            let acks: Vec<Op> = again.iter().map(|ack| Op::settle(ack.id, Verdict::Ack)).collect();
            let late = Box::pin(self.turn(&acks, (now, handed), None)).await?;
            again.into_iter().zip(late).for_each(|(ack, answer)| answers[ack.at] = Some(answer));
        }
        Ok(TurnOutcome::Answered(answers.into_iter().flatten().collect()))
    }

    /// Reads the data that decisions need, and decides. Also returns where the changed rows are.
    ///
    /// First decides without the contents of timers that are found by their keys: a cancel or a
    /// replacement needs only their places. If such a timer has to be written again it is read, and
    /// everything is decided anew. What `reads_content` needs the contents of a key's timer from
    /// the start.
    async fn decide(&mut self, ops: &[Op], now: Time) -> Result<(Decided, Locations), LaneError> {
        let reads_by_key = |op: &Op| {
            let subject = op.subject();
            op.reads_content() && (subject.id().is_none() || subject.brings().is_some())
        };
        if !ops.iter().any(reads_by_key) {
            let (decided, locations) = self.decide_with(ops, now, Locations::without_reading()).await?;
            let mut written = decided.changes.rows.iter().filter(|row| row.after.is_some());
            if !written.any(|row| locations.is_unread(row.id())) {
                return Ok((decided, locations));
            }
        }
        self.decide_with(ops, now, Locations::default()).await
    }

    async fn decide_with(
        &mut self,
        ops: &[Op],
        now: Time,
        mut locations: Locations,
    ) -> Result<(Decided, Locations), LaneError> {
        let mut view = View::of(ops, self.known.controls.clone());
        let may_be_marked = self.known.controls.bulks.mark() > 0 && !broken!(MarkedTimersUnread);
        for op in ops {
            // A timer that the owner has in memory is stored, and is not read again, unless it may
            // have a mark that has to be kept. The mark of a job that has ended means nothing.
            if let Op::Take(Take { id, timer: Some(timer), .. }) = op
                && !may_be_marked
                && let Some((row, at)) = self.known.first_attempt(*id, || timer.clone())
            {
                view.learn(Fact::Row(*id, Some(row)));
                locations.insert(*id, at);
            }
        }
        self.learn(&mut view, &mut locations, ops.iter().flat_map(first_needs), now).await?;
        let context = Context { epoch: self.epoch(), prior_claim: self.known.prior_claim, now };
        loop {
            match view.decide(&context, ops) {
                Ok(decided) => return Ok((decided, locations)),
                Err(needs) => self.learn(&mut view, &mut locations, needs, now).await?,
            }
        }
    }
}

/// Whether a client asks for it and may have done so before: how that ended is remembered for a
/// while. A bulk job is not begun either when nobody expects it any more.
fn is_request(op: &Op) -> bool {
    match op.is().origin {
        Origin::Client => true,
        Origin::Person => matches!(op.subject(), Subject::Controls),
        Origin::Owner => false,
    }
}

/// Whether the data read by now may lack outcomes that repeats ask for.
fn is_late(handed: HandedOver) -> bool {
    if broken!(LateRequestsDecided) {
        return false;
    }
    handed.age() > Duration::from_millis(LOOKED_UP_WITHIN_MS)
}

/// How many operations of a batch one turn takes, as far as their arguments tell: the other rows
/// that they write are not read yet. One that begins or ends a bulk job is the last: see
/// [`super::encode`].
fn turn_length(ops: &[Op]) -> usize {
    let mut bytes = 0;
    let fits = |op: &&Op| {
        bytes += op.subject().brings().map_or(0, |timer| timer.content_bytes());
        bytes <= TURN_BYTES
    };
    let length = ops.iter().take(TURN_OPS).take_while(fits).count().max(1);
    ops[..length].iter().position(changes_mark).map_or(length, |at| at + 1)
}

/// Whether timers that are scheduled after it may have another mark than before.
pub(crate) fn changes_mark(op: &Op) -> bool {
    match op {
        Op::BeginBulk(_) | Op::StopBulk(_) => true,
        Op::BulkAdvance(advance) => advance.to == BulkPlace::End,
        Op::Schedule(_) | Op::Cancel(_) | Op::Reschedule(_) | Op::ExtendDeadline(_) => false,
        Op::Take(_) | Op::Settle(_) | Op::Park(_) | Op::Unpark(_) => false,
        Op::Replay(_) | Op::Purge(_) | Op::Trim(_) | Op::BulkAct(_) | Op::Import(_) => false,
        Op::Configure(_) => false,
    }
}

/// While the store is full, or takes no writes, it remembers no cancels of timers that do not
/// exist: anybody can send them without end.
fn refuse_unseen(why: &Refusal, ops: &[Op], answers: &mut [Answer], changes: &mut Changes) {
    for (op, answer) in ops.iter().zip(answers) {
        if let Op::Cancel(Cancel { target, request, .. }) = op
            && *answer == Answer::Cancel(CancelAnswer::NotFound)
        {
            *answer = Answer::Refused(why.clone());
            changes.answered.retain(|(answered, _)| answered != request);
            if let Target::Id(id) = target {
                changes.ended.retain(|ended| *ended != (*id, Ended::CancelledUnseen));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mtimer_store::ops::{BeginBulk, BulkAdvance, StopBulk};
    use mtimer_types::{Bulk, BulkAction, BulkId, Filter};

    use super::super::writes::Writes;
    use super::*;

    #[test]
    fn a_turn_ends_with_what_begins_or_ends_a_bulk_job() {
        let advance = |to| BulkAdvance { number: 1, to, met: 0 }.into();
        let bulk = Bulk::new(BulkAction::Cancel, Filter::default()).into();
        let begin = BeginBulk { id: BulkId(1), bulk }.into();
        let stop = StopBulk { id: BulkId(1), group: None, app: None }.into();
        let (other, end) = (advance(BulkPlace::Parked), advance(BulkPlace::End));
        let lengths = |op: &Op| {
            [[&other, op, op], [op, &other, &other], [&other, &other, &other]]
                .map(|ops| turn_length(&ops.map(Clone::clone)))
        };
        assert_eq!([&begin, &stop, &end].map(lengths), [[2, 1, 3]; 3]);
    }

    #[test]
    fn the_keys_of_a_turn_are_freed_by_one_command() {
        let mut writes = Writes::default();
        assert_eq!(writes.free("keys", vec!["x"; 2 * TURN_OPS]), 1);
    }
}
