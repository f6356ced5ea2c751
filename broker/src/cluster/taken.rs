//! Whose the address is that this broker advertises, and whether this broker is reached there.
//!
//! Purpose: a broker that is not reached at its address is not ready and is given no partitions,
//! because clients would look for them there. And two brokers with one address take the lease and
//! partitions from each other for as long as both run, because a cluster takes the later one for a
//! restart of the earlier one. Of two that find the address free at the same moment, the one to
//! which it leads goes on, and the other stops.
//! Invariant: a broker that has been reached at its address once does not stop because of it, nor
//! is it looked for there again.
//! Not in here: an address that leads to this machine from wherever it is tried (`localhost`). The
//! leader refuses the heartbeats of the second broker, unless the leader is one of the two.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mtimer_protocol::{Role, Welcome};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::event::Order;
use super::link::connect;
use crate::access::{AccessControl, PeerCredentials};

/// How often it is looked who answers, until it is this broker.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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
}

/// Whether this broker is reached at the address that it advertises.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum AddressReach {
    /// It has not looked yet.
    Unknown,
    /// It was, once.
    Reached,
    /// It has never been; why, for people.
    Unreached(String),
}

impl AddressReach {
    /// Returns why clients are better sent elsewhere, if they are.
    pub(crate) fn problem(&self) -> Option<String> {
        match self {
            Self::Reached => None,
            Self::Unknown => {
                Some("this broker has not been reached at its advertised address yet".to_owned())
            }
            Self::Unreached(why) => {
                Some(format!("nobody reaches this broker at its advertised address: {why}"))
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
        _ if identity.met.load(Ordering::Acquire) => AddressHolder::This,
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

/// Looks who answers until it is this broker, and tells what it has seen. If it is another one,
/// orders the end of this one.
pub(crate) async fn claim(
    address: String,
    cluster: String,
    software: &str,
    access: &AccessControl,
    identity: &BrokerIdentity,
    seen: watch::Sender<AddressReach>,
    orders: mpsc::Sender<Order>,
) {
    let look = async {
        loop {
            match who_answers(&address, &cluster, software, access.peer_credentials(), identity).await {
                AddressHolder::This => return note(&seen, AddressReach::Reached),
                AddressHolder::Another => break,
                AddressHolder::Nobody(why) => note(&seen, AddressReach::Unreached(why)),
            }
            sleep(LOOK_EVERY).await;
        }
        // If nobody takes it, the broker has ended already.
        let _ = orders.send(Order::AddressTaken { address, cluster }).await;
    };
    tokio::select! {
        () = look => {}
        () = orders.closed() => {}
    }
}

/// Tells what was seen; the first failure and its end have a line of the log each.
fn note(seen: &watch::Sender<AddressReach>, now: AddressReach) {
    let before = seen.send_replace(now.clone());
    match (before, now) {
        (AddressReach::Unknown, AddressReach::Unreached(why)) => tracing::warn!(
            why,
            "nobody reaches this broker at its advertised address: it is not ready and is given no partitions; \
             correct --advertise, or the network"
        ),
        (AddressReach::Unreached(_), AddressReach::Reached) => {
            tracing::info!("this broker is reached at its advertised address");
        }
        _ => {}
    }
}

/// A broker of another cluster, or one with another address behind a shared proxy, is no obstacle.
fn is_same(welcome: &Welcome, address: &str, cluster: &str) -> bool {
    welcome.cluster == cluster && welcome.broker.as_deref() == Some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

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
