//! The embedded store on a disk that fills up: a small one, mounted for the broker alone.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{Ended, Running, mtimer, run, wait_for};
use crate::troubles::{Broker, FLAGS};

const MIB: u64 = 1 << 20;
/// The disk, and what the broker is told of it.
const DISK: u64 = 512 * MIB;
const WATERMARK: u64 = 400 * MIB;
const RESERVE: u64 = 256 * MIB;

/// A broker with a disk of its own.
struct OnSmallDisk(Broker);

impl OnSmallDisk {
    /// Starts one. Whoever runs the test must be root, or may make user namespaces: otherwise there
    /// is none, and that is said.
    fn start(flags: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk");
        std::fs::create_dir(&disk).unwrap();
        let tried = apart().args(["mount", "-t", "tmpfs", "none"]).arg(&disk).output().unwrap();
        if !tried.status.success() {
            let why = format!(
                "this test mounts a disk in a namespace of its own: run it as root, or allow user namespaces ({})",
                String::from_utf8_lossy(&tried.stderr).trim()
            );
            assert!(!std::env::var("MTIMER_NO_SKIP").is_ok_and(|value| value == "1"), "{why}");
            eprintln!("SKIPPED {why}");
            return None;
        }
        let mount = format!("mount -t tmpfs -o size={DISK} none {} && exec \"$0\" \"$@\"", disk.display());
        let data = disk.join("timers");
        let plain = mtimer(&[]);
        let mut command = apart();
        command.args(["sh", "-c", &mount]).arg(plain.get_program());
        command.args(FLAGS).arg("--data").arg(data);
        command.args(flags).stdin(Stdio::null()).stdout(Stdio::piped());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Some(Self(Broker::spawn(folder, command)))
    }

    fn run(&self, args: &[&str]) -> Ended {
        self.0.run(args)
    }

    fn schedule(&self, after: &str) -> Ended {
        self.run(&["schedule", "--group", "g", "--app", "a", "--in", after])
    }

    fn free(&self) -> u64 {
        let status = self.run(&["status", "--json"]).ok().json();
        status["counters"]["store_disk_free_bytes"].as_u64().unwrap_or_else(|| panic!("{status}"))
    }

    fn free_by_metrics(&self) -> Option<f64> {
        self.0.metric("mtimer_store_disk_free_bytes")
    }

    fn log(&self) -> String {
        self.0.log()
    }

    /// The disk as the broker sees it.
    fn disk(&self) -> PathBuf {
        let root = format!("/proc/{}/root", self.0.running.pid());
        Path::new(&root).join(self.0.folder.path().strip_prefix("/").unwrap()).join("disk")
    }

    /// Leaves so many bytes free: fills a file, or cuts it.
    fn leave(&self, free: u64) {
        let disk = self.disk();
        let stat = rustix::fs::statvfs(&disk).unwrap();
        let filler = disk.join("filler");
        let length = std::fs::metadata(&filler).map_or(0, |m| m.len());
        let wanted = (length + stat.f_bavail * stat.f_frsize).saturating_sub(free);
        let mut file = File::options().create(true).append(true).open(filler).unwrap();
        file.set_len(wanted.min(length)).unwrap();
        // The broker may take the last bytes itself.
        let _ = file.write_all(&vec![1; wanted.saturating_sub(length) as usize]);
    }
}

/// A command whose process mounts what no other sees.
fn apart() -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.arg("--mount");
    command
}

