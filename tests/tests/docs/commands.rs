//! Which blocks of commands are run, and which are not, with the reason.
//!
//! Invariant: each is either marked, in a document that [`run`] is called for, or in [`NOT_RUN`].
//! Whether the `mtimer` commands of the others are at least valid is tested in
//! `crates/cli/src/documented.rs`.

use std::collections::BTreeSet;

use super::markdown::{blocks, documents, read};
use super::place::{BLOCK_SECONDS, Place, Shell, TERMINAL_SECONDS};

/// What the marks of blocks are, see [`run`].
const MARKS: [&str; 3] = ["sh run", "sh run first", "sh background"];
/// What other blocks are.
const OTHERS: [&str; 8] = ["sh", "", "text", "toml", "yaml", "rust", "rust,no_run", "mermaid"];

// Why blocks are not run.
const BUILDS: &str = "builds the workspace anew";
const TESTS: &str = "runs tests, by the thousand or by the hour";
const TOOLS: &str = "installs tools, and runs for hours";
const LOCAL_CLUSTER: &str = "builds the workspace; the rest is run by crates/cli/tests/local_cluster.rs";
const CONTAINERS: &str = "needs a daemon of containers, and images from a registry";
const KUBERNETES: &str = "needs Kubernetes";
const ROOT: &str = "changes the system, as root";
const NOT_AN_END: &str = "runs until it is stopped, with a program that the reader writes";
const TWO_CLUSTERS: &str = "needs two clusters; tests/tests/transfer.rs runs the same";
const AN_ID: &str = "has an id that is another one each time";

/// The blocks of commands that are not run: the document, the line of the block that tells it from
/// all others there, the reason.
const NOT_RUN: &[(&str, &str, &str)] = &[
    ("README.md", "deploy/local/up", LOCAL_CLUSTER),
    ("README.md", "tests/run", TESTS),
    ("deploy/README.md", "deploy/local/up", LOCAL_CLUSTER),
    ("deploy/README.md", "docker run --rm mtimer demo", CONTAINERS),
    ("deploy/README.md", "docker compose -f deploy/compose/compose.yaml up --build", CONTAINERS),
    ("deploy/README.md", "--entrypoint mtimer tokens", CONTAINERS),
    ("deploy/README.md", "systemctl daemon-reload && systemctl enable --now mtimer", ROOT),
    ("deploy/README.md", "cd /etc/mtimer && chgrp mtimer-files", ROOT),
    ("deploy/README.md", "--name operator", KUBERNETES),
    ("deploy/README.md", "kubectl create secret generic mtimer-tokens", KUBERNETES),
    ("deploy/README.md", "kubectl create secret generic mtimer-tls", KUBERNETES),
    ("deploy/README.md", "kubectl apply -k deploy/kubernetes", KUBERNETES),
    ("docs/mutations.md", "cargo install cargo-mutants cargo-nextest", TOOLS),
    ("docs/mutations.md", "MTIMER_SIM_SEEDS=40 cargo nextest run", TESTS),
    ("docs/operations.md", "mtimer export --broker old:7400 --out", TWO_CLUSTERS),
    ("docs/operations.md", "mtimer export --broker old:7400 --check", TWO_CLUSTERS),
    ("docs/operations.md", "mtimer import timers.ndjson", TWO_CLUSTERS),
    ("docs/operations.md", "mtimer bulk release", TWO_CLUSTERS),
    ("docs/quick-start.md", "cargo build --release", BUILDS),
    ("docs/quick-start.md", "--exec ./on-unpaid", NOT_AN_END),
    ("docs/reliability.md", "cargo test -p mtimer-core --test simulation", TESTS),
    ("docs/reliability.md", "cargo nextest run -p mtimer-store-redis", TESTS),
    ("docs/reliability.md", "tests/fuzz/run", TESTS),
    ("docs/reliability.md", "tests/servers --list", TESTS),
    ("docs/security.md", "mtimer token rotate", AN_ID),
    ("docs/security.md", "mtimer token grant", AN_ID),
    ("docs/security.md", "mtimer token revoke --file tokens.toml 74e548bce013266f --yes", AN_ID),
    ("docs/traces.md", "cargo build --release --features otel", BUILDS),
];

