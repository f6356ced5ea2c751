//! schedule --file.

use std::fmt::Write as _;

use serde_json::json;

use crate::harness::{Dev, Ended};

impl Dev {
    fn file(&self, text: &str, args: &[&str]) -> Ended {
        let path = self.data.path().join("timers.ndjson");
        std::fs::write(&path, text).unwrap();
        let all = [&["schedule", "--json", "--file", path.to_str().unwrap()][..], args].concat();
        self.run(&all)
    }
}

const GOOD: &str = r#"{"in":"1h","group":"g","app":"a","payload":"one"}
{"at":"2035-01-31T12:00:00Z","group":"g","app":"a","key":"k2","payload_base64":"AAH/","mode":"at-most-once"}

{"at":2000000000000,"group":"g","app":"b","id":"order-3","deadline":"1h","retry":["1s","5s"]}
"#;

#[test]
fn a_good_file_is_scheduled_and_sent_again_changes_nothing_that_has_a_name() {
    let dev = Dev::start();
    let sent = dev.file(GOOD, &[]).ok().json();
    let numbers = |s: &serde_json::Value| {
        ["lines", "scheduled", "already", "refused", "bad"].map(|n| s[n].as_u64().unwrap())
    };
    assert_eq!(numbers(&sent), [3, 3, 0, 0, 0]);
    assert!(sent["seconds"].is_number() && sent["rate_per_s"].is_number());
    let found = dev.run(&["get", "--group", "g", "--app", "a", "--key", "k2", "--json"]).ok().json();
    assert_eq!((&found["payload_base64"], &found["mode"]), (&json!("AAH/"), &json!("at-most-once")));
    let found = dev.run(&["get", "--group", "g", "--app", "b", "--key", "order-3", "--json"]).ok().json();
    assert_eq!(
        (&found["due_ms"], &found["retry_ms"]),
        (&json!(2_000_000_000_000_u64), &json!([1_000, 5_000]))
    );
    assert_eq!(found["deadline_ms"], json!(2_000_003_600_000_u64));

    // The first line has no name: it is another timer each time.
    assert_eq!(numbers(&dev.file(GOOD, &[]).ok().json()), [3, 1, 2, 0, 0]);
    assert_eq!(dev.status()["pending"], 4);
    // Other content under a key that is taken stays what it was, unless it is to be replaced.
    let other = GOOD.replace("AAH/", "//79");
    assert_eq!(numbers(&dev.file(&other, &[]).ok().json()), [3, 1, 2, 0, 0]);
    assert_eq!(numbers(&dev.file(&other, &["--key-policy", "replace"]).ok().json()), [3, 2, 1, 0, 0]);
    let found = dev.run(&["get", "--group", "g", "--app", "a", "--key", "k2", "--json"]).ok().json();
    assert_eq!(found["payload_base64"], json!("//79"));
    let created = dev.file(&other.replace("//79", "AQEB"), &["--key-policy", "create"]).code(9);
    assert_eq!(created.json()["reasons"], json!({ "key-taken": 1 }));
    assert!(created.err.contains("line 2 has failed: the key names the live timer"), "{created:?}");
}

#[test]
fn lines_have_headers_of_their_own_and_those_of_the_flags() {
    let dev = Dev::start();
    let text = r#"{"in":"1h","group":"g","app":"a","key":"k1","headers":{"tenant":"own","b":"2"}}
{"in":"1h","group":"g","app":"a","key":"k2"}
"#;
    let flags = ["--header", "tenant=acme", "--header", "a=1"];
    assert_eq!(dev.file(text, &flags).ok().json()["scheduled"], 2);
    let headers = |key: &str| {
        let get = ["get", "--group", "g", "--app", "a", "--key", key, "--json"];
        dev.run(&get).ok().json()["headers"].clone()
    };
    assert_eq!(headers("k1"), json!({ "a": "1", "b": "2", "tenant": "own" }));
    assert_eq!(headers("k2"), json!({ "a": "1", "tenant": "acme" }));
    let bad = dev.file(&text.replace("\"b\"", "\"B\""), &[]).code(4);
    assert!(bad.err.contains("line 1") && bad.err.contains("the header name \"B\" has 'B' in it"), "{bad:?}");
}

#[test]
fn a_payload_may_be_any_json_value_and_ids_are_told_if_asked_for() {
    let dev = Dev::start();
    let lines = r#"{"in":"1h","group":"g","app":"a","payload":{"z": 1, "a":[true, 1.50]}}
{"in":"1h","group":"g","app":"a","payload":17}
{"in":"1h","group":"g","app":"a","payload":"te\"xt"}
{"in":"1h","group":"g","app":"a"}
"#;
    let sent = dev.file(lines, &["--ids"]).ok().lines();
    assert_eq!((sent.len(), &sent[4]["scheduled"]), (5, &json!(4)));
    for (at, payload) in [r#"{"z": 1, "a":[true, 1.50]}"#, "17", "te\"xt", ""].iter().enumerate() {
        assert_eq!(sent[at]["line"], at + 1);
        let found = dev.run(&["get", sent[at]["id"].as_str().unwrap(), "--json"]).ok().json();
        assert_eq!(found["payload"], *payload);
    }
    let path = dev.data.path().join("one.ndjson");
    std::fs::write(&path, lines.lines().next().unwrap()).unwrap();
    let text = dev.run(&["schedule", "--ids", "--file", path.to_str().unwrap()]).ok().out;
    let (id, summary) = text.split_once('\n').unwrap();
    assert!(id.starts_with("1 ") && id.len() == 28, "{text}");
    assert!(summary.starts_with("1 line: 1 scheduled"), "{text}");
}

