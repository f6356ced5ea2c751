//! Bulk jobs at work.

use mtimer_protocol::ops::{BeginBulk, BeginBulkReply, Import, Reschedule, StopBulk};
use mtimer_protocol::{BulkState, BulkView};
use mtimer_types::{
    Bulk, BulkAction, BulkId, BulkObstacle, DeadReason, Filter, ImportGoal, ImportId, Staging,
};

use super::*;

const HOUR: u64 = 3_600_000;

fn rig() -> Rig {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    rig
}

/// So many timers of `app`, an hour from now and later.
fn schedule_far(rig: &mut Rig, app: &str, count: usize) -> Vec<Timer> {
    let timers: Vec<Timer> = (0..count as u64).map(|n| rig.timer(app, HOUR + n)).collect();
    timers.iter().for_each(|timer| rig.schedule(1, timer.clone()));
    rig.run(5);
    timers
}

fn of(app: &str) -> Filter {
    Filter::of(&dest(app))
}

fn ask_to_begin(rig: &mut Rig, id: u128, bulk: Bulk) {
    rig.ask(1, vec![BeginBulk { partition: P, id: BulkId(id), bulk: bulk.into() }.into()]);
}

fn begin(rig: &mut Rig, id: u128, bulk: Bulk) {
    rig.sent.clear();
    ask_to_begin(rig, id, bulk);
    rig.turn();
    let replies = rig.sent.extract_if(.., |(_, sent)| matches!(sent, ServerMessage::Reply { .. }));
    let replies: Vec<_> = replies.map(|(_, sent)| sent).collect();
    let begun = OpReply::BeginBulk(BeginBulkReply::Begun);
    assert_eq!(replies, [ServerMessage::Reply { corr: 1, replies: vec![begun] }]);
}

/// The jobs as a client sees them.
fn jobs(rig: &mut Rig) -> Vec<BulkView> {
    rig.sent.clear();
    rig.session(1, SessionEvent::Query { corr: 9, query: Query::Bulks { partition: 0 } });
    rig.turn();
    let answer = rig.sent.drain(..).find_map(|(_, message)| match message {
        ServerMessage::Answer { corr: 9, answer: QueryAnswer::Bulks(jobs) } => Some(jobs),
        _ => None,
    });
    answer.unwrap()
}

fn job(rig: &mut Rig) -> BulkView {
    jobs(rig).remove(0)
}

fn places(rig: &Rig, timers: &[Timer]) -> Vec<Option<Place>> {
    timers.iter().map(|timer| rig.place(timer.id)).collect()
}

fn is_pending_at(rig: &Rig, timer: &Timer, fire: Time) -> bool {
    rig.place(timer.id) == Some(Place::Pending { fire, tier: 0 })
}

#[test]
fn a_job_cancels_what_matches_and_leaves_the_rest() {
    let mut rig = rig();
    let (wrong, right) = (schedule_far(&mut rig, "a", 600), schedule_far(&mut rig, "b", 3));
    begin(&mut rig, 1, Bulk::new(BulkAction::Cancel, of("a")));
    rig.run(20);
    assert!(places(&rig, &wrong).iter().all(Option::is_none));
    assert!(places(&rig, &right).iter().all(Option::is_some));
    let view = job(&mut rig);
    assert_eq!((view.state, view.done, view.not_done), (BulkState::Done, 600, 0));
    assert!(view.ended.is_some() && view.begun <= view.ended.unwrap());
}

#[test]
fn timers_in_memory_and_in_flight_are_cancelled_as_single_ones_are() {
    let mut rig = rig();
    let delivery = {
        let timer = rig.timer("a", 1);
        rig.deliver(1, timer)
    };
    let near = rig.timer("a", 200);
    rig.schedule(1, near);
    rig.run(5);
    begin(&mut rig, 1, Bulk::new(BulkAction::Cancel, of("a")));
    rig.run(300);
    assert_eq!(rig.take_deliveries(), [], "the near one is not sent any more");
    let view = job(&mut rig);
    assert_eq!((view.done, view.not_done), (1, 1));
    let failures: Vec<_> = view.failures.iter().map(|failure| (failure.id, failure.why)).collect();
    assert_eq!(failures, [(delivery.id, BulkObstacle::TooLate)]);
    // No attempt follows the one under way.
    rig.settle(1, &delivery, HandlerOutcome::Retry { after_ms: None, error: "no".into() });
    rig.run(500);
    assert_eq!((rig.take_deliveries(), rig.place(delivery.id)), (vec![], Some(Place::Dead)));
}

