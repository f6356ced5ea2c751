//! What the policies for keys that compute the due time mean to the checker: `latest` never moves a
//! key sooner, `earliest` never later, and `debounce` not beyond its longest wait.

use mtimer_store::{Answer, Op, Place, Record, ScheduleAnswer};
use mtimer_types::{KeyPolicy, TimerId};

use super::history::{By, History, Life};

impl History {
    /// The store has applied an operation to a timer, which has come by it if it is one of these.
    pub(super) fn check_computed_due(
        &mut self,
        by: By,
        id: TimerId,
        op: &Op,
        (answer, after): (&Answer, Option<&(Record, Place)>),
    ) {
        let (op, replaced) = match (op, answer) {
            (Op::Schedule(op), Answer::Schedule(ScheduleAnswer::Timed { new: true, replaced, .. })) => {
                (op, *replaced)
            }
            _ => return,
        };
        let Some((record, _)) = after.filter(|_| op.timer.id == id) else { return };
        let (due, asked) = (record.timer.due, op.timer.due);
        let sent = op.sent_attempt.filter(|attempt| *attempt < u32::MAX);
        let before = replaced.map(|old| self.lives.get(&old).cloned().unwrap_or_default());
        // What is certain to wait for its first attempt, and what certainly does not.
        let other = before.as_ref().filter(|_| op.sent_attempt.is_none()).filter(|l| waits(l, by));
        let policy = self.lives.get(&id).map(|life| life.policy).unwrap_or_default();
        let mut first = None;
        let wrong = match policy {
            KeyPolicy::Latest if due < asked || other.is_some_and(|l| l.due > Some(due)) => {
                Some("keys: a latest has moved its key sooner")
            }
            KeyPolicy::Earliest if due > asked || other.is_some_and(|l| l.due < Some(due)) => {
                Some("keys: an earliest has moved its key later")
            }
            KeyPolicy::Debounce { quiet_ms, max_ms } => {
                let since = other.and_then(|l| l.debounced).unwrap_or(by.now);
                first = Some(since);
                let is_over = due > by.now + u64::from(quiet_ms) || due > since + u64::from(max_ms);
                is_over.then_some("keys: a debounce waits beyond its longest time")
            }
            _ => None,
        };
        self.life(id).debounced = first;
        if sent.is_some() && before.is_some_and(|l| l.sent.is_empty() && l.given_back.is_empty()) {
            self.fail(by.ms, Some(id), "keys: a timer counts as sent that was not");
        } else if let Some(text) = wrong {
            self.fail(by.ms, Some(id), text);
        }
    }
}

/// It waits for its first attempt, which no predecessor can have begun.
fn waits(life: &Life, by: By) -> bool {
    let is_filed = life.place.is_some_and(|place| match place {
        Place::Pending { .. } => life.filed_in == by.epoch,
        Place::Parked => true,
        Place::Taken { .. } | Place::Dead => false,
    });
    is_filed && life.is_untouched && life.sent.is_empty() && life.given_back.is_empty()
}
