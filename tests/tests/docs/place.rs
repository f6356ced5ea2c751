//! Where the commands of a document run: a folder and ports of their own, shells that end.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use mtimer_store_redis::test_support::Port;
use mtimer_tests::{Signal, mtimer, signal, without_settings};
use tempfile::TempDir;

/// How long one block may take, seconds. `timeout` ends it then, with all that it has started.
pub(super) const BLOCK_SECONDS: u64 = 60;
/// The same for one that runs until the end of its document.
pub(super) const TERMINAL_SECONDS: u64 = 600;
/// The ports of brokers that documents use.
const BROKERS: [u16; 4] = [7400, 7401, 7402, 7403];
/// The ports of Redis and of metrics that documents use.
const OTHERS: [u16; 2] = [6379, 7480];
/// The addresses that documents use besides 127.0.0.1, which stands for them here.
const HOSTS: [&str; 3] = ["10.0.0.5", "10.0.0.11", "0.0.0.0"];

/// Where a document's commands run: a folder, and ports of its own.
pub(super) struct Place {
    folder: TempDir,
    ports: BTreeMap<u16, Port>,
}

impl Place {
    pub(super) fn new() -> Self {
        let folder = TempDir::with_prefix("mtimer-docs-").unwrap();
        // With this curl fails if it is answered anything but 200.
        fs::write(folder.path().join(".curlrc"), "fail\n").unwrap();
        let ports = BROKERS.into_iter().chain(OTHERS).map(|port| (port, Port::of_a_broker())).collect();
        Self { folder, ports }
    }

    /// The text with addresses of this place, and with the built program in place of `cargo run`.
    fn adapt(&self, text: &str) -> String {
        let text = text.replace("cargo run --release --", "mtimer");
        let text = HOSTS.iter().fold(text, |text, host| text.replace(host, "127.0.0.1"));
        let own = |word: &str| Some(self.ports.get(&word.parse().ok()?)?.number.to_string());
        // Digits and what is between them, in turn.
        let words = text.as_bytes().chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit());
        let words = words.map(|word| std::str::from_utf8(word).unwrap());
        words.map(|word| own(word).unwrap_or_else(|| word.to_owned())).collect()
    }

    fn broker(&self, shown: u16) -> String {
        format!("127.0.0.1:{}", self.ports[&shown].number)
    }

    /// Waits until the brokers whose ports a block names have joined their cluster. They are asked
    /// with the options of `client`.
    pub(super) fn until_ready(&self, text: &str, client: &[&str]) {
        let began = Instant::now();
        for shown in BROKERS.into_iter().filter(|port| text.contains(&port.to_string())) {
            let mut ping = Command::new(mtimer());
            ping.args(["ping", "--ready", "--broker", &self.broker(shown)]).args(client);
            without_settings(&mut ping).current_dir(self.folder.path());
            while !ping.output().unwrap().status.success() {
                let printed = || self.everything_printed();
                assert!(began.elapsed().as_secs() < BLOCK_SECONDS, "{shown} is not ready:\n{}", printed());
                sleep(Duration::from_millis(20));
            }
        }
    }

    pub(super) fn everything_printed(&self) -> String {
        let logs = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut logs: Vec<PathBuf> =
            logs.filter(|path| path.extension().is_some_and(|e| e == "log")).collect();
        logs.sort();
        let shown = |path: &PathBuf| format!("--- {}\n{}", path.display(), fs::read_to_string(path).unwrap());
        logs.iter().map(shown).collect()
    }
}

/// A block that runs. When it is dropped, it ends with all that it has started.
pub(super) struct Shell {
    child: Child,
    log: PathBuf,
}

impl Shell {
    /// Starts the commands that a document has at a line.
    pub(super) fn start(place: &Place, line: usize, text: &str, seconds: u64) -> Self {
        let log = place.folder.path().join(format!("line-{line:04}.log"));
        let out = File::create(&log).unwrap();
        let path = format!("{}:{}", mtimer().parent().unwrap().display(), std::env::var("PATH").unwrap());
        // `timeout` is the leader of a process group, and passes signals on to all of it.
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &seconds.to_string(), "bash", "-euo", "pipefail", "-c"]);
        command.arg(place.adapt(text));
        without_settings(&mut command);
        let folder = place.folder.path();
        command.env("PATH", path).env("TMPDIR", folder).env("HOME", folder).current_dir(folder);
        // Commands that name no broker mean this one.
        let usual = place.broker(BROKERS[0]);
        command.env("MTIMER_LISTEN", &usual).env("MTIMER_BROKER", &usual);
        command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
        Self { child: command.spawn().unwrap(), log }
    }

    pub(super) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub(super) fn until_it_prints(&self) {
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
