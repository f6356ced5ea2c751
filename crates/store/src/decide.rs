//! What every operation does, as pure decisions over a small table.
//!
//! Purpose: one implementation of [`crate::op`] for every store that can read before it writes (the
//! in-memory model, the embedded store; one that has to be read remotely through a
//! [`crate::view`]). A store brings a [`Table`]; [`apply`] reads and writes it and answers.
//!
//! Invariant: a decision reads everything it needs before its first write, so an operation that
//! fails to read changes nothing. A live key names a live timer; a timer that leaves takes its key
//! along only if the key still names it.
//!
//! Not in here: who may write (epoch and nonce), `claimed-until`, batches, files, keeping counts,
//! refusals for want of memory. Those belong to the store.

mod change;
mod settle;
mod steps;
mod table;

use crate::op::{Answer, Op};

pub use table::{At, Context, Row, Table};

/// Decides and carries out one operation.
///
/// # Errors
///
/// The table's, if a read or a write of it fails.
pub fn apply<T: Table>(table: &mut T, ctx: &Context, op: &Op) -> Result<Answer, T::Error> {
    match op {
        Op::Schedule { timer, policy } => change::schedule(table, ctx, timer, *policy).map(Answer::Schedule),
        Op::Cancel { target, sent_attempt, request } => {
            if let Some(answer @ Answer::Cancel(_)) = table.answered(*request, ctx.now)? {
                return Ok(answer);
            }
            let answer = change::cancel(table, ctx, target, *sent_attempt)?;
            table.set_answered(*request, &Answer::Cancel(answer.to_repeat()), ctx.now)?;
            Ok(Answer::Cancel(answer))
        }
        Op::Reschedule { target, due, is_begun, request } => {
            if let Some(answer @ Answer::Reschedule(_)) = table.answered(*request, ctx.now)? {
                return Ok(answer);
            }
            let answer = change::reschedule(table, ctx, target, *due, *is_begun).map(Answer::Reschedule)?;
            table.set_answered(*request, &answer, ctx.now)?;
            Ok(answer)
        }
        Op::Take { id, failed, .. } => settle::take(table, ctx, *id, *failed),
        Op::Settle { id, verdict, .. } => settle::settle(table, ctx, *id, verdict),
        Op::Park { id, failed } => settle::park(table, ctx, *id, *failed),
        Op::Unpark { id, fire } => settle::unpark(table, ctx, *id, *fire),
        Op::Replay { id, fire } => change::replay(table, ctx, *id, *fire),
        Op::Purge { id } => change::purge(table, ctx, *id),
        Op::Trim { of, before, keep, limit } => change::trim(table, ctx, *of, (*before, *keep), *limit),
    }
}

impl Op {
    /// Whether the operation can make the store hold more than before: what a full store refuses.
    pub const fn adds(&self) -> bool {
        matches!(self, Self::Schedule { .. } | Self::Reschedule { .. } | Self::Replay { .. })
    }
}

#[cfg(test)]
mod tests;
