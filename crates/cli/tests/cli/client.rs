//! schedule, get, cancel, reschedule, extend-deadline, status: one timer at a time.

use serde_json::json;

use crate::harness::{Dev, end, mtimer, run, wait_for};

#[test]
fn a_timer_is_scheduled_found_moved_and_cancelled() {
    let dev = Dev::start();
    let id = dev.schedule(&[
        "--in",
        "1h",
        "--key",
        "k",
        "--payload",
        "héllo",
        "--retry",
        "1s,2s",
        "--deadline",
        "30s",
    ]);
    assert_eq!(id.len(), 26);
    let found = dev.run(&["get", &id, "--json"]).ok().json();
    assert_eq!((&found["id"], &found["state"], &found["key"]), (&json!(id), &json!("pending"), &json!("k")));
    assert_eq!((&found["payload"], &found["retry_ms"]), (&json!("héllo"), &json!([1_000, 2_000])));
    assert_eq!(found["deadline_ms"].as_u64().unwrap() - found["due_ms"].as_u64().unwrap(), 30_000);
    let by_key = ["--group", "g", "--app", "a", "--key", "k", "--json"];
    let with_key = |command| [&[command][..], &by_key[..]].concat();
    assert_eq!(dev.run(&with_key("get")).ok().json(), found);

    let moved = dev.run(&["reschedule", &id, "--at", "2030-01-31T12:00:00Z", "--json"]);
    // Its deadline stays: the new time is beyond it.
    assert_eq!(moved.code(4).json()["error"], "refused");
    let moved = dev.run(&["reschedule", &id, "--in", "10m", "--json"]).ok().json();
    assert_eq!(moved, json!({ "result": "rescheduled", "id": id }));
    let found = dev.run(&["get", &id, "--json"]).ok().json();
    assert_eq!((&found["fire_ms"], &found["fire"]), (&found["due_ms"], &found["due"]));
    let text = dev.run(&["get", &id]).ok().out;
    let fire = text.lines().find_map(|line| line.strip_prefix("fire ")).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(json!(fire.trim()), found["fire"]);

    let extended = dev.run(&["extend-deadline", &id, "--at", "2030-01-31T12:00:00Z", "--json"]).ok().json();
    assert_eq!(extended, json!({ "result": "extended", "id": id }));
    let found = dev.run(&["get", &id, "--json"]).ok().json();
    assert_eq!(found["deadline_ms"], 1_896_091_200_000_u64);
    let early = dev.run(&["extend-deadline", &id, "--in", "1s", "--json"]);
    assert_eq!(early.code(4).json()["error"], "refused", "before it is due");

    let cancelled = dev.run(&with_key("cancel")).ok().json();
    assert_eq!(cancelled, json!({ "result": "cancelled", "id": id }));
    assert_eq!(dev.run(&with_key("cancel")).code(5).json(), json!({ "result": "not-found", "id": null }));
    assert_eq!(dev.run(&["get", &id, "--json"]).code(5).json()["error"], "not-found");
    dev.run(&["extend-deadline", &id, "--in", "1m"]).code(5);
    let gone = dev.run(&["reschedule", &id, "--in", "1m"]).code(5);
    assert_eq!((gone.out.trim(), gone.err.as_str()), ("not-found", ""));
}

#[test]
fn a_key_is_created_kept_or_replaced() {
    let dev = Dev::start();
    let schedule = |policy: &str, payload: &str| {
        let args = ["schedule", "--group", "g", "--app", "a", "--in", "1h", "--key", "k", "--json"];
        dev.run(&[&args[..], &["--key-policy", policy, "--payload", payload][..]].concat())
    };
    let first = schedule("create", "1").ok().json();
    assert_eq!(
        (&first["new"], &first["kept"], &first["replaced"]),
        (&json!(true), &json!(false), &json!(null))
    );
    let taken = schedule("create", "2").code(7).json();
    assert_eq!((&taken["error"], &taken["exit_code"]), (&json!("conflict"), &json!(7)));
    assert!(taken["message"].as_str().unwrap().contains(first["id"].as_str().unwrap()));
    let kept = schedule("keep", "3").ok().json();
    assert_eq!((&kept["id"], &kept["kept"]), (&first["id"], &json!(true)));
    let replaced = schedule("replace", "4").ok().json();
    assert_eq!(replaced["replaced"], first["id"]);
    assert_eq!(dev.status()["keys"], 1);
}

