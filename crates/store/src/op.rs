//! The operations of a partition's owner, and what each one means.
//!
//! ## Places
//!
//! A live timer is in exactly one [`Place`]: *pending* at a time to fire, *parked* until its
//! destination has credit, or *taken* (an at-most-once timer that was or is about to be sent). A
//! *dead* one is a dead letter. A live timer holds its key, unless it is taken and unconfirmed; a
//! dead one holds none.
//!
//! ## Repeats
//!
//! Every operation is idempotent, because a lane repeats what may or may not have been applied: a
//! schedule by its id, cancel and reschedule by their [`RequestId`] (whose answer is kept for
//! [`REPEAT_HORIZON_MS`] at least), everything else by the place it would move the timer to. A
//! repeat gives the answer of the first time (of a schedule: the same, as not new; of a cancel that
//! made a dead letter: too late). What would remove a timer finds it gone the second time.
//!
//! ## Claims
//!
//! `prior_claim` is the highest `claimed-until` that was stored when the owner acquired the
//! partition. A pending timer is *covered* (a predecessor may have sent it) if its fire time is at
//! or below `prior_claim`, unless its [`Progress::fresh`] says that it was filed there in the
//! present epoch. Whenever an operation files a timer as pending with a fire time at or below
//! `prior_claim` it sets `fresh` to its epoch; filing it above clears it. In any other place
//! `fresh` means nothing, and a move there may leave it as it was. A parked timer is never covered.
//! [`Record::attempt`] is 1 + failed attempts, + 1 when covered.
//!
//! ## Endings
//!
//! Cancelled, replaced and expired timers, and at-most-once timers that were acknowledged, leave an
//! [`Ended`] under their id for [`REPEAT_HORIZON_MS`]; so does a cancel of an id that is nowhere
//! ([`Ended::CancelledUnseen`], again with every such cancel). A timer that is purged or trimmed
//! leaves [`Ended::Dead`], unless it died or became unconfirmed longer than the horizon before
//! [`Batch::now`]: a schedule that old cannot be repeated. Plain acknowledgements leave none: the
//! owner's memory is enough.
//!
//! [`REPEAT_HORIZON_MS`]: mtimer_types::limits::REPEAT_HORIZON_MS

use std::path::Path;
use std::sync::Arc;

use mtimer_types::{DeadReason, Ended, Epoch, KeyPolicy, Target, Time, Timer, TimerId};

#[cfg(doc)]
use crate::record::{Progress, Record};

/// Where a timer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Waits for its time.
    Pending {
        /// When it is to be delivered next.
        fire: Time,
        /// 0: first delivery; n: the n-th retry tier. A matter of filing and of counting only.
        tier: u8,
    },
    /// Waits for its destination.
    Parked,
    /// At-most-once, sent or about to be.
    Taken {
        /// By which owner.
        epoch: Epoch,
        /// Nobody is going to settle it any more; its key is free.
        unconfirmed: bool,
    },
    /// A dead letter.
    Dead,
}

/// Names a client's cancel or reschedule, so that a repeat gets the old answer. Random, made by the
/// client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestId(pub u64);

/// Operations that are applied in order, each one exactly once, each one whole or not at all. A
/// store may apply them in several steps; a crash in between leaves a prefix. Schedules without a
/// key that follow each other may change places, which nobody can tell by the outcome.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The cluster clock when the batch was made: the time of death of dead letters, the time at
    /// which a timer becomes unconfirmed, the start of the repeat horizon.
    pub now: Time,
    /// If set, `claimed-until` becomes at least this, before or together with the operations.
    pub claim: Option<Time>,
    /// What to do.
    pub ops: Vec<Op>,
}

