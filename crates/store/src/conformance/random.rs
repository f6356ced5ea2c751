//! Random sequences of operations, loads, takeovers and restarts, run on the store and on the
//! reference.
//!
//! A case is a list of [`Step`]s made from a seed. Steps name timers by their place in a fixed list
//! and carry their own randomness, so a step means nearly the same when others are left out: a case
//! that fails is cut down to a short one, and its seed, steps and operations are printed.
//! `MTIMER_PROPTEST_CASES` says how many cases are run, `MTIMER_PROPTEST_SEED` with which seed the
//! first one is made.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use mtimer_types::{Destination, Time, Timer};

use super::arbitrary::{
    Around, Kind, TICK, arbitrary_op, arbitrary_time, arbitrary_timer, is_repeated, of_job_under_way, target,
};
use super::harness::{Fault, Harness};
use super::kit::{Kit, panic_text};
use super::pair::{Check, Pair};
use super::properties::may_retain;
use super::seeded::{SeededRandom, mix};
use super::values::{DAY, HOUR, MINUTE, SECOND, dest, other_dest, unique};
use crate::{InFlight, LaneError, Load, Op, RequestId};

/// Cases when the environment does not say otherwise: a few seconds on every store.
const CASES: u64 = 24;
/// The same through faults, which take a second each where there is a network.
const FAULTY_CASES: u64 = 8;
const STEPS: usize = 80;
/// Timers of a case.
const SLOTS: usize = 48;
/// How many of them a step can name: the window moves along.
const WINDOW: u64 = 14;
/// Runs spent on cutting a failing case down.
const MAX_SHRINKS: usize = 300;

/// One operation to be: around which timer, and its own randomness.
#[derive(Clone, Copy, Debug)]
struct Choice {
    window: u64,
    seed: u64,
}

#[derive(Clone, Debug)]
enum Step {
    /// Batches, called one behind the other before any is answered.
    Burst(Vec<Vec<Choice>>, u64),
    /// A load with batches right behind it.
    Load(Vec<Vec<Choice>>, u64),
    Unload(u64),
    Get(Choice),
    /// Another owner without a word of the first.
    Takeover(Choice),
    Release(u64),
    Restart,
    CheckAll,
}

fn steps(seed: u64) -> Vec<Step> {
    let mut r = SeededRandom::new(seed);
    (0..STEPS)
        .map(|i| {
            let window = (i * (SLOTS - WINDOW as usize) / STEPS) as u64;
            let batches = |r: &mut SeededRandom, most: u64| -> Vec<Vec<Choice>> {
                let batch = |r: &mut SeededRandom| {
                    (0..1 + r.below(5)).map(|_| Choice { window, seed: r.next_u64() }).collect::<Vec<_>>()
                };
                (0..r.below(most + 1)).map(|_| batch(r)).collect()
            };
            match r.below(100) {
                0..62 => {
                    let mut batches = batches(&mut r, 2);
                    batches.push(vec![Choice { window, seed: r.next_u64() }]);
                    Step::Burst(batches, r.next_u64())
                }
                62..78 => Step::Load(batches(&mut r, 2), r.next_u64()),
                78..82 => Step::Unload(r.next_u64()),
                82..88 => Step::Get(Choice { window, seed: r.next_u64() }),
                88..93 => Step::Takeover(Choice { window, seed: r.next_u64() }),
                93..95 => Step::Release(r.next_u64()),
                95 => Step::Restart,
                _ => Step::CheckAll,
            }
        })
        .collect()
}

/// A case under way.
struct Case {
    pair: Pair,
    slots: Vec<Timer>,
    /// Requests so far that can be repeated.
    asked: Vec<Op>,
    /// Whether faults strike bursts and loads.
    faulty: bool,
    log: Vec<String>,
}

impl Case {
    async fn new(harness: &dyn Harness, seed: u64, faulty: bool) -> Self {
        let kit = Kit::new(harness).await;
        let mut r = SeededRandom::new(mix(seed));
        let dests = [dest(), other_dest(), Destination::new("Größe", "\u{1f570}").unwrap()];
        let slots = (0..SLOTS).map(|_| arbitrary_timer(&mut r, &kit, &dests)).collect();
        Self { pair: Pair::new(kit).await, slots, asked: Vec::new(), faulty, log: Vec::new() }
    }

    fn slot(&self, choice: Choice, r: &mut SeededRandom) -> &Timer {
        &self.slots[(choice.window + r.below(WINDOW)) as usize]
    }

