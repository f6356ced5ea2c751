//! story: what has become of one timer, attempt by attempt.

use std::time::Duration;

use clap::Args;
use mtimer_client::{Attempt, AttemptEnd, FailedAttempt, LateCause, Time, TimerStory, limits};
use serde_json::{Map, Value, json};

use super::args::{ClientArgs, TargetArgs};
use super::exit::Failure;
use super::moment::{shown, span_shown};
use super::output::{Output, plain};
use super::query::missing;
use super::{dead, view};

/// Characters of an error that people are shown.
const ERROR_SHOWN: usize = 200;

/// Tells what has become of a timer: its attempts, how late each was and why
///
/// Shows the timer as get does, then its last 8 attempts that ended without success: when each was
/// sent to which client under which epoch, how late and why, when it ended and how; the attempt
/// under way; and what the timer waits for if its time has come.
///
/// Why a delivery was late: credit (no client had capacity for it), parked (none had for so long
/// that it was set aside: all were busy, or none is registered), takeover (its broker was
/// restarted, or another one took over), claim (the store had not yet confirmed that its owner may
/// send what is due then), store (that was slow or away, or the broker's memory was used up), edit
/// (a cancel, reschedule or replace of it was under way), broker (none of these: busy, or its host
/// stood still). Below 10 ms no reason is given, but for parked. How late a later attempt was that
/// had been parked is not known.
///
/// A timer that was acknowledged, or has expired, is gone and has no story: the broker's metrics
/// say how late those were. Dead and unconfirmed timers are found by their ids only. Exit code 5 if
/// there is no such timer.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer story 01jz8q4v3c0000g5m3x9w2k7ha\n  \
    mtimer story --group shop --app orders --key order-17 --json")]
pub(crate) struct StoryCommand {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    client: ClientArgs,
}

impl StoryCommand {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        let target = self.target.target()?;
        let (story, fields) = self
            .client
            .looking(async |client| {
                let story = client.story(target.clone()).await?.ok_or_else(|| missing(&target))?;
                let mut fields = view::timer_object(&story.view);
                if let Some(row) = dead::row_of(client, &story.view).await? {
                    fields.extend(row);
                }
                Ok((story, fields))
            })
            .await?;
        out.either(&object(&story, fields.clone()), || {
            let told = lines(&story).join("\n");
            format!("{}\n\n{told}", view::fields(&fields, out))
        })
    }
}

/// The object that `get` shows, with the story.
fn object(story: &TimerStory, mut fields: Map<String, Value>) -> Map<String, Value> {
    let failed = |failed: &FailedAttempt| {
        let mut row = attempt_object(&failed.attempt);
        view::put_time(&mut row, "ended", Some(failed.ended));
        row.insert("end".to_owned(), failed.end.name().into());
        row.insert("error".to_owned(), json!(Some(&failed.error).filter(|error| !error.is_empty())));
        row
    };
    let told = json!({
        "failed_attempts": story.attempts.iter().map(failed).collect::<Vec<_>>(),
        "lost_attempts": story.lost().collect::<Vec<_>>(),
        "postponed_in_a_row": postponed_in_a_row(story),
        "under_way": story.under_way.as_ref().map(attempt_object),
        "settling": story.settling,
        "waits_for": story.waits_for.map(LateCause::name),
        "told_ms": story.told,
    });
    fields.insert("story".to_owned(), told);
    fields
}

fn attempt_object(attempt: &Attempt) -> Map<String, Value> {
    let mut row = Map::new();
    view::put_time(&mut row, "sent", attempt.sent);
    let mut put = |name: &str, value: Value| row.insert(name.to_owned(), value);
    put("attempt", attempt.number.into());
    put("epoch", json!(attempt.epoch));
    put("client", client(attempt).into());
    put("late_ms", json!(attempt.sent.map(|_| attempt.late_ms)));
    put("late_by", json!(attempt.late_by.map(LateCause::name)));
    row
}

fn client(attempt: &Attempt) -> String {
    format!("{:016x}", attempt.client)
}

/// The story for people: attempts in their order, then what goes on.
fn lines(story: &TimerStory) -> Vec<String> {
    let mut told: Vec<(u32, Vec<String>)> =
        story.attempts.iter().map(|failed| (failed.attempt.number, failed_lines(failed))).collect();
    told.extend(story.lost().map(|number| (number, vec![lost_line(number)])));
    told.sort_by_key(|(number, _)| *number);
    let mut lines: Vec<String> = told.into_iter().flat_map(|(_, lines)| lines).collect();
    match postponed_in_a_row(story) {
        0 => {}
        times => lines.push(format!(
            "postponed {times} times in a row by its handlers; after {} times it has failed",
            limits::MAX_LATER_IN_A_ROW
        )),
    }
    if let Some(attempt) = &story.under_way {
        let until_now =
            attempt.sent.map_or_else(String::new, |sent| format!(", for {}", between(sent, story.told)));
        lines.push(format!("{}: under way{until_now}", attempt_line(attempt)));
    }
    if let Some(number) = story.settling {
        lines.push(format!("attempt {number}: it has ended; its outcome is on its way to the store"));
    }
    if let Some(cause) = story.waits_for {
        lines.push(format!("its time has come: {}", now_waits(cause)));
    }
    if lines.is_empty() {
        lines.push("no attempt has ended without success".to_owned());
    }
    lines
}

