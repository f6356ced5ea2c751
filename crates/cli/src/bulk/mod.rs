//! `mtimer bulk`: one action on every timer that matches, as a job that brokers carry out.

mod shown;
mod work;

use std::time::Duration;

use clap::{Args, Subcommand};
use mtimer_client::{Bulk, BulkAction, BulkId, BulkState, Client, ErrorCode, ImportId, RequestError, Time};

use super::args::ClientArgs;
use super::exit::Failure;
use super::filter::{FilterArgs, PendingArgs};
use super::moment;
use super::output::{Output, TextTable, counted, grouped, note, plain};
use work::JobArgs;

/// One action on every timer that matches: cancel, reschedule, replay, purge, release, withdraw
///
/// The brokers do it, as a job, and go on with it also if this command ends or a broker is lost. A
/// job acts once on each timer that there is when it begins, by the rules of the command for a
/// single timer, and on none that is scheduled later. Begin with --dry-run, which counts and changes
/// nothing.
///
/// Of the jobs about live timers (cancel, reschedule, release, withdraw) one is at work at a time
/// and the others wait; so it is with those about dead letters and unconfirmed timers (replay,
/// purge).
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:\n  mtimer bulk cancel --header import=2030-01-31 --dry-run\n  \
    mtimer bulk reschedule --group shop --app orders --by 2h\n  \
    mtimer bulk list")]
pub(crate) enum BulkCommand {
    Cancel(BulkCancel),
    Reschedule(BulkReschedule),
    Replay(BulkReplay),
    Purge(BulkPurge),
    Release(BulkRelease),
    Withdraw(BulkWithdraw),
    List(BulkList),
    Show(BulkShow),
    Stop(BulkStop),
}

/// Cancels every pending or parked timer that matches
///
/// No delivery of a cancelled timer starts any more. A timer that was delivered, or may have been,
/// is counted as one that could not be cancelled; further attempts are stopped, and if the one under
/// way fails it is a dead letter.
///
/// All conditions must hold; without any, --all is needed. Of parked timers --from and --until mean
/// the due time. Asks first; where nobody can be asked, as in scripts, it needs --yes.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer bulk cancel --header import=2030-01-31 --dry-run\n  \
    mtimer bulk cancel --group shop --app orders --key-prefix order- --rate 500\n  \
    mtimer bulk cancel --group test --yes --no-wait")]
pub(crate) struct BulkCancel {
    #[command(flatten)]
    which: LiveArgs,
    #[command(flatten)]
    job: JobArgs,
}

/// Gives every pending or parked timer that matches another due time
///
/// --by moves each due time, and the deadline with it; --to makes one time the due time of all. A
/// time in the past is due at once. Ids stay valid. Not moved are timers of which an attempt has
/// begun, also those that wait for a retry, and with --to those whose deadline is before the new
/// time: they are counted, and the first of them are named.
///
/// All conditions must hold; without any, --all is needed. Of parked timers --from and --until mean
/// the due time. Asks first; where nobody can be asked, as in scripts, it needs --yes.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer bulk reschedule --group shop --app orders --by 2h --dry-run\n  \
    mtimer bulk reschedule --group shop --until 2030-01-31T12:00:00Z --by -30m\n  \
    mtimer bulk reschedule --header tenant=acme --to 2030-01-31T12:00:00Z")]
pub(crate) struct BulkReschedule {
    /// So much later; with a minus, as -30m, so much earlier
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = shift)]
    #[arg(required_unless_present = "to", conflicts_with = "to")]
    by: Option<i64>,
    /// The new due time of all: RFC 3339, or milliseconds since 1970
    #[arg(long, value_name = "TIME", value_parser = moment::time)]
    to: Option<Time>,
    #[command(flatten)]
    which: LiveArgs,
    #[command(flatten)]
    job: JobArgs,
}

/// Delivers every dead letter and unconfirmed timer that matches again
///
/// Now, with a new retry budget; those that die again meanwhile are not replayed a second time. One
/// whose key names another live timer by now stays where it is. --rate spares handlers that have
/// just come back.
///
/// Unconfirmed timers are among them: at-most-once timers that were sent and never confirmed, of
/// which the handler may have run. To replay dead letters alone, or to choose, see `mtimer dead
/// replay`.
///
/// All conditions must hold; without any, --all is needed. --from and --until mean when a timer
/// died, or was taken. Asks first; where nobody can be asked, as in scripts, it needs --yes.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer bulk replay --group shop --app mail --dry-run\n  \
    mtimer bulk replay --group shop --app mail --rate 50\n  \
    mtimer bulk replay --all --from 2030-01-31T12:00:00Z")]
