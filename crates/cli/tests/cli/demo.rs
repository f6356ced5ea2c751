//! demo: small ones, on every store.

use serde_json::Value;

use mtimer_store_redis::test_support::{
    Server, ServerOptions, TestCluster, as_user, documented_rights, user_with,
};

use crate::harness::{redis_over_tls, run};

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
    let text = run(&["demo", "--timers", "1", "--over", "0s", "--memory"]).ok().out;
    assert!(text.starts_with("1 timer over 0 ms; "), "{text}");
}

#[test]
fn a_demo_on_redis_leaves_no_key_behind() {
    let redis = Server::start();
    let _: () = redis.call(&["SET", "somebody-elses", "1"]);
    demo_on(&redis.url(), &[]);
    assert_eq!(redis.keys(), ["somebody-elses"]);
}

#[test]
fn a_demo_on_a_redis_cluster_leaves_no_key_behind() {
    let cluster = TestCluster::start();
    demo_on(&cluster.urls().join(","), &[]);
    assert_eq!(cluster.keys(), Vec::<String>::new());
}

/// Runs a small demo on Redis, which is exact and has nothing to complain about.
fn demo_on(redis: &str, flags: &[&str]) {
    let demo = ["demo", "--timers", "300", "--over", "300ms", "--json", "--redis", redis];
    let ended = run(&[&demo[..], flags].concat()).ok();
    let report = ended.json();
    assert_eq!((&report["fired"], &report["duplicates"]), (&300.into(), &0.into()));
    assert_eq!(ended.err, "");
}

#[test]
fn a_demo_over_tls_shows_its_certificate_and_leaves_no_key_behind() {
    let (redis, flags) = redis_over_tls();
    let files = flags.each_ref().map(String::as_str);
    demo_on(&redis.tls_url(), &files);
    assert_eq!(redis.keys(), Vec::<String>::new());
    for (files, advice) in [(&files[2..], "does not trust"), (&files[..2], "client certificate")] {
        let demo = ["demo", "--timers", "1", "--redis", &redis.tls_url()];
        let refused = run(&[&demo[..], files].concat());
        assert!(refused.code != 0 && refused.err.contains(advice), "{refused:?}");
    }
}

#[test]
fn a_demo_needs_no_more_rights_than_operators_are_told_to_give() {
    let mut rights = documented_rights("mtimer-*");
    rights.push("+unlink".to_owned());
    let extra = user_with(&rights);
    let redis = Server::start_with(ServerOptions { extra: extra.clone(), ..ServerOptions::default() });
    demo_on(&as_user(&redis.url()), &[]);
    assert_eq!(redis.keys(), Vec::<String>::new());
    let extra: Vec<&str> = extra.iter().map(String::as_str).collect();
    let cluster = TestCluster::start_with(&extra);
    demo_on(&cluster.urls().iter().map(|url| as_user(url)).collect::<Vec<_>>().join(","), &[]);
    assert_eq!(cluster.keys(), Vec::<String>::new());
}

#[test]
fn a_demo_over_a_unix_socket_leaves_no_key_behind() {
    let redis = Server::start_with(ServerOptions { unix_socket: true, ..ServerOptions::default() });
    demo_on(&redis.unix_url(), &[]);
    assert_eq!(redis.keys(), Vec::<String>::new());
}
