//! bench: tiny ones of each, what they print, and that nothing of them stays.

use std::path::Path;

use mtimer_store_redis::test_support::Server;
use serde_json::Value;

use crate::harness::{Dev, Running, redis_over_tls, run, wait_for};

/// Runs one that is exact; its report.
fn bench(name: &str, args: &[&str]) -> Value {
    let mut lines = run(&[&["bench", name, "--json"], args].concat()).ok().lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    checked(name, lines.remove(0))
}

/// Has the keys that scripts rely on, and says that all went well.
fn checked(name: &str, report: Value) -> Value {
    assert_eq!(report["bench"], name);
    for key in [
        "store",
        "timers",
        "rate_per_s",
        "lateness_ms",
        "cpu_us_per_timer",
        "mix_percent",
        "lost",
        "early",
        "duplicates",
    ] {
        assert!(report.get(key).is_some(), "{key}: {report}");
    }
    for key in ["lost", "early", "duplicates", "left"] {
        assert_eq!(report[key], 0, "{report}");
    }
    for who in ["client", "broker", "redis"] {
        assert!(report["cpu_us_per_timer"].get(who).is_some(), "{who}: {report}");
    }
    report
}

fn is_late(report: &Value) -> bool {
    ["p50", "p99", "p999", "max"].iter().all(|q| report["lateness_ms"][q].is_number())
}

#[test]
fn rounds_are_counted_and_checked() {
    let report = bench("schedule", &["--timers", "500", "--rounds", "2"]);
    assert_eq!((report["each"].as_array().unwrap().len(), &report["timers"]), (2, &500.into()));
    assert!(report["lateness_ms"].is_null() && report["rate_per_s"].as_f64().unwrap() > 0.0);
    assert!(report["cpu_us_per_timer"]["redis"].is_null());

    let small = ["--timers", "500", "--ahead", "0s", "--rounds", "2", "--warmup", "0"];
    let report = bench("fire", &[&small[..], &["--within", "50ms"]].concat());
    assert!(is_late(&report) && report["rate_spread"].is_array(), "{report}");
    // They were due before they could be loaded again: when which work was done, nobody knows.
    assert!(report["scheduled_into_loading_ms"].as_f64().unwrap() > 0.0, "{report}");
    assert!(report["cpu_us_per_timer"]["client"].is_null() && report["notes"].is_array(), "{report}");
    let said = run(&[&["bench", "fire"], &small[..]].concat()).ok().out;
    assert!(said.contains("processor time and commands are left out"), "{said}");
    let report = bench("burst", &small);
    assert!(is_late(&report) && report["last_entered_ms"].is_number(), "{report}");
    let report = bench("single", &["--calls", "20", "--rounds", "1"]);
    assert!(report["schedule_p50_ms"].as_f64().unwrap() > 0.0 && report.get("ping_p50_ms").is_none());
}

/// A mix that has every kind, and how many of each are among `timers`.
const MIX: [&str; 6] = ["--keyed", "30", "--at-most-once", "20", "--fail", "10"];

fn has_mix(report: &Value, timers: u64) {
    let percent = serde_json::json!({ "keyed": 30, "at_most_once": 20, "fail": 10 });
    assert_eq!((&report["mix_percent"], &report["timers"]), (&percent, &timers.into()), "{report}");
    let found = ["keyed", "at_most_once", "failed_once"].map(|name| report[name].as_f64());
    let expected = [30, 20, 10].map(|percent| Some((timers * percent / 100) as f64));
    assert_eq!(found, expected, "{report}");
}

#[test]
fn a_mix_has_the_timers_that_were_asked_for() {
    let once = ["--rounds", "1", "--warmup", "0"];
    let report = bench("schedule", &[&["--timers", "500"], &MIX[..], &once].concat());
    assert_eq!(report["keyed"], 150.0, "keys in the store: {report}");
    let soon = ["--timers", "500", "--ahead", "0s", "--within", "50ms", "--payload", "1024"];
    let report = bench("fire", &[&soon[..], &MIX, &once].concat());
    assert_eq!(report["payload_bytes"], 1_024);
    has_mix(&report, 500);
    let load = ["--for", "250ms", "--ahead", "100ms", "--rate", "400"];
    has_mix(&bench("lateness", &[&load[..], &MIX, &once].concat()), 100);
    has_mix(&bench("lifecycle", &[&load[..], &["--sparse"], &MIX, &once].concat()), 100);
    let said = run(&[&["bench", "schedule", "--timers", "100"], &MIX[..], &once].concat()).ok().out;
    assert!(
        said.contains("64 bytes each, 30 % keyed, 20 % at most once, 10 % failing once; store"),
        "{said}"
    );
}

