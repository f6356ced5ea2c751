//! Records that somebody has damaged: they hold up nothing, and nothing is deleted unless it is
//! asked for.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use std::collections::BTreeSet;

use mtimer_store::ops::{Cancel, Park, Replay, Reschedule, Trim, Unpark};
use mtimer_store::{
    AcquireError, Answer, DeadFilter, Op, Place, RequestId, Retained, ScheduleAnswer, StoreError, Verdict,
};
use mtimer_store_redis::test_support::Server;
use mtimer_types::{DeadReason, SlotWidth, Target, Timer, TimerId};
use support::owner::{Owner, PARTITION, dest, now, schedule, timer, try_acquire, unique};

const NEW: Answer = Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None });
const DAY: u64 = 86_400_000;
/// The timers that are parked for the first destination.
const PARK: &str = "park:{2}:t:1";

/// Damages the first records of a slot.
const DAMAGE_SLOT: &str = "for _, id in ipairs(redis.call('HKEYS', KEYS[1])) do redis.call('HSET', KEYS[1], id, ARGV[1]) \
    ARGV[2] = ARGV[2] - 1 if ARGV[2] == 0 then return 1 end end return 0";
/// Damages the first records of a listing: KEYS[2..] are the shards of `moved`.
const DAMAGE_LISTED: &str = "local n = 0 for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, ARGV[2] - 1)) do \
    for i = 2, #KEYS do if redis.call('HEXISTS', KEYS[i], id) == 1 then \
    redis.call('HSET', KEYS[i], id, ARGV[1]) n = n + 1 end end end return n";

/// Gives every timer that has moved this entry.
const DAMAGE_MOVED: &str = "local n = 0 for _, shard in ipairs(KEYS) do for _, id in ipairs(redis.call('HKEYS', shard)) do \
    redis.call('HSET', shard, id, ARGV[1]) n = n + 1 end end return n";

/// The hashes of timers that have moved.
fn shards(server: &Server) -> Vec<String> {
    server.keys().into_iter().filter(|key| key.starts_with("moved:")).collect()
}

/// Damages the records of the first `count` ids of a listing.
fn damage_listed(server: &Server, listing: &str, count: usize, value: &str) {
    let shards = shards(server);
    let keys = (shards.len() + 1).to_string();
    let mut call = vec!["EVAL", DAMAGE_LISTED, &keys, listing];
    call.extend(shards.iter().map(String::as_str));
    let many = count.to_string();
    call.extend([value, &many]);
    assert_eq!(server.call::<usize>(&call), count);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_records_at_the_head_of_a_park_are_passed_over() {
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    let timers: Vec<_> = (0..400).map(|n| timer(now() + DAY + n, 5)).collect();
    owner.apply(timers.iter().map(schedule).collect()).await;
    owner.apply(timers.iter().map(|t| Op::Park(Park { id: t.id, failed: 0 })).collect()).await;
    damage_listed(&server, PARK, 300, "p\x20");
    // A caller that follows the cursor sees every other row once.
    let (mut seen, mut cursor) = (Vec::new(), 0);
    loop {
        let page = owner.lane.parked(dest(), cursor, 7).await.unwrap();
        seen.extend(page.rows.iter().map(|r| r.timer.id));
        match page.next {
            Some(next) => cursor = next,
            None => break,
        }
    }
    let expected: BTreeSet<_> = timers[300..].iter().map(|t| t.id).collect();
    assert_eq!(seen.len(), expected.len());
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), expected);
    assert_eq!(owner.lane.census().await.unwrap().parked, 400, "nothing is deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_records_in_a_dense_wide_slot_hold_up_nothing() {
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    let start = SlotWidth::Day.start_of(now() + 10 * DAY);
    let of = |n: u64| {
        let due = start + n * 20_000;
        Timer { id: TimerId::with_width(due, SlotWidth::Day, PARTITION, unique()), ..timer(due, 5) }
    };
    let timers: Vec<_> = (0..3_000).map(of).collect();
    owner.apply(timers.iter().map(schedule).collect()).await;
    let wide: Vec<_> = server.keys().into_iter().filter(|k| k.starts_with("slot:{2}:t:0.3.")).collect();
    assert!(wide.len() > 5, "{wide:?}");
    // One of each kind: no head at all, and one that is cut off.
    for (n, slot) in wide.iter().enumerate() {
        let value = ["", "\u{80}"][n % 2];
        assert_eq!(server.call::<i64>(&["EVAL", DAMAGE_SLOT, "1", slot, value, "1"]), 1);
    }
    let loaded: BTreeSet<_> = owner.load(start + DAY).await.iter().map(|t| t.record.timer.id).collect();
    assert_eq!(loaded.len(), timers.len() - wide.len());
    let slots = server.keys().into_iter().filter(|key| key.starts_with("slot:"));
    let stored: usize = slots.map(|slot| server.call::<usize>(&["HLEN", &slot])).sum();
    assert_eq!(stored, timers.len(), "nothing is deleted");
}

