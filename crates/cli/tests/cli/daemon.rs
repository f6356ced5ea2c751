//! dev and broker: settings, readiness, signals, exit codes.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;

use mtimer_store_redis::test_support::Server;
use serde_json::{Value, json};

use crate::harness::{Dev, Running, end, http_get, mtimer, run, wait_for};

#[test]
fn timers_outlive_a_crash_and_a_good_end() {
    let mut dev = Dev::start();
    let id = dev.schedule(&["--in", "1h", "--key", "k", "--payload", "p"]);
    dev.crash();
    assert_eq!(dev.run(&["get", &id, "--json"]).ok().json()["payload"], "p");
    assert_eq!(dev.stop(), 0);
}

#[test]
fn what_the_environment_says_of_clients_tls_is_not_for_dev() {
    let with_ca = |args: &[&str]| {
        let mut command = mtimer(args);
        command.env("MTIMER_TLS_CA", "/there/is/no/ca.pem");
        command
    };
    let silent = std::fs::File::create("/dev/null").unwrap();
    let mut dev = Running::spawn_logging_to(silent, with_ca(&["dev", "--listen", "127.0.0.1:0"]));
    assert!(dev.line().starts_with("mtimer listens on 127.0.0.1:"));
    dev.signal("INT");
    assert_eq!(dev.wait().0, 0);
    // Given as a flag, or to a broker of a cluster, it says something.
    let flag = end(mtimer(&["dev", "--listen", "127.0.0.1:0", "--tls-ca", "ca.pem"]), b"").code(2).err;
    let broker = end(with_ca(&["broker", "--print-config"]), b"").code(2).err;
    for refused in [flag, broker] {
        assert!(refused.contains("this broker has no certificate"), "{refused}");
    }
}

#[test]
fn people_are_told_what_to_type_next() {
    let mut dev = Running::start(&["dev", "--listen", "127.0.0.1:0"]);
    let listens = dev.line();
    assert!(listens.starts_with("mtimer listens on 127.0.0.1:"), "{listens}");
    let timers = dev.line();
    assert!(timers.contains("gone when this stops"), "{timers}");
    let folder = timers.split_whitespace().nth(1).unwrap().to_owned();
    assert!(std::path::Path::new(&folder).exists());
    dev.signal("INT");
    let (code, rest) = dev.wait();
    assert_eq!(code, 0);
    let addr = listens.trim_start_matches("mtimer listens on ");
    assert!(rest.contains(&format!("mtimer listen --broker {addr} --group demo")), "{rest}");
    assert!(!std::path::Path::new(&folder).exists(), "the temporary folder goes");
}

/// What a broker that listens there has logged by the time it is ready; and the address.
fn logged_at_start(listen: &str, flags: &[&str]) -> (String, String) {
    let data = tempfile::tempdir().unwrap();
    let log = data.path().join("log");
    let timers = data.path().join("timers");
    let args = ["broker", "--json", "--listen", listen, "--data", timers.to_str().unwrap()];
    let args = [&args, flags].concat();
    let mut broker = Running::logging_to(std::fs::File::create(&log).unwrap(), &args);
    let ready: Value = serde_json::from_str(&broker.line()).unwrap();
    broker.signal("TERM");
    assert_eq!(broker.wait().0, 0);
    (std::fs::read_to_string(log).unwrap(), ready["listening"].as_str().unwrap().to_owned())
}

#[test]
fn insecure_is_warned_of_at_every_start() {
    const WARNING: &str = "connections are neither authenticated nor encrypted: trusted networks only";
    for listen in ["0.0.0.0:0", "127.0.0.1:0"] {
        let (log, address) = logged_at_start(listen, &["--insecure"]);
        let warnings: Vec<&str> = log.lines().filter(|line| line.contains(WARNING)).collect();
        assert!(
            matches!(warnings[..], [line] if line.contains("WARN") && line.contains(&address)),
            "{address}: {log}"
        );
    }
    let (log, _) = logged_at_start("127.0.0.1:0", &[]);
    assert!(!log.contains("WARN"), "{log}");
    let data = tempfile::tempdir().unwrap();
    let args = ["broker", "--listen", "0.0.0.0:0", "--data", data.path().to_str().unwrap()];
    let refused = run(&args).code(2).err;
    assert!(refused.contains("mtimer token create") && refused.contains("insecure"), "{refused}");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let dev = Dev::with(&["--drain-timeout", "1h"]);
    dev.schedule(&["--in", "0s", "--callback-timeout", "1h"]);
    let mut listener =
        dev.start_client(&["listen", "--group", "g", "--app", "a", "--exec", "sleep 600", "--json"]);
    listener.line();
    let mut running = dev.into_running();
    running.signal("TERM");
    // The first has been seen once the listener is told that the broker stops; the second can come
    // at any time after.
    let mut code = None;
    while code.is_none() {
        running.signal_if_there("TERM");
        code = running.try_wait();
    }
    assert_eq!(code, Some(143));
}

