//! The checker is shown to fail: one good history, and for every invariant histories that break it
//! and nothing else.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use mtimer_client::{DeadReason, Destination, Ended, Key, Mode, PartitionId, Time, TimerId, TimerState};
use mtimer_tests::{
    ClockReading, Entry, Event, Excuse, Fault, Final, HOP_MS, Handled, History, Left, Note, Plan, Said,
    check, judge,
};

const DUE: u64 = 1_000_000;
const TIMEOUT: u64 = 6_000;
const EPOCH: u64 = 7;

/// A history in the making. Its timers are due at `DUE`, and were scheduled at `DUE - 100`.
#[derive(Default)]
struct Story {
    history: History,
    end: Final,
}

fn dest() -> Destination {
    Destination::new("g", "a").unwrap()
}

fn id(serial: u64) -> TimerId {
    TimerId::new(Time::from_ms(DUE), Time::ZERO, PartitionId(0), serial)
}

fn stored(serial: u64) -> Said {
    Said::Stored { id: Some(id(serial)), replaced: Some(None) }
}

impl Story {
    fn timer(self, serial: u64) -> Self {
        self.planned(Plan::new(serial, &dest(), DUE, 3, TIMEOUT), stored(serial))
    }

    fn at_most_once(self, serial: u64) -> Self {
        let plan = Plan { mode: Mode::AtMostOnce, ..Plan::new(serial, &dest(), DUE, 3, TIMEOUT) };
        self.planned(plan, stored(serial))
    }

    fn planned(mut self, plan: Plan, said: Said) -> Self {
        let serial = plan.serial;
        self.history.plans.insert(serial, plan);
        self.event(serial, Event::Schedule { asked: DUE - 110, answered: DUE - 100, said })
    }

    fn event(mut self, serial: u64, event: Event) -> Self {
        self.history.events.push((serial, event));
        self
    }

    fn delivered(self, serial: u64, after: i64, epoch: u64, attempt: u32) -> Self {
        self.delivered_for(serial, DUE, after, epoch, attempt)
    }

    /// `after` counts from `DUE`.
    fn delivered_for(self, serial: u64, due: u64, after: i64, epoch: u64, attempt: u32) -> Self {
        let at = DUE.checked_add_signed(after).unwrap();
        self.event(
            serial,
            Event::Delivered { at, client: 0, id: id(serial), epoch, attempt, due, intact: true },
        )
    }

    fn settled(self, serial: u64, after: u64, epoch: u64, attempt: u32, outcome: Handled) -> Self {
        self.event(serial, Event::Settled { at: DUE + after, epoch, attempt, outcome })
    }

    fn ok(self, serial: u64) -> Self {
        self.delivered(serial, 1, EPOCH, 1).settled(serial, 2, EPOCH, 1, Handled::Ok)
    }

    fn cancelled(self, serial: u64, after: i64, said: Said) -> Self {
        let answered = DUE.checked_add_signed(after).unwrap();
        self.event(serial, Event::Cancel { asked: answered - 5, answered, said })
    }

    fn moved(self, serial: u64, after: i64, due: u64, said: Said) -> Self {
        let answered = DUE.checked_add_signed(after).unwrap();
        self.event(serial, Event::Move { asked: answered - 5, answered, due, said })
    }

    fn fault(mut self, after: u64, until: u64) -> Self {
        self.history.faults.push(Fault {
            from: DUE + after,
            until: DUE + until,
            what: "the broker was killed".into(),
            excuse: Excuse::Duplicates,
        });
        self
    }

    /// A fault that holds back what was sent.
    fn delay(self, after: u64, until: u64) -> Self {
        let mut story = self.fault(after, until);
        story.history.faults.last_mut().unwrap().excuse = Excuse::Delays;
        story
    }

    fn replayed(self, serial: u64, after: u64, said: Said) -> Self {
        let answered = DUE + after;
        self.event(serial, Event::Replay { asked: answered - 5, answered, said })
    }

    fn purged(self, serial: u64, after: u64, said: Said) -> Self {
        let answered = DUE + after;
        self.event(serial, Event::Purge { asked: answered - 5, answered, said })
    }

    /// The end is read at `DUE` and this much.
    fn read(mut self, after: u64) -> Self {
        self.end.at = DUE + after;
        self
    }

    fn logged(mut self, broker: &str, after: i64, note: Note) -> Self {
        let at = DUE.checked_add_signed(after).unwrap();
        self.history.journal.push(Entry { at, broker: broker.to_owned(), note });
        self
    }

    fn left(mut self, serial: u64, left: Left) -> Self {
        self.end.left.push((serial, left));
        self
    }

    fn dead(self, serial: u64, reason: DeadReason, attempts: u32, error: Option<&str>) -> Self {
        let last_error = error.map(str::to_owned);
        self.left(serial, Left::Dead { reason, attempts, last_error, intact: true })
    }

