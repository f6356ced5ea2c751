//! Steps that several decisions share: finding a timer, filing it, ending it.

use mtimer_types::{DeadReason, Ended, Target, Time, TimerId};

use crate::record::Record;
use crate::remembered::{Repeated, RequestId};
use crate::table::{At, Context, Row, Table};

/// Decides a request, unless it is a repeat: that gets the answer of the first time.
pub(super) fn once<T: Table, A: Repeated>(
    table: &mut T,
    ctx: &Context,
    request: RequestId,
    decide: impl FnOnce(&mut T) -> Result<A, T::Error>,
) -> Result<A, T::Error> {
    if let Some(answer) = table.answered(request, ctx.now)?.and_then(A::recall) {
        return Ok(answer);
    }
    let answer = decide(table)?;
    table.set_answered(request, answer.remember(), ctx.now)?;
    Ok(answer)
}

/// Finds the id that a target names: always for an id, through the key's entry for a key.
pub(super) fn resolve<T: Table>(table: &mut T, target: &Target) -> Result<Option<TimerId>, T::Error> {
    match target {
        Target::Id(id) => Ok(Some(*id)),
        Target::Key(dest, key) => table.key(dest, key),
    }
}

/// Finds a timer. A staged one is nobody's yet: only bulk jobs of its import find it.
pub(super) fn unstaged_row<T: Table>(table: &mut T, id: TimerId) -> Result<Option<Row>, T::Error> {
    Ok(table.row(id)?.filter(|row| !row.at.is_staged()))
}

/// Files a row as pending, with the mark that tells a successor's claims from a predecessor's.
///
/// It is never filed before its due time: an owner that files it again, from the park or for
/// another attempt, may have a clock that is behind that of the owner before.
pub(super) fn file<T: Table>(
    table: &mut T,
    ctx: &Context,
    before: Option<&Row>,
    mut record: Record,
    fire: Time,
    tier: u8,
) -> Result<(), T::Error> {
    let fire = fire.max(record.timer.due);
    record.progress.fresh = (fire <= ctx.prior_claim).then_some(ctx.epoch);
    table.put(before, Row { record, at: At::Pending { fire, tier } })
}

/// Moves a row to the dead letters.
pub(super) fn dead_letter<T: Table>(
    table: &mut T,
    ctx: &Context,
    row: &Row,
    mut record: Record,
    reason: DeadReason,
) -> Result<(), T::Error> {
    free_key(table, row)?;
    if row.at.retained().is_none() {
        record.extensions.raise_bulk_mark(table.bulks().mark());
    }
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

/// The timer waits for its first delivery, as far as the store knows.
pub(super) fn has_not_begun(ctx: &Context, row: &Row) -> bool {
    matches!(row.at, At::Pending { .. } | At::Parked) && untouched(ctx, row)
}

/// The next delivery is the first, and the timer was not stopped. Unless the caller knows of a
/// delivery under way, none can have been started, in any epoch.
pub(super) fn untouched(ctx: &Context, row: &Row) -> bool {
    row.record.attempt(ctx.covered(row)) == 1 && !row.record.progress.stopped
}

/// A schedule of a timer that is retained for longer than the repeat horizon cannot be repeated any
/// more. The end of any other timer must be remembered, or a repeat would bring it back.
pub(super) fn purged(ctx: &Context, row: &Row) -> Option<Ended> {
    let old = row.at.retained_since().is_some_and(|since| !Context::remembers(ctx.now, since));
    (!old).then_some(Ended::Dead)
}
