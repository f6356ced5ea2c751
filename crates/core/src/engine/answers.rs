//! Answers of the store, matched with calls by their order, and what follows from each.

use mtimer_protocol::{ErrorCode, OpReply};
use mtimer_store::{Answer, LaneError, Op, Refusal, Retained};
use mtimer_types::{Epoch, PartitionId};

use super::Engine;
use super::calls::OpenCall;
use super::purpose::OpCtx;
use crate::api::{CallAnswer, Counter, Now};

impl Engine {
    pub(super) fn answered(&mut self, now: Now, id: PartitionId, epoch: Epoch, answer: CallAnswer) {
        let Some(p) = self.partition(id).filter(|p| p.epoch() == epoch) else { return };
        if let CallAnswer::Ended(error) = answer {
            return self.lane_ended(id, error);
        }
        let Some(call) = p.calls.pop() else { return };
        match (call, answer) {
            (OpenCall::Apply { ctxs, claim, begun }, CallAnswer::Apply(mut answers)) => {
                let is_unconfirmed = claim.is_some()
                    && answers.len() == ctxs.len() + 1
                    && answers.pop_if(|last| *last == Answer::Refused(Refusal::NotReplicated)).is_some();
                if answers.len() != ctxs.len() {
                    // Every operation's caller is to be told, so the batch counts as unanswered.
                    let text = format!("{} answers to {} operations", answers.len(), ctxs.len());
                    p.calls.put_back(OpenCall::Apply { ctxs, claim, begun });
                    return self.lane_ended(id, LaneError::Broken(text));
                }
                p.claims.note_lag(begun, now.mono_ms);
                // A store may refuse before it looks at the owner record; one that lacks replicas
                // has written.
                let unseen = |a: &Answer| {
                    matches!(a, Answer::Refused(Refusal::OutOfMemory | Refusal::ReadOnly | Refusal::MayEvict))
                };
                if claim.is_some() || !answers.iter().all(unseen) {
                    p.claims.confirm(claim.filter(|_| !is_unconfirmed), begun);
                }
                if is_unconfirmed {
                    p.claims.unconfirmed();
                }
                for (ctx, answer) in ctxs.into_iter().zip(answers) {
                    self.applied(now, id, ctx, answer);
                }
            }
            (OpenCall::Load { claim, begun }, CallAnswer::Load(loaded)) => {
                if claim.is_some() {
                    p.claims.confirm(claim.filter(|_| !loaded.is_claim_unconfirmed), begun);
                }
                if loaded.is_claim_unconfirmed {
                    p.claims.unconfirmed();
                }
                self.loaded(now, id, loaded);
            }
            (OpenCall::Unload { beyond }, CallAnswer::Unload) => self.unloaded(id, beyond),
            (OpenCall::Fetch(timer), CallAnswer::Get(found)) => self.fetched(now, timer, found),
            (OpenCall::ParkedDestinations, CallAnswer::ParkedDestinations(list)) => {
                self.parks_known(id, list)
            }
            (OpenCall::Parked { dest }, CallAnswer::Parked(page)) => self.parked_page(now, id, &dest, page),
            (OpenCall::Sweep { dest }, CallAnswer::Parked(page)) => self.swept(now, id, &dest, page),
            (OpenCall::Taken, CallAnswer::Taken(page)) => self.taken_page(now, id, page),
            (OpenCall::Query(part), answer) => self.query_answered(id, part, answer),
            // Requests that wait behind the release are answered.
            (OpenCall::Release, CallAnswer::Release) => self.lane_ended(id, LaneError::Closed),
            (call, _) => {
                let text = format!("an answer of another kind than the call: {call:?}");
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
                    p.trim_from(now.mono_ms);
                }
            }
            (OpCtx::Trim(_), _) => {}
            (OpCtx::Schedule { reply, timer, name, begun }, Answer::Schedule(a)) => {
                self.scheduled(now, reply, timer, (name, begun), a)
            }
            (OpCtx::Cancel { reply, id, name }, Answer::Cancel(a)) => self.cancelled(at, reply, id, name, a),
            (OpCtx::Reschedule { reply, id, name, due }, Answer::Reschedule(a)) => {
                self.rescheduled(at, (reply, id, name, due), a);
            }
            (OpCtx::Replay { reply, id }, answer) => self.replayed(reply, id, &answer),
            (OpCtx::Purge { reply }, answer) => {
                let done = answer.is_done();
                self.reply(reply, if done { OpReply::Done } else { OpReply::NotFound });
            }
            (ctx, answer) => {
                let text = format!("an answer of another kind than the operation: {answer:?}");
                self.not_applied(at, ctx, ErrorCode::Unknown, &text);
                self.lane_ended(at, LaneError::Broken(text));
            }
        }
    }

    /// An operation of the owner's own that the store would not take for now: again after a pause.
    fn put_off(&mut self, at: PartitionId, op: Op, ctx: OpCtx) {
        if let Some(p) = self.partition(at) {
            p.push_put_off(op, ctx);
        }
    }
}
