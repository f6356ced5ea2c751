//! The file of an export: a header, a line for each timer, a trailer.
//!
//! Invariant: a timer that is read from its line is what was written. A file of another format, or
//! with a field that is not known, is refused: nothing is lost in silence.
//!
//! Not in here: who reads and writes files, and which line of an id counts.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use mtimer_client::{
    DeadReason, DeadRow, Destination, Epoch, Extensions, ForeignTimer, Headers, ImportGoal, ImportId,
    ImportedRecord, Key, ListedTimer, Mode, RecordRest, RetryTiers, Time, Timer, TimerId, TimerState,
    TimerView, UnconfirmedRow,
};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::aside::AsideRow;
use super::moment;

/// The format of this version.
pub(crate) const FORMAT: u32 = 1;

/// The last error of a timer whose last attempt had no outcome yet when it was exported.
const OUTCOME_UNKNOWN: &str = "exported while this attempt was under way: its outcome is not known";

/// A line of the file.
#[derive(Debug)]
pub(crate) enum ExportLine {
    Header(Header),
    Trailer(Trailer),
    Timer(Box<TimerLine>),
}

/// The first line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    /// The format.
    pub(crate) mtimer_export: u32,
    /// Its name, random: imports of it have the same.
    #[serde(serialize_with = "id_as_text", deserialize_with = "id_of_text")]
    pub(crate) id: ImportId,
    pub(crate) cluster: String,
    pub(crate) partitions: u16,
    /// When the export began.
    pub(crate) time_ms: Time,
    pub(crate) time: String,
    /// Conditions that the timers meet, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) only: Vec<String>,
}

/// The last line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Trailer {
    /// The format.
    pub(crate) mtimer_export_end: u32,
    /// Lines of timers.
    pub(crate) timers: u64,
    pub(crate) by_state: BTreeMap<String, u64>,
    /// Nothing was in flight and nothing changed while the export ran, as far as brokers count.
    pub(crate) consistent: bool,
    /// Why it is not.
    pub(crate) why: Vec<String>,
    /// Timers that imports had staged, about: they are left out.
    pub(crate) staged: u64,
    /// What brokers had counted then: a difference is a change since.
    pub(crate) counters: BTreeMap<String, u64>,
    /// When the export ended.
    pub(crate) time_ms: Time,
}

/// Where a timer stood.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LineState {
    Pending,
    Retrying,
    InFlight,
    Parked,
    Taken,
    Unconfirmed,
    Dead,
}

impl LineState {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Retrying => "retrying",
            Self::InFlight => "in-flight",
            Self::Parked => "parked",
            Self::Taken => "taken",
            Self::Unconfirmed => "unconfirmed",
            Self::Dead => "dead",
        }
    }
}

/// A timer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TimerLine {
    pub(crate) id: TimerId,
    pub(crate) state: LineState,
    group: String,
    app: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<Key>,
    due_ms: Time,
    /// The same for people.
    due: String,
    /// When it fires, if that is not when it is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fire_ms: Option<Time>,
    #[serde(default, skip_serializing_if = "is_default")]
    tier: u8,
    mode: Mode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deadline_ms: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    callback_timeout_ms: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_ms: Option<RetryTiers>,
    #[serde(default, skip_serializing_if = "Headers::is_empty")]
    headers: Headers,
    /// Its payload, if that is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    extensions_base64: Option<String>,
    /// Failed attempts.
    #[serde(default, skip_serializing_if = "is_default")]
    failed: u32,
    /// Attempts that have begun, or may have, if there are more of them: the outcome of the last is
    /// not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tried: Option<u32>,
    #[serde(default, skip_serializing_if = "is_default")]
    budget_from: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    stopped: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    accepted_ms: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    record_extensions_base64: Option<String>,
    /// Why it died.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<DeadReason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    died_ms: Option<Time>,
    /// The epoch of the owner that took it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    epoch: Option<Epoch>,
    /// Since when it is unconfirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since_ms: Option<Time>,
}

fn id_as_text<S: Serializer>(id: &ImportId, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(id)
}

