//! What the fuzzer knows of each operation: the answers that there are, and what an answer promises.

use mtimer_store::conformance::properties;
use mtimer_store::ops::{
    BeginBulkAnswer, BulkAct, BulkActAnswer, Cancel, Configure, ConfigureAnswer, ExtendDeadline,
    ExtendDeadlineAnswer, ImportAnswer, MoveAnswer, Purge, PurgeAnswer, Replay, ReplayAnswer, Reschedule,
    Schedule, Settle, SettleAnswer, StopBulkAnswer, TrimAnswer,
};
use mtimer_store::{Answer, CancelAnswer, Op, Refusal, RescheduleAnswer, ScheduleAnswer, Verdict};
use mtimer_types::{BulkObstacle, Destination, DestinationSettings, Ended, StoredSettings, Target};

use super::answers::{Content, near};
use super::input::Program;
use super::ledger::{Fate, Ledger};

impl Content<'_> {
    /// Any answer to an operation.
    pub(super) fn applied(&self, op: &Op, program: &mut Program<'_>) -> Answer {
        let byte = program.byte();
        if byte >= 0xf0 {
            let adds = properties::adds(op);
            return Answer::Refused(match byte % 3 {
                0 if adds => Refusal::OutOfMemory,
                1 => Refusal::NotReplicated,
                _ => Refusal::ReadOnly,
            });
        }
        let is_done = byte & 1 == 0;
        let moved = if is_done { MoveAnswer::Done } else { MoveAnswer::Gone };
        match op {
            Op::Schedule(Schedule { timer, policy, .. }) => {
                let other = self.id(program).filter(|id| timer.key.is_some() && *id != timer.id);
                let answer = match (byte % 8, other) {
                    (4, Some(id)) => ScheduleAnswer::Scheduled { new: true, replaced: Some(id) },
                    (5, Some(id)) => ScheduleAnswer::Kept { id, begun: program.byte() & 1 == 0 },
                    (6, Some(id)) => ScheduleAnswer::KeyTaken(id),
                    (3, _) => ScheduleAnswer::Scheduled { new: false, replaced: None },
                    (7, _) => ScheduleAnswer::Ended(Ended::from_u8(byte / 8 % 6).unwrap_or(Ended::Dead)),
                    (2, _) if byte > 0x80 => ScheduleAnswer::Conflict,
                    _ => ScheduleAnswer::Scheduled { new: true, replaced: None },
                };
                Answer::Schedule(match answer {
                    // The time is computed: sooner or later than it was asked for.
                    ScheduleAnswer::Scheduled { new, replaced } if policy.computes_due() => {
                        let by = u64::from(byte / 8) * 10;
                        let due = if byte & 8 == 0 { timer.due + by } else { timer.due - by };
                        ScheduleAnswer::Timed { new, replaced, due }
                    }
                    answer => answer,
                })
            }
            Op::Cancel(Cancel { target, .. }) => {
                Answer::Cancel(match (byte % 4, self.named(target, program)) {
                    (0 | 1, Some(id)) => CancelAnswer::Cancelled(id),
                    (2, Some(id)) if byte & 4 != 0 => CancelAnswer::Died { id, failed: u32::from(byte / 8) },
                    (2, Some(id)) => CancelAnswer::TooLate(id),
                    _ => CancelAnswer::NotFound,
                })
            }
            Op::Reschedule(Reschedule { target, .. }) => {
                Answer::Reschedule(match (byte % 4, self.named(target, program)) {
                    (0, Some(id)) => RescheduleAnswer::Rescheduled(id),
                    (1, Some(id)) => RescheduleAnswer::TooLate(id),
                    (2, Some(id)) => RescheduleAnswer::PastDeadline(id),
                    (3, Some(id)) if byte & 4 != 0 => RescheduleAnswer::Cancelled(id),
                    _ => RescheduleAnswer::NotFound,
                })
            }
            Op::ExtendDeadline(ExtendDeadline { target, .. }) => {
                Answer::ExtendDeadline(match (byte % 4, self.named(target, program)) {
                    (0, Some(id)) => ExtendDeadlineAnswer::Extended(id),
                    (1, Some(id)) => ExtendDeadlineAnswer::TooLate(id),
                    (2, Some(id)) => ExtendDeadlineAnswer::BeforeNext(id),
                    _ => ExtendDeadlineAnswer::NotFound,
                })
            }
            Op::Settle(Settle { verdict, .. }) => Answer::Settle(match verdict {
                Verdict::Retry { .. } | Verdict::Later { .. } if byte % 8 == 2 => SettleAnswer::Died,
                Verdict::Retry { .. } | Verdict::Later { .. } if byte % 8 == 6 => SettleAnswer::Expired,
                _ if is_done => SettleAnswer::Done,
                _ => SettleAnswer::Gone,
            }),
            Op::Replay(_) => Answer::Replay(match self.id(program).filter(|_| byte % 4 == 3) {
                Some(holder) => ReplayAnswer::KeyTaken(holder),
                None if is_done => ReplayAnswer::Done,
                None => ReplayAnswer::Gone,
            }),
            Op::Purge(_) => Answer::Purge(if is_done { PurgeAnswer::Done } else { PurgeAnswer::Gone }),
            Op::Take(_) => Answer::Take(moved),
            Op::Park(_) => Answer::Park(moved),
            Op::Unpark(_) => Answer::Unpark(moved),
            Op::Trim(_) => Answer::Trim(TrimAnswer { removed: u32::from(byte), more: byte & 1 == 1 }),
            Op::BeginBulk(_) => Answer::BeginBulk(match is_done {
                true => BeginBulkAnswer::Begun,
                false => BeginBulkAnswer::TooMany(u32::from(byte)),
            }),
            Op::StopBulk(_) => Answer::StopBulk(match byte % 4 {
                0 => StopBulkAnswer::Done,
                1 => StopBulkAnswer::NotFound,
                _ => StopBulkAnswer::Stopped,
            }),
            Op::BulkAct(_) => Answer::BulkAct(match byte % 8 {
                0 => BulkActAnswer::Passed,
                1 => BulkActAnswer::Stopped,
                2 => BulkActAnswer::Died { failed: u32::from(byte / 8) },
                3 => BulkActAnswer::Moved { due: near(self.known(), program) },
                4 => BulkActAnswer::Replayed,
                5 => BulkActAnswer::NotDone(BulkObstacle::TooLate),
                6 => BulkActAnswer::Purged,
                _ => BulkActAnswer::Cancelled,
            }),
            Op::BulkAdvance(_) => Answer::BulkAdvance(moved),
            Op::Import(_) => Answer::Import(match byte % 8 {
                4 => ImportAnswer::Released,
                5 => ImportAnswer::Exists,
                6 => ImportAnswer::Ended(Ended::from_u8(byte / 8 % 6).unwrap_or(Ended::Dead)),
                byte => ImportAnswer::Staged { new: byte & 1 == 0 },
            }),
            Op::Configure(Configure { dest, settings, .. }) => Answer::Configure(match byte % 4 {
                0 => ConfigureAnswer::Changed(u64::from(byte)),
                1 => ConfigureAnswer::TooMany(u32::from(byte)),
                2 => ConfigureAnswer::Done(stored(dest, settings, byte).into()),
                _ => ConfigureAnswer::Done(stored(dest, &DestinationSettings::default(), byte).into()),
            }),
        }
    }
}

