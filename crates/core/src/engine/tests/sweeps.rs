//! Sweeps of parked timers: which timers they end, and how often they ask.

use mtimer_store::ops::Settle;
use mtimer_store::{ListPage, Op, Page, Record, Verdict};

use super::park::{asked_pages, page, parked_in_three, sweep_for_a_second};
use super::*;

/// After how many ms the next page is asked for, and which.
fn next_page(engine: &mut Engine, now: &mut Now) -> (u64, Vec<(u16, u64)>) {
    let since = now.mono_ms;
    loop {
        now.mono_ms += 1;
        now.time = now.time + 1;
        let asked = asked_pages(engine, *now);
        if !asked.is_empty() || now.mono_ms > since + 1_000 {
            return (now.mono_ms - since, asked);
        }
    }
}

/// A row of a page of the park of partition 0, by its number.
fn row(now: Now, n: u64, deadline: Option<Time>) -> Record {
    let timer = Timer {
        deadline,
        payload: b"x".as_slice().into(),
        ..Timer::new(TimerId::new(now.time, now.time, P, n), dest("a"), now.time)
    };
    Record::new(timer.into())
}

/// Returns the timers that a sweep of partition 0 ends when it finds these rows.
fn ended(engine: &mut Engine, now: Now, rows: Vec<Record>) -> Vec<TimerId> {
    page(engine, now, P, CallAnswer::List(ListPage::Parked(Page { rows, next: None })));
    let mut effects = Vec::new();
    engine.flush(now, &mut effects);
    let ops = effects.into_iter().filter_map(|effect| match effect {
        Effect::Call(_, Call::Apply(batch)) => Some(batch.ops),
        _ => None,
    });
    let ids = ops.flatten().filter_map(|op| match op {
        Op::Settle(Settle { id, verdict: Verdict::Expired { .. }, .. }) => Some(id),
        _ => None,
    });
    ids.collect()
}

#[test]
fn a_sweep_ends_what_has_missed_its_deadline() {
    let (mut engine, mut now) = parked_in_three();
    assert_eq!(sweep_for_a_second(&mut engine, &mut now), [(0, 0)]);
    let missed = row(now, 1, Some(Time::from_ms(now.time.as_ms() - 1)));
    let id = missed.timer.id;
    let at_its_deadline = row(now, 2, Some(now.time));
    let later = row(now, 3, Some(now.time + 1_000));
    let rows = vec![missed, at_its_deadline, later, row(now, 4, None)];
    assert_eq!(ended(&mut engine, now, rows), [id]);
    let ix = engine.roster.dest_ix(&dest("a"));
    assert_eq!(engine.roster.dest(ix).parks.deadline(P), Some(now.time), "the next one");
}

#[test]
fn a_sweep_leaves_what_is_in_memory_alone() {
    let (mut engine, mut now) = parked_in_three();
    assert_eq!(sweep_for_a_second(&mut engine, &mut now), [(0, 0)]);
    let here = row(now, 1, Some(Time::from_ms(now.time.as_ms() - 1)));
    engine.adopt(now, here.clone(), now.time + 1_000, false);
    assert_eq!(ended(&mut engine, now, vec![here]), []);
}

#[test]
fn a_sweep_pauses_after_each_page() {
    let (mut engine, mut now) = parked_in_three();
    assert_eq!(sweep_for_a_second(&mut engine, &mut now), [(0, 0)]);
    for (next, expected) in [(Some(7), (0, 7)), (Some(8), (0, 8)), (None, (1, 0))] {
        let partition = PartitionId(0);
        let empty = CallAnswer::List(ListPage::Parked(Page { rows: vec![], next }));
        page(&mut engine, now, partition, empty);
        let (pause, asked) = next_page(&mut engine, &mut now);
        // Housekeeping comes every 50 ms.
        assert!((100..=150).contains(&pause), "{pause} ms");
        assert_eq!(asked, [expected]);
    }
}

#[test]
fn what_is_parked_where_the_store_is_away_is_swept_later() {
    let (mut engine, mut now) = parked_in_three();
    engine.partition(P).unwrap().set_health(Some("away".into()));
    assert_eq!(sweep_for_a_second(&mut engine, &mut now), [(1, 0)]);
}
