//! Whose the address is that this broker advertises, and whether this broker is reached there.
//!
//! Purpose: a broker that is not reached at its address is not ready and is given no partitions,
//! because clients would look for them there, and does not lead, because others could not join it.
//! And two brokers with one address take the lease and partitions from each other for as long as
//! both run, because a cluster takes the later one for a restart of the earlier one. Of two that
//! find the address free at the same moment, the one to which it leads goes on, and the other
//! stops.
//! Invariant: a broker that has been reached at its address once does not stop because of it, and
//! keeps its partitions. If it is not reached there later, it is not ready and says so.
//! Not in here: an address that leads to this machine from wherever it is tried (`localhost`). The
//! leader refuses the heartbeats of the second broker, unless the leader is one of the two.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mtimer_protocol::{Role, Welcome};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::SOFTWARE;
use super::board::Board;
use super::event::Order;
use super::link::connect;
use crate::access::{AccessControl, PeerCredentials};

/// How often it is looked who answers, until it is this broker.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked again once it was this broker.
const WATCH_EVERY: Duration = Duration::from_secs(15);
/// So many of these looks fail in a row before it counts: one alone may fail on a busy machine.
const FAILURES: u32 = 3;

/// How a broker recognises itself: by a hello with a random number of its own.
#[derive(Debug)]
pub(crate) struct BrokerIdentity {
    client: u128,
    met: AtomicBool,
}

impl BrokerIdentity {
    pub(crate) fn random() -> Self {
        Self { client: rand::random(), met: AtomicBool::new(false) }
    }

    /// Takes note of a client that is being welcomed.
    pub(crate) fn meet(&self, client: u128) {
        if client == self.client {
            self.met.store(true, Ordering::Release);
        }
    }

    /// Says whether it has met itself since it was last asked.
    fn has_met(&self) -> bool {
        self.met.swap(false, Ordering::AcqRel)
    }
}

/// Whether this broker is reached at the address that it advertises.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum AddressReach {
    /// It has not looked yet.
    Unknown,
    Reached,
    /// It has never been; why, for people.
    Unreached(String),
    /// It was, and is not any more; why, for people.
    Lost(String),
}

impl AddressReach {
    /// Whether this broker was reached at its address once.
    pub(crate) fn was_reached(&self) -> bool {
        matches!(self, Self::Reached | Self::Lost(_))
    }

    /// Returns why clients are better sent elsewhere, if they are.
    pub(crate) fn problem(&self) -> Option<String> {
        match self {
            Self::Reached => None,
            Self::Unknown => {
                Some("this broker has not been reached at its advertised address yet".to_owned())
            }
            Self::Unreached(why) => Some(format!(
                "nobody reaches this broker at its advertised address: {why}; it does not lead and is given no \
                 partitions"
            )),
            Self::Lost(why) => {
                Some(format!("nobody reaches this broker at its advertised address any more: {why}"))
            }
        }
    }
}

/// Who answers at an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum AddressHolder {
    /// No broker that advertises it; why, for people.
    Nobody(String),
    This,
    /// Another broker of the cluster that advertises it.
    Another,
}

/// Shakes hands with the broker that answers at `address`, which a broker of `cluster` advertises.
///
/// Waits for one second at most. After a crash the system refuses the connection, so a restart is
/// not held up.
pub(crate) async fn who_answers(
    address: &str,
    cluster: &str,
    software: &str,
    own: PeerCredentials,
    identity: &BrokerIdentity,
) -> AddressHolder {
    // An observer's slot: a broker whose slots for clients or brokers are used up answers too.
    let answer = connect(address, software.to_owned(), own, Role::Observer, identity.client).await;
    match answer {
        // It is met before it is welcomed, or refused.
        _ if identity.has_met() => AddressHolder::This,
        Ok((_, welcome)) if is_same(&welcome, address, cluster) => AddressHolder::Another,
        Ok((_, welcome)) => {
            let name = welcome.broker.as_deref().unwrap_or("one without a cluster");
            AddressHolder::Nobody(format!(
                "{address} is another broker's, {name} of cluster {:?}",
                welcome.cluster
            ))
        }
        Err(why) => AddressHolder::Nobody(format!("{address}: {why}")),
    }
}

/// Looks who answers at this broker's address, and reports the result.
pub(crate) struct AddressWatch {
    pub(crate) address: String,
    pub(crate) cluster: String,
    pub(crate) access: Arc<AccessControl>,
    pub(crate) identity: Arc<BrokerIdentity>,
    pub(crate) board: Arc<Board>,
    pub(crate) seen: watch::Sender<AddressReach>,
}

impl AddressWatch {
    /// Looks until the engine's task has ended. If another broker answers before this one was
    /// reached, orders the end of this one.
    pub(crate) async fn run(self, orders: mpsc::Sender<Order>) {
        tokio::select! {
            () = self.look(LOOK_EVERY, WATCH_EVERY) => {}
            () = orders.closed() => return,
        }
        // If nobody takes it, the broker has ended already.
        let _ = orders.send(Order::AddressTaken { address: self.address, cluster: self.cluster }).await;
    }

