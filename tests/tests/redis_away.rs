//! Redis goes away under load, by a stop, a crash, or by hanging, and comes back: schedules are
//! refused with a clear error meanwhile and work again by themselves afterwards, nothing that was
//! answered OK is lost, and the broker waits quietly.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mtimer_client::{
    Callback, Client, Destination, ErrorCode, KeyPolicy, Mode, Outcome, PartitionId, Schedule, Time,
};
use mtimer_client::{Timer, TimerId};
use mtimer_protocol::ops::{self, ScheduleReply};
use mtimer_protocol::{ClientMessage, OpReply, Request, RequestOp, ServerMessage};
use mtimer_tests::{
    Broker, Figures, Final, Handled, Launch, Plan, Recorder, Server, ServerOptions, Signal, Wire, check,
    cpu_seconds, drain, host_ms, long, mtimer, purge, signal, wait_for,
};
use rand::RngExt;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const PARTITIONS: u16 = 4;
/// Timers that one call schedules.
const BATCH: u64 = 20;
/// How long Redis is away, once that has been noticed.
const AWAY: Duration = Duration::from_secs(4);
/// After how long clients are told that what they ask is refused.
const TOLD: Duration = Duration::from_secs(1);
/// How long the broker is then left with nothing to do but wait.
const QUIET: Duration = Duration::from_secs(2);
/// More of a processor than this in that time is a busy loop.
const BUSY: f64 = 0.2;
/// More lines than this are a flood: they do not depend on how long it lasts, nor on how much is
/// refused.
const LINES: u64 = 50;
/// How long things may take that have no bound in the contract: a loaded machine is slow.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How Redis goes away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loss {
    /// A graceful stop.
    Stopped,
    /// A crash.
    Killed,
    /// It hangs, with its connections open.
    Frozen,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_with_its_append_only_file_synced_every_second() {
    // A later flag overrides an earlier one.
    let extra = ["--appendfsync", "everysec"].map(str::to_owned).to_vec();
    run(Loss::Stopped, ServerOptions { append_only: true, extra, ..ServerOptions::default() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_with_its_append_only_file_always_synced() {
    run(Loss::Killed, ServerOptions { append_only: true, ..ServerOptions::default() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_for_some_seconds() {
    run(Loss::Frozen, ServerOptions::default()).await;
}

/// How long a client waits, and how much longer its end may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(3);
const SLACK: Duration = Duration::from_millis(2_500);
/// Exit codes of `mtimer`.
const DONE: i32 = 0;
const NOT_FOUND: i32 = 5;
const UNKNOWN: i32 = 8;
const NOT_NOW: i32 = 13;

/// One `mtimer schedule` alone: its exit code, its id, and what it said.
async fn schedule_alone(broker: &Broker) -> (i32, TimerId, String) {
    let now = Time::from_ms(host_ms());
    let id = TimerId::new(now + 3_600_000, now, PartitionId(0), rand::random());
    let limit = format!("{}ms", LIMIT.as_millis());
    let (text, address) = (id.to_string(), broker.address());
    let args = ["schedule", "--group", "g", "--app", "a", "--at", &id.birth_due().as_ms().to_string()];
    let began = Instant::now();
    let mut command = Command::new(mtimer());
    command.args(args).args(["--id", &text, "--request-timeout", &limit, "--broker", &address]);
    let ended = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let took = began.elapsed();
    assert!(took < LIMIT + SLACK, "{took:?}");
    let code = ended.status.code().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    println!("a schedule alone: exit code {code} after {took:?}: {}", said.trim());
    (code, id, said)
}

async fn get(broker: &Broker, id: TimerId) -> i32 {
    let mut command = Command::new(mtimer());
    command.args(["get", &id.to_string(), "--broker", &broker.address()]);
    let ended = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    ended.status.code().unwrap()
}

/// What is refused was not done, and what is unknown is told in the client's own time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_alone_is_refused_while_redis_is_dead() {
    let mut redis = Server::start_with(ServerOptions { append_only: true, ..ServerOptions::default() });
    let broker = Launch::redis(&redis.url()).flags(["--partitions", "1"]).start();
    assert_eq!(schedule_alone(&broker).await.0, DONE);
    redis.kill();
    // An idle broker looks after its connections once a second. Until it has noticed, it may write
    // to a dead one, and then nobody knows what became of that.
    let (code, _, said) = schedule_alone(&broker).await;
    assert!([NOT_NOW, UNKNOWN].contains(&code), "exit code {code}: {said}");
    let mut refused = Vec::new();
    for _ in 0..2 {
        let (code, id, said) = schedule_alone(&broker).await;
        assert_eq!(code, NOT_NOW, "{said}");
        assert!(said.contains("store"), "{said}");
        refused.push(id);
    }
    redis.restart();
    wait_for("a schedule", TIMEOUT, async || schedule_alone(&broker).await.0 == DONE).await;
    for id in refused {
        assert_eq!(get(&broker, id).await, NOT_FOUND, "what was refused was done");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_alone_is_unknown_in_time_when_redis_hangs_and_then_refused() {
    let redis = Server::start();
    let broker = Launch::redis(&redis.url()).flags(["--partitions", "1"]).start();
    assert_eq!(schedule_alone(&broker).await.0, DONE);
    let pid = pid_of(&redis);
    signal(pid, Signal::STOP);
    let (code, under_way, said) = schedule_alone(&broker).await;
    assert_eq!(code, UNKNOWN, "{said}");
    let refused = async || schedule_alone(&broker).await.0 == NOT_NOW;
    wait_for("schedules to be refused", TIMEOUT, refused).await;
    let (code, id, said) = schedule_alone(&broker).await;
    assert_eq!(code, NOT_NOW, "{said}");
    signal(pid, Signal::CONT);
    wait_for("a schedule", TIMEOUT, async || schedule_alone(&broker).await.0 == DONE).await;
    // Whether it had reached Redis is what nobody knew.
    let known = get(&broker, under_way).await;
    assert!([DONE, NOT_FOUND].contains(&known), "{known}");
    assert_eq!(get(&broker, id).await, NOT_FOUND, "what was refused was done");
}

async fn run(loss: Loss, options: ServerOptions) {
    let mut redis = Server::start_with(options);
    let partitions = PARTITIONS.to_string();
    let broker =
        Launch::redis(&redis.url()).flags(["--partitions", &partitions, "--callback-timeout", "10s"]).start();
    let recorder = Arc::new(Recorder::default());
    let listener = broker.client().await;
    let registration = {
        let (recorder, asked) = (Arc::clone(&recorder), listener.clone());
        let take = move |callback| handle(Arc::clone(&recorder), asked.clone(), callback);
        listener.on(dest(), take).unwrap()
    };
    let probed = listener.on(probes(), async |_| Outcome::ok()).unwrap();
    // A short timeout, so that it sees refusals instead of waiting until all is well again.
    let client = broker.client_builder().request_timeout(TOLD).connect().await.unwrap();
    let (stop, gate) = (CancellationToken::new(), Arc::new(Mutex::new(())));
    let load = produce(client.clone(), Arc::clone(&recorder), Arc::clone(&gate), stop.clone());
    let load = tokio::spawn(load);

    for round in 0..if long() { 5 } else { 2 } {
        let before = recorder.deliveries();
        wait_for("deliveries", TIMEOUT, async || recorder.deliveries() > before + 200).await;
        let from = host_ms();
        outage(loss, &mut redis, &broker, &gate).await;
        is_back(&client).await;
        recorder.fault(from, format!("Redis {loss:?}, round {round}"));
    }
    let before = recorder.deliveries();
    wait_for("deliveries", TIMEOUT, async || recorder.deliveries() > before + 200).await;
    stop.cancel();
    let refused = load.await.unwrap();
    assert!(refused > 0, "no schedule was refused while Redis was away");

    drain(&listener, TIMEOUT).await;
    let history = recorder.history();
    let mut end = Final::read(&listener, &history).await;
    purge(&listener, Some(&redis), &mut end).await;
    println!("Redis {loss:?}:\n{}", Figures::of(&history, &end));
    let violations = check(&history, &end);
    violations.iter().take(10).for_each(|v| eprintln!("{v}"));
    assert!(violations.is_empty(), "Redis {loss:?}: {} violations, the first are above", violations.len());
    drop((registration, probed));
    listener.close().await.unwrap();
}

fn dest() -> Destination {
    Destination::new("redis", "away").unwrap()
}

/// Whose timers show whether the store is there.
fn probes() -> Destination {
    Destination::new("redis", "probes").unwrap()
}

/// Takes Redis away, looks at what the broker does, and brings it back. While the gate is locked,
/// nothing is asked for.
async fn outage(loss: Loss, redis: &mut Server, broker: &Broker, gate: &Mutex<()>) {
    let pid = pid_of(redis);
    match loss {
        Loss::Stopped => signal(pid, Signal::TERM),
        Loss::Killed => redis.kill(),
        Loss::Frozen => signal(pid, Signal::STOP),
    }
    let mut wire = Wire::open(&broker.address()).await;
    let began = Instant::now();
    while !is_refused(&mut wire).await {
        assert!(began.elapsed() < TIMEOUT, "schedules are still not refused");
    }
    println!("Redis {loss:?}: schedules are refused after {:?}", began.elapsed());
    let lines = broker.log_lines();
    tokio::time::sleep(AWAY).await;
    assert!(is_refused(&mut wire).await, "Redis is away, and yet a schedule is not refused");
    // What it takes to refuse the load depends on the machine, and is not measured.
    let quiet = gate.lock().await;
    tokio::time::sleep(TOLD).await;
    let (began, cpu) = (Instant::now(), cpu_seconds(broker.pid()));
    tokio::time::sleep(QUIET).await;
    let used = (cpu_seconds(broker.pid()) - cpu) / began.elapsed().as_secs_f64();
    drop(quiet);
    let lines = broker.log_lines() - lines;
    println!("Redis {loss:?}: the broker uses {:.1} % of a processor and logs {lines} lines", used * 100.0);
    assert!(used < BUSY, "a busy loop: {:.0} % of a processor", used * 100.0);
    assert!(lines < LINES, "{lines} log lines");
    match loss {
        Loss::Stopped | Loss::Killed => redis.restart(),
        Loss::Frozen => signal(pid, Signal::CONT),
    }
}

fn pid_of(redis: &Server) -> u32 {
    let info: String = redis.call(&["INFO", "server"]);
    info.lines().find_map(|l| l.strip_prefix("process_id:")).unwrap().trim().parse().unwrap()
}

/// Asks over a socket, without an SDK that tries again: the broker has to answer, and to say that
/// the store is away.
async fn is_refused(wire: &mut Wire) -> bool {
    let now = Time::from_ms(host_ms());
    let partition = PartitionId(rand::rng().random_range(0..PARTITIONS));
    let timer = Timer::new(TimerId::new(now, now, partition, rand::random()), probes(), now);
    let schedule = RequestOp::Schedule(ops::Schedule { timer: timer.into(), policy: KeyPolicy::Create });
    match ask(wire, now, schedule).await {
        Some(OpReply::Failed { code: ErrorCode::Unavailable, message }) => {
            assert!(message.contains("store"), "{message:?} does not say that it is the store");
            true
        }
        // Redis was not yet away, or the answer is not known as long as it is.
        Some(OpReply::Schedule(ScheduleReply::Scheduled { .. })) | None => false,
        other => panic!("{other:?}"),
    }
}

/// `None`: no answer for now. What Redis may have done when it went away is not known before it is
/// back.
async fn ask(wire: &mut Wire, first_sent: Time, op: RequestOp) -> Option<OpReply> {
    let corr = rand::random();
    wire.send(&ClientMessage::Request(Request { corr, first_sent, ops: vec![op] })).await;
    let answer = async {
        loop {
            match wire.next_word().await {
                Some(ServerMessage::Reply { corr: to, mut replies }) if to == corr => return replies.pop(),
                Some(ServerMessage::Reply { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(1), answer).await.unwrap_or(None)
}

/// Waits until every partition takes timers again.
async fn is_back(client: &Client) {
    let began = Instant::now();
    for partition in 0..PARTITIONS {
        wait_for("a schedule after the outage", TIMEOUT, async || {
            let now = client.now();
            let id = TimerId::new(now, now, PartitionId(partition), rand::random());
            client.schedule(Schedule::at(probes(), now).id(id)).await.is_ok()
        })
        .await;
    }
    println!("all partitions take timers again after {:?}", began.elapsed());
}

async fn handle(recorder: Arc<Recorder>, client: Client, callback: Callback) -> Outcome {
    if let Some(plan) = recorder.delivered(&client, &callback) {
        recorder.settled(plan.serial, &callback, Handled::Ok);
    }
    Outcome::ok()
}

/// Schedules, and cancels some, until told to stop; a batch that is not answered does not hold up
/// the next. Returns how many schedules were refused.
async fn produce(
    client: Client,
    recorder: Arc<Recorder>,
    gate: Arc<Mutex<()>>,
    stop: CancellationToken,
) -> u64 {
    let (mut batches, refused) = (JoinSet::new(), Arc::new(AtomicU64::new(0)));
    let mut serial = 0;
    while !stop.is_cancelled() {
        // Waits while it is locked.
        drop(gate.lock().await);
        let plan = |serial| {
            let ahead = rand::rng().random_range(0..1_500);
            let plan = Plan::new(serial, &dest(), host_ms() + ahead, 6, 10_000);
            let mode = if serial % 10 == 0 { Mode::AtMostOnce } else { plan.mode };
            Plan { mode, ..plan }
        };
        let plans: Vec<Plan> = (serial..serial + BATCH).map(plan).collect();
        serial += BATCH;
        plans.iter().for_each(|plan| recorder.plan(plan.clone()));
        batches.spawn(batch(client.clone(), Arc::clone(&recorder), Arc::clone(&refused), plans));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // A panic of one is a panic of all.
    batches.join_all().await;
    refused.load(Ordering::Relaxed)
}

/// Schedules these, and cancels some of them.
async fn batch(client: Client, recorder: Arc<Recorder>, refused: Arc<AtomicU64>, plans: Vec<Plan>) {
    let asked = host_ms();
    let results = client.schedule_all(plans.iter().map(Plan::schedule).collect()).await;
    for (plan, result) in plans.iter().zip(results) {
        recorder.scheduled(plan.serial, asked, &result);
        match result {
            Ok(scheduled) if plan.serial % 7 == 0 => {
                let asked = host_ms();
                let result = client.cancel(scheduled.id).await;
                recorder.cancelled(plan.serial, asked, &result);
            }
            Err(error) if error.has_no_side_effects() => {
                assert!(error.is_retryable(), "{error}");
                // The latter for a moment when it is back and the partition is acquired again.
                let text = error.to_string();
                assert!(text.contains("store") || text.contains("does not own partition"), "{text}");
                refused.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}
