//! Decisions for a store that must be read remotely: the facts read, overlaid by the decisions
//! since.
//!
//! Purpose: such a store reads the facts that the decisions need, tells them to a [`View`], has the
//! view decide a batch with [`crate::table`], and writes the [`Changes`]. If an operation needs
//! something that was not read, the view discards the whole attempt and returns what to read.
//!
//! ```text
//! for op in &ops { read what `first_needs(op)` names and learn it }
//! let decided = loop {
//!     match view.decide(&ctx, &ops) {
//!         Ok(decided) => break decided,
//!         Err(needs) => read them and learn them,
//!     }
//! };
//! ```
//!
//! Invariant: decided on a view, a batch gives the answers and the state that [`crate::table`]
//! gives on a table that holds everything. If every key names a stored timer, a batch needs at most
//! [`MAX_ROUNDS`] rounds of reading. The same facts yield the same needs and the same changes, in
//! the same order.
//!
//! Not in here: reading and writing, and in how many commands; who may write; which facts a store
//! knows by itself; how long outcomes are remembered.

mod cells;
mod changes;
mod need;

use std::sync::Arc;

use mtimer_types::{Destination, Ended, Key, Time, TimerId};

use self::cells::Cells;
pub use self::changes::{Changes, KeyChange, RowChange};
use self::need::{Departures, NeedSet};
pub use self::need::{Fact, Need, first_needs};
use crate::controls::Controls;
use crate::ops::{Answer, Op};
use crate::place::Retained;
use crate::remembered::{RememberedAnswer, RequestId};
use crate::table::{Context, Row, Table};

/// The highest number of rounds of reading that a batch takes if every key names a stored timer.
///
/// First the needs of [`first_needs`]; then the keys of these timers and the holders of these keys;
/// then outcomes of timers that an earlier operation of the batch removes. A key that names no
/// stored timer may take one round more.
pub const MAX_ROUNDS: usize = 3;

/// The facts that the owner of a partition has read from the store, and its decisions since.
///
/// It serves one batch. A fact that the view already has is ignored, except a longer
/// [`Fact::Retained`].
#[derive(Debug, Default)]
pub struct View {
    rows: Cells<TimerId, Option<Row>>,
    keys: Cells<(Destination, Key), Option<TimerId>>,
    ended: Cells<TimerId, Option<Ended>>,
    answered: Cells<RequestId, Option<RememberedAnswer>>,
    /// Indexed by [`Retained`].
    retained: [Option<RetainedList>; Retained::COUNT],
    controls: Arc<Controls>,
    /// With their changes, once something may have been changed.
    changed_controls: Option<Controls>,
    missing: NeedSet,
    departures: Departures,
    /// The present operation has stored a row.
    stores: bool,
}

/// The oldest retained timers of one kind, as they were read.
#[derive(Debug)]
struct RetainedList {
    /// Of this kind in the store.
    count: u64,
    oldest: Vec<TimerId>,
    /// `oldest` is all of them.
    complete: bool,
}

/// A batch that has been decided.
#[derive(Clone, PartialEq, Debug)]
pub struct Decided {
    /// One for each operation.
    pub answers: Vec<Answer>,
    /// The changes that the store is to write.
    pub changes: Changes,
}

/// A decision needs something that was not read; the view has noted the need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missing;

impl View {
    /// A view that knows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a view that knows the partition's controls, and nothing yet about the subjects of
    /// these operations.
    pub fn of(ops: &[Op], controls: Arc<Controls>) -> Self {
        let mut view = Self { controls, ..Self::default() };
        view.rows.reserve(ops.len());
        view.ended.reserve(ops.iter().filter(|op| op.subject().brings().is_some()).count());
        view
    }

