//! bulk cancel, reschedule, replay, purge, list, show, stop.

use serde_json::{Value, json};

use crate::harness::{Dev, run, wait_for};
use crate::token::TokensFile;

/// Lines of a file of timers, due in an hour, with the keys `order-0` and so on. Every fifth has a
/// header.
fn orders(n: u64) -> String {
    let order = |n: u64| {
        let headers = if n.is_multiple_of(5) { json!({ "tenant": "acme" }) } else { json!({}) };
        let key = format!("order-{n}");
        let line = json!({ "in": "1h", "group": "g", "app": "a", "key": key, "headers": headers });
        format!("{line}\n")
    };
    (0..n).map(order).collect()
}

impl Dev {
    fn schedule_orders(&self, n: u64) {
        self.run_with(&["schedule", "--file", "-"], orders(n).as_bytes()).ok();
    }

    /// Runs a job to its end; what it says then.
    fn bulk(&self, args: &[&str]) -> Value {
        self.run(&[&["bulk"], args, &["--yes", "--json"]].concat()).ok().json()
    }

    /// A job as `show` shows it.
    fn shown_job(&self, id: &str) -> Value {
        self.run(&["bulk", "show", id, "--json"]).ok().json()
    }

    /// The due times of the live timers of g/a by their keys, in order of both.
    fn due(&self) -> Vec<(String, u64)> {
        let rows =
            self.run(&["list", "--group", "g", "--app", "a", "--limit", "10000", "--json"]).ok().lines();
        let due =
            |row: &Value| (row["key"].as_str().unwrap_or("").to_owned(), row["due_ms"].as_u64().unwrap());
        let mut all: Vec<_> = rows.iter().map(due).collect();
        all.sort();
        all
    }

    /// Makes dead letters for g/a, one for each key.
    fn dead_letters(&self, keys: &[&str]) {
        for key in keys {
            self.schedule(&["--in", "0s", "--key", key]);
        }
        let count = keys.len().to_string();
        let fail = ["listen", "--group", "g", "--app", "a", "--count", &count, "--outcome", "fail", "--json"];
        self.run(&fail).ok();
        self.wait_for_dead(keys.len());
    }
}

#[test]
fn what_matches_is_cancelled_and_a_dry_run_counts_it() {
    let dev = Dev::start();
    dev.schedule_orders(50);
    let dry = dev.bulk(&["cancel", "--header", "tenant=acme", "--dry-run"]);
    assert_eq!((&dry["state"], &dry["done"], &dry["dry_run"]), (&json!("done"), &json!(10), &json!(true)));
    assert_eq!(dev.due().len(), 50);
    let text = dev.run(&["bulk", "cancel", "--key-prefix", "order-1", "--dry-run"]).ok();
    assert_eq!(text.out.trim(), "11 would be cancelled");

    let job = dev.bulk(&["cancel", "--header", "tenant=acme", "--group", "g"]);
    let said = ["action", "state", "done", "not_done", "missing_partitions"].map(|name| job[name].clone());
    assert_eq!(said, [json!("cancel"), json!("done"), json!(10), json!(0), json!(0)]);
    assert_eq!((&job["group"], &job["header"]), (&json!("g"), &json!({ "tenant": "acme" })));
    assert_eq!(dev.due().len(), 40);
    assert!(dev.run(&["list", "--header", "tenant=acme", "--json"]).ok().lines().is_empty());
    // Whoever schedules afterwards is not concerned.
    let later = dev.schedule(&["--in", "1h", "--key", "order-0", "--header", "tenant=acme"]);
    dev.run(&["get", &later]).ok();

    let text = dev.run(&["bulk", "cancel", "--all", "--yes"]).ok();
    assert_eq!(text.out.trim(), "41 cancelled");
    assert!(text.err.starts_with("bulk job "), "{text:?}");
    assert_eq!(dev.bulk(&["cancel", "--all"])["done"], 0);
}

