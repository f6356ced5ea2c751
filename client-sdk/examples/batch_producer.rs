//! Many timers in little time: batches of a thousand, and the handling of those that were refused.
//!
//! Start a broker with `mtimer dev`, then
//! `cargo run --release -p mtimer-client --example batch_producer`. The addresses of other brokers,
//! separated by commas, go into `MTIMER_BROKER`; another number of timers goes into the first
//! argument.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mtimer_client::{Client, Destination, Schedule, ScheduleError};

const BATCH: usize = 1_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let brokers = std::env::var("MTIMER_BROKER").unwrap_or_else(|_| "127.0.0.1:7400".into());
    let timers: usize = std::env::args().nth(1).map_or(Ok(20_000), |n| n.parse())?;
    let client = Client::builder().brokers([brokers]).software("batch-producer").connect().await?;
    let dest = Destination::new(&format!("batch-{}", client.now()), "producer")?;

    let fired = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&fired);
    let registration = client.register(&dest).concurrency(10_000).on(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        async {}
    })?;

    let began = Instant::now();
    let mut stored = 0;
    for first in (0..timers).step_by(BATCH) {
        let mut batch = Vec::with_capacity(BATCH);
        for n in first..timers.min(first + BATCH) {
            let spread = Duration::from_millis(1_000 + n as u64 % 2_000);
            let schedule = Schedule::after(&dest, spread).payload(format!("number {n}"));
            // Fixed now, so that sending it again would not make another timer.
            batch.push(client.prepare(schedule)?.1);
        }
        stored += send(&client, batch).await?;
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{stored} timers stored in {seconds:.2} s: {:.0} a second", stored as f64 / seconds);

    let deadline = Instant::now() + Duration::from_secs(60);
    while fired.load(Ordering::Relaxed) < stored && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("{} of them have fired", fired.load(Ordering::Relaxed));
    registration.stop().await;
    client.close().await?;
    Ok(())
}

/// Sends a batch until nothing is left that another try could help; returns how many are stored.
async fn send(client: &Client, mut batch: Vec<Schedule>) -> Result<u64, ScheduleError> {
    let mut stored = 0;
    for _ in 0..5 {
        let mut again = Vec::new();
        for (schedule, answer) in batch.iter().zip(client.schedule_all(batch.clone()).await) {
            match answer {
                Ok(_) => stored += 1,
                Err(error) if error.is_retryable() => again.push(schedule.clone()),
                Err(error) => return Err(error),
            }
        }
        if again.is_empty() {
            break;
        }
        batch = again;
    }
    Ok(stored)
}