    #[track_caller]
    fn holds(self) {
        let found = check(&self.history, &self.end);
        assert!(found.is_empty(), "{}", found[0]);
    }

    /// Breaks this invariant, says so for this timer, and breaks no other.
    #[track_caller]
    fn breaks(self, invariant: u8, what: &str) {
        let found = check(&self.history, &self.end);
        assert!(!found.is_empty(), "invariant {invariant} is not seen to be broken");
        for violation in &found {
            assert_eq!(violation.invariant, invariant, "{violation}");
            assert!(violation.what.contains(what), "{violation}");
        }
    }
}

#[test]
fn good_histories_pass() {
    Story::default().timer(1).ok(1).holds();
    // Retries by the handler's wish, then dead.
    Story::default()
        .timer(1)
        .delivered(1, 1, EPOCH, 1)
        .settled(1, 2, EPOCH, 1, Handled::Retry)
        .delivered(1, 300, EPOCH, 2)
        .settled(1, 301, EPOCH, 2, Handled::Fail)
        .dead(1, DeadReason::Failed, 2, Some("no"))
        .holds();
    // A handler that was too slow; its late ok counts.
    Story::default()
        .timer(1)
        .delivered(1, 1, EPOCH, 1)
        .delivered(1, 6_001, EPOCH, 2)
        .settled(1, 7_000, EPOCH, 1, Handled::Ok)
        .holds();
    // A crash: an ok that was lost, and a claim that was not used.
    Story::default().timer(1).ok(1).fault(3, 50).delivered(1, 60, EPOCH + 1, 2).holds();
    Story::default()
        .timer(1)
        .fault(0, 50)
        .delivered(1, 60, EPOCH + 1, 2)
        .settled(1, 61, EPOCH + 1, 2, Handled::Ok)
        .holds();
    // At most once: unconfirmed after a crash.
    Story::default().at_most_once(1).fault(0, 9).left(1, Left::Unconfirmed { intact: true }).holds();
    // Cancelled, too late to be cancelled, moved, refused.
    Story::default().timer(1).cancelled(1, -10, Said::Done).holds();
    Story::default().timer(1).ok(1).cancelled(1, 9, Said::TooLate).holds();
    Story::default()
        .timer(1)
        .fault(0, 9)
        .cancelled(1, 20, Said::TooLate)
        .dead(1, DeadReason::Stopped, 1, None)
        .holds();
    Story::default()
        .timer(1)
        .moved(1, -50, DUE + 200, Said::Done)
        .moved(1, -10, DUE + 90, Said::Unknown)
        .delivered_for(1, DUE + 90, 91, EPOCH, 1)
        .settled(1, 92, EPOCH, 1, Handled::Ok)
        .holds();
    Story::default().planned(Plan::new(1, &dest(), DUE, 3, TIMEOUT), Said::Refused).holds();
    // Unknown: may be there or not.
    Story::default().planned(Plan::new(1, &dest(), DUE, 3, TIMEOUT), Said::Unknown).holds();
    Story::default().planned(Plan::new(1, &dest(), DUE, 3, TIMEOUT), Said::Unknown).ok(1).holds();
}

#[test]
fn a_deadline_ends_what_was_not_delivered_by_then_and_nothing_else() {
    let expires = |after| {
        let plan = Plan { deadline: Some(DUE + after), ..Plan::new(1, &dest(), DUE, 3, TIMEOUT) };
        Story::default().planned(plan, stored(1))
    };
    expires(5).holds();
    // Nothing held it up for so long.
    expires(60_000).breaks(1, "long before its deadline");
    expires(60_000).fault(5, 59_000).holds();
    // A handler that was too slow, and then the deadline.
    expires(TIMEOUT + 500).delivered(1, 1, EPOCH, 1).holds();
    expires(TIMEOUT + 60_000).delivered(1, 1, EPOCH, 1).breaks(1, "long before its deadline");
    let late = || expires(5).delivered(1, 20_000, EPOCH, 1).settled(1, 20_001, EPOCH, 1, Handled::Ok);
    late().breaks(14, "19995 ms after its deadline");
    late().delay(0, 100).holds();
}

