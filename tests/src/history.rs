//! What clients saw: every request with the times around it, every delivery, every outcome; and
//! what was left at the end.
//!
//! Timers are told apart by a serial number at the head of their payload, which also the ones have
//! whose id the test does not know (lines of a file with a key).

use std::collections::BTreeMap;
use std::sync::Mutex;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use mtimer_client::{
    Callback, Cancelled, Client, DeadFilter, DeadReason, Destination, Ended, Headers, Key, Mode, Replayed,
    RequestError, Rescheduled, Schedule, ScheduleError, Scheduled, Status, Target, Time, TimerId, TimerState,
};

use crate::host_ms;
use crate::journal::Entry;

/// Questions on their way at once when the end is read.
const ASKED_AT_ONCE: usize = 500;

/// A timer as a test wants it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its number in this test.
    pub serial: u64,
    /// Whose it is.
    pub dest: Destination,
    /// Its key.
    pub key: Option<Key>,
    /// When it is due, ms since the epoch.
    pub due: u64,
    /// False: the broker or a tool computes the due time; it is not before `due`.
    pub exact: bool,
    /// How often it may be delivered.
    pub mode: Mode,
    /// Its own deadline.
    pub deadline: Option<u64>,
    /// Attempts before it is a dead letter.
    pub attempts: u32,
    /// How long a handler may take, ms.
    pub timeout_ms: u64,
    /// Whether it replaces what has its key.
    pub replaces: bool,
    /// Whether its destination may be without credit or without clients for seconds.
    pub crowded: bool,
    /// Bytes of its payload behind the serial number.
    pub filler_bytes: usize,
}

impl Plan {
    /// A plain timer, due at `due`, with the attempts and the callback timeout of the broker under
    /// test.
    pub fn new(serial: u64, dest: &Destination, due: u64, attempts: u32, timeout_ms: u64) -> Self {
        Self {
            serial,
            dest: dest.clone(),
            key: None,
            due,
            exact: true,
            mode: Mode::AtLeastOnce,
            deadline: None,
            attempts,
            timeout_ms,
            replaces: false,
            crowded: false,
            filler_bytes: (serial % 100) as usize,
        }
    }

    /// Its payload: the serial number and some bytes.
    pub fn payload(&self) -> Bytes {
        let filler: String = ('a'..='z').cycle().take(self.filler_bytes).collect();
        format!("{}:{filler}", self.serial).into()
    }

    /// Its headers: every third has some.
    pub fn headers(&self) -> Headers {
        let serial = self.serial.to_string();
        let pairs = [("serial", serial.as_str()), ("tenant", "acme")];
        Headers::new(pairs.into_iter().filter(|_| self.serial.is_multiple_of(3))).unwrap()
    }

    /// As the SDK takes it, without retry tiers and callback timeout.
    pub fn schedule(&self) -> Schedule {
        let mut schedule = Schedule::at(self.dest.clone(), Time::from_ms(self.due));
        if let Some(key) = &self.key {
            schedule = schedule.key(key.clone());
        }
        if let Some(deadline) = self.deadline {
            schedule = schedule.deadline(Time::from_ms(deadline));
        }
        schedule.mode(self.mode).payload(self.payload()).headers(self.headers())
    }
}

/// The serial number in a payload.
pub fn serial_of(payload: &[u8]) -> Option<u64> {
    let head = payload.split(|b| *b == b':').next()?;
    std::str::from_utf8(head).ok()?.parse().ok()
}

/// What a request was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Said {
    /// Schedule: stored.
    Stored {
        /// Its id, where the test learns it.
        id: Option<TimerId>,
        /// What it replaced; `None` in the inner option: nothing. `None` in the outer: not said (a
        /// repeat).
        replaced: Option<Option<TimerId>>,
    },
    /// Cancel, reschedule: done.
    Done,
    /// Cancel, reschedule: too late.
    TooLate,
    /// Cancel, reschedule: nothing of that name.
    NotFound,
    /// Certainly not done.
    Refused,
    /// It may or may not have been done.
    Unknown,
}

