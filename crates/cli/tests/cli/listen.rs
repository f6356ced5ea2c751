//! listen: what it prints, what it answers, and when it ends.

use std::collections::BTreeSet;
use std::fs::File;

use serde_json::{Value, json};

use crate::harness::{Dev, Running, end, mtimer, wait_for};

const LISTEN: [&str; 6] = ["listen", "--group", "g", "--app", "a", "--json"];

fn listen<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&LISTEN[..], args].concat()
}

#[test]
fn a_line_has_everything_about_a_callback() {
    let dev = Dev::start();
    let about = ["--header", "tenant=acme", "--header", "a=b=c"];
    let id = dev.schedule(&[&["--in", "0s", "--key", "k", "--payload", "{\"a\": 1}"], &about[..]].concat());
    let lines = dev.run(&listen(&["--count", "1"])).ok().lines();
    let Value::Object(line) = &lines[0] else { panic!("{lines:?}") };
    let names: BTreeSet<&str> = line.keys().map(String::as_str).collect();
    let times = ["due_ms", "received_ms", "lateness_ms"];
    let expected = [&["id", "key", "group", "app", "attempt", "epoch", "headers", "payload"], &times[..]];
    assert_eq!(names, BTreeSet::from_iter(expected.concat()));
    assert_eq!(line["headers"], json!({ "a": "b=c", "tenant": "acme" }));
    assert_eq!(
        (&line["id"], &line["key"], &line["payload"]),
        (&json!(id), &json!("k"), &json!("{\"a\": 1}"))
    );
    assert_eq!(line["attempt"], 1);
    let ms = |name: &str| line[name].as_u64().unwrap();
    assert_eq!(ms("received_ms") - ms("due_ms"), ms("lateness_ms"));
    dev.wait_for("acknowledged", |s| s["counters"]["acknowledged_total"] == 1 && s["keys"] == 0);
}

#[test]
fn exactly_so_many_are_taken() {
    let dev = Dev::start();
    let text: String = (0..200)
        .map(|n| format!("{{\"in\":\"0s\",\"group\":\"g\",\"app\":\"a\",\"payload\":\"{n}\"}}\n"))
        .collect();
    dev.run_with(&["schedule", "--file", "-", "--json"], text.as_bytes()).ok();
    let mut seen = BTreeSet::new();
    for count in ["1", "70", "128"] {
        for line in dev.run(&listen(&["--count", count])).ok().lines() {
            assert_eq!(line["attempt"], 1, "nothing was delivered that was not printed: {line}");
            assert!(seen.insert(line["payload"].as_str().unwrap().to_owned()));
        }
    }
    assert_eq!(seen.len(), 199);
    let last = dev.run(&listen(&["--count", "1"])).ok().lines();
    assert_eq!(last[0]["attempt"], 1);
    let status = dev.wait_for("drained", |s| s["counters"]["acknowledged_total"] == 200);
    assert_eq!(status["counters"]["redelivered_total"], 0);
}

#[test]
fn every_outcome_is_what_it_says() {
    let dev = Dev::start();
    let id = dev.schedule(&["--in", "0s"]);
    let attempts = |args: &[&str]| -> Vec<u64> {
        dev.run(&listen(args)).ok().lines().iter().map(|l| l["attempt"].as_u64().unwrap()).collect()
    };
    assert_eq!(attempts(&["--count", "2", "--outcome", "retry", "--retry-after", "1ms"]), [1, 2]);
    assert_eq!(attempts(&["--count", "1", "--outcome", "fail"]), [3]);
    let dead = dev.wait_for_dead(1);
    assert_eq!(
        (&dead[0]["id"], &dead[0]["reason"], &dead[0]["attempts"]),
        (&json!(id), &json!("failed"), &json!(3))
    );
}

