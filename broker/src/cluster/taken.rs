//! Whose the address is that this broker advertises.
//!
//! Purpose: two brokers with one address take the lease and partitions from each other for as long
//! as both run, because a cluster takes the later one for a restart of the earlier one. Of two that
//! find the address free at the same moment, the one to which it leads goes on, and the other
//! stops.
//! Invariant: a broker that has been reached at its address once does not stop because of it.
//! Not in here: an address that leads to this machine from wherever it is tried (`localhost`). The
//! leader refuses the heartbeats of the second broker, unless the leader is one of the two.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mtimer_protocol::{Role, Welcome};
use tokio::sync::mpsc;
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

/// Who answers at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AddressHolder {
    /// No broker that advertises it.
    Nobody,
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
    match connect(address, software.to_owned(), own, Role::Observer, identity.client).await {
        // It is met before it is welcomed.
        Ok(_) if identity.met.load(Ordering::Acquire) => AddressHolder::This,
        Ok((_, welcome)) if is_same(&welcome, address, cluster) => AddressHolder::Another,
        Ok(_) => AddressHolder::Nobody,
        Err(why) => {
            tracing::debug!(address, why, "no broker answers at the advertised address");
            AddressHolder::Nobody
        }
    }
}

/// Looks who answers until it is this broker. If it is another one, orders the end of this one.
pub(crate) async fn claim(
    address: String,
    cluster: String,
    software: &str,
    access: &AccessControl,
    identity: &BrokerIdentity,
    orders: mpsc::Sender<Order>,
) {
    let look = async {
        loop {
            match who_answers(&address, &cluster, software, access.peer_credentials(), identity).await {
                AddressHolder::This => return,
                AddressHolder::Another => break,
                AddressHolder::Nobody => sleep(LOOK_EVERY).await,
            }
        }
        // If nobody takes it, the broker has ended already.
        let _ = orders.send(Order::AddressTaken { address, cluster }).await;
    };
    tokio::select! {
        () = look => {}
        () = orders.closed() => {}
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