#[test]
fn a_job_is_shown_and_listed_after_its_end_also_by_the_next_owner() {
    let mut dev = Dev::start();
    dev.schedule_orders(5);
    let none = dev.run(&["bulk", "list"]).ok();
    assert_eq!((none.out.as_str(), none.err.trim()), ("", "0 bulk jobs"));
    let done = dev.bulk(&["cancel", "--group", "g", "--app", "a", "--rate", "1000"]);
    let id = done["id"].as_str().unwrap();
    assert_eq!(dev.shown_job(id), done);
    dev.crash();
    assert_eq!(dev.shown_job(id), done);
    assert_eq!(dev.run(&["bulk", "list", "--json"]).ok().json(), done);
    let text = dev.run(&["bulk", "list"]).ok();
    let row = text.out.lines().nth(1).unwrap();
    assert!(row.starts_with(id) && row.contains("pending and parked timers of g/a"), "{text:?}");
    assert_eq!(text.err.trim(), "1 bulk job");
    let text = dev.run(&["bulk", "show", id]).ok().out;
    for part in ["cancel", "1,000 a second at most", "done", "pending and parked timers of g/a"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // It is at its end, so there is nothing to stop.
    let stopped = dev.run(&["bulk", "stop", id, "--json"]).ok();
    assert_eq!((stopped.json(), stopped.err.contains("before")), (done, true));
    for what in ["show", "stop"] {
        let unknown = dev.run(&["bulk", what, "00000000000000000000000000000000"]).code(5);
        assert!(unknown.err.contains("there is no bulk job 0000"), "{unknown:?}");
        assert!(dev.run(&["bulk", what, "5f0c"]).code(2).err.contains("32 hexadecimal digits"));
    }
}

#[test]
fn due_times_are_moved_by_a_duration_or_to_a_time() {
    let dev = Dev::start();
    dev.schedule_orders(20);
    dev.schedule(&["--in", "2h", "--key", "with-deadline", "--deadline", "1s"]);
    let moved = |by: i64, due: Vec<(String, u64)>| -> Vec<(String, u64)> {
        due.into_iter().map(|(key, due)| (key, due.saturating_add_signed(by))).collect()
    };
    let mut due = dev.due();
    for (flag, by) in [("2h", 7_200_000), ("-30m", -1_800_000)] {
        let job = dev.bulk(&["reschedule", "--group", "g", "--by", flag]);
        assert_eq!((&job["done"], &job["by_ms"]), (&json!(21), &json!(by)));
        due = moved(by, due);
        assert_eq!(dev.due(), due);
    }
    let to = "2030-01-31T12:00:00.000Z";
    let job = dev.bulk(&["reschedule", "--all", "--to", to]);
    // The deadline of one is before it.
    assert_eq!((&job["done"], &job["not_done"], &job["to"]), (&json!(20), &json!(1), &json!(to)));
    assert_eq!(job["failures"][0]["why"], "past-deadline");
    let failed = job["failures"][0]["id"].as_str().unwrap();
    assert_eq!(dev.run(&["get", failed, "--json"]).ok().json()["key"], "with-deadline");
    let now = dev.due();
    assert_eq!(now.iter().filter(|(_, due)| *due == 1_896_091_200_000).count(), 20);
    assert_eq!(now.last(), due.last(), "with-deadline");
}

#[test]
fn what_could_not_be_done_is_told_with_the_reason_and_is_no_failure() {
    let dev = Dev::start();
    let held = dev.schedule(&["--in", "0s", "--key", "held"]);
    let listen = ["listen", "--group", "g", "--app", "a", "--exec", "sleep 600", "--json"];
    let mut listener = dev.start_client(&listen);
    assert!(listener.line().contains(&held));
    dev.schedule_orders(3);
    let moved = dev.run(&["bulk", "reschedule", "--group", "g", "--by", "1h", "--yes"]).ok();
    assert_eq!(moved.out.trim(), "3 rescheduled, 1 could not be");
    assert!(moved.err.contains(&format!("{held}: too late: an attempt had begun")), "{moved:?}");
    let cancelled = dev.bulk(&["cancel", "--group", "g"]);
    assert_eq!((&cancelled["done"], &cancelled["not_done"]), (&json!(3), &json!(1)));
    assert_eq!(cancelled["failures"], json!([{ "id": held, "why": "too-late" }]));
    let text = dev.run(&["bulk", "show", cancelled["id"].as_str().unwrap()]).ok().out;
    assert!(text.ends_with(&format!("{held}: too late: an attempt had begun\n")), "{text}");
}

#[test]
fn dead_letters_are_replayed_and_purged() {
    let dev = Dev::start();
    dev.dead_letters(&["a", "b", "taken"]);
    let live = dev.schedule(&["--in", "1h", "--key", "taken"]);
    let replayed = dev.bulk(&["replay", "--group", "g", "--app", "a"]);
    assert_eq!((&replayed["done"], &replayed["not_done"]), (&json!(2), &json!(1)));
    assert_eq!(replayed["failures"][0]["why"], "key-taken");
    let fail = ["listen", "--group", "g", "--app", "a", "--count", "2", "--outcome", "fail", "--json"];
    assert_eq!(dev.run(&fail).ok().lines().len(), 2);
    dev.wait_for_dead(3);

    // Only those that died long ago: none.
    let old = dev.bulk(&["purge", "--all", "--until", "1500"]);
    assert_eq!(old["done"], 0);
    let dry = dev.bulk(&["purge", "--group", "g", "--dry-run"]);
    assert_eq!(dry["done"], 3);
    let text = dev.run(&["bulk", "purge", "--group", "g", "--key-prefix", "a", "--yes"]).ok();
    assert_eq!(text.out.trim(), "1 purged");
    assert_eq!(dev.bulk(&["purge", "--group", "g"])["done"], 2);
    assert_eq!(dev.status()["dead"], 0);
    dev.run(&["get", &live]).ok();
}

#[test]
fn a_job_goes_on_without_its_command_until_it_is_stopped() {
    let dev = Dev::start();
    dev.schedule_orders(2_000);
    let mut command =
        dev.start_client(&["bulk", "cancel", "--group", "g", "--rate", "50", "--yes", "--json"]);
    let listed = || dev.run(&["bulk", "list", "--json"]).ok().lines().pop();
    let working = wait_for("at work", || listed().filter(|job| job["done"].as_u64() > Some(0)));
    assert_eq!((&working["state"], &working["rate"]), (&json!("working"), &json!(50)));
    assert_eq!(command.try_wait(), None);
    command.signal("INT");
    let (code, out) = command.wait();
    let last: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &last["state"], &last["id"]), (130, &json!("working"), &working["id"]));

    let id = working["id"].as_str().unwrap();
    let more = last["done"].as_u64().unwrap();
    wait_for("more of it", || (dev.shown_job(id)["done"].as_u64().unwrap() > more).then_some(()));
    let text = dev.run(&["bulk", "stop", id]).ok();
    assert!(text.out.trim().ends_with("the job was stopped"), "{text:?}");
    let stopped = dev.shown_job(id);
    assert_eq!(stopped["state"], "stopped");
    let done = stopped["done"].as_u64().unwrap();
    assert!(done < 2_000, "{stopped}");
    assert_eq!(dev.due().len() as u64, 2_000 - done);
    // The next one takes the rest.
    assert_eq!(dev.bulk(&["cancel", "--group", "g"])["done"], 2_000 - done);
}

