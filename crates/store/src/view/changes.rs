//! The changes of a decided batch.

use mtimer_types::{Destination, Ended, Key, TimerId};

use crate::controls::Controls;
use crate::remembered::{RememberedAnswer, RequestId};
use crate::table::Row;

/// The net effect of a batch. A value that ends as it began is not in it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Changes {
    /// Timers, in the order in which they came to the place where they are (or left for good). One
    /// that has the same [`Row::at`] before and after keeps its position in listings; any other
    /// goes to the end of those of its place.
    pub rows: Vec<RowChange>,
    /// Keys, in the order in which they were first changed.
    pub keys: Vec<KeyChange>,
    /// How timers ended, to be remembered from the batch's `now` on for the repeat horizon.
    pub ended: Vec<(TimerId, Ended)>,
    /// Answers that repeats get, to be remembered likewise.
    pub answered: Vec<(RequestId, RememberedAnswer)>,
    /// The partition's controls, if some have changed: each part tells which.
    pub controls: Option<Controls>,
    /// See [`Self::adds`].
    pub(super) adds: bool,
}

/// One timer's row, before and after. At least one of the two is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowChange {
    id: TimerId,
    /// As it was read; `None`: there was none.
    pub before: Option<Row>,
    /// The row to store; `None`: removed.
    pub after: Option<Row>,
}

/// Which timer a key names, before and after.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyChange {
    /// The key is unique within this destination.
    pub dest: Destination,
    /// The key.
    pub key: Key,
    /// As it was read.
    pub before: Option<TimerId>,
    /// The timer to store; `None`: the key is free.
    pub after: Option<TimerId>,
}

impl Changes {
    /// Whether the batch has anything to write.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
            && self.keys.is_empty()
            && self.ended.is_empty()
            && self.answered.is_empty()
            && self.controls.is_none()
    }

    /// Whether an operation that adds ([`Properties::adds`](crate::ops::Properties::adds)) has
    /// stored something: a full store refuses that.
    pub const fn adds(&self) -> bool {
        self.adds
    }
}

impl RowChange {
    /// `None`: nothing changes.
    pub(super) fn new(before: Option<Row>, after: Option<Row>) -> Option<Self> {
        let id = after.as_ref().or(before.as_ref())?.id();
        (before != after).then_some(Self { id, before, after })
    }

    /// Which timer.
    pub const fn id(&self) -> TimerId {
        self.id
    }
}

impl KeyChange {
    /// `None`: nothing changes.
    pub(super) fn new(
        dest: Destination,
        key: Key,
        before: Option<TimerId>,
        after: Option<TimerId>,
    ) -> Option<Self> {
        (before != after).then_some(Self { dest, key, before, after })
    }
}
