//! What stories tell: attempts, why they were late, and what a timer waits for.

use mtimer_protocol::{Query, QueryAnswer, ServerMessage, TimerState, TimerStory, TimerView};
use mtimer_types::{AttemptEnd, LateCause};

use super::*;

impl Rig {
    fn story(&mut self, id: TimerId) -> TimerStory {
        self.session(1, SessionEvent::Query { corr: 1, query: Query::Story(Target::Id(id)) });
        self.turn();
        let at = self.sent.iter().position(|(_, m)| matches!(m, ServerMessage::Answer { .. })).unwrap();
        match self.sent.remove(at).1 {
            ServerMessage::Answer { answer: QueryAnswer::Story(Some(story)), .. } => *story,
            other => panic!("{other:?}"),
        }
    }

    /// A client with a long name, of which 7 is the first half.
    fn join_named(&mut self) {
        self.session(1, SessionEvent::Opened { client: 7 << 64 | 1 });
        self.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 10 });
    }

    /// The handler asks for another attempt, 60 s from now.
    fn retry(&mut self, d: &Delivery) {
        self.settle(1, d, HandlerOutcome::Retry { after_ms: Some(60_000), error: "no".into() });
        self.run(2);
    }

    /// How late its only attempt was, and why.
    fn lateness(&mut self, id: TimerId) -> (u32, Option<LateCause>) {
        let attempt = self.story(id).attempts[0].attempt;
        (attempt.late_ms, attempt.late_by)
    }
}

#[test]
fn each_attempt_is_told_as_it_ended() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join_named();
    let timer = rig.timer("a", 0);
    let d = rig.deliver(1, timer.clone());
    let due = timer.due;
    let under_way = rig.story(timer.id).under_way.unwrap();
    assert_eq!((under_way.number, under_way.client, under_way.late_by), (1, 7, None));
    let sent = under_way.sent.unwrap();
    assert!(sent >= due && sent <= due + 2, "{sent}");
    rig.settle(1, &d, HandlerOutcome::Retry { after_ms: Some(100), error: "no".into() });
    let ended = rig.now().time;
    // The second one is not answered, the third one is lost with its client.
    rig.run(100 + 500 + 50);
    let story = rig.story(timer.id);
    let first = &story.attempts[0];
    assert_eq!((first.attempt, first.ended), (under_way, ended));
    assert_eq!((first.end, &*first.error), (AttemptEnd::Retry, "no"));
    let second = &story.attempts[1];
    assert_eq!((second.attempt.number, second.end, &*second.error), (2, AttemptEnd::TimedOut, ""));
    let took = second.ended.ms_since(second.attempt.sent.unwrap());
    assert!((500..=510).contains(&took), "{took}");
    assert_eq!((story.under_way, story.waits_for), (None, None));
    rig.run(100);
    assert_eq!(rig.story(timer.id).under_way.unwrap().number, 3);
    rig.session(1, SessionEvent::Closed);
    rig.join(1, "a", 10);
    rig.run(5);
    let story = rig.story(timer.id);
    let ends: Vec<_> = story.attempts.iter().map(|failed| (failed.attempt.number, failed.end)).collect();
    let lost = (3, AttemptEnd::ConnectionLost);
    assert_eq!(ends, [(1, AttemptEnd::Retry), (2, AttemptEnd::TimedOut), lost]);
    assert_eq!((story.view.state, story.lost().count()), (TimerState::Dead, 0));
}

#[test]
fn a_final_failure_and_an_unconfirmed_attempt_are_told() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let failed = rig.timer("a", 0);
    let d = rig.deliver(1, failed.clone());
    rig.settle(1, &d, HandlerOutcome::Fail { error: "never".into() });
    let once = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 0) };
    rig.deliver(1, once.clone());
    rig.run(600);
    let end = |rig: &mut Rig, id| {
        let story = rig.story(id);
        let [failed] = &story.attempts[..] else { panic!("{story:?}") };
        (story.view.state, failed.attempt.number, failed.end, failed.error.to_string())
    };
    assert_eq!(end(&mut rig, failed.id), (TimerState::Dead, 1, AttemptEnd::Fail, "never".to_owned()));
    let unconfirmed = (TimerState::Unconfirmed, 1, AttemptEnd::TimedOut, String::new());
    assert_eq!(end(&mut rig, once.id), unconfirmed);
}

#[test]
fn an_attempt_is_told_though_the_store_refuses_at_first() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = rig.timer("a", 0);
    let d = rig.deliver(1, timer.clone());
    rig.read_only = true;
    rig.retry(&d);
    assert_eq!(rig.story(timer.id).settling, Some(1));
    rig.read_only = false;
    rig.run(2_000);
    let story = rig.story(timer.id);
    assert_eq!((story.view.failed, story.attempts.len(), story.settling), (1, 1, None));
}

#[test]
fn what_a_former_owner_may_have_sent_is_told_before_it_is_read() {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.join(1, "a", 10);
    let (timer, once) = (rig.timer("a", 1), Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 1) });
    rig.schedule(1, once.clone());
    rig.deliver(1, timer.clone());
    let mut next = Rig::acquired(store, 2, rig.ms + 10, EngineOptions::default());
    next.session(1, SessionEvent::Opened { client: 1 });
    for id in [timer.id, once.id] {
        let (record, place) = next.lane.get(Target::Id(id)).now_or_never().unwrap().unwrap().unwrap();
        let view = TimerView::new((*record.timer).clone(), TimerState::Parked);
        let story = next.engine.story(next.now(), &record, place, view);
        assert_eq!((story.lost().collect::<Vec<_>>(), story.waits_for), (vec![1], Some(LateCause::Takeover)));
    }
}

