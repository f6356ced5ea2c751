//! A client whose handlers hang: what waits behind them is delivered once a place is free, and uses
//! up no attempt until then.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mtimer_client::{Callback, Client, DeadFilter, Destination, Outcome, Schedule, Time};
use mtimer_tests::{Launch, drain, host_ms, serial_of, wait_for};
use tempfile::TempDir;
use tokio::sync::Semaphore;

/// Handlers at a time, and how many of them hang: all.
const PLACES: u64 = 2;
const TIMERS: u64 = 20;
/// Several callback timeouts and the retry, ms: by then whoever uses up attempts is dead.
const BELL_AFTER_MS: u64 = 4_000;
const TIMEOUT: Duration = Duration::from_secs(60);

/// The attempts of each timer whose handler was entered.
type Entered = Arc<Mutex<BTreeMap<u64, Vec<u32>>>>;

fn dest(app: &str) -> Destination {
    Destination::new("hanging", app).unwrap()
}

async fn schedule(client: &Client, serials: std::ops::Range<u64>) {
    let due = Time::from_ms(host_ms());
    let one = |serial| Schedule::at(dest("slow"), due).payload(format!("{serial}:"));
    for answer in client.schedule_all(serials.map(one).collect()).await {
        assert!(answer.unwrap().new);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timers_behind_handlers_that_hang_do_not_die() {
    let folder = TempDir::with_prefix("mtimer-hanging-").unwrap();
    let flags = ["--retry", "100ms", "--callback-timeout", "500ms"];
    let broker = Launch::embedded(folder.path()).flags(flags).start();
    let client = broker.client().await;
    let (entered, gate) = (Entered::default(), Arc::new(Semaphore::new(0)));
    let handler = {
        let (entered, gate) = (Arc::clone(&entered), Arc::clone(&gate));
        move |callback: Callback| {
            let serial = serial_of(&callback.payload).unwrap();
            entered.lock().unwrap().entry(serial).or_default().push(callback.attempt);
            let gate = Arc::clone(&gate);
            async move {
                if serial < PLACES {
                    gate.acquire().await.unwrap().forget();
                }
                Outcome::ok()
            }
        }
    };
    let slow = client.register(dest("slow")).concurrency(PLACES as u32).on(handler).unwrap();
    schedule(&client, 0..PLACES).await;
    wait_for("handlers that hang", TIMEOUT, async || entered.lock().unwrap().len() as u64 == PLACES).await;

    schedule(&client, PLACES..TIMERS).await;
    let (rung, ringer) = (Arc::new(Semaphore::new(0)), dest("bell"));
    let bell = {
        let rung = Arc::clone(&rung);
        move |_: Callback| {
            rung.add_permits(1);
            async { Outcome::ok() }
        }
    };
    let bell = client.on(ringer.clone(), bell).unwrap();
    client.schedule(Schedule::at(ringer, Time::from_ms(host_ms() + BELL_AFTER_MS))).await.unwrap();
    tokio::time::timeout(TIMEOUT, rung.acquire()).await.expect("the bell").unwrap().forget();

    assert_eq!(entered.lock().unwrap().keys().filter(|n| **n >= PLACES).count(), 0, "no place was free");
    let dead = client.dead(DeadFilter::default()).all().await.unwrap();
    let dead: Vec<u64> = dead.iter().filter_map(|row| serial_of(&row.timer.payload)).collect();
    assert!(dead.iter().all(|serial| *serial < PLACES), "these died unseen: {dead:?}");

    gate.add_permits(100);
    let all_entered = async || (PLACES..TIMERS).all(|n| entered.lock().unwrap().contains_key(&n));
    wait_for("the others", TIMEOUT, all_entered).await;
    drain(&client, TIMEOUT).await;
    for (serial, attempts) in entered.lock().unwrap().range(PLACES..) {
        assert_eq!(attempts[..], [1], "timer {serial} was delivered once, as its first attempt");
    }
    slow.stop().await;
    bell.stop().await;
    client.close().await.unwrap();
}
