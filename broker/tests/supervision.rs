//! A defect in one task ends the whole broker, and says so.

mod support;

use std::sync::Arc;

use mtimer_broker::{BrokerError, start};
use mtimer_protocol::{ClientMessage, ErrorCode, Request};
use mtimer_store::{
    Acquire, AcquireError, Acquired, Call, CallAnswer, Health, Lane, LaneFuture, MemoryStore, Op,
    OwnerRecord, Store, StoreClock, StoreFuture, StoreInfo,
};
use mtimer_types::{Epoch, PartitionId, Term};
use support::{Client, options, schedule, timer};
use tokio::sync::watch;

/// A store whose lanes panic when a timer is scheduled.
struct Cursed(MemoryStore);

struct CursedLane(Arc<dyn Lane>);

impl Store for Cursed {
    fn info(&self) -> StoreInfo {
        self.0.info()
    }
    fn owner(&self, partition: PartitionId) -> StoreFuture<OwnerRecord> {
        self.0.owner(partition)
    }
    fn acquire(&self, acquire: Acquire) -> StoreFuture<Acquired, AcquireError> {
        let acquired = self.0.acquire(acquire);
        Box::pin(async { acquired.await.map(|a| Acquired { lane: Arc::new(CursedLane(a.lane)), ..a }) })
    }
    fn raise_term(&self) -> StoreFuture<Term> {
        self.0.raise_term()
    }
    fn clocks(&self) -> Vec<StoreClock> {
        self.0.clocks()
    }
}

impl Lane for CursedLane {
    fn epoch(&self) -> Epoch {
        self.0.epoch()
    }
    fn call(&self, call: Call) -> LaneFuture<CallAnswer> {
        if let Call::Apply(batch) = &call {
            assert!(!batch.ops.iter().any(|op| matches!(op, Op::Schedule(_))), "a curse");
        }
        self.0.call(call)
    }
    fn health(&self) -> watch::Receiver<Health> {
        self.0.health()
    }
}

#[tokio::test]
async fn a_task_that_panics_ends_the_broker_and_the_clients_are_told() {
    let broker = start(options(), Arc::new(Cursed(MemoryStore::new(2)))).await.unwrap();
    let mut idle = Client::welcomed(&broker).await;
    let mut client = Client::welcomed(&broker).await;
    let ops = vec![schedule(&timer("a", 1, b""))];
    client.send(&ClientMessage::Request(Request { corr: 1, first_sent: support::now(), ops })).await;
    let (ended, told, idle_told) = tokio::join!(broker.wait(), client.refused(), idle.refused());
    let BrokerError::Panicked { task, what } = ended.unwrap_err() else { panic!("not a panic") };
    assert!(task == "engine" && what.contains("a curse"), "{task}: {what}");
    assert_eq!((told.0, idle_told.0), (ErrorCode::Stopping, ErrorCode::Stopping));
}