#[test]
fn what_is_put_off_comes_later_and_uses_no_retry() {
    let dev = Dev::start();
    let id = dev.schedule(&["--in", "0s", "--retry", "1h"]);
    let attempts = |args: &[&str]| -> Vec<u64> {
        dev.run(&listen(args)).ok().lines().iter().map(|l| l["attempt"].as_u64().unwrap()).collect()
    };
    assert_eq!(attempts(&["--count", "2", "--outcome", "later", "--later", "1ms"]), [1, 2]);
    assert_eq!(attempts(&["--count", "1", "--exec", "exit 80", "--later", "50ms"]), [3]);
    // Its one retry is left.
    assert_eq!(attempts(&["--count", "2", "--outcome", "retry", "--retry-after", "1ms"]), [4, 5]);
    let dead = dev.wait_for_dead(1);
    assert_eq!((&dead[0]["reason"], &dead[0]["attempts"]), (&json!("exhausted"), &json!(5)));
    let story = dev.run(&["story", &id]).ok().out;
    assert_eq!(story.matches("postponed by its handler").count(), 3, "{story}");
    let refused = dev.run(&listen(&["--outcome", "later", "--later", "25h"]));
    assert!(refused.code == 2 && refused.out.contains("give 24h at most"), "{refused:?}");
}

#[test]
fn a_command_gets_the_callback_and_its_exit_code_is_the_outcome() {
    let dev = Dev::start();
    let seen = dev.data.path().join("seen");
    let id = dev.schedule(&["--in", "0s", "--key", "k", "--payload", "to do"]);
    let script = format!(
        "printf '%s ' \"$MTIMER_ID\" \"$MTIMER_KEY\" \"$MTIMER_GROUP/$MTIMER_APP\" \"$MTIMER_ATTEMPT\" \"$MTIMER_MODE\" \
         >> {0}; cat >> {0}; echo >> {0}; echo noise; case $MTIMER_ATTEMPT in 1) exit 75;; 2) exit 3;; *) exit 100;; esac",
        seen.display()
    );
    // What the command prints does not get between the callbacks.
    assert_eq!(dev.run(&listen(&["--count", "3", "--exec", &script])).ok().lines().len(), 3);
    let seen = std::fs::read_to_string(seen).unwrap();
    let expected: Vec<String> = (1..=3).map(|n| format!("{id} k g/a {n} at-least-once to do")).collect();
    assert_eq!(seen.lines().collect::<Vec<_>>(), expected);
    let dead = dev.wait_for_dead(1);
    assert_eq!(
        (&dead[0]["reason"], &dead[0]["last_error"]),
        (&json!("failed"), &json!("the command ended with exit code 100"))
    );
    dev.run(&["dead", "replay", &id]).ok();
    dev.run(&listen(&["--count", "1", "--exec", "exit 0"])).ok();
    dev.wait_for("acknowledged", |s| s["counters"]["acknowledged_total"] == 1);
}