#[test]
fn whoever_looks_on_is_told_that_the_job_was_stopped() {
    let dev = Dev::start();
    dev.schedule_orders(500);
    let command = dev.start_client(&["bulk", "cancel", "--group", "g", "--rate", "10", "--yes"]);
    let listed = || dev.run(&["bulk", "list", "--json"]).ok().lines().pop();
    // A stop ends it where it is by then.
    let everywhere = || listed().filter(|job| job["missing_partitions"] == 0);
    let id = wait_for("a job", everywhere)["id"].take();
    dev.run(&["bulk", "stop", id.as_str().unwrap()]).ok();
    let (code, out) = command.wait();
    assert!(code == 9 && out.trim().ends_with("the job was stopped"), "{code}: {out}");
}

#[test]
fn a_job_is_begun_without_waiting_and_again_under_its_id() {
    let dev = Dev::start();
    dev.schedule_orders(5);
    let begun = dev.run(&["bulk", "reschedule", "--group", "g", "--by", "1h", "--yes", "--no-wait"]).ok();
    let id = begun.out.trim();
    assert!(begun.err.contains(&format!("mtimer bulk show {id} --broker={}", dev.addr)), "{begun:?}");
    let ended = || Some(dev.shown_job(id)).filter(|job| job["state"] == "done");
    let done = wait_for("its end", ended);
    let due = dev.due();
    // The same id is the same job: nothing is moved a second time.
    assert_eq!(dev.bulk(&["reschedule", "--group", "g", "--by", "1h", "--id", id]), done);
    // Nobody takes the one for the other.
    for other in [&["reschedule", "--group", "g", "--by", "2h"][..], &["cancel", "--group", "g"]] {
        let refused = dev.run(&[&["bulk"], other, &["--yes", "--id", id]].concat());
        assert_eq!(refused.code, 7, "{refused:?}");
        assert!(refused.err.contains("is another: this makes all"), "{refused:?}");
    }
    assert_eq!(dev.due(), due);
    let begun = dev.bulk(&["reschedule", "--group", "g", "--by", "1h", "--no-wait"]);
    assert!(begun["id"].is_string() && begun.get("state").is_none(), "{begun}");
}

