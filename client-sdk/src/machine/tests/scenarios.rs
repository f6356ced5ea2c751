//! Every scenario of `client-sdk/scenarios`, byte by byte.
//!
//! With `MTIMER_BLESS=1` the files are written anew: outputs become those of the machine, and bytes
//! that arrive become those of their messages. The difference is to be reviewed.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::player::Player;

/// Subjects that must have a scenario.
const NAMES: [&str; 10] = [
    "clock",
    "closing",
    "credits",
    "handover",
    "handshake",
    "moved",
    "refusals",
    "repeats",
    "routing",
    "settling",
];

fn files() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Plays the inputs of a scenario; returns it with the outputs that the machine has.
fn play(text: &str) -> String {
    let mut lines = text.lines();
    let header = lines.next().unwrap();
    let mut player = Player::new(header);
    let mut played = vec![header.to_owned()];
    for line in lines {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        if value.get("note").is_some() {
            played.append(&mut player.take_lines());
            played.push(line.to_owned());
        } else if value.get("in").is_some() {
            player.play(line);
        }
    }
    played.append(&mut player.take_lines());
    played.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn every_scenario_plays_as_it_is_written() {
    let bless = std::env::var_os("MTIMER_BLESS").is_some();
    let mut wrong = Vec::new();
    for file in files() {
        let text = fs::read_to_string(&file).unwrap();
        let played = play(&text);
        if played == text {
            continue;
        }
        if bless {
            fs::write(&file, played).unwrap();
            continue;
        }
        let different = text.lines().zip(played.lines()).enumerate().find(|(_, (is, played))| is != played);
        let at = different.map_or(text.lines().count(), |(at, _)| at);
        let line = |text: &str| text.lines().nth(at).unwrap_or("(nothing)").to_owned();
        let (is, played) = (line(&text), line(&played));
        wrong.push(format!("{}:{}\n  written {is}\n  played  {played}", file.display(), at + 1));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_subject_has_a_scenario() {
    let names: Vec<String> =
        files().iter().map(|file| file.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(names, NAMES);
}
