//! Work that can wait goes to the store together: plain acknowledgements and claims.

use super::*;
use crate::engine::deferral::together_by;
use mtimer_protocol::ops::{Cancel, CancelReply, ScheduleReply};

/// A broker that has so many deliveries under way, just behind a time at which everything goes.
fn under_way(count: usize, credit: u32) -> (Rig, Vec<Delivery>) {
    under_way_with(EngineOptions::default(), count, credit)
}

fn under_way_with(options: EngineOptions, count: usize, credit: u32) -> (Rig, Vec<Delivery>) {
    let mut rig = Rig::new(options);
    rig.join(1, "a", credit);
    (0..count).for_each(|_| {
        let t = rig.timer("a", 1);
        rig.schedule(1, t);
    });
    rig.run(5);
    let deliveries = rig.take_deliveries().into_iter().map(|(_, d)| d).collect();
    to_the_beginning(&mut rig);
    (rig, deliveries)
}

/// Just behind a time at which everything goes.
fn to_the_beginning(rig: &mut Rig) {
    rig.run(1 + DEFER_MS - rig.ms % DEFER_MS);
    rig.sent.clear();
}

/// How many outcomes sessions were told to be stored.
fn stored(rig: &mut Rig) -> u32 {
    let accepted = |(_, m): (SessionId, ServerMessage)| match m {
        ServerMessage::Settled { accepted, .. } => accepted,
        _ => 0,
    };
    rig.sent.drain(..).map(accepted).sum()
}

/// The time at which the waiting work goes.
fn common_time(rig: &Rig) -> u64 {
    rig.ms / DEFER_MS * DEFER_MS + DEFER_MS
}

/// Batches that a turn sends now.
fn batches(rig: &mut Rig) -> usize {
    let (mut effects, now) = (Vec::new(), rig.now());
    rig.engine.flush(now, &mut effects);
    let batches = effects.iter().filter(|e| matches!(e, Effect::Call(_, Call::Apply(_)))).count();
    effects.into_iter().for_each(|e| rig.carry_out(e));
    batches
}

#[test]
fn acknowledgements_wait_and_go_together() {
    let (mut rig, d) = under_way(3, 100);
    rig.settle(1, &d[0], HandlerOutcome::Ok);
    rig.run(20);
    rig.settle(1, &d[1], HandlerOutcome::Ok);
    rig.run(17);
    rig.settle(1, &d[2], HandlerOutcome::Ok);
    rig.turn();
    assert_eq!(stored(&mut rig), 0);
    assert_eq!(rig.engine.next_tick(), Some(common_time(&rig)), "it asks to be woken up");
    assert!(rig.place(d[0].id).is_some() && rig.engine.unsettled() == 3);
    rig.ms = common_time(&rig);
    assert_eq!(batches(&mut rig), 1);
    rig.turn();
    assert_eq!(stored(&mut rig), 3);
    assert_eq!((rig.place(d[0].id), rig.engine.unsettled()), (None, 0));
}

#[test]
fn an_acknowledgement_of_an_at_most_once_timer_waits_too() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 100);
    let t = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 1) };
    let d = rig.deliver(1, t);
    to_the_beginning(&mut rig);
    rig.settle(1, &d, HandlerOutcome::Ok);
    assert_eq!(batches(&mut rig), 0);
    rig.ms = common_time(&rig);
    assert_eq!(batches(&mut rig), 1);
    rig.turn();
    assert_eq!((stored(&mut rig), rig.place(d.id)), (1, None));
}

#[test]
fn they_wait_no_longer_when_the_clock_stands_still() {
    let (mut rig, d) = under_way(1, 100);
    let mut at = rig.now();
    rig.settle(1, &d[0], HandlerOutcome::Ok);
    for ms in 0..2 * DEFER_MS {
        at.mono_ms = rig.ms + ms;
        let mut effects = Vec::new();
        rig.engine.flush(at, &mut effects);
        if effects.iter().any(|e| matches!(e, Effect::Call(_, Call::Apply(_)))) {
            assert_eq!(ms, DEFER_MS - 1);
            return;
        }
    }
    panic!("it was never sent");
}

#[test]
fn what_is_no_plain_acknowledgement_goes_at_once_and_takes_them_along() {
    for mode in [Mode::AtLeastOnce, Mode::AtMostOnce] {
        let (mut rig, d) = under_way(1, 100);
        let t = Timer { mode, ..rig.timer("a", 1) };
        let other = rig.deliver(1, t);
        to_the_beginning(&mut rig);
        rig.settle(1, &d[0], HandlerOutcome::Ok);
        rig.turn();
        assert_eq!(stored(&mut rig), 0);
        rig.settle(1, &other, HandlerOutcome::Fail { error: "no".into() });
        assert_eq!(batches(&mut rig), 1);
        rig.turn();
        assert_eq!(stored(&mut rig), 2);
    }
}

