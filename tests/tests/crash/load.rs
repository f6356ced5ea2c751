//! The timers: most from files by `mtimer schedule --file`, some from a client; and those who
//! change their minds.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use mtimer_client::{
    Client, Destination, Key, KeyPolicy, Mode, PartitionId, RequestError, Target, Time, TimerId,
};
use mtimer_tests::{Event, Plan, Process, Recorder, Said, host_ms, mtimer};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::Size;

/// The apps of the group.
pub(crate) const APPS: [&str; 3] = ["steady", "other", FLAKY];
/// The app whose handlers fail.
pub(crate) const FLAKY: &str = "flaky";
/// Files that the timers come in.
const FILES: u64 = 5;
/// Callback timeout of timers whose handlers may be too slow, ms.
const SHORT_TIMEOUT_MS: u64 = 1_000;
/// Callback timeout of the others, ms: the broker's.
const LONG_TIMEOUT_MS: u64 = 10_000;
/// Attempts by the broker's retry delays.
const ATTEMPTS: u32 = 3;
/// Keys that are replaced again and again.
const CHAINS: u64 = 20;
/// Due times beyond this many ms are far.
const FAR_MS: u64 = 3_600_000;
/// The CLI names no more refused lines than this.
const TOLD: u64 = 20;

pub(crate) fn dest(app: &str) -> Destination {
    Destination::new("crash", app).unwrap()
}

/// What is to be scheduled.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    seed: u64,
    size: Size,
    begin: u64,
    partitions: u16,
}

/// Timers that are stored, or may be: nobody asks for them any more.
#[derive(Debug, Default)]
pub(crate) struct Sent(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    timers: Vec<(Plan, Target)>,
    complete: bool,
}

impl Sent {
    fn some(&self, rng: &mut StdRng) -> Option<(Plan, Target)> {
        let state = self.0.lock().unwrap();
        let n = state.timers.len();
        (n > 0).then(|| state.timers[rng.random_range(0..n)].clone())
    }

    fn is_complete(&self) -> bool {
        self.0.lock().unwrap().complete
    }
}

impl Load {
    pub(crate) fn new(seed: u64, size: Size, begin: u64, partitions: u16) -> Self {
        Self { seed, size, begin, partitions }
    }

    fn rng(&self, what: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed.wrapping_mul(31).wrapping_add(what))
    }

    /// A due time in ms: some are past, most come during the span, some are far.
    fn due(&self, rng: &mut StdRng) -> u64 {
        match rng.random_range(0..100) {
            0..15 => self.begin - rng.random_range(1..600_000),
            15..80 => self.begin + rng.random_range(500..self.size.span_ms),
            80..90 => self.begin + FAR_MS + rng.random_range(0..FAR_MS * 40),
            _ => self.begin + FAR_MS * 24 * rng.random_range(2..40),
        }
    }

    /// One timer, and the line of the file that asks for it.
    fn line(&self, rng: &mut StdRng, serial: u64) -> (Plan, Option<TimerId>, Value) {
        let app = APPS[rng.random_range(0..APPS.len())];
        let due = self.due(rng);
        let mut plan = Plan::new(serial, &dest(app), due, ATTEMPTS, LONG_TIMEOUT_MS);
        let mut line = json!({ "group": "crash", "app": app });
        if app == FLAKY {
            plan.timeout_ms = SHORT_TIMEOUT_MS;
            line["callback_timeout"] = json!(format!("{SHORT_TIMEOUT_MS}ms"));
        }
        if rng.random_range(0..10) == 0 {
            plan.mode = Mode::AtMostOnce;
            line["mode"] = json!("at-most-once");
        }
        match rng.random_range(0..4) {
            0 => (plan.attempts, line["retry"]) = (2, json!(["200ms"])),
            1 => (plan.attempts, line["retry"]) = (3, json!("100ms,1s")),
            _ => {}
        }
        if due < self.begin + self.size.span_ms && rng.random_range(0..20) == 0 {
            let deadline = due + rng.random_range(300..3_000);
            (plan.deadline, line["deadline"]) = (Some(deadline), json!(deadline));
        }
        let mut id = None;
        if rng.random_range(0..10) == 0 && plan.deadline.is_none() {
            let after = rng.random_range(0..self.size.span_ms / 2);
            // When the tool reads the line is not known; not before this.
            (plan.due, plan.exact) = (host_ms() + after, false);
            line["in"] = json!(format!("{after}ms"));
        } else if rng.random_range(0..3) == 0 {
            line["at"] = json!(due);
        } else {
            let partition = PartitionId(rng.random_range(0..self.partitions));
            let named = TimerId::new(Time::from_ms(due), Time::from_ms(self.begin), partition, rng.random());
            line["at"] = json!(due);
            line["id"] = json!(named.to_string());
            id = Some(named);
        }
        if id.is_none() {
            let key = format!("line-{serial}");
            line["key"] = json!(key);
            plan.key = Some(Key::new(&key).unwrap());
        }
        line["payload"] = json!(String::from_utf8(plan.payload().to_vec()).unwrap());
        line["headers"] = json!(plan.headers());
        (plan, id, line)
    }
}