    fn batch(&mut self, choices: &[Choice]) -> Vec<Op> {
        let mut ops: Vec<Op> = Vec::new();
        for choice in choices {
            let op = self.op(*choice);
            // Of those that die or become unconfirmed at the same time nobody knows which is the
            // oldest.
            if !(may_retain(&op) && ops.iter().any(may_retain)) {
                ops.push(op);
            }
        }
        ops
    }

    fn op(&mut self, choice: Choice) -> Op {
        let mut r = SeededRandom::new(choice.seed);
        let timer = self.slot(choice, &mut r).clone();
        let entry = self.pair.model.timers.get(&timer.id);
        let kind = Kind::any(&mut r, entry.map(|entry| entry.place));
        if kind == Kind::Again && !self.asked.is_empty() {
            return self.asked[r.index(self.asked.len())].clone();
        }
        // Nobody can tell whether an acknowledgement that is written blind was applied, if its
        // answer is lost.
        let record = entry.filter(|_| !self.faulty).map(|entry| entry.record());
        let known = record.filter(|record| record.is_plain()).map(|record| record.timer);
        let now = self.pair.kit.now;
        let fire = arbitrary_time(&mut r, now);
        let around = Around { timer, known, now, fire, request: RequestId(unique()) };
        let op = of_job_under_way(arbitrary_op(kind, around, &mut r), &self.pair.model.jobs, &mut r);
        if is_repeated(&op) {
            self.asked.push(op.clone());
        }
        op
    }

    async fn step(&mut self, step: &Step) -> Check {
        match step {
            Step::Burst(batches, seed) => self.burst(batches, *seed).await,
            Step::Load(behind, seed) => self.load(behind, *seed).await,
            Step::Unload(seed) => {
                let mut r = SeededRandom::new(*seed);
                let beyond = r.pick(&[Time::ZERO, self.pair.kit.now, self.pair.kit.now + HOUR]);
                self.log.push(format!("unload beyond {beyond}"));
                self.pair.unload(beyond).await
            }
            Step::Get(choice) => {
                let mut r = SeededRandom::new(choice.seed);
                let timer = self.slot(*choice, &mut r).clone();
                let target = target(&mut r, &timer);
                self.log.push(format!("get {target:?}"));
                self.pair.check_get(&target).await
            }
            Step::Takeover(choice) => {
                self.log.push("takeover".into());
                let old = self.pair.owner.lane.clone();
                self.pair.takeover(None).await?;
                let op = self.op(*choice);
                let late = old.apply(self.pair.owner.batch(vec![op.clone()])).await;
                match late {
                    Err(LaneError::Fenced { .. }) => Ok(()),
                    other => Err(format!("an owner of before the takeover did {op:?}: {other:?}")),
                }
            }
            Step::Release(seed) => {
                let mut r = SeededRandom::new(*seed);
                let rows: Vec<_> = (0..r.below(4)).map(|_| self.in_flight(&mut r)).collect();
                self.log.push(format!("release {rows:?}, takeover"));
                self.pair.takeover(Some(rows)).await
            }
            Step::Restart | Step::CheckAll => self.pair.check_all().await,
        }
    }

    async fn burst(&mut self, batches: &[Vec<Choice>], seed: u64) -> Check {
        let mut r = SeededRandom::new(seed);
        let mut called = Vec::new();
        let mut fault = self.trouble(&mut r);
        for choices in batches {
            if let Some(fault) = fault.take_if(|_| r.one_in(2)) {
                self.log.push(format!("{fault:?}"));
                self.pair.kit.fault(fault).await;
            }
            self.pair.kit.now = self.pair.kit.now + TICK * (1 + r.below(3));
            let now = self.pair.kit.now;
            let ahead = r.pick(&[0, TICK, 5 * TICK, SECOND, 2 * MINUTE]);
            let claim = r.one_in(4).then(|| now + ahead);
            let ops = self.batch(choices);
            self.log.push(format!("now {now}, claim {claim:?}, apply {ops:?}"));
            called.push(self.pair.call(claim, ops));
        }
        if self.faulty {
            self.pair.kit.fault(Fault::ComeUp).await;
        }
        for call in called {
            self.pair.settle(call).await?;
        }
        Ok(())
    }

