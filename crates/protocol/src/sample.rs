//! Values from which samples of messages and arbitrary operations are made, for tests of these and
//! other programs.

#![expect(clippy::unwrap_used, reason = "the names, headers and extensions below are valid")]

use std::sync::Arc;

use bytes::Bytes;
use mtimer_types::extensions::{FIRST_UNASSIGNED, VOLATILE};
use mtimer_types::{
    Bulk, BulkAction, BulkId, DeliveryLimits, DeliveryRate, Destination, DestinationSettings, Extensions,
    Filter, Headers, ImportId, Key, KeyPolicy, Mode, PartitionId, Pause, RetryTiers, SettingsVersion, Target,
    Time, Timer, TimerId,
};

use crate::query::{CountsQuery, ForecastQuery, PendingQuery};

/// Chooses the parts of an arbitrary operation. A simulation draws them from its random numbers, a
/// fuzzer from its input.
pub trait Source {
    /// A timer to schedule, and what to do if its key is taken.
    fn timer(&mut self) -> (Arc<Timer>, KeyPolicy);

    /// A timer to edit.
    fn target(&mut self) -> Target;

    /// A timer to replay or purge.
    fn retained(&mut self) -> TimerId;

    /// A time to give a timer.
    fn time(&mut self) -> Time;

    /// The number of a new request.
    fn request(&mut self) -> u64;

    /// A bulk job of a partition, begun before or not.
    fn bulk(&mut self) -> (PartitionId, BulkId, Bulk);

    /// Settings of a destination, for a partition, as a version of them.
    fn settings(&mut self) -> (PartitionId, Destination, DestinationSettings, SettingsVersion);
}

/// Always the same parts.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "each field is what the method of that name returns")]
pub struct Parts {
    pub timer: (Arc<Timer>, KeyPolicy),
    pub target: Target,
    pub retained: TimerId,
    pub time: Time,
    pub request: u64,
    pub bulk: (PartitionId, BulkId, Bulk),
    pub settings: (PartitionId, Destination, DestinationSettings, SettingsVersion),
}

impl Source for Parts {
    fn timer(&mut self) -> (Arc<Timer>, KeyPolicy) {
        self.timer.clone()
    }

    fn target(&mut self) -> Target {
        self.target.clone()
    }

    fn retained(&mut self) -> TimerId {
        self.retained
    }

    fn time(&mut self) -> Time {
        self.time
    }

    fn request(&mut self) -> u64 {
        self.request
    }

    fn bulk(&mut self) -> (PartitionId, BulkId, Bulk) {
        self.bulk.clone()
    }

    fn settings(&mut self) -> (PartitionId, Destination, DestinationSettings, SettingsVersion) {
        self.settings.clone()
    }
}

/// So many ms after a time of 2023.
pub fn time(ms: u64) -> Time {
    Time::from_ms(1_700_000_000_000 + ms)
}

/// An id of partition 9.
pub fn id() -> TimerId {
    TimerId::new(time(5_000), time(0), PartitionId(9), 0x0123_4567_89ab_cdef)
}

/// A destination.
pub fn dest() -> Destination {
    Destination::new("orders", "billing").unwrap()
}

/// A key.
pub fn key() -> Key {
    Key::new("order-1").unwrap()
}

/// A timer that is named by its key.
pub fn by_key() -> Target {
    Target::Key(dest(), key())
}

/// The name of a bulk job.
pub fn bulk_id() -> BulkId {
    BulkId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef)
}

/// The name of an import.
pub fn import_id() -> ImportId {
    ImportId(0xfedc_ba98_7654_3210_fedc_ba98_7654_3210)
}

/// Bulk jobs with everything and with nothing that can be left out, and with each action.
pub fn bulks() -> Vec<Bulk> {
    let full = Bulk {
        filter: Filter {
            group: Some("orders".into()),
            app: Some("billing".into()),
            key_prefix: Some("order-".into()),
            header: Some(("tenant".into(), "acme".into())),
        },
        retrying: Some(true),
        from: time(0),
        until: time(9_000),
        rate: 1_000,
        dry_run: true,
        ..Bulk::new(BulkAction::Cancel, Filter::default())
    };
    let due = time(60_000);
    let actions = [
        BulkAction::Cancel,
        BulkAction::Shift { ms: -3_600_000 },
        BulkAction::MoveTo { due },
        BulkAction::Replay,
        BulkAction::Purge,
        BulkAction::Release { import: import_id() },
        BulkAction::Withdraw { import: import_id() },
    ];
    let bare = actions.map(|action| Bulk::new(action, Filter::default()));
    std::iter::once(full).chain(bare).collect()
}

/// Settings with everything that can be left out.
pub fn settings() -> DestinationSettings {
    DestinationSettings {
        pause: Some(Pause {
            since: time(1_000),
            until: Some(time(61_000)),
            over_ms: 5_000,
            by: "ann".into(),
            reason: "the database moves".into(),
        }),
        strict_priority: true,
        limits: DeliveryLimits {
            concurrency: Some(50),
            rate: Some(DeliveryRate { starts: 1_000, per_ms: 1_000, burst: 100 }),
        },
    }
}

/// A question for all pending timers of a partition, a hundred at a time.
pub fn all_pending(partition: u16) -> PendingQuery {
    PendingQuery {
        partition,
        filter: Filter::default(),
        retrying: None,
        from: (Time::ZERO, TimerId::from_u128(0)),
        until: Time::MAX,
        limit: 100,
        payloads: false,
        staged: false,
    }
}

/// A question for the counts of all destinations of a partition, a hundred at a time.
pub fn all_counts(partition: u16) -> CountsQuery {
    CountsQuery { partition, group: None, app: None, after: None, limit: 100 }
}

/// A question for when all timers of a partition are due, by the minute.
pub fn all_forecast(partition: u16) -> ForecastQuery {
    ForecastQuery {
        partition,
        group: None,
        app: None,
        from: (Time::ZERO, TimerId::from_u128(0)),
        until: Time::MAX,
        step_ms: 60_000,
    }
}

/// Headers, a trace among them.
pub fn headers() -> Headers {
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    Headers::new([("tenant", "acme"), ("traceparent", traceparent)]).unwrap()
}

/// Extensions that nobody knows, the second of them volatile.
pub fn extensions() -> Extensions {
    let tag = 4 * FIRST_UNASSIGNED;
    Extensions::new([(tag, "new"), ((tag + 4) | VOLATILE, "")]).unwrap()
}

/// A timer with nothing that can be left out.
pub fn plain_timer() -> Timer {
    Timer { payload: Bytes::from_static(b"hello"), ..Timer::new(id(), dest(), time(5_000)) }
}

/// A timer with everything.
pub fn full_timer() -> Timer {
    Timer {
        key: Some(key()),
        mode: Mode::AtMostOnce,
        deadline: Some(time(60_000)),
        callback_timeout_ms: Some(2_000),
        retry: Some(RetryTiers(vec![250, 251, 70_000])),
        headers: headers(),
        extensions: extensions(),
        ..plain_timer()
    }
}