#[test]
fn edits_reach_every_timer_by_id_and_by_key() {
    for name in ["cancel", "reschedule"] {
        for (percent, keyed) in [("0", Value::Null), ("100", 400.0.into()), ("50", 200.0.into())] {
            let report =
                bench(name, &["--timers", "400", "--keyed", percent, "--rounds", "1", "--warmup", "0"]);
            assert_eq!((&report["timers"], &report["keyed"]), (&400.into(), &keyed), "{report}");
            assert!(report["schedule_per_s"].is_number() && report["lateness_ms"].is_null(), "{report}");
        }
        bench(name, &[&["--timers", "200", "--rounds", "2"], &MIX[..]].concat());
    }
}

#[test]
fn a_mix_that_cannot_be_is_refused_with_value_limit_and_fix() {
    for (args, said) in [
        (&["schedule", "--keyed", "101"][..], "101 percent is outside the limits: give 0 to 100"),
        (&["cancel", "--fail", "-1"], "-1 percent is outside the limits: give 0 to 100"),
        (&["fire", "--payload", "65537"], "a payload of 65537 bytes is outside the limits: give 8 to 65536"),
        (&["burst", "--payload", "7"], "a payload of 7 bytes is outside the limits: give 8 to 65536"),
        (
            &["lateness", "--at-most-once", "95", "--fail", "10"],
            "--at-most-once 95 and --fail 10 are 105 percent together, the limit is 100",
        ),
    ] {
        let refused = run(&[&["bench"], args].concat()).code(2);
        assert!(refused.err.contains(said) && refused.out.is_empty(), "{args:?}: {refused:?}");
    }
}

#[test]
fn a_steady_load_has_a_report_for_each_rate() {
    let load = ["--for", "300ms", "--ahead", "100ms", "--rounds", "1", "--warmup", "0"];
    let lines =
        run(&[&["bench", "lateness", "--json", "--rate", "200,400"], &load[..]].concat()).ok().lines();
    assert_eq!(lines.len(), 2);
    for (report, (rate, timers)) in lines.into_iter().zip([(200.0, 60), (400.0, 120)]) {
        let report = checked("lateness", report);
        assert_eq!((&report["planned_rate_per_s"], &report["timers"]), (&rate.into(), &timers.into()));
        assert!(is_late(&report));
    }
    let report = bench("lifecycle", &[&load[..], &["--rate", "300"]].concat());
    assert_eq!((&report["timers"], &report["steps"]), (&90.into(), &Value::Array(Vec::new())));
}

#[test]
fn a_rate_that_was_looked_for_is_one_that_was_borne() {
    let load = ["--for", "300ms", "--ahead", "400ms", "--step", "100ms", "--rounds", "1", "--warmup", "0"];
    let report = bench("lifecycle", &[&load[..], &["--from", "10", "--p99", "1h"]].concat());
    assert_eq!((&report["sustained"], report["steps"][0]["rate_per_s"].as_u64()), (&1.0.into(), Some(10)));
    // However slow the machine, the search ends; and if nothing is borne it says so.
    let none = [&["bench", "lifecycle", "--json", "--from", "4", "--p99", "0s"], &load[..]].concat();
    let failed = run(&none).code(1).json();
    let message = failed["message"].as_str().unwrap();
    assert!(message.starts_with("no rate is sustained, down to 1 a second"), "{failed}");
}

#[test]
fn growth_has_a_row_for_each_step_and_a_restart() {
    let small = ["--timers", "1500", "--probe", "100", "--ahead", "0s", "--rounds", "2", "--warmup", "0"];
    let report = bench("memory", &small);
    assert_eq!((&report["rounds"], report["each"].as_array().unwrap().len()), (&2.into(), 2));
    assert!(report["rows"][0]["spread"]["full_cycle_cpu_us"]["client"].is_array(), "{report}");
    let pending: Vec<u64> =
        report["rows"].as_array().unwrap().iter().map(|row| row["pending"].as_u64().unwrap()).collect();
    assert_eq!(pending, [0, 1_000, 1_500]);
    assert!(report["restart_ms"].as_f64().unwrap() > 0.0, "{report}");
    assert_eq!(report["mix_percent"]["keyed"], 0);
    let report = bench("memory", &[&small[..], &["--crash", "--sparse", "--keyed", "50"]].concat());
    assert_eq!(report["mix_percent"]["keyed"], 50);
    assert!(report["restart_ms"].as_f64().unwrap() > 0.0, "{report}");
}

#[test]
fn a_running_broker_is_measured_and_left_as_it_was() {
    let dev = Dev::start();
    let mine = dev.schedule(&["--in", "1h"]);
    for args in [
        &["schedule", "--timers", "300"][..],
        &["burst", "--timers", "300", "--ahead", "0s"],
        &["single", "--calls", "20"],
        &["lateness", "--rate", "200", "--for", "200ms", "--ahead", "100ms"],
        &["memory", "--timers", "1100", "--probe", "50", "--ahead", "0s"],
        &["fire", "--timers", "300", "--ahead", "0s", "--keyed", "50", "--fail", "10"],
        &["cancel", "--timers", "300", "--keyed", "50"],
        &["reschedule", "--timers", "300", "--keyed", "50"],
    ] {
        let args = [&["bench"], args, &["--rounds", "1", "--json"]].concat();
        checked(args[1], dev.run(&args).ok().json());
    }
    let status = dev.status();
    assert_eq!((&status["pending"], &status["keys"], &status["residue"]), (&1.into(), &0.into(), &0.into()));
    dev.run(&["get", &mine]).ok();
}

