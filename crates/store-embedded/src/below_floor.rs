//! Which tables of pending timers hold nothing any more: those below a partition's floor.
//!
//! Purpose: space comes back without a merge, which would need space first. A table that lies
//! between a partition's first key and its floor has only rows that are deleted, and deletions of
//! such rows; it can go as it is.
//!
//! Invariant: no deletion goes before the row that it deletes. The row lies in an older level, so a
//! table goes only together with everything older that has rows in its range. The ranges of tables
//! alone say too little of that: one that begins with the last timers of a partition and ends with
//! the first of the next covers all that come later in the former.
//!
//! Not in here: the floors (`partition`), dropping tables (`compactor`).

use mtimer_types::{PartitionId, Time};

/// A table: its level (0: the newest, whose tables overlap each other; the higher the older), its
/// first and last key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TableKeys<'a> {
    pub(crate) level: usize,
    pub(crate) first: &'a [u8],
    pub(crate) last: &'a [u8],
}

impl TableKeys<'_> {
    fn contains(&self, other: &Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

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

/// The tables in `from..to`, where all rows are deleted, whose ranges of keys can be dropped: each
/// with every table that lies within it. `has_rows` says whether the table of this number has any
/// in the range of another one.
pub(crate) fn droppable<'a>(
    tables: &'a [TableKeys<'a>],
    from: &'a [u8],
    to: &'a [u8],
    has_rows: impl Fn(usize, &TableKeys<'_>) -> bool,
) -> impl Iterator<Item = TableKeys<'a>> {
    let is_below = move |table: &TableKeys<'_>| from <= table.first && table.last < to;
    let candidates = tables.iter().filter(move |table| table.level > 0 && is_below(table));
    candidates.filter(move |table| can_go(tables, table, &has_rows)).copied()
}

/// Whether the tables within the range of one leave nothing behind that they have deleted. The
/// newest level has an order of its own: none of its tables goes.
fn can_go(
    tables: &[TableKeys<'_>],
    range: &TableKeys<'_>,
    has_rows: impl Fn(usize, &TableKeys<'_>) -> bool,
) -> bool {
    let mut going = tables.iter().filter(|table| range.contains(table));
    going.all(|table| {
        let older = |other: &TableKeys<'_>| other.level > table.level && other.overlaps(table);
        let mut stays = tables.iter().enumerate().filter(|(_, other)| older(other) && !range.contains(other));
        table.level > 0 && !stays.any(|(number, _)| has_rows(number, table))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(tables: &[(usize, u8, u8)], from: u8, to: u8) -> Vec<(usize, u8, u8)> {
        let keys: Vec<[[u8; 1]; 2]> = tables.iter().map(|(_, first, last)| [[*first], [*last]]).collect();
        let spans: Vec<_> = tables
            .iter()
            .zip(&keys)
            .map(|((level, ..), [first, last])| TableKeys { level: *level, first, last })
            .collect();
        let all_have_rows = |_: usize, _: &TableKeys<'_>| true;
        droppable(&spans, &[from], &[to], all_have_rows).map(|t| (t.level, t.first[0], t.last[0])).collect()
    }

    #[test]
    fn what_lies_below_goes_and_what_reaches_beyond_stays() {
        let all = [(6, 10, 20), (6, 21, 49)];
        assert_eq!(found(&all, 10, 50), all);
        assert_eq!(found(&[(6, 1, 9), (6, 10, 20), (6, 21, 50)], 10, 50), [(6, 10, 20)]);
    }

    #[test]
    fn a_deletion_stays_as_long_as_anything_older_of_its_range() {
        // An older table goes, no matter what lies above it.
        assert_eq!(found(&[(4, 0, 90), (6, 10, 20)], 10, 50), [(6, 10, 20)]);
        // The newer one has to stay: it may delete rows of the older one that stays.
        assert_eq!(found(&[(5, 18, 30), (6, 10, 20), (6, 21, 55)], 10, 50), [(6, 10, 20)]);
        // It can go together with the older tables, once those lie within the range or are gone.
        assert_eq!(found(&[(5, 12, 30), (6, 10, 20)], 10, 50), [(6, 10, 20)]);
        assert_eq!(found(&[(5, 10, 30), (6, 10, 20)], 10, 50), [(5, 10, 30), (6, 10, 20)]);
        // A range takes everything with it that lies within.
        assert_eq!(found(&[(4, 12, 14), (5, 13, 30), (6, 10, 20)], 10, 50), []);
    }

    #[test]
    fn of_the_newest_level_none_goes() {
        assert_eq!(found(&[(0, 12, 14), (6, 10, 20)], 10, 50), []);
        assert_eq!(found(&[(0, 5, 60), (6, 10, 20)], 10, 50), [(6, 10, 20)]);
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
            // The newest of all: deletions of the rows below the floor.
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
            let to = [floor];
            let has_rows = |number: usize, range: &TableKeys<'_>| {
                let rows: &[(u8, bool)] = &tables[number].1;
                rows.iter().any(|(key, _)| (range.first[0]..=range.last[0]).contains(key))
            };
            let ranges: Vec<_> = droppable(&keys, &[0], &to, has_rows).collect();
            dropped += usize::from(!ranges.is_empty());
            let stays = |keys: &TableKeys<'_>| !ranges.iter().any(|range| range.contains(keys));
            let left: Vec<_> = tables
                .iter()
                .zip(&keys)
                .filter(|(_, keys)| stays(keys))
                .map(|(table, _)| table.clone())
                .collect();
            for key in 0..80 {
                assert_eq!(read(&left, key), read(&tables, key), "seed {seed}, key {key}");
            }
        }
        assert!(dropped > 100, "only {dropped} seeds had tables to drop");
    }
}
