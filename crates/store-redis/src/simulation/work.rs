//! The requests of a run.

use mtimer_store::conformance::properties::assert_all_occur;
use mtimer_store::ops::{Cancel, Park, Purge, Replay, Reschedule, Schedule, Settle, Take, Trim, Unpark};
use mtimer_store::{Op, Place, RequestId, Retained, Verdict};
use mtimer_types::{DeadReason, KeyPolicy, Timer};

use super::arbitrary::{arbitrary_time, target};
use super::run::{ONE_IN, Run, block_on};

/// The kinds of requests of a run.
#[derive(Clone, Copy)]
enum Kind {
    /// A timer of the run.
    Schedule,
    /// The same id with other content.
    ScheduleChanged,
    /// By id or key.
    Cancel,
    /// By id or key.
    Reschedule,
    /// A cancel or reschedule that was asked for before.
    Repeat,
    Take,
    Ack,
    LateAck,
    Retry,
    Dead,
    Expire,
    Unconfirm,
    Park,
    Unpark,
    Replay,
    Purge,
    Trim,
    /// An acknowledgement with the timer, which is written without reading it.
    AckLoaded,
}

use Kind::*;

const ALL: [Kind; 18] = [
    Schedule,
    ScheduleChanged,
    Cancel,
    Reschedule,
    Repeat,
    Take,
    Ack,
    LateAck,
    Retry,
    Dead,
    Expire,
    Unconfirm,
    Park,
    Unpark,
    Replay,
    Purge,
    Trim,
    AckLoaded,
];

impl Run {
    pub(super) fn op(&mut self, window: u64) -> Op {
        let timer = self.timer(window);
        let place = self.model.timers.get(&timer.id).map(|entry| entry.place);
        // Mostly operations that make sense where the timer is, so that runs get somewhere.
        let kinds: &[Kind] = match place {
            _ if self.random.one_in(3) => &ALL,
            None => &[Schedule, Schedule, Schedule, Cancel, Repeat],
            Some(Place::Pending { .. }) => &[
                Take, Take, Retry, Retry, Park, Reschedule, Reschedule, Cancel, Dead, LateAck, Ack,
                AckLoaded, AckLoaded,
            ],
            Some(Place::Parked) => &[Unpark, Unpark, Take, Reschedule, Cancel, Dead],
            Some(Place::Taken { unconfirmed: false, .. }) => {
                &[Unconfirm, Unconfirm, Dead, LateAck, Park, Take]
            }
            Some(Place::Taken { .. } | Place::Dead) => &[Replay, Replay, Schedule, Trim, LateAck, Purge],
        };
        let kind = self.random.pick(kinds);
        self.op_of(kind, timer)
    }

    fn op_of(&mut self, kind: Kind, timer: Timer) -> Op {
        let (id, now, r) = (timer.id, self.now, &mut self.random);
        let fire = arbitrary_time(r, now);
        let settle = |verdict| Op::settle(id, verdict);
        let request = RequestId(r.next_u64());
        match kind {
            Schedule => {
                let policy = r.pick(&[KeyPolicy::Create, KeyPolicy::Replace, KeyPolicy::Keep]);
                Op::Schedule(Schedule::new(timer.into(), policy))
            }
            ScheduleChanged => {
                let timer = Timer { callback_timeout_ms: Some(1_234), ..timer };
                Op::Schedule(Schedule::new(timer.into(), KeyPolicy::Create))
            }
            Cancel => {
                let sent_attempt = r.one_in(4).then(|| r.pick(&[1, 1, 2, 4]));
                let op = Op::Cancel(Cancel { target: target(r, &timer), sent_attempt, request });
                self.asked.push(op.clone());
                op
            }
            Reschedule => {
                let op = Op::Reschedule(Reschedule {
                    target: target(r, &timer),
                    due: fire,
                    is_begun: r.one_in(8),
                    request,
                });
                self.asked.push(op.clone());
                op
            }
            Repeat if !self.asked.is_empty() => self.asked[r.below(self.asked.len() as u64) as usize].clone(),
            Repeat | Take => {
                // Also one that has ended meanwhile.
                let record = self.model.timers.get(&id).map(|entry| entry.record());
                let is_whole = record.as_ref().is_none_or(|record| record.accepted.is_none());
                let known = record.map_or(timer.into(), |record| record.timer);
                Op::Take(Take {
                    id,
                    failed: r.below(3) as u32,
                    timer: (r.one_in(2) && is_whole).then_some(known),
                })
            }
            Ack => settle(Verdict::Ack),
            LateAck => settle(Verdict::LateAck { attempt: r.below(4) as u32 }),
            Retry => {
                let (tier, failed) = (r.pick(&[1, 1, 2, 5, 32]), 1 + r.below(4) as u32);
                settle(Verdict::Retry { fire, tier, failed, error: r.pick(&["", "later"]).into() })
            }
            Dead => {
                let reason = r.pick(&[DeadReason::Exhausted, DeadReason::Failed]);
                settle(Verdict::Dead { reason, failed: r.below(5) as u32, error: "never".into() })
            }
            Expire => settle(Verdict::Expired),
            Unconfirm => settle(Verdict::Unconfirmed),
            Park => Op::Park(Park { id, failed: r.below(3) as u32 }),
            Unpark => Op::Unpark(Unpark { id, fire }),
            Replay => Op::Replay(Replay { id, fire }),
            Purge => Op::Purge(Purge { id }),
            Trim => {
                let of = r.pick(&[Retained::Dead, Retained::Unconfirmed]);
                let (keep, limit) = (r.below(6), r.pick(&[0, 1, 2, 100]));
                Op::Trim(Trim { of, before: now - 20 * r.below(40), keep, limit })
            }
            AckLoaded => {
                let known = self.model.timers.get(&id).map_or(timer, |entry| entry.timer.clone());
                Op::Settle(Settle { id, verdict: Verdict::Ack, timer: Some(known.into()) })
            }
        }
    }
}

#[test]
fn runs_ask_for_every_operation() {
    let ops: Vec<Op> = block_on(async {
        let mut run = Run::new(1, ONE_IN).await.unwrap();
        (0..500).map(|_| run.op(0)).collect()
    });
    assert_all_occur(&ops);
}