#[test]
fn nothing_is_done_without_a_condition_or_consent() {
    let dev = Dev::start();
    dev.schedule_orders(5);
    for what in [&["cancel"][..], &["reschedule", "--by", "1h"], &["replay"], &["purge"]] {
        let bulk = [&["bulk"], what].concat();
        let refused = dev.run(&[&bulk[..], &["--yes"]].concat()).code(2);
        assert!(refused.err.contains("which ones?") && refused.err.contains("--all"), "{refused:?}");
        let refused = dev.run(&[&bulk[..], &["--group", "g"]].concat()).code(2);
        assert!(refused.err.contains("of the group \"g\"") && refused.err.contains("--yes"), "{refused:?}");
    }
    for bad in [
        &["reschedule", "--all"][..],
        &["reschedule", "--all", "--by", "1h", "--to", "1500"],
        &["reschedule", "--all", "--by", "0s"],
        &["cancel", "--all", "--rate", "0"],
        &["cancel", "--retrying", "--first"],
        &["replay", "--retrying"],
    ] {
        run(&[&["bulk"], bad].concat()).code(2);
    }
    // A broker refuses what breaks a limit, and so does the client.
    let far = dev.run(&["bulk", "reschedule", "--group", "g", "--by", "4000d", "--yes"]).code(4);
    assert!(far.err.contains("due times can be moved by"), "{far:?}");
    assert_eq!((dev.due().len(), dev.run(&["bulk", "list", "--json"]).ok().lines().len()), (5, 0));
}

#[test]
fn a_token_does_what_it_may_on_all_that_a_job_is_about() {
    let file = TokensFile::new();
    let (_, all) = file.create_in_file("all", "schedule,read,operate:*");
    let (_, some) = file.create_in_file("some", "read,operate:g/*");
    let (_, blind) = file.create_in_file("blind", "operate:g/a");
    let (_, reader) = file.create_in_file("reader", "read:g/*");
    let broker = file.broker();
    let with = |token: &std::path::Path, args: &[&str]| broker.run(token, args);
    for group in ["g", "h"] {
        with(&all, &["schedule", "--group", group, "--app", "a", "--in", "1h"]).ok();
    }
    let cancel =
        |token, args: &[&str]| with(token, &[&["bulk", "cancel", "--yes", "--json"][..], args].concat());
    for which in [&["--all"][..], &["--group", "h"], &["--app", "a"]] {
        let refused = cancel(&some, which).code(4);
        assert!(refused.json()["message"].as_str().unwrap().contains("may not read on"), "{refused:?}");
    }
    let refused = cancel(&reader, &["--group", "g"]).code(4).json();
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("may not operate on g/*") && message.contains("in no partition"), "{message}");
    let refused = cancel(&blind, &["--group", "g", "--app", "a"]).code(4).json();
    assert!(refused["message"].as_str().unwrap().contains("--no-wait"), "{refused}");
    assert_eq!(with(&all, &["count", "--json"]).ok().json()["timers"], 2);

    let own = cancel(&some, &["--group", "g", "--dry-run"]).ok().json();
    assert_eq!(own["done"], 1);
    let foreign = cancel(&all, &["--group", "h", "--dry-run"]).ok().json();
    let listed = with(&some, &["bulk", "list", "--json"]).ok();
    assert_eq!(listed.json(), own);
    assert!(listed.err.contains("are left out"), "{listed:?}");
    let show = |token, job: &Value| with(token, &["bulk", "show", job["id"].as_str().unwrap(), "--json"]);
    assert_eq!(show(&reader, &own).ok().json(), own);
    show(&some, &foreign).code(5);
    let stop = with(&reader, &["bulk", "stop", own["id"].as_str().unwrap()]).code(4);
    assert!(stop.err.contains("may not operate on g/*"), "{stop:?}");
    // Whoever may not look on begins it all the same.
    let begun = cancel(&blind, &["--group", "g", "--app", "a", "--no-wait"]).ok().json();
    wait_for("its end", || (show(&all, &begun).ok().json()["state"] == "done").then_some(()));
    assert_eq!(with(&all, &["count", "--json"]).ok().json()["timers"], 1);
}
