//! Acquiring, terms, epochs, releasing.

use std::collections::HashSet;

use mtimer_types::{Epoch, Nonce, PartitionId, Term, Time};

use super::kit::Kit;
use super::values::{DAY, MINUTE, NEW, OLD, SECOND, pending_at, unique};
use crate::{Acquire, AcquireError, CancelAnswer, InFlight, LaneError, OwnerRecord};

pub(super) async fn a_new_partition_has_no_owner(kit: Kit) {
    assert_eq!(kit.owner_record().await, OwnerRecord::default());
}

pub(super) async fn acquire_is_recorded(mut kit: Kit) {
    let acquire = kit.next_acquire().await;
    let owner = kit.acquire(acquire).await.unwrap();
    assert!(owner.epoch > Epoch(0), "the first epoch is above 0");
    assert_eq!(owner.prior_claim, Time::ZERO);
    assert_eq!(owner.in_flight, []);
    let expected = OwnerRecord {
        epoch: owner.epoch,
        nonce: acquire.nonce,
        term: acquire.term,
        version: acquire.version,
        claimed_until: Time::ZERO,
        released: false,
    };
    assert_eq!(kit.owner_record().await, expected);
}

pub(super) async fn acquire_with_another_epoch_is_refused(mut kit: Kit) {
    let owner = kit.owner().await;
    let before = kit.owner_record().await;
    for expected in [Epoch(0), Epoch(owner.epoch.0 - 1), Epoch(owner.epoch.0 + 1)] {
        let acquire = Acquire { expected, ..kit.next_acquire().await };
        let error = kit.acquire(acquire).await.err();
        let partition = kit.partition;
        assert_eq!(error, Some(AcquireError::Epoch { partition, stored: owner.epoch, expected }));
    }
    assert_eq!(kit.owner_record().await, before, "a refused acquisition changes nothing");
    owner.add(&kit.timer(kit.now)).await;
}

pub(super) async fn acquire_with_an_assignment_that_is_not_newer_is_refused(mut kit: Kit) {
    let first = Acquire { term: Term(5), version: 7, ..kit.next_acquire().await };
    let owner = kit.acquire(first).await.unwrap();
    let before = kit.owner_record().await;
    for (term, version) in [(Term(5), 7), (Term(5), 6), (Term(4), 8), (Term(4), 7), (Term(0), 0)] {
        let acquire = Acquire { term, version, ..kit.next_acquire().await };
        let error = kit.acquire(acquire).await.err();
        let expected = AcquireError::Assignment { given: (term, version), stored: (Term(5), 7) };
        assert_eq!(error, Some(expected));
    }
    assert_eq!(kit.owner_record().await, before, "a refused acquisition changes nothing");
    owner.add(&kit.timer(kit.now)).await;
}

pub(super) async fn acquire_under_a_higher_term_may_have_a_lower_version(mut kit: Kit) {
    let first = Acquire { term: Term(5), version: 7, ..kit.next_acquire().await };
    let first = kit.acquire(first).await.unwrap();
    let second = Acquire { term: Term(6), version: 1, ..kit.next_acquire().await };
    let second = kit.acquire(second).await.unwrap();
    assert!(second.epoch > first.epoch);
    let stored = kit.owner_record().await;
    assert_eq!((stored.term, stored.version), (Term(6), 1));
}

/// The store may have lost the record of an acquisition.
pub(super) async fn acquire_gives_an_epoch_above_the_floor(mut kit: Kit) {
    let stored = kit.owner().await.epoch;
    let far = Epoch(stored.0 + 1_000_000_000);
    for (floor, least) in [(Epoch(stored.0 - 1), stored), (far, far), (stored, far)] {
        let acquire = Acquire { floor, ..kit.next_acquire().await };
        let owner = kit.acquire(acquire).await.unwrap();
        assert!(owner.epoch > least, "{} with a floor of {floor}", owner.epoch);
        assert_eq!(kit.owner_record().await.epoch, owner.epoch);
        owner.add(&kit.timer(kit.now)).await;
    }
}

