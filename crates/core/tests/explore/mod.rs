//! Which seeds a simulation runs, for how long, and the report about one that fails.
//!
//! By default: the seeds of `regressions.txt` that belong to the test, then new random ones for
//! [`SECONDS`]. With
//!
//! - `MTIMER_SIM_SEED=n` that one alone, and the events that led to the failure are printed;
//! - `MTIMER_SIM_SECONDS=n` new ones for so long;
//! - `MTIMER_SIM_SEEDS=n` so many new ones, however long that takes;
//! - `MTIMER_LONG=1` [`LONG_SEEDS`] new ones;
//! - `MTIMER_SIM_KEEP_GOING=1` does not stop at the first that fails: each is told in a line.

#![expect(
    clippy::disallowed_methods,
    reason = "how long it looks, and at which seeds, is not decided by a seed"
)]

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// For how long each test looks at new seeds, s. There are six of them; on two processors that
/// makes a minute.
const SECONDS: u64 = 15;
/// New seeds of each test in a long round: ten thousand in all.
const LONG_SEEDS: u64 = 2_000;
/// Seeds for each sabotage.
const SABOTAGE_SEEDS: u64 = 100;
const LONG_SABOTAGE_SEEDS: u64 = 1_000;
const REGRESSIONS: &str = include_str!("../regressions.txt");

pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

pub(crate) fn is_long() -> bool {
    std::env::var("MTIMER_LONG").is_ok_and(|v| v == "1")
}

#[allow(dead_code, reason = "one of the two simulations has no use for it")]
pub(crate) fn sabotage_seeds() -> u64 {
    if is_long() { LONG_SABOTAGE_SEEDS } else { SABOTAGE_SEEDS }
}

/// Runs something that may panic; the panic's text is the error.
pub(crate) fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text =
            panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        format!("panic: {}", text.unwrap_or("without a text"))
    })
}

/// The exploration of one test.
pub(crate) struct Explore {
    binary: &'static str,
    test: &'static str,
    /// The upper half of new seeds.
    upper: u64,
}

impl Explore {
    pub(crate) fn new(binary: &'static str, test: &'static str, upper: u64) -> Self {
        Self { binary, test, upper }
    }

    /// Runs one seed after the other; returns how many failed. `check(seed, log)` returns the
    /// failure, with `log` in detail.
    ///
    /// # Panics
    ///
    /// If a seed fails (unless told to go on): with the seed, the command that repeats it, and what
    /// to do to keep it.
    pub(crate) fn run(&self, mut check: impl FnMut(u64, bool) -> Result<(), String>) -> u64 {
        let keep_going = std::env::var("MTIMER_SIM_KEEP_GOING").is_ok_and(|v| v == "1");
        let mut failed = 0;
        let mut one = |seed| match guarded(|| check(seed, false)).and_then(|r| r) {
            Ok(()) => {}
            Err(told) if keep_going => {
                failed += 1;
                println!("seed {seed} of {}: {}", self.test, told.lines().next().unwrap_or_default());
            }
            Err(_) => {
                // Once more, with words.
                let told = guarded(|| check(seed, true)).and_then(|r| r).err();
                self.fail(seed, &told.unwrap_or_else(|| "it fails only the first time".to_owned()));
            }
        };
        if let Some(seed) = number("MTIMER_SIM_SEED") {
            one(seed);
            return failed;
        }
        self.kept().into_iter().for_each(&mut one);
        let count = number("MTIMER_SIM_SEEDS").or(is_long().then_some(LONG_SEEDS));
        let time = Duration::from_secs(number("MTIMER_SIM_SECONDS").unwrap_or(SECONDS));
        let begun = Instant::now();
        let random = RandomState::new();
        let more = |n: u64| count.map_or(begun.elapsed() < time, |count| n < count);
        (0..).take_while(|n| more(*n)).for_each(|n| {
            let mut hasher = random.build_hasher();
            hasher.write_u64(n);
            one(hasher.finish() >> 32 | self.upper << 32);
        });
        failed
    }

    /// Seeds that have found something once.
    fn kept(&self) -> Vec<u64> {
        let lines = REGRESSIONS.lines().filter_map(|line| line.split_once(' '));
        let mine = lines.filter(|(test, _)| *test == self.test);
        mine.filter_map(|(_, rest)| rest.split(' ').next()?.parse().ok()).collect()
    }

    fn fail(&self, seed: u64, told: &str) -> ! {
        let Self { binary, test, .. } = self;
        panic!(
            "{told}\n\nseed {seed} of {test} fails. To repeat it:\n\n    \
             MTIMER_SIM_SEED={seed} cargo test -p mtimer-core --test {binary} -- --exact {test}\n\n\
             To run it every time, add \"{test} {seed}\" to crates/core/tests/regressions.txt\n"
        )
    }
}
