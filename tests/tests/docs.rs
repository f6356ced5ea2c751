//! The documents are true where a program can tell: their commands run, their links lead somewhere,
//! and the paths and messages that they name exist.
//!
//! A block that is marked `sh run` is run and has to succeed. One that is marked `sh background` is
//! a terminal of its own: it runs until the end of the document. Addresses and `cargo run` are
//! replaced. The others are in a table, with the reason why they are not run.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use markdown::{blocks, code_spans, documents, files, prose, read, root};

#[path = "docs/commands.rs"]
mod commands;
#[path = "docs/limits.rs"]
mod limits;
#[path = "docs/markdown.rs"]
mod markdown;
#[path = "docs/place.rs"]
mod place;
#[path = "docs/program.rs"]
#[allow(dead_code, reason = "it is compiled, not run")]
mod program;

/// Folders of the repository whose files documents name.
const FOLDERS: [&str; 6] = ["crates/", "broker/", "client-sdk/", "tests/", "docs/", "deploy/"];

#[test]
fn the_program_of_the_readme_is_compiled() {
    let compiled = fs::read_to_string(root().join("tests/tests/docs/program.rs")).unwrap();
    let (_, compiled) = compiled.split_once("\n\n").unwrap();
    let shown = blocks(&read("README.md")).into_iter().find(|block| block.info == "rust").unwrap();
    assert_eq!(shown.text, compiled, "README.md and tests/tests/docs/program.rs differ");
}

#[test]
fn links_lead_somewhere() {
    let wrong: Vec<String> = documents().iter().flat_map(|document| broken_links(document)).collect();
    assert!(wrong.is_empty(), "broken links:\n{}", wrong.join("\n"));
}

#[test]
fn paths_that_are_named_exist() {
    let mut wrong = Vec::new();
    for document in documents() {
        for path in code_spans(&read(&document)).iter().filter_map(|span| span.split_whitespace().next()) {
            let named =
                FOLDERS.iter().any(|folder| path.starts_with(folder)) && !path.contains(['*', '<', '{']);
            if named && !root().join(path).exists() {
                wrong.push(format!("{document}: {path}"));
            }
        }
    }
    assert!(wrong.is_empty(), "named, and not there:\n{}", wrong.join("\n"));
}

/// "`name` in `path`", "`one` and `other` of `path`", "`path` (`one`, `other`)".
#[test]
fn names_are_in_the_files_that_are_said_to_have_them() {
    let mut wrong = Vec::new();
    let mut looked_up = 0;
    for document in documents() {
        for (path, names) in names_by_file(&read(&document)) {
            let source = fs::read_to_string(root().join(&path)).unwrap_or_default();
            let words: HashSet<&str> = source.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            looked_up += names.len();
            let missing = names.iter().filter(|name| !words.contains(name.as_str()));
            wrong.extend(missing.map(|name| format!("{document}: {name} in {path}")));
        }
    }
    assert!(wrong.is_empty(), "named, and not there:\n{}", wrong.join("\n"));
    assert!(looked_up > 20, "only {looked_up} names were found");
}

#[test]
fn messages_that_are_explained_are_in_the_code() {
    let sources = ["broker/src", "client-sdk/src", "crates"].map(|folder| files(&root().join(folder), "rs"));
    let sources =
        sources.concat().iter().map(|path| joined(&fs::read_to_string(path).unwrap())).collect::<String>();
    let page = read("docs/troubleshooting.md");
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let messages: Vec<&str> = cells.flat_map(|cell| cell.split('`').step_by(2)).collect();
    assert!(messages.len() > 50, "{messages:?}");
    let unknown: Vec<_> =
        messages.iter().filter(|message| !sources.contains(&literal_part(message))).collect();
    assert!(unknown.is_empty(), "no source has these: {unknown:#?}");
}

#[test]
fn rows_of_tables_have_the_cells_of_their_head() {
    let mut wrong = Vec::new();
    for document in documents() {
        let mut head = None;
        for line in prose(&read(&document)).lines() {
            if !line.starts_with('|') {
                head = None;
                continue;
            }
            let cells = line.replace(r"\|", "").matches('|').count();
            if *head.get_or_insert(cells) != cells {
                wrong.push(format!("{document}: {}", line.chars().take(60).collect::<String>()));
            }
        }
    }
    assert!(wrong.is_empty(), "rows that are in another table:\n{}", wrong.join("\n"));
}

/// Each Rust file that a document names, with the names that it is said to have.
fn names_by_file(text: &str) -> Vec<(String, Vec<String>)> {
    let text = prose(text);
    // Prose and code take turns.
    let parts: Vec<&str> = text.split('`').collect();
    let is_file = |path: &str| FOLDERS.iter().any(|f| path.starts_with(f)) && path.ends_with(".rs");
    // The item itself: of `Maker::schedule` the function.
    let name = |at: usize| {
        let code = parts.get(at)?.split("::").last()?;
        code.chars().all(|c| c.is_alphanumeric() || c == '_').then(|| code.to_owned())
    };
    let between = |at: usize| parts.get(at).map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
    let mut found = Vec::new();
    for at in (1..parts.len()).step_by(2).filter(|at| is_file(parts[*at])) {
        let mut names = Vec::new();
        let mut before = at;
        while before > 2 && between(before - 1).is_some_and(|text| ["in", "of", "and", ","].contains(&&*text))
        {
            let is_first = before == at;
            let text = between(before - 1).unwrap_or_default();
            // "`a.rs`, `b.rs`" and "`a.rs` and `b.rs`" name no items.
            if is_first != ["in", "of"].contains(&&*text) {
                break;
            }
            before -= 2;
            names.extend(name(before));
        }
        let mut after = at;
        while between(after + 1) == Some(if after == at { "(" } else { "," }.to_owned()) {
            after += 2;
            names.extend(name(after));
        }
        found.push((parts[at].to_owned(), names));
    }
    found
}

/// The prose without what stands between backticks.
fn without_code(text: &str) -> String {
    prose(text).split('`').step_by(2).collect()
}

fn broken_links(document: &str) -> Vec<String> {
    let text = without_code(&read(document));
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let inside = targets.filter(|target| !target.contains("://"));
    let broken = |target: &&str| {
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let folder = Path::new(document).parent().unwrap();
        let path = if path.is_empty() { PathBuf::from(document) } else { folder.join(path) };
        let there = root().join(&path).exists();
        !there || !anchor.is_empty() && !anchors(&read(path.to_str().unwrap())).contains(&anchor.to_owned())
    };
    inside.filter(broken).map(|target| format!("{document}: {target}")).collect()
}

/// The anchors of a document's headings, as GitHub and GitLab make them.
fn anchors(text: &str) -> Vec<String> {
    let text = prose(text);
    let headings =
        text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let anchor =
        |heading: &str| heading.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-");
    headings.map(anchor).collect()
}

/// The longest part of a message without what stands for something else: `ADDR`, `N`, `...`,
/// numbers.
fn literal_part(message: &str) -> String {
    let stands_for_something = |word: &&str| {
        let word = word.trim_matches(|c: char| !c.is_alphanumeric());
        word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    };
    let words: Vec<&str> = message.split_whitespace().collect();
    let parts = words.split(stands_for_something).map(|part| part.join(" "));
    let longest = parts.max_by_key(String::len).unwrap();
    longest.trim_matches([':', ';', ',', '.']).to_owned()
}

/// A source file with texts that go on in the next line made one.
fn joined(source: &str) -> String {
    let lines: Vec<&str> = source.split("\\\n").collect();
    lines.iter().enumerate().map(|(n, line)| if n == 0 { line } else { line.trim_start() }).collect()
}
