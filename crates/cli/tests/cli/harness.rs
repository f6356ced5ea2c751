//! Starts `mtimer`, and looks at what comes out.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mtimer_store_redis::test_support::{Authority, Server, ServerOptions, TlsPort};
use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take before a test gives up.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// The program that is tested.
pub(crate) const MTIMER: &str = env!("CARGO_BIN_EXE_mtimer");

/// A command that sees nothing of this process's settings. Brokers serve no HTTP: several run at a
/// time, and the default port is one.
pub(crate) fn mtimer(args: &[&str]) -> Command {
    command(MTIMER, args)
}

/// The same of another program, which starts [`MTIMER`].
pub(crate) fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|n| n.starts_with("MTIMER_") || n == "RUST_LOG") {
            command.env_remove(name);
        }
    }
    command.env("MTIMER_HTTP", "off");
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a broker's HTTP port answers: status line, head and body.
pub(crate) fn http_get(addr: &str, path: &str) -> String {
    let mut socket = TcpStream::connect(addr).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

/// The value of a metric at a broker's HTTP port; `None`: there is none with these labels.
pub(crate) fn metric(addr: &str, sample: &str) -> Option<f64> {
    let page = http_get(addr, "/metrics");
    let line = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}

/// A Redis with a TLS port that asks clients for certificates, and the flags to enter it.
pub(crate) fn redis_over_tls() -> (Server, [String; 6]) {
    let authority = Arc::new(Authority::new());
    let (certificate, key) = authority.issue("client");
    let ca = authority.certificate();
    let tls = Some(TlsPort { authority, clients_too: true });
    let redis = Server::start_with(ServerOptions { tls, ..ServerOptions::default() });
    let [ca, certificate, key] = [ca, certificate, key].map(|path| path.display().to_string());
    let flag = |name: &str| format!("--redis-tls-{name}");
    (redis, [flag("ca"), ca, flag("cert"), certificate, flag("key"), key])
}

/// What a command that has ended has left.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    /// Each line of standard output as JSON.
    pub(crate) fn lines(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
        self.out.lines().map(parse).collect()
    }

    /// Standard output as one JSON object.
    pub(crate) fn json(&self) -> Value {
        let mut lines = self.lines();
        assert_eq!(lines.len(), 1, "{self:?}");
        lines.remove(0)
    }

    pub(crate) fn ok(self) -> Self {
        self.code(0)
    }

    pub(crate) fn code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }
}

/// Runs a command to its end.
pub(crate) fn run(args: &[&str]) -> Ended {
    run_with(args, b"")
}

/// Runs a command to its end, with this on its standard input.
pub(crate) fn run_with(args: &[&str], input: &[u8]) -> Ended {
    end(mtimer(args), input)
}

/// Runs a command to its end, with this on its standard input.
pub(crate) fn end(mut command: Command, input: &[u8]) -> Ended {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feed = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let (out, err) = (read(child.stdout.take().unwrap()), read(child.stderr.take().unwrap()));
    let Some(status) = within_timeout(|| child.try_wait().unwrap()) else {
        child.kill().unwrap();
        child.wait().unwrap();
        panic!("{command:?} does not end: {:?}", (out.join(), err.join()));
    };
    feed.join().unwrap();
    Ended { code: status.code().unwrap_or(-1), out: out.join().unwrap(), err: err.join().unwrap() }
}

/// Looks again and again until there is something; panics if it never comes.
pub(crate) fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within_timeout(look).unwrap_or_else(|| panic!("never {what}"))
}

/// Other processes tell nobody when they change: they are looked at, until they are as wanted or
/// the time is over.
fn within_timeout<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    while began.elapsed() < TIMEOUT {
        if let Some(found) = look() {
            return Some(found);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    None
}

/// Reads to the end, beside everything else.
fn read(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    })
}

/// A process that is killed when the test ends, however it ends.
pub(crate) struct Running {
    child: Child,
    out: Option<BufReader<ChildStdout>>,
}