#[test]
fn a_disk_that_fills_up_is_told_of_and_refuses_only_what_adds() {
    let (watermark, reserve) = (WATERMARK.to_string(), RESERVE.to_string());
    let flags = ["--disk-watermark", &watermark, "--disk-reserve", &reserve];
    let Some(broker) = OnSmallDisk::start(&flags) else { return };
    assert!(broker.free() > WATERMARK);
    assert_eq!(broker.0.metric("mtimer_store_disk_level"), Some(0.0));
    let id = |ended: Ended| ended.ok().out.trim().to_owned();
    let (kept, cancelled) = (id(broker.schedule("1h")), id(broker.schedule("1h")));
    assert_eq!(broker.log().matches("free space").count(), 0);

    broker.leave((WATERMARK + RESERVE) / 2);
    wait_for("warned", || {
        broker.log().contains("free space on the disk of the data directory is low").then_some(())
    });
    let is_said = |words: &str| broker.run(&["status"]).ok().out.contains(words).then_some(());
    wait_for("it is said", || is_said("! the disk of the data directory is nearly full: "));
    assert_eq!(broker.0.metric("mtimer_store_disk_level"), Some(1.0));
    // Nobody listens before the disk is full: it fires then, whether it is due or parked.
    let fired = id(broker.schedule("5s"));

    broker.leave(RESERVE / 2);
    let refused =
        wait_for("refused", || Some(broker.schedule("1h")).filter(|ended| ended.code != 0)).code(13);
    let free = broker.free();
    assert!(free < RESERVE, "{free}");
    wait_for("the metric", || broker.free_by_metrics().filter(|free| *free < RESERVE as f64));
    broker.0.shows(
        "the disk of the data directory is full but for the reserve",
        ("mtimer_store_disk_level", 2.0),
        "new timers are refused: the disk of the data directory has ",
    );
    let disk = broker.0.folder.path().join("disk");
    for part in ["the store is full", "bytes are free at", disk.to_str().unwrap(), "free space there"] {
        assert!(refused.err.contains(part), "{refused:?}");
    }
    broker.run(&["reschedule", &kept, "--in", "2h"]).code(13);
    broker.run(&["cancel", &cancelled]).ok();
    // What is stored is delivered and settled.
    let mut listener =
        Running::start(&["listen", "--group", "g", "--app", "a", "--json", "--broker", &broker.0.addr]);
    let line = listener.line();
    assert!(line.contains(&fired), "{fired} in {line}");
    wait_for("settled", || {
        let counters = broker.run(&["status", "--json"]).ok().json()["counters"].take();
        (counters["acknowledged_total"] == 1).then_some(())
    });
    let free = broker.free();
    assert!(free < RESERVE, "{free}: the disk is as full as before");
    broker.schedule("1h").code(13);

    broker.leave(DISK);
    wait_for("taken again", || (broker.schedule("1ms").code == 0).then_some(()));
    wait_for("the metric", || broker.0.metric("mtimer_store_disk_level").filter(|level| *level == 0.0));
    assert!(listener.line().contains("\"payload\""));
    wait_for("told", || broker.log().contains("there is enough free space").then_some(()));
    broker.run(&["reschedule", &kept, "--in", "2h"]).ok();
    let log = broker.log();
    let counts = ["is low", "is full but for", "is enough"].map(|words| log.matches(words).count());
    assert_eq!(counts, [1, 1, 1], "each change is told once: {log}");
}

#[test]
fn a_disk_that_somebody_else_fills_stops_the_broker_until_there_is_space_again() {
    let Some(mut broker) = OnSmallDisk::start(&["--disk-watermark", "0", "--disk-reserve", "64MiB"]) else {
        return;
    };
    let mut listener =
        Running::start(&["listen", "--group", "g", "--app", "a", "--json", "--broker", &broker.0.addr]);
    let stored = broker.schedule("20s").ok().out.trim().to_owned();
    broker.leave(0);
    // A cancel of an id that is nowhere is remembered, so it is written whatever the reserve.
    let mut digits = "0123456789abcdefghjkmnpqrstvwxyz".chars().cycle();
    wait_for("stopped", || {
        let unknown = format!("{}{}", &stored[..stored.len() - 1], digits.next().unwrap());
        if unknown != stored {
            broker.run(&["cancel", &unknown, "--request-timeout", "1s"]);
        }
        broker.log().contains("the embedded store has stopped").then_some(())
    });
    let log = broker.log();
    assert!(log.contains("too little space") && log.contains("goes on by itself"), "{log}");
    assert_ne!(
        broker.run(&["schedule", "--group", "g", "--app", "a", "--in", "1h", "--request-timeout", "1s"]).code,
        0
    );
    assert_eq!(broker.0.running.try_wait(), None, "the broker lives: {}", broker.log());

    broker.leave(DISK);
    let line = listener.line();
    assert!(line.contains(&stored), "{stored} in {line}");
    wait_for("taken again", || (broker.schedule("1h").code == 0).then_some(()));
    assert!(broker.log().contains("there is enough space again"), "{}", broker.log());
}

#[test]
fn a_reserve_that_is_too_small_to_go_on_is_refused() {
    let refused = run(&["broker", "--disk-reserve", "0"]).code(2);
    assert!(refused.err.contains("disk-reserve: 0 bytes: give it at least 64MiB"), "{refused:?}");
}