pub(super) async fn acquire_repeated_with_its_nonce_is_success(mut kit: Kit) {
    let before = kit.owner().await;
    before.add(&kit.timer(kit.now)).await;
    before.claim(kit.now + SECOND).await;
    let acquire = kit.next_acquire().await;
    let lost = kit.acquire(acquire).await.unwrap();
    let record = kit.owner_record().await;
    let again = kit.acquire(acquire).await.unwrap();
    assert_eq!(again.epoch, lost.epoch, "the repeat has the epoch of the first time");
    assert_eq!(again.prior_claim, kit.now + SECOND);
    assert_eq!(kit.owner_record().await, record);
    drop(lost);
    again.add(&kit.timer(kit.now)).await;
    assert_eq!(again.pending().await.len(), 2);
}

pub(super) async fn an_old_nonce_acquires_nothing(mut kit: Kit) {
    let acquire = kit.next_acquire().await;
    let first = kit.acquire(acquire).await.unwrap();
    let second = kit.owner().await;
    assert!(kit.acquire(acquire).await.is_err(), "the first owner's request is over");
    second.add(&kit.timer(kit.now)).await;
    assert!(second.epoch > first.epoch);
}

pub(super) async fn epochs_only_rise(mut kit: Kit) {
    let mut last = Epoch(0);
    for round in 0..20 {
        let owner = kit.owner().await;
        assert!(owner.epoch > last, "{} after {last}", owner.epoch);
        last = owner.epoch;
        if round % 2 == 0 {
            owner.lane.release(Vec::new()).await.unwrap();
        }
    }
}

pub(super) async fn epochs_rise_over_a_restart(mut kit: Kit) {
    let first = kit.owner().await;
    let epoch = first.epoch;
    let record = kit.owner_record().await;
    drop(first);
    if !kit.restart().await {
        return;
    }
    assert_eq!(kit.owner_record().await, record, "the owner record survives");
    let second = kit.owner().await;
    assert!(second.epoch > epoch);
}

pub(super) async fn terms_only_rise(mut kit: Kit) {
    let first = kit.store().raise_term().await.unwrap();
    assert!(first > Term(0));
    let second = kit.second_handle().await.raise_term().await.unwrap();
    assert!(second > first, "{second:?} after {first:?}");
    if kit.restart().await {
        let third = kit.store().raise_term().await.unwrap();
        assert!(third > second, "{third:?} after {second:?}");
    }
}

pub(super) async fn clocks_can_be_read(kit: Kit) {
    let clocks = kit.store().clocks();
    let names: HashSet<String> = clocks.iter().map(|clock| clock.name.clone()).collect();
    assert_eq!(names.len(), clocks.len(), "each clock has a name of its own");
    for clock in clocks {
        let shown = clock.reading.await.unwrap();
        let off = (shown / 1_000).abs_diff(kit.now.as_ms());
        assert!(off < DAY, "clock {} on the same machine is {off} ms off", clock.name);
    }
    let again: HashSet<String> = kit.store().clocks().into_iter().map(|clock| clock.name).collect();
    assert_eq!(again, names, "a clock keeps its name");
}

pub(super) async fn partitions_know_nothing_of_each_other(mut kit: Kit) {
    let here = kit.owner().await;
    let there = kit.owner_of(PartitionId(3)).await;
    assert_eq!(there.partition, PartitionId(3));
    let timer = kit.timer(kit.now);
    here.add(&timer).await;
    here.claim(kit.now + MINUTE).await;
    assert_eq!(there.place(timer.id).await, None);
    assert_eq!(there.pending().await.len(), 0);
    assert_eq!(there.census().await, Default::default());
    assert_eq!(kit.store().owner(PartitionId(3)).await.unwrap().claimed_until, Time::ZERO);
    assert_eq!(kit.store().owner(PartitionId(0)).await.unwrap(), OwnerRecord::default());
    kit.owner_of(PartitionId(3)).await;
    assert_eq!(here.place(timer.id).await, pending_at(kit.now), "a takeover next door fences nobody here");
}

