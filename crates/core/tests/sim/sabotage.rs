//! The way between the engine and a lane, and how it is broken on purpose.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mtimer_core::{Call, CallAnswer};
use mtimer_store::{Answer, Lane, LaneError, Op};

/// Ways to break a broker, in order to see the checker notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sabotage {
    /// Schedules are answered before the store has them, and a crash loses some.
    AnswerEarly,
    /// Claims are not written.
    SkipClaim,
    /// At-most-once timers are not taken.
    SkipTake,
    /// Acknowledgements are not stored.
    LoseAck,
}

impl Sabotage {
    pub(crate) const ALL: [Self; 4] = [Self::AnswerEarly, Self::SkipClaim, Self::SkipTake, Self::LoseAck];
}

/// Makes a call, or what sabotage leaves of it.
pub(super) fn call_lane(
    lane: &dyn Lane,
    call: Call,
    sabotage: Option<Sabotage>,
) -> BoxFuture<'static, Result<CallAnswer, LaneError>> {
    match call {
        Call::Apply(mut batch) => {
            let mut skipped = Vec::new();
            match sabotage {
                Some(Sabotage::SkipClaim) => batch.claim = None,
                Some(Sabotage::SkipTake) => {
                    skip(&mut batch.ops, &mut skipped, |op| matches!(op, Op::Take { .. }))
                }
                Some(Sabotage::LoseAck) => skip(&mut batch.ops, &mut skipped, |op| {
                    matches!(op, Op::Settle { verdict: mtimer_store::Verdict::Ack, .. })
                }),
                Some(Sabotage::AnswerEarly) => skip(
                    &mut batch.ops,
                    &mut skipped,
                    |op| matches!(op, Op::Schedule { timer, .. } if timer.id.random() % 16 == 0),
                ),
                None => {}
            }
            let early = mtimer_store::ScheduleAnswer::Scheduled { new: true, replaced: None };
            let answers = lane.apply(batch);
            let fake =
                if sabotage == Some(Sabotage::AnswerEarly) { Answer::Schedule(early) } else { Answer::Done };
            answers
                .map(move |a| {
                    a.map(|mut answers| {
                        skipped.iter().for_each(|at| answers.insert(*at, fake.clone()));
                        CallAnswer::Apply(answers)
                    })
                })
                .boxed()
        }
        Call::Load(mut load) => {
            if sabotage == Some(Sabotage::SkipClaim) {
                load.claim = None;
            }
            lane.load(load).map(|a| a.map(CallAnswer::Load)).boxed()
        }
        Call::Unload(beyond) => lane.unload(beyond).map(|a| a.map(|()| CallAnswer::Unload)).boxed(),
        Call::Get(target) => lane.get(target).map(|a| a.map(CallAnswer::Get)).boxed(),
        Call::ParkedDestinations => {
            lane.parked_destinations().map(|a| a.map(CallAnswer::ParkedDestinations)).boxed()
        }
        Call::Parked(dest, cursor, limit) => {
            lane.parked(dest, cursor, limit).map(|a| a.map(CallAnswer::Parked)).boxed()
        }
        Call::Dead(filter, cursor, limit) => {
            lane.dead(filter, cursor, limit).map(|a| a.map(CallAnswer::Dead)).boxed()
        }
        Call::Taken(cursor, limit) => lane.taken(cursor, limit).map(|a| a.map(CallAnswer::Taken)).boxed(),
        Call::Unconfirmed(cursor, limit) => {
            lane.unconfirmed(cursor, limit).map(|a| a.map(CallAnswer::Unconfirmed)).boxed()
        }
        Call::Census => lane.census().map(|a| a.map(CallAnswer::Census)).boxed(),
        Call::Release(left) => lane.release(left).map(|a| a.map(|()| CallAnswer::Release)).boxed(),
    }
}

/// Takes operations out of a batch and notes where their answers are to be put.
fn skip(ops: &mut Vec<Op>, skipped: &mut Vec<usize>, which: impl Fn(&Op) -> bool) {
    let mut at = 0;
    ops.retain(|op| {
        let out = which(op);
        if out {
            skipped.push(at);
        }
        at += 1;
        !out
    });
}
