//! Confirmations by replicas.

use futures_util::future::join_all;

use super::*;
use crate::wire::confirm::Confirmed;

async fn with_replica() -> (Server, Server, Servers) {
    let (master, replica) = (Server::start(), Server::start());
    replica.call::<()>(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    until("replication", || master.call::<String>(&["INFO", "replication"]).contains("state=online")).await;
    let servers = discover(vec![master.url()]).await;
    (master, replica, servers)
}

fn confirmations(servers: &Servers, ms: u64) -> Confirmations {
    Confirmations::new(servers, Purpose::Trimming, Duration::from_millis(ms), Duration::from_secs(20))
}

/// Why a read goes before it: `WAIT` on a connection of its own covers nothing else.
#[tokio::test]
async fn wait_covers_what_was_answered_on_other_connections_only_behind_a_read() {
    let (master, replica, servers) = with_replica().await;
    let writer = servers.connection(&master.address()).await.unwrap();
    let other = open(master.url()).await.unwrap();
    let wait = || cmd("WAIT").arg(&["1", "200"]).to_owned();
    replica.freeze();
    writer.ask(set("k", "v")).await.unwrap();
    assert_eq!(other.ask(wait()).await, Ok(Value::Int(1)), "nothing was carried out on that connection");
    let answers = other.call(pipeline([get("k"), wait()])).await.unwrap();
    assert_eq!(answers, [bulk("v"), Value::Int(0)]);
    replica.thaw();
    let answers =
        other.call(pipeline([get("k"), cmd("WAIT").arg(&["1", "20000"]).to_owned()])).await.unwrap();
    assert_eq!(answers, [bulk("v"), Value::Int(1)]);
}

#[tokio::test]
async fn replicas_confirm_what_was_answered_before_and_callers_share_a_wait() {
    let (master, replica, servers) = with_replica().await;
    let writer = servers.connection(&master.address()).await.unwrap();
    let (confirmations, short_wait) = (confirmations(&servers, 20_000), confirmations(&servers, 200));
    let address = master.address();
    writer.ask(set("k", "1")).await.unwrap();
    let confirmed = confirmations.confirm(&address, 1, get("k")).await.unwrap();
    assert_eq!(confirmed, Confirmed { read: bulk("1"), replicas: 1, connected: 1 });
    replica.freeze();
    writer.ask(set("k", "2")).await.unwrap();
    let confirmed = short_wait.confirm(&address, 1, get("k")).await.unwrap();
    assert_eq!(confirmed, Confirmed { read: bulk("2"), replicas: 0, connected: 1 });
    replica.thaw();
    let before = master.calls_of("wait");
    let all = (0..200).map(|_| confirmations.confirm(&address, 1, get("k")));
    for confirmed in join_all(all).await {
        assert_eq!(confirmed, Ok(Confirmed { read: bulk("2"), replicas: 1, connected: 1 }));
    }
    assert_eq!(master.calls_of("wait") - before, 1, "WAITs for 200 callers at the same time");
}

#[tokio::test]
async fn a_replica_that_still_gets_its_data_is_connected() {
    let (master, replica) = (Server::start(), Server::start());
    let servers = discover(vec![master.url()]).await;
    master.call::<()>(&["SET", "k", "v"]);
    // A snapshot takes this long for each key, us.
    master.call::<()>(&["CONFIG", "SET", "rdb-key-save-delay", "20000000"]);
    replica.call::<()>(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    until("a replica", || master.call::<String>(&["INFO", "replication"]).contains("connected_slaves:1"))
        .await;
    let confirmed = confirmations(&servers, 100).confirm(&master.address(), 0, get("k")).await.unwrap();
    assert_eq!(confirmed, Confirmed { read: bulk("v"), replicas: 0, connected: 1 });
}

#[tokio::test]
async fn a_server_that_is_no_master_confirms_nothing() {
    let (_master, replica, servers) = with_replica().await;
    let confirmations = confirmations(&servers, 300);
    let lost = confirmations.confirm(&replica.address(), 1, get("k")).await.unwrap_err();
    assert!(lost.0.contains("WAIT"), "{lost}");
    let lost = confirmations.confirm("127.0.0.1:1", 1, get("k")).await.unwrap_err();
    assert!(lost.0.starts_with("127.0.0.1:1"), "{lost}");
}