pub(super) async fn a_second_handle_sees_the_owner(mut kit: Kit) {
    let owner = kit.owner().await;
    let other = kit.second_handle().await;
    let record = other.owner(kit.partition).await.unwrap();
    assert_eq!(record.epoch, owner.epoch);
    let acquire = Acquire {
        expected: record.epoch,
        nonce: Nonce(unique()),
        version: 1_000,
        ..kit.next_acquire().await
    };
    let taken = other.acquire(acquire).await.unwrap();
    assert!(taken.epoch > owner.epoch);
    let late = owner.try_apply(Vec::new()).await;
    assert!(matches!(late, Err(LaneError::Fenced { .. })), "{late:?}");
}

pub(super) async fn the_next_owner_finds_everything(mut kit: Kit) {
    let first = kit.owner().await;
    first.add(&kit.timer(kit.now + MINUTE)).await;
    first.add_parked(&kit.timer(kit.now)).await;
    first.add_taken(&kit.amo(kit.now)).await;
    first.add_dead(&kit.timer(kit.now)).await;
    let before = first.state().await;
    let second = kit.owner().await;
    let mut after = second.state().await;
    after.owner = before.owner;
    assert_eq!(after, before);
}

pub(super) async fn what_was_answered_is_stored(mut kit: Kit) {
    // Nothing but the schedule itself: its owner dies with the answer in hand.
    for round in 0..5 {
        let owner = kit.owner().await;
        let timer = kit.timer(kit.now + round);
        owner.add(&timer).await;
        drop(owner);
        let next = kit.owner().await;
        assert_eq!(next.place(timer.id).await, pending_at(timer.due), "stored before it was answered");
    }
}

pub(super) async fn everything_survives_a_restart(mut kit: Kit) {
    let first = kit.owner().await;
    let timer = kit.keyed(kit.now + MINUTE, &kit.key("survivor"));
    first.add(&timer).await;
    first.add(&kit.timer(kit.now + 40 * DAY)).await;
    first.add_parked(&kit.timer(kit.now)).await;
    first.add_taken(&kit.amo(kit.now)).await;
    first.add_unconfirmed(&kit.amo(kit.now)).await;
    first.add_dead(&kit.timer(kit.now)).await;
    let cancelled = kit.timer(kit.now + MINUTE);
    first.add(&cancelled).await;
    assert_eq!(first.cancel(cancelled.id).await, CancelAnswer::Cancelled(cancelled.id));
    first.claim(kit.now + SECOND).await;
    let before = first.state().await;
    drop(first);
    if !kit.restart().await {
        return;
    }
    let second = kit.owner().await;
    assert_eq!(second.prior_claim, kit.now + SECOND);
    let mut after = second.state().await;
    after.owner = before.owner;
    // Which timers the claim covers depends on the epoch.
    after.pending.iter_mut().for_each(|t| t.covered = false);
    assert_eq!(after, before);
    assert_eq!(second.schedule(&timer).await, OLD);
    assert_eq!(
        second.cancel(cancelled.id).await,
        CancelAnswer::Cancelled(cancelled.id),
        "outcomes are kept, too"
    );
    let answer = second.schedule(&kit.keyed(kit.now + MINUTE, &kit.key("survivor"))).await;
    assert_eq!(answer, crate::ScheduleAnswer::KeyTaken(timer.id));
}

fn delivery(kit: &Kit, attempt: u32) -> InFlight {
    let session = u128::from(unique()) << 64 | u128::from(unique());
    InFlight { id: kit.timer(kit.now).id, attempt, session, until: kit.now + MINUTE }
}

fn sorted(mut rows: Vec<InFlight>) -> Vec<InFlight> {
    rows.sort_by_key(|r| r.id);
    rows
}

