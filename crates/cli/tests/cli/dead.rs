//! dead list, get, replay, purge, unconfirmed.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::harness::{Dev, Running, end, wait_for};
use crate::token::TokensFile;

impl Dev {
    /// Waits until there are so many dead letters.
    pub(crate) fn wait_for_dead(&self, n: usize) -> Vec<Value> {
        let list = || Some(self.run(&["dead", "list", "--json"]).ok().lines()).filter(|dead| dead.len() == n);
        wait_for(&format!("{n} dead letters"), list)
    }

    /// Makes a dead letter for a destination.
    fn dead_letter(&self, app: &str, args: &[&str]) -> String {
        let schedule = ["schedule", "--group", "g", "--app", app, "--in", "0s"];
        let id = self.run(&[&schedule[..], args].concat()).ok().out.trim().to_owned();
        self.run(&["listen", "--group", "g", "--app", app, "--count", "1", "--outcome", "fail", "--json"])
            .ok();
        id
    }
}

#[test]
fn dead_letters_are_listed_shown_replayed_and_purged() {
    let dev = Dev::start();
    let a = dev.dead_letter("a", &["--payload", "pa", "--key", "ka", "--header", "tenant=acme"]);
    let b = dev.dead_letter("b", &["--payload", "pb"]);
    dev.wait_for_dead(2);
    let only = dev.run(&["dead", "list", "--group", "g", "--app", "b", "--json"]).ok().lines();
    assert_eq!((only.len(), &only[0]["id"]), (1, &json!(b)));
    assert_eq!(dev.run(&["dead", "list", "--limit", "1", "--json"]).ok().lines().len(), 1);
    let text = dev.run(&["dead", "list"]).ok();
    assert!(
        text.out.contains(&a) && text.out.contains("g/a") && text.err.contains("2 dead letters"),
        "{text:?}"
    );
    let shown = dev.run(&["dead", "get", &a, "--json"]).ok().json();
    assert_eq!(
        (&shown["payload"], &shown["reason"], &shown["attempts"]),
        (&json!("pa"), &json!("failed"), &json!(1))
    );
    assert_eq!(shown["last_error"], "mtimer listen --outcome fail");
    assert_eq!(shown["headers"], json!({ "tenant": "acme" }));
    // Whatever shows a timer says the same of it, under the same names.
    let got = dev.run(&["get", &a, "--json"]).ok().json();
    for name in ["state", "reason", "attempts", "last_error", "died_ms"] {
        assert_eq!(got[name], shown[name], "{name}: {got}");
    }
    assert!(got["reason"] == "failed" && got.get("failed").is_none(), "{got}");

    let dry = dev.run(&["dead", "replay", "--all", "--dry-run", "--json"]).ok();
    assert_eq!((dry.lines().len(), dry.err.contains("2 would be replayed")), (2, true));
    assert_eq!(dev.status()["dead"], 2);

    assert_eq!(dev.run(&["dead", "replay", &a, "--json"]).ok().json()["replayed"], 1);
    let again = dev.run(&["listen", "--group", "g", "--app", "a", "--count", "1", "--json"]).ok().lines();
    assert_eq!(
        (&again[0]["id"], &again[0]["attempt"], &again[0]["key"]),
        (&json!(a), &json!(2), &json!("ka"))
    );
    assert_eq!(again[0]["headers"], shown["headers"]);
    dev.wait_for_dead(1);
    let missing = dev.run(&["dead", "replay", &a, "--json"]).code(5).json();
    assert_eq!((&missing["replayed"], &missing["not_found"]), (&json!(0), &json!(1)));
    assert_eq!(dev.run(&["dead", "get", &a, "--json"]).code(5).json()["error"], "not-found");
    let partly = dev.run(&["dead", "purge", "--yes", &a, &b, "--json"]).code(9).json();
    assert_eq!((&partly["purged"], &partly["not_found"]), (&json!(1), &json!(1)));
    assert_eq!(dev.status()["dead"], 0);
    assert!(dev.run(&["dead", "replay"]).code(2).err.contains("--all"));
}

#[test]
fn filters_take_many_and_those_that_die_again_are_left_alone() {
    let dev = Dev::start();
    let line = "{\"in\":\"0s\",\"group\":\"g\",\"app\":\"many\"}\n";
    dev.run_with(&["schedule", "--file", "-"], line.repeat(1_500).as_bytes()).ok();
    let fail = ["listen", "--group", "g", "--app", "many", "--outcome", "fail", "--json"];
    // It goes on: whatever is replayed dies again.
    let _listener = Running::silent(&dev.args(&fail));
    dev.wait_for("dead", |s| s["dead"] == 1_500);
    let other = dev.dead_letter("other", &[]);
    dev.wait_for("dead", |s| s["dead"] == 1_501);
    let replayed = dev.run(&["dead", "replay", "--app", "many", "--json"]).ok().json();
    assert_eq!(replayed["replayed"], 1_500);
    dev.wait_for("dead again", |s| s["dead"] == 1_501 && s["counters"]["delivered_total"] == 3_001);
    assert_eq!(dev.run(&["dead", "purge", "--yes", "--app", "many", "--json"]).ok().json()["purged"], 1_500);
    assert_eq!(dev.wait_for_dead(1)[0]["id"], other.as_str());
    assert_eq!(dev.run(&["dead", "purge", "--yes", "--all", "--json"]).ok().json()["purged"], 1);
}

