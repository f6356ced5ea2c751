//! Clients that break every rule, through real sockets: each gets a clear error or is counted,
//! memory stays bounded, and a well-behaved client notices nothing.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use mtimer_client::{
    Callback, Client, Destination, Epoch, Outcome, Registration, Schedule, Target, Time, TimerId,
};
use mtimer_client::{PartitionId, TimerState, limits};
use mtimer_protocol::{
    ClientMessage, ErrorCode, Hello, MAGIC, Query, ServerMessage, SettleRefusal, Settlement, VERSION, encode,
};
use mtimer_tests::{
    Broker, Final, Handled, Launch, Plan, Process, Recorder, Signal, Wire, check, counter, drain, host_ms,
    mtimer, purge, rss_kib, wait_for,
};
use mtimer_types::HandlerOutcome;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long things may take that have no bound in the contract.
const TIMEOUT: Duration = Duration::from_secs(60);
/// What one hostile client may cost: its outbox, encoded and not, its requests, and the store's
/// tables and caches that grow with what it made others store.
const ONE_CLIENT_KIB: u64 = 320 * 1024;

/// A broker with short heartbeats, and a client that minds its own business all along.
struct Scene {
    /// Before its folder, so that it is gone when that goes.
    broker: Broker,
    _folder: TempDir,
    client: Client,
    recorder: Arc<Recorder>,
    registration: Registration,
    stop: CancellationToken,
    load: JoinHandle<()>,
    rss: u64,
}

fn dest(app: &str) -> Destination {
    Destination::new("hostile", app).unwrap()
}

impl Scene {
    async fn begin() -> Self {
        let folder = TempDir::with_prefix("mtimer-hostile-").unwrap();
        let launch = Launch::embedded(folder.path())
            .flags([
                "--durability",
                "embedded-fast",
                "--partitions",
                "4",
                "--retry",
                "100ms",
                "--memory",
                "16MiB",
            ])
            .flags(["--heartbeat", "300ms", "--heartbeat-timeout", "3s", "--callback-timeout", "10s"]);
        let broker = launch.start();
        let client = broker.client().await;
        let recorder = Arc::new(Recorder::default());
        let registration = {
            let (recorder, asked) = (Arc::clone(&recorder), client.clone());
            let handle = move |callback: Callback| {
                if let Some(plan) = recorder.delivered(&asked, &callback) {
                    recorder.settled(plan.serial, &callback, Handled::Ok);
                }
                async { Outcome::ok() }
            };
            client.on(dest("good"), handle).unwrap()
        };
        let stop = CancellationToken::new();
        let load = tokio::spawn(mind_own_business(client.clone(), Arc::clone(&recorder), stop.clone()));
        let rss = rss_kib(broker.pid());
        Self { broker, _folder: folder, client, recorder, registration, stop, load, rss }
    }

    async fn count(&self, name: &str) -> u64 {
        counter(&self.client.status().await.unwrap(), name)
    }

    /// Waits until a counter is above what it was.
    async fn counted(&self, name: &str, before: u64) {
        wait_for(name, TIMEOUT, async || self.count(name).await > before).await;
    }

    async fn wire(&self) -> Wire {
        Wire::open(&self.broker.address()).await
    }

    /// The good client has noticed nothing: without a fault the contract is at its strictest.
    async fn end(self) {
        let some = async || self.recorder.deliveries() >= 100;
        wait_for("the good client's callbacks", TIMEOUT, some).await;
        self.stop.cancel();
        self.load.await.unwrap();
        drain(&self.client, TIMEOUT).await;
        let history = self.recorder.history();
        let mut end = Final::read(&self.client, &history).await;
        // Dead letters of the hostile ones.
        end.strangers.clear();
        purge(&self.client, None, &mut end).await;
        let violations = check(&history, &end);
        violations.iter().take(5).for_each(|v| eprintln!("{v}"));
        assert!(violations.is_empty(), "{} violations, the first are above", violations.len());
        assert_eq!(self.client.stats().connections, 1, "the good client kept its connection");
        let rss = rss_kib(self.broker.pid());
        println!("{rss} KiB of memory, {} KiB at first", self.rss);
        assert!(rss < self.rss + ONE_CLIENT_KIB, "{rss} KiB of memory, {} KiB at first", self.rss);
        drop(self.registration);
        self.client.close().await.unwrap();
    }
}

