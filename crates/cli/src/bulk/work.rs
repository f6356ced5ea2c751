//! Beginning a bulk job, and looking on until it has ended.

use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use mtimer_client::{
    Bulk, BulkAction, BulkId, BulkProgress, BulkState, Client, DestinationCounts, DestinationFilter,
    Destinations, ErrorCode, Filter, RequestError, Time,
};
use serde_json::json;

use super::shown;
use crate::args::{ClientArgs, DEFAULT_BROKER};
use crate::confirm::Yes;
use crate::exit::{self, Exit, Failure};
use crate::output::{Output, grouped, note, shell_quoted};
use crate::progress;
use crate::signals::StopSignal;

/// How a job is begun.
#[derive(Args, Debug)]
pub(super) struct JobArgs {
    /// All of them; needed if nothing else says which
    #[arg(long)]
    all: bool,
    /// At most about so many timers a second, in the whole cluster; as fast as it goes without it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Only count them
    #[arg(long)]
    dry_run: bool,
    /// Print the job's id and end, without waiting for its end
    #[arg(long)]
    no_wait: bool,
    /// Begin the job of an earlier command, which has failed half way, where it was not begun. Give
    /// the same flags
    #[arg(long, value_name = "ID")]
    id: Option<BulkId>,
    #[command(flatten)]
    yes: Yes,
    #[command(flatten)]
    client: ClientArgs,
}

/// How often it is looked how far a job is: at first, and then less and less often.
const FIRST_LOOK: Duration = Duration::from_millis(25);
const LOOK: Duration = Duration::from_millis(500);
/// Timers that are named in the end of those that a job could not act on.
const NAMED: usize = 10;

impl JobArgs {
    pub(super) async fn run(self, bulk: Bulk, out: Output) -> Result<(), Failure> {
        let bulk = Bulk { rate: self.rate.unwrap_or(0), dry_run: self.dry_run, ..bulk };
        if !self.all && !has_conditions(&bulk) && bulk.action.import().is_none() {
            return Err(Failure::usage(
                "which ones? Give --group, --app, --key-prefix, --header or times, or --all",
            ));
        }
        if !bulk.dry_run {
            self.yes.confirm(&shown::effect(&bulk))?;
        }
        let stop = StopSignal::on_signals("the bulk job goes on without this command")?;
        let (id, job) = self.client.with(async |client| self.carry_out(client, bulk, &stop).await).await?;
        match job {
            Some(job) => self.finish(&job, out),
            None => out.either(&json!({ "id": id.to_string() }), || id.to_string()),
        }
    }

    /// Begins the job and looks on until it has ended, or this command is told to stop. Returns how
    /// far it was then; `None`: nobody has looked.
    async fn carry_out(
        &self,
        client: &Client,
        bulk: Bulk,
        stop: &StopSignal,
    ) -> Result<(BulkId, Option<BulkProgress>), Failure> {
        // Before anything is done: who may not read could not look on.
        let total = if self.no_wait { None } else { Some(total(client, &bulk).await?) };
        if let Some(id) = self.id {
            agrees(client, id, &bulk).await?;
        }
        let id = self.id.unwrap_or_else(|| BulkId(rand::random()));
        client.begin_bulk_as(id, bulk.clone()).await.map_err(|error| self.not_begun(id, error))?;
        let Some(total) = total else {
            note(&format!("the job is begun; see how far it is with:\n  {}", self.command("show", id)));
            return Ok((id, None));
        };
        note(&format!("bulk job {id}"));
        let what = shown::done(&bulk.action);
        let bar = total.map_or_else(|| progress::counter(what), |total| progress::bar(what, total));
        let job = self.look_on(client, id, &bar, stop).await;
        bar.finish_and_clear();
        job.map(|job| (id, Some(job)))
    }

