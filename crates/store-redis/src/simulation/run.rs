//! Random calls to an owner, compared with the model of the conformance suite after each.
//!
//! The model shares no code with the owner. Where an answer may differ from the model's is said at
//! [`Run::agree`].

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use mtimer_store::conformance::arbitrary::target;
use mtimer_store::conformance::model::Model;
use mtimer_store::conformance::properties::may_retain;
use mtimer_store::conformance::{SeededRandom, properties};
use mtimer_store::ops::{BeginBulk, BulkAct, BulkAdvance, Cancel, Purge, Settle, SettleAnswer, StopBulk};
use mtimer_store::{
    Acquire, Answer, Batch, BulkJob, BulkPlace, CancelAnswer, Health, LaneError, Load, LoadedTimer, Op,
    Refusal, RequestId, Verdict,
};
use mtimer_types::{
    Bulk, BulkAction, BulkId, Destination, Epoch, Filter, ImportId, Key, Nonce, Target, Term, Time, Timer,
    TimerId, limits,
};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::arbitrary::{DAY, HOUR, PARTITION, SECOND, arbitrary_timer};
use super::server::{Simulated, faults_by_kind};
use crate::keyspace::secret::Secret;
use crate::partition::acquire::{Shared, acquire};
use crate::partition::handed::HandedOver;
use crate::partition::log::LogBudget;
use crate::partition::owner::Owner;
use crate::partition::shortage::Quorum;
use crate::partition::trim::Trimming;

/// Seeds that a test runs when the environment does not say otherwise.
const SEEDS: u64 = 100;
/// Calls of one run.
const CALLS: usize = 60;
/// Timers of one run, and how many a call can name: the window moves along.
const TIMERS: usize = 48;
const WINDOW: u64 = 14;
pub(super) const START: u64 = 1_700_000_000_000;
/// Longer than outcomes are remembered.
pub(super) const FORGET: u64 = 150 * SECOND;
/// How far the server's clock may be off, ms: further than outcomes are remembered.
const AHEAD: u64 = 200 * SECOND;
/// One call to the server in so many goes wrong.
pub(super) const ONE_IN: u64 = 4;

pub(super) type Check<T = ()> = Result<T, String>;

/// How a store is used.
#[derive(Clone, Copy)]
pub(super) struct Level {
    /// A replica follows, and lags; `WAIT` counts as since Redis 7.2, or as before.
    follower: Option<bool>,
    /// Level `redis-replicated`.
    is_replicated: bool,
    log_bytes: usize,
}

impl Level {
    /// No replica ever confirms, so the log keeps everything.
    const UNTRIMMED: Self = Self { follower: None, is_replicated: false, log_bytes: usize::MAX };

    fn arbitrary(seed: u64) -> Self {
        let mut random = SeededRandom::new(seed.rotate_left(32));
        if random.one_in(3) {
            return Self::UNTRIMMED;
        }
        let (follower, is_replicated) = (Some(!random.one_in(3)), random.one_in(2));
        Self { follower, is_replicated, log_bytes: random.pick(&[1_500, 6_000, usize::MAX]) }
    }
}

/// A run under way.
pub(super) struct Run {
    /// Chooses when the log is trimmed.
    trims: SeededRandom,
    pub(super) server: Simulated,
    pub(super) shared: Shared,
    pub(super) owner: Owner,
    pub(super) model: Model,
    pub(super) random: SeededRandom,
    pub(super) now: Time,
    pub(super) timers: Vec<Timer>,
    /// Cancels and reschedules of this run, to repeat them.
    pub(super) asked: Vec<Op>,
    /// Timers that the owner has in memory, and when they fire.
    pub(super) wheel: BTreeMap<TimerId, Time>,
    pub(super) horizon: Time,
    pub(super) log: Vec<String>,
}

pub(super) fn same<T: PartialEq + Debug>(what: &str, store: &T, model: &T) -> Check {
    if store == model {
        return Ok(());
    }
    Err(format!("{what}:\n  the store says {store:?}\n  the model says {model:?}"))
}

pub(super) fn alive<T>(result: Result<T, LaneError>) -> Check<T> {
    result.map_err(|error| format!("the lane has ended: {error}"))
}

