//! Dead letters in the log: a line for each of the first [`MOST_LINES`] within [`WITHIN`].
//!
//! All of them are counted, and summed up every ten seconds ([`crate::reports`]). Payloads, headers
//! and errors are not logged: `mtimer dead get ID` shows them.

use std::time::Duration;

use mtimer_core::Died;
use mtimer_core::figures::DEAD_REASONS;
use tokio::time::Instant;

/// Lines within [`WITHIN`].
const MOST_LINES: u32 = 10;
/// See [`MOST_LINES`].
const WITHIN: Duration = Duration::from_secs(10);

/// Chooses the dead letters that have a line.
#[derive(Debug, Default)]
pub(crate) struct DeathLog {
    /// When the first line of the present period was logged.
    began: Option<Instant>,
    lines: u32,
}

impl DeathLog {
    /// Logs a dead letter, unless there were too many lately.
    pub(crate) fn log(&mut self, died: &Died) {
        if !self.has_line(Instant::now()) {
            return;
        }
        let Died { id, dest, reason, attempts } = died;
        let reason = DEAD_REASONS.iter().find_map(|(known, name)| (known == reason).then_some(*name));
        let (group, app) = dest.as_ref().map(|dest| (dest.group(), dest.app())).unzip();
        tracing::warn!(%id, group, app, reason, attempts, "a timer became a dead letter");
    }

    fn has_line(&mut self, now: Instant) -> bool {
        if self.began.is_none_or(|began| now.duration_since(began) >= WITHIN) {
            (self.began, self.lines) = (Some(now), 0);
        }
        self.lines = self.lines.saturating_add(1);
        self.lines <= MOST_LINES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ten_within_ten_seconds_have_a_line() {
        let mut log = DeathLog::default();
        let began = Instant::now();
        let mut lines = |after_s| {
            let now = began + Duration::from_secs(after_s);
            (0..30).filter(|_| log.has_line(now)).count()
        };
        assert_eq!([0, 9, 10, 19, 20].map(&mut lines), [10, 0, 10, 0, 10]);
    }
}