/// How many attempts handlers have postponed since one ended otherwise.
fn postponed_in_a_row(story: &TimerStory) -> u32 {
    story.view.rest.extensions.postponed().in_a_row
}

fn failed_lines(failed: &FailedAttempt) -> Vec<String> {
    let FailedAttempt { attempt, ended, end, error } = failed;
    let after = attempt.sent.map_or_else(String::new, |sent| format!(" after {}", between(sent, *ended)));
    let words = if error.is_empty() { String::new() } else { format!(": {}", plain(error, ERROR_SHOWN)) };
    vec![attempt_line(attempt), format!("    ended {}{after}: {}{words}", shown(*ended), ending(*end))]
}

fn attempt_line(attempt: &Attempt) -> String {
    let (number, epoch, client) = (attempt.number, attempt.epoch, client(attempt));
    let sent = match attempt.sent {
        Some(sent) => format!("sent {}{}", shown(sent), lateness(attempt)),
        None => "sent by a former owner".to_owned(),
    };
    format!("attempt {number}: {sent}, to client {client}, epoch {epoch}")
}

fn lateness(attempt: &Attempt) -> String {
    let Some(cause) = attempt.late_by else { return String::new() };
    let late = match (cause, attempt.number) {
        (LateCause::Parked | LateCause::Paused, 2..) => "late by an unknown time".to_owned(),
        _ => format!("{} late", span_shown(Duration::from_millis(attempt.late_ms.into()))),
    };
    format!(", {late}: {}", had_waited(cause))
}

fn lost_line(number: u32) -> String {
    format!("attempt {number}: it may have been sent, by an owner that was lost; nothing is known of it")
}

fn between(from: Time, to: Time) -> String {
    span_shown(Duration::from_millis(to.ms_since(from)))
}

fn ending(end: AttemptEnd) -> &'static str {
    match end {
        AttemptEnd::Retry => "the handler asked for another attempt",
        AttemptEnd::Fail => "the handler said that it will never be done",
        AttemptEnd::TimedOut => "no outcome came within the callback timeout",
        AttemptEnd::ConnectionLost => "the connection to the client was lost",
        AttemptEnd::NotBegun => "no handler had begun",
        AttemptEnd::Later => "postponed by its handler",
        AttemptEnd::Unknown => "in a way that this version does not know",
    }
}

/// What a late delivery had waited for.
fn had_waited(cause: LateCause) -> &'static str {
    match cause {
        LateCause::Credit => "no client had capacity for it (credit)",
        LateCause::Parked => "it had been set aside, as no client had capacity (parked)",
        LateCause::Takeover => "its broker was restarted, or another one took over (takeover)",
        LateCause::Claim => "the store had not yet confirmed the owner's claim (claim)",
        LateCause::Store => "the store was slow or away, or memory was short (store)",
        LateCause::Edit => "a cancel, reschedule or replace was under way (edit)",
        LateCause::Broker => "its broker was busy or stood still (broker)",
        LateCause::Paused => "its destination was paused (paused)",
        LateCause::Limited => "its destination was at its limits (limited)",
        LateCause::Unknown => "for a reason that this version does not know (unknown)",
    }
}

/// What a timer waits for whose time has come.
fn now_waits(cause: LateCause) -> &'static str {
    match cause {
        LateCause::Credit => "it waits for a client with capacity for it (credit)",
        LateCause::Parked => {
            "it is set aside until a client has capacity: all are busy, or none is registered (parked)"
        }
        LateCause::Takeover => "another broker takes over, or has, and is yet to read it (takeover)",
        LateCause::Claim => "it waits until the store confirms the owner's claim (claim)",
        LateCause::Store => "it waits for the store (store)",
        LateCause::Edit => "it waits for the end of a cancel, reschedule or replace (edit)",
        LateCause::Broker => "it waits for its broker (broker)",
        LateCause::Paused => "its destination is paused: mtimer destination get (paused)",
        LateCause::Limited => "its destination is at its limits: mtimer destination get (limited)",
        LateCause::Unknown => "it waits for something that this version does not know (unknown)",
    }
}

