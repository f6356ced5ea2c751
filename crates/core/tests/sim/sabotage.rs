//! A broker that is broken on purpose: its calls of the store, the answers, or its clients'
//! messages are altered on the way. Each way of it must be found by the checker.

use mtimer_core::Call;
use mtimer_protocol::ops::{self, ScheduleReply};
use mtimer_protocol::{Delivery, OpReply, RequestOp, Settlement};
use mtimer_store::conformance::properties;
use mtimer_store::ops::{
    BulkActAnswer, Cancel, ConfigureAnswer, ImportAnswer, MoveAnswer, Reschedule, Schedule, Settle,
    SettleAnswer, TrimAnswer,
};
use mtimer_store::{Answer, Batch, CancelAnswer, Op, Refusal, RescheduleAnswer, ScheduleAnswer, Verdict};
use mtimer_types::limits::MAX_DEBOUNCE_MS;
use mtimer_types::{
    DestinationSettings, Epoch, FailedAttempt, HandlerOutcome, Headers, KeyPolicy, Mode, Priority,
    SettingsVersion, StoredSettings, Target,
};

use super::plan::{Plan, Profile};

macro_rules! sabotages {
    ($($(#[$doc:meta])* $name:ident: $profile:ident, $sign:literal;)*) => {
        /// Ways to break a broker.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Sabotage {
            $($(#[$doc])* $name,)*
        }

        impl Sabotage {
            /// All of them, each with the profile of the runs that are to find it, and the text of
            /// their failure.
            pub(crate) const ALL: &[(Self, Profile, &str)] = &[$((Self::$name, Profile::$profile, $sign),)*];
        }
    };
}

sabotages! {
    /// The delay of a handler that answers later is left out of account.
    LaterAtOnce: Calm, "later: sent";
    /// A handler that answers later is taken for one that has failed.
    LaterIsFailure: Calm, "later: counted as a failure";
    /// A late ok ends what the handler of its attempt has put off.
    LaterEndedByOk: Faults, "later: ended by an ok";
    /// Of those that wait the least urgent go first.
    PriorityInverted: Calm, "priority: waits while";
    /// Some schedules are answered and never stored.
    AnswerEarly: Faults, "1: answered OK and never stored";
    /// Claims are not written.
    SkipClaim: Faults, "claims: sent beyond";
    /// At-most-once timers are not taken.
    SkipTake: Faults, "4: sent without being taken";
    /// Acknowledgements are not stored.
    LoseAck: Faults, "";
    /// A timer that was to be retried is removed.
    LoseRetry: Calm, "1: acknowledged, and no handler";
    /// The store is not told of expiries.
    LoseExpiry: Pressure, "9: overdue";
    /// At-most-once timers whose client is lost stay taken, with their key.
    KeepKey: Faults, "13: left behind";
    /// What was taken and not sent at a handover stays taken: nothing is parked.
    LoseTaken: Handovers, "4: unconfirmed, and no broker has sent it";
    /// Timers are parked in memory only.
    LosePark: Pressure, "9: overdue";
    /// Every tenth timer that is loaded is forgotten.
    LoseLoaded: Faults, "9: overdue";
    /// A timer that was moved by its key, and not confirmed, is not looked at.
    NoLook: Faults, "9: overdue";
    /// A cancel is answered and not done.
    IgnoreCancel: Faults, "6: sent after a cancel";
    /// A reschedule is answered and not done.
    IgnoreReschedule: Faults, "7: sent";
    /// Too late is answered, and further attempts are not stopped.
    AttemptAfterTooLate: Faults, "TooLate: an attempt";
    /// A timer that was replaced is sent once more.
    SendReplaced: Faults, "replace: sent";
    /// Deadlines are left out of account.
    IgnoreDeadline: Pressure, "deadline: sent";
    /// A handler's own retry delay is left out of account.
    IgnoreRetryAfter: Calm, "retry: sent";
    /// Deliveries under way at a handover are not passed on.
    LoseInFlight: Handovers, "5: ";
    /// Claims are taken for written while the store cannot be reached: the owner never stops
    /// sending.
    NoFenceWindow: Faults, "10: sent by an owner";
    /// Every third timer is missing in the pages that bulk jobs read.
    BulkSkips: Faults, "bulk: a job has ended, and not met all";
    /// The store keeps no marks of bulk jobs: what was acted on, and what has come since, is met.
    BulkForgets: Faults, "bulk: acted on a timer twice";
    /// Some imports are answered and never stored.
    ImportEarly: Faults, "1: answered OK and never stored";
    /// Every third staged timer is missing in the pages that releases read.
    ReleaseSkips: Faults, "bulk: a job has ended, and not met all";
    /// Every third attempt that fails is not told to the store.
    StoryForgets: Faults, "story: no word of attempt";
    /// Attempts are told to the store as if they had been sent a second later.
    StoryMisdates: Faults, "story: tells of an attempt that was not sent like that";
    /// Attempts are told to the store as if none had been late.
    StoryHidesLateness: Faults, "story: tells of an attempt that was not sent like that";
    /// A pause is answered and not heeded.
    PauseUnheeded: Faults, "pause: sent after a pause was answered";
    /// A new owner does not read the pauses that its partition has.
    PauseForgotten: Faults, "pause: sent after a pause was answered";
    /// The owner takes `latest` for `earliest`.
    LatestMovesSooner: Faults, "keys: a latest has moved its key sooner";
    /// The owner does not know the longest wait of a debounce.
    DebounceWithoutEnd: Faults, "keys: a debounce waits beyond its longest time";
    /// The clock follows a reading of the store by steps, also backwards.
    ClockStepsBack: Clocks, "12: the time";
    /// The clock follows the store by a twentieth of the time that passes.
    ClockFollowsSlowly: Clocks, "behind the clock";
    /// The clock is set at the start, then left alone.
    ClockIgnoresStores: Clocks, "12: the time";
    /// The clock is 0.4 s ahead of the stores.
    ClockRunsAhead: Clocks, "ahead of the clock";
    /// Suspensions are not counted.
    ClockMissesSuspensions: Clocks, "behind the clock";
}

impl Sabotage {
    /// Whether it breaks what only seeds show in which everything newer is done.
    pub(crate) fn is_of_newer(self) -> bool {
        use Sabotage::{
            DebounceWithoutEnd, LaterAtOnce, LaterEndedByOk, LaterIsFailure, LatestMovesSooner,
            PriorityInverted,
        };
        matches!(
            self,
            LatestMovesSooner
                | DebounceWithoutEnd
                | LaterAtOnce
                | LaterIsFailure
                | LaterEndedByOk
                | PriorityInverted
        )
    }

    /// Whether it puts something in the place of the cluster clock.
    pub(crate) fn is_of_the_clock(self) -> bool {
        use Sabotage::{ClockFollowsSlowly, ClockIgnoresStores, ClockRunsAhead, ClockStepsBack};
        matches!(self, ClockIgnoresStores | ClockRunsAhead | ClockFollowsSlowly | ClockStepsBack)
    }

    /// Makes a plan one that shows it, where few do.
    pub(super) fn shape(self, plan: &mut Plan) {
        if self == Self::NoFenceWindow {
            // Another broker has the partition, and this one still has timers of it and somebody to
            // send them to.
            plan.brokers = plan.brokers.max(2);
            plan.clustered = true;
            plan.credits = &[20, 100];
            plan.only_cuts = true;
        }
        if self == Self::PriorityInverted {
            // Many wait for little credit.
            plan.timers = 500;
            (plan.load_ms, plan.due_ms) = (2_000, 2_000);
            plan.credits = &[1];
            // Little is asked for that may hold timers.
            (plan.operations, plan.newer_policies, plan.postpones) = (2, 0, false);
        }
    }

    /// The answer to an operation that does not reach the store; `None`: it does.
    pub(super) fn swallow(self, op: &Op) -> Option<Answer> {
        let settled = Some(Answer::Settle(SettleAnswer::Done));
        match (self, op) {
            (Self::AnswerEarly, Op::Schedule(Schedule { timer, .. })) if timer.id.random() % 16 == 0 => {
                Some(Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None }))
            }
            (Self::ImportEarly, Op::Import(op)) if op.record.timer.id.random() % 4 == 0 => {
                Some(Answer::Import(ImportAnswer::Staged { new: true }))
            }
            (Self::PauseUnheeded, Op::Configure(op)) => {
                let SettingsVersion::Given(version) = op.version else { return None };
                let (dest, settings) = (op.dest.clone(), DestinationSettings::default());
                Some(Answer::Configure(ConfigureAnswer::Done(
                    StoredSettings { dest, version, settings }.into(),
                )))
            }
            (Self::SkipTake, Op::Take(_)) => Some(Answer::Take(MoveAnswer::Done)),
            (Self::LosePark | Self::LoseTaken, Op::Park(_)) => Some(Answer::Park(MoveAnswer::Done)),
            (Self::LoseAck, Op::Settle(Settle { verdict: Verdict::Ack, .. }))
            | (Self::LoseExpiry, Op::Settle(Settle { verdict: Verdict::Expired { .. }, .. }))
            | (Self::KeepKey, Op::Settle(Settle { verdict: Verdict::Unconfirmed, .. })) => settled,
            (Self::IgnoreCancel, Op::Cancel(Cancel { target: Target::Id(id), sent_attempt: None, .. })) => {
                Some(Answer::Cancel(CancelAnswer::Cancelled(*id)))
            }
            (
                Self::AttemptAfterTooLate,
                Op::Cancel(Cancel { target: Target::Id(id), sent_attempt: Some(_), .. }),
            ) => Some(Answer::Cancel(CancelAnswer::TooLate(*id))),
            (Self::IgnoreReschedule, Op::Reschedule(Reschedule { target: Target::Id(id), .. })) => {
                Some(Answer::Reschedule(RescheduleAnswer::Rescheduled(*id)))
            }
            _ => None,
        }
    }

    /// Alters a call before it reaches the store.
    pub(super) fn alter(self, call: &mut Call) {
        match (self, call) {
            (Self::SkipClaim, Call::Apply(batch)) => batch.claim = None,
            (Self::SkipClaim, Call::Load(load)) => load.claim = None,
            (Self::LoseRetry, Call::Apply(batch)) => {
                for op in &mut batch.ops {
                    if let Op::Settle(Settle { verdict: verdict @ Verdict::Retry { .. }, .. }) = op {
                        *verdict = Verdict::Ack;
                    }
                }
            }
            (Self::LaterEndedByOk, Call::Apply(batch)) => {
                for op in &mut batch.ops {
                    if let Op::Settle(Settle { verdict: verdict @ Verdict::LateAck { .. }, .. }) = op {
                        *verdict = Verdict::Ack;
                    }
                }
            }
            (Self::LoseInFlight, Call::Release(left)) => left.clear(),
            (Self::LatestMovesSooner | Self::DebounceWithoutEnd, Call::Apply(batch)) => {
                batch.ops.iter_mut().for_each(|op| self.misread_policy(op));
            }
            (Self::StoryForgets, Call::Apply(batch)) => {
                let forgotten = |failed: &FailedAttempt| failed.ended.as_ms().is_multiple_of(3);
                stories(batch).for_each(|told| *told = told.take().filter(|failed| !forgotten(failed)));
            }
            (Self::StoryMisdates, Call::Apply(batch)) => {
                for failed in stories(batch).flatten() {
                    failed.attempt.sent = failed.attempt.sent.map(|sent| sent + 1_000);
                }
            }
            (Self::StoryHidesLateness, Call::Apply(batch)) => {
                stories(batch).flatten().for_each(|failed| failed.attempt.late_ms = 0);
            }
            _ => {}
        }
    }

    fn misread_policy(self, op: &mut Op) {
        let policy = match op {
            Op::Schedule(op) => &mut op.policy,
            _ => return,
        };
        *policy = match (self, *policy) {
            (Self::LatestMovesSooner, KeyPolicy::Latest) => KeyPolicy::Earliest,
            (Self::DebounceWithoutEnd, KeyPolicy::Debounce { quiet_ms, .. }) => {
                KeyPolicy::Debounce { quiet_ms, max_ms: MAX_DEBOUNCE_MS }
            }
            (_, policy) => policy,
        };
    }

    /// The delivery that a broker sends besides when it gives an answer, if any.
    pub(super) fn sends_besides(self, epoch: Epoch, reply: &OpReply) -> Option<Delivery> {
        let OpReply::Schedule(ScheduleReply::Scheduled { replaced: Some(id), .. }) = *reply else {
            return None;
        };
        (self == Self::SendReplaced).then(|| Delivery {
            id,
            key: None,
            due: id.birth_due(),
            epoch,
            attempt: u32::MAX,
            mode: Mode::AtLeastOnce,
            timeout_ms: 2_000,
            payload: Vec::new().into(),
            headers: Headers::NONE,
        })
    }

    /// The answers that a broker assumes for a batch that does not reach the store.
    pub(super) fn answer_alone(ops: &[Op]) -> Vec<Answer> {
        let one = |op: &Op| match op {
            op if properties::is_asked_for(op) => Answer::Refused(Refusal::NotReplicated),
            Op::Settle(_) => Answer::Settle(SettleAnswer::Done),
            Op::Take(_) => Answer::Take(MoveAnswer::Done),
            Op::Park(_) => Answer::Park(MoveAnswer::Done),
            Op::Unpark(_) => Answer::Unpark(MoveAnswer::Done),
            Op::Trim(_) => Answer::Trim(TrimAnswer { removed: 0, more: false }),
            Op::BulkAct(_) => Answer::BulkAct(BulkActAnswer::Passed),
            Op::BulkAdvance(_) => Answer::BulkAdvance(MoveAnswer::Gone),
            other => unreachable!("{other:?} is of a client"),
        };
        ops.iter().map(one).collect()
    }

    /// Alters a client's operation before the engine sees it.
    pub(super) fn mishear(self, op: &mut RequestOp) {
        if self == Self::PriorityInverted
            && let RequestOp::Schedule(ops::Schedule { timer, .. }) = op
        {
            let timer = std::sync::Arc::make_mut(timer);
            let inverted = Priority::ALL[Priority::COUNT - 1 - timer.priority().rank()];
            timer.extensions = timer.extensions.with_priority(inverted).expect("it has one already");
        }
        if self == Self::IgnoreDeadline
            && let RequestOp::Schedule(ops::Schedule { timer, .. }) = op
            && timer.mode == Mode::AtLeastOnce
        {
            std::sync::Arc::make_mut(timer).deadline = None;
        }
    }

    /// Alters a settlement before the engine sees it.
    pub(super) fn mishear_settlement(self, settlement: &mut Settlement) {
        if self == Self::IgnoreRetryAfter
            && let HandlerOutcome::Retry { after_ms, .. } = &mut settlement.outcome
        {
            *after_ms = None;
        }
        if let HandlerOutcome::Later { after_ms } = &mut settlement.outcome {
            match self {
                Self::LaterAtOnce => *after_ms = 0,
                Self::LaterIsFailure => {
                    let (after_ms, error) = (Some(*after_ms), "later".into());
                    settlement.outcome = HandlerOutcome::Retry { after_ms, error };
                }
                _ => {}
            }
        }
    }
}

/// What verdicts of a batch tell of attempts.
fn stories(batch: &mut Batch) -> impl Iterator<Item = &mut Option<Box<FailedAttempt>>> {
    batch.ops.iter_mut().filter_map(|op| match op {
        Op::Settle(settle) => Some(&mut settle.attempt),
        _ => None,
    })
}