    /// Looks every so often until this broker is reached, and then after each `watch_every`.
    /// Returns when another broker has the address, and this one was never reached there.
    async fn look(&self, every: Duration, watch_every: Duration) {
        let mut failures = 0;
        loop {
            let own = self.access.peer_credentials();
            let holder = who_answers(&self.address, &self.cluster, SOFTWARE, own, &self.identity).await;
            let was_reached = self.seen.borrow().was_reached();
            failures = if holder == AddressHolder::This { 0 } else { failures + 1 };
            match holder {
                AddressHolder::This => self.note(AddressReach::Reached),
                AddressHolder::Another if !was_reached => return,
                AddressHolder::Nobody(why) if !was_reached => self.note(AddressReach::Unreached(why)),
                AddressHolder::Nobody(why) if failures >= FAILURES => self.note(AddressReach::Lost(why)),
                AddressHolder::Another if failures >= FAILURES => {
                    let why = format!("another broker of the cluster answers at {}", self.address);
                    self.note(AddressReach::Lost(why));
                }
                AddressHolder::Nobody(_) | AddressHolder::Another => {}
            }
            sleep(if was_reached { watch_every } else { every }).await;
        }
    }

    /// Reports the result; the first failure and its end have a line of the log each.
    fn note(&self, now: AddressReach) {
        // One that stops takes no connections while its handlers finish: that is no failure.
        if self.board.is_stopping() {
            return;
        }
        let before = self.seen.borrow().clone();
        match (&before, &now) {
            (AddressReach::Unknown, AddressReach::Unreached(why)) => tracing::warn!(
                why,
                "nobody reaches this broker at its advertised address: it is not ready, does not lead and is given no \
                 partitions; correct --advertise, or the network"
            ),
            (AddressReach::Reached, AddressReach::Lost(why)) => tracing::warn!(
                why,
                "nobody reaches this broker at its advertised address any more: it is not ready, and keeps its \
                 partitions; clients may not reach it either: mend the network, or correct --advertise"
            ),
            (AddressReach::Unreached(_) | AddressReach::Lost(_), AddressReach::Reached) => {
                tracing::info!("this broker is reached at its advertised address");
            }
            _ => {}
        }
        if before != now {
            self.seen.send_replace(now);
        }
    }
}

/// A broker of another cluster, or one with another address behind a shared proxy, is no obstacle.
fn is_same(welcome: &Welcome, address: &str, cluster: &str) -> bool {
    welcome.cluster == cluster && welcome.broker.as_deref() == Some(address)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::time::timeout;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::access::AccessOptions;

    const SOON: Duration = Duration::from_millis(5);

    /// Takes connections as this broker does, until it is dropped.
    fn take_connections(listener: TcpListener, identity: Arc<BrokerIdentity>) -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(tokio::spawn(async move {
            while let Ok((_connection, _)) = listener.accept().await {
                identity.meet(identity.client);
            }
        }))
    }

    #[tokio::test]
    async fn an_address_that_is_not_reached_any_more_and_then_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (seen, mut reach) = watch::channel(AddressReach::Unknown);
        let identity = Arc::new(BrokerIdentity::random());
        let access = Arc::new(AccessControl::open(AccessOptions::default()).unwrap());
        let cluster = "c".to_owned();
        let (board, own) = (Arc::new(Board::default()), identity.clone());
        let watch = AddressWatch {
            address: address.clone(),
            cluster,
            access,
            identity: own,
            board: board.clone(),
            seen,
        };
        let watch = Arc::new(watch);
        let looking = Arc::clone(&watch);
        let looks = AbortOnDropHandle::new(tokio::spawn(async move { looking.look(SOON, SOON).await }));
        let mut becomes = async |is: fn(&AddressReach) -> bool| {
            let seen = timeout(Duration::from_secs(30), reach.wait_for(is)).await;
            seen.expect("in time").unwrap().problem()
        };
        let open = take_connections(listener, identity.clone());
        assert_eq!(becomes(|reach| *reach == AddressReach::Reached).await, None);
        drop(open);
        let why = becomes(|reach| matches!(reach, AddressReach::Lost(_))).await.unwrap();
        let words = format!("nobody reaches this broker at its advertised address any more: {address}: ");
        assert!(why.starts_with(&words), "{why}");
        let _open = take_connections(TcpListener::bind(&address).await.unwrap(), identity);
        assert_eq!(becomes(|reach| *reach == AddressReach::Reached).await, None);
        // A broker that stops takes no connections any more.
        drop(looks);
        board.stop();
        watch.note(AddressReach::Lost("refused".to_owned()));
        assert_eq!(*reach.borrow(), AddressReach::Reached);
    }

    #[test]
    fn only_the_same_address_in_the_same_cluster_is_taken() {
        let welcome = |cluster: &str, broker: Option<&str>| Welcome {
            version: 1,
            session: 1,
            cluster: cluster.to_owned(),
            software: String::new(),
            store: String::new(),
            durability: String::new(),
            partitions: 1,
            now: mtimer_types::Time::ZERO,
            heartbeat_ms: 1,
            max_frame: 1,
            max_batch: 1,
            broker: broker.map(str::to_owned),
        };
        assert!(is_same(&welcome("c", Some("b1:7400")), "b1:7400", "c"));
        assert!(!is_same(&welcome("d", Some("b1:7400")), "b1:7400", "c"));
        assert!(!is_same(&welcome("c", Some("b2:7400")), "b1:7400", "c"));
        assert!(!is_same(&welcome("c", None), "b1:7400", "c"));
    }
}
