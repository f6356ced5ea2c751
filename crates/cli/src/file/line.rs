//! One timer as it is written on a line of NDJSON or in flags, and how it becomes a schedule.
//!
//! Invariant: the same line gives the same timer, as far as it says when and which: a key or an id
//! together with a fixed time gives a fixed timer id, so that a file can be sent twice.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use mtimer_client::{
    Destination, Headers, Key, KeyPolicy, Mode, PartitionId, Priority, Schedule, Time, TimerId, When,
};
use mtimer_types::SlotWidth;
use mtimer_types::hash::Fnv64;
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::moment::{self, Deadline};

/// A line of the file.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct TimerRow {
    #[serde(rename = "in", default)]
    after: Option<String>,
    #[serde(default)]
    at: Option<TimeInput>,
    #[serde(default)]
    group: Option<String>,
    #[serde(default)]
    app: Option<String>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    payload: Option<Payload>,
    #[serde(default)]
    payload_base64: Option<String>,
    #[serde(default)]
    headers: Headers,
    #[serde(default)]
    mode: Option<Mode>,
    #[serde(default)]
    priority: Option<Priority>,
    #[serde(default)]
    deadline: Option<TimeInput>,
    #[serde(default)]
    retry: Option<RetryDelays>,
    #[serde(default)]
    callback_timeout: Option<String>,
}

/// A payload: the text of a string, any other value as it is written.
#[derive(Debug)]
struct Payload(Bytes);

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let text = raw.get();
        if !text.starts_with('"') {
            return Ok(Self(Bytes::copy_from_slice(text.as_bytes())));
        }
        serde_json::from_str::<String>(text).map(|text| Self(text.into())).map_err(de::Error::custom)
    }
}

/// A timer that is asked for, by a line or by flags.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    pub(crate) when: Option<When>,
    pub(crate) group: Option<String>,
    pub(crate) app: Option<String>,
    /// A timer id, or else a key.
    pub(crate) id: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) payload: Bytes,
    pub(crate) headers: Headers,
    pub(crate) mode: Option<Mode>,
    pub(crate) priority: Option<Priority>,
    pub(crate) deadline: Option<Deadline>,
    pub(crate) retry: Option<Vec<Duration>>,
    pub(crate) callback_timeout: Option<Duration>,
}

impl Fields {
    /// Reads a line.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, String> {
        let line: TimerRow = serde_json::from_slice(line).map_err(|e| json_error(&e))?;
        let when = match (line.after, line.at) {
            (Some(after), None) => When::After(moment::span(&after)?),
            (None, Some(at)) => When::At(at.time()?),
            (None, None) => return Err("it does not say when: give \"in\" or \"at\"".to_owned()),
            (Some(_), Some(_)) => return Err("it has both \"in\" and \"at\": leave one out".to_owned()),
        };
        let payload = match (line.payload, line.payload_base64) {
            (Some(_), Some(_)) => {
                return Err("it has both \"payload\" and \"payload_base64\": leave one out".to_owned());
            }
            (Some(Payload(bytes)), None) => bytes,
            (None, Some(text)) => {
                let decoded = BASE64.decode(&text);
                Bytes::from(decoded.map_err(|e| format!("\"payload_base64\" is not base 64: {e}"))?)
            }
            (None, None) => Bytes::new(),
        };
        Ok(Self {
            when: Some(when),
            group: line.group,
            app: line.app,
            id: line.id,
            key: line.key,
            payload,
            headers: line.headers,
            mode: line.mode,
            priority: line.priority,
            deadline: line.deadline.map(TimeInput::deadline).transpose()?,
            retry: line.retry.map(|d| d.0),
            callback_timeout: line.callback_timeout.as_deref().map(moment::span).transpose()?,
        })
    }
}