/// Acquires the partition at the record that is stored.
pub(super) async fn acquire_next(
    server: &Simulated,
    shared: &Shared,
    expected: Epoch,
    floor: Epoch,
    random: &mut SeededRandom,
) -> Result<Owner, String> {
    let (health, _) = watch::channel(Health::Up);
    let nonce = Nonce(random.next_u64());
    let term = Term(server.state().now);
    let request = Acquire { partition: PARTITION, expected, floor, nonce, term, version: expected.0 };
    server.state().acquired();
    let calm = std::mem::take(&mut server.state().one_in);
    let owner = acquire(shared, request, health, CancellationToken::new()).await;
    let mut state = server.state();
    state.acquired();
    state.one_in = calm;
    owner.map(|(owner, _)| owner).map_err(|error| error.to_string())
}

impl Run {
    pub(super) async fn new(seed: u64, one_in: u64) -> Check<Self> {
        Self::at(seed, one_in, Level::UNTRIMMED).await
    }

    pub(super) async fn at(seed: u64, one_in: u64, level: Level) -> Check<Self> {
        let mut random = SeededRandom::new(seed);
        // The owner goes by another clock than its server's.
        let server = Simulated::new(random.next_u64(), random.pick(&[START, START + AHEAD, START - AHEAD]));
        let shared = Shared {
            network: Arc::new(server.clone()),
            cluster: "c".into(),
            secret: Secret::new([7; Secret::BYTES]),
            log_budget: Arc::new(LogBudget::new(level.log_bytes)),
            trimming: Trimming {
                replicas: Arc::new(server.clone()),
                network: Arc::new(server.clone()),
                began: Instant::now(),
            },
            counting: Arc::new(Semaphore::new(1)),
            quorum: level.is_replicated.then(|| Quorum {
                confirmations: Arc::new(server.clone()),
                replicas: 1,
                shortage: Arc::default(),
            }),
        };
        server.state().one_in = one_in;
        if let Some(counts_own_writes) = level.follower {
            server.state().add_follower(counts_own_writes);
        }
        let owner = acquire_next(&server, &shared, Epoch(0), Epoch(0), &mut random).await?;
        let mut model = Model::default();
        model.acquired(owner.epoch());
        let now = Time::from_ms(START);
        let timers = (0..TIMERS).map(|_| arbitrary_timer(&mut random, now)).collect();
        let (wheel, horizon) = (BTreeMap::new(), Time::ZERO);
        let (asked, log) = (Vec::new(), Vec::new());
        let trims = SeededRandom::new(seed);
        Ok(Self { trims, server, shared, owner, model, random, now, timers, asked, wheel, horizon, log })
    }

    pub(super) fn pass(&mut self, ms: u64) {
        self.now = self.now + ms;
        self.server.state().now += ms;
    }

    /// Random calls.
    pub(super) async fn calls(&mut self, count: usize) -> Check {
        for call in 0..count {
            let window = (call * (TIMERS - WINDOW as usize) / count) as u64;
            let ms = 20 + self.random.below(30);
            self.pass(ms);
            if self.trims.one_in(2) {
                // The owner may be behind: the next call tells.
                let _ = self.owner.trimmer.round().await;
            }
            if self.trims.one_in(3) {
                alive(self.owner.count_some().await)?;
            }
            match self.random.below(100) {
                0..66 => self.batch(window).await?,
                66..80 => self.load().await?,
                80..84 => self.unload().await?,
                84..91 => {
                    let timer = self.timer(window);
                    let target = target(&mut self.random, &timer);
                    self.get(&target).await?;
                }
                91..95 => self.take_over().await?,
                95 => {
                    self.log.push("outcomes are forgotten".into());
                    self.pass(FORGET);
                    self.model.forget_ended();
                    self.asked.clear();
                }
                _ => self.check().await?,
            }
        }
        self.check().await
    }

    pub(super) fn timer(&mut self, window: u64) -> Timer {
        self.timers[(window + self.random.below(WINDOW)) as usize].clone()
    }

