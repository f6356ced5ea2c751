//! Views over a store that is elsewhere, against a table that holds everything and against the
//! independent model.

mod cases;
mod coalescing;
mod remote;

use std::collections::HashMap;

use mtimer_types::{DeadReason, Epoch, Time, TimerId};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use self::cases::{REQUESTS, TIMERS, Turn, any_op, any_turns, dest, id, key, next};
use self::remote::{Remote, listing};
use super::*;
use crate::conformance::model::Model;
use crate::conformance::properties::{assert_all_occur, may_retain};
use crate::listing::{ListPage, Listed, Listing};
use crate::memory::MemoryTable;
use crate::ops::Verdict;
use crate::place::Place;
use crate::record::Record;
use crate::table::At;

/// Cases of each property.
const CASES: u32 = 500;

/// Runs turns on a store that is elsewhere. `check` is given each batch, its context, the answers
/// and the store.
fn run(turns: &[Turn], mut check: impl FnMut(&Context, &[Op], &Decided, &Remote)) {
    let mut remote = Remote::default();
    let mut ctx = Context { epoch: Epoch(7), prior_claim: Time::from_ms(1_000), now: Time::from_ms(50_000) };
    for turn in turns {
        ctx.now = ctx.now + turn.pause_ms;
        if let Some(claimed) = turn.takeover {
            (ctx.epoch, ctx.prior_claim) = (next(ctx.epoch), claimed);
        }
        for ops in &turn.batches {
            ctx.now = ctx.now + 1;
            let mut view = remote.view(ops);
            for n in (0..TIMERS).filter(|n| turn.known >> n & 1 == 1) {
                view.learn(remote.read(&Need::Row(id(n)), ctx.now));
            }
            let (decided, rounds) = if turn.prepared {
                remote.prepared_turn(&mut view, &ctx, ops)
            } else {
                remote.turn(&mut view, &ctx, ops)
            };
            assert!(rounds <= MAX_ROUNDS, "{rounds} rounds for {ops:?}");
            check(&ctx, ops, &decided, &remote);
        }
    }
}

/// The expected listings of a store if a batch counts by its net effect: timers that are where they
/// were keep their order, behind them come those that arrived, in the order in which the table has
/// them.
#[derive(Default)]
struct Listings {
    at: HashMap<TimerId, At>,
    ids: [Vec<TimerId>; 4],
}

impl Listings {
    fn follow(&mut self, table: &mut MemoryTable) {
        let mut now: [Vec<TimerId>; 4] = Default::default();
        for of in [Retained::Dead, Retained::Unconfirmed] {
            let Ok(rows) = table.oldest_retained(of, usize::MAX);
            now[of as usize] = rows.iter().map(Row::id).collect();
        }
        let all = |of| table.list(&Listing { of, cursor: 0, limit: u32::MAX });
        let ListPage::Taken(taken) = all(Listed::Taken) else { panic!("no page of taken timers") };
        now[2] = taken.rows.iter().map(|taken| taken.record.timer.id).collect();
        for n in [0, 7] {
            let ListPage::Parked(parked) = all(Listed::Parked(dest(n))) else { panic!("no page of a park") };
            now[3].extend(parked.rows.iter().map(|record| record.timer.id));
        }
        let at: HashMap<TimerId, At> = (0..TIMERS)
            .filter_map(|n| {
                let Ok(row) = table.row(id(n));
                row.map(|row| (row.id(), row.at))
            })
            .collect();
        for (before, now) in self.ids.iter_mut().zip(now) {
            before.retain(|id| self.at.get(id) == at.get(id));
            let came: Vec<_> = now.into_iter().filter(|id| !before.contains(id)).collect();
            before.extend(came);
        }
        self.at = at;
    }
}

/// Parked timers of both destinations stand in one list here, in the table in one each.
fn by_destination(ids: &[TimerId]) -> Vec<TimerId> {
    let (other, one): (Vec<_>, Vec<_>) = ids.iter().partition(|parked| **parked == id(7));
    [one, other].concat()
}

fn assert_same(remote: &Remote, table: &mut MemoryTable, listings: &Listings, now: Time) {
    for n in 0..TIMERS {
        let Ok(row) = table.row(id(n));
        assert_eq!(remote.rows.get(&id(n)), row.as_ref());
        assert_eq!(
            remote.read(&Need::Ended(id(n)), now),
            Fact::Ended(id(n), table.ended(id(n), now).unwrap())
        );
    }
    for (n, k) in [(0, 0), (0, 1), (7, 0), (7, 1)] {
        let Ok(holder) = table.key(&dest(n), &key(k));
        assert_eq!(remote.keys.get(&(dest(n), key(k))), holder.as_ref());
    }
    for request in (0..REQUESTS).map(RequestId) {
        let Ok(answer) = table.answered(request, now);
        assert_eq!(remote.read(&Need::Answered(request), now), Fact::Answered(request, answer));
    }
    assert!(remote.bulks.values().eq(table.bulks().all()));
    assert!(remote.settings.values().eq(table.controls().settings.all()));
    assert_eq!(remote.listings[..3], listings.ids[..3]);
    assert_eq!(by_destination(&remote.listings[3]), by_destination(&listings.ids[3]));
    let listed: usize = remote.listings.iter().map(Vec::len).sum();
    assert_eq!(listed, remote.rows.values().filter(|row| listing(row.at).is_some()).count());
}