/// What a handler did with a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handled {
    /// Outcome ok.
    Ok,
    /// Outcome retry.
    Retry,
    /// Outcome fail.
    Fail,
}

/// Something of one timer. Times are ms since the epoch by the host's clock.
#[derive(Clone, Debug)]
pub enum Event {
    /// It was to be scheduled.
    Schedule {
        /// When asked.
        asked: u64,
        /// When answered.
        answered: u64,
        /// The answer.
        said: Said,
    },
    /// It was to be cancelled.
    Cancel {
        /// When asked.
        asked: u64,
        /// When answered.
        answered: u64,
        /// The answer.
        said: Said,
    },
    /// It was to be due at another time.
    Move {
        /// When asked.
        asked: u64,
        /// When answered.
        answered: u64,
        /// The new time.
        due: u64,
        /// The answer.
        said: Said,
    },
    /// A dead letter was to be delivered anew.
    Replay {
        /// When asked.
        asked: u64,
        /// When answered.
        answered: u64,
        /// The answer.
        said: Said,
    },
    /// A dead letter was to be removed.
    Purge {
        /// When asked.
        asked: u64,
        /// When answered.
        answered: u64,
        /// The answer.
        said: Said,
    },
    /// It was looked at.
    Looked {
        /// When answered.
        at: u64,
        /// Its state then.
        state: TimerState,
    },
    /// A repeat of its schedule was told that it has ended.
    Ended {
        /// When answered.
        at: u64,
        /// How it has ended.
        how: Ended,
    },
    /// A client got it.
    Delivered {
        /// When.
        at: u64,
        /// Which client, of those that record.
        client: u32,
        /// Under this id.
        id: TimerId,
        /// The owner's epoch.
        epoch: u64,
        /// The attempt.
        attempt: u32,
        /// When it was due, as the broker says.
        due: u64,
        /// Key, destination, mode, payload and headers are those of the plan.
        intact: bool,
    },
    /// A handler returned.
    Settled {
        /// When.
        at: u64,
        /// The delivery's epoch.
        epoch: u64,
        /// The delivery's attempt.
        attempt: u32,
        /// What it said.
        outcome: Handled,
    },
}

impl Event {
    /// When it happened; the end, of what took time.
    pub fn at(&self) -> u64 {
        match self {
            Self::Schedule { answered, .. }
            | Self::Cancel { answered, .. }
            | Self::Move { answered, .. }
            | Self::Replay { answered, .. }
            | Self::Purge { answered, .. } => *answered,
            Self::Delivered { at, .. }
            | Self::Settled { at, .. }
            | Self::Ended { at, .. }
            | Self::Looked { at, .. } => *at,
        }
    }
}

/// What a fault excuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Excuse {
    /// Nothing: it was planned, and nobody is to notice.
    Nothing,
    /// Duplicates.
    #[default]
    Duplicates,
    /// Duplicates, and deliveries that arrive long after they were sent: a broker was stopped, or a
    /// connection held back what was on it.
    Delays,
    /// Whatever follows if the store has lost what it had answered just before.
    Losses,
}

/// Something that was done to the parties: from a kill, for example, until all is well again.
#[derive(Clone, Debug)]
pub struct Fault {
    /// From.
    pub from: u64,
    /// To.
    pub until: u64,
    /// What.
    pub what: String,
    /// What it excuses.
    pub excuse: Excuse,
}

/// What is asked of a history beyond the contract's words. Generous: a machine may be slow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Most ms from when a timer could have fired (due, stored, faults over) until it does.
    pub liveness_ms: Option<u64>,
    /// Most ms that a timer may wait while later ones of other destinations are delivered, without
    /// a fault.
    pub starving_ms: Option<u64>,
    /// Most ms that a broker's clock may be away from the reference.
    pub clock_ms: Option<u64>,
}