    async fn batch(&mut self, window: u64) -> Check {
        let mut ops: Vec<Op> = Vec::new();
        for _ in 0..1 + self.random.below(6) {
            let op = self.op(window);
            // Of those that die at the same time nobody knows which is the oldest.
            if !(may_retain(&op) && ops.iter().any(may_retain)) {
                ops.push(op);
            }
        }
        let ahead = self.random.pick(&[0, SECOND, 120 * SECOND]);
        let claim = self.random.one_in(4).then(|| self.now + ahead);
        self.apply(claim, ops).await
    }

    /// Applies a batch, and compares its answers.
    pub(super) async fn apply(&mut self, claim: Option<Time>, ops: Vec<Op>) -> Check {
        self.log.push(format!("now {}, claim {claim:?}, apply {ops:?}", self.now));
        let before = self.server.state().happened;
        let (began, was_away) = (Instant::now(), self.owner.is_down());
        let batch = Batch { now: self.now, claim, ops: ops.clone() };
        let answers = alive(self.owner.apply(batch, HandedOver::now()).await)?;
        let after = self.server.state().happened;
        self.log.push(format!("{answers:?}, {after:?}"));
        self.model.claim(claim);
        let in_doubt = after.doubts > before.doubts;
        for (op, answer) in ops.iter().zip(&answers) {
            let mut next = self.model.clone();
            let expected = next.apply(self.now, op);
            if *answer == Answer::Refused(Refusal::NotReplicated) {
                // It is stored.
                self.model = next;
                continue;
            }
            if let Answer::Refused(why) = answer {
                let adds = properties::adds(op) || expected == Answer::Cancel(CancelAnswer::NotFound);
                // Client requests do not wait for a store that is away.
                let is_away = *why == Refusal::ReadOnly
                    && properties::is_asked_for(op)
                    && (was_away || began.elapsed() >= Duration::from_millis(limits::AWAY_MS));
                if is_away {
                    continue;
                }
                if !adds || after.refusals == before.refusals || *why == Refusal::MayEvict {
                    return Err(format!("{op:?} was refused: {why}"));
                }
                continue;
            }
            self.agree(op, answer, &expected, in_doubt)?;
            self.model = next;
        }
        self.follow();
        self.is_confirmed(&ops, &answers)
    }

    /// Checks that at level `redis-replicated` the replica has every write that is answered as
    /// done.
    fn is_confirmed(&self, ops: &[Op], answers: &[Answer]) -> Check {
        let is_done =
            |(op, answer): (&Op, &Answer)| properties::waits(op) && !matches!(answer, Answer::Refused(_));
        if self.shared.quorum.is_none() || !ops.iter().zip(answers).any(is_done) {
            return Ok(());
        }
        same("whether the replica has what was answered", &self.server.state().has_followed(), &true)
    }

    /// Whether a lane may end as it has: the log had to drop writes, and said so.
    fn may_have_lost(&self, why: &str) -> bool {
        let lost = LaneError::RolledBack(PARTITION).to_string();
        why.contains(&lost) && self.shared.log_budget.status().at_risk_since.is_some()
    }

    /// Compares an answer with the model's. An acknowledgement that is written blind, and whose
    /// answer was lost or that was cut off half way, finds its timer gone the second time: nobody
    /// can tell any more who has removed it.
    fn agree(&self, op: &Op, answer: &Answer, expected: &Answer, in_doubt: bool) -> Check {
        let is_blind = matches!(op, Op::Settle(Settle { verdict: Verdict::Ack, timer: Some(_), .. }));
        if is_blind
            && in_doubt
            && (answer, expected)
                == (&Answer::Settle(SettleAnswer::Gone), &Answer::Settle(SettleAnswer::Done))
        {
            return Ok(());
        }
        same(&format!("the answer to {op:?}"), answer, expected)
    }

    /// The owner remembers pending timers at or below the horizon, and drops timers that are not
    /// pending any more.
    fn follow(&mut self) {
        let fires: BTreeMap<_, _> =
            self.model.pending().iter().map(|t| (t.record.timer.id, t.fire)).collect();
        self.wheel.retain(|id, fire| fires.get(id) == Some(fire));
        let horizon = self.horizon;
        self.wheel.extend(fires.into_iter().filter(|(_, fire)| *fire <= horizon));
    }