#[test]
fn what_is_scheduled_after_a_job_has_begun_is_passed_by() {
    let mut rig = rig();
    let old = schedule_far(&mut rig, "a", 2);
    rig.answers_wait = true;
    ask_to_begin(&mut rig, 1, Bulk::new(BulkAction::Cancel, of("a")));
    rig.turn();
    let new = rig.timer("a", HOUR);
    rig.schedule(1, new.clone());
    rig.turn();
    rig.answers_wait = false;
    rig.run(20);
    assert_eq!(places(&rig, &old), [None, None]);
    assert!(is_pending_at(&rig, &new, new.due));
    assert_eq!(job(&mut rig).done, 2);
}

#[test]
fn a_shift_moves_timers_once_and_their_deadlines_along() {
    let mut rig = rig();
    let far = Timer { deadline: Some(rig.now().time + 2 * HOUR), ..rig.timer("a", HOUR) };
    let near = rig.timer("a", 300);
    [&far, &near].into_iter().for_each(|timer| rig.schedule(1, timer.clone()));
    rig.run(5);
    // To where the job comes later.
    begin(&mut rig, 1, Bulk::new(BulkAction::Shift { ms: 1_000 }, of("a")));
    rig.run(100);
    assert!(is_pending_at(&rig, &far, far.due + 1_000) && is_pending_at(&rig, &near, near.due + 1_000));
    assert_eq!((job(&mut rig).state, job(&mut rig).done), (BulkState::Done, 2));
    let (record, _) = rig.lane.get(Target::Id(far.id)).now_or_never().unwrap().unwrap().unwrap();
    assert_eq!(record.timer.deadline, far.deadline.map(|deadline| deadline + 1_000));
    rig.run(900);
    assert_eq!(rig.take_deliveries(), [], "not at its old time");
    rig.run(400);
    assert_eq!(rig.take_deliveries().len(), 1);
}

#[test]
fn timers_that_are_brought_forward_are_sent_at_their_new_time() {
    let mut rig = rig();
    let far = schedule_far(&mut rig, "a", 3);
    let due = rig.now().time + 200;
    begin(&mut rig, 1, Bulk::new(BulkAction::MoveTo { due }, of("a")));
    rig.run(150);
    assert_eq!(rig.take_deliveries(), []);
    rig.run(100);
    assert_eq!(rig.take_deliveries().len(), far.len());
}

#[test]
fn parked_timers_are_met_and_their_count_in_memory_follows() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.session(1, SessionEvent::Opened { client: 1 });
    let timers: Vec<Timer> = (0..5).map(|_| rig.timer("b", 1)).collect();
    timers.iter().for_each(|timer| rig.schedule(1, timer.clone()));
    rig.run(3_000);
    assert_eq!(places(&rig, &timers), [Some(Place::Parked); 5]);
    begin(&mut rig, 1, Bulk::new(BulkAction::Cancel, of("b")));
    rig.run(100);
    assert_eq!(places(&rig, &timers), [None; 5]);
    assert_eq!(job(&mut rig).done, 5);
    assert!(!rig.engine.roster.has_parks());
}

#[test]
fn dead_letters_are_replayed_or_purged() {
    let mut rig = rig();
    let fail = |rig: &mut Rig| {
        let timer = rig.timer("a", 1);
        let delivery = rig.deliver(1, timer);
        rig.settle(1, &delivery, HandlerOutcome::Fail { error: "no".into() });
        rig.run(100);
        delivery.id
    };
    let [one, two] = [fail(&mut rig), fail(&mut rig)];
    begin(&mut rig, 1, Bulk::new(BulkAction::Replay, of("a")));
    rig.run(50);
    let mut sent: Vec<TimerId> = rig.take_deliveries().into_iter().map(|(_, d)| d.id).collect();
    sent.sort_unstable();
    assert_eq!((sent, job(&mut rig).done), (vec![one, two], 2));
    let three = fail(&mut rig);
    assert_eq!(rig.place(three), Some(Place::Dead));
    begin(&mut rig, 2, Bulk::new(BulkAction::Purge, Filter::default()));
    rig.run(50);
    assert_eq!((rig.place(three), jobs(&mut rig)[1].done), (None, 1));
}

/// Stages a timer by import 7.
fn stage(rig: &mut Rig, timer: &Timer, goal: ImportGoal) {
    let import = Import::new(timer.clone().into(), Staging { import: ImportId(7), goal });
    rig.ask(1, vec![import.into()]);
    rig.run(5);
}

