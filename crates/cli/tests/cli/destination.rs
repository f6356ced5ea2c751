//! destination: pause, resume, list, get, set.

use serde_json::{Value, json};

use crate::harness::{Dev, wait_for};

const ORDERS: [&str; 4] = ["--group", "shop", "--app", "orders"];

impl Dev {
    fn destination(&self, command: &str, args: &[&str]) -> Value {
        self.run(&[&["destination", command, "--json"], &ORDERS[..], args].concat()).ok().json()
    }

    /// Schedules a timer of the destination that is due at once.
    fn order(&self, payload: &str) {
        self.run(&[&["schedule"], &ORDERS[..], &["--in", "0s", "--payload", payload]].concat()).ok();
    }

    /// The payloads of the next callbacks, in order of their texts.
    fn next_orders(&self, count: &str) -> Vec<String> {
        let listen = [&["listen", "--json", "--count", count], &ORDERS[..]].concat();
        let lines = self.run(&listen).ok().lines();
        let payloads = lines.iter().filter_map(|line| line["payload"].as_str().map(str::to_owned));
        let mut payloads: Vec<String> = payloads.collect();
        payloads.sort();
        payloads
    }

    fn parked(&self) -> Value {
        self.status()["parked"].clone()
    }
}

#[test]
fn a_paused_destination_is_delivered_nothing_until_it_is_resumed() {
    let mut dev = Dev::start();
    let paused = dev.destination("pause", &["--reason", "it moves", "--by", "ann"]);
    assert_eq!(paused, json!({ "group": "shop", "app": "orders", "version": 1 }));
    let listener = dev.start_client(&[&["listen"], &ORDERS[..]].concat());
    dev.order("a");
    dev.wait_for("the timer waits", |status| status["parked"] == 1);
    // Another broker on the store knows it, too.
    dev.crash();
    dev.order("b");
    dev.wait_for("both wait", |status| status["parked"] == 2);
    let status = dev.status();
    let told = status["problems"].to_string();
    assert!(
        told.contains("1 destination is paused (shop/orders by ann), and what is due there waits"),
        "{told}"
    );
    assert!(!told.contains("nobody is registered"), "{told}");
    let one = &status["paused_destinations"][0];
    assert_eq!((one["app"].as_str(), one["reason"].as_str()), (Some("orders"), Some("it moves")));
    listener.signal("INT");
    let (_, delivered) = listener.wait();
    assert_eq!(delivered, "", "nothing was delivered");

    let resumed = dev.destination("resume", &[]);
    assert_eq!((&resumed["version"], &resumed["moved"]), (&json!(2), &Value::Null));
    assert_eq!(dev.next_orders("2"), ["a", "b"]);
    assert_eq!(dev.status()["paused_destinations"], json!([]));
    let again = dev.run(&[&["destination", "resume"], &ORDERS[..]].concat()).ok();
    assert!(again.err.contains("shop/orders is not paused"), "{}", again.err);
}

#[test]
fn settings_are_listed_and_shown() {
    let dev = Dev::start();
    let none = dev.run(&["destination", "list"]).ok();
    assert_eq!((none.out.as_str(), none.err.trim()), ("", "0 destinations with settings"));
    let never = dev.destination("get", &[]);
    assert_eq!((&never["version"], &never["paused"]), (&json!(0), &json!(false)));

    dev.destination("pause", &["--for", "1h", "--over", "5m", "--by", "ann", "--reason", "r"]);
    dev.run(&["destination", "pause", "--group", "shop", "--app", "mail", "--by", ""]).ok();
    dev.destination("resume", &[]);
    let list = dev.run(&["destination", "list", "--json"]).ok().lines();
    let of = |row: &Value| (row["app"].clone(), row["paused"].clone(), row["partitions"].clone());
    let partitions = list[0]["partitions_of_cluster"].clone();
    assert_eq!(of(&list[0]), (json!("mail"), json!(true), partitions.clone()));
    assert_eq!(of(&list[1]), (json!("orders"), json!(false), partitions));
    assert_eq!(list[1]["version"], 3);
    let paused = dev.run(&["destination", "list", "--paused"]).ok();
    let lines: Vec<&str> = paused.out.lines().collect();
    assert_eq!(
        lines[0].split_whitespace().collect::<Vec<_>>(),
        ["destination", "state", "since", "until", "by", "reason", "order", "limits"]
    );
    assert!(
        lines.len() == 2 && lines[1].starts_with("shop/mail") && lines[1].contains("paused"),
        "{lines:?}"
    );
    assert_eq!(paused.err.trim(), "1 destination with settings");
}

