//! Edge cases as load, beside the ordinary load: requests that cross deliveries.
//!
//! Purpose: deadlines that pass while a timer waits for credit, cancels that cross deliveries and
//! retries, replaces at the due time, clients that leave, dead letters that are replayed and
//! purged, repeats of ended timers, and brokers that are asked for the time.
//! Invariant: everything is recorded; what is undecided when an answer is missing is recorded as
//! unknown. What is queued and what waits for answers is bounded.
//! Not in here: the verdict (see [`judge`](crate::judge)).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use mtimer_client::{
    Callback, Cancelled, Client, DeadFilter, Destination, Key, KeyPolicy, Mode, Outcome, Registration,
    Schedule, Target, TimerId, TimerState,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::behaviour::Behaviour;
use crate::check::HOP_MS;
use crate::history::{Event, Handled};
use crate::host_ms;
use crate::plan::{Plan, serial_of};
use crate::recorder::Recorder;

/// The first serial number; those of the ordinary load are below.
const FIRST_SERIAL: u64 = 1 << 40;
/// The first number of a client; those of the ordinary load are below.
const FIRST_CLIENT: u32 = 1_000;
/// Cancels that wait to be sent or for their answers: more are not tried.
const CANCELS: usize = 200;
/// Keys that are replaced at the due time.
const SWAPS: u64 = 2;
/// Dead letters that are replayed or purged at a time.
const KEPT_AT_ONCE: usize = 20;
/// Attempts, by the brokers' `--retry` of the tests that use this load.
const ATTEMPTS: u32 = 3;
/// Callback timeout of every timer, ms.
const TIMEOUT_MS: u64 = 10_000;
/// How long a handler of the crowded destination takes: 3 at once take 20 a second.
const SLOW: Duration = Duration::from_millis(150);
/// Handlers of the crowded destination that run at once: one for each of three brokers.
const CROWDED_CREDIT: u32 = 3;
/// Delay before the second attempt of timers that are to be stopped: longer than any run.
const LONG_RETRY: Duration = Duration::from_secs(24 * 3_600);
/// Timers that are to be stopped and of which it is not known yet whether they were.
const STOPPING: usize = 100;
/// Timers that come at once for the crowded destination, and how often.
const CROWD: u64 = 50;
const CROWD_EVERY: Duration = Duration::from_millis(2_500);

const CROWDED: &str = "crowded";
const CROSSED: &str = "crossed";
const STOPPED: &str = "stopped";
const SWAPPED: &str = "swapped";
const VISITED: &str = "visited";

/// Makes clients that know every broker.
pub type Connect = Arc<dyn Fn(u32) -> BoxFuture<'static, Client> + Send + Sync>;

/// The load, under way.
pub struct Edges {
    shared: Arc<EdgesState>,
    tasks: JoinSet<()>,
    handlers: Client,
    registrations: Vec<Registration>,
    visitor: tokio::task::JoinHandle<(Client, Registration)>,
}

impl std::fmt::Debug for Edges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Edges").finish_non_exhaustive()
    }
}

struct EdgesState {
    group: String,
    seed: u64,
    recorder: Arc<Recorder>,
    connect: Connect,
    stop: CancellationToken,
    next_serial: AtomicU64,
    next_client: AtomicU32,
    cancels: mpsc::Sender<Cancel>,
}

/// A cancel to be sent.
struct Cancel {
    plan: Plan,
    id: TimerId,
    after: Duration,
}

