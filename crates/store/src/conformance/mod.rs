//! The storage contract as code: the tests that every implementation of [`crate::Store`] and
//! [`crate::Lane`] must pass.
//!
//! An implementation writes a [`Harness`] and calls [`crate::conformance_tests!`] in its tests:
//!
//! ```text
//! mtimer_store::conformance_tests!(make_harness); // fn make_harness() -> impl Harness
//! ```
//!
//! which makes one `#[test]` of every test here, under the module of its name. Each runs in a tokio
//! runtime of its own with two workers; `make_harness` is called inside it. [`run_all`] runs them
//! one after the other instead. How many random cases are run is said by `MTIMER_PROPTEST_CASES`; a
//! case that fails prints its seed for `MTIMER_PROPTEST_SEED`.
//!
//! Invariant: the tests speak of timers and time only. They take answers whenever they come, know
//! of no slots or scripts, and go by a clock that is an argument (set near the real one, because a
//! store may forget outcomes by its own).
//!
//! Not in here: speed, real crashes and real networks; the behaviour after the repeat horizon is
//! tested only where the harness can make a store forget.

#![expect(clippy::disallowed_methods, reason = "suites run on real stores, in real time")]
#![allow(clippy::unwrap_used, reason = "this is a test suite: it is meant to panic")]

pub mod arbitrary;
mod bulk;
mod claims;
mod content;
mod dead;
mod drain;
mod faults;
mod fencing;
mod forecast;
mod harness;
mod import;
mod keys;
mod kit;
mod lease;
mod list;
mod listing;
mod loading;
mod matrix;
#[doc(hidden)]
pub mod model;
mod once;
mod order;
mod owner;
mod ownership;
mod pair;
mod parking;
pub mod properties;
mod random;
mod requests;
mod reschedule;
mod retries;
mod seeded;
mod settings;
mod steps;
mod values;

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt;

pub use forecast::check_spans;
pub use harness::{Fault, Harness, Site, Unsupported};
pub use list::names;
pub use seeded::{SeededRandom, mix};

/// A test that takes longer than this hangs.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Runs all tests one after the other and prints the name of each that passes.
///
/// # Panics
///
/// With the name of the first test that fails.
pub async fn run_all(harness: &dyn Harness) {
    for name in names() {
        let started = Instant::now();
        if let Err(why) = run(name, harness).await {
            panic!("conformance test {name} failed: {why}");
        }
        println!("conformance: {name} ({} ms)", started.elapsed().as_millis());
    }
}

/// Runs one test.
///
/// # Errors
///
/// Why the test failed, or that it did not end in time.
///
/// # Panics
///
/// If there is no test of this name.
pub async fn run(name: &str, harness: &dyn Harness) -> Result<(), String> {
    let test = list::find(name).unwrap_or_else(|| panic!("there is no conformance test {name:?}"));
    let caught = tokio::time::timeout(TIMEOUT, AssertUnwindSafe(test(harness)).catch_unwind()).await;
    match caught {
        Ok(Ok(())) => Ok(()),
        Ok(Err(panic)) => Err(kit::panic_text(&*panic)),
        Err(_) => Err(format!("no end after {TIMEOUT:?}: an answer never came")),
    }
}

/// Makes one `#[test]` of every conformance test. The argument is called to make a
/// [`Harness`](crate::conformance::Harness).
#[macro_export]
macro_rules! conformance_tests {
    ($make:expr) => {
        $crate::conformance_list! { [$crate::conformance_as_tests] $make }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_as_tests {
    ($make:expr; $($group:ident { $($test:ident,)* })*; $($whole:ident,)*) => {
        $(mod $group {
            #[allow(unused_imports)]
            use super::*;
            $(#[test]
            fn $test() {
                $crate::conformance::run_as_test(concat!(stringify!($group), "::", stringify!($test)), $make);
            })*
        })*
        mod random {
            #[allow(unused_imports)]
            use super::*;
            $(#[test]
            fn $whole() {
                $crate::conformance::run_as_test(concat!("random::", stringify!($whole)), $make);
            })*
        }
    };
}

/// Runs one test of [`crate::conformance_tests!`].
#[doc(hidden)]
pub fn run_as_test<H: Harness>(name: &str, make: impl FnOnce() -> H) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let harness = make();
        if let Err(why) = run(name, &harness).await {
            panic!("conformance test {name} failed: {why}");
        }
    });
}
