//! Which other clusters the servers hold: a cluster that is new beside another may be a mistyped
//! name.
//!
//! Invariant: a bounded look, which changes nothing and never fails: a user that may not `SCAN`
//! finds none.

use std::collections::BTreeSet;
use std::time::Duration;

use redis::cmd;
use tokio::time::timeout;

use crate::keyspace::keys::cluster_of;
use crate::wire::{Lost, Reply, Servers};

/// Names that are told: more help nobody.
const MOST: usize = 5;
/// Keys that one command looks at: a server is busy with them for a fraction of a millisecond.
const KEYS: u32 = 1_000;
/// Commands a server. A cluster in use has many keys, so it is seen long before; an idle one may be
/// missed among more than a hundred thousand keys of others.
const COMMANDS: u32 = 100;
/// How long it may take: the broker's start waits for it.
const WITHIN: Duration = Duration::from_secs(2);

/// Names of clusters on these servers besides `cluster`, sorted.
pub(crate) async fn other_clusters(servers: &Servers, cluster: &str) -> Vec<String> {
    let mut found = BTreeSet::new();
    let looking = async {
        for address in servers.masters() {
            look(servers, &address, cluster, &mut found).await?;
        }
        Ok::<(), Lost>(())
    };
    match timeout(WITHIN, looking).await {
        Ok(Ok(())) => {}
        Ok(Err(Lost(why))) => tracing::debug!(%why, "cannot see whether Redis holds other clusters"),
        Err(_) => tracing::debug!("looking for other clusters in Redis took too long"),
    }
    found.into_iter().take(MOST).collect()
}

/// Adds the clusters that one server knows of.
async fn look(
    servers: &Servers,
    address: &str,
    cluster: &str,
    found: &mut BTreeSet<String>,
) -> Result<(), Lost> {
    let server = servers.connection(address).await?;
    let mut cursor = 0;
    for _ in 0..COMMANDS {
        let mut scan = cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg("*:{*}*").arg("COUNT").arg(KEYS);
        let reply = server.ask(scan).await?;
        let [next, keys] = reply.items() else {
            return Err(Lost(reply.refusal().unwrap_or_else(|| format!("{address} does not answer SCAN"))));
        };
        let names =
            keys.items().iter().filter_map(|key| cluster_of(key.bytes()?)).filter(|name| *name != cluster);
        found.extend(names.map(str::to_owned));
        cursor = next.number().unwrap_or(0);
        if cursor == 0 || found.len() >= MOST {
            break;
        }
    }
    Ok(())
}
