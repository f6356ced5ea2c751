//! An order that is not paid in time is cancelled; paying it cancels the timer.
//!
//! The timer's key is the order's number, so the code that takes the payment need not know the
//! timer's id.
//!
//! Start a broker with `mtimer dev`, then
//! `cargo run -p mtimer-client --example order_timeout`. The addresses of other brokers,
//! separated by commas, go into `MTIMER_BROKER`.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use mtimer_client::{Callback, Cancelled, Client, Destination, Key, KeyPolicy, Schedule};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

/// How long a customer has to pay.
const PAY_WITHIN: Duration = Duration::from_secs(2);

#[derive(Serialize, Deserialize)]
struct Order {
    number: u32,
    total_cents: u64,
}

/// State shared by all calls of the handler: here a channel, elsewhere a pool of database
/// connections.
struct Shop {
    expired: mpsc::Sender<u32>,
}

/// An error would be a failed attempt: the callback comes again, by the retry delays. A payload
/// that is not an `Order` does not get here; its timer is a dead letter.
async fn on_unpaid(shop: Arc<Shop>, order: Order, _: Callback) -> Result<(), mpsc::error::SendError<u32>> {
    println!("order {} was not paid: cancelled, {} cents", order.number, order.total_cents);
    shop.expired.send(order.number).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let brokers = std::env::var("MTIMER_BROKER").unwrap_or_else(|_| "127.0.0.1:7400".into());
    let client = Client::builder().brokers([brokers]).software("order-timeout").connect().await?;
    let unpaid = Destination::new("shop", "unpaid-orders")?;

    let (tell, mut expired) = mpsc::channel(16);
    let shop = Arc::new(Shop { expired: tell });
    let registration = client.register(&unpaid).state(shop).on_json(on_unpaid)?;

    for (number, total_cents) in [(1, 4_200), (2, 990), (3, 12_000)] {
        let schedule = Schedule::after(&unpaid, PAY_WITHIN)
            .key(Key::new(&format!("order-{number}"))?)
            // The customer changed the order: the time starts again, the old timer never fires.
            .policy(KeyPolicy::Replace)
            .json(&Order { number, total_cents })?;
        let scheduled = client.schedule(schedule).await?;
        println!("order {number} is to be paid by {PAY_WITHIN:?}: timer {}", scheduled.id);
    }

    match client.cancel(unpaid.key("order-2")?).await? {
        Cancelled::Cancelled(id) => println!("order 2 is paid: timer {id} will not fire"),
        Cancelled::TooLate(_) => println!("order 2 is paid, but its time was up just then"),
        Cancelled::NotFound => println!("order 2 has no timer"),
    }

    for _ in 0..2 {
        let number = tokio::time::timeout(PAY_WITHIN * 5, expired.recv()).await?;
        assert_ne!(number, Some(2), "a cancelled timer fires never");
    }
    registration.stop().await;
    client.close().await?;
    Ok(())
}