#[test]
fn a_command_gets_the_headers_in_its_environment() {
    let dev = Dev::start();
    let seen = dev.data.path().join("seen");
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let traced = format!("traceparent={traceparent}");
    let script =
        format!("env | grep -E '^(MTIMER_HEADER|TRACE)' | LC_ALL=C sort >> {0}; echo >> {0}", seen.display());
    let exec = listen(&["--count", "1", "--exec", &script]);
    dev.schedule(&["--in", "0s", "--header", "x-tenant.id=a b", "--header", &traced]);
    dev.run(&exec).ok();
    dev.schedule(&["--in", "0s", "--header", "b="]);
    // What the listener was told of another callback is not told of this one.
    let told = [("MTIMER_HEADER_OLD", "1"), ("TRACEPARENT", "2"), ("TRACESTATE", "3")];
    let mut command = mtimer(&dev.args(&exec));
    command.envs(told);
    end(command, b"").ok();
    let expected = [
        &format!(r#"MTIMER_HEADERS={{"traceparent":"{traceparent}","x-tenant.id":"a b"}}"#),
        &format!("MTIMER_HEADER_TRACEPARENT={traceparent}"),
        "MTIMER_HEADER_X_TENANT_ID=a b",
        &format!("TRACEPARENT={traceparent}"),
        "",
        r#"MTIMER_HEADERS={"b":""}"#,
        "MTIMER_HEADER_B=",
        "",
    ];
    assert_eq!(std::fs::read_to_string(seen).unwrap().lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_command_whose_time_is_over_may_clean_up() {
    let dev = Dev::start();
    let cleaned = dev.data.path().join("cleaned");
    dev.schedule(&["--in", "0s", "--callback-timeout", "200ms", "--retry", ""]);
    let script = format!("trap 'echo yes > {}; exit 75' TERM; sleep 600 & wait", cleaned.display());
    dev.run(&listen(&["--count", "1", "--exec", &script])).ok();
    assert_eq!(std::fs::read_to_string(cleaned).unwrap(), "yes\n");
}

#[test]
fn a_command_that_takes_too_long_is_killed_with_what_it_has_started() {
    let dev = Dev::start();
    let pid = dev.data.path().join("pid");
    dev.schedule(&["--in", "0s", "--callback-timeout", "200ms", "--retry", ""]);
    let script = format!("trap '' TERM; sleep 600 & echo $! > {}; wait", pid.display());
    dev.run(&listen(&["--count", "1", "--exec", &script])).ok();
    let pid = std::fs::read_to_string(pid).unwrap();
    dev.wait_for_dead(1);
    let gone = || !std::path::Path::new("/proc").exists() || !is_running(pid.trim());
    let began = std::time::Instant::now();
    while !gone() {
        assert!(began.elapsed() < crate::harness::TIMEOUT, "the command's child lives on");
    }
}

/// Whether a process is there and no mere zombie.
fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn it_ends_when_told_to_and_when_nobody_reads() {
    let dev = Dev::start();
    let mut listener = dev.start_client(&LISTEN);
    dev.schedule(&["--in", "0s", "--payload", "1"]);
    assert!(listener.line().contains("\"payload\":\"1\""));
    listener.signal("TERM");
    assert_eq!(listener.wait(), (0, String::new()));
    dev.wait_for("settled", |s| s["counters"]["acknowledged_total"] == 1 && s["in_flight"] == 0);

    let listener = dev.start_client(&LISTEN);
    dev.schedule(&["--in", "0s", "--payload", "2"]);
    dev.wait_for("delivered", |s| s["counters"]["acknowledged_total"] == 2);
    let closing = std::thread::spawn(move || listener.close_output());
    // Whatever is delivered now cannot be printed: it is not acknowledged, and comes again to
    // whoever is there.
    let id = dev.schedule(&["--in", "0s", "--payload", "3"]);
    assert_eq!(closing.join().unwrap(), 0, "no panic");
    let lines = dev.run(&listen(&["--count", "1"])).ok().lines();
    assert_eq!(lines[0]["id"], id.as_str());
}

#[test]
fn it_says_that_its_only_broker_has_stopped_and_that_it_is_back() {
    let mut dev = Dev::start();
    let said = dev.data.path().join("said");
    let mut listener = Running::logging_to(File::create(&said).unwrap(), &dev.args(&LISTEN));
    let said = || std::fs::read_to_string(&said).unwrap();
    let is_served = |dev: &Dev, listener: &mut Running| {
        let id = dev.schedule(&["--in", "0s"]);
        // One whose outcome the killed broker has not stored comes again.
        loop {
            let line = listener.line();
            assert!(!line.is_empty(), "it has ended before {id} came");
            if line.contains(&id) {
                break;
            }
        }
    };
    is_served(&dev, &mut listener);
    assert_eq!(said(), "");
    let broker = format!("broker=\"{}\"", dev.addr);
    let lines = |words: &str, times: usize| {
        let text = said();
        let lines: Vec<_> = text.lines().filter(|line| line.contains(words)).map(str::to_owned).collect();
        assert!(lines.iter().all(|line| line.contains("WARN") && line.contains(&broker)), "{text}");
        assert!(lines.len() <= times, "{text}");
        (lines.len() == times).then_some(lines)
    };
    let (lost, back) =
        ("the last connection is lost, and is tried again until a broker answers", "connected again");
    // In order, and by a crash.
    for (times, name) in [(1, "TERM"), (2, "KILL")] {
        assert_eq!(dev.end(name), if name == "TERM" { 0 } else { -1 });
        wait_for("the loss is said", || lines(lost, times));
        assert_eq!(lines(back, times - 1).map(|lines| lines.len()), Some(times - 1));
        dev.crash();
        let told = wait_for("the return is said", || lines(back, times));
        assert!(told.iter().all(|line| line.contains("away_ms=")), "{told:?}");
        is_served(&dev, &mut listener);
    }
    listener.signal("TERM");
    assert_eq!(listener.wait().0, 0);
    let text = said();
    assert_eq!(text.matches("WARN").count(), 4, "{text}");
}
