//! The questions of clients to one partition, and the pages of lists that all partitions are asked
//! for.
//!
//! Invariant: at most [`QUESTIONS_OUT`] of a partition, and [`PAGES_OUT`] pages of pending timers of
//! all partitions, are at the store at the same time; further ones wait here, so that writes do not
//! wait behind all of them.
//! Not in here: the questions themselves, and the use of their answers (`queries`, `counting`).

use std::collections::VecDeque;

use mtimer_types::PartitionId;

use crate::api::{Call, SessionId};

/// Questions to one partition that are at the store at the same time: enough to keep it busy, few
/// enough for a write behind them.
const QUESTIONS_OUT: usize = 4;

/// Pages of pending timers that are read at the same time, of whichever partitions: each reads
/// thousands of timers, and a client asks all partitions at once. Beside a list of two million
/// timers, half of them of one millisecond, 2,000 timers a second were late by 577 ms (p99) when
/// all partitions read at once, and by 3.4 ms with this: see "Finding and counting" in
/// `docs/performance-notes.md`.
const PAGES_OUT: usize = 2;

/// The purpose of a call's answer.
#[derive(Debug)]
pub(super) enum QueryPart {
    /// For this question alone.
    One { session: SessionId, corr: u64 },
    /// The same, for the story of a timer.
    Story { session: SessionId, corr: u64 },
    /// The same, for the settings of a partition.
    Settings { session: SessionId, corr: u64 },
    /// The same, for a page of pending timers, with or without their payloads, or of when they are
    /// due.
    Pending { session: SessionId, corr: u64, payloads: bool },
    /// A partition's part of the count of this number.
    Count(u64),
}

impl QueryPart {
    /// Who waits for this answer alone.
    pub(super) fn asker(&self) -> Option<(SessionId, u64)> {
        match *self {
            Self::One { session, corr }
            | Self::Story { session, corr }
            | Self::Settings { session, corr }
            | Self::Pending { session, corr, .. } => Some((session, corr)),
            Self::Count(_) => None,
        }
    }
}

/// The questions to one partition.
#[derive(Debug, Default)]
pub(super) struct Questions {
    /// At the store.
    out: usize,
    waiting: VecDeque<(QueryPart, Call)>,
}

impl Questions {
    /// Takes a question in, behind those that wait.
    pub(super) fn push(&mut self, part: QueryPart, call: Call) {
        self.waiting.push_back((part, call));
    }

    /// Returns the question to ask now, if one waits and may be asked. It counts as asked.
    pub(super) fn next(&mut self) -> Option<(QueryPart, Call)> {
        if self.out == QUESTIONS_OUT {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.out += 1;
        Some(next)
    }

    /// Notes that the store has answered one.
    pub(super) fn answered(&mut self) {
        self.out -= 1;
    }

    /// Takes those that were not asked.
    pub(super) fn take_waiting(&mut self) -> impl Iterator<Item = QueryPart> + use<> {
        std::mem::take(&mut self.waiting).into_iter().map(|(part, _)| part)
    }
}

/// The pages of pending timers that were asked for.
#[derive(Debug, Default)]
pub(super) struct ListPages {
    /// At a partition, or at the store.
    out: usize,
    waiting: VecDeque<(PartitionId, QueryPart, Call)>,
}

impl ListPages {
    /// Takes one in, behind those that wait.
    pub(super) fn push(&mut self, at: PartitionId, part: QueryPart, call: Call) {
        self.waiting.push_back((at, part, call));
    }

    /// Returns the page to ask for now, if one waits and may be asked for. It counts as asked.
    pub(super) fn next(&mut self) -> Option<(PartitionId, QueryPart, Call)> {
        if self.out == PAGES_OUT {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.out += 1;
        Some(next)
    }

    /// Notes that one that was asked for is answered, in whatever way.
    pub(super) fn answered(&mut self) {
        self.out = self.out.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_pages_of_lists_are_read_at_a_time() {
        let mut pages = ListPages::default();
        let part = |corr| QueryPart::Pending { session: SessionId(1), corr, payloads: false };
        (0..4).for_each(|corr| pages.push(PartitionId(corr as u16), part(corr), Call::Census));
        let mut next = || pages.next().map(|(at, ..)| at.0);
        assert_eq!((next(), next(), next()), (Some(0), Some(1), None));
        pages.answered();
        let mut next = || pages.next().map(|(at, ..)| at.0);
        assert_eq!((next(), next()), (Some(2), None));
    }

    #[test]
    fn a_few_are_asked_at_a_time_in_the_order_of_their_coming() {
        let mut questions = Questions::default();
        let count = |n| (QueryPart::Count(n), Call::Census);
        let number = |asked: Option<(QueryPart, Call)>| match asked {
            Some((QueryPart::Count(n), _)) => Some(n),
            _ => None,
        };
        (0..6).map(count).for_each(|(part, call)| questions.push(part, call));
        for n in 0..QUESTIONS_OUT as u64 {
            assert_eq!(number(questions.next()), Some(n));
        }
        assert_eq!(number(questions.next()), None, "as many as may are at the store");
        questions.answered();
        assert_eq!(number(questions.next()), Some(4));
        assert_eq!(questions.take_waiting().count(), 1);
        questions.answered();
        assert_eq!(number(questions.next()), None, "none waits");
    }
}