/// What a broker said of the time, and the reference clock around it. Times are ms since the epoch.
#[derive(Clone, Debug)]
pub struct ClockReading {
    /// Which broker.
    pub broker: String,
    /// The reference before the question was sent.
    pub before: u64,
    /// The cluster clock, as the broker says.
    pub says: u64,
    /// The reference when the answer was there.
    pub after: u64,
}

/// Everything that was recorded.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The timers.
    pub plans: BTreeMap<u64, Plan>,
    /// What happened to them, in the order of recording.
    pub events: Vec<(u64, Event)>,
    /// Deliveries whose payload has no serial number of a plan.
    pub strangers: Vec<String>,
    /// The faults.
    pub faults: Vec<Fault>,
    /// What the brokers' logs say.
    pub journal: Vec<Entry>,
    /// When the wall clock of a party jumped.
    pub jumps: Vec<u64>,
    /// What brokers said of the time.
    pub clocks: Vec<ClockReading>,
    /// What is asked of it.
    pub limits: Limits,
}

/// Records, from any task.
#[derive(Debug, Default)]
pub struct Recorder(Mutex<History>);

impl Recorder {
    /// A timer that is going to be asked for.
    pub fn plan(&self, plan: Plan) {
        self.0.lock().unwrap().plans.insert(plan.serial, plan);
    }

    /// Something happened.
    pub fn add(&self, serial: u64, event: Event) {
        self.0.lock().unwrap().events.push((serial, event));
    }

    /// A broker was asked for the time.
    pub fn clock(&self, reading: ClockReading) {
        self.0.lock().unwrap().clocks.push(reading);
    }

    /// A fault is over, which excuses duplicates.
    pub fn fault(&self, from: u64, what: impl Into<String>) {
        self.over(from, what, Excuse::Duplicates);
    }

    /// Something that was done to the parties is over.
    pub fn over(&self, from: u64, what: impl Into<String>, excuse: Excuse) {
        let fault = Fault { from, until: host_ms(), what: what.into(), excuse };
        self.0.lock().unwrap().faults.push(fault);
    }

    /// A delivery has arrived. Returns its plan.
    pub fn delivered(&self, callback: &Callback) -> Option<Plan> {
        self.delivered_to(0, callback)
    }

    /// A delivery has arrived at this one of several clients. Returns its plan.
    pub fn delivered_to(&self, client: u32, callback: &Callback) -> Option<Plan> {
        let at = host_ms();
        let mut history = self.0.lock().unwrap();
        let plan = serial_of(&callback.payload).and_then(|s| history.plans.get(&s).cloned());
        let Some(plan) = plan else {
            history.strangers.push(format!("{at}: {callback:?}"));
            return None;
        };
        let intact = plan.key == callback.key
            && plan.dest == callback.dest
            && plan.mode == callback.mode
            && plan.payload() == callback.payload
            && plan.headers() == *callback.headers();
        let event = Event::Delivered {
            at,
            client,
            id: callback.id,
            epoch: callback.epoch.0,
            attempt: callback.attempt,
            due: callback.due.as_ms(),
            intact,
        };
        history.events.push((plan.serial, event));
        Some(plan)
    }

    /// A handler is about to return.
    pub fn settled(&self, serial: u64, callback: &Callback, outcome: Handled) {
        let event =
            Event::Settled { at: host_ms(), epoch: callback.epoch.0, attempt: callback.attempt, outcome };
        self.add(serial, event);
    }

    /// What a schedule call returned.
    pub fn scheduled(&self, serial: u64, asked: u64, result: &Result<Scheduled, ScheduleError>) {
        let said = match result {
            Ok(Scheduled { kept: true, .. }) => Said::Refused,
            Ok(s) => Said::Stored { id: Some(s.id), replaced: s.new.then_some(s.replaced) },
            Err(ScheduleError::Ended { id, how: mtimer_client::Ended::CancelledUnseen }) => {
                panic!("{id}: nobody cancels what is not scheduled here")
            }
            Err(ScheduleError::Ended { id, .. }) => Said::Stored { id: Some(*id), replaced: None },
            Err(error) if error.has_no_side_effects() => Said::Refused,
            Err(_) => Said::Unknown,
        };
        self.add(serial, Event::Schedule { asked, answered: host_ms(), said });
    }