/// The lane goes on after any operation on a damaged record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_on_damaged_records_do_not_end_the_lane() {
    let server = Server::start();
    // A record of a newer version: an extension of the timer that must be understood.
    let newer = "p\x08\x08\x01\x02\x05\x00";
    for value in ["", "\x20", "\u{80}", "s", "p\x20", newer, "t", "d", "d1234567\x20"] {
        server.call::<()>(&["FLUSHALL"]);
        let owner = Owner::new(&server.url()).await;
        let timers: Vec<_> = (0..30).map(|n| timer(now() + DAY + n, 5)).collect();
        owner.apply(timers.iter().map(schedule).collect()).await;
        let failed = Verdict::Dead { reason: DeadReason::Failed, failed: 1, error: "no".into() };
        let dead = |id| Op::settle(id, failed.clone());
        owner.apply(timers[10..20].iter().map(|t| Op::Park(Park { id: t.id, failed: 0 })).collect()).await;
        owner.apply(timers[20..].iter().map(|t| dead(t.id)).collect()).await;
        for slot in server.keys().into_iter().filter(|k| k.starts_with("slot:")) {
            server.call::<i64>(&["EVAL", DAMAGE_SLOT, "1", &slot, value, "10"]);
        }
        damage_listed(&server, PARK, 10, value);
        damage_listed(&server, "dead:{2}:t", 10, value);
        let again = owner.apply(timers.iter().map(schedule).collect()).await;
        assert!(!again.iter().any(|a| matches!(a, Answer::Refused(_))), "{value:?}: {again:?}");
        for t in &timers {
            let (id, fire, target) = (t.id, t.due + 5_000, Target::Id(t.id));
            let request = || RequestId(unique());
            owner.lane.get(target.clone()).await.unwrap();
            let ops = vec![
                Op::Reschedule(Reschedule {
                    target: target.clone(),
                    due: fire,
                    is_begun: false,
                    request: request(),
                }),
                Op::settle(id, Verdict::Retry { fire, tier: 1, failed: 1, error: "no".into() }),
                Op::Park(Park { id, failed: 0 }),
                Op::Unpark(Unpark { id, fire }),
                Op::take(id, 0),
                Op::Cancel(Cancel { target, sent_attempt: None, request: request() }),
                dead(id),
                Op::Replay(Replay { id, fire }),
                dead(id),
            ];
            let sent: Vec<_> = ops.into_iter().map(|op| owner.send(vec![op])).collect();
            for answers in sent {
                answers.await.unwrap();
            }
        }
        owner.lane.dead(DeadFilter::default(), 0, 100).await.unwrap();
        owner.lane.taken(0, 100).await.unwrap();
        owner
            .one(Op::Trim(Trim { of: Retained::Dead, before: now() + 9 * DAY, keep: 0, limit: 1_000 }))
            .await;
        assert_eq!(owner.lane.census().await.unwrap().dead, 0, "{value:?}");
        assert_eq!(owner.one(schedule(&timer(now() + DAY, 5))).await, NEW, "{value:?}");
    }
}

/// Who schedules a timer again whose entry is damaged gets a timer that lasts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_that_is_scheduled_over_a_damaged_entry_is_there_for_the_next_owner() {
    let server = Server::start();
    // No entry at all, one of no known place, one that names a slot in which it is not, a record
    // that is cut off.
    for value in ["", "\x20", "s0.0.1", "p\x20"] {
        server.call::<()>(&["FLUSHALL"]);
        let owner = Owner::new(&server.url()).await;
        let timers: Vec<_> = (0..3).map(|n| timer(now() + DAY + n, 5)).collect();
        owner.apply(timers.iter().map(schedule).collect()).await;
        owner.one(Op::Park(Park { id: timers[0].id, failed: 0 })).await;
        for (target, due) in timers[1..].iter().map(|t| (Target::Id(t.id), t.due + DAY)) {
            owner
                .one(Op::Reschedule(Reschedule {
                    target,
                    due,
                    is_begun: false,
                    request: RequestId(unique()),
                }))
                .await;
        }
        let shards = shards(&server);
        let mut call = vec!["EVAL", DAMAGE_MOVED];
        let count = shards.len().to_string();
        call.push(&count);
        call.extend(shards.iter().map(String::as_str));
        call.push(value);
        assert_eq!(server.call::<usize>(&call), 3);
        // By the owner that has made the entries, and by two that have not.
        assert_eq!(owner.one(schedule(&timers[0])).await, NEW, "{value:?}");
        let next = Owner::of(owner.store.clone()).await;
        assert_eq!(next.one(schedule(&timers[1])).await, NEW, "{value:?}");
        let third = Owner::of(owner.store.clone()).await;
        assert_eq!(third.one(schedule(&timers[2])).await, NEW, "{value:?}");
        let fourth = Owner::of(owner.store.clone()).await;
        let mut loaded: Vec<_> =
            fourth.load(now() + 3 * DAY).await.iter().map(|t| t.record.timer.id).collect();
        loaded.sort_unstable();
        let mut expected: Vec<_> = timers.iter().map(|t| t.id).collect();
        expected.sort_unstable();
        assert_eq!(loaded, expected, "{value:?}");
        for t in &timers {
            let place = fourth.lane.get(Target::Id(t.id)).await.unwrap().map(|(_, place)| place);
            assert_eq!(place, Some(Place::Pending { fire: t.due, tier: 0 }), "{value:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_name_of_a_destination_is_not_taken_for_an_outage() {
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    owner.one(schedule(&timer(now() + DAY, 5))).await;
    let key = server.keys().into_iter().find(|key| key.starts_with("dest")).unwrap();
    server.call::<()>(&["HSET", &key, "1", "no destination"]);
    let error = try_acquire(&*owner.store).await.err();
    let Some(AcquireError::Store(StoreError::Unusable(why))) = error else { panic!("{error:?}") };
    assert!(why.contains(&key) && why.contains("damaged"), "{why}");
}
