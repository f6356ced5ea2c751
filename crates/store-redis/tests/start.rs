//! Servers and settings that the store refuses to start on, and the reasons that it gives.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use mtimer_store::{Store, StoreError};
use mtimer_store_redis::test_support::{Server, ServerOptions, as_user, documented_rights, user_with};
use mtimer_store_redis::{DEFAULT_PARTITIONS, RedisOptions, RedisStore};
use support::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The answer of a master without replicas to ROLE.
const MASTER: &str = "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n";

async fn refusal(options: RedisOptions) -> String {
    match RedisStore::connect(options).await {
        Err(StoreError::Unusable(why)) => why,
        Err(other) => panic!("not a refusal: {other}"),
        Ok(_) => panic!("the store was accepted"),
    }
}

#[tokio::test]
async fn an_eviction_policy_is_refused() {
    let server = Server::start();
    server.call::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let why = refusal(RedisOptions::new([server.url()], "c")).await;
    assert!(why.contains("allkeys-lru") && why.contains("set maxmemory-policy noeviction"), "{why}");
}

#[tokio::test]
async fn masters_without_persistence_and_replicas_are_told() {
    let unprotected = async |server: &Server| {
        let store = RedisStore::connect(RedisOptions::new([server.url()], "c")).await.unwrap();
        let counted = store.counters().into_iter().find(|(name, _)| *name == "store_unprotected_masters");
        let masters = store.unprotected_masters();
        assert_eq!(counted, Some(("store_unprotected_masters", masters.len() as u64)));
        masters
    };
    let kept = Server::start_with(ServerOptions { append_only: true, ..ServerOptions::default() });
    assert_eq!(unprotected(&kept).await, [""; 0]);
    let replicated = Server::start();
    let _replica = replicated.add_replica();
    let is_online = || replicated.call::<String>(&["INFO", "replication"]).contains("state=online");
    until("the replica follows", is_online).await;
    assert_eq!(unprotected(&replicated).await, [""; 0]);
    let lone = Server::start();
    assert_eq!(unprotected(&lone).await, [lone.address()]);
}

#[tokio::test]
async fn partitions_are_fixed_when_a_cluster_is_created() {
    let server = Server::start();
    let options = |n| RedisOptions { partitions: n, ..RedisOptions::new([server.url()], "c") };
    let first = RedisStore::connect(options(Some(8))).await.unwrap();
    assert_eq!(first.info().partitions, 8);
    assert_eq!(RedisStore::connect(options(None)).await.unwrap().info().partitions, 8);
    let why = refusal(options(Some(9))).await;
    assert!(why.contains("has 8 partitions, configured are 9"), "{why}");
    let other = RedisOptions::new([server.url()], "other");
    assert_eq!(RedisStore::connect(other).await.unwrap().info().partitions, DEFAULT_PARTITIONS);
}

#[tokio::test]
async fn a_password_is_asked_for_and_used() {
    let options =
        ServerOptions { extra: vec!["--requirepass".into(), "s3cret".into()], ..ServerOptions::default() };
    let server = Server::start_with(options);
    let why = refusal(RedisOptions::new([server.url()], "c")).await;
    assert!(why.contains("NOAUTH") && why.contains("redis://user:pass@host:6379"), "{why}");
    let url = format!("redis://:wrong@{}", server.address());
    let why = refusal(RedisOptions::new([url], "c")).await;
    assert!(why.contains("WRONGPASS") && !why.contains("wrong@"), "{why}");
    let url = format!("redis://:s3cret@{}", server.address());
    assert_eq!(RedisStore::connect(RedisOptions::new([url], "c")).await.unwrap().info().kind, "redis");
}

#[tokio::test]
async fn a_database_is_selected() {
    let server = Server::start();
    let url = format!("{}/3", server.url());
    RedisStore::connect(RedisOptions::new([url], "c")).await.unwrap();
    let info: String = server.call(&["INFO", "keyspace"]);
    assert!(info.contains("db3:keys=1"), "{info}");
}

/// A server that says `answer` to every command, and that it is a master.
async fn fake(answer: String) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(say(stream, answer.clone()));
        }
    });
    url
}

