//! Clocks that are wrong, and that step while brokers run: timers are never received early by the
//! deciding clock, and none is late for ever. Invariant 12 of `docs/guarantees.md`.
//!
//! The deciding clock is Redis's (the lower median of the masters'), and the host's of a broker
//! with an embedded store. Clocks are set with libfaketime, while the process runs; the monotonic
//! clock stays true.
//!
//! How late timers are is not measured: by a clock that is followed too slowly they would be late
//! by minutes at least, which is longer than these tests wait.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mtimer_client::{Callback, Client, Destination, Key, Outcome, Registration, Schedule, Time};
use mtimer_store_redis::test_support::TestCluster;
use mtimer_tests::{Broker, Launch, Server, ServerOptions, counter, host_ms, wait_for};
use tempfile::TempDir;

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
/// How long things may take that have no bound in the contract: a loaded machine is slow.
const TIMEOUT: Duration = Duration::from_secs(60);
const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

/// The wall clock of a process, which can be set while it runs.
struct FakeClock(TempDir);

impl FakeClock {
    /// A clock that is off by so many ms.
    fn new(off: i64) -> Self {
        assert!(
            Path::new(LIBRARY).exists(),
            "{LIBRARY} is missing: install the Debian package faketime (tests/run does)"
        );
        let clock = Self(TempDir::new().unwrap());
        clock.set(off);
        clock
    }

    /// Sets it to be off by so many ms.
    fn set(&self, off: i64) {
        // Replaced in one step, so that no process reads half of it.
        let new = self.0.path().join("new");
        std::fs::write(&new, format!("{:+.3}", off as f64 / 1_000.0)).unwrap();
        std::fs::rename(&new, self.0.path().join("off")).unwrap();
    }

    /// The environment of its process.
    fn env(&self) -> Vec<(String, String)> {
        let file = self.0.path().join("off").to_str().unwrap().to_owned();
        let pairs = [
            ("LD_PRELOAD", LIBRARY),
            ("FAKETIME_TIMESTAMP_FILE", &file),
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    }

    /// A Redis server with this clock. Its allocator, jemalloc, asks for the time before
    /// libfaketime is ready, and waits for ever; so it gets the one that glibc has for debugging,
    /// which asks nothing.
    fn redis(&self) -> ServerOptions {
        let mut env = self.env();
        let preload = env.iter_mut().find(|(name, _)| name == "LD_PRELOAD").unwrap();
        preload.1 = format!("libc_malloc_debug.so.0:{LIBRARY}");
        ServerOptions { env, ..ServerOptions::default() }
    }
}

/// A client that schedules timers by the deciding clock and records when they are received.
struct Bed {
    client: Client,
    /// What the deciding clock shows, ms.
    clock: Arc<dyn Fn() -> i64 + Send + Sync>,
    seen: Arc<Mutex<BTreeMap<String, i64>>>,
    scheduled: AtomicU64,
    _registration: Registration,
}

impl Bed {
    async fn new(broker: &Broker, clock: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        let (client, clock) = (broker.client().await, Arc::new(clock));
        let seen: Arc<Mutex<BTreeMap<String, i64>>> = Arc::default();
        let registration = {
            let (seen, clock) = (Arc::clone(&seen), Arc::clone(&clock));
            let take = move |callback: Callback| {
                let early = callback.due.as_ms() as i64 - clock();
                seen.lock().unwrap().insert(callback.id.to_string(), early);
                async { Outcome::ok() }
            };
            client.on(dest(), take).unwrap()
        };
        Self { client, clock, seen, scheduled: AtomicU64::new(0), _registration: registration }
    }

    /// Schedules timers that are due so many ms from now by the deciding clock; their ids. Keys
    /// spread them over the partitions.
    async fn schedule(&self, ahead: i64, count: i64) -> Vec<String> {
        let begin = (self.clock)() + ahead;
        let one = |i| {
            let key = Key::new(&self.scheduled.fetch_add(1, Ordering::Relaxed).to_string()).unwrap();
            Schedule::at(dest(), Time::from_ms((begin + i * 7) as u64)).key(key)
        };
        let answers = self.client.schedule_all((0..count).map(one).collect()).await;
        answers.into_iter().map(|answer| answer.unwrap().id.to_string()).collect()
    }

    /// Waits until timers are received, and asserts that none was received early.
    async fn receive(&self, what: &str, ids: &[String]) {
        let all = || ids.iter().all(|id| self.seen.lock().unwrap().contains_key(id));
        wait_for(what, TIMEOUT, async || all()).await;
        self.assert_not_early(what);
    }

    fn assert_not_early(&self, what: &str) {
        let seen = self.seen.lock().unwrap();
        let early: Vec<_> = seen.values().filter(|early| **early > 0).collect();
        assert!(early.is_empty(), "{what}: received early by the deciding clock, ms: {early:?}");
    }

    async fn steps(&self) -> u64 {
        counter(&self.client.status().await.unwrap(), "clock_steps_total")
    }

    /// Waits until the broker has seen that the deciding clock has been set again.
    async fn saw_step(&self, before: u64) {
        wait_for("a step that is counted", TIMEOUT, async || self.steps().await > before).await;
    }