#[test]
fn no_delivery_begins_after_the_deadline() {
    let sent = |after, mode| {
        let plan = Plan { deadline: Some(DUE + 50), mode, ..Plan::new(1, &dest(), DUE, 3, TIMEOUT) };
        let story = Story::default().planned(plan, stored(1)).delivered(1, after, EPOCH, 1);
        story.settled(1, after as u64 + 1, EPOCH, 1, Handled::Ok)
    };
    let hop = HOP_MS as i64;
    for mode in [Mode::AtLeastOnce, Mode::AtMostOnce] {
        sent(50 + hop, mode).holds();
        sent(51 + hop, mode).breaks(14, "ms after its deadline");
        // A killed broker sends nothing late; one that was stopped may have.
        sent(51 + hop, mode).fault(10, 60).breaks(14, "ms after its deadline");
        sent(51 + hop, mode).delay(10, 60).holds();
        sent(9_000, mode).delay(10, 40).breaks(14, "8950 ms after its deadline");
    }
    // Later attempts are no exception.
    let again = sent(1, Mode::AtLeastOnce).fault(0, 9).delivered(1, 9_000, EPOCH + 1, 2);
    again.breaks(14, "8950 ms after its deadline");
    // A replay takes away a deadline that has passed.
    let plan = Plan { deadline: Some(DUE + 50), ..Plan::new(1, &dest(), DUE, 3, TIMEOUT) };
    let failed = Story::default().planned(plan, stored(1)).delivered(1, 1, EPOCH, 1);
    let failed = failed.settled(1, 2, EPOCH, 1, Handled::Fail);
    let again = |story: Story| story.delivered(1, 9_000, EPOCH, 2).settled(1, 9_001, EPOCH, 2, Handled::Ok);
    again(failed.replayed(1, 8_900, Said::Done)).holds();
}

#[test]
fn a_timer_with_a_deadline_does_not_vanish() {
    let plan = || Plan { deadline: Some(DUE + 60_000), ..Plan::new(1, &dest(), DUE, 3, TIMEOUT) };
    let gone = || Story::default().planned(plan(), stored(1));
    // A fault explains a delay, and nothing explains an end before the deadline.
    gone().fault(5, 900).read(30_000).breaks(1, "has not passed");
    gone().fault(5, 59_000).read(61_000).holds();
    // Unless an attempt had failed, and the next one would come after the deadline.
    let failed = gone().delivered(1, 1, EPOCH, 1).settled(1, 2, EPOCH, 1, Handled::Retry);
    failed.read(61_000).breaks(1, "long before its deadline");
    let plan = Plan { crowded: true, ..plan() };
    let waits = || Story::default().planned(plan.clone(), stored(1));
    waits().read(61_000).holds();
    waits().read(30_000).breaks(1, "has not passed");
    let failed = || waits().delivered(1, 1, EPOCH, 1).settled(1, 2, EPOCH, 1, Handled::Retry);
    failed().read(56_000).holds();
    failed().read(30_000).breaks(1, "has not passed");
}

#[test]
fn what_has_expired_was_counted_and_not_expired_before_its_deadline() {
    let plan = |serial| Plan { deadline: Some(DUE + 50), ..Plan::new(serial, &dest(), DUE, 3, TIMEOUT) };
    let two = |expired| {
        let mut story = Story::default().planned(plan(1), stored(1)).planned(plan(2), stored(2));
        story = story.ok(2).read(10_000);
        story.end.expired = expired;
        story
    };
    two(None).holds();
    two(Some(1)).holds();
    two(Some(0)).breaks(14, "the brokers counted 0");
    two(Some(3)).breaks(14, "the brokers counted 3");
    let told = |story: Story, after| story.event(1, Event::Ended { at: DUE + after, how: Ended::Expired });
    let plan = Plan { deadline: Some(DUE + 5_000), ..plan(1) };
    let story = || Story::default().planned(plan.clone(), stored(1));
    told(story(), 5_000).holds();
    told(story(), 4_000).breaks(14, "before its deadline");
    let failed = || story().delivered(1, 1, EPOCH, 1).settled(1, 2, EPOCH, 1, Handled::Retry);
    told(failed(), 1).holds();
    told(Story::default().timer(1).ok(1), 4_000).breaks(14, "without a deadline");
}

#[test]
fn keys_are_free_in_the_end() {
    let mut story = Story::default().timer(1).ok(1);
    story.end.taken_keys.push("key k of g/a: it still names a timer".into());
    story.breaks(13, "not free: key k");
}

#[test]
fn clocks_stay_near_the_reference() {
    let reading = |says| {
        let mut story = Story::default().timer(1).ok(1);
        let broker = "a".to_owned();
        story.history.clocks.push(ClockReading { broker, before: DUE, says, after: DUE + 10 });
        story.history.limits.clock_ms = Some(500);
        story
    };
    reading(DUE - 500).holds();
    reading(DUE + 510).holds();
    reading(DUE - 501).breaks(12, "501 ms away");
    reading(DUE + 511).breaks(12, "501 ms away");
}

