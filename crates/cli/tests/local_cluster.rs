//! `deploy/local/up` starts what it says, survives the death of a broker, and leaves nothing
//! behind.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

const MTIMER: &str = env!("CARGO_BIN_EXE_mtimer");

/// The script, running. Stopped on drop.
struct Up {
    child: Child,
    stdout: BufReader<ChildStdout>,
    first: u16,
    /// What it printed up to when it was ready.
    said: String,
}

impl Up {
    fn start(folder: &Path) -> Self {
        // Somebody else may take a port between the look and the start.
        (0..5).find_map(|_| Self::try_start(folder)).unwrap()
    }

    fn try_start(folder: &Path) -> Option<Self> {
        let first = free_ports();
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/local/up");
        let mut child = Command::new(script)
            .args(["--mtimer", MTIMER, "--ports-from", &first.to_string()])
            // A setting of the caller's is none of these brokers'.
            .envs([("TMPDIR", folder.as_os_str()), ("MTIMER_DATA", "/nowhere".as_ref())])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut up = Self { child, stdout, first, said: String::new() };
        up.said = up.until("Ctrl-C stops everything")?;
        Some(up)
    }

    /// Reads what it prints, up to a line that contains `mark`.
    fn until(&mut self, mark: &str) -> Option<String> {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            if self.stdout.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            all.push_str(&line);
            if line.contains(mark) {
                return Some(all);
            }
        }
    }

    fn broker(&self, n: u16) -> String {
        format!("127.0.0.1:{}", self.first + n)
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            signal("-TERM", &self.child.id().to_string());
            // Nothing can be done about a failure here.
            let _ = self.child.wait();
        }
    }
}

fn signal(signal: &str, pid: &str) {
    assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
}

/// Ports of three brokers, of six Redis nodes, and of their bus.
fn ports(first: u16) -> impl Iterator<Item = u16> {
    [0, 1, 2].into_iter().chain(10..16).chain(10_010..10_016).map(move |n| first + n)
}

fn are_free(first: u16) -> bool {
    ports(first).all(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
}

fn free_ports() -> u16 {
    // The tests of this file run at the same time.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let n = (std::process::id() as u16 % 500 + NEXT.fetch_add(1, Ordering::Relaxed)) % 500;
        if are_free(12_000 + n * 16) {
            return 12_000 + n * 16;
        }
    }
}

fn mtimer(broker: &str, args: &[&str]) -> String {
    let output = Command::new(MTIMER).args(args).env("MTIMER_BROKER", broker).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_cluster_on_one_machine_comes_and_goes() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = Up::start(folder.path());
    for n in 0..3 {
        assert!(mtimer(&up.broker(n), &["status"]).contains("cluster demo"));
    }
    // A timer, through one broker and another.
    let schedule = ["schedule", "--group", "g", "--app", "a", "--in", "1h", "--key", "k"];
    mtimer(&up.broker(0), &schedule);
    // The death of a broker is told; the others go on.
    let line = up.said.lines().find(|line| line.contains(&format!("{} ", up.broker(1)))).unwrap();
    let pid = line.split_once(" pid ").unwrap().1.split_whitespace().next().unwrap();
    signal("-KILL", pid);
    up.until(&format!("the broker on port {} has ended", up.first + 1)).unwrap();
    let others = format!("{},{}", up.broker(0), up.broker(2));
    mtimer(&others, &["get", "--group", "g", "--app", "a", "--key", "k"]);

    signal("-TERM", &up.child.id().to_string());
    let mut rest = String::new();
    up.stdout.read_to_string(&mut rest).unwrap();
    assert!(up.child.wait().unwrap().success(), "{rest}");
    assert!(are_free(up.first), "something still listens");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the folder is removed");
}

#[test]
fn a_broker_that_does_not_start_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/local/up");
    let first = free_ports();
    let output = Command::new(script)
        .args(["--mtimer", "/bin/false", "--ports-from", &first.to_string()])
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("has ended"));
    assert!(are_free(first), "something still listens");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the folder is removed");
}
