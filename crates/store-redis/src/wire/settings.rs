//! Settings of the servers on which promises rest: noted when a connection is opened, and while the
//! store is in use ([`super::watch`]).
//!
//! The store does not start on a server that may evict keys. One that does so later (its
//! configuration was changed, or a replica with another configuration became master) is reported
//! and gets no new timers; the timers that it holds are served.
//!
//! Not in here: the reaction of a partition.

use std::collections::{HashMap, HashSet};

use parking_lot::{Mutex, MutexGuard};
use redis::InfoDict;

/// The only eviction policy that loses no timers.
pub(crate) const NO_EVICTION: &str = "noeviction";
/// The field of INFO that has the policy.
pub(crate) const POLICY: &str = "maxmemory_policy";

/// The settings that servers have reported, by address.
#[derive(Debug, Default)]
pub(crate) struct ServerSettings(Mutex<HashMap<String, Noted>>);

#[derive(Clone, Copy, Default, Debug)]
struct Noted {
    may_evict: bool,
    /// `None`: it has not said yet.
    append_only: Option<bool>,
    /// Whether replicas are connected. `None`: it has not said yet.
    has_replicas: Option<bool>,
}

impl ServerSettings {
    fn noted(&self) -> MutexGuard<'_, HashMap<String, Noted>> {
        self.0.lock()
    }

    /// Whether a server is known to evict keys when its memory is full.
    pub(crate) fn may_evict(&self, address: &str) -> bool {
        self.noted().get(address).is_some_and(|noted| noted.may_evict)
    }

    /// Whether a server keeps an append-only file, or has not said yet that it keeps none.
    pub(crate) fn append_only(&self, address: &str) -> bool {
        self.noted().get(address).and_then(|noted| noted.append_only).unwrap_or(true)
    }

    /// Whether a server is known to keep no append-only file and to have no replica: a restart of
    /// it loses everything since its last snapshot.
    pub(crate) fn is_unprotected(&self, address: &str) -> bool {
        let noted = self.noted().get(address).copied().unwrap_or_default();
        (noted.append_only, noted.has_replicas) == (Some(false), Some(false))
    }

    /// Forgets the settings of all servers but these.
    pub(crate) fn keep_only(&self, servers: &HashSet<String>) {
        self.noted().retain(|address, _| servers.contains(address));
    }

    /// Takes in the INFO of a server. Settings that it lacks stay as they were. Logs when it begins
    /// or ceases to evict keys.
    pub(crate) fn note(&self, address: &str, info: &InfoDict) {
        let mut all = self.noted();
        let noted = all.entry(address.to_owned()).or_default();
        let before = *noted;
        // While a server loads its append-only file it says that it keeps none.
        if info.get("loading") != Some(true) {
            noted.append_only = info.get("aof_enabled").or(noted.append_only);
        }
        let replicas: Option<u32> = info.get("connected_slaves");
        noted.has_replicas = replicas.map(|replicas| replicas > 0).or(noted.has_replicas);
        let Some(policy) = info.get::<String>(POLICY) else { return };
        noted.may_evict = policy != NO_EVICTION;
        let may_evict = noted.may_evict;
        drop(all);
        if may_evict && !before.may_evict {
            tracing::error!(
                address,
                policy,
                "the server may evict keys, and timers would vanish: new timers are refused there until its \
                 maxmemory-policy is noeviction"
            );
        } else if before.may_evict && !may_evict {
            tracing::info!(address, "the server does not evict keys any more: new timers are accepted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_said_counts_until_it_says_otherwise() {
        let settings = ServerSettings::default();
        let note = |text: &str| settings.note("a:1", &InfoDict::new(text));
        assert!(settings.append_only("a:1"), "it has not said anything yet");
        note("# Memory\r\nmaxmemory_policy:noeviction\r\n");
        assert!(!settings.may_evict("a:1"));
        note("maxmemory_policy:allkeys-lru\r\naof_enabled:1\r\n");
        assert!(settings.may_evict("a:1") && !settings.may_evict("b:1"));
        note("loading:1\r\nused_memory:1\r\naof_enabled:0\r\n");
        assert!(settings.may_evict("a:1") && settings.append_only("a:1"));
        note("maxmemory_policy:noeviction\r\nloading:0\r\naof_enabled:0\r\n");
        assert!(!settings.may_evict("a:1") && !settings.append_only("a:1"));
        assert!(!settings.is_unprotected("a:1"), "it has not said whether it has replicas");
        note("connected_slaves:1\r\n");
        assert!(!settings.is_unprotected("a:1"));
        note("connected_slaves:0\r\n");
        assert!(settings.is_unprotected("a:1"));
        note("aof_enabled:1\r\n");
        assert!(!settings.is_unprotected("a:1"));
    }
}
