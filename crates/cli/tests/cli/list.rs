//! list: pending timers in the order in which they fire.

use serde_json::{Value, json};

use crate::harness::{Dev, run, wait_for};
use crate::token::TokensFile;

/// Lines of a file of timers: `order-0`, due in an hour, to `order-24`, each a second later than
/// the one before, in another order. Every third is of the app b; every fifth has a header.
fn orders() -> String {
    let order = |n: u64| {
        let app = if n.is_multiple_of(3) { "b" } else { "a" };
        let headers = if n.is_multiple_of(5) { json!({ "tenant": "acme" }) } else { json!({}) };
        let due = format!("{}s", 3_600 + n);
        let key = format!("order-{n}");
        let line =
            json!({ "in": due, "group": "g", "app": app, "key": key, "payload": "pay", "headers": headers });
        format!("{line}\n")
    };
    (0..25).map(|n| order(n * 7 % 25)).collect()
}

fn keys(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|row| row["key"].as_str().unwrap_or("none")).collect()
}

impl Dev {
    /// The rows of a list.
    fn list(&self, args: &[&str]) -> Vec<Value> {
        self.run(&[&["list", "--json"], args].concat()).ok().lines()
    }

    /// The numbers of the orders in a list.
    fn listed_orders(&self, args: &[&str]) -> Vec<u64> {
        let rows = self.list(args);
        keys(&rows).iter().map(|key| key.strip_prefix("order-").unwrap().parse().unwrap()).collect()
    }
}

#[test]
fn timers_are_listed_page_by_page_in_the_order_in_which_they_fire() {
    let mut dev = Dev::start();
    assert_eq!(dev.list(&[]).len(), 0);
    let none = dev.run(&["list"]).ok();
    assert_eq!((none.out.as_str(), none.err.trim()), ("", "0 timers"));
    dev.run_with(&["schedule", "--file", "-"], orders().as_bytes()).ok();
    let all = dev.list(&[]);
    assert_eq!(keys(&all), (0..25).map(|n| format!("order-{n}")).collect::<Vec<_>>());
    assert!(all.is_sorted_by_key(|row| row["fire_ms"].as_u64().unwrap()));

    // A cursor is valid at the next owner, too.
    let mut pages = dev.list(&["--limit", "10"]);
    dev.crash();
    while pages.len() < 25 {
        let cursor = pages.last().unwrap()["cursor"].as_str().unwrap().to_owned();
        let page = dev.list(&["--limit", "10", "--cursor", &cursor]);
        assert_eq!(page.len(), 10.min(25 - pages.len()));
        pages.extend(page);
    }
    assert_eq!(pages, all);
    let end = pages.last().unwrap()["cursor"].as_str().unwrap();
    assert_eq!(dev.list(&["--cursor", end]).len(), 0);

    // People are told the command that goes on.
    let mut shown = Vec::new();
    let mut text = dev.run(&["list", "--group", "g", "--limit", "10"]).ok();
    loop {
        let mut lines = text.out.lines();
        let head = lines.next().unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(head, ["fires", "id", "destination", "key", "state", "attempts", "bytes"]);
        shown.extend(lines.map(|line| line.split_whitespace().nth(3).unwrap().to_owned()));
        let Some((told, command)) = text.err.trim().split_once("Go on with:\n") else { break };
        assert_eq!(told.trim(), "10 timers, and there are more.");
        let words: Vec<&str> = command.split_whitespace().collect();
        assert!(words.contains(&"--group=g") && words[0] == "mtimer", "{command}");
        text = run(&words[1..]).ok();
    }
    assert_eq!(text.err.trim(), "5 timers");
    assert_eq!(shown, keys(&all));
    // Exactly as many as there are: nothing follows.
    assert_eq!(dev.run(&["list", "--limit", "25"]).ok().err.trim(), "25 timers");
}

#[test]
fn every_condition_narrows_the_list() {
    let dev = Dev::start();
    dev.run_with(&["schedule", "--file", "-"], orders().as_bytes()).ok();
    let no_key = dev.schedule(&["--in", "2h"]);
    let rows = dev.list(&["--group", "g"]);
    assert_eq!((rows.len(), &rows[25]["id"]), (26, &json!(no_key)));
    let all = dev.list(&["--key-prefix", ""]);
    assert_eq!(all.len(), 25, "those with a key");
    assert_eq!(dev.listed_orders(&["--app", "b", "--limit", "3"]), [0, 3, 6]);
    assert_eq!(dev.list(&["--group", "h"]).len(), 0);
    assert_eq!(dev.listed_orders(&["--key-prefix", "order-2"]), [2, 20, 21, 22, 23, 24]);
    assert_eq!(dev.listed_orders(&["--header", "tenant=acme"]), [0, 5, 10, 15, 20]);
    assert_eq!(dev.list(&["--header", "tenant=acm"]).len(), 0);
    assert_eq!(dev.listed_orders(&["--header", "tenant=acme", "--group", "g", "--app", "b"]), [0, 15]);
    // Both ends are in it, however they are written.
    let from = all[3]["fire_ms"].to_string();
    let until = all[5]["fire"].as_str().unwrap();
    assert_eq!(dev.listed_orders(&["--from", &from, "--until", until]), [3, 4, 5]);
}

