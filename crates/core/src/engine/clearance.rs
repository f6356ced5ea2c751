//! May this timer be sent now? The one place that answers, at every stage of a timer's way.
//!
//! The questions in their order, and the consequence where the answer is no:
//!
//! | question | due | offered | taken | outgoing |
//! |---|---|---|---|---|
//! | May this owner send? | wait | wait | park | park |
//! | Does it keep the partition? | wait | wait | | |
//! | Has its handler still time? | | | | park |
//! | Is no edit of it under way? | hold | hold | hold | |
//! | Is no late acknowledgement of it under way? | | | hold | |
//! | Is its deadline ahead? | expire | expire | expire | expire |
//! | May it have further attempts? | stop | | | |
//! | Is its destination not paused? | park | park | park | park |
//! | Does a stored claim cover it? | wait | wait | | |
//! | May another one wait for its destination? | park | | | |
//!
//! An edit goes before the deadline: it was asked for first. A pause goes behind deadlines, which
//! run on, and before claims, which a parked timer does not need. A late acknowledgement holds only
//! a timer that would otherwise be sent a second time: a stream of them must not keep an
//! at-least-once timer from being sent. A taken timer needs no claim, since the take is one. If it
//! has been given to a member it is sent also from a partition that is being given up. An outgoing
//! timer has left before later edits. One that may not go out any more is decided on as taken.
//!
//! Not in here: where the facts come from, and the effect of each answer on the timer.

/// Where on its way a timer is asked about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Its time has come.
    Due,
    /// It has waited for its destination's credit, and there is some, or its deadline has passed.
    Offered,
    /// At most once: the store has taken it.
    Taken,
    /// It was given out in this turn, and goes with the frames at its end.
    Outgoing,
}

/// The decision on a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Clearance {
    /// It may be sent; one that is due goes to its destination's queue.
    Send,
    /// It waits for the end of an edit or a late acknowledgement.
    Hold,
    /// It stays due, until a claim covers it or another owner has the partition.
    AwaitClaim,
    /// Its deadline has passed.
    Expire,
    /// It has no attempt left that may be made.
    Stop,
    /// It goes to its destination's park.
    Park,
}

/// The facts about a timer, each looked up only where it matters.
pub(super) trait Facts {
    /// The broker runs, and the store has accepted a write of this owner lately.
    fn is_able(&self) -> bool;
    /// The partition is being given up.
    fn is_leaving(&self) -> bool;
    /// The callback timeout of the delivery is ahead.
    fn is_in_time(&self) -> bool;
    /// A cancel, reschedule or replace of it is under way.
    fn is_edited(&self) -> bool;
    /// A late acknowledgement of it is under way.
    fn is_acknowledged_late(&self) -> bool;
    /// Its deadline has passed.
    fn is_expired(&self) -> bool;
    /// A cancel came too late: no further attempt follows.
    fn is_stopped(&self) -> bool;
    /// Its destination is paused.
    fn is_paused(&self) -> bool;
    /// A stored claim covers it, or the store has taken it.
    fn is_claimed(&self) -> bool;
    /// Too many wait for the destination's credit.
    fn is_backlog_full(&self) -> bool;
}

/// The answer.
pub(super) fn clearance(stage: Stage, facts: &impl Facts) -> Clearance {
    let is_given_out = matches!(stage, Stage::Taken | Stage::Outgoing);
    if !facts.is_able() {
        return if is_given_out { Clearance::Park } else { Clearance::AwaitClaim };
    }
    if !is_given_out && facts.is_leaving() {
        return Clearance::AwaitClaim;
    }
    if stage == Stage::Outgoing && !facts.is_in_time() {
        return Clearance::Park;
    }
    if stage != Stage::Outgoing && facts.is_edited() {
        return Clearance::Hold;
    }
    if stage == Stage::Taken && facts.is_acknowledged_late() {
        return Clearance::Hold;
    }
    if facts.is_expired() {
        return Clearance::Expire;
    }
    if stage == Stage::Due && facts.is_stopped() {
        return Clearance::Stop;
    }
    if facts.is_paused() {
        return Clearance::Park;
    }
    if !is_given_out && !facts.is_claimed() {
        return Clearance::AwaitClaim;
    }
    if stage == Stage::Due && facts.is_backlog_full() {
        return Clearance::Park;
    }
    Clearance::Send
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const STAGES: [Stage; 4] = [Stage::Due, Stage::Offered, Stage::Taken, Stage::Outgoing];

    /// The answers to the questions in their order, as bits that are set where the answer is no;
    /// and how many were asked.
    struct Answers(u16, Cell<u16>);

    impl Answers {
        fn is_no(&self, question: u16) -> bool {
            self.1.set(self.1.get() | 1 << question);
            self.0 & (1 << question) != 0
        }
    }

    impl Facts for Answers {
        fn is_able(&self) -> bool {
            !self.is_no(0)
        }
        fn is_leaving(&self) -> bool {
            self.is_no(1)
        }
        fn is_in_time(&self) -> bool {
            !self.is_no(2)
        }
        fn is_edited(&self) -> bool {
            self.is_no(3)
        }
        fn is_acknowledged_late(&self) -> bool {
            self.is_no(4)
        }
        fn is_expired(&self) -> bool {
            self.is_no(5)
        }
        fn is_stopped(&self) -> bool {
            self.is_no(6)
        }
        fn is_paused(&self) -> bool {
            self.is_no(7)
        }
        fn is_claimed(&self) -> bool {
            !self.is_no(8)
        }
        fn is_backlog_full(&self) -> bool {
            self.is_no(9)
        }
    }

    /// The table above, a column for each stage.
    fn column(stage: Stage) -> [Option<Clearance>; 10] {
        use Clearance::{AwaitClaim, Expire, Hold, Park, Stop};
        let (wait, hold, expire, park) = (Some(AwaitClaim), Some(Hold), Some(Expire), Some(Park));
        match stage {
            Stage::Due => [wait, wait, None, hold, None, expire, Some(Stop), park, wait, park],
            Stage::Offered => [wait, wait, None, hold, None, expire, None, park, wait, None],
            Stage::Taken => [park, None, None, hold, hold, expire, None, park, None, None],
            Stage::Outgoing => [park, None, park, None, None, expire, None, park, None, None],
        }
    }

    #[test]
    fn the_first_question_that_is_answered_with_no_decides_and_no_other_is_asked_after_it() {
        for stage in STAGES {
            for nos in 0..1 << 10 {
                let facts = Answers(nos, Cell::new(0));
                let first = (0..10).find(|q| nos & (1 << q) != 0 && column(stage)[*q].is_some());
                let expected = first.and_then(|q| column(stage)[q]).unwrap_or(Clearance::Send);
                assert_eq!(clearance(stage, &facts), expected, "{stage:?} {nos:#b}");
                let asked = (0..10).filter(|q| facts.1.get() & (1 << q) != 0);
                let may_ask = |q: usize| column(stage)[q].is_some() && first.is_none_or(|first| q <= first);
                assert!(asked.clone().all(may_ask), "{stage:?} {nos:#b}: {:?}", asked.collect::<Vec<_>>());
            }
        }
    }
}
