//! Checks of messages with several parts: the operations of a request, the rows of an answer.

use mtimer_protocol::{ErrorCode, QueryAnswer, Request};
use mtimer_types::{Destination, Verb};

use crate::needs;
use crate::principal::Principal;

/// Returns the operations of a request that are refused, by their place, and why. It allocates
/// nothing if all are allowed.
pub fn denied_ops(who: &Principal, request: &Request) -> Vec<(usize, String)> {
    let check = |(at, op)| needs::of_op(op).check(who).err().map(|denied| (at, denied.to_string()));
    request.ops.iter().enumerate().filter_map(check).collect()
}

/// Removes the rows that this principal may not read from an answer.
///
/// A timer that was asked for by its id is refused without its destination; rows of lists are left
/// out, so that a page may have fewer rows than asked for.
pub fn screen(who: &Principal, answer: &mut QueryAnswer) {
    if who.allows_everywhere(Verb::Read) {
        return;
    }
    let may_read = |dest: &Destination| who.allows(Verb::Read, dest);
    match answer {
        QueryAnswer::Timer(Some(view)) if !may_read(&view.timer.dest) => {
            *answer = QueryAnswer::Failed {
                code: ErrorCode::Unauthorized,
                message: format!("token {} may not read on this timer's destination", who.id()),
            };
        }
        QueryAnswer::Dead { rows, .. } => rows.retain(|row| may_read(&row.timer.dest)),
        QueryAnswer::Unconfirmed { rows, .. } => rows.retain(|row| may_read(&row.timer.dest)),
        QueryAnswer::Status(status) => {
            status.parked_destinations.retain(|parked| may_read(&parked.dest));
        }
        // Their permission is checked before.
        QueryAnswer::Timer(_)
        | QueryAnswer::Cluster(_)
        | QueryAnswer::Broker(_)
        | QueryAnswer::Failed { .. }
        | QueryAnswer::Moved { .. }
        | QueryAnswer::Done
        | QueryAnswer::Ready(_) => {}
    }
}
