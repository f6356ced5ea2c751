//! What a good history may have, and what follows from cancels, replays, handovers and deadlines.

use mtimer_client::{DeadReason, Ended, Key, Mode, Time, TimerState};
use mtimer_tests::{ClockReading, Event, Excuse, HOP_MS, Handled, Left, Note, Plan, Said, check, judge};

use crate::story::{DUE, EPOCH, Story, TIMEOUT, dest, id, stored};

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

/// Only the owner that took an acknowledgement remembers it.
#[test]
fn a_repeat_of_an_unanswered_schedule_may_make_an_acknowledged_timer_anew_for_another_owner() {
    let story = |stored_after, mode, outcome| {
        let plan = Plan { mode, ..Plan::new(1, &dest(), DUE, 3, TIMEOUT) };
        let story = Story::default()
            .event(1, Event::Schedule { asked: DUE - 110, answered: DUE + stored_after, said: stored(1) });
        let Story { mut history, end } = story;
        history.plans.insert(1, plan);
        Story { history, end }.delivered(1, 1, EPOCH, 1).settled(1, 2, EPOCH, 1, outcome)
    };
    let (alo, ok) = (Mode::AtLeastOnce, Handled::Ok);
    let cancelled = |story: Story| story.cancelled(1, 50, Said::Done);
    let moved = |story: Story| story.moved(1, 50, DUE + 90, Said::Done);
    let again = |story: Story| story.delivered_for(1, DUE + 90, 91, EPOCH + 1, 1);
    let again = |story: Story| again(story).settled(1, 92, EPOCH + 1, 1, ok);
    cancelled(story(60, alo, ok).fault(9, 20)).holds();
    again(moved(story(60, alo, ok).fault(9, 20))).holds();
    // Not by the same owner, nor once the schedule was answered, nor unless it was acknowledged.
    cancelled(story(60, alo, ok)).breaks(6, "cancelled at");
    moved(story(60, alo, ok)).breaks(7, "moved to");
    cancelled(story(1, alo, ok).fault(9, 20)).breaks(6, "cancelled at");
    cancelled(story(60, alo, Handled::Retry).fault(9, 20)).breaks(6, "cancelled at");
    cancelled(story(60, Mode::AtMostOnce, ok).fault(9, 20)).breaks(6, "cancelled at");
    // Nor for a delivery after the fault: it is of the timer that was made anew.
    let second = story(60, alo, ok).fault(9, 20).delivered(1, 30, EPOCH + 1, 2);
    cancelled(second.settled(1, 31, EPOCH + 1, 2, ok)).breaks(6, "cancelled at");
    // And what is cancelled is not sent any more, made anew or not.
    let late = cancelled(story(60, alo, ok).fault(9, 20)).delivered(1, 51, EPOCH + 1, 2);
    late.settled(1, 52, EPOCH + 1, 2, ok).breaks(6, "cancelled at");
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
