//! Loads in steps: bounded in number and bytes, always getting on, never losing timers that come in
//! between.

use mtimer_types::{SlotWidth, Target, Time, Timer, TimerId};

use super::kit::Kit;
use super::loading::{MIB, add, all, ids, load};
use super::owner::Owner;
use super::pair::Pair;
use super::values::{DAY, HOUR, MINUTE, SECOND, schedule_op, unique};
use crate::ops::{MoveAnswer, Park, Reschedule, SettleAnswer, Unpark};
use crate::{Answer, Load, Loaded, Op, RequestId};

pub(super) async fn a_full_wide_window_is_loaded_in_parts(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    let now = pair.kit.now;
    for width in [SlotWidth::Minute, SlotWidth::Hour, SlotWidth::Day] {
        let start = width.start_of(now + 4 * width.ms());
        let timers: Vec<_> = (0..1_500)
            .map(|n| {
                let due = start + n * (width.ms() / 1_500);
                Timer {
                    id: TimerId::with_width(due, width, pair.kit.partition, unique()),
                    ..pair.kit.timer(due)
                }
            })
            .collect();
        add(&mut pair, &timers).await;
        for quarter in 1..=4 {
            load(&mut pair, start + quarter * (width.ms() / 4), 100, MIB).await;
        }
    }
    pair.check_all().await.unwrap();
}

pub(super) async fn max_timers_is_kept_about(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<_> = (0..4_000).map(|n| kit.timer(kit.now + 50 * n)).collect();
    owner.add_all(&timers).await;
    let steps = owner.load_in_steps(kit.now + HOUR, 100, 64 * MIB).await;
    let largest = steps.iter().map(|s| s.timers.len()).max().unwrap();
    assert!(largest <= 1_000, "a step of {largest} timers, asked were about 100");
    assert_eq!(ids(&steps), all(&timers));
}

pub(super) async fn max_bytes_is_kept_about(mut kit: Kit) {
    let owner = kit.owner().await;
    let payload = bytes::Bytes::from(vec![b'b'; 32 << 10]);
    let timers: Vec<_> =
        (0..128).map(|n| Timer { payload: payload.clone(), ..kit.timer(kit.now + n * SECOND) }).collect();
    for chunk in timers.chunks(32) {
        owner.add_all(chunk).await;
    }
    let steps = owner.load_in_steps(kit.now + HOUR, 100_000, 256 << 10).await;
    let bytes = |s: &Loaded| s.timers.iter().map(|t| t.record.timer.payload.len()).sum::<usize>();
    let largest = steps.iter().map(bytes).max().unwrap();
    assert!(largest <= MIB, "a step of {largest} bytes, asked were about {}", 256 << 10);
    assert_eq!(ids(&steps), all(&timers));
}

pub(super) async fn the_smallest_steps_come_to_an_end(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<_> =
        (0..60).map(|n| kit.timer(kit.now + if n < 20 { SECOND } else { n * 7 * MINUTE })).collect();
    owner.add_all(&timers).await;
    let steps = owner.load_in_steps(kit.now + 2 * DAY, 1, 1).await;
    assert_eq!(ids(&steps), all(&timers));
    owner.lane.unload(Time::ZERO).await.unwrap();
    let steps = owner.load_in_steps(kit.now + 2 * DAY, 0, 0).await;
    assert_eq!(ids(&steps), all(&timers), "a step is made even of nothing");
}

pub(super) async fn a_payload_larger_than_max_bytes_is_loaded(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = Timer { payload: vec![b'x'; 60_000].into(), ..kit.timer(kit.now) };
    owner.add(&timer).await;
    let steps = owner.load_in_steps(kit.now, 10, 100).await;
    assert_eq!(ids(&steps), all(&[timer]));
}

pub(super) async fn new_timers_between_the_steps_are_not_lost(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    let now = pair.kit.now;
    let timers: Vec<_> = (0..600).map(|n| pair.kit.timer(now + 10 * n)).collect();
    add(&mut pair, &timers).await;
    let until = now + 7 * SECOND;
    let mut horizon = Time::ZERO;
    for round in 0..100_000 {
        if horizon >= until {
            break;
        }
        // At the very place where the load stands, just before, just behind it, and farther.
        let here = horizon.max(now);
        let behind = [here - 1, here, here + 1, here + 500, here + HOUR]
            .iter()
            .map(|due| vec![schedule_op(&pair.kit.timer(*due))])
            .collect();
        let behind = if round % 3 == 0 { behind } else { vec![] };
        let load = Load { until, max_timers: 5, max_bytes: MIB, claim: None };
        horizon = pair.load(load, behind).await.unwrap().horizon;
    }
    assert!(horizon >= until, "loading does not come to an end");
    pair.check_all().await.unwrap();
}

pub(super) async fn timers_that_move_between_the_steps_are_not_lost(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    let now = pair.kit.now;
    let timers: Vec<_> = (0..300).map(|n| pair.kit.timer(now + 10 * n)).collect();
    add(&mut pair, &timers).await;
    let until = now + 4 * SECOND;
    for round in 0..60u64 {
        let moved = &timers[(round * 5) as usize];
        let (request, is_begun) = (RequestId(unique()), false);
        let due = now + (round * 977) % (5 * SECOND);
        let op = Op::Reschedule(Reschedule { target: Target::Id(moved.id), due, is_begun, request });
        let load = Load { until, max_timers: 4, max_bytes: MIB, claim: None };
        pair.load(load, vec![vec![op]]).await.unwrap();
    }
    load(&mut pair, until, 10, MIB).await;
    pair.check_all().await.unwrap();
}