pub(crate) struct BulkReplay {
    #[command(flatten)]
    which: RetainedArgs,
    #[command(flatten)]
    job: JobArgs,
}

/// Removes every dead letter and unconfirmed timer that matches for good
///
/// All conditions must hold; without any, --all is needed. --from and --until mean when a timer
/// died, or was taken. Asks first; where nobody can be asked, as in scripts, it needs --yes.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  mtimer bulk purge --group shop --until 2030-01-31T12:00:00Z --dry-run\n  \
    mtimer bulk purge --group test --yes"
)]
pub(crate) struct BulkPurge {
    #[command(flatten)]
    which: RetainedArgs,
    #[command(flatten)]
    job: JobArgs,
}

/// Ends the staging of an import's timers: they are delivered from then on
///
/// `mtimer import` has staged them, and has shown the import's id. Each becomes what it was in the
/// cluster from which it comes: it waits for its time or its retry, or is a dead letter or
/// unconfirmed. What is past due is delivered at once; --rate spares handlers. A cluster must not
/// deliver the same timers meanwhile: see "Move timers to another cluster" in docs/operations.md.
///
/// Asks first; where nobody can be asked, as in scripts, it needs --yes.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer bulk release 9c1f0be25a7d4e6f8b3a2c1d0e9f8a7b --dry-run\n  \
    mtimer bulk release 9c1f0be25a7d4e6f8b3a2c1d0e9f8a7b --rate 1000")]
pub(crate) struct BulkRelease {
    /// The import's id: 32 hexadecimal digits
    import: ImportId,
    #[command(flatten)]
    which: LiveArgs,
    #[command(flatten)]
    job: JobArgs,
}

/// Removes an import's staged timers for good
///
/// What was released already stays. Unless a release of it has begun, the same file can be imported
/// again afterwards.
///
/// Asks first; where nobody can be asked, as in scripts, it needs --yes.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  mtimer bulk withdraw 9c1f0be25a7d4e6f8b3a2c1d0e9f8a7b")]
pub(crate) struct BulkWithdraw {
    /// The import's id: 32 hexadecimal digits
    import: ImportId,
    #[command(flatten)]
    which: LiveArgs,
    #[command(flatten)]
    job: JobArgs,
}

/// Lists bulk jobs, oldest first: those under way, and the last ones that have ended
///
/// Jobs about destinations that the token may not read are left out.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer bulk list\n  \
    mtimer bulk list --json | jq -r 'select(.state == \"working\") | .id'")]
pub(crate) struct BulkList {
    #[command(flatten)]
    client: ClientArgs,
}

/// Shows a bulk job: what it does, how far it is, and on which timers it could not act
///
/// Of these the first 100 are named. Exit code 5 if there is no such job: it was never there, or is
/// forgotten. Brokers remember the last 16.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer bulk show 5f0c2a9e6d1b47338a90c4be17f26d53\n  \
    mtimer bulk show 5f0c2a9e6d1b47338a90c4be17f26d53 --json | jq -r '.failures[].id'")]
pub(crate) struct BulkShow {
    /// The job's id: 32 hexadecimal digits
    id: BulkId,
    #[command(flatten)]
    client: ClientArgs,
}

/// Ends a bulk job before its end
///
/// What it has done stays done. A job that has come to its end already stays as it is. The token
/// needs the verb read, too, on all that the job is about.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  mtimer bulk stop 5f0c2a9e6d1b47338a90c4be17f26d53")]
pub(crate) struct BulkStop {
    /// The job's id: 32 hexadecimal digits
    id: BulkId,
    #[command(flatten)]
    client: ClientArgs,
}

/// Which pending and parked timers, or which staged ones.
#[derive(Args, Debug)]
struct LiveArgs {
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    pending: PendingArgs,
}

impl LiveArgs {
    fn bulk(&self, action: BulkAction) -> Bulk {
        let PendingArgs { from, until, .. } = self.pending;
        let retrying = self.pending.retrying();
        Bulk { retrying, ..in_range(Bulk::new(action, self.filter.filter()), from, until) }
    }
}

/// Which dead letters and unconfirmed timers.
#[derive(Args, Debug)]
struct RetainedArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Only what has died, or was taken, then or later: RFC 3339, or milliseconds since 1970
    #[arg(long, value_name = "TIME", value_parser = moment::time)]
    from: Option<Time>,
    /// Only what has died, or was taken, then or earlier: RFC 3339, or milliseconds since 1970
    #[arg(long, value_name = "TIME", value_parser = moment::time)]
    until: Option<Time>,
}

