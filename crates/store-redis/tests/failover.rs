//! Nothing that was answered is lost by a failover or a restart of Redis while its owner lives.
//!
//! A store without a log loses it in each of these cases: the tests show that, too.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mtimer_store::ops::{Cancel, MoveAnswer, Reschedule, SettleAnswer};
use mtimer_store::{
    Answer, Batch, CancelAnswer, Health, Lane, LaneError, Op, Place, Record, Refusal, RequestId,
    RescheduleAnswer, ScheduleAnswer, Store, Verdict,
};
use mtimer_store_redis::test_support::{
    Proxy, Sentinels, Server, ServerOptions, as_user, documented_rights, documented_sentinel_rights,
    user_with,
};
use mtimer_store_redis::{LogStatus, RedisDurability, RedisOptions, RedisStore};
use mtimer_types::{DeadReason, Mode, Target, Timer, TimerId};
use support::lines::Lines;
use support::losing::{LosingStore, OWNER};
use support::owner::{Owner, PARTITION, ack, connect, keyed, now, schedule, timer, unique};
use support::{WITHIN, until};

const NEW: Answer = Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None });
const UNCONFIRMED: Answer = Answer::Refused(Refusal::NotReplicated);
/// Timers of each kind of a [`Plan`].
const EACH: u64 = 60;
/// Memory for some of a plan's writes.
const LITTLE: usize = 48 << 10;

/// Timers, by the operation that is answered before the failure.
struct Plan {
    scheduled: Vec<Timer>,
    cancelled: Vec<Timer>,
    rescheduled: Vec<Timer>,
    taken: Vec<Timer>,
    acknowledged: Vec<Timer>,
    retried: Vec<Timer>,
    dead: Vec<Timer>,
}

impl Plan {
    fn new() -> Self {
        let at = now() + 600_000;
        let some = || (0..EACH).map(|n| timer(at + n * 1_000, 20)).collect::<Vec<_>>();
        let with_keys = || (0..EACH).map(|n| keyed(at + n * 1_000, &format!("k{}", unique()))).collect();
        let taken = some().into_iter().map(|timer| Timer { mode: Mode::AtMostOnce, ..timer });
        Self {
            scheduled: with_keys(),
            cancelled: with_keys(),
            rescheduled: some(),
            taken: taken.collect(),
            acknowledged: some(),
            retried: some(),
            dead: some(),
        }
    }