async fn crowd(
    mut kit: Kit,
    dues: impl Fn(u64) -> u64,
    count: u64,
    max_timers: usize,
) -> (Owner, Vec<Timer>) {
    let owner = kit.owner().await;
    let start = SlotWidth::Second.start_of(kit.now + 20 * SECOND);
    let timers: Vec<_> = (0..count).map(|n| kit.timer(start + dues(n))).collect();
    owner.add_all(&timers).await;
    assert_eq!(owner.census().await.pending, count);
    let steps = owner.load_in_steps(start + 2 * SECOND, max_timers, 64 * MIB).await;
    assert_eq!(ids(&steps), all(&timers));
    let returned: usize = steps.iter().map(|s| s.timers.len()).sum();
    assert!(returned < 2 * count as usize, "{returned} rows for {count} timers: steps repeat themselves");
    (owner, timers)
}

pub(super) async fn three_thousand_in_one_second(kit: Kit) {
    let (owner, timers) = crowd(kit, |n| n % 1_000, 3_000, 100).await;
    for chunk in timers.chunks(1_000) {
        let ops = chunk.iter().map(|t| Op::settle(t.id, crate::Verdict::Ack)).collect();
        assert!(owner.apply(ops).await.iter().all(|a| *a == Answer::Settle(SettleAnswer::Done)));
    }
    assert_eq!(owner.census().await, Default::default());
}

pub(super) async fn a_thousand_in_one_millisecond(kit: Kit) {
    let (owner, timers) = crowd(kit, |_| 7, 1_000, 10).await;
    let answers = owner.apply(timers.iter().map(|t| Op::Park(Park { id: t.id, failed: 0 })).collect()).await;
    assert!(answers.iter().all(|a| *a == Answer::Park(MoveAnswer::Done)));
    assert_eq!(owner.pending().await.len(), 0);
}

pub(super) async fn a_takeover_in_the_middle_of_a_wide_window(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    let now = pair.kit.now;
    let start = SlotWidth::Day.start_of(now + 5 * DAY);
    let timers: Vec<_> = (0..800).map(|n| pair.kit.timer(start + n * (DAY / 800))).collect();
    add(&mut pair, &timers).await;
    for quarter in 1..=4 {
        load(&mut pair, start + quarter * 5 * HOUR, 30, MIB).await;
        pair.takeover(None).await.unwrap();
    }
    let steps = load(&mut pair, start + DAY, 1_000, MIB).await;
    assert_eq!(ids(&steps), all(&timers));
}

pub(super) async fn a_restart_in_the_middle_of_a_wide_window(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    let now = pair.kit.now;
    let start = SlotWidth::Hour.start_of(now + 30 * HOUR);
    let timers: Vec<_> = (0..500).map(|n| pair.kit.timer(start + n * (HOUR / 500))).collect();
    add(&mut pair, &timers).await;
    load(&mut pair, start + 20 * MINUTE, 30, MIB).await;
    let mut pair = pair.restart().await.unwrap();
    load(&mut pair, start + 40 * MINUTE, 1_000, MIB).await;
    pair.check_all().await.unwrap();
}

pub(super) async fn a_crowded_millisecond_receives_more_between_the_steps(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    let due = pair.kit.now + SECOND;
    let timers: Vec<_> = (0..400).map(|_| pair.kit.timer(due)).collect();
    add(&mut pair, &timers).await;
    for round in 0..20 {
        let more = (0..4).map(|_| schedule_op(&pair.kit.timer(due))).collect();
        let step = Load { until: due, max_timers: 10, max_bytes: MIB, claim: None };
        let loaded = pair.load(step, vec![more]).await.unwrap();
        // Some that were loaded leave the millisecond and come back to it.
        let ids = loaded.timers.iter().map(|t| t.record.timer.id);
        let moved = ids.clone().step_by(5).chain(ids.max());
        let there = moved
            .flat_map(|id| [Op::Park(Park { id, failed: round }), Op::Unpark(Unpark { id, fire: due })])
            .collect();
        pair.apply(there).await.unwrap();
    }
    load(&mut pair, due, 10, MIB).await;
    assert_eq!(pair.owner.census().await.pending, 480);
    pair.check_all().await.unwrap();
}

pub(super) async fn a_crowded_millisecond_is_unloaded_half_way(kit: Kit) {
    let mut pair = Pair::new(kit).await;
    let due = pair.kit.now + SECOND;
    let timers: Vec<_> = (0..200).map(|_| pair.kit.timer(due)).collect();
    add(&mut pair, &timers).await;
    let step = Load { until: due, max_timers: 20, max_bytes: MIB, claim: None };
    for beyond in [due - 1, due - SECOND, Time::ZERO] {
        pair.load(step, vec![]).await.unwrap();
        pair.load(step, vec![]).await.unwrap();
        pair.unload(beyond).await.unwrap();
        let again = load(&mut pair, due, 1_000, MIB).await;
        assert_eq!(ids(&again), all(&timers), "after an unload beyond {beyond}");
        pair.unload(Time::ZERO).await.unwrap();
    }
}
