//! cluster remove, and cluster status in a window.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use mtimer_store_redis::test_support::{Server, TestCluster};
use serde_json::Value;

use crate::harness::{Dev, Ended, Running, run};

/// Before each look at a window.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Starts a broker of a cluster, schedules timers of every kind, and stops it gracefully.
fn fill(redis: &str, cluster: &str) {
    let (broker, addr) = start(redis, cluster);
    for more in [&["--in", "1h"][..], &["--in", "2h", "--key", "k"], &["--in", "0s"]] {
        let schedule = ["schedule", "--group", "g", "--app", "a", "--broker", &addr];
        run(&[&schedule[..], more].concat()).ok();
    }
    run(&["listen", "--group", "g", "--app", "a", "--count", "1", "--outcome", "fail", "--broker", &addr])
        .ok();
    broker.signal("TERM");
    assert_eq!(broker.wait().0, 0);
}

fn start(redis: &str, cluster: &str) -> (Running, String) {
    let args = ["broker", "--json", "--listen", "127.0.0.1:0", "--partitions", "4", "--redis", redis];
    let mut broker = Running::start(&[&args[..], &["--cluster", cluster]].concat());
    let ready: Value = serde_json::from_str(&broker.line()).unwrap();
    (broker, ready["listening"].as_str().unwrap().to_owned())
}

fn remove(redis: &str, cluster: &str, more: &[&str]) -> Ended {
    run(&[&["cluster", "remove", cluster, "--redis", redis, "--json"], more].concat())
}

/// Removes one of three clusters whose names begin alike.
fn one_of_three(redis: &str, keys: &dyn Fn() -> Vec<String>, foreign: &str) {
    for cluster in ["shop-2", "sho"] {
        fill(redis, cluster);
    }
    let others = keys();
    assert!(others.iter().any(|key| key == foreign));
    fill(redis, "shop");
    let all = keys();

    let (broker, addr) = start(redis, "shop");
    let refused = remove(redis, "shop", &["--yes"]).code(13).json();
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains(&addr) && message.contains("stop all its brokers first"), "{message}");
    broker.signal("TERM");
    assert_eq!(broker.wait().0, 0);

    let counted = remove(redis, "shop", &["--dry-run"]).ok().json();
    assert_eq!(counted["keys"], (all.len() - others.len()) as u64);
    let unasked = remove(redis, "shop", &[]).code(2).json();
    assert!(unasked["message"].as_str().unwrap().contains("give --yes"), "{unasked}");
    assert_eq!(keys(), all, "nothing was done");

    let removed = remove(redis, "shop", &["--yes"]).ok().json();
    assert_eq!(removed["removed"], (all.len() - others.len()) as u64);
    assert_eq!(keys(), others);
    let again = remove(redis, "shop", &["--yes"]).code(5).json();
    let message = again["message"].as_str().unwrap();
    assert!(message.contains("holds nothing of a cluster shop; it holds sho, shop-2"), "{message}");
}

#[test]
fn a_cluster_is_removed_and_no_other_key() {
    let redis = Server::start();
    redis.call::<()>(&["SET", "queue:{1}:shop", "another program's"]);
    one_of_three(&redis.url(), &|| redis.keys(), "queue:{1}:shop");
    // What an interrupted removal has left is removed by another one.
    fill(&redis.url(), "half");
    redis.call::<()>(&["DEL", "meta:{half}", "term:{half}"]);
    remove(&redis.url(), "half", &["--yes"]).ok();
    assert!(redis.keys().iter().all(|key| !key.contains("half")), "{:?}", redis.keys());
}

#[test]
fn a_cluster_is_removed_from_every_master() {
    let redis = TestCluster::start();
    let url = redis.urls().join(",");
    let key = "queue:{1}:shop";
    redis.nodes[redis.node_of(key)].call::<()>(&["SET", key, "another program's"]);
    one_of_three(&url, &|| redis.keys(), key);
}

#[test]
fn who_names_no_redis_is_told_what_to_give() {
    let refused = run(&["cluster", "remove", "shop", "--yes"]).code(2).err;
    assert!(refused.contains("Give --redis redis://HOST:6379"), "{refused}");
    let refused = run(&["cluster", "remove", "a b", "--redis", "127.0.0.1:1", "--yes"]).code(2).err;
    assert!(refused.contains("cluster is \"a b\""), "{refused}");
}

#[test]
fn cluster_status_fits_its_window_and_shows_partitions_on_request() {
    let dev = Dev::with(&["--partitions", "128"]);
    let short = dev.run(&["cluster", "status"]).ok().out;
    assert!(short.contains("nothing is wrong") && short.contains("partitions  without owner"), "{short}");
    assert!(short.lines().count() < 15, "{short}");
    let all = dev.run(&["cluster", "status", "--partitions"]).ok().out;
    assert!(all.lines().any(|line| line.trim_start().starts_with("127  ")), "{all}");

    // It ends by itself if the test does not get so far.
    let watch = format!(
        "stty rows 14 cols 60; \
         timeout --foreground 60 {} cluster status --watch 200ms --partitions --broker {}",
        env!("CARGO_BIN_EXE_mtimer"),
        dev.addr
    );
    let mut command = Command::new("script");
    command.args(["-qec", &watch, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut shown, mut some) = (Vec::new(), [0; 4_096]);
    let looks = |shown: &[u8]| String::from_utf8_lossy(shown).matches(CLEAR).count();
    while looks(&shown) < 3 {
        let count = screen.read(&mut some).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&shown));
        shown.extend_from_slice(&some[..count]);
    }
    // Control-C. The note of the end may come into the midst of the last look.
    keys.write_all(b"\x03").unwrap();
    screen.read_to_end(&mut shown).unwrap();
    child.wait().unwrap();
    let shown = String::from_utf8(shown).unwrap();
    let mut looks: Vec<&str> = shown.split(CLEAR).skip(1).collect();
    looks.pop();
    for look in looks {
        assert!(look.lines().count() <= 14, "{look}");
        assert!(look.contains("without owner") && look.contains("more partitions"), "{look}");
        let wide = look.lines().map(|line| line.chars().filter(|c| !c.is_control()).count()).max();
        assert!(wide <= Some(60 + "[32m[0m".len()), "{look}");
    }
}
