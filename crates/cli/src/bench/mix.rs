//! Which timers of a measurement have a key, are at most once, or fail at their first attempt.
//!
//! Invariant: timer `n` is the same in every run and every measurement; every hundred timers have
//! exactly the percentages that were asked for, spread over the hundred, and whether a timer has a
//! key does not depend on the rest.

use std::fmt;
use std::time::Duration;

use clap::Args;
use mtimer_client::{Destination, Key, Mode, Schedule, Target, TimerId};
use serde::Serialize;

use crate::exit::Failure;

/// The purpose of each mix, with an example.
pub(super) const HELP: &str = "\
Mixes of schedule, fire, lifecycle, lateness, cancel and reschedule:
  --keyed PCT         keys, which are looked up and stored with the timer and removed with it
                      mtimer bench schedule --keyed 100
  --at-most-once PCT  timers that are taken in the store before they are delivered
                      mtimer bench fire --at-most-once 100
  --fail PCT          handlers that fail once: the retry is filed, loaded and delivered
                      mtimer bench fire --fail 10
  --payload BYTES     larger timers, in every measurement
                      mtimer bench fire --payload 1024
  together            one timer in ten has a key, one handler in a hundred fails
                      mtimer bench lifecycle --rate 5000 --keyed 10 --fail 1
  cancel, reschedule  timers that never fire, by id, and with --keyed by key
                      mtimer bench cancel --keyed 100
                      mtimer bench reschedule --keyed 50
Where nothing fires (schedule, cancel, reschedule) --at-most-once and --fail change what is stored.";

/// The delays that every timer brings if some of them fail. The second is used only if a delivery
/// is lost.
const RETRY: [Duration; 2] = [Duration::from_millis(500); 2];

/// Percentages of a measurement's timers. The default, none of them, is the plain timer.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Mix {
    /// So many of a hundred timers have a key, order-0, order-1, ..., and are found by it
    #[arg(long, value_name = "PCT", default_value_t = 0, value_parser = percent)]
    #[arg(allow_negative_numbers = true, help_heading = "Mix")]
    pub(super) keyed: u8,
    /// So many of a hundred timers are at most once: each is taken in the store before it is
    /// delivered
    #[arg(long, value_name = "PCT", default_value_t = 0, value_parser = percent)]
    #[arg(allow_negative_numbers = true, help_heading = "Mix")]
    pub(super) at_most_once: u8,
    /// So many of a hundred timers fail at their first attempt and succeed at the second, half a
    /// second and the broker's jitter later. Every timer brings the retry delays then, whether or
    /// not it fails
    #[arg(long, value_name = "PCT", default_value_t = 0, value_parser = percent)]
    #[arg(allow_negative_numbers = true, help_heading = "Mix")]
    pub(super) fail: u8,
}

/// The traits of one timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Traits {
    pub(super) is_keyed: bool,
    pub(super) is_at_most_once: bool,
    pub(super) fails_once: bool,
}

impl Mix {
    /// Refuses percentages that cannot be had together.
    ///
    /// # Errors
    ///
    /// A failed at-most-once timer is a dead letter, so those and the failing ones are at most 100
    /// percent together.
    pub(super) fn check(self) -> Result<(), Failure> {
        let (once, fail) = (self.at_most_once, self.fail);
        let together = u16::from(once) + u16::from(fail);
        if together <= 100 {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "--at-most-once {once} and --fail {fail} are {together} percent together, the limit is 100, since an \
             at-most-once timer has no second attempt: lower one of them"
        )))
    }

    /// The traits of timer `n`.
    pub(super) fn of(self, n: u64) -> Traits {
        // Multiplication by a number that has no factor in common with 100 puts each timer of a
        // hundred in a place of its own. Keys move on by one place with each hundred, so that in
        // 10,000 timers they meet every other trait equally.
        let place = (n % 100 * 61 % 100) as u8;
        let key_place = ((n % 100 * 37 + n / 100 % 100) % 100) as u8;
        let fails = self.at_most_once..self.at_most_once.saturating_add(self.fail);
        Traits {
            is_keyed: key_place < self.keyed,
            is_at_most_once: place < self.at_most_once,
            fails_once: fails.contains(&place),
        }
    }

    /// How often timer `n` is delivered.
    pub(super) fn deliveries(self, n: u64) -> u8 {
        1 + u8::from(self.of(n).fails_once)
    }

    /// Timer `n`, with its traits.
    pub(super) fn apply(self, n: u64, mut schedule: Schedule) -> Schedule {
        let traits = self.of(n);
        if traits.is_keyed {
            schedule = schedule.key(key(n));
        }
        if traits.is_at_most_once {
            schedule = schedule.mode(Mode::AtMostOnce);
        }
        if self.fail > 0 {
            schedule = schedule.retry(RETRY);
        }
        schedule
    }

    /// How timer `n` is named in a cancel or a reschedule: by its key, if it has one.
    pub(super) fn target(self, n: u64, id: TimerId, dest: &Destination) -> Target {
        if self.of(n).is_keyed { Target::Key(dest.clone(), key(n)) } else { Target::Id(id) }
    }
}

