//! What every scene here has: a cluster, its load, and the verdict in the end.

use std::time::{Duration, Instant};

use mtimer_tests::{
    Cluster, Event, Excuse, Figures, Final, History, Load, RedisKind, Said, Setup, Verdict, Work, host_ms,
    judge, long, print_violations, seed, wait_for,
};

/// How long things may take that have no bound in the contract: a loaded machine is slow.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// How long the end of a long run may take.
const DRAIN: Duration = Duration::from_secs(300);
/// A timer that waits for longer than this, without a fault, has been forgotten.
const LIVENESS_MS: u64 = 60_000;
/// One that waits for longer than this while many others do not has been starved, ms.
const STARVING_MS: u64 = 15_000;

/// How far a broker's clock may be from the host's, ms: all have the same one.
const CLOCK_MS: u64 = 500;

/// Adds longer timeouts than the defaults: fast rounds run beside other tests, on machines that do
/// other things, and a broker that is alive and slow is not to be taken for dead. How soon the
/// successors of a killed broker take over does not depend on them. Long rounds run alone, with
/// default settings.
fn with_long_timeouts(flags: &[String]) -> Vec<String> {
    let more = [["--peer-timeout", "4s"], ["--handover-timeout", "10s"]];
    let unset = |flag: &[&str; 2]| !long() && !flags.iter().any(|f| f == flag[0]);
    more.into_iter().filter(unset).flatten().map(str::to_owned).collect()
}

/// Rounds of what is repeated.
pub(crate) fn rounds() -> u32 {
    if long() { 10 } else { 1 }
}

/// The first in fast rounds, the second in long ones.
pub(crate) fn either(fast: u64, slow: u64) -> Duration {
    Duration::from_secs(if long() { slow } else { fast })
}

/// A cluster under load.
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) cluster: Cluster,
    pub(crate) work: Work,
    began: Instant,
}

/// How it came out.
pub(crate) struct Outcome {
    pub(crate) history: History,
    pub(crate) verdict: Verdict,
}

impl Scene {
    /// Three brokers, unless the setup says otherwise.
    pub(crate) async fn begin(name: &'static str, setup: Setup) -> Self {
        let load = Load::usual(seed(name));
        Self::begin_with(name, setup, load).await
    }

    pub(crate) async fn begin_with(name: &'static str, mut setup: Setup, load: Load) -> Self {
        let began = Instant::now();
        setup.flags.extend(Load::flags());
        setup.flags.extend(with_long_timeouts(&setup.flags));
        let cluster = Cluster::start(setup).await;
        let work = load.start(&cluster).await;
        let scene = Self { name, cluster, work, began };
        scene.flows().await;
        println!("{name}: under load after {:?}", scene.began.elapsed());
        scene
    }

    /// Waits until timers are scheduled and delivered.
    pub(crate) async fn flows(&self) {
        let (deliveries, operations) = (self.cluster.recorder.deliveries(), self.work.operations());
        let more = async || {
            self.cluster.recorder.deliveries() > deliveries + 200 && self.work.operations() > operations + 200
        };
        wait_for("operations and deliveries", TIMEOUT, more).await;
    }

    /// Notes what was done since `from` and is over.
    pub(crate) fn note(&self, from: u64, what: impl Into<String>, excuse: Excuse) {
        self.cluster.note(from, format!("{}: {}", self.name, what.into()), excuse);
    }

    /// Ends the load, waits for the end of everything, and decides: nothing may be broken.
    pub(crate) async fn end(self) -> Outcome {
        let name = self.name;
        let outcome = self.decide(DRAIN).await;
        let violations = &outcome.verdict.violations;
        assert!(violations.is_empty(), "{name}: {} violations, the first are above", violations.len());
        outcome
    }

    /// The same; whoever asks looks at the verdict.
    pub(crate) async fn decide(mut self, drain: Duration) -> Outcome {
        self.work.stop().await;
        let (mut history, end) = self.cluster.finish(self.work.client(), drain).await;
        history.limits.liveness_ms = Some(LIVENESS_MS);
        history.limits.starving_ms = Some(STARVING_MS);
        history.limits.clock_ms = Some(CLOCK_MS);
        let Self { name, work, began, mut cluster } = self;
        tell(name, &history, &end);
        println!("{name}: drained after {:?}", began.elapsed());
        work.close().await;
        let verdict = judge(&history, &end);
        print_violations(name, &verdict.violations);
        // They stop all at once, as those do who end a cluster.
        for member in cluster.up().collect::<Vec<_>>() {
            cluster.kill(member);
        }
        Outcome { history, verdict }
    }
}

fn tell(name: &str, history: &History, end: &Final) {
    println!("{name}:\n{}", Figures::of(history, end));
    let failed = failed(history);
    println!("  failed client calls: {}", failed.len());
    failed.iter().take(5).for_each(|(serial, event)| println!("    timer {serial}: {event:?}"));
}

/// Calls that were not answered as hoped, with the timers' numbers.
pub(crate) fn failed(history: &History) -> Vec<(u64, &Event)> {
    let bad = |said: &Said| matches!(said, Said::Refused | Said::Unknown);
    let is_bad = |event: &Event| match event {
        Event::Schedule { said, .. }
        | Event::Cancel { said, .. }
        | Event::Move { said, .. }
        | Event::Replay { said, .. }
        | Event::Purge { said, .. } => bad(said),
        _ => false,
    };
    history.events.iter().filter(|(_, e)| is_bad(e)).map(|(serial, e)| (*serial, e)).collect()
}

/// Three brokers on three Redis masters.
pub(crate) fn on_masters() -> Setup {
    Setup::default()
}

/// The same with metrics of each broker.
pub(crate) fn with_http(mut setup: Setup) -> Setup {
    setup.flags.extend(["--http", "127.0.0.1:0"].map(str::to_owned));
    setup
}

/// Three brokers on one Redis.
pub(crate) fn on_one() -> Setup {
    Setup { redis: RedisKind::One, ..Setup::default() }
}

/// Now, for [`Scene::note`].
pub(crate) fn now() -> u64 {
    host_ms()
}
