//! More timers than a slow handler can take before their deadline: none is delivered after it, and
//! the rest is counted as expired.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::sync::Arc;
use std::time::Duration;

use mtimer_client::{Callback, Client, Destination, Mode, Outcome};
use mtimer_tests::{
    Event, Final, Handled, Launch, Plan, Recorder, Server, ServerOptions, check, counter, drain, host_ms,
    purge,
};
use tempfile::TempDir;

/// Timers, and how long the one handler takes for each.
const TIMERS: u64 = 40;
const TAKES: Duration = Duration::from_millis(200);
/// From the due time until the deadline, ms.
const DEADLINE_MS: u64 = 1_200;
/// From the scheduling until the due time, ms.
const AHEAD_MS: u64 = 1_000;
/// The broker's callback timeout, ms.
const TIMEOUT_MS: u64 = 10_000;
/// How long the end may take: a loaded machine is slow.
const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_delivered_after_its_deadline_on_the_embedded_store() {
    for mode in [Mode::AtLeastOnce, Mode::AtMostOnce] {
        let folder = TempDir::with_prefix("mtimer-deadlines-").unwrap();
        let launch = Launch::embedded(folder.path()).flags(["--durability", "embedded-fast"]);
        run("embedded", launch, None, mode).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_delivered_after_its_deadline_on_redis() {
    for mode in [Mode::AtLeastOnce, Mode::AtMostOnce] {
        let redis = Server::start_with(ServerOptions::default());
        run("redis", Launch::redis(&redis.url()), Some(&redis), mode).await;
    }
}

async fn run(store: &str, launch: Launch, redis: Option<&Server>, mode: Mode) {
    let timeout = format!("{TIMEOUT_MS}ms");
    let broker = launch.flags(["--partitions", "4", "--callback-timeout", &timeout]).start();
    let recorder = Arc::new(Recorder::default());
    let client = broker.client().await;
    let dest = Destination::new("deadlines", "slow").unwrap();
    let due = host_ms() + AHEAD_MS;
    let plan = |serial| Plan {
        mode,
        deadline: Some(due + DEADLINE_MS),
        crowded: true,
        ..Plan::new(serial, &dest, due, 1, TIMEOUT_MS)
    };
    let plans: Vec<Plan> = (0..TIMERS).map(plan).collect();
    plans.iter().for_each(|plan| recorder.plan(plan.clone()));
    let registration = {
        let (recorder, asked) = (Arc::clone(&recorder), client.clone());
        let take = move |callback| take(Arc::clone(&recorder), asked.clone(), callback);
        client.register(dest.clone()).concurrency(1).on(take).unwrap()
    };
    let asked = host_ms();
    let answers = client.schedule_all(plans.iter().map(Plan::schedule).collect()).await;
    plans.iter().zip(&answers).for_each(|(plan, answer)| recorder.scheduled(plan.serial, asked, answer));
    let status = drain(&client, TIMEOUT).await;
    registration.stop().await;

    let history = recorder.history();
    let mut end = Final::read(&client, &history).await;
    purge(&client, redis, &mut end).await;
    let expired = counter(&status, "expired_total");
    end.expired = Some(expired);
    let late = history.events.iter().filter_map(|(_, event)| match event {
        Event::Delivered { at, .. } => Some(*at as i64 - (due + DEADLINE_MS) as i64),
        _ => None,
    });
    let late: Vec<i64> = late.collect();
    println!(
        "{store}, {mode:?}: {} delivered, the last {} ms after the deadline; {expired} expired",
        late.len(),
        late.iter().max().unwrap_or(&0)
    );
    let violations = check(&history, &end);
    assert!(violations.is_empty(), "{} violations, the first: {}", violations.len(), violations[0]);
    assert_eq!(late.len() as u64 + expired, TIMERS, "each is either delivered or expired");
    assert!(expired > 0, "the handler took all {TIMERS} within {DEADLINE_MS} ms");
    client.close().await.unwrap();
}

async fn take(recorder: Arc<Recorder>, client: Client, callback: Callback) -> Outcome {
    let Some(plan) = recorder.delivered(&client, &callback) else { return Outcome::ok() };
    tokio::time::sleep(TAKES).await;
    recorder.settled(plan.serial, &callback, Handled::Ok);
    Outcome::ok()
}
