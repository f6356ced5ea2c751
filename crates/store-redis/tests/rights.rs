//! The rights that operators are told to give mtimer are those that it uses, no more and no less.
//! The conformance suite runs with no others.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::collections::BTreeSet;
use std::path::Path;

use mtimer_store_redis::test_support::documented_rights;

/// The text of all files of a folder, but for those that only tests use.
fn text(folder: &Path) -> String {
    let only_for_tests = ["test_support", "simulation", "tests", "tests.rs"];
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let used = entries.filter(|path| !only_for_tests.iter().any(|name| path.ends_with(name)));
    used.map(|path| if path.is_dir() { text(&path) } else { std::fs::read_to_string(path).unwrap() })
        .collect()
}

fn source() -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    text(&here.join("src")) + &text(&here.join("../../lua"))
}

/// Names of commands, found behind the calls that send them.
fn sent(source: &str) -> BTreeSet<&str> {
    let senders = ["cmd(\"", ".command(\"", "call('"];
    let calls = senders.iter().flat_map(|sender| source.split(sender).skip(1));
    calls.filter_map(|rest| rest.split(['"', '\'']).next()).collect()
}

#[test]
fn every_command_that_is_used_is_one_that_operators_are_to_allow() {
    let source = source();
    let rights = documented_rights("c");
    // FREE is a word of apply.lua; every user may say who it is; only Sentinels are asked with
    // SENTINEL, and the rights there have a test of their own (wire/tests/sentinel.rs). CONFIG GET
    // shows passwords, and the store does without it; UNLINK is for an operator who removes a
    // cluster: the page names both beside the rule.
    let others = ["FREE", "AUTH", "HELLO", "SENTINEL", "CONFIG", "UNLINK"];
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/README.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains("add `+config|get`: otherwise `appendfsync no`"),
        "CONFIG GET is sent, and nobody is told"
    );
    assert!(
        page.contains("`mtimer cluster remove` needs it, and `+unlink`"),
        "UNLINK is sent, and nobody is told"
    );
    for command in sent(&source).into_iter().filter(|command| !others.contains(command)) {
        let rule = format!("+{}", command.to_lowercase());
        let is_allowed = rights.iter().any(|right| right.split('|').next() == Some(&rule));
        assert!(is_allowed, "{command} is sent, and operators are not told to allow it");
    }
}

#[test]
fn every_command_that_operators_are_to_allow_is_used() {
    let source = source();
    let rights = documented_rights("c");
    let commands: Vec<&str> = rights.iter().filter_map(|rule| rule.strip_prefix('+')).collect();
    assert!(commands.len() > 20, "{rights:?}");
    for command in commands {
        assert!(!command.starts_with('@'), "{command} is more than one command");
        for word in command.to_uppercase().split('|') {
            let is_used =
                [format!("\"{word}\""), format!("'{word}'")].iter().any(|name| source.contains(name));
            assert!(is_used, "{command} is allowed, and nothing sends it");
        }
    }
}