/// A row as the model knows it. The mark of the epoch means something only while it is pending.
fn as_in_the_model(row: &Row) -> (Record, Place) {
    let mut record = row.record.clone();
    record.progress.fresh = record.progress.fresh.filter(|_| matches!(row.at, At::Pending { .. }));
    (record, row.at.place())
}

fn assert_same_as_model(remote: &Remote, model: &Model) {
    assert_eq!(remote.rows.len(), model.timers.len());
    for (id, entry) in &model.timers {
        let (mut record, place) = (entry.record(), entry.place);
        record.progress.fresh = record.progress.fresh.filter(|_| matches!(place, Place::Pending { .. }));
        assert_eq!(as_in_the_model(&remote.rows[id]), (record, place));
    }
    for (n, k) in [(0, 0), (0, 1), (7, 0), (7, 1)] {
        assert_eq!(remote.keys.get(&(dest(n), key(k))).copied(), model.holder(&dest(n), &key(k)));
    }
    let died = |id: &TimerId| match remote.rows[id].at {
        At::Dead { reason, died } => (*id, reason, died),
        at => panic!("{id} is listed as dead and is {at:?}"),
    };
    let expected: Vec<(TimerId, DeadReason, Time)> =
        model.dead().iter().map(|d| (d.record.timer.id, d.reason, d.died)).collect();
    assert_eq!(remote.listings[0].iter().map(died).collect::<Vec<_>>(), expected);
    let expected: Vec<TimerId> = model.unconfirmed().iter().map(|u| u.record.timer.id).collect();
    assert_eq!(remote.listings[1], expected);
    assert!(remote.bulks.values().eq(&model.jobs));
    assert!(remote.settings.values().eq(&model.settings()));
}

/// Of those that are retained since the same time the model takes another one for the oldest: one a
/// batch.
fn without_ties(turns: &[Turn]) -> Vec<Turn> {
    let mut turns = turns.to_vec();
    for ops in turns.iter_mut().flat_map(|turn| &mut turn.batches) {
        let mut seen = false;
        ops.retain(|op| !may_retain(op) || !std::mem::replace(&mut seen, true));
    }
    turns
}

#[test]
fn turns_have_every_operation() {
    let mut runner = TestRunner::deterministic();
    let ops: Vec<Op> =
        (0..500).map(|_| any_op().new_tree(&mut runner).expect("an operation").current()).collect();
    assert_all_occur(&ops);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn a_view_decides_as_a_table_that_holds_everything(turns in any_turns(true)) {
        let (mut table, mut listings) = (MemoryTable::default(), Listings::default());
        run(&turns, |ctx, ops, decided, remote| {
            let answer = |op: &Op| {
                let Ok(answer) = op.decide(&mut table, ctx);
                answer
            };
            assert_eq!(decided.answers, ops.iter().map(answer).collect::<Vec<_>>());
            listings.follow(&mut table);
            assert_same(remote, &mut table, &listings, ctx.now);
        });
    }

    #[test]
    fn a_view_decides_as_the_model(turns in any_turns(false)) {
        let mut model = Model::default();
        run(&without_ties(&turns), |ctx, ops, decided, remote| {
            (model.epoch, model.prior_claim) = (ctx.epoch, ctx.prior_claim);
            let answers: Vec<Answer> = ops.iter().map(|op| model.apply(ctx.now, op)).collect();
            assert_eq!(decided.answers, answers);
            assert_same_as_model(remote, &model);
        });
    }

    #[test]
    fn the_same_facts_give_the_same_needs_and_changes(turns in any_turns(true)) {
        let decide_twice = |view: &mut View, again: &mut View, remote: &Remote, ctx: &Context, ops: &[Op]| loop {
            match (view.decide(ctx, ops), again.decide(ctx, ops)) {
                (Ok(one), Ok(other)) => {
                    assert_eq!(one, other);
                    return one;
                }
                (Err(one), Err(other)) => {
                    assert_eq!(one, other);
                    for need in one {
                        view.learn(remote.read(&need, ctx.now));
                        again.learn(remote.read(&need, ctx.now));
                    }
                }
                (one, other) => panic!("{one:?}, {other:?}"),
            }
        };
        let mut remote = Remote::default();
        let mut ctx = Context { epoch: Epoch(7), prior_claim: Time::ZERO, now: Time::from_ms(50_000) };
        for ops in turns.iter().flat_map(|turn| &turn.batches) {
            ctx.now = ctx.now + 1;
            let decided = decide_twice(&mut remote.view(ops), &mut remote.view(ops), &remote, &ctx, ops);
            remote.write(&decided.changes, ctx.now);
        }
    }
}
