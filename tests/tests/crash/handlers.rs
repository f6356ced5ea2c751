//! Clients with handlers for everything; those of one destination are flaky.

use std::sync::Arc;

use mtimer_client::{Callback, Client, Outcome, Registration};
use mtimer_tests::{Behaviour, Broker, Recorder};

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
            let (recorder, asked) = (Arc::clone(recorder), client.clone());
            let take = move |callback| handle(Arc::clone(&recorder), asked.clone(), seed, callback);
            client.on(dest(app), take).unwrap()
        };
        let registrations = APPS.iter().map(register).collect();
        all.push(Handlers { client, registrations });
    }
    all
}

async fn handle(recorder: Arc<Recorder>, client: Client, seed: u64, callback: Callback) -> Outcome {
    let Some(plan) = recorder.delivered(&client, &callback) else { return Outcome::ok() };
    let flaky = plan.dest.app() == FLAKY;
    let behaviour = if flaky { Behaviour::flaky(seed, &plan, callback.attempt) } else { Behaviour::GOOD };
    behaviour.carry_out(&recorder, &plan, &callback).await
}
