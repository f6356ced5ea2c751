//! How many of the pending timers fire when.

use std::collections::BTreeMap;

use mtimer_types::{DueSpan, Filter, Time, TimerId, limits};

use crate::pending::Position;

/// How many pending timers of some destinations are wanted, and how exactly.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForecastRange {
    /// Only destinations of this group and app; nothing else of the filter matters
    /// ([`Filter::accepts_destination`]).
    pub filter: Filter,
    /// The first position that may be in it. The `next` of the page before goes on behind that
    /// page.
    pub from: Position,
    /// The last moment at which a span may begin.
    pub until: Time,
    /// Length of a span, ms, 1 at least. Spans begin at its multiples.
    pub step_ms: u64,
}

/// A part of a forecast.
///
/// A store that keeps timers in slots counts a slot as one, and says how long it is if it does not
/// fit a step: nobody looks at the timers themselves.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Forecast {
    /// In the order of their beginnings, none of them empty. Longer ones than a step overlap others.
    /// The first one of a page may be the last one of the page before.
    pub spans: Vec<DueSpan>,
    /// Where to go on; `None` at the end.
    pub next: Option<Position>,
    /// Timers of the partition, of any destination, that are in no span yet although they may belong
    /// to one; 0: the numbers are exact.
    pub uncounted: u64,
}

/// Adds timers up by spans.
#[derive(Debug, Default)]
pub struct ForecastSums(BTreeMap<(Time, Time), u64>);

impl ForecastRange {
    /// All destinations, from the beginning.
    pub fn of(step_ms: u64) -> Self {
        let from = (Time::ZERO, TimerId::from_u128(0));
        Self { filter: Filter::default(), from, until: Time::MAX, step_ms }
    }

    /// The step in which a moment is: its beginning, and the one of the next.
    pub fn step(&self, fire: Time) -> (Time, Time) {
        let ms = self.step_ms.max(1);
        let begin = Time::from_ms(fire.as_ms() - fire.as_ms() % ms);
        (begin, begin + ms)
    }

    /// The last moment of the last step that may be in it.
    pub fn last(&self) -> Time {
        self.until.max(self.step(self.until).1 - 1)
    }
}

impl ForecastSums {
    /// So many timers fire from `begin` on, and before `end`.
    pub fn add(&mut self, (begin, end): (Time, Time), timers: u64) {
        *self.0.entry((begin, end)).or_default() += timers;
    }

    /// The spans, of which a page may have [`MAX_PAGE`](limits::MAX_PAGE), and where it goes on if
    /// they are more: all that begin at one time are on one page.
    pub fn page(self) -> (Vec<DueSpan>, Option<Position>) {
        let mut spans: Vec<DueSpan> =
            self.0.into_iter().map(|((begin, end), timers)| DueSpan { begin, end, timers }).collect();
        let Some(next) = spans.get(limits::MAX_PAGE as usize).map(|span| span.begin) else {
            return (spans, None);
        };
        spans.truncate(spans.partition_point(|span| span.begin < next));
        (spans, Some((next, TimerId::from_u128(0))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_in_the_step_that_begins_with_it_or_before() {
        let range = ForecastRange::of(1_000);
        let step = |ms| range.step(Time::from_ms(ms));
        let thousands = |n: u64| (Time::from_ms(n * 1_000), Time::from_ms((n + 1) * 1_000));
        assert_eq!([0, 999, 1_000, 1_001].map(step), [0, 0, 1, 1].map(thousands));
        let none = ForecastRange::of(0).step(Time::from_ms(7));
        assert_eq!(none, (Time::from_ms(7), Time::from_ms(8)));
        let until = |ms| ForecastRange { until: Time::from_ms(ms), ..range.clone() }.last();
        assert_eq!([0, 999, 1_000].map(until), [999, 999, 1_999].map(Time::from_ms));
        assert_eq!(range.last(), Time::MAX);
    }

    #[test]
    fn what_begins_together_is_on_one_page() {
        let most = u64::from(limits::MAX_PAGE);
        let mut sums = ForecastSums::default();
        for begin in 0..most - 1 {
            sums.add((Time::from_ms(begin), Time::from_ms(begin + 1)), 1);
            sums.add((Time::from_ms(begin), Time::from_ms(begin + 1)), 1);
        }
        let last = Time::from_ms(most - 1);
        sums.add((last, last + 1), 1);
        sums.add((last, last + 60), 1);
        let (spans, next) = sums.page();
        assert_eq!((spans.len() as u64, next), (most - 1, Some((last, TimerId::from_u128(0)))));
        assert!(spans.iter().all(|span| span.timers == 2));
    }
}
