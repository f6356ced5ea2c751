//! Who goes first among the timers of a destination that wait, as the checker sees it: none is
//! passed over by less urgent ones more often than their shares allow.
//!
//! Only where nothing fails: elsewhere a timer may not be in its owner's memory when it is due.

use mtimer_protocol::ops::Subject;
use mtimer_protocol::{Delivery, RequestOp};
use mtimer_store::Place;
use mtimer_types::{Mode, Target, Time};

use super::check::Moment;
use super::history::{History, Life};
use super::plan::Profile;

/// From when on after its time a timer waits for capacity alone, ms: its owner has claimed it.
const WAITS_AFTER_MS: u64 = 500;
/// How long an edit may hold a timer, ms.
const HELD_MS: u64 = 1_000;
/// Less urgent ones that may go in a row while a timer waits. The shares allow two; it may have
/// come just then.
const PASSED_OVER: u32 = 5;

impl History {
    /// A client asks for something: the timer that it may be about may be held.
    pub(super) fn edit_asked(&mut self, ms: u64, op: &RequestOp) {
        match op.subject() {
            Subject::New(timer) => {
                let name =
                    timer.key.as_ref().map(|key| (timer.dest.app().to_owned(), key.as_str().to_owned()));
                let named = self.lives.values_mut().filter(|l| name.is_some() && l.name == name);
                named.for_each(|life| life.edited_ms = ms);
            }
            Subject::Named(Target::Id(id)) => self.life(*id).edited_ms = ms,
            Subject::Named(Target::Key(dest, key)) => {
                let name = Some((dest.app().to_owned(), key.as_str().to_owned()));
                let named = self.lives.values_mut().filter(|life| life.name == name);
                named.for_each(|life| life.edited_ms = ms);
            }
            Subject::Retained(_) => {}
            // A bulk job, or settings: it may be about any timer.
            Subject::Partition { .. } => self.lives.values_mut().for_each(|life| life.edited_ms = ms),
        }
    }

    /// A delivery begins.
    pub(super) fn check_priority(&mut self, m: Moment, d: &Delivery) {
        if self.plan.profile != Profile::Calm || !self.plan.priorities {
            return;
        }
        let Some((dest, priority)) = self.lives.get(&d.id).map(|life| (life.dest.clone(), life.priority))
        else {
            return;
        };
        let mut wrong = None;
        for (id, life) in &mut self.lives {
            if *id == d.id || life.dest != dest || id.partition() != d.id.partition() {
                continue;
            }
            if life.priority < priority && waits(life, m.ms, m.time) {
                life.passed_over += 1;
                if life.passed_over > PASSED_OVER {
                    wrong = Some((*id, life.passed_over));
                }
            } else {
                life.passed_over = 0;
            }
        }
        if let Some((id, count)) = wrong {
            let text = format!("priority: waits while {count} less urgent timers are sent in a row");
            self.fail(m.ms, Some(id), &text);
        }
    }
}

/// Whether a timer waits for capacity, and for nothing else.
fn waits(life: &Life, ms: u64, now: Time) -> bool {
    let is_free = ms.saturating_sub(life.edited_ms.max(life.applied_ms)) > HELD_MS;
    let is_due = match life.place {
        Some(Place::Pending { fire, .. }) => {
            fire + WAITS_AFTER_MS <= now && life.sent.last().is_none_or(|sent| sent.time < fire)
        }
        Some(Place::Parked | Place::Taken { .. } | Place::Dead) | None => false,
    };
    // At-most-once timers wait to be taken, too.
    life.mode == Mode::AtLeastOnce && is_free && is_due
}
