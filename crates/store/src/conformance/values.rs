//! Times, timers and answers that the tests are written with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use mtimer_types::{DeadReason, Destination, KeyPolicy, PartitionId, Time, Timer, TimerId};

use super::seeded::mix;
use crate::ops::Schedule;
use crate::{Op, Place, ScheduleAnswer, Verdict};

pub(super) const SECOND: u64 = 1_000;
pub(super) const MINUTE: u64 = 60 * SECOND;
pub(super) const HOUR: u64 = 60 * MINUTE;
pub(super) const DAY: u64 = 24 * HOUR;
pub(super) const YEAR: u64 = 365 * DAY;

/// A number that no other call in this process returns; its bits look random.
pub(super) fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    mix(NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(super) fn dest() -> Destination {
    Destination::new("orders", "billing").unwrap()
}

pub(super) fn other_dest() -> Destination {
    Destination::new("orders", "shipping").unwrap()
}

pub(super) fn plain_timer(due: Time, now: Time, partition: PartitionId) -> Timer {
    Timer {
        payload: Bytes::from_static(b"payload"),
        ..Timer::new(TimerId::new(due, now, partition, unique()), dest(), due)
    }
}

/// Stored just now, and nothing was replaced.
pub(super) const NEW: ScheduleAnswer = ScheduleAnswer::Scheduled { new: true, replaced: None };
/// Stored before.
pub(super) const OLD: ScheduleAnswer = ScheduleAnswer::Scheduled { new: false, replaced: None };

pub(super) fn pending_at(fire: Time) -> Option<Place> {
    Some(Place::Pending { fire, tier: 0 })
}

pub(super) fn schedule_op(timer: &Timer) -> Op {
    Op::Schedule(Schedule::new(Arc::new(timer.clone()), KeyPolicy::Create))
}

pub(super) fn dead_verdict(failed: u32) -> Verdict {
    Verdict::Dead { reason: DeadReason::Failed, failed, error: "no such order".into() }
}
