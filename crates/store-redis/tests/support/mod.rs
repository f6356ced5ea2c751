//! Helpers shared by several tests.

#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

pub mod lines;
pub mod losing;
pub mod owner;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mtimer_store::Store;
use mtimer_store::conformance::{Fault, Harness, Site, Unsupported};
use mtimer_store_redis::test_support::{
    Proxy, Server, ServerOptions, TestCluster, as_user, documented_rights, user_with,
};
use mtimer_store_redis::{RedisOptions, RedisStore};

/// How long a condition may take to come true.
pub const WITHIN: Duration = Duration::from_secs(60);

pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + WITHIN;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {WITHIN:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The cluster of each site that has a server of its own.
const CONFORMANCE: &str = "conformance";

/// A server for each site, behind a proxy. They live as long as the harness: lanes may outlive
/// their site. The store has the rights that operators are told to give it, and no others.
#[derive(Default)]
pub struct Standalone {
    sites: Mutex<Vec<Arc<Inner>>>,
}

struct Inner {
    server: Mutex<Server>,
    proxy: Proxy,
    partitions: u16,
}

struct StandaloneSite(Arc<Inner>);

impl Harness for Standalone {
    fn fresh(&self, partitions: u16) -> BoxFuture<'_, Box<dyn Site>> {
        async move {
            let extra = user_with(&documented_rights(CONFORMANCE));
            let server =
                Server::start_with(ServerOptions { append_only: true, extra, ..ServerOptions::default() });
            let proxy = Proxy::start(&server.address()).await;
            let site = Arc::new(Inner { server: Mutex::new(server), proxy, partitions });
            self.sites.lock().unwrap().push(site.clone());
            Box::new(StandaloneSite(site)) as Box<dyn Site>
        }
        .boxed()
    }
}

impl Site for StandaloneSite {
    fn open(&mut self) -> BoxFuture<'_, Arc<dyn Store>> {
        open(vec![as_user(&self.0.proxy.url())], CONFORMANCE.into(), self.0.partitions).boxed()
    }

    fn restart(&mut self) -> BoxFuture<'_, Result<(), Unsupported>> {
        self.0.server.lock().unwrap().restart();
        async { Ok(()) }.boxed()
    }

    fn fault(&mut self, fault: Fault) -> BoxFuture<'_, Result<(), Unsupported>> {
        let (proxy, server) = (&self.0.proxy, self.0.server.lock().unwrap());
        match fault {
            Fault::LoseNextAnswer(partition) => proxy.lose_answer(&format!("owner:{{{partition}}}")),
            Fault::LoseNextCall(partition) => proxy.lose_call(&format!("owner:{{{partition}}}")),
            Fault::GoDown => proxy.down(),
            Fault::ComeUp => proxy.up(),
            Fault::OutOfMemory(on) => {
                let limit = if on { "1" } else { "0" };
                server.call::<()>(&["CONFIG", "SET", "maxmemory", limit]);
            }
            Fault::ForgetEnded => forget_ended(&server, ""),
        }
        async { Ok(()) }.boxed()
    }
}

/// One cluster of three masters for all sites, each with a name of its own. Rights are as above.
pub struct Clustered {
    cluster: Arc<TestCluster>,
}

impl Clustered {
    pub fn start() -> Self {
        let user = user_with(&documented_rights("site*"));
        let user: Vec<&str> = user.iter().map(String::as_str).collect();
        Self { cluster: Arc::new(TestCluster::start_with(&user)) }
    }
}

struct ClusterSite {
    cluster: Arc<TestCluster>,
    name: String,
    partitions: u16,
}

impl Harness for Clustered {
    fn fresh(&self, partitions: u16) -> BoxFuture<'_, Box<dyn Site>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let name = format!("site{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let cluster = self.cluster.clone();
        async move { Box::new(ClusterSite { cluster, name, partitions }) as Box<dyn Site> }.boxed()
    }
}

impl Site for ClusterSite {
    fn open(&mut self) -> BoxFuture<'_, Arc<dyn Store>> {
        // One address is enough: the rest is found.
        open(vec![as_user(&self.cluster.urls()[0])], self.name.clone(), self.partitions).boxed()
    }

    fn fault(&mut self, fault: Fault) -> BoxFuture<'_, Result<(), Unsupported>> {
        if fault != Fault::ForgetEnded {
            return async { Err(Unsupported) }.boxed();
        }
        for node in &self.cluster.nodes {
            forget_ended(node, &self.name);
        }
        async { Ok(()) }.boxed()
    }
}

async fn open(urls: Vec<String>, cluster: String, partitions: u16) -> Arc<dyn Store> {
    let options = RedisOptions { partitions: Some(partitions), ..RedisOptions::new(urls, cluster) };
    Arc::new(RedisStore::connect(options).await.expect("the store can be used"))
}

fn forget_ended(server: &Server, name: &str) {
    for key in server.keys().iter().filter(|k| k.starts_with("ended:") && k.contains(name)) {
        server.call::<()>(&["DEL", key]);
    }
}