#[test]
fn what_waits_for_credit_says_so() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let (first, second) = (rig.timer("a", 0), rig.timer("a", 1));
    let d = rig.deliver(1, first);
    rig.schedule(1, second.clone());
    rig.run(100);
    assert_eq!(rig.story(second.id).waits_for, Some(LateCause::Credit));
    rig.settle(1, &d, HandlerOutcome::Ok);
    rig.run(2);
    let d = rig.take_deliveries().remove(0).1;
    rig.retry(&d);
    let (late_ms, cause) = rig.lateness(second.id);
    assert!((100..110).contains(&late_ms) && cause == Some(LateCause::Credit), "{late_ms} {cause:?}");
}

#[test]
fn what_was_parked_says_so() {
    let mut rig = Rig::new(EngineOptions::default());
    let timer = rig.timer("a", 1);
    rig.session(1, SessionEvent::Opened { client: 1 });
    rig.schedule(1, timer.clone());
    rig.run(5_000);
    let story = rig.story(timer.id);
    assert_eq!((story.view.state, story.waits_for), (TimerState::Parked, Some(LateCause::Parked)));
    rig.join(2, "a", 1);
    rig.run(5);
    let d = rig.take_deliveries().remove(0).1;
    rig.settle(2, &d, HandlerOutcome::Retry { after_ms: Some(60_000), error: "no".into() });
    rig.run(2);
    let (late_ms, cause) = rig.lateness(timer.id);
    assert!(late_ms >= 5_000 && cause == Some(LateCause::Parked), "{late_ms} {cause:?}");
}

#[test]
fn what_waits_for_a_claim_or_for_a_store_that_is_away_says_so() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let (soon, later) = (rig.timer("a", 400), rig.timer("a", 3_000));
    [&soon, &later].into_iter().for_each(|timer| rig.schedule(1, timer.clone()));
    rig.run(5);
    rig.answers_wait = true;
    // The fence closes before the second one is due.
    rig.run(3_100);
    rig.answers_wait = false;
    rig.run(5);
    for (_, d) in rig.take_deliveries() {
        rig.retry(&d);
    }
    assert_eq!(rig.lateness(soon.id).1, Some(LateCause::Claim));
    assert_eq!(rig.lateness(later.id).1, Some(LateCause::Store));
}

#[test]
fn what_comes_due_while_nobody_owns_it_is_late_by_a_takeover() {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.join(1, "a", 10);
    let (idle, sent) = (rig.timer("a", 1_000), rig.timer("a", 1));
    rig.schedule(1, idle.clone());
    rig.deliver(1, sent.clone());
    // It is killed; the next one comes 5 s later.
    let mut next = Rig::acquired(store, 2, rig.ms + 5_000, EngineOptions::default());
    next.join(1, "a", 10);
    next.run(5);
    for (_, d) in next.take_deliveries() {
        next.retry(&d);
    }
    let (late_ms, cause) = next.lateness(idle.id);
    assert!((4_000..4_100).contains(&late_ms) && cause == Some(LateCause::Takeover), "{late_ms} {cause:?}");
    let story = next.story(sent.id);
    assert_eq!((story.attempts[0].attempt.number, story.lost().collect::<Vec<_>>()), (2, vec![1]));
    assert_eq!(story.attempts[0].attempt.late_by, Some(LateCause::Takeover));
}

#[test]
fn an_edit_before_its_time_does_not_make_a_timer_late() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let (first, second) = (rig.timer("a", 0), rig.timer("a", 200));
    rig.schedule(1, second.clone());
    rig.run(5);
    // Read anew, as after an edit.
    rig.engine.take_out(second.id);
    rig.engine.fetch(second.id);
    rig.deliver(1, first);
    // Its broker stands still.
    rig.ms += 400;
    rig.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 10 });
    rig.run(5);
    let (_, d) = rig.take_deliveries().into_iter().find(|(_, d)| d.id == second.id).unwrap();
    rig.retry(&d);
    assert_eq!(rig.lateness(second.id).1, Some(LateCause::Broker));
}

#[test]
fn an_inherited_delivery_is_told_as_of_a_former_owner() {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.join_named();
    let timer = rig.timer("a", 1);
    let d = rig.deliver(1, timer.clone());
    rig.stop();
    let mut next = Rig::on(store, 2, rig.ms, EngineOptions::default());
    next.join_named();
    next.run(5);
    let under_way = next.story(timer.id).under_way.unwrap();
    assert_eq!((under_way.number, under_way.sent, under_way.client), (1, None, 7));
    next.retry(&d);
    let story = next.story(timer.id);
    assert_eq!((story.attempts[0].attempt, story.attempts[0].end), (under_way, AttemptEnd::Retry));
    assert_eq!(story.lost().count(), 0);
}

#[test]
fn memory_holds_no_stories() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = rig.timer("a", 0);
    let d = rig.deliver(1, timer.clone());
    rig.settle(1, &d, HandlerOutcome::Retry { after_ms: Some(100), error: "no".into() });
    rig.run(150);
    let d = rig.take_deliveries().remove(0).1;
    // Read anew, it comes with what the store has.
    rig.engine.take_out(timer.id);
    rig.engine.fetch(timer.id);
    rig.run(1);
    let entry = rig.engine.partition(P).unwrap().table.get(timer.id).unwrap();
    assert!(entry.record.extensions.story().is_empty() && !entry.record.is_plain());
    assert_eq!((d.attempt, rig.story(timer.id).attempts.len()), (2, 1));
}
