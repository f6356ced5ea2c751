//! The return from the park: how many timers at once, and how many are left.

use mtimer_store::ops::MoveAnswer;
use mtimer_store::{ListPage, Page, Record};

use super::park::{asked_pages, page, parked_in_three};
use super::*;
use crate::engine::sweeps::Sweeps;

#[test]
fn the_next_page_is_asked_for_when_all_of_the_last_one_is_here() {
    let (mut engine, now) = parked_in_three();
    // Sweeps ask for pages as well.
    engine.sweeps = Sweeps::new(u64::MAX);
    let register = SessionEvent::Register { registration: 1, dest: dest("a"), credit: 10 };
    engine.handle(now, Input::Session(SessionId(1), register));
    assert_eq!(asked_pages(&mut engine, now), [(0, 0)]);
    let row = |n| {
        let timer = Timer {
            payload: b"x".as_slice().into(),
            ..Timer::new(TimerId::new(now.time, now.time, P, n), dest("a"), now.time)
        };
        Record::new(timer.into())
    };
    let rows = vec![row(1), row(2)];
    page(&mut engine, now, P, CallAnswer::List(ListPage::Parked(Page { rows, next: Some(1) })));
    assert_eq!(asked_pages(&mut engine, now), [], "two are on their way");
    let answers = vec![Answer::Unpark(MoveAnswer::Done), Answer::Refused(Refusal::ReadOnly)];
    page(&mut engine, now, P, CallAnswer::Apply(answers));
    assert_eq!(asked_pages(&mut engine, now), [], "one is still on its way");
}

#[test]
fn nothing_is_left_of_a_park_when_all_has_come_back() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 0);
    let timers: Vec<Timer> = (0..3).map(|_| rig.timer("a", 0)).collect();
    timers.iter().for_each(|timer| rig.schedule(1, timer.clone()));
    rig.run(1_000);
    let parked = |rig: &Rig| rig.engine.roster.dests().map(|(_, d)| d.parks.len()).sum::<usize>();
    assert_eq!(parked(&rig), 1);
    rig.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 10 });
    rig.run(50);
    assert_eq!((rig.take_deliveries().len(), parked(&rig)), (3, 0));
}