#[test]
fn a_pause_ends_by_itself() {
    let dev = Dev::start();
    dev.destination("pause", &["--for", "2s"]);
    dev.order("a");
    dev.wait_for("it waits", |status| status["parked"] == 1);
    assert_eq!(dev.next_orders("1"), ["a"]);
    assert_eq!(dev.destination("get", &[])["paused"], json!(false));
}

#[test]
fn a_shift_moves_what_is_not_due_yet_by_as_long_as_the_pause_has_lasted() {
    let dev = Dev::start();
    let later = dev.run(&[&["schedule"], &ORDERS[..], &["--in", "1h"]].concat()).ok().out.trim().to_owned();
    let due = |id: &str| dev.run(&["get", id, "--json"]).ok().json()["due_ms"].as_u64().unwrap();
    let before = due(&later);
    dev.destination("pause", &[]);
    let since = dev.destination("get", &[])["since_ms"].as_u64().unwrap();
    dev.order("a");
    wait_for("it waits", || (dev.parked() == 1).then_some(()));
    let resumed = dev.destination("resume", &["--shift"]);
    assert_eq!(resumed["moved"], 1);
    let until = dev.destination("get", &[])["until_ms"].as_u64().unwrap();
    let moved = due(&later) - before;
    assert!(moved > 0 && moved <= until - since, "{moved} ms of {} ms", until - since);
    assert_eq!(dev.next_orders("1"), ["a"]);
}

#[test]
fn what_cannot_be_is_said() {
    let dev = Dev::start();
    let pause = [&["destination", "pause"], &ORDERS[..]].concat();
    let over = dev.run(&[&pause[..], &["--over", "5m"]].concat()).code(2);
    assert!(over.err.contains("give --for or --until"), "{}", over.err);
    let long = "x".repeat(257);
    let text = dev.run(&[&pause[..], &["--reason", &long]].concat()).code(4);
    assert!(text.err.contains("the reason has 257 bytes, the limit is 256"), "{}", text.err);
    let week = dev.run(&[&pause[..], &["--for", "1h", "--over", "8days"]].concat()).code(4);
    assert!(week.err.contains("the limit is 604800000 ms"), "{}", week.err);
}

#[test]
fn the_order_is_set_and_urgent_timers_go_first() {
    let dev = Dev::start();
    let before = dev.destination("get", &[]);
    assert_eq!((&before["order"], &before["version"]), (&json!("weighted"), &json!(0)));
    let set = dev.destination("set", &["--order", "strict"]);
    assert_eq!(
        (&set["version"], &set["order"], &set["app"]),
        (&json!(1), &json!("strict"), &json!("orders"))
    );
    // A pause changes nothing of it.
    dev.destination("pause", &[]);
    let schedule = |payload: &str, args: &[&str]| {
        let common = ["--in", "0s", "--payload", payload, "--json"];
        dev.run(&[&["schedule"], &ORDERS[..], &common, args].concat()).ok().json()["id"].clone()
    };
    schedule("low", &["--priority", "low"]);
    schedule("normal", &[]);
    let urgent = schedule("urgent", &["--priority", "urgent"]);
    let shown = dev.run(&["get", urgent.as_str().unwrap(), "--json"]).ok().json();
    assert_eq!((&shown["priority"], shown.get("unknown_extensions")), (&json!("urgent"), None));
    dev.wait_for("all wait", |status| status["parked"] == 3);
    dev.destination("resume", &[]);
    assert_eq!(dev.destination("get", &[])["order"], "strict");
    let listen = [&["listen", "--json", "--count", "3", "--concurrency", "1"], &ORDERS[..]].concat();
    let lines = dev.run(&listen).ok().lines();
    let payloads: Vec<&str> = lines.iter().filter_map(|line| line["payload"].as_str()).collect();
    assert_eq!(payloads, ["urgent", "normal", "low"]);
    dev.destination("set", &["--order", "weighted"]);
    assert_eq!(dev.destination("get", &[])["order"], "weighted");
}

#[test]
fn limits_are_set_shown_and_lifted_and_the_rest_stays() {
    let dev = Dev::start();
    dev.destination("set", &["--order", "strict"]);
    let set = dev.destination("set", &["--concurrency", "50", "--rate", "1000/s"]);
    assert_eq!((&set["concurrency"], &set["order"]), (&json!(50), &json!("strict")));
    let rate = |of: &Value| [&of["rate_starts"], &of["rate_per_ms"], &of["rate_burst"]].map(|n| n.as_u64());
    assert_eq!(rate(&set), [Some(1_000), Some(1_000), Some(100)]);
    let set = dev.destination("set", &["--concurrency", "none", "--rate", "30/m", "--burst", "5"]);
    assert_eq!((&set["concurrency"], rate(&set)), (&Value::Null, [Some(30), Some(60_000), Some(5)]));
    assert_eq!(rate(&dev.destination("get", &[])), [Some(30), Some(60_000), Some(5)]);
}
