//! Brings a data directory of an earlier format to the present one, when it is opened.
//!
//! Invariant: whatever interrupts it, no timer is lost or doubled; the next opening goes on. Meanwhile nobody else opens the
//! directory who would miss what is in the newer format already: it is marked first.

use std::ops::Bound;

use bytes::Buf;
use fjall::Slice;
use mtimer_types::{PartitionId, Time, TimerId};

use crate::fault::Fault;
use crate::layout::{Space, pending_key};
use crate::tree::Tree;

/// Timers of one step, which is written as one.
const STEP: usize = 4_096;
/// Bytes of a pending timer's key in format 1: no key has as many now.
const OLD_KEY: usize = 24;

/// From format 1, where the keys of pending timers held their ids whole.
pub(crate) fn from_format_1(tree: &mut Tree) -> Result<(), Fault> {
    let mut last: Option<Slice> = None;
    loop {
        let from = last.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(&key[..]));
        let step = tree.scan(Space::Pending, from, Bound::Unbounded).take(STEP);
        let rows = step.collect::<Result<Vec<_>, Fault>>()?;
        let is_last = rows.len() < STEP;
        last = rows.last().map(|(key, _)| key.clone());
        for (old, value) in rows {
            if let Some((p, fire, id)) = parse_old(&old) {
                tree.put(Space::Pending, pending_key(p, fire, id), &value[..]);
                tree.remove(Space::Pending, old);
            }
        }
        tree.write()?;
        if is_last {
            return tree.sync();
        }
    }
}

fn parse_old(key: &[u8]) -> Option<(PartitionId, Time, TimerId)> {
    let mut rest = Some(key).filter(|key| key.len() == OLD_KEY)?;
    let (p, fire) = (PartitionId(rest.get_u16()), Time::from_ms(rest.get_uint(6)));
    Some((p, fire, TimerId::from_u128(rest.get_u128())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

    use bytes::BufMut;

    use super::*;
    use crate::layout::parse_pending_key;

    const TIMERS: usize = STEP * 2 + 7;

    /// Fire time and id of a timer; every third is not pending at its birth time.
    fn timer(n: usize) -> (Time, TimerId) {
        let due = 1_900_000_000_000 + n as u64 * 7 % 1_000;
        let fire = if n.is_multiple_of(3) { due + n as u64 % 2 * 20 - 10 } else { due };
        (Time::from_ms(fire), TimerId::new(Time::from_ms(due), Time::ZERO, PartitionId(2), n as u64))
    }

    fn old_key(n: usize) -> Slice {
        let (fire, id) = timer(n);
        let mut key = Vec::new();
        key.put_u16(2);
        key.put_uint(fire.as_ms(), 6);
        key.put_u128(id.as_u128());
        key.into()
    }

    #[test]
    fn every_timer_of_format_1_is_found_again_after_an_interrupted_run_too() {
        let dir = tempfile::tempdir().unwrap();
        let mut tree = Tree::open(dir.path(), 1 << 20).unwrap();
        (0..TIMERS).for_each(|n| tree.put(Space::Pending, old_key(n), n.to_be_bytes()));
        // These a former run had got to.
        for n in (0..TIMERS).step_by(5) {
            let (fire, id) = timer(n);
            tree.put(Space::Pending, pending_key(PartitionId(2), fire, id), n.to_be_bytes());
            tree.remove(Space::Pending, old_key(n));
        }
        tree.write().unwrap();
        from_format_1(&mut tree).unwrap();
        let rows = tree.scan(Space::Pending, Bound::Unbounded, Bound::Unbounded);
        let mut found: Vec<_> = rows
            .map(|row| {
                let (key, value) = row.unwrap();
                let n = usize::from_be_bytes(value[..].try_into().unwrap());
                assert_eq!(parse_pending_key(&key), Some(timer(n)));
                n
            })
            .collect();
        found.sort_unstable();
        assert!(found.into_iter().eq(0..TIMERS));
    }

    #[test]
    fn what_a_killed_run_has_written_is_synced() {
        let dir = tempfile::tempdir().unwrap();
        let mut tree = Tree::open(dir.path(), 1 << 20).unwrap();
        assert!(tree.is_dirty(), "nothing tells whether it is");
        from_format_1(&mut tree).unwrap();
        assert!(!tree.is_dirty());
    }
}
