//! The program of the README, so that it is compiled. A test compares both.

use std::time::Duration;

use mtimer_client::{Client, Destination, Outcome, Schedule};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::builder().brokers(["127.0.0.1:7400"]).connect().await?;
    let dest = Destination::new("shop", "orders")?;

    // Keep the registration: callbacks come for as long as it lives.
    let registration = client.on(dest.clone(), async |callback| {
        println!("{} is due: {:?}, {} ms late", callback.id, callback.payload, callback.lateness_ms());
        Outcome::ok()
    })?;

    let schedule = Schedule::after(dest, Duration::from_secs(5)).payload("hello");
    let scheduled = client.schedule(schedule).await?;
    println!("scheduled {}", scheduled.id);

    tokio::time::sleep(Duration::from_secs(6)).await;
    registration.stop().await;
    client.close().await?;
    Ok(())
}
