//! What handlers put off: when it comes back, what that uses up, and what it becomes in the end.

use mtimer_protocol::ops::{Cancel, CancelReply};
use mtimer_store::Record;
use mtimer_types::{DeadReason, Postponed, limits::MAX_LATER_IN_A_ROW};

use super::*;

const HOUR: u32 = 3_600_000;

impl Rig {
    fn later(&mut self, d: &Delivery, after_ms: u32) {
        self.settle(1, d, HandlerOutcome::Later { after_ms });
        self.run(2);
    }

    fn stored(&self, id: TimerId) -> (Record, Place) {
        self.lane.get(Target::Id(id)).now_or_never().unwrap().unwrap().unwrap()
    }

    /// Why a timer is dead, and its last error.
    fn dead(&self, id: TimerId) -> (DeadReason, String) {
        let (record, place) = self.stored(id);
        assert_eq!(place, Place::Dead);
        let died = self.died.iter().rfind(|died| died.id == id).unwrap();
        (died.reason, record.progress.last_error.map(Into::into).unwrap_or_default())
    }

    fn progress(&self, id: TimerId) -> (u32, u32, Postponed) {
        let record = self.stored(id).0;
        (record.progress.failed, record.progress.budget_from, record.extensions.postponed())
    }
}

#[test]
fn what_is_put_off_comes_back_then_with_all_its_retries() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let timer = Timer { retry: Some(RetryTiers(vec![10])), ..rig.timer("a", 0) };
    let mut d = rig.deliver(1, timer.clone());
    for n in 1..=3 {
        let settled = rig.now().time;
        rig.later(&d, 1_000);
        assert_eq!(rig.progress(timer.id), (n, n, Postponed { in_a_row: n, last: n }));
        assert_eq!(rig.engine.unsettled(), 0, "it holds nothing");
        rig.run(900);
        assert!(rig.take_deliveries().is_empty());
        rig.run(110);
        assert!(rig.now().time >= settled + 1_000);
        d = rig.take_deliveries().remove(0).1;
        assert_eq!(d.attempt, n + 1);
    }
    assert_eq!(rig.engine.counters[Counter::Postponed as usize], 3);
    // Its one retry is left, and no more than that.
    rig.settle(1, &d, HandlerOutcome::Retry { after_ms: None, error: "no".into() });
    rig.run(50);
    let d = rig.take_deliveries().remove(0).1;
    assert_eq!(rig.progress(timer.id), (4, 3, Postponed { in_a_row: 0, last: 3 }));
    rig.settle(1, &d, HandlerOutcome::Retry { after_ms: None, error: "no".into() });
    rig.run(5);
    assert_eq!(rig.dead(timer.id).0, DeadReason::Exhausted);
}

#[test]
fn another_timer_is_delivered_meanwhile() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let timer = rig.timer("a", 0);
    let d = rig.deliver(1, timer);
    let other = rig.timer("a", 0);
    rig.schedule(1, other.clone());
    rig.run(5);
    assert!(rig.take_deliveries().is_empty());
    rig.later(&d, HOUR);
    rig.run(5);
    assert_eq!(rig.take_deliveries()[0].1.id, other.id);
}

#[test]
fn a_late_ok_of_what_was_put_off_is_refused() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let timer = rig.timer("a", 0);
    let d = rig.deliver(1, timer.clone());
    for after_ms in [1_000, HOUR] {
        // Near enough to stay in memory, and not.
        let d = if after_ms == HOUR { rig.take_deliveries().remove(0).1 } else { d.clone() };
        rig.later(&d, after_ms);
        rig.settle(1, &d, HandlerOutcome::Ok);
        rig.run(50);
        assert_eq!(rig.refusals(), [SettleRefusal::Late]);
        rig.run(1_010);
    }
    assert_eq!(rig.progress(timer.id), (2, 2, Postponed { in_a_row: 2, last: 2 }));
}

#[test]
fn after_so_many_in_a_row_it_is_a_failure_and_the_count_begins_anew() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let timer = Timer { retry: Some(RetryTiers(vec![10])), ..rig.timer("a", 0) };
    let mut d = rig.deliver(1, timer.clone());
    let all = MAX_LATER_IN_A_ROW;
    for n in 1..=all + 1 {
        assert_eq!(d.attempt, n);
        rig.later(&d, 1);
        rig.run(30);
        d = rig.take_deliveries().remove(0).1;
    }
    assert_eq!(rig.progress(timer.id), (all + 1, all, Postponed { in_a_row: 0, last: all }));
    let error = rig.stored(timer.id).0.progress.last_error.unwrap();
    assert_eq!(&*error, "handlers answered later 21 times in a row");
    for _ in 0..all {
        rig.later(&d, 1);
        rig.run(30);
        d = rig.take_deliveries().remove(0).1;
    }
    rig.later(&d, 1);
    rig.run(5);
    assert_eq!(rig.dead(timer.id).0, DeadReason::Exhausted, "it had one retry");
}

#[test]
fn at_most_once_it_is_a_dead_letter_that_says_so() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let once = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 0) };
    let d = rig.deliver(1, once.clone());
    rig.later(&d, 10);
    let (reason, error) = rig.dead(once.id);
    assert_eq!(reason, DeadReason::AtMostOnce);
    assert_eq!(error, "the handler answered later, and the timer is delivered once at most");
}

#[test]
fn a_deadline_and_a_cancel_end_what_was_put_off() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 3);
    let timer = rig.timer("a", 0);
    let dated = Timer { deadline: Some(timer.due + 5_000), ..timer };
    let d = rig.deliver(1, dated);
    rig.later(&d, HOUR);
    assert_eq!(rig.engine.counters[Counter::Expired as usize], 1);

    // Cancelled while it waits, and while it is delivered.
    let [waits, flies] = [(); 2].map(|()| rig.timer("a", 0));
    let d = rig.deliver(1, waits.clone());
    rig.later(&d, HOUR);
    let d = rig.deliver(1, flies.clone());
    for id in [waits.id, flies.id] {
        rig.take_replies();
        rig.ask(1, vec![Cancel { target: Target::Id(id), request: id.random() }.into()]);
        rig.run(2);
        assert_eq!(rig.take_replies(), [CancelReply::TooLate(id).into()]);
    }
    rig.later(&d, HOUR);
    assert_eq!([waits.id, flies.id].map(|id| rig.dead(id).0), [DeadReason::Stopped; 2]);
}

#[test]
fn a_delay_is_cut_at_a_day() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let timer = rig.timer("a", 0);
    let d = rig.deliver(1, timer.clone());
    let settled = rig.now().time;
    rig.later(&d, u32::MAX);
    let Place::Pending { fire, .. } = rig.stored(timer.id).1 else { panic!("it is pending") };
    assert!(fire >= settled + u64::from(24 * HOUR) && fire <= settled + u64::from(24 * HOUR) + 2, "{fire}");
}