#[test]
fn a_place_that_is_taken_has_exit_codes_of_its_own() {
    let dev = Dev::start();
    let data = dev.data.path().join("timers");
    let other = tempfile::tempdir().unwrap();
    let args = ["broker", "--json", "--listen", &dev.addr, "--data", other.path().to_str().unwrap()];
    assert_eq!(run(&args).code(14).json()["error"], "listen");
    let args = ["broker", "--json", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()];
    let locked = run(&args).code(12).json();
    assert!(locked["message"].as_str().unwrap().contains("in use by another mtimer process"), "{locked}");
    let foreign = tempfile::tempdir().unwrap();
    std::fs::write(foreign.path().join("something"), "else").unwrap();
    let args = ["broker", "--listen", "127.0.0.1:0", "--data", foreign.path().to_str().unwrap()];
    assert!(run(&args).code(12).err.contains("not an mtimer data directory"));
}

#[test]
fn settings_come_in_layers_and_can_be_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mtimer.toml");
    std::fs::write(&file, "cluster = \"file\"\npreload = \"2s\"\nretry = [\"7s\"]\n").unwrap();
    let args = ["broker", "--config", file.to_str().unwrap(), "--park-after", "100ms", "--print-config"];
    let with_env = |args: &[&str]| {
        let mut command = mtimer(args);
        command.env("MTIMER_CLUSTER", "env").env("MTIMER_LOG", "debug");
        end(command, b"").ok()
    };
    let shown: Value = with_env(&[&args[..], &["--json"][..]].concat()).json();
    assert_eq!(
        (&shown["cluster"], &shown["preload"], &shown["park-after"]),
        (&json!("env"), &json!("2s"), &json!("100ms"))
    );
    assert_eq!((&shown["retry"], &shown["log-level"]), (&json!(["7s"]), &json!("debug")));
    // What is shown is a file that says the same.
    let text = with_env(&args).out;
    std::fs::write(&file, &text).unwrap();
    assert_eq!(run(&["broker", "--config", file.to_str().unwrap(), "--print-config"]).ok().out, text);
}

#[test]
fn wrong_settings_are_refused_with_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mtimer.toml");
    std::fs::write(&file, "clustre = \"x\"\n").unwrap();
    let error = |args: &[&str]| run(args).code(2).err;
    assert!(error(&["broker", "--config", file.to_str().unwrap()]).contains("clustre"));
    assert!(error(&["broker", "--config", "/nowhere"]).contains("cannot read the settings file /nowhere"));
    assert!(error(&["broker", "--store", "redis"]).contains("--redis redis://host:6379"));
    assert!(
        error(&["broker", "--store", "embedded", "--redis", "redis://h"]).contains("leave one of them out")
    );
    assert!(error(&["dev", "--redis", "redis://h"]).contains("use mtimer broker"));
    assert!(error(&["broker", "--listen", "nonsense"]).contains("write host:port"));
    assert!(error(&["broker", "--log-level", "a=b=c"]).contains("log filter"));
    let mut unknown = mtimer(&["broker", "--print-config"]);
    unknown.env("MTIMER_CLUSTRE", "x");
    assert!(end(unknown, b"").code(2).err.contains("MTIMER_CLUSTRE is not known"));
}

#[test]
fn a_redis_that_is_not_there_is_waited_for_as_long_as_is_allowed() {
    let args =
        ["broker", "--redis", "redis://127.0.0.1:1", "--startup-timeout", "50ms", "--listen", "127.0.0.1:0"];
    let away = run(&args).code(13);
    assert!(away.err.contains("allow more with --startup-timeout"), "{away:?}");
}

