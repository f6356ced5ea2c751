//! A replica that lags: it is connected, and lacks writes.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use std::time::{Duration, Instant};

use mtimer_store::ops::Cancel;
use mtimer_store::{Answer, Op, Refusal, RequestId, ScheduleAnswer};
use mtimer_store_redis::test_support::{HangingDisk, Proxy, Server, ServerOptions};
use mtimer_store_redis::{RedisDurability, RedisOptions};
use mtimer_types::Target;
use support::owner::{Owner, connect, now, schedule, timer, unique};
use support::until;

const NEW: Answer = Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None });
const OLD: Answer = Answer::Schedule(ScheduleAnswer::Scheduled { new: false, replaced: None });
const UNCONFIRMED: Answer = Answer::Refused(Refusal::NotReplicated);

fn replicated() -> RedisDurability {
    RedisDurability::Replicated { replicas: 1, timeout: Duration::from_millis(200) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicated_answers_wait_for_a_replica_that_stands_still() {
    let server = Server::start();
    let replica = server.add_replica();
    let options = RedisOptions { durability: replicated(), ..RedisOptions::new([server.url()], "t") };
    let owner = Owner::of(connect(options).await).await;
    // A replica that is online may still be reading the data that it was sent.
    while owner.one(schedule(&timer(now() + 60_000, 5))).await == UNCONFIRMED {}
    let [before, late] = [1, 2].map(|n| timer(now() + 60_000 + n, 5));
    assert_eq!(owner.one(schedule(&before)).await, NEW);
    replica.freeze();
    let request = RequestId(unique());
    let cancel = Op::Cancel(Cancel { target: Target::Id(before.id), sent_attempt: None, request });
    assert_eq!(owner.one(schedule(&late)).await, UNCONFIRMED);
    assert_eq!(owner.one(schedule(&late)).await, UNCONFIRMED, "a repeat");
    assert_eq!(owner.one(cancel).await, UNCONFIRMED);
    replica.thaw();
    loop {
        match owner.one(schedule(&late)).await {
            UNCONFIRMED => {}
            answer => return assert_eq!(answer, OLD),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_keeps_what_a_replica_that_stands_still_lacks() {
    let server = Server::start();
    let replica = server.add_replica();
    let owner = Owner::new(&server.url()).await;
    let kept = || owner.store.log_status().bytes;
    owner.one(schedule(&timer(now() + 60_000, 5))).await;
    until("the replica has it", || kept() == 0).await;
    replica.freeze();
    owner.one(schedule(&timer(now() + 60_000, 5))).await;
    let waits = || server.calls_of("wait");
    let before = waits();
    until("the replica is asked for twice", || waits() >= before + 2).await;
    assert!(kept() > 0, "trimmed while the replica lacks it");
    replica.thaw();
    until("the replica has it", || kept() == 0).await;
}

/// A failover to a replica whose stream is held: it is connected to the last, and lacks the last
/// writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_to_a_replica_that_lags_loses_nothing() {
    let mut master = Server::start();
    let proxy = Proxy::start(&master.address()).await;
    let replica = master.add_replica_behind(&proxy);
    let store = connect(RedisOptions::new([master.url(), replica.url()], "t")).await;
    let owner = Owner::of(store.clone()).await;
    owner.one(schedule(&timer(now() + 60_000, 5))).await;
    until("the replica has it", || store.log_status().bytes == 0).await;
    proxy.hold();
    let timers: Vec<_> = (0..200).map(|n| timer(now() + 60_000 + n, 5)).collect();
    let answers = owner.apply(timers.iter().map(schedule).collect()).await;
    assert!(answers.iter().all(|answer| *answer == NEW), "{answers:?}");
    let waits = || master.calls_of("wait");
    let before = waits();
    until("the replica is asked for twice", || waits() >= before + 2).await;
    master.kill();
    proxy.down();
    replica.call::<()>(&["REPLICAOF", "NO", "ONE"]);
    let answers = owner.apply(timers.iter().map(schedule).collect()).await;
    let lost = answers.iter().filter(|answer| **answer != OLD).count();
    assert_eq!(lost, 0, "{lost} of 200 timers that were answered are lost");
    assert!(store.log_status().replayed > 0, "{:?}", store.log_status());
}

/// The server answers on while an fsync hangs. Its host loses power, and with it everything that
/// was not synced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_while_an_fsync_hangs_loses_nothing() {
    let disk = HangingDisk::new();
    let extra = vec!["--appendfsync".to_owned(), "everysec".to_owned()];
    let options = ServerOptions { append_only: true, extra, env: disk.env(), ..ServerOptions::default() };
    let mut server = Server::start_with(options);
    let owner = Owner::new(&server.url()).await;
    let kept = || owner.store.log_status().bytes;
    owner.one(schedule(&timer(now() + 60_000, 5))).await;
    until("it is synced", || kept() == 0).await;
    disk.hang();
    let synced = server.append_only_file().metadata().unwrap().len();
    // Longer than the server holds writes back for the disk.
    let (began, mut timers) = (Instant::now(), Vec::new());
    while began.elapsed() < Duration::from_secs(7) {
        timers.push(timer(now() + 60_000, 5));
        assert_eq!(owner.one(schedule(&timers[timers.len() - 1])).await, NEW);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.kill();
    disk.go_on();
    let file = std::fs::File::options().write(true).open(server.append_only_file()).unwrap();
    file.set_len(synced).unwrap();
    server.restart();
    let answers = owner.apply(timers.iter().map(schedule).collect()).await;
    let lost = answers.iter().filter(|answer| **answer != OLD).count();
    assert_eq!(lost, 0, "{lost} of {} timers that were answered are lost", timers.len());
    until("it is synced again", || kept() == 0).await;
}
