//! The facts that decisions read, by name and by value.

use std::collections::HashSet;

use mtimer_types::{Destination, Ended, Key, Target, TimerId};

use crate::ops::{Op, Subject};
use crate::place::Retained;
use crate::remembered::{RememberedAnswer, RequestId};
use crate::table::Row;

/// Something that a decision reads.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Need {
    /// The timer of an id, wherever it is.
    Row(TimerId),
    /// Which timer a key names.
    Key(Destination, Key),
    /// How a timer ended, if that is remembered.
    Ended(TimerId),
    /// The answer to a request of a client, if it is remembered.
    Answered(RequestId),
    /// The count of one kind of retained timers, and the oldest `limit` of them.
    Retained {
        /// Which kind.
        of: Retained,
        /// How many.
        limit: usize,
    },
}

/// A fact that was read: the answer to the [`Need`] of the same name.
#[derive(Clone, PartialEq, Debug)]
pub enum Fact {
    /// A timer, or none.
    Row(TimerId, Option<Row>),
    /// Which timer a key names, or none.
    Key(Destination, Key, Option<TimerId>),
    /// How a timer ended, if that was stored not more than the repeat horizon before the batch's
    /// `now`.
    Ended(TimerId, Option<Ended>),
    /// An answer, if it was stored not more than the repeat horizon before the batch's `now`.
    Answered(RequestId, Option<RememberedAnswer>),
    /// Retained timers.
    Retained {
        /// Which kind.
        of: Retained,
        /// How many were asked for.
        limit: usize,
        /// How many there are.
        count: u64,
        /// The oldest ones, oldest first: `limit`, or all of them.
        oldest: Vec<Row>,
    },
}

/// Lists the facts that an operation reads, as far as its arguments tell. Most batches need nothing
/// else.
pub fn first_needs(op: &Op) -> impl Iterator<Item = Need> + use<> {
    let needs = match op.subject() {
        Subject::New(timer) => {
            let key = timer.key.as_ref().map(|key| Need::Key(timer.dest.clone(), key.clone()));
            [Some(Need::Row(timer.id)), Some(Need::Ended(timer.id)), key]
        }
        Subject::Named { target, request } => {
            let timer = match target {
                Target::Id(id) => Need::Row(*id),
                Target::Key(dest, key) => Need::Key(dest.clone(), key.clone()),
            };
            [Some(Need::Answered(request)), Some(timer), None]
        }
        Subject::Timer(id) => [Some(Need::Row(id)), None, None],
        Subject::Controls => [None, None, None],
        // One more than may go, to see whether more could.
        Subject::Retained { of, limit } => {
            [Some(Need::Retained { of, limit: (limit as usize).saturating_add(1) }), None, None]
        }
    };
    needs.into_iter().flatten()
}

/// Needs, each once, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct NeedSet {
    seen: HashSet<Need>,
    list: Vec<Need>,
    /// Of retained timers the longest list that is needed. Indexed by [`Retained`].
    retained: [Option<usize>; Retained::COUNT],
}

impl NeedSet {
    pub(super) fn insert(&mut self, need: Need) {
        if let Need::Retained { of, limit } = need {
            let longest = &mut self.retained[of as usize];
            *longest = (*longest).max(Some(limit));
        } else if self.seen.insert(need.clone()) {
            self.list.push(need);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.retained == [None; Retained::COUNT]
    }

    /// Takes everything out.
    pub(super) fn take(&mut self) -> Vec<Need> {
        let Self { mut list, retained, .. } = std::mem::take(self);
        for of in Retained::ALL {
            list.extend(retained[of as usize].map(|limit| Need::Retained { of, limit }));
        }
        list
    }
}

/// The highest number of retained timers that the operations so far can have removed, by kind: so
/// many more have to be read. It depends on the operations alone, not on the facts read, so it is
/// the same in every round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Departures([usize; Retained::COUNT]);

impl Departures {
    pub(super) fn count(&mut self, op: &Op) {
        for (departed, leave) in self.0.iter_mut().zip(op.removes()) {
            *departed = departed.saturating_add(leave);
        }
    }

    pub(super) fn widen(self, need: Need) -> Need {
        match need {
            Need::Retained { of, limit } => {
                Need::Retained { of, limit: limit.saturating_add(self.0[of as usize]) }
            }
            need => need,
        }
    }
}
