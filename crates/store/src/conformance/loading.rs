//! Which timers are loaded, and up to where: nothing pending at or below the horizon is ever
//! missing.
//!
//! Most tests let [`Pair`] keep the owner's wheel and check the promise after every load.

use std::collections::BTreeSet;

use mtimer_types::{KeyPolicy, SlotWidth, Time, Timer, TimerId};

use super::kit::Kit;
use super::pair::{Pair, schedule_with};
use super::values::{DAY, HOUR, MINUTE, SECOND, YEAR, schedule_op, unique};
use crate::ops::Park;
use crate::{Load, Loaded, Op};

pub(super) const MIB: usize = 1 << 20;

pub(super) fn everything(until: Time) -> Load {
    Load { until, max_timers: 100_000, max_bytes: 64 * MIB, claim: None }
}

pub(super) fn ids(steps: &[Loaded]) -> BTreeSet<TimerId> {
    steps.iter().flat_map(|s| &s.timers).map(|t| t.record.timer.id).collect()
}

pub(super) fn all(timers: &[Timer]) -> BTreeSet<TimerId> {
    timers.iter().map(|t| t.id).collect()
}

/// Schedules through the pair.
pub(super) async fn add(pair: &mut Pair, timers: &[Timer]) {
    for chunk in timers.chunks(1_000) {
        let ops = chunk.iter().map(schedule_op).collect();
        pair.apply(ops).await.unwrap();
    }
}

/// Loads through the pair up to `until`, in steps of this size.
pub(super) async fn load(pair: &mut Pair, until: Time, max_timers: usize, max_bytes: usize) -> Vec<Loaded> {
    let mut steps: Vec<Loaded> = Vec::new();
    while steps.last().is_none_or(|s| s.horizon < until) {
        assert!(steps.len() < 100_000, "loading does not come to an end");
        let step = pair.load(Load { until, max_timers, max_bytes, claim: None }, vec![]).await.unwrap();
        steps.push(step);
    }
    steps
}

pub(super) async fn an_empty_partition_is_loaded_at_once(mut kit: Kit) {
    let owner = kit.owner().await;
    let steps = owner.load_in_steps(kit.now, 1, 1).await;
    assert_eq!(ids(&steps), BTreeSet::new());
    assert!(steps.last().unwrap().horizon >= kit.now);
}

pub(super) async fn what_is_due_is_loaded(mut kit: Kit) {
    let owner = kit.owner().await;
    let aheads = [0, 1, SECOND, 119 * SECOND, HOUR, DAY, 9 * DAY, 9 * YEAR];
    let pasts = [1, SECOND, HOUR, YEAR, 30 * YEAR];
    let timers: Vec<_> =
        aheads.iter().map(|a| kit.now + *a).chain(pasts.iter().map(|p| kit.now - *p)).collect();
    let timers: Vec<_> = timers.into_iter().map(|due| kit.timer(due)).collect();
    owner.add_all(&timers).await;
    for until in [kit.now, kit.now + 2 * SECOND, kit.now + 2 * HOUR, kit.now + 30 * DAY, kit.far] {
        owner.lane.unload(Time::ZERO).await.unwrap();
        let steps = owner.load_in_steps(until, 1_000, MIB).await;
        let due: Vec<_> = timers.iter().filter(|t| t.due <= until).cloned().collect();
        assert!(ids(&steps).is_superset(&all(&due)), "everything up to {until}");
    }
}

pub(super) async fn a_timer_is_loaded_as_it_is(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = Timer {
        deadline: Some(kit.now + HOUR),
        callback_timeout_ms: Some(1_500),
        retry: Some(mtimer_types::RetryTiers(vec![100, 200])),
        ..kit.keyed(kit.now, &kit.key("loaded-"))
    };
    owner.add(&timer).await;
    let loaded = owner.load(kit.now).await.remove(0);
    assert_eq!(*loaded.record.timer, timer);
    assert_eq!(loaded.record.progress, Default::default());
    assert_eq!((loaded.fire, loaded.tier, loaded.covered), (kit.now, 0, false));
}

pub(super) async fn a_timer_is_loaded_exactly_for_its_time(mut kit: Kit) {
    let owner = kit.owner().await;
    for ahead in [0, 1, 999, SECOND, 59_999, MINUTE, HOUR, DAY, 3 * DAY] {
        let timer = kit.timer(kit.now + ahead);
        owner.add(&timer).await;
        owner.lane.unload(Time::ZERO).await.unwrap();
        let before = owner.load_in_steps(timer.due - 1, 1_000, MIB).await;
        let early = ids(&before).contains(&timer.id);
        assert!(
            early || before.last().unwrap().horizon < timer.due,
            "the horizon covers it, but it is missing"
        );
        let after = owner.load_in_steps(timer.due, 1_000, MIB).await;
        assert!(early || ids(&after).contains(&timer.id), "due at the end of the load");
        owner.ack(timer.id).await;
    }
}