#[cfg(test)]
mod tests {
    use mtimer_client::{Destination, Epoch, Timer, TimerId, TimerState, TimerView};

    use super::*;

    fn attempt(number: u32, late_ms: u32, late_by: Option<LateCause>) -> Attempt {
        let sent = Some(Time::from_ms(1_000 * u64::from(number)));
        Attempt { number, epoch: Epoch(7), client: 0xab, sent, late_ms, late_by }
    }

    fn story() -> TimerStory {
        let timer =
            Timer::new(TimerId::from_u128(7), Destination::new("g", "a").unwrap(), Time::from_ms(700));
        let state = TimerState::InFlight { epoch: Epoch(7), attempt: 4 };
        let view = TimerView { failed: 3, last_error: Some("no".into()), ..TimerView::new(timer, state) };
        let failed = |attempt: Attempt, end, error: &str| FailedAttempt {
            ended: attempt.sent.unwrap_or(Time::ZERO) + 250,
            attempt,
            end,
            error: error.into(),
        };
        let late = attempt(1, 300, Some(LateCause::Credit));
        let inherited = Attempt { sent: None, ..attempt(3, 0, None) };
        TimerStory {
            view,
            attempts: vec![
                failed(late, AttemptEnd::Retry, "out of\nstock"),
                failed(inherited, AttemptEnd::TimedOut, ""),
            ],
            tried: 4,
            under_way: Some(attempt(4, 0, None)),
            settling: None,
            waits_for: None,
            told: Time::from_ms(6_500),
        }
    }

    #[test]
    fn people_are_told_of_each_attempt_in_its_order() {
        let client = "0".repeat(14) + "ab";
        let expected = [
            format!(
                "attempt 1: sent 1970-01-01T00:00:01.000Z, 300 ms late: no client had capacity for it (credit), \
                 to client {client}, epoch 7"
            ),
            "    ended 1970-01-01T00:00:01.250Z after 250 ms: the handler asked for another attempt: \
             out of\\nstock"
                .to_owned(),
            "attempt 2: it may have been sent, by an owner that was lost; nothing is known of it".to_owned(),
            format!("attempt 3: sent by a former owner, to client {client}, epoch 7"),
            "    ended 1970-01-01T00:00:00.250Z: no outcome came within the callback timeout".to_owned(),
            format!(
                "attempt 4: sent 1970-01-01T00:00:04.000Z, to client {client}, epoch 7: under way, for 2.50 s"
            ),
        ];
        assert_eq!(lines(&story()), expected);
    }

    #[test]
    fn people_are_told_what_a_timer_waits_for_and_that_there_is_nothing_to_tell() {
        let mut quiet = story();
        (quiet.attempts, quiet.under_way, quiet.tried) = (vec![], None, 0);
        assert_eq!(lines(&quiet), ["no attempt has ended without success"]);
        (quiet.settling, quiet.tried) = (Some(1), 1);
        assert_eq!(lines(&quiet), ["attempt 1: it has ended; its outcome is on its way to the store"]);
        (quiet.settling, quiet.tried) = (None, 0);
        for cause in LateCause::ALL {
            quiet.waits_for = Some(*cause);
            let name = format!("({})", cause.name());
            let told = lines(&quiet);
            assert!(told.len() == 1 && told[0].ends_with(&name) && had_waited(*cause).ends_with(&name));
        }
    }

    #[test]
    fn how_late_a_parked_retry_was_is_not_known() {
        let of = |number| lateness(&attempt(number, 40, Some(LateCause::Parked)));
        assert_eq!(of(1), ", 40 ms late: it had been set aside, as no client had capacity (parked)");
        assert_eq!(
            of(2),
            ", late by an unknown time: it had been set aside, as no client had capacity (parked)"
        );
    }

    #[test]
    fn programs_read_the_same() {
        let told = object(&story(), Map::new())["story"].clone();
        assert_eq!((&told["lost_attempts"], &told["waits_for"]), (&json!([2]), &Value::Null));
        let first = &told["failed_attempts"][0];
        assert_eq!((&first["late_ms"], &first["late_by"]), (&json!(300), &json!("credit")));
        assert_eq!((&first["end"], &first["error"]), (&json!("retry"), &json!("out of\nstock")));
        let inherited = &told["failed_attempts"][1];
        assert_eq!((&inherited["sent"], &inherited["late_ms"]), (&Value::Null, &Value::Null));
        assert_eq!((&inherited["end"], &inherited["error"]), (&json!("timed-out"), &Value::Null));
        assert_eq!((&told["under_way"]["attempt"], &told["told_ms"]), (&json!(4), &json!(6_500)));
    }
}
