//! story: what has become of one timer, attempt by attempt.

use serde_json::json;

use crate::harness::{Dev, wait_for};

#[test]
fn a_story_tells_why_a_timer_was_late_and_how_its_attempts_ended() {
    let dev = Dev::start();
    let schedule = ["schedule", "--group", "g", "--app", "a", "--in", "0s", "--key", "k"];
    let id = dev.run(&schedule).ok().out.trim().to_owned();
    let story = |args: &[&str]| dev.run(&[&["story", "--json"], args].concat()).ok().json();
    let parked = || Some(story(&[&id])).filter(|told| told["state"] == "parked");
    let waits = wait_for("a parked timer", parked);
    assert_eq!((&waits["story"]["waits_for"], &waits["key"]), (&json!("parked"), &json!("k")));
    let text = dev.run(&["story", "--group", "g", "--app", "a", "--key", "k"]).ok().out;
    assert!(text.contains(&id), "{text}");
    assert!(
        text.ends_with("until a client has capacity: all are busy, or none is registered (parked)\n"),
        "{text}"
    );

    let listen = ["listen", "--group", "g", "--app", "a", "--count", "1", "--json", "--outcome"];
    dev.run(&[&listen[..], &["retry"]].concat()).ok();
    let retried = || Some(story(&[&id])).filter(|told| told["state"] == "retrying");
    let told = wait_for("a retry", retried)["story"].clone();
    let first = &told["failed_attempts"][0];
    assert_eq!((&first["attempt"], &first["late_by"]), (&json!(1), &json!("parked")));
    assert_eq!((&first["end"], &first["error"]), (&json!("retry"), &json!("mtimer listen --outcome retry")));
    assert!(first["ended_ms"].as_u64() >= first["sent_ms"].as_u64(), "{first}");
    assert_eq!((&told["lost_attempts"], &told["under_way"]), (&json!([]), &json!(null)));

    dev.run(&[&listen[..], &["fail"]].concat()).ok();
    dev.wait_for_dead(1);
    let text = dev.run(&["story", &id]).ok().out;
    let lines: Vec<&str> = text.lines().collect();
    let [.., _, first, ended, second, failed] = &lines[..] else { panic!("{text}") };
    assert!(first.starts_with("attempt 1: sent ") && first.contains("late: it had been set aside"), "{text}");
    assert!(
        ended.ends_with(": the handler asked for another attempt: mtimer listen --outcome retry"),
        "{text}"
    );
    assert!(second.starts_with("attempt 2: sent "), "{text}");
    assert!(failed.ends_with("it will never be done: mtimer listen --outcome fail"), "{text}");
    assert!(text.contains("reason") && text.contains("died"), "{text}");

    dev.run(&["story", "01jz8q4v3c0000g5m3x9w2k7ha"]).code(5);
}
