//! Steady load from several clients through the SDK: schedules, cancels and reschedules, with
//! handlers that do well, ask for a retry, fail for good, are too slow, or take long.
//!
//! Everything is recorded. The rate is that of client operations; when answers do not come, calls
//! that wait are bounded, and the rate falls.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mtimer_client::{
    Callback, Client, Destination, Key, KeyPolicy, Mode, Outcome, Registration, Time, TimerId,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::Cluster;
use crate::behaviour::Behaviour;
use crate::edges::{Connect, Edges, watch_clock};
use crate::history::Handled;
use crate::host_ms;
use crate::plan::Plan;
use crate::recorder::Recorder;

/// How often each producer does something.
const TICK: Duration = Duration::from_millis(20);
/// Calls of a producer that may wait for answers.
const WAITING: usize = 500;
/// Timers that may be cancelled or rescheduled.
const KNOWN: usize = 3_000;
/// Keys that are replaced again and again.
const CHAINS: u64 = 40;
/// Attempts of timers without tiers of their own, by the brokers' `--retry`.
const ATTEMPTS: u32 = 3;
/// Until a deadline that no timer should ever meet, ms: longer than any fault lasts.
const AMPLE_MS: u64 = 600_000;
/// Callback timeout of timers whose handlers may be too slow, ms.
const SHORT_TIMEOUT_MS: u64 = 1_500;
/// Callback timeout of the others, ms: the brokers'.
const TIMEOUT_MS: u64 = 10_000;
/// Callback timeout of timers whose handlers take long, ms.
const LONG_TIMEOUT_MS: u64 = 90_000;

/// Destinations, by what their handlers do.
const STEADY: &str = "steady";
const OTHER: &str = "other";
const FLAKY: &str = "flaky";
const SLOW: &str = "slow";

/// How much there is of everything.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Client operations a second, of all producers together.
    pub rate: u64,
    /// Producers; each is a client.
    pub producers: u32,
    /// Clients with handlers for everything.
    pub handlers: u32,
    /// Most ms from now until a timer is due.
    pub ahead_ms: u64,
    /// How long slow handlers take.
    pub slow: Duration,
    /// Of a thousand timers, so many have handlers that fail or are too slow.
    pub flaky_per_mille: u32,
    /// Of a thousand timers, so many have slow handlers.
    pub slow_per_mille: u32,
    /// Bytes of each payload, beyond the few that tell timers apart.
    pub payload_bytes: usize,
    /// For random choices.
    pub seed: u64,
}

impl Load {
    /// A load that two processors carry with debug builds, or the full one in long rounds.
    pub fn usual(seed: u64) -> Self {
        let light = Self::light(seed);
        match crate::long() {
            true => Self { rate: 2_400, slow: Duration::from_secs(20), slow_per_mille: 2, ..light },
            false => light,
        }
    }

    /// A load that two processors carry with debug builds.
    pub fn light(seed: u64) -> Self {
        Self {
            rate: 240,
            producers: 2,
            handlers: 3,
            ahead_ms: 5_000,
            slow: Duration::from_secs(4),
            flaky_per_mille: 100,
            slow_per_mille: 4,
            payload_bytes: 0,
            seed,
        }
    }

    /// Flags of brokers that this load is made for.
    pub fn flags() -> Vec<String> {
        ["--retry", "300ms,900ms", "--callback-timeout", "10s"].map(str::to_owned).to_vec()
    }

    /// Begins.
    pub async fn start(self, cluster: &Cluster) -> Work {
        let recorder = Arc::clone(&cluster.recorder);
        let (mut clients, mut registrations, mut producers) = (Vec::new(), Vec::new(), JoinSet::new());
        for number in 0..self.handlers {
            let client = cluster.client(number).await;
            for app in [STEADY, OTHER, FLAKY, SLOW] {
                let recorder = Arc::clone(&recorder);
                let asked = client.clone();
                let handle =
                    move |callback| handle(self, number, asked.clone(), Arc::clone(&recorder), callback);
                registrations.push(client.on(dest(app), handle).expect("a registration"));
            }
            clients.push(client);
        }
        let stop = CancellationToken::new();
        let shared = Arc::new(LoadState {
            load: self,
            recorder: Arc::clone(&recorder),
            stop: stop.clone(),
            next: AtomicU64::new(0),
            known: Mutex::default(),
            done: AtomicU64::new(0),
        });
        let builder = cluster.client_builder(0);
        let connect: Connect = Arc::new(move |number| {
            let builder = builder.clone().software(format!("client-{number}/test"));
            Box::pin(
                async move { builder.connect().await.unwrap_or_else(|e| panic!("client {number}: {e}")) },
            )
        });
        let edges = Edges::start("edges", self.seed, Arc::clone(&recorder), connect).await;
        let mut watches = JoinSet::new();
        for i in cluster.up() {
            let address = cluster.members[i].broker.address();
            watches.spawn(watch_clock(address, Arc::clone(&recorder), stop.clone()));
        }
        let began = host_ms();
        for number in 0..self.producers {
            let client = cluster.client(self.handlers + number).await;
            producers.spawn(produce(Arc::clone(&shared), client.clone(), number));
            clients.push(client);
        }
        Work { clients, registrations, producers, shared, began, edges, watches }
    }
}