fn id_of_text<'a, D: Deserializer<'a>>(from: D) -> Result<ImportId, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl TimerLine {
    fn new(timer: &Timer, state: LineState, rest: &RecordRest) -> Self {
        let (payload, payload_base64) = match std::str::from_utf8(&timer.payload) {
            Ok("") => (None, None),
            Ok(text) => (Some(text.to_owned()), None),
            Err(_) => (None, Some(BASE64.encode(&timer.payload))),
        };
        Self {
            id: timer.id,
            state,
            group: timer.dest.group().to_owned(),
            app: timer.dest.app().to_owned(),
            key: timer.key.clone(),
            due_ms: timer.due,
            due: moment::shown(timer.due),
            fire_ms: None,
            tier: 0,
            mode: timer.mode,
            deadline_ms: timer.deadline,
            callback_timeout_ms: timer.callback_timeout_ms,
            retry_ms: timer.retry.clone(),
            headers: timer.headers.clone(),
            payload,
            payload_base64,
            extensions_base64: block(&timer.extensions),
            failed: 0,
            tried: None,
            budget_from: rest.budget_from,
            stopped: false,
            last_error: None,
            accepted_ms: rest.accepted,
            record_extensions_base64: block(&rest.extensions),
            reason: None,
            died_ms: None,
            epoch: None,
            since_ms: None,
        }
    }

    fn of_view(view: &TimerView, state: LineState) -> Self {
        Self {
            failed: view.failed,
            tried: Some(view.rest.tried).filter(|tried| *tried > view.failed),
            stopped: view.stopped,
            last_error: view.last_error.clone(),
            ..Self::new(&view.timer, state, &view.rest)
        }
    }

    /// A timer that waits, or is being delivered.
    pub(crate) fn waiting(row: &ListedTimer) -> Self {
        let view = &row.view;
        let retries = view.failed != view.rest.budget_from;
        let (state, tier) = match view.state {
            TimerState::Pending { .. } => (LineState::Pending, 0),
            TimerState::Retrying { tier, .. } => (LineState::Retrying, tier),
            // A tier is a matter of counting only.
            TimerState::InFlight { .. } => (LineState::InFlight, u8::from(retries)),
            // It has moved since it was listed; where it is now it is listed, too.
            TimerState::Parked | TimerState::Unconfirmed | TimerState::Dead | TimerState::Staged { .. } => {
                (LineState::Pending, 0)
            }
        };
        let fire_ms = Some(row.fire).filter(|fire| *fire != view.timer.due);
        let epoch = match view.state {
            TimerState::InFlight { epoch, .. } => Some(epoch),
            _ => None,
        };
        Self { fire_ms, tier, epoch, ..Self::of_view(view, state) }
    }

    /// A timer that does not wait.
    pub(crate) fn aside(row: &AsideRow) -> Self {
        match row {
            AsideRow::Live(view) => match view.state {
                TimerState::InFlight { epoch, .. } if view.timer.mode == Mode::AtMostOnce => {
                    Self { epoch: Some(epoch), ..Self::of_view(view, LineState::Taken) }
                }
                TimerState::InFlight { .. } => Self::of_view(view, LineState::InFlight),
                // It has been given up since it was listed.
                TimerState::Unconfirmed => Self::of_view(view, LineState::Taken),
                TimerState::Pending { .. }
                | TimerState::Retrying { .. }
                | TimerState::Parked
                | TimerState::Dead
                | TimerState::Staged { .. } => Self::of_view(view, LineState::Parked),
            },
            AsideRow::Unconfirmed(row) => {
                let UnconfirmedRow { timer, epoch, since, failed, last_error, rest } = &**row;
                Self {
                    failed: *failed,
                    last_error: last_error.clone(),
                    epoch: Some(*epoch),
                    since_ms: Some(*since),
                    ..Self::new(timer, LineState::Unconfirmed, rest)
                }
            }
            AsideRow::Dead(row) => {
                let DeadRow { timer, reason, attempts, last_error, died, rest } = &**row;
                Self {
                    failed: *attempts,
                    last_error: last_error.clone(),
                    reason: Some(*reason),
                    died_ms: Some(*died),
                    ..Self::new(timer, LineState::Dead, rest)
                }
            }
        }
    }

    /// The timer as it is to be imported. `exported`: when the export began.
    ///
    /// If an attempt has begun, or may have, its handler may have run: one that is delivered once
    /// at most is unconfirmed then. Of any other that attempt counts as failed, but not for its
    /// retries.
    pub(crate) fn foreign(mut self, exported: Time) -> Result<ForeignTimer, String> {
        if let Some(tried) = self.begun() {
            if self.mode == Mode::AtMostOnce {
                self.state = LineState::Taken;
            } else {
                self.budget_from = self.budget_from.saturating_add(tried - self.failed);
                self.failed = tried;
                self.last_error = Some(OUTCOME_UNKNOWN.to_owned());
            }
        }
        let dest = Destination::new(&self.group, &self.app).map_err(|e| e.to_string())?;
        let payload = match (self.payload, self.payload_base64) {
            (Some(text), None) => Bytes::from(text),
            (None, Some(text)) => Bytes::from(decoded("payload_base64", &text)?),
            (None, None) => Bytes::new(),
            (Some(_), Some(_)) => return Err("it has two payloads".to_owned()),
        };
        let goal = match self.state {
            LineState::Pending | LineState::Parked => ImportGoal::Live { tier: 0 },
            LineState::Retrying | LineState::InFlight => ImportGoal::Live { tier: self.tier },
            LineState::Taken => {
                ImportGoal::Unconfirmed { epoch: self.epoch.unwrap_or_default(), since: exported }
            }
            LineState::Unconfirmed => ImportGoal::Unconfirmed {
                epoch: self.epoch.unwrap_or_default(),
                since: self.since_ms.ok_or("it does not say since when it is unconfirmed")?,
            },
            LineState::Dead => ImportGoal::Dead {
                reason: self.reason.ok_or("it does not say why it died")?,
                died: self.died_ms.ok_or("it does not say when it died")?,
            },
        };
        let is_live = matches!(goal, ImportGoal::Live { .. });
        let timer = Timer {
            key: self.key,
            mode: self.mode,
            deadline: self.deadline_ms,
            callback_timeout_ms: self.callback_timeout_ms,
            retry: self.retry_ms,
            payload,
            headers: self.headers,
            extensions: extensions("extensions_base64", self.extensions_base64.as_deref())?,
            ..Timer::new(self.id, dest, self.due_ms)
        };
        let record = self.record_extensions_base64.as_deref();
        let record = ImportedRecord {
            fire: self.fire_ms.filter(|_| is_live).unwrap_or(self.due_ms),
            failed: self.failed,
            budget_from: self.budget_from,
            stopped: self.stopped,
            last_error: self.last_error,
            accepted: self.accepted_ms,
            extensions: extensions("record_extensions_base64", record)?,
        };
        Ok(ForeignTimer { timer, goal, record })
    }
}