#[test]
fn a_row_says_what_get_says_and_payloads_come_if_they_are_asked_for() {
    let dev = Dev::start();
    let id = dev.schedule(&["--in", "1h", "--key", "k", "--payload", "héllo", "--header", "tenant=acme"]);
    let mut row = dev.list(&["--payloads"]).remove(0);
    let fields = row.as_object_mut().unwrap();
    assert_eq!(fields.remove("payload_bytes"), Some(json!(6)));
    assert_eq!(fields.remove("cursor").unwrap().as_str().unwrap().len(), 38);
    let got = dev.run(&["get", &id, "--json"]).ok().json();
    assert_eq!((&row, &row["payload"]), (&got, &json!("héllo")));
    let short = dev.list(&[]).remove(0);
    assert_eq!((&short["payload_bytes"], short.get("payload")), (&json!(6), None));
    let line = |args: &[&str]| {
        let text = dev.run(&[&["list"], args].concat()).ok().out;
        text.lines().nth(1).unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let fire = got["fire"].as_str().unwrap();
    assert_eq!(line(&[]), [fire, &id, "g/a", "k", "pending", "0", "6"]);
    assert_eq!(line(&["--payloads"]).last().unwrap(), "héllo");
}

#[test]
fn what_waits_for_a_retry_and_what_is_being_delivered_can_be_told_apart() {
    let dev = Dev::start();
    let later = dev.schedule(&["--in", "1h"]);
    let failed = dev.schedule(&["--in", "0s", "--retry", "2h"]);
    dev.run(&["listen", "--group", "g", "--app", "a", "--count", "1", "--outcome", "retry"]).ok();
    let retrying = wait_for("a retry", || dev.list(&["--retrying"]).pop());
    assert_eq!((&retrying["id"], &retrying["state"]), (&json!(failed), &json!("retrying")));
    assert_eq!((&retrying["attempts"], &retrying["tier"]), (&json!(1), &json!(1)));
    assert!(retrying["fire_ms"].as_u64() > retrying["due_ms"].as_u64(), "{retrying}");
    let first = dev.list(&["--first"]);
    assert_eq!((first.len(), &first[0]["id"]), (1, &json!(later)));

    let now = dev.schedule(&["--in", "0s"]);
    let listen = ["listen", "--group", "g", "--app", "a", "--exec", "sleep 600", "--json"];
    let mut listener = dev.start_client(&listen);
    assert!(listener.line().contains(&now));
    let rows = dev.list(&[]);
    let states: Vec<_> =
        rows.iter().map(|row| (row["id"].as_str().unwrap(), row["state"].as_str().unwrap())).collect();
    assert_eq!(states, [(&*now, "in-flight"), (&*later, "pending"), (&*failed, "retrying")]);
    assert_eq!((&rows[0]["attempt"], &rows[0]["fire_ms"]), (&json!(1), &rows[0]["due_ms"]));
}

#[test]
fn a_cursor_that_is_none_is_refused_with_a_hint() {
    let refused = run(&["list", "--cursor", "order-17"]).code(2);
    let hint = "\"order-17\" is not a cursor: give one as a list has shown it, 38 characters of 0-9 a-z";
    assert!(refused.err.contains(hint) && refused.err.contains("--cursor"), "{refused:?}");
    assert_eq!(run(&["list", "--cursor", "order-17", "--json"]).code(2).json()["error"], "usage");
}

#[test]
fn a_token_lists_what_it_may_read_and_is_refused_the_rest() {
    let file = TokensFile::new();
    let (_, all) = file.create_in_file("all", "schedule,read:*");
    let (_, some) = file.create_in_file("some", "read:g/*");
    let broker = file.broker();
    let with = |token: &std::path::Path, args: &[&str]| broker.run(token, args);
    for group in ["g", "h"] {
        with(&all, &["schedule", "--group", group, "--app", "a", "--in", "1h"]).ok();
    }
    assert_eq!(with(&all, &["list", "--json"]).ok().lines().len(), 2);
    assert_eq!(with(&some, &["list", "--group", "g", "--json"]).ok().lines().len(), 1);
    let refused = with(&some, &["list"]).code(4);
    assert!(refused.err.contains("may not read on *"), "{refused:?}");
    let refused = with(&some, &["list", "--group", "h", "--app", "a"]).code(4);
    assert!(refused.err.contains("may not read on h/a"), "{refused:?}");
}

#[test]
fn timers_of_every_state_are_listed() {
    let dev = Dev::start();
    let schedule = |app: &str, args: &[&str]| {
        let words = [&["schedule", "--group", "g", "--app", app][..], args].concat();
        dev.run(&words).ok().out.trim().to_owned()
    };
    let waiting = schedule("a", &["--in", "1h", "--key", "order-1"]);
    let parked: Vec<String> =
        ["b", "c"].map(|app| schedule(app, &["--in", "0s", "--key", "order-2", "--payload", "pay"])).into();
    let dead = schedule("d", &["--in", "0s", "--key", "order-3"]);
    dev.run(&["listen", "--group", "g", "--app", "d", "--count", "1", "--outcome", "fail"]).ok();
    let ids = |args: &[&str]| -> Vec<(String, String)> {
        let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
        dev.list(args).iter().map(|row| (text(row, "id"), text(row, "state"))).collect()
    };
    let row = |id: &String, state: &str| (id.clone(), state.to_owned());
    let all =
        [row(&waiting, "pending"), row(&parked[0], "parked"), row(&parked[1], "parked"), row(&dead, "dead")];
    let states = ["--state", "dead,waiting,parked,taken,unconfirmed,dead"];
    wait_for("all states", || (ids(&states) == all).then_some(()));
    assert_eq!(ids(&["--state", "parked", "--app", "c"]), all[2..3]);
    assert_eq!(ids(&["--state", "parked,dead", "--key-prefix", "order-3"]), all[3..]);
    assert_eq!(ids(&["--state", "parked", "--limit", "1"]), all[1..2]);
    assert_eq!(ids(&["--state", "taken"]), []);
    let parked_b = |args: &[&str]| dev.list(&[&["--state", "parked", "--app", "b"], args].concat()).remove(0);
    assert_eq!(parked_b(&["--payloads"])["payload"], "pay");
    let bare = parked_b(&[]);
    assert_eq!((&bare["payload"], &bare["payload_bytes"]), (&Value::Null, &3.into()));

    let text = dev.run(&["list", "--state", "parked,dead", "--limit", "2"]).ok();
    let lines: Vec<&str> = text.out.lines().collect();
    assert!(lines[0].starts_with("since ") && lines[1].contains(&parked[0]), "{}", text.out);
    assert!(text.err.contains("2 parked timers\nthe other states are not shown"), "{}", text.err);
    let json = dev.run(&["list", "--state", "parked", "--limit", "1", "--json"]).ok();
    assert!(json.err.contains("1 parked timer, and there are more"), "{}", json.err);
    // Of dead ones the time of their death counts, of parked ones their due time.
    let died = dev.list(&["--state", "dead"])[0]["died"].as_str().unwrap().to_owned();
    assert_eq!(ids(&["--state", "dead", "--from", &died, "--until", &died]), all[3..]);
    assert_eq!(ids(&["--state", "dead", "--until", "2020-01-31T12:00:00Z"]), []);
    assert_eq!(ids(&["--state", "parked", "--from", "2100-01-31T12:00:00Z"]), []);
    let full = dev.run(&["list", "--state", "waiting,dead", "--limit", "1"]).ok();
    assert!(full.err.contains("the other states are not shown"), "{}", full.err);
    let refused = dev.run(&["list", "--state", "dead", "--retrying"]);
    assert!(refused.err.contains("--retrying is about timers that wait"), "{}", refused.err);
    assert_eq!(refused.code, 2);
}

#[test]
fn what_is_delivered_at_most_once_is_listed_and_then_unconfirmed_since_its_broker_died() {
    let mut dev = Dev::start();
    let schedule = ["schedule", "--group", "g", "--app", "a", "--in", "0s", "--mode", "at-most-once"];
    let id = dev.run(&schedule).ok().out.trim().to_owned();
    let mut listener =
        dev.start_client(&["listen", "--group", "g", "--app", "a", "--exec", "sleep 600", "--json"]);
    assert!(listener.line().contains(&id));
    let rows = |dev: &Dev, state: &str| dev.list(&["--state", state]);
    let taken = rows(&dev, "taken");
    assert_eq!((taken.len(), &taken[0]["id"], &taken[0]["state"]), (1, &json!(id), &json!("in-flight")));
    drop(listener);
    dev.crash();
    let unconfirmed = wait_for("it is unconfirmed", || rows(&dev, "unconfirmed").pop());
    assert_eq!(unconfirmed["id"], id.as_str());
    let since = unconfirmed["unconfirmed_ms"].as_u64().unwrap();
    assert!(since > unconfirmed["due_ms"].as_u64().unwrap(), "{unconfirmed}");
    let until = (since - 1).to_string();
    assert_eq!(dev.list(&["--state", "unconfirmed", "--until", &until]), Vec::<Value>::new());
    assert_eq!(rows(&dev, "taken"), Vec::<Value>::new());
}
