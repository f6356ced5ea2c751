//! Positions in a list of timers, as text.

use std::fmt;
use std::str::FromStr;

use mtimer_types::{Time, TimerId};

use super::merge::Position;

/// Digits of the fire time, in hexadecimal: all 48 bits. The id follows.
const TIME_DIGITS: usize = 12;

/// A position in a list of timers, from [`TimerList::cursor`](crate::TimerList::cursor).
///
/// It has a text form of 38 letters and digits, for links and command lines. It does not expire,
/// survives takeovers, and is valid for every filter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListCursor {
    /// The first position that the list may show.
    next: Position,
}

impl ListCursor {
    /// Before all timers.
    pub(super) const START: Self = Self { next: (Time::ZERO, TimerId::from_u128(0)) };

    /// Before the timer at this position.
    pub(super) const fn at(position: Position) -> Self {
        Self { next: position }
    }

    /// Behind the timer at this position.
    pub(super) const fn behind((fire, id): Position) -> Self {
        // No timer has the highest id.
        Self { next: (fire, TimerId::from_u128(id.as_u128().saturating_add(1))) }
    }

    /// The first position that the list may show.
    pub(super) const fn position(self) -> Position {
        self.next
    }
}

impl fmt::Display for ListCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (fire, id) = self.next;
        f.pad(&format!("{:0TIME_DIGITS$x}{id}", fire.as_ms()))
    }
}

/// Says that a text is not a cursor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a cursor: give one as a list has shown it, 38 characters of 0-9 a-z")]
pub struct ParseCursorError(String);

impl FromStr for ListCursor {
    type Err = ParseCursorError;

    fn from_str(text: &str) -> Result<Self, ParseCursorError> {
        let parse = || {
            let (time, id) = text.split_at_checked(TIME_DIGITS)?;
            // A number may begin with a sign, for the standard library.
            let is_hex = time.bytes().all(|b| b.is_ascii_hexdigit());
            let ms = u64::from_str_radix(time, 16).ok().filter(|_| is_hex)?;
            Some(Self::at((Time::from_ms(ms), id.parse().ok()?)))
        };
        parse().ok_or_else(|| ParseCursorError(text.chars().take(60).collect()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_text_says_the_position(ms in 0u64..1 << 48, id in any::<u128>()) {
            let cursor = ListCursor::at((Time::from_ms(ms), TimerId::from_u128(id)));
            let text = cursor.to_string();
            prop_assert_eq!(text.len(), 38);
            prop_assert_eq!(text.parse(), Ok(cursor));
            prop_assert_eq!(text.to_uppercase().parse(), Ok(cursor));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,45}") {
            let _ = text.parse::<ListCursor>();
        }
    }

    #[test]
    fn other_text_is_refused_with_a_hint() {
        let good = ListCursor::at((Time::from_ms(1_500), TimerId::from_u128(7))).to_string();
        assert_eq!(good, "0000000005dc00000000000000000000000007");
        let sign = good.replacen('0', "+", 1);
        for bad in [
            "",
            "7",
            &good[1..],
            &format!("{good}0"),
            &sign,
            &good.replace("dc", "dz"),
            "é".repeat(19).as_str(),
        ] {
            let error = bad.parse::<ListCursor>().unwrap_err().to_string();
            let hint = "is not a cursor: give one as a list has shown it, 38 characters of 0-9 a-z";
            assert!(error.contains(hint), "{error}");
        }
    }

    #[test]
    fn nothing_is_between_a_timer_and_the_cursor_behind_it() {
        let at = |n| (Time::from_ms(5), TimerId::from_u128(n));
        assert_eq!(ListCursor::behind(at(7)), ListCursor::at(at(8)));
        assert!(ListCursor::START < ListCursor::at(at(0)));
    }
}
