//! What operators ask when something is wrong, each case brought about: the metric, the log line
//! and the command that docs/troubleshooting.md names for it show it, and `mtimer status` says it
//! in a sentence.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::thread;

use mtimer_store_redis::test_support::Server;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Done, Ended, Running, http_get, metric, mtimer, run, wait_for};

/// What is in the timers, and in no log.
const PAYLOAD: &str = "a-secret-of-the-customer";

/// A broker that says where it listens, at ports that are free.
pub(crate) const FLAGS: [&str; 8] =
    ["broker", "--json", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--partitions", "2"];

/// A broker, and what can be asked of it.
pub(crate) struct Broker {
    pub(crate) folder: TempDir,
    pub(crate) running: Running,
    pub(crate) addr: String,
    http: String,
}

impl Broker {
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::spawn(tempfile::tempdir().unwrap(), mtimer(&[&FLAGS, flags].concat()))
    }

    /// Starts one with a command that gives it the [`FLAGS`]. Its log is in the folder.
    pub(crate) fn spawn(folder: TempDir, command: Command) -> Self {
        let log = File::create(folder.path().join("log")).unwrap();
        let mut running = Running::spawn_logging_to(log, command);
        let ready: Value = serde_json::from_str(&running.line()).unwrap();
        let [addr, http] = ["listening", "http"].map(|name| ready[name].as_str().unwrap().to_owned());
        Self { folder, running, addr, http }
    }

    /// Starts one that does not become ready, so that it says nothing of itself.
    pub(crate) fn start_unready(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        let [addr, http] = [free_address(), free_address()];
        let args = ["broker", "--listen", &addr, "--http", &http];
        let running = Running::spawn_logging_to(log, mtimer(&[&args[..], flags].concat()));
        wait_for("its HTTP port", || std::net::TcpStream::connect(&http).ok());
        Self { folder, running, addr, http }
    }

    /// Kills it, as a crash would.
    pub(crate) fn kill(&mut self) {
        self.running.signal("KILL");
    }

    fn embedded(flags: &[&str]) -> (TempDir, Self) {
        let data = tempfile::tempdir().unwrap();
        let broker =
            Self::start(&[&["--data", data.path().join("timers").to_str().unwrap()], flags].concat());
        (data, broker)
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        run(&[args, &["--broker", &self.addr]].concat())
    }

    fn start_client(&self, args: &[&str]) -> Running {
        Running::silent(&[args, &["--broker", &self.addr]].concat())
    }

    pub(crate) fn schedule(&self, app: &str) -> String {
        let schedule = ["schedule", "--group", "g", "--app", app, "--in", "0s", "--payload", PAYLOAD];
        self.run(&schedule).ok().out.trim().to_owned()
    }

    pub(crate) fn status(&self) -> Value {
        self.run(&["status", "--json"]).ok().json()
    }

    /// Whether it is ready, and what it says about that.
    pub(crate) fn readyz(&self) -> (bool, String) {
        let page = http_get(&self.http, "/readyz");
        (page.starts_with("HTTP/1.1 200 "), page)
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    pub(crate) fn metric(&self, sample: &str) -> Option<f64> {
        metric(&self.http, sample)
    }

    /// Waits until the page's row for a case is true: the log says this, the metric has reached so
    /// much, and both status commands have a sentence with these words.
    pub(crate) fn shows(&self, line: &str, metric: (&str, f64), sentence: &str) {
        wait_for(&format!("a log line {line:?}"), || self.log().contains(line).then_some(()));
        let (sample, least) = metric;
        wait_for(&format!("{sample} of {least}"), || self.metric(sample).filter(|value| *value >= least));
        for command in [&["status"][..], &["cluster", "status"]] {
            let has = |ended: &Ended| {
                let problems = ended.json()["problems"].as_array().unwrap().clone();
                problems.iter().any(|problem| problem.as_str().unwrap().contains(sentence))
            };
            let said = || Some(self.run(&[command, &["--json"]].concat()).ok()).filter(&has);
            wait_for(&format!("{command:?} to say {sentence:?} in JSON"), said);
            // A look at the state may fall between the two.
            let is_line = |line: &str| line.starts_with("! ") && line.contains(sentence);
            let printed = || self.run(command).ok().out.lines().any(is_line).then_some(());
            wait_for(&format!("{command:?} to say {sentence:?}"), printed);
        }
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/troubleshooting.md");
        let page = std::fs::read_to_string(page).unwrap();
        let (_, section) = page.split_once("## Questions").expect("the page has the questions");
        let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
        let metric = sample.split('{').next().unwrap();
        let line = format!("`{line}`");
        let row = section.lines().find(|row| row.contains(&line) && row.contains(metric));
        assert!(row.is_some(), "no row of the page has {line:?} and {metric}");
    }
}

/// An address where nobody listens.
pub(crate) fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn what_is_late_who_is_parked_and_what_died() {
    let (_data, broker) = Broker::embedded(&["--retry", "", "--park-after", "100ms"]);
    assert!(broker.run(&["status"]).ok().out.contains("nothing is wrong"));
    // Nobody listens.
    broker.schedule("nobody");
    // Takes one and keeps it.
    let slow = ["listen", "--group", "g", "--app", "slow", "--concurrency", "1", "--exec", "sleep 600"];
    let _slow = broker.start_client(&slow);
    broker.schedule("slow");
    broker.schedule("slow");
    broker.shows(
        "nobody is registered for the destination",
        ("mtimer_destination_parked_timers{group=\"g\",app=\"nobody\"}", 1.0),
        "nobody is registered for 1 destination with due timers, which are parked (g/nobody: 1)",
    );
    let parked = broker.status()["parked_destinations"].clone();
    let nobody = serde_json::json!({ "group": "g", "app": "nobody", "parked": 1, "sessions": 0 });
    assert!(parked.as_array().unwrap().contains(&nobody), "{parked}");
    broker.shows(
        "the destination falls behind",
        ("mtimer_destination_oldest_overdue_seconds{group=\"g\",app=\"slow\"}", 10.0),
        "handlers take less than what is due",
    );
    // The clients of each destination, and what waits for them.
    let clients = broker.run(&["cluster", "status", "--json"]).ok().json()["clients"].clone();
    let of = |app: &str| clients.as_array().unwrap().iter().find(|c| c["app"] == app).cloned();
    assert_eq!(of("slow").unwrap()["in_flight"], 1, "{clients}");
    assert!(of("nobody").is_none_or(|c| c["sessions"] == 0), "{clients}");

    let id = broker.schedule("dead");
    broker.run(&["listen", "--group", "g", "--app", "dead", "--count", "1", "--outcome", "fail"]).ok();
    broker.shows(
        "timers became dead letters",
        ("mtimer_dead_letters_total{reason=\"failed\"}", 1.0),
        "1 timer died",
    );
    assert!(broker.run(&["dead", "list"]).ok().out.contains(&id));
    let log = broker.log();
    let line = log.lines().find(|line| line.contains("a timer became a dead letter")).expect("a line");
    for part in [&*format!("id={id}"), "group=\"g\"", "app=\"dead\"", "reason=\"failed\"", "attempts=1"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(!log.contains(PAYLOAD), "{log}");
}

#[test]
fn whose_handlers_hang() {
    let (_data, broker) = Broker::embedded(&["--callback-timeout", "5s"]);
    // The client stops with its handler. (One that only takes long is killed by its client.)
    let hanging = ["listen", "--group", "g", "--app", "hanging", "--exec", "kill -STOP $PPID; sleep 5"];
    let _hanging = broker.start_client(&hanging);
    broker.schedule("hanging");
    broker.shows(
        "handlers gave no outcome within their callback timeout",
        ("mtimer_redeliveries_total{cause=\"timeout\"}", 1.0),
        "handlers gave no outcome in time",
    );
}

#[test]
fn of_many_that_die_ten_have_a_line_and_all_are_counted() {
    let (_data, broker) = Broker::embedded(&["--retry", ""]);
    let file = broker.folder.path().join("timers.ndjson");
    std::fs::write(&file, "{\"in\":\"0s\",\"group\":\"g\",\"app\":\"a\"}\n".repeat(30)).unwrap();
    broker.run(&["schedule", "--file", file.to_str().unwrap()]).ok();
    broker.run(&["listen", "--group", "g", "--app", "a", "--count", "30", "--outcome", "fail"]).ok();
    let summed_up = || -> u64 {
        let log = broker.log();
        let lines = log.lines().filter(|line| line.contains("timers became dead letters"));
        let counts = lines.map(|line| line.split_once("failed ").expect("the reason").1);
        counts.map(|n| n.trim_end_matches('"').parse::<u64>().expect("a number")).sum()
    };
    wait_for("30 in all", || (summed_up() == 30).then_some(()));
    assert_eq!(broker.log().matches("a timer became a dead letter").count(), 10);
    assert_eq!(broker.metric("mtimer_dead_letters_total{reason=\"failed\"}"), Some(30.0));
}

#[test]
fn whose_handlers_always_fail() {
    let (_data, broker) = Broker::embedded(&[]);
    let failing = ["listen", "--group", "g", "--app", "failing", "--outcome", "fail"];
    let _failing = broker.start_client(&failing);
    (0..10).for_each(|_| _ = broker.schedule("failing"));
    broker.shows(
        "handlers of the destination always fail",
        ("mtimer_dead_letters_total{reason=\"failed\"}", 10.0),
        "handlers of 1 destination always fail",
    );
}

#[test]
fn whether_redis_is_the_cause() {
    let mut redis = Server::start();
    let broker = Broker::start(&["--redis", &redis.url()]);
    broker.run(&["schedule", "--group", "g", "--app", "a", "--in", "1h"]).ok();
    redis.kill();
    // Somebody asks for something.
    let refused = wait_for("refused", || {
        let args = ["schedule", "--group", "g", "--app", "a", "--in", "1h", "--request-timeout", "1s"];
        Some(broker.run(&args)).filter(|ended| ended.code == 13)
    });
    assert!(refused.err.contains("store"), "{refused:?}");
    let summed_up = || {
        broker
            .log()
            .lines()
            .find(|line| line.contains("operations of clients were refused"))
            .map(str::to_owned)
    };
    assert!(wait_for("the refusals", summed_up).contains("unavailable "), "{}", broker.log());
    let reasons = broker.metric("mtimer_refusals_total{reason=\"unavailable\"}");
    assert!(reasons.is_some_and(|n| n >= 1.0), "{reasons:?}");
    broker.shows(
        "the store cannot be reached",
        ("mtimer_store_unreachable_partitions", 1.0),
        "cannot be reached, or takes no writes: new timers are refused there",
    );
    redis.restart();
    let back = || {
        broker.log().lines().find(|line| line.contains("the store can be reached again")).map(str::to_owned)
    };
    let line = wait_for("a line that it is back", back);
    assert!(line.contains("after_ms="), "{line}");
    wait_for("a count", || (broker.status()["stored_age_ms"] == 0).then_some(()));
    // Both partitions were concerned.
    let log = broker.log();
    for line in ["the store cannot be reached, new timers are refused", "the store can be reached again"] {
        assert_eq!(log.matches(line).count(), 1, "{log}");
    }
}

#[test]
fn whether_the_store_is_slow() {
    let redis = Server::start();
    let broker = Broker::start(&["--redis", &redis.url()]);
    let _listener = broker.start_client(&["listen", "--group", "g", "--app", "slow"]);
    // Calls of the store for five minutes, which is more than all looks take on a slow machine.
    let line = |n| format!("{{\"in\":\"{}ms\",\"group\":\"g\",\"app\":\"slow\"}}\n", n * 20);
    let file = broker.folder.path().join("timers.ndjson");
    std::fs::write(&file, (0..15_000).map(line).collect::<String>()).unwrap();
    broker.run(&["schedule", "--file", file.to_str().unwrap()]).ok();
    let done = Done::default();
    thread::scope(|scope| {
        // Also if the test fails.
        let _done = done.at_the_end();
        scope.spawn(|| {
            // A call that comes in behind the next pause waits for that one, too. With pauses of
            // 600 ms the store is out of reach, not slow, and has few calls in ten seconds.
            while !done.is_set() {
                let _: () = redis.call(&["CLIENT", "PAUSE", "150", "ALL"]);
            }
        });
        broker.shows(
            "the store answers slowly",
            ("mtimer_store_call_seconds_sum{operation=\"apply\"}", 1.0),
            "the store answers slowly: ",
        );
    });
}

#[test]
fn whether_redis_loses_timers_when_it_restarts() {
    let redis = Server::start();
    let broker = Broker::start(&["--redis", &redis.url()]);
    broker.shows(
        "Redis keeps no append-only file and has no replica",
        ("mtimer_store_unprotected_masters", 1.0),
        "Redis keeps no append-only file and has no replica: a restart of it loses timers",
    );
}

#[test]
fn whether_anything_may_be_lost() {
    let master = Server::start();
    let replica = master.add_replica();
    let broker = Broker::start(&["--redis", &master.url(), "--redis-write-log", "1MiB"]);
    broker.run(&["schedule", "--group", "g", "--app", "a", "--in", "1h"]).ok();
    wait_for("safe", || broker.metric("mtimer_store_log_at_risk").filter(|at_risk| *at_risk == 0.0));
    replica.freeze();
    let payload = "x".repeat(60_000);
    let line = format!("{{\"in\":\"1h\",\"group\":\"g\",\"app\":\"a\",\"payload\":\"{payload}\"}}\n");
    let file = broker.folder.path().join("timers.ndjson");
    std::fs::write(&file, line.repeat(64)).unwrap();
    broker.run(&["schedule", "--file", file.to_str().unwrap()]).ok();
    broker.shows(
        "the log is full and drops writes",
        ("mtimer_store_log_at_risk", 1.0),
        "a failover of Redis may lose answered writes",
    );
    replica.thaw();
}

#[test]
fn whether_anything_was_lost() {
    // It writes nothing to its disk.
    let mut redis = Server::start();
    let broker = Broker::start(&["--redis", &redis.url()]);
    broker.run(&["schedule", "--group", "g", "--app", "a", "--in", "1h"]).ok();
    redis.kill();
    redis.restart();
    broker.shows(
        "the store lost writes that the log does not have any more",
        ("mtimer_partition_ownerships_ended_total{reason=\"rolled_back\"}", 1.0),
        "Redis has lost writes: ",
    );
    wait_for("summed up", || {
        let log = broker.log();
        let line = log.lines().find(|line| line.contains("ownerships of partitions have ended"))?;
        line.contains("rolled_back ").then_some(())
    });
}

#[test]
fn whether_stored_timers_were_lost() {
    let redis = Server::start();
    let broker = Broker::start(&["--redis", &redis.url(), "--preload", "1s"]);
    // It is loaded a second before it is due, and has no keys by then.
    broker.run(&["schedule", "--group", "g", "--app", "a", "--in", "15s"]).ok();
    let slots: Vec<String> = redis.call(&["KEYS", "slot:*"]);
    let [slot] = &slots[..] else { panic!("{slots:?}") };
    assert_eq!(redis.call::<u64>(&["DEL", slot]), 1);
    broker.shows(
        "a slot with timers is empty: the store lost keys",
        ("mtimer_store_lost_slots_total", 1.0),
        "Redis has lost timers: 1 slot that had some was found empty ",
    );
    let log = broker.log();
    let line = log.lines().find(|line| line.contains("a slot with timers is empty")).unwrap();
    assert!(line.contains("ERROR") && line.contains("partition=") && line.contains(slot), "{line}");
}

#[test]
fn why_a_cancel_was_too_late() {
    let (_data, broker) = Broker::embedded(&["--retry", "1h", "--callback-timeout", "10m"]);
    let get = |id: &str| broker.run(&["get", id, "--json"]).ok().json();
    let cancel = |id: &str| {
        let ended = broker.run(&["cancel", id, "--json"]).code(6);
        assert_eq!(ended.json()["result"], "too-late", "{ended:?}");
    };
    let may_end = |app: &str| broker.folder.path().join(app);
    let listen = |app: &str, code: u32| {
        let exec = format!("while ! test -e {}; do sleep 0.02; done; exit {code}", may_end(app).display());
        broker.start_client(&["listen", "--group", "g", "--app", app, "--exec", &exec])
    };
    let in_flight = |app: &str| {
        let id = broker.schedule(app);
        wait_for("a handler has it", || (get(&id)["state"] == "in-flight").then_some(()));
        id
    };

    // A handler has it, and fails: there is no other attempt.
    let _failing = listen("failing", 75);
    let id = in_flight("failing");
    assert_eq!(get(&id)["stopped"], false);
    cancel(&id);
    let found = get(&id);
    assert_eq!((&found["state"], &found["stopped"]), (&"in-flight".into(), &true.into()), "{found}");
    assert!(!broker.log().contains("a timer became a dead letter"), "{}", broker.log());
    File::create(may_end("failing")).unwrap();
    let died = |id: &str| -> Value {
        wait_for("a dead letter", || (get(id)["state"] == "dead").then_some(()));
        let dead = broker.run(&["dead", "get", id, "--json"]).ok().json();
        assert_eq!(dead["reason"], "stopped", "{dead}");
        dead
    };
    let error = died(&id)["last_error"].take();
    assert_eq!(error, "the command ended with exit code 75 and wants to be tried again");
    let line = format!("id={id}");
    let line = wait_for("its line", || {
        let log = broker.log();
        let mut lines = log.lines().filter(|line| line.contains("a timer became a dead letter"));
        lines.find(|text| text.contains(&line)).map(str::to_owned)
    });
    assert!(line.contains("reason=\"stopped\""), "{line}");
    broker.shows(
        "a timer became a dead letter",
        ("mtimer_cancels_total{outcome=\"too_late\"}", 1.0),
        "1 timer died",
    );

    // It waits for a retry: no handler has it, so the cancel ends it.
    let id = broker.schedule("failing");
    wait_for("a retry", || (get(&id)["state"] == "retrying").then_some(()));
    cancel(&id);
    died(&id);

    // A handler has it, and succeeds: nothing is kept.
    let _good = listen("good", 0);
    let id = in_flight("good");
    cancel(&id);
    File::create(may_end("good")).unwrap();
    wait_for("nothing is left", || (broker.run(&["get", &id]).code == 5).then_some(()));
    assert_eq!(broker.metric("mtimer_cancels_total{outcome=\"too_late\"}"), Some(3.0));
    assert_eq!(broker.metric("mtimer_dead_letters_total{reason=\"stopped\"}"), Some(2.0));
}

/// With it a process has a clock of its own, which is as much off as a file says.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

#[test]
fn whether_time_goes_on() {
    assert!(Path::new(FAKETIME).exists(), "{FAKETIME} is missing: install the Debian package faketime");
    let folder = tempfile::tempdir().unwrap();
    let [off, new, data] = ["off", "new", "timers"].map(|name| folder.path().join(name));
    let set_clock = |by: &str| {
        // Replaced in one step, so that no process reads half of it.
        std::fs::write(&new, by).unwrap();
        std::fs::rename(&new, &off).unwrap();
    };
    set_clock("+0");
    let mut command = mtimer(&[&FLAGS[..], &["--data", data.to_str().unwrap()]].concat());
    command
        .env("LD_PRELOAD", FAKETIME)
        .env("FAKETIME_TIMESTAMP_FILE", &off)
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let broker = Broker::spawn(folder, command);
    assert_eq!(broker.metric("mtimer_clock_standstill_seconds"), Some(0.0));
    set_clock("-3600");
    broker.shows(
        "the deciding clock has stepped back",
        ("mtimer_clock_standstill_seconds", 3_000.0),
        "time has stood still for ",
    );
    let status = broker.run(&["status"]).ok().out;
    let line = status.lines().find(|line| line.contains("time has stood still for ")).unwrap();
    let left = [" and goes on in 5", " and goes on in 1h"];
    assert!(left.iter().any(|left| line.contains(left)), "{line}");
    let (is_ready, why) = broker.readyz();
    assert!(!is_ready && why.contains("the deciding clock was set back"), "{why}");
    // Nothing becomes due meanwhile.
    let schedule = ["schedule", "--group", "g", "--app", "a", "--in", "10ms"];
    let id = broker.run(&schedule).ok().out.trim().to_owned();
    assert_eq!(broker.run(&["get", &id, "--json"]).ok().json()["state"], "pending");

    set_clock("+0");
    wait_for("it is ready again", || broker.readyz().0.then_some(()));
    wait_for("time goes on", || {
        (broker.metric("mtimer_clock_standstill_seconds") == Some(0.0)).then_some(())
    });
    let line = broker.run(&["listen", "--group", "g", "--app", "a", "--count", "1", "--json"]).ok().json();
    assert_eq!(line["id"], id.as_str());
    let is_told = |line: &str| line.contains("time has stood still");
    wait_for("nothing is said of it", || {
        (!broker.run(&["status"]).ok().out.lines().any(is_told)).then_some(())
    });
}