async fn mind_own_business(client: Client, recorder: Arc<Recorder>, stop: CancellationToken) {
    let mut serial = 0;
    while !stop.is_cancelled() {
        serial += 1;
        let plan = Plan::new(serial, &dest("good"), host_ms() + serial % 50, 2, 10_000);
        recorder.plan(plan.clone());
        let asked = host_ms();
        let result = client.schedule(plan.schedule()).await;
        recorder.scheduled(serial, asked, &result);
        result.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers() {
    let scene = Scene::begin().await;
    let address = scene.broker.address();
    let said = async |bytes: &[u8], counter: &str, what: &str| {
        let before = scene.count(counter).await;
        let mut wire = Wire::connect(&address).await;
        wire.send_bytes(bytes).await;
        let said = wire.closed_with().await.unwrap_or_default();
        assert!(said.contains(what), "{said:?} does not say {what:?}");
        scene.counted(counter, before).await;
    };
    let hello = |min, max| Wire::frame(&encode(&Wire::hello(min, max)).unwrap());
    // Not the protocol at all: "GET " announces a frame of a gigabyte.
    said(b"GET / HTTP/1.1\r\n\r\n", "frames_oversized_total", "4096").await;
    said(&Wire::frame(&[0; 5_000]), "frames_oversized_total", "4096").await;
    said(&Wire::frame(&[0xff; 64]), "frames_malformed_total", "").await;
    said(&Wire::frame(&[]), "frames_malformed_total", "").await;
    said(&Wire::frame(&encode(&ClientMessage::Goodbye).unwrap()), "handshakes_malformed_total", "hello")
        .await;
    said(&hello(VERSION + 1, VERSION + 9), "version_refused_total", "version").await;
    // A hello with the magic of something else.
    let ClientMessage::Hello(other) = Wire::hello(VERSION, VERSION) else { panic!("it is a hello") };
    let other = ClientMessage::Hello(Hello { magic: MAGIC + 1, ..other });
    said(&Wire::frame(&encode(&other).unwrap()), "handshakes_malformed_total", "an mtimer client says").await;
    // Half a frame, then the end.
    let before = scene.count("frames_truncated_total").await;
    let mut wire = Wire::connect(&address).await;
    wire.send_bytes(&hello(VERSION, VERSION)[..9]).await;
    wire.shutdown().await;
    assert_eq!(wire.closed_with().await, None);
    scene.counted("frames_truncated_total", before).await;
    // Says nothing for longer than a handshake may take.
    let mut silent = Wire::connect(&address).await;
    let before = scene.count("handshakes_timed_out_total").await;
    assert!(silent.closed_with().await.unwrap().contains("hello"));
    scene.counted("handshakes_timed_out_total", before).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_frames_after_the_handshake() {
    let scene = Scene::begin().await;
    let said = async |bytes: &[u8], counter: &str, what: &str| {
        let before = scene.count(counter).await;
        let mut wire = scene.wire().await;
        wire.send_bytes(bytes).await;
        let said = wire.closed_with().await.unwrap_or_default();
        assert!(said.contains(what), "{said:?} does not say {what:?}");
        scene.counted(counter, before).await;
    };
    let mut announced = BytesMut::new();
    announced.put_u32(u32::try_from(limits::MAX_FRAME).unwrap() + 1);
    said(&announced, "frames_oversized_total", &limits::MAX_FRAME.to_string()).await;
    said(&Wire::frame(&[0xff; 1_000]), "frames_malformed_total", "").await;
    // A message with something behind it.
    let mut trailing = BytesMut::from(&encode(&ClientMessage::Ping(1)).unwrap()[..]);
    trailing.put_slice(b"and more");
    said(&Wire::frame(&trailing), "frames_malformed_total", "8").await;
    // A few bytes that announce a list of 2^60 outcomes.
    let empty = encode(&ClientMessage::Settle(Vec::new())).unwrap();
    let mut bomb = BytesMut::from(&empty[..empty.len() - 1]);
    bomb.put_u8(253);
    bomb.put_u64_le(1 << 60);
    said(&Wire::frame(&bomb), "frames_malformed_total", "").await;
    said(
        &Wire::frame(&encode(&Wire::hello(VERSION, VERSION)).unwrap()),
        "frames_out_of_place_total",
        "not allowed here",
    )
    .await;
    // More registrations than a session may have.
    let mut many = BytesMut::new();
    for registration in 0..=limits::MAX_REGISTRATIONS as u32 {
        let dest = dest(&format!("many-{registration}"));
        let register = ClientMessage::Register { registration, dest, credit: 1 };
        many.put_slice(&Wire::frame(&encode(&register).unwrap()));
    }
    said(&many, "sessions_broken_total", "registrations").await;
    // The connection ends in the middle of a frame.
    let before = scene.count("frames_truncated_total").await;
    let mut wire = scene.wire().await;
    wire.send_bytes(&Wire::frame(&[0; 100])[..50]).await;
    drop(wire);
    scene.counted("frames_truncated_total", before).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connections() {
    let scene = Scene::begin().await;
    let before = scene.count("heartbeats_missed_total").await;
    // A session that falls silent, with a callback in its hands.
    let mut silent = scene.wire().await;
    silent.send(&ClientMessage::Register { registration: 1, dest: dest("silent"), credit: 1 }).await;
    let id = scene.client.schedule(Schedule::after(dest("silent"), Duration::ZERO)).await.unwrap().id;
    while !matches!(silent.next().await, Some(ServerMessage::Deliver { .. })) {}
    scene.counted("heartbeats_missed_total", before).await;
    assert!(silent.closed_with().await.unwrap().contains("nothing heard"));
    let view = scene.client.get(id).await.unwrap().unwrap();
    assert_eq!(view.failed, 1, "{view:?}");
    assert_eq!(view.last_error.as_deref(), Some("the connection was lost"));
    // A client whose process stands still.
    let before = scene.count("heartbeats_missed_total").await;
    let mut command = Command::new(mtimer());
    command.args([
        "listen",
        "--json",
        "--broker",
        &scene.broker.address(),
        "--group",
        "hostile",
        "--app",
        "stopped",
    ]);
    let listener = Process::start("mtimer listen", &mut command);
    scene.client.schedule(Schedule::after(dest("stopped"), Duration::ZERO)).await.unwrap();
    assert!(listener.line(TIMEOUT).is_some(), "it gets a callback");
    listener.signal(Signal::STOP);
    let id = scene.client.schedule(Schedule::after(dest("stopped"), Duration::ZERO)).await.unwrap().id;
    scene.counted("heartbeats_missed_total", before).await;
    // Others get what it held, and what it had begun with.
    let (first, second) =
        (scene.client.on(dest("silent"), good).unwrap(), scene.client.on(dest("stopped"), good).unwrap());
    wait_for("the others", TIMEOUT, async || scene.client.get(id).await.unwrap().is_none()).await;
    scene.end().await;
    drop((first, second));
}

async fn good(_: Callback) -> Outcome {
    Outcome::ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_never_reads() {
    let scene = Scene::begin().await;
    let before = scene.count("writes_stalled_total").await;
    let payload = bytes::Bytes::from(vec![b'x'; limits::MAX_PAYLOAD_BYTES]);
    for _ in 0..5 {
        let one = |_| Schedule::after(dest("deaf"), Duration::ZERO).payload(payload.clone());
        let answers = scene.client.schedule_all((0..100).map(one).collect()).await;
        answers.into_iter().for_each(|answer| assert!(answer.unwrap().new));
    }
    let mut deaf = scene.wire().await;
    deaf.send(&ClientMessage::Register { registration: 1, dest: dest("deaf"), credit: limits::MAX_CREDIT })
        .await;
    let asking = tokio::spawn(async move {
        // It asks all the time, so that it is not silent.
        for corr in 0.. {
            deaf.send(&ClientMessage::Query { corr, query: Query::Status }).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    scene.counted("writes_stalled_total", before).await;
    asking.abort();
    // What was on its way to it comes to somebody else.
    let registration = scene.client.on(dest("deaf"), good).unwrap();
    scene.end().await;
    drop(registration);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_never_settles() {
    let scene = Scene::begin().await;
    let timed_out = scene.count("timed_out_total").await;
    let mut lazy = scene.wire().await;
    lazy.send(&ClientMessage::Register { registration: 1, dest: dest("lazy"), credit: 10 }).await;
    let one = |_| Schedule::after(dest("lazy"), Duration::ZERO).callback_timeout(Duration::from_millis(500));
    let answers = scene.client.schedule_all((0..200).map(one).collect()).await;
    answers.into_iter().for_each(|answer| assert!(answer.unwrap().new));
    // It never holds more than it has credit for, however long this goes on.
    while scene.count("timed_out_total").await < timed_out + 30 {
        match lazy.next_word().await.unwrap() {
            ServerMessage::Deliver { deliveries, .. } => assert!(deliveries.len() <= 10),
            other => panic!("{other:?}"),
        }
        let status = scene.client.status().await.unwrap();
        assert!(status.in_flight <= 10 + 100, "{status:?}");
    }
    // The others wait, or are parked; a client that does its work gets them all.
    let registration = scene.client.on(dest("lazy"), good).unwrap();
    drop(lazy);
    scene.end().await;
    drop(registration);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_settles_what_is_not_its_own() {
    let scene = Scene::begin().await;
    let (release, released) = (CancellationToken::new(), CancellationToken::new());
    let registration = {
        let (wait, ended) = (release.clone(), released.clone());
        let handle = move |_| {
            let (wait, ended) = (wait.clone(), ended.clone());
            async move {
                wait.cancelled().await;
                ended.cancel();
                Outcome::ok()
            }
        };
        scene.client.on(dest("others"), handle).unwrap()
    };
    let id = scene.client.schedule(Schedule::after(dest("others"), Duration::ZERO)).await.unwrap().id;
    let mut flight = None;
    wait_for("delivery", TIMEOUT, async || {
        let view = scene.client.get(id).await.unwrap();
        flight = view.and_then(|v| match v.state {
            TimerState::InFlight { epoch, attempt } => Some((epoch, attempt)),
            _ => None,
        });
        flight.is_some()
    })
    .await;
    let (epoch, attempt) = flight.unwrap();
    let ok = HandlerOutcome::Ok;
    let nothing = TimerId::new(Time::from_ms(1), Time::ZERO, PartitionId(1), 42);
    let before = (scene.count("settle_not_yours_total").await, scene.count("settle_late_total").await);
    let mut thief = scene.wire().await;
    thief
        .send(&ClientMessage::Settle(vec![
            Settlement { id, epoch, attempt, outcome: ok.clone() },
            Settlement { id, epoch, attempt: attempt + 1, outcome: ok.clone() },
            Settlement { id, epoch: Epoch(epoch.0 + 1), attempt, outcome: ok.clone() },
            Settlement { id: nothing, epoch, attempt: 1, outcome: ok.clone() },
        ]))
        .await;
    let Some(ServerMessage::Settled { accepted, refused }) = thief.next_word().await else {
        panic!("no answer")
    };
    assert_eq!(accepted, 0, "{refused:?}");
    assert_eq!(refused.len(), 4, "{refused:?}");
    assert!(refused.contains(&(id, SettleRefusal::NotYours)), "{refused:?}");
    assert!(refused.contains(&(nothing, SettleRefusal::Late)), "{refused:?}");
    scene.counted("settle_not_yours_total", before.0).await;
    scene.counted("settle_late_total", before.1).await;
    let view = scene.client.get(Target::from(id)).await.unwrap().unwrap();
    assert!(matches!(view.state, TimerState::InFlight { .. }), "{view:?}");
    // A partition that does not exist.
    let beyond = TimerId::new(Time::from_ms(1), Time::ZERO, PartitionId(999), 1);
    thief.send(&ClientMessage::Settle(vec![Settlement { id: beyond, epoch, attempt: 1, outcome: ok }])).await;
    let Some(ServerMessage::Settled { accepted: 0, .. }) = thief.next_word().await else {
        panic!("no answer")
    };
    thief.send(&ClientMessage::Query { corr: 1, query: Query::Get(beyond.into()) }).await;
    match thief.next_word().await {
        Some(ServerMessage::Answer { answer: mtimer_protocol::QueryAnswer::Failed { code, .. }, .. }) => {
            assert_eq!(code, ErrorCode::NotOwner);
        }
        other => panic!("{other:?}"),
    }
    release.cancel();
    released.cancelled().await;
    scene.end().await;
    drop(registration);
}
