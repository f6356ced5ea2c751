//! The owner's part in an operation that a client asks for: what memory adds when the operation
//! leaves for the store, and what follows from the store's answer.

use std::sync::Arc;

use mtimer_protocol::{ErrorCode, OpReply};
use mtimer_types::{Destination, Key, PartitionId, StoredSettings, Target, Time, Timer, TimerId};

use super::operation::Operation;

/// What the owner of a partition knows and its store does not: the deliveries under way.
pub trait Memory {
    /// The timer that a target names, as far as memory knows.
    fn named(&self, target: &Target) -> Option<TimerId>;

    /// The attempt of a timer that was sent, here or by the owner before, and has no outcome in the
    /// store.
    fn sent_attempt(&self, id: TimerId) -> Option<u32>;

    /// Whether an attempt of a timer has begun: it cannot be moved any more.
    fn has_begun(&self, id: TimerId) -> bool;

    /// Whether an attempt of the timer that has a key may have begun.
    fn may_have_begun(&self, dest: &Destination, key: &Key) -> bool;

    /// The attempt of the timer that has a key that was sent and has no outcome in the store; the
    /// highest that there is if it is not known whether one was.
    fn may_have_sent(&self, dest: &Destination, key: &Key) -> Option<u32>;

    /// The deadline of a timer that is in memory, if it is certain to have the same in the store.
    fn deadline(&self, id: TimerId) -> Option<Time>;
}

/// An operation as a client asks for it.
pub trait Asked: mtimer_protocol::ops::Operation {
    /// The store's operation.
    type Op: Operation;

    /// Whether it changes what a timer is while that may be sent or taken, for it holds nothing.
    const CHANGES_UNHELD: bool;

    /// Whether it can change when, or that, its timer is sent: then the timer is not sent until it
    /// is answered. One that changes nothing in any case holds nothing, so however often a client
    /// repeats it, the timer is sent.
    fn holds(&self, memory: &impl Memory) -> bool;

    /// Whether the timer that it brings may be filed at a time before its due time.
    fn may_be_filed_sooner(&self) -> bool {
        false
    }

    /// Makes the store's operation. This happens once, at `now`, when it leaves for the store: only
    /// then is it known whether a delivery of its timer is under way.
    fn complete(&self, memory: &impl Memory, now: Time) -> Self::Op;

    /// What follows from the store's answer.
    fn applied(&self, answer: <Self::Op as Operation>::Answer) -> Applied;
}

/// What follows from the answer to an operation.
#[derive(Debug)]
pub struct Applied {
    /// What the client is told.
    pub reply: OpReply,
    /// What the owner's memory does, so that it agrees with the store.
    pub effect: MemoryEffect,
}

impl Applied {
    /// A reply, and what memory does.
    pub fn new(reply: impl Into<OpReply>, effect: MemoryEffect) -> Self {
        Self { reply: reply.into(), effect }
    }

    /// An operation that could not be done as its arguments are.
    pub fn invalid(text: String) -> Self {
        Self::new(OpReply::Failed { code: ErrorCode::Invalid, message: text }, MemoryEffect::Nothing)
    }
}

/// What an owner's memory does once the store has answered.
#[derive(Debug)]
pub enum MemoryEffect {
    /// Nothing has changed.
    Nothing,
    /// A timer has come, now (`new`) or when the request was first sent; the one that had its key
    /// has ended.
    Filed {
        /// The timer, pending at its due time if it is new.
        timer: Arc<Timer>,
        /// False: by now it may be anywhere.
        new: bool,
        /// The timer that it has replaced, if that is known.
        replaced: Option<TimerId>,
        /// Its record says since when its chain of debounces has run.
        is_debounced: bool,
    },
    /// A timer was cancelled.
    Cancelled(TimerId),
    /// No attempt of a timer follows the one that is under way.
    Stopped {
        /// Which.
        id: TimerId,
        /// It has died of that, after so many failed attempts.
        died: Option<u32>,
    },
    /// A timer has another due time, now or when the request was first sent.
    Moved {
        /// Which.
        id: TimerId,
        /// The new due time.
        due: Time,
    },
    /// A timer is pending again that was retained.
    Replayed(TimerId),
    /// A retained timer is gone for good.
    Purged,
    /// A timer was staged, which is in no memory.
    Staged,
    /// The bulk jobs of a partition have changed, or may have.
    Bulks(PartitionId),
    /// A destination has these settings, by what a partition knows.
    Configured(Box<StoredSettings>),
    /// A timer has another deadline, now or since the request was first sent.
    Extended {
        /// Which.
        id: TimerId,
        /// The new deadline.
        deadline: Time,
    },
}
