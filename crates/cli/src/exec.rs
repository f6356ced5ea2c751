//! A command as a handler: its exit code is the outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use mtimer_client::{Callback, Headers, Mode, Outcome};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

/// Exit code for "try again" (EX_TEMPFAIL of sysexits).
const TRY_AGAIN: i32 = 75;
/// Exit code for "not now".
const LATER: i32 = 80;
/// How long a command may take to end after its time is over.
const GRACE: Duration = Duration::from_secs(5);
/// How often to look whether the command's own children have ended, too.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Exit code for "it will never be done".
const FAIL: i32 = 100;

/// Variables that describe the callback to the command.
const CHILD_VARIABLES: [&str; 11] = [
    "MTIMER_ID",
    "MTIMER_KEY",
    "MTIMER_GROUP",
    "MTIMER_APP",
    "MTIMER_DUE_MS",
    "MTIMER_ATTEMPT",
    "MTIMER_EPOCH",
    "MTIMER_MODE",
    "MTIMER_TIMEOUT_MS",
    "MTIMER_LATENESS_MS",
    "MTIMER_HEADERS",
];

/// Begins the name of a variable for one header.
const HEADER_VARIABLE: &str = "MTIMER_HEADER_";
/// Headers that programs look for under these names, as OpenTelemetry has it.
const TRACE_VARIABLES: [(&str, &str); 2] = [("traceparent", "TRACEPARENT"), ("tracestate", "TRACESTATE")];

/// Whether a variable describes a callback.
pub(crate) fn is_child_variable(name: &str) -> bool {
    CHILD_VARIABLES.contains(&name) || name.starts_with(HEADER_VARIABLE)
}

/// After how long a callback comes again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delays {
    /// If it is to be tried again; `None`: after the timer's own delay.
    pub(crate) retry: Option<Duration>,
    /// If the command ends with [`LATER`].
    pub(crate) later: Duration,
}

/// Runs a command for a callback: payload on standard input, the rest in variables. When the
/// callback times out, the command and its children get TERM, and KILL after [`GRACE`].
pub(crate) async fn run(line: &str, callback: &Callback, delays: Delays, quiet: bool) -> Outcome {
    let retry = |error: String| match delays.retry {
        Some(after) => Outcome::retry_after(after, error),
        None => Outcome::retry(error),
    };
    let mut child = match start(line, callback, quiet) {
        Ok(child) => child,
        Err(e) => return retry(format!("the command could not be started: {e}")),
    };
    let pid = child.id();
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A command that does not read its input is none the worse for it.
            let _ = stdin.write_all(&callback.payload).await;
        }
    };
    match wait(&mut child, pid, feed, callback).await {
        Some(Ok(status)) if status.code() == Some(LATER) => Outcome::later(delays.later),
        Some(Ok(status)) => outcome(status, retry),
        Some(Err(e)) => retry(format!("the command's end could not be seen: {e}")),
        None => {
            kill(&mut child, pid).await;
            retry(format!("the command was killed {} ms after its time was over", GRACE.as_millis()))
        }
    }
}

/// Waits for the command, and longer by [`GRACE`] than it has. `None`: it has not ended.
async fn wait(
    child: &mut Child,
    pid: Option<u32>,
    feed: impl Future<Output = ()>,
    callback: &Callback,
) -> Option<std::io::Result<ExitStatus>> {
    let finished = async { tokio::join!(child.wait(), feed).0 };
    tokio::pin!(finished);
    tokio::select! {
        ended = &mut finished => return Some(ended),
        () = callback.timed_out() => end_group(pid),
    }
    let all = async {
        let ended = finished.await;
        while group_lives(pid) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        ended
    };
    tokio::time::timeout(GRACE, all).await.ok()
}

