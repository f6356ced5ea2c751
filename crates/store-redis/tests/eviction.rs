//! Servers that begin to evict keys while the store is in use.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use mtimer_store::ops::{MoveAnswer, Park, Reschedule, SettleAnswer};
use mtimer_store::{Answer, Batch, Op, Refusal, RequestId, ScheduleAnswer, Store, Verdict};
use mtimer_store_redis::RedisOptions;
use mtimer_store_redis::test_support::Server;
use mtimer_types::Target;
use support::lines::Lines;
use support::owner::{Owner, PARTITION, ack, connect, now, schedule, timer, unique};

const NEW: Answer = Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None });
const REFUSED: Answer = Answer::Refused(Refusal::MayEvict);

/// Sets a server's policy and has the owner connect to it again, which tells the policy.
async fn set_policy(server: &Server, policy: &str, owner: &Owner) {
    server.call::<()>(&["CONFIG", "SET", "maxmemory-policy", policy]);
    server.call::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
    owner.lane.census().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_may_evict_gets_no_new_timers_until_it_is_mended() {
    let lines = Lines::collect();
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    let timers: Vec<_> = (0..4).map(|n| timer(now() + 60_000 + n, 5)).collect();
    assert_eq!(owner.one(schedule(&timers[0])).await, NEW);
    set_policy(&server, "allkeys-lru", &owner).await;
    let (id, request) = (timers[0].id, RequestId(unique()));
    let due = now() + 120_000;
    let batch = vec![
        schedule(&timers[1]),
        Op::Park(Park { id, failed: 0 }),
        Op::Reschedule(Reschedule { target: Target::Id(id), due, is_begun: false, request }),
        schedule(&timers[2]),
        Op::settle(id, Verdict::Ack),
    ];
    let expected =
        [REFUSED, Answer::Park(MoveAnswer::Done), REFUSED, REFUSED, Answer::Settle(SettleAnswer::Done)];
    assert_eq!(owner.apply(batch).await, expected, "what is there is served");
    // A claim is stored, also if nothing else of its batch is.
    let (claim, ops) = (now() + 5_000, vec![schedule(&timers[3])]);
    let answers = owner.lane.apply(Batch { now: now(), claim: Some(claim), ops }).await.unwrap();
    assert_eq!(answers, [REFUSED]);
    assert_eq!(owner.store.owner(PARTITION).await.unwrap().claimed_until, claim);
    set_policy(&server, "noeviction", &owner).await;
    assert_eq!(owner.one(schedule(&timers[1])).await, NEW);
    assert_eq!(lines.with("the server may evict keys, and timers would vanish"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_that_may_evict_gets_no_new_timers() {
    let mut master = Server::start();
    let replica = master.add_replica();
    let store = connect(RedisOptions::new([master.url(), replica.url()], "t")).await;
    let owner = Owner::of(store).await;
    let first = timer(now() + 60_000, 5);
    assert_eq!(owner.one(schedule(&first)).await, NEW);
    while replica.digest() != master.digest() {
        tokio::task::yield_now().await;
    }
    // Only masters are looked at.
    replica.call::<()>(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    replica.call::<()>(&["REPLICAOF", "NO", "ONE"]);
    master.kill();
    owner.lane.census().await.unwrap();
    let second = timer(now() + 60_000, 5);
    assert_eq!(
        owner.apply(vec![schedule(&second), ack(first.id)]).await,
        [REFUSED, Answer::Settle(SettleAnswer::Done)]
    );
}