    /// What a cancel call returned.
    pub fn cancelled(&self, serial: u64, asked: u64, result: &Result<Cancelled, RequestError>) {
        let said = match result {
            Ok(Cancelled::Cancelled(_)) => Said::Done,
            Ok(Cancelled::TooLate(_)) => Said::TooLate,
            Ok(Cancelled::NotFound) => Said::NotFound,
            Err(error) => failed(error),
        };
        self.add(serial, Event::Cancel { asked, answered: host_ms(), said });
    }

    /// What a reschedule call returned.
    pub fn moved(&self, serial: u64, asked: u64, due: u64, result: &Result<Rescheduled, RequestError>) {
        let said = match result {
            Ok(Rescheduled::Rescheduled(_)) => Said::Done,
            Ok(Rescheduled::TooLate(_)) => Said::TooLate,
            Ok(Rescheduled::NotFound) => Said::NotFound,
            Err(error) => failed(error),
        };
        self.add(serial, Event::Move { asked, answered: host_ms(), due, said });
    }

    /// What a replay returned.
    pub fn replayed(&self, serial: u64, asked: u64, result: &Result<Replayed, RequestError>) {
        let said = match result {
            Ok(Replayed::Replayed) => Said::Done,
            Ok(Replayed::NotFound) => Said::NotFound,
            Ok(Replayed::KeyTaken(_)) => Said::Refused,
            Err(error) => failed(error),
        };
        self.add(serial, Event::Replay { asked, answered: host_ms(), said });
    }

    /// What a purge returned. One that was repeated may find nothing because its first sending has
    /// removed the timer.
    pub fn purged(&self, serial: u64, asked: u64, result: &Result<bool, RequestError>, is_repeated: bool) {
        let said = match result {
            Ok(true) => Said::Done,
            Ok(false) if is_repeated => Said::Unknown,
            Ok(false) => Said::NotFound,
            Err(error) => failed(error),
        };
        self.add(serial, Event::Purge { asked, answered: host_ms(), said });
    }

    /// What a repeat of a schedule returned: how the timer has ended, if that is still known.
    pub fn repeated(&self, serial: u64, result: &Result<Scheduled, ScheduleError>) {
        if let Err(ScheduleError::Ended { how, .. }) = result {
            self.add(serial, Event::Ended { at: host_ms(), how: *how });
        }
    }

    /// What is known by now.
    pub fn history(&self) -> History {
        self.0.lock().unwrap().clone()
    }

    /// Timers that were delivered since then and whose handler has not returned.
    pub fn in_hands(&self, since: u64) -> Vec<(u64, TimerId)> {
        let history = self.0.lock().unwrap();
        let mut held = BTreeMap::new();
        for (serial, event) in &history.events {
            match event {
                Event::Delivered { at, id, .. } if *at >= since => _ = held.insert(*serial, *id),
                Event::Settled { .. } => _ = held.remove(serial),
                _ => {}
            }
        }
        held.into_iter().collect()
    }

    /// How many deliveries there were.
    pub fn deliveries(&self) -> usize {
        self.0.lock().unwrap().events.iter().filter(|(_, e)| matches!(e, Event::Delivered { .. })).count()
    }
}

fn failed(error: &RequestError) -> Said {
    if error.has_no_side_effects() { Said::Refused } else { Said::Unknown }
}

/// Where a timer is in the end, if it is anywhere.
#[derive(Clone, PartialEq, Debug)]
pub enum Left {
    /// Not ended.
    Live(TimerState),
    /// A dead letter.
    Dead {
        /// Why.
        reason: DeadReason,
        /// Failed attempts.
        attempts: u32,
        /// The last error.
        last_error: Option<String>,
        /// Key, destination, mode, payload and headers are those of the plan.
        intact: bool,
    },
    /// At-most-once, claimed and never confirmed.
    Unconfirmed {
        /// Key, destination, mode, payload and headers are those of the plan.
        intact: bool,
    },
}