impl RetainedArgs {
    fn bulk(&self, action: BulkAction) -> Bulk {
        in_range(Bulk::new(action, self.filter.filter()), self.from, self.until)
    }
}

fn in_range(bulk: Bulk, from: Option<Time>, until: Option<Time>) -> Bulk {
    Bulk { from: from.unwrap_or(bulk.from), until: until.unwrap_or(bulk.until), ..bulk }
}

/// A shift in milliseconds: a duration, with a minus if it is to earlier times.
fn shift(text: &str) -> Result<i64, String> {
    let text = text.trim();
    let (sign, span) = match text.strip_prefix('-') {
        Some(span) => (-1, span),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let span: Duration = moment::span(span)?;
    let ms = i64::try_from(moment::millis(span)).map_err(|_| format!("{text:?} is too long"))?;
    if ms == 0 {
        return Err("it moves nothing: give 1ms or more, or -1ms or less".to_owned());
    }
    Ok(sign * ms)
}

impl BulkCommand {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        match self {
            Self::Cancel(BulkCancel { which, job }) => job.run(which.bulk(BulkAction::Cancel), out).await,
            Self::Reschedule(BulkReschedule { by, to, which, job }) => {
                let action = to.map(|due| BulkAction::MoveTo { due });
                let action = action.or(by.map(|ms| BulkAction::Shift { ms }));
                let action = action.ok_or_else(|| Failure::usage("to when? Give --by or --to"))?;
                job.run(which.bulk(action), out).await
            }
            Self::Replay(BulkReplay { which, job }) => job.run(which.bulk(BulkAction::Replay), out).await,
            Self::Purge(BulkPurge { which, job }) => job.run(which.bulk(BulkAction::Purge), out).await,
            Self::Release(BulkRelease { import, which, job }) => {
                job.run(which.bulk(BulkAction::Release { import }), out).await
            }
            Self::Withdraw(BulkWithdraw { import, which, job }) => {
                job.run(which.bulk(BulkAction::Withdraw { import }), out).await
            }
            Self::List(BulkList { client }) => client.looking(async |client| list(client, out).await).await,
            Self::Show(show) => show.run(out).await,
            Self::Stop(stop) => stop.run(out).await,
        }
    }
}

async fn list(client: &Client, out: Output) -> Result<(), Failure> {
    let jobs = client.bulks().await?;
    // What needs a token that may read on * is refused to others.
    if let Err(RequestError::Refused { code: ErrorCode::Unauthorized, .. }) = client.cluster().await {
        note("this token may not read on *: jobs about destinations that it may not read are left out");
    }
    if out.json {
        return jobs.iter().try_for_each(|job| out.object(&shown::object(job)));
    }
    if !jobs.is_empty() {
        let mut table = TextTable::new(["id", "begun", "action", "timers", "state", "done", "could not"]);
        for job in &jobs {
            let dry_run = if job.bulk.dry_run { " (dry run)" } else { "" };
            table.row([
                job.id.to_string(),
                moment::shown(job.begun),
                shown::action(&job.bulk.action) + dry_run,
                plain(&shown::timers(&job.bulk), 60),
                shown::state(job.state).to_owned(),
                grouped(job.done),
                grouped(job.not_done),
            ]);
        }
        table.lines().try_for_each(|line| out.text(&line))?;
    }
    note(&counted(jobs.len() as u64, "bulk job"));
    Ok(())
}

impl BulkShow {
    async fn run(self, out: Output) -> Result<(), Failure> {
        let find = async |client: &Client| Ok(client.bulk(self.id).await?);
        let job = self.client.looking(find).await?.ok_or_else(|| work::unknown(self.id))?;
        out.either(&shown::object(&job), || shown::fields(&job, out))
    }
}

impl BulkStop {
    async fn run(self, out: Output) -> Result<(), Failure> {
        let stop = async |client: &Client| Ok(client.stop_bulk(self.id).await?);
        let job = self.client.with(stop).await?.ok_or_else(|| work::unknown(self.id))?;
        out.either(&shown::object(&job), || shown::summary(&job))?;
        if job.state == BulkState::Done {
            note("it had come to its end before");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shift_is_a_duration_with_a_sign() {
        for (text, ms) in [("2h", 7_200_000), ("+1s", 1_000), ("-30m", -1_800_000), ("-1ms", -1)] {
            assert_eq!(shift(text), Ok(ms), "{text}");
        }
        for (text, why) in
            [("0s", "moves nothing"), ("-0s", "moves nothing"), ("5", "duration"), ("--5s", "negative")]
        {
            let error = shift(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
