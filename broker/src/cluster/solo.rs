//! A broker alone, on a store that has no election: it is its own leader, and gives itself
//! everything at once.
//!
//! Purpose: the same orders for the engine's task as a leader's topology brings, and the same board
//! to read. It is given lost partitions again, unless the broker is stopping.
//! Invariant: everything that it gives bears one term, which is higher than those of all brokers
//! that were started on this store before.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use mtimer_core::cluster::Lender;
use mtimer_store::{Store, StoreError};
use mtimer_types::{Epoch, PartitionId, Term};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::board::Board;
use super::event::Order;
use crate::clock::BrokerClock;
use crate::counters::ShellCounters;
use crate::error::BrokerError;
use crate::outage::{Outage, OutagePauses};

/// A partition that was owned for so long is acquired again at once.
const STABLE: Duration = Duration::from_secs(60);
/// Otherwise at once the first time, then after a pause that doubles from the shorter to the
/// longer.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// The leader of a cluster of one.
pub(crate) struct Solo {
    partitions: u16,
    term: Term,
    board: Arc<Board>,
    orders: mpsc::Sender<Order>,
    clock: Arc<BrokerClock>,
    lender: Lender,
    /// Owned partitions, and since when.
    owned: BTreeMap<PartitionId, (Epoch, Instant)>,
    /// How long to pause before the next acquisition, of partitions that are lost again soon.
    restless: HashMap<PartitionId, Duration>,
    /// When lost partitions are given again.
    again: BTreeMap<PartitionId, Instant>,
    stopping: bool,
}

/// Raises the store's term, waiting while the store is away. Fails if the store cannot be used.
pub(crate) async fn raise_term(
    store: &dyn Store,
    outage: &Outage,
    counters: &ShellCounters,
) -> Result<Term, StoreError> {
    let mut pauses = OutagePauses::default();
    let term = loop {
        match store.raise_term().await {
            Ok(term) => break term,
            Err(error @ StoreError::Unusable(_)) => return Err(error),
            Err(error @ StoreError::Unavailable(_)) => outage.begin(error, counters),
        }
        pauses.wait().await;
    };
    outage.end();
    Ok(term)
}

impl Solo {
    pub(crate) fn new(
        partitions: u16,
        term: Term,
        board: Arc<Board>,
        orders: mpsc::Sender<Order>,
        clock: Arc<BrokerClock>,
    ) -> Self {
        let lender = Lender::new(clock.now().mono_ms);
        Self {
            partitions,
            term,
            board,
            orders,
            clock,
            lender,
            owned: BTreeMap::new(),
            restless: HashMap::new(),
            again: BTreeMap::new(),
            stopping: false,
        }
    }