/// A load that is under way.
#[derive(Debug)]
pub struct Work {
    clients: Vec<Client>,
    registrations: Vec<Registration>,
    producers: JoinSet<()>,
    shared: Arc<LoadState>,
    began: u64,
    edges: Edges,
    watches: JoinSet<()>,
}

impl Work {
    /// Schedules nothing more; waits for the answers that are missing. Handlers stay.
    pub async fn stop(&mut self) {
        self.shared.stop.cancel();
        // A panic of one is a panic of all.
        std::mem::take(&mut self.producers).join_all().await;
        std::mem::take(&mut self.watches).join_all().await;
        self.edges.stop().await;
        let span = (host_ms() - self.began).max(1);
        let done = self.operations();
        println!("load: {done} client operations in {span} ms, {} a second", done * 1_000 / span);
    }

    /// Client operations that were answered, one way or another.
    pub fn operations(&self) -> u64 {
        self.shared.done.load(Ordering::Relaxed)
    }

    /// A client with handlers.
    pub fn client(&self) -> &Client {
        &self.clients[0]
    }

    /// Ends the clients gracefully.
    pub async fn close(self) {
        drop(self.registrations);
        self.edges.close().await;
        for (number, client) in self.clients.iter().enumerate() {
            println!("client {number}: {:?}", client.stats());
        }
        for client in self.clients {
            client.close().await.expect("a good end");
        }
    }
}

#[derive(Debug)]
struct LoadState {
    load: Load,
    recorder: Arc<Recorder>,
    stop: CancellationToken,
    next: AtomicU64,
    known: Mutex<VecDeque<(Plan, TimerId)>>,
    done: AtomicU64,
}

fn dest(app: &str) -> Destination {
    Destination::new("cluster", app).expect("a destination")
}

/// What one producer does at once.
#[derive(Default)]
struct Turn {
    plans: Vec<Plan>,
    cancels: Vec<(Plan, TimerId)>,
    moves: Vec<(u64, Plan, TimerId)>,
}

async fn produce(shared: Arc<LoadState>, client: Client, number: u32) {
    let load = shared.load;
    let mut rng = StdRng::seed_from_u64(load.seed ^ (u64::from(number) << 32));
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let waiting = Arc::new(Semaphore::new(WAITING));
    let mut calls = JoinSet::new();
    let mut last = tokio::time::Instant::now();
    let mut owed = 0.0;
    while !shared.stop.is_cancelled() {
        ticks.tick().await;
        let now = tokio::time::Instant::now();
        owed += (now - last).as_secs_f64() * load.rate as f64 / f64::from(load.producers);
        last = now;
        // What could not be done in a long pause is not made good.
        let n = (owed as u64).min(load.rate / 10 + 1);
        owed = (owed - n as f64).min(load.rate as f64 / 10.0);
        if n == 0 {
            continue;
        }
        let turn = shared.turn(&mut rng, n);
        let permit = Arc::clone(&waiting).acquire_owned().await.expect("never closed");
        let (shared, client) = (Arc::clone(&shared), client.clone());
        calls.spawn(async move {
            shared.carry_out(&client, turn).await;
            shared.done.fetch_add(n, Ordering::Relaxed);
            drop(permit);
        });
        while let Some(done) = calls.try_join_next() {
            done.expect("a producer's call");
        }
    }
    calls.join_all().await;
}

impl LoadState {
    fn turn(&self, rng: &mut StdRng, n: u64) -> Turn {
        let mut turn = Turn::default();
        let mut chained = false;
        for _ in 0..n {
            match rng.random_range(0..100) {
                0..70 => {
                    let plan = self.plan(rng, &mut chained);
                    self.recorder.plan(plan.clone());
                    turn.plans.push(plan);
                }
                70..85 => turn.cancels.extend(self.some(rng)),
                _ => {
                    let due = host_ms() + rng.random_range(0..self.load.ahead_ms);
                    // A due time after the deadline is refused.
                    let due = |plan: &Plan| due.min(plan.deadline.unwrap_or(due));
                    turn.moves.extend(self.some(rng).map(|(plan, id)| (due(&plan), plan, id)));
                }
            }
        }
        turn
    }

