//! Random calls to an owner, compared with the model of the conformance suite after each.
//!
//! The model shares no code with the owner. Where an answer may differ from the model's is said at
//! [`Run::agree`].

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use mtimer_store::conformance::model::Model;
use mtimer_store::{
    Acquire, Answer, Batch, CancelAnswer, Census, DeadFilter, Health, LaneError, Load, LoadedTimer, Op,
    Place, Record, Refusal, RequestId, Retained, Verdict,
};
use mtimer_types::{
    DeadReason, Destination, Epoch, Key, KeyPolicy, Mode, Nonce, PartitionId, Target, Term, Time, Timer,
    TimerId, limits,
};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::server::{Random, Simulated};
use crate::keyspace::secret::Secret;
use crate::partition::acquire::{Shared, acquire};
use crate::partition::handed::HandedOver;
use crate::partition::log::LogBudget;
use crate::partition::owner::Owner;
use crate::partition::trim::Trimming;
use crate::partition::turn::is_of_client;
use crate::wire::ask;

/// Seeds that a test runs when the environment does not say otherwise.
const SEEDS: u64 = 100;
/// Calls of one run.
const CALLS: usize = 60;
/// Timers of one run, and how many a call can name: the window moves along.
const TIMERS: usize = 48;
const WINDOW: u64 = 14;
pub(super) const PARTITION: PartitionId = PartitionId(2);
pub(super) const START: u64 = 1_700_000_000_000;
const SECOND: u64 = 1_000;
const HOUR: u64 = 3_600 * SECOND;
pub(super) const DAY: u64 = 24 * HOUR;
/// Longer than outcomes are remembered.
const FORGET: u64 = 150 * SECOND;
/// How far the server's clock may be off, ms: further than outcomes are remembered.
const AHEAD: u64 = 200 * SECOND;
/// One call to the server in so many goes wrong.
const ONE_IN: u64 = 4;

pub(super) type Check<T = ()> = Result<T, String>;

/// A run under way.
pub(super) struct Run {
    pub(super) server: Simulated,
    pub(super) shared: Shared,
    pub(super) owner: Owner,
    pub(super) model: Model,
    pub(super) random: Random,
    pub(super) now: Time,
    pub(super) timers: Vec<Timer>,
    asked: Vec<Op>,
    /// What the owner has in memory, and when it fires.
    wheel: BTreeMap<TimerId, Time>,
    horizon: Time,
    log: Vec<String>,
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
    random: &mut Random,
) -> Result<Owner, String> {
    let (health, _) = watch::channel(Health::Up);
    let nonce = Nonce(random.next());
    let term = Term(server.state().now);
    let request = Acquire { partition: PARTITION, expected, nonce, term, version: expected.0 };
    let (network, abandoned) = (server.clone(), CancellationToken::new());
    let ask = async |slot, command| ask(&network, slot, &command).await;
    server.state().acquired();
    let calm = std::mem::take(&mut server.state().one_in);
    let owner = acquire(shared, request, floor, health, abandoned, ask).await;
    let mut state = server.state();
    state.acquired();
    state.one_in = calm;
    owner.map(|(owner, _)| owner).map_err(|error| error.to_string())
}

