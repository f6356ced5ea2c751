//! destinations, count: how many timers there are, and where.

use serde_json::{Value, json};

use crate::harness::{Dev, wait_for};
use crate::token::TokensFile;

/// A row as `destinations` shows it to programs, but for the parts that are 0.
fn row(app: &str, timers: u64, parts: &[(&str, u64)]) -> Value {
    let mut row = json!({ "group": "g", "app": app, "timers": timers });
    for name in ["pending", "retrying", "parked", "in_flight", "taken", "unconfirmed", "dead", "staged"] {
        let part = parts.iter().find(|(of, _)| *of == name);
        row[name] = part.map_or(0, |(_, n)| *n).into();
    }
    // Nothing is overdue.
    (row["oldest_overdue"], row["oldest_overdue_ms"]) = (Value::Null, Value::Null);
    row
}

impl Dev {
    /// The rows of all destinations, once all are counted.
    fn destinations(&self, args: &[&str]) -> Vec<Value> {
        let look = || {
            let object = self.run(&[&["destinations", "--json"], args].concat()).ok().json();
            (object["uncounted"] == 0).then(|| object["destinations"].as_array().unwrap().clone())
        };
        wait_for("counts of all timers", look)
    }

    fn schedule_for(&self, group: &str, app: &str, args: &[&str]) -> String {
        let schedule = ["schedule", "--group", group, "--app", app];
        self.run(&[&schedule[..], args].concat()).ok().out.trim().to_owned()
    }
}

#[test]
fn each_destination_has_its_timers_counted_by_where_they_are() {
    let mut dev = Dev::start();
    assert_eq!(dev.destinations(&[]).len(), 0);
    let none = dev.run(&["destinations"]).ok();
    assert_eq!((none.out.as_str(), none.err.trim()), ("", "0 destinations"));

    let line = "{\"in\":\"1h\",\"group\":\"g\",\"app\":\"many\"}\n";
    dev.run_with(&["schedule", "--file", "-"], line.repeat(1_200).as_bytes()).ok();
    let dead = dev.schedule_for("g", "b", &["--in", "0s"]);
    let listen = ["listen", "--group", "g", "--app", "b", "--count", "1", "--outcome"];
    dev.run(&[&listen[..], &["fail"]].concat()).ok();
    dev.schedule_for("g", "b", &["--in", "0s", "--retry", "2h"]);
    dev.run(&[&listen[..], &["retry"]].concat()).ok();
    let cancelled = dev.schedule_for("g", "c", &["--in", "1h"]);
    dev.run(&["cancel", &cancelled]).ok();
    let b = row("b", 2, &[("retrying", 1), ("dead", 1)]);
    let many = row("many", 1_200, &[("pending", 1_200)]);
    let wanted = vec![b, many.clone()];
    wait_for("the outcomes", || (dev.destinations(&[]) == wanted).then_some(()));

    // Another owner knows it, too.
    dev.crash();
    assert_eq!(dev.destinations(&[]), wanted);
    let text = dev.run(&["destinations"]).ok();
    let lines: Vec<Vec<&str>> = text.out.lines().map(|line| line.split_whitespace().collect()).collect();
    let head = "destination pending retrying parked in flight unconfirmed dead oldest overdue";
    assert_eq!(lines[0].join(" "), head);
    assert_eq!(lines[1], ["g/b", "0", "1", "0", "0", "0", "1"]);
    assert_eq!(lines[2], ["g/many", "1,200", "0", "0", "0", "0", "0"]);
    assert_eq!((lines.len(), text.err.trim()), (3, "2 destinations"));

    dev.run(&["dead", "purge", "--yes", &dead]).ok();
    assert_eq!(dev.destinations(&[]), [row("b", 1, &[("retrying", 1)]), many]);
}

#[test]
fn since_when_the_oldest_is_overdue_is_told() {
    let dev = Dev::start();
    dev.schedule_for("g", "nobody", &["--at", "2020-01-31T12:00:00Z"]);
    dev.schedule_for("g", "later", &["--in", "1h"]);
    let oldest = || {
        let rows = dev.destinations(&[]);
        assert_eq!(rows[0]["oldest_overdue"], Value::Null, "later");
        rows[1]["oldest_overdue"].as_str().map(str::to_owned)
    };
    let oldest = wait_for("the timer is due", oldest);
    let text = dev.run(&["destinations"]).ok();
    assert!(text.out.contains(&oldest), "{oldest}: {}", text.out);
}

