//! Histories as the tests write them.

use mtimer_client::{DeadReason, Destination, Mode, PartitionId, Time, TimerId};
use mtimer_tests::{Entry, Event, Excuse, Fault, Final, Handled, History, Left, Note, Plan, Said, check};

pub(crate) const DUE: u64 = 1_000_000;
pub(crate) const TIMEOUT: u64 = 6_000;
pub(crate) const EPOCH: u64 = 7;

/// A history in the making. Its timers are due at `DUE`, and were scheduled at `DUE - 100`.
#[derive(Default)]
pub(crate) struct Story {
    pub(crate) history: History,
    pub(crate) end: Final,
}

pub(crate) fn dest() -> Destination {
    Destination::new("g", "a").unwrap()
}

pub(crate) fn id(serial: u64) -> TimerId {
    TimerId::new(Time::from_ms(DUE), Time::ZERO, PartitionId(0), serial)
}

pub(crate) fn stored(serial: u64) -> Said {
    Said::Stored { id: Some(id(serial)), replaced: Some(None) }
}

impl Story {
    pub(crate) fn timer(self, serial: u64) -> Self {
        self.planned(Plan::new(serial, &dest(), DUE, 3, TIMEOUT), stored(serial))
    }

    pub(crate) fn at_most_once(self, serial: u64) -> Self {
        let plan = Plan { mode: Mode::AtMostOnce, ..Plan::new(serial, &dest(), DUE, 3, TIMEOUT) };
        self.planned(plan, stored(serial))
    }

    pub(crate) fn planned(mut self, plan: Plan, said: Said) -> Self {
        let serial = plan.serial;
        self.history.plans.insert(serial, plan);
        self.event(serial, Event::Schedule { asked: DUE - 110, answered: DUE - 100, said })
    }

    pub(crate) fn event(mut self, serial: u64, event: Event) -> Self {
        self.history.events.push((serial, event));
        self
    }

    pub(crate) fn delivered(self, serial: u64, after: i64, epoch: u64, attempt: u32) -> Self {
        self.delivered_for(serial, DUE, after, epoch, attempt)
    }

    /// `after` counts from `DUE`.
    pub(crate) fn delivered_for(self, serial: u64, due: u64, after: i64, epoch: u64, attempt: u32) -> Self {
        let at = DUE.checked_add_signed(after).unwrap();
        self.event(
            serial,
            Event::Delivered {
                at,
                received: at.max(due),
                client_clock: at.max(due),
                client: 0,
                id: id(serial),
                epoch,
                attempt,
                due,
                intact: true,
            },
        )
    }

    pub(crate) fn settled(self, serial: u64, after: u64, epoch: u64, attempt: u32, outcome: Handled) -> Self {
        self.event(serial, Event::Settled { at: DUE + after, epoch, attempt, outcome })
    }

    pub(crate) fn ok(self, serial: u64) -> Self {
        self.delivered(serial, 1, EPOCH, 1).settled(serial, 2, EPOCH, 1, Handled::Ok)
    }

    pub(crate) fn cancelled(self, serial: u64, after: i64, said: Said) -> Self {
        let answered = DUE.checked_add_signed(after).unwrap();
        self.event(serial, Event::Cancel { asked: answered - 5, answered, said })
    }

    pub(crate) fn moved(self, serial: u64, after: i64, due: u64, said: Said) -> Self {
        let answered = DUE.checked_add_signed(after).unwrap();
        self.event(serial, Event::Move { asked: answered - 5, answered, due, said })
    }

    pub(crate) fn fault(mut self, after: u64, until: u64) -> Self {
        self.history.faults.push(Fault {
            from: DUE + after,
            until: DUE + until,
            what: "the broker was killed".into(),
            excuse: Excuse::Duplicates,
        });
        self
    }

    /// A fault that holds back what was sent.
    pub(crate) fn delay(self, after: u64, until: u64) -> Self {
        let mut story = self.fault(after, until);
        story.history.faults.last_mut().unwrap().excuse = Excuse::Delays;
        story
    }

    pub(crate) fn replayed(self, serial: u64, after: u64, said: Said) -> Self {
        let answered = DUE + after;
        self.event(serial, Event::Replay { asked: answered - 5, answered, said })
    }

    pub(crate) fn purged(self, serial: u64, after: u64, said: Said) -> Self {
        let answered = DUE + after;
        self.event(serial, Event::Purge { asked: answered - 5, answered, said })
    }

    /// The end is read at `DUE` and this much.
    pub(crate) fn read(mut self, after: u64) -> Self {
        self.end.at = DUE + after;
        self
    }

    pub(crate) fn logged(mut self, broker: &str, after: i64, note: Note) -> Self {
        let at = DUE.checked_add_signed(after).unwrap();
        self.history.journal.push(Entry { at, broker: broker.to_owned(), note });
        self
    }

    pub(crate) fn left(mut self, serial: u64, left: Left) -> Self {
        self.end.left.push((serial, left));
        self
    }

    pub(crate) fn dead(self, serial: u64, reason: DeadReason, attempts: u32, error: Option<&str>) -> Self {
        let last_error = error.map(str::to_owned);
        self.left(serial, Left::Dead { reason, attempts, last_error, intact: true })
    }

    #[track_caller]
    pub(crate) fn holds(self) {
        let found = check(&self.history, &self.end);
        assert!(found.is_empty(), "{}", found[0]);
    }

    /// Breaks this invariant, says so for this timer, and breaks no other.
    #[track_caller]
    pub(crate) fn breaks(self, invariant: u8, what: &str) {
        let found = check(&self.history, &self.end);
        assert!(!found.is_empty(), "invariant {invariant} is not seen to be broken");
        for violation in &found {
            assert_eq!(violation.invariant, invariant, "{violation}");
            assert!(violation.what.contains(what), "{violation}");
        }
    }
}
