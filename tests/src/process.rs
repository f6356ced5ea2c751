//! A child process whose output is kept, and that is killed on drop.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Lines of a log that are kept.
const KEPT: usize = 2_000;
/// Lines shown when a test fails.
const SHOWN: usize = 30;

/// A running (or ended) child.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    lines: Receiver<String>,
    log: Arc<Mutex<Log>>,
}

#[derive(Debug, Default)]
struct Log {
    count: u64,
    last: VecDeque<String>,
}

impl Process {
    /// Starts it: standard output can be read line by line, standard error is kept.
    pub fn start(name: &str, command: &mut Command) -> Self {
        Self::start_observed(name, command, |_| {})
    }

    /// The same; every line of standard error is also shown to `observe`, as it comes.
    pub fn start_observed(
        name: &str,
        command: &mut Command,
        mut observe: impl FnMut(&str) + Send + 'static,
    ) -> Self {
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.unwrap_or_else(|e| panic!("{name}: {command:?}: {e}"));
        let (sender, lines) = channel();
        let out = child.stdout.take().expect("piped");
        // Ends with the child.
        std::thread::spawn(move || each_line(out, |line| _ = sender.send(line)));
        let log = Arc::new(Mutex::new(Log::default()));
        let (err, kept) = (child.stderr.take().expect("piped"), Arc::clone(&log));
        let mut whole = whole_log(name, child.id());
        std::thread::spawn(move || {
            each_line(err, |line| {
                observe(&line);
                if let Some(file) = &mut whole {
                    writeln!(file, "{line}").expect("a place for logs");
                }
                let mut log = kept.lock().unwrap();
                log.count += 1;
                log.last.push_back(line);
                if log.last.len() > KEPT {
                    log.last.pop_front();
                }
            });
        });
        Self { name: name.to_owned(), child, lines, log }
    }

    /// The next line of standard output; `None` if it has ended without one.
    pub fn line(&self, limit: Duration) -> Option<String> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                panic!("{}: no output within {limit:?}{}", self.name, self.tail())
            }
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, what: Signal) {
        signal(self.pid(), what);
    }

    /// How it has ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child process")
    }

    /// Waits for its end.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(began.elapsed() < limit, "{} does not end within {limit:?}{}", self.name, self.tail());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills it at once and waits until it is gone.
    pub fn kill(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Lines of its log so far.
    pub fn log_lines(&self) -> u64 {
        self.log.lock().unwrap().count
    }

    /// The last lines of its log.
    pub fn tail(&self) -> String {
        let log = self.log.lock().unwrap();
        let skip = log.last.len().saturating_sub(SHOWN);
        let lines: Vec<&str> = log.last.iter().skip(skip).map(String::as_str).collect();
        format!("\n--- log of {} ({} lines), the end:\n{}\n---", self.name, log.count, lines.join("\n"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("{}", self.tail());
        }
    }
}

/// The file for all of a process's log, if `MTIMER_LOGS` names a folder for it.
fn whole_log(name: &str, pid: u32) -> Option<File> {
    let folder = std::env::var_os("MTIMER_LOGS")?;
    let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let path = Path::new(&folder).join(format!("{name}-{pid}.log"));
    Some(File::create(&path).unwrap_or_else(|e| panic!("MTIMER_LOGS: {}: {e}", path.display())))
}

/// Sends a signal to a process of this test.
pub fn signal(pid: u32, what: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, what).unwrap_or_else(|e| panic!("signal {what:?} to {pid:?}: {e}"));
}

/// Resident memory of a process, KiB.
pub fn rss_kib(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a running process");
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches("kB").trim().parse().expect("a number")
}

/// Processor time that a process has used, user and system, in seconds.
pub fn cpu_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a running process");
    // After the name in parentheses: state is field 3, utime 14, stime 15.
    let rest = text.rsplit_once(')').expect("a name").1;
    let ticks = |field: usize| -> f64 { rest.split_whitespace().nth(field - 3).unwrap().parse().unwrap() };
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    (ticks(14) + ticks(15)) / per_second
}

fn each_line(from: impl Read, mut take: impl FnMut(String)) {
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        take(String::from_utf8_lossy(&line).trim_end().to_owned());
        line.clear();
    }
}