impl TimerLine {
    /// How many attempts have begun, if there is one of which the outcome is not known.
    fn begun(&self) -> Option<u32> {
        let least = match self.state {
            LineState::InFlight | LineState::Taken => self.failed.saturating_add(1),
            LineState::Pending | LineState::Retrying | LineState::Parked => self.failed,
            LineState::Unconfirmed | LineState::Dead => return None,
        };
        Some(self.tried.unwrap_or(0).max(least)).filter(|tried| *tried > self.failed)
    }
}

fn block(extensions: &Extensions) -> Option<String> {
    (!extensions.is_empty()).then(|| BASE64.encode(extensions.as_bytes()))
}

fn extensions(name: &str, text: Option<&str>) -> Result<Extensions, String> {
    let Some(text) = text else { return Ok(Extensions::NONE) };
    Extensions::from_bytes(&decoded(name, text)?).map_err(|error| format!("{name}: {error}"))
}

fn decoded(name: &str, text: &str) -> Result<Vec<u8>, String> {
    BASE64.decode(text).map_err(|error| format!("{name} is not base64: {error}"))
}

impl ExportLine {
    /// Reads a line.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let found: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let format = ["mtimer_export", "mtimer_export_end"].into_iter().find_map(|name| found.get(name));
        if let Some(format) = format.filter(|format| **format != FORMAT) {
            return Err(format!("it is of export format {format}, this version reads format {FORMAT} only"));
        }
        let (is_header, is_trailer) =
            (found.contains_key("mtimer_export"), found.contains_key("mtimer_export_end"));
        let value = serde_json::Value::Object(found);
        let read = match (is_header, is_trailer) {
            (true, _) => serde_json::from_value(value).map(Self::Header),
            (false, true) => serde_json::from_value(value).map(Self::Trailer),
            (false, false) => serde_json::from_value(value).map(|line| Self::Timer(Box::new(line))),
        };
        read.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use mtimer_client::PartitionId;

    use super::*;

    const NOW: Time = Time::from_ms(1_700_000_000_000);

    fn timer() -> Timer {
        let due = NOW + 5;
        Timer {
            key: Key::new("k").ok(),
            mode: Mode::AtMostOnce,
            deadline: Some(due + 9),
            callback_timeout_ms: Some(500),
            retry: Some(RetryTiers(vec![1, 2])),
            payload: Bytes::from_static(b"\xff\0"),
            headers: Headers::new([("tenant", "acme")]).unwrap(),
            extensions: Extensions::new([(4, "x")]).unwrap(),
            ..Timer::new(
                TimerId::new(due, NOW, PartitionId(3), 7),
                Destination::new("shop", "orders").unwrap(),
                due,
            )
        }
    }

    fn rest() -> RecordRest {
        let extensions = Extensions::new([(68, "story")]).unwrap();
        RecordRest { budget_from: 1, tried: 3, accepted: Some(NOW + 6), extensions }
    }