#[test]
fn a_staged_timer_is_delivered_after_its_release_and_not_before() {
    let mut rig = rig();
    let (due, soon, far) = (rig.timer("a", 0), rig.timer("a", 300), rig.timer("a", HOUR));
    let letter = rig.timer("a", 0);
    for timer in [&due, &soon, &far] {
        stage(&mut rig, timer, ImportGoal::Live { tier: 0 });
    }
    stage(&mut rig, &letter, ImportGoal::Dead { reason: DeadReason::Failed, died: letter.due });
    begin(&mut rig, 1, Bulk::new(BulkAction::Cancel, of("a")));
    rig.run(100);
    assert_eq!((rig.take_deliveries(), job(&mut rig).done), (vec![], 0));
    // An edit has it read anew: it stays where it is.
    let edit = |target, due, request| Reschedule { target, due, request };
    let now = rig.now().time;
    rig.ask(1, vec![edit(Target::Id(due.id), now, 1).into(), edit(Target::Id(soon.id), now + 300, 2).into()]);
    rig.run(1_000);
    assert_eq!(rig.take_deliveries(), []);

    begin(&mut rig, 2, Bulk::new(BulkAction::Release { import: ImportId(7) }, Filter::default()));
    rig.run(500);
    let mut sent: Vec<TimerId> = rig.take_deliveries().into_iter().map(|(_, d)| d.id).collect();
    sent.sort_unstable();
    let mut expected = [due.id, soon.id];
    expected.sort_unstable();
    let view = jobs(&mut rig).remove(1);
    assert_eq!((sent, view.state, view.done), (expected.to_vec(), BulkState::Done, 4));
    assert!(is_pending_at(&rig, &far, far.due));
    assert_eq!(rig.place(letter.id), Some(Place::Dead));
}

#[test]
fn a_dry_run_counts_and_changes_nothing() {
    let mut rig = rig();
    let timers = schedule_far(&mut rig, "a", 7);
    begin(&mut rig, 1, Bulk { dry_run: true, ..Bulk::new(BulkAction::Cancel, of("a")) });
    rig.run(20);
    assert!(places(&rig, &timers).iter().all(Option::is_some));
    assert_eq!((job(&mut rig).state, job(&mut rig).done), (BulkState::Done, 7));
}

#[test]
fn the_next_owner_goes_on_and_counts_none_twice() {
    let mut rig = rig();
    let timers = schedule_far(&mut rig, "a", 20);
    // One a second.
    begin(&mut rig, 1, Bulk { rate: 1, ..Bulk::new(BulkAction::Shift { ms: 1 }, of("a")) });
    rig.run(3_500);
    let before = job(&mut rig);
    assert!(before.state == BulkState::Working && (2..=5).contains(&before.done), "{before:?}");
    let mut next = Rig::on(rig.store.clone(), 2, rig.ms + 10, EngineOptions::default());
    next.join(1, "a", 10);
    next.run(30_000);
    let after = job(&mut next);
    assert_eq!((after.state, after.done, after.not_done), (BulkState::Done, 20, 0));
    assert!(timers.iter().all(|timer| is_pending_at(&next, timer, timer.due + 1)));
}

#[test]
fn a_rate_is_kept() {
    let mut rig = rig();
    schedule_far(&mut rig, "a", 100);
    begin(&mut rig, 1, Bulk { rate: 20, ..Bulk::new(BulkAction::Cancel, of("a")) });
    rig.run(2_000);
    let done = job(&mut rig).done;
    assert!((35..=45).contains(&done), "{done}");
}

#[test]
fn a_stopped_job_does_nothing_more_and_the_next_begins() {
    let mut rig = rig();
    let timers = schedule_far(&mut rig, "a", 20);
    begin(&mut rig, 1, Bulk { rate: 1, ..Bulk::new(BulkAction::Cancel, of("a")) });
    begin(&mut rig, 2, Bulk::new(BulkAction::Shift { ms: 5 }, of("a")));
    rig.run(2_500);
    let states: Vec<_> = jobs(&mut rig).iter().map(|job| job.state).collect();
    assert_eq!(states, [BulkState::Working, BulkState::Waiting]);
    let Filter { group, app, .. } = of("a");
    rig.ask(1, vec![StopBulk { partition: P, id: BulkId(1), group, app }.into()]);
    rig.run(100);
    let all = jobs(&mut rig);
    assert_eq!((all[0].state, all[1].state), (BulkState::Stopped, BulkState::Done));
    let left = places(&rig, &timers).iter().flatten().count() as u64;
    assert_eq!((all[0].done + left, all[1].done), (20, left));
}

