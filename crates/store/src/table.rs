//! The table that operations decide on: rows, where they are, keys and remembered outcomes.
//!
//! Purpose: one implementation of [`crate::ops`] for every store that can read before it writes
//! (the in-memory model, the embedded store; one that has to be read remotely through a
//! [`crate::view`]). A store brings a [`Table`]; [`Op::decide`](crate::Op::decide) reads and writes
//! it and answers.
//!
//! Invariant: a decision reads everything it needs before its first write, so an operation that
//! fails to read changes nothing. A live key names a live timer; a timer that leaves takes its key
//! along only if the key still names it.
//!
//! Not in here: who may write (epoch and nonce), `claimed-until`, batches, files, keeping counts,
//! refusals for want of memory. Those belong to the store.

use mtimer_types::{DeadReason, Destination, Ended, Epoch, Key, Staging, Time, TimerId, limits};

use crate::bulk::Bulks;
use crate::controls::Controls;
use crate::place::{Place, Retained};
use crate::record::Record;
use crate::remembered::{RememberedAnswer, RequestId};

/// A timer with its whereabouts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The timer.
    pub record: Record,
    /// Where it is.
    pub at: At,
}

/// A [`Place`] with the data that the store keeps for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// See [`Place::Pending`].
    Pending {
        /// When it is to be delivered next.
        fire: Time,
        /// Its tier.
        tier: u8,
    },
    /// See [`Place::Parked`].
    Parked,
    /// See [`Place::Taken`].
    Taken {
        /// Epoch that took it.
        epoch: Epoch,
    },
    /// See [`Place::Taken`]: nobody is going to settle it any more.
    Unconfirmed {
        /// Epoch that took it.
        epoch: Epoch,
        /// When it became unconfirmed.
        since: Time,
    },
    /// See [`Place::Dead`].
    Dead {
        /// Why.
        reason: DeadReason,
        /// When.
        died: Time,
    },
}

impl At {
    /// Which kind of retained timer this is; `None` if it is in any other place.
    pub const fn retained(self) -> Option<Retained> {
        match self {
            Self::Dead { .. } => Some(Retained::Dead),
            Self::Unconfirmed { .. } => Some(Retained::Unconfirmed),
            Self::Pending { .. } | Self::Parked | Self::Taken { .. } => None,
        }
    }

    /// Since when a timer is retained (see [`Retained`]); `None` if it is in any other place.
    pub const fn retained_since(self) -> Option<Time> {
        match self {
            Self::Dead { died: since, .. } | Self::Unconfirmed { since, .. } => Some(since),
            Self::Pending { .. } | Self::Parked | Self::Taken { .. } => None,
        }
    }

    /// When a timer is to be delivered, and its tier, if it is pending.
    pub const fn pending(self) -> Option<(Time, u8)> {
        match self {
            Self::Pending { fire, tier } => Some((fire, tier)),
            _ => None,
        }
    }

    /// Why and when a timer died, if it is a dead letter.
    pub const fn dead(self) -> Option<(DeadReason, Time)> {
        match self {
            Self::Dead { reason, died } => Some((reason, died)),
            _ => None,
        }
    }

    /// Who took a timer, if it may still be settled.
    pub const fn taken(self) -> Option<Epoch> {
        match self {
            Self::Taken { epoch } => Some(epoch),
            _ => None,
        }
    }

    /// Who took a timer and since when it is unconfirmed, if it is.
    pub const fn unconfirmed(self) -> Option<(Epoch, Time)> {
        match self {
            Self::Unconfirmed { epoch, since } => Some((epoch, since)),
            _ => None,
        }
    }

    /// Whether a timer is staged.
    pub const fn is_staged(self) -> bool {
        match self {
            Self::Pending { fire, .. } => fire.is_staged(),
            Self::Parked | Self::Taken { .. } | Self::Unconfirmed { .. } | Self::Dead { .. } => false,
        }
    }

    /// The place as the contract names it.
    pub const fn place(self) -> Place {
        match self {
            Self::Pending { fire, tier } => Place::Pending { fire, tier },
            Self::Parked => Place::Parked,
            Self::Taken { epoch } => Place::Taken { epoch, unconfirmed: false },
            Self::Unconfirmed { epoch, .. } => Place::Taken { epoch, unconfirmed: true },
            Self::Dead { .. } => Place::Dead,
        }
    }
}

impl Row {
    /// The timer's id.
    pub fn id(&self) -> TimerId {
        self.record.timer.id
    }

