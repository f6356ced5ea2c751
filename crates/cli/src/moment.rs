//! Times and durations as people write them, and as they are shown.

use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::Timestamp;
use mtimer_broker::config::{InvalidValue, Span};
use mtimer_client::{Time, When, limits};

/// A duration with a unit: `250ms`, `5s`, `2h 30m`.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    text.parse().map(|Span(duration)| duration).map_err(|error: InvalidValue| error.to_string())
}

/// How long to wait for an answer: a duration of 1 ms at least.
pub(crate) fn timeout(text: &str) -> Result<Duration, String> {
    let span = span(text)?;
    if span < Duration::from_millis(1) { Err("too short: give 1ms or more".into()) } else { Ok(span) }
}

/// How long a handler puts a timer off: at most 24 hours.
pub(crate) fn later(text: &str) -> Result<Duration, String> {
    let (span, longest) = (span(text)?, Duration::from_millis(limits::MAX_LATER_MS.into()));
    if span > longest { Err("too long: give 24h at most".into()) } else { Ok(span) }
}

/// Numbers that are seconds since 1970 of a year from 1973 to 5138. As milliseconds they are from
/// January 1970 to March 1973, which nobody means.
const LIKE_SECONDS: RangeInclusive<u64> = 100_000_000..=99_999_999_999;
/// The offsets that there are, in minutes: from Baker Island to Kiribati.
const OFFSETS: RangeInclusive<i64> = -12 * 60..=14 * 60;

/// A point in time: RFC 3339 with an offset, or milliseconds since the Unix epoch. Fractions of a
/// millisecond are rounded up, for nothing is ever early.
pub(crate) fn time(text: &str) -> Result<Time, String> {
    let text = text.trim();
    let bad = || {
        format!(
            "{text:?} is not a time: write RFC 3339, such as 2030-01-31T12:00:00Z, or milliseconds since 1970, \
             such as 1896091200000"
        )
    };
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return in_range(text.parse().map_err(|_| bad())?);
    }
    if let Some(offset) = offset(text).filter(|(minutes, _)| !OFFSETS.contains(minutes)) {
        return Err(format!("{text:?} has the offset {}: there are -12:00 to +14:00, and Z", offset.1));
    }
    let nanos = text.parse::<Timestamp>().map_err(|_| bad())?.as_nanosecond();
    let ms = nanos.div_euclid(1_000_000) + i128::from(nanos.rem_euclid(1_000_000) > 0);
    in_range(u64::try_from(ms).map_err(|_| format!("{text:?} is before 1970, where time begins here"))?)
}

/// The offset at the end of a time such as `2030-01-31T12:00:00+01:00`: in minutes, and as written.
fn offset(text: &str) -> Option<(i64, &str)> {
    const DATE: usize = "2030-01-31".len();
    let at = text.get(DATE..)?.rfind(['+', '-'])? + DATE;
    let (sign, number) = text[at..].split_at(1);
    // Two digits of hours: a text with more, or with other characters, is no time.
    let (hours, minutes) = number.split_at_checked(2)?;
    let minutes = minutes.trim_start_matches(':');
    let minutes = if minutes.is_empty() { 0 } else { minutes.parse::<u8>().ok()? };
    let total = i64::from(hours.parse::<u8>().ok()?) * 60 + i64::from(minutes);
    Some((if sign == "-" { -total } else { total }, &text[at..]))
}

/// Milliseconds since the epoch, if they can be named.
pub(crate) fn in_range(ms: u64) -> Result<Time, String> {
    let most = Time::MAX.as_ms();
    if LIKE_SECONDS.contains(&ms) {
        return Err(format!(
            "{ms} looks like seconds since 1970: write milliseconds, {ms}000, or RFC 3339, {}",
            shown(Time::from_ms(ms * 1_000))
        ));
    }
    if ms > most {
        return Err(format!("{ms} ms is beyond the latest time that there is, {most} ms since 1970"));
    }
    Ok(Time::from_ms(ms))
}

/// A duration after the due time, or a point in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Deadline {
    AfterDue(Duration),
    At(Time),
}

impl Deadline {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match (span(text), time(text)) {
            (Ok(after), _) => Ok(Self::AfterDue(after)),
            (_, Ok(time)) => Ok(Self::At(time)),
            (Err(negative), _) if negative.contains("is negative") => Err(negative),
            (_, Err(time)) if !time.contains("is not a time") => Err(time),
            _ => Err(format!(
                "{text:?} is not a deadline: write a time such as 2030-01-31T12:00:00Z or milliseconds since 1970, \
                 or a duration after the due time such as 30s"
            )),
        }
    }

    /// As a schedule due at `when` takes it.
    pub(crate) fn after(self, when: When) -> When {
        match (self, when) {
            (Self::At(time), _) => When::At(time),
            (Self::AfterDue(after), When::At(due)) => When::At(due + millis(after)),
            (Self::AfterDue(after), When::After(due)) => When::After(due.saturating_add(after)),
        }
    }
}

