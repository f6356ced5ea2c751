//! Records what clients see, from any task.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use mtimer_client::{
    Callback, Cancelled, Client, Replayed, RequestError, Rescheduled, ScheduleError, Scheduled, TimerId,
};

use crate::history::{ClockReading, Event, Excuse, Fault, Handled, History, Said};
use crate::plan::{Plan, serial_of};
use crate::{host_ms, wait_for};

/// A history that is being written.
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
    pub fn delivered(&self, client: &Client, callback: &Callback) -> Option<Plan> {
        self.delivered_to(0, client, callback)
    }

    /// A delivery has arrived at this one of several clients, which has this number. Returns its
    /// plan.
    pub fn delivered_to(&self, number: u32, client: &Client, callback: &Callback) -> Option<Plan> {
        // What a handler reads that compares its due time with the clock.
        let client_clock = client.now().as_ms();
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
            received: callback.received.as_ms(),
            client_clock,
            client: number,
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
            Ok(Replayed::KeyTaken(_)) => Said::KeyTaken,
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

    /// Timers that were delivered since then and whose handler has not returned; one that is with
    /// several handlers is in it several times.
    pub fn in_hands(&self, since: u64) -> Vec<(u64, TimerId)> {
        let history = self.0.lock().unwrap();
        let mut held: BTreeMap<_, Vec<TimerId>> = BTreeMap::new();
        for (serial, event) in &history.events {
            match event {
                Event::Delivered { at, id, epoch, attempt, .. } if *at >= since => {
                    held.entry((*serial, *epoch, *attempt)).or_default().push(*id);
                }
                Event::Settled { epoch, attempt, .. } => {
                    held.get_mut(&(*serial, *epoch, *attempt)).and_then(Vec::pop);
                }
                _ => {}
            }
        }
        held.into_iter().flat_map(|((serial, ..), ids)| ids.into_iter().map(move |id| (serial, id))).collect()
    }

    /// Waits until every handler has returned: what one says is recorded before it is sent, and may
    /// end an at-most-once timer that had been given up.
    pub async fn handlers_return(&self, limit: Duration) {
        wait_for("the end of all handlers", limit, async || self.in_hands(0).is_empty()).await;
    }

    /// How many deliveries there were.
    pub fn deliveries(&self) -> usize {
        self.0.lock().unwrap().events.iter().filter(|(_, e)| matches!(e, Event::Delivered { .. })).count()
    }
}

fn failed(error: &RequestError) -> Said {
    if error.has_no_side_effects() { Said::Refused } else { Said::Unknown }
}
