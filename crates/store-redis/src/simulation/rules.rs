//! Each rule of the design, broken on purpose: the simulation, or a test of its own, finds it.

use std::time::Duration;

use mtimer_store::ops::{Cancel, Reschedule, Schedule, Settle, SettleAnswer};
use mtimer_store::{
    Answer, Batch, CancelAnswer, Health, Lane, LaneError, Op, Refusal, RequestId, ScheduleAnswer, Verdict,
};
use mtimer_types::{Epoch, KeyPolicy, Target, Timer};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::arbitrary::PARTITION;
use super::run::{Check, Run, acquire_next, alive, block_on, empty, run, run_untrimmed, same, timer};
use super::{Broken, bulks, lost, replaced, torn, with_broken};
use crate::keyspace::keys::{HashKey, Keyspace};
use crate::partition::handed::HandedOver;
use crate::partition::lane::RedisLane;

/// Seeds within which a broken rule is found.
const WITHIN: u64 = 300;

fn is_found_by(rule: Broken, test: impl Fn(u64) -> Check) {
    let found = (1..=WITHIN).find_map(|seed| with_broken(rule, || test(seed)).err().map(|why| (seed, why)));
    let (seed, why) = found.unwrap_or_else(|| panic!("{rule:?} is not found with {WITHIN} seeds"));
    println!("{rule:?} is found with seed {seed}: {}", why.lines().last().unwrap_or_default());
}

#[test]
fn a_write_whose_answer_is_lost_keeps_its_number() {
    is_found_by(Broken::WriteGivenUp, run);
}

#[test]
fn a_write_that_may_have_run_is_not_refused() {
    is_found_by(Broken::RefusedAfterDoubt, run);
}

#[test]
fn index_entries_are_written_before_contents() {
    is_found_by(Broken::IndexBehindContents, torn::dies);
}

#[test]
fn bulk_jobs_are_written_behind_the_timers_on_which_they_have_acted() {
    assert_eq!(bulks::torn_act(), Ok(()));
    assert!(with_broken(Broken::BulksAheadOfTimers, bulks::torn_act).is_err());
}

#[test]
fn bulk_jobs_of_a_write_whose_answer_is_lost_are_known() {
    is_found_by(Broken::UnreportedBulksForgotten, run);
    assert_eq!(bulks::lost_answer(), Ok(()));
    assert!(with_broken(Broken::UnreportedBulksForgotten, bulks::lost_answer).is_err());
}

#[test]
fn a_timer_that_may_be_marked_is_read() {
    assert_eq!(bulks::marked_timer(), Ok(()));
    assert!(with_broken(Broken::MarkedTimersUnread, bulks::marked_timer).is_err());
}

#[test]
fn rows_are_written_before_keys() {
    assert_eq!(torn_replacement(), Ok(()));
    assert!(with_broken(Broken::KeysBeforeRows, torn_replacement).is_err());
}

#[test]
fn reads_are_guarded_by_the_sequence_number() {
    is_found_by(Broken::UnguardedReads, run);
}

#[test]
fn what_frees_is_not_refused_by_a_full_store() {
    is_found_by(Broken::FreeingRefused, run);
}

#[test]
fn slots_that_were_found_may_have_any_id() {
    is_found_by(Broken::FoundSlotsTakenForEmpty, run);
}

#[test]
fn a_slot_is_listed_for_every_destination_that_it_has_timers_of() {
    is_found_by(Broken::DestinationsForgotten, run);
}

#[test]
fn what_comes_while_listings_are_counted_is_counted_once() {
    is_found_by(Broken::CountedTwice, run);
}

#[test]
fn what_goes_before_it_is_counted_is_not_taken_off() {
    is_found_by(Broken::UncountedTakenOff, run);
}

#[test]
fn counts_are_exact_once_everything_is_counted() {
    is_found_by(Broken::UncountedForgotten, run);
}

#[test]
fn a_page_ends_where_everything_before_was_read() {
    is_found_by(Broken::UnreadSlotsIgnored, run);
}

