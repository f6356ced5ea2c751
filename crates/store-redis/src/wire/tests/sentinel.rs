//! Sentinels, and the master that they name.

use std::sync::Arc;

use mtimer_store::{Acquire, Store, StoreError};
use mtimer_types::{Epoch, Nonce, PartitionId, Term};

use super::*;
use crate::RedisStore;

async fn looked(urls: Vec<String>) -> Result<Servers, Lost> {
    let (seeds, access) = RedisOptions::new(urls, "t").check().unwrap();
    Servers::discover(seeds, pool(access), LONG_TIMEOUT).await
}

/// The advice that an operator gets.
async fn advice(urls: Vec<String>) -> String {
    match explain(looked(urls).await.map(drop).unwrap_err()) {
        StoreError::Unusable(text) => text,
        StoreError::Unavailable(text) => panic!("no advice: {text}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_followed_and_sentinels_may_be_away() {
    let mut master = Server::start();
    let replica = master.add_replica();
    let mut sentinels = Sentinels::start("shop", &master);
    let mut urls = sentinels.urls();
    urls.insert(0, "redis-sentinel://127.0.0.1:1?master=shop".to_owned());
    let servers = looked(urls).await.unwrap();
    assert!(!servers.is_cluster());
    assert_eq!((servers.masters(), servers.replicas(99)), (vec![master.address()], Some(1)));
    assert_eq!(ask(&servers, 99, &incr("n")).await.unwrap(), Value::Int(1));
    // No Sentinel names another: it stays the master, even if it does not serve.
    let lost = servers.rediscover(Some(&master.address())).await.unwrap_err();
    assert!(lost.0.contains("which does not serve"), "{lost}");
    assert_eq!(servers.masters(), [master.address()]);
    master.wait_for_replica(&replica);
    sentinels.kill(0);
    master.kill();
    sentinels.wait_for_master(&replica);
    assert_eq!(ask(&servers, 99, &incr("n")).await.unwrap(), Value::Int(2));
    assert_eq!(servers.masters(), [replica.address()]);
    drop(sentinels);
    servers.rediscover(None).await.unwrap();
    assert_eq!(servers.masters(), [replica.address()]);
    assert!(servers.rediscover(Some(&replica.address())).await.is_err());
}

/// It answers again as a master before the Sentinels make it a replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_former_master_that_comes_back_is_left() {
    let master = Server::start();
    let replica = master.add_replica();
    let sentinels = Sentinels::start("shop", &master);
    let servers = looked(sentinels.urls()).await.unwrap();
    master.freeze();
    sentinels.wait_for_master(&replica);
    master.thaw();
    servers.rediscover(None).await.unwrap();
    assert_eq!(servers.masters(), [replica.address()]);
}

#[tokio::test]
async fn a_sentinel_that_asks_for_a_user_gets_that_of_the_servers() {
    let rights = ["on", ">s3cret", "~*", "+@all"];
    let user = ["--user", "mtimer"].into_iter().chain(rights);
    let extra = ["--requirepass", "s3cret"].into_iter().chain(user).map(str::to_owned).collect();
    let server = Server::start_with(ServerOptions { extra, ..ServerOptions::default() });
    let user = format!("user mtimer on >s3cret {}", documented_sentinel_rights());
    let more = ["sentinel auth-pass shop s3cret", "user default off", &user];
    let sentinel = Sentinels::start_one("shop", &server, &more);
    let with = |login: &str| {
        let url = |address| format!("redis-sentinel://{login}{address}/2?master=shop&protocol=resp3");
        sentinel.addresses().into_iter().map(url).collect::<Vec<_>>()
    };
    let servers = looked(with("mtimer:s3cret@")).await.unwrap();
    assert_eq!(servers.masters(), [server.address()]);
    assert_eq!(ask(&servers, 99, &incr("n")).await.unwrap(), Value::Int(1));
    let told = advice(with("")).await;
    assert!(told.contains("give user and password"), "{told}");
    let told = advice(with("mtimer:wr0ng@")).await;
    assert!(told.contains("give user and password") && !told.contains("wr0ng"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_is_opened_by_a_sentinel_that_speaks_tls() {
    let authority = Arc::new(Authority::new());
    let tls = Some(TlsPort { authority: authority.clone(), clients_too: true });
    let server = Server::start_with(ServerOptions { tls, ..ServerOptions::default() });
    let sentinel = Sentinels::start_one_with_tls("shop", &server);
    let (certificate, key) = authority.issue("client");
    let tls = ClientFiles {
        authorities: Some(authority.certificate()),
        certificate: Some(certificate),
        key: Some(key),
    };
    let url = |scheme: &str| format!("{scheme}://{}?master=shop", sentinel.addresses()[0]);
    let options =
        |url: String, tls: &ClientFiles| RedisOptions { tls: tls.clone(), ..RedisOptions::new([url], "t") };
    let (seeds, access) = options(url("rediss-sentinel"), &tls).check().unwrap();
    let servers = Servers::discover(seeds, pool(access), LONG_TIMEOUT).await.unwrap();
    // The master is entered at the port that the Sentinel names, which speaks TLS, too.
    assert_eq!(servers.masters(), [server.tls_address()]);
    let store = RedisStore::connect(options(url("rediss-sentinel"), &tls)).await.unwrap();
    let partition = PartitionId(0);
    let epoch = Epoch(0);
    let first =
        Acquire { partition, expected: epoch, floor: epoch, nonce: Nonce(1), term: Term(1), version: 1 };
    let acquired = store.acquire(first).await.unwrap();
    assert_eq!(store.owner(partition).await.unwrap().epoch, acquired.epoch);
    // Others' certificates, and none: neither gets past the Sentinel.
    let another = Authority::new();
    let foreign = ClientFiles { authorities: Some(another.certificate()), ..tls.clone() };
    let nobody = ClientFiles { certificate: None, key: None, ..tls.clone() };
    for (files, says) in
        [(foreign, "does not trust the server's certificate"), (nobody, "give the client certificate")]
    {
        let (seeds, access) = options(url("rediss-sentinel"), &files).check().unwrap();
        let lost = Servers::discover(seeds, pool(access), LONG_TIMEOUT).await.map(drop).unwrap_err();
        let StoreError::Unusable(told) = explain(lost) else { panic!("no advice") };
        assert!(told.contains(says), "{told}");
    }
}

#[tokio::test]
async fn what_is_mistaken_for_a_sentinel_or_a_server_is_said() {
    let server = Server::start();
    let sentinel = Sentinels::start_one("shop", &server, &[]);
    let of = |address: &str, name: &str| vec![format!("redis-sentinel://{address}?master={name}")];
    let told = advice(of(&sentinel.addresses()[0], "other")).await;
    assert!(
        told.contains("watches no master called \"other\"") && told.contains("SENTINEL MASTERS"),
        "{told}"
    );
    let told = advice(of(&server.address(), "shop")).await;
    assert!(told.contains("is no Sentinel") && told.contains("redis://"), "{told}");
    let told = advice(vec![format!("redis://{}", sentinel.addresses()[0])]).await;
    assert!(told.contains("is a Sentinel") && told.contains("?master=name"), "{told}");
}