#[test]
fn one_that_is_told_to_stop_while_it_waits_for_its_redis_has_not_failed() {
    for signal in ["TERM", "INT"] {
        let redis = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", redis.local_addr().unwrap());
        let broker = Running::start(&["broker", "--redis", &url, "--listen", "127.0.0.1:0"]);
        let (waits, _) = redis.accept().unwrap();
        broker.signal(signal);
        assert_eq!(broker.wait(), (0, String::new()), "{signal}");
        drop(waits);
    }
}

/// Arguments of a broker of a cluster with four partitions.
fn of_shop<'a>(redis: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["broker", "--cluster", "shop", "--redis", redis, "--partitions", "4"], more].concat()
}

#[test]
fn one_that_has_not_joined_is_there_and_not_ready_and_stops_in_good_order() {
    let redis = Server::start();
    // Somebody leads who is not there.
    let () = redis.call(&["SET", "leader:{shop}", "127.0.0.1:1 7 1"]);
    let url = redis.url();
    // Ports that were free a moment ago.
    let free = [(), ()].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [listen, http] = free.map(|port| port.local_addr().unwrap().to_string());
    let args = of_shop(&url, &["--listen", &listen, "--http", &http]);
    let broker = Running::start(&args);
    wait_for("there", || (run(&["ping", "--broker", &listen]).code == 0).then_some(()));
    assert!(http_get(&http, "/healthz").starts_with("HTTP/1.1 200 "));
    let ready = http_get(&http, "/readyz");
    assert!(ready.starts_with("HTTP/1.1 503 ") && ready.contains("not joined"), "{ready}");
    let waits = run(&["ping", "--ready", "--json", "--broker", &listen]).code(13).json();
    let why = format!("{listen} is there, but not ready: the broker has not joined its cluster yet");
    assert_eq!(waits["message"], why, "{waits}");
    broker.signal("TERM");
    assert_eq!(broker.wait(), (0, String::new()));
    // It joins once it can.
    let broker = Running::start(&args);
    wait_for("there again", || (run(&["ping", "--broker", &listen]).code == 0).then_some(()));
    let _: u64 = redis.call(&["DEL", "leader:{shop}"]);
    wait_for("ready", || (run(&["ping", "--ready", "--broker", &listen]).code == 0).then_some(()));
    wait_for("/readyz", || http_get(&http, "/readyz").starts_with("HTTP/1.1 200 ").then_some(()));
    broker.signal("TERM");
    assert_eq!(broker.wait().0, 0);
}

#[test]
fn one_partition_is_not_counted_as_several() {
    let redis = Server::start();
    let url = redis.url();
    let args = ["broker", "--json", "--listen", "127.0.0.1:0", "--partitions", "1", "--redis", &url];
    let mut broker = Running::start(&args);
    let ready: Value = serde_json::from_str(&broker.line()).unwrap();
    let addr = ready["listening"].as_str().unwrap();
    let status = run(&["status", "--broker", addr]).ok().out;
    assert!(status.lines().next().unwrap().ends_with("store redis (redis), 1 partition"), "{status}");
    // Nobody else can have it.
    let drain = ["cluster", "drain", addr, "--yes", "--broker", addr];
    let waited = run(&[&drain[..], &["--within", "0s"]].concat()).code(13).err;
    assert!(waited.contains("still owns 1 partition after 0 s"), "{waited}");
    let left = run(&[&drain[..], &["--no-wait"]].concat()).ok().out;
    assert!(left.contains("is being emptied: 1 partition left"), "{left}");
    let table = run(&["cluster", "status", "--partitions", "--broker", addr]).ok().out;
    let head = table.lines().find(|line| line.starts_with("partition ")).unwrap();
    assert!(head.contains("overdue  in memory  in flight"), "{table}");
}

