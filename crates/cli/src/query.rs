//! Commands about one timer, by id or by key.

use std::time::Duration;

use clap::{Args, Subcommand};
use mtimer_client::{Cancelled, Client, Extended, Rescheduled, Target, Time, When};
use serde_json::{Map, Value, json};

use super::args::{ClientArgs, TargetArgs, WhenArgs};
use super::exit::{Exit, Failure};
use super::output::{Output, Tone};
use super::{dead, moment, view};

#[derive(Subcommand, Debug)]
pub(crate) enum TimerCommand {
    Get(GetCommand),
    Cancel(CancelCommand),
    Reschedule(RescheduleCommand),
    ExtendDeadline(ExtendDeadlineCommand),
}

impl TimerCommand {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        match self {
            Self::Get(get) => get.run(out).await,
            Self::Cancel(cancel) => cancel.run(out).await,
            Self::Reschedule(reschedule) => reschedule.run(out).await,
            Self::ExtendDeadline(extend) => extend.run(out).await,
        }
    }
}

/// Shows a timer, live or dead
///
/// Says where the timer stands: pending, retrying, parked (nobody takes it), in-flight, unconfirmed
/// (at-most-once, sent and never confirmed), dead, or staged by an import; how many attempts have
/// failed, and the last error; of a dead one also the reason and since when. Exit code 5 if there
/// is no such timer: it was never there, or has ended. Dead, unconfirmed and staged timers are
/// found by their ids only: their keys are free for others.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer get 01jz8q4v3c0000g5m3x9w2k7ha\n  \
    mtimer get --group shop --app orders --key order-17 --json")]
pub(crate) struct GetCommand {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    client: ClientArgs,
}

/// Cancels a timer
///
/// "cancelled": no delivery starts any more, by any broker. "too-late" (exit code 6): it was
/// delivered, or may have been; further attempts are stopped. "not-found" (exit code 5): there is
/// no such timer.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer cancel 01jz8q4v3c0000g5m3x9w2k7ha\n  \
    mtimer cancel --group shop --app orders --key order-17")]
pub(crate) struct CancelCommand {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    client: ClientArgs,
}

/// Gives a timer another due time
///
/// "rescheduled": the old time never fires; the id stays valid. "too-late" (exit code 6): it was
/// delivered, or may have been; nothing changed. "not-found" (exit code 5): there is no such timer.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer reschedule 01jz8q4v3c0000g5m3x9w2k7ha --in 10m\n  \
    mtimer reschedule --group shop --app orders --key order-17 --at 2030-01-31T12:00:00Z")]
pub(crate) struct RescheduleCommand {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    when: WhenArgs,
    #[command(flatten)]
    client: ClientArgs,
}

/// Gives a live timer another deadline, later or earlier
///
/// "extended": no delivery begins after the new deadline, and until then the timer does not expire;
/// a delivery under way goes on. "too-late" (exit code 6): no attempt follows. "not-found" (exit
/// code 5): there is no such timer; it may have expired.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer extend-deadline 01jz8q4v3c0000g5m3x9w2k7ha --in 2h\n  \
    mtimer extend-deadline --group shop --app orders --key order-17 --at 2030-01-31T12:00:00Z")]
pub(crate) struct ExtendDeadlineCommand {
    #[command(flatten)]
    target: TargetArgs,
    /// The deadline, so long from now: 250ms, 5s, 2h 30m
    #[arg(long = "in", value_name = "DURATION", allow_hyphen_values = true, value_parser = moment::span, required_unless_present = "at")]
    after: Option<Duration>,
    /// The deadline: RFC 3339, or milliseconds since 1970
    #[arg(long, value_name = "TIME", value_parser = moment::time, conflicts_with = "after")]
    at: Option<Time>,
    #[command(flatten)]
    client: ClientArgs,
}

impl GetCommand {
    async fn run(self, out: Output) -> Result<(), Failure> {
        let target = self.target.target()?;
        let object = self.client.looking(async |client| object_of(client, target).await).await?;
        out.either(&object, || view::fields(&object, out))
    }
}

/// The fields of a timer to show; of a dead one also why and since when.
async fn object_of(client: &Client, target: Target) -> Result<Map<String, Value>, Failure> {
    let found = client.get(target.clone()).await?.ok_or_else(|| missing(&target))?;
    let mut object = view::timer_object(&found);
    if let Some(row) = dead::row_of(client, &found).await? {
        object.extend(row);
    }
    Ok(object)
}

/// The failure of a question about a timer that is not there.
pub(crate) fn missing(target: &Target) -> Failure {
    let text = match target {
        Target::Id(_) => "there is no such timer",
        Target::Key(..) => {
            "no live timer has this key; mtimer list --state dead,unconfirmed --key-prefix finds those that had it"
        }
    };
    Failure::new(Exit::NotFound, text)
}

impl CancelCommand {
    async fn run(self, out: Output) -> Result<(), Failure> {
        let target = self.target.target()?;
        let answer = self.client.with(async |client| Ok(client.cancel(target).await?)).await?;
        let (result, id, exit) = match answer {
            Cancelled::Cancelled(id) => ("cancelled", Some(id), Exit::Done),
            Cancelled::TooLate(id) => ("too-late", Some(id), Exit::TooLate),
            Cancelled::NotFound => ("not-found", None, Exit::NotFound),
        };
        answered(out, result, id, exit)
    }
}

impl RescheduleCommand {
    async fn run(self, out: Output) -> Result<(), Failure> {
        let (target, when) = (self.target.target()?, self.when.required()?);
        let answer = self.client.with(async |client| Ok(client.reschedule(target, when).await?)).await?;
        let (result, id, exit) = match answer {
            Rescheduled::Rescheduled(id) => ("rescheduled", Some(id), Exit::Done),
            Rescheduled::TooLate(id) => ("too-late", Some(id), Exit::TooLate),
            Rescheduled::NotFound => ("not-found", None, Exit::NotFound),
        };
        answered(out, result, id, exit)
    }
}

impl ExtendDeadlineCommand {
    async fn run(self, out: Output) -> Result<(), Failure> {
        let target = self.target.target()?;
        let deadline = self.at.map_or(When::After(self.after.unwrap_or_default()), When::At);
        let answer =
            self.client.with(async |client| Ok(client.extend_deadline(target, deadline).await?)).await?;
        let (result, id, exit) = match answer {
            Extended::Extended(id) => ("extended", Some(id), Exit::Done),
            Extended::TooLate(id) => ("too-late", Some(id), Exit::TooLate),
            Extended::NotFound => ("not-found", None, Exit::NotFound),
        };
        answered(out, result, id, exit)
    }
}

/// Shows an answer that is a result, with any exit code.
fn answered(
    out: Output,
    result: &str,
    id: Option<mtimer_client::TimerId>,
    exit: Exit,
) -> Result<(), Failure> {
    out.either(&json!({ "result": result, "id": id }), || {
        let tone = if exit == Exit::Done { Tone::Good } else { Tone::Bad };
        let id = id.map(|id| format!(" {id}")).unwrap_or_default();
        format!("{}{id}", out.tone(tone, result))
    })?;
    if exit == Exit::Done { Ok(()) } else { Err(Failure::silent(exit)) }
}
