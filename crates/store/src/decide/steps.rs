//! Steps that several decisions share: finding a timer, filing it, ending it.

use mtimer_types::{DeadReason, Ended, Target, Time, TimerId};

use super::table::{At, Context, Row, Table};
use crate::record::Record;

/// Finds the id that a target names: always for an id, through the key's entry for a key.
pub(super) fn resolve<T: Table>(table: &mut T, target: &Target) -> Result<Option<TimerId>, T::Error> {
    match target {
        Target::Id(id) => Ok(Some(*id)),
        Target::Key(dest, key) => table.key(dest, key),
    }
}

/// Files a row as pending, with the mark that tells a successor's claims from a predecessor's.
pub(super) fn file<T: Table>(
    table: &mut T,
    ctx: &Context,
    before: Option<&Row>,
    mut record: Record,
    fire: Time,
    tier: u8,
) -> Result<(), T::Error> {
    record.progress.fresh = (fire <= ctx.prior_claim).then_some(ctx.epoch);
    table.put(before, Row { record, at: At::Pending { fire, tier } })
}

/// Moves a row to the dead letters.
pub(super) fn dead_letter<T: Table>(
    table: &mut T,
    ctx: &Context,
    row: &Row,
    record: Record,
    reason: DeadReason,
) -> Result<(), T::Error> {
    free_key(table, row)?;
    table.put(Some(row), Row { record, at: At::Dead { reason, died: ctx.now } })
}

/// Removes a row for good and remembers how it ended, if that is to be remembered.
pub(super) fn end<T: Table>(
    table: &mut T,
    ctx: &Context,
    row: &Row,
    how: Option<Ended>,
) -> Result<(), T::Error> {
    free_key(table, row)?;
    table.remove(row)?;
    match how {
        Some(how) => table.set_ended(row.id(), how, ctx.now),
        None => Ok(()),
    }
}

/// Frees a row's key if it still names the row. A retained timer has lost its key before.
pub(super) fn free_key<T: Table>(table: &mut T, row: &Row) -> Result<(), T::Error> {
    if row.at.retained().is_none()
        && let Some((dest, key)) = row.key()
        && table.key(dest, key)? == Some(row.id())
    {
        table.set_key(dest, key, None)?;
    }
    Ok(())
}
