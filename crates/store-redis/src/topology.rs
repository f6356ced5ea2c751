//! Which node has which partition.
//!
//! Purpose: recognises a Redis Cluster by asking, keeps the map of hash slots, follows redirections, looks again when a
//! node is lost. Of several standalone addresses the one that is a master is used.
//!
//! Not in here: connections of lanes, retries.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::select_ok;

use crate::conn::{Conn, Lost, Pool};
use crate::fault::with_host;
use crate::resp::{Args, Reply};

/// One stretch of hash slots and its master.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Stretch {
    from: u16,
    to: u16,
    address: String,
}

/// The map of nodes.
#[derive(Debug)]
pub(crate) struct Topology {
    seeds: Vec<String>,
    cluster: bool,
    map: Mutex<Vec<Stretch>>,
}

impl Topology {
    /// Asks a server what it belongs to.
    pub(crate) async fn discover(seeds: Vec<String>, pool: &Pool) -> Result<Self, Lost> {
        let cluster = is_cluster(&seeds, pool).await?;
        let this = Self { seeds, cluster, map: Mutex::default() };
        this.refresh(pool).await?;
        Ok(this)
    }

    pub(crate) const fn is_cluster(&self) -> bool {
        self.cluster
    }

    /// The address of the master that has a hash slot, as far as is known.
    pub(crate) fn master(&self, slot: u16) -> Option<String> {
        let map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        map.iter().find(|s| (s.from..=s.to).contains(&slot)).map(|s| s.address.clone())
    }

    /// The addresses of all masters.
    pub(crate) fn masters(&self) -> Vec<String> {
        let map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = map.iter().map(|s| s.address.clone()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Follows a redirection.
    pub(crate) fn moved(&self, slot: u16, address: &str) {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = map.iter().position(|s| (s.from..=s.to).contains(&slot)) else {
            map.push(Stretch { from: slot, to: slot, address: address.into() });
            return;
        };
        let old = map.swap_remove(at);
        if slot > old.from {
            map.push(Stretch { to: slot - 1, ..old.clone() });
        }
        if slot < old.to {
            map.push(Stretch { from: slot + 1, ..old });
        }
        map.push(Stretch { from: slot, to: slot, address: address.into() });
    }

    /// Looks again. Any node that answers will do.
    pub(crate) async fn refresh(&self, pool: &Pool) -> Result<(), Lost> {
        let mut known = self.masters();
        known.extend(self.seeds.iter().cloned());
        known.dedup();
        let mut last = Lost("no address was given".into());
        for address in known {
            match self.look(&address, pool).await {
                Ok(map) => {
                    self.put(map);
                    return Ok(());
                }
                Err(lost) => last = lost,
            }
        }
        Err(last)
    }

    /// Looks again, at all nodes at the same time but those in `without`; the first that answers will do.
    pub(crate) async fn refresh_without(&self, without: &HashSet<String>, pool: &Pool) -> Result<(), Lost> {
        let known: HashSet<_> = self.masters().into_iter().chain(self.seeds.iter().cloned()).collect();
        let looks: Vec<_> =
            known.difference(without).map(|address| self.look(address, pool).boxed()).collect();
        if looks.is_empty() {
            return Err(Lost("no other node is known".into()));
        }
        let (map, _) = select_ok(looks).await?;
        self.put(map);
        Ok(())
    }

    async fn look(&self, address: &str, pool: &Pool) -> Result<Vec<Stretch>, Lost> {
        let conn = pool.get(address).await?;
        if self.cluster {
            return slots(&conn).await;
        }
        let role = conn.ask(&Args::of(["ROLE"])).await?;
        let role = role.array().and_then(|r| r.first()).and_then(Reply::text).unwrap_or_default();
        if role != "master" {
            return Err(Lost(format!(
                "{address} is a {role}, not a master: give the master's address as well"
            )));
        }
        Ok(vec![Stretch { from: 0, to: u16::MAX, address: address.into() }])
    }

    fn put(&self, map: Vec<Stretch>) {
        *self.map.lock().unwrap_or_else(PoisonError::into_inner) = map;
    }
}

/// Whether the first server that answers is part of a cluster.
async fn is_cluster(seeds: &[String], pool: &Pool) -> Result<bool, Lost> {
    let mut last = Lost("no address was given".into());
    for address in seeds {
        match pool.get(address).await {
            Ok(conn) => return Ok(conn.info.get("cluster_enabled").is_some_and(|on| on == "1")),
            Err(lost) => last = lost,
        }
    }
    Err(last)
}

async fn slots(conn: &Conn) -> Result<Vec<Stretch>, Lost> {
    let reply = conn.ask(&Args::of(["CLUSTER", "SLOTS"])).await?;
    let rows = reply.array().unwrap_or_default();
    let map: Vec<_> = rows.iter().filter_map(|row| stretch(row, &conn.address)).collect();
    if map.is_empty() {
        return Err(Lost(format!("{}: the cluster has no hash slots assigned", conn.address)));
    }
    Ok(map)
}

/// One row of CLUSTER SLOTS: first slot, last slot, master (host, port, ...), replicas.
fn stretch(row: &Reply, asked: &str) -> Option<Stretch> {
    let [from, to, master, ..] = row.array()? else { return None };
    let [host, port, ..] = master.array()? else { return None };
    let address = with_host(&format!("{}:{}", host.text().unwrap_or_default(), port.number()?), asked);
    Some(Stretch {
        from: u16::try_from(from.number()?).ok()?,
        to: u16::try_from(to.number()?).ok()?,
        address,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_changes_one_hash_slot() {
        let all = Stretch { from: 0, to: 16_383, address: "a:1".into() };
        let map = Topology { seeds: vec![], cluster: true, map: Mutex::new(vec![all]) };
        map.moved(5, "b:1");
        map.moved(5, "c:1");
        let of = |slot| map.master(slot).unwrap();
        assert_eq!((of(4).as_str(), of(5).as_str(), of(6).as_str()), ("a:1", "c:1", "a:1"));
        assert_eq!(map.masters(), ["a:1", "c:1"]);
    }
}
