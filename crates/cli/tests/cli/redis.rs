//! What a broker says of its store on Redis.

use std::fmt::Write as _;

use mtimer_store_redis::test_support::{Server, ServerOptions};
use serde_json::Value;

use crate::harness::{Running, run, wait_for};

/// What some timers take in the store, at least.
const BATCH: u64 = 8 * 60_000;

/// A broker that keeps what its frozen replica does not have.
struct Keeping {
    replica: Server,
    _master: Server,
    _broker: Running,
    addr: String,
}

impl Keeping {
    /// Starts one, and schedules three batches of timers.
    fn start(flags: &[&str]) -> Self {
        let master = Server::start();
        let replica = master.add_replica();
        let url = master.url();
        let args = ["broker", "--json", "--listen", "127.0.0.1:0", "--partitions", "1", "--redis", &url];
        let mut broker = Running::start(&[&args[..], flags].concat());
        let ready: Value = serde_json::from_str(&broker.line()).unwrap();
        let addr = ready["listening"].as_str().unwrap().to_owned();
        let this = Self { replica, _master: master, _broker: broker, addr };
        // What is answered first comes after the wait for replicas to have the acquisition.
        run(&["schedule", "--group", "g", "--app", "a", "--in", "1h", "--broker", &this.addr]).ok();
        wait_for("safe acquisition", || (this.log() == [0, 0, 0]).then_some(()));
        this.replica.freeze();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("timers.ndjson");
        let payload = "x".repeat(60_000);
        let mut lines = String::new();
        for _ in 0..8 {
            writeln!(lines, r#"{{"in":"1h","group":"g","app":"a","payload":"{payload}"}}"#).unwrap();
        }
        std::fs::write(&file, lines).unwrap();
        for _ in 0..3 {
            run(&["schedule", "--broker", &this.addr, "--file", file.to_str().unwrap()]).ok();
        }
        this
    }

    /// Bytes kept, records dropped, whether the promise is off.
    fn log(&self) -> [u64; 3] {
        let status = run(&["status", "--json", "--broker", &self.addr]).ok().json();
        ["store_log_bytes", "store_log_dropped_records_total", "store_log_at_risk"]
            .map(|name| status["counters"][name].as_u64().unwrap_or_else(|| panic!("{name}: {status}")))
    }
}

#[test]
fn status_says_how_much_of_the_last_writes_is_kept() {
    let broker = Keeping::start(&[]);
    let [bytes, dropped, at_risk] = broker.log();
    assert!(bytes >= 3 * BATCH, "{bytes}");
    assert_eq!((dropped, at_risk), (0, 0));
    let text = run(&["status", "--broker", &broker.addr]).ok().out;
    let line = text.lines().find(|line| line.starts_with("store_log_bytes")).unwrap();
    assert!(line.ends_with("now"), "{line}");
    broker.replica.thaw();
    wait_for("trimmed", || (broker.log() == [0, 0, 0]).then_some(()));
}

#[test]
fn status_says_when_what_was_answered_may_be_lost_and_when_no_more() {
    let broker = Keeping::start(&["--redis-write-log", "1MiB"]);
    let [bytes, dropped, at_risk] = broker.log();
    assert!((1..=1 << 20).contains(&bytes) && dropped > 0, "{bytes} bytes, {dropped} dropped");
    assert_eq!(at_risk, 1);
    broker.replica.thaw();
    wait_for("safe", || (broker.log() == [0, dropped, 0]).then_some(()));
}

#[test]
fn without_memory_nothing_is_kept_or_promised() {
    let broker = Keeping::start(&["--redis-write-log", "0"]);
    assert_eq!(broker.log(), [0, 0, 0]);
}

#[test]
fn a_mistyped_cluster_is_told_which_others_there_are() {
    let redis = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let logged = |cluster: &str| {
        let path = folder.path().join("log");
        let log = std::fs::File::create(&path).unwrap();
        let flags = ["--json", "--listen", "127.0.0.1:0", "--partitions", "1", "--redis", &redis.url()];
        let mut broker = Running::logging_to(log, &[&["broker", "--cluster", cluster], &flags[..]].concat());
        assert!(broker.line().contains("listening"));
        let log = std::fs::read_to_string(path).unwrap();
        log.lines().filter(|line| line.contains("is new here")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(logged("shop"), [""; 0]);
    let lines = logged("shpo");
    assert_eq!(lines.len(), 1, "{lines:?}");
    let said = r#"cluster "shpo" is new here; this Redis also holds "shop": if one of them was meant"#;
    assert!(lines[0].contains("WARN") && lines[0].contains(said), "{lines:?}");
    assert_eq!(logged("shpo"), [""; 0], "it is not new any more");
}

#[test]
fn a_password_that_the_network_sees_is_told_once() {
    let extra = ["--requirepass", "hush"].map(str::to_owned).to_vec();
    let redis = Server::start_with(ServerOptions { extra, ..ServerOptions::default() });
    let folder = tempfile::tempdir().unwrap();
    let told = |host: &str| {
        let path = folder.path().join("log");
        let log = std::fs::File::create(&path).unwrap();
        let url = redis.url().replace("redis://127.0.0.1", &format!("redis://:hush@{host}"));
        let args = ["broker", "--json", "--listen", "127.0.0.1:0", "--partitions", "1", "--redis", &url];
        let mut broker = Running::logging_to(log, &args);
        let line = broker.line();
        let log = std::fs::read_to_string(path).unwrap();
        assert!(line.contains("listening"), "{line} {log}");
        assert!(!log.contains("hush"), "{log}");
        log.matches("the password of Redis is sent without encryption").count()
    };
    assert_eq!(told("127.0.0.1"), 0);
    // It leads to this host, and does not look like it.
    assert_eq!(told("[::ffff:127.0.0.1]"), 1);
}
