//! Recent losses, for `mtimer status`: how much, since when, and when last.
//!
//! Invariant: a loss is told until [`SHOWN_MS`] after the last one of its kind; its size does not
//! depend on how much was lost.
//! Not in here: lines of the log about the same (`reports`); brokers that were lost, which the
//! cluster's node knows.

use mtimer_types::Time;

/// How long after the last loss of a kind it is told, ms.
pub(crate) const SHOWN_MS: u64 = 3_600_000;

/// Kinds of losses, each with the names of its numbers: how many, how long ago the first was and
/// the last, ms.
const KINDS: [[&str; 3]; 5] = [
    ["rolled_back_lately", "rolled_back_first_ms", "rolled_back_last_ms"],
    ["dead_letters_lately", "dead_letters_first_ms", "dead_letters_last_ms"],
    ["unconfirmed_lately", "unconfirmed_first_ms", "unconfirmed_last_ms"],
    ["log_dropped_lately", "log_dropped_first_ms", "log_dropped_last_ms"],
    ["lost_slots_lately", "lost_slots_first_ms", "lost_slots_last_ms"],
];

/// Losses since the start, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LossTotals {
    /// Ownerships that ended because the store had lost writes.
    pub(crate) rolled_back: u64,
    /// Timers that became dead letters.
    pub(crate) dead_letters: u64,
    /// At-most-once timers that were claimed and never confirmed.
    pub(crate) unconfirmed: u64,
    /// Records of the store's log that were dropped before they were safe.
    pub(crate) log_dropped: u64,
    /// Slots with timers that the store has lost.
    pub(crate) lost_slots: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    totals: [u64; KINDS.len()],
    lately: [Option<RecentLoss>; KINDS.len()],
}

/// The losses of one kind that are still told.
#[derive(Clone, Copy, Debug)]
struct RecentLoss {
    count: u64,
    first: Time,
    last: Time,
}

impl Losses {
    /// Takes note of how much was lost by now.
    pub(crate) fn look(&mut self, now: Time, totals: LossTotals) {
        let LossTotals { rolled_back, dead_letters, unconfirmed, log_dropped, lost_slots } = totals;
        let totals = [rolled_back, dead_letters, unconfirmed, log_dropped, lost_slots];
        let before = std::mem::replace(&mut self.totals, totals);
        for ((lately, total), before) in self.lately.iter_mut().zip(totals).zip(before) {
            lately.take_if(|loss| now.ms_since(loss.last) > SHOWN_MS);
            let more = total.saturating_sub(before);
            if more > 0 {
                let RecentLoss { count, first, .. } =
                    lately.unwrap_or(RecentLoss { count: 0, first: now, last: now });
                *lately = Some(RecentLoss { count: count + more, first, last: now });
            }
        }
    }

    /// The numbers, by name; all are 0 while nothing was lost.
    pub(crate) fn numbers(&self, now: Time) -> impl Iterator<Item = (&'static str, u64)> {
        KINDS.into_iter().zip(self.lately).flat_map(move |(names, lately)| {
            let numbers = lately.map_or([0; 3], |RecentLoss { count, first, last }| {
                [count, now.ms_since(first), now.ms_since(last)]
            });
            names.into_iter().zip(numbers)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_ms(1_000_000);

    /// The numbers of dead letters after a look at this time.
    fn told(losses: &mut Losses, after_ms: u64, dead_letters: u64) -> [u64; 3] {
        let now = NOW + after_ms;
        losses.look(now, LossTotals { dead_letters, ..LossTotals::default() });
        let all: Vec<_> = losses.numbers(now).collect();
        assert_eq!(all.len(), 3 * KINDS.len());
        KINDS[1].map(|name| all.iter().find(|(other, _)| *other == name).unwrap().1)
    }

    #[test]
    fn a_loss_is_told_for_an_hour_after_the_last_one() {
        let mut losses = Losses::default();
        assert_eq!(told(&mut losses, 0, 0), [0, 0, 0]);
        assert_eq!(told(&mut losses, 0, 2), [2, 0, 0]);
        assert_eq!(told(&mut losses, SHOWN_MS, 2), [2, SHOWN_MS, SHOWN_MS]);
        assert_eq!(told(&mut losses, SHOWN_MS, 3), [3, SHOWN_MS, 0]);
        assert_eq!(told(&mut losses, 2 * SHOWN_MS, 3), [3, 2 * SHOWN_MS, SHOWN_MS]);
        assert_eq!(told(&mut losses, 2 * SHOWN_MS + 1, 3), [0, 0, 0]);
        assert_eq!(told(&mut losses, 2 * SHOWN_MS + 1, 4), [1, 0, 0], "those before are forgotten");
    }

    #[test]
    fn each_kind_is_counted_by_itself() {
        let mut losses = Losses::default();
        let totals =
            LossTotals { rolled_back: 1, dead_letters: 2, unconfirmed: 3, log_dropped: 4, lost_slots: 5 };
        losses.look(NOW, totals);
        let counts: Vec<u64> = losses.numbers(NOW).step_by(3).map(|(_, n)| n).collect();
        assert_eq!(counts, [1, 2, 3, 4, 5]);
    }
}
