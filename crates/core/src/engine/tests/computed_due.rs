//! Latest, earliest and debounce: what memory adds, and where the timer is afterwards.

use mtimer_protocol::ops::{Schedule, ScheduleReply};
use mtimer_types::Key;

use super::*;

const DEBOUNCE: KeyPolicy = KeyPolicy::Debounce { quiet_ms: 100, max_ms: 250 };

fn keyed(rig: &mut Rig, due_in: u64) -> Timer {
    Timer { key: Key::new("k").ok(), ..rig.timer("a", due_in) }
}

fn ask(rig: &mut Rig, timer: &Timer, policy: KeyPolicy) {
    rig.ask(1, vec![RequestOp::Schedule(Schedule { timer: timer.clone().into(), policy })]);
}

/// When the timer is due, and which it has replaced.
fn schedule(rig: &mut Rig, timer: &Timer, policy: KeyPolicy) -> (Time, Option<TimerId>) {
    rig.take_replies();
    ask(rig, timer, policy);
    rig.run(1);
    match rig.take_replies()[..] {
        [OpReply::Schedule(ScheduleReply::Timed { due, replaced, .. })] => (due, replaced),
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn a_timer_is_sent_at_the_time_that_was_computed() {
    for (policy, asked, at) in
        [(KeyPolicy::Latest, 10, 200), (KeyPolicy::Earliest, 3_600_000, 200), (DEBOUNCE, 3_600_000, 100)]
    {
        let mut rig = Rig::new(EngineOptions::default());
        rig.join(1, "a", 10);
        let (old, next) = (keyed(&mut rig, 200), keyed(&mut rig, asked));
        rig.schedule(1, old.clone());
        rig.run(1);
        let (due, replaced) = schedule(&mut rig, &next, policy);
        assert_eq!(replaced, Some(old.id), "{policy:?}");
        rig.run(at - 10);
        assert_eq!(rig.take_deliveries(), [], "{policy:?}");
        rig.run(20);
        let sent = rig.take_deliveries().into_iter().map(|(_, d)| (d.id, d.due)).collect::<Vec<_>>();
        assert_eq!(sent, [(next.id, due)], "{policy:?}");
    }
}

#[test]
fn a_debounce_of_a_key_without_quiet_is_sent_in_the_end() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let begun = rig.now().time;
    for n in 0..8 {
        let timer = keyed(&mut rig, 100);
        let asked = rig.now().time;
        ask(&mut rig, &timer, DEBOUNCE);
        rig.run(50);
        let sent = rig.take_deliveries();
        let [OpReply::Schedule(ScheduleReply::Timed { due, .. })] = rig.take_replies()[..] else {
            panic!("the {n}th is not answered");
        };
        assert!(due <= begun + 252 && due <= asked + 102, "the {n}th is due at {due}");
        if let [(_, delivery)] = &sent[..] {
            assert_eq!(delivery.id, timer.id, "the newest one");
            return;
        }
    }
    panic!("it was put off again and again");
}

#[test]
fn beside_a_delivery_under_way_a_timer_is_a_first() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let old = keyed(&mut rig, 1);
    let delivery = rig.deliver(1, old.clone());
    let next = keyed(&mut rig, 500);
    assert_eq!(schedule(&mut rig, &next, KeyPolicy::Earliest), (next.due, Some(old.id)));
    // What waits for a retry counts.
    rig.settle(1, &delivery, HandlerOutcome::Ok);
    rig.run(600);
    let [(_, delivery)] = &rig.take_deliveries()[..] else { panic!("one delivery") };
    let retry = HandlerOutcome::Retry { after_ms: Some(1_000), error: String::new() };
    rig.settle(1, delivery, retry);
    rig.run(20);
    let (sooner, now) = (keyed(&mut rig, 10), rig.now().time);
    let (due, _) = schedule(&mut rig, &sooner, KeyPolicy::Latest);
    assert!(due > now + 900 && due < now + 1_200, "{due}");
}

#[test]
fn what_a_former_owner_may_have_sent_is_taken_for_sent_before_it_is_read() {
    let store = MemoryStore::new(1);
    let mut first = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    first.join(1, "a", 10);
    let old = keyed(&mut first, 1);
    first.deliver(1, old.clone());
    first.stop();
    let mut next = Rig::acquired(store, 2, first.ms, EngineOptions::default());
    next.session(1, SessionEvent::Opened { client: 1 });
    let timer = keyed(&mut next, 60_000);
    assert_eq!(schedule(&mut next, &timer, KeyPolicy::Earliest), (timer.due, Some(old.id)));
}

#[test]
fn a_schedule_that_was_not_confirmed_is_sent_at_a_sooner_time_than_asked() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let far = keyed(&mut rig, 3_600_000);
    rig.unconfirmed = true;
    ask(&mut rig, &far, DEBOUNCE);
    rig.run(5);
    assert_eq!(rig.take_replies().iter().map(code).collect::<Vec<_>>(), [Some(ErrorCode::NotReplicated)]);
    // The client asks no more.
    rig.unconfirmed = false;
    rig.run(150);
    assert_eq!(rig.take_deliveries().iter().map(|(_, d)| d.id).collect::<Vec<_>>(), [far.id]);
}

#[test]
fn a_repeat_moves_nothing_wherever_its_timer_is() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = keyed(&mut rig, 3_600_000);
    let (due, replaced) = schedule(&mut rig, &timer, DEBOUNCE);
    assert_eq!(replaced, None);
    rig.run(50);
    assert_eq!(schedule(&mut rig, &timer, DEBOUNCE), (due, None), "it waits");
    rig.run(100);
    assert_eq!(rig.take_deliveries().len(), 1);
    assert_eq!(schedule(&mut rig, &timer, DEBOUNCE), (due, None), "it is in flight");
}

#[test]
fn a_deadline_before_the_computed_time_is_told_and_debounces_have_bounds() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let old = keyed(&mut rig, 1_000);
    rig.schedule(1, old.clone());
    rig.run(1);
    rig.take_replies();
    let timer = keyed(&mut rig, 100);
    ask(&mut rig, &Timer { deadline: Some(timer.due), ..timer.clone() }, KeyPolicy::Latest);
    ask(&mut rig, &timer, KeyPolicy::Debounce { quiet_ms: 0, max_ms: 5 });
    rig.run(1);
    let replies = rig.take_replies();
    assert_eq!(replies.iter().map(code).collect::<Vec<_>>(), [Some(ErrorCode::Invalid); 2], "{replies:?}");
    assert!(replies.iter().any(|reply| format!("{reply:?}").contains("after its deadline")), "{replies:?}");
    rig.run(1_000);
    assert_eq!(rig.take_deliveries().iter().map(|(_, d)| d.id).collect::<Vec<_>>(), [old.id]);
}
