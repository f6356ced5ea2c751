//! Tokens and certificates are replaced, both several times, while clients schedule, are called
//! back, and connect: no call fails, and every timer is delivered.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mtimer_client::{
    Callback, Client, ConnectError, Destination, Outcome, Registration, Schedule, TimerId, TlsOptions,
};
use mtimer_tls::Stream;
use mtimer_tls::test_support::{Authority, Issued};
use serde_json::Value;
use tokio::sync::RwLock;
use tokio::task::block_in_place;
use tokio::time::timeout;

use crate::harness::{Running, TIMEOUT, mtimer, wait_for};
use crate::tls::connect;
use crate::token::TokensFile;

/// How often both are replaced.
const ROTATIONS: usize = 3;
/// Callers with a connection that lasts.
const CALLERS: usize = 4;
const GRANT: &str = "schedule,register:g/*";

/// A broker that asks for tokens and for certificates of clients.
struct Site {
    tokens: TokensFile,
    authority: Authority,
    broker: Issued,
    client: Issued,
    /// Held while the client's two files change: whoever begins between the two is refused.
    client_files: RwLock<()>,
    running: Running,
    addr: String,
}

/// What clients show at the moment, and the client that lasts.
struct Credentials {
    id: String,
    token: String,
    client: Client,
    _handler: Registration,
}

impl Site {
    fn start() -> Self {
        let (tokens, authority) = (TokensFile::new(), Authority::new());
        // The first token is there before the broker is.
        tokens.create("none", "read:nobody/*");
        let (broker, client) = (authority.issue("broker"), authority.issue("client"));
        let path = |path: &PathBuf| path.to_str().unwrap().to_owned();
        let flags = [
            ("--data", path(&tokens.dir.path().join("data"))),
            ("--tokens", path(&tokens.path())),
            ("--tls-cert", path(&broker.certificate)),
            ("--tls-key", path(&broker.key)),
            ("--tls-client-ca", path(&authority.certificate())),
        ];
        let args = ["broker", "--json", "--listen", "127.0.0.1:0", "--http", "off"];
        let more: Vec<&str> = flags.iter().flat_map(|(flag, value)| [*flag, value]).collect();
        let log = File::create(tokens.dir.path().join("log")).unwrap();
        let mut running = Running::spawn_logging_to(log, mtimer(&[&args[..], &more].concat()));
        let ready: Value = serde_json::from_str(&running.line()).unwrap();
        let addr = ready["listening"].as_str().unwrap().to_owned();
        Self { tokens, authority, broker, client, client_files: RwLock::default(), running, addr }
    }

    async fn connect(&self, token: &str) -> Result<Client, ConnectError> {
        let tls = TlsOptions::ca_file(self.authority.certificate())
            .certificate_files(&self.client.certificate, &self.client.key);
        let _unchanged = self.client_files.read().await;
        Client::builder().brokers([&self.addr]).token(token).tls(tls).connect().await
    }

    /// Makes a token, waits until it opens a connection, and takes callbacks there.
    async fn next(&self, name: &str, load: &Load) -> Credentials {
        let made = block_in_place(|| self.tokens.create(name, GRANT));
        let text = |field: &str| made[field].as_str().unwrap().to_owned();
        let (id, token) = (text("id"), text("token"));
        let client = within("the token opens a connection", async {
            loop {
                match self.connect(&token).await {
                    Ok(client) => return client,
                    Err(error) => assert!(error.to_string().contains("not known"), "{error}"),
                }
            }
        });
        let client = client.await;
        let _handler = load.listen(&client);
        Credentials { id, token, client, _handler }
    }

    async fn served(&self) -> Vec<u8> {
        match connect(&self.addr, &self.authority, Some(&self.client)).await {
            Stream::Tls(stream) => stream.get_ref().1.peer_certificates().unwrap()[0].as_ref().to_vec(),
            Stream::Plain(_) => panic!("not encrypted"),
        }
    }

    /// Replaces the certificates of the broker and of the clients.
    async fn renew(&self) {
        let before = self.served().await;
        let issue = |of: &Issued| self.authority.issue(of.certificate.file_stem().unwrap().to_str().unwrap());
        issue(&self.broker);
        {
            let _changing = self.client_files.write().await;
            issue(&self.client);
        }
        within("the new certificate is served", async { while self.served().await == before {} }).await;
    }