fn start(line: &str, callback: &Callback, quiet: bool) -> std::io::Result<Child> {
    let mut command = shell(line);
    let mode = match callback.mode {
        Mode::AtLeastOnce => "at-least-once",
        Mode::AtMostOnce => "at-most-once",
    };
    let values = [
        callback.id.to_string(),
        callback.key.as_ref().map(ToString::to_string).unwrap_or_default(),
        callback.dest.group().to_owned(),
        callback.dest.app().to_owned(),
        callback.due.to_string(),
        callback.attempt.to_string(),
        callback.epoch.to_string(),
        mode.to_owned(),
        callback.timeout.as_millis().to_string(),
        callback.lateness_ms().to_string(),
        serde_json::to_string(callback.headers()).unwrap_or_default(),
    ];
    command.envs(CHILD_VARIABLES.into_iter().zip(values));
    header_variables(&mut command, callback.headers());
    // Standard output is for the callbacks, if a program reads them.
    let stdout = if quiet { Stdio::from(std::io::stderr()) } else { Stdio::inherit() };
    command.stdin(Stdio::piped()).stdout(stdout).kill_on_drop(true).spawn()
}

/// Sets the variables of the headers, and removes those that this process has inherited from
/// another callback.
fn header_variables(command: &mut Command, headers: &Headers) {
    let told = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    told.filter(|name| name.starts_with(HEADER_VARIABLE)).for_each(|name| _ = command.env_remove(name));
    for (name, value) in own_variables(headers) {
        command.env(name, value);
    }
    for (header, variable) in TRACE_VARIABLES {
        match headers.get(header) {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
    }
}

/// Each header with its variable. Headers that would share one have none: which of them the command
/// got would be chance.
fn own_variables(headers: &Headers) -> BTreeMap<String, &str> {
    let (mut own, mut shared) = (BTreeMap::new(), BTreeSet::new());
    for (name, value) in headers.iter() {
        let name = format!("{HEADER_VARIABLE}{}", name.to_ascii_uppercase().replace(['-', '.'], "_"));
        if own.insert(name.clone(), value).is_some() {
            shared.insert(name);
        }
    }
    own.retain(|name, _| !shared.contains(name));
    own
}

#[cfg(unix)]
fn shell(line: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    // A group of its own, so that all of it can be killed and a Ctrl-C at the terminal is not meant
    // for it.
    command.arg("-c").arg(line).process_group(0);
    command
}

#[cfg(not(unix))]
fn shell(line: &str) -> Command {
    let mut command = Command::new("cmd");
    command.arg("/C").arg(line);
    command
}

#[cfg(unix)]
fn group(pid: Option<u32>) -> Option<rustix::process::Pid> {
    rustix::process::Pid::from_raw(pid?.cast_signed())
}

/// Asks the command and its children to end.
fn end_group(pid: Option<u32>) {
    #[cfg(unix)]
    if let Some(group) = group(pid) {
        // It may have ended by itself just now.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::TERM);
    }
    #[cfg(not(unix))]
    let _ = pid;
}

/// Whether anything that the command has started is still there.
fn group_lives(pid: Option<u32>) -> bool {
    #[cfg(unix)]
    return group(pid).is_some_and(|group| rustix::process::test_kill_process_group(group).is_ok());
    #[cfg(not(unix))]
    return {
        let _ = pid;
        false
    };
}

async fn kill(child: &mut Child, pid: Option<u32>) {
    #[cfg(unix)]
    if let Some(group) = group(pid) {
        // As above.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    #[cfg(not(unix))]
    let _ = pid;
    // As above.
    let _ = child.kill().await;
}

fn outcome(status: ExitStatus, retry: impl FnOnce(String) -> Outcome) -> Outcome {
    match status.code() {
        Some(0) => Outcome::ok(),
        Some(FAIL) => Outcome::fail("the command ended with exit code 100"),
        Some(TRY_AGAIN) => {
            retry("the command ended with exit code 75 and wants to be tried again".to_owned())
        }
        Some(code) => retry(format!("the command ended with exit code {code}")),
        None => retry(format!("the command was ended: {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_differ_by_dots_and_hyphens_share_no_variable() {
        let headers = Headers::new([("a-b", "1"), ("a.b", "2"), ("a_b", "3"), ("c-d", "4")]).unwrap();
        let own: Vec<_> = own_variables(&headers).into_iter().collect();
        assert_eq!(own, [("MTIMER_HEADER_C_D".to_owned(), "4")]);
    }
}
