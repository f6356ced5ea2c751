//! What clients are told of the cluster clock.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::FutureExt;
use mtimer_broker::{BrokerOptions, start};
use mtimer_protocol::{Query, QueryAnswer, ServerMessage, UNASKED_PONG};
use mtimer_store::{
    Acquire, AcquireError, Acquired, MemoryStore, OwnerRecord, Store, StoreClock, StoreFuture, StoreInfo,
};
use mtimer_types::{PartitionId, Term};
use support::http::{address, get, on_loopback, scrape};
use support::{Client, now, options, schedule, timer, until_async};

/// By how much the store's clock is corrected: less than a step.
const CORRECTION_MS: u64 = 200;

/// A store whose clock is ahead of this host's.
struct Ahead {
    timers: MemoryStore,
    by_us: Arc<AtomicU64>,
}

impl Store for Ahead {
    fn info(&self) -> StoreInfo {
        self.timers.info()
    }

    fn owner(&self, partition: PartitionId) -> StoreFuture<OwnerRecord> {
        self.timers.owner(partition)
    }

    fn acquire(&self, acquire: Acquire) -> StoreFuture<Acquired, AcquireError> {
        self.timers.acquire(acquire)
    }

    fn raise_term(&self) -> StoreFuture<Term> {
        self.timers.raise_term()
    }

    fn clocks(&self) -> Vec<StoreClock> {
        let by_us = self.by_us.load(Ordering::SeqCst);
        let read = async move {
            let host = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            Ok(host.as_micros() as u64 + by_us)
        };
        vec![StoreClock { name: "ahead".to_owned(), reading: read.boxed() }]
    }
}

/// The broker's first readings were slow, or the store's clock was set: less than a step.
#[tokio::test]
async fn clients_are_told_of_a_correction_before_they_get_what_is_due_by_it() {
    let by_us = Arc::new(AtomicU64::new(0));
    let store = Ahead { timers: MemoryStore::new(2), by_us: by_us.clone() };
    let broker = start(BrokerOptions { http: on_loopback(), ..options() }, Arc::new(store)).await.unwrap();
    let mut client = Client::welcomed(&broker).await;
    client.register(1, "a", 2_000).await;
    let timers = (0..1_500).map(|n| schedule(&timer("a", 500 + n * 4, b"")));
    client.request(timers.collect()).await;
    by_us.store(CORRECTION_MS * 1_000, Ordering::SeqCst);
    let mut told = None;
    loop {
        match client.next().await.expect("the connection lasts") {
            ServerMessage::Pong(UNASKED_PONG, time) => told = Some((time, now())),
            ServerMessage::Deliver { deliveries, .. } => {
                // By the clock as it was before, these are not due yet.
                let now = now();
                let ahead: Vec<_> = deliveries.iter().map(|one| one.due).filter(|due| *due > now).collect();
                if let Some(first) = ahead.first() {
                    let (told, at) = told.unwrap_or_else(|| panic!("{first} is delivered at {now}"));
                    // It may have been under way for a while. Before the correction both clocks are
                    // the same.
                    let lead_ms = told.ms_since(at);
                    let expected = CORRECTION_MS / 4..=CORRECTION_MS + 1;
                    assert!(expected.contains(&lead_ms), "{told} is told at {at}");
                    break;
                }
            }
            _ => {}
        }
    }
    // By more than that the clock steps.
    let steps = "mtimer_clock_events_total{event=\"step\"} ";
    assert!(scrape(&broker).await.contains(&format!("{steps}0\n")));
    by_us.store(60_000_000, Ordering::SeqCst);
    until_async("a step is counted", async || scrape(&broker).await.contains(&format!("{steps}1\n"))).await;
}

#[tokio::test]
async fn a_broker_says_that_time_stands_still_and_is_not_ready_meanwhile() {
    let by_us = Arc::new(AtomicU64::new(3_600_000_000));
    let store = Ahead { timers: MemoryStore::new(2), by_us: by_us.clone() };
    let broker = start(BrokerOptions { http: on_loopback(), ..options() }, Arc::new(store)).await.unwrap();
    let ready = async || get(address(&broker), "/readyz").await;
    let standstill = async |name: &str| {
        let status = broker.status().await.unwrap();
        status.counters.into_iter().find(|(counter, _)| counter == name).unwrap().1
    };
    assert_eq!(ready().await.0, 200);
    assert_eq!(standstill("clock_standstill_left_ms").await, 0);
    by_us.store(0, Ordering::SeqCst);
    until_async("it is not ready", async || ready().await.0 == 503).await;
    let (_, why) = ready().await;
    assert!(why.contains("time has stood still") && why.contains("the deciding clock was set back"), "{why}");
    let QueryAnswer::Ready(told) = Client::welcomed(&broker).await.query(Query::Ready).await else {
        panic!("another answer");
    };
    assert!(told.len() == 1 && told[0].starts_with("time has stood still for "), "{told:?}");
    let left = standstill("clock_standstill_left_ms").await;
    assert!((3_000_000..=3_600_000).contains(&left), "{left}");
    until_async("since when", async || standstill("clock_standstill_ms").await > 1_000).await;
    let shown = scrape(&broker).await;
    let line = shown.lines().find_map(|line| line.strip_prefix("mtimer_clock_standstill_seconds "));
    assert!(line.unwrap().parse::<f64>().unwrap() > 3_000.0, "{shown}");
    by_us.store(3_600_000_000, Ordering::SeqCst);
    until_async("it is ready again", async || ready().await.0 == 200).await;
    assert_eq!(standstill("clock_standstill_ms").await, 0);
}
