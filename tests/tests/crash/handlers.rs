//! Clients whose handlers do well, ask for a retry, fail for good, or are too slow: by the timer's number and the attempt,
//! so that a run can be repeated.

use std::sync::Arc;
use std::time::Duration;

use mtimer_client::{Callback, Client, Outcome, Registration};
use mtimer_tests::{Broker, Handled, Plan, Recorder};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::load::{APPS, FLAKY, dest};

/// A client with its registrations.
pub(crate) struct Handlers {
    client: Client,
    registrations: Vec<Registration>,
}

impl Handlers {
    pub(crate) async fn close(self) {
        drop(self.registrations);
        self.client.close().await.unwrap();
    }
}

/// Two clients that share every destination.
pub(crate) async fn start(broker: &Broker, recorder: &Arc<Recorder>, seed: u64) -> Vec<Handlers> {
    let mut all = Vec::new();
    for _ in 0..2 {
        let client = broker.client().await;
        let register = |app: &&str| {
            let recorder = Arc::clone(recorder);
            client.on(dest(app), move |callback| handle(Arc::clone(&recorder), seed, callback)).unwrap()
        };
        let registrations = APPS.iter().map(register).collect();
        all.push(Handlers { client, registrations });
    }
    all
}

async fn handle(recorder: Arc<Recorder>, seed: u64, callback: Callback) -> Outcome {
    let Some(plan) = recorder.delivered(&callback) else { return Outcome::ok() };
    let (takes, handled) = behaviour(seed, &plan, callback.attempt);
    if !takes.is_zero() {
        tokio::time::sleep(takes).await;
    }
    recorder.settled(plan.serial, &callback, handled);
    match handled {
        Handled::Ok => Outcome::ok(),
        Handled::Retry => Outcome::retry("again, please"),
        Handled::Fail => Outcome::fail("never"),
    }
}

fn behaviour(seed: u64, plan: &Plan, attempt: u32) -> (Duration, Handled) {
    if plan.dest.app() != FLAKY {
        return (Duration::ZERO, Handled::Ok);
    }
    let mut rng = StdRng::seed_from_u64(seed ^ (plan.serial << 8) ^ u64::from(attempt));
    let too_long = Duration::from_millis(plan.timeout_ms * 3 / 2);
    match rng.random_range(0..100) {
        0..50 => (Duration::ZERO, Handled::Ok),
        50..60 => (Duration::from_millis(rng.random_range(1..100)), Handled::Ok),
        60..80 => (Duration::ZERO, Handled::Retry),
        80..85 => (Duration::ZERO, Handled::Fail),
        85..93 => (too_long, Handled::Ok),
        _ => (too_long, Handled::Retry),
    }
}