    async fn look_on(
        &self,
        client: &Client,
        id: BulkId,
        bar: &ProgressBar,
        stop: &StopSignal,
    ) -> Result<BulkProgress, Failure> {
        let mut pause = FIRST_LOOK;
        loop {
            let looked = client.bulk(id).await.map_err(Failure::from);
            let looked = looked.and_then(|job| job.ok_or_else(|| unknown(id)));
            let job = looked.map_err(|failure| self.unseen(id, failure))?;
            bar.set_position(job.done.saturating_add(job.not_done));
            if job.not_done > 0 {
                let done = shown::done(&job.bulk.action);
                bar.set_message(format!("{done}, {} could not be", grouped(job.not_done)));
            }
            if job.has_ended() || stop.is_asked() {
                return Ok(job);
            }
            // Told to stop, it looks a last time.
            stop.unless(tokio::time::sleep(pause)).await;
            pause = (pause * 2).min(LOOK);
        }
    }

    /// Says how the job has ended, or how to go on with it.
    fn finish(&self, job: &BulkProgress, out: Output) -> Result<(), Failure> {
        out.either(&shown::object(job), || shown::summary(job))?;
        if !out.json {
            shown::failures(job, NAMED).iter().for_each(|line| note(line));
            if job.not_done > NAMED as u64 {
                note(&format!("the first 100 are shown by:\n  {}", self.command("show", job.id)));
            }
        }
        let nothing = job.done + job.not_done == 0 && job.state == BulkState::Done;
        if let Some(import) = job.bulk.action.import().filter(|_| nothing) {
            note(&format!("nothing was staged by import {import}, or nothing is any more"));
        }
        match job.state {
            // What a release leaves staged nobody delivers.
            BulkState::Done if matches!(job.bulk.action, BulkAction::Release { .. }) && job.not_done > 0 => {
                Err(Failure::silent(Exit::Partly))
            }
            BulkState::Done => Ok(()),
            BulkState::Stopped => Err(Failure::silent(Exit::Partly)),
            BulkState::Waiting | BulkState::Working => {
                let [show, stop] = ["show", "stop"].map(|what| self.command(what, job.id));
                note(&format!("the job goes on: see how far it is, or stop it, with:\n  {show}\n  {stop}"));
                Err(Failure::silent(Exit::Interrupted))
            }
        }
    }

    /// The job may be at work in some partitions.
    fn not_begun(&self, id: BulkId, error: mtimer_client::BulkError) -> Failure {
        let hint = match error.has_no_side_effects() {
            true => String::new(),
            false => format!(
                "\nWhere it was begun it is done. Begin it everywhere by the same command with --id {id}, or stop it with:\n  {}",
                self.command("stop", id)
            ),
        };
        let failure = Failure::from(error);
        Failure::new(failure.exit, failure.message + &hint)
    }

    /// The job is begun, and how far it is cannot be seen.
    fn unseen(&self, id: BulkId, failure: Failure) -> Failure {
        let text = format!(
            "{}\nThe job was begun, and goes on: do not begin it again, but with --id {id}. See how far it is with:\n  {}",
            failure.message,
            self.command("show", id)
        );
        Failure::new(Exit::Partly, text)
    }

    /// A command about the job, as it can be typed. Without tokens and the like.
    fn command(&self, what: &str, id: BulkId) -> String {
        let broker = match self.client.broker.as_str() {
            DEFAULT_BROKER => String::new(),
            broker => format!(" {}", shell_quoted(&format!("--broker={broker}"))),
        };
        format!("mtimer bulk {what} {id}{broker}")
    }
}

/// Refuses another job under the id of one that there is. Times and the rate may differ: they may
/// have been given relative to now.
async fn agrees(client: &Client, id: BulkId, bulk: &Bulk) -> Result<(), Failure> {
    let Some(known) = client.bulk(id).await? else { return Ok(()) };
    let Bulk { from, until, rate, .. } = known.bulk;
    if known.bulk == (Bulk { from, until, rate, ..bulk.clone() }) {
        return Ok(());
    }
    let text = format!(
        "bulk job {id} is another: {}. Leave --id out to begin a new one",
        shown::effect(&known.bulk)
    );
    Err(Failure::new(Exit::Conflict, text))
}

