//! States in which a broker knows less than usual, or can do less: `mtimer status`, the probes and
//! the metrics say so, and do not show 0 or *ready* instead.

use mtimer_store_redis::test_support::Server;
use serde_json::Value;

use crate::harness::wait_for;
use crate::troubles::{Broker, free_address};

/// What was counted last is told with its age, and what was never counted is not told: not as 0.
fn tells_no_false_zero(broker: &Broker) {
    let status = broker.status();
    assert_eq!(status["pending"], 1, "{status}");
    assert!(status["stored_age_ms"].as_u64() > Some(0), "{status}");
    let of_cluster = broker.run(&["cluster", "status", "--json"]).ok().json();
    assert_eq!(of_cluster["pending"], Value::Null, "{of_cluster}");
    assert!(
        of_cluster["partitions"].as_array().unwrap().iter().all(|p| p["pending"].is_null()),
        "{of_cluster}"
    );
    assert_eq!(broker.metric("mtimer_stored_timers{state=\"pending\"}"), None);
    let text = broker.run(&["status"]).ok().out;
    assert!(text.contains("the store could not be counted: what it holds is as of "), "{text}");
}

/// `ping --ready` gives the reasons of `/readyz`, and no others.
fn ping_is_as_ready_as_readyz(broker: &Broker) {
    let (is_ready, page) = broker.readyz();
    let pinged = broker.run(&["ping", "--ready"]).code(if is_ready { 0 } else { 13 });
    let (_, why) = page.split_once("\r\n\r\n").unwrap();
    let reasons = why.trim_end().replace('\n', "; ");
    let words = if is_ready { " and ready: " } else { &format!(" but not ready: {reasons}") };
    assert!(format!("{}{}", pinged.out, pinged.err).contains(words), "{pinged:?} is not {page}");
}

#[test]
fn what_a_store_holds_that_is_frozen_or_gone() {
    let mut redis = Server::start();
    let broker = Broker::start(&["--redis", &redis.url()]);
    broker.run(&["schedule", "--group", "g", "--app", "a", "--in", "1h"]).ok();
    wait_for("a count", || (broker.status()["pending"] == 1).then_some(()));
    // So that no reading shares a count with one of before.
    wait_for("a count for metrics", || broker.metric("mtimer_stored_timers{state=\"pending\"}"));
    redis.freeze();
    // At once, and when the broker has noticed.
    wait_for("nobody waits for a store that is frozen", || {
        (broker.status()["stored_age_ms"].as_u64() > Some(0)).then_some(())
    });
    wait_for("it is noticed", || (!broker.readyz().0).then_some(()));
    wait_for("the last count for metrics is too old", || {
        broker.metric("mtimer_stored_timers{state=\"pending\"}").is_none().then_some(())
    });
    tells_no_false_zero(&broker);
    redis.thaw();
    wait_for("it is back", || (broker.status()["stored_age_ms"] == 0).then_some(()));
    redis.kill();
    wait_for("it is noticed", || (!broker.readyz().0).then_some(()));
    ping_is_as_ready_as_readyz(&broker);
    wait_for("the last count for metrics is too old", || {
        broker.metric("mtimer_stored_timers{state=\"pending\"}").is_none().then_some(())
    });
    tells_no_false_zero(&broker);
}

