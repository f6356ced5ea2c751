//! Looks again and again which servers are masters, and at their settings ([`super::settings`]).
//!
//! | how often | look |
//! |---|---|
//! | 1 s | outside a cluster: the Sentinels are asked for the master, and it for its role |
//! | 5 s | outside a cluster: whether its address leads to another server |
//! | 30 s | the settings of all masters; in a cluster its map |
//!
//! A node of a cluster redirects requests for hash slots that it has no more, and answers nothing
//! once it is cut off, so its map is not needed more often.

use std::time::Duration;

use redis::{InfoDict, cmd};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::node::Network;
use super::reply::Reply;
use super::servers::Servers;

/// How often the servers in use are asked for their settings.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(30);
/// How often it is looked whether the master still is one.
const ROLE_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked where its address leads: that takes a new connection.
const ADDRESS_EVERY: Duration = Duration::from_secs(5);

/// After so many looks in a row that half of the Sentinels or more have not answered it is told.
const UNSURE_AFTER: u32 = 3;

/// Looks which masters there are.
async fn look(servers: &Servers) {
    if let Err(lost) = servers.rediscover(None).await {
        tracing::debug!(%lost, "no server tells which masters there are");
    }
}

/// Looks which masters there are, and notes the settings of each. Skips those that do not answer.
pub(crate) async fn check(servers: &Servers) {
    look(servers).await;
    servers.look_where_the_address_leads().await;
    for address in servers.masters() {
        let Ok(server) = servers.connection(&address).await else { continue };
        let Ok(info) = server.ask(cmd("INFO").arg("everything").to_owned()).await else { continue };
        if let Some(text) = info.text() {
            servers.settings().note(&address, &InfoDict::new(text));
        }
    }
}

/// Watches for as long as the store is in use. Tells after each look whether Sentinels may have
/// replaced the master without being heard.
pub(crate) async fn watch(servers: Servers, over: CancellationToken, tell_unsure: impl Fn(bool)) {
    let rounds = async {
        let (mut checked, mut resolved) = (Instant::now(), Instant::now());
        let mut unsure = 0;
        let pause = if servers.is_cluster() { CHECK_EVERY } else { ROLE_EVERY };
        loop {
            sleep(pause).await;
            if checked.elapsed() >= CHECK_EVERY {
                check(&servers).await;
                (checked, resolved) = (Instant::now(), Instant::now());
            } else {
                look(&servers).await;
                if resolved.elapsed() >= ADDRESS_EVERY {
                    servers.look_where_the_address_leads().await;
                    resolved = Instant::now();
                }
            }
            unsure = if servers.is_unsure() { unsure + 1 } else { 0 };
            tell_unsure(unsure >= UNSURE_AFTER);
        }
    };
    over.run_until_cancelled(rounds).await;
}