/// What is in the store when the work is done.
#[derive(Clone, Debug, Default)]
pub struct Final {
    /// By serial number; one that is in two places has two entries.
    pub left: Vec<(u64, Left)>,
    /// Rows of listings whose payload has no serial number of a plan.
    pub strangers: Vec<String>,
    /// The store's numbers, after the dead letters and the unconfirmed were purged.
    pub status: Status,
    /// When the end was read, ms since the epoch; 0: it was not.
    pub at: u64,
    /// Timers that the brokers counted as expired; `None`: a broker that counted some is gone.
    pub expired: Option<u64>,
    /// Keys whose timers have all ended and that are not free, in words.
    pub taken_keys: Vec<String>,
    /// What is left in the store then, in words.
    pub leaks: Vec<String>,
}

impl Final {
    /// Reads what is left; see [`purge`](crate::purge) for the rest.
    pub async fn read(client: &Client, history: &History) -> Self {
        let mut end = Self { at: host_ms(), ..Self::default() };
        for row in client.dead(DeadFilter::default()).all().await.unwrap() {
            let serial = serial_of(&row.timer.payload);
            let plan = serial.and_then(|s| history.plans.get(&s));
            let Some(plan) = plan else {
                end.strangers.push(format!("{row:?}"));
                continue;
            };
            let intact = is_intact(history, plan, &row.timer);
            let (reason, attempts, last_error) = (row.reason, row.attempts, row.last_error);
            end.left.push((plan.serial, Left::Dead { reason, attempts, last_error, intact }));
        }
        for row in client.unconfirmed().all().await.unwrap() {
            let serial = serial_of(&row.timer.payload);
            let plan = serial.and_then(|s| history.plans.get(&s));
            let Some(plan) = plan else {
                end.strangers.push(format!("{row:?}"));
                continue;
            };
            end.left.push((plan.serial, Left::Unconfirmed { intact: is_intact(history, plan, &row.timer) }));
        }
        end.read_live(client, history).await;
        end
    }

    /// Asks for every timer that has a name.
    async fn read_live(&mut self, client: &Client, history: &History) {
        let mut ids: BTreeMap<u64, TimerId> = BTreeMap::new();
        for (serial, event) in &history.events {
            match event {
                Event::Schedule { said: Said::Stored { id: Some(id), .. }, .. }
                | Event::Delivered { id, .. } => {
                    ids.insert(*serial, *id);
                }
                _ => {}
            }
        }
        let named = |plan: &Plan| -> Option<(u64, Target)> {
            let by_key = || plan.key.as_ref().map(|key| Target::from((&plan.dest, key)));
            Some((plan.serial, ids.get(&plan.serial).map(|id| Target::Id(*id)).or_else(by_key)?))
        };
        let asked = history.plans.values().filter_map(named);
        let views: Vec<_> = stream::iter(asked)
            .map(|(serial, target)| async move { (serial, client.get(target).await.unwrap()) })
            .buffer_unordered(ASKED_AT_ONCE)
            .collect()
            .await;
        for (serial, view) in views {
            let Some(view) = view.filter(|v| serial_of(&v.timer.payload) == Some(serial)) else { continue };
            if !matches!(view.state, TimerState::Dead | TimerState::Unconfirmed) {
                self.left.push((serial, Left::Live(view.state)));
            }
        }
    }
}

fn is_intact(history: &History, plan: &Plan, timer: &mtimer_client::Timer) -> bool {
    // A replay takes away a deadline that has passed.
    let replayed =
        || history.events.iter().any(|(s, e)| *s == plan.serial && matches!(e, Event::Replay { .. }));
    plan.key == timer.key
        && plan.dest == timer.dest
        && plan.mode == timer.mode
        && plan.deadline.is_none_or(|d| {
            let kept = timer.deadline == Some(Time::from_ms(d));
            !plan.exact || kept || (timer.deadline.is_none() && replayed())
        })
        && plan.payload() == timer.payload
        && plan.headers() == timer.headers
}