async fn say(mut stream: TcpStream, answer: String) {
    let mut buf = [0; 1024];
    while let Ok(n @ 1..) = stream.read(&mut buf).await {
        let request = String::from_utf8_lossy(&buf[..n]);
        let said = |command: &str| if command.contains("ROLE") { MASTER } else { &*answer }.to_owned();
        let answers: String = request.split('*').skip(1).map(said).collect();
        if stream.write_all(answers.as_bytes()).await.is_err() {
            break;
        }
    }
}

#[tokio::test]
async fn what_is_not_redis_is_refused() {
    let url = fake("HTTP/1.1 400 Bad Request\r\n\r\n".into()).await;
    let why = refusal(RedisOptions::new([url], "c")).await;
    assert!(why.contains("it is not Redis") && why.contains("give the address of a Redis port"), "{why}");
    assert!(!why.contains('\n'), "{why}");
}

#[tokio::test]
async fn an_old_server_is_refused() {
    let info = "redis_version:6.2.14\r\nrun_id:x\r\nmaxmemory_policy:noeviction\r\n";
    // INFO first, then SCRIPT LOAD and all the rest: a string is an answer to anything.
    let url = fake(format!("${}\r\n{info}\r\n", info.len())).await;
    let why = refusal(RedisOptions::new([url], "c")).await;
    assert!(why.contains("6.2.14") && why.contains("7.0 or later"), "{why}");
}

#[tokio::test]
async fn nobody_there_may_come_later() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    drop(listener);
    let refused = RedisStore::connect(RedisOptions::new([url], "c")).await.map(drop);
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
}

#[tokio::test]
async fn a_replica_alone_cannot_be_used() {
    let master = Server::start();
    let extra = vec!["--replicaof".into(), format!("127.0.0.1 {}", master.port())];
    let replica = Server::start_with(ServerOptions { extra, ..ServerOptions::default() });
    let both = RedisOptions::new([replica.url(), master.url()], "c");
    assert_eq!(RedisStore::connect(both).await.unwrap().info().kind, "redis");
    let refused = RedisStore::connect(RedisOptions::new([replica.url()], "c")).await.map(drop).unwrap_err();
    assert!(refused.to_string().contains("master"), "{refused}");
}

#[tokio::test]
async fn clocks_and_terms() {
    let server = Server::start();
    let store = RedisStore::connect(RedisOptions::new([server.url()], "c")).await.unwrap();
    assert_eq!(store.clocks().len(), 1);
    let first = store.raise_term().await.unwrap();
    let second = store.raise_term().await.unwrap();
    assert!(second > first && first.0 > 1_600_000_000_000);
}

#[tokio::test]
async fn a_cluster_that_is_new_beside_others_knows_their_names() {
    let extra = user_with(&documented_rights("sh*"));
    let server = Server::start_with(ServerOptions { extra, ..ServerOptions::default() });
    let other_clusters = async |name: &str| {
        let options = RedisOptions::new([as_user(&server.url())], name);
        RedisStore::connect(options).await.unwrap().other_clusters().to_vec()
    };
    assert_eq!(other_clusters("shop").await, [""; 0], "alone");
    assert_eq!(other_clusters("shop").await, [""; 0], "not new");
    assert_eq!(other_clusters("shpo").await, ["shop"]);
    assert_eq!(other_clusters("shpo").await, [""; 0], "not new any more");
    // A cluster is also known by the keys of its partitions; keys of others are passed over.
    server.call::<()>(&["HSET", "owner:{12}:shed", "epoch", "1"]);
    server.call::<()>(&["HSET", "slot:{12}:shelf:x", "id", "1"]);
    server.call::<()>(&["MSET", "owner:{me}:shame", "1", "meta:{sh y}", "1", "meta:{shin}:x", "1"]);
    assert_eq!(other_clusters("ship").await, ["shed", "shelf", "shop", "shpo"]);
    for n in 0..9 {
        server.call::<()>(&["SET", &format!("meta:{{she{n}}}"), "1"]);
    }
    assert_eq!(other_clusters("shoe").await.len(), 5, "a few are enough");
    server.call::<()>(&["ACL", "SETUSER", "mtimer", "-scan"]);
    assert_eq!(other_clusters("shirt").await, [""; 0], "it may not look");
}