    /// Sets the deciding clock ahead and back, with timers on both sides of each step.
    async fn step(&self, set: impl Fn(i64), off: i64) {
        let soon = self.schedule(300, 20).await;
        self.receive("timers before the step", &soon).await;
        // Within the hour that is left out, some of them beyond everything that is in memory.
        let within = [self.schedule(5 * SECOND, 5).await, self.schedule(20 * MINUTE, 5).await].concat();
        let before = self.steps().await;
        set(off + HOUR);
        self.receive("timers within the step", &within).await;
        self.saw_step(before).await;
        let after = self.schedule(300, 20).await;
        self.receive("timers after the step", &after).await;

        // Back: due when the clock gets there, and until then not, though that much time has passed
        // already.
        let before = self.steps().await;
        let far = self.schedule(6 * SECOND, 20).await;
        set(off + HOUR - 6 * SECOND);
        self.saw_step(before).await;
        assert!(counter(&self.client.status().await.unwrap(), "clock_doubtful_total") > 0);
        self.receive("timers of the time before the step back", &far).await;
        let soon = self.schedule(300, 20).await;
        self.receive("timers after the step back", &soon).await;
        set(off);
    }
}

fn dest() -> Destination {
    Destination::new("clock", "a").unwrap()
}

/// What this Redis shows, ms.
fn shown_by(redis: &Server) -> i64 {
    let [seconds, micros]: [i64; 2] = redis.call(&["TIME"]);
    seconds * 1_000 + micros / 1_000
}

fn on(redis: &Server) -> Launch {
    Launch::redis(&redis.url()).flags(["--partitions", "4"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_redis_the_brokers_host_does_not_matter() {
    let redis = Server::start();
    for off in [-10 * MINUTE, 10 * MINUTE] {
        let host = FakeClock::new(off);
        let broker = on(&redis).env(&host.env()).start();
        let bed = Bed::new(&broker, || host_ms() as i64).await;
        for off in [off, HOUR, -20 * HOUR, 0] {
            host.set(off);
            let ids = bed.schedule(1_500, 20).await;
            bed.receive(&format!("with a host that is {off} ms off"), &ids).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_whose_clock_steps_is_followed() {
    let clock = FakeClock::new(0);
    let redis = Arc::new(Server::start_with(clock.redis()));
    let broker = on(&redis).start();
    let shown = Arc::clone(&redis);
    let bed = Bed::new(&broker, move || shown_by(&shown)).await;
    bed.step(|off| clock.set(off), 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_an_embedded_store_the_host_is_followed() {
    // As of a board without a real-time clock, until its time service has answered.
    for boot in [0, -20_000 * 24 * HOUR] {
        let clock = Arc::new(FakeClock::new(boot));
        let off = Arc::new(AtomicI64::new(boot));
        let set = {
            let (clock, off) = (Arc::clone(&clock), Arc::clone(&off));
            move |to: i64| {
                off.store(to, Ordering::SeqCst);
                clock.set(to);
            }
        };
        let data = TempDir::new().unwrap();
        let broker = Launch::embedded(data.path()).env(&clock.env()).start();
        let shown = Arc::clone(&off);
        let host = move || host_ms() as i64 + shown.load(Ordering::SeqCst);
        let bed = Bed::new(&broker, host).await;
        if boot != 0 {
            let ids = bed.schedule(300, 5).await;
            bed.receive("timers before the first step", &ids).await;
            let before = bed.steps().await;
            set(0);
            bed.saw_step(before).await;
        }
        bed.step(set, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_whose_clock_is_wrong_is_outvoted() {
    for off in [-24 * HOUR, 24 * HOUR] {
        let stray = FakeClock::new(off);
        let options = [ServerOptions::default(), stray.redis(), ServerOptions::default()];
        let cluster = TestCluster::start_each(options);
        let broker = Launch::redis(&cluster.urls().join(",")).flags(["--partitions", "8"]).start();
        let bed = Bed::new(&broker, || host_ms() as i64).await;
        let ids = bed.schedule(1_500, 40).await;
        bed.receive("timers beside a master that is a day off", &ids).await;
        let status = bed.client.status().await.unwrap();
        assert!(counter(&status, "clock_outliers_total") > 0, "{status:?}");
        assert!(counter(&status, "clock_doubtful_total") > 0, "{status:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_hangs_silences_no_other_clock() {
    let clocks = [0; 3].map(FakeClock::new);
    let extra = ["--cluster-require-full-coverage", "no"].map(str::to_owned).to_vec();
    let options = |clock: &FakeClock| ServerOptions { extra: extra.clone(), ..clock.redis() };
    let [a, b, c] = &clocks;
    let cluster = Arc::new(TestCluster::start_each([options(a), options(b), options(c)]));
    let broker = Launch::redis(&cluster.urls().join(",")).flags(["--partitions", "8"]).start();
    let nodes = Arc::clone(&cluster);
    let bed = Bed::new(&broker, move || shown_by(&nodes.nodes[0])).await;
    let ids = bed.schedule(20 * MINUTE, 64).await;
    cluster.nodes[1].freeze();
    for clock in &clocks {
        clock.set(HOUR);
    }
    // Those of the other masters: their clocks have reached the time, so they come.
    let received = async || ids.iter().filter(|id| bed.seen.lock().unwrap().contains_key(*id)).count() > 0;
    wait_for("timers on the masters that answer", TIMEOUT, received).await;
    cluster.nodes[1].thaw();
    bed.receive("timers on the master that hung", &ids).await;
}