    /// Takes in a fact that was read.
    pub fn learn(&mut self, fact: Fact) {
        match fact {
            Fact::Row(id, row) => self.rows.learn(id, row),
            Fact::Key(dest, key, holder) => self.keys.learn((dest, key), holder),
            Fact::Ended(id, how) => self.ended.learn(id, how),
            Fact::Answered(request, answer) => self.answered.learn(request, answer),
            Fact::Retained { of, limit, .. } if self.knows(&Need::Retained { of, limit }) => {}
            Fact::Retained { of, limit, count, oldest } => {
                let complete = oldest.len() < limit || oldest.len() as u64 >= count;
                let ids = oldest.iter().map(Row::id).collect();
                self.retained[of as usize] = Some(RetainedList { count, oldest: ids, complete });
                for row in oldest {
                    self.rows.learn(row.id(), Some(row));
                }
            }
        }
    }

    /// Whether the view has the named fact.
    pub fn knows(&self, need: &Need) -> bool {
        match need {
            Need::Row(id) => self.rows.get(id).is_some(),
            Need::Key(dest, key) => self.keys.get(&(dest.clone(), key.clone())).is_some(),
            Need::Ended(id) => self.ended.get(id).is_some(),
            Need::Answered(request) => self.answered.get(request).is_some(),
            Need::Retained { of, limit } => {
                self.retained[*of as usize].as_ref().is_some_and(|l| l.complete || l.oldest.len() >= *limit)
            }
        }
    }

    /// Decides operations in their order: each sees the changes of those before. Once they are
    /// decided the view knows nothing any more.
    ///
    /// # Errors
    ///
    /// The facts to be read first, each of them once. Nothing is decided then; every need is one
    /// that the view does not know.
    pub fn decide(&mut self, ctx: &Context, ops: &[Op]) -> Result<Decided, Vec<Need>> {
        let mut answers = Vec::with_capacity(ops.len());
        let mut adds = false;
        self.departures = Departures::default();
        for op in ops {
            self.stores = false;
            // On an error the view has noted the missing facts. Later operations are still decided,
            // to collect their needs; their answers are discarded.
            answers.extend(op.decide(self, ctx).ok());
            adds |= self.stores && op.adds();
            self.departures.count(op);
        }
        if self.missing.is_empty() {
            return Ok(Decided { answers, changes: std::mem::take(self).into_changes(adds) });
        }
        self.undo();
        self.miss_first_needs(ops);
        Err(self.missing.take())
    }

    /// Adds the first needs of all operations: one that was decided after a failed one may have
    /// skipped a read that it needs in the end.
    fn miss_first_needs(&mut self, ops: &[Op]) {
        let mut departures = Departures::default();
        for op in ops {
            for need in first_needs(op) {
                let need = departures.widen(need);
                if !self.knows(&need) {
                    self.missing.insert(need);
                }
            }
            departures.count(op);
        }
    }

    fn undo(&mut self) {
        self.rows.undo();
        self.keys.undo();
        self.ended.undo();
        self.answered.undo();
        self.changed_controls = None;
    }

    /// The changes that were decided.
    fn into_changes(self, adds: bool) -> Changes {
        let row = |(_, before, after): (_, Option<Option<Row>>, _)| RowChange::new(before.flatten(), after);
        let key = |((dest, key), before, after): (_, Option<Option<TimerId>>, _)| {
            KeyChange::new(dest, key, before.flatten(), after)
        };
        Changes {
            rows: self.rows.into_written().filter_map(row).collect(),
            keys: self.keys.into_written().filter_map(key).collect(),
            ended: self.ended.into_written().filter_map(|(id, _, how)| Some((id, how?))).collect(),
            answered: self
                .answered
                .into_written()
                .filter_map(|(id, _, answer)| Some((id, answer?)))
                .collect(),
            controls: self.changed_controls,
            adds,
        }
    }

    /// How many timers of a kind there are by now.
    fn count(&self, of: Retained, listing: &RetainedList) -> u64 {
        let is = |row: Option<&Row>| row.is_some_and(|row| row.at.retained() == Some(of));
        self.rows.written().fold(listing.count, |count, (before, after)| {
            let before = is(before.and_then(Option::as_ref));
            (count + u64::from(is(after.as_ref()))).saturating_sub(u64::from(before))
        })
    }

