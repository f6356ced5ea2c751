//! `mtimer schedule`: one timer from flags, or many from a file.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use mtimer_client::{Client, Headers, KeyPolicy, Mode, Priority, When, limits};
use serde_json::json;

use super::args::{ClientArgs, WhenArgs, name_and_value};
use super::exit::{Exit, Failure};
use super::file::{self, line};
use super::moment::{self, Deadline};
use super::output::{Output, note};

/// Schedules a timer, or a file full of them
#[derive(Args, Debug)]
#[command(
    long_about = "Schedules a timer, or a file full of them\n\n\
        Prints the timer's id once it is stored. The id names the timer in get, cancel and reschedule; so does the key, \
        if it was given one.\n\n\
        With --file, one JSON object a line:\n\n  \
        {\"in\": \"1500ms\", \"group\": \"g\", \"app\": \"a\"}\n  \
        {\"at\": \"2030-01-31T12:00:00Z\", \"group\": \"g\", \"app\": \"a\", \"key\": \"order-17\"}\n\n\
        Fields: \"in\" (a duration) or \"at\" (RFC 3339, or ms since 1970); \"group\" and \"app\" (or by flags, for lines \
        without); optionally \"id\", \"key\", \"payload\" (text, or any other JSON value as it is written) or \"payload_base64\", \"headers\" (an object \
        of texts), \"mode\" (at-least-once, at-most-once), \"priority\" (urgent, high, normal, low), \"deadline\" (a time, or a duration after the due time), \"retry\" (\"1s,5s\"), \
        \"callback_timeout\". Any other field is an error. An \"id\" that is a timer id made for the line's time is the \
        timer's id; any other text there is a key.\n\n\
        The file is checked as a whole first. Bad lines are reported with their numbers, and then nothing is sent; with \
        --skip-bad the others are. A file can be sent again: where a line has a key or an id, a timer that is there \
        stays as it is (with --file, --key-policy keep is the default). Of those, \"kept while being delivered\" counts \
        the timers whose handlers may have begun before their lines were sent: if something has to run after it, send \
        such lines without a key, or with --key-policy replace. With --key-policy debounce the broker computes the due times; \
        the times of the lines do not count.",
    after_help = "Examples:\n  mtimer schedule --group demo --app hello --in 5s --payload 'it is time'\n  \
        mtimer schedule --group shop --app orders --key order-17 --in 15m --retry 1s,30s,5m\n  \
        mtimer schedule --group shop --app mail --at 2030-01-31T12:00:00+01:00 --deadline 1h\n  \
        mtimer schedule --file timers.ndjson --skip-bad --json\n  \
        generate | mtimer schedule --file - --group shop --app orders\n  \
        mtimer schedule --group shop --app index --key item-9 --key-policy debounce --quiet 5s --max 1m"
)]
pub(crate) struct ScheduleCommand {
    /// The destination's group key
    #[arg(long, required_unless_present = "file")]
    group: Option<String>,
    /// The destination's app key
    #[arg(long, required_unless_present = "file")]
    app: Option<String>,
    #[command(flatten)]
    when: WhenArgs,
    /// Your own name for the timer, unique within group and app while it is live
    #[arg(long, conflicts_with = "file")]
    key: Option<String>,
    /// What to do if the key names a live timer [default: create; with --file: keep]
    #[arg(long, value_enum, value_name = "POLICY")]
    key_policy: Option<PolicyArg>,
    /// With --key-policy debounce: due so long after the last schedule of the key, 1ms to 24h
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = moment::span)]
    #[arg(requires = "key_policy")]
    quiet: Option<Duration>,
    /// With --key-policy debounce: due at the latest so long after the first of them, up to 24h
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = moment::span)]
    #[arg(requires = "key_policy")]
    max: Option<Duration>,
    /// The timer's id, made for the time in --at; any other text is a key
    #[arg(long, conflicts_with = "file", conflicts_with = "key")]
    id: Option<String>,
    /// What the handler gets: text, up to 64 KiB
    #[arg(long, conflicts_with_all = ["file", "payload_file"], value_name = "TEXT")]
    payload: Option<String>,
    /// What the handler gets: the contents of a file, up to 64 KiB
    #[arg(long, conflicts_with = "file", value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// A header that the handler gets, such as tenant=acme; may be repeated. With --file: for the
    /// lines that do not have it
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = name_and_value)]
    headers: Vec<(String, String)>,
    /// How often it may be delivered [default: at-least-once]
    #[arg(long, value_enum)]
    mode: Option<ModeArg>,
    /// Who goes first among the destination's timers that wait for capacity: of 15 turns urgent
    /// ones have 8, high ones 4, normal ones 2, low ones 1 [default: normal]
    #[arg(long, value_enum)]
    priority: Option<PriorityArg>,
    /// After this it is not delivered any more: a time, or a duration after the due time [default:
    /// never]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = Deadline::parse)]
    deadline: Option<Deadline>,
    /// Delays before attempt 2, 3, ..., such as 1s,5s; empty: one attempt only [default: the
    /// broker's]
    #[arg(long, value_name = "DELAYS", allow_hyphen_values = true, value_parser = line::RetryDelays::read)]
    retry: Option<line::RetryDelays>,
    /// How long a handler may take, 100ms to 24h [default: the broker's]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = moment::span)]
    callback_timeout: Option<Duration>,
    /// A file of timers, a JSON object a line; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["after", "at"], help_heading = "Many timers")]
    file: Option<PathBuf>,
    /// Send the good lines although there are bad ones
    #[arg(long, requires = "file", help_heading = "Many timers")]
    skip_bad: bool,
    /// Say which id the timer of each line has
    #[arg(long, requires = "file", help_heading = "Many timers")]
    ids: bool,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PolicyArg {
    /// Refuse, and name the live timer
    Create,
    /// Cancel the live timer and schedule this one, in one step
    Replace,
    /// Leave the live timer as it is
    Keep,
    /// Replace the live timer, due at the later of the two times
    Latest,
    /// Replace the live timer, due at the sooner of the two times
    Earliest,
    /// Replace the live timer, due --quiet from now, but not later than --max after the first
    Debounce,
}

