//! Which tables of pending timers hold nothing any more: those below a partition's floor.
//!
//! Purpose: space comes back without a merge, which would need space first. A table that lies
//! between a partition's first key and its floor has only rows that are deleted, and deletions of
//! such rows; it can go as it is.
//!
//! Invariant: no deletion goes before the row that it deletes. A deletion lies in the same level as
//! its row or in a newer one, so tables go together with everything below them in the same range of
//! keys, or not at all.
//!
//! Not in here: the floors (`partition`), dropping tables (`compactor`).

use std::ops::Bound;

use mtimer_types::{PartitionId, Time};

/// A table: its level (0: the newest, whose tables overlap each other), its first and last key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableKeys<'a> {
    pub(crate) level: usize,
    pub(crate) first: &'a [u8],
    pub(crate) last: &'a [u8],
}

/// Keys from a bound on, up to before one.
pub(crate) type KeyRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The keys of a partition's pending timers that fire before `floor`, ms: from, and up to before.
pub(crate) fn keys_below(partition: PartitionId, floor: u64) -> (Vec<u8>, Vec<u8>) {
    let from = partition.0.to_be_bytes().to_vec();
    let to = match partition.0.checked_add(1) {
        // Everything of the partition.
        Some(next) if floor > Time::MAX.as_ms() => next.to_be_bytes().to_vec(),
        _ => [&from[..], &floor.to_be_bytes()[2..]].concat(),
    };
    (from, to)
}

