//! Reminders by mail, with a mail server that is not always there: retries, and dead letters for
//! mails that cannot be sent.
//!
//! Start a broker with `mtimer dev`, then
//! `cargo run -p mtimer-client --example reminder`. The addresses of other brokers,
//! separated by commas, go into `MTIMER_BROKER`.

use std::error::Error;
use std::time::Duration;

use mtimer_client::{Callback, Client, DeadFilter, Destination, Outcome, Schedule};
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let brokers = std::env::var("MTIMER_BROKER").unwrap_or_else(|_| "127.0.0.1:7400".into());
    let client = Client::builder().brokers([brokers]).software("reminder").connect().await?;
    // A group of its own for every run, so that old dead letters are not in the way.
    let group = format!("reminders-{}", client.now());
    let dest = Destination::new(&group, "mail")?;

    let (tell, mut seen) = mpsc::channel(64);
    let _registration = client.on(&dest, move |callback: Callback| {
        let tell = tell.clone();
        async move {
            let to = String::from_utf8_lossy(&callback.payload).into_owned();
            let outcome = send_mail(&to, callback.attempt);
            println!("attempt {} for {to}: {outcome:?}", callback.attempt);
            // The receiver is gone once the example has seen enough.
            let _ = tell.send((to, callback.attempt)).await;
            outcome
        }
    })?;

    for to in ["ada@example.org", "busy@example.org", "nobody", "down@example.org"] {
        let schedule = Schedule::after(&dest, Duration::from_millis(500))
            .retry([Duration::from_millis(300), Duration::from_millis(600)])
            .payload(to);
        client.schedule(schedule).await?;
    }

    // ada 1, busy 2, nobody 1, down 3.
    for _ in 0..7 {
        tokio::time::timeout(Duration::from_secs(20), seen.recv()).await?.ok_or("the handler is gone")?;
    }

    let filter = DeadFilter { group: Some(group), app: None };
    let mut dead = Vec::new();
    // The last outcome may still be on its way to the broker.
    for _ in 0..100 {
        dead = client.dead(filter.clone()).all().await?;
        if dead.len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for row in &dead {
        let to = String::from_utf8_lossy(&row.timer.payload);
        let error = row.last_error.as_deref().unwrap_or("-");
        println!(
            "dead letter for {to}: {:?} after {} attempts, last error: {error}",
            row.reason, row.attempts
        );
    }

    // The mail server is back: deliver again the reminders that had only run out of attempts. The
    // rest is thrown away.
    for row in dead {
        if row.timer.payload.starts_with(b"down") {
            println!("replayed: {:?}", client.replay(row.timer.id).await?);
            let again = tokio::time::timeout(Duration::from_secs(20), seen.recv()).await?;
            println!("delivered again: {again:?}");
        } else {
            println!("purged: {}", client.purge(row.timer.id).await?);
        }
    }
    client.close().await?;
    Ok(())
}

/// A mail server with a bad day.
fn send_mail(to: &str, attempt: u32) -> Outcome {
    match to {
        "busy@example.org" if attempt == 1 => {
            Outcome::retry_after(Duration::from_millis(200), "busy, come back soon")
        }
        "down@example.org" if attempt <= 3 => Outcome::retry("connection refused"),
        to if !to.contains('@') => Outcome::fail(format_args!("{to:?} is no address")),
        _ => Outcome::ok(),
    }
}