#[test]
fn what_clients_ask_for_takes_them_along_and_finds_them_done() {
    let cancel = |d: &Delivery| RequestOp::Cancel(Cancel { target: Target::Id(d.id), request: 1 });
    let (mut rig, d) = under_way(2, 100);
    rig.settle(1, &d[0], HandlerOutcome::Ok);
    rig.run(1);
    rig.ask(1, vec![cancel(&d[0])]);
    assert_eq!(batches(&mut rig), 1);
    rig.turn();
    assert!(
        matches!(rig.take_replies()[..], [OpReply::Cancel(CancelReply::NotFound)]),
        "as if it were on its way"
    );
    assert_eq!(rig.place(d[0].id), None);
    // A question does not overtake them either.
    rig.run(1);
    rig.settle(1, &d[1], HandlerOutcome::Ok);
    rig.turn();
    assert!(rig.place(d[1].id).is_some());
    assert!(is_gone(&mut rig, d[1].id), "{:?}", rig.sent);
}

/// Asks the store for a timer that was acknowledged; whether it is gone.
fn is_gone(rig: &mut Rig, id: TimerId) -> bool {
    rig.session(1, SessionEvent::Query { corr: 7, query: Query::Get(Target::Id(id)) });
    rig.turn();
    rig.sent
        .iter()
        .any(|(_, m)| matches!(m, ServerMessage::Answer { corr: 7, answer: QueryAnswer::Timer(None) }))
}

#[test]
fn a_question_does_not_overtake_them_when_others_have_joined_them() {
    let (mut rig, d) = under_way(1, 100);
    rig.settle(1, &d[0], HandlerOutcome::Ok);
    rig.run(1);
    assert!(rig.place(d[0].id).is_some());
    let timer = rig.timer("a", 60_000);
    rig.schedule(1, timer);
    assert!(is_gone(&mut rig, d[0].id), "{:?}", rig.sent);
    assert_eq!(
        rig.take_replies(),
        [OpReply::Schedule(ScheduleReply::Scheduled { new: true, replaced: None })]
    );
}

#[test]
fn a_question_that_sends_them_brings_nothing_back() {
    let (mut rig, d) = overtaken_repeat(EngineOptions::default());
    rig.turn();
    rig.engine.partition(P).unwrap().calls.release_batches();
    assert!(is_gone(&mut rig, d.id), "{:?}", rig.sent);
    assert_eq!(
        rig.take_replies(),
        [OpReply::Schedule(ScheduleReply::Scheduled { new: false, replaced: None })]
    );
    rig.run(100);
    assert_eq!(rig.take_deliveries(), []);
    assert_eq!(rig.place(d.id), None);
}

#[test]
fn credit_that_is_short_or_waited_for_is_given_back_at_once() {
    // Half of the credit is in use.
    let (mut rig, d) = under_way(3, 5);
    rig.settle(1, &d[0], HandlerOutcome::Ok);
    rig.turn();
    assert_eq!(stored(&mut rig), 1);
    rig.settle(1, &d[1], HandlerOutcome::Ok);
    rig.turn();
    assert_eq!(stored(&mut rig), 0, "two of five");
    rig.run(DEFER_MS);
    rig.sent.clear();
    // More become due than there is credit for: the credit that the store holds is asked for with
    // that turn.
    let due_in = 2 * DEFER_MS - 6 - rig.ms % DEFER_MS;
    for _ in 0..5 {
        let t = rig.timer("a", due_in);
        rig.schedule(1, t);
    }
    rig.run(due_in - 1);
    rig.settle(1, &d[2], HandlerOutcome::Ok);
    rig.turn();
    assert!(rig.take_deliveries().is_empty() && stored(&mut rig) == 0);
    rig.ms += 1;
    rig.turn();
    assert_eq!((rig.take_deliveries().len(), stored(&mut rig)), (5, 1));
    assert_ne!(rig.ms % DEFER_MS, 0);
}

#[test]
fn a_full_batch_goes_at_once() {
    let (mut rig, d) = under_way_with(EngineOptions { batch_ops: 4, ..EngineOptions::default() }, 4, 100);
    d[..3].iter().for_each(|d| rig.settle(1, d, HandlerOutcome::Ok));
    assert_eq!(batches(&mut rig), 0);
    rig.settle(1, &d[3], HandlerOutcome::Ok);
    assert_eq!(batches(&mut rig), 1);
}

#[test]
fn they_go_at_once_when_the_broker_drains_or_gives_the_partition_up() {
    for leave in [|| Input::Drain, || Input::Disown(P), || Input::Release] {
        let (mut rig, d) = under_way(1, 100);
        rig.settle(1, &d[0], HandlerOutcome::Ok);
        rig.turn();
        assert_eq!(stored(&mut rig), 0);
        let now = rig.now();
        rig.engine.handle(now, leave());
        rig.turn();
        assert_eq!(stored(&mut rig), 1);
        assert_eq!(rig.engine.unsettled(), 0);
    }
}