    async fn load(&mut self) -> Check {
        let random = &mut self.random;
        let claim = random.one_in(3).then(|| self.now + SECOND);
        let ahead = random.pick(&[0, 500, 3 * SECOND, 60 * SECOND, 3 * HOUR, 3 * DAY, 300 * DAY]);
        let (max_timers, max_bytes) = (random.pick(&[1, 2, 5, 10_000]), random.pick(&[1, 100, 1 << 20]));
        let load = Load { until: self.now + ahead, max_timers, max_bytes, claim };
        self.log.push(format!("{load:?}"));
        let loaded = alive(self.owner.load(load).await)?;
        self.model.claim(claim);
        let pending: BTreeMap<_, _> =
            self.model.pending().into_iter().map(|timer| (timer.record.timer.id, timer)).collect();
        for timer in loaded.timers {
            let id = timer.record.timer.id;
            same(&format!("{id} as loaded"), &Some(&timer), &pending.get(&id))?;
            self.wheel.insert(id, timer.fire);
        }
        if loaded.horizon < self.horizon {
            return Err(format!("the horizon went back from {} to {}", self.horizon, loaded.horizon));
        }
        self.horizon = loaded.horizon;
        let missing = |timer: &&LoadedTimer| {
            timer.fire <= self.horizon && self.wheel.get(&timer.record.timer.id) != Some(&timer.fire)
        };
        match pending.values().find(missing) {
            Some(timer) => Err(format!("the horizon is {}, and {timer:?} was never loaded", self.horizon)),
            None => Ok(()),
        }
    }

    async fn unload(&mut self) -> Check {
        let beyond = self.random.pick(&[Time::ZERO, self.now, self.now + HOUR]);
        self.log.push(format!("unload beyond {beyond}"));
        alive(self.owner.unload(beyond).await)?;
        self.horizon = self.horizon.min(beyond);
        self.wheel.retain(|_, fire| *fire <= beyond);
        Ok(())
    }

    /// Applies again the writes that the last failure has undone, as happens within 100 ms if
    /// nobody asks the owner for anything.
    async fn catch_up(&mut self) -> Check {
        let one_in = self.server.state().calm();
        alive(self.owner.check().await)?;
        self.server.state().one_in = one_in;
        Ok(())
    }

    /// Another owner acquires the partition; the former one must notice.
    pub(super) async fn take_over(&mut self) -> Check {
        let release = self.random.one_in(3);
        self.log.push(format!("takeover, released: {release}"));
        if release {
            alive(self.owner.release(Vec::new()).await)?;
            self.model.claimed_until = self.model.prior_claim;
        }
        self.catch_up().await?;
        let former = self.owner.epoch();
        let next = acquire_next(&self.server, &self.shared, former, former, &mut self.random).await?;
        let mut fenced = std::mem::replace(&mut self.owner, next);
        if self.owner.epoch() <= former {
            return Err(format!("the epoch went from {former} to {}", self.owner.epoch()));
        }
        self.model.acquired(self.owner.epoch());
        same("the prior claim", &self.owner.prior_claim(), &self.model.prior_claim)?;
        let op = Op::Cancel(Cancel {
            target: Target::Id(self.timers[0].id),
            sent_attempt: None,
            request: RequestId(self.random.next_u64()),
        });
        let late = loop {
            let batch = Batch { now: self.now, claim: None, ops: vec![op.clone()] };
            let late = fenced.apply(batch, HandedOver::now()).await;
            // A server that takes no writes for now refuses this one before it looks at whose it
            // is.
            let is_refused =
                matches!(late.as_deref(), Ok([Answer::Refused(why)]) if *why != Refusal::NotReplicated);
            if !is_refused {
                break late;
            }
        };
        if !matches!(late, Err(LaneError::Fenced { .. })) {
            return Err(format!("a fenced owner was answered {late:?}"));
        }
        self.wheel.clear();
        self.horizon = Time::ZERO;
        Ok(())
    }

