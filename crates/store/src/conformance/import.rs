//! Imports: nothing delivers a staged timer before its release, whoever owns the partition.

use mtimer_types::{
    Bulk, BulkAction, BulkId, BulkObstacle, DeadReason, Ended, Epoch, Extensions, Filter, ImportGoal,
    ImportId, Key, Staging, Target, Time, Timer, TimerId,
};

use super::kit::Kit;
use super::owner::Owner;
use super::values::{DAY, HOUR, MINUTE, NEW, SECOND, dest, pending_at, unique};
use crate::bulk::BulkPlace;
use crate::ops::{
    BeginBulkAnswer, BulkActAnswer, ExtendDeadline, ExtendDeadlineAnswer, Import, ImportAnswer, MoveAnswer,
    PurgeAnswer, ReplayAnswer, SettleAnswer,
};
use crate::{
    Answer, CancelAnswer, Op, Progress, Record, RequestId, RescheduleAnswer, ScheduleAnswer, Verdict,
};

const IMPORT: ImportId = ImportId(7);
const LIVE: ImportGoal = ImportGoal::Live { tier: 0 };
const STAGED: ImportAnswer = ImportAnswer::Staged { new: true };
const AGAIN: ImportAnswer = ImportAnswer::Staged { new: false };

fn import_of(import: ImportId, timer: &Timer, goal: ImportGoal) -> Import {
    let mut record = Record::new(timer.clone().into());
    record.extensions = record.extensions.staged(Staging { import, goal }).unwrap();
    Import { record: record.into(), fire: timer.due }
}

async fn import(owner: &Owner, op: Import) -> ImportAnswer {
    match owner.one(op.into()).await {
        Answer::Import(answer) => answer,
        other => panic!("an import was answered with {other:?}"),
    }
}

/// Stages a timer that must be new.
async fn stage(owner: &Owner, timer: &Timer, goal: ImportGoal) {
    assert_eq!(import(owner, import_of(IMPORT, timer, goal)).await, STAGED);
}

async fn begin(owner: &Owner, action: BulkAction) -> u32 {
    let bulk = Bulk::new(action, Filter::default());
    assert_eq!(owner.begin_bulk(BulkId(unique().into()), bulk).await, BeginBulkAnswer::Begun);
    owner.bulks().await.last().unwrap().number
}

async fn end(owner: &Owner, number: u32) {
    assert_eq!(owner.bulk_advance(number, BulkPlace::End, 0).await, MoveAnswer::Done);
}

/// Releases one timer, by a job of its own.
async fn release(owner: &Owner, id: TimerId) -> BulkActAnswer {
    let number = begin(owner, BulkAction::Release { import: IMPORT }).await;
    let answer = owner.bulk_act(number, id).await;
    end(owner, number).await;
    answer
}

fn dead_at(died: Time) -> ImportGoal {
    ImportGoal::Dead { reason: DeadReason::Exhausted, died }
}

async fn extend(owner: &Owner, id: TimerId, deadline: Time) -> ExtendDeadlineAnswer {
    let op = ExtendDeadline { target: Target::Id(id), deadline, request: RequestId(unique()) };
    match owner.one(op.into()).await {
        Answer::ExtendDeadline(answer) => answer,
        other => panic!("{other:?}"),
    }
}

pub(super) async fn a_staged_timer_is_never_loaded(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers = [kit.timer(kit.now - DAY), kit.timer(kit.now + HOUR)];
    for timer in &timers {
        stage(&owner, timer, LIVE).await;
        assert_eq!(owner.place(timer.id).await, pending_at(timer.due.staged()));
    }
    let other = kit.timer(kit.now);
    owner.add(&other).await;
    owner.claim(kit.now + DAY).await;
    let look = async |owner: &Owner| {
        assert_eq!(owner.fires().await, [(other.id, other.due)]);
        let census = owner.census().await;
        assert_eq!((census.pending, census.staged), (1, 2));
        let counts = owner.counts(7).await[&dest()];
        assert_eq!((counts.pending, counts.staged, counts.total()), (1, 2, 3));
    };
    look(&owner).await;
    look(&kit.owner().await).await;
}