impl Edges {
    /// Starts it. `group` names its destinations.
    pub async fn start(group: &str, seed: u64, recorder: Arc<Recorder>, connect: Connect) -> Self {
        let (cancels, waiting) = mpsc::channel(CANCELS);
        let shared = Arc::new(EdgesState {
            group: group.to_owned(),
            seed,
            recorder,
            connect,
            stop: CancellationToken::new(),
            next_serial: AtomicU64::new(FIRST_SERIAL),
            next_client: AtomicU32::new(FIRST_CLIENT),
            cancels,
        });
        let (number, handlers) = shared.client().await;
        let mut registrations = Vec::new();
        for (app, credit) in [(CROWDED, CROWDED_CREDIT), (CROSSED, 30), (STOPPED, 30), (SWAPPED, 30)] {
            let shared = Arc::clone(&shared);
            let dest = shared.dest(app);
            let asked = handlers.clone();
            let take = move |callback| handle(Arc::clone(&shared), number, asked.clone(), callback);
            let registration = handlers.register(dest).concurrency(credit).on(take);
            registrations.push(registration.expect("a registration"));
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(crowd(Arc::clone(&shared)));
        tasks.spawn(cross(Arc::clone(&shared)));
        tasks.spawn(stop(Arc::clone(&shared)));
        tasks.spawn(keep(Arc::clone(&shared)));
        tasks.spawn(cancel(Arc::clone(&shared), waiting));
        tasks.spawn(call_on_visitors(Arc::clone(&shared)));
        for chain in 0..SWAPS {
            tasks.spawn(swap(Arc::clone(&shared), chain));
        }
        let visitor = tokio::spawn(visit(Arc::clone(&shared)));
        Self { shared, tasks, handlers, registrations, visitor }
    }

    /// Schedules nothing more and waits for the answers that are missing. Handlers stay.
    pub async fn stop(&mut self) {
        self.shared.stop.cancel();
        std::mem::take(&mut self.tasks).join_all().await;
    }

    /// Ends the handlers, when everything has been delivered.
    pub async fn close(self) {
        drop(self.registrations);
        let (visitor, registration) = self.visitor.await.expect("a visitor");
        drop(registration);
        for client in [self.handlers, visitor] {
            client.close().await.expect("a good end");
        }
    }
}

impl EdgesState {
    async fn client(&self) -> (u32, Client) {
        let number = self.next_client.fetch_add(1, Ordering::Relaxed);
        (number, (self.connect)(number).await)
    }

    fn dest(&self, app: &str) -> Destination {
        Destination::new(&self.group, app).expect("a destination")
    }

    fn rng(&self, what: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed.wrapping_mul(37).wrapping_add(what))
    }

    fn plan(&self, app: &str, due: u64) -> Plan {
        let serial = self.next_serial.fetch_add(1, Ordering::Relaxed);
        Plan::new(serial, &self.dest(app), due, ATTEMPTS, TIMEOUT_MS)
    }

    /// Schedules them; the ids of those that are stored for certain, in order.
    async fn schedule(&self, client: &Client, plans: &[Plan]) -> Vec<Option<TimerId>> {
        plans.iter().for_each(|plan| self.recorder.plan(plan.clone()));
        let asked = host_ms();
        let schedule = |plan: &Plan| {
            let timeout = Duration::from_millis(plan.timeout_ms);
            plan.schedule().policy(KeyPolicy::Replace).callback_timeout(timeout)
        };
        let answers = client.schedule_all(plans.iter().map(schedule).collect()).await;
        let record = |(plan, answer): (&Plan, Result<mtimer_client::Scheduled, _>)| {
            self.recorder.scheduled(plan.serial, asked, &answer);
            answer.ok().map(|scheduled| scheduled.id)
        };
        plans.iter().zip(answers).map(record).collect()
    }

    async fn pause(&self, ms: u64) {
        let _ = self.stop.run_until_cancelled(tokio::time::sleep(Duration::from_millis(ms))).await;
    }