/// One operation.
#[derive(Clone, Debug)]
pub enum Op {
    /// Files a new timer as pending at its due time, tier 0. Looked at in this order: a timer of
    /// this id (live or dead), an [`Ended`] of this id, the key. See [`ScheduleAnswer`].
    Schedule {
        /// The timer, valid, of this partition.
        timer: Arc<Timer>,
        /// What to do if its key names a live timer.
        policy: KeyPolicy,
    },
    /// Removes a timer that was not and will not be delivered; stops the future attempts of any
    /// other.
    ///
    /// A delivery is under way if `sent_attempt` is above the record's failed attempts; otherwise
    /// that attempt's outcome has been stored since the request was made. In this order:
    ///
    /// - Dead, unconfirmed, or taken in another epoch: nothing changes, too late.
    /// - A delivery is under way: too late. A pending or parked timer gets [`Progress::stopped`].
    /// - [`Record::attempt`] is 1 (so not covered) and not stopped: removed, leaves
    ///   [`Ended::Cancelled`]. So is a timer that this epoch has taken: without a delivery under
    ///   way it was not sent. (A covered attempt counts as failed once it is taken.)
    /// - Any other becomes a dead letter for [`DeadReason::Stopped`] (a covered attempt counts as
    ///   failed there): too late, [`CancelAnswer::Died`].
    Cancel {
        /// Which.
        target: Target,
        /// The attempt that the owner has sent and has not seen settled, if any.
        sent_attempt: Option<u32>,
        /// For repeats.
        request: RequestId,
    },
    /// Files a pending or parked timer of attempt 1 as pending at `due`, tier 0, which becomes its
    /// due time. Anything else (in flight, covered, retried, stopped, taken, dead): too late,
    /// nothing changes. This is looked at before the deadline.
    Reschedule {
        /// Which.
        target: Target,
        /// The new due time.
        due: Time,
        /// The owner has an unsettled delivery of it, or knows of an earlier one.
        is_begun: bool,
        /// For repeats.
        request: RequestId,
    },
    /// Moves a pending or parked at-most-once timer to *taken* under this epoch. It keeps its key.
    /// Done also if this epoch has already taken it (and it is not unconfirmed); gone if it is
    /// anywhere else or nowhere, or at-least-once.
    Take {
        /// Which.
        id: TimerId,
        /// Becomes its [`Progress::failed`] (so that a covered attempt stays counted).
        failed: u32,
        /// The timer, if the owner has it in memory, and its record has nothing more to keep
        /// ([`Record::accepted`](crate::Record::accepted)): a store need not read it.
        timer: Option<Arc<Timer>>,
    },
    /// Ends or continues a timer after a delivery, a missed deadline or a lost client. See
    /// [`Verdict`].
    Settle {
        /// Which.
        id: TimerId,
        /// How.
        verdict: Verdict,
        /// The timer, if the owner has it in memory. A store may remove it by this without reading
        /// it first: nearly all timers end so.
        timer: Option<Arc<Timer>>,
    },
    /// Moves a pending timer, or one this epoch has taken and not sent (nor unconfirmed), to its
    /// destination's park. Done also if it is parked; gone if it is anywhere else or nowhere.
    Park {
        /// Which.
        id: TimerId,
        /// Becomes its [`Progress::failed`] (so that a covered attempt stays counted).
        failed: u32,
    },
    /// Files a parked timer as pending at `fire`, tier 0. Done also if it is pending; else gone.
    Unpark {
        /// Which.
        id: TimerId,
        /// Usually now.
        fire: Time,
    },
    /// Files a dead or unconfirmed timer as pending at `fire`, tier 0, with a new retry budget
    /// ([`Progress::budget_from`] becomes its failed attempts; an unconfirmed one counts one more),
    /// not stopped, without a deadline that is before [`Batch::now`]. It takes its key back; if
    /// that names another live timer: [`Answer::KeyTaken`], nothing changes. Done also if it is
    /// pending; else gone.
    Replay {
        /// Which.
        id: TimerId,
        /// Usually now.
        fire: Time,
    },
    /// Removes a dead or unconfirmed timer for good (see Endings above). Else gone.
    Purge {
        /// Which.
        id: TimerId,
    },
    /// Removes the oldest retained timers of one kind: those retained since before `before`, and
    /// the oldest of more than `keep`; at most `limit` of them. Answers [`Answer::Trimmed`].
    Trim {
        /// Which kind.
        of: Retained,
        /// Retention by age.
        before: Time,
        /// Retention by count.
        keep: u64,
        /// At most so many at once.
        limit: u32,
    },
}

impl Op {
    /// An [`Op::Take`] of a timer that is not in memory.
    pub const fn take(id: TimerId, failed: u32) -> Self {
        Self::Take { id, failed, timer: None }
    }

    /// An [`Op::Settle`] of a timer that is not in memory.
    pub const fn settle(id: TimerId, verdict: Verdict) -> Self {
        Self::Settle { id, verdict, timer: None }
    }