#[test]
fn a_key_moves_one_way_or_waits_for_quiet() {
    let dev = Dev::start();
    let schedule = |args: &[&str]| {
        let key = ["schedule", "--group", "g", "--app", "a", "--key", "k", "--json", "--key-policy"];
        dev.run(&[&key[..], args].concat())
    };
    let first = schedule(&["latest", "--in", "1h"]).ok().json();
    let second = schedule(&["latest", "--in", "1m"]).ok().json();
    assert_eq!((&second["due_ms"], &second["replaced"]), (&first["due_ms"], &first["id"]));
    assert_ne!(schedule(&["earliest", "--in", "1m"]).ok().json()["due_ms"], first["due_ms"]);
    let debounced = schedule(&["debounce", "--quiet", "5s", "--max", "1m"]).ok().json();
    let due = |id: &serde_json::Value| dev.run(&["get", id.as_str().unwrap(), "--json"]).ok().json();
    assert_eq!(due(&debounced["id"])["due_ms"], debounced["due_ms"]);
    for (args, text) in [
        (&["debounce", "--quiet", "5s"][..], "needs --quiet and --max"),
        (&["debounce", "--quiet", "5s", "--max", "1m", "--in", "1h"], "leave out --in and --at"),
        (&["latest", "--in", "1h", "--max", "1m"], "--quiet and --max go with"),
        (&["debounce", "--quiet", "5s", "--max", "1s"], "quiet not above max"),
    ] {
        let refused = schedule(args).code(2);
        assert!(refused.err.contains(text) || refused.out.contains(text), "{refused:?}");
    }
}

#[test]
fn too_late_is_told_apart() {
    let dev = Dev::start();
    let id = dev.schedule(&["--in", "0s"]);
    let mut listener =
        dev.start_client(&["listen", "--group", "g", "--app", "a", "--exec", "sleep 600", "--json"]);
    assert!(listener.line().contains(&id));
    assert_eq!(dev.run(&["reschedule", &id, "--in", "1h", "--json"]).code(6).json()["result"], "too-late");
    assert_eq!(dev.run(&["cancel", &id, "--json"]).code(6).json(), json!({ "result": "too-late", "id": id }));
    assert_eq!(dev.run(&["get", &id, "--json"]).ok().json()["stopped"], true);
}

#[test]
fn payloads_come_from_files_and_have_a_limit() {
    let dev = Dev::start();
    let file = dev.data.path().join("payload");
    let name = file.to_str().unwrap();
    std::fs::write(&file, [0xff, 0x00]).unwrap();
    let id = dev.schedule(&["--in", "1h", "--payload-file", name]);
    assert_eq!(dev.run(&["get", &id, "--json"]).ok().json()["payload_base64"], "/wA=");
    std::fs::write(&file, vec![b'x'; 64 * 1024 + 1]).unwrap();
    let args = ["schedule", "--group", "g", "--app", "a", "--in", "1h", "--payload-file", name];
    let refused = dev.run(&args).code(4);
    assert!(refused.err.contains("65537 bytes, the limit of a payload is 65536"), "{refused:?}");
    let endless = ["schedule", "--group", "g", "--app", "a", "--in", "1h", "--payload-file", "/dev/zero"];
    let refused = dev.run(&endless);
    assert!(refused.err.contains("the limit of a payload is 65536"), "{refused:?}");
    std::fs::remove_file(&file).unwrap();
    assert!(dev.run(&args).code(1).err.contains("cannot read"));
}

