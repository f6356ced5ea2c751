//! Brings a data directory of an earlier format to the present one, when it is opened.
//!
//! Invariant: whatever interrupts it, no timer is lost or doubled; the next opening goes on.
//! Meanwhile nobody else opens the directory who would miss what is in the newer format already: it
//! is marked first.

use std::ops::Bound;

use bytes::Buf;
use fjall::Slice;
use mtimer_types::{PartitionId, Time, TimerId};

use crate::fault::Fault;
use crate::layout::{Space, pending_key};
use crate::tree::Tree;

/// Timers of one step, which is written as one, and bytes of them: about what a step takes of
/// memory.
const STEP: usize = 4_096;
const STEP_BYTES: usize = 4 * 1024 * 1024;
/// Bytes of a pending timer's key in format 1: no key has as many now.
const OLD_KEY: usize = 24;

/// From format 1, where the keys of pending timers held their ids whole.
pub(crate) fn from_format_1(tree: &mut Tree) -> Result<(), Fault> {
    let mut last = None;
    loop {
        last = step(tree, last.as_ref())?;
        if last.is_none() {
            return tree.sync();
        }
    }
}

/// Brings the next timers to the new format, those behind a key. Returns the key of the last one,
/// unless there are no more.
fn step(tree: &mut Tree, behind: Option<&Slice>) -> Result<Option<Slice>, Fault> {
    let from = behind.map_or(Bound::Unbounded, |key| Bound::Excluded(&key[..]));
    let (mut timers, mut bytes) = (0, 0);
    for row in tree.scan(Space::Pending, from, Bound::Unbounded) {
        let (old, value) = row?;
        // A former run may have got to it.
        let Some((p, fire, id)) = parse_old(&old) else { continue };
        (timers, bytes) = (timers + 1, bytes + value.len());
        tree.put(Space::Pending, pending_key(p, fire, id), &value[..]);
        tree.remove(Space::Pending, old.clone());
        if timers == STEP || bytes >= STEP_BYTES {
            tree.write()?;
            return Ok(Some(old));
        }
    }
    tree.write()?;
    Ok(None)
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

    #[test]
    fn a_step_is_bounded_in_timers_and_in_bytes() {
        let cases = [
            (STEP * 2, 0, &[STEP, STEP, 0][..]),
            (100, 64 * 1024, &[64, 36]),
            (2, STEP_BYTES + 1, &[1, 1, 0]),
        ];
        for (count, bytes, steps) in cases {
            let dir = tempfile::tempdir().unwrap();
            let mut tree = Tree::open(dir.path(), 1 << 20).unwrap();
            (0..count).for_each(|n| tree.put(Space::Pending, old_key(n), vec![7; bytes]));
            tree.write().unwrap();
            let left = |tree: &Tree| {
                let rows = tree.scan(Space::Pending, Bound::Unbounded, Bound::Unbounded);
                rows.filter(|row| parse_old(&row.as_ref().unwrap().0).is_some()).count()
            };
            let (mut last, mut before) = (None, count);
            for (n, timers) in steps.iter().enumerate() {
                last = step(&mut tree, last.as_ref()).unwrap();
                assert_eq!((before - left(&tree), last.is_none()), (*timers, n == steps.len() - 1));
                before = left(&tree);
            }
            assert_eq!(before, 0);
        }
    }
}