#[test]
fn a_server_that_begins_to_evict() {
    let redis = Server::start();
    let broker = Broker::start(&["--redis", &redis.url()]);
    assert_eq!(broker.metric("mtimer_store_evicting_masters"), Some(0.0));
    let _: () = redis.call(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    broker.shows(
        "the server may evict keys, and timers would vanish: new timers are refused there",
        ("mtimer_store_evicting_masters", 1.0),
        "Redis may evict keys when its memory is full, and timers would vanish: new timers are refused there",
    );
    let (is_ready, why) = broker.readyz();
    assert!(!is_ready && why.contains("maxmemory-policy"), "{why}");
    ping_is_as_ready_as_readyz(&broker);
    let _: () = redis.call(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    wait_for("it is ready again", || (broker.readyz().0).then_some(()));
    ping_is_as_ready_as_readyz(&broker);
}

#[test]
fn an_address_that_nobody_reaches() {
    let redis = Server::start();
    let other = Broker::start(&["--redis", &redis.url()]);
    let nowhere = free_address();
    let broker = Broker::start_unready(&["--redis", &redis.url(), "--advertise", &nowhere]);
    broker.shows(
        "nobody reaches this broker at its advertised address",
        ("mtimer_address_reached", 0.0),
        "nobody reaches a broker at the advertised address",
    );
    assert_eq!(broker.metric("mtimer_address_reached"), Some(0.0));
    let (is_ready, why) = broker.readyz();
    assert!(!is_ready && why.contains(&nowhere), "{why}");
    ping_is_as_ready_as_readyz(&broker);
    assert_eq!(broker.metric("mtimer_partitions_owned"), Some(0.0));
    assert_eq!(other.metric("mtimer_partitions_owned"), Some(2.0));
    let problems = other.run(&["cluster", "status"]).ok().out;
    assert!(problems.contains(&format!("! {nowhere} does not answer")), "{problems}");
    (0..4).for_each(|_| _ = other.schedule("a"));
}

#[test]
fn a_broker_that_nobody_reaches_does_not_keep_others_from_serving_if_it_is_there_first() {
    let (redis, nowhere) = (Server::start(), free_address());
    let flags = ["--redis", &redis.url(), "--partitions", "2", "--advertise", &nowhere];
    let first = Broker::start_unready(&flags);
    let words = "nobody reaches this broker at its advertised address";
    wait_for("the first one has looked", || first.log().contains(words).then_some(()));
    let (is_ready, why) = first.readyz();
    assert!(!is_ready && why.contains("it does not lead and is given no partitions"), "{why}");
    let other = Broker::start_unready(&["--redis", &redis.url(), "--partitions", "2"]);
    wait_for("the other one serves", || other.readyz().0.then_some(()));
    let view = other.run(&["cluster", "status", "--json"]).ok().json();
    assert_eq!(view["leader"], other.addr, "{view}");
    (0..4).for_each(|_| _ = other.schedule("a"));
    // It is a member all the same, and whoever connects to it is led to the other one.
    wait_for("it has a topology", || first.log().contains("another broker leads").then_some(()));
    first.schedule("a");
}

#[test]
fn a_leader_that_cannot_be_reached() {
    let (redis, nowhere) = (Server::start(), free_address());
    // As a broker leaves it that reaches itself, and that nobody else reaches.
    let held = format!("{nowhere} 7 5");
    let _: () = redis.call(&["SET", "leader:{mtimer}", &held, "PX", "600000"]);
    let broker = Broker::start_unready(&["--redis", &redis.url(), "--partitions", "2"]);
    let line = "the cluster's leader cannot be reached";
    wait_for("a line of the log", || broker.log().contains(line).then_some(()));
    let words = format!("the leader at {nowhere} cannot be reached: ");
    let (is_ready, why) = broker.readyz();
    assert!(!is_ready && why.contains(&words), "{why}");
    ping_is_as_ready_as_readyz(&broker);
    for command in [&["status"][..], &["cluster", "status"]] {
        let text = broker.run(command).ok().out;
        assert!(text.contains(&format!("! {words}")), "{text}");
    }
    assert_eq!(broker.status()["unreached_leaders"][0]["address"], Value::from(nowhere));
    let of_cluster = broker.run(&["cluster", "status"]).ok().out;
    assert!(of_cluster.contains("this broker has not joined it, and knows of no leader"), "{of_cluster}");
    let times = broker.log().lines().filter(|text| text.contains(line)).count();
    assert_eq!(times, 1, "{}", broker.log());
    // Another program has removed it.
    let _: u64 = redis.call(&["DEL", "leader:{mtimer}"]);
    wait_for("it is ready", || broker.readyz().0.then_some(()));
    assert!(broker.status()["unreached_leaders"].as_array().unwrap().is_empty());
}

#[test]
fn brokers_that_are_lost() {
    let redis = Server::start();
    let start = || Broker::start(&["--redis", &redis.url(), "--cluster", "c"]);
    let [mut leader, mut second, last] = [start(), start(), start()];
    let gone = [leader.addr.clone(), second.addr.clone()];
    wait_for("three brokers", || {
        let view = last.run(&["cluster", "status", "--json"]).ok().json();
        (view["brokers"].as_array().unwrap().len() == 3).then_some(())
    });
    leader.kill();
    second.kill();
    last.shows(
        "the cluster has lost a broker",
        ("mtimer_lost_brokers", 2.0),
        "2 brokers were lost and were not seen again",
    );
    let problems = last.status()["problems"].to_string();
    assert!(gone.iter().all(|address| problems.contains(address)), "{problems}");
    let lost = last.status()["lost_brokers"].as_array().unwrap().clone();
    assert!(lost.len() == 2 && lost.iter().all(|one| one["lost_ms_ago"].is_u64()), "{lost:?}");
}

#[test]
fn a_level_that_wants_replicas_and_a_redis_that_has_none() {
    const LINE: &str = "too few replicas confirm what is written";
    let redis = Server::start();
    let level = ["--durability", "redis-replicated", "--partitions", "2"];
    let broker = Broker::start_unready(&[&["--redis", &redis.url()], &level[..]].concat());
    broker.shows(
        LINE,
        ("mtimer_store_unconfirmed_partitions", 2.0),
        "too few replicas confirm what is written to 2 partitions: schedules are answered \"stored, not confirmed\"",
    );
    let (is_ready, why) = broker.readyz();
    assert!(!is_ready && why.contains(&format!("{LINE} to 2 partitions")), "{why}");
    ping_is_as_ready_as_readyz(&broker);

    // A broker waits for replicas for 2 s, and for as long behind another request of the partition;
    // the client asks again as long as its request may take.
    let schedule = |more: &[&str]| {
        let args = ["schedule", "--group", "g", "--app", "a", "--in", "1h", "--key", "k"];
        broker.run(&[&args[..], more].concat())
    };
    let words = "stored, but not confirmed by enough replicas in time";
    let text = schedule(&[]).code(8);
    assert!(text.out.is_empty() && text.err.contains(words), "{text:?}");
    let error = schedule(&["--key-policy", "replace", "--json"]).code(8).json();
    assert_eq!(error["error"], "unknown", "{error}");
    assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    // It is stored.
    let found = broker.run(&["get", "--group", "g", "--app", "a", "--key", "k", "--json"]).ok().json();
    assert_eq!(found["state"], "pending", "{found}");
    let refusals = broker.metric("mtimer_refusals_total{reason=\"not_replicated\"}");
    assert!(refusals >= Some(2.0), "{refusals:?}");

    // Nothing else is wrong, and nothing else is said.
    for command in [&["status"][..], &["cluster", "status"]] {
        let ended = [&[][..], &["--json"]].map(|json| broker.run(&[command, json].concat()).ok());
        for shown in ended.map(|ended| ended.out) {
            assert!(shown.contains(LINE), "{shown}");
            for other in ["not connected", "no owner", "without an owner", "cannot be reached"] {
                assert!(!shown.contains(other), "{other:?} in {shown}");
            }
        }
    }

    let _replica = redis.add_replica();
    wait_for("it is ready", || broker.readyz().0.then_some(()));
    ping_is_as_ready_as_readyz(&broker);
    assert!(broker.log().contains("replicas confirm what is written again"), "{}", broker.log());
    assert_eq!(broker.metric("mtimer_store_unconfirmed_partitions"), Some(0.0));
    schedule(&["--key-policy", "replace"]).ok();
    wait_for("nothing is said of it", || (!broker.run(&["status"]).ok().out.contains(LINE)).then_some(()));
}
