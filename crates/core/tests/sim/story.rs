//! What stories may say, as the checker sees it: of each attempt that its owner has sent and seen
//! fail there is a word, and nothing is told of attempts that were not sent like that.

use mtimer_store::ops::{Settle, SettleAnswer};
use mtimer_store::{Answer, Op, Place, Record, Verdict};
use mtimer_types::story::{LATE_MS, MAX_STORY_ATTEMPTS};
use mtimer_types::{Epoch, FailedAttempt, LateCause, Time, TimerId};

use super::HOP_MS;
use super::history::{History, Life, Sent};

impl History {
    /// An owner's verdict is applied: checks the story of its timer, if that is still there.
    pub(super) fn check_story(
        &mut self,
        ms: u64,
        epoch: Epoch,
        id: TimerId,
        (op, answer): (&Op, &Answer),
        after: Option<&(Record, Place)>,
    ) {
        let (Op::Settle(Settle { verdict, .. }), Some((record, _))) = (op, after) else { return };
        let unconfirmed = match verdict {
            Verdict::Retry { .. } | Verdict::Later { .. } | Verdict::Dead { .. } => false,
            Verdict::Unconfirmed => true,
            Verdict::Ack | Verdict::LateAck { .. } | Verdict::Expired { .. } => return,
        };
        let life = &self.lives[&id];
        if *answer == Answer::Settle(SettleAnswer::Gone) || life.forgotten {
            return;
        }
        let story = record.extensions.story();
        let last = record.progress.failed.saturating_add(u32::from(unconfirmed));
        let untrue = story.iter().find(|failed| !is_true(life, record, failed)).map(|failed| failed.attempt);
        let wrong = if let Some(attempt) = untrue {
            format!("story: tells of an attempt that was not sent like that: {attempt:?}")
        } else if !story.is_sorted_by(|a, b| a.attempt.number < b.attempt.number) {
            "story: attempts are not in their order".to_owned()
        } else if let Some(sent) = of_owner(life, epoch).find(|sent| {
            let lately = sent.attempt + MAX_STORY_ATTEMPTS as u32 > last;
            sent.attempt <= last && lately && story.iter().all(|told| told.attempt.number != sent.attempt)
        }) {
            format!("story: no word of attempt {}, which its owner has sent and seen fail", sent.attempt)
        } else {
            return;
        };
        self.fail(ms, Some(id), &wrong);
    }
}

/// What the owner of this epoch has sent of the timer, unless that has begun anew since.
fn of_owner(life: &Life, epoch: Epoch) -> impl Iterator<Item = &Sent> {
    let since_birth = |sent: &&Sent| life.reborn.is_none_or(|at| sent.seq > at);
    life.sent.iter().filter(since_birth).filter(move |sent| sent.epoch == epoch)
}

/// Whether an attempt was sent when its story says so, by whom, no later than it was, and not after
/// it ended.
fn is_true(life: &Life, record: &Record, failed: &FailedAttempt) -> bool {
    let attempt = &failed.attempt;
    let of_it = |sent: &&Sent| (sent.epoch, sent.attempt) == (attempt.epoch, attempt.number);
    let Some(told) = attempt.sent else {
        return attempt.late_ms == 0 && !life.sent.iter().any(|s| of_it(&s));
    };
    let mut times = life.sent.iter().chain(&life.given_back).filter(of_it).map(|sent| sent.time);
    let is_then = |time: Time| told.ms_since(time).max(time.ms_since(told)) <= HOP_MS;
    // Less is told if the store's answer to the schedule came after the due time.
    let is_as_late = u64::from(attempt.late_ms) <= told.ms_since(record.late_from());
    let is_explained = match attempt.late_by {
        Some(LateCause::Parked | LateCause::Paused) => true,
        cause => cause.is_some() == (u64::from(attempt.late_ms) >= LATE_MS),
    };
    times.any(is_then) && told <= failed.ended && is_as_late && is_explained
}