#[test]
fn a_lost_slot_is_told_of() {
    is_found_by(Broken::LostSlotsPassedOver, lost::is_told_of);
}

#[test]
fn keys_that_were_found_may_name_timers() {
    is_found_by(Broken::FoundKeysTakenForFree, run);
}

#[test]
fn a_store_that_lost_writes_gets_them_again() {
    is_found_by(Broken::NoLog, run);
}

#[test]
fn a_copy_may_arrive_while_lost_writes_are_applied_again() {
    assert_eq!(copy_during_replay(), Ok(()));
    assert!(with_broken(Broken::NoCopyDuringReplay, copy_during_replay).is_err());
}

#[test]
fn remembered_outcomes_expire() {
    is_found_by(Broken::NoExpiry, run);
}

#[test]
fn a_blind_acknowledgement_looks_up_what_it_missed() {
    assert_eq!(stale_acknowledgement(), Ok(()));
    assert!(with_broken(Broken::MissesIgnored, stale_acknowledgement).is_err());
}

#[test]
fn only_what_this_owner_has_taken_is_acknowledged_without_reading_it() {
    is_found_by(Broken::AllTakenForOurs, run);
}

#[test]
fn a_key_is_freed_only_if_it_still_names_the_timer() {
    assert_eq!(stale_acknowledgement(), Ok(()));
    assert!(with_broken(Broken::FreedWithoutComparing, stale_acknowledgement).is_err());
}

#[test]
fn what_is_asked_for_is_refused_once_the_store_may_have_forgotten_how_it_ended() {
    assert_eq!(slow_store(), Ok(()));
    assert!(with_broken(Broken::LateRequestsDecided, slow_store).is_err());
}

#[test]
fn what_is_asked_for_grows_old_in_the_queue() {
    assert_eq!(queued_repeat(), Ok(()));
    assert!(with_broken(Broken::LateRequestsDecided, queued_repeat).is_err());
}

#[test]
fn a_key_finds_a_timer_only_if_that_has_the_key() {
    assert_eq!(alike_keys(), Ok(()));
}

#[test]
fn a_key_from_an_owner_before_may_name_a_timer_that_has_another_key() {
    assert_eq!(stale_key(), Ok(()));
    assert!(with_broken(Broken::FoundKeysTakenForOurs, stale_key).is_err());
}

#[test]
fn what_is_implied_of_a_timer_is_that_its_first_attempt_is_to_come() {
    assert_eq!(stopped_timer(), Ok(()));
    assert!(with_broken(Broken::LaterAttemptsImplied, stopped_timer).is_err());
}

#[test]
fn a_timer_with_an_entry_is_read() {
    is_found_by(Broken::EntriesIgnored, run);
}

#[test]
fn an_epoch_is_not_given_twice() {
    assert_eq!(forgetful_store(), Ok(()));
    assert!(with_broken(Broken::NoFloor, forgetful_store).is_err());
}

#[test]
fn a_store_that_has_lost_the_acquisition_ends_the_lane() {
    block_on(async {
        let mut run = Run::new(1, 0).await?;
        let before = run.server.state().data.clone();
        run.take_over().await?;
        run.calls(5).await?;
        run.server.state().roll_back(before);
        same(
            "an apply",
            &run.owner.apply(empty(), HandedOver::now()).await,
            &Err(LaneError::RolledBack(PARTITION)),
        )
    })
    .unwrap();
}

#[test]
fn an_owner_answers_once_replicas_have_its_acquisition() {
    assert_eq!(failover_after_acquisition(), Ok(()));
    assert!(with_broken(Broken::UnsafeAcquisition, failover_after_acquisition).is_err());
}

#[test]
fn an_acquisition_that_the_store_has_lost_ends_the_lane_before_any_call() {
    assert_eq!(lost_acquisition(), Ok(()));
    assert!(with_broken(Broken::UnsafeAcquisition, lost_acquisition).is_err());
}

#[test]
fn a_replica_that_is_not_named_yet_counts() {
    assert_eq!(failover_to_a_snapshot(), Ok(()));
    assert!(with_broken(Broken::UnnamedReplicasIgnored, failover_to_a_snapshot).is_err());
}

