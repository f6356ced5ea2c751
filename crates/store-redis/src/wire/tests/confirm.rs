//! Confirmations by replicas.

use futures_util::future::join_all;

use super::*;
use crate::wire::confirm::{Confirmed, OwnerQuery, Wanted};

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

/// Reads a key; the touch writes it again.
fn touching(key: &str) -> OwnerQuery {
    const SCRIPT: &str = "local v = redis.call('GET', KEYS[1]) redis.call('SET', KEYS[1], v) return v";
    OwnerQuery { read: get(key), touch: cmd("EVAL").arg(&[SCRIPT, "1", key]).to_owned() }
}

/// Why a write goes before it: `WAIT` on a connection of its own covers nothing else. Before Redis
/// 7.2 a read was enough.
#[tokio::test]
async fn wait_covers_what_was_answered_on_other_connections_only_behind_a_write() {
    let (master, replica, servers) = with_replica().await;
    let writer = servers.connection(&master.address()).await.unwrap();
    let other = open(master.url()).await.unwrap();
    let wait = |ms: &str| cmd("WAIT").arg(&["1", ms]).to_owned();
    replica.freeze();
    writer.ask(set("k", "v")).await.unwrap();
    assert_eq!(other.ask(wait("200")).await, Ok(Value::Int(1)), "nothing was carried out on that connection");
    let touch = || touching("k").touch;
    let answers = other.call(pipeline([touch(), wait("200")])).await.unwrap();
    assert_eq!(answers, [bulk("v"), Value::Int(0)]);
    replica.thaw();
    let answers = other.call(pipeline([touch(), wait("20000")])).await.unwrap();
    assert_eq!(answers, [bulk("v"), Value::Int(1)]);
}

/// A server on which `WAIT` counts who lacks the writes: its own offsets tell.
#[tokio::test]
async fn wait_is_not_taken_at_its_word() {
    let (master, replica, servers) = with_replica().await;
    let writer = servers.connection(&master.address()).await.unwrap();
    let confirmations = confirmations(&servers, 200);
    // A touch that writes nothing makes a WAIT of it that means nothing, since Redis 7.2.
    let reading = || OwnerQuery { read: get("k"), touch: get("k") };
    replica.freeze();
    writer.ask(set("k", "v")).await.unwrap();
    let confirmed = confirmations.confirm(&master.address(), Wanted::Replicas(1), reading()).await.unwrap();
    assert_eq!(confirmed, Confirmed { read: bulk("v"), replicas: 0, connected: 1, synced: None });
}

#[tokio::test]
async fn replicas_confirm_what_was_answered_before_and_callers_share_a_wait() {
    let (master, replica, servers) = with_replica().await;
    let writer = servers.connection(&master.address()).await.unwrap();
    let (confirmations, short_wait) = (confirmations(&servers, 20_000), confirmations(&servers, 200));
    let address = master.address();
    writer.ask(set("k", "1")).await.unwrap();
    let confirmed = confirmations.confirm(&address, Wanted::Replicas(1), touching("k")).await.unwrap();
    assert_eq!(confirmed, Confirmed { read: bulk("1"), replicas: 1, connected: 1, synced: None });
    replica.freeze();
    writer.ask(set("k", "2")).await.unwrap();
    let confirmed = short_wait.confirm(&address, Wanted::Replicas(1), touching("k")).await.unwrap();
    assert_eq!(confirmed, Confirmed { read: bulk("2"), replicas: 0, connected: 1, synced: None });
    replica.thaw();
    let before = master.calls_of("wait");
    let all = (0..200).map(|_| confirmations.confirm(&address, Wanted::Replicas(1), touching("k")));
    for confirmed in join_all(all).await {
        assert_eq!(confirmed, Ok(Confirmed { read: bulk("2"), replicas: 1, connected: 1, synced: None }));
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
    let confirmed = confirmations(&servers, 100)
        .confirm(&master.address(), Wanted::Replicas(0), touching("k"))
        .await
        .unwrap();
    assert_eq!(confirmed, Confirmed { read: bulk("v"), replicas: 0, connected: 1, synced: None });
}

#[tokio::test]
async fn a_server_that_is_no_master_confirms_nothing() {
    let (_master, replica, servers) = with_replica().await;
    let confirmations = confirmations(&servers, 300);
    let lost =
        confirmations.confirm(&replica.address(), Wanted::Replicas(1), touching("k")).await.unwrap_err();
    assert!(lost.0.contains("WAIT"), "{lost}");
    let lost = confirmations.confirm("127.0.0.1:1", Wanted::Replicas(1), touching("k")).await.unwrap_err();
    assert!(lost.0.starts_with("127.0.0.1:1"), "{lost}");
}
