//! What is in the store when a test's work is done.

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream};
use mtimer_client::{Client, DeadFilter, DeadReason, Status, Target, Time, TimerId, TimerState};

use crate::history::{Event, History, Said};
use crate::host_ms;
use crate::plan::{Plan, serial_of};

/// Questions on their way at once when the end is read.
const ASKED_AT_ONCE: usize = 500;

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