impl Run {
    pub(super) async fn new(seed: u64, one_in: u64) -> Check<Self> {
        let mut random = Random(seed);
        // The owner goes by another clock than its server's.
        let server = Simulated::new(random.next(), random.pick(&[START, START + AHEAD, START - AHEAD]));
        let shared = Shared {
            network: Arc::new(server.clone()),
            cluster: "c".into(),
            secret: Secret::new([7; Secret::BYTES]),
            log_budget: Arc::new(LogBudget::new(usize::MAX)),
            trimming: Trimming {
                replicas: Arc::new(server.clone()),
                network: Arc::new(server.clone()),
                began: Instant::now(),
            },
            quorum: None,
        };
        server.state().one_in = one_in;
        let owner = acquire_next(&server, &shared, Epoch(0), Epoch(0), &mut random).await?;
        let mut model = Model::default();
        model.acquired(owner.epoch());
        let now = Time::from_ms(START);
        let timers = (0..TIMERS).map(|_| arbitrary_timer(&mut random, now)).collect();
        let (wheel, horizon) = (BTreeMap::new(), Time::ZERO);
        let (asked, log) = (Vec::new(), Vec::new());
        Ok(Self { server, shared, owner, model, random, now, timers, asked, wheel, horizon, log })
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

    fn timer(&mut self, window: u64) -> Timer {
        self.timers[(window + self.random.below(WINDOW)) as usize].clone()
    }

    async fn batch(&mut self, window: u64) -> Check {
        let mut ops: Vec<Op> = Vec::new();
        for _ in 0..1 + self.random.below(6) {
            let op = self.op(window);
            // Of those that die at the same time nobody knows which is the oldest.
            if !(makes_dead_letter(&op) && ops.iter().any(makes_dead_letter)) {
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
        let began = Instant::now();
        let batch = Batch { now: self.now, claim, ops: ops.clone() };
        let answers = alive(self.owner.apply(batch, HandedOver::now()).await)?;
        let after = self.server.state().happened;
        self.log.push(format!("{answers:?}, {after:?}"));
        self.model.claim(claim);
        let in_doubt = after.doubts > before.doubts;
        for (op, answer) in ops.iter().zip(&answers) {
            let mut next = self.model.clone();
            let expected = next.apply(self.now, op);
            if let Answer::Refused(why) = answer {
                let adds = op.adds() || expected == Answer::Cancel(CancelAnswer::NotFound);
                // What clients ask for does not wait for a store that is away.
                let is_away = *why == Refusal::ReadOnly
                    && is_of_client(op)
                    && began.elapsed() >= Duration::from_millis(limits::AWAY_MS);
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
        Ok(())
    }

    /// Compares an answer with the model's. An acknowledgement that is written blind, and whose
    /// answer was lost or that was cut off half way, finds its timer gone the second time: nobody
    /// can tell any more who has removed it.
    fn agree(&self, op: &Op, answer: &Answer, expected: &Answer, in_doubt: bool) -> Check {
        let is_blind = matches!(op, Op::Settle { verdict: Verdict::Ack, timer: Some(_), .. });
        if is_blind && in_doubt && (answer, expected) == (&Answer::Gone, &Answer::Done) {
            return Ok(());
        }
        same(&format!("the answer to {op:?}"), answer, expected)
    }

    /// The owner remembers what is pending at or below the horizon, and drops what is not pending
    /// any more.
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

    /// Another owner acquires the partition; the former one must notice.
    pub(super) async fn take_over(&mut self) -> Check {
        let release = self.random.one_in(3);
        self.log.push(format!("takeover, released: {release}"));
        if release {
            alive(self.owner.release(Vec::new()).await)?;
            self.model.claimed_until = self.model.prior_claim;
        }
        let former = self.owner.epoch();
        let next = acquire_next(&self.server, &self.shared, former, former, &mut self.random).await?;
        let mut fenced = std::mem::replace(&mut self.owner, next);
        if self.owner.epoch() <= former {
            return Err(format!("the epoch went from {former} to {}", self.owner.epoch()));
        }
        self.model.acquired(self.owner.epoch());
        same("the prior claim", &self.owner.prior_claim(), &self.model.prior_claim)?;
        let op = Op::Cancel {
            target: Target::Id(self.timers[0].id),
            in_flight: None,
            request: RequestId(self.random.next()),
        };
        let late = loop {
            let batch = Batch { now: self.now, claim: None, ops: vec![op.clone()] };
            let late = fenced.apply(batch, HandedOver::now()).await;
            // A server that takes no writes for now refuses this one before it looks at whose it
            // is.
            if !matches!(late.as_deref(), Ok([Answer::Refused(_)])) {
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

    pub(super) async fn get(&mut self, target: &Target) -> Check {
        let seen = alive(self.owner.get(target.clone()).await)?;
        let known = self.model.find(target).map(|id| {
            let entry = &self.model.timers[&id];
            (entry.record(), entry.place)
        });
        let plain = |row: Option<(Record, Place)>| row.map(|(record, place)| (plain(record, place), place));
        same(&format!("get {target:?}"), &plain(seen), &plain(known))
    }

    /// Compares everything that can be seen. Leaves everything loaded.
    pub(super) async fn check(&mut self) -> Check {
        self.log.push("check".into());
        let far = self.now + 4_000 * DAY;
        alive(self.owner.unload(Time::ZERO).await)?;
        let pending = self.load_all(far).await?;
        let expected: BTreeMap<_, _> =
            self.model.pending().into_iter().map(|timer| (timer.record.timer.id, timer)).collect();
        same("pending", &pending, &expected)?;
        (self.wheel, self.horizon) = (pending.into_iter().map(|(id, t)| (id, t.fire)).collect(), far);
        self.check_listings().await?;
        let census = Census { residue: 0, ..alive(self.owner.census().await)? };
        same("the census", &census, &self.model.census())?;
        for timer in self.timers.clone() {
            self.get(&Target::Id(timer.id)).await?;
            if let Some(key) = timer.key {
                self.get(&Target::Key(timer.dest, key)).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn load_all(&mut self, far: Time) -> Check<BTreeMap<TimerId, LoadedTimer>> {
        let mut pending = BTreeMap::new();
        for _ in 0..10_000 {
            let load = Load { until: far, max_timers: 1_000, max_bytes: 1 << 20, claim: None };
            let loaded = alive(self.owner.load(load).await)?;
            pending.extend(loaded.timers.into_iter().map(|timer| (timer.record.timer.id, timer)));
            if loaded.horizon >= far {
                return Ok(pending);
            }
        }
        Err("loading does not come to an end".into())
    }

    async fn check_listings(&mut self) -> Check {
        let sorted = |mut rows: Vec<Record>, place: Place| {
            rows.sort_by_key(|record| record.timer.id);
            rows.into_iter().map(|record| plain(record, place)).collect::<Vec<_>>()
        };
        let mut parked = Vec::new();
        for (dest, count) in alive(self.owner.parked_destinations().await)? {
            let page = alive(self.owner.parked(dest, 0, 1_000).await)?;
            same("a count of parked timers", &count, &(page.rows.len() as u64))?;
            parked.extend(page.rows);
        }
        same("parked", &sorted(parked, Place::Parked), &sorted(self.model.parked(), Place::Parked))?;
        let taken = alive(self.owner.taken(0, 1_000).await)?.rows.into_iter().map(|row| row.record).collect();
        let known = self.model.taken().into_iter().map(|row| row.record).collect();
        same("taken", &sorted(taken, Place::Dead), &sorted(known, Place::Dead))?;
        let unconfirmed = alive(self.owner.unconfirmed(0, 1_000).await)?.rows;
        let of = |row: &mtimer_store::Unconfirmed| (row.since, row.record.timer.id, row.epoch);
        same(
            "unconfirmed",
            &unconfirmed.iter().map(of).collect::<Vec<_>>(),
            &self.model.unconfirmed().iter().map(of).collect::<Vec<_>>(),
        )?;
        let dead = alive(self.owner.dead(DeadFilter::default(), 0, 1_000).await)?.rows;
        let of = |row: &mtimer_store::DeadLetter| {
            (row.died, row.record.timer.id, row.reason, row.record.progress.last_error.clone())
        };
        same(
            "dead",
            &dead.iter().map(of).collect::<Vec<_>>(),
            &self.model.dead().iter().map(of).collect::<Vec<_>>(),
        )
    }

    /// Ends every timer. Then nothing is left.
    pub(super) async fn drain(&mut self) -> Check {
        let ids: Vec<_> = self.model.timers.keys().copied().collect();
        for id in ids {
            self.pass(1);
            self.apply(None, vec![Op::settle(id, Verdict::Ack), Op::Purge { id }]).await?;
        }
        self.is_empty().await
    }

    /// Checks that nothing is left of any timer.
    async fn is_empty(&mut self) -> Check {
        let census = alive(self.owner.census().await)?;
        same("the census of what was drained", &census, &Census::default())?;
        self.pass(FORGET);
        let mut state = self.server.state();
        let now = state.now;
        state.data.expire(now);
        let left: Vec<_> = state.data.keys();
        let left: Vec<_> =
            left.iter().filter(|key| !key.starts_with("owner:") && !key.starts_with("dest:")).collect();
        same("what is left", &left, &Vec::new())
    }

    pub(super) fn op(&mut self, window: u64) -> Op {
        let timer = self.timer(window);
        let place = self.model.timers.get(&timer.id).map(|entry| entry.place);
        // Mostly what makes sense where the timer is, so that runs get somewhere.
        let kinds: &[u32] = match place {
            _ if self.random.one_in(3) => &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17],
            None => &[0, 0, 0, 2, 4],
            Some(Place::Pending { .. }) => &[5, 5, 8, 8, 12, 3, 3, 2, 9, 7, 6, 17, 17],
            Some(Place::Parked) => &[13, 13, 5, 3, 2, 9],
            Some(Place::Taken { unconfirmed: false, .. }) => &[11, 11, 9, 7, 12, 5],
            Some(Place::Taken { .. } | Place::Dead) => &[14, 14, 0, 16, 7, 15],
        };
        let kind = self.random.pick(kinds);
        self.op_of(kind, timer)
    }

    fn op_of(&mut self, kind: u32, timer: Timer) -> Op {
        let (id, now, r) = (timer.id, self.now, &mut self.random);
        let fire = arbitrary_time(r, now);
        let settle = |verdict| Op::settle(id, verdict);
        let request = RequestId(r.next());
        match kind {
            0 => {
                let policy = r.pick(&[KeyPolicy::Create, KeyPolicy::Replace, KeyPolicy::Keep]);
                Op::Schedule { timer: timer.into(), policy }
            }
            1 => {
                let timer = Timer { callback_timeout_ms: Some(1_234), ..timer };
                Op::Schedule { timer: timer.into(), policy: KeyPolicy::Create }
            }
            2 => {
                let in_flight = r.one_in(4).then(|| r.pick(&[1, 1, 2, 4]));
                let op = Op::Cancel { target: target(r, &timer), in_flight, request };
                self.asked.push(op.clone());
                op
            }
            3 => {
                let op =
                    Op::Reschedule { target: target(r, &timer), due: fire, in_flight: r.one_in(8), request };
                self.asked.push(op.clone());
                op
            }
            4 if !self.asked.is_empty() => self.asked[r.below(self.asked.len() as u64) as usize].clone(),
            4 | 5 => Op::Take { id, failed: r.below(3) as u32 },
            6 => settle(Verdict::Ack),
            7 => settle(Verdict::LateAck { attempt: r.below(4) as u32 }),
            8 => {
                let (tier, failed) = (r.pick(&[1, 1, 2, 5, 32]), 1 + r.below(4) as u32);
                settle(Verdict::Retry { fire, tier, failed, error: r.pick(&["", "later"]).into() })
            }
            9 => {
                let reason = r.pick(&[DeadReason::Exhausted, DeadReason::Failed]);
                settle(Verdict::Dead { reason, failed: r.below(5) as u32, error: "never".into() })
            }
            10 => settle(Verdict::Expired),
            11 => settle(Verdict::Unconfirmed),
            12 => Op::Park { id, failed: r.below(3) as u32 },
            13 => Op::Unpark { id, fire },
            14 => Op::Replay { id, fire },
            15 => Op::Purge { id },
            16 => {
                let of = r.pick(&[Retained::Dead, Retained::Unconfirmed]);
                let (keep, limit) = (r.below(6), r.pick(&[0, 1, 2, 100]));
                Op::Trim { of, before: now - 20 * r.below(40), keep, limit }
            }
            _ => {
                let known = self.model.timers.get(&id).map_or(timer, |entry| entry.timer.clone());
                Op::Settle { id, verdict: Verdict::Ack, timer: Some(known.into()) }
            }
        }
    }
}

fn target(r: &mut Random, timer: &Timer) -> Target {
    match &timer.key {
        Some(key) if r.one_in(2) => Target::Key(timer.dest.clone(), key.clone()),
        _ => Target::Id(timer.id),
    }
}

fn arbitrary_time(r: &mut Random, now: Time) -> Time {
    let jitter = r.pick(&[0, 0, 20, 40, 1, 13]);
    match r.below(4) {
        0 => now - r.pick(&[0, 1, SECOND, HOUR]) - jitter,
        1 => now + jitter,
        2 => now + r.pick(&[SECOND, 5 * SECOND, 119 * SECOND]) + jitter,
        _ => now + r.pick(&[120 * SECOND, HOUR, 20 * HOUR, 3 * DAY, 300 * DAY]) + jitter,
    }
}

fn arbitrary_timer(r: &mut Random, now: Time) -> Timer {
    let app = r.pick(&["billing", "shipping"]);
    let key = r.one_in(2).then(|| Key::new(r.pick(&["a", "b", "c"])).unwrap());
    let due = arbitrary_time(r, now);
    Timer {
        key,
        mode: if r.one_in(3) { Mode::AtMostOnce } else { Mode::AtLeastOnce },
        deadline: r.one_in(3).then(|| due + r.pick(&[0, 10, 60 * SECOND, DAY])),
        payload: vec![b'x'; r.pick(&[0, 1, 30])].into(),
        ..Timer::new(
            TimerId::new(due, now, PARTITION, r.next()),
            Destination::new("orders", app).unwrap(),
            due,
        )
    }
}

fn makes_dead_letter(op: &Op) -> bool {
    match op {
        Op::Settle { verdict, .. } => {
            matches!(verdict, Verdict::Dead { .. } | Verdict::Retry { .. } | Verdict::Unconfirmed)
        }
        op => matches!(op, Op::Cancel { .. }),
    }
}

/// Of a timer that is not pending nobody can tell when it was filed, of one that is taken or dead
/// nobody asks whether it was stopped.
pub(super) fn plain(mut record: Record, place: Place) -> Record {
    if !matches!(place, Place::Pending { .. }) {
        record.progress.fresh = None;
    }
    if matches!(place, Place::Taken { .. } | Place::Dead) {
        record.progress.stopped = false;
    }
    record
}

/// Runs a test on paused time, in this thread.
pub(super) fn block_on<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(test)
}

/// One run: what differs, and everything that was done.
pub(super) fn run(seed: u64) -> Check {
    block_on(async {
        let mut run = Run::new(seed, ONE_IN).await?;
        let result = match run.calls(CALLS).await {
            Ok(()) => run.drain().await,
            Err(why) => Err(why),
        };
        result.map_err(|why| format!("{}\n{why}", run.log.join("\n")))
    })
}

pub(super) fn from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}: give a number")))
}

/// Runs seeds until one fails; which, and why.
pub(super) fn find(test: impl Fn(u64) -> Check, seeds: u64) -> Option<(u64, String)> {
    let (first, seeds) = match from_env("MTIMER_SIM_SEED") {
        Some(seed) => (seed, 1),
        None => (1, from_env("MTIMER_SIM_SEEDS").unwrap_or(seeds)),
    };
    (first..first + seeds).find_map(|seed| test(seed).err().map(|why| (seed, why)))
}

/// Fails with the first seed that does, and says how to repeat it.
pub(super) fn pass(name: &str, test: impl Fn(u64) -> Check) {
    if let Some((seed, why)) = find(test, SEEDS) {
        panic!("{why}\n\nMTIMER_SIM_SEED={seed} cargo nextest run -p mtimer-store-redis {name} repeats it");
    }
}

#[test]
fn an_owner_agrees_with_the_model_whatever_fails() {
    pass("an_owner_agrees_with_the_model_whatever_fails", run);
}
