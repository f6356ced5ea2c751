//! demo: small ones, on every store.

use serde_json::Value;

use mtimer_store_redis::test_support::{Server, TestCluster};

use crate::harness::run;

#[test]
fn a_demo_accounts_for_every_timer() {
    let report = run(&["demo", "--timers", "500", "--over", "500ms", "--json"]).ok().json();
    let Value::Object(report) = &report else { panic!("{report}") };
    let names: Vec<&str> = report.keys().map(String::as_str).collect();
    assert_eq!(names, ["duplicates", "early", "fired", "lateness_ms", "lost", "scheduled"]);
    for (name, n) in [("scheduled", 500), ("fired", 500), ("lost", 0), ("early", 0), ("duplicates", 0)] {
        assert_eq!(report[name], n, "{report:?}");
    }
    let names: Vec<&String> = report["lateness_ms"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["max", "p50", "p90", "p99"]);
    let text = run(&["demo", "--timers", "10", "--over", "10ms", "--memory"]).ok().out;
    assert!(text.contains("store: memory") && text.contains("lateness   p50"), "{text}");
}

#[test]
fn a_demo_on_redis_leaves_no_key_behind() {
    let redis = Server::start();
    let _: () = redis.call(&["SET", "somebody-elses", "1"]);
    let report =
        run(&["demo", "--timers", "300", "--over", "300ms", "--redis", &redis.url(), "--json"]).ok().json();
    assert_eq!((&report["fired"], &report["duplicates"]), (&300.into(), &0.into()));
    assert_eq!(redis.keys(), ["somebody-elses"]);
}

#[test]
fn a_demo_on_a_redis_cluster_leaves_no_key_behind() {
    let cluster = TestCluster::start();
    let urls = cluster.urls().join(",");
    let report = run(&["demo", "--timers", "300", "--over", "300ms", "--redis", &urls, "--json"]).ok().json();
    assert_eq!((&report["fired"], &report["duplicates"]), (&300.into(), &0.into()));
    assert_eq!(cluster.keys(), Vec::<String>::new());
}