/// For people: empty if all timers are plain.
impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [(self.keyed, "keyed"), (self.at_most_once, "at most once"), (self.fail, "failing once")];
        all.into_iter()
            .filter(|(percent, _)| *percent > 0)
            .try_for_each(|(n, what)| write!(f, ", {n} % {what}"))
    }
}

fn key(n: u64) -> Key {
    match Key::new(&format!("order-{n}")) {
        Ok(key) => key,
        // At most 26 bytes, of which none is a control character.
        Err(error) => unreachable!("{error}"),
    }
}

/// A whole percentage, 0 to 100.
pub(super) fn percent(text: &str) -> Result<u8, String> {
    let value: i64 = text.parse().map_err(|_| format!("{text:?} is not a whole number: give 0 to 100"))?;
    let within = u8::try_from(value).ok().filter(|value| *value <= 100);
    within.ok_or_else(|| format!("{value} percent is outside the limits: give 0 to 100"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(from: u64, timers: u64, is: impl Fn(u64) -> bool) -> u64 {
        (from..from + timers).filter(|n| is(*n)).count() as u64
    }

    #[test]
    fn every_hundred_has_exactly_what_was_asked_for() {
        for percent in 0..=100 {
            let keyed = Mix { keyed: percent, ..Mix::default() };
            let mix = Mix { at_most_once: 100 - percent, fail: percent, ..Mix::default() };
            for from in [0, 100, 12_300, 4_294_967_300] {
                assert_eq!(count(from, 100, |n| keyed.of(n).is_keyed), u64::from(percent));
                assert_eq!(count(from, 100, |n| mix.of(n).fails_once), u64::from(percent));
                // A timer that does not fail is at most once here; none is both.
                assert!((from..from + 100).all(|n| mix.of(n).fails_once != mix.of(n).is_at_most_once));
            }
        }
    }

    #[test]
    fn they_are_spread_over_the_hundred() {
        for percent in [1, 10, 25, 33, 50, 90, 99] {
            let mix = Mix { keyed: percent, fail: percent, ..Mix::default() };
            for (from, timers) in (0..150).flat_map(|from| [10, 35, 80].map(|timers| (from, timers))) {
                let keyed = count(from, timers, |n| mix.of(n).is_keyed);
                let failing = count(from, timers, |n| mix.of(n).fails_once);
                for found in [keyed, failing] {
                    let off = (found * 100).abs_diff(timers * u64::from(percent));
                    assert!(off <= 300, "{percent} %: {found} of {timers} from {from}");
                }
            }
        }
    }

    #[test]
    fn keys_meet_the_other_traits_equally() {
        let mix = Mix { keyed: 20, at_most_once: 10, fail: 30 };
        assert_eq!(count(0, 10_000, |n| mix.of(n).is_keyed && mix.of(n).is_at_most_once), 200);
        assert_eq!(count(0, 10_000, |n| mix.of(n).is_keyed && mix.of(n).fails_once), 600);
    }

    #[test]
    fn the_default_is_the_plain_timer() {
        let plain = Traits { is_keyed: false, is_at_most_once: false, fails_once: false };
        assert!((0..1_000).all(|n| Mix::default().of(n) == plain && Mix::default().deliveries(n) == 1));
        assert!(Mix::default().to_string().is_empty());
        let mix = Mix { keyed: 10, at_most_once: 0, fail: 1 };
        assert_eq!(mix.to_string(), ", 10 % keyed, 1 % failing once");
    }

    #[test]
    fn percentages_name_value_limit_and_fix() {
        assert_eq!((percent("0"), percent("100")), (Ok(0), Ok(100)));
        let refused = |text| percent(text).unwrap_err();
        assert_eq!(refused("101"), "101 percent is outside the limits: give 0 to 100");
        assert_eq!(refused("-1"), "-1 percent is outside the limits: give 0 to 100");
        assert_eq!(refused("0.5"), "\"0.5\" is not a whole number: give 0 to 100");
        let mix = Mix { at_most_once: 95, fail: 10, ..Mix::default() };
        let message = mix.check().unwrap_err().message;
        assert!(
            message.starts_with("--at-most-once 95 and --fail 10 are 105 percent together, the limit is 100")
        );
        assert!(Mix { keyed: 100, at_most_once: 90, fail: 10 }.check().is_ok());
    }
}
