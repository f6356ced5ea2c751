//! A master that was replaced, and that the store still reaches: Sentinels have lost sight of it.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use std::time::Instant;

use mtimer_store::LaneError;
use mtimer_store_redis::RedisOptions;
use mtimer_store_redis::test_support::{Sentinels, Server};
use support::losing::OWNER;
use support::owner::{Owner, connect, now, schedule, timer};
use support::{WITHIN, until};

struct Site {
    master: Server,
    replica: Server,
    sentinels: Sentinels,
}

impl Site {
    fn start() -> Self {
        let master = Server::start();
        let replica = master.add_replica();
        let sentinels = Sentinels::start("shop", &master);
        Self { master, replica, sentinels }
    }

    async fn owner(&self) -> Owner {
        Owner::of(connect(RedisOptions::new(self.sentinels.urls(), "t")).await).await
    }

    /// The Sentinels promote the replica; the master does not hear of it.
    fn replace(&self) {
        self.master.wait_for_replica(&self.replica);
        self.master.hide_from_sentinels();
        self.sentinels.wait_for_master(&self.replica);
        assert!(self.master.call::<String>(&["INFO", "replication"]).contains("role:master"));
    }
}

/// Another owner has the partition at the new master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_at_a_replaced_master_ends_once_another_one_has_the_partition() {
    let site = Site::start();
    let owner = site.owner().await;
    owner.one(schedule(&timer(now() + 60_000, 5))).await;
    site.replace();
    let _next = Owner::new(&site.replica.url()).await;
    let deadline = Instant::now() + WITHIN;
    let ended = loop {
        match owner.try_apply(vec![schedule(&timer(now() + 60_000, 5))]).await {
            Ok(_) => assert!(Instant::now() < deadline, "the lane stays with the replaced master"),
            Err(ended) => break ended,
        }
    };
    assert!(matches!(ended, LaneError::Fenced { .. }), "{ended:?}");
}

/// Writes that the replaced master has answered meanwhile are applied to the new one, without
/// another call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_replaced_master_has_answered_is_applied_to_the_new_one() {
    let site = Site::start();
    let owner = site.owner().await;
    site.replace();
    let sequence = |server: &Server| server.call::<Option<u64>>(&["HGET", OWNER, "s"]);
    // Some of these may go to the new master already.
    for n in 0..20 {
        owner.one(schedule(&timer(now() + 60_000 + n, 5))).await;
    }
    until("the new master has everything", || sequence(&site.replica) == Some(20)).await;
    until("it is safe", || owner.store.log_status().bytes == 0).await;
    assert_eq!(owner.load(now() + 3_600_000).await.len(), 20);
}
