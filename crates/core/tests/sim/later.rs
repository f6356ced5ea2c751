//! What handlers put off, as the checker sees it: nothing is sent before its time, no retry is used
//! up, and no ok of an attempt that was put off ends the timer.

use std::collections::BTreeMap;

use mtimer_store::ops::Settle;
use mtimer_store::{Op, Record, Verdict};
use mtimer_types::{AttemptEnd, Epoch, TimerId};

use super::history::{History, Life};

/// The deliveries of one timer whose handlers have answered later.
#[derive(Clone, Debug, Default)]
pub(super) struct Postponements {
    /// Each, with the time to which it puts the timer off, reference ms.
    answered: BTreeMap<(Epoch, u32), u64>,
    /// The last attempt of which the store knows, and that time.
    stored: Option<(u32, u64)>,
    /// Failed attempts that count for the retry budget, as the store had it last, and all of them.
    used: (u32, u32),
}

impl Postponements {
    /// A handler answers later. A repeat changes nothing.
    pub(super) fn answered(&mut self, delivery: (Epoch, u32), ms: u64, after_ms: u32) {
        self.answered.entry(delivery).or_insert(ms + u64::from(after_ms));
    }

    /// How many deliveries were put off.
    pub(super) fn count(&self) -> usize {
        self.answered.len()
    }

    /// Before which time this attempt is not to be sent.
    pub(super) fn not_before(&self, attempt: u32) -> Option<u64> {
        self.stored.filter(|(last, _)| attempt > *last).map(|(_, at)| at)
    }

    /// Somebody has replayed the timer: it is sent at once.
    pub(super) fn lift(&mut self) {
        self.stored = self.stored.map(|(last, _)| (last, 0));
    }

    fn has(&self, attempt: u32) -> bool {
        self.answered.keys().any(|(_, of)| *of == attempt)
    }
}

impl History {
    /// The store has applied an operation, and this is left of its timer.
    pub(super) fn check_later(&mut self, ms: u64, id: TimerId, op: &Op, after: Option<&Record>) {
        let has_clocks = self.plan.has_clocks();
        let life = self.life(id);
        let wrong = match op {
            Op::Settle(Settle { verdict, attempt, .. }) => match verdict {
                Verdict::Later { failed, .. } => later(life, *failed, after, has_clocks),
                Verdict::Retry { failed, .. } => {
                    let end = attempt.as_ref().map(|told| told.end);
                    let asked = life.retries_given.iter().any(|(_, of)| of == failed);
                    (end == Some(AttemptEnd::Retry) && !asked && life.postponed.has(*failed))
                        .then_some("later: counted as a failure")
                }
                Verdict::Ack | Verdict::LateAck { .. } if after.is_none() => {
                    let ended = life.ends.last().is_some_and(|end| end.ms == ms && end.acknowledged);
                    let of = life.last_ok.map_or(0, |(_, attempt)| attempt);
                    let is_former = life.postponed.stored.is_some_and(|(last, _)| of <= last);
                    (ended && is_former && !life.forgotten)
                        .then_some("later: ended by an ok of an attempt that was put off")
                }
                Verdict::Ack | Verdict::LateAck { .. } | Verdict::Dead { .. } => None,
                Verdict::Expired { .. } | Verdict::Unconfirmed => None,
            },
            _ => None,
        };
        if let Some(record) = after {
            let progress = &record.progress;
            life.postponed.used = (progress.failed - progress.budget_from, progress.failed);
        } else {
            life.postponed.stored = None;
        }
        if let Some(text) = wrong {
            self.fail(ms, Some(id), text);
        }
    }
}

/// What is wrong about an attempt that the store has as put off.
fn later(life: &mut Life, failed: u32, after: Option<&Record>, has_clocks: bool) -> Option<&'static str> {
    let progress = &after?.progress;
    let (used, before) = life.postponed.used;
    if progress.failed == before || !life.is_live() {
        // A repeat, or it is stopped.
        return None;
    }
    let at = life.postponed.answered.iter().filter(|((_, of), _)| *of == failed).map(|(_, at)| *at).min();
    // Clocks that are corrected make the delay shorter or longer.
    life.postponed.stored = Some((failed, at.filter(|_| !has_clocks).unwrap_or(0)));
    if !life.postponed.has(failed) {
        return Some("later: put off, and no handler has said so");
    }
    // An attempt before it that was lost with its owner has used one.
    let lost = progress.failed.saturating_sub(before + 1);
    (progress.failed - progress.budget_from != used + lost).then_some("later: uses up a retry")
}