/// Whole milliseconds, rounded up.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A time in UTC, or its milliseconds if no calendar goes that far.
pub(crate) fn shown(time: Time) -> String {
    time.utc().to_string()
}

/// A time as a flag takes it: what [`time`] reads.
pub(crate) fn as_flag(time: Time) -> String {
    let text = shown(time);
    text.strip_suffix(" ms").map(str::to_owned).unwrap_or(text)
}

/// A duration to a sensible number of digits.
pub(crate) fn span_shown(span: Duration) -> String {
    let seconds = span.as_secs_f64();
    match seconds {
        s if s < 1.0 => format!("{:.0} ms", s * 1_000.0),
        s if s < 120.0 => format!("{s:.2} s"),
        _ => humantime::format_duration(Duration::from_secs(seconds.round() as u64)).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_or_milliseconds() {
        assert_eq!(time("1970-01-01T00:00:01.5Z"), Ok(Time::from_ms(1_500)));
        assert_eq!(time("1970-01-01T01:00:00.0000001+01:00"), Ok(Time::from_ms(1)));
        assert_eq!(time("1500"), Ok(Time::from_ms(1_500)));
        assert!(time("yesterday").unwrap_err().starts_with("\"yesterday\" is not a time: write RFC 3339"));
        assert!(time("1969-12-31T23:59:59Z").unwrap_err().contains("before 1970"));
        assert!(time("999999999999999").unwrap_err().contains("beyond"));
        assert!(time("2030-01-31T12:00:00").is_err(), "without an offset nobody knows when that is");
    }

    #[test]
    fn nothing_is_put_off_by_more_than_a_day() {
        assert_eq!(later("24h"), Ok(Duration::from_secs(86_400)));
        assert_eq!(later("24h 1ms"), Err("too long: give 24h at most".to_owned()));
        assert!(later("soon").is_err());
    }

    #[test]
    fn nobody_waits_for_no_time() {
        for text in ["0s", "0ms", "999us"] {
            assert_eq!(timeout(text), Err("too short: give 1ms or more".to_owned()), "{text}");
        }
        assert_eq!(timeout("1ms"), Ok(Duration::from_millis(1)));
    }

    #[test]
    fn seconds_since_1970_and_offsets_that_do_not_exist_are_refused() {
        let error = time("1896091200").unwrap_err();
        assert!(error.contains("write milliseconds, 1896091200000, or RFC 3339, 2030-01-31T"), "{error}");
        assert!(Deadline::parse("1896091200").unwrap_err().contains("looks like seconds"));
        assert_eq!(time("1896091200000"), time("2030-01-31T12:00:00Z"));
        for bad in ["+25:00", "-13:00", "+14:30", "+2500", "+99", "+14:01"] {
            let error = time(&format!("2030-01-31T12:00:00{bad}")).unwrap_err();
            assert!(error.contains(&format!("has the offset {bad}")), "{error}");
        }
        for odd in ["+0\u{5b7}", "+9223372036854775807", "+9999:00", "+12:999", "+", "+1"] {
            let error = time(&format!("2030-01-31T12:00:00{odd}")).unwrap_err();
            assert!(error.contains("is not a time") || error.contains("has the offset"), "{error}");
        }
        for good in ["+14:00", "-12:00", "+05:45", "-03", "+0200"] {
            time(&format!("2030-01-31T12:00:00{good}")).unwrap();
        }
    }

    #[test]
    fn a_negative_duration_is_told_as_such() {
        let negative = Err("\"-5s\" is negative: a duration is 0s or longer".to_owned());
        assert_eq!(span("-5s"), negative);
        assert_eq!(Deadline::parse("-5s").map(drop), negative.map(drop));
        assert!(span("-").unwrap_err().contains("is not a duration"));
    }

    #[test]
    fn deadlines_count_from_the_due_time() {
        let due = When::At(Time::from_ms(1_000));
        assert_eq!(Deadline::parse("2s").unwrap().after(due), When::At(Time::from_ms(3_000)));
        assert_eq!(Deadline::parse("5000").unwrap().after(due), When::At(Time::from_ms(5_000)));
        let relative = When::After(Duration::from_secs(1));
        assert_eq!(Deadline::parse("2s").unwrap().after(relative), When::After(Duration::from_secs(3)));
        assert!(Deadline::parse("later").unwrap_err().contains("is not a deadline"));
    }

    #[test]
    fn times_are_shown_in_utc() {
        assert_eq!(shown(Time::from_ms(1_500)), "1970-01-01T00:00:01.500Z");
        assert!(shown(Time::MAX).ends_with(" ms"));
    }

    #[test]
    fn times_as_flags_are_read_as_the_same_times() {
        for ms in [0, 1_500, 1_896_091_200_001, Time::MAX.as_ms()] {
            assert_eq!(time(&as_flag(Time::from_ms(ms))), Ok(Time::from_ms(ms)), "{ms}");
        }
    }
}