#[test]
fn a_connection_to_a_replaced_master_is_left() {
    assert_eq!(replaced::lagging_sentinels(), Ok(()));
    assert!(with_broken(Broken::MasterKept, replaced::lagging_sentinels).is_err());
    assert_eq!(replaced::another_owner(), Ok(()));
    assert!(with_broken(Broken::MasterKept, replaced::another_owner).is_err());
    is_found_by(Broken::MasterKept, run_untrimmed);
}

#[test]
fn a_replica_that_has_left_may_have_been_promoted() {
    assert!(with_broken(Broken::LeftReplicaForgotten, replaced::lagging_sentinels).is_err());
}

#[test]
fn wait_follows_a_write_of_its_own_connection() {
    is_found_by(Broken::WaitWithoutWrite, run);
}

fn schedule(timer: &Timer) -> Op {
    Op::Schedule(Schedule::new(timer.clone().into(), KeyPolicy::Create))
}

/// An acknowledgement, written blind, of a timer that was cancelled, whose key names another by
/// now, and whose fingerprint is that of a third one.
fn stale_acknowledgement() -> Check {
    block_on(async {
        let mut run = Run::new(1, 0).await?;
        let (gone, heir) = (timer(1, Some("a")), timer(2, Some("a")));
        let fingerprint = |timer: &Timer| run.shared.secret.id(timer.id).fingerprint();
        // The first one alike; found by trying.
        let alike = timer(9_304_046, None);
        same("its fingerprint", &fingerprint(&alike), &fingerprint(&gone))?;
        let cancel =
            Op::Cancel(Cancel { target: Target::Id(gone.id), sent_attempt: None, request: RequestId(1) });
        let batch = |op| Batch { ops: vec![op], ..empty() };
        alive(run.owner.apply(batch(schedule(&gone)), HandedOver::now()).await)?;
        alive(run.owner.apply(batch(schedule(&alike)), HandedOver::now()).await)?;
        let cancelled = alive(run.owner.apply(batch(cancel), HandedOver::now()).await)?;
        same("the cancel", &cancelled, &vec![Answer::Cancel(CancelAnswer::Cancelled(gone.id))])?;
        alive(run.owner.apply(batch(schedule(&heir)), HandedOver::now()).await)?;
        let ack = Op::Settle(Settle {
            id: gone.id,
            verdict: Verdict::Ack,
            timer: Some(gone.clone().into()),
            attempt: None,
        });
        same(
            "the acknowledgement",
            &alive(run.owner.apply(batch(ack), HandedOver::now()).await)?,
            &vec![Answer::Settle(SettleAnswer::Gone)],
        )?;
        let named = alive(run.owner.get(Target::Key(heir.dest.clone(), heir.key.clone().unwrap())).await)?;
        same("what the key names", &named.map(|(record, _)| record.timer.id), &Some(heir.id))
    })
}

/// An owner that dies while a timer takes the key of another one. The key finds one of them,
/// however far that has got.
fn torn_replacement() -> Check {
    let dies_after = |steps| async move {
        let mut run = Run::new(1, 0).await?;
        let batch = |op| Batch { ops: vec![op], ..empty() };
        let (old, new) = (timer(1, Some("a")), timer(2, Some("a")));
        alive(run.owner.apply(batch(schedule(&old)), HandedOver::now()).await)?;
        run.server.state().last_steps = Some(steps);
        let replace = Op::Schedule(Schedule::new(new.clone().into(), KeyPolicy::Replace));
        let replaced = run.owner.apply(batch(replace), HandedOver::now());
        let unanswered = tokio::time::timeout(torn::DEAD_AFTER, replaced).await.is_err();
        same("whether the owner has died", &unanswered, &true)?;
        let epoch = run.owner.epoch();
        let mut next = acquire_next(&run.server, &run.shared, epoch, epoch, &mut run.random).await?;
        let found = alive(next.get(Target::Key(old.dest, old.key.unwrap())).await)?;
        let found = found.map(|(record, _)| record.timer.id);
        let is_one = found == Some(old.id) || found == Some(new.id);
        same(&format!("whether the key finds one of them after {steps} steps"), &is_one, &true)
    };
    (0..12).try_for_each(|steps| block_on(dies_after(steps)))
}

