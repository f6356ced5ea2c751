//! The suite can fail: brokers whose store applies what a former owner asks for do not pass the
//! scene of a paused owner.
//!
//! Only in long rounds (`MTIMER_LONG=1`). The other ways to break a broker are shown by the crash
//! test.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use mtimer_tests::{Load, Sabotage, Setup, Violation, long, seed};

use crate::pauses::pause_an_owner;
use crate::scene::{Scene, on_masters};

/// Runs until a violation has to be found.
const RUNS: u32 = 3;
/// Pauses in a run.
const PAUSES: u32 = 2;
/// How long an owner is paused after others have taken over.
const MORE: Duration = Duration::from_secs(8);
/// What has not ended by then never does.
const DRAIN: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_its_fence_is_noticed() {
    if !long() {
        println!("skipped: needs MTIMER_LONG=1");
        return;
    }
    let intact = run("with the fence", Sabotage::Nothing).await;
    assert!(intact.is_empty(), "the intact broker: {intact:?}");
    for n in 1..=RUNS {
        let found = run("without the fence", Sabotage::Fence).await;
        println!("without the fence, run {n}: {} violations", found.len());
        if !found.is_empty() {
            return;
        }
    }
    panic!("{RUNS} runs without the fence, and the checker has noticed nothing");
}

/// What the checker says of it, in short.
async fn run(name: &'static str, sabotage: Sabotage) -> Vec<String> {
    let scene = async move {
        let setup = Setup { sabotage: Some(sabotage), ..on_masters() };
        let mut scene = Scene::begin_with(name, setup, Load::light(seed(name))).await;
        for round in 1..=PAUSES {
            pause_an_owner(&mut scene, round, MORE).await;
        }
        scene.decide(DRAIN).await
    };
    match AssertUnwindSafe(scene).catch_unwind().await {
        Ok(outcome) => {
            let brief = |v: &Violation| format!("invariant {}: {}", v.invariant, v.what);
            let all: Vec<String> = outcome.verdict.violations.iter().map(brief).collect();
            all.iter().take(10).for_each(|v| println!("{name}: {v}"));
            all
        }
        Err(panic) => vec![hang(panic)],
    }
}

/// A run that does not come to its end says which invariant it is. Any other panic is none of this.
fn hang(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(said) if said.starts_with("invariant ") => *said,
        Ok(said) => panic!("{said}"),
        Err(other) => std::panic::resume_unwind(other),
    }
}
