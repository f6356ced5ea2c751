//! Level `redis-replicated` on real servers: which calls wait for replicas, and how a cut affects
//! them.

mod support;

use std::time::Duration;

use mtimer_store::counters::UNCONFIRMED_PARTITIONS;
use mtimer_store::ops::{Cancel, SettleAnswer};
use mtimer_store::{Answer, Batch, Health, Load, Op, Refusal, RequestId, ScheduleAnswer, Store, StoreError};
use mtimer_store_redis::test_support::{Proxy, Server, ServerOptions};
use mtimer_store_redis::{RedisDurability, RedisOptions, RedisStore};
use mtimer_types::{Target, Time, TimerId};
use support::owner::{Owner, PARTITION, ack, connect, now, schedule, timer, unique};
use support::until;

const NEW: Answer = Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None });

/// The mark that a proxy waits for: requests of the partition's lane carry it.
const MARK: &str = "owner:{2}";

fn cancel(id: TimerId) -> Op {
    Op::Cancel(Cancel { target: Target::Id(id), sent_attempt: None, request: RequestId(unique()) })
}

/// A replica of a server.
fn replica_of(server: &Server) -> Server {
    let extra = vec!["--replicaof".into(), format!("127.0.0.1 {}", server.port())];
    Server::start_with(ServerOptions { extra, ..ServerOptions::default() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicated_writes_wait_for_replicas() {
    // One that is dead is not connected any more; one that hangs is, and does not answer.
    for is_dead in [false, true] {
        wait_for_a_replica_that(is_dead).await;
    }
}

async fn wait_for_a_replica_that(is_dead: bool) {
    let server = Server::start();
    let mut replica = replica_of(&server);
    // The handshake of a replica takes a while.
    while !server.call::<String>(&["INFO", "replication"]).contains("state=online") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let timeout = Duration::from_millis(300);
    let durability = RedisDurability::Replicated { replicas: 1, timeout };
    let store = connect(RedisOptions { durability, ..RedisOptions::new([server.url()], "t") }).await;
    assert_eq!(store.info().durability, "redis-replicated");
    let owner = Owner::of(store).await;
    // A replica that is online may still be reading the data that it was sent.
    let unsettled = Answer::Refused(Refusal::NotReplicated);
    while owner.one(schedule(&timer(now() + 60_000, 5))).await == unsettled {}
    let timers: Vec<_> = (0..4).map(|n| timer(now() + 60_000 + n, 5)).collect();
    let answers = owner.apply(timers.iter().map(schedule).collect()).await;
    assert!(answers.iter().all(|a| *a == NEW));
    let stored: u64 = replica.call(&["EXISTS", "owner:{2}:t"]);
    assert_eq!(stored, 1);
    if is_dead {
        replica.kill();
    } else {
        replica.freeze();
    }
    let fresh = timer(now() + 60_000, 5);
    assert_eq!(owner.one(schedule(&fresh)).await, Answer::Refused(Refusal::NotReplicated));
    assert_eq!(owner.one(cancel(timers[0].id)).await, Answer::Refused(Refusal::NotReplicated));
    assert_eq!(
        owner.one(ack(timers[1].id)).await,
        Answer::Settle(SettleAnswer::Done),
        "settling does not wait"
    );
    // It is stored and may stay: a repeat says so, once there are replicas again.
    if is_dead {
        replica.restart();
    } else {
        replica.thaw();
    }
    loop {
        match owner.one(schedule(&fresh)).await {
            Answer::Refused(Refusal::NotReplicated) => {}
            answer => {
                let old = ScheduleAnswer::Scheduled { new: false, replaced: None };
                assert_eq!(answer, Answer::Schedule(old));
                break;
            }
        }
    }
}

/// Claims until replicas confirm it.
async fn claim_until_confirmed(owner: &Owner, claim: Time) {
    loop {
        let answers = owner.lane.apply(Batch { now: now(), claim: Some(claim), ops: Vec::new() }).await;
        match &answers.expect("the lane is alive")[..] {
            [] => return,
            refused => assert_eq!(refused, [Answer::Refused(Refusal::NotReplicated)]),
        }
    }
}

/// The answer to a write with a claim is lost, others wait behind it, and no replica confirms the
/// claim: it is refused, and so are the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unconfirmed_claim_that_was_recovered_does_not_hold_the_lane() {
    let server = Server::start();
    let proxy = Proxy::start(&server.address()).await;
    let durability = RedisDurability::Replicated { replicas: 1, timeout: Duration::from_millis(100) };
    let replica = replica_of(&server);
    let store = connect(RedisOptions { durability, ..RedisOptions::new([proxy.url()], "t") }).await;
    let owner = Owner::of(store).await;
    let unsettled = Answer::Refused(Refusal::NotReplicated);
    while owner.one(schedule(&timer(now() + 60_000, 5))).await == unsettled {}
    replica.freeze();
    proxy.lose_answer(MARK);
    let timers: Vec<_> = (0..4).map(|n| timer(now() + 60_000 + n, 5)).collect();
    let claim = now() + 1_000;
    let first = Batch { now: now(), claim: Some(claim), ops: vec![schedule(&timers[0])] };
    let first = owner.lane.apply(first);
    let others: Vec<_> = timers[1..].iter().map(|t| owner.send(vec![schedule(t)])).collect();
    assert_eq!(first.await.unwrap(), vec![unsettled.clone(); 2], "the schedule, and the claim");
    for answers in others {
        assert_eq!(answers.await.unwrap(), std::slice::from_ref(&unsettled));
    }
    assert!(proxy.lost() > 0, "nothing was lost");
    replica.thaw();
    claim_until_confirmed(&owner, claim).await;
    assert!(owner.store.owner(PARTITION).await.unwrap().claimed_until >= claim);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_filed_behind_an_unconfirmed_claim_is_loaded_after_a_cut() {
    let server = Server::start();
    let proxy = Proxy::start(&server.address()).await;
    let durability = RedisDurability::Replicated { replicas: 1, timeout: Duration::from_millis(100) };
    let replica = replica_of(&server);
    let store = connect(RedisOptions { durability, ..RedisOptions::new([proxy.url()], "t") }).await;
    let owner = Owner::of(store).await;
    let unsettled = Answer::Refused(Refusal::NotReplicated);
    while owner.one(schedule(&timer(now() + 30_000, 5))).await == unsettled {}
    replica.freeze();
    // Each in a slot of its own.
    let timers: Vec<_> = (1..=32).map(|n| timer(now() + n * 120_000, 5)).collect();
    let claim = now() + 1_000;
    let ops = vec![schedule(&timers[0])];
    let first = owner.lane.apply(Batch { now: now(), claim: Some(claim), ops });
    let others: Vec<_> = timers[1..].iter().map(|t| owner.send(vec![schedule(t)])).collect();
    assert_eq!(first.await.expect("the lane is alive"), vec![unsettled.clone(); 2]);
    proxy.cut();
    replica.thaw();
    for answers in others {
        let answers = answers.await.expect("the lane is alive");
        assert!(answers == [unsettled.clone()] || answers == [NEW], "{answers:?}");
    }
    claim_until_confirmed(&owner, claim).await;
    let stored = owner.store.owner(PARTITION).await.expect("the store can be reached");
    assert!(stored.claimed_until >= claim);
    let loaded: Vec<_> = owner.load(now() + 33 * 120_000).await.iter().map(|t| t.record.timer.id).collect();
    let lost = timers.iter().filter(|t| !loaded.contains(&t.id)).count();
    assert_eq!(lost, 0, "{lost} timers are stored and not loaded");
}

/// A load that claims, without a replica: the answer has the timers, and says that the claim is not
/// confirmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_replicas_the_lane_answers_and_says_what_is_not_confirmed() {
    let server = Server::start();
    let durability = RedisDurability::Replicated { replicas: 1, timeout: Duration::from_millis(100) };
    let store = connect(RedisOptions { durability, ..RedisOptions::new([server.url()], "t") }).await;
    let owner = Owner::of(store).await;
    until("it is known that no replica confirms", || unconfirmed(&owner) == 1).await;
    let unsettled = Answer::Refused(Refusal::NotReplicated);
    assert_eq!(owner.one(schedule(&timer(now() + 1_000, 5))).await, unsettled);
    let load = Load { until: now() + 60_000, max_timers: 10, max_bytes: 1 << 20, claim: Some(now()) };
    let loaded = owner.lane.load(load).await.expect("the lane is alive");
    assert_eq!((loaded.timers.len(), loaded.is_claim_unconfirmed), (1, true));
    assert_eq!(owner.lane.census().await.expect("the lane is alive").pending, 1);
    assert_eq!(*owner.lane.health().borrow(), Health::Up);
    let _replica = server.add_replica();
    until("nobody has to ask for it", || unconfirmed(&owner) == 0).await;
    let loaded = owner.lane.load(load).await.expect("the lane is alive");
    assert!(!loaded.is_claim_unconfirmed);
}

/// How many partitions have too few replicas, as the store counts.
fn unconfirmed(owner: &Owner) -> u64 {
    let counters = owner.store.counters().into_iter();
    counters.filter(|(name, _)| *name == UNCONFIRMED_PARTITIONS).map(|(_, count)| count).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_full_store_refuses_does_not_count_as_stored() {
    let server = Server::start();
    let durability = RedisDurability::Replicated { replicas: 1, timeout: Duration::from_millis(50) };
    let owner =
        Owner::of(connect(RedisOptions { durability, ..RedisOptions::new([server.url()], "t") }).await).await;
    let [stored, refused] = [1, 2].map(|n| timer(now() + 60_000 + n, 5));
    let not_replicated = Answer::Refused(Refusal::NotReplicated);
    assert_eq!(owner.one(schedule(&stored)).await, not_replicated);
    server.call::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let answers = owner.apply(vec![schedule(&refused), cancel(stored.id)]).await;
    assert_eq!(answers, [Answer::Refused(Refusal::OutOfMemory), not_replicated]);
}

/// The URL of a user who may do everything but wait for replicas, and a way to change that.
fn user(server: &Server, wait: &str) -> String {
    server.call::<()>(&["ACL", "SETUSER", "mtimer", "on", ">secret", "~*", "&*", "+@all", wait]);
    format!("redis://mtimer:secret@127.0.0.1:{}", server.port())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_not_wait_for_replicas_is_refused_at_the_start() {
    let server = Server::start();
    let refused = RedisStore::connect(RedisOptions::new([user(&server, "-wait")], "t")).await.err();
    let Some(StoreError::Unusable(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("wait") && why.contains("allow this user"), "{why}");
}

/// Nothing is delivered meanwhile, so somebody has to be told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_cannot_be_confirmed_is_told_of_until_it_can() {
    let server = Server::start();
    let url = user(&server, "+wait");
    let _replica = replica_of(&server);
    let durability = RedisDurability::Replicated { replicas: 1, timeout: Duration::from_millis(100) };
    let owner = Owner::of(connect(RedisOptions { durability, ..RedisOptions::new([url], "t") }).await).await;
    while owner.one(schedule(&timer(now() + 60_000, 5))).await == Answer::Refused(Refusal::NotReplicated) {}
    assert_eq!(unconfirmed(&owner), 0);
    user(&server, "-wait");
    let ops = vec![schedule(&timer(now() + 60_000, 5))];
    let claimed = owner.lane.apply(Batch { now: now(), claim: Some(now() + 1_000), ops });
    assert_eq!(claimed.await.unwrap(), vec![Answer::Refused(Refusal::NotReplicated); 2]);
    assert_eq!(unconfirmed(&owner), 1);
    user(&server, "+wait");
    until("replicas confirm", || unconfirmed(&owner) == 0).await;
    claim_until_confirmed(&owner, now() + 1_000).await;
}
