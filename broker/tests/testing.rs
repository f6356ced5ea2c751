//! The broker for tests of applications.

use std::time::Duration;

use mtimer_broker::testing::TestBroker;
use mtimer_broker::{BrokerOptions, StartError};
use mtimer_client::{Client, ConnectError, Destination, Schedule};
use tokio::time::timeout;

/// Nothing here takes this long.
const TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn each_broker_has_timers_of_its_own_and_ends_when_it_is_stopped() {
    let (one, other) = (TestBroker::start().await.unwrap(), TestBroker::start().await.unwrap());
    let connect = |broker: &TestBroker| Client::builder().brokers([broker.address()]).connect();
    let (client, stranger) = (connect(&one).await.unwrap(), connect(&other).await.unwrap());
    let dest = Destination::new("shop", "orders").unwrap();
    let schedule = Schedule::after(&dest, Duration::from_secs(3_600)).payload("hello");
    let id = client.schedule(schedule).await.unwrap().id;
    assert_eq!(stranger.get(id).await, Ok(None));

    let (called, mut calls) = tokio::sync::mpsc::unbounded_channel();
    let registration = client.on(&dest, move |callback| {
        let sent = called.send((callback.id, callback.payload));
        async move { sent.map_err(|error| error.to_string()) }
    });
    client.reschedule(id, Duration::ZERO).await.unwrap();
    let call = timeout(TIMEOUT, calls.recv()).await.unwrap().unwrap();
    assert_eq!((call.0, &call.1[..]), (id, &b"hello"[..]));

    registration.unwrap().stop().await;
    client.close().await.unwrap();
    let address = one.address();
    timeout(TIMEOUT, one.stop()).await.unwrap().unwrap();
    let refused = Client::builder().brokers([address]).connect_timeout(Duration::ZERO).connect().await;
    assert!(matches!(refused, Err(ConnectError::Unreachable { .. })), "{refused:?}");
}

#[tokio::test]
async fn options_out_of_range_are_refused() {
    let options = BrokerOptions { max_sessions: 0, ..BrokerOptions::default() };
    assert!(matches!(TestBroker::start_with(options).await, Err(StartError::Options(_))));
}