#[test]
fn a_replay_allows_one_more_delivery_and_a_purge_ends_the_timer() {
    let twice = |story: Story| {
        let story = story.delivered(1, 1, EPOCH, 1);
        story.delivered(1, 900, EPOCH, 2).settled(1, 901, EPOCH, 2, Handled::Ok)
    };
    twice(Story::default().at_most_once(1)).breaks(4, "delivered 2 times");
    twice(Story::default().at_most_once(1).replayed(1, 800, Said::NotFound)).breaks(4, "0 replays");
    twice(Story::default().at_most_once(1).replayed(1, 800, Said::Done)).holds();
    twice(Story::default().at_most_once(1).replayed(1, 800, Said::Unknown)).holds();
    // Repeated because of a fault, and done by the first sending.
    twice(Story::default().at_most_once(1).fault(700, 800).replayed(1, 800, Said::NotFound)).holds();
    twice(Story::default().at_most_once(1).fault(700, 790).replayed(1, 800, Said::NotFound))
        .breaks(4, "0 replays");
    let failed =
        |outcome| Story::default().timer(1).delivered(1, 1, EPOCH, 1).settled(1, 2, EPOCH, 1, outcome);
    let again = |story: Story| story.delivered(1, 900, EPOCH, 4).settled(1, 901, EPOCH, 4, Handled::Ok);
    again(failed(Handled::Fail)).breaks(5, "");
    again(failed(Handled::Fail).replayed(1, 800, Said::Done)).holds();
    // A replay long before explains nothing.
    let replayed = failed(Handled::Fail).replayed(1, 100, Said::Done).delivered(1, 150, EPOCH, 2);
    let replayed = replayed.settled(1, 151, EPOCH, 2, Handled::Ok);
    replayed.delivered(1, 9_000, EPOCH, 3).breaks(5, "had said Ok");
    failed(Handled::Fail).purged(1, 90, Said::Done).holds();
    failed(Handled::Fail).purged(1, 90, Said::NotFound).breaks(1, "nothing has ended it");
    let left = failed(Handled::Fail).purged(1, 90, Said::Done).dead(1, DeadReason::Failed, 1, Some("no"));
    left.breaks(1, "more than once");
}

#[test]
fn replacing_ends_the_timer_that_had_the_key() {
    let keyed = |serial| Plan {
        key: Some(Key::new("k").unwrap()),
        replaces: true,
        ..Plan::new(serial, &dest(), DUE, 3, TIMEOUT)
    };
    let replaced = |id| Said::Stored { id: Some(self::id(2)), replaced: id };
    let story = |said| Story::default().planned(keyed(1), stored(1)).planned(keyed(2), said).ok(2);
    story(replaced(Some(Some(id(1))))).holds();
    // A repeat does not say what it replaced; an unknown one may have.
    story(replaced(None)).holds();
    story(Said::Unknown).holds();
    story(replaced(Some(None))).breaks(1, "nothing has ended it");
    story(replaced(Some(Some(id(1))))).cancelled(1, -10, Said::Done).breaks(1, "more than once");
}

#[test]
fn invariant_1_every_timer_ends_once() {
    Story::default().timer(1).breaks(1, "nothing has ended it");
    Story::default().timer(1).left(1, Left::Live(TimerState::Parked)).breaks(1, "not ended");
    Story::default().at_most_once(1).breaks(1, "nothing has ended it");
    Story::default()
        .timer(1)
        .cancelled(1, -10, Said::Done)
        .dead(1, DeadReason::Failed, 1, Some("no"))
        .breaks(1, "more than once");
    let row = || Left::Unconfirmed { intact: true };
    let sent = Story::default().at_most_once(1).delivered(1, 1, EPOCH, 1);
    sent.left(1, row()).left(1, row()).breaks(1, "2 places");
    // Unconfirmed without anything that could have confirmed or lost it.
    Story::default().at_most_once(1).left(1, row()).breaks(1, "nobody got it");
    Story::default().at_most_once(1).fault(5, 9).left(1, row()).holds();
    Story::default().at_most_once(1).ok(1).left(1, row()).breaks(1, "had said Ok");
    // A retry is no end, and a cancel that found nothing is none either.
    Story::default()
        .timer(1)
        .delivered(1, 1, EPOCH, 1)
        .settled(1, 2, EPOCH, 1, Handled::Retry)
        .cancelled(1, 50, Said::NotFound)
        .breaks(1, "nothing has ended it");
}

#[test]
fn invariant_2_only_what_was_scheduled_fires() {
    let refused = || Story::default().planned(Plan::new(1, &dest(), DUE, 3, TIMEOUT), Said::Refused);
    refused().ok(1).breaks(2, "refused");
    refused().dead(1, DeadReason::Failed, 1, Some("no")).breaks(2, "refused");
    let mut story = Story::default();
    story.history.strangers.push("timer x".into());
    story.breaks(2, "nobody scheduled timer x");
    let other =
        Event::Delivered { at: DUE, client: 0, id: id(1), epoch: EPOCH, attempt: 1, due: DUE, intact: false };
    Story::default()
        .timer(1)
        .event(1, other)
        .settled(1, 1, EPOCH, 1, Handled::Ok)
        .breaks(2, "another content");
    let other = Event::Delivered {
        at: DUE + 900,
        client: 0,
        id: id(2),
        epoch: EPOCH,
        attempt: 2,
        due: DUE,
        intact: true,
    };
    Story::default()
        .timer(1)
        .delivered(1, 1, EPOCH, 1)
        .event(1, other)
        .settled(1, 901, EPOCH, 2, Handled::Ok)
        .breaks(2, "two ids");
}