pub(super) async fn a_load_below_the_horizon_keeps_it(mut kit: Kit) {
    let owner = kit.owner().await;
    owner.add(&kit.timer(kit.now + MINUTE)).await;
    let high = owner.load_in_steps(kit.now + HOUR, 1_000, MIB).await.pop().unwrap().horizon;
    let again = owner.lane.load(everything(kit.now)).await.unwrap();
    assert!(again.horizon >= high, "{} after {high}", again.horizon);
}

pub(super) async fn what_is_scheduled_above_the_horizon_is_loaded_later(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    let now = pair.kit.now;
    load(&mut pair, now + 2 * SECOND, 1_000, MIB).await;
    for ahead in [3 * SECOND, 40 * SECOND, 10 * MINUTE, 5 * HOUR, 5 * DAY] {
        let timers: Vec<_> = (0..20).map(|n| pair.kit.timer(now + ahead + 7 * n)).collect();
        add(&mut pair, &timers).await;
        load(&mut pair, now + ahead + 70, 1_000, MIB).await;
    }
    pair.check_all().await.unwrap();
}

pub(super) async fn every_width_and_its_boundaries(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    let now = pair.kit.now;
    let mut dues = BTreeSet::new();
    // Where the client changes from one width to the next, and where slots of a width begin and
    // end.
    for ahead in [2 * MINUTE, 2 * HOUR, 2 * DAY] {
        dues.extend([now + ahead - 1, now + ahead, now + ahead + 1]);
    }
    for width in SlotWidth::ALL {
        let start = width.start_of(now + 3 * width.ms());
        dues.extend([
            start - 1,
            start,
            start + 1,
            start + width.ms() / 2,
            start + width.ms() - 1,
            start + width.ms(),
        ]);
    }
    let timers: Vec<_> = dues.iter().map(|due| pair.kit.timer(*due)).collect();
    add(&mut pair, &timers).await;
    for due in &dues {
        load(&mut pair, *due - 1, 1_000, MIB).await;
        load(&mut pair, *due, 1_000, MIB).await;
    }
    pair.check_all().await.unwrap();
}

pub(super) async fn ids_of_any_birth_width(kit: Kit) {
    // A client whose clock is off gives a timer another width than its distance would.
    let mut pair = Pair::new(kit).await;
    let now = pair.kit.now;
    let mut timers = Vec::new();
    for width in SlotWidth::ALL {
        for due in [now - DAY, now, now + 30 * SECOND, now + HOUR, now + DAY, now + 40 * DAY] {
            let id = TimerId::with_width(due, width, pair.kit.partition, unique());
            timers.push(Timer { id, ..pair.kit.timer(due) });
        }
    }
    add(&mut pair, &timers).await;
    for until in [now, now + MINUTE, now + 2 * HOUR, now + 2 * DAY, now + 50 * DAY] {
        load(&mut pair, until, 3, 100).await;
    }
    pair.check_all().await.unwrap();
    pair.takeover(None).await.unwrap();
    pair.check_all().await.unwrap();
}

pub(super) async fn a_wide_window_receives_more_after_a_load(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    let now = pair.kit.now;
    for width in [SlotWidth::Day, SlotWidth::Hour, SlotWidth::Minute] {
        let start = width.start_of(now + 3 * width.ms());
        let part = width.ms() / 100;
        let at = |pair: &Pair, n: u64| {
            let due = start + n * part;
            Timer { id: TimerId::with_width(due, width, pair.kit.partition, unique()), ..pair.kit.timer(due) }
        };
        let first: Vec<_> = (0..100).map(|n| at(&pair, n)).collect();
        add(&mut pair, &first).await;
        pair.unload(Time::ZERO).await.unwrap();
        load(&mut pair, start + 50 * part, 1_000, MIB).await;
        let more: Vec<_> = (0..100).map(|n| at(&pair, n)).collect();
        add(&mut pair, &more).await;
        load(&mut pair, start + 70 * part, 10, 1_000).await;
        let last: Vec<_> = (60..80).map(|n| at(&pair, n)).collect();
        add(&mut pair, &last).await;
        load(&mut pair, start + 101 * part, 1_000, MIB).await;
    }
    pair.check_all().await.unwrap();
}

pub(super) async fn calls_take_their_place_when_they_are_made(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    let now = pair.kit.now;
    for round in 0..20 {
        let until = now + round * SECOND;
        // Behind the load, before its answer: below, at and above where it ends.
        let behind: Vec<_> = [0, 1, 500, 2 * SECOND, HOUR]
            .iter()
            .map(|ahead| {
                vec![schedule_op(&pair.kit.timer(until + *ahead)), schedule_op(&pair.kit.timer(until - 1))]
            })
            .collect();
        pair.load(everything(until), behind).await.unwrap();
    }
    pair.check_all().await.unwrap();
}