pub(super) async fn owners_find_no_staged_timer(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.amo(kit.now);
    stage(&owner, &timer, LIVE).await;
    let before = owner.see(timer.id).await;
    let retry = Verdict::Retry { fire: kit.now + HOUR, tier: 1, failed: 1, error: "no".into() };
    for verdict in [Verdict::Ack, Verdict::LateAck { attempt: 1 }, retry, Verdict::Unconfirmed] {
        assert_eq!(owner.settle(timer.id, verdict).await, SettleAnswer::Gone);
    }
    assert_eq!(owner.dead_letter(timer.id).await, SettleAnswer::Gone);
    assert_eq!(owner.take(timer.id).await, MoveAnswer::Gone);
    assert_eq!(owner.park(timer.id).await, MoveAnswer::Gone);
    assert_eq!(owner.unpark(timer.id, kit.now).await, MoveAnswer::Gone);
    assert_eq!(owner.replay(timer.id, kit.now).await, ReplayAnswer::Gone);
    assert_eq!(owner.purge(timer.id).await, PurgeAnswer::Gone);
    assert_eq!(owner.see(timer.id).await, before);
}

pub(super) async fn a_repeated_import_changes_nothing(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.keyed(kit.now + HOUR, &kit.key("k"));
    stage(&owner, &timer, LIVE).await;
    let before = owner.see(timer.id).await;
    assert_eq!(import(&owner, import_of(IMPORT, &timer, LIVE)).await, AGAIN);
    let other = Timer { payload: "other".into(), ..timer.clone() };
    let mut later = import_of(IMPORT, &timer, LIVE);
    later.fire = kit.now + DAY;
    let mut failed = import_of(IMPORT, &timer, LIVE);
    failed.record.progress.failed = 1;
    let others = [
        import_of(IMPORT, &other, LIVE),
        import_of(IMPORT, &timer, dead_at(kit.now)),
        import_of(ImportId(8), &timer, LIVE),
        later,
        failed,
    ];
    for other in others {
        assert_eq!(import(&owner, other.clone()).await, ImportAnswer::Exists, "{other:?}");
    }
    let second = kit.owner().await;
    assert_eq!(import(&second, import_of(IMPORT, &timer, LIVE)).await, AGAIN, "after a takeover");
    assert_eq!(second.see(timer.id).await, before);
    assert_eq!(release(&second, timer.id).await, BulkActAnswer::Released { fire: Some(timer.due) });
    assert_eq!(import(&second, import_of(IMPORT, &timer, LIVE)).await, ImportAnswer::Exists);
    assert_eq!(second.cancel(timer.id).await, CancelAnswer::Cancelled(timer.id));
    let ended = ImportAnswer::Ended(Ended::Cancelled);
    assert_eq!(import(&second, import_of(IMPORT, &timer, LIVE)).await, ended);
}

pub(super) async fn a_released_import_brings_nothing_back(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let (timer, other) = (kit.timer(kit.now + HOUR), kit.timer(kit.now + HOUR));
    let release = BulkAction::Release { import: IMPORT };
    let dry = Bulk { dry_run: true, ..Bulk::new(release, Filter::default()) };
    let elsewhere = Filter { app: Some("elsewhere".into()), ..Filter::default() };
    for bulk in [dry, Bulk::new(release, elsewhere)] {
        assert_eq!(owner.begin_bulk(BulkId(unique().into()), bulk).await, BeginBulkAnswer::Begun);
        end(&owner, owner.bulks().await.last().unwrap().number).await;
    }
    stage(&owner, &timer, LIVE).await;
    let number = begin(&owner, release).await;
    assert_eq!(owner.bulk_act(number, timer.id).await, BulkActAnswer::Released { fire: Some(timer.due) });
    assert_eq!(owner.cancel(timer.id).await, CancelAnswer::Cancelled(timer.id));
    owner.now = kit.now + DAY;
    for timer in [&timer, &other] {
        let answer = import(&owner, import_of(IMPORT, timer, LIVE)).await;
        assert_eq!(answer, ImportAnswer::Released, "its end is forgotten, but not its release");
        assert_eq!(owner.see(timer.id).await, None);
    }
    end(&owner, number).await;
    let mut second = kit.owner().await;
    second.now = owner.now;
    assert_eq!(import(&second, import_of(IMPORT, &timer, LIVE)).await, ImportAnswer::Released);
    assert_eq!(import(&second, import_of(ImportId(8), &timer, LIVE)).await, STAGED, "another import");
}

