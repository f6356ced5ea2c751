//! Cuts a batch into runs that one script can do in about a millisecond.
//!
//! Not in here: how a run is laid out ([`crate::plan`]).

use mtimer_store::Op;
use mtimer_store::op::Verdict;
use mtimer_types::TimerId;

use crate::hints::Hints;
use crate::mirror::Mirror;
use crate::plan::script_of;

/// Operations of one script: each may have to look into several siblings of a crowded slot.
const MAX_OPS: usize = 128;
/// Bytes of records that one script files or moves.
const MAX_BYTES: usize = 64 << 10;
/// A record that is only read and removed counts for this part of its bytes: what a load reads, a script may, too.
const READ_ONLY: usize = 4;

/// What a script has to do for a timer, about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Weight {
    /// Timers of one slot that are as much work to look up.
    places: usize,
    /// Bytes of its record.
    pub(crate) bytes: usize,
}

impl Weight {
    /// The weight of a timer as far as it is known.
    pub(crate) fn of(id: TimerId, mirror: &Mirror, hints: &Hints) -> Self {
        // In a crowded slot an id may be in several siblings, and a script has to look into each; unless it is known in
        // which one it is.
        let hint = hints.get(id).filter(|slot| mirror.has(*slot));
        let births = if hint.is_some() { Vec::new() } else { mirror.birth_places(id) };
        let slot = hint.or_else(|| births.first().copied());
        let bytes = hints.size(id).or_else(|| mirror.mean_size(slot?)).unwrap_or(0);
        Self { places: places(births.len()), bytes }
    }

    /// The weight of an operation as far as it is known.
    pub(crate) fn of_op(op: &Op, mirror: &Mirror, hints: &Hints) -> Self {
        match op {
            // Mostly new, and what it files is in the operation.
            Op::Schedule { timer, .. } => Self { places: places(mirror.searches(timer.id)), bytes: 0 },
            op => op.id().map_or(Self { places: 1, bytes: 0 }, |id| Self::of(id, mirror, hints)),
        }
    }
}

/// A look into a slot is half of what is done for a timer.
fn places(looks: usize) -> usize {
    looks.div_ceil(2).max(1)
}

/// Bytes that an operation adds to its script, if the timer's record has `record`.
fn bytes_of(op: &Op, record: usize) -> usize {
    match op {
        Op::Schedule { timer, .. } => timer.payload.len(),
        Op::Settle { verdict: Verdict::Ack | Verdict::LateAck { .. } | Verdict::Expired, .. }
        | Op::Cancel { .. }
        | Op::Purge { .. } => record / READ_ONLY,
        Op::Settle { .. }
        | Op::Reschedule { .. }
        | Op::Take { .. }
        | Op::Park { .. }
        | Op::Unpark { .. }
        | Op::Replay { .. }
        | Op::TrimDead { .. } => record,
    }
}

/// Operations of one script, in the order in which it does them.
#[derive(Default, Debug)]
pub(crate) struct Cut {
    pub(crate) ops: Vec<Op>,
    /// The place of each in its batch.
    pub(crate) places: Vec<u32>,
}

/// Cuts a batch into runs of one kind and bounded size. `weigh` tells how much work an operation is.
///
/// The order stays, but for new timers without a key one behind another: whichever comes first, the outcome is the same, and
/// in the order of their ids (so of their due times) a script has several for each slot that it touches.
pub(crate) fn cut(ops: Vec<Op>, weigh: impl Fn(&Op) -> Weight) -> Vec<Cut> {
    let several = ops.len() > MAX_OPS;
    let mut ops: Vec<(u32, Op)> = (0..).zip(ops).collect();
    if several {
        for stretch in ops.chunk_by_mut(|(_, a), (_, b)| is_free(a) && is_free(b)) {
            // The same id may come twice: it stays in order.
            stretch.sort_by_key(|(_, op)| op.id());
        }
    }
    let mut cuts: Vec<Cut> = Vec::new();
    let (mut weight, mut bytes) = (0, 0);
    for (place, op) in ops {
        let Weight { places, bytes: record } = weigh(&op);
        let size = bytes_of(&op, record);
        let fits = cuts.last().and_then(|cut| cut.ops.first()).is_some_and(|first| {
            script_of(first) == script_of(&op)
                && !matches!(op, Op::TrimDead { .. })
                && bytes + size <= MAX_BYTES
                && weight + places <= MAX_OPS
        });
        if !fits {
            cuts.push(Cut::default());
            (weight, bytes) = (0, 0);
        }
        if let Some(cut) = cuts.last_mut() {
            cut.ops.push(op);
            cut.places.push(place);
        }
        (weight, bytes) = (weight + places, bytes + size);
    }
    cuts
}