    fn view(state: TimerState) -> TimerView {
        TimerView {
            timer: timer(),
            state,
            failed: 3,
            stopped: true,
            last_error: Some("no".into()),
            rest: rest(),
        }
    }

    fn read_back(line: &TimerLine) -> ForeignTimer {
        let text = serde_json::to_string(line).unwrap();
        match ExportLine::parse(text.as_bytes()).unwrap() {
            ExportLine::Timer(read) => {
                assert_eq!(*read, *line, "{text}");
                read.foreign(NOW).unwrap()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_timer_in_any_state_reads_back_whole() {
        let fire = NOW + 60_000;
        let epoch = Epoch(4);
        let listed = |state| ListedTimer { fire, view: view(state), payload_bytes: 2 };
        let expected = |goal, fire| ForeignTimer {
            timer: timer(),
            goal,
            record: ImportedRecord {
                fire,
                failed: 3,
                budget_from: 1,
                stopped: true,
                last_error: Some("no".to_owned()),
                accepted: Some(NOW + 6),
                extensions: rest().extensions,
            },
        };
        // Where attempts are over, nobody asks whether one follows.
        let ended = |goal, fire| {
            let all: ForeignTimer = expected(goal, fire);
            ForeignTimer { record: ImportedRecord { stopped: false, ..all.record }, ..all }
        };
        let live = |tier| ImportGoal::Live { tier };
        let waiting = |state| read_back(&TimerLine::waiting(&listed(state)));
        assert_eq!(waiting(TimerState::Pending { fire }), expected(live(0), fire));
        assert_eq!(waiting(TimerState::Retrying { fire, tier: 2 }), expected(live(2), fire));
        let lost = ImportGoal::Unconfirmed { epoch, since: NOW };
        let in_flight = TimerState::InFlight { epoch, attempt: 4 };
        assert_eq!(waiting(in_flight), expected(lost, timer().due), "it may have run");
        let again = Timer { mode: Mode::AtLeastOnce, ..timer() };
        let mut row = listed(in_flight);
        row.view.timer = again.clone();
        let record = ImportedRecord {
            failed: 4,
            budget_from: 2,
            last_error: Some(OUTCOME_UNKNOWN.to_owned()),
            ..expected(live(1), fire).record
        };
        let begun = ForeignTimer { timer: again, goal: live(1), record };
        assert_eq!(read_back(&TimerLine::waiting(&row)), begun);
        row.view.state = TimerState::Retrying { fire, tier: 1 };
        row.view.rest.tried = 4;
        assert_eq!(read_back(&TimerLine::waiting(&row)), begun, "a broker before may have sent it");
        row.view.timer = timer();
        let goal = ImportGoal::Unconfirmed { epoch: Epoch::default(), since: NOW };
        assert_eq!(read_back(&TimerLine::waiting(&row)), expected(goal, timer().due));
        let aside = |row| read_back(&TimerLine::aside(&row));
        let due = timer().due;
        let row = AsideRow::Live(view(TimerState::Parked).into());
        assert_eq!(aside(row), expected(live(0), due));
        let row = AsideRow::Live(view(TimerState::InFlight { epoch, attempt: 4 }).into());
        assert_eq!(aside(row), expected(lost, due), "it may have run");
        let row = UnconfirmedRow {
            timer: timer(),
            epoch,
            since: NOW + 7,
            failed: 3,
            last_error: Some("no".to_owned()),
            rest: rest(),
        };
        let goal = ImportGoal::Unconfirmed { epoch, since: NOW + 7 };
        assert_eq!(aside(AsideRow::Unconfirmed(row.into())), ended(goal, due));
        let row = DeadRow {
            timer: timer(),
            reason: DeadReason::Exhausted,
            attempts: 3,
            last_error: Some("no".to_owned()),
            died: NOW + 8,
            rest: rest(),
        };
        let goal = ImportGoal::Dead { reason: DeadReason::Exhausted, died: NOW + 8 };
        assert_eq!(aside(AsideRow::Dead(row.into())), ended(goal, due));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let refused = |text: &str| ExportLine::parse(text.as_bytes()).unwrap_err();
        assert!(refused("{").contains("EOF"), "{}", refused("{"));
        let newer = r#"{"mtimer_export":2,"anything":1}"#;
        assert_eq!(refused(newer), "it is of export format 2, this version reads format 1 only");
        let mut line = serde_json::to_value(TimerLine::new(&timer(), LineState::Dead, &rest())).unwrap();
        line["colour"] = "red".into();
        assert!(refused(&line.to_string()).contains("unknown field `colour`"));
        let dead = TimerLine::new(&timer(), LineState::Dead, &rest());
        assert_eq!(dead.foreign(NOW), Err("it does not say why it died".to_owned()));
    }
}