#[test]
fn invariant_3_nothing_is_early() {
    Story::default()
        .timer(1)
        .delivered(1, -1, EPOCH, 1)
        .settled(1, 0, EPOCH, 1, Handled::Ok)
        .breaks(3, "1 ms before");
    Story::default()
        .timer(1)
        .delivered_for(1, DUE - 1, 1, EPOCH, 1)
        .settled(1, 2, EPOCH, 1, Handled::Ok)
        .breaks(3, "nobody asked for");
}

#[test]
fn invariant_4_at_most_once_is_at_most_once() {
    Story::default()
        .at_most_once(1)
        .ok(1)
        .fault(3, 9)
        .delivered(1, 20, EPOCH + 1, 2)
        .breaks(4, "delivered 2 times");
}

#[test]
fn invariant_5_duplicates_are_higher_and_have_a_cause() {
    Story::default().timer(1).ok(1).fault(3, 9).delivered(1, 20, EPOCH, 1).breaks(5, "not higher");
    Story::default()
        .timer(1)
        .delivered(1, 1, EPOCH + 1, 2)
        .event(
            1,
            Event::Delivered {
                at: DUE + 20,
                client: 1,
                id: id(1),
                epoch: EPOCH,
                attempt: 3,
                due: DUE,
                intact: true,
            },
        )
        .settled(1, 21, EPOCH, 3, Handled::Ok)
        .breaks(5, "");
    Story::default().timer(1).ok(1).delivered(1, 20, EPOCH, 2).breaks(5, "had said Ok");
    // A fault loses what is on its way, and not what was said long before or after it.
    let said =
        |from, until| Story::default().timer(1).ok(1).fault(from, until).delivered(1, 15_000, EPOCH + 1, 2);
    said(0, 50).holds();
    said(9_000, 9_500).breaks(5, "had said Ok");
    let again = Story::default().timer(1).fault(0, 1).delivered(1, 4_000, EPOCH + 1, 1);
    again
        .settled(1, 4_001, EPOCH + 1, 1, Handled::Ok)
        .delivered(1, 4_300, EPOCH + 1, 2)
        .breaks(5, "had said Ok");
    Story::default()
        .timer(1)
        .delivered(1, 1, EPOCH, 1)
        .settled(1, 2, EPOCH, 1, Handled::Retry)
        .delivered(1, 300, EPOCH, 3)
        .settled(1, 301, EPOCH, 3, Handled::Ok)
        .breaks(5, "without a fault");
    Story::default()
        .timer(1)
        .delivered(1, 1, EPOCH, 2)
        .settled(1, 2, EPOCH, 2, Handled::Ok)
        .breaks(5, "first delivery is attempt 2");
    // A fault long over excuses nothing.
    let story = Story::default().timer(1).fault(0, 1).delivered(1, 20_000, EPOCH, 1);
    story.settled(1, 20_001, EPOCH, 1, Handled::Ok).delivered(1, 20_300, EPOCH, 2).breaks(5, "had said Ok");
}

#[test]
fn a_planned_handover_changes_the_epoch_and_excuses_no_duplicate() {
    let story = || Story::default().timer(1).logged("a", -90, Note::Acquired { partition: 0, epoch: EPOCH });
    let handed = |story: Story, at| story.logged("b", at, Note::Acquired { partition: 0, epoch: EPOCH + 1 });
    let first = |outcome| story().delivered(1, 1, EPOCH, 1).settled(1, 2, EPOCH, 1, outcome);
    let again = |story: Story, attempt| {
        story.delivered(1, 300, EPOCH + 1, attempt).settled(1, 301, EPOCH + 1, attempt, Handled::Ok)
    };
    again(handed(first(Handled::Retry), 100), 2).holds();
    again(handed(first(Handled::Ok), 100), 2).breaks(5, "had said Ok");
    // It had changed hands long before, and has not since.
    again(handed(first(Handled::Retry), -5_000), 2).breaks(5, "without a fault");
}

#[test]
fn a_planned_handover_costs_no_attempt_and_a_lost_owner_may() {
    let story = || Story::default().timer(1).logged("a", -90, Note::Acquired { partition: 0, epoch: EPOCH });
    let handed = |story: Story, at| story.logged("b", at, Note::Acquired { partition: 0, epoch: EPOCH + 1 });
    // The claim before the handover covered the retry, and was taken back.
    let retried = |at, attempt| {
        let first = story().delivered(1, 1, EPOCH, 1).settled(1, 2, EPOCH, 1, Handled::Retry);
        let again = handed(first, at).delivered(1, 300, EPOCH + 1, attempt);
        again.settled(1, 301, EPOCH + 1, attempt, Handled::Ok)
    };
    retried(290, 2).holds();
    retried(290, 3).breaks(5, "without a fault");
    retried(290, 3).fault(200, 280).holds();
    // The same of a first attempt.
    let sent = |attempt| {
        let first = handed(story(), -10).delivered(1, 1, EPOCH + 1, attempt);
        first.settled(1, 2, EPOCH + 1, attempt, Handled::Ok)
    };
    sent(1).holds();
    sent(2).breaks(5, "its first delivery is attempt 2");
    sent(2).fault(0, 9).holds();
    // Something that was planned is no fault.
    let mut planned = sent(2).fault(0, 9);
    planned.history.faults[0].excuse = Excuse::Nothing;
    planned.breaks(5, "its first delivery is attempt 2");
}

