//! Which servers may evict keys: looked at when a connection is made, and every [`CHECK_EVERY`].
//!
//! The store does not start on a server that may evict. One that does so later (its configuration was changed, or a
//! replica with another configuration was made master) is reported, and gets no new timers; what it holds is served.
//!
//! Not in here: what a lane does about it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::conn::Conn;
use crate::lane::Shared;
use crate::resp::{Args, Reply};

/// How often the servers in use are asked: an INFO every so often costs them nothing.
pub(crate) const CHECK_EVERY: Duration = Duration::from_secs(30);
/// The only policy that loses no timers.
pub(crate) const SAFE: &str = "noeviction";
const FIELD: &str = "maxmemory_policy";

/// The eviction policies of servers that have an unsafe one, by address.
#[derive(Debug, Default)]
pub(crate) struct Evicting(Mutex<HashMap<String, String>>);

impl Evicting {
    /// Whether a server is known to evict keys when its memory is full.
    pub(crate) fn has(&self, address: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(address)
    }

    /// Takes in what a server says in INFO; the unsafe policy, if it is one. A server that does not say keeps what is
    /// known of it.
    fn note(&self, address: &str, info: &HashMap<String, String>) {
        let Some(policy) = info.get(FIELD) else { return };
        let mut evicting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if policy == SAFE {
            if evicting.remove(address).is_some() {
                tracing::info!(address, "the server does not evict keys any more: new timers are accepted");
            }
            return;
        }
        evicting.insert(address.to_owned(), policy.clone());
        drop(evicting);
        tracing::error!(
            address,
            policy,
            "the server may evict keys, and timers would vanish: new timers are refused there until its \
             maxmemory-policy is noeviction"
        );
    }

    /// Takes in what a server said when a connection to it was made.
    pub(crate) fn note_connection(&self, conn: &Conn) {
        self.note(&conn.address, &conn.info);
    }
}

/// The lines of INFO.
pub(crate) fn parse_info(text: &str) -> HashMap<String, String> {
    let pairs = text.lines().filter_map(|l| l.split_once(':'));
    pairs.map(|(k, v)| (k.to_owned(), v.trim_end().to_owned())).collect()
}

/// Asks every master again. One that does not answer is asked the next time.
pub(crate) async fn check(shared: &Shared) {
    for address in shared.topology.masters() {
        let Ok(conn) = shared.pool.get(&address).await else { continue };
        let Ok(info) = conn.ask(&Args::of(["INFO", "memory"])).await else { continue };
        if let Some(text) = Reply::text(&info) {
            shared.pool.evicting.note(&address, &parse_info(text));
        }
    }
}

/// Checks for as long as the store is in use.
pub(crate) async fn watch(shared: Weak<Shared>, over: CancellationToken) {
    let rounds = async {
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            match shared.upgrade() {
                Some(shared) => check(&shared).await,
                None => return,
            }
        }
    };
    over.run_until_cancelled(rounds).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_counts_as_evicting_until_it_says_otherwise() {
        let evicting = Evicting::default();
        let note = |text: &str| evicting.note("a:1", &parse_info(text));
        note("# Memory\r\nmaxmemory_policy:noeviction\r\n");
        assert!(!evicting.has("a:1"));
        note("maxmemory_policy:allkeys-lru\r\n");
        assert!(evicting.has("a:1") && !evicting.has("b:1"));
        note("used_memory:1\r\n");
        assert!(evicting.has("a:1"));
        note("maxmemory_policy:noeviction\r\n");
        assert!(!evicting.has("a:1"));
    }
}
