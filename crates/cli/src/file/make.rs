//! Timers from the lines of a file.

use mtimer_client::{Client, Schedule};

use super::line::{Fields, Maker};
use super::reader::{MAX_LINE, Numbered};

/// The schedule of a line, if everything about it is right.
pub(super) fn make(line: &Numbered<'_>, maker: &mut Maker, client: &Client) -> Result<Schedule, String> {
    let text = line.text.ok_or_else(|| format!("it has more than {MAX_LINE} bytes"))?;
    let schedule = maker.schedule(Fields::parse(text)?, client.now())?;
    Ok(client.prepare(schedule).map_err(|e| e.to_string())?.1)
}
