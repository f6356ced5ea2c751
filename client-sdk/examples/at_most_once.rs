//! Something that must never happen twice: a text message that costs money.
//!
//! An at-most-once timer is delivered once at most, under any failure. A timer that was delivered
//! and never confirmed is listed, and a person decides.
//!
//! Start a broker with `mtimer dev`, then
//! `cargo run -p mtimer-client --example at_most_once`. The addresses of other brokers,
//! separated by commas, go into `MTIMER_BROKER`.

use std::error::Error;
use std::time::Duration;

use mtimer_client::{Callback, Client, Destination, Mode, Schedule, TimerId};
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let brokers = std::env::var("MTIMER_BROKER").unwrap_or_else(|_| "127.0.0.1:7400".into());
    let client = Client::builder().brokers([brokers.clone()]).software("at-most-once").connect().await?;
    let dest = Destination::new(&format!("texts-{}", client.now()), "sms")?;

    let mut ids = Vec::new();
    for text in ["your code is 1234", "your parcel is here"] {
        let schedule = Schedule::after(&dest, Duration::from_millis(300))
            .mode(Mode::AtMostOnce)
            .callback_timeout(Duration::from_secs(5))
            .payload(text);
        ids.push(client.schedule(schedule).await?.id);
    }

    // A worker that sends the first text, and crashes in the middle of the second.
    let worker = Client::builder().brokers([brokers]).software("worker").connect().await?;
    let (tell, mut told) = mpsc::channel::<TimerId>(2);
    let registration = worker.register(&dest).concurrency(2).on(move |callback: Callback| {
        let tell = tell.clone();
        async move {
            println!("delivered, attempt {}: {:?}", callback.attempt, callback.payload);
            // The example waits for both.
            let _ = tell.send(callback.id).await;
            if callback.payload.ends_with(b"here") {
                std::future::pending::<()>().await;
            }
        }
    })?;
    for _ in 0..2 {
        tokio::time::timeout(Duration::from_secs(20), told.recv()).await?;
    }
    // Nothing is finished and nothing is confirmed: as if the process were gone.
    drop((worker, registration));

    // It is not sent again. It is listed, and its timer says so.
    let crashed = ids[1];
    loop {
        let mut unconfirmed = client.unconfirmed();
        let mut found = false;
        while let Some(row) = unconfirmed.next().await? {
            found |= row.timer.id == crashed;
        }
        if found {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("unconfirmed: {crashed}: was the text sent, or not?");

    // Somebody looked it up: it was sent. (Otherwise: client.replay(crashed).)
    println!("purged: {}", client.purge(crashed).await?);
    client.close().await?;
    Ok(())
}
