//! What was promised of each timer, by the store's answers as the engine has seen them, and whether
//! deliveries keep it.

use std::collections::{HashMap, HashSet};

use mtimer_protocol::Delivery;
use mtimer_store::ops::{
    ExtendDeadlineAnswer, Purge, PurgeAnswer, Replay, ReplayAnswer, Reschedule, Schedule, Settle,
    SettleAnswer,
};
use mtimer_store::{Answer, CancelAnswer, Op, RescheduleAnswer, ScheduleAnswer, Verdict};
use mtimer_types::{Epoch, Mode, Target, Time, TimerId};

use super::backend::Known;

#[derive(Debug, Default)]
pub(super) struct Ledger {
    fates: HashMap<TimerId, Fate>,
}

/// What is known of one timer.
#[derive(Debug, Default)]
struct Fate {
    /// It has ended so: no delivery may follow.
    ended: Option<&'static str>,
    /// A cancel came too late: so many deliveries had begun, and no more may.
    most: Option<usize>,
    /// It was moved to this time.
    moved: Option<Time>,
    /// It was given new attempts so often.
    replays: usize,
    /// Its deliveries.
    sent: HashSet<(Epoch, u32)>,
    /// How many.
    deliveries: usize,
    /// Its deadline does not count any more.
    without_deadline: bool,
}

impl Fate {
    /// Nothing is known for certain any more, but for what was sent.
    fn forget(&mut self) {
        (self.ended, self.most, self.moved) = (None, None, None);
    }
}

impl Ledger {
    /// A batch was answered.
    pub(super) fn applied(&mut self, ops: &[Op], answers: &[Answer]) {
        for (op, answer) in ops.iter().zip(answers) {
            match op {
                Op::Schedule(Schedule { timer, .. }) => {
                    let Answer::Schedule(ScheduleAnswer::Scheduled { new, replaced }) = answer else {
                        continue;
                    };
                    if *new {
                        // If there was one of this id, it has ended long ago.
                        self.fates.insert(timer.id, Fate::default());
                    }
                    if let Some(old) = replaced {
                        self.end(*old, "replaced");
                    }
                }
                Op::Cancel(_) => match answer {
                    Answer::Cancel(CancelAnswer::Cancelled(id)) => self.end(*id, "cancelled"),
                    Answer::Cancel(CancelAnswer::TooLate(id) | CancelAnswer::Died { id, .. }) => {
                        let fate = self.fates.entry(*id).or_default();
                        fate.most = Some(fate.deliveries);
                    }
                    _ => {}
                },
                Op::Reschedule(Reschedule { due, .. }) => {
                    if let Answer::Reschedule(RescheduleAnswer::Rescheduled(id)) = answer {
                        self.fates.entry(*id).or_default().moved = Some(*due);
                    }
                }
                // The store made the answer up: which deadline counts is not known any more.
                Op::ExtendDeadline(_) => {
                    if let Answer::ExtendDeadline(ExtendDeadlineAnswer::Extended(id)) = answer {
                        self.fates.entry(*id).or_default().without_deadline = true;
                    }
                }
                Op::Replay(Replay { id, .. }) if *answer == Answer::Replay(ReplayAnswer::Done) => {
                    self.replayed(*id)
                }
                Op::Settle(Settle { id, verdict, .. }) if *answer == Answer::Settle(SettleAnswer::Done) => {
                    match verdict {
                        Verdict::Ack | Verdict::LateAck { .. } => self.end(*id, "acknowledged"),
                        Verdict::Expired { .. } => self.end(*id, "expired"),
                        _ => {}
                    }
                }
                Op::Settle(Settle { id, .. }) if *answer == Answer::Settle(SettleAnswer::Expired) => {
                    self.end(*id, "expired")
                }
                Op::Purge(Purge { id }) if *answer == Answer::Purge(PurgeAnswer::Done) => {
                    self.end(*id, "purged")
                }
                Op::Replay(_) | Op::Settle(_) | Op::Purge(_) => {}
                Op::Take(_) | Op::Park(_) | Op::Unpark(_) | Op::Trim(_) => {}
            }
        }
    }

    fn end(&mut self, id: TimerId, how: &'static str) {
        self.fates.entry(id).or_default().ended = Some(how);
    }

    fn replayed(&mut self, id: TimerId) {
        let fate = self.fates.entry(id).or_default();
        fate.forget();
        fate.replays += 1;
        fate.without_deadline = true;
    }

    /// Operations whose answer the engine has not seen: whether they were applied is not known.
    pub(super) fn lost(&mut self, ops: &[Op]) {
        for op in ops {
            let id = match op {
                Op::Replay(Replay { id, .. }) => {
                    self.replayed(*id);
                    continue;
                }
                Op::Schedule(Schedule { timer, .. }) => timer.id,
                Op::Reschedule(Reschedule { target: Target::Id(id), .. }) => *id,
                Op::Reschedule(_) => {
                    self.fates.values_mut().for_each(|fate| fate.moved = None);
                    continue;
                }
                Op::Cancel(_) | Op::Take(_) | Op::Settle(_) | Op::Park(_) | Op::Unpark(_) => continue,
                Op::ExtendDeadline(_) | Op::Purge(_) | Op::Trim(_) => continue,
            };
            self.fates.entry(id).or_default().forget();
        }
    }

    /// A delivery begins.
    pub(super) fn delivered(&mut self, known: &Known, d: &Delivery) {
        let (id, now) = (d.id, known.now.time);
        let timer = known.timers.iter().find(|t| t.id == id);
        let timer = timer.unwrap_or_else(|| panic!("{id} is delivered, and nobody has scheduled it"));
        let fate = self.fates.entry(id).or_default();
        assert!(d.due <= now, "{id} is delivered at {now}, {} ms early", d.due.ms_since(now));
        assert!(fate.ended.is_none(), "{id} is delivered after it was {}", fate.ended.unwrap_or_default());
        assert!(
            fate.sent.insert((d.epoch, d.attempt)),
            "{id} is delivered twice under epoch {} as attempt {}",
            d.epoch,
            d.attempt
        );
        fate.deliveries += 1;
        if let Some(moved) = fate.moved {
            assert!(moved <= now, "{id} is delivered at {now}, but was moved to {moved}");
        }
        if let Some(most) = fate.most {
            assert!(fate.deliveries <= most, "a new attempt of {id} begins after a late cancel");
        }
        if timer.mode == Mode::AtMostOnce {
            assert!(fate.deliveries <= 1 + fate.replays, "{id} is delivered {} times", fate.deliveries);
        }
        if let Some(deadline) = timer.deadline.filter(|_| !fate.without_deadline) {
            assert!(now <= deadline, "{id} is delivered {} ms after its deadline", now.ms_since(deadline));
        }
    }
}
