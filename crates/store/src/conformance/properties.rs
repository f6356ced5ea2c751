//! The properties of each operation, stated once more: suites and simulations compare a store's
//! behaviour with this, not with the operations' own statements.

use crate::ops::{Op, Settle, Verdict};

/// Whether the operation can make the store hold more than before, so that a full store refuses it.
pub const fn adds(op: &Op) -> bool {
    match op {
        Op::Schedule(_) | Op::Reschedule(_) | Op::Replay(_) => true,
        Op::Cancel(_) | Op::Take(_) | Op::Settle(_) | Op::Park(_) | Op::Unpark(_) => false,
        Op::Purge(_) | Op::Trim(_) => false,
    }
}

/// Whether the answer is one that a client or the delivery of an at-most-once timer rests on, so
/// that replicas have to confirm it first.
pub const fn waits(op: &Op) -> bool {
    match op {
        Op::Schedule(_) | Op::Reschedule(_) | Op::Replay(_) | Op::Cancel(_) | Op::Take(_) => true,
        Op::Settle(_) | Op::Park(_) | Op::Unpark(_) | Op::Purge(_) | Op::Trim(_) => false,
    }
}

/// Whether a client asks for it.
pub const fn is_of_client(op: &Op) -> bool {
    match op {
        Op::Schedule(_) | Op::Reschedule(_) | Op::Cancel(_) | Op::Replay(_) | Op::Purge(_) => true,
        Op::Take(_) | Op::Settle(_) | Op::Park(_) | Op::Unpark(_) | Op::Trim(_) => false,
    }
}

/// Whether the operation may make a timer one that is retained: a dead letter, or unconfirmed.
pub const fn may_retain(op: &Op) -> bool {
    match op {
        Op::Settle(Settle { verdict, .. }) => match verdict {
            Verdict::Dead { .. } | Verdict::Retry { .. } | Verdict::Unconfirmed => true,
            Verdict::Ack | Verdict::LateAck { .. } | Verdict::Expired { .. } => false,
        },
        Op::Cancel(_) => true,
        Op::Schedule(_) | Op::Reschedule(_) | Op::Take(_) | Op::Park(_) | Op::Unpark(_) => false,
        Op::Replay(_) | Op::Purge(_) | Op::Trim(_) => false,
    }
}

/// Asserts that each operation is among these: a list of operations that a suite goes through has
/// a new one, too.
///
/// # Panics
///
/// With the names of those that are missing.
pub fn assert_all_occur<'a>(ops: impl IntoIterator<Item = &'a Op>) {
    let mut missing: Vec<&str> = Op::ALL.iter().map(|(name, _)| *name).collect();
    for op in ops {
        missing.retain(|name| !is_named(op, name));
    }
    assert!(missing.is_empty(), "these operations are missing in the list: {missing:?}");
}

/// Whether the operation has this name in [`Op::ALL`].
pub(super) fn is_named(op: &Op, name: &str) -> bool {
    format!("{op:?}").split('(').next() == Some(name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mtimer_types::{Destination, KeyPolicy, Target, Time, Timer, TimerId};

    use super::*;
    use crate::ops::{Cancel, Origin, Park, Purge, Replay, Reschedule, Schedule, Trim, Unpark, Verdict};
    use crate::place::Retained;
    use crate::remembered::RequestId;

    /// One of each.
    fn samples() -> [Op; Op::ALL.len()] {
        let (id, fire, request) = (TimerId::from_u128(7), Time::from_ms(5), RequestId(1));
        let timer = Arc::new(Timer::new(id, Destination::new("g", "a").unwrap(), fire));
        let target = Target::Id(id);
        [
            Schedule::new(timer, KeyPolicy::Create).into(),
            Cancel { target: target.clone(), sent_attempt: None, request }.into(),
            Reschedule { target, due: fire, is_begun: false, request }.into(),
            Op::take(id, 0),
            Op::settle(id, Verdict::Ack),
            Park { id, failed: 0 }.into(),
            Unpark { id, fire }.into(),
            Replay { id, fire }.into(),
            Purge { id }.into(),
            Trim { of: Retained::Dead, before: fire, keep: 0, limit: 1 }.into(),
        ]
    }

    #[test]
    fn operations_are_what_the_suites_expect() {
        for (op, (name, is)) in samples().iter().zip(Op::ALL) {
            assert!(is_named(op, name), "{name} stands for {op:?}");
            assert_eq!(*op.is(), is, "{name}");
            assert_eq!(is.adds, adds(op), "{name} adds");
            assert_eq!(is.waits, waits(op), "{name} waits");
            assert_eq!(is.origin != Origin::Owner, is_of_client(op), "{name} is of a client");
        }
    }

    #[test]
    fn the_documentation_lists_what_operations_are() {
        let document = include_str!("../../../../docs/architecture.md");
        for (name, is) in Op::ALL {
            let origin = match is.origin {
                Origin::Client => "client",
                Origin::Person => "person",
                Origin::Owner => "owner",
            };
            let [adds, waits, reads, key] = [is.adds, is.waits, is.reads_content, is.takes_key_back]
                .map(|is| if is { "yes" } else { "" });
            let row = format!("| `{name}` | {origin} | {adds} | {waits} | {reads} | {key} |");
            assert!(document.contains(&row), "docs/architecture.md lacks this row: {row}");
        }
    }
}