/// The part of `from..to` whose tables can be dropped, if there are any. All rows in it are
/// deleted.
///
/// A table that reaches beyond the range stays, so the range ends before it: it may have rows whose
/// deletions lie in a table that would go. Of the newest level none may go: an older one of them
/// could reach beyond the range.
pub(crate) fn droppable(tables: &[TableKeys<'_>], from: &[u8], to: &[u8]) -> Option<KeyRange> {
    let overlaps = |t: &TableKeys<'_>| t.last >= from && t.first < to;
    let tables = tables.iter().filter(|t| overlaps(t));
    let (newest, merged): (Vec<&TableKeys<'_>>, Vec<_>) = tables.partition(|t| t.level == 0);
    let (mut start, mut end) = (Bound::Included(from), to);
    let is_behind = |start: Bound<&[u8]>, key: &[u8]| match start {
        Bound::Included(start) => key >= start,
        Bound::Excluded(start) => key > start,
        Bound::Unbounded => true,
    };
    loop {
        let before = (start, end);
        for t in &merged {
            if !is_behind(start, t.last) || t.first >= end {
                continue;
            }
            if !is_behind(start, t.first) {
                start = Bound::Excluded(t.last);
            } else if t.last >= end {
                end = t.first;
            }
        }
        if before == (start, end) {
            break;
        }
    }
    let is_inside = |t: &&TableKeys<'_>| is_behind(start, t.first) && t.last < end;
    let goes = !newest.iter().any(is_inside) && merged.iter().any(is_inside);
    goes.then(|| (start.map(<[u8]>::to_vec), Bound::Excluded(end.to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(tables: &[(usize, u8, u8)], from: u8, to: u8) -> Option<(Bound<u8>, Bound<u8>)> {
        let keys: Vec<[[u8; 1]; 2]> = tables.iter().map(|(_, first, last)| [[*first], [*last]]).collect();
        let spans: Vec<_> = tables
            .iter()
            .zip(&keys)
            .map(|((level, ..), [first, last])| TableKeys { level: *level, first, last })
            .collect();
        let byte = |bound: Bound<Vec<u8>>| bound.map(|key| key[0]);
        droppable(&spans, &[from], &[to]).map(|(start, end)| (byte(start), byte(end)))
    }

    #[test]
    fn tables_within_the_range_go() {
        let all = Some((Bound::Included(10), Bound::Excluded(50)));
        assert_eq!(found(&[(6, 10, 20), (6, 21, 49)], 10, 50), all);
        assert_eq!(found(&[(6, 1, 9), (6, 50, 60)], 10, 50), None, "there is none");
        assert_eq!(found(&[(5, 12, 30), (6, 10, 20)], 10, 50), all);
    }

    #[test]
    fn a_table_that_reaches_beyond_the_range_bounds_it() {
        let found_end = |to| Some((Bound::Included(10), Bound::Excluded(to)));
        assert_eq!(found(&[(6, 10, 20), (6, 21, 55)], 10, 50), found_end(21));
        assert_eq!(
            found(&[(6, 1, 15), (6, 16, 20)], 10, 50),
            Some((Bound::Excluded(15), Bound::Excluded(50)))
        );
        // The deletions from 18 to 30 stay with the rows from 21 on; so then does what is below 18.
        assert_eq!(found(&[(5, 18, 30), (6, 10, 20), (6, 21, 55)], 10, 50), None);
        assert_eq!(found(&[(5, 18, 30), (6, 10, 14), (6, 15, 20), (6, 21, 55)], 10, 50), found_end(15));
        assert_eq!(found(&[(6, 1, 60)], 10, 50), None);
    }

    #[test]
    fn nothing_goes_before_a_table_of_the_newest_level_that_lies_within() {
        assert_eq!(found(&[(0, 12, 14), (0, 5, 60), (6, 10, 20)], 10, 50), None);
        let all = Some((Bound::Included(10), Bound::Excluded(50)));
        assert_eq!(found(&[(0, 5, 60), (6, 10, 20)], 10, 50), all);
    }

    #[test]
    fn the_keys_below_a_floor_are_those_of_the_partition_alone() {
        let (from, to) = keys_below(PartitionId(3), 0x0102_0304_0506);
        assert_eq!((from, to), (vec![0, 3], vec![0, 3, 1, 2, 3, 4, 5, 6]));
        assert_eq!(keys_below(PartitionId(255), Time::MAX.as_ms() + 1).1, [1, 0]);
    }

    /// Levels as a tree has them, with rows and deletions; after tables are dropped nothing that
    /// was deleted is there again.
    #[test]
    fn nothing_that_was_deleted_comes_back() {
        let mut dropped = 0;
        for seed in 0..3_000 {
            let mut random = mtimer_store::conformance::SeededRandom::new(seed);
            let mut below = |n: u64| random.next_u64() % n;
            // Level by level, oldest first: each table has keys, each of them set or deleted. Only
            // keys from the floor on may be set in the end.
            let floor = 20 + below(40) as u8;
            let mut tables: Vec<(usize, Vec<(u8, bool)>)> = Vec::new();
            for level in (0..4_usize).rev() {
                let mut key = below(10) as u8;
                while key < 80 {
                    let rows: Vec<_> =
                        (key..80).step_by(1 + below(3) as usize).take(1 + below(9) as usize).collect();
                    key = rows.last().map_or(80, |last| last + 1 + below(6) as u8);
                    tables.push((level, rows.into_iter().map(|k| (k, below(2) == 0)).collect()));
                }
            }
            let read = |tables: &[(usize, Vec<(u8, bool)>)], key: u8| {
                let newest = tables.iter().rev().find_map(|(_, rows)| rows.iter().find(|(k, _)| *k == key));
                newest.is_some_and(|(_, is_set)| *is_set)
            };
            // The newest of all: deletions of what is set below the floor.
            let deleted: Vec<_> = (0..floor).filter(|k| read(&tables, *k)).map(|k| (k, false)).collect();
            let at = 1 + below(3) as usize;
            let newest = [deleted.clone(), vec![(79, read(&tables, 79))]].concat();
            tables.push((if at == 1 { 0 } else { at - 1 }, newest));
            tables.sort_by_key(|(level, _)| std::cmp::Reverse(*level));
            let is_gone = (0..floor).all(|k| !read(&tables, k));
            if !is_gone {
                continue;
            }
            let spans: Vec<([u8; 1], [u8; 1])> =
                tables.iter().map(|(_, rows)| ([rows[0].0], [rows[rows.len() - 1].0])).collect();
            let keys: Vec<_> = tables
                .iter()
                .zip(&spans)
                .map(|((level, _), (first, last))| TableKeys { level: *level, first, last })
                .collect();
            let Some((start, end)) = droppable(&keys, &[0], &[floor]) else { continue };
            dropped += 1;
            let is_inside = |first: u8, last: u8| {
                let starts = match &start {
                    Bound::Included(s) => first >= s[0],
                    Bound::Excluded(s) => first > s[0],
                    Bound::Unbounded => true,
                };
                starts && matches!(&end, Bound::Excluded(e) if last < e[0])
            };
            let left: Vec<_> = tables
                .iter()
                .zip(&spans)
                .filter(|(_, (first, last))| !is_inside(first[0], last[0]))
                .map(|(table, _)| table.clone())
                .collect();
            for key in 0..80 {
                assert_eq!(read(&left, key), read(&tables, key), "seed {seed}, key {key}");
            }
        }
        assert!(dropped > 100, "only {dropped} seeds had tables to drop");
    }
}
