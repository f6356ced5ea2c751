//! Time that counts against clients.
//!
//! A broker that stood still (a stopped process, a suspended host) could not hear its clients, so
//! that time must not make them look stuck.

/// The longest that one turn counts, ms: a little over the pause between two turns when there is
/// little to do, which is [`HOUSEKEEPING_MS`](super::HOUSEKEEPING_MS).
const TURN_MS: u64 = 60;

/// A clock of the time in which clients could have been heard and served.
#[derive(Debug)]
pub(super) struct AttendedTime {
    ms: u64,
    /// The latest turn, monotonic ms.
    turned_at: u64,
}

impl AttendedTime {
    /// Starts the clock at 0, at `mono_ms` of the monotonic clock.
    pub(super) fn new(mono_ms: u64) -> Self {
        Self { ms: 0, turned_at: mono_ms }
    }

    /// Notes a turn of the engine. It counts for [`TURN_MS`] at most.
    pub(super) fn turn(&mut self, mono_ms: u64) {
        self.ms += mono_ms.saturating_sub(self.turned_at).min(TURN_MS);
        self.turned_at = mono_ms;
    }

    /// The attended time so far, ms.
    pub(super) fn ms(&self) -> u64 {
        self.ms
    }

    /// A clock that shows `ms`, for tests.
    #[cfg(test)]
    pub(super) fn showing(ms: u64, mono_ms: u64) -> Self {
        Self { ms, turned_at: mono_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_the_broker_stood_still_counts_as_one_turn() {
        let mut attended = AttendedTime::new(1_000);
        attended.turn(1_020);
        attended.turn(1_050);
        assert_eq!(attended.ms(), 50);
        attended.turn(61_050);
        assert_eq!(attended.ms(), 50 + TURN_MS);
        attended.turn(61_000);
        assert_eq!(attended.ms(), 50 + TURN_MS, "a clock that steps back counts nothing");
    }
}
