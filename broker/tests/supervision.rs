//! A defect in one task ends the whole broker, and says so.

mod support;

use std::sync::Arc;

use mtimer_broker::{BrokerError, start};
use mtimer_protocol::{ClientMessage, ErrorCode, Request};
use mtimer_store::{
    Acquire, AcquireError, Acquired, Answer, Batch, Census, DeadFilter, DeadLetter, Health, InFlight, Lane,
    LaneFuture, Load, Loaded, MemoryStore, Op, OwnerRecord, Page, Place, Record, Store, StoreClock,
    StoreFuture, StoreInfo, Taken, Unconfirmed,
};
use mtimer_types::{Destination, Epoch, PartitionId, Target, Term, Time};
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
    fn apply(&self, batch: Batch) -> LaneFuture<Vec<Answer>> {
        assert!(!batch.ops.iter().any(|op| matches!(op, Op::Schedule(_))), "a curse");
        self.0.apply(batch)
    }
    fn load(&self, load: Load) -> LaneFuture<Loaded> {
        self.0.load(load)
    }
    fn unload(&self, beyond: Time) -> LaneFuture<()> {
        self.0.unload(beyond)
    }
    fn get(&self, target: Target) -> LaneFuture<Option<(Record, Place)>> {
        self.0.get(target)
    }
    fn parked_destinations(&self) -> LaneFuture<Vec<(Destination, u64)>> {
        self.0.parked_destinations()
    }
    fn parked(&self, dest: Destination, cursor: u64, limit: u32) -> LaneFuture<Page<Record>> {
        self.0.parked(dest, cursor, limit)
    }
    fn dead(&self, filter: DeadFilter, cursor: u64, limit: u32) -> LaneFuture<Page<DeadLetter>> {
        self.0.dead(filter, cursor, limit)
    }
    fn taken(&self, cursor: u64, limit: u32) -> LaneFuture<Page<Taken>> {
        self.0.taken(cursor, limit)
    }
    fn unconfirmed(&self, cursor: u64, limit: u32) -> LaneFuture<Page<Unconfirmed>> {
        self.0.unconfirmed(cursor, limit)
    }
    fn census(&self) -> LaneFuture<Census> {
        self.0.census()
    }
    fn release(&self, in_flight: Vec<InFlight>) -> LaneFuture<()> {
        self.0.release(in_flight)
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
