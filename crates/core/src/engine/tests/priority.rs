//! Who goes first among the timers that wait for a destination's credit, in memory and in the park.

use mtimer_protocol::ops::{Configure, ConfigureReply};
use mtimer_types::{DestinationSettings, Extensions, Priority, SettingsVersion};

use super::*;
use crate::engine::attended::AttendedTime;
use crate::engine::claims::OWNERSHIP_MS;
use crate::engine::flow::Flow;
use crate::engine::pressure::Pressure;

/// A broker that has had its partition for long enough to take settings.
fn rig() -> Rig {
    let mut rig = Rig::new(EngineOptions::default());
    rig.run(OWNERSHIP_MS);
    rig
}

impl Rig {
    fn timer_of(&mut self, priority: Priority) -> Timer {
        let extensions = Extensions::NONE.with_priority(priority).unwrap();
        Timer { extensions, callback_timeout_ms: None, ..self.timer("a", 1) }
    }

    /// So many timers of each class, the least urgent one first, which wait for a client without
    /// credit.
    fn waiting(&mut self, of_each: usize) {
        self.join(1, "a", 0);
        for _ in 0..of_each {
            for priority in Priority::ALL.into_iter().rev() {
                let timer = self.timer_of(priority);
                self.schedule(1, timer);
            }
        }
        self.run(20);
        assert!(self.take_deliveries().is_empty());
    }

    fn credit(&mut self, credit: u32) {
        self.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit });
    }

    /// Takes the deliveries; how many there are of each class, in which the ids ascend.
    fn delivered(&mut self) -> [usize; Priority::COUNT] {
        let mut ids: [Vec<TimerId>; Priority::COUNT] = Default::default();
        for (_, d) in self.take_deliveries() {
            let record = self.lane.get(Target::Id(d.id)).now_or_never().unwrap().unwrap().unwrap().0;
            ids[record.timer.priority().rank()].push(d.id);
        }
        assert!(ids.iter().all(|ids| ids.is_sorted()), "in the order of time");
        ids.map(|ids| ids.len())
    }

    /// Lets one timer after the other be delivered, and returns how many of each class were.
    fn one_by_one(&mut self, count: usize) -> [usize; Priority::COUNT] {
        self.credit(1);
        let mut of_each = [0; Priority::COUNT];
        for _ in 0..count {
            self.run(10);
            let (_, d) = self.take_deliveries().remove(0);
            let record = self.lane.get(Target::Id(d.id)).now_or_never().unwrap().unwrap().unwrap().0;
            of_each[record.timer.priority().rank()] += 1;
            self.settle(1, &d, HandlerOutcome::Ok);
        }
        of_each
    }

    fn order(&mut self, strict_priority: bool) {
        let settings = Box::new(DestinationSettings { strict_priority, ..DestinationSettings::default() });
        let version = SettingsVersion::Given(1);
        self.take_replies();
        self.ask(1, vec![Configure { partition: P, dest: dest("a"), settings, version }.into()]);
        self.run(5);
        assert_eq!(self.take_replies(), [ConfigureReply::Done(1).into()]);
    }
}

#[test]
fn of_fifteen_credits_each_class_has_its_weight() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.waiting(10);
    rig.credit(15);
    rig.run(2);
    assert_eq!(rig.delivered(), [8, 4, 2, 1]);
}

#[test]
fn one_after_the_other_none_starves() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.waiting(10);
    assert_eq!(rig.one_by_one(15), [8, 4, 2, 1]);
    // The urgent ones run out: the others share what is left.
    assert_eq!(rig.one_by_one(25), [2, 6, 8, 9]);
}

#[test]
fn strictly_the_most_urgent_go_first() {
    let mut rig = rig();
    rig.waiting(10);
    rig.order(true);
    rig.credit(15);
    rig.run(2);
    assert_eq!(rig.delivered(), [10, 5, 0, 0]);
}

#[test]
fn what_is_parked_comes_back_by_its_weight_or_strictly() {
    for (is_strict, expected) in [(false, [8, 4, 2, 1]), (true, [15, 0, 0, 0])] {
        let mut rig = rig();
        rig.waiting(20);
        rig.run(5_000);
        assert_eq!(rig.engine.memory().0, 0, "all are parked");
        rig.order(is_strict);
        assert_eq!(rig.one_by_one(15), expected);
    }
}

#[test]
fn a_new_owner_finds_the_parked_timers_of_all_classes() {
    let store = MemoryStore::new(1);
    let mut rig = Rig::on(store.clone(), 1, 0, EngineOptions::default());
    rig.waiting(20);
    rig.run(5_000);
    let mut next = Rig::on(store, 2, rig.ms, EngineOptions::default());
    next.join(1, "a", 0);
    // It looks through the park for deadlines, and sees all classes.
    next.run(5_000);
    let taken = next.one_by_one(40);
    assert!(taken[0] == 20 || taken.iter().all(|n| *n > 0), "{taken:?}");
    assert!(taken[3] >= 2 && taken[0] > taken[1] && taken[1] > taken[2] && taken[2] > taken[3], "{taken:?}");
}

#[test]
fn a_retry_keeps_its_priority() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let urgent = rig.timer_of(Priority::Urgent);
    let d = rig.deliver(1, urgent.clone());
    for _ in 0..3 {
        let other = rig.timer_of(Priority::Normal);
        rig.schedule(1, other);
    }
    // Long enough for a claim that covers them.
    rig.run(60);
    rig.settle(1, &d, HandlerOutcome::Retry { after_ms: Some(100), error: "busy".into() });
    rig.run(5);
    let (_, other) = rig.take_deliveries().remove(0);
    assert_ne!(other.id, urgent.id, "it waits for its time");
    rig.run(200);
    rig.settle(1, &other, HandlerOutcome::Ok);
    rig.run(5);
    assert_eq!(rig.take_deliveries()[0].1.id, urgent.id);
}

/// Two may wait, for the destination took two deliveries of late.
#[test]
fn less_urgent_timers_make_room_and_are_parked_first() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.waiting(2);
    let ix = rig.engine.roster.dest_ix(&dest("a"));
    rig.engine.attended = AttendedTime::showing(10_000, rig.ms);
    rig.engine.pressure = Pressure::Pressed;
    let mut flow = Flow::default();
    flow.note_credit(10_000 - 150, 2, false);
    rig.engine.roster.dest_mut(ix).flow = flow;
    let parks = |rig: &Rig| Priority::ALL.map(|class| rig.engine.parks_new(ix, class));
    assert_eq!(parks(&rig), [true; 4], "two urgent ones wait already");
    let now = rig.now();
    rig.engine.park_waiting(now);
    let left: Vec<_> = rig.engine.roster.dest(ix).ready.by_class().map(Iterator::count).collect();
    assert_eq!(left, [2, 0, 0, 0]);
    // Housekeeping lets its memory of what was taken fade: one may wait.
    assert_eq!(parks(&rig), [true; 4]);
    (0..2).for_each(|_| _ = rig.engine.roster.dest_mut(ix).ready.pop_back());
    assert_eq!(parks(&rig), [false; 4]);
}