/// A document whose marked blocks are run.
struct Guide {
    document: &'static str,
    /// What the document takes for granted, started before its first block.
    given: &'static str,
    /// Options with which a client of the brokers that it starts can ask whether they are ready.
    client: &'static [&'static str],
}

/// Makes a test of each guide, and the list of all.
macro_rules! guides {
    ($($test:ident: $guide:expr;)*) => {
        const GUIDES: &[Guide] = &[$($guide),*];
        $(#[test] fn $test() { run(&$guide); })*
    };
}

guides! {
    the_commands_of_the_readme_run:
        Guide { document: "README.md", given: "", client: &[] };
    the_commands_of_the_quick_start_run:
        Guide { document: "docs/quick-start.md", given: "", client: &[] };
    the_commands_of_operations_run:
        Guide { document: "docs/operations.md", given: "", client: &[] };
    the_commands_of_metrics_run: Guide {
        document: "docs/metrics.md",
        given: "mtimer dev --listen 127.0.0.1:7400 --http 127.0.0.1:7480",
        client: &[],
    };
    the_commands_of_security_run: Guide {
        document: "docs/security.md",
        given: "redis-server --port 6379 --save ''",
        client: &["--tls-ca", "ca.pem", "--token-file", "peer-token"],
    };
}

#[test]
fn each_block_of_commands_runs_or_says_why_not() {
    let guides: BTreeSet<&str> = GUIDES.iter().map(|guide| guide.document).collect();
    let (mut wrong, mut listed) = (Vec::new(), BTreeSet::new());
    for document in documents() {
        for block in blocks(&read(&document)) {
            let at = format!("{document}, line {}", block.line);
            let row = NOT_RUN.iter().position(|row| row.0 == document && block.text.contains(row.1));
            let marked = MARKS.contains(&block.info.as_str());
            if !marked && !OTHERS.contains(&block.info.as_str()) {
                wrong.push(format!("{at}: what is {:?}? Commands are `sh`", block.info));
            } else if !block.is_shell() && block.text.lines().any(|line| line.starts_with("$ ")) {
                wrong.push(format!("{at}: commands are `sh`, without a prompt"));
            } else if marked && !guides.contains(&*document) {
                wrong.push(format!("{at}: marked, in a document that is not in GUIDES"));
            } else if block.is_shell() && marked == row.is_some() {
                wrong.push(format!("{at}: neither marked nor in NOT_RUN, or both:\n{}", block.text));
            } else if block.is_shell() && !row.is_none_or(|row| listed.insert(row)) {
                wrong.push(format!("{at}: the row of another block is also in this one"));
            }
        }
    }
    let gone = NOT_RUN.iter().enumerate().filter(|(n, _)| !listed.contains(n));
    wrong.extend(gone.map(|(_, row)| format!("{}: no block has {:?}", row.0, row.1)));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs the marked blocks of a document, in their order: `sh run first` before all others,
/// `sh run` to its end, `sh background` until the end of the document.
fn run(guide: &Guide) {
    let Guide { document, given, client } = guide;
    let place = Place::new();
    let text = read(document);
    let mut terminals = Vec::new();
    let mut background = |line: usize, text: &str| {
        let terminal = Shell::start(&place, line, text, TERMINAL_SECONDS);
        terminal.until_it_prints();
        place.until_ready(text, client);
        terminals.push(terminal);
    };
    if !given.is_empty() {
        background(0, given);
    }
    let (first, others): (Vec<_>, Vec<_>) =
        blocks(&text).into_iter().partition(|block| block.info == "sh run first");
    let mut ran = 0;
    for block in first.iter().chain(&others) {
        match block.info.as_str() {
            "sh background" => background(block.line, &block.text),
            "sh run" | "sh run first" => {
                let status = Shell::start(&place, block.line, &block.text, BLOCK_SECONDS).wait();
                let at = format!("{document}, line {}: {status}", block.line);
                assert!(status.success(), "{at}\n{}\n{}", block.text, place.everything_printed());
                ran += 1;
            }
            _ => {}
        }
    }
    assert!(ran > 0, "{document}: no block is marked `sh run`");
}
