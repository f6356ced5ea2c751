//! Whole lives of timers, simulated: the engine on the in-memory model, clients that misbehave, a store that answers late,
//! loses answers or goes away, brokers that crash. Everything comes from one seed; a failure prints the seed, and
//! `MTIMER_SIM_SEED=<seed> cargo test -p mtimer-core --test simulation` repeats it.

mod sim;

use sim::{Plan, run};

fn seeds(default: u64) -> Vec<u64> {
    match std::env::var("MTIMER_SIM_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => vec![seed],
        None => {
            let n = std::env::var("MTIMER_SIM_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(default);
            (1..=n).collect()
        }
    }
}

#[test]
fn without_faults_every_timer_fires_once() {
    for seed in seeds(15) {
        let history = run(seed, Plan { faults: false, ..Plan::default() });
        history.check(false).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(history.delivered() > 100, "seed {seed}: a simulation without deliveries shows nothing");
    }
}

#[test]
fn with_faults_the_contract_holds() {
    for seed in seeds(40) {
        let history = run(seed, Plan::default());
        history.check(true).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn little_memory_drops_nothing() {
    for seed in seeds(10) {
        let history = run(seed, Plan { memory_bytes: 30_000, credit: 3, ..Plan::default() });
        history.check(true).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn handovers_in_good_order_make_no_duplicates() {
    for seed in seeds(20) {
        let history = run(seed, Plan { faults: false, handovers: true, ..Plan::default() });
        history.check(false).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(history.delivered() > 100, "seed {seed}: a simulation without deliveries shows nothing");
    }
}

#[test]
fn handovers_among_faults_keep_the_contract() {
    for seed in seeds(20) {
        let history = run(seed, Plan { handovers: true, ..Plan::default() });
        history.check(true).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn one_seed_gives_one_history() {
    let (a, b) = (run(7, Plan::default()), run(7, Plan::default()));
    assert_eq!(a.digest(), b.digest());
    assert_ne!(a.digest(), run(8, Plan::default()).digest());
}

#[test]
fn the_checker_can_fail() {
    for sabotage in sim::Sabotage::ALL {
        let caught = (1..=100).any(|seed| {
            let plan = Plan { sabotage: Some(sabotage), ..Plan::default() };
            run(seed, plan).check(true).is_err()
        });
        assert!(caught, "{sabotage:?} went unnoticed");
    }
}
