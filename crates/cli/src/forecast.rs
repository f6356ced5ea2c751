//! `mtimer forecast`: how many timers are due when.

use std::time::Duration;

use clap::{Args, ValueEnum};
use mtimer_client::{Client, DestinationFilter, DueSpan, Forecast, ForecastRequest, RequestError, Time};
use serde_json::{Map, Value};

use super::args::ClientArgs;
use super::exit::Failure;
use super::output::{Output, TextTable, counted, grouped, note};
use super::{moment, view};

/// Widest bar, characters.
const BAR: u64 = 40;

/// Shows how many timers are due when
///
/// A line for each minute, hour or day (UTC) in which timers are delivered next, and how many; none
/// where there are none. The line "overdue" has those of lines that are over, many of which are
/// being delivered. Retries count when they are to be delivered. Parked timers and dead letters do
/// not count: `mtimer destinations` shows them.
///
/// On Redis this reads no timers. A broker counts them by the slots in which it keeps them: a timer
/// that was scheduled hours or days before it is due may be in a slot of an hour or a day. Such a
/// line says until when it goes, and overlaps others. The embedded store reads all timers up to the
/// end. Partitions are asked at different times, so the numbers show no one instant.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer forecast\n  mtimer forecast --by minute --for 2h\n  \
    mtimer forecast --group shop --app orders --by day\n  \
    mtimer forecast --json | jq '.spans[] | select(.timers > 1000000)'")]
pub(crate) struct ForecastCommand {
    /// Only of this group
    #[arg(long)]
    group: Option<String>,
    /// Only of this app
    #[arg(long)]
    app: Option<String>,
    /// How long a line is
    #[arg(long, value_enum, default_value_t = StepLength::Hour)]
    by: StepLength,
    /// How far ahead [default: 1h by minute, 24h by hour, 30d by day]
    #[arg(long, value_name = "DURATION", value_parser = moment::span, allow_hyphen_values = true)]
    r#for: Option<Duration>,
    #[command(flatten)]
    client: ClientArgs,
}

/// How long a line of the forecast is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum StepLength {
    Minute,
    Hour,
    Day,
}

impl StepLength {
    const fn ms(self) -> u64 {
        match self {
            Self::Minute => 60_000,
            Self::Hour => 3_600_000,
            Self::Day => 86_400_000,
        }
    }

    /// How far a forecast goes that is not told, ms.
    const fn ahead_ms(self) -> u64 {
        match self {
            Self::Minute => Self::Hour.ms(),
            Self::Hour => Self::Day.ms(),
            Self::Day => 30 * Self::Day.ms(),
        }
    }
}

impl ForecastCommand {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        let Self { group, app, by, r#for, client } = self;
        let filter = DestinationFilter { group, app };
        let ahead_ms = r#for.map_or(by.ahead_ms(), moment::millis);
        let ask = async |client: &Client| Ok(ask(client, filter.clone(), by, ahead_ms).await?);
        let (now, Forecast { spans, uncounted }) = client.looking(ask).await?;
        if out.json {
            let spans: Vec<Value> = spans.iter().map(span_object).collect();
            let mut object = Map::new();
            view::put_time(&mut object, "now", Some(now));
            object.insert("spans".to_owned(), spans.into());
            object.insert("uncounted".to_owned(), uncounted.into());
            return out.object(&object);
        }
        let lines = lines(&spans, now, by.ms());
        let most = lines.iter().map(|line| line.timers).max().unwrap_or(0);
        if !lines.is_empty() {
            let mut table = TextTable::new(["from", "timers", ""]);
            lines.iter().for_each(|line| {
                table.row([line.name.clone(), grouped(line.timers), bar(line.timers, most)])
            });
            table.lines().try_for_each(|line| out.text(&line))?;
        }
        let timers = spans.iter().map(|span| span.timers).fold(0, u64::saturating_add);
        note(&format!(
            "{} in lines that begin up to {}",
            counted(timers, "timer"),
            moment::shown(now + ahead_ms)
        ));
        if uncounted > 0 {
            note(&super::destinations::uncounted_note(uncounted));
        }
        Ok(())
    }
}

async fn ask(
    client: &Client,
    filter: DestinationFilter,
    by: StepLength,
    ahead_ms: u64,
) -> Result<(Time, Forecast), RequestError> {
    let now = client.now();
    let request = ForecastRequest { filter, until: now + ahead_ms, step_ms: by.ms() };
    Ok((now, client.forecast(request).await?))
}

/// A line of the table.
struct Line {
    name: String,
    timers: u64,
}

/// What is over by now is one line.
fn lines(spans: &[DueSpan], now: Time, step_ms: u64) -> Vec<Line> {
    let (over, rest): (Vec<DueSpan>, Vec<DueSpan>) = spans.iter().partition(|span| span.end <= now);
    let overdue = over.iter().map(|span| span.timers).fold(0, u64::saturating_add);
    let overdue = (overdue > 0).then(|| Line { name: "overdue".to_owned(), timers: overdue });
    let line = |span: &DueSpan| {
        let begin = moment::shown(span.begin);
        let is_step = span.end == span.begin + step_ms;
        let name = if is_step { begin } else { format!("{begin} to {}", moment::shown(span.end)) };
        Line { name, timers: span.timers }
    };
    overdue.into_iter().chain(rest.iter().map(line)).collect()
}

fn bar(timers: u64, most: u64) -> String {
    let length = (u128::from(timers) * u128::from(BAR)).div_ceil(u128::from(most.max(1)));
    "#".repeat(length as usize)
}

fn span_object(span: &DueSpan) -> Value {
    let mut object = Map::new();
    view::put_time(&mut object, "begin", Some(span.begin));
    view::put_time(&mut object, "end", Some(span.end));
    object.insert("timers".to_owned(), span.timers.into());
    object.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_is_one_line_and_longer_spans_say_until_when() {
        let span =
            |begin, end, timers| DueSpan { begin: Time::from_ms(begin), end: Time::from_ms(end), timers };
        let minute = StepLength::Minute.ms();
        let spans = [span(0, minute, 1), span(minute, 2 * minute, 2), span(minute, 60 * minute, 7)];
        let shown = |now| lines(&spans, Time::from_ms(now), minute).into_iter().map(|l| (l.name, l.timers));
        let named = |name: &str, timers| (name.to_owned(), timers);
        let second = named("1970-01-01T00:01:00.000Z", 2);
        let long = named("1970-01-01T00:01:00.000Z to 1970-01-01T01:00:00.000Z", 7);
        assert!(shown(2 * minute).eq([named("overdue", 3), long.clone()]));
        assert!(shown(minute).eq([named("overdue", 1), second, long]));
        assert!(lines(&[], Time::ZERO, minute).is_empty());
    }

    #[test]
    fn the_most_timers_have_the_longest_bar_and_one_has_some() {
        assert_eq!([0, 1, 500, 1_000].map(|n| bar(n, 1_000).len()), [0, 1, 20, 40]);
        assert_eq!((bar(u64::MAX, u64::MAX).len(), bar(0, 0).len()), (40, 0));
    }
}
