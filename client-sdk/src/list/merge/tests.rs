use std::collections::BTreeSet;

use mtimer_protocol::{TimerState, TimerView};
use mtimer_types::{Destination, PartitionId, Timer};
use proptest::prelude::*;

use super::*;

/// A position of partition `partition` among the ids of one fire time.
fn at(ms: u64, partition: u16, n: u64) -> Position {
    let fire = Time::from_ms(ms);
    (fire, TimerId::new(fire, Time::ZERO, PartitionId(partition), n))
}

fn row((fire, id): Position) -> PendingRow {
    let timer = Timer::new(id, Destination::new("g", "a").unwrap(), fire);
    let state = TimerState::Pending { fire };
    let view = TimerView::new(timer, state);
    PendingRow { fire, view, payload_bytes: 0 }
}

fn rows(all: &[Position]) -> Vec<PendingRow> {
    all.iter().copied().map(row).collect()
}

fn popped(merge: &mut Merge) -> Vec<Position> {
    std::iter::from_fn(|| merge.pop()).map(|row| position(&row)).collect()
}

fn blocking(merge: &Merge) -> Vec<(u16, Position)> {
    merge.blocking().collect()
}

const START: Position = (Time::ZERO, TimerId::from_u128(0));

#[test]
fn a_row_waits_for_those_who_may_have_one_before_it_and_for_nobody_else() {
    let mut merge = Merge::new(3, START);
    assert_eq!(blocking(&merge), [(0, START), (1, START), (2, START)]);
    assert_eq!(merge.pop(), None);
    merge.add(0, rows(&[at(10, 0, 1), at(40, 0, 1)]), Some(at(41, 0, 0))).unwrap();
    merge.add(1, rows(&[]), Some(at(20, 1, 0))).unwrap();
    assert_eq!((merge.pop(), blocking(&merge)), (None, vec![(2, START)]));
    merge.add(2, rows(&[at(15, 2, 1)]), None).unwrap();
    assert_eq!(popped(&mut merge), [at(10, 0, 1), at(15, 2, 1)]);
    // Partition 0 has a row, but 1 may have one before it. 2 is at its end.
    assert_eq!(blocking(&merge), [(1, at(20, 1, 0))]);
    merge.add(1, rows(&[at(50, 1, 1)]), Some(at(60, 1, 0))).unwrap();
    assert_eq!(popped(&mut merge), [at(40, 0, 1)]);
    assert_eq!(blocking(&merge), [(0, at(41, 0, 0))], "1 has one, and goes on behind it");
    merge.add(0, rows(&[]), None).unwrap();
    assert_eq!(popped(&mut merge), [at(50, 1, 1)]);
    assert!(!merge.is_at_end());
    merge.add(1, rows(&[]), None).unwrap();
    assert!(merge.is_at_end() && blocking(&merge).is_empty() && merge.pop().is_none());
}

#[test]
fn a_page_that_is_out_of_order_or_stands_still_is_refused_and_changes_nothing() {
    let from = at(10, 0, 5);
    let mut merge = Merge::new(1, from);
    for (page, next) in [
        (&[at(10, 0, 4)][..], None),
        (&[at(12, 0, 1), at(11, 0, 1)], None),
        (&[at(11, 0, 1), at(11, 0, 1)], None),
        (&[at(11, 0, 1)], Some(at(11, 0, 1))),
        (&[], Some(from)),
        (&[], Some(at(10, 0, 4))),
    ] {
        assert_eq!(merge.add(0, rows(page), next), Err(RequestError::Mismatched), "{page:?}, {next:?}");
        assert_eq!(blocking(&merge), [(0, from)]);
    }
    assert_eq!(merge.add(1, vec![], None), Err(RequestError::Mismatched), "there is no such partition");
    merge.add(0, rows(&[from]), None).unwrap();
    assert_eq!(merge.add(0, vec![], None), Err(RequestError::Mismatched), "nobody has asked for it");
    assert_eq!(popped(&mut merge), [from]);
}

/// A partition's store.
struct Stored(BTreeSet<Position>);

impl Stored {
    /// A page of `limit` rows; every `hidden`th one does not pass the filter. It looks at `reads`
    /// timers at most.
    fn page(
        &self,
        from: Position,
        limit: usize,
        reads: usize,
        hidden: usize,
    ) -> (Vec<PendingRow>, Option<Position>) {
        let mut page = Vec::new();
        for (read, place) in self.0.range(from..).enumerate() {
            if read == reads || page.len() == limit {
                return (page, Some(*place));
            }
            page.extend(shows(place, hidden).then(|| row(*place)));
        }
        (page, None)
    }
}

fn shows((_, id): &Position, hidden: usize) -> bool {
    !(id.random() as usize).is_multiple_of(hidden)
}

proptest! {
    #[test]
    fn the_rows_are_those_of_all_partitions_in_order(
        timers in proptest::collection::vec((0u16..6, 0u64..40, 0u64..1_000), 0..150),
        (limit, reads, hidden) in (1usize..7, 1usize..9, 2usize..5),
        (from, at_once, order) in (0u64..20, 1usize..7, any::<bool>()),
    ) {
        let all: BTreeSet<Position> = timers.iter().map(|(p, ms, n)| at(*ms, *p, *n)).collect();
        let of = |p| Stored(all.iter().copied().filter(|(_, id)| id.partition() == PartitionId(p)).collect());
        let stores: Vec<Stored> = (0..6).map(of).collect();
        let from = at(from, 3, 500);
        let mut merge = Merge::new(6, from);
        let mut seen = Vec::new();
        while !merge.is_at_end() {
            seen.extend(popped(&mut merge));
            let mut asked: Vec<_> = merge.blocking().take(at_once).collect();
            prop_assert!(asked.is_sorted_by_key(|(_, at)| *at));
            // Nobody is asked for what comes behind a row that is there.
            let head = merge.bounds.iter().find(|bound| bound.is_row);
            prop_assert!(asked.iter().all(|(_, at)| head.is_none_or(|head| *at <= head.at)));
            prop_assert!(!asked.is_empty() || merge.is_at_end());
            // Answers come in any order.
            if order {
                asked.reverse();
            }
            for (partition, from) in asked {
                let (page, next) = stores[usize::from(partition)].page(from, limit, reads, hidden);
                merge.add(partition, page, next).unwrap();
            }
        }
        let expected: Vec<_> = all.range(from..).copied().filter(|place| shows(place, hidden)).collect();
        prop_assert_eq!(seen, expected);
    }
}