    /// The timer that the operation names by its id: of one that names a key, only the partition
    /// knows which it is.
    pub fn id(&self) -> Option<TimerId> {
        match self {
            Self::Schedule { timer, .. } => Some(timer.id),
            Self::Cancel { target: Target::Id(id), .. }
            | Self::Reschedule { target: Target::Id(id), .. }
            | Self::Take { id, .. }
            | Self::Settle { id, .. }
            | Self::Park { id, .. }
            | Self::Unpark { id, .. }
            | Self::Replay { id, .. }
            | Self::Purge { id } => Some(*id),
            Self::Cancel { .. } | Self::Reschedule { .. } | Self::Trim { .. } => None,
        }
    }
}

/// Timers that stay stored until a person replays or purges them, or [`Op::Trim`] removes them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Retained {
    /// Dead letters, oldest by time of death.
    Dead,
    /// Unconfirmed timers, oldest by the time at which they became unconfirmed.
    Unconfirmed,
}

/// What becomes of a timer after a delivery (or in place of one).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Done: removes a pending, parked or taken timer and frees its key. Gone if dead or nowhere.
    Ack,
    /// An `ok` for a delivery that this owner does not remember: like `Ack`, if a delivery with
    /// this number can have happened (failed attempts >= `attempt`, or `attempt` <= failed + 1 and
    /// covered, or taken); else gone. Attempts count from 1: 0 is gone.
    LateAck {
        /// The attempt it answers.
        attempt: u32,
    },
    /// Files a pending timer as pending at `fire` in `tier`, with `failed` failed attempts and the
    /// error. A record that has that many failed attempts already is left as it is (a repeat). A
    /// stopped timer becomes a dead letter for [`DeadReason::Stopped`] instead ([`Answer::Died`]).
    /// Gone if it is not pending.
    Retry {
        /// When.
        fire: Time,
        /// The tier, 1..=32.
        tier: u8,
        /// Failed attempts, this one included.
        failed: u32,
        /// The handler's words, or what went wrong; at most 512 bytes (a longer text is cut), empty
        /// for none.
        error: Box<str>,
    },
    /// Moves a pending, parked or taken timer to the dead letters and frees its key. Done also if
    /// dead.
    Dead {
        /// Why.
        reason: DeadReason,
        /// Failed attempts, this one included.
        failed: u32,
        /// The last error; at most 512 bytes (a longer text is cut), empty for none.
        error: Box<str>,
    },
    /// Its deadline passed before it was sent: removes a pending or parked timer, or one that this
    /// epoch has taken and not sent (nor unconfirmed), frees its key, leaves [`Ended::Expired`].
    Expired,
    /// Nobody will settle this taken timer: frees its key and makes it unconfirmed as of
    /// [`Batch::now`]; it stays until a late ok, a replay, a purge or a trim. Done also if so
    /// already; gone if it is not taken.
    Unconfirmed,
}

/// The store's answer to one operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// To [`Op::Schedule`].
    Schedule(ScheduleAnswer),
    /// To [`Op::Cancel`].
    Cancel(CancelAnswer),
    /// To [`Op::Reschedule`].
    Reschedule(RescheduleAnswer),
    /// Applied (or found applied).
    Done,
    /// To [`Verdict::Retry`]: applied, and the timer was stopped, so it is a dead letter now.
    Died,
    /// The timer is not where the operation needs it; nothing changed.
    Gone,
    /// To [`Op::Replay`]: the key names this live timer; nothing changed.
    KeyTaken(TimerId),
    /// To [`Op::Trim`].
    Trimmed {
        /// Timers removed.
        removed: u32,
        /// There are more to trim.
        more: bool,
    },
    /// The store would not take the write; nothing changed.
    Refused(Refusal),
}