/// A debounce of these times, if they are within the limits.
fn debounce(quiet: Duration, max: Duration) -> Result<KeyPolicy, Failure> {
    let ms = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    let policy = KeyPolicy::Debounce { quiet_ms: ms(quiet), max_ms: ms(max) };
    policy.validate().map_err(|error| Failure::usage(error.to_string()))?;
    Ok(policy)
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ModeArg {
    /// Until it is acknowledged; duplicates can follow faults
    AtLeastOnce,
    /// Once at most, whatever fails
    AtMostOnce,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PriorityArg {
    Urgent,
    High,
    Normal,
    Low,
}

/// The message about a timer that was kept although its handler may have begun.
const KEPT_BEING_DELIVERED: &str = "kept, being delivered: the live timer's handler may have begun before this \
    call. If something has to run after it, schedule again without a key or with --key-policy replace";

impl ScheduleCommand {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        let headers = Headers::new(self.headers.iter().map(|(name, value)| (name, value)))
            .map_err(|error| Failure::new(Exit::Refused, error.to_string()))?;
        let common = line::Fields {
            headers,
            group: self.group.clone(),
            app: self.app.clone(),
            mode: self.mode.map(|m| match m {
                ModeArg::AtLeastOnce => Mode::AtLeastOnce,
                ModeArg::AtMostOnce => Mode::AtMostOnce,
            }),
            priority: self.priority.map(|p| match p {
                PriorityArg::Urgent => Priority::Urgent,
                PriorityArg::High => Priority::High,
                PriorityArg::Normal => Priority::Normal,
                PriorityArg::Low => Priority::Low,
            }),
            deadline: self.deadline,
            retry: self.retry.clone().map(|line::RetryDelays(delays)| delays),
            callback_timeout: self.callback_timeout,
            ..line::Fields::default()
        };
        let policy = self.policy()?;
        if let Some(path) = &self.file {
            let send = async |client: &Client| {
                let partitions = client.info().partitions;
                let maker =
                    line::Maker { defaults: common, policy, repeatable: true, partitions, dest: None };
                file::run(client, path, maker, (self.skip_bad, self.ids), out).await
            };
            return self.client.with(send).await;
        }
        let fields = line::Fields {
            when: Some(self.when(policy)?),
            id: self.id.clone(),
            key: self.key.clone(),
            payload: self.payload()?.into(),
            ..common
        };
        self.one(fields, policy, out).await
    }

    fn policy(&self) -> Result<Option<KeyPolicy>, Failure> {
        let Some(policy) = self.key_policy else { return Ok(None) };
        let policy = match (policy, self.quiet, self.max) {
            (PolicyArg::Debounce, Some(quiet), Some(max)) => return debounce(quiet, max).map(Some),
            (PolicyArg::Debounce, ..) => {
                return Err(Failure::usage("--key-policy debounce needs --quiet and --max".to_owned()));
            }
            (_, Some(_), _) | (_, _, Some(_)) => {
                let text = "--quiet and --max go with --key-policy debounce: leave them out";
                return Err(Failure::usage(text.to_owned()));
            }
            (PolicyArg::Create, None, None) => KeyPolicy::Create,
            (PolicyArg::Replace, None, None) => KeyPolicy::Replace,
            (PolicyArg::Keep, None, None) => KeyPolicy::Keep,
            (PolicyArg::Latest, None, None) => KeyPolicy::Latest,
            (PolicyArg::Earliest, None, None) => KeyPolicy::Earliest,
        };
        Ok(Some(policy))
    }

    /// When the timer is due. The broker computes it for a debounce.
    fn when(&self, policy: Option<KeyPolicy>) -> Result<When, Failure> {
        match (policy, self.when.when()) {
            (Some(KeyPolicy::Debounce { quiet_ms, .. }), None) => {
                Ok(When::After(Duration::from_millis(quiet_ms.into())))
            }
            (Some(KeyPolicy::Debounce { .. }), Some(_)) => {
                let text = "--key-policy debounce says when: leave out --in and --at";
                Err(Failure::usage(text.to_owned()))
            }
            _ => self.when.required(),
        }
    }

    async fn one(&self, fields: line::Fields, policy: Option<KeyPolicy>, out: Output) -> Result<(), Failure> {
        let scheduled = self
            .client
            .with(async |client| {
                let (partitions, defaults) = (client.info().partitions, line::Fields::default());
                let mut maker = line::Maker { defaults, policy, repeatable: false, partitions, dest: None };
                let schedule = maker.schedule(fields, client.now()).map_err(Failure::usage)?;
                Ok(client.schedule(schedule).await?)
            })
            .await?;
        let object = json!({
            "id": scheduled.id,
            "due_ms": scheduled.due,
            "new": scheduled.new,
            "kept": scheduled.kept,
            "being_delivered": scheduled.being_delivered,
            "replaced": scheduled.replaced,
        });
        if scheduled.being_delivered {
            note(KEPT_BEING_DELIVERED);
        }
        out.either(&object, || scheduled.id.to_string())
    }

    fn payload(&self) -> Result<Vec<u8>, Failure> {
        let Some(path) = &self.payload_file else {
            return Ok(self.payload.clone().unwrap_or_default().into_bytes());
        };
        let limit = limits::MAX_PAYLOAD_BYTES;
        // A device or a pipe does not say how long it is.
        let mut payload = Vec::new();
        let read = File::open(path).and_then(|file| file.take(limit as u64 + 1).read_to_end(&mut payload));
        read.map_err(|e| Failure::file("read", path, &e))?;
        if payload.len() > limit {
            let text = format!(
                "{} has at least {} bytes, the limit of a payload is {limit}: send a reference",
                path.display(),
                payload.len()
            );
            return Err(Failure::new(Exit::Refused, text));
        }
        Ok(payload)
    }
}
