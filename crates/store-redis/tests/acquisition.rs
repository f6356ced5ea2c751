//! An owner answers once the replicas have its acquisition: the log begins with that, so it makes
//! good all that a failover loses from then on.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use std::sync::Arc;

use futures_util::future::join_all;
use mtimer_store::{Answer, Batch, LaneError, ScheduleAnswer, Store};
use mtimer_store_redis::test_support::{Proxy, Server};
use mtimer_store_redis::{RedisOptions, RedisStore};
use mtimer_types::{PartitionId, Timer};
use support::lines::Lines;
use support::owner::{Owner, PARTITION, connect, now, schedule, timer, try_acquire_of};
use support::until;

const OWNER: &str = "owner:{2}:t";
const AT_RISK: &str = "replicas may lack the acquisition";

fn scheduled(new: bool) -> Answer {
    Answer::Schedule(ScheduleAnswer::Scheduled { new, replaced: None })
}

/// A master, and a replica behind a proxy that holds back its data.
struct Site {
    master: Server,
    proxy: Proxy,
    replica: Server,
}

impl Site {
    async fn start() -> Self {
        let master = Server::start();
        let proxy = Proxy::start(&master.address()).await;
        let replica = master.add_replica_behind(&proxy);
        Self { master, proxy, replica }
    }

    async fn connect(&self) -> Arc<RedisStore> {
        connect(RedisOptions::new([self.master.url(), self.replica.url()], "t")).await
    }

    /// Whether an owner waits for the replica and has written nothing yet.
    fn owner_waits(&self) -> bool {
        let is_blocked = !self.master.call::<String>(&["INFO", "clients"]).contains("blocked_clients:0");
        is_blocked && self.master.call::<Option<u64>>(&["HGET", OWNER, "s"]) == Some(0)
    }

    /// The replica becomes the master, without the data held back.
    fn fail_over(&mut self) {
        self.master.kill();
        self.proxy.down();
        self.replica.call::<()>(&["REPLICAOF", "NO", "ONE"]);
    }
}

/// An owner that has answered a schedule as soon as it could.
async fn owner_of(store: Arc<RedisStore>, timer: Timer) -> Owner {
    let owner = Owner::of(store).await;
    let answer = owner.one(schedule(&timer)).await;
    assert!([scheduled(true), scheduled(false)].contains(&answer), "{answer:?}");
    owner
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_answered_right_after_an_acquisition_survives_a_failover() {
    let mut site = Site::start().await;
    let (store, first, second) = (site.connect().await, timer(now() + 60_000, 5), timer(now() + 60_000, 5));
    let owner = loop {
        site.proxy.hold();
        let owner = tokio::spawn(owner_of(store.clone(), first.clone()));
        until("the owner waits or has answered", || owner.is_finished() || site.owner_waits()).await;
        if !owner.is_finished() {
            site.proxy.let_through();
        }
        let owner = owner.await.unwrap();
        if store.log_status().at_risk_since.is_none() {
            break owner;
        }
        // This machine is slow: the wait was over before the replica had it. The next may do.
        site.proxy.let_through();
        until("the replica has the acquisition", || store.log_status().at_risk_since.is_none()).await;
    };
    site.proxy.hold();
    assert_eq!(owner.one(schedule(&second)).await, scheduled(true));
    site.fail_over();
    for timer in [&first, &second] {
        assert_eq!(owner.one(schedule(timer)).await, scheduled(false));
    }
    assert!(store.log_status().replayed > 0, "{:?}", store.log_status());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquisitions_that_a_replica_lacks_are_logged_once_until_it_has_them() {
    let lines = Lines::collect();
    let mut site = Site::start().await;
    let store = site.connect().await;
    site.proxy.hold();
    let acquisitions = (0..store.info().partitions).map(|p| try_acquire_of(&*store, PartitionId(p)));
    let acquired = join_all(acquisitions).await.into_iter().map(Result::unwrap);
    let lanes: Vec<_> = acquired.map(|acquired| acquired.lane).collect();
    let nothing = || Batch { now: now(), claim: None, ops: Vec::new() };
    for answered in join_all(lanes.iter().map(|lane| lane.apply(nothing()))).await {
        assert_eq!(answered, Ok(Vec::new()));
    }
    assert!(store.log_status().at_risk_since.is_some());
    assert_eq!((lines.with(AT_RISK), lines.with("loses nothing again")), (1, 0));

    site.proxy.let_through();
    until("the replica has them", || store.log_status().at_risk_since.is_none()).await;
    assert_eq!((lines.with(AT_RISK), lines.with("loses nothing again")), (1, 1));
    let owner = Owner { store, lane: lanes[usize::from(PARTITION.0)].clone() };
    let timer = timer(now() + 60_000, 5);
    site.proxy.hold();
    assert_eq!(owner.one(schedule(&timer)).await, scheduled(true));
    site.fail_over();
    assert_eq!(owner.one(schedule(&timer)).await, scheduled(false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_whose_acquisition_is_lost_says_what_may_be_undone() {
    let lines = Lines::collect();
    let mut site = Site::start().await;
    let store = site.connect().await;
    site.proxy.hold();
    let owner = owner_of(store, timer(now() + 60_000, 5)).await;
    site.fail_over();
    assert_eq!(owner.try_apply(Vec::new()).await, Err(LaneError::RolledBack(PARTITION)));
    assert_eq!((lines.with(AT_RISK), lines.with("writes that the log does not have any more")), (1, 1));
}
