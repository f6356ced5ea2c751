//! Lost answers, fencing, memory limits, restarts.

mod support;

use std::collections::HashMap;
use std::time::Duration;

use mtimer_store::conformance::properties;
use mtimer_store::conformance::properties::{CANCEL_NOTHING, Trial, trials};
use mtimer_store::ops::{Cancel, MoveAnswer, Park, Replay, ReplayAnswer, SettleAnswer, TrimAnswer, Unpark};
use mtimer_store::{
    Answer, Batch, CancelAnswer, DeadFilter, Health, LaneError, Load, Op, Refusal, RequestId, ScheduleAnswer,
    Store, Verdict,
};
use mtimer_store_redis::RedisOptions;
use mtimer_store_redis::test_support::{Proxy, Server, ServerOptions};
use mtimer_types::{DeadReason, Destination, Mode, SlotWidth, Target, Timer, TimerId};
use support::owner::{Owner, PARTITION, Stock, ack, acquire, connect, dest, now, schedule, timer, unique};

const NEW: Answer = Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None });

/// The mark that a proxy waits for: requests of the partition's lane carry it.
const MARK: &str = "owner:{2}";

fn settle(id: TimerId, verdict: Verdict) -> Op {
    Op::settle(id, verdict)
}

fn dead(id: TimerId) -> Op {
    settle(id, Verdict::Dead { reason: DeadReason::Failed, failed: 1, error: "no".into() })
}