pub(super) async fn a_staged_timer_has_no_key_until_its_release(mut kit: Kit) {
    let owner = kit.owner().await;
    let key: Key = kit.key("k");
    let keyed = || kit.keyed(kit.now + HOUR, &key);
    let (letter, timer, twin, next) = (keyed(), keyed(), keyed(), keyed());
    stage(&owner, &letter, dead_at(kit.now)).await;
    stage(&owner, &timer, LIVE).await;
    stage(&owner, &twin, LIVE).await;
    assert_eq!((owner.see_key(&key).await, owner.census().await.keys), (None, 0));
    assert_eq!(owner.schedule(&next).await, NEW, "the key is free");
    let staged = owner.place(timer.id).await;
    assert_eq!(release(&owner, letter.id).await, BulkActAnswer::Released { fire: None });
    assert_eq!(release(&owner, timer.id).await, BulkActAnswer::NotDone(BulkObstacle::KeyTaken));
    assert_eq!((owner.place(timer.id).await, owner.see_key(&key).await), (staged, Some(next.id)));
    assert_eq!(owner.bulks().await.last().unwrap().not_done, 1);
    assert_eq!(owner.cancel_key(&key).await, CancelAnswer::Cancelled(next.id));
    assert_eq!(release(&owner, timer.id).await, BulkActAnswer::Released { fire: Some(timer.due) });
    assert_eq!(owner.see_key(&key).await, Some(timer.id));
    assert_eq!(release(&owner, twin.id).await, BulkActAnswer::NotDone(BulkObstacle::KeyTaken));
    assert_eq!(owner.cancel_key(&key).await, CancelAnswer::Cancelled(timer.id));
}

pub(super) async fn no_request_finds_a_staged_timer(mut kit: Kit) {
    let owner = kit.owner().await;
    let deadline = Some(kit.now + DAY);
    let timer = Timer { deadline, ..kit.keyed(kit.now + HOUR, &kit.key("k")) };
    let letter = kit.timer(kit.now + HOUR);
    stage(&owner, &timer, LIVE).await;
    stage(&owner, &letter, dead_at(kit.now)).await;
    let number = begin(&owner, BulkAction::Release { import: IMPORT }).await;
    for timer in [&timer, &letter] {
        let before = owner.see(timer.id).await;
        assert_eq!(owner.schedule(timer).await, ScheduleAnswer::Conflict);
        assert_eq!(owner.cancel(timer.id).await, CancelAnswer::NotFound);
        assert_eq!(owner.reschedule(timer.id, kit.now).await, RescheduleAnswer::NotFound);
        assert_eq!(extend(&owner, timer.id, kit.now + DAY).await, ExtendDeadlineAnswer::NotFound);
        assert_eq!(owner.see(timer.id).await, before);
    }
    assert_eq!(owner.cancel_key(timer.key.as_ref().unwrap()).await, CancelAnswer::NotFound);
    assert_eq!(owner.bulk_act(number, timer.id).await, BulkActAnswer::Released { fire: Some(timer.due) });
    assert_eq!(owner.bulk_act(number, letter.id).await, BulkActAnswer::Released { fire: None });
    end(&owner, number).await;
    assert_eq!(owner.cancel(timer.id).await, CancelAnswer::Cancelled(timer.id));
}

