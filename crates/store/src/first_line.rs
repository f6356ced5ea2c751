//! Which of many log lines about one event is written.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Events of other partitions within this time count as the same event.
const ONE_EVENT: Duration = Duration::from_secs(10);

/// Chooses the log line of an event that mostly happens to many partitions at the same time: the
/// first within 10 s.
#[derive(Debug, Default)]
pub struct FirstLine(Mutex<Option<Instant>>);

impl FirstLine {
    /// Whether the present event is the first within 10 s.
    pub fn is_due(&self, now: Instant) -> bool {
        let mut last = self.0.lock();
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

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    fn of_one_event_the_first_line_is_due() {
        let (line, begin) = (FirstLine::default(), Instant::now());
        let due = [0, 9, 10, 19].map(|s| line.is_due(begin + Duration::from_secs(s)));
        assert_eq!(due, [true, false, true, false]);
    }
}
