//! Merges the partitions' timers into one order.
//!
//! Purpose: says which row comes next, and which partitions must be asked before that is known.
//!
//! Invariant: `bounds` has one entry for each partition that is not at its end, at the lowest
//! position that it may still have a row at: its first fetched row or, if there is none, the first
//! position that was not fetched. So the lowest bound of all is the next row, or it is a partition
//! that must be asked first.
//!
//! Not in here: asking.

use std::collections::{BTreeSet, VecDeque};

use mtimer_protocol::PendingRow;
use mtimer_types::{Time, TimerId};

use crate::RequestError;

/// Where a timer stands in the order of all: by its fire time, then by its id.
pub(super) type Position = (Time, TimerId);

/// The position of a row.
pub(super) fn position(row: &PendingRow) -> Position {
    (row.fire, row.view.timer.id)
}

/// What was fetched of one partition.
#[derive(Debug)]
struct Source {
    /// Rows that were not given out yet, in order.
    rows: VecDeque<PendingRow>,
    /// The first position that was not fetched; `None` at the end.
    next: Option<Position>,
}

impl Source {
    /// The lowest position that it may still have a row at, and whether there is one.
    fn bound(&self, partition: u16) -> Option<Bound> {
        let row = self.rows.front().map(position);
        row.or(self.next).map(|at| Bound { at, is_row: row.is_some(), partition })
    }
}

/// See the invariant. What is not known comes before a row at the same position.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Bound {
    at: Position,
    is_row: bool,
    partition: u16,
}

/// The merge of all partitions' rows.
#[derive(Debug)]
pub(super) struct Merge {
    /// By partition.
    sources: Vec<Source>,
    bounds: BTreeSet<Bound>,
}

impl Merge {
    /// Begins at a position in all partitions.
    pub(super) fn new(partitions: u16, from: Position) -> Self {
        let source = |_| Source { rows: VecDeque::new(), next: Some(from) };
        let bound = |partition| Bound { at: from, is_row: false, partition };
        Self { sources: (0..partitions).map(source).collect(), bounds: (0..partitions).map(bound).collect() }
    }

    /// How many partitions there are.
    pub(super) fn partitions(&self) -> u16 {
        self.sources.len() as u16
    }

    /// Whether there are no more rows.
    pub(super) fn is_at_end(&self) -> bool {
        self.bounds.is_empty()
    }

    /// Takes the next row out. `None` at the end, and while a partition is [`Merge::blocking`].
    pub(super) fn pop(&mut self) -> Option<PendingRow> {
        let first = *self.bounds.first().filter(|bound| bound.is_row)?;
        self.bounds.remove(&first);
        let source = self.sources.get_mut(usize::from(first.partition))?;
        let row = source.rows.pop_front();
        self.bounds.extend(source.bound(first.partition));
        row
    }

    /// Returns the partitions that may have a row before all that were fetched, and the position to
    /// ask each of them from; the lowest first.
    pub(super) fn blocking(&self) -> impl Iterator<Item = (u16, Position)> {
        self.bounds.iter().take_while(|bound| !bound.is_row).map(|bound| (bound.partition, bound.at))
    }

    /// Takes in a page of a partition that was [`Merge::blocking`], from the position given there.
    ///
    /// # Errors
    ///
    /// [`RequestError::Mismatched`] if the page is out of order, or does not go on; nothing changes.
    pub(super) fn add(
        &mut self,
        partition: u16,
        rows: Vec<PendingRow>,
        next: Option<Position>,
    ) -> Result<(), RequestError> {
        let source = self.sources.get_mut(usize::from(partition)).ok_or(RequestError::Mismatched)?;
        let Some(asked) = source.bound(partition).filter(|bound| !bound.is_row) else {
            return Err(RequestError::Mismatched);
        };
        if !goes_on(asked.at, &rows, next) {
            return Err(RequestError::Mismatched);
        }
        *source = Source { rows: rows.into(), next };
        self.bounds.remove(&asked);
        self.bounds.extend(source.bound(partition));
        Ok(())
    }
}

/// Whether a page is in order, begins at `from` or behind it, and goes on behind all of that.
fn goes_on(from: Position, rows: &[PendingRow], next: Option<Position>) -> bool {
    let rows: Vec<Position> = rows.iter().map(position).collect();
    let before = rows.last().map_or(from, |last| *last);
    rows.is_sorted_by(|a, b| a < b)
        && rows.first().is_none_or(|first| *first >= from)
        && next.is_none_or(|next| next > before)
}

#[cfg(test)]
mod tests;