/// Sends the files, one after the other; what is stored can be changed from then on.
pub(crate) async fn send_files(load: Load, address: String, recorder: Arc<Recorder>, sent: Arc<Sent>) {
    let mut rng = load.rng(1);
    let each = load.size.timers / FILES;
    for file in 0..FILES {
        let mut lines = Vec::new();
        let mut out = NamedTempFile::new().unwrap();
        let mut writer = BufWriter::new(out.as_file_mut());
        for serial in file * each..(file + 1) * each {
            let (plan, id, line) = load.line(&mut rng, serial);
            writeln!(writer, "{line}").unwrap();
            recorder.plan(plan.clone());
            lines.push((plan, id));
        }
        writer.flush().unwrap();
        drop(writer);
        let asked = host_ms();
        let path = out.path().to_owned();
        let to = address.clone();
        let summary = tokio::task::spawn_blocking(move || schedule_file(&to, &path));
        let summary = summary.await.unwrap();
        let said = what_was_said(&summary, lines.len() as u64);
        let answered = host_ms();
        let mut stored = Vec::new();
        for ((plan, id), said) in lines.into_iter().zip(said) {
            let said = if said == STORED { Said::Stored { id, replaced: None } } else { said };
            recorder.add(plan.serial, Event::Schedule { asked, answered, said });
            let by_key = || Target::from((&plan.dest, plan.key.as_ref().unwrap()));
            stored.push((plan.clone(), id.map_or_else(by_key, Target::Id)));
        }
        sent.0.lock().unwrap().timers.extend(stored);
    }
    sent.0.lock().unwrap().complete = true;
}

const STORED: Said = Said::Stored { id: None, replaced: None };

/// Runs the tool, and returns its summary.
fn schedule_file(address: &str, path: &Path) -> Value {
    let mut command = Command::new(mtimer());
    command.args(["schedule", "--json", "--broker", address, "--file"]).arg(path);
    command.args(["--connect-timeout", "60s", "--request-timeout", "60s"]);
    let mut tool = Process::start("mtimer schedule --file", &mut command);
    let line = tool.line(Duration::from_secs(300)).unwrap_or_else(|| panic!("no summary{}", tool.tail()));
    let summary: Value = serde_json::from_str(&line).unwrap();
    let status = tool.wait(Duration::from_secs(30));
    assert_eq!(summary["bad"], 0, "{summary}");
    assert!(status.success() == (summary["refused"] == 0 && summary["not_sent"] == 0), "{status}: {summary}");
    summary
}

/// What each line was told, as far as the summary says.
fn what_was_said(summary: &Value, lines: u64) -> Vec<Said> {
    let refused = summary["refused"].as_u64().unwrap();
    if summary["not_sent"] != 0 || refused > TOLD {
        println!("the file was cut short: {summary}");
        return vec![Said::Unknown; lines as usize];
    }
    let mut all = vec![STORED; lines as usize];
    for line in summary["refused_lines"].as_array().unwrap() {
        println!("a line was refused: {line}");
        all[line["line"].as_u64().unwrap() as usize - 1] = Said::Unknown;
    }
    all
}