fn cancel(id: TimerId) -> Op {
    Op::Cancel(Cancel { target: Target::Id(id), sent_attempt: None, request: RequestId(unique()) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_with_its_answer_lost_is_applied_once_and_answered_rightly() {
    let server = Server::start();
    let proxy = Proxy::start(&server.address()).await;
    let owner = Owner::new(&proxy.url()).await;
    for (n, Trial { name, before, op, answer }) in trials(&Stock).into_iter().enumerate() {
        owner.apply(before).await;
        proxy.lose_answer(MARK);
        assert_eq!(owner.one(op).await, answer, "{name}");
        assert_eq!(proxy.lost(), n + 1, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipeline_with_an_answer_lost_in_the_middle_keeps_its_order() {
    let server = Server::start();
    let proxy = Proxy::start(&server.address()).await;
    let owner = Owner::new(&proxy.url()).await;
    for round in 0..20 {
        let t = timer(now() + 60_000, 5);
        if round % 2 == 0 {
            proxy.lose_answer(MARK)
        } else {
            proxy.lose_call(MARK)
        }
        // Each answer depends on the steps before.
        let steps = vec![
            (schedule(&t), NEW),
            (Op::Park(Park { id: t.id, failed: 0 }), Answer::Park(MoveAnswer::Done)),
            (Op::Unpark(Unpark { id: t.id, fire: t.due }), Answer::Unpark(MoveAnswer::Done)),
            (dead(t.id), Answer::Settle(SettleAnswer::Done)),
            (Op::Replay(Replay { id: t.id, fire: t.due }), Answer::Replay(ReplayAnswer::Done)),
            (ack(t.id), Answer::Settle(SettleAnswer::Done)),
            (ack(t.id), Answer::Settle(SettleAnswer::Gone)),
        ];
        let sent: Vec<_> = steps.iter().map(|(op, _)| owner.send(vec![op.clone()])).collect();
        for (answers, (op, expected)) in sent.into_iter().zip(&steps) {
            assert_eq!(answers.await.unwrap(), vec![expected.clone()], "round {round}: {op:?}");
        }
    }
    assert_eq!(owner.lane.census().await.unwrap(), mtimer_store::Census::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_destinations_keep_their_names_when_answers_are_lost() {
    let server = Server::start();
    let proxy = Proxy::start(&server.address()).await;
    let owner = Owner::new(&proxy.url()).await;
    let mut expected = HashMap::new();
    for round in 0..20 {
        if round % 2 == 0 {
            proxy.lose_answer(MARK)
        } else {
            proxy.lose_call(MARK)
        }
        // Each script names one destination of its own and one that its neighbour names as well.
        let to = |app: u64| {
            let dest = Destination::new("orders", &format!("app-{round}-{app}")).unwrap();
            Timer { dest, ..timer(now() + 60_000, 5) }
        };
        let scripts: Vec<_> = (0..4).map(|n| [to(2 * n), to(2 * n + 1), to(2 * n + 2)]).collect();
        let sent: Vec<_> = scripts.iter().map(|s| owner.send(s.iter().map(schedule).collect())).collect();
        for answers in sent {
            assert_eq!(answers.await.unwrap(), vec![NEW; 3], "round {round}");
        }
        expected.extend(scripts.concat().into_iter().map(|t| (t.id, t.dest)));
    }
    let next = Owner::of(owner.store.clone()).await;
    let loaded = next.load(now() + 120_000).await;
    let loaded: HashMap<_, _> =
        loaded.iter().map(|t| (t.record.timer.id, t.record.timer.dest.clone())).collect();
    assert_eq!(loaded, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_and_loads_with_their_answers_lost() {
    let server = Server::start();
    let proxy = Proxy::start(&server.address()).await;
    let owner = Owner::new(&proxy.url()).await;
    let timers: Vec<_> = (0..50).map(|n| timer(now() + n * 1_000, 5)).collect();
    owner.apply(timers.iter().map(schedule).collect()).await;
    owner.apply(vec![dead(timers[0].id), Op::Park(Park { id: timers[1].id, failed: 0 })]).await;
    let lane = &owner.lane;
    proxy.lose_answer(MARK);
    let load = Load { until: now() + 60_000, max_timers: 100, max_bytes: 1 << 20, claim: Some(now()) };
    assert_eq!(lane.load(load).await.unwrap().timers.len(), 48);
    proxy.lose_answer(MARK);
    assert!(lane.get(Target::Id(timers[5].id)).await.unwrap().is_some());
    // Behind a writer whose answer is kept: it is not taken for the reader's.
    owner.one(schedule(&timer(now() + 3_600_000, 5))).await;
    proxy.lose_answer(MARK);
    assert!(lane.get(Target::Id(timers[5].id)).await.unwrap().is_some());
    proxy.lose_answer(MARK);
    assert_eq!(lane.dead(DeadFilter::default(), 0, 10).await.unwrap().rows.len(), 1);
    proxy.lose_answer(MARK);
    assert_eq!(lane.parked_destinations().await.unwrap(), vec![(dest(), 1)]);
    proxy.lose_answer(MARK);
    assert_eq!(lane.parked(dest(), 0, 10).await.unwrap().rows.len(), 1);
    proxy.lose_answer(MARK);
    assert_eq!(lane.census().await.unwrap().pending, 49);
    proxy.lose_answer(MARK);
    lane.unload(now()).await.unwrap();
    proxy.lose_answer(MARK);
    assert!(lane.load(load).await.unwrap().timers.len() >= 40);
    proxy.lose_answer(MARK);
    lane.release(vec![]).await.unwrap();
    assert_eq!(proxy.lost(), 10);
    assert_eq!(lane.census().await, Err(LaneError::Closed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_splitting_load_with_every_answer_lost_in_turn() {
    let mut skip = 0;
    // Until a load needs fewer calls than are let through.
    while lost_in_a_splitting_load(skip).await {
        skip += 1;
    }
    assert!(skip >= 4, "a splitting load took {skip} calls");
}

/// Loads an hour of 1,200 timers, which is split, and settles all; an answer is lost after so many
/// others. Whether the load had so many.
async fn lost_in_a_splitting_load(skip: usize) -> bool {
    let server = Server::start();
    let proxy = Proxy::start(&server.address()).await;
    let owner = Owner::new(&proxy.url()).await;
    let start = SlotWidth::Hour.start_of(now() + 30 * 3_600_000);
    let width = SlotWidth::Hour;
    let of = |n: u64| {
        let due = start + n * 3_000;
        Timer { id: TimerId::with_width(due, width, PARTITION, unique()), ..timer(due, 5) }
    };
    let timers: Vec<_> = (0..1_200).map(of).collect();
    owner.apply(timers.iter().map(schedule).collect()).await;
    proxy.lose_answer_after(MARK, skip);
    let until = start + 3_600_000;
    let mut ids: Vec<_> = owner.load(until).await.iter().map(|t| t.record.timer.id).collect();
    let lost = proxy.lost() == 1;
    owner.claim(now()).await;
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), timers.len(), "after a lost answer behind {skip} others");
    let answers = owner.apply(timers.iter().map(|t| ack(t.id)).collect()).await;
    assert!(answers.iter().all(|a| *a == Answer::Settle(SettleAnswer::Done)));
    let left: Vec<_> =
        server.keys().into_iter().filter(|k| k.contains("slot") || k.contains("copy")).collect();
    assert_eq!(left, Vec::<String>::new());
    lost
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_former_owner_changes_nothing_whatever_it_sends() {
    let server = Server::start();
    let first = Owner::new(&server.url()).await;
    let digest = |server: &Server| server.digest();
    for Trial { name, before, op, .. } in trials(&Stock) {
        // A fresh former owner each time: a lane ends at its first refusal.
        let former = Owner::of(first.store.clone()).await;
        former.apply(before).await;
        let _next = acquire(&*first.store).await;
        let before = digest(&server);
        let refused = former.try_apply(vec![op]).await;
        assert!(matches!(refused, Err(LaneError::Fenced { .. })), "{name}: {refused:?}");
        assert_eq!(digest(&server), before, "{name} of a former owner changed something");
        assert!(matches!(&*former.lane.health().borrow(), Health::Ended(LaneError::Fenced { .. })));
    }
    for call in 0..5 {
        let former = Owner::of(first.store.clone()).await;
        let _next = acquire(&*first.store).await;
        let before = digest(&server);
        let claim = Some(now() + 99_999);
        let refused = match call {
            0 => former.lane.apply(Batch { now: now(), claim, ops: vec![] }).await.map(drop),
            1 => {
                let load = Load { until: now() + 99_999_999, max_timers: 10, max_bytes: 1_000, claim };
                former.lane.load(load).await.map(drop)
            }
            2 => former.lane.release(vec![]).await,
            3 => former.lane.census().await.map(drop),
            _ => former.lane.get(Target::Id(timer(now(), 1).id)).await.map(drop),
        };
        assert!(matches!(refused, Err(LaneError::Fenced { .. })), "call {call}: {refused:?}");
        assert_eq!(digest(&server), before, "call {call} of a former owner changed something");
    }
}

/// A write of a connection that was given up reaches the server after it was sent again, and after
/// the timer has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_arrives_after_it_was_sent_again_changes_nothing() {
    let server = Server::start();
    let proxy = Proxy::start(&server.address()).await;
    let owner = Owner::new(&proxy.url()).await;
    let t = timer(now() + 60_000, 5);
    // The repeat goes through another script, which a full server runs, too.
    proxy.delay(&server.script_sha("apply"), 1);
    assert_eq!(owner.one(schedule(&t)).await, NEW);
    assert_eq!(owner.one(ack(t.id)).await, Answer::Settle(SettleAnswer::Done));
    assert_eq!(proxy.late_answers(), "");
    assert_eq!(owner.one(schedule(&timer(now() + 60_000, 5))).await, NEW, "the owner goes on");
    assert_eq!(proxy.late_answers().matches("SEQ").count(), 1, "{:?}", proxy.late_answers());
    assert!(owner.lane.get(Target::Id(t.id)).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_memory_limit_everything_but_adding_goes_on() {
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    let trials = trials(&Stock);
    for trial in &trials {
        owner.apply(trial.before.clone()).await;
    }
    server.call::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let (adding, others): (Vec<_>, Vec<_>) = trials.iter().partition(|t| properties::adds(&t.op));
    let refused = Answer::Refused(Refusal::OutOfMemory);
    for Trial { name, op, .. } in &adding {
        assert_eq!(owner.one(op.clone()).await, refused, "{name}");
    }
    server.call::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    for Trial { name, op, answer, .. } in &adding {
        assert_eq!(owner.one(op.clone()).await, *answer, "{name}, with memory again");
    }
    server.call::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let (trims, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|t| matches!(t.op, Op::Trim(_)));
    for Trial { name, op, answer, .. } in others {
        // That a timer was cancelled which is not there would have to be remembered.
        let expected = if *name == CANCEL_NOTHING { &refused } else { answer };
        assert_eq!(owner.one(op.clone()).await, *expected, "{name}");
    }
    let claimed = now() + 5_000;
    let t = timer(now() + 60_000, 5);
    // A claim that comes with a refused schedule is made all the same; the operations that follow
    // are not disturbed.
    let batch = Batch { now: now(), claim: Some(claimed), ops: vec![schedule(&t), cancel(t.id)] };
    let answers = owner.lane.apply(batch).await.unwrap();
    // That it was cancelled would have to be remembered.
    assert_eq!(answers[..2], [refused.clone(), refused]);
    assert_eq!(owner.store.owner(PARTITION).await.unwrap().claimed_until, claimed);
    assert!(!owner.load(now() + 99_999).await.is_empty(), "loads go on");
    for Trial { name, op, .. } in trims {
        let answered = owner.one(op.clone()).await;
        assert!(
            matches!(answered, Answer::Trim(TrimAnswer { removed: 1.., more: false })),
            "{name}: {answered:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_that_a_full_store_refuses_takes_no_outcome_with_it() {
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    let once = Timer { mode: Mode::AtMostOnce, ..timer(now() + 60_000, 5) };
    owner.one(schedule(&once)).await;
    owner.one(Op::take(once.id, 0)).await;
    server.call::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let batch = vec![ack(once.id), cancel(once.id), schedule(&timer(now() + 60_000, 5))];
    let refused = Answer::Refused(Refusal::OutOfMemory);
    assert_eq!(owner.apply(batch).await, [Answer::Settle(SettleAnswer::Done), refused.clone(), refused]);
    server.call::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    let ended = ScheduleAnswer::Ended(mtimer_types::Ended::Acknowledged);
    assert_eq!(owner.one(schedule(&once)).await, Answer::Schedule(ended));
}

/// By a clock that is far behind the server's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clock_is_ahead_remembers_outcomes_for_as_long() {
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    let (t, behind) = (timer(now() + 60_000, 5), now() - 200_000);
    let apply = async |op| {
        let batch = Batch { now: behind, claim: None, ops: vec![op] };
        owner.lane.apply(batch).await.unwrap().remove(0)
    };
    assert_eq!(apply(schedule(&t)).await, NEW);
    assert_eq!(apply(cancel(t.id)).await, Answer::Cancel(CancelAnswer::Cancelled(t.id)));
    let ended = ScheduleAnswer::Ended(mtimer_types::Ended::Cancelled);
    assert_eq!(apply(schedule(&t)).await, Answer::Schedule(ended));
    let buckets: Vec<_> = server.keys().into_iter().filter(|key| key.starts_with("ended:")).collect();
    let lives: Vec<u64> = buckets.iter().map(|bucket| server.call(&["PTTL", bucket])).collect();
    assert!(lives.len() == 1 && (1..=100_000).contains(&lives[0]), "{lives:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_replicas_to_write_refuses_what_adds_and_holds_the_rest() {
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    let t = timer(now() + 60_000, 5);
    owner.one(schedule(&t)).await;
    server.call::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let other = timer(now() + 60_000, 5);
    assert_eq!(owner.one(schedule(&other)).await, Answer::Refused(Refusal::ReadOnly));
    // That it was cancelled would have to be remembered.
    assert_eq!(owner.one(cancel(other.id)).await, Answer::Refused(Refusal::ReadOnly));
    let mut health = owner.lane.health();
    let held = owner.send(vec![ack(t.id)]);
    health.wait_for(|h| matches!(h, Health::Down(_))).await.unwrap();
    server.call::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    assert_eq!(held.await.unwrap(), vec![Answer::Settle(SettleAnswer::Done)]);
    assert_eq!(*owner.lane.health().borrow(), Health::Up);
}

/// The old master does not hear that its replica was promoted. It has no replica any more and takes
/// no writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_takes_no_writes_is_left_once_its_replica_was_promoted() {
    let master = Server::start();
    let replica = master.add_replica();
    let owner = Owner::of(connect(RedisOptions::new([master.url(), replica.url()], "t")).await).await;
    let first = timer(now() + 60_000, 5);
    assert_eq!(owner.one(schedule(&first)).await, NEW);
    // A replica without the acquisition is one of an earlier owner.
    master.wait_for_replica(&replica);
    master.call::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    replica.call::<()>(&["REPLICAOF", "NO", "ONE"]);
    // The old one may take some more until it notices.
    let mut stored = vec![first.id];
    let refused = loop {
        let next = timer(now() + 60_000, 5);
        match owner.one(schedule(&next)).await {
            NEW => stored.push(next.id),
            answer => break (next, answer),
        }
    };
    assert_eq!(refused.1, Answer::Refused(Refusal::ReadOnly));
    // The promoted one has the partition now, and the timers that only the old one had.
    assert_eq!(owner.one(schedule(&refused.0)).await, NEW);
    let answers = owner.apply(stored.iter().map(|id| ack(*id)).collect()).await;
    assert!(answers.iter().all(|answer| *answer == Answer::Settle(SettleAnswer::Done)), "{answers:?}");
    assert_eq!(replica.call::<u64>(&["EXISTS", "owner:{2}:t"]), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_were_flushed_are_loaded_again() {
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    let timers: Vec<_> = (0..10).map(|n| timer(now() + n, 5)).collect();
    for t in &timers {
        server.call::<()>(&["SCRIPT", "FLUSH"]);
        let sent = [owner.send(vec![schedule(t)]), owner.send(vec![ack(t.id)])];
        for (answers, expected) in sent.into_iter().zip([NEW, Answer::Settle(SettleAnswer::Done)]) {
            assert_eq!(answers.await.unwrap(), vec![expected]);
        }
    }
    server.call::<()>(&["SCRIPT", "FLUSH"]);
    owner.store.raise_term().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_restarted_keeps_what_was_answered_and_the_lane_goes_on() {
    let mut server = Server::start_with(ServerOptions { append_only: true, ..ServerOptions::default() });
    let owner = Owner::new(&server.url()).await;
    let timers: Vec<_> = (0..200).map(|n| timer(now() + 60_000 + n, 5)).collect();
    let answers = owner.apply(timers.iter().map(schedule).collect()).await;
    assert!(answers.iter().all(|a| *a == NEW));
    server.kill();
    let pending = owner.send(vec![ack(timers[0].id)]);
    let mut health = owner.lane.health();
    health.wait_for(|h| matches!(h, Health::Down(_))).await.unwrap();
    server.restart();
    assert_eq!(pending.await, Ok(vec![Answer::Settle(SettleAnswer::Done)]));
    health.wait_for(|h| *h == Health::Up).await.unwrap();
    let next = Owner::of(owner.store.clone()).await;
    let ids: Vec<_> = next.load(now() + 120_000).await.iter().map(|t| t.record.timer.id).collect();
    assert_eq!(ids.len(), timers.len() - 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_log_a_store_that_went_back_in_time_is_noticed() {
    let server = Server::start();
    let options = RedisOptions { log_bytes: 0, ..RedisOptions::new([server.url()], "t") };
    let owner = Owner::of(connect(options).await).await;
    owner.one(schedule(&timer(now(), 5))).await;
    let seq: u64 = server.call(&["HGET", "owner:{2}:t", "s"]);
    server.call::<()>(&["HSET", "owner:{2}:t", "s", &(seq - 1).to_string()]);
    assert_eq!(
        owner.try_apply(vec![schedule(&timer(now(), 5))]).await,
        Err(LaneError::RolledBack(PARTITION))
    );
    // And without any record of us.
    let owner = Owner::of(owner.store.clone()).await;
    server.call::<()>(&["FLUSHALL"]);
    assert_eq!(
        owner.try_apply(vec![schedule(&timer(now(), 5))]).await,
        Err(LaneError::RolledBack(PARTITION))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_what_was_dropped_while_the_store_was_away() {
    let server = Server::start();
    let proxy = Proxy::start(&server.address()).await;
    let owner = Owner::new(&proxy.url()).await;
    proxy.down();
    let sent = owner.send(vec![schedule(&timer(now(), 5))]);
    let mut health = owner.lane.health();
    health.wait_for(|h| matches!(h, Health::Down(_))).await.unwrap();
    drop((sent, owner));
    // The lane gives up when nobody is left to tell: its end of the watch is dropped.
    while health.changed().await.is_ok() {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_cut_at_random_lose_and_repeat_nothing() {
    let server = Server::start();
    let proxy = Proxy::start(&server.address()).await;
    let owner = Owner::new(&proxy.url()).await;
    let mut cut = unique();
    for round in 0..60 {
        let timers: Vec<_> = (0..150).map(|n| timer(now() + n * 500, 20)).collect();
        let all = |make: &dyn Fn(&Timer) -> Op| owner.send(timers.iter().map(make).collect());
        // Everything at once: each step finds the result of the one before it.
        let steps = [
            (all(&schedule), NEW),
            (all(&|t| Op::Park(Park { id: t.id, failed: 0 })), Answer::Park(MoveAnswer::Done)),
            (
                all(&|t| Op::Unpark(Unpark { id: t.id, fire: t.due + 5_000 })),
                Answer::Unpark(MoveAnswer::Done),
            ),
            (all(&|t| dead(t.id)), Answer::Settle(SettleAnswer::Done)),
            (all(&|t| Op::Replay(Replay { id: t.id, fire: t.due })), Answer::Replay(ReplayAnswer::Done)),
            (all(&|t| ack(t.id)), Answer::Settle(SettleAnswer::Done)),
            (all(&|t| ack(t.id)), Answer::Settle(SettleAnswer::Gone)),
        ];
        cut = cut.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        tokio::time::sleep(Duration::from_micros(cut >> 52)).await;
        proxy.cut();
        for (step, (answers, expected)) in steps.into_iter().enumerate() {
            let answers = answers.await.unwrap();
            assert!(answers.iter().all(|a| *a == expected), "round {round}, step {step}: {answers:?}");
        }
    }
    assert_eq!(owner.lane.census().await.unwrap(), mtimer_store::Census::default());
}

/// The answer of Redis to a client whose script an operator has killed.
async fn answer_to_a_killed_script() -> String {
    let server = Server::start_with(ServerOptions {
        extra: vec!["--lua-time-limit".into(), "1".into()],
        ..ServerOptions::default()
    });
    let url = server.url();
    let endless = std::thread::spawn(move || {
        let client = redis::Client::open(url).expect("a URL");
        let mut connection = client.get_connection().expect("a connection");
        redis::cmd("EVAL").arg("while true do end").arg(0).query::<()>(&mut connection).expect_err("killed")
    });
    while server.try_call::<()>(&["SCRIPT", "KILL"]).is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let error = endless.join().expect("the thread ends");
    format!("{} {}", error.code().unwrap_or("ERR"), error.detail().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_an_operator_kills_is_sent_again() {
    let error = answer_to_a_killed_script().await;
    assert!(error.starts_with("ERR Script killed by user with SCRIPT KILL"), "{error}");
    let server = Server::start();
    let proxy = Proxy::start(&server.address()).await;
    let owner = Owner::new(&proxy.url()).await;
    for (n, Trial { name, before, op, answer }) in trials(&Stock).into_iter().enumerate() {
        owner.apply(before).await;
        proxy.refuse(MARK, &error);
        assert_eq!(owner.one(op).await, answer, "{name}");
        assert_eq!(proxy.lost(), n + 1, "{name}");
    }
    // Reads, a load, and a takeover as well.
    proxy.refuse(MARK, &error);
    owner.lane.census().await.unwrap();
    proxy.refuse(MARK, &error);
    owner.load(now() + 120_000).await;
    proxy.refuse(MARK, &error);
    let next = Owner::of(owner.store.clone()).await;
    assert_eq!(next.one(schedule(&timer(now() + 60_000, 5))).await, NEW);
}