pub(super) async fn release_closes_the_lane(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    owner.lane.release(Vec::new()).await.unwrap();
    assert!(kit.owner_record().await.released, "whoever comes next sees that nobody has it");
    assert_eq!(
        owner.try_apply(vec![super::values::schedule_op(&kit.timer(kit.now))]).await,
        Err(LaneError::Closed)
    );
    assert_eq!(owner.send_load(kit.now).await, Err(LaneError::Closed));
    assert_eq!(owner.lane.unload(kit.now).await, Err(LaneError::Closed));
    assert_eq!(owner.lane.census().await, Err(LaneError::Closed));
    assert_eq!(owner.lane.release(Vec::new()).await, Err(LaneError::Closed));
    let next = kit.owner().await;
    assert!(!kit.owner_record().await.released);
    assert_eq!(next.fires().await, [(timer.id, kit.now)], "only what came before the release was done");
}

pub(super) async fn release_hands_over_deliveries_under_way(mut kit: Kit) {
    let first = kit.owner().await;
    let rows: Vec<_> = (1..4).map(|attempt| delivery(&kit, attempt)).collect();
    first.lane.release(rows.clone()).await.unwrap();
    let second = kit.owner().await;
    assert_eq!(sorted(second.in_flight), sorted(rows));
}

pub(super) async fn handed_over_deliveries_stay_until_the_next_release(mut kit: Kit) {
    let first = kit.owner().await;
    let rows = vec![delivery(&kit, 1), delivery(&kit, 2)];
    first.lane.release(rows.clone()).await.unwrap();
    drop(kit.owner().await);
    let third = kit.owner().await;
    assert_eq!(
        sorted(third.in_flight.clone()),
        sorted(rows),
        "the second owner died: its predecessor's list stays"
    );
    let own = vec![delivery(&kit, 5)];
    third.lane.release(own.clone()).await.unwrap();
    let fourth = kit.owner().await;
    assert_eq!(fourth.in_flight, own);
    fourth.lane.release(Vec::new()).await.unwrap();
    assert_eq!(kit.owner().await.in_flight, []);
}

pub(super) async fn release_with_1000_deliveries(mut kit: Kit) {
    let first = kit.owner().await;
    let rows: Vec<_> = (0..1_000).map(|n| delivery(&kit, 1 + n % 7)).collect();
    first.lane.release(rows.clone()).await.unwrap();
    assert_eq!(sorted(kit.owner().await.in_flight), sorted(rows));
}

pub(super) async fn release_comes_after_what_was_called_before_it(mut kit: Kit) {
    let first = kit.owner().await;
    let timers: Vec<_> = (0..50).map(|n| kit.timer(kit.now + n)).collect();
    let calls: Vec<_> = timers.iter().map(|t| first.send(vec![super::values::schedule_op(t)])).collect();
    let released = first.lane.release(Vec::new());
    released.await.unwrap();
    for call in calls {
        assert_eq!(call.await.unwrap(), [crate::Answer::Schedule(NEW)]);
    }
    assert_eq!(kit.owner().await.pending().await.len(), 50);
}

pub(super) async fn a_claim_is_left_to_the_next_owner(mut kit: Kit) {
    let first = kit.owner().await;
    first.claim(kit.now + MINUTE).await;
    let second = kit.owner().await;
    assert_eq!(second.prior_claim, kit.now + MINUTE);
    assert_eq!(kit.owner_record().await.claimed_until, kit.now + MINUTE);
}

pub(super) async fn a_release_takes_its_own_claims_back(mut kit: Kit) {
    let first = kit.owner().await;
    first.claim(kit.now + SECOND).await;
    // It dies; the second one claims more and gives the partition up gracefully.
    let second = kit.owner().await;
    second.claim(kit.now + MINUTE).await;
    let timer = kit.timer(kit.now + 2 * SECOND);
    second.add(&timer).await;
    second.lane.release(Vec::new()).await.unwrap();
    assert_eq!(kit.owner_record().await.claimed_until, kit.now + SECOND);
    let third = kit.owner().await;
    assert_eq!(third.prior_claim, kit.now + SECOND, "what the first may have sent stays covered");
    assert!(third.pending().await.into_values().all(|t| !t.covered), "what the second has not sent is not");
}
