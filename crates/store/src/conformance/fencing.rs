//! An owner that lost its partition: every call is refused and changes nothing.
//!
//! A lane that was told once may refuse by itself from then on. So each call under test is the
//! first one that its owner makes after somebody else acquired the partition, and the visible state
//! is compared through the new owner.

use mtimer_types::{Filter, Key, KeyPolicy, Target, Timer};

use super::kit::Kit;
use super::owner::{Owner, State};
use super::pair::{same_state, schedule_with};
use super::properties::{Trial, trials};
use super::values::{DAY, HOUR, MINUTE, NEW, dest, schedule_op};
use crate::ops::SettleAnswer;
use crate::{
    Answer, Batch, CountsRange, DeadFilter, ForecastRange, Health, InFlight, LaneError, Load, Op,
    PendingRange, ScheduleAnswer, Verdict,
};

/// A partition with a timer in each place, and the owner that holds it now.
struct Scene {
    kit: Kit,
    owner: Owner,
    key: Key,
    pending: Timer,
    taken: Timer,
}

impl Scene {
    async fn new(mut kit: Kit) -> Self {
        let owner = kit.owner().await;
        let key = kit.key("fenced");
        let pending = kit.keyed(kit.now + MINUTE, &key);
        let taken = kit.amo(kit.now);
        owner.add(&pending).await;
        owner.add_taken(&taken).await;
        owner.add_parked(&kit.timer(kit.now)).await;
        owner.add_unconfirmed(&kit.amo(kit.now)).await;
        owner.add_dead(&kit.timer(kit.now)).await;
        Self { kit, owner, key, pending, taken }
    }

    /// Somebody else acquires the partition. Returns the former owner and the visible state.
    async fn takeover(&mut self) -> (Owner, State) {
        let next = self.kit.owner().await;
        let old = std::mem::replace(&mut self.owner, next);
        let state = self.owner.state().await;
        (old, state)
    }

    fn assert_fenced<T: std::fmt::Debug>(&self, what: &str, answer: &Result<T, LaneError>, old: &Owner) {
        match answer {
            Err(LaneError::Fenced { partition, stored, ours }) => {
                assert_eq!((*partition, *ours), (self.kit.partition, old.epoch), "{what}");
                assert_eq!(*stored, self.owner.epoch, "{what}: the refusal names the new owner's epoch");
            }
            other => panic!("{what} of a former owner was answered with {other:?}"),
        }
    }

    async fn assert_unchanged(&self, what: &str, before: &State) {
        let after = self.owner.state().await;
        same_state(&after, before)
            .unwrap_or_else(|e| panic!("{what} of a former owner changed something: {e}"));
    }
}

pub(super) async fn every_operation_is_refused(kit: Kit) {
    let mut scene = Scene::new(kit).await;
    for Trial { name, before, op, .. } in trials(&scene.kit) {
        scene.owner.apply(before).await;
        let (old, before) = scene.takeover().await;
        let answer = old.try_apply(vec![op]).await;
        scene.assert_fenced(name, &answer, &old);
        scene.assert_unchanged(name, &before).await;
    }
}

pub(super) async fn a_batch_is_refused_whole(kit: Kit) {
    let mut scene = Scene::new(kit).await;
    let mut ops = Vec::new();
    for Trial { before, op, .. } in trials(&scene.kit) {
        scene.owner.apply(before).await;
        ops.push(op);
    }
    let (old, before) = scene.takeover().await;
    ops.extend((0..300).map(|n| schedule_op(&scene.kit.timer(scene.kit.now + n))));
    let answer = old.try_apply(ops).await;
    scene.assert_fenced("a large batch", &answer, &old);
    scene.assert_unchanged("a large batch", &before).await;
}

pub(super) async fn claims_are_refused(kit: Kit) {
    let mut scene = Scene::new(kit).await;
    let claim = Some(scene.kit.now + 5 * MINUTE);
    let (old, before) = scene.takeover().await;
    let answer = old.lane.apply(Batch { now: old.now, claim, ops: Vec::new() }).await;
    scene.assert_fenced("a claim", &answer, &old);
    scene.assert_unchanged("a claim", &before).await;
    let (old, before) = scene.takeover().await;
    let ops = vec![schedule_op(&scene.kit.timer(scene.kit.now))];
    let answer = old.lane.apply(Batch { now: old.now, claim, ops }).await;
    scene.assert_fenced("a claim with a schedule", &answer, &old);
    scene.assert_unchanged("a claim with a schedule", &before).await;
    let (old, before) = scene.takeover().await;
    let load = Load { until: old.now, max_timers: 100, max_bytes: 100_000, claim };
    let answer = old.lane.load(load).await;
    scene.assert_fenced("a claim with a load", &answer, &old);
    scene.assert_unchanged("a claim with a load", &before).await;
}