    async fn load(&mut self, behind: &[Vec<Choice>], seed: u64) -> Check {
        let mut r = SeededRandom::new(seed);
        self.pair.kit.now = self.pair.kit.now + TICK;
        let now = self.pair.kit.now;
        let claim = r.one_in(3).then(|| now + r.pick(&[TICK, SECOND]));
        let load = Load {
            until: now + r.pick(&[0, 500, 3 * SECOND, MINUTE, 3 * HOUR, 3 * DAY, 300 * DAY]),
            max_timers: r.pick(&[1, 2, 5, 10_000]),
            max_bytes: r.pick(&[1, 100, 1 << 20]),
            claim,
        };
        // More than one operation that may make a dead letter would be ambiguous over batches of
        // one time, too.
        let choices: Vec<_> = behind.iter().flatten().copied().collect();
        let ops = self.batch(&choices);
        let behind: Vec<_> = ops.into_iter().map(|op| vec![op]).collect();
        let fault = self.trouble(&mut r);
        self.log.push(format!("{fault:?}, now {now}, {load:?}, then apply each of {behind:?}"));
        self.pair.load_in_trouble(load, behind, fault).await.map(|_| ())
    }

    fn trouble(&self, r: &mut SeededRandom) -> Option<Fault> {
        let partition = self.pair.kit.partition;
        let faults = [Fault::LoseNextAnswer(partition), Fault::LoseNextCall(partition), Fault::GoDown];
        (self.faulty && r.one_in(3)).then(|| r.pick(&faults))
    }

    fn in_flight(&self, r: &mut SeededRandom) -> InFlight {
        InFlight {
            id: self.slots[r.below(SLOTS as u64) as usize].id,
            attempt: 1 + r.below(3) as u32,
            session: u128::from(r.next_u64()) << 64 | u128::from(r.next_u64()),
            until: self.pair.kit.now + r.below(MINUTE),
        }
    }

    async fn restart(mut self) -> Check<Self> {
        self.log.push("restart".into());
        let pair = self.pair.restart().await?;
        Ok(Self { pair, ..self })
    }
}

/// The failure, and everything that was done before.
type Failure = (String, Vec<String>);

/// Runs one case.
async fn run(harness: &dyn Harness, seed: u64, steps: &[Step], faulty: bool) -> Result<(), Failure> {
    let mut case = Case::new(harness, seed, faulty).await;
    for step in steps {
        if matches!(step, Step::Restart) {
            case = case.restart().await.map_err(|e| (e, vec!["restart".into()]))?;
        } else {
            case.step(step).await.map_err(|e| (e, std::mem::take(&mut case.log)))?;
        }
    }
    case.pair.check_all().await.map_err(|e| (e, case.log))
}

/// As [`run`], with panics as failures.
async fn run_caught(harness: &dyn Harness, seed: u64, steps: &[Step], faulty: bool) -> Result<(), Failure> {
    let caught = AssertUnwindSafe(run(harness, seed, steps, faulty)).catch_unwind().await;
    caught.unwrap_or_else(|panic| Err((panic_text(&*panic), Vec::new())))
}

/// Leaves out as many steps as can be left out while the case still fails.
async fn shrink(harness: &dyn Harness, seed: u64, mut steps: Vec<Step>, faulty: bool) -> Vec<Step> {
    let mut runs = 0;
    let mut chunk = steps.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        while at < steps.len() && runs < MAX_SHRINKS {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + chunk).min(steps.len()));
            runs += 1;
            match run_caught(harness, seed, &fewer, faulty).await {
                Err(_) => steps = fewer,
                Ok(()) => at += chunk,
            }
        }
        chunk /= 2;
    }
    steps
}

fn from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}: give a number")),
        Err(_) => default,
    }
}

async fn run_cases(harness: &dyn Harness, faulty: bool) {
    let first = from_env("MTIMER_PROPTEST_SEED", 1);
    let cases = from_env("MTIMER_PROPTEST_CASES", if faulty { FAULTY_CASES } else { CASES });
    for seed in first..first + cases {
        let steps = steps(seed);
        if let Err((why, _)) = run_caught(harness, seed, &steps, faulty).await {
            let fewer = shrink(harness, seed, steps, faulty).await;
            let (short, log) = run_caught(harness, seed, &fewer, faulty).await.err().unwrap_or_default();
            panic!(
                "{why}\n\nMTIMER_PROPTEST_SEED={seed} MTIMER_PROPTEST_CASES=1 repeats it. Cut down to {} steps:\n\
                 {}\n\nwhich end with: {short}",
                fewer.len(),
                log.join("\n")
            );
        }
    }
}

pub(super) async fn operations_agree_with_the_reference(harness: &dyn Harness) {
    run_cases(harness, false).await;
}

/// The same with answers and calls lost and the store away now and then: a lane hides all of that.
pub(super) async fn operations_agree_through_faults(harness: &dyn Harness) {
    let mut kit = Kit::new(harness).await;
    if kit.fault(Fault::GoDown).await {
        kit.fault(Fault::ComeUp).await;
        run_cases(harness, true).await;
    }
}
