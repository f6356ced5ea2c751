//! Whether another broker already answers at the address that this one is about to advertise.
//!
//! Purpose: two brokers with one address take the lease and partitions from each other for as long
//! as both run, because a cluster takes the later one for a restart of the earlier one.
//! Invariant: whoever answers is another process, because this one does not accept connections yet.
//! Not in here: two brokers that start at the same moment. The leader refuses the heartbeats of the
//! second one, unless the leader is one of the two.

use mtimer_protocol::{Role, Welcome};

use super::link::connect;

/// Returns whether a broker of `cluster` that advertises `address` answers a handshake there.
///
/// Waits for the answer for one second at most. After a crash the system refuses the connection, so
/// a restart is not held up.
pub(crate) async fn is_taken(address: &str, cluster: &str, software: &str, token: String) -> bool {
    // An observer's place: a broker whose places for clients or brokers are used up answers too.
    match connect(address, software.to_owned(), token, Role::Observer).await {
        Ok((_, welcome)) => is_same(&welcome, address, cluster),
        Err(why) => {
            tracing::debug!(address, why, "no broker answers at the advertised address");
            false
        }
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
