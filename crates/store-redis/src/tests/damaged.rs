//! What becomes of damaged records.

use super::*;

/// Damages the first records of a slot.
const DAMAGE_SLOT: &str = "for _, id in ipairs(redis.call('HKEYS', KEYS[1])) do redis.call('HSET', KEYS[1], id, ARGV[1]) \
    ARGV[2] = ARGV[2] - 1 if ARGV[2] == 0 then return 1 end end return 0";
/// Damages the first records of a sorted set's ids.
const DAMAGE_MOVED: &str = "for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, ARGV[2] - 1)) do \
    redis.call('HSET', KEYS[2 + string.byte(id, 16) % 16], id, ARGV[1]) end";

/// Damages the records of the first `count` ids of a sorted set.
fn damage_moved(server: &Server, index: &str, count: u64, value: &str) {
    let shelves: Vec<_> = (0..16).map(|n| format!("moved:{{2}}:t:{n}")).collect();
    let mut call = vec!["EVAL", DAMAGE_MOVED, "17", index];
    call.extend(shelves.iter().map(String::as_str));
    let count = count.to_string();
    call.extend([value, &count]);
    server.call::<()>(&call);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_records_at_the_head_of_a_park_are_passed_over() {
    let server = Server::start();
    let mut engine = engine(&server).await;
    let timers: Vec<_> = (0..400).map(|n| timer(n, NOW + DAY + n, None)).collect();
    engine.pipeline([timers.iter().map(|t| schedule(t, KeyPolicy::Create)).collect()]).await;
    engine.pipeline([timers.iter().map(|t| Op::Park { id: t.id, failed: 0 }).collect()]).await;
    damage_moved(&server, "park:{2}:t", 300, "p\x20");
    let dest = &timers[0].dest;
    for _ in 0..3 {
        let page = engine.parked(dest, 0, 1).await.unwrap();
        assert_eq!(page.rows.len(), 1);
        assert!(page.next.is_some());
        assert_eq!(engine.unreadable.found(), 300, "each is told once");
    }
    // Whoever follows the cursor sees every other row once.
    let (mut seen, mut cursor) = (Vec::new(), 0);
    loop {
        let page = engine.parked(dest, cursor, 7).await.unwrap();
        seen.extend(page.rows.iter().map(|r| r.timer.id));
        match page.next {
            Some(next) => cursor = next,
            None => break,
        }
    }
    let distinct: std::collections::BTreeSet<_> = seen.iter().collect();
    assert_eq!((seen.len(), distinct.len()), (100, 100));
    assert_eq!(engine.census().await.unwrap().parked, 400, "nothing is deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_records_in_a_dense_wide_slot_hold_up_nothing() {
    let server = Server::start();
    let mut engine = engine(&server).await;
    let start = SlotWidth::Day.start_of(NOW + 10 * DAY);
    let width = |n: u64, due| TimerId::with_width(due, SlotWidth::Day, PARTITION, n);
    let timers: Vec<_> = (0..3_000)
        .map(|n| {
            let due = start + n * 20_000;
            Timer { id: width(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2, due), ..timer(0, due, None) }
        })
        .collect();
    for some in timers.chunks(1_000) {
        engine.pipeline([some.iter().map(|t| schedule(t, KeyPolicy::Create)).collect()]).await;
    }
    let keys = server.keys();
    let wide: Vec<_> = keys.iter().filter(|k| k.starts_with("slot:{2}:t:0.3.")).collect();
    assert!(wide.len() > 5, "{keys:?}");
    // One of each kind: no head at all, and one that is cut off.
    for (n, slot) in wide.iter().enumerate() {
        let value = ["", "\u{80}"][n % 2];
        assert_eq!(server.call::<i64>(&["EVAL", DAMAGE_SLOT, "1", slot, value, "1"]), 1);
    }
    let until = start + DAY;
    assert_eq!(engine.loaded_ids(until).await.len(), timers.len() - wide.len());
    assert_eq!(engine.census().await.unwrap().pending, timers.len() as u64, "nothing is deleted");
}

/// Whatever is asked of a damaged record: the lane goes on, and the bytes stay unless they are removed on request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_on_damaged_records_do_not_end_the_lane() {
    let server = Server::start();
    let mut engine = engine(&server).await;
    for (round, value) in
        ["", "\x20", "\u{80}", "s", "p\x20", "t", "d", "d1234567\x20"].into_iter().enumerate()
    {
        let at = |n: u64| timer(round as u64 * 100 + n, NOW + DAY, None);
        let timers: Vec<_> = (0..30).map(at).collect();
        engine.pipeline([timers.iter().map(|t| schedule(t, KeyPolicy::Create)).collect()]).await;
        let failed = Verdict::Dead { reason: DeadReason::Failed, failed: 1, error: "no".into() };
        let dead = |id| settle(id, failed.clone());
        engine.pipeline([timers[10..20].iter().map(|t| Op::Park { id: t.id, failed: 0 }).collect()]).await;
        engine.pipeline([timers[20..].iter().map(|t| dead(t.id)).collect()]).await;
        let slot = server.keys().into_iter().find(|k| k.starts_with("slot:")).unwrap();
        server.call::<i64>(&["EVAL", DAMAGE_SLOT, "1", &slot, value, "10"]);
        damage_moved(&server, "park:{2}:t", 10, value);
        damage_moved(&server, "dead:{2}:t", 10, value);
        let again = engine.pipeline([timers.iter().map(|t| schedule(t, KeyPolicy::Create)).collect()]).await;
        let new = again.iter().filter(|a| **a == NEW).count();
        assert!(new == 0 || value == "s", "{value:?}: {again:?}");
        for t in &timers {
            let (id, fire) = (t.id, t.due + 5_000);
            let request = RequestId(t.id.random());
            let target = Target::Id(id);
            let retry = Verdict::Retry { fire, tier: 1, failed: 1, error: "no".into() };
            engine.get(target.clone()).await.unwrap();
            engine
                .pipeline([
                    vec![Op::Reschedule { target: target.clone(), due: fire, in_flight: false, request }],
                    vec![settle(id, retry)],
                    vec![Op::Park { id, failed: 0 }],
                    vec![Op::Unpark { id, fire }],
                    vec![Op::Take { id, failed: 0 }],
                    vec![Op::Cancel { target, in_flight: None, request: RequestId(!t.id.random()) }],
                    vec![dead(id)],
                    vec![Op::Replay { id, fire }],
                    vec![dead(id)],
                ])
                .await;
        }
        engine.dead(&DeadFilter::default(), 0, 100).await.unwrap();
        engine.taken(0, 100).await.unwrap();
        engine
            .pipeline([vec![Op::Trim { of: Retained::Dead, before: NOW + 9 * DAY, keep: 0, limit: 1_000 }]])
            .await;
        assert_eq!(engine.census().await.unwrap().dead, 0, "{value:?}");
        server.call::<()>(&["FLUSHALL"]);
        engine = self::engine(&server).await;
    }
}