/// Makes schedules of fields: defaults, ids, the policy for keys.
#[derive(Clone, Debug)]
pub(crate) struct Maker {
    /// For fields that a line leaves out.
    pub(crate) defaults: Fields,
    /// `None`: create, but keep for lines whose id is a key.
    pub(crate) policy: Option<KeyPolicy>,
    /// Timers with a key and a fixed time get the same id every time.
    pub(crate) repeatable: bool,
    /// Of the cluster.
    pub(crate) partitions: u16,
    /// The last one made: the next line usually has the same.
    pub(crate) dest: Option<Destination>,
}

/// The kinds of names in a field.
enum Name {
    Id(TimerId),
    Key { key: Key, was_id: bool },
    None,
}

impl Maker {
    /// The schedule of these fields. `now` is the cluster clock.
    pub(crate) fn schedule(&mut self, fields: Fields, now: Time) -> Result<Schedule, String> {
        let when = fields.when.ok_or("it does not say when")?;
        let dest = self.destination(&fields)?;
        let defaults = &self.defaults;
        let mode = fields.mode.or(defaults.mode);
        let priority = fields.priority.or(defaults.priority);
        let deadline = fields.deadline.or(defaults.deadline);
        let retry = fields.retry.or_else(|| defaults.retry.clone());
        let timeout = fields.callback_timeout.or(defaults.callback_timeout);
        let headers = together(&defaults.headers, fields.headers)?;
        let mut schedule = Schedule::new(dest.clone(), when);
        match name(fields.id, fields.key, when)? {
            Name::None => {}
            Name::Id(id) => schedule = schedule.id(id),
            Name::Key { key, was_id } => {
                let usual = if self.repeatable || was_id { KeyPolicy::Keep } else { KeyPolicy::Create };
                if let (When::At(due), true) = (when, self.repeatable) {
                    let mut content = Content::new(&dest, &key);
                    content.part(&fields.payload);
                    content.headers(&headers);
                    content.part(format!("{mode:?} {deadline:?} {retry:?} {timeout:?}").as_bytes());
                    // Without one a line has the id that it had before there were priorities.
                    if let Some(priority) = priority {
                        content.part(priority.name().as_bytes());
                    }
                    let width = SlotWidth::for_distance(due.ms_since(now));
                    let partition = PartitionId::of_key(&dest, &key, self.partitions);
                    schedule = schedule.id(TimerId::with_width(due, width, partition, content.finish()));
                }
                schedule = schedule.key(key).policy(self.policy.unwrap_or(usual));
            }
        }
        schedule = schedule.payload(fields.payload).headers(headers).mode(mode.unwrap_or_default());
        schedule = schedule.priority(priority.unwrap_or_default());
        if let Some(deadline) = deadline {
            schedule = schedule.deadline(deadline.after(when));
        }
        if let Some(retry) = retry {
            schedule = schedule.retry(retry);
        }
        if let Some(timeout) = timeout {
            schedule = schedule.callback_timeout(timeout);
        }
        Ok(schedule)
    }

    fn destination(&mut self, fields: &Fields) -> Result<Destination, String> {
        let missing = |what: &str| format!("it names no {what}, and there is no --{what} for lines without");
        let group =
            fields.group.as_deref().or(self.defaults.group.as_deref()).ok_or_else(|| missing("group"))?;
        let app = fields.app.as_deref().or(self.defaults.app.as_deref()).ok_or_else(|| missing("app"))?;
        if let Some(dest) = self.dest.as_ref().filter(|d| d.group() == group && d.app() == app) {
            return Ok(dest.clone());
        }
        let dest = Destination::new(group, app).map_err(|e| e.to_string())?;
        self.dest = Some(dest.clone());
        Ok(dest)
    }
}

/// An id that is a timer id made for this time is one; any other is a key.
fn name(id: Option<String>, key: Option<String>, when: When) -> Result<Name, String> {
    let is_own = |id: &TimerId| when == When::At(id.birth_due());
    let key_of = |text: &str| Key::new(text).map_err(|e| e.to_string());
    match (id, key) {
        (None, None) => Ok(Name::None),
        (None, Some(key)) => Ok(Name::Key { key: key_of(&key)?, was_id: false }),
        (Some(id), key) => match (id.parse().ok().filter(is_own), key) {
            (Some(id), None) => Ok(Name::Id(id)),
            (None, None) => Ok(Name::Key { key: key_of(&id)?, was_id: true }),
            (_, Some(_)) => Err("it has both an \"id\" and a \"key\": leave one out".to_owned()),
        },
    }
}