    /// Of which import it is and what it becomes, if it is staged.
    pub fn staging(&self) -> Option<Staging> {
        self.record.extensions.staging().filter(|_| self.at.is_staged())
    }

    /// Its key, with the destination within which it is unique.
    pub fn key(&self) -> Option<(&Destination, &Key)> {
        self.record.timer.key.as_ref().map(|key| (&self.record.timer.dest, key))
    }
}

/// The data that decisions read and write: one partition's rows, keys and remembered outcomes.
///
/// Writes must be seen by the reads that follow. Every method returns [`Table::Error`] if the store
/// fails.
#[expect(clippy::missing_errors_doc, reason = "all methods fail for the same reason: see above")]
pub trait Table {
    /// Why a read or a write can fail.
    type Error;

    /// The timer of this id, wherever it is.
    fn row(&mut self, id: TimerId) -> Result<Option<Row>, Self::Error>;

    /// Stores `after` in place of `before` (the row of the same id as it was read; `None`: there
    /// was none). Decisions write by [`Table::put`].
    fn write(&mut self, before: Option<&Row>, after: Row) -> Result<(), Self::Error>;

    /// Stores `after` in place of `before`, without extensions that do not hold any more.
    fn put(&mut self, before: Option<&Row>, mut after: Row) -> Result<(), Self::Error> {
        if let Some(before) = before {
            after.record.drop_outdated(&before.record.progress);
        }
        self.write(before, after)
    }

    /// Removes a row, given as it was read.
    fn remove(&mut self, before: &Row) -> Result<(), Self::Error>;

    /// Which timer a key names.
    fn key(&mut self, dest: &Destination, key: &Key) -> Result<Option<TimerId>, Self::Error>;

    /// Makes a key name a timer, or none.
    fn set_key(&mut self, dest: &Destination, key: &Key, id: Option<TimerId>) -> Result<(), Self::Error>;

    /// How a timer ended, if that was stored not more than the repeat horizon before `now`.
    fn ended(&mut self, id: TimerId, now: Time) -> Result<Option<Ended>, Self::Error>;

    /// Remembers how a timer ended, from `now` on for the repeat horizon.
    fn set_ended(&mut self, id: TimerId, how: Ended, now: Time) -> Result<(), Self::Error>;

    /// The answer to a request, if it was stored not more than the repeat horizon before `now`.
    fn answered(&mut self, request: RequestId, now: Time) -> Result<Option<RememberedAnswer>, Self::Error>;

    /// Remembers the answer to a request.
    fn set_answered(
        &mut self,
        request: RequestId,
        answer: RememberedAnswer,
        now: Time,
    ) -> Result<(), Self::Error>;

    /// The partition's controls: its owner has them in memory.
    fn controls(&self) -> &Controls;

    /// The same, to be changed: what is changed is stored.
    fn controls_mut(&mut self) -> &mut Controls;

    /// The partition's bulk jobs.
    fn bulks(&self) -> &Bulks {
        &self.controls().bulks
    }

    /// The same, to be changed: what is changed is stored.
    fn bulks_mut(&mut self) -> &mut Bulks {
        &mut self.controls_mut().bulks
    }

    /// How many retained timers of one kind there are.
    fn retained_count(&mut self, of: Retained) -> Result<u64, Self::Error>;

    /// The oldest retained timers of one kind, oldest first, at most `limit`.
    fn oldest_retained(&mut self, of: Retained, limit: usize) -> Result<Vec<Row>, Self::Error>;
}

/// Who decides, and when.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// The owner's epoch.
    pub epoch: Epoch,
    /// See [`crate::ops`].
    pub prior_claim: Time,
    /// [`crate::Batch::now`].
    pub now: Time,
}

impl Context {
    /// Whether something stored at `at` is still within the repeat horizon.
    pub const fn remembers(now: Time, at: Time) -> bool {
        now.ms_since(at) <= limits::REPEAT_HORIZON_MS
    }

    /// Whether the row was taken in the present epoch and may still be settled by its owner.
    pub(crate) fn has_taken(&self, row: &Row) -> bool {
        row.at == At::Taken { epoch: self.epoch }
    }

    pub(crate) fn covered(&self, row: &Row) -> bool {
        match row.at {
            At::Pending { fire, .. } => row.record.covered(fire, self.epoch, self.prior_claim),
            At::Parked | At::Taken { .. } | At::Unconfirmed { .. } | At::Dead { .. } => false,
        }
    }
}