#[test]
fn group_and_app_narrow_what_is_counted() {
    let dev = Dev::start();
    for (group, app) in [("g", "a"), ("g", "b"), ("h", "a")] {
        dev.schedule_for(group, app, &["--in", "1h"]);
    }
    let names = |args: &[&str]| -> Vec<String> {
        let name =
            |row: &Value| format!("{}/{}", row["group"].as_str().unwrap(), row["app"].as_str().unwrap());
        dev.destinations(args).iter().map(name).collect()
    };
    assert_eq!(names(&[]), ["g/a", "g/b", "h/a"]);
    assert_eq!(names(&["--group", "g"]), ["g/a", "g/b"]);
    assert_eq!(names(&["--app", "a"]), ["g/a", "h/a"]);
    assert_eq!(names(&["--group", "g", "--app", "b"]), ["g/b"]);
    assert_eq!(names(&["--group", "none"]).len(), 0);

    let timers =
        |args: &[&str]| dev.run(&[&["count", "--json"], args].concat()).ok().json()["timers"].clone();
    assert_eq!(timers(&[]), 3);
    assert_eq!(timers(&["--group", "g"]), 2);
    assert_eq!(timers(&["--group", "g", "--app", "a"]), 1);
    assert_eq!(timers(&["--group", "none"]), 0);
}

#[test]
fn a_count_has_its_parts_and_those_in_flight_are_among_the_others() {
    let dev = Dev::start();
    dev.schedule(&["--in", "1h"]);
    let now = dev.schedule(&["--in", "0s"]);
    let once = dev.schedule_for("g", "once", &["--in", "0s", "--mode", "at-most-once"]);
    let listen =
        |app: &'static str| ["listen", "--group", "g", "--app", app, "--exec", "sleep 600", "--json"];
    let mut listeners = [dev.start_client(&listen("a")), dev.start_client(&listen("once"))];
    let [first, second] = &mut listeners;
    assert!(first.line().contains(&now) && second.line().contains(&once));
    let a = row("a", 2, &[("pending", 2), ("in_flight", 1)]);
    assert_eq!(dev.destinations(&[]), [a, row("once", 1, &[("taken", 1), ("in_flight", 1)])]);
    let count = dev.run(&["count", "--json"]).ok().json();
    let wanted = json!({
        "timers": 3, "pending": 2, "retrying": 0, "parked": 0, "in_flight": 2, "taken": 1, "unconfirmed": 0,
        "dead": 0, "staged": 0, "uncounted": 0,
    });
    assert_eq!(count, wanted);
    let text = dev.run(&["count"]).ok();
    let lines: Vec<&str> = text.out.lines().collect();
    assert_eq!(lines[..2], ["timers       3", "pending      2"]);
    assert_eq!((lines[4], lines.len(), text.err.as_str()), ("in flight    2", 9, ""));
}

#[test]
fn a_token_counts_what_it_may_read_and_is_refused_the_rest() {
    let file = TokensFile::new();
    let (_, all) = file.create_in_file("all", "schedule,read:*");
    let (_, some) = file.create_in_file("some", "read:g/*");
    let broker = file.broker();
    let with = |token: &std::path::Path, args: &[&str]| broker.run(token, args);
    for group in ["g", "h"] {
        with(&all, &["schedule", "--group", group, "--app", "a", "--in", "1h"]).ok();
    }
    let timers = |token, args: &[&str]| {
        with(token, &[&["count", "--json"], args].concat()).ok().json()["timers"].clone()
    };
    assert_eq!(timers(&all, &[]), 2);
    assert_eq!(timers(&some, &["--group", "g"]), 1);
    for command in ["destinations", "count"] {
        let refused = with(&some, &[command]).code(4);
        assert!(refused.err.contains("may not read on *"), "{refused:?}");
        let refused = with(&some, &[command, "--group", "h", "--app", "a"]).code(4);
        assert!(refused.err.contains("may not read on h/a"), "{refused:?}");
    }
}