    /// The oldest timers of a kind by now, as far as they are known: those that were read and have
    /// not left; then, if all were read, those that have come since.
    fn oldest<'a>(&'a self, of: Retained, listing: &'a RetainedList) -> impl Iterator<Item = &'a Row> {
        let stayed = listing.oldest.iter().filter_map(|id| {
            let (before, row) = (self.rows.read(id)?.as_ref()?, self.rows.get(id)?.as_ref()?);
            (before.at == row.at).then_some(row)
        });
        let came = self.rows.written().filter_map(move |(before, after)| {
            let stayed = before.and_then(Option::as_ref).map(|row| row.at);
            after.as_ref().filter(|row| row.at.retained() == Some(of) && stayed != Some(row.at))
        });
        stayed.chain(came.filter(|_| listing.complete))
    }

    fn lacks(&mut self, need: Need) -> Missing {
        self.missing.insert(need);
        Missing
    }

    /// Writes a row that was read before.
    fn write_row(&mut self, id: TimerId, row: Option<Row>, moves: bool) -> Result<(), Missing> {
        if self.rows.get(&id).is_none() {
            return Err(self.lacks(Need::Row(id)));
        }
        self.rows.write(id, row, moves);
        Ok(())
    }
}

impl Table for View {
    type Error = Missing;

    fn row(&mut self, id: TimerId) -> Result<Option<Row>, Missing> {
        let row = self.rows.get(&id).cloned();
        row.ok_or_else(|| self.lacks(Need::Row(id)))
    }

    fn write(&mut self, before: Option<&Row>, after: Row) -> Result<(), Missing> {
        self.stores = true;
        let moves = before.is_none_or(|before| before.at != after.at);
        self.write_row(after.id(), Some(after), moves)
    }

    fn remove(&mut self, before: &Row) -> Result<(), Missing> {
        self.write_row(before.id(), None, true)
    }

    fn key(&mut self, dest: &Destination, key: &Key) -> Result<Option<TimerId>, Missing> {
        let name = (dest.clone(), key.clone());
        let holder = self.keys.get(&name).copied();
        holder.ok_or_else(|| self.lacks(Need::Key(name.0, name.1)))
    }

    fn set_key(&mut self, dest: &Destination, key: &Key, id: Option<TimerId>) -> Result<(), Missing> {
        self.key(dest, key)?;
        self.keys.write((dest.clone(), key.clone()), id, false);
        Ok(())
    }

    fn ended(&mut self, id: TimerId, _: Time) -> Result<Option<Ended>, Missing> {
        let how = self.ended.get(&id).copied();
        how.ok_or_else(|| self.lacks(Need::Ended(id)))
    }

    fn set_ended(&mut self, id: TimerId, how: Ended, _: Time) -> Result<(), Missing> {
        self.ended.write(id, Some(how), false);
        Ok(())
    }

    fn answered(&mut self, request: RequestId, _: Time) -> Result<Option<RememberedAnswer>, Missing> {
        let answer = self.answered.get(&request).copied();
        answer.ok_or_else(|| self.lacks(Need::Answered(request)))
    }

    fn set_answered(&mut self, request: RequestId, answer: RememberedAnswer, _: Time) -> Result<(), Missing> {
        self.answered.write(request, Some(answer), false);
        Ok(())
    }

    fn controls(&self) -> &Controls {
        self.changed_controls.as_ref().unwrap_or(&self.controls)
    }

    fn controls_mut(&mut self) -> &mut Controls {
        self.changed_controls.get_or_insert_with(|| (*self.controls).clone())
    }

    fn retained_count(&mut self, of: Retained) -> Result<u64, Missing> {
        match &self.retained[of as usize] {
            Some(listing) => Ok(self.count(of, listing)),
            None => Err(self.lacks(Need::Retained { of, limit: 0 })),
        }
    }

    fn oldest_retained(&mut self, of: Retained, limit: usize) -> Result<Vec<Row>, Missing> {
        let need = self.departures.widen(Need::Retained { of, limit });
        match &self.retained[of as usize] {
            Some(listing) if self.knows(&need) => Ok(self.oldest(of, listing).take(limit).cloned().collect()),
            _ => Err(self.lacks(need)),
        }
    }
}

#[cfg(test)]
mod tests;