/// A client that schedules all along: alone, in batches, and under keys that it replaces.
pub(crate) async fn produce(load: Load, client: Client, recorder: Arc<Recorder>) {
    let mut rng = load.rng(2);
    let mut serial = load.size.timers;
    while host_ms() < load.begin + load.size.span_ms {
        let batch = if rng.random_range(0..4) == 0 { 50 } else { 1 };
        let chains: Vec<u64> = (0..batch).map(|_| rng.random_range(0..CHAINS)).collect();
        let mut plans = Vec::new();
        for chain in chains {
            serial += 1;
            let due = host_ms() + rng.random_range(0..3_000);
            let app = APPS[rng.random_range(0..2)];
            let mut plan = Plan::new(serial, &dest(app), due, ATTEMPTS, LONG_TIMEOUT_MS);
            if batch == 1 && rng.random_range(0..2) == 0 {
                plan.key = Some(Key::new(&format!("chain-{chain}")).unwrap());
                plan.replaces = true;
            }
            recorder.plan(plan.clone());
            plans.push(plan);
        }
        let asked = host_ms();
        let schedules = plans.iter().map(|p| p.schedule().policy(KeyPolicy::Replace)).collect();
        for (plan, result) in plans.iter().zip(client.schedule_all(schedules).await) {
            recorder.scheduled(plan.serial, asked, &result);
        }
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..20))).await;
    }
    client.close().await.unwrap();
}

/// A client that cancels and reschedules what is stored, near and far, while files are being sent
/// and the span lasts.
pub(crate) async fn change(load: Load, client: Client, recorder: Arc<Recorder>, sent: Arc<Sent>) {
    let mut rng = load.rng(3);
    while host_ms() < load.begin + load.size.span_ms || !sent.is_complete() {
        let some: Vec<_> = (0..8).filter_map(|_| sent.some(&mut rng)).collect();
        stream::iter(some)
            .for_each_concurrent(None, |(plan, target)| {
                let (cancel, after) = (rng.random_range(0..3) == 0, rng.random_range(0..6_000));
                let (client, recorder) = (&client, &recorder);
                async move {
                    match cancel {
                        true => _ = cancel_one(client, recorder, &plan, target).await,
                        false => _ = move_one(client, recorder, &plan, target, host_ms() + after).await,
                    }
                }
            })
            .await;
        tokio::time::sleep(Duration::from_millis(rng.random_range(1..20))).await;
    }
    client.close().await.unwrap();
}

/// Cancels half of what is far, and brings the other half near, so that everything ends.
pub(crate) async fn bring_near(client: &Client, recorder: &Recorder, sent: &Sent) {
    let far = host_ms() + FAR_MS / 2;
    let timers = std::mem::take(&mut sent.0.lock().unwrap().timers);
    let timers: Vec<_> = timers.into_iter().filter(|(plan, _)| plan.due > far).collect();
    stream::iter(timers)
        .for_each_concurrent(500, |(plan, target)| async move {
            for _ in 0..20 {
                let result = match plan.serial % 2 {
                    0 => cancel_one(client, recorder, &plan, target.clone()).await.is_ok(),
                    _ => move_one(client, recorder, &plan, target.clone(), host_ms() + plan.serial % 3_000)
                        .await
                        .is_ok(),
                };
                if result {
                    return;
                }
            }
            panic!("timer {} could be neither cancelled nor rescheduled", plan.serial);
        })
        .await;
}

async fn cancel_one(
    client: &Client,
    recorder: &Recorder,
    plan: &Plan,
    target: Target,
) -> Result<(), RequestError> {
    let asked = host_ms();
    let result = client.cancel(target).await;
    recorder.cancelled(plan.serial, asked, &result);
    result.map(|_| ())
}

async fn move_one(
    client: &Client,
    recorder: &Recorder,
    plan: &Plan,
    target: Target,
    due: u64,
) -> Result<(), RequestError> {
    let asked = host_ms();
    let result = client.reschedule(target, Time::from_ms(due)).await;
    recorder.moved(plan.serial, asked, due, &result);
    result.map(|_| ())
}