    /// Schedules a timer, cancels it at `cancel_at`, looks whether that ended it, and sees to it
    /// that it ends.
    async fn stop_one(&self, client: &Client, plan: Plan, schedule: Schedule, cancel_at: u64) {
        let asked = host_ms();
        let answer = client.schedule(schedule).await;
        self.recorder.scheduled(plan.serial, asked, &answer);
        let key = plan.key.as_ref().expect("a key");
        let target = answer.map_or_else(|_| Target::from((&plan.dest, key)), |s| Target::Id(s.id));
        tokio::time::sleep(Duration::from_millis(cancel_at.saturating_sub(host_ms()))).await;
        loop {
            let asked = host_ms();
            let said = client.cancel(target.clone()).await;
            self.recorder.cancelled(plan.serial, asked, &said);
            match said {
                Ok(Cancelled::TooLate(_)) => {}
                Ok(_) => return,
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            }
            // No handler has it any more when this is over.
            tokio::time::sleep(Duration::from_millis(HOP_MS + 500)).await;
            let view = match client.get(target.clone()).await {
                Ok(Some(view)) => view,
                Ok(None) => return,
                Err(_) => continue,
            };
            self.recorder.add(plan.serial, Event::Looked { at: host_ms(), state: view.state });
            if matches!(view.state, TimerState::Dead | TimerState::Unconfirmed) {
                return;
            }
        }
    }

    /// Has a timer cancelled, unless too many cancels wait already.
    fn cancel_soon(&self, plan: &Plan, id: TimerId, after: Duration) {
        if !self.stop.is_cancelled() {
            let _ = self.cancels.try_send(Cancel { plan: plan.clone(), id, after });
        }
    }
}

/// More timers than the handlers can take before the deadlines; some schedules are repeated when
/// their timers may have ended.
async fn crowd(shared: Arc<EdgesState>) {
    let mut rng = shared.rng(1);
    let (_, client) = shared.client().await;
    let mut repeats = JoinSet::new();
    while !shared.stop.is_cancelled() {
        let due = host_ms() + rng.random_range(1..400);
        let mut plans: Vec<Plan> = (0..CROWD).map(|_| shared.plan(CROWDED, due)).collect();
        for plan in &mut plans {
            plan.crowded = true;
            plan.deadline = Some(due + rng.random_range(200..3_000));
            if rng.random_range(0..3) == 0 {
                plan.mode = Mode::AtMostOnce;
            }
        }
        // One that is repeated under its own id.
        let one = plans.pop().expect("a crowd");
        shared.recorder.plan(one.clone());
        let timeout = Duration::from_millis(one.timeout_ms);
        if let Ok((_, schedule)) = client.prepare(one.schedule().callback_timeout(timeout)) {
            let (shared, client) = (Arc::clone(&shared), client.clone());
            repeats.spawn(async move {
                let asked = host_ms();
                let answer = client.schedule(schedule.clone()).await;
                shared.recorder.scheduled(one.serial, asked, &answer);
                let past = one.deadline.unwrap_or(due).saturating_sub(host_ms()) + 50;
                shared.pause(past).await;
                if answer.is_ok() && one.deadline.is_some_and(|deadline| deadline < host_ms()) {
                    shared.recorder.repeated(one.serial, &client.schedule(schedule).await);
                }
            });
        }
        shared.schedule(&client, &plans).await;
        while repeats.try_join_next().is_some() {}
        shared.pause(CROWD_EVERY.as_millis() as u64).await;
    }
    repeats.join_all().await;
    client.close().await.expect("a good end");
}

/// Timers that are cancelled around their due time, or while a handler has them.
async fn cross(shared: Arc<EdgesState>) {
    let mut rng = shared.rng(2);
    let (_, client) = shared.client().await;
    while !shared.stop.is_cancelled() {
        let due = host_ms() + rng.random_range(10..80);
        let mut plan = shared.plan(CROSSED, due);
        if rng.random_range(0..10) < 3 {
            plan.mode = Mode::AtMostOnce;
        }
        if rng.random() {
            plan.key = Some(Key::new(&format!("crossed-{}", plan.serial)).expect("a key"));
        }
        let stored = shared.schedule(&client, std::slice::from_ref(&plan)).await;
        if let Some(id) = stored[0].filter(|_| rng.random_range(0..3) == 0) {
            let at = due + rng.random_range(0..10);
            let after = Duration::from_millis(at.saturating_sub(host_ms() + 5));
            shared.cancel_soon(&plan, id, after);
        }
        shared.pause(rng.random_range(30..100)).await;
    }
    client.close().await.expect("a good end");
}

