//! Timers as they are shown.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use mtimer_client::{
    DeadRow, ImportGoal, ListedTimer, Mode, Time, Timer, TimerState, TimerView, UnconfirmedRow,
};
use mtimer_types::extensions::PRIORITY;
use serde_json::{Map, Value, json};

use super::moment::shown;
use super::output::{Output, Tone, plain};

/// Characters of a payload that people are shown.
const PAYLOAD_SHOWN: usize = 200;

/// Puts a payload into an object: as text if it is text.
pub(crate) fn put_payload(object: &mut Map<String, Value>, payload: &[u8]) {
    match std::str::from_utf8(payload) {
        Ok(text) => object.insert("payload".to_owned(), text.into()),
        Err(_) => object.insert("payload_base64".to_owned(), BASE64.encode(payload).into()),
    };
}

/// Puts a time into an object: in milliseconds, and so that people can read it.
pub(crate) fn put_time(object: &mut Map<String, Value>, name: &str, time: Option<Time>) {
    object.insert(format!("{name}_ms"), json!(time));
    object.insert(name.to_owned(), json!(time.map(shown)));
}

/// A payload in one line, for people.
pub(crate) fn payload_shown(payload: &[u8], limit: usize) -> String {
    std::str::from_utf8(payload)
        .map_or_else(|_| format!("({} bytes)", payload.len()), |text| plain(text, limit))
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::AtLeastOnce => "at-least-once",
        Mode::AtMostOnce => "at-most-once",
    }
}

fn timer(timer: &Timer) -> Map<String, Value> {
    let mut object = Map::new();
    put_time(&mut object, "due", Some(timer.due));
    put_time(&mut object, "deadline", timer.deadline);
    let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
    put("id", json!(timer.id));
    put("key", json!(timer.key));
    put("group", json!(timer.dest.group()));
    put("app", json!(timer.dest.app()));
    put("mode", mode(timer.mode).into());
    put("priority", timer.priority().name().into());
    put("callback_timeout_ms", json!(timer.callback_timeout_ms));
    put("retry_ms", json!(timer.retry));
    put("headers", json!(timer.headers));
    let tags = timer.extensions.iter().map(|(tag, _)| tag).filter(|tag| *tag != PRIORITY);
    let tags: Vec<u32> = tags.collect();
    if !tags.is_empty() {
        put("unknown_extensions", json!(tags));
    }
    put_payload(&mut object, &timer.payload);
    object
}

/// The name of a state.
pub(crate) fn state(state: TimerState) -> &'static str {
    match state {
        TimerState::Pending { .. } => "pending",
        TimerState::Retrying { .. } => "retrying",
        TimerState::Parked => "parked",
        TimerState::InFlight { .. } => "in-flight",
        TimerState::Unconfirmed => "unconfirmed",
        TimerState::Dead => "dead",
        TimerState::Staged { .. } => "staged",
    }
}

/// What a staged timer becomes at its release.
fn becomes(goal: ImportGoal) -> &'static str {
    match goal {
        ImportGoal::Live { .. } => "pending",
        ImportGoal::Dead { .. } => "dead",
        ImportGoal::Unconfirmed { .. } => "unconfirmed",
    }
}

/// The object that `get` shows.
pub(crate) fn timer_object(view: &TimerView) -> Map<String, Value> {
    let mut object = timer(&view.timer);
    if let TimerState::Pending { fire }
    | TimerState::Retrying { fire, .. }
    | TimerState::Staged { fire, .. } = view.state
    {
        put_time(&mut object, "fire", Some(fire));
    }
    let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
    put("state", state(view.state).into());
    match view.state {
        TimerState::Retrying { tier, .. } => {
            put("tier", tier.into());
        }
        TimerState::InFlight { epoch, attempt } => {
            put("epoch", json!(epoch));
            put("attempt", attempt.into());
        }
        TimerState::Staged { staging, .. } => {
            put("import", json!(staging.import.to_string()));
            put("becomes", becomes(staging.goal).into());
        }
        TimerState::Pending { .. } | TimerState::Parked | TimerState::Unconfirmed | TimerState::Dead => {}
    }
    put("attempts", view.failed.into());
    put("stopped", view.stopped.into());
    put("last_error", json!(view.last_error));
    object
}

/// A row of a list: the object that `get` shows, and by which time it is listed. Its payload is
/// empty if payloads were not fetched.
pub(crate) fn listed_object(row: &ListedTimer) -> Map<String, Value> {
    let mut object = timer_object(&row.view);
    put_time(&mut object, "fire", Some(row.fire));
    object.insert("payload_bytes".to_owned(), row.payload_bytes.into());
    object
}