    fn kinds(&self) -> [(&'static str, &Vec<Timer>); 7] {
        [
            ("scheduled", &self.scheduled),
            ("cancelled", &self.cancelled),
            ("rescheduled", &self.rescheduled),
            ("taken", &self.taken),
            ("acknowledged", &self.acknowledged),
            ("retried", &self.retried),
            ("dead", &self.dead),
        ]
    }

    /// Stores the timers that must be there before.
    async fn prepare(&self, owner: &Owner) {
        for (kind, timers) in self.kinds().into_iter().filter(|(kind, _)| *kind != "scheduled") {
            let answers = owner.apply(timers.iter().map(schedule).collect()).await;
            assert!(answers.iter().all(|answer| *answer == NEW), "{kind}: {answers:?}");
        }
    }

    /// The operation on a timer of a kind, and its answer.
    fn step(kind: &str, timer: &Timer) -> (Op, Answer) {
        let (id, request) = (timer.id, RequestId(unique()));
        let (due, target) = (timer.due + 90_000, Target::Id(id));
        let reschedule = Op::Reschedule(Reschedule { target: target.clone(), due, is_begun: false, request });
        let retry = Verdict::Retry { fire: due, tier: 1, failed: 1, error: "later".into() };
        let dead = Verdict::Dead { reason: DeadReason::Failed, failed: 1, error: "no".into() };
        match kind {
            "scheduled" => (schedule(timer), NEW),
            "cancelled" => (
                Op::Cancel(Cancel { target, sent_attempt: None, request }),
                Answer::Cancel(CancelAnswer::Cancelled(id)),
            ),
            "rescheduled" => (reschedule, Answer::Reschedule(RescheduleAnswer::Rescheduled(id))),
            "taken" => (Op::take(id, 0), Answer::Take(MoveAnswer::Done)),
            "acknowledged" => (ack(id), Answer::Settle(SettleAnswer::Done)),
            "retried" => (Op::settle(id, retry), Answer::Settle(SettleAnswer::Done)),
            _ => (Op::settle(id, dead), Answer::Settle(SettleAnswer::Done)),
        }
    }

    /// Carries out the operations that are going to be lost. All of them are answered.
    async fn carry_out(&self, owner: &Owner) {
        for (kind, timers) in self.kinds() {
            let (ops, expected): (Vec<_>, Vec<_>) =
                timers.iter().map(|timer| Self::step(kind, timer)).unzip();
            assert_eq!(owner.apply(ops).await, expected, "{kind}");
        }
    }

    /// The stored timers of each kind.
    async fn stored(&self, lane: &dyn Lane) -> Vec<(&'static str, Vec<Option<(Record, Place)>>)> {
        let mut stored = Vec::new();
        for (kind, timers) in self.kinds() {
            let gets = timers.iter().map(|timer| lane.get(Target::Id(timer.id)));
            stored.push((kind, futures_util::future::try_join_all(gets).await.expect("the lane is alive")));
        }
        stored
    }

    /// The timers that are still to be delivered.
    fn pending(&self) -> BTreeSet<TimerId> {
        let of = |timers: &[Timer]| timers.iter().map(|timer| timer.id).collect::<Vec<_>>();
        [of(&self.scheduled), of(&self.rescheduled), of(&self.retried)].concat().into_iter().collect()
    }
}

async fn owner(site: &LosingStore, log_bytes: usize) -> Owner {
    Owner::of(connect(RedisOptions { log_bytes, ..RedisOptions::new(site.urls(), "t") }).await).await
}

/// Redis loses everything since a moment, and the owner writes it again.
async fn survives(mut site: LosingStore) {
    let (owner, plan) = prepared(&site, 64 << 20).await;
    site.begin_to_lose();
    plan.carry_out(&owner).await;
    let digest = site.master().digest();
    site.let_trimming_fail().await;
    let (expected, census) = (plan.stored(&*owner.lane).await, owner.lane.census().await.unwrap());
    assert!(expected.iter().all(|(kind, all)| {
        all.iter().all(|timer| timer.is_none() == ["cancelled", "acknowledged"].contains(kind))
    }));
    site.fail(&digest);

    // Without being asked for anything.
    until("what was lost is written again", || {
        site.successor().try_call::<String>(&["DEBUG", "DIGEST"]).is_ok_and(|now| now == digest)
    })
    .await;
    assert_eq!(plan.stored(&*owner.lane).await, expected);
    assert_eq!(owner.lane.census().await.unwrap(), census);
    plan.repeat(&owner).await;
    owner.lane.release(Vec::new()).await.unwrap();
    let next = Owner::of(owner.store.clone()).await;
    let loaded: Vec<_> = next.load(now() + 3_600_000).await.iter().map(|t| t.record.timer.id).collect();
    assert_eq!(loaded.len(), plan.pending().len(), "nothing is there twice");
    assert_eq!(loaded.into_iter().collect::<BTreeSet<_>>(), plan.pending());
}

impl Plan {
    /// Repeats of answered operations find them done.
    async fn repeat(&self, owner: &Owner) {
        let old = Answer::Schedule(ScheduleAnswer::Scheduled { new: false, replaced: None });
        let answers = owner.apply(self.scheduled.iter().map(schedule).collect()).await;
        assert!(answers.iter().all(|answer| *answer == old), "{answers:?}");
        let answers = owner.apply(self.acknowledged.iter().map(|timer| ack(timer.id)).collect()).await;
        assert!(answers.iter().all(|answer| *answer == Answer::Settle(SettleAnswer::Gone)), "{answers:?}");
    }
}

/// An owner with a log of so many bytes, whose store has what must be there before.
async fn prepared(site: &LosingStore, log_bytes: usize) -> (Owner, Plan) {
    let (owner, plan) = (owner(site, log_bytes).await, Plan::new());
    plan.prepare(&owner).await;
    (owner, plan)
}

/// The same with a log that does not reach back: the lane ends, and of each kind something is lost.
async fn loses(mut site: LosingStore, owner: &Owner, plan: &Plan) -> LogStatus {
    site.begin_to_lose();
    plan.carry_out(owner).await;
    let expected = plan.stored(&*owner.lane).await;
    let status = owner.store.log_status();
    let digest = site.master().digest();
    site.fail(&digest);
    assert_eq!(owner.try_apply(Vec::new()).await, Err(LaneError::RolledBack(PARTITION)));
    let next = Owner::of(owner.store.clone()).await;
    for ((kind, before), (_, after)) in expected.iter().zip(plan.stored(&*next.lane).await) {
        assert_ne!(*before, after, "{kind}: nothing was lost");
    }
    status
}

/// Sentinels that let in nobody but the user of the store, with the rights that operators are told
/// to give it there, and servers that give it no more than theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_documented_rights_of_sentinels_and_servers_everything_can_be_stored() {
    let extra = user_with(&documented_rights("t"));
    let server = Server::start_with(ServerOptions { extra, ..ServerOptions::default() });
    let user = format!("user mtimer on >hush {}", documented_sentinel_rights());
    let sentinel = Sentinels::start_one("shop", &server, &["user default off", &user]);
    let urls: Vec<String> = sentinel.urls().iter().map(|url| as_user(url)).collect();
    let owner = Owner::of(connect(RedisOptions::new(urls, "t")).await).await;
    let plan = Plan::new();
    plan.prepare(&owner).await;
    plan.carry_out(&owner).await;
    plan.repeat(&owner).await;
    owner.lane.release(Vec::new()).await.unwrap();
    let next = Owner::of(owner.store.clone()).await;
    assert_eq!(next.load(now() + 3_600_000).await.len(), plan.pending().len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_loses_nothing() {
    survives(LosingStore::failover().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_in_a_cluster_loses_nothing() {
    survives(LosingStore::cluster_failover().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_by_sentinels_loses_nothing() {
    survives(LosingStore::sentinel_failover().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_from_a_cut_append_only_file_loses_nothing() {
    survives(LosingStore::restart()).await;
}

async fn loses_without_a_log(site: LosingStore) {
    let (owner, plan) = prepared(&site, 0).await;
    loses(site, &owner, &plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_log_a_failover_loses_what_was_answered() {
    loses_without_a_log(LosingStore::failover().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_log_a_failover_in_a_cluster_loses_what_was_answered() {
    loses_without_a_log(LosingStore::cluster_failover().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_log_a_restart_loses_what_was_answered() {
    loses_without_a_log(LosingStore::restart()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn below_the_log_the_lane_ends_and_a_line_says_what_may_be_lost() {
    let lines = Lines::collect();
    let site = LosingStore::failover().await;
    let (owner, plan) = prepared(&site, LITTLE).await;
    // The replica may have lagged behind what was prepared; that is said, too.
    until("the replica has what was prepared", || owner.store.log_status().at_risk_since.is_none()).await;
    let before = lines.with("the log is full");
    let status = loses(site, &owner, &plan).await;
    assert!(status.dropped > 0 && status.at_risk_since.is_some(), "{status:?}");
    assert!((1..=LITTLE).contains(&status.bytes), "{status:?}");
    assert_eq!(lines.with("the log is full") - before, 1, "it says so once, until replicas follow");
    assert_eq!(lines.with("writes that the log does not have any more"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_keeps_what_the_append_only_file_may_not_have() {
    let LosingStore::Restart { server, .. } = LosingStore::restart() else { unreachable!() };
    let owner = Owner::new(&server.url()).await;
    owner.one(schedule(&timer(now() + 60_000, 5))).await;
    let rounds = || server.calls_of("info");
    let before = rounds();
    until("the server is asked for twice", || rounds() >= before + 2).await;
    assert!(owner.store.log_status().bytes > 0, "trimmed with appendfsync no");
    server.call::<()>(&["CONFIG", "SET", "appendfsync", "everysec"]);
    until("it is on disk", || owner.store.log_status().bytes == 0).await;
    // Without it nothing is kept: a restart ends the lane anyway.
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    owner.one(schedule(&timer(now() + 60_000, 5))).await;
    until("nothing is kept", || owner.store.log_status().bytes == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_is_given_up_when_replicas_have_it_or_after_a_second() {
    let mut site = LosingStore::failover().await;
    let store = owner(&site, 64 << 20).await.store;
    let first = Owner::of(store.clone()).await;
    first.one(schedule(&timer(now() + 60_000, 5))).await;
    first.lane.release(Vec::new()).await.unwrap();
    let released: Option<u8> = site.successor().call(&["HGET", OWNER, "r"]);
    assert_eq!(released, Some(1), "the replica has the release");
    let second = Owner::of(store).await;
    site.begin_to_lose();
    second.one(schedule(&timer(now() + 60_000, 5))).await;
    let began = Instant::now();
    second.lane.release(Vec::new()).await.unwrap();
    assert!((1..10).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_the_next_owner_has_seen_is_over() {
    let lines = Lines::collect();
    let master = Server::start();
    let _replica = master.add_replica();
    let proxy = Proxy::start(&master.address()).await;
    let first = Owner::new(&proxy.url()).await;
    proxy.hold();
    let release = tokio::spawn(first.lane.release(Vec::new()));
    until("released", || is_released(&master)).await;
    let next = Owner::new(&master.url()).await;
    next.one(schedule(&timer(now() + 60_000, 5))).await;
    proxy.let_through();
    release.await.unwrap().unwrap();
    assert_eq!(lines.with("given up before all replicas have"), 0);
}

/// Whether a server has that the partition was released.
fn is_released(server: &Server) -> bool {
    server.call::<Option<u8>>(&["HGET", OWNER, "r"]) == Some(1)
}

/// The master fails once it has a timer and then a release. Returns the result of the release.
async fn fail_during_release(site: &mut LosingStore, owner: &Owner) -> Result<(), LaneError> {
    owner.one(schedule(&timer(now() + 60_000, 5))).await;
    let release = tokio::spawn(owner.lane.release(Vec::new()));
    until("released", || is_released(site.master())).await;
    let digest = site.master().digest();
    site.fail(&digest);
    release.await.unwrap()
}

/// A release that waits for replicas while the master fails is applied again to its successor. It
/// waits a second at most, in which a busy machine may not get so far: then with another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_during_a_release_loses_nothing() {
    for _ in 0..20 {
        let mut site = LosingStore::failover().await;
        let owner = owner(&site, 64 << 20).await;
        site.begin_to_lose();
        fail_during_release(&mut site, &owner).await.unwrap();
        if is_released(site.successor()) {
            let next = Owner::of(owner.store.clone()).await;
            assert_eq!(next.load(now() + 3_600_000).await.len(), 1);
            return;
        }
    }
    panic!("none was applied again");
}

/// A replica without even the acquisition is promoted while the partition is given up: the log does
/// not reach back so far, and the release fails and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_acquisition_is_lost_says_so() {
    let lines = Lines::collect();
    for _ in 0..20 {
        let mut site = LosingStore::failover().await;
        let store = connect(RedisOptions::new(site.urls(), "t")).await;
        site.begin_to_lose();
        let owner = Owner::of(store).await;
        if let Err(error) = fail_during_release(&mut site, &owner).await {
            assert!(matches!(error, LaneError::RolledBack(_)), "{error:?}");
            assert_eq!(lines.with("writes that the log does not have any more"), 1);
            return;
        }
    }
    panic!("every release was over before the failover");
}

/// A replica without an owner's last writes is promoted, and another owner acquires the partition
/// there before that one comes back: it cannot apply them again, and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_the_next_owner_has_not_found_are_told_of() {
    let lines = Lines::collect();
    let told = || lines.with("writes that the log does not have any more");
    for (lost, release) in [(true, false), (true, true), (false, false), (false, true)] {
        let before = told();
        let site = LosingStore::failover().await;
        let (master, successor) = (site.master(), site.successor());
        let owner = owner(&site, 64 << 20).await;
        owner.one(schedule(&timer(now() + 60_000, 5))).await;
        until("the replica has everything", || master.digest() == successor.digest()).await;
        successor.call::<()>(&["REPLICAOF", "NO", "ONE"]);
        if lost {
            owner.one(schedule(&timer(now() + 60_000, 5))).await;
        }
        master.call::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
        let _next = Owner::new(&successor.url()).await;
        let ended = match release {
            true => owner.lane.release(Vec::new()).await,
            false => owner.try_apply(Vec::new()).await.map(drop),
        };
        assert!(matches!(ended, Err(LaneError::Fenced { .. })), "{ended:?}");
        // This is answered when the lane's task is over.
        owner.try_apply(Vec::new()).await.unwrap_err();
        assert_eq!(told() - before, usize::from(lost), "released: {release}");
    }
}

/// A master that is none any more serves reads as before. At its successor another owner has
/// cancelled the timer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_demoted_master_says_is_answered_to_nobody() {
    for call in ["get", "a repeat", "nothing to do", "a listing"] {
        let site = LosingStore::failover().await;
        let (master, successor) = (site.master(), site.successor());
        let owner = owner(&site, 64 << 20).await;
        let t = timer(now() + 60_000, 5);
        owner.one(schedule(&t)).await;
        until("the replica has everything", || master.digest() == successor.digest()).await;
        successor.call::<()>(&["REPLICAOF", "NO", "ONE"]);
        // Nobody listens there, so it never hears of later changes.
        master.call::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
        let next = Owner::new(&successor.url()).await;
        let (cancel, cancelled) = Plan::step("cancelled", &t);
        assert_eq!(next.one(cancel).await, cancelled);
        let answered = match call {
            "get" => owner.lane.get(Target::Id(t.id)).await.map(drop),
            "a repeat" => owner.try_apply(vec![schedule(&t)]).await.map(drop),
            "nothing to do" => owner.try_apply(Vec::new()).await.map(drop),
            _ => owner.lane.parked_destinations().await.map(drop),
        };
        assert!(matches!(answered, Err(LaneError::Fenced { .. })), "{call}: {answered:?}");
    }
}

async fn replicated(site: &LosingStore) -> Owner {
    let durability = RedisDurability::Replicated { replicas: 1, timeout: Duration::from_millis(200) };
    let store: Arc<RedisStore> =
        connect(RedisOptions { durability, ..RedisOptions::new(site.urls(), "t") }).await;
    assert_eq!(store.info().durability, "redis-replicated");
    Owner::of(store).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicated_answers_wait_for_replicas() {
    let mut site = LosingStore::failover().await;
    let owner = replicated(&site).await;
    let timers: Vec<_> = (0..4).map(|n| timer(now() + 60_000 + n, 5)).collect();
    // A replica that is online may still be reading the data that it was sent.
    while owner.one(schedule(&timer(now() + 60_000, 5))).await == UNCONFIRMED {}
    let answers = owner.apply(timers.iter().map(schedule).collect()).await;
    assert!(answers.iter().all(|answer| *answer == NEW), "{answers:?}");
    assert_eq!(site.master().digest(), site.successor().digest());
    site.begin_to_lose();
    let fresh = timer(now() + 60_000, 5);
    assert_eq!(owner.one(schedule(&fresh)).await, UNCONFIRMED);
    assert_eq!(owner.one(schedule(&fresh)).await, UNCONFIRMED, "a repeat rests on what was written before");
    let (cancel, _) = Plan::step("cancelled", &timers[0]);
    assert_eq!(owner.one(cancel).await, UNCONFIRMED);
    assert_eq!(
        owner.one(ack(timers[1].id)).await,
        Answer::Settle(SettleAnswer::Done),
        "settling does not wait"
    );
    site.let_replica_follow();
    let deadline = Instant::now() + WITHIN;
    let old = Answer::Schedule(ScheduleAnswer::Scheduled { new: false, replaced: None });
    loop {
        let answer = owner.one(schedule(&fresh)).await;
        assert!(Instant::now() < deadline && (answer == UNCONFIRMED || answer == old), "{answer:?}");
        if answer == old {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unconfirmed_claim_is_refused_and_does_not_end_the_lane() {
    let mut site = LosingStore::failover().await;
    let owner = replicated(&site).await;
    site.begin_to_lose();
    let claim = now() + 1_000;
    let ops = vec![schedule(&timer(now() + 60_000, 5))];
    let claims = |ops| owner.lane.apply(Batch { now: now(), claim: Some(claim), ops });
    assert_eq!(claims(ops).await.unwrap(), [UNCONFIRMED, UNCONFIRMED], "the schedule, and the claim");
    assert_eq!(*owner.lane.health().borrow(), Health::Up);
    site.let_replica_follow();
    while claims(Vec::new()).await.unwrap() == [UNCONFIRMED] {}
    assert_eq!(site.master().digest(), site.successor().digest());
    assert!(owner.store.owner(PARTITION).await.unwrap().claimed_until >= claim);
}