impl Running {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::spawn(mtimer(args))
    }

    /// The same of a command with settings of its own.
    pub(crate) fn spawn_logging_to(log: std::fs::File, command: Command) -> Self {
        Self::spawn_with(command, log.into())
    }

    /// One whose standard error goes to a file.
    pub(crate) fn logging_to(log: std::fs::File, args: &[&str]) -> Self {
        Self::spawn_with(mtimer(args), log.into())
    }

    /// One whose output nobody wants to see.
    pub(crate) fn silent(args: &[&str]) -> Self {
        let mut command = mtimer(args);
        command.stdout(Stdio::null());
        Self::spawn(command)
    }

    fn spawn(command: Command) -> Self {
        Self::spawn_with(command, Stdio::null())
    }

    fn spawn_with(mut command: Command, stderr: Stdio) -> Self {
        let mut child = command.stderr(stderr).spawn().unwrap();
        let out = child.stdout.take().map(BufReader::new);
        Self { child, out }
    }

    /// The next line of standard output; empty at its end.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.as_mut().unwrap().read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Sends a signal, if it has not ended by now.
    pub(crate) fn signal_if_there(&self, name: &str) {
        let pid = self.child.id().to_string();
        // It is not reaped before the test has seen its end, so the number is still its own.
        let _ = Command::new("kill").args(["-s", name, &pid]).status().unwrap();
    }

    /// Its exit code, if it has ended.
    pub(crate) fn try_wait(&mut self) -> Option<i32> {
        self.child.try_wait().unwrap().map(|status| status.code().unwrap_or(-1))
    }

    /// Its exit code, and what is left of its output.
    pub(crate) fn wait(mut self) -> (i32, String) {
        let mut rest = String::new();
        self.out.as_mut().unwrap().read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code().unwrap_or(-1), rest)
    }

    /// Closes its standard output, for nobody reads it any more, and waits for its end.
    pub(crate) fn close_output(mut self) -> i32 {
        self.out = None;
        self.child.wait().unwrap().code().unwrap_or(-1)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A broker of one's own, in a folder of its own.
pub(crate) struct Dev {
    running: Option<Running>,
    pub(crate) addr: String,
    pub(crate) data: TempDir,
}

impl Dev {
    /// Starts one whose retries come soon.
    pub(crate) fn start() -> Self {
        Self::with(&["--retry", "50ms,50ms", "--jitter-percent", "0"])
    }

    pub(crate) fn with(settings: &[&str]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let (running, addr) = start(data.path(), "127.0.0.1:0", settings);
        Self { running: Some(running), addr, data }
    }

    /// Runs a client command against it.
    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        run(&self.args(args))
    }

    pub(crate) fn run_with(&self, args: &[&str], input: &[u8]) -> Ended {
        run_with(&self.args(args), input)
    }

    /// Starts a client command that goes on.
    pub(crate) fn start_client(&self, args: &[&str]) -> Running {
        Running::start(&self.args(args))
    }

    /// The arguments with the broker's address.
    pub(crate) fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        args.iter().copied().chain(["--broker", self.addr.as_str()]).collect()
    }

    /// Schedules a timer for g/a; its id.
    pub(crate) fn schedule(&self, args: &[&str]) -> String {
        let all: Vec<&str> = ["schedule", "--group", "g", "--app", "a"].iter().chain(args).copied().collect();
        self.run(&all).ok().out.trim().to_owned()
    }

    pub(crate) fn status(&self) -> Value {
        self.run(&["status", "--json"]).ok().json()
    }

    /// Asks for the status until it is as wanted.
    pub(crate) fn wait_for(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, || Some(self.status()).filter(&is))
    }

    /// The process alone.
    pub(crate) fn into_running(mut self) -> Running {
        self.running.take().unwrap()
    }

    /// Stops it gracefully.
    pub(crate) fn stop(&mut self) -> i32 {
        self.end("TERM")
    }

    /// Ends it by a signal; its exit code.
    pub(crate) fn end(&mut self, signal: &str) -> i32 {
        let running = self.running.take().unwrap();
        running.signal(signal);
        running.wait().0
    }

    /// Kills it and starts another in the same place, on the same data.
    pub(crate) fn crash(&mut self) {
        drop(self.running.take());
        let (running, addr) = start(self.data.path(), &self.addr, &[]);
        assert_eq!(addr, self.addr);
        self.running = Some(running);
    }
}

fn start(data: &Path, listen: &str, settings: &[&str]) -> (Running, String) {
    let data = data.join("timers");
    let args = ["dev", "--json", "--listen", listen, "--data", data.to_str().unwrap()];
    let args: Vec<&str> = args.iter().chain(settings).copied().collect();
    let mut running = Running::start(&args);
    let line = running.line();
    let ready: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
    let addr = ready["listening"].as_str().unwrap().to_owned();
    (running, addr)
}

/// Ends threads.
#[derive(Default)]
pub(crate) struct Done(AtomicBool);

impl Done {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Is set when what this returns is dropped.
    pub(crate) fn at_the_end(&self) -> impl Drop + use<'_> {
        struct AtTheEnd<'a>(&'a AtomicBool);
        impl Drop for AtTheEnd<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        AtTheEnd(&self.0)
    }
}

/// Repeats a call until `meanwhile` is over, which is given a function that waits for so many more
/// calls.
pub(crate) fn while_calling(call: impl Fn() + Sync, meanwhile: impl FnOnce(&dyn Fn(u64))) {
    let (calls, done) = (AtomicU64::new(0), Done::default());
    let more_calls = |n| {
        let before = calls.load(Ordering::Relaxed);
        wait_for("more calls", || (calls.load(Ordering::Relaxed) >= before + n).then_some(()));
    };
    thread::scope(|scope| {
        // Also if the test fails.
        let _done = done.at_the_end();
        scope.spawn(|| {
            while !done.is_set() {
                call();
                calls.fetch_add(1, Ordering::Relaxed);
            }
        });
        meanwhile(&more_calls);
    });
}
