//! A server that the store knows by a name: where the name leads elsewhere, the store goes there.
//!
//! The name is in `/etc/hosts`, which each test has to itself, in a process of its own: the system
//! resolves it, as any other. Both servers have the same port, at addresses of their own.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mtimer_store::{Answer, Health, ScheduleAnswer};
use mtimer_store_redis::RedisOptions;
use mtimer_store_redis::test_support::Server;
use mtimer_types::Timer;
use support::losing::OWNER;
use support::owner::{Owner, connect, now, schedule, timer};
use support::{WITHIN, until};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const NEW: Answer = Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None });
/// Set in the process that has `/etc/hosts` to itself: the file that is in its place.
const HOSTS: &str = "MTIMER_TEST_HOSTS";
/// How that process says that the test has run and passed: it may not have found the test, and that
/// is no failure to it.
const PASSED: i32 = 86;
const NAME: &str = "redis-of-the-shop";
/// Where the servers are. One is as long as the other.
const FIRST: &str = "127.0.0.1";
const SECOND: &str = "127.0.0.2";

/// Where the name leads.
struct Hosts(PathBuf);

impl Hosts {
    /// In one write, into the file that is there: nobody sees half of it.
    fn lead_to(&self, address: &str) {
        let mut file = std::fs::File::options().write(true).open(&self.0).unwrap();
        file.write_all(format!("{address} {NAME}\n").as_bytes()).unwrap();
    }
}

/// Runs a test in a process that has `/etc/hosts` to itself, with this `body`; where there can be
/// no such process, the test is skipped.
fn apart<F: Future<Output = ()>>(test: &str, body: impl FnOnce(Hosts) -> F) {
    if let Some(file) = std::env::var_os(HOSTS) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.unwrap().block_on(body(Hosts(file.into())));
        std::process::exit(PASSED);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hosts");
    std::fs::write(&file, format!("{FIRST} {NAME}\n")).unwrap();
    let mount = |as_whom: &[&str], then: &str| {
        let mut command = Command::new("unshare");
        let text = format!("mount --bind {} /etc/hosts && {then}", file.display());
        command.args(as_whom).args(["--mount", "sh", "-c", &text]);
        command
    };
    // Only root needs no namespace of users.
    let tried = [&[][..], &["--map-root-user"]].map(|as_whom| (as_whom, mount(as_whom, "true").output()));
    let works = |tried: &std::io::Result<Output>| tried.as_ref().is_ok_and(|tried| tried.status.success());
    let Some((as_whom, _)) = tried.iter().find(|(_, tried)| works(tried)) else {
        let why = format!("{test} cannot run here: /etc/hosts cannot be replaced ({tried:?})");
        assert!(!std::env::var("MTIMER_NO_SKIP").is_ok_and(|value| value == "1"), "{why}");
        return eprintln!("SKIPPED {why}");
    };
    let mut inside = mount(as_whom, r#"exec "$0" "$@""#);
    inside.arg(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture"]);
    let status = inside.env(HOSTS, &file).stdin(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(PASSED), "{test}, with a file of its own: {status}; it is told above");
}

/// Two servers, the second one a replica of the first one, and the owner of a partition at the one
/// where the name leads.
struct Site {
    hosts: Hosts,
    first: Server,
    second: Server,
    /// Connections that came to the second server by the first one's port.
    came: Arc<AtomicUsize>,
    owner: Owner,
    timers: Vec<Timer>,
}

impl Site {
    async fn start(hosts: Hosts) -> Self {
        let first = Server::start();
        let second = first.add_replica();
        let came = Arc::default();
        let listener = TcpListener::bind((SECOND, first.port())).await.unwrap();
        tokio::spawn(lead(listener, second.address(), Arc::clone(&came)));
        hosts.lead_to(FIRST);
        let url = format!("redis://{NAME}:{}", first.port());
        let owner = Owner::of(connect(RedisOptions::new([url], "t")).await).await;
        let timers: Vec<_> = (0..20).map(|n| timer(now() + 60_000 + n, 5)).collect();
        for timer in &timers[..10] {
            assert_eq!(owner.one(schedule(timer)).await, NEW);
        }
        first.wait_for_replica(&second);
        assert_eq!((sequence(&second), came.load(Ordering::SeqCst)), (Some(10), 0));
        Self { hosts, first, second, came, owner, timers }
    }

    fn came(&self) -> usize {
        self.came.load(Ordering::SeqCst)
    }

    /// The store is at the second server, with all timers, and has left the first one.
    async fn check(&self) {
        assert!(self.came() > 0, "the store found it in another way than by the name");
        assert_eq!(self.owner.load(now() + 3_600_000).await.len(), self.timers.len());
        until("the connections to the first server are closed", || clients(&self.first) == 0).await;
    }
}

/// Leads connections to a server.
async fn lead(listener: TcpListener, target: String, came: Arc<AtomicUsize>) {
    loop {
        let (mut client, _) = listener.accept().await.unwrap();
        came.fetch_add(1, Ordering::SeqCst);
        let target = target.clone();
        tokio::spawn(async move {
            let mut server = TcpStream::connect(target).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
    }
}

/// The number of the last write that a server has.
fn sequence(server: &Server) -> Option<u64> {
    server.call(&["HGET", OWNER, "s"])
}

/// Connections that others than this call have to a server, replicas left out.
fn clients(server: &Server) -> usize {
    let all = server.call::<String>(&["CLIENT", "LIST", "TYPE", "normal"]);
    all.lines().filter(|line| !line.contains(" cmd=client")).count()
}

#[test]
fn a_lane_goes_on_where_the_name_of_a_demoted_server_leads() {
    apart("a_lane_goes_on_where_the_name_of_a_demoted_server_leads", demoted);
}

/// Between both steps nobody is there to go to: the lane waits for the name.
async fn demoted(hosts: Hosts) {
    let site = Site::start(hosts).await;
    site.second.call::<()>(&["REPLICAOF", "NO", "ONE"]);
    site.first.call::<()>(&["REPLICAOF", "127.0.0.1", &site.second.port().to_string()]);
    let sent: Vec<_> = site.timers[10..].iter().map(|timer| site.owner.send(vec![schedule(timer)])).collect();
    let mut health = site.owner.lane.health();
    timeout(WITHIN, health.wait_for(|h| matches!(h, Health::Down(_)))).await.unwrap().unwrap();
    assert_eq!((site.came(), sequence(&site.second)), (0, Some(10)));
    site.hosts.lead_to(SECOND);
    for answer in sent {
        assert_eq!(timeout(WITHIN, answer).await.expect("the lane goes on").unwrap(), [NEW]);
    }
    site.check().await;
}

#[test]
fn a_lane_goes_where_its_name_leads_while_the_server_before_still_takes_itself_for_the_master() {
    let test = "a_lane_goes_where_its_name_leads_while_the_server_before_still_takes_itself_for_the_master";
    apart(test, replaced);
}

/// What the first server has answered meanwhile is applied to the second one.
async fn replaced(hosts: Hosts) {
    let site = Site::start(hosts).await;
    site.second.call::<()>(&["REPLICAOF", "NO", "ONE"]);
    site.hosts.lead_to(SECOND);
    for timer in &site.timers[10..] {
        assert_eq!(site.owner.one(schedule(timer)).await, NEW);
    }
    until("the second server has everything", || sequence(&site.second) == Some(20)).await;
    site.check().await;
}
