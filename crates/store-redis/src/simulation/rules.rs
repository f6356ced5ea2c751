//! Each rule of the design, broken on purpose: the simulation, or a test of its own, finds it.

use mtimer_store::{Answer, Batch, CancelAnswer, LaneError, Op, RequestId, Verdict};
use mtimer_types::{Destination, Epoch, Key, KeyPolicy, Mode, Target, Time, Timer, TimerId};

use super::run::{Check, PARTITION, Run, START, acquire_next, alive, block_on, run, same};
use super::{Broken, torn, with_broken};

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
fn a_store_that_lost_writes_gets_them_again() {
    is_found_by(Broken::NoLog, run);
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
fn a_key_is_freed_only_if_it_still_names_the_timer() {
    assert_eq!(stale_acknowledgement(), Ok(()));
    assert!(with_broken(Broken::FreedWithoutComparing, stale_acknowledgement).is_err());
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
        same("an apply", &run.owner.apply(empty()).await, &Err(LaneError::RolledBack(PARTITION)))
    })
    .unwrap();
}

fn empty() -> Batch {
    Batch { now: Time::from_ms(START), claim: None, ops: Vec::new() }
}

fn timer(random: u64, key: Option<&str>) -> Timer {
    let now = Time::from_ms(START);
    let due = now + 500;
    Timer {
        id: TimerId::new(due, now, PARTITION, random),
        dest: Destination::new("orders", "billing").unwrap(),
        key: key.map(|key| Key::new(key).unwrap()),
        due,
        mode: Mode::AtLeastOnce,
        deadline: None,
        callback_timeout_ms: None,
        retry: None,
        payload: bytes::Bytes::new(),
    }
}

fn schedule(timer: &Timer) -> Op {
    Op::Schedule { timer: timer.clone().into(), policy: KeyPolicy::Create }
}

/// An acknowledgement, written blind, of a timer that was cancelled, whose key names another by now, and whose
/// fingerprint is that of a third one.
fn stale_acknowledgement() -> Check {
    block_on(async {
        let mut run = Run::new(1, 0).await?;
        let (gone, heir) = (timer(1, Some("a")), timer(2, Some("a")));
        let fingerprint = |timer: &Timer| run.shared.secret.id(timer.id).fingerprint();
        let alike = (3..).map(|n| timer(n, None)).find(|other| fingerprint(other) == fingerprint(&gone));
        let alike = alike.unwrap();
        let cancel = Op::Cancel { target: Target::Id(gone.id), in_flight: None, request: RequestId(1) };
        let batch = |op| Batch { ops: vec![op], ..empty() };
        alive(run.owner.apply(batch(schedule(&gone))).await)?;
        alive(run.owner.apply(batch(schedule(&alike))).await)?;
        let cancelled = alive(run.owner.apply(batch(cancel)).await)?;
        same("the cancel", &cancelled, &vec![Answer::Cancel(CancelAnswer::Cancelled(gone.id))])?;
        alive(run.owner.apply(batch(schedule(&heir))).await)?;
        let ack = Op::Settle { id: gone.id, verdict: Verdict::Ack, timer: Some(gone.clone().into()) };
        same("the acknowledgement", &alive(run.owner.apply(batch(ack)).await)?, &vec![Answer::Gone])?;
        let named = alive(run.owner.get(Target::Key(heir.dest.clone(), heir.key.clone().unwrap())).await)?;
        same("what the key names", &named.map(|(record, _)| record.timer.id), &Some(heir.id))
    })
}

/// A store that has forgotten an epoch, and whose clock has gone back.
fn forgetful_store() -> Check {
    block_on(async {
        let mut run = Run::new(1, 0).await?;
        let seen = run.owner.epoch();
        {
            let mut state = run.server.state();
            (state.data, state.now) = (Default::default(), START - 1_000);
        }
        let next = acquire_next(&run.server, &run.shared, Epoch(0), seen, &mut run.random).await?;
        same("whether the epoch has risen", &(next.epoch() > seen), &true)
    })
}
