//! A broker of the measurement's own: a child process, and its leftovers.
//!
//! Invariant: the child does not outlive the measurement: it is stopped at the end and on errors,
//! killed if it does not stop, and told to stop by the system if this process ends without having
//! done so ([`end_with_parent`]). Signals of a terminal reach only the measurement, which then
//! stops the broker gracefully.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::time::timeout;

use super::args::Common;
use crate::exit::{Exit, Failure};
use crate::local::{Rest, folder};
use crate::moment::span;
use crate::output::note;

/// How long it may take to start: it may have ten million timers to look over.
const START_WITHIN: Duration = Duration::from_secs(120);
/// How long it may take to stop.
const STOP_WITHIN: Duration = Duration::from_secs(60);

/// How it says that it stops.
const STOPPING: &str = "stopping:";

/// A broker that runs, or has been stopped.
pub(super) struct Own {
    flags: Vec<String>,
    preload: Duration,
    running: Option<BrokerProcess>,
    rest: Rest,
}

struct BrokerProcess {
    child: Child,
    addr: String,
    /// Kept open: it may have more to say.
    _out: BufReader<ChildStdout>,
}

impl Own {
    /// Starts one on an empty store of its own.
    pub(super) async fn start(common: &Common, partitions: Option<u16>) -> Result<Self, Failure> {
        // It is in every key: about as long as people's names are.
        let cluster = format!("bench-{:08x}", rand::random::<u32>());
        let mut flags = vec!["--cluster".to_owned(), cluster.clone()];
        let mut flag = |name: &str, value: String| flags.extend([name.to_owned(), value]);
        let rest = match common.redis.as_slice() {
            [] => {
                let folder: TempDir = folder(common.dir.as_deref())?;
                flag("--data", folder.path().join("data").display().to_string());
                Rest::Folder(folder)
            }
            urls => {
                flag("--redis", urls.join(","));
                common.tls.given().for_each(|(name, file)| flag(name, file.display().to_string()));
                Rest::Keys(common.tls.options(urls, &cluster))
            }
        };
        if let Some(durability) = common.durability {
            flag("--durability", durability.name().to_owned());
        }
        if let Some(partitions) = common.partitions.or(partitions) {
            flag("--partitions", partitions.to_string());
        }
        flag("--log-level", common.log.filter());
        flags.extend(common.flags.iter().cloned());
        let mut own = Self { flags, preload: Duration::ZERO, running: None, rest };
        match own.begin().await {
            Ok(()) => Ok(own),
            Err(failure) => {
                own.end().await;
                Err(failure)
            }
        }
    }

    async fn begin(&mut self) -> Result<(), Failure> {
        self.resume().await?;
        self.preload = preload(&self.flags).await?;
        Ok(())
    }

    /// How far ahead it loads timers.
    pub(super) fn preload(&self) -> Duration {
        self.preload
    }

    /// Starts it again on its store, and waits until it serves.
    pub(super) async fn resume(&mut self) -> Result<(), Failure> {
        self.running = Some(spawn(&self.flags).await?);
        Ok(())
    }

    /// Where it listens.
    pub(super) fn addr(&self) -> Option<&str> {
        self.running.as_ref().map(|running| running.addr.as_str())
    }

    /// Its process.
    pub(super) fn pid(&self) -> Option<u32> {
        self.running.as_ref()?.child.id()
    }

    /// Stops it gracefully.
    pub(super) async fn stop(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        match running.child.try_wait() {
            Ok(Some(status)) => note(&format!("the broker had ended by itself: {status}")),
            _ => {
                tell(&running.child);
                if timeout(STOP_WITHIN, running.child.wait()).await.is_err() {
                    note(&format!(
                        "the broker did not stop within {} s and is killed",
                        STOP_WITHIN.as_secs()
                    ));
                    kill(&mut running.child).await;
                }
            }
        }
    }