pub(super) async fn loads_are_refused(kit: Kit) {
    let mut scene = Scene::new(kit).await;
    let (old, before) = scene.takeover().await;
    let answer = old.send_load(old.now + DAY).await;
    scene.assert_fenced("a load", &answer, &old);
    scene.assert_unchanged("a load", &before).await;
}

pub(super) async fn an_empty_batch_is_refused(kit: Kit) {
    let mut scene = Scene::new(kit).await;
    let (old, _) = scene.takeover().await;
    let answer = old.try_apply(Vec::new()).await;
    scene.assert_fenced("an empty batch", &answer, &old);
}

pub(super) async fn reads_are_refused(kit: Kit) {
    let mut scene = Scene::new(kit).await;
    let (old, _) = scene.takeover().await;
    let answer = old.lane.get(Target::Id(scene.pending.id)).await;
    scene.assert_fenced("get", &answer, &old);
    let (old, _) = scene.takeover().await;
    let answer = old.lane.get(Target::Key(dest(), scene.key.clone())).await;
    scene.assert_fenced("get by key", &answer, &old);
    let (old, _) = scene.takeover().await;
    let answer = old.lane.parked_destinations().await;
    scene.assert_fenced("parked destinations", &answer, &old);
    let (old, _) = scene.takeover().await;
    let answer = old.lane.parked(dest(), 0, 10).await;
    scene.assert_fenced("parked", &answer, &old);
    let (old, _) = scene.takeover().await;
    let answer = old.lane.dead(DeadFilter::default(), 0, 10).await;
    scene.assert_fenced("dead", &answer, &old);
    let (old, _) = scene.takeover().await;
    let answer = old.lane.taken(0, 10).await;
    scene.assert_fenced("taken", &answer, &old);
    let (old, _) = scene.takeover().await;
    let answer = old.lane.unconfirmed(0, 10).await;
    scene.assert_fenced("unconfirmed", &answer, &old);
    let (old, _) = scene.takeover().await;
    let answer = old.lane.pending(PendingRange::of(Filter::default(), 10)).await;
    scene.assert_fenced("list of what is pending", &answer, &old);
    let (old, _) = scene.takeover().await;
    let answer = old.lane.counts(CountsRange::of(10)).await;
    scene.assert_fenced("counts", &answer, &old);
    let (old, _) = scene.takeover().await;
    let answer = old.lane.forecast(ForecastRange::of(60_000)).await;
    scene.assert_fenced("forecast", &answer, &old);
    let (old, _) = scene.takeover().await;
    let answer = old.lane.census().await;
    scene.assert_fenced("census", &answer, &old);
}

pub(super) async fn release_is_refused(kit: Kit) {
    let mut scene = Scene::new(kit).await;
    let (old, before) = scene.takeover().await;
    let word = InFlight { id: scene.pending.id, attempt: 1, session: 7, until: scene.kit.now };
    let answer = old.lane.release(vec![word]).await;
    scene.assert_fenced("a release", &answer, &old);
    scene.assert_unchanged("a release", &before).await;
    scene.owner.add(&scene.kit.timer(scene.kit.now)).await;
    assert_eq!(scene.kit.owner().await.in_flight, [], "nothing was left by the former owner");
}

pub(super) async fn every_later_call_is_refused_too(kit: Kit) {
    let mut scene = Scene::new(kit).await;
    let (old, before) = scene.takeover().await;
    let first = old.try_apply(Vec::new()).await;
    scene.assert_fenced("the first call", &first, &old);
    for Trial { name, op, .. } in trials(&scene.kit) {
        let answer = old.try_apply(vec![op]).await;
        scene.assert_fenced(name, &answer, &old);
    }
    assert!(matches!(old.send_load(old.now).await, Err(LaneError::Fenced { .. })));
    assert!(matches!(old.lane.unload(old.now).await, Err(LaneError::Fenced { .. })));
    assert!(matches!(old.lane.census().await, Err(LaneError::Fenced { .. })));
    assert!(matches!(old.lane.release(Vec::new()).await, Err(LaneError::Fenced { .. })));
    scene.assert_unchanged("later calls", &before).await;
}

