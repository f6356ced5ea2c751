//! Listings of a partition's timers, in pages.

use mtimer_types::{DeadReason, Destination, Epoch, Priority, Time};

use crate::record::Record;
use crate::table::{At, Row};

/// A page of a listing to be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    /// Which listing.
    pub of: Listed,
    /// Where to begin: 0, or [`Page::next`] of the page before.
    pub cursor: u64,
    /// At most so many rows. A page may have fewer (even none) and yet a next cursor.
    pub limit: u32,
}

/// The kind of timers in a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listed {
    /// Dead letters that match, oldest first.
    Dead(DeadFilter),
    /// Taken timers that are not unconfirmed: as many as were under way, however many are
    /// unconfirmed.
    Taken,
    /// Unconfirmed timers, the longest unconfirmed first.
    Unconfirmed,
    /// Parked timers of one destination, the most urgent first, of one class about the longest
    /// parked first. Cursors are positions: see [`park_position`].
    Parked(Destination),
}

/// Numbers of one class in a park. The highest position of all is exact as a float, too.
const PARK_NUMBERS: u64 = 1 << 50;

/// Where the timer with this number stands in its destination's park. Numbers rise with every timer
/// that is put on a listing of the partition.
pub const fn park_position(priority: Priority, number: u64) -> u64 {
    park_start(priority) + number % PARK_NUMBERS
}

/// Where a class begins in a park: the cursor from which it, and what is less urgent, is read.
pub const fn park_start(priority: Priority) -> u64 {
    priority.rank() as u64 * PARK_NUMBERS
}

/// The number of the timer that stands there.
pub const fn park_number(position: u64) -> u64 {
    position % PARK_NUMBERS
}

/// The class of the timer that stands there; `None`: none does.
pub const fn park_priority(position: u64) -> Option<Priority> {
    let rank = position / PARK_NUMBERS;
    if rank < Priority::COUNT as u64 { Priority::from_u8(rank as u8) } else { None }
}

impl Listed {
    /// The page that these rows make. Rows that do not belong to the listing are left out.
    pub fn page(&self, rows: impl IntoIterator<Item = Row>, next: Option<u64>) -> ListPage {
        match self {
            Self::Dead(filter) => {
                let letter = |Row { record, at }: Row| {
                    let (reason, died) = at.dead().filter(|_| filter.accepts(&record.timer.dest))?;
                    Some(DeadLetter { record, reason, died })
                };
                ListPage::Dead(page(rows, next, letter))
            }
            Self::Taken => {
                let taken = |Row { record, at }: Row| Some(Taken { record, epoch: at.taken()? });
                ListPage::Taken(page(rows, next, taken))
            }
            Self::Unconfirmed => {
                let unconfirmed = |Row { record, at }: Row| {
                    let (epoch, since) = at.unconfirmed()?;
                    Some(Unconfirmed { record, epoch, since })
                };
                ListPage::Unconfirmed(page(rows, next, unconfirmed))
            }
            Self::Parked(_) => {
                let parked = |Row { record, at }: Row| (at == At::Parked).then_some(record);
                ListPage::Parked(page(rows, next, parked))
            }
        }
    }
}

/// The page of the rows that are of its kind.
fn page<T>(
    rows: impl IntoIterator<Item = Row>,
    next: Option<u64>,
    kind: impl FnMut(Row) -> Option<T>,
) -> Page<T> {
    Page { rows: rows.into_iter().filter_map(kind).collect(), next }
}

/// A page of the [`Listed`] of the same name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListPage {
    /// Dead letters.
    Dead(Page<DeadLetter>),
    /// Taken timers.
    Taken(Page<Taken>),
    /// Unconfirmed timers.
    Unconfirmed(Page<Unconfirmed>),
    /// Parked timers.
    Parked(Page<Record>),
}

impl ListPage {
    /// The rows, and where to go on.
    pub fn into_rows(self) -> (Vec<Row>, Option<u64>) {
        match self {
            Self::Dead(Page { rows, next }) => {
                let row = |DeadLetter { record, reason, died }| Row { record, at: At::Dead { reason, died } };
                (rows.into_iter().map(row).collect(), next)
            }
            Self::Taken(Page { rows, next }) => {
                let row = |Taken { record, epoch }| Row { record, at: At::Taken { epoch } };
                (rows.into_iter().map(row).collect(), next)
            }
            Self::Unconfirmed(Page { rows, next }) => {
                let row = |Unconfirmed { record, epoch, since }| Row {
                    record,
                    at: At::Unconfirmed { epoch, since },
                };
                (rows.into_iter().map(row).collect(), next)
            }
            Self::Parked(Page { rows, next }) => {
                let row = |record| Row { record, at: At::Parked };
                (rows.into_iter().map(row).collect(), next)
            }
        }
    }
}

/// A part of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// Where to go on; `None` at the end. A listing starts at cursor 0. Rows that come or go while
    /// a listing is under way may or may not be seen, all others are seen exactly once.
    pub next: Option<u64>,
}

/// Which dead letters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeadFilter {
    /// Only of this group.
    pub group: Option<String>,
    /// Only of this app.
    pub app: Option<String>,
}

impl DeadFilter {
    /// Whether a destination passes.
    pub fn accepts(&self, dest: &Destination) -> bool {
        self.group.as_deref().is_none_or(|g| g == dest.group())
            && self.app.as_deref().is_none_or(|a| a == dest.app())
    }
}

/// A dead letter, complete.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadLetter {
    /// The timer; [`crate::Progress::failed`] is its number of failed attempts, `last_error` its
    /// last error.
    pub record: Record,
    /// Why.
    pub reason: DeadReason,
    /// When.
    pub died: Time,
}

/// An at-most-once timer that was or was about to be sent, and may still be settled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The timer.
    pub record: Record,
    /// Taken by this owner.
    pub epoch: Epoch,
}

/// An at-most-once timer that was taken and that nobody will settle any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unconfirmed {
    /// The timer.
    pub record: Record,
    /// Taken by this owner.
    pub epoch: Epoch,
    /// When it became unconfirmed.
    pub since: Time,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_in_a_park_are_in_the_order_of_classes_then_of_numbers() {
        let last = PARK_NUMBERS - 1;
        let all: Vec<u64> = Priority::ALL
            .into_iter()
            .flat_map(|priority| [0, 1, 70_000, last].map(|number| park_position(priority, number)))
            .collect();
        assert!(all.is_sorted_by(|a, b| a < b));
        for priority in Priority::ALL {
            for number in [0, 1, 70_000, last] {
                let position = park_position(priority, number);
                assert_eq!((park_priority(position), park_number(position)), (Some(priority), number));
                assert_eq!(position as f64 as u64, position, "Redis has it as a float");
            }
            assert_eq!(park_start(priority), park_position(priority, 0));
        }
        assert_eq!(park_priority(u64::MAX), None);
    }
}
