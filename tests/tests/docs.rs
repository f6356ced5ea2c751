//! The documents are true where a program can tell: their commands run, their links lead somewhere,
//! and the paths and messages that they name exist.
//!
//! In the README and in the quick start a block that is marked `sh run` is run and has to succeed.
//! One that is marked `sh background` is a terminal of its own: it runs until the end of the
//! document. Ports and `cargo run` are replaced, see [`Place::adapt`].

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use mtimer_store_redis::test_support::Port;
use mtimer_tests::{Signal, mtimer, signal};
use tempfile::TempDir;

#[path = "docs/program.rs"]
#[allow(dead_code, reason = "it is compiled, not run")]
mod program;

/// How long one block may take, seconds. `timeout` ends it then, with all that it has started.
const BLOCK_SECONDS: u64 = 60;
/// The same for one that runs until the end of its document.
const TERMINAL_SECONDS: u64 = 600;
/// The ports of brokers that documents use.
const BROKERS: [u16; 4] = [7400, 7401, 7402, 7403];
/// The port of Redis that documents use.
const REDIS: u16 = 6379;
/// Folders of the repository whose files documents name.
const FOLDERS: [&str; 6] = ["crates/", "broker/", "client-sdk/", "tests/", "docs/", "deploy/"];

#[test]
fn the_commands_of_the_readme_run() {
    run("README.md", 2);
}

#[test]
fn the_commands_of_the_quick_start_run() {
    run("docs/quick-start.md", 5);
}

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

/// Runs the marked blocks of a document; at least `least` of them must be in it.
fn run(document: &str, least: usize) {
    let place = Place::new();
    let (mut terminals, mut ran) = (Vec::new(), 0);
    for block in blocks(&read(document)) {
        match block.info.as_str() {
            "sh background" => {
                let terminal = Shell::start(&place, &block, TERMINAL_SECONDS);
                terminal.until_it_prints();
                place.until_ready(&block);
                terminals.push(terminal);
            }
            "sh run" => {
                let status = Shell::start(&place, &block, BLOCK_SECONDS).wait();
                let at = format!("{document}, line {}: {status}", block.line);
                assert!(status.success(), "{at}\n{}\n{}", block.text, place.everything_printed());
                ran += 1;
            }
            _ => {}
        }
    }
    assert!(ran >= least, "{document}: {ran} blocks are marked `sh run`, fewer than {least}");
}

/// Where a document's commands run: a folder, and ports of its own.
struct Place {
    folder: TempDir,
    ports: BTreeMap<u16, Port>,
}

impl Place {
    fn new() -> Self {
        let folder = TempDir::with_prefix("mtimer-docs-").unwrap();
        let ports = BROKERS.into_iter().chain([REDIS]).map(|port| (port, Port::of_a_broker())).collect();
        Self { folder, ports }
    }

    /// The text with ports of this place, and with the built program in place of `cargo run`.
    fn adapt(&self, text: &str) -> String {
        let text = text.replace("cargo run --release --", "mtimer");
        let own = |word: &str| Some(self.ports.get(&word.parse().ok()?)?.number.to_string());
        // Digits and what is between them, in turn.
        let words = text.as_bytes().chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit());
        let words = words.map(|word| std::str::from_utf8(word).unwrap());
        words.map(|word| own(word).unwrap_or_else(|| word.to_owned())).collect()
    }

    fn broker(&self, shown: u16) -> String {
        format!("127.0.0.1:{}", self.ports[&shown].number)
    }

    /// Waits until the brokers whose ports a block names have joined their cluster.
    fn until_ready(&self, block: &Block) {
        let began = Instant::now();
        for shown in BROKERS.into_iter().filter(|port| block.text.contains(&port.to_string())) {
            let mut ping = Command::new(mtimer());
            ping.args(["ping", "--ready", "--broker", &self.broker(shown)]);
            while !ping.output().unwrap().status.success() {
                let printed = || self.everything_printed();
                assert!(began.elapsed().as_secs() < BLOCK_SECONDS, "{shown} is not ready:\n{}", printed());
                sleep(Duration::from_millis(20));
            }
        }
    }

    fn everything_printed(&self) -> String {
        let logs = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut logs: Vec<PathBuf> =
            logs.filter(|path| path.extension().is_some_and(|e| e == "log")).collect();
        logs.sort();
        let shown = |path: &PathBuf| format!("--- {}\n{}", path.display(), fs::read_to_string(path).unwrap());
        logs.iter().map(shown).collect()
    }
}

/// A block that runs. When it is dropped, it ends with all that it has started.
struct Shell {
    child: Child,
    log: PathBuf,
}

impl Shell {
    fn start(place: &Place, block: &Block, seconds: u64) -> Self {
        let log = place.folder.path().join(format!("line-{:04}.log", block.line));
        let out = File::create(&log).unwrap();
        let path = format!("{}:{}", mtimer().parent().unwrap().display(), std::env::var("PATH").unwrap());
        // `timeout` is the leader of a process group, and passes signals on to all of it.
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &seconds.to_string(), "bash", "-euo", "pipefail", "-c"]);
        command.arg(place.adapt(&block.text));
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"MTIMER_"))
        {
            command.env_remove(name);
        }
        command.env("PATH", path).env("TMPDIR", place.folder.path()).current_dir(place.folder.path());
        // Commands that name no broker mean this one.
        let usual = place.broker(BROKERS[0]);
        command.env("MTIMER_LISTEN", &usual).env("MTIMER_BROKER", &usual);
        command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
        Self { child: command.spawn().unwrap(), log }
    }

    fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    fn until_it_prints(&self) {
        let began = Instant::now();
        while fs::metadata(&self.log).unwrap().len() == 0 {
            assert!(
                began.elapsed().as_secs() < BLOCK_SECONDS,
                "nothing is printed to {}",
                self.log.display()
            );
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            signal(self.child.id(), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

/// A fenced block of a document.
struct Block {
    info: String,
    text: String,
    /// Where it begins, from 1.
    line: usize,
}

fn blocks(text: &str) -> Vec<Block> {
    let (mut found, mut open) = (Vec::new(), None);
    for (n, line) in text.lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some(info), None) => open = Some(Block { info: info.into(), text: String::new(), line: n + 1 }),
            (None, Some(block)) => block.text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    found
}

/// The text without fenced blocks.
fn prose(text: &str) -> String {
    let outside = text.split("\n```").step_by(2);
    outside.collect::<Vec<_>>().join("\n")
}

/// What stands between single backticks.
fn code_spans(text: &str) -> Vec<String> {
    prose(text).split('`').skip(1).step_by(2).map(str::to_owned).collect()
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

/// All documents of the repository, by their paths in it.
fn documents() -> Vec<String> {
    let found = files(&root(), "md");
    assert!(found.len() > 10, "{found:?}");
    found.iter().map(|path| path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned()).collect()
}

/// The files below a folder whose names end so, without those that are built or downloaded.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let others = name.starts_with('.') || ["target", "node_modules", "corpus"].contains(&&*name);
            if path.is_dir() && !others {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(document: &str) -> String {
    fs::read_to_string(root().join(document)).unwrap_or_else(|e| panic!("{document}: {e}"))
}