pub(super) async fn a_release_files_it_with_all_that_it_had(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now + HOUR);
    let fire = kit.now + 2 * HOUR;
    let progress = Progress {
        failed: 3,
        budget_from: 1,
        stopped: true,
        fresh: None,
        last_error: Some("no such order".into()),
    };
    let extensions = Extensions::new([(4, "kept")]).unwrap();
    let staging = Staging { import: IMPORT, goal: ImportGoal::Live { tier: 2 } };
    let record = Record {
        progress: progress.clone(),
        extensions: extensions.staged(staging).unwrap(),
        ..Record::new(timer.clone().into())
    };
    assert_eq!(import(&owner, Import { record: record.into(), fire }).await, STAGED);
    let second = kit.owner().await;
    assert_eq!(second.record(timer.id).await.progress, progress);
    assert_eq!(release(&second, timer.id).await, BulkActAnswer::Released { fire: Some(fire) });
    let loaded = second.pending().await.remove(&timer.id).unwrap();
    assert_eq!((loaded.fire, loaded.tier, loaded.covered), (fire, 2, false));
    assert_eq!((&*loaded.record.timer, &loaded.record.progress), (&timer, &progress));
    assert_eq!((loaded.record.extensions.staging(), loaded.record.accepted), (None, None));
    let kept: Vec<u32> = loaded.record.extensions.iter().map(|(tag, _)| tag).collect();
    assert!(kept.contains(&4), "{kept:?}");
    assert_eq!(second.census().await.retrying, 1);
}

pub(super) async fn one_that_is_past_due_is_late_from_its_release_on(mut kit: Kit) {
    let mut owner = kit.owner().await;
    owner.claim(kit.now + MINUTE).await;
    let timer = kit.timer(kit.now - DAY);
    stage(&owner, &timer, LIVE).await;
    owner = kit.owner().await;
    owner.now = kit.now + 5 * SECOND;
    assert_eq!(release(&owner, timer.id).await, BulkActAnswer::Released { fire: Some(timer.due) });
    let loaded = owner.pending().await.remove(&timer.id).unwrap();
    assert_eq!((loaded.fire, loaded.record.accepted), (timer.due, Some(owner.now)));
    assert!(!loaded.covered, "no owner before has sent it, whatever it has claimed");
}

pub(super) async fn the_dead_and_unconfirmed_get_their_times_back(mut kit: Kit) {
    let owner = kit.owner().await;
    let (letter, lost) = (kit.timer(kit.now - DAY), kit.amo(kit.now - DAY));
    let (died, since) = (kit.now - HOUR, kit.now - 2 * HOUR);
    stage(&owner, &letter, dead_at(died)).await;
    stage(&owner, &lost, ImportGoal::Unconfirmed { epoch: Epoch(3), since }).await;
    assert_eq!((owner.all_dead().await.len(), owner.all_unconfirmed(9).await.len()), (0, 0));
    for timer in [&letter, &lost] {
        assert_eq!(release(&owner, timer.id).await, BulkActAnswer::Released { fire: None });
    }
    let second = kit.owner().await;
    let row = second.all_dead().await.remove(0);
    assert_eq!((row.record.timer.id, row.reason, row.died), (letter.id, DeadReason::Exhausted, died));
    let row = second.all_unconfirmed(9).await.remove(0);
    assert_eq!((row.record.timer.id, row.epoch, row.since), (lost.id, Epoch(3), since));
    let census = second.census().await;
    assert_eq!((census.staged, census.dead, census.taken), (0, 1, 1));
    for timer in [&letter, &lost] {
        assert_eq!(second.replay(timer.id, kit.now).await, ReplayAnswer::Done);
        assert_eq!(second.place(timer.id).await, pending_at(kit.now), "not staged any more");
    }
}