#[test]
fn what_the_store_refuses_is_asked_again_and_none_is_skipped() {
    let mut rig = rig();
    let timers = schedule_far(&mut rig, "a", 30);
    begin(&mut rig, 1, Bulk { rate: 10, ..Bulk::new(BulkAction::Cancel, of("a")) });
    rig.run(500);
    rig.read_only = true;
    rig.run(1_500);
    let done = jobs(&mut rig)[0].done;
    assert!((1..30).contains(&done), "{done}");
    rig.read_only = false;
    // Applied, and not confirmed: it counts once all the same.
    rig.unconfirmed = true;
    rig.run(1_500);
    rig.unconfirmed = false;
    rig.run(10_000);
    assert_eq!(places(&rig, &timers), [None; 30]);
    assert_eq!((job(&mut rig).state, job(&mut rig).done), (BulkState::Done, 30));
}

#[test]
fn a_few_timers_go_to_the_store_at_a_time() {
    let mut rig = rig();
    schedule_far(&mut rig, "a", 1_000);
    rig.answers_wait = true;
    ask_to_begin(&mut rig, 1, Bulk::new(BulkAction::Cancel, of("a")));
    rig.turn();
    let most = (0..20).map(|_| {
        rig.hear_answers();
        let mut effects = Vec::new();
        let now = rig.now();
        rig.engine.flush(now, &mut effects);
        let acts = effects.iter().map(|effect| match effect {
            Effect::Call(_, Call::Apply(batch)) => {
                batch.ops.iter().filter(|op| matches!(op, Op::BulkAct(_))).count()
            }
            _ => 0,
        });
        let acts = acts.sum::<usize>();
        effects.into_iter().for_each(|effect| rig.carry_out(effect));
        acts
    });
    assert_eq!(most.max(), Some(256));
}

#[test]
fn what_is_moved_and_not_confirmed_is_sent_all_the_same() {
    let mut rig = rig();
    let timers = schedule_far(&mut rig, "a", 3);
    let due = rig.now().time + 4_000;
    rig.unconfirmed = true;
    ask_to_begin(&mut rig, 1, Bulk::new(BulkAction::MoveTo { due }, of("a")));
    rig.run(2_000);
    rig.unconfirmed = false;
    rig.run(1_900);
    assert_eq!(rig.take_deliveries(), []);
    rig.run(200);
    assert_eq!(rig.take_deliveries().len(), timers.len());
}

#[test]
fn an_unconfirmed_act_is_no_proof_that_an_unconfirmed_take_is_safe() {
    let mut rig = rig();
    let first = rig.timer("a", 990);
    let timer = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 1_000) };
    [first, timer].into_iter().for_each(|timer| rig.schedule(1, timer));
    rig.run(5);
    // The job acts on the first one at once, and on the other one while that is being taken.
    let shift = BulkAction::Shift { ms: HOUR as i64 };
    begin(&mut rig, 1, Bulk { rate: 1, ..Bulk::new(shift, of("a")) });
    rig.run(900);
    rig.unconfirmed = true;
    rig.run(1_500);
    assert_eq!(rig.take_deliveries(), [], "replicas may lack the take");
    rig.unconfirmed = false;
    rig.run(3_000);
    assert_eq!(rig.take_deliveries().len(), 1, "it was too late for the job");
}

#[test]
fn a_full_store_is_tried_with_one_timer_now_and_then_and_the_job_goes_on_when_there_is_space() {
    let mut rig = rig();
    let timers = schedule_far(&mut rig, "a", 300);
    rig.store.faults().full(P, true);
    begin(&mut rig, 1, Bulk::new(BulkAction::Shift { ms: HOUR as i64 }, of("a")));
    let refused = |rig: &Rig| rig.engine.counters[Counter::BulkRefused as usize];
    rig.run(5_000);
    assert_eq!(refused(&rig), 256, "a portion");
    rig.run(60_000);
    assert!((256 + 5..=256 + 8).contains(&refused(&rig)), "{}", refused(&rig));
    assert!(timers.iter().all(|timer| is_pending_at(&rig, timer, timer.due)), "nothing has changed");
    rig.store.faults().full(P, false);
    rig.run(11_000);
    assert!(timers.iter().all(|timer| is_pending_at(&rig, timer, timer.due + HOUR)));
    assert_eq!((job(&mut rig).state, job(&mut rig).done), (BulkState::Done, 300));
}

#[test]
fn a_full_store_takes_what_frees_space() {
    let mut rig = rig();
    let timers = schedule_far(&mut rig, "a", 3);
    rig.store.faults().full(P, true);
    begin(&mut rig, 1, Bulk::new(BulkAction::Cancel, of("a")));
    rig.run(20);
    assert_eq!(places(&rig, &timers), [None; 3]);
}