/// Timers whose handlers ask for a retry a day later, each cancelled around its delivery: the
/// cancel ends them all.
async fn stop(shared: Arc<EdgesState>) {
    let mut rng = shared.rng(6);
    let (_, client) = shared.client().await;
    let mut stopping = JoinSet::new();
    while !shared.stop.is_cancelled() {
        while stopping.len() >= STOPPING {
            stopping.join_next().await;
        }
        while stopping.try_join_next().is_some() {}
        let due = host_ms() + rng.random_range(5..60);
        let mut plan = shared.plan(STOPPED, due);
        plan.attempts = 2;
        plan.key = Some(Key::new(&format!("stopped-{}", plan.serial)).expect("a key"));
        shared.recorder.plan(plan.clone());
        let timeout = Duration::from_millis(plan.timeout_ms);
        let schedule = plan.schedule().callback_timeout(timeout).retry([LONG_RETRY]);
        let cancel_at = due + rng.random_range(0..30);
        let (owned, client) = (Arc::clone(&shared), client.clone());
        stopping.spawn(async move { owned.stop_one(&client, plan, schedule, cancel_at).await });
        shared.pause(rng.random_range(30..120)).await;
    }
    stopping.join_all().await;
    client.close().await.expect("a good end");
}

/// At-most-once timers under one key: each is replaced by the next around its due time.
async fn swap(shared: Arc<EdgesState>, chain: u64) {
    let mut rng = shared.rng(100 + chain);
    let (_, client) = shared.client().await;
    while !shared.stop.is_cancelled() {
        let due = host_ms() + rng.random_range(30..200);
        let mut plan = shared.plan(SWAPPED, due);
        plan.mode = Mode::AtMostOnce;
        plan.key = Some(Key::new(&format!("swap-{chain}")).expect("a key"));
        plan.replaces = true;
        shared.schedule(&client, std::slice::from_ref(&plan)).await;
        let next = (due + rng.random_range(0..8)).saturating_sub(host_ms() + 4);
        shared.pause(next).await;
    }
    client.close().await.expect("a good end");
}

/// Timers for clients that come and go.
async fn call_on_visitors(shared: Arc<EdgesState>) {
    let mut rng = shared.rng(3);
    let (_, client) = shared.client().await;
    while !shared.stop.is_cancelled() {
        let mut plan = shared.plan(VISITED, host_ms() + rng.random_range(1..500));
        plan.crowded = true;
        if rng.random_range(0..10) < 3 {
            plan.mode = Mode::AtMostOnce;
        }
        if rng.random_range(0..10) < 3 {
            plan.deadline = Some(plan.due + rng.random_range(100..3_000));
        }
        let stored = shared.schedule(&client, std::slice::from_ref(&plan)).await;
        if let Some(id) = stored[0].filter(|_| rng.random_range(0..3) == 0) {
            let at = plan.due + rng.random_range(0..10);
            let after = Duration::from_millis(at.saturating_sub(host_ms() + 5));
            shared.cancel_soon(&plan, id, after);
        }
        shared.pause(rng.random_range(80..250)).await;
    }
    client.close().await.expect("a good end");
}

/// A client that comes and goes, and stays once the load has stopped.
async fn visit(shared: Arc<EdgesState>) -> (Client, Registration) {
    let mut rng = shared.rng(4);
    loop {
        let (number, client) = shared.client().await;
        let (owned, asked) = (Arc::clone(&shared), client.clone());
        let take = move |callback| handle(Arc::clone(&owned), number, asked.clone(), callback);
        let dest = shared.dest(VISITED);
        let registration = client.register(dest).concurrency(30).on(take).expect("a registration");
        shared.pause(rng.random_range(300..2_500)).await;
        if shared.stop.is_cancelled() {
            return (client, registration);
        }
        registration.stop().await;
        if let Err(unsettled) = client.close().await {
            // A broker was cut off from the store for longer than a client waits. The checker sees
            // whether the timers are delivered again.
            println!("a visitor has left: {unsettled}");
        }
        shared.pause(rng.random_range(500..2_000)).await;
    }
}

