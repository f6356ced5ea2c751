//! One timer as it is judged, and how late what happens to it may be recorded.

use mtimer_client::Mode;

use super::timelines::{Seen, Timeline};
use crate::history::{Excuse, Fault, Handled, Said};
use crate::journal::Entry;
use crate::plan::Plan;

/// How far a record of a delivery may be behind the delivery, ms: a client that is short of
/// processor time.
pub(super) const RECORD_LAG_MS: u64 = 10_000;
/// One hop, ms: from a broker's decision to send until the client has recorded the delivery, with
/// no fault in between. Debug builds that share two processors with other tests need up to some
/// hundred ms; a timer that is sent without a look at its state is late by whole waits for credit.
pub const HOP_MS: u64 = 1_500;
/// Longer than any delay between two attempts in these tests, ms.
pub(super) const RETRY_MS: u64 = 5_000;
/// How far the cluster clock may be from the host's when times of both are compared, ms.
pub(super) const CLOCK_MS: u64 = 100;
/// How far ahead an owner's claim can reach, ms, with a margin for clocks and logs.
pub(super) const CLAIM_MS: u64 = 1_000;
/// How far back a store that loses writes may go, ms.
pub(super) const LOSS_MS: u64 = 2_000;
/// How long an outcome may be on its way to the broker's decision that there was none, ms.
pub(super) const SETTLE_LAG_MS: u64 = 4_000;
/// How far a record of a delivery may be behind a fault that ended its sender, ms.
pub(super) const ARRIVAL_MS: u64 = 2_000;
/// A timer, and what it is judged by.
pub(super) struct Timer<'a> {
    pub(super) plan: &'a Plan,
    pub(super) timeline: &'a Timeline,
    pub(super) faults: &'a [Fault],
    pub(super) journal: &'a [Entry],
    /// When the end was read; 0: it was not.
    pub(super) read: u64,
}

/// Broken invariants of one timer: number and words.
pub(super) type Found = Vec<(u8, String)>;

impl Timer<'_> {
    /// Answered OK.
    pub(super) fn stored(&self) -> bool {
        self.timeline.schedules.iter().any(|(_, said)| matches!(said, Said::Stored { .. }))
    }

    /// Certainly never stored.
    pub(super) fn never_stored(&self) -> bool {
        !self.timeline.schedules.iter().any(|(_, said)| matches!(said, Said::Stored { .. } | Said::Unknown))
    }

    /// Whether a fault falls between two moments.
    pub(super) fn fault_between(&self, from: u64, to: u64) -> bool {
        let excused = |f: &&Fault| f.excuse != Excuse::Nothing;
        self.faults.iter().filter(excused).any(|f| f.from <= to && f.until >= from)
    }

    /// Whether something that was sent may have been held back between two moments.
    pub(super) fn held_between(&self, from: u64, to: u64) -> bool {
        let holds = |f: &&Fault| matches!(f.excuse, Excuse::Delays | Excuse::Losses);
        self.faults.iter().filter(holds).any(|f| f.from <= to && f.until >= from)
    }

    /// The replays that may have been done: when each was asked for, and when it was answered.
    ///
    /// One that was repeated because of a fault answers NotFound if the first sending was done and
    /// the timer has ended since.
    pub(super) fn replays(&self) -> impl Iterator<Item = (u64, u64)> {
        self.timeline.replays.iter().filter_map(|&(asked, answered, said)| {
            let may_be_done = match said {
                Said::Done | Said::Unknown => true,
                Said::NotFound => self.fault_between(asked, answered),
                _ => false,
            };
            may_be_done.then_some((asked, answered))
        })
    }

    /// Whether a replay that may have been done took place between two moments.
    pub(super) fn replayed_between(&self, from: u64, to: u64) -> bool {
        self.replays().any(|(asked, answered)| asked <= to && answered >= from)
    }

    /// Whether a delivery may be of a former life of the timer, for an answer given at `answered`:
    /// a handler said ok before the schedule was answered, and then, before both answers, a fault
    /// may have given the timer to another owner, for which a repeat of the schedule made it anew.
    /// Only the owner that took an acknowledgement remembers it (`docs/guarantees.md`, under
    /// "Durability").
    pub(super) fn is_of_a_former_life(&self, d: &Seen, answered: u64) -> bool {
        let l = self.timeline;
        let stored = l.schedules.iter().filter(|(_, said)| matches!(said, Said::Stored { .. }));
        let stored = stored.map(|(at, _)| *at).min().unwrap_or(u64::MAX);
        let oks = l.settled.iter().filter(|(.., outcome)| *outcome == Handled::Ok).map(|(at, ..)| *at);
        let until = answered.min(stored);
        let is_made_anew = |ok: u64| ok < stored && self.fault_between(ok.max(d.at), until);
        self.plan.mode == Mode::AtLeastOnce && d.at <= answered && oks.min().is_some_and(is_made_anew)
    }

    /// Whether the store may have lost something of it that was answered.
    pub(super) fn may_be_lost(&self) -> bool {
        let l = self.timeline;
        let lost = |at: &u64| {
            let mut losses = self.faults.iter().filter(|f| f.excuse == Excuse::Losses);
            losses.any(|f| f.from.saturating_sub(LOSS_MS) <= *at && f.until >= *at)
        };
        let answers = l.schedules.iter().map(|s| s.0).chain(l.cancels.iter().map(|c| c.1));
        let others = l.moves.iter().map(|m| m.answered).chain(l.deliveries.iter().map(|d| d.at));
        let others = others.chain(l.replays.iter().chain(&l.purges).map(|r| r.1));
        answers.chain(others).chain(l.settled.iter().map(|s| s.0)).any(|at| lost(&at))
    }
}
