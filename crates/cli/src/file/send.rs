//! Schedules what the lines of a file say.

use indicatif::ProgressBar;
use mtimer_client::{Client, ScheduleError, Scheduled};
use serde_json::json;

use super::chunks::{CutShort, send_chunks, stuck};
use super::line::Maker;
use super::make::make;
use super::reader::InputSource;
use super::report::SentLines;
use crate::exit::{self, Failure};
use crate::output::Output;
use crate::signals::StopSignal;

/// How the sending has ended.
#[derive(Clone, Debug)]
pub(crate) struct SendOutcome {
    pub(crate) sent: SentLines,
    /// Lines left out because they are bad.
    pub(crate) skipped: u64,
    /// If not every line was sent.
    pub(crate) cut: Option<CutShort>,
}

/// Sends every good line. `ids`: where to say which id each has.
pub(crate) async fn send(
    client: &Client,
    source: InputSource,
    mut maker: Maker,
    bar: &ProgressBar,
    stop: &StopSignal,
    ids: Option<Output>,
) -> Result<SendOutcome, Failure> {
    let mut sent = SentLines::default();
    let clock = client.clone();
    let (skipped, cut) = send_chunks(
        source,
        move |line| Some((make(line, &mut maker, &clock).ok()?, line.number)),
        (bar, stop),
        async |schedules| client.schedule_all(schedules).await,
        |lines, results| {
            lines.iter().zip(results).for_each(|(line, result)| sent.add(*line, result));
            if let Some(out) = ids {
                lines.iter().zip(results).try_for_each(|(line, result)| show_id(out, *line, result))?;
            }
            Ok(stuck(results, exit::of_schedule).map(|(exit, error)| CutShort::Stuck {
                exit,
                reason: match error {
                    ScheduleError::Request { error, .. } => error.to_string(),
                    error => error.to_string(),
                },
            }))
        },
    )
    .await?;
    Ok(SendOutcome { sent, skipped, cut })
}

/// Says which id a line's timer has, if it is stored.
fn show_id(out: Output, line: u64, result: &Result<Scheduled, ScheduleError>) -> Result<(), Failure> {
    let Ok(Scheduled { id, being_delivered, .. }) = result else { return Ok(()) };
    out.either(&json!({ "line": line, "id": id, "being_delivered": being_delivered }), || {
        let kept = if *being_delivered { " kept, being delivered" } else { "" };
        format!("{line} {id}{kept}")
    })
}