pub(super) async fn a_load_brings_nothing_back(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    let now = pair.kit.now;
    let timers: Vec<_> = (0..200).map(|n| pair.kit.amo(now + n)).collect();
    add(&mut pair, &timers).await;
    // A timer that is taken, settled or moved behind the load was in it; in the next one it is not.
    let behind = vec![
        timers[..50].iter().map(|t| Op::take(t.id, 0)).collect(),
        timers[50..100].iter().map(|t| Op::settle(t.id, crate::Verdict::Ack)).collect(),
        timers[100..150].iter().map(|t| Op::Park(Park { id: t.id, failed: 0 })).collect(),
    ];
    pair.load(everything(now + SECOND), behind).await.unwrap();
    pair.unload(Time::ZERO).await.unwrap();
    let again = load(&mut pair, now + SECOND, 1_000, MIB).await;
    assert_eq!(ids(&again), all(&timers[150..]));
}

pub(super) async fn loads_follow_one_another_without_waiting(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<_> = (0..300).map(|n| kit.timer(kit.now + 20 * n)).collect();
    owner.add_all(&timers).await;
    let calls: Vec<_> = (0..40).map(|n| owner.send_load(kit.now + 200 * n)).collect();
    let (mut horizon, mut seen) = (Time::ZERO, BTreeSet::new());
    for call in calls {
        let loaded = call.await.unwrap();
        assert!(loaded.horizon >= horizon);
        horizon = loaded.horizon;
        seen.extend(loaded.timers.iter().map(|t| t.record.timer.id));
        let missing = timers.iter().find(|t| t.due <= horizon && !seen.contains(&t.id));
        assert!(missing.is_none(), "{missing:?} at or below {horizon}");
    }
    assert_eq!(seen, all(&timers));
}

pub(super) async fn unload_and_load_again(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    let now = pair.kit.now;
    let timers: Vec<_> = (0..200).map(|n| pair.kit.timer(now + n * SECOND)).collect();
    add(&mut pair, &timers).await;
    load(&mut pair, now + HOUR, 1_000, MIB).await;
    for beyond in [now + 150 * SECOND, now + 100 * SECOND + 1, now + SECOND, now - 1, Time::ZERO] {
        pair.unload(beyond).await.unwrap();
        let again = load(&mut pair, now + HOUR, 30, 10_000).await;
        let far: Vec<_> = timers.iter().filter(|t| t.due > beyond).cloned().collect();
        assert!(ids(&again).is_superset(&all(&far)), "everything beyond {beyond} comes again");
    }
}

pub(super) async fn unload_above_the_horizon_changes_nothing(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    let now = pair.kit.now;
    let timers: Vec<_> = (0..50).map(|n| pair.kit.timer(now + n * SECOND)).collect();
    add(&mut pair, &timers).await;
    load(&mut pair, now + 10 * SECOND, 1_000, MIB).await;
    pair.unload(now + HOUR).await.unwrap();
    load(&mut pair, now + HOUR, 1_000, MIB).await;
}

pub(super) async fn unload_with_a_load_behind_it(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<_> = (0..100).map(|n| kit.timer(kit.now + n * SECOND)).collect();
    owner.add_all(&timers).await;
    owner.load(kit.now + HOUR).await;
    let unloaded = owner.lane.unload(kit.now + 10 * SECOND);
    let loaded = owner.send_load(kit.now + HOUR);
    let loaded = loaded.await.unwrap();
    unloaded.await.unwrap();
    let far = all(&timers[11..]);
    assert!(loaded.horizon < kit.now + 11 * SECOND || !ids(std::slice::from_ref(&loaded)).is_disjoint(&far));
    let mut seen = ids(&[loaded]);
    seen.extend(ids(&owner.load_in_steps(kit.now + HOUR, 1_000, MIB).await));
    assert!(seen.is_superset(&far));
}

pub(super) async fn what_was_filed_while_unloaded_is_loaded(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    let now = pair.kit.now;
    load(&mut pair, now + HOUR, 1_000, MIB).await;
    pair.unload(now + SECOND).await.unwrap();
    let timers: Vec<_> = (0..100).map(|n| pair.kit.timer(now + 20 * n)).collect();
    add(&mut pair, &timers).await;
    load(&mut pair, now + HOUR, 10, MIB).await;
}

pub(super) async fn the_next_owner_starts_from_nothing(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    let now = pair.kit.now;
    let timers: Vec<_> = (0..400).map(|n| pair.kit.timer(now + n * n * 100)).collect();
    add(&mut pair, &timers).await;
    load(&mut pair, now + HOUR, 1_000, MIB).await;
    pair.takeover(None).await.unwrap();
    load(&mut pair, now + SECOND, 10, MIB).await;
    pair.takeover(Some(vec![])).await.unwrap();
    let steps = load(&mut pair, now + 10 * HOUR, 1_000, MIB).await;
    assert_eq!(ids(&steps), all(&timers));
}

pub(super) async fn replaced_timers_are_not_loaded(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    let now = pair.kit.now;
    let key = pair.kit.key("replaced-");
    let timers: Vec<_> = (1..50).map(|n| pair.kit.keyed(now + n * 7 * MINUTE, &key)).collect();
    for timer in &timers {
        pair.apply(vec![schedule_with(timer, KeyPolicy::Replace)]).await.unwrap();
    }
    let steps = load(&mut pair, now + DAY, 1_000, MIB).await;
    assert_eq!(ids(&steps), all(&timers[48..]));
}