/// To [`Op::Schedule`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScheduleAnswer {
    /// Stored, now or by an earlier request with the same content (wherever the timer is by now:
    /// pending, parked, taken, dead).
    Scheduled {
        /// False if it was stored before.
        new: bool,
        /// The live timer whose key it took over, now ended as [`Ended::Replaced`] (wherever it
        /// was; if it had been delivered, later outcomes find nothing). `None` in the answer to a
        /// repeat.
        replaced: Option<TimerId>,
    },
    /// [`KeyPolicy::Keep`]: the key names this live timer; nothing changed.
    Kept {
        /// Which.
        id: TimerId,
        /// An attempt to deliver it may have begun, as far as the store knows, or it was stopped.
        /// The owner knows of deliveries under way that the store does not see.
        begun: bool,
    },
    /// [`KeyPolicy::Create`]: the key names this live timer; nothing changed.
    KeyTaken(TimerId),
    /// The id is in use with other content; nothing changed.
    Conflict,
    /// A timer with this id ended within the repeat horizon; nothing changed.
    Ended(Ended),
}

/// To [`Op::Cancel`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CancelAnswer {
    /// No delivery starts afterwards, by anyone.
    Cancelled(TimerId),
    /// Delivered, being delivered, or possibly so; future attempts are stopped.
    TooLate(TimerId),
    /// Too late, and this request has made the timer a dead letter. A repeat gets `TooLate`.
    Died {
        /// Which.
        id: TimerId,
        /// Its failed attempts, a covered one included.
        failed: u32,
    },
    /// Nothing of that name. For an id, [`Ended::CancelledUnseen`] is remembered. (An id that ended
    /// as [`Ended::Cancelled`] within the horizon gives `Cancelled`, one that ended otherwise gives
    /// `NotFound`.)
    NotFound,
}

impl CancelAnswer {
    /// The answer to a repeat of the request: what a store remembers.
    pub const fn to_repeat(self) -> Self {
        match self {
            Self::Died { id, .. } => Self::TooLate(id),
            Self::Cancelled(_) | Self::TooLate(_) | Self::NotFound => self,
        }
    }
}

/// To [`Op::Reschedule`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RescheduleAnswer {
    /// The old time never fires.
    Rescheduled(TimerId),
    /// As with cancel; nothing changed.
    TooLate(TimerId),
    /// The timer's deadline is before the new time; nothing changed.
    PastDeadline(TimerId),
    /// Nothing of that name.
    NotFound,
}

/// Why a store would not take a write. None of these is final.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// Only for operations that add: schedule, reschedule, replay; and for a cancel of what is not
    /// there, which would be remembered.
    #[error("the store is out of memory: raise its limit or let timers drain")]
    OutOfMemory,
    /// Only for operations that add: the disk has too little space left.
    #[error("the store is full: {free} bytes are free at {}: free space there, or let timers drain", path.display())]
    DiskFull {
        /// The data directory.
        path: Arc<Path>,
        /// How many bytes were free.
        free: u64,
    },
    /// The store takes no writes for now, or took none for so long that it may have forgotten
    /// whether this is a repeat.
    #[error("the store takes no writes for now")]
    ReadOnly,
    /// Only for operations that add: the store may drop what it holds when its memory is full.
    #[error(
        "the store may evict what it holds when its memory is full: set its maxmemory-policy to noeviction"
    )]
    MayEvict,
    /// Fewer replicas than the durability level asks for confirmed the write in time. It is stored
    /// and may stay.
    #[error("the write was not confirmed by enough replicas in time")]
    NotReplicated,
}

#[cfg(test)]
mod tests {
    use mtimer_types::Destination;

    use super::*;

    #[test]
    fn an_operation_names_the_timer_that_its_request_names_by_id() {
        let id = TimerId::from_u128(7);
        let key = Destination::new("g", "a").unwrap().key("k").unwrap();
        let edits = |target: Target| {
            let (request, due) = (RequestId(1), Time::from_ms(5));
            let cancel = Op::Cancel { target: target.clone(), sent_attempt: None, request };
            [cancel, Op::Reschedule { target, due, is_begun: false, request }].map(|op| op.id())
        };
        assert_eq!(edits(id.into()), [Some(id); 2]);
        assert_eq!(edits(key), [None; 2]);

        let fire = Time::from_ms(5);
        let settle = Op::settle(id, Verdict::Ack);
        let moves = [Op::take(id, 0), settle, Op::Park { id, failed: 0 }, Op::Unpark { id, fire }];
        let ends = [Op::Replay { id, fire }, Op::Purge { id }];
        assert!(moves.iter().chain(&ends).all(|op| op.id() == Some(id)));
        assert_eq!(Op::Trim { of: Retained::Dead, before: fire, keep: 0, limit: 1 }.id(), None);
    }
}