/// A store that stands still while it has repeats before it, for longer than it remembers outcomes.
fn slow_store() -> Check {
    block_on(async {
        let mut run = Run::new(1, 0).await?;
        let batch = |ops| Batch { ops, ..empty() };
        let timers = [timer(1, None), timer(2, Some("a")), timer(3, None)];
        let [cancelled, keyed, other] = &timers;
        let cancel =
            |target, request| Op::Cancel(Cancel { target, sent_attempt: None, request: RequestId(request) });
        let reschedule = |request| {
            Op::Reschedule(Reschedule {
                target: Target::Id(other.id),
                due: other.due + 60_000,
                is_begun: false,
                request: RequestId(request),
            })
        };
        alive(run.owner.apply(batch(timers.iter().map(schedule).collect()), HandedOver::now()).await)?;
        let by_key = Target::Key(keyed.dest.clone(), keyed.key.clone().unwrap());
        let first = vec![cancel(Target::Id(cancelled.id), 1), cancel(by_key.clone(), 2), reschedule(3)];
        alive(run.owner.apply(batch(first.clone()), HandedOver::now()).await)?;
        // The key is another timer's by now.
        let heir = timer(4, Some("a"));
        alive(run.owner.apply(batch(vec![schedule(&heir)]), HandedOver::now()).await)?;

        run.server.state().stands_still = Duration::from_secs(200);
        let repeats = [vec![schedule(cancelled)], first, vec![Op::settle(other.id, Verdict::Ack)]].concat();
        let late = alive(run.owner.apply(batch(repeats), HandedOver::now()).await)?;
        let refused = Answer::Refused(Refusal::ReadOnly);
        let expected = vec![
            refused.clone(),
            refused.clone(),
            refused.clone(),
            refused,
            Answer::Settle(SettleAnswer::Done),
        ];
        same("repeats that come late, and an acknowledgement", &late, &expected)?;
        let brought_back = alive(run.owner.get(Target::Id(cancelled.id)).await)?.is_some();
        same("whether a cancelled timer is back", &brought_back, &false)?;
        let held = alive(run.owner.get(by_key).await)?.map(|(record, _)| record.timer.id);
        same("what the key names", &held, &Some(heir.id))
    })
}

/// A repeat that waits behind a call before which the store stands still.
fn queued_repeat() -> Check {
    block_on(async {
        let run = Run::new(1, 0).await?;
        let (server, timers) = (run.server, [timer(1, None), timer(2, None)]);
        let (health, _) = watch::channel(Health::Up);
        let (lane, task) = RedisLane::new(run.owner, health, CancellationToken::new().drop_guard());
        let lane: &dyn Lane = &lane;
        let batch = |ops| Batch { ops, ..empty() };
        let calls = async {
            let id = timers[0].id;
            alive(lane.apply(batch(timers.iter().map(schedule).collect())).await)?;
            let cancel =
                Op::Cancel(Cancel { target: Target::Id(id), sent_attempt: None, request: RequestId(1) });
            alive(lane.apply(batch(vec![cancel])).await)?;
            server.state().stands_still = Duration::from_secs(200);
            let first = lane.apply(batch(vec![Op::settle(timers[1].id, Verdict::Ack)]));
            let repeat = lane.apply(batch(vec![schedule(&timers[0])]));
            same("the acknowledgement", &alive(first.await)?, &vec![Answer::Settle(SettleAnswer::Done)])?;
            same("the repeat", &alive(repeat.await)?, &vec![Answer::Refused(Refusal::ReadOnly)])
        };
        tokio::select! {
            checked = calls => checked,
            () = task => Err("the lane has ended".into()),
        }
    })
}