/// Lists dead letters and unconfirmed timers, replays some and purges some.
async fn keep(shared: Arc<EdgesState>) {
    let mut rng = shared.rng(5);
    let (_, client) = shared.client().await;
    while !shared.stop.is_cancelled() {
        shared.pause(rng.random_range(500..1_500)).await;
        let filter = DeadFilter { group: rng.random::<bool>().then(|| shared.group.clone()), app: None };
        let (Ok(dead), Ok(unconfirmed)) =
            (client.dead(filter).page(100).all().await, client.unconfirmed().page(100).all().await)
        else {
            continue;
        };
        let timers = dead.into_iter().map(|row| row.timer).chain(unconfirmed.into_iter().map(|r| r.timer));
        // A replay of one that is to be stopped would wait for its next attempt for a day.
        let timers = timers.filter(|timer| timer.dest.app() != STOPPED);
        let mut rows: Vec<_> = timers.map(|timer| (serial_of(&timer.payload), timer.id)).collect();
        for _ in 0..KEPT_AT_ONCE.min(rows.len()) {
            let (serial, id) = rows.swap_remove(rng.random_range(0..rows.len()));
            // A row without a number is found at the end.
            let Some(serial) = serial else { continue };
            let asked = host_ms();
            match rng.random_range(0..3) {
                0 => shared.recorder.replayed(serial, asked, &client.replay(id).await),
                1 => {
                    let before = client.stats().repeated;
                    let result = client.purge(id).await;
                    let is_repeated = client.stats().repeated > before;
                    shared.recorder.purged(serial, asked, &result, is_repeated);
                }
                _ => {}
            }
        }
    }
    client.close().await.expect("a good end");
}

/// Sends the cancels, each at its time.
async fn cancel(shared: Arc<EdgesState>, mut waiting: mpsc::Receiver<Cancel>) {
    let (_, client) = shared.client().await;
    let mut sent = JoinSet::new();
    while let Some(Some(Cancel { plan, id, after })) = shared.stop.run_until_cancelled(waiting.recv()).await {
        while sent.len() >= CANCELS {
            sent.join_next().await;
        }
        while sent.try_join_next().is_some() {}
        let (shared, client) = (Arc::clone(&shared), client.clone());
        sent.spawn(async move {
            tokio::time::sleep(after).await;
            let asked = host_ms();
            shared.recorder.cancelled(plan.serial, asked, &client.cancel(id).await);
        });
    }
    sent.join_all().await;
    client.close().await.expect("a good end");
}

async fn handle(shared: Arc<EdgesState>, number: u32, client: Client, callback: Callback) -> Outcome {
    let Some(plan) = shared.recorder.delivered_to(number, &client, &callback) else { return Outcome::ok() };
    let salt = plan.serial << 8 | u64::from(callback.attempt);
    let mut rng = shared.rng(salt);
    let behaviour = match plan.dest.app() {
        CROWDED => Behaviour { takes: SLOW, says: Handled::Ok },
        CROSSED => {
            let takes = Duration::from_millis(rng.random_range(0..20));
            let says = match rng.random_range(0..10) {
                0..6 => Handled::Retry,
                6..8 => Handled::Fail,
                _ => Handled::Ok,
            };
            if rng.random() {
                let after = Duration::from_millis(rng.random_range(0..25));
                shared.cancel_soon(&plan, callback.id, after);
            }
            Behaviour { takes, says }
        }
        STOPPED => {
            let takes = Duration::from_millis(rng.random_range(0..20));
            Behaviour { takes, says: Handled::Retry }
        }
        _ => Behaviour { takes: Duration::from_millis(rng.random_range(0..5)), says: Handled::Ok },
    };
    behaviour.carry_out(&shared.recorder, &plan, &callback).await
}

/// Asks a broker for the time every so often, until it is stopped.
pub async fn watch_clock(address: String, recorder: Arc<Recorder>, stop: CancellationToken) {
    const EVERY: Duration = Duration::from_secs(1);
    while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        if let Some(reading) = crate::Wire::clock(&address).await {
            recorder.clock(reading);
        }
    }
}