/// A dead letter.
pub(crate) fn dead_object(row: &DeadRow) -> Map<String, Value> {
    let mut object = timer(&row.timer);
    let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
    put("state", "dead".into());
    put("reason", json!(row.reason));
    put("attempts", row.attempts.into());
    put("last_error", json!(row.last_error));
    put_time(&mut object, "died", Some(row.died));
    object
}

/// A timer that was claimed and never confirmed.
pub(crate) fn unconfirmed_object(row: &UnconfirmedRow) -> Map<String, Value> {
    let mut object = timer(&row.timer);
    let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
    put("state", "unconfirmed".into());
    put("reason", "unconfirmed".into());
    put("attempts", row.failed.saturating_add(1).into());
    put("epoch", json!(row.epoch));
    put_time(&mut object, "unconfirmed", Some(row.since));
    object
}

/// The fields that people look for first.
const FIRST: [&str; 7] = ["id", "key", "group", "app", "state", "due", "payload"];

/// An object for people: a line for each field that says something.
pub(crate) fn fields(object: &Map<String, Value>, out: Output) -> String {
    let said = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    };
    let twice = |name: &str| name.strip_suffix("_ms").is_some_and(|base| object.contains_key(base));
    let first = FIRST.iter().filter_map(|name| object.get_key_value(*name));
    let rest = object.iter().filter(|(name, _)| !FIRST.contains(&name.as_str()));
    let shown: Vec<(&String, String)> = first
        .chain(rest)
        .filter(|(name, value)| said(value) && !twice(name))
        .map(|(name, value)| (name, plain(value.as_str().unwrap_or(&value.to_string()), PAYLOAD_SHOWN)))
        .collect();
    let width = shown.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&String, String)| {
        format!("{}  {value}", out.tone(Tone::Faint, &format!("{name:<width$}")))
    };
    shown.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use mtimer_client::{Destination, Extensions, Headers, PartitionId, TimerId};

    use super::*;

    fn view(payload: &'static [u8]) -> TimerView {
        let due = Time::from_ms(1_500);
        let timer = Timer {
            payload: payload.into(),
            ..Timer::new(
                TimerId::new(due, Time::ZERO, PartitionId(0), 1),
                Destination::new("g", "a").unwrap(),
                due,
            )
        };
        let state = TimerState::Retrying { fire: Time::from_ms(2_000), tier: 1 };
        TimerView { failed: 1, last_error: Some("no".into()), ..TimerView::new(timer, state) }
    }

    #[test]
    fn a_payload_is_text_or_base_64() {
        let text = timer_object(&view(b"hi"));
        assert_eq!(
            (&text["payload"], &text["state"], &text["tier"]),
            (&json!("hi"), &json!("retrying"), &json!(1))
        );
        let bytes = timer_object(&view(b"\xff\0"));
        assert!(!bytes.contains_key("payload"));
        assert_eq!(bytes["payload_base64"], json!("/wA="));
    }

    #[test]
    fn people_see_what_there_is() {
        let text = fields(&timer_object(&view(b"a\x1bb")), Output::new(false));
        assert!(text.contains("payload     a\\u{1b}b"), "{text}");
        assert!(text.contains("due         1970-01-01T00:00:01.500Z"), "{text}");
        assert!(text.contains("fire        1970-01-01T00:00:02.000Z"), "{text}");
        assert!(!text.contains("headers") && !text.contains("deadline"), "{text}");
        let mut traced = view(b"");
        traced.timer.deadline = Some(Time::from_ms(3_000));
        traced.timer.headers = Headers::new([("tenant", "a\"b"), ("b", "2")]).unwrap();
        let text = fields(&timer_object(&traced), Output::new(false));
        assert!(text.contains(r#"headers     {"b":"2","tenant":"a\"b"}"#), "{text}");
        assert!(text.contains("deadline    1970-01-01T00:00:03.000Z"), "{text}");
        let mut newer = view(b"");
        newer.timer.extensions = Extensions::new([(4, "x"), (10, "y")]).unwrap();
        let text = fields(&timer_object(&newer), Output::new(false));
        assert!(text.contains("unknown_extensions  [4,10]"), "{text}");
        let text = fields(&timer_object(&view(b"")), Output::new(false));
        assert!(
            !text.contains("extensions")
                && !text.contains("key")
                && !text.contains("_ms")
                && !text.contains("stopped"),
            "{text}"
        );
    }
}