/// A replica that has nothing of the acquisition until somebody waits for it is promoted after the
/// first answer.
fn failover_after_acquisition() -> Check {
    block_on(async {
        let mut run = Run::new(1, 0).await?;
        let before = run.server.state().data.clone();
        run.server.state().replica = Some(before);
        run.take_over().await?;
        failover_after_a_schedule(run, Duration::ZERO).await
    })
}

/// A replica is promoted long after a write, which it lacks: it has only the snapshot that it got
/// as it connected.
fn failover_to_a_snapshot() -> Check {
    block_on(async {
        let mut run = Run::new(1, 0).await?;
        run.take_over().await?;
        let snapshot = run.server.state().data.clone();
        run.server.state().snapshot = Some(snapshot);
        failover_after_a_schedule(run, Duration::from_secs(1)).await
    })
}

/// The replica is promoted so long after a schedule, which is still there.
async fn failover_after_a_schedule(run: Run, pause: Duration) -> Check {
    let (server, timer) = (run.server, timer(1, None));
    let (health, _) = watch::channel(Health::Up);
    let (lane, task) = RedisLane::new(run.owner, health, CancellationToken::new().drop_guard());
    let lane: &dyn Lane = &lane;
    let scheduled = |new| vec![Answer::Schedule(ScheduleAnswer::Scheduled { new, replaced: None })];
    let schedule = || lane.apply(Batch { ops: vec![schedule(&timer)], ..empty() });
    let calls = async {
        same("the timer", &alive(schedule().await)?, &scheduled(true))?;
        tokio::time::sleep(pause).await;
        server.state().promote_replica();
        same("a repeat", &alive(schedule().await)?, &scheduled(false))
    };
    tokio::select! {
        checked = calls => checked,
        () = task => Err("the lane has ended".into()),
    }
}

/// A replica without the acquisition is promoted before the owner has done anything.
fn lost_acquisition() -> Check {
    block_on(async {
        let mut run = Run::new(1, 0).await?;
        let before = run.server.state().data.clone();
        run.take_over().await?;
        run.server.state().roll_back(before.clone());
        run.server.state().replica = Some(before);
        let (health, seen) = watch::channel(Health::Up);
        let (_lane, task) = RedisLane::new(run.owner, health, CancellationToken::new().drop_guard());
        let idle = tokio::time::timeout(Duration::from_secs(60), task).await.is_err();
        same("whether the lane lives", &idle, &false)?;
        same("its health", &*seen.borrow(), &Health::Ended(LaneError::RolledBack(PARTITION)))
    })
}

/// A write gets lost, and with it the two before it. They are applied again; then a copy of the
/// lost write arrives, ahead of the answer.
fn copy_during_replay() -> Check {
    block_on(async {
        let mut run = Run::new(1, 0).await?;
        let before = run.server.state().data.clone();
        let scheduled = vec![Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None })];
        for n in 1..=3 {
            if n == 3 {
                run.server.state().delay_next_write(before.clone());
            }
            let batch = Batch { ops: vec![schedule(&timer(n, None))], ..empty() };
            same("the answer", &alive(run.owner.apply(batch, HandedOver::now()).await)?, &scheduled)?;
        }
        let found = alive(run.owner.get(Target::Id(timer(3, None).id)).await)?;
        same("whether the last timer is there", &found.is_some(), &true)
    })
}

/// Two keys of which the store knows the same hash.
fn alike_keys() -> Check {
    block_on(async {
        let mut run = Run::new(1, 0).await?;
        let (one, other) = (timer(1, Some("a")), timer(2, Some("b")));
        let batch = |op| Batch { ops: vec![op], ..empty() };
        alive(run.owner.apply(batch(schedule(&one)), HandedOver::now()).await)?;
        let key = |timer: &Timer| run.shared.secret.key(&timer.dest, timer.key.as_ref().unwrap());
        let field = key(&other);
        let hash = Keyspace::new(&run.shared.cluster, PARTITION).hash(HashKey::AppKeys);
        let named = [b"HSET", hash.as_bytes(), &field, &one.id.to_local()].map(<[u8]>::to_vec);
        run.server.state().data.run(&named);
        let by_key = Target::Key(other.dest.clone(), other.key.clone().unwrap());
        let found = alive(run.owner.get(by_key.clone()).await)?.map(|(record, _)| record.timer.id);
        same("what the other key finds", &found, &None)?;
        let cancel = Op::Cancel(Cancel { target: by_key, sent_attempt: None, request: RequestId(1) });
        let cancelled = alive(run.owner.apply(batch(cancel), HandedOver::now()).await)?;
        same("a cancel by the other key", &cancelled, &vec![Answer::Cancel(CancelAnswer::NotFound)])?;
        let scheduled = alive(run.owner.apply(batch(schedule(&other)), HandedOver::now()).await)?;
        let new = Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None });
        same("a timer with the other key", &scheduled, &vec![new])
    })
}

