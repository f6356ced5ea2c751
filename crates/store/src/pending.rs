//! The pending timers in the order in which they fire.

use mtimer_types::{Filter, Time, TimerId};

use crate::record::Record;
use crate::table::Row;

/// Rows that are read for a page at most, about: whoever waits behind it waits a few milliseconds.
pub const PAGE_READS: usize = 5_000;

/// Where a pending timer stands in the order of all: by its fire time, then by its id.
///
/// It is a place in an order and not in a store, so nothing that a store does to its own order
/// disturbs it.
pub type Position = (Time, TimerId);

/// Some of the pending timers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingRange {
    /// Which.
    pub filter: Filter,
    /// Only those that wait for another attempt after failed ones, or only those that do not.
    pub retrying: Option<bool>,
    /// The first position that may be in it.
    pub from: Position,
    /// The last fire time that may be in it.
    pub until: Time,
    /// At most so many rows, 1 at least. A page may have fewer (even none) and yet more behind it.
    pub limit: u32,
}

/// A part of a [`PendingRange`], in its order. It ends after [`PAGE_READS`], too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingPage {
    /// The rows.
    pub rows: Vec<Pending>,
    /// From where on there may be more; `None` at the end. What keeps its fire time from page to
    /// page is seen exactly once; what gets another one meanwhile may be missed or seen again.
    pub next: Option<Position>,
}

/// A pending timer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pending {
    /// The timer.
    pub record: Record,
    /// When it is to be delivered.
    pub fire: Time,
    /// Its tier.
    pub tier: u8,
}

impl PendingRange {
    /// All of one kind, from the beginning.
    pub fn of(filter: Filter, limit: u32) -> Self {
        let from = (Time::ZERO, TimerId::from_u128(0));
        Self { filter, retrying: None, from, until: Time::MAX, limit }
    }

    /// Whether a timer that is pending at `fire` is in the range.
    pub fn has(&self, record: &Record, fire: Time) -> bool {
        let retries = record.progress.failed != record.progress.budget_from;
        fire <= self.until
            && (fire, record.timer.id) >= self.from
            && self.retrying.is_none_or(|retrying| retrying == retries)
            && self.filter.accepts(&record.timer)
    }

    /// The row, if it is in the range.
    pub fn pick(&self, row: Row) -> Option<Pending> {
        let (fire, tier) = row.at.pending()?;
        self.has(&row.record, fire).then_some(Pending { record: row.record, fire, tier })
    }
}

impl Pending {
    /// Where it stands.
    pub fn position(&self) -> Position {
        (self.fire, self.record.timer.id)
    }

    /// Where a page goes on that ends with it.
    pub fn next(&self) -> Position {
        behind(self.position())
    }
}

/// The first position behind another.
pub fn behind((fire, id): Position) -> Position {
    match id.as_u128().checked_add(1) {
        Some(next) => (fire, TimerId::from_u128(next)),
        None => (fire + 1, TimerId::from_u128(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_between_a_position_and_the_one_behind_it() {
        let (at, last) = (Time::from_ms(5), TimerId::from_u128(u128::MAX));
        assert_eq!(behind((at, TimerId::from_u128(7))), (at, TimerId::from_u128(8)));
        assert_eq!(behind((at, last)), (Time::from_ms(6), TimerId::from_u128(0)));
    }
}