/// Whether the operation has the same outcome before and behind any other such one of another timer.
fn is_free(op: &Op) -> bool {
    matches!(op, Op::Schedule { timer, .. } if timer.key.is_none())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use mtimer_types::{Destination, Key, KeyPolicy, Mode, PartitionId, SlotWidth, Target, Time, Timer};

    use super::*;

    fn id(due: u64) -> TimerId {
        TimerId::with_width(Time::from_ms(due), SlotWidth::Minute, PartitionId(1), due)
    }

    fn schedule(due: u64, key: Option<&str>) -> Op {
        let timer = Timer {
            id: id(due),
            dest: Destination::new("g", "a").unwrap(),
            key: key.map(|key| Key::new(key).unwrap()),
            due: Time::from_ms(due),
            mode: Mode::AtLeastOnce,
            deadline: None,
            callback_timeout_ms: None,
            retry: None,
            payload: Bytes::from(due.to_string()),
        };
        Op::Schedule { timer: Arc::new(timer), policy: KeyPolicy::Create }
    }

    fn cut_light(ops: &[Op]) -> Vec<Cut> {
        cut(ops.to_vec(), |_| Weight { places: 1, bytes: 0 })
    }

    #[test]
    fn new_timers_without_keys_go_in_the_order_of_their_due_times_and_keep_their_places() {
        let ops: Vec<Op> = (0..600).map(|n| schedule(n * 7_919 % 600, None)).collect();
        let cuts = cut_light(&ops);
        assert_eq!(cuts.iter().map(|cut| cut.ops.len()).collect::<Vec<_>>(), [128, 128, 128, 128, 88]);
        let done: Vec<_> = cuts.iter().flat_map(|cut| &cut.ops).collect();
        assert!(done.iter().zip(0..).all(|(op, due)| op.id() == Some(id(due))));
        let places = cuts.iter().flat_map(|cut| &cut.places);
        assert!(done.iter().zip(places).all(|(op, place)| op.id() == ops[*place as usize].id()));
    }

    #[test]
    fn what_has_an_order_keeps_it() {
        let other = [
            schedule(0, Some("k")),
            Op::Cancel { target: Target::Id(id(300)), in_flight: None, request: mtimer_store::RequestId(1) },
        ];
        for other in other {
            let mut ops: Vec<Op> = (0..400).rev().map(|due| schedule(due, None)).collect();
            ops.insert(200, other.clone());
            // It comes twice, and in between something has happened to it.
            ops.push(schedule(300, None));
            let done: Vec<Op> = cut_light(&ops).into_iter().flat_map(|cut| cut.ops).collect();
            assert_eq!(done.iter().position(|op| !is_free(op)), Some(200), "{other:?}");
            assert!(done[..200].is_sorted_by_key(Op::id) && done[201..].is_sorted_by_key(Op::id));
            assert_eq!((done[100].id(), done[401].id()), (Some(id(300)), Some(id(300))));
        }
    }

    #[test]
    fn few_stay_as_they_are() {
        let ops: Vec<Op> = (0..100).rev().map(|due| schedule(due, None)).collect();
        let cuts = cut_light(&ops);
        assert_eq!(cuts.len(), 1);
        assert!(cuts[0].ops.iter().map(Op::id).eq(ops.iter().map(Op::id)));
    }
}