    /// Runs until the engine's task has ended.
    pub(crate) async fn run(mut self) -> Result<(), BrokerError> {
        let all: Vec<PartitionId> = (0..self.partitions).map(PartitionId).collect();
        let mut up = self.order(Order::Share { partitions: all.clone(), is_member: true }).await;
        for partition in all {
            up = up && self.give(partition).await;
        }
        while up {
            let next = self.again.values().min().copied();
            tokio::select! {
                () = self.orders.closed() => up = false,
                () = self.board.changed() => up = self.read_board().await,
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                    up = self.give_again().await;
                }
            }
        }
        Ok(())
    }

    /// `false`: the engine's task has ended.
    async fn order(&self, order: Order) -> bool {
        self.orders.send(order).await.is_ok()
    }

    async fn give(&self, partition: PartitionId) -> bool {
        self.order(Order::Own { partition, term: self.term, version: 1 }).await
    }

    async fn give_again(&mut self) -> bool {
        let now = Instant::now();
        let due: Vec<PartitionId> =
            self.again.iter().filter(|(_, at)| **at <= now).map(|(partition, _)| *partition).collect();
        for partition in due {
            self.again.remove(&partition);
            if !self.give(partition).await {
                return false;
            }
        }
        true
    }

    /// Takes note of changes.
    async fn read_board(&mut self) -> bool {
        let now = self.board.take();
        for partition in &now.ended {
            let lasted = self.owned.remove(partition).map_or(Duration::ZERO, |(_, since)| since.elapsed());
            if !now.owned.contains_key(partition) && !now.stop {
                let pause = self.pause(*partition, lasted);
                self.again.insert(*partition, Instant::now() + pause);
            }
        }
        for (partition, epoch) in &now.owned {
            if self.owned.get(partition).is_none_or(|(of, _)| of != epoch) {
                self.owned.insert(*partition, (*epoch, Instant::now()));
            }
        }
        if !now.asks.is_empty() {
            let at = self.clock.now().mono_ms;
            let shares = now.asks.values().filter_map(|ask| self.lender.lend(at, 0, ask)).collect();
            if !self.order(Order::Lent(shares)).await {
                return false;
            }
        }
        if now.stop && !std::mem::replace(&mut self.stopping, true) {
            // There is nobody to take anything over.
            self.again.clear();
            return self.order(Order::Left).await;
        }
        true
    }

    fn pause(&mut self, partition: PartitionId, lasted: Duration) -> Duration {
        if lasted >= STABLE {
            self.restless.remove(&partition);
        }
        let pause = self.restless.get(&partition).copied().unwrap_or_default();
        self.restless.insert(partition, (pause * 2).clamp(PAUSES.0, PAUSES.1));
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::tests::clock_at;

    const P: PartitionId = PartitionId(0);

    /// A broker alone with two partitions: its board, and the orders that it gets.
    fn solo() -> (Arc<Board>, mpsc::Receiver<Order>) {
        let (board, (orders, ordered)) = (Arc::new(Board::default()), mpsc::channel(8));
        tokio::spawn(Solo::new(2, Term(7), board.clone(), orders, Arc::new(clock_at(0))).run());
        (board, ordered)
    }

    async fn next_given(orders: &mut mpsc::Receiver<Order>) -> PartitionId {
        match orders.recv().await {
            Some(Order::Own { partition, term: Term(7), version: 1 }) => partition,
            other => panic!("{other:?}"),
        }
    }

    async fn all_given(orders: &mut mpsc::Receiver<Order>) {
        let Some(Order::Share { partitions, is_member: true }) = orders.recv().await else {
            panic!("no share")
        };
        assert_eq!(partitions, [PartitionId(0), PartitionId(1)]);
        assert_eq!([next_given(orders).await, next_given(orders).await], [PartitionId(0), PartitionId(1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn it_gives_itself_everything_at_once_and_ends_with_the_engine() {
        let (board, (orders, mut ordered)) = (Arc::new(Board::default()), mpsc::channel(8));
        let task = tokio::spawn(Solo::new(2, Term(7), board, orders, Arc::new(clock_at(0))).run());
        all_given(&mut ordered).await;
        drop(ordered);
        assert!(task.await.unwrap().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn partitions_that_are_lost_soon_are_given_again_more_and_more_slowly() {
        let (board, mut orders) = solo();
        all_given(&mut orders).await;
        let mut pauses = Vec::new();
        for epoch in 1..=4 {
            board.owns(P, Epoch(epoch));
            tokio::task::yield_now().await;
            let ended = Instant::now();
            board.lost(P);
            assert_eq!(next_given(&mut orders).await, P);
            pauses.push(ended.elapsed().as_millis());
        }
        assert!(pauses[0] < 10 && pauses[1] >= 250 && pauses[2] >= 500 && pauses[3] >= 1_000, "{pauses:?}");
        board.owns(P, Epoch(5));
        // So that it is read before the time passes.
        tokio::task::yield_now().await;
        tokio::time::advance(STABLE).await;
        let ended = Instant::now();
        board.lost(P);
        assert_eq!(next_given(&mut orders).await, P);
        assert!(ended.elapsed().as_millis() < 10, "what was owned long enough is given again at once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_has_nobody_to_wait_for_and_gives_nothing_again() {
        let (board, mut orders) = solo();
        all_given(&mut orders).await;
        board.owns(P, Epoch(1));
        tokio::task::yield_now().await;
        board.stop();
        assert!(matches!(orders.recv().await, Some(Order::Left)));
        board.lost(P);
        let more = tokio::time::timeout(STABLE, orders.recv()).await;
        assert!(more.is_err(), "{more:?}");
    }
}
