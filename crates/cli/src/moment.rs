//! Times and durations as people write them, and as they are shown.

use std::time::Duration;

use jiff::Timestamp;
use mtimer_broker::config::{InvalidValue, Span};
use mtimer_client::{Time, When};

/// A duration with a unit: `250ms`, `5s`, `2h 30m`.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    text.parse().map(|Span(duration)| duration).map_err(|error: InvalidValue| error.to_string())
}

/// A point in time: RFC 3339 with an offset, or milliseconds since the Unix epoch. What is finer
/// than a millisecond is rounded up, for nothing is ever early.
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
    let nanos = text.parse::<Timestamp>().map_err(|_| bad())?.as_nanosecond();
    let ms = nanos.div_euclid(1_000_000) + i128::from(nanos.rem_euclid(1_000_000) > 0);
    in_range(u64::try_from(ms).map_err(|_| format!("{text:?} is before 1970, where time begins here"))?)
}

/// Milliseconds since the epoch, if they can be named.
pub(crate) fn in_range(ms: u64) -> Result<Time, String> {
    let most = Time::MAX.as_ms();
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
}
