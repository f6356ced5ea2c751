//! Answers of the store: each is matched with its call by the order, and then applied.

use mtimer_protocol::ErrorCode;
use mtimer_store::ops::{self as stored, Applied, Trim, TrimAnswer};
use mtimer_store::{Answer, Controls, LaneError, ListPage, Refusal, Retained};
use mtimer_types::{Epoch, PartitionId};

use super::Engine;
use super::calls::OpenCall;
use super::pending::{Asked, Own, Pending};
use crate::api::{CallAnswer, Counter, Now};

impl Engine {
    pub(super) fn answered(
        &mut self,
        now: Now,
        id: PartitionId,
        epoch: Epoch,
        answer: Result<CallAnswer, LaneError>,
    ) {
        let Some(p) = self.partition(id).filter(|p| p.epoch() == epoch) else { return };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return self.lane_ended(id, error),
        };
        let Some(call) = p.calls.pop() else { return };
        match (call, answer) {
            (OpenCall::Apply { pending, claim, begun }, CallAnswer::Apply(mut answers)) => {
                let is_unconfirmed = claim.is_some()
                    && answers.len() == pending.len() + 1
                    && answers.pop_if(|last| *last == Answer::Refused(Refusal::NotReplicated)).is_some();
                if answers.len() != pending.len() {
                    // Every operation's caller is to be told, so the batch counts as unanswered.
                    let text = format!("{} answers to {} operations", answers.len(), pending.len());
                    p.calls.put_back(OpenCall::Apply { pending, claim, begun });
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
                for (pending, answer) in pending.into_iter().zip(answers) {
                    self.applied(now, id, pending, answer);
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
            (OpenCall::Look, CallAnswer::Get(found)) => self.looked(now, found),
            (OpenCall::ParkedDestinations, CallAnswer::ParkedDestinations(list)) => {
                self.parks_known(id, list)
            }
            (OpenCall::Parked { dest }, CallAnswer::List(ListPage::Parked(page))) => {
                self.parked_page(now, id, &dest, page);
            }
            (OpenCall::Sweep { dest }, CallAnswer::List(ListPage::Parked(page))) => {
                self.swept(now, id, &dest, page);
            }
            (OpenCall::Taken, CallAnswer::List(ListPage::Taken(page))) => self.taken_page(now, id, page),
            (OpenCall::Controls, CallAnswer::Controls(controls)) => {
                self.controls_known(now, id, *controls);
            }
            (OpenCall::BulkPending, CallAnswer::Pending(page)) => self.bulk_pending(id, page),
            (OpenCall::BulkParks, CallAnswer::ParkedDestinations(list)) => self.bulk_parks(id, list),
            (OpenCall::BulkList(kind), CallAnswer::List(page)) => self.bulk_list(id, kind, page),
            (OpenCall::Query(part), answer) => self.query_answered(now, id, part, answer),
            // Requests that wait behind the release are answered.
            (OpenCall::Release, CallAnswer::Release) => self.lane_ended(id, LaneError::Closed),
            (call, _) => self.lane_ended(id, LaneError::of_another_kind(format_args!("{call:?}"))),
        }
    }

    fn applied(&mut self, now: Now, at: PartitionId, pending: Pending, answer: Answer) {
        match (pending, answer) {
            (Pending::Own(Own::BulkAct(acting)), Answer::Refused(why)) => {
                self.bulk_refused(now, at, acting, &why);
            }
            (Pending::Own(Own::BulkAdvance { kind, .. }), Answer::Refused(_)) => {
                if let Some(p) = self.partition(at) {
                    p.bulk.not_advanced(kind, now.mono_ms);
                }
            }
            (Pending::Own(own), Answer::Refused(_)) => self.put_off(at, own),
            (Pending::Own(own), answer) => self.own_applied(now, at, own, answer),
            (Pending::Asked(asked), Answer::Refused(refusal)) => self.refused(at, asked, refusal),
            (Pending::Asked(asked), answer) => self.asked_applied(now, at, asked, answer),
        }
    }

    /// The partition's bulk jobs and settings are known, or known anew.
    fn controls_known(&mut self, now: Now, at: PartitionId, controls: Controls) {
        let Controls { bulks, settings } = controls;
        for row in settings.all() {
            self.configured(now, row.clone());
        }
        if let Some(p) = self.partition(at) {
            p.controls_read();
        }
        self.bulks_known(at, bulks);
    }

    /// An operation of the owner's own that the store would not take for now: again after a pause.
    fn put_off(&mut self, at: PartitionId, own: Own) {
        if let Some(p) = self.partition(at) {
            p.push_put_off(own);
        }
    }

    fn own_applied(&mut self, now: Now, at: PartitionId, own: Own, answer: Answer) {
        match (own, answer) {
            (Own::Take { id, .. }, Answer::Take(answer)) => self.taken(now, id, answer),
            (Own::Settle(settling), Answer::Settle(answer)) => self.settled(now, settling, answer),
            (Own::Park(id), Answer::Park(answer)) => self.parked(id, answer),
            (Own::Unpark(id), Answer::Unpark(answer)) => self.unparked(now, id, answer),
            (Own::Trim(trim), Answer::Trim(answer)) => self.trimmed(now, at, &trim, answer),
            (Own::BulkAct(acting), Answer::BulkAct(answer)) => self.bulk_acted(now, at, acting, answer),
            (Own::BulkAdvance { advance, kind }, Answer::BulkAdvance(answer)) => {
                self.bulk_advanced(now, at, kind, &advance, answer);
            }
            (own, answer) => {
                self.put_off(at, own);
                self.lane_ended(at, LaneError::Broken(of_another_kind(&answer)));
            }
        }
    }

    fn trimmed(&mut self, now: Now, at: PartitionId, trim: &Trim, answer: TrimAnswer) {
        let TrimAnswer { removed, more } = answer;
        let counter = match trim.of {
            Retained::Dead => Counter::DeadTrimmed,
            Retained::Unconfirmed => Counter::UnconfirmedTrimmed,
        };
        self.count(counter, u64::from(removed));
        if let Some(p) = self.partition(at).filter(|_| more) {
            p.trim_from(now.mono_ms);
        }
    }

    /// Updates memory with the store's answer to a client's operation, and replies to the client.
    fn asked_applied(&mut self, now: Now, at: PartitionId, asked: Asked, answer: Answer) {
        match stored::applied(&asked.op, answer) {
            Ok(Applied { reply, effect }) => {
                self.agree(now, asked.key.as_ref(), effect);
                self.answer_asked(at, asked, reply);
            }
            Err(answer) => {
                let text = of_another_kind(&answer);
                self.not_applied(at, asked, ErrorCode::Unknown, &text);
                self.lane_ended(at, LaneError::Broken(text));
            }
        }
    }
}

fn of_another_kind(answer: &Answer) -> String {
    format!("an answer of another kind than the operation: {answer:?}")
}
