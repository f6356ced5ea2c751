//! An owner that the store does not answer, or refuses: its last deliveries and replies.

use mtimer_protocol::ops::ScheduleReply;
use mtimer_types::limits::AWAY_MS;

use super::*;

#[test]
fn nothing_is_sent_without_a_recent_fenced_write() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let t = rig.timer("a", 3_000);
    rig.schedule(1, t);
    rig.run(100);
    rig.store.faults().down(P, "test");
    rig.run(4_000);
    assert!(rig.take_deliveries().is_empty(), "sent while the store was away");
    let t = rig.timer("a", 10);
    rig.schedule(1, t);
    rig.run(1);
    assert_eq!(code(rig.take_replies().last().unwrap()), Some(ErrorCode::Unavailable));
    rig.store.faults().heal(P);
    rig.run(60);
    assert_eq!(rig.take_deliveries().len(), 1);
}

#[test]
fn what_was_under_way_when_an_ownership_ended_is_unknown() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    rig.store.faults().cut(P);
    let t = rig.timer("a", 1_000);
    rig.schedule(1, t);
    rig.run(1);
    rig.store.faults().fence(P);
    rig.store.faults().heal(P);
    rig.run(5);
    assert!(matches!(rig.ended, Some(LaneError::Fenced { .. })), "{:?}", rig.ended);
    assert_eq!(rig.take_replies().iter().map(code).collect::<Vec<_>>(), [Some(ErrorCode::Unknown)]);
}

#[test]
fn what_has_not_left_for_a_store_that_is_away_is_refused_and_what_has_is_not() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let under_way = rig.timer("a", 60_000);
    rig.schedule(1, under_way);
    let now = rig.now();
    let mut effects = Vec::new();
    rig.engine.flush(now, &mut effects);
    rig.store.faults().cut(P);
    effects.into_iter().for_each(|effect| rig.carry_out(effect));
    let waiting = rig.timer("a", 60_000);
    rig.schedule(1, waiting);
    rig.run(AWAY_MS / 2);
    assert_eq!(rig.take_replies(), [], "most failovers take no longer");
    rig.run(AWAY_MS);
    assert_eq!(rig.take_replies().iter().map(code).collect::<Vec<_>>(), [Some(ErrorCode::Unavailable)]);
    rig.store.faults().heal(P);
    rig.run(5);
    let replies = rig.take_replies();
    assert!(matches!(replies[..], [OpReply::Schedule(ScheduleReply::Scheduled { .. })]), "{replies:?}");
}

#[test]
fn a_refusal_by_a_full_store_says_nothing_about_the_owner() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    rig.run(2_000);
    rig.store.faults().full(P, true);
    let t = rig.timer("a", 60_000);
    rig.schedule(1, t);
    rig.run(5);
    let mono_ms = rig.ms;
    assert!(!rig.engine.partition(P).unwrap().owned_lately(mono_ms));
}

#[test]
fn a_refusal_that_looked_at_no_owner_record_says_nothing_about_the_owner() {
    use Refusal::{MayEvict, NotReplicated, OutOfMemory, ReadOnly};
    for (refusal, is_fenced) in
        [(OutOfMemory, false), (ReadOnly, false), (MayEvict, false), (NotReplicated, true)]
    {
        let mut rig = Rig::new(EngineOptions::default());
        rig.join(1, "a", 10);
        rig.run(2_000);
        let t = rig.timer("a", 60_000);
        rig.schedule(1, t);
        let (mut effects, now) = (Vec::new(), rig.now());
        rig.engine.flush(now, &mut effects);
        for effect in effects {
            match effect {
                Effect::Call(_, Call::Apply(batch)) => {
                    let refused = CallAnswer::Apply(vec![Answer::Refused(refusal.clone()); batch.ops.len()]);
                    rig.unanswered.push_back(futures_util::future::ready(Ok(refused)).boxed());
                }
                effect => rig.carry_out(effect),
            }
        }
        rig.hear_answers();
        let mono_ms = rig.ms;
        assert_eq!(rig.engine.partition(P).unwrap().owned_lately(mono_ms), is_fenced, "{refusal:?}");
    }
}

#[test]
fn what_was_taken_long_ago_is_not_sent_before_the_store_has_answered_again() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let first = rig.timer("a", 100);
    rig.schedule(1, first);
    rig.run(100);
    assert_eq!(rig.take_deliveries().len(), 1);
    // It comes when its time is claimed, so it is taken when it is due.
    let once = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 20) };
    rig.schedule(1, once);
    rig.run(10);
    // Taken in the store; the answer comes when somebody else has the partition.
    rig.store.faults().hold(P);
    rig.run(3_000);
    rig.store.faults().fence(P);
    rig.store.faults().heal(P);
    rig.run(5);
    assert!(rig.take_deliveries().is_empty(), "sent by an owner that is none any more");
    assert!(matches!(rig.ended, Some(LaneError::Fenced { .. })), "{:?}", rig.ended);
}

#[test]
fn a_process_that_stops_between_a_take_and_its_delivery_asks_the_store_again() {
    for fenced in [true, false] {
        let mut rig = Rig::new(EngineOptions::default());
        rig.join(1, "a", 1);
        let once = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 50) };
        rig.schedule(1, once.clone());
        rig.run(45);
        rig.answers_wait = true;
        rig.run(10);
        rig.hear_answers();
        rig.ms += 2_000;
        if fenced {
            rig.store.faults().fence(P);
        }
        rig.turn();
        assert!(rig.take_deliveries().is_empty(), "sent without a recent fenced write");
        rig.answers_wait = false;
        rig.run(100);
        let sent: Vec<_> = rig.take_deliveries().iter().map(|(_, d)| d.id).collect();
        assert_eq!(sent, if fenced { vec![] } else { vec![once.id] });
        assert_eq!(rig.ended.is_some(), fenced);
    }
}

#[test]
fn a_process_that_stops_between_a_take_and_its_delivery_sends_nothing_that_it_gives_up() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let mode = Mode::AtMostOnce;
    let once = Timer { mode, callback_timeout_ms: Some(100), ..rig.timer("a", 50) };
    rig.schedule(1, once.clone());
    rig.run(45);
    rig.answers_wait = true;
    rig.run(10);
    rig.hear_answers();
    // Longer than its handler may take, shorter than a fenced write counts.
    rig.ms += 300;
    rig.answers_wait = false;
    rig.turn();
    let sent: Vec<_> = rig.take_deliveries().iter().map(|(_, d)| d.id).collect();
    assert_eq!(sent, [once.id]);
    assert_eq!(rig.place(once.id), Some(Place::Taken { epoch: rig.lane.epoch(), unconfirmed: false }));
    rig.run(50);
    assert_eq!(rig.place(once.id), Some(Place::Taken { epoch: rig.lane.epoch(), unconfirmed: false }));
}

#[test]
fn a_fenced_write_counts_for_one_second() {
    let mut rig = Rig::new(EngineOptions::default());
    let p = rig.engine.partition(P).unwrap();
    p.claims.confirm(None, 5_000);
    assert!(p.owned_lately(6_000));
    assert!(!p.owned_lately(6_001));
}
