//! The suite can fail: brokers that skip the claim, or answer before the store has, do not pass.
//!
//! Only in long rounds (`MTIMER_LONG=1`). A store without its fence is shown by the tests of
//! clusters.

use mtimer_tests::{Launch, Sabotage, Server, ServerOptions, long, mtimer};

use crate::{SHORT, play};

/// Runs until a violation has to be found.
const RUNS: u32 = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_broken_on_purpose_is_noticed() {
    if !long() {
        println!("skipped: needs MTIMER_LONG=1");
        return;
    }
    // The tool that sends the files; if it has to be built, then not while brokers are killed.
    mtimer();
    let intact = run("crash, intact", Sabotage::Nothing).await;
    assert!(intact.is_empty(), "the intact broker: {intact:?}");
    notices("crash, without claims", Sabotage::Claim).await;
    notices("crash, early ok", Sabotage::EarlyOk).await;
}

async fn notices(name: &str, sabotage: Sabotage) {
    for n in 1..=RUNS {
        let found = run(name, sabotage).await;
        println!("{name}, run {n}: {} violations", found.len());
        found.iter().take(10).for_each(|v| println!("{name}: {v}"));
        if !found.is_empty() {
            return;
        }
    }
    panic!("{name}: {RUNS} runs, and the checker has noticed nothing");
}

/// What the checker says of it, in short.
async fn run(name: &str, sabotage: Sabotage) -> Vec<String> {
    let redis = Server::start_with(ServerOptions::default());
    let launch = Launch::redis(&redis.url()).flags(["--partitions", "8"]).breakable(sabotage);
    let (violations, met) = play(name, launch, Some(&redis), SHORT).await;
    assert!(met.all_kinds(), "the kills met only {met:?}");
    violations.iter().map(|v| format!("invariant {}: {}", v.invariant, v.what)).collect()
}