#[test]
fn two_brokers_on_one_redis_share_its_partitions_and_one_goes_on_alone() {
    let redis = Server::start();
    let url = redis.url();
    let args = of_shop(&url, &["--listen", "127.0.0.1:0", "--json"]);
    let logs = tempfile::tempdir().unwrap();
    let [first_log, second_log] = ["first", "second"].map(|name| logs.path().join(name));
    let start = |log: &Path| Running::logging_to(File::create(log).unwrap(), &args);
    let mut first = start(&first_log);
    let ready: Value = serde_json::from_str(&first.line()).unwrap();
    assert_eq!(
        (&ready["store"], &ready["cluster"], &ready["partitions"]),
        (&json!("redis"), &json!("shop"), &json!(4))
    );
    let one = ready["listening"].as_str().unwrap().to_owned();
    for _ in 0..8 {
        run(&["schedule", "--group", "g", "--app", "a", "--in", "0s", "--broker", &one]).ok();
    }
    let mut second = start(&second_log);
    let ready: Value = serde_json::from_str(&second.line()).unwrap();
    let two = ready["listening"].as_str().unwrap().to_owned();
    let status = |broker: &str| run(&["cluster", "status", "--json", "--broker", broker]).ok().json();
    let seen = status(&one);
    let mut owned: Vec<u64> =
        seen["brokers"].as_array().unwrap().iter().map(|b| b["partitions"].as_u64().unwrap()).collect();
    owned.sort_unstable();
    assert_eq!(owned, [2, 2], "{seen}");
    assert_eq!(seen["leader"], json!(one), "whoever was there first");
    assert!(run(&["cluster", "status", "--broker", &two]).ok().out.contains("leads"));
    // Each tells its own numbers, or those of all.
    let told = |more: &[&str]| run(&[&["status", "--json"], more].concat()).ok().json();
    let of_all = wait_for("parked", || Some(told(&["--all", "--broker", &two])).filter(|s| s["parked"] == 8));
    assert_eq!(of_all["broker"], Value::Null);
    let (of_one, of_two) = (told(&["--broker", &one]), told(&["--broker", &two]));
    assert_eq!((&of_one["broker"], &of_two["broker"]), (&json!(one), &json!(two)));
    assert_eq!(of_one["parked"].as_u64().unwrap() + of_two["parked"].as_u64().unwrap(), 8);
    let acquired = |status: &Value| status["counters"]["partitions_acquired_total"].as_u64().unwrap();
    assert_eq!(acquired(&of_all), acquired(&of_one) + acquired(&of_two));
    let text = run(&["status", "--all", "--broker", &two]).ok().out;
    assert!(text.contains("cluster shop at all its brokers"), "{text}");
    for broker in [&one, &two] {
        assert_eq!(
            run(&["ping", "--ready", "--json", "--broker", broker]).ok().json()["broker"],
            json!(broker)
        );
    }
    // Emptied, it owns nothing and says so.
    let drained = run(&["cluster", "drain", &two, "--yes", "--json", "--broker", &two]).ok().json();
    assert_eq!((&drained["draining"], &drained["partitions"]), (&json!(true), &json!(0)));
    run(&["cluster", "drain", &two, "--undo", "--broker", &one]).ok();
    assert_eq!(run(&["cluster", "drain", "127.0.0.1:1", "--yes", "--broker", &one]).code(4).out, "");
    // The leader stops; the other has everything and fires it.
    first.signal("TERM");
    assert_eq!(first.wait().0, 0);
    run(&["listen", "--group", "g", "--app", "a", "--count", "8", "--json", "--broker", &two]).ok();
    let began = std::time::Instant::now();
    while status(&two)["leader"] != json!(two) {
        assert!(began.elapsed() < super::harness::TIMEOUT, "nobody leads");
    }
    second.signal("TERM");
    assert_eq!(second.wait().0, 0);
    // One line for each change, however many partitions it concerns.
    let lines = |log: &Path, words: &str| {
        let log = std::fs::read_to_string(log).unwrap();
        let found = log.lines().filter_map(|line| Some(line.split_once(words)?.1.trim().to_owned()));
        found.collect::<Vec<_>>()
    };
    let changed = "the partitions of this broker changed";
    let of_first = ["taken=4 given=0 owned=4", "taken=0 given=2 owned=2", "taken=2 given=0 owned=4"];
    assert_eq!(lines(&first_log, changed)[..3], of_first);
    let of_second = ["taken=2 given=0 owned=2", "taken=0 given=2 owned=0"];
    assert_eq!(lines(&second_log, changed)[..2], of_second);
    assert_eq!(lines(&first_log, "this broker leads the cluster").len(), 1);
    assert_eq!(lines(&second_log, "another broker leads the cluster").len(), 1);
    assert_eq!(lines(&second_log, "this broker leads the cluster").len(), 1);
    let other = ["broker", "--cluster", "shop", "--redis", &url, "--partitions", "8", "--json"];
    assert_eq!(run(&other).code(12).json()["error"], "store-unusable");
}