    /// Revokes a token and waits until it opens no connection.
    async fn revoke(&self, old: &Credentials) {
        block_in_place(|| self.tokens.run(&["revoke", &old.id, "--yes"]).ok());
        self.running.signal("HUP");
        let refused = async { while self.connect(&old.token).await.is_ok() {} };
        within("the revoked token is refused", refused).await;
    }
}

/// What the callers do.
#[derive(Default)]
struct Load {
    calls: AtomicU64,
    connections: AtomicU64,
    stop: AtomicBool,
    scheduled: Mutex<HashSet<TimerId>>,
    delivered: Arc<Mutex<HashSet<TimerId>>>,
}

impl Load {
    fn listen(&self, client: &Client) -> Registration {
        let delivered = self.delivered.clone();
        let handler = move |callback: Callback| {
            delivered.lock().unwrap().insert(callback.id);
            async { Outcome::ok() }
        };
        client.on(dest(), handler).unwrap()
    }

    async fn call(&self, client: &Client) {
        let scheduled = client.schedule(Schedule::after(dest(), Duration::from_millis(20))).await.unwrap();
        self.scheduled.lock().unwrap().insert(scheduled.id);
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    fn is_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Waits for so many more calls, and for a connection that began since.
    async fn go_on(&self, calls: u64) {
        let before = self.calls.load(Ordering::Relaxed);
        let connections = self.connections.load(Ordering::Relaxed);
        let enough = async {
            while self.calls.load(Ordering::Relaxed) < before + calls
                || self.connections.load(Ordering::Relaxed) < connections + 2
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within("so many more calls", enough).await;
    }
}

fn dest() -> Destination {
    Destination::new("g", "a").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn tokens_and_certificates_are_replaced_under_load_without_a_failed_call() {
    let site = Arc::new(Site::start());
    let load = Arc::new(Load::default());
    let first = site.next("shop-0", &load).await;
    let current = Arc::new(Mutex::new(Arc::new(first)));
    let latest = |current: &Mutex<Arc<Credentials>>| current.lock().unwrap().clone();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..CALLERS {
        let (load, current) = (load.clone(), current.clone());
        callers.spawn(async move {
            while load.is_on() {
                load.call(&latest(&current).client).await;
            }
        });
    }
    let (newcomer, known, at) = (load.clone(), current.clone(), site.clone());
    callers.spawn(async move {
        while newcomer.is_on() {
            let credentials = latest(&known);
            let client = at.connect(&credentials.token).await.unwrap();
            newcomer.call(&client).await;
            client.close().await.unwrap();
            newcomer.connections.fetch_add(1, Ordering::Relaxed);
        }
    });
    let rotate = async {
        for n in 1..=ROTATIONS {
            load.go_on(200).await;
            let next = site.next(&format!("shop-{n}"), &load).await;
            site.renew().await;
            load.go_on(200).await;
            let old = std::mem::replace(&mut *current.lock().unwrap(), Arc::new(next));
            // Nobody begins anything with it any more; what was begun ends.
            wait_for_last(&old).await;
            old.client.close().await.unwrap();
            site.revoke(&old).await;
        }
        load.go_on(200).await;
    };
    tokio::select! {
        () = rotate => {}
        // A failed call panics, and nobody has told the callers to stop.
        ended = callers.join_next() => panic!("a caller has ended: {ended:?}"),
    }
    load.stop.store(true, Ordering::Relaxed);
    let all_ended = async {
        while let Some(ended) = callers.join_next().await {
            ended.unwrap();
        }
    };
    within("the callers end", all_ended).await;
    let missing = || {
        let delivered = load.delivered.lock().unwrap();
        load.scheduled.lock().unwrap().iter().filter(|id| !delivered.contains(id)).count()
    };
    block_in_place(|| wait_for("every timer is delivered", || (missing() == 0).then_some(())));
    latest(&current).client.close().await.unwrap();
    let log = fs::read_to_string(site.tokens.dir.path().join("log")).unwrap();
    assert!(!log.contains("not read again"), "{log}");
}

async fn wait_for_last(credentials: &Arc<Credentials>) {
    let unused = async {
        while Arc::strong_count(credentials) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within("nobody uses the old credentials", unused).await;
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(TIMEOUT, future).await.unwrap_or_else(|_| panic!("never: {what}"))
}
