//! The orders of parked, taken and unconfirmed timers: at their limits, and as an earlier version left them.

use super::*;

/// The park order of a destination is a number below this.
const PARK_ORDERS: u64 = 1 << 32;

/// Parks timers in this order.
async fn park(engine: &mut Engine, timers: &[Timer]) {
    for some in timers.chunks(500) {
        let ops = some.iter().map(|t| Op::Park { id: t.id, failed: 0 }).collect();
        let answers = engine.pipeline([ops]).await;
        assert!(answers.iter().all(|a| *a == Answer::Done), "{answers:?}");
    }
}

async fn parked(engine: &mut Engine, dest: &Destination) -> Vec<TimerId> {
    let (mut ids, mut cursor) = (Vec::new(), 0);
    loop {
        let page = engine.parked(dest, cursor, 1_000).await.unwrap();
        ids.extend(page.rows.iter().map(|r| r.timer.id));
        match page.next {
            Some(next) => cursor = next,
            None => return ids,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_park_that_is_never_empty_has_room_after_four_billion_parkings() {
    let server = Server::start();
    let mut engine = engine(&server).await;
    let other = Destination::new("orders", "shipping").unwrap();
    let timers: Vec<_> = (0..2_600).map(|n| timer(n, NOW + DAY + n, None)).collect();
    let neighbour = Timer { dest: other.clone(), ..timer(9_000, NOW + DAY, None) };
    let dest = timers[0].dest.clone();
    let all: Vec<_> = timers.iter().chain([&neighbour]).map(|t| schedule(t, KeyPolicy::Create)).collect();
    engine.pipeline([all]).await;
    let (before, after) = timers.split_at(2_400);
    park(&mut engine, &before[..1_200]).await;
    // Gaps, as timers leave them that are taken out of the middle.
    server.call::<()>(&[
        "EVAL",
        "for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 600, -1)) do redis.call('ZINCRBY', KEYS[1], 5000, id) end",
        "1",
        "park:{2}:t",
    ]);
    park(&mut engine, &before[1_200..]).await;
    let base = u64::from(engine.dests.number(&dest)) * PARK_ORDERS;
    let last = before.last().unwrap().id.to_bytes();
    let order = (base + PARK_ORDERS - 3).to_string();
    redis::cmd("ZADD")
        .arg("park:{2}:t")
        .arg(order)
        .arg(&last[..])
        .query::<()>(&mut redis::Client::open(server.url()).unwrap().get_connection().unwrap())
        .unwrap();
    park(&mut engine, after).await;
    park(&mut engine, std::slice::from_ref(&neighbour)).await;
    let expected: Vec<_> = timers.iter().map(|t| t.id).collect();
    assert!(parked(&mut engine, &dest).await == expected, "every timer once, in the order of parking");
    assert_eq!(parked(&mut engine, &other).await, [neighbour.id]);
    let mut counts = engine.parked_destinations().await.unwrap();
    counts.sort_unstable_by_key(|(_, count)| *count);
    assert_eq!(counts, [(other, 1), (dest, 2_600)]);
    // The lane goes on, and what was renumbered comes back.
    let fire = NOW + 2 * DAY;
    let ops = expected[2_300..2_500].iter().map(|id| Op::Unpark { id: *id, fire }).collect();
    assert!(engine.pipeline([ops]).await.iter().all(|a| *a == Answer::Done));
    assert_eq!(engine.census().await.unwrap().parked, 2_401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unconfirmed_timers_of_an_earlier_version_become_unconfirmed_again() {
    let server = Server::start();
    let mut engine = engine(&server).await;
    let once = Timer { mode: Mode::AtMostOnce, ..timer(1, NOW + DAY, None) };
    engine.pipeline([vec![schedule(&once, KeyPolicy::Create), Op::Take { id: once.id, failed: 0 }]]).await;
    // As it was stored: among the taken, with a mark behind the epoch.
    let mark = "local k, id = KEYS[2 + string.byte(redis.call('ZRANGE', KEYS[1], 0, 0)[1], 16) % 16], \
        redis.call('ZRANGE', KEYS[1], 0, 0)[1] local m = redis.call('HGET', k, id) \
        redis.call('HSET', k, id, string.sub(m, 1, 9) .. '\\1' .. string.sub(m, 11))";
    let shelves: Vec<_> = (0..16).map(|n| format!("moved:{{2}}:t:{n}")).collect();
    let mut call = vec!["EVAL", mark, "17", "taken:{2}:t"];
    call.extend(shelves.iter().map(String::as_str));
    server.call::<()>(&call);
    let mut next = super::engine(&server).await;
    assert_eq!(next.taken(0, 10).await.unwrap().rows.len(), 1, "the takeover finds it");
    assert_eq!(next.pipeline([vec![settle(once.id, Verdict::Unconfirmed)]]).await, [Answer::Done]);
    assert_eq!(next.taken(0, 10).await.unwrap().rows, []);
    let rows = next.unconfirmed(0, 10).await.unwrap().rows;
    assert_eq!((rows.len(), rows[0].record.timer.id, rows[0].since), (1, once.id, NOW));
    assert_eq!(next.census().await.unwrap().taken, 1);
}