pub(super) async fn health_tells_that_the_lane_has_ended(kit: Kit) {
    let mut scene = Scene::new(kit).await;
    let (old, _) = scene.takeover().await;
    let mut health = old.lane.health();
    assert!(old.try_apply(Vec::new()).await.is_err());
    let ended = |h: &Health| matches!(h, Health::Ended(LaneError::Fenced { .. }));
    assert!(health.wait_for(ended).await.is_ok());
    assert_eq!(*scene.owner.lane.health().borrow(), Health::Up, "the new owner's lane is well");
}

pub(super) async fn an_owner_fenced_twice_is_refused(kit: Kit) {
    let mut scene = Scene::new(kit).await;
    let (first, _) = scene.takeover().await;
    let (second, before) = scene.takeover().await;
    let settle = || vec![Op::settle(scene.pending.id, Verdict::Ack)];
    scene.assert_fenced("a call", &second.try_apply(settle()).await, &second);
    // Its lane may have ended before, when it saw the second owner.
    match first.try_apply(settle()).await {
        Err(LaneError::Fenced { stored, .. }) if stored == second.epoch => {}
        answer => scene.assert_fenced("a call", &answer, &first),
    }
    scene.assert_unchanged("calls of two former owners", &before).await;
}

pub(super) async fn a_released_partition_is_fenced_no_less(mut kit: Kit) {
    let first = kit.owner().await;
    let second = kit.owner().await;
    second.lane.release(Vec::new()).await.unwrap();
    let answer = first.try_apply(vec![schedule_op(&kit.timer(kit.now))]).await;
    assert!(matches!(answer, Err(LaneError::Fenced { .. })), "{answer:?}");
    assert_eq!(kit.owner().await.pending().await.len(), 0);
}

pub(super) async fn a_former_owner_may_go_away(kit: Kit) {
    let mut scene = Scene::new(kit).await;
    let (old, before) = scene.takeover().await;
    drop(old);
    scene.assert_unchanged("the end", &before).await;
    scene.owner.add(&scene.kit.timer(scene.kit.now)).await;
}

pub(super) async fn calls_on_their_way_are_applied_up_to_the_takeover(mut kit: Kit) {
    let old = kit.owner().await;
    let batches: Vec<[Timer; 2]> =
        (0..40).map(|n| [kit.timer(kit.now + n), kit.timer(kit.now + HOUR + n)]).collect();
    let calls: Vec<_> = batches.iter().map(|b| old.send(b.iter().map(schedule_op).collect())).collect();
    let new = kit.owner().await;
    let there = new.pending().await;
    let mut fenced = false;
    for (batch, call) in batches.iter().zip(calls) {
        let stored = batch.iter().filter(|t| there.contains_key(&t.id)).count();
        match call.await {
            Ok(answers) => {
                assert!(!fenced, "a call was done behind one that was refused");
                assert_eq!(answers, [Answer::Schedule(NEW), Answer::Schedule(NEW)]);
                assert_eq!(stored, 2, "what was answered as stored is there");
            }
            Err(LaneError::Fenced { .. }) => {
                fenced = true;
                assert_eq!(stored, 0, "what was refused is not there");
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(new.pending().await.len(), there.len(), "nothing arrives later");
}

pub(super) async fn the_new_owner_decides_alone(kit: Kit) {
    let mut scene = Scene::new(kit).await;
    let (old, _) = scene.takeover().await;
    let late = scene.kit.keyed(scene.kit.now, &scene.key);
    assert!(old.try_apply(vec![schedule_with(&late, KeyPolicy::Replace)]).await.is_err());
    let answer = scene.owner.schedule(&scene.kit.keyed(scene.kit.now, &scene.key)).await;
    assert_eq!(answer, ScheduleAnswer::KeyTaken(scene.pending.id));
    assert!(old.try_apply(vec![Op::settle(scene.taken.id, Verdict::Ack)]).await.is_err());
    assert_eq!(scene.owner.ack(scene.taken.id).await, SettleAnswer::Done);
    assert_eq!(scene.owner.ack(scene.pending.id).await, SettleAnswer::Done);
}