    /// Ends every timer. Then nothing is left, and no slot was taken for lost.
    pub(super) async fn drain(&mut self) -> Check {
        let ids: Vec<_> = self.model.timers.keys().copied().collect();
        for id in ids {
            // A purge is refused while the store is away.
            while self.model.timers.contains_key(&id) {
                self.pass(1);
                let ops = match self.model.timers[&id].record().extensions.staging() {
                    Some(staging) => withdrawal(&self.model.jobs, id, staging.import),
                    None => vec![Op::settle(id, Verdict::Ack), Op::Purge(Purge { id })],
                };
                self.apply(None, ops).await?;
            }
        }
        self.catch_up().await?;
        self.server.state().calm();
        same("slots taken for lost", &self.shared.log_budget.status().lost_slots, &0)?;
        self.is_empty().await
    }
}

/// What removes a staged timer: a job of its own, once all others have ended.
pub(super) fn withdrawal(jobs: &[BulkJob], id: TimerId, import: ImportId) -> Vec<Op> {
    let stop = |job: &BulkJob| {
        let (group, app) = (job.bulk.filter.group.clone(), job.bulk.filter.app.clone());
        Op::from(StopBulk { id: job.id, group, app })
    };
    let number = 1 + jobs.iter().map(|job| job.number).max().unwrap_or(0);
    let bulk = Bulk::new(BulkAction::Withdraw { import }, Filter::default()).into();
    let begin = BeginBulk { id: BulkId(1_000 + u128::from(number)), bulk };
    let act = BulkAct { number, id, sent_attempt: None, is_begun: false, adds: false };
    let end = BulkAdvance { number, to: BulkPlace::End, met: 0 };
    let stops = jobs.iter().filter(|job| job.ended.is_none()).map(stop);
    stops.chain([begin.into(), act.into(), end.into()]).collect()
}

/// Runs a test on paused time, in this thread.
pub(super) fn block_on<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(test)
}

/// Executes one run. The error has the difference, and everything that was done.
pub(super) fn run(seed: u64) -> Check {
    run_at(seed, Level::arbitrary(seed))
}

/// One run with a log that keeps everything.
pub(super) fn run_untrimmed(seed: u64) -> Check {
    run_at(seed, Level::UNTRIMMED)
}

fn run_at(seed: u64, level: Level) -> Check {
    block_on(async {
        let mut run = Run::at(seed, ONE_IN, level).await?;
        let result = match run.calls(CALLS).await {
            Ok(()) => run.drain().await,
            Err(why) => Err(why),
        };
        let result = result.or_else(|why| if run.may_have_lost(&why) { Ok(()) } else { Err(why) });
        result.map_err(|why| format!("{}\n{why}", run.log.join("\n")))
    })
}

pub(super) fn from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}: give a number")))
}

/// The seeds that a test runs.
fn seeds(unless_said: u64) -> Range<u64> {
    let (first, seeds) = match from_env("MTIMER_SIM_SEED") {
        Some(seed) => (seed, 1),
        None => (1, from_env("MTIMER_SIM_SEEDS").unwrap_or(unless_said)),
    };
    first..first + seeds
}

/// Fails with the first seed that does, and says how to repeat it. Prints which faults there were.
pub(super) fn pass(name: &str, test: impl Fn(u64) -> Check) {
    let seeds = seeds(SEEDS);
    for seed in seeds.clone() {
        if let Err(why) = test(seed) {
            panic!(
                "{why}\n\nMTIMER_SIM_SEED={seed} cargo nextest run -p mtimer-store-redis {name} repeats it"
            );
        }
    }
    println!("{name}: seeds {seeds:?}; faults: {}", faults_by_kind());
}

#[test]
fn an_owner_agrees_with_the_model_whatever_fails() {
    pass("an_owner_agrees_with_the_model_whatever_fails", run);
}

/// A batch at the beginning that does nothing.
pub(super) fn empty() -> Batch {
    Batch { now: Time::from_ms(START), claim: None, ops: Vec::new() }
}

/// A timer that is due soon after the beginning.
pub(super) fn timer(random: u64, key: Option<&str>) -> Timer {
    let now = Time::from_ms(START);
    let due = now + 500;
    Timer {
        key: key.map(|key| Key::new(key).unwrap()),
        ..Timer::new(
            TimerId::new(due, now, PARTITION, random),
            Destination::new("orders", "billing").unwrap(),
            due,
        )
    }
}
