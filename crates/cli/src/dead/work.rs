//! Replaying and purging: by ids, or everything that passes a filter.

use clap::Args;
use indicatif::ProgressBar;
use mtimer_client::{Client, Replayed, RequestError, Time, TimerId};
use serde_json::{Map, json};

use super::rights;
use super::rows::RetainedFilter;
use crate::args::ClientArgs;
use crate::aside::AsideRow;
use crate::exit::{self, Exit, Failure};
use crate::output::{Output, counted, grouped, note};
use crate::progress;
use crate::signals::StopSignal;

#[derive(Args, Debug)]
pub(super) struct Which {
    /// Ids of timers
    #[arg(conflicts_with_all = ["group", "app", "all"])]
    ids: Vec<TimerId>,
    #[command(flatten)]
    filter: RetainedFilter,
    /// All of them
    #[arg(long)]
    all: bool,
    /// Only say which it would be
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DeadAction {
    Replay,
    Purge,
}

impl DeadAction {
    fn done(self) -> &'static str {
        match self {
            Self::Replay => "replayed",
            Self::Purge => "purged",
        }
    }
}

/// Timers worked on at once.
const CHUNK: usize = 1_000;

#[derive(Default)]
struct ActionCounts {
    matched: u64,
    done: u64,
    not_found: u64,
    key_taken: u64,
    failed: u64,
    exit: Option<Exit>,
}

impl ActionCounts {
    fn add(&mut self, id: TimerId, result: Result<Replayed, RequestError>) {
        let exit = match result {
            Ok(Replayed::Replayed) => {
                self.done += 1;
                return;
            }
            Ok(Replayed::NotFound) => {
                self.not_found += 1;
                Exit::NotFound
            }
            Ok(Replayed::KeyTaken(live)) => {
                self.key_taken += 1;
                note(&format!("{id}: its key names the live timer {live} by now"));
                Exit::Conflict
            }
            Err(error) => {
                self.failed += 1;
                note(&format!("{id}: {error}"));
                exit::of_request(&error)
            }
        };
        self.exit = Some(match self.exit {
            None => exit,
            Some(other) if other == exit => exit,
            Some(_) => Exit::Partly,
        });
    }
}

impl Which {
    /// Which ones it is about, for a question; `None`: nothing is named.
    pub(super) fn named(&self) -> Option<String> {
        let what = if self.filter.unconfirmed { "unconfirmed timer" } else { "dead letter" };
        let RetainedFilter { group, app, .. } = &self.filter;
        Some(match (self.ids.len() as u64, group, app) {
            (0, None, None) if self.all => format!("all {what}s of the cluster"),
            (0, None, None) => return None,
            (0, Some(group), None) => format!("all {what}s of the group {group:?}"),
            (0, None, Some(app)) => format!("all {what}s of the app {app:?}"),
            (0, Some(group), Some(app)) => format!("all {what}s of {group}/{app}"),
            (n, ..) => counted(n, what),
        })
    }

    pub(super) const fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    pub(super) async fn run(self, work: DeadAction, out: Output) -> Result<(), Failure> {
        if self.ids.is_empty() && !self.all && self.filter.group.is_none() && self.filter.app.is_none() {
            return Err(Failure::usage("which ones? Give ids, or --group, --app or both, or --all"));
        }
        let stop = StopSignal::on_signals("stopping: waiting for the answers to what was sent")?;
        let work_on = async |client: &Client| {
            let mut count = ActionCounts::default();
            if self.ids.is_empty() {
                self.filtered(client, work, &mut count, &stop, out).await?;
            }
            for ids in self.ids.chunks(CHUNK) {
                self.chunk(client, work, ids.to_vec(), &mut count, out).await?;
            }
            Ok(count)
        };
        let count = self.client.with(work_on).await?;
        self.summary(work, &count, stop.is_asked(), out)
    }

    async fn filtered(
        &self,
        client: &Client,
        work: DeadAction,
        count: &mut ActionCounts,
        stop: &StopSignal,
        out: Output,
    ) -> Result<(), Failure> {
        rights::to_operate(client).await?;
        rights::to_read(client, &self.filter).await?;
        let bar: ProgressBar = progress::counter(work.done());
        // Timers that die from here on have been replayed already, or were not asked for.
        let began: Time = client.now();
        let mut rows = self.filter.rows(client).await?;
        let mut ids = Vec::new();
        while !stop.is_asked() {
            let row = rows.next().await?;
            let end = row.is_none();
            let is_new = |row: &AsideRow| matches!(row, AsideRow::Dead(row) if row.died > began);
            ids.extend(row.filter(|row| !is_new(row)).map(|row| row.timer().id));
            if ids.len() >= CHUNK || end {
                self.chunk(client, work, std::mem::take(&mut ids), count, out).await?;
                bar.set_position(count.matched);
            }
            if end {
                break;
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    async fn chunk(
        &self,
        client: &Client,
        work: DeadAction,
        ids: Vec<TimerId>,
        count: &mut ActionCounts,
        out: Output,
    ) -> Result<(), Failure> {
        count.matched += ids.len() as u64;
        if self.dry_run {
            return ids.iter().try_for_each(|id| out.either(&json!({ "id": id }), || id.to_string()));
        }
        let results: Vec<Result<Replayed, RequestError>> = match work {
            DeadAction::Replay => client.replay_all(ids.clone()).await,
            DeadAction::Purge => {
                let purged = |there| if there { Replayed::Replayed } else { Replayed::NotFound };
                client.purge_all(ids.clone()).await.into_iter().map(|r| r.map(purged)).collect()
            }
        };
        ids.into_iter().zip(results).for_each(|(id, result)| count.add(id, result));
        Ok(())
    }

    fn summary(
        &self,
        work: DeadAction,
        count: &ActionCounts,
        interrupted: bool,
        out: Output,
    ) -> Result<(), Failure> {
        let ActionCounts { matched, done, not_found, key_taken, failed, exit } = count;
        if self.dry_run {
            note(&format!("{} would be {}", grouped(*matched), work.done()));
        } else {
            let mut object = Map::new();
            object.insert(work.done().to_owned(), json!(done));
            for (name, value) in [("not_found", not_found), ("key_taken", key_taken), ("failed", failed)] {
                object.insert(name.to_owned(), json!(value));
            }
            out.either(&object, || {
                let mut text = format!("{} {}", grouped(*done), work.done());
                for (n, what) in
                    [(not_found, "not found"), (key_taken, "with a key that is taken"), (failed, "failed")]
                {
                    if *n > 0 {
                        text += &format!(", {} {what}", grouped(*n));
                    }
                }
                text
            })?;
        }
        match exit {
            None if interrupted => Err(Failure::silent(Exit::Interrupted)),
            None => Ok(()),
            // A filter does not cover timers that were gone before their turn came.
            Some(Exit::NotFound) if self.ids.is_empty() => Ok(()),
            Some(_) if *done > 0 => Err(Failure::silent(Exit::Partly)),
            Some(exit) => Err(Failure::silent(*exit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_reasons_end_in_partly() {
        let id = TimerId::from_u128(1);
        let mut count = ActionCounts::default();
        count.add(id, Ok(Replayed::NotFound));
        assert_eq!(count.exit, Some(Exit::NotFound));
        count.add(id, Ok(Replayed::KeyTaken(id)));
        assert_eq!((count.exit, count.not_found, count.key_taken), (Some(Exit::Partly), 1, 1));
    }
}