pub(super) async fn a_job_meets_the_staged_timers_of_its_import_alone(mut kit: Kit) {
    let owner = kit.owner().await;
    let (mine, other, plain) = (kit.timer(kit.now), kit.timer(kit.now), kit.timer(kit.now));
    stage(&owner, &mine, LIVE).await;
    assert_eq!(import(&owner, import_of(ImportId(8), &other, LIVE)).await, STAGED);
    owner.add(&plain).await;
    for action in [BulkAction::Cancel, BulkAction::Shift { ms: 5 }, BulkAction::MoveTo { due: kit.now }] {
        let number = begin(&owner, action).await;
        for timer in [&mine, &other] {
            assert_eq!(owner.bulk_act(number, timer.id).await, BulkActAnswer::Passed, "{action:?}");
        }
        end(&owner, number).await;
    }
    let number = begin(&owner, BulkAction::Release { import: IMPORT }).await;
    assert_eq!(owner.bulk_act(number, other.id).await, BulkActAnswer::Passed);
    assert_eq!(owner.bulk_act(number, plain.id).await, BulkActAnswer::Passed);
    let late = kit.timer(kit.now);
    assert_eq!(import(&owner, import_of(IMPORT, &late, LIVE)).await, ImportAnswer::Released);
    assert_eq!(owner.bulk_act(number, mine.id).await, BulkActAnswer::Released { fire: Some(mine.due) });
    assert_eq!(owner.bulk_act(number, mine.id).await, BulkActAnswer::Passed, "a repeat");
    assert_eq!(owner.bulks().await.last().unwrap().done, 1);
    end(&owner, number).await;
}

pub(super) async fn a_withdrawal_leaves_nothing(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.keyed(kit.now, &kit.key("k"));
    stage(&owner, &timer, LIVE).await;
    let number = begin(&owner, BulkAction::Withdraw { import: IMPORT }).await;
    assert_eq!(owner.bulk_act(number, timer.id).await, BulkActAnswer::Withdrawn);
    assert_eq!(owner.bulk_act(number, timer.id).await, BulkActAnswer::Passed);
    end(&owner, number).await;
    assert_eq!((owner.see(timer.id).await, owner.see_key(timer.key.as_ref().unwrap()).await), (None, None));
    let census = owner.census().await;
    assert_eq!((census.staged, census.keys, census.residue), (0, 0, 0));
    stage(&owner, &timer, LIVE).await;
}

pub(super) async fn a_release_goes_on_after_a_takeover(mut kit: Kit) {
    let first = kit.owner().await;
    let timers: Vec<Timer> = (0..6).map(|n| kit.timer(kit.now + n * MINUTE)).collect();
    for timer in &timers {
        stage(&first, timer, LIVE).await;
    }
    let number = begin(&first, BulkAction::Release { import: IMPORT }).await;
    assert_eq!(first.bulks().await[0].at, BulkPlace::Pending((Time::ZERO.staged(), TimerId::from_u128(0))));
    for timer in &timers[..3] {
        first.bulk_act(number, timer.id).await;
    }
    let second = kit.owner().await;
    assert_eq!(second.bulks().await[0].done, 3);
    for timer in &timers {
        second.bulk_act(number, timer.id).await;
    }
    assert_eq!(second.bulks().await[0].done, 6, "each is released once");
    let mut fires: Vec<_> = timers.iter().map(|timer| (timer.id, timer.due)).collect();
    fires.sort_unstable();
    assert_eq!(second.fires().await, fires);
}

pub(super) async fn staged_timers_survive_a_restart(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<Timer> = (0..300).map(|n| kit.timer(kit.now + n * HOUR)).collect();
    let ops: Vec<Op> = timers.iter().map(|timer| import_of(IMPORT, timer, LIVE).into()).collect();
    owner.apply(ops).await;
    drop(owner);
    if !kit.restart().await {
        return;
    }
    let owner = kit.owner().await;
    assert_eq!((owner.fires().await.len(), owner.census().await.staged), (0, 300));
    let number = begin(&owner, BulkAction::Release { import: IMPORT }).await;
    for timer in &timers {
        owner.bulk_act(number, timer.id).await;
    }
    end(&owner, number).await;
    let mut fires: Vec<_> = timers.iter().map(|timer| (timer.id, timer.due)).collect();
    fires.sort_unstable();
    assert_eq!(owner.fires().await, fires);
}