#[test]
fn a_purge_asks_at_a_terminal_and_needs_yes_anywhere_else() {
    let dev = Dev::start();
    let id = dev.dead_letter("a", &[]);
    dev.wait_for_dead(1);
    for (what, named) in [
        (&["--all"][..], "this removes all dead letters of the cluster for good"),
        (&["--group", "g", "--app", "a"], "this removes all dead letters of g/a for good"),
        (&["--app", "a", "--unconfirmed"], "this removes all unconfirmed timers of the app \"a\" for good"),
        (&[&id], "this removes 1 dead letter for good"),
    ] {
        let purge = [&["dead", "purge"], what].concat();
        let refused = dev.run(&purge).code(2);
        assert!(refused.err.contains(named) && refused.err.contains("give --yes"), "{refused:?}");
        let refused = dev.run(&[&purge[..], &["--json"]].concat()).code(2).json();
        assert_eq!((&refused["error"], &refused["exit_code"]), (&json!("usage"), &json!(2)));
    }
    dev.run(&["dead", "purge", "--all", "--dry-run"]).ok();
    // A terminal of its own.
    let at_terminal = |answer: &[u8]| {
        let ask = format!("{} dead purge --all --broker {}", env!("CARGO_BIN_EXE_mtimer"), dev.addr);
        let mut command = std::process::Command::new("script");
        command.args(["-qec", &ask, "/dev/null"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        end(command, answer)
    };
    for answer in [&b"n\n"[..], b"\n"] {
        let asked = at_terminal(answer).code(130);
        assert!(asked.out.contains("Go on? [y/N]") && asked.out.contains("nothing was done"), "{asked:?}");
    }
    dev.wait_for_dead(1);
    assert!(at_terminal(b"y\n").ok().out.contains("1 purged"));
    dev.wait_for_dead(0);
}

#[test]
fn a_replay_into_a_key_that_is_taken_is_refused() {
    let dev = Dev::start();
    let id = dev.dead_letter("a", &["--key", "k"]);
    dev.wait_for_dead(1);
    let live = dev.schedule(&["--in", "1h", "--key", "k"]);
    let refused = dev.run(&["dead", "replay", &id, "--json"]).code(7);
    assert_eq!(refused.json()["key_taken"], 1);
    assert!(refused.err.contains(&live), "{refused:?}");
}

#[test]
fn at_most_once_timers_that_nobody_confirmed_are_listed_and_replayed_by_hand() {
    let mut dev = Dev::start();
    let id = dev.schedule(&["--in", "0s", "--mode", "at-most-once", "--payload", "p"]);
    let mut listener =
        dev.start_client(&["listen", "--group", "g", "--app", "a", "--exec", "sleep 600", "--json"]);
    assert!(listener.line().contains(&id));
    dev.crash();
    drop(listener);
    let found = dev.run(&["dead", "unconfirmed", "--json"]).ok().lines();
    assert_eq!((found.len(), &found[0]["id"], &found[0]["state"]), (1, &json!(id), &json!("unconfirmed")));
    assert_eq!(dev.run(&["dead", "list", "--json"]).ok().lines().len(), 0);
    assert_eq!(dev.run(&["dead", "unconfirmed", "--app", "b", "--json"]).ok().lines().len(), 0);
    assert_eq!(dev.run(&["dead", "get", &id, "--json"]).ok().json()["payload"], "p");
    assert_eq!(dev.run(&["dead", "list", "--json"]).ok().lines().len(), 0);
    assert_eq!(dev.run(&["dead", "replay", "--unconfirmed", "--all", "--json"]).ok().json()["replayed"], 1);
    let lines = dev.run(&["listen", "--group", "g", "--app", "a", "--count", "1", "--json"]).ok().lines();
    assert_eq!(lines[0]["id"], id.as_str());
}

#[test]
fn a_token_that_lacks_a_right_is_told_so_and_nothing_looks_done() {
    let file = TokensFile::new();
    let (_, all) = file.create_in_file("all", "schedule,register,read,operate:*");
    let (_, some) = file.create_in_file("some", "read:g/*");
    let broker = file.broker();
    let with = |token: &std::path::Path, args: &[&str]| broker.run(token, args);
    for group in ["g", "h"] {
        with(&all, &["schedule", "--group", group, "--app", "a", "--in", "0s"]).ok();
        with(&all, &["listen", "--group", group, "--app", "a", "--count", "1", "--outcome", "fail"]).ok();
    }
    wait_for("2 dead letters", || {
        (with(&all, &["dead", "list", "--json"]).ok().lines().len() == 2).then_some(())
    });
    const LEFT_OUT: &str = "may not read on *: timers of destinations that it may not read are left out";
    let listed = with(&some, &["dead", "list", "--json"]).ok();
    assert!(listed.lines().len() == 1 && listed.err.contains(LEFT_OUT), "{listed:?}");
    let own = with(&some, &["dead", "list", "--group", "g", "--app", "a"]).ok();
    assert!(!own.err.contains(LEFT_OUT), "{own:?}");
    let foreign = with(&some, &["dead", "list", "--group", "h", "--app", "a"]).code(4).err;
    assert!(foreign.contains("may not read on h/a"), "{foreign}");
    for which in [&["--all"][..], &["--group", "h"], &["--app", "none"]] {
        for work in [&["dead", "purge", "--yes"][..], &["dead", "replay"]] {
            let refused = with(&some, &[work, which].concat()).code(4);
            assert!(refused.err.contains("may not operate on *") && refused.out.is_empty(), "{refused:?}");
        }
    }
    assert_eq!(with(&all, &["dead", "list", "--json"]).ok().lines().len(), 2);
}