#[test]
fn invariant_6_cancelled_means_never() {
    Story::default().timer(1).cancelled(1, -10, Said::Done).ok(1).breaks(6, "cancelled at");
    Story::default()
        .timer(1)
        .delivered(1, 1, EPOCH, 1)
        .cancelled(1, 10, Said::TooLate)
        .delivered(1, 11_000, EPOCH, 2)
        .settled(1, 11_001, EPOCH, 2, Handled::Ok)
        .breaks(6, "did not stop attempt 2");
    // A handler had it: what follows at once is seen as well.
    let stopped = |cancelled, asked_again| {
        let story =
            Story::default().timer(1).delivered(1, 1, EPOCH, 1).cancelled(1, cancelled, Said::TooLate);
        let story = story.settled(1, asked_again, EPOCH, 1, Handled::Retry);
        story.delivered(1, 400, EPOCH, 2).settled(1, 401, EPOCH, 2, Handled::Ok)
    };
    stopped(10, 100).breaks(6, "a cancel during attempt 1");
    stopped(10, 100).fault(50, 90).holds();
    // It had asked for a retry before, and that may have been under way.
    stopped(110, 100).holds();
}

#[test]
fn after_too_late_no_new_attempt_begins() {
    let hop = HOP_MS as i64;
    for mode in [Mode::AtLeastOnce, Mode::AtMostOnce] {
        let sent = |after: i64| {
            let plan = Plan { mode, ..Plan::new(1, &dest(), DUE, 3, TIMEOUT) };
            let story = Story::default().planned(plan, stored(1)).cancelled(1, 10, Said::TooLate);
            story.delivered(1, after, EPOCH, 1).settled(1, after as u64 + 1, EPOCH, 1, Handled::Ok)
        };
        // What was under way may be recorded later.
        sent(10 + hop).holds();
        sent(11 + hop).breaks(6, "did not stop attempt 1");
        sent(11 + hop).fault(5, 20).breaks(6, "did not stop attempt 1");
        sent(11 + hop).delay(5, 20).holds();
        sent(9_000).replayed(1, 8_000, Said::Done).holds();
        sent(9_000).replayed(1, 8_000, Said::NotFound).breaks(6, "did not stop attempt 1");
    }
}

#[test]
fn a_late_cancel_ends_the_timer_once_no_handler_has_it() {
    let retrying = TimerState::Retrying { fire: Time::from_ms(DUE + 3_600_000), tier: 1 };
    let found = |after: u64, state| {
        let story = Story::default().timer(1).delivered(1, 1, EPOCH, 1);
        let story = story.cancelled(1, 10, Said::TooLate).settled(1, 11, EPOCH, 1, Handled::Retry);
        story.event(1, Event::Looked { at: DUE + 10 + after, state })
    };
    let stopped = |story: Story| story.dead(1, DeadReason::Stopped, 1, Some("no"));
    stopped(found(HOP_MS + 1, retrying)).breaks(6, "did not end it");
    stopped(found(HOP_MS + 1, TimerState::Parked)).fault(0, 9).breaks(6, "did not end it");
    // A new owner ends it in its own time.
    stopped(found(HOP_MS + 1, TimerState::Parked)).fault(12, 90).holds();
    stopped(found(HOP_MS, retrying)).holds();
    stopped(found(HOP_MS + 1, TimerState::Dead)).holds();
    stopped(found(HOP_MS + 1, retrying).replayed(1, 900, Said::Done)).holds();
}

#[test]
fn what_was_replaced_is_never_sent() {
    for mode in [Mode::AtLeastOnce, Mode::AtMostOnce] {
        let keyed = |serial| Plan {
            key: Some(Key::new("k").unwrap()),
            replaces: true,
            mode,
            ..Plan::new(serial, &dest(), DUE, 3, TIMEOUT)
        };
        // The replacing schedule is answered at `DUE - 100`.
        let sent = |after: i64| {
            let said = Said::Stored { id: Some(id(2)), replaced: Some(Some(id(1))) };
            let story = Story::default().planned(keyed(1), stored(1)).planned(keyed(2), said).ok(2);
            story.delivered(1, after, EPOCH, 1)
        };
        sent(HOP_MS as i64 - 100).holds();
        sent(HOP_MS as i64 - 99).breaks(6, "replaced at");
        sent(HOP_MS as i64 - 99).fault(0, 9).breaks(6, "replaced at");
        sent(9_000).delay(10, 90).holds();
    }
}