#[test]
fn a_signal_leaves_a_running_broker_as_it_was() {
    let dev = Dev::start();
    dev.schedule(&["--in", "1h"]);
    for args in [
        &["schedule", "--timers", "50000000"][..],
        &["burst", "--timers", "2000", "--ahead", "1h"],
        &["lateness", "--rate", "500", "--for", "1h", "--ahead", "1h"],
        &["cancel", "--timers", "5000000", "--keyed", "50"],
    ] {
        let measurement = dev.start_client(&[&["bench"], args, &["--warmup", "0", "--json"]].concat());
        dev.wait_for("pending timers", |status| status["pending"].as_u64() > Some(1_500));
        measurement.signal("INT");
        assert_eq!(measurement.wait(), (130, String::new()));
        assert_eq!(dev.status()["pending"], 1, "{args:?}");
    }
}

#[test]
fn on_redis_nothing_stays_behind() {
    let redis = Server::start();
    let _: () = redis.call(&["SET", "somebody-elses", "1"]);
    let _: () = redis.call(&["CONFIG", "SET", "hash-max-listpack-value", "77"]);
    let on = ["--redis", &redis.url(), "--rounds", "1", "--warmup", "0"];
    let loaded = ["--", "--preload", "100ms"];
    let fire = [&["--timers", "300", "--ahead", "2s", "--tune-redis"], &on[..], &loaded].concat();
    let report = bench("fire", &fire);
    assert!(report["cpu_us_per_timer"]["redis"].as_f64().unwrap() > 0.0, "{report}");
    let report = bench("idle", &[&["--for", "300ms", "--calm", "0s"], &on[..]].concat());
    assert_eq!(report["partitions"], 64);
    let soon = ["--timers", "300", "--ahead", "0s", "--within", "50ms"];
    has_mix(&bench("fire", &[&soon[..], &MIX, &on].concat()), 300);
    for name in ["cancel", "reschedule"] {
        for keyed in ["0", "50", "100"] {
            let report = bench(name, &[&["--timers", "300", "--keyed", keyed], &on[..]].concat());
            assert!(report["redis_commands_per_1000_timers"].as_f64().unwrap() > 0.0, "{report}");
            assert!(report["cpu_us_per_timer"]["redis"].is_number(), "{report}");
        }
    }
    assert!(report["redis_commands_per_s"].is_number(), "{report}");
    let report = bench("single", &[&["--calls", "20"], &on[..]].concat());
    assert!(report["over_ping_ms"].is_number() && report["ping_p50_ms"].is_number(), "{report}");
    let (_, value): (String, String) = redis.call(&["CONFIG", "GET", "hash-max-listpack-value"]);
    assert_eq!((redis.keys(), value.as_str()), (vec!["somebody-elses".to_owned()], "77"));
}

#[test]
fn on_redis_over_tls_nothing_stays_behind() {
    let (redis, flags) = redis_over_tls();
    let files = flags.each_ref().map(String::as_str);
    let single = ["--calls", "20", "--rounds", "1", "--warmup", "0", "--redis", &redis.tls_url()];
    let report = bench("single", &[&single[..], &files].concat());
    assert!(report["ping_p50_ms"].is_number(), "{report}");
    assert!(report["cpu_us_per_timer"]["redis"].as_f64().unwrap() > 0.0, "{report}");
    assert_eq!(redis.keys(), Vec::<String>::new());
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_ends_the_broker_and_removes_what_it_had() {
    let (redis, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let dir = folder.path().to_str().unwrap();
    let url = redis.url();
    for store in [["--dir", dir], ["--redis", &url]] {
        let args = [&["bench", "idle", "--json", "--for", "1h", "--calm", "0s"][..], &store].concat();
        let running = Running::start(&args);
        let broker = wait_for("a broker", || child_of(running.pid()));
        running.signal("INT");
        let (code, rest) = running.wait();
        assert_eq!((code, rest.as_str()), (130, ""));
        assert!(!Path::new(&format!("/proc/{broker}")).exists(), "the broker outlives the measurement");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(redis.keys().is_empty());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_broker_does_not_outlive_a_measurement_that_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["bench", "idle", "--for", "1h", "--dir", folder.path().to_str().unwrap()];
    let running = Running::start(&args);
    let broker = wait_for("a broker", || child_of(running.pid()));
    drop(running);
    wait_for("the broker's end", || (!Path::new(&format!("/proc/{broker}")).exists()).then_some(()));
}

#[test]
fn a_broker_that_cannot_start_is_told_of() {
    let failed = run(&["bench", "burst", "--json", "--", "--partitions", "0"]).code(1).json();
    assert!(failed["message"].as_str().unwrap().starts_with("the broker did not start: "), "{failed}");
}

/// The child of a process.
#[cfg(target_os = "linux")]
fn child_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}