/// A key that an owner left behind when its write was cut off and it died; its timer has another
/// key by now.
fn stale_key() -> Check {
    block_on(async {
        let mut run = Run::new(1, 0).await?;
        let (one, other) = (timer(1, Some("a")), timer(2, Some("b")));
        let batch = |op| Batch { ops: vec![op], ..empty() };
        let field = run.shared.secret.key(&other.dest, other.key.as_ref().unwrap());
        let hash = Keyspace::new(&run.shared.cluster, PARTITION).hash(HashKey::AppKeys);
        let named = [b"HSET", hash.as_bytes(), &field, &one.id.to_local()].map(<[u8]>::to_vec);
        run.server.state().data.run(&named);
        run.take_over().await?;
        alive(run.owner.apply(batch(schedule(&one)), HandedOver::now()).await)?;
        let by_key = Target::Key(other.dest.clone(), other.key.clone().unwrap());
        let cancel = Op::Cancel(Cancel { target: by_key, sent_attempt: None, request: RequestId(1) });
        let cancelled = alive(run.owner.apply(batch(cancel), HandedOver::now()).await)?;
        same("a cancel by the other key", &cancelled, &vec![Answer::Cancel(CancelAnswer::NotFound)])?;
        let found = alive(run.owner.get(Target::Id(one.id)).await)?;
        same("whether the timer is there", &found.is_some(), &true)
    })
}

/// Two cancels by key of a timer whose delivery was under way at the first.
fn stopped_timer() -> Check {
    block_on(async {
        let mut run = Run::new(1, 0).await?;
        let one = timer(1, Some("a"));
        let by_key = || Target::Key(one.dest.clone(), one.key.clone().unwrap());
        let cancel = |sent_attempt, request| {
            Op::Cancel(Cancel { target: by_key(), sent_attempt, request: RequestId(request) })
        };
        alive(run.owner.apply(Batch { ops: vec![schedule(&one)], ..empty() }, HandedOver::now()).await)?;
        let died = CancelAnswer::Died { id: one.id, failed: 0 };
        let cases = [(Some(1), 1, CancelAnswer::TooLate(one.id)), (None, 2, died)];
        for (sent_attempt, request, expected) in cases {
            let batch = Batch { ops: vec![cancel(sent_attempt, request)], ..empty() };
            let answers = alive(run.owner.apply(batch, HandedOver::now()).await)?;
            same("a cancel", &answers, &vec![Answer::Cancel(expected)])?;
        }
        let found = alive(run.owner.get(Target::Id(one.id)).await)?;
        let (record, place) = found.ok_or("the timer is gone")?;
        same("where it is", &place, &mtimer_store::Place::Dead)?;
        same("its payload", &record.timer.payload, &one.payload)
    })
}

/// A store that has forgotten an epoch, and whose clock has gone back.
fn forgetful_store() -> Check {
    block_on(async {
        let mut run = Run::new(1, 0).await?;
        let seen = run.owner.epoch();
        {
            let mut state = run.server.state();
            state.data = Default::default();
            state.now -= 1_000;
        }
        let next = acquire_next(&run.server, &run.shared, Epoch(0), seen, &mut run.random).await?;
        same("whether the epoch has risen", &(next.epoch() > seen), &true)
    })
}