fn stored(dest: &Destination, settings: &DestinationSettings, byte: u8) -> StoredSettings {
    StoredSettings { dest: dest.clone(), version: u64::from(byte), settings: settings.clone() }
}

impl Ledger {
    /// A batch was answered.
    pub(super) fn applied(&mut self, ops: &[Op], answers: &[Answer]) {
        for (op, answer) in ops.iter().zip(answers) {
            match op {
                Op::Schedule(Schedule { timer, .. }) => {
                    let Answer::Schedule(
                        ScheduleAnswer::Scheduled { new, replaced }
                        | ScheduleAnswer::Timed { new, replaced, .. },
                    ) = answer
                    else {
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
                    if let Answer::Reschedule(RescheduleAnswer::Cancelled(id)) = answer {
                        self.end(*id, "cancelled by a bulk job");
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
                Op::BulkAct(BulkAct { id, .. }) => match answer {
                    Answer::BulkAct(BulkActAnswer::Cancelled) => self.end(*id, "cancelled by a bulk job"),
                    Answer::BulkAct(BulkActAnswer::Stopped | BulkActAnswer::Died { .. }) => {
                        let fate = self.fates.entry(*id).or_default();
                        fate.most = Some(fate.deliveries);
                    }
                    Answer::BulkAct(BulkActAnswer::Moved { due }) => {
                        let fate = self.fates.entry(*id).or_default();
                        (fate.moved, fate.without_deadline) = (Some(*due), true);
                    }
                    Answer::BulkAct(BulkActAnswer::Replayed) => self.replayed(*id),
                    Answer::BulkAct(BulkActAnswer::Purged) => self.end(*id, "purged"),
                    _ => {}
                },
                Op::Replay(_) | Op::Settle(_) | Op::Purge(_) => {}
                Op::Take(_) | Op::Park(_) | Op::Unpark(_) | Op::Trim(_) => {}
                // A staged timer is delivered by nobody: one of this id that was, has ended.
                Op::Import(_) => {}
                Op::BeginBulk(_) | Op::StopBulk(_) | Op::BulkAdvance(_) | Op::Configure(_) => {}
            }
        }
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
                Op::BulkAct(BulkAct { id, .. }) => {
                    self.replayed(*id);
                    *id
                }
                Op::BeginBulk(_) | Op::StopBulk(_) | Op::BulkAdvance(_) | Op::Import(_) => continue,
                Op::Configure(_) => continue,
            };
            self.fates.entry(id).or_default().forget();
        }
    }
}