#[test]
fn what_was_delivered_a_moment_ago_is_not_delivered_again() {
    let dev = Dev::start();
    let line = r#"{"at":1000,"group":"g","app":"a","key":"once","payload":"x"}"#;
    assert_eq!(dev.file(line, &[]).ok().json()["scheduled"], 1);
    dev.run(&["listen", "--group", "g", "--app", "a", "--count", "1"]).ok();
    let again = dev.file(line, &[]).ok().json();
    assert_eq!((&again["scheduled"], &again["already"]), (&json!(0), &json!(1)));
}

#[test]
fn a_bad_line_is_told_and_nothing_is_sent_unless_it_is_skipped() {
    let dev = Dev::start();
    let text = format!(
        "{GOOD}{{\"in\":\"1h\",\"group\":\"g\",\"app\":\"a\",\"oops\":1}}\nnot json\n{{\"in\":\"1h\"}}\n"
    );
    let refused = dev.file(&text, &[]).code(4);
    let summary = refused.json();
    assert_eq!(
        (&summary["lines"], &summary["scheduled"], &summary["bad"]),
        (&json!(6), &json!(0), &json!(3))
    );
    let lines: Vec<_> =
        summary["bad_lines"].as_array().unwrap().iter().map(|b| b["line"].as_u64().unwrap()).collect();
    assert_eq!(lines, [5, 6, 7]);
    assert!(refused.err.contains("line 5 is not valid: unknown field `oops`"), "{refused:?}");
    assert!(refused.err.contains("send the rest with --skip-bad"), "{refused:?}");
    assert_eq!(dev.status()["pending"], 0);

    let summary = dev.file(&text, &["--skip-bad"]).code(9).json();
    assert_eq!((&summary["scheduled"], &summary["bad"]), (&json!(3), &json!(3)));
    assert_eq!(dev.status()["pending"], 3);
    // With a destination for lines without one, the last of them is good.
    let summary = dev.file(&text, &["--skip-bad", "--group", "x", "--app", "y"]).code(9).json();
    assert_eq!(
        (&summary["scheduled"], &summary["already"], &summary["bad"]),
        (&json!(2), &json!(2), &json!(2))
    );
    // Without a good one nothing was done.
    dev.file("not json\n", &["--skip-bad"]).code(4);
}

#[test]
fn only_the_first_bad_lines_are_told_and_all_are_counted() {
    let dev = Dev::start();
    let refused = dev.file(&"{}\n".repeat(1_000), &[]).code(4);
    assert_eq!(refused.json()["bad"], 1_000);
    assert_eq!(refused.json()["bad_lines"].as_array().unwrap().len(), 20);
    assert!(refused.err.contains("and 980 more"), "{refused:?}");
}

#[test]
fn limits_count_as_bad_lines() {
    let dev = Dev::start();
    let long = "x".repeat(64 * 1024 + 1);
    let text = format!(
        "{{\"in\":\"1h\",\"group\":\"g\",\"app\":\"a\",\"payload\":\"{long}\"}}\n\
         {{\"at\":\"2100-01-01T00:00:00Z\",\"group\":\"g\",\"app\":\"a\"}}\n\
         {{\"in\":\"1h\",\"group\":\"g\",\"app\":\"a\",\"deadline\":5}}\n{}\n",
        "x".repeat(2 * 1024 * 1024)
    );
    let reasons = dev.file(&text, &[]).code(4).json()["bad_lines"].clone();
    for (n, part) in
        ["the limit is 65536", "more than 3653 days", "is before the due time", "more than 1048576 bytes"]
            .iter()
            .enumerate()
    {
        let reason = reasons[n]["reason"].as_str().unwrap();
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn standard_input_works_like_a_file() {
    let dev = Dev::start();
    let mut text = String::new();
    for n in 0..5_000 {
        writeln!(text, r#"{{"in":"1h","key":"k{n}","payload":"{n}"}}"#).unwrap();
    }
    let args = ["schedule", "--file", "-", "--group", "g", "--app", "a", "--json"];
    let summary = dev.run_with(&args, text.as_bytes()).ok().json();
    assert_eq!((&summary["lines"], &summary["scheduled"]), (&json!(5_000), &json!(5_000)));
    assert_eq!((&dev.status()["pending"], &dev.status()["keys"]), (&json!(5_000), &json!(5_000)));
    let summary = dev.run_with(&args, text.as_bytes()).ok().json();
    assert_eq!((&summary["scheduled"], &summary["already"]), (&json!(0), &json!(5_000)));
    let empty = dev.run_with(&args, b"\n").ok().json();
    assert_eq!((&empty["lines"], &empty["scheduled"]), (&json!(0), &json!(0)));
    assert!(dev.run(&["schedule", "--file", "/nowhere/at/all"]).code(1).err.contains("/nowhere/at/all"));
}
