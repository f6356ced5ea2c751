//! The invariants, by number.

use mtimer_client::{DeadReason, Destination, TimerState};
use mtimer_tests::{Event, Excuse, Final, Handled, Left, Note, Plan, Said};

use crate::story::{DUE, EPOCH, Story, TIMEOUT, dest, id, stored};

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
    let other = Event::Delivered {
        at: DUE,
        received: DUE,
        client_clock: DUE,
        client: 0,
        id: id(1),
        epoch: EPOCH,
        attempt: 1,
        due: DUE,
        intact: false,
    };
    Story::default()
        .timer(1)
        .event(1, other)
        .settled(1, 1, EPOCH, 1, Handled::Ok)
        .breaks(2, "another content");
    let other = Event::Delivered {
        at: DUE + 900,
        received: DUE + 900,
        client_clock: DUE + 900,
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
    // By the host's clock it came in time, and its handler reads what the client says.
    let told = |received, client_clock| {
        let delivered = Event::Delivered {
            at: DUE + 1,
            received,
            client_clock,
            client: 0,
            id: id(1),
            epoch: EPOCH,
            attempt: 1,
            due: DUE,
            intact: true,
        };
        Story::default().timer(1).event(1, delivered).settled(1, 2, EPOCH, 1, Handled::Ok)
    };
    told(DUE, DUE).holds();
    told(DUE - 1, DUE).breaks(3, "received 1 ms before its due time, as the callback says");
    // What the callback says is never below its due time; the clock that a handler asks may be.
    told(DUE, DUE - 2).breaks(3, "its handler began 2 ms before its due time by the client's clock");
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
                received: DUE + 20,
                client_clock: DUE + 20,
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
