//! Looks at the settings of the servers in use again and again ([`super::settings`]).

use std::time::Duration;

use redis::{InfoDict, cmd};
use tokio_util::sync::CancellationToken;

use super::node::Network;
use super::reply::Reply;
use super::servers::Servers;

/// How often the servers in use are asked.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(30);

/// Looks which masters there are, and notes the settings of each. Skips those that do not answer.
pub(crate) async fn check(servers: &Servers) {
    if let Err(lost) = servers.rediscover(None).await {
        tracing::debug!(%lost, "no server tells which masters there are");
    }
    for address in servers.masters() {
        let Ok(server) = servers.connection(&address).await else { continue };
        let Ok(info) = server.ask(cmd("INFO").arg("everything").to_owned()).await else { continue };
        if let Some(text) = info.text() {
            servers.settings().note(&address, &InfoDict::new(text));
        }
    }
}

/// Checks for as long as the store is in use.
pub(crate) async fn watch(servers: Servers, over: CancellationToken) {
    let rounds = async {
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            check(&servers).await;
        }
    };
    over.run_until_cancelled(rounds).await;
}