/// How many timers a job is about, as the brokers' counts have it; `None`: they do not say.
async fn total(client: &Client, bulk: &Bulk) -> Result<Option<u64>, Failure> {
    let (group, app) = (bulk.filter.group.clone(), bulk.filter.app.clone());
    let counts = match client.destinations(DestinationFilter { group, app }).await {
        Ok(counts) => counts,
        Err(error @ RequestError::Refused { code: ErrorCode::Unauthorized, .. }) => {
            let text = format!("{error}\nWith --no-wait the job can be begun by who may not look on.");
            return Err(Failure::new(exit::of_request(&error), text));
        }
        Err(error) => return Err(error.into()),
    };
    Ok(total_of(bulk, &counts))
}

fn total_of(bulk: &Bulk, counts: &Destinations) -> Option<u64> {
    let Filter { group, app, .. } = bulk.filter.clone();
    let of_destinations = Bulk { filter: Filter { group, app, ..Filter::default() }, ..bulk.clone() };
    let by_destination_alone = *bulk == of_destinations
        && bulk.retrying.is_none()
        && (bulk.from, bulk.until) == (Time::ZERO, Time::MAX);
    let of = |row: &DestinationCounts| match bulk.action.is_of_live() {
        // Of all imports: mostly there is one.
        true if bulk.action.import().is_some() => row.staged,
        true => row.pending.saturating_add(row.retrying).saturating_add(row.parked).saturating_add(row.taken),
        false => row.dead.saturating_add(row.unconfirmed),
    };
    let sum = counts.rows.iter().map(of).fold(0, u64::saturating_add);
    (by_destination_alone && counts.uncounted == 0).then_some(sum)
}

/// Whether a job is about some timers only.
fn has_conditions(bulk: &Bulk) -> bool {
    *bulk != Bulk { rate: bulk.rate, dry_run: bulk.dry_run, ..Bulk::new(bulk.action, Filter::default()) }
}

pub(super) fn unknown(id: BulkId) -> Failure {
    let text = format!("there is no bulk job {id}, or this token may not read all that it is about");
    Failure::new(Exit::NotFound, text)
}

#[cfg(test)]
mod tests {
    use mtimer_client::{BulkAction, Destination};

    use super::*;

    #[test]
    fn the_total_is_known_if_destinations_alone_say_which() {
        let dest = Destination::new("g", "a").unwrap();
        let row = DestinationCounts {
            pending: 1,
            retrying: 20,
            parked: 300,
            in_flight: 7,
            taken: 4_000,
            unconfirmed: 50_000,
            dead: 600_000,
            ..DestinationCounts::none(dest.clone())
        };
        let counts = Destinations { rows: vec![row.clone(), row], uncounted: 0 };
        let total = |bulk: &Bulk| total_of(bulk, &counts);
        let cancel = Bulk::new(BulkAction::Cancel, &dest);
        assert_eq!(total(&cancel), Some(8_642));
        assert_eq!(total(&Bulk { rate: 7, dry_run: true, ..cancel.clone() }), Some(8_642));
        assert_eq!(total(&Bulk::new(BulkAction::Purge, Filter::default())), Some(1_300_000));
        let keyed = Filter { key_prefix: Some(String::new()), ..Filter::of(&dest) };
        for bulk in [
            Bulk::new(BulkAction::Cancel, keyed),
            Bulk { retrying: Some(true), ..cancel.clone() },
            Bulk { from: Time::from_ms(1), ..cancel.clone() },
            Bulk { until: Time::from_ms(1), ..cancel.clone() },
        ] {
            assert_eq!(total(&bulk), None, "{bulk:?}");
        }
        assert_eq!(total_of(&cancel, &Destinations { uncounted: 1, ..counts.clone() }), None);
    }

    #[test]
    fn a_job_about_everything_has_no_condition() {
        let all = Bulk::new(BulkAction::Cancel, Filter::default());
        let paced = Bulk { rate: 5, dry_run: true, ..all.clone() };
        assert!(!has_conditions(&all) && !has_conditions(&paced));
        let group = Filter { group: Some("g".to_owned()), ..Filter::default() };
        assert!(has_conditions(&Bulk::new(BulkAction::Cancel, group)));
        assert!(has_conditions(&Bulk { retrying: Some(false), ..all.clone() }));
        assert!(has_conditions(&Bulk { until: Time::from_ms(5), ..all }));
    }
}