#[test]
fn invariant_7_moved_means_not_at_the_old_time() {
    Story::default().timer(1).moved(1, -10, DUE + 500, Said::Done).ok(1).breaks(7, "moved to");
    // Of two answered moves the later one counts.
    Story::default()
        .timer(1)
        .moved(1, -50, DUE + 200, Said::Done)
        .moved(1, -10, DUE + 300, Said::Done)
        .delivered_for(1, DUE + 200, 201, EPOCH, 1)
        .settled(1, 202, EPOCH, 1, Handled::Ok)
        .breaks(7, "moved to");
}

#[test]
fn invariant_8_dead_letters_are_complete() {
    let failed =
        || Story::default().timer(1).delivered(1, 1, EPOCH, 1).settled(1, 2, EPOCH, 1, Handled::Fail);
    failed().dead(1, DeadReason::Failed, 1, Some("no")).holds();
    failed().dead(1, DeadReason::Failed, 1, None).breaks(8, "error None");
    failed().dead(1, DeadReason::Failed, 0, Some("no")).breaks(8, "0 attempts");
    failed().dead(1, DeadReason::Exhausted, 1, Some("no")).breaks(8, "1 of 3 attempts");
    failed().dead(1, DeadReason::AtMostOnce, 1, Some("no")).breaks(8, "does not fit");
    failed().dead(1, DeadReason::Stopped, 1, Some("no")).breaks(8, "does not fit");
    let other =
        Left::Dead { reason: DeadReason::Failed, attempts: 1, last_error: Some("no".into()), intact: false };
    failed().left(1, other).breaks(8, "another content");
}

#[test]
fn invariant_9_everything_fires_in_time() {
    let limited = |mut story: Story| {
        story.history.limits.liveness_ms = Some(5_000);
        story
    };
    let late = |after| {
        Story::default().timer(1).delivered(1, after, EPOCH, 1).settled(
            1,
            after as u64 + 1,
            EPOCH,
            1,
            Handled::Ok,
        )
    };
    limited(late(5_000)).holds();
    limited(late(5_001)).breaks(9, "5001 ms after");
    // A fault is waited for, and no more than that.
    limited(late(12_000).fault(100, 9_000)).holds();
    limited(late(12_000).fault(100, 6_000)).breaks(9, "6000 ms after");
    // One fault after the other is waited for; not one that came when it should have fired long
    // since, nor what was planned.
    limited(late(20_000).fault(100, 6_000).fault(8_000, 16_000)).holds();
    limited(late(12_000).fault(5_500, 11_000)).breaks(9, "12000 ms after");
    let mut planned = late(12_000).fault(100, 9_000);
    planned.history.faults[0].excuse = Excuse::Nothing;
    limited(planned).breaks(9, "12000 ms after");
}

#[test]
fn invariant_10_epochs_rise_and_nobody_goes_back() {
    let acquired = |partition, epoch| Note::Acquired { partition, epoch };
    let story = || Story::default().timer(1).ok(1).logged("a", -90, acquired(0, EPOCH));
    story().logged("b", 500, acquired(0, EPOCH + 1)).logged("b", 600, acquired(1, EPOCH)).holds();
    story().logged("b", 500, acquired(0, EPOCH)).breaks(10, "was given to a and to b");
    story().logged("a", 500, acquired(0, EPOCH - 1)).breaks(10, "under epoch 6, after a");
    story().logged("b", 20_000, acquired(0, EPOCH - 1)).breaks(10, "under epoch 6, after a");
    // A line of another broker may come late, and very late if something held it up.
    story().logged("b", 500, acquired(0, EPOCH - 1)).holds();
    story().fault(15_000, 16_000).logged("b", 20_000, acquired(0, EPOCH - 1)).holds();
    // Delivered under an epoch that nobody has, or that the client knows to be over.
    Story::default().timer(1).ok(1).logged("a", -90, acquired(0, 5)).breaks(10, "which nobody acquired");
    let two = |first, second| {
        Story::default()
            .timer(1)
            .timer(2)
            .delivered(1, 1, first, 1)
            .settled(1, 2, first, 1, Handled::Ok)
            .delivered(2, 5, second, 1)
            .settled(2, 6, second, 1, Handled::Ok)
    };
    two(EPOCH, EPOCH + 1).holds();
    two(EPOCH + 1, EPOCH).breaks(10, "which knew 8");
    // A term has one leader, and a broker never goes back.
    let topology =
        |term, version, leader: &str| Note::Topology { term, version, leader: leader.into(), brokers: 2 };
    let led = || Story::default().timer(1).ok(1).logged("a", 0, topology(2, 5, "a"));
    led().logged("b", 1, topology(2, 5, "a")).logged("a", 9, topology(3, 1, "b")).holds();
    led().logged("b", 1, topology(2, 6, "b")).breaks(10, "term 2 is a's and b's");
    led().logged("a", 9, topology(2, 4, "a")).breaks(10, "went back");
}