#[test]
fn headers_are_kept_shown_and_have_limits() {
    let dev = Dev::start();
    let id = dev.schedule(&["--in", "1h", "--header", "tenant=acme", "--header", "empty="]);
    let found = dev.run(&["get", &id, "--json"]).ok().json();
    assert_eq!(found["headers"], json!({ "empty": "", "tenant": "acme" }));
    let shown = dev.run(&["get", &id]).ok().out;
    assert!(shown.contains(r#"headers   {"empty":"","tenant":"acme"}"#), "{shown}");
    let plain = dev.schedule(&["--in", "1h"]);
    assert_eq!(dev.run(&["get", &plain, "--json"]).ok().json()["headers"], json!({}));
    assert!(!dev.run(&["get", &plain]).ok().out.contains("headers"));

    let with =
        |header: &str| dev.run(&["schedule", "--group", "g", "--app", "a", "--in", "1h", "--header", header]);
    let capitals = with("Tenant=acme").code(4);
    assert!(
        capitals.err.contains("the header name \"Tenant\" has 'T' in it: use lower-case"),
        "{capitals:?}"
    );
    let long = with(&format!("a={}", "x".repeat(1_025))).code(4);
    assert!(long.err.contains("has 1025 bytes, the limit is 1024"), "{long:?}");
    let none = with("tenant").code(2);
    assert!(none.err.contains("it has no \"=\": give NAME=VALUE"), "{none:?}");
    let twice =
        ["schedule", "--group", "g", "--app", "a", "--in", "1h", "--header", "a=1", "--header", "a=2"];
    assert!(dev.run(&twice).code(4).err.contains("the header \"a\" is given twice"));
}

#[test]
fn an_id_is_the_id_if_it_was_made_for_the_time() {
    let dev = Dev::start();
    let first = dev.run(&["schedule", "--group", "g", "--app", "a", "--in", "1h", "--json"]).ok().json();
    let (id, due) = (first["id"].as_str().unwrap(), first["due_ms"].to_string());
    let args = ["schedule", "--group", "g", "--app", "a", "--at", &due, "--id", id, "--json"];
    let again = dev.run(&args).ok().json();
    assert_eq!((&again["id"], &again["new"]), (&first["id"], &json!(false)));
    let other = dev.run(&[&args[..], &["--payload", "other"][..]].concat()).code(7).json();
    assert_eq!(other["error"], "conflict");
    let foreign = ["schedule", "--group", "g", "--app", "a", "--in", "1h", "--id", "order 17", "--json"];
    let made = dev.run(&foreign).ok().json();
    assert_eq!(dev.run(&["get", made["id"].as_str().unwrap(), "--json"]).ok().json()["key"], "order 17");
    assert_eq!(dev.run(&foreign).ok().json()["kept"], true);
}

#[test]
fn limits_are_told_with_value_and_fix() {
    let dev = Dev::start();
    let args = ["schedule", "--group", "g", "--app", "a", "--at", "2100-01-01T00:00:00Z", "--json"];
    let far = dev.run(&args).code(4).json();
    assert!(far["message"].as_str().unwrap().contains("more than 3653 days"), "{far}");
    let args = ["schedule", "--group", "g", "--app", "a", "--in", "1s", "--retry", "1s,90days"];
    assert!(dev.run(&args).code(4).err.contains("retry tier 2 of 2"));
}

#[test]
fn the_status_says_what_there_is() {
    let dev = Dev::start();
    dev.schedule(&["--in", "1h"]);
    let status = dev.status();
    assert_eq!(
        (&status["pending"], &status["store"], &status["broker"]),
        (&json!(1), &json!("embedded"), &json!(dev.addr))
    );
    assert_eq!(status["counters"]["scheduled_total"], 1);
    assert_eq!(dev.run(&["cluster", "status", "--json"]).ok().json()["pending"], 1);
    let text = dev.run(&["status"]).ok().out;
    assert!(text.contains("cluster mtimer at") && text.contains("first delivery to come"), "{text}");
}

#[test]
fn a_ping_tells_whether_a_broker_is_there() {
    let dev = Dev::with(&["--max-sessions", "1"]);
    let there = dev.run(&["ping", "--json"]).ok().json();
    assert_eq!((&there["broker"], &there["ready"]), (&json!(dev.addr), &json!(null)));
    wait_for("ready", || Some(dev.run(&["ping", "--ready", "--json"])).filter(|e| e.code == 0));
    // One that is full of clients can be looked at.
    let listener = dev.start_client(&["listen", "--group", "g", "--app", "a", "--json"]);
    wait_for("full", || Some(dev.status()).filter(|status| status["sessions"] == 2));
    let more = dev.run(&["schedule", "--group", "g", "--app", "a", "--in", "1h", "--connect-timeout", "1ms"]);
    let text = more.code(13).err;
    assert!(text.contains("all 1 sessions of this broker for clients"), "{text}");
    assert_eq!(dev.run(&["ping", "--ready", "--json"]).ok().json()["ready"], true);
    // Of several each is asked, and one that is not there is told.
    let both = run(&["ping", "--json", "--broker", &format!("{0},{0}", dev.addr)]).ok().lines();
    assert!(both.len() == 2 && both.iter().all(|pong| pong["broker"] == dev.addr.as_str()), "{both:?}");
    let one = run(&["ping", "--json", "--broker", &format!("127.0.0.1:1,{}", dev.addr)]).code(3).lines();
    assert_eq!((&one[0]["broker"], &one[0]["error"]), (&json!("127.0.0.1:1"), &json!("no-connection")));
    assert_eq!(one[1]["broker"], dev.addr.as_str());
    listener.signal("TERM");
    assert_eq!(listener.wait().0, 0);

    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = deaf.local_addr().unwrap().to_string();
    let silent = run(&["ping", "--timeout", "50ms", "--broker", &addr]).code(3);
    assert!(silent.err.contains(&format!("no answer of {addr} within 50 ms")), "{silent:?}");
    drop(deaf);
    assert_eq!(run(&["ping", "--json", "--broker", &addr]).code(3).json()["error"], "no-connection");
}

#[test]
fn the_broker_comes_from_the_environment_and_one_of_several_is_used() {
    let dev = Dev::start();
    let mut command = mtimer(&["status", "--json"]);
    command.env("MTIMER_BROKER", format!("127.0.0.1:1,{}", dev.addr));
    assert_eq!(end(command, b"").ok().json()["broker"], dev.addr.as_str());
}

#[test]
fn nobody_there_has_an_exit_code_of_its_own() {
    let args = ["get", "00000000000000000000000000", "--broker", "127.0.0.1:1", "--connect-timeout", "10ms"];
    let failed = run(&args).code(3);
    assert!(failed.err.starts_with("error: no connection to a broker at 127.0.0.1:1"), "{failed:?}");
    let failed = run(&[&args[..], &["--json"][..]].concat()).code(3).json();
    assert_eq!((&failed["error"], &failed["exit_code"]), (&json!("no-connection"), &json!(3)));
    assert!(run(&["status", "--broker", "nonsense"]).code(2).err.contains("write host:port"));
}
