//! Which of many log lines about one event is written.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// What happens to another partition within this time belongs to the same event.
const ONE_EVENT: Duration = Duration::from_secs(10);

/// Chooses the log line of an event that mostly happens to many partitions at the same time: the
/// first within 10 s.
#[derive(Debug, Default)]
pub struct FirstLine(Mutex<Option<Instant>>);

impl FirstLine {
    /// Whether this is the first one within 10 s.
    pub fn is_due(&self) -> bool {
        let (mut last, now) = (self.0.lock(), Instant::now());
        let is_due = last.is_none_or(|last| now.duration_since(last) >= ONE_EVENT);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn of_one_event_the_first_line_is_due() {
        let line = FirstLine::default();
        let mut due = Vec::new();
        for after_s in [0, 9, 1, 9] {
            tokio::time::advance(Duration::from_secs(after_s)).await;
            due.push(line.is_due());
        }
        assert_eq!(due, [true, false, true, false]);
    }
}