#[test]
fn invariant_11_nobody_starves() {
    let story = |others: u64| {
        let other = Destination::new("g", "other").unwrap();
        let mut story = Story::default().timer(1);
        story = story.delivered(1, 9_000, EPOCH, 1).settled(1, 9_001, EPOCH, 1, Handled::Ok);
        for serial in 2..2 + others {
            let due = DUE + serial;
            story = story.planned(Plan::new(serial, &other, due, 3, TIMEOUT), stored(serial));
            story =
                story.delivered_for(serial, due, 500, EPOCH, 1).settled(serial, 501, EPOCH, 1, Handled::Ok);
        }
        story.history.limits.starving_ms = Some(5_000);
        story
    };
    story(10).holds();
    story(60).breaks(11, "60 later ones of others did not");
    // What was disturbed does not count. A destination without credit is no excuse: no load leaves
    // one without it for so long.
    story(60).fault(0, 100).holds();
    let mut crowded = story(60);
    crowded.history.plans.get_mut(&1).unwrap().crowded = true;
    crowded.breaks(11, "60 later ones of others did not");
}

#[test]
fn invariant_12_clocks_that_jump_change_nothing() {
    let early = || Story::default().timer(1).delivered(1, -1, EPOCH, 1).settled(1, 9, EPOCH, 1, Handled::Ok);
    let jumped = |mut story: Story, at| {
        story.history.jumps.push(at);
        story.history.limits.liveness_ms = Some(5_000);
        story
    };
    jumped(early(), DUE - 50).breaks(12, "1 ms before");
    let late =
        Story::default().timer(1).delivered(1, 9_000, EPOCH, 1).settled(1, 9_001, EPOCH, 1, Handled::Ok);
    jumped(late, DUE + 50).breaks(12, "9000 ms after");
    jumped(early(), DUE + 900_000).breaks(3, "1 ms before");
    jumped(Story::default().timer(1).ok(1), DUE).holds();
}

#[test]
fn a_planned_change_excuses_nothing_and_a_loss_explains_what_it_touched() {
    let twice = |excuse| {
        let mut story = Story::default().timer(1).ok(1).fault(3, 9).delivered(1, 20, EPOCH + 1, 2);
        story = story.settled(1, 21, EPOCH + 1, 2, Handled::Ok);
        story.history.faults[0].excuse = excuse;
        story
    };
    twice(Excuse::Duplicates).holds();
    twice(Excuse::Nothing).breaks(5, "");
    // A schedule that was answered just before a failover may be lost; one long before may not.
    let lost = |from: u64| {
        let mut story = Story::default().timer(1).fault(from, from + 500);
        story.history.faults[0].excuse = Excuse::Losses;
        judge(&story.history, &story.end)
    };
    let verdict = lost(200);
    assert_eq!((verdict.violations.len(), verdict.losses.len()), (0, 1), "{verdict:?}");
    let verdict = lost(5_000);
    assert_eq!((verdict.violations.len(), verdict.losses.len()), (1, 0), "{verdict:?}");
    // What no lost write can bring about stays a violation.
    let mut early = Story::default().timer(1).delivered(1, -1, EPOCH, 1).fault(0, 500);
    early = early.settled(1, 0, EPOCH, 1, Handled::Ok);
    early.history.faults[0].excuse = Excuse::Losses;
    early.breaks(3, "1 ms before");
}

#[test]
fn invariant_13_nothing_is_left() {
    let leaky = |change: fn(&mut Final)| {
        let mut story = Story::default().timer(1).ok(1);
        change(&mut story.end);
        story
    };
    leaky(|end| end.status.pending = 1).breaks(13, "1 pending");
    leaky(|end| end.status.retrying = 1).breaks(13, "1 retrying");
    leaky(|end| end.status.parked = 1).breaks(13, "1 parked");
    leaky(|end| end.status.residue = 2).breaks(13, "2 index entries");
    leaky(|end| end.status.keys = 1).breaks(13, "1 keys");
    leaky(|end| end.leaks.push("the key x is left".into())).breaks(13, "the key x");
}

#[test]
fn a_violation_names_the_timer_and_tells_its_story() {
    let story = Story::default().timer(41).timer(42).ok(41).fault(3, 9);
    let found = check(&story.history, &story.end);
    let [one] = &found[..] else { panic!("{found:?}") };
    let text = one.to_string();
    assert!(
        text.contains("timer 42") && text.contains("schedule, asked at") && text.contains("killed"),
        "{text}"
    );
    assert!(!text.contains("timer 41"), "{text}");
}
