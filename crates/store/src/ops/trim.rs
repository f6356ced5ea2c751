//! Trim: removes timers that are retained for too long, or in too great a number.

use mtimer_types::Time;

use super::operation::{Operation, Origin, Properties};
use super::steps::{end, purged};
use super::subject::Subject;
use crate::place::Retained;
use crate::table::{Context, Row, Table};

/// Removes the oldest retained timers of one kind: those retained since before `before`, and
/// the oldest of more than `keep`; at most `limit` of them.
#[derive(Clone, PartialEq, Debug)]
pub struct Trim {
    /// Which kind.
    pub of: Retained,
    /// Retention by age.
    pub before: Time,
    /// Retention by count.
    pub keep: u64,
    /// At most so many at once.
    pub limit: u32,
}

/// To a [`Trim`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrimAnswer {
    /// Timers removed.
    pub removed: u32,
    /// There are more to trim.
    pub more: bool,
}

impl Operation for Trim {
    type Answer = TrimAnswer;

    const IS: Properties = Properties {
        origin: Origin::Owner,
        adds: false,
        waits: false,
        reads_content: false,
        takes_key_back: false,
    };

    fn subject(&self) -> Subject<'_> {
        Subject::Retained { of: self.of, limit: self.limit }
    }

    fn removes(&self) -> [usize; Retained::COUNT] {
        match self.of {
            Retained::Dead => [self.limit as usize, 0],
            Retained::Unconfirmed => [0, self.limit as usize],
        }
    }

    fn decide<T: Table>(&self, table: &mut T, ctx: &Context) -> Result<TrimAnswer, T::Error> {
        let surplus = table.retained_count(self.of)?.saturating_sub(self.keep);
        // One more than may go, to see whether more could.
        let oldest = table.oldest_retained(self.of, (self.limit as usize).saturating_add(1))?;
        let goes = |i: usize, row: &Row| {
            (i as u64) < surplus || row.at.retained_since().is_some_and(|since| since < self.before)
        };
        let count = oldest.iter().enumerate().take_while(|(i, row)| goes(*i, row)).count();
        let removed = count.min(self.limit as usize);
        for row in &oldest[..removed] {
            end(table, ctx, row, purged(ctx, row))?;
        }
        Ok(TrimAnswer { removed: removed as u32, more: count > removed })
    }
}