    /// Kills it, as a crash would.
    pub(super) async fn crash(&mut self) {
        if let Some(mut running) = self.running.take() {
            kill(&mut running.child).await;
        }
    }

    /// Stops it and removes its leftovers.
    pub(super) async fn end(mut self) {
        self.stop().await;
        self.rest.remove().await;
    }
}

/// The broker with these flags, not started yet.
fn command(flags: &[String]) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--json", "bench", "broker", "--listen", "127.0.0.1:0"]).args(flags);
    // The settings of the measuring process are none of its own.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("MTIMER_")) {
        command.env_remove(name);
    }
    // The usual address may belong to another broker.
    command.env("MTIMER_HTTP", "off");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    #[cfg(unix)]
    command.process_group(0);
    Ok(command)
}

/// How far ahead a broker with these flags loads timers: it is asked, for there may be a settings
/// file among them.
async fn preload(flags: &[String]) -> Result<Duration, Failure> {
    let failed =
        |what: String| Failure::new(Exit::Failed, format!("the broker does not tell its settings: {what}"));
    let mut command = command(flags).map_err(|e| failed(e.to_string()))?;
    let asked = timeout(START_WITHIN, command.arg("--print-config").output()).await;
    let said = match asked {
        Ok(Ok(output)) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Ok(Err(error)) => return Err(failed(error.to_string())),
        Err(_) => return Err(failed(format!("nothing heard of it within {} s", START_WITHIN.as_secs()))),
    };
    let settings: Value = serde_json::from_str(&said).unwrap_or_default();
    let preload = settings["preload"].as_str().ok_or_else(|| failed(format!("no preload in {said:?}")))?;
    span(preload).map_err(failed)
}

async fn spawn(flags: &[String]) -> Result<BrokerProcess, Failure> {
    let failed = |what: String| Failure::new(Exit::Failed, format!("the broker did not start: {what}"));
    let mut command = command(flags).map_err(|e| failed(e.to_string()))?;
    let mut child = command.spawn().map_err(|e| failed(e.to_string()))?;
    let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(failed("it has no output".to_owned()));
    };
    // Ends with the child.
    tokio::spawn(pass_on(err));
    let mut out = BufReader::new(out);
    let mut line = String::new();
    let read = timeout(START_WITHIN, out.read_line(&mut line)).await;
    let said = match read {
        Ok(Ok(_)) => serde_json::from_str::<Value>(&line).unwrap_or_default(),
        Ok(Err(error)) => return Err(failed(error.to_string())),
        Err(_) => return Err(failed(format!("nothing heard of it within {} s", START_WITHIN.as_secs()))),
    };
    match (said["listening"].as_str(), said["message"].as_str()) {
        (Some(addr), _) => Ok(BrokerProcess { child, addr: addr.to_owned(), _out: out }),
        (None, Some(message)) => Err(failed(message.to_owned())),
        (None, None) => Err(failed("it ended without a word; are the flags after -- right?".to_owned())),
    }
}

/// Shows its log, but for the lines about a stop that it was told to make.
async fn pass_on(log: ChildStderr) {
    let mut lines = BufReader::new(log).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if !line.starts_with(STOPPING) {
            note(&line);
        }
    }
}

#[cfg(unix)]
fn tell(child: &Child) {
    use rustix::process::{Pid, Signal, kill_process};
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    // If it has gone in between, all the better.
    pid.map(|pid| kill_process(pid, Signal::TERM));
}

#[cfg(not(unix))]
fn tell(_: &Child) {}

async fn kill(child: &mut Child) {
    // It may have ended in between.
    let _ = child.kill().await;
}

/// In the child: gets SIGTERM when the process that has started this one ends, however that comes
/// about.
#[cfg(target_os = "linux")]
pub(super) fn end_with_parent() -> Result<(), Failure> {
    use rustix::process::{Signal, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|e| Failure::new(Exit::Failed, format!("cannot watch the parent process: {e}")))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn end_with_parent() -> Result<(), Failure> {
    Ok(())
}