/// A line's headers, and those of the flags whose names it does not have.
fn together(defaults: &Headers, own: Headers) -> Result<Headers, String> {
    if defaults.is_empty() {
        return Ok(own);
    }
    let others = defaults.iter().filter(|(name, _)| own.get(name).is_none());
    Headers::new(own.iter().chain(others)).map_err(|error| error.to_string())
}

/// A hash of the whole content of a timer.
struct Content(Fnv64);

impl Content {
    fn new(dest: &Destination, key: &Key) -> Self {
        let mut content = Self(Fnv64::default());
        content.part(dest.group().as_bytes());
        content.part(dest.app().as_bytes());
        content.part(key.as_str().as_bytes());
        content
    }

    fn part(&mut self, bytes: &[u8]) {
        self.0.write(&(bytes.len() as u64).to_le_bytes());
        self.0.write(bytes);
    }

    fn headers(&mut self, headers: &Headers) {
        for (name, value) in headers.content() {
            self.part(name.as_bytes());
            self.part(value.as_bytes());
        }
    }

    fn finish(self) -> u64 {
        self.0.finish()
    }
}

/// A time as text, or as milliseconds since the epoch.
#[derive(Debug)]
enum TimeInput {
    Ms(u64),
    Text(String),
}

impl TimeInput {
    fn time(self) -> Result<Time, String> {
        match self {
            Self::Ms(ms) => moment::in_range(ms),
            Self::Text(text) => moment::time(&text),
        }
    }

    fn deadline(self) -> Result<Deadline, String> {
        match self {
            Self::Ms(ms) => moment::in_range(ms).map(Deadline::At),
            Self::Text(text) => Deadline::parse(&text),
        }
    }
}

impl<'de> Deserialize<'de> for TimeInput {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct TimeVisitor;
        impl Visitor<'_> for TimeVisitor {
            type Value = TimeInput;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time: RFC 3339, or milliseconds since 1970")
            }
            fn visit_u64<E: de::Error>(self, ms: u64) -> Result<TimeInput, E> {
                Ok(TimeInput::Ms(ms))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<TimeInput, E> {
                Ok(TimeInput::Text(text.to_owned()))
            }
        }
        d.deserialize_any(TimeVisitor)
    }
}

/// Retry delays: `"1s,5s"` or `["1s", "5s"]`.
#[derive(Clone, Debug)]
pub(crate) struct RetryDelays(pub(crate) Vec<Duration>);

impl RetryDelays {
    /// Reads delays separated by commas; none means one attempt only.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).filter(|_| !text.trim().is_empty());
        parts.map(moment::span).collect::<Result<_, _>>().map(Self)
    }
}

impl<'de> Deserialize<'de> for RetryDelays {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct DelaysVisitor;
        impl<'de> Visitor<'de> for DelaysVisitor {
            type Value = RetryDelays;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("retry delays: \"1s,5s\" or [\"1s\", \"5s\"]")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<RetryDelays, E> {
                RetryDelays::read(text).map_err(E::custom)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RetryDelays, A::Error> {
                let mut all = Vec::new();
                while let Some(text) = seq.next_element::<String>()? {
                    all.push(moment::span(&text).map_err(de::Error::custom)?);
                }
                Ok(RetryDelays(all))
            }
        }
        d.deserialize_any(DelaysVisitor)
    }
}

/// The fault of the JSON. Every line is line 1 to the parser, so only the column is told.
fn json_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.split_once(" at line 1 column ") {
        Some((what, column)) => format!("{what} (column {column})"),
        None => text,
    }
}

#[cfg(test)]
mod tests;