#[test]
fn claims_are_asked_for_at_the_same_times_and_never_later_than_before() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 100);
    to_the_beginning(&mut rig);
    for due_in in [20, 27, 33, 44, 148, 203] {
        let t = rig.timer("a", due_in);
        let fire = t.due;
        let at = rig.now().time;
        rig.schedule(1, t);
        let mut alarms = Vec::new();
        while rig.now().time < fire {
            let (mut effects, now) = (Vec::new(), rig.now());
            rig.engine.flush(now, &mut effects);
            for effect in effects {
                match effect {
                    Effect::Alarm(at) => alarms.push(at),
                    effect => rig.carry_out(effect),
                }
            }
            // Only the inputs that the engine asks for: answers, alarms and its ticks.
            let answered = rig.unanswered.front_mut().and_then(FutureExt::now_or_never);
            if let Some(answer) = answered {
                rig.unanswered.pop_front();
                let (epoch, now) = (rig.lane.epoch(), rig.now());
                rig.engine.handle(now, Input::Answered { partition: P, epoch, answer });
                continue;
            }
            let ms = rig.engine.next_tick().unwrap_or(u64::MAX).max(rig.ms + 1);
            let alarm = alarms.iter().map(|a| a.as_ms() - START).filter(|a| *a > rig.ms).min();
            let next = ms.min(alarm.unwrap_or(u64::MAX));
            let asked = rig.engine.partition(P).unwrap().claims.asked();
            let lead = rig.engine.partition(P).unwrap().claims.lead();
            assert!(next <= fire.as_ms() - START, "it wakes up for it");
            assert!(asked >= fire || rig.now().time + lead < fire, "{due_in}: asked for in time");
            rig.ms = next;
        }
        let first = alarms.iter().min().copied().unwrap();
        assert!(first.as_ms() % 10 == 0 || first < at + 10, "{due_in}: {first:?}");
        rig.run(200);
    }
}

#[test]
fn a_claim_is_stored_in_time_although_a_batch_is_under_way() {
    const ANSWER_MS: u64 = 80;
    // The batch leaves just before the claim would be asked for if it were answered in that time,
    // and in twice that.
    for before in [ANSWER_MS + 35, 2 * ANSWER_MS + 35] {
        let mut rig = Rig::new(EngineOptions::default());
        rig.join(1, "a", 10);
        rig.run(100);
        let wait_for_answers = |rig: &mut Rig| {
            rig.answers_wait = true;
            rig.run(ANSWER_MS);
            rig.hear_answers();
            rig.turn();
        };
        let timer = rig.timer("a", 1_000);
        let due = timer.due;
        rig.schedule(1, timer);
        wait_for_answers(&mut rig);
        rig.answers_wait = false;
        rig.run(due.ms_since(rig.now().time) - before);
        let other = rig.timer("a", 60_000);
        rig.schedule(1, other);
        (0..before / ANSWER_MS).for_each(|_| wait_for_answers(&mut rig));
        rig.run(due.ms_since(rig.now().time) + 2);
        assert_eq!(rig.take_deliveries().len(), 1, "{before} ms before");
    }
}

#[test]
fn acknowledgements_that_go_early_keep_the_bound_on_batches() {
    let (mut rig, d) = under_way(1, 100);
    rig.settle(1, &d[0], HandlerOutcome::Ok);
    let now = rig.now();
    let p = rig.engine.partition(P).unwrap();
    assert!(p.queue.has_deferrable());
    p.calls.hold_batches();
    rig.engine.flush_deferred(now, P);
    assert!(!rig.engine.effects.iter().any(|e| matches!(e, Effect::Call(_, Call::Apply(_)))));
}

#[test]
fn acknowledgements_that_a_batch_under_way_held_back_wait_no_longer_than_for_it() {
    let (mut rig, d) = under_way(1, 100);
    rig.settle(1, &d[0], HandlerOutcome::Ok);
    rig.engine.partition(P).unwrap().calls.hold_batches();
    // The common time passes.
    rig.run(DEFER_MS + 2);
    rig.engine.partition(P).unwrap().calls.release_batches();
    assert_ne!(rig.ms % DEFER_MS, 0);
    assert_eq!(batches(&mut rig), 1);
}

#[test]
fn what_must_go_by_a_time_goes_at_the_common_time_before_it_if_that_is_to_come() {
    let by = |now, at| together_by(Time::from_ms(now), Time::from_ms(at)).as_ms();
    assert_eq!([by(19, 25), by(20, 25), by(21, 25), by(20, 30)], [20, 25, 25, 30]);
}