    fn some(&self, rng: &mut StdRng) -> Option<(Plan, TimerId)> {
        let known = self.known.lock().unwrap();
        let n = known.len();
        (n > 0).then(|| known[rng.random_range(0..n)].clone())
    }

    fn plan(&self, rng: &mut StdRng, chained: &mut bool) -> Plan {
        let serial = self.next.fetch_add(1, Ordering::Relaxed);
        // From a millisecond up, as many of each order of magnitude; one in four spread evenly.
        let ahead = self.load.ahead_ms as f64;
        let after = match rng.random_range(0..4) {
            0 => rng.random_range(0..self.load.ahead_ms),
            _ => ahead.powf(rng.random_range(0.0..1.0)) as u64,
        };
        let due = host_ms() + after;
        let (kind, load) = (rng.random_range(0..1_000), self.load);
        let app = match kind {
            k if k < load.slow_per_mille => SLOW,
            k if k < load.slow_per_mille + load.flaky_per_mille => FLAKY,
            k if k % 2 == 0 => STEADY,
            _ => OTHER,
        };
        let mut plan = Plan::new(serial, &dest(app), due, ATTEMPTS, timeout_ms(app));
        plan.filler_bytes += load.payload_bytes;
        if rng.random_range(0..10) == 0 && app != SLOW {
            plan.mode = Mode::AtMostOnce;
        }
        match rng.random_range(0..20) {
            // One that may pass, or one that never should.
            0 if app != SLOW => {
                let after = if rng.random() { rng.random_range(300..3_000) } else { AMPLE_MS };
                plan.deadline = Some(due + after);
            }
            1 => plan.key = Some(Key::new(&format!("key-{serial}")).expect("a key")),
            // One of a turn at most: the order within a request is not the order of the answers.
            2 | 3 if !*chained => {
                *chained = true;
                plan.key = Some(Key::new(&format!("chain-{}", serial % CHAINS)).expect("a key"));
                plan.replaces = true;
            }
            _ => {}
        }
        plan
    }

    async fn carry_out(&self, client: &Client, turn: Turn) {
        let schedules = async {
            let asked = host_ms();
            let schedule = |plan: &Plan| {
                let schedule = plan.schedule().policy(KeyPolicy::Replace);
                schedule.callback_timeout(Duration::from_millis(plan.timeout_ms))
            };
            let results = client.schedule_all(turn.plans.iter().map(schedule).collect()).await;
            for (plan, result) in turn.plans.iter().zip(results) {
                self.recorder.scheduled(plan.serial, asked, &result);
                if let Ok(scheduled) = result {
                    self.know(plan, scheduled.id);
                }
            }
        };
        let cancels = turn.cancels.iter().map(|(plan, id)| async {
            let asked = host_ms();
            self.recorder.cancelled(plan.serial, asked, &client.cancel(*id).await);
        });
        let moves = turn.moves.iter().map(|(due, plan, id)| async {
            let asked = host_ms();
            let result = client.reschedule(*id, Time::from_ms(*due)).await;
            self.recorder.moved(plan.serial, asked, *due, &result);
        });
        let cancels = futures_util::future::join_all(cancels);
        let moves = futures_util::future::join_all(moves);
        tokio::join!(schedules, cancels, moves);
    }

    fn know(&self, plan: &Plan, id: TimerId) {
        let mut known = self.known.lock().unwrap();
        known.push_back((plan.clone(), id));
        if known.len() > KNOWN {
            known.pop_front();
        }
    }
}

fn timeout_ms(app: &str) -> u64 {
    match app {
        FLAKY => SHORT_TIMEOUT_MS,
        SLOW => LONG_TIMEOUT_MS,
        _ => TIMEOUT_MS,
    }
}

async fn handle(
    load: Load,
    number: u32,
    client: Client,
    recorder: Arc<Recorder>,
    callback: Callback,
) -> Outcome {
    let Some(plan) = recorder.delivered_to(number, &client, &callback) else { return Outcome::ok() };
    behaviour(load, &plan, callback.attempt).carry_out(&recorder, &plan, &callback).await
}

fn behaviour(load: Load, plan: &Plan, attempt: u32) -> Behaviour {
    match plan.dest.app() {
        SLOW => Behaviour { takes: load.slow, says: Handled::Ok },
        FLAKY => Behaviour::flaky(load.seed, plan, attempt),
        _ => Behaviour::GOOD,
    }
}
