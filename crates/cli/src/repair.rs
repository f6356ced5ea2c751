//! `mtimer repair`: makes a damaged data directory usable again.

use std::path::PathBuf;

use clap::Args;
use mtimer_store_embedded::{OpenError, RepairReport, repair};
use serde_json::json;

use super::confirm::Yes;
use super::exit::{Exit, Failure};
use super::logging::LogArgs;
use super::output::Output;

/// Repair a damaged data directory of the embedded store
///
/// A broker refuses to open a directory in which something that it had answered for is damaged,
/// and says where. This command keeps everything that can be read and says what cannot: the file,
/// the offset, how many answered batches are lost. A batch holds what was answered together, up
/// to thousands of timers. A write that was never answered, as a power cut leaves behind, needs
/// no repair: the broker cuts it off by itself.
///
/// First see what a repair would do: --dry-run changes nothing. Without it you are asked first;
/// where nobody can be asked, it needs --yes. The repair writes a new database
/// and moves the damaged one to before-repair-TIME in the same directory, unchanged. With or
/// without --dry-run it needs free space for a second copy of the timers. Delete that folder when
/// you no longer need it. If a backup is better than what can be kept, restore the backup
/// instead.
///
/// What to expect after something was lost: timers of lost batches are gone; timers whose
/// settlement or cancel was lost are pending again, so some are delivered once more. At-most-once
/// timers that were pending or parked, and not written since, may have been delivered: they are
/// kept as claimed and unconfirmed, also those whose time is yet to come, and are not delivered
/// unless you replay them.
///
/// Exit codes: 0 if nothing is damaged, 9 if something is lost (or would be, with --dry-run), 12
/// if nothing can be kept without a backup, 13 if a broker has the directory open: stop it first.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  mtimer repair --data /var/lib/mtimer --dry-run\n  mtimer repair --data /var/lib/mtimer --yes\n  \
        mtimer repair --data /var/lib/mtimer --dry-run --json"
)]
pub(crate) struct Repair {
    /// The data directory
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Say what a repair would do, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    yes: Yes,
    #[command(flatten)]
    log: LogArgs,
}

impl Repair {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        self.log.start()?;
        if !self.dry_run {
            self.yes.confirm(&format!("this rewrites {} without what is damaged", self.data.display()))?;
        }
        let (data, dry_run) = (self.data.clone(), self.dry_run);
        let repairing = tokio::task::spawn_blocking(move || repair(&data, dry_run));
        let report = repairing.await.map_err(|e| Failure::new(Exit::Failed, e.to_string()))?;
        let report = report.map_err(|error| Failure::new(of_open(&error), error.to_string()))?;
        out.either(&to_json(&report), || self.describe(&report))?;
        if report.is_clean() { Ok(()) } else { Err(Failure::silent(Exit::Partly)) }
    }

    fn describe(&self, report: &RepairReport) -> String {
        let mut lines: Vec<String> =
            report.damages.iter().map(|damage| format!("damaged: {damage}")).collect();
        if report.unfinished_bytes > 0 {
            let bytes = report.unfinished_bytes;
            lines.push(format!("unfinished, never answered: {bytes} bytes; opening cuts them off"));
        }
        let kept = if self.dry_run { "can be kept" } else { "kept" };
        lines.push(format!("timers {kept}: {}", report.timers_kept));
        for (count, what) in [
            (report.rows_dropped, "rows dropped: they cannot be read, or contradict others"),
            (report.unconfirmed, "at-most-once timers filed as claimed and unconfirmed"),
            (report.destinations_lost, "destinations whose names are lost: see group \"lost\""),
        ] {
            if count > 0 {
                lines.push(format!("{count} {what}"));
            }
        }
        lines.push(match &report.kept_in {
            Some(kept) => format!("repaired; the damaged database is in {}", kept.display()),
            None if report.is_clean() => "nothing is damaged".to_owned(),
            None => {
                format!("nothing was changed; to repair: mtimer repair --data {}", self.data.display())
            }
        });
        lines.join("\n")
    }
}

fn to_json(report: &RepairReport) -> serde_json::Value {
    let damages: Vec<_> = report
        .damages
        .iter()
        .map(|damage| {
            json!({
                "file": damage.file,
                "offset": damage.offset,
                "bytes": damage.bytes,
                "batches_lost": damage.batches,
                "what": damage.what,
            })
        })
        .collect();
    json!({
        "damages": damages,
        "unfinished_bytes": report.unfinished_bytes,
        "timers_kept": report.timers_kept,
        "rows_dropped": report.rows_dropped,
        "unconfirmed": report.unconfirmed,
        "destinations_lost": report.destinations_lost,
        "kept_in": report.kept_in,
    })
}

fn of_open(error: &OpenError) -> Exit {
    match error {
        OpenError::Locked { .. } => Exit::NotNow,
        OpenError::Foreign { .. } => Exit::Usage,
        OpenError::Io { .. } => Exit::Failed,
        _ => Exit::StoreUnusable,
    }
}
