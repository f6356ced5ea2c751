//! The results of a file, counted.

use std::collections::BTreeMap;

use mtimer_client::{ErrorCode, RequestError, ScheduleError, Scheduled};
use serde::Serialize;

use crate::exit::{self, Exit};
use crate::output::{grouped, note};

/// Lines with a problem that are told one by one; the others are only counted.
pub(crate) const MAX_TOLD: usize = 20;

/// A line with a problem.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Problem {
    pub(crate) line: u64,
    pub(crate) reason: String,
}

/// Problems, of which the first few are kept.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Problems {
    pub(crate) count: u64,
    pub(crate) first: Vec<Problem>,
}

impl Problems {
    pub(crate) fn add(&mut self, line: u64, reason: impl Into<String>) {
        self.count += 1;
        if self.first.len() < MAX_TOLD {
            self.first.push(Problem { line, reason: reason.into() });
        }
    }

    /// Tells of the first ones, and how many more there are.
    pub(crate) fn tell(&self, what: &str) {
        for problem in &self.first {
            note(&format!("line {} {what}: {}", problem.line, problem.reason));
        }
        let not_listed = self.count - self.first.len() as u64;
        if not_listed > 0 {
            note(&format!("and {} more", grouped(not_listed)));
        }
    }
}

/// The results of the lines that were sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct SentLines {
    pub(crate) scheduled: u64,
    /// Stored before, kept, or ended already.
    pub(crate) already: u64,
    /// Of those, kept while they are being delivered.
    pub(crate) being_delivered: u64,
    /// By reason.
    pub(crate) reasons: BTreeMap<&'static str, u64>,
    pub(crate) refused: Problems,
    /// The exit codes of all that was refused, if they are one.
    exits: Vec<Exit>,
}

impl SentLines {
    /// Lines that were answered or given up.
    pub(crate) fn lines(&self) -> u64 {
        self.scheduled + self.already + self.refused.count
    }

    pub(crate) fn add(&mut self, line: u64, result: &Result<Scheduled, ScheduleError>) {
        match result {
            Ok(scheduled) if scheduled.new => self.scheduled += 1,
            Ok(scheduled) => {
                self.already += 1;
                self.being_delivered += u64::from(scheduled.being_delivered);
            }
            Err(ScheduleError::Ended { .. }) => self.already += 1,
            Err(error) => {
                *self.reasons.entry(reason(error)).or_default() += 1;
                self.refused.add(line, error.to_string());
                let exit = exit::of_schedule(error);
                if !self.exits.contains(&exit) {
                    self.exits.push(exit);
                }
            }
        }
    }

    /// How the command ends, if every line was sent.
    pub(crate) fn exit(&self) -> Exit {
        match self.exits.as_slice() {
            [] => Exit::Done,
            [one] if self.scheduled + self.already == 0 => *one,
            _ => Exit::Partly,
        }
    }
}

/// A refusal in one word.
fn reason(error: &ScheduleError) -> &'static str {
    let error = match error {
        ScheduleError::Invalid(_) => return "invalid",
        ScheduleError::KeyTaken(_) => return "key-taken",
        ScheduleError::Conflict { .. } => return "id-in-use",
        ScheduleError::Ended { .. } => return "ended",
        ScheduleError::Request { error, .. } => error,
    };
    match error {
        RequestError::NotReplicated { .. } => "not-replicated",
        RequestError::NotSent { .. } | RequestError::Unanswered { .. } => "no-connection",
        RequestError::Unknown { .. } | RequestError::Mismatched => "unknown",
        RequestError::Closed | RequestError::Observer => "closed",
        RequestError::Refused { code, .. } => match code {
            ErrorCode::Invalid => "invalid",
            ErrorCode::Unauthorized => "unauthorized",
            ErrorCode::StoreFull => "store-full",
            ErrorCode::Overloaded => "overloaded",
            ErrorCode::LimitReached => "limit-reached",
            ErrorCode::Unavailable => "store-away",
            ErrorCode::NotOwner | ErrorCode::Stopping => "no-owner",
            ErrorCode::Version | ErrorCode::Protocol => "protocol",
            ErrorCode::Unknown | ErrorCode::NotReplicated => "unknown",
        },
    }
}

#[cfg(test)]
mod tests {
    use mtimer_client::{Ended, TimerId};

    use super::*;

    #[test]
    fn what_came_of_it_decides_the_exit_code() {
        let id = TimerId::from_u128(1);
        let answer = |new: bool, being_delivered| {
            let due = new.then(|| id.birth_due());
            Ok(Scheduled { id, new, replaced: None, due, kept: !new, being_delivered })
        };
        let new = |new| answer(new, false);
        let mut sent = SentLines::default();
        assert_eq!(sent.exit(), Exit::Done);
        sent.add(1, &Err(ScheduleError::Conflict { id }));
        assert_eq!(sent.exit(), Exit::Conflict);
        sent.add(2, &new(true));
        sent.add(3, &new(false));
        sent.add(4, &Err(ScheduleError::Ended { id, how: Ended::Acknowledged }));
        assert_eq!((sent.scheduled, sent.already, sent.lines(), sent.exit()), (1, 2, 4, Exit::Partly));
        assert_eq!(sent.reasons, BTreeMap::from([("id-in-use", 1)]));
        sent.add(5, &answer(false, true));
        assert_eq!((sent.already, sent.being_delivered), (3, 1));
    }

    #[test]
    fn only_the_first_problems_are_kept() {
        let mut problems = Problems::default();
        (1..=100).for_each(|line| problems.add(line, "bad"));
        assert_eq!((problems.count, problems.first.len()), (100, MAX_TOLD));
    }
}
