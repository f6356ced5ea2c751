//! The census tells the truth, and an emptied partition is empty: nothing is left of timers that
//! ended, whichever way they went.

use mtimer_types::{DeadReason, KeyPolicy, SlotWidth, Target, Time, Timer, TimerId};

use super::kit::Kit;
use super::owner::Owner;
use super::pair::schedule_with;
use super::values::{DAY, HOUR, MINUTE, SECOND, YEAR, dead_verdict, unique};
use crate::ops::{Cancel, Park, Purge, Replay, Reschedule, SettleAnswer, Trim, Unpark};
use crate::{Answer, Census, Op, RequestId, Retained, Verdict};

const EMPTY: Census =
    Census { pending: 0, retrying: 0, parked: 0, taken: 0, dead: 0, keys: 0, staged: 0, residue: 0 };

fn settle(id: TimerId, verdict: Verdict) -> Op {
    Op::settle(id, verdict)
}

fn retry(id: TimerId, fire: Time, n: u32) -> Op {
    settle(id, Verdict::Retry { fire, tier: n as u8, failed: n, error: "again".into() })
}

fn cancel(id: TimerId) -> Op {
    Op::Cancel(Cancel { target: Target::Id(id), sent_attempt: None, request: RequestId(unique()) })
}

fn reschedule(id: TimerId, due: Time) -> Op {
    Op::Reschedule(Reschedule { target: Target::Id(id), due, is_begun: false, request: RequestId(unique()) })
}

/// Timers at all distances, some with keys, every third at most once.
fn mixed(kit: &Kit, count: u64) -> Vec<Timer> {
    let aheads = [0, SECOND, 90 * SECOND, HOUR, 20 * HOUR, 9 * DAY, 3 * YEAR];
    (0..count)
        .map(|n| {
            let ahead = aheads[(n % 7) as usize] + n * 1_013;
            let due = if n % 11 == 0 { kit.now - ahead } else { kit.now + ahead };
            let timer = if n % 3 == 0 { kit.amo(due) } else { kit.timer(due) };
            let key = (n % 2 == 0).then(|| kit.key(&format!("drain-{n}-")));
            Timer { key, deadline: Some(due + 20 * YEAR), ..timer }
        })
        .collect()
}

/// Applies the operations of `ops` to each timer; every operation must be done.
async fn each(owner: &Owner, timers: &[Timer], ops: impl Fn(&Timer) -> Vec<Op>) {
    for chunk in timers.chunks(200) {
        owner.apply(chunk.iter().flat_map(&ops).collect()).await;
    }
}

pub(super) async fn the_census_counts_what_is_there(mut kit: Kit) {
    let owner = kit.owner().await;
    assert_eq!(owner.census().await, EMPTY);
    let timers = mixed(&kit, 70);
    owner.add_all(&timers).await;
    let keys = timers.iter().filter(|t| t.key.is_some()).count() as u64;
    let here = owner.census().await;
    assert_eq!(here, Census { pending: 70, keys, residue: here.residue, ..EMPTY });
    each(&owner, &timers[..10], |t| vec![retry(t.id, kit.now + HOUR, 1)]).await;
    each(&owner, &timers[10..25], |t| vec![Op::Park(Park { id: t.id, failed: 0 })]).await;
    each(&owner, &timers[25..32], |t| vec![settle(t.id, dead_verdict(1))]).await;
    let taken: Vec<_> =
        timers[32..].iter().filter(|t| t.mode == mtimer_types::Mode::AtMostOnce).cloned().collect();
    each(&owner, &taken, |t| vec![Op::take(t.id, 0)]).await;
    each(&owner, &taken[..2], |t| vec![settle(t.id, Verdict::Unconfirmed)]).await;
    let freed = timers[25..32].iter().chain(&taken[..2]).filter(|t| t.key.is_some()).count() as u64;
    let count = taken.len() as u64;
    for owner in [owner, kit.owner().await] {
        if owner.epoch != kit.owner_record().await.epoch {
            continue;
        }
        let here = owner.census().await;
        let expected = Census {
            pending: 38 - count,
            retrying: 10,
            parked: 15,
            taken: count,
            dead: 7,
            keys: keys - freed,
            staged: 0,
            residue: here.residue,
        };
        assert_eq!(here, expected);
    }
}

async fn empties(mut kit: Kit, end: impl Fn(&Kit, &Timer) -> Vec<Op>) {
    let owner = kit.owner().await;
    let timers = mixed(&kit, 210);
    owner.add_all(&timers).await;
    each(&owner, &timers[..70], |t| end(&kit, t)).await;
    // Some of them were loaded, some by a former owner.
    owner.load(kit.now + HOUR).await;
    each(&owner, &timers[70..140], |t| end(&kit, t)).await;
    let next = kit.owner().await;
    next.load(kit.now + 3 * HOUR).await;
    each(&next, &timers[140..], |t| end(&kit, t)).await;
    assert_eq!(next.census().await, EMPTY);
    assert_eq!(next.state().await.pending, []);
    assert_eq!(kit.owner().await.census().await, EMPTY, "for the next owner, too");
}

pub(super) async fn after_acknowledgements(kit: Kit) {
    empties(kit, |_, t| vec![settle(t.id, Verdict::Ack)]).await;
}

pub(super) async fn after_cancels(kit: Kit) {
    empties(kit, |_, t| vec![cancel(t.id)]).await;
}

pub(super) async fn after_expiry(kit: Kit) {
    empties(kit, |_, t| vec![settle(t.id, Verdict::Expired { next: Time::MAX })]).await;
}

pub(super) async fn after_takes(kit: Kit) {
    empties(kit, |_, t| vec![Op::take(t.id, 0), settle(t.id, Verdict::Ack)]).await;
}

pub(super) async fn after_unconfirmed_ones_were_purged(kit: Kit) {
    empties(kit, |_, t| {
        vec![
            Op::take(t.id, 0),
            settle(t.id, Verdict::Unconfirmed),
            Op::Purge(Purge { id: t.id }),
            settle(t.id, Verdict::Ack),
        ]
    })
    .await;
}

pub(super) async fn after_retries(kit: Kit) {
    empties(kit, |kit, t| {
        let fires = [SECOND, MINUTE, 3 * HOUR, 5 * DAY];
        let retries = (1..).zip(fires).map(|(n, ahead)| retry(t.id, kit.now + ahead, n));
        retries.chain([settle(t.id, Verdict::Ack)]).collect()
    })
    .await;
}

pub(super) async fn after_parking(kit: Kit) {
    empties(kit, |kit, t| {
        let (id, fire) = (t.id, kit.now);
        vec![
            Op::Park(Park { id, failed: 0 }),
            Op::Unpark(Unpark { id, fire }),
            Op::Park(Park { id, failed: 0 }),
            settle(id, Verdict::Ack),
        ]
    })
    .await;
}

pub(super) async fn after_reschedules(kit: Kit) {
    empties(kit, |kit, t| {
        vec![
            reschedule(t.id, kit.now + 5 * DAY),
            reschedule(t.id, kit.now + SECOND),
            reschedule(t.id, t.due),
            reschedule(t.id, kit.now + HOUR),
            settle(t.id, Verdict::Ack),
        ]
    })
    .await;
}

pub(super) async fn after_purges(kit: Kit) {
    empties(kit, |_, t| vec![settle(t.id, dead_verdict(1)), Op::Purge(Purge { id: t.id })]).await;
}

pub(super) async fn after_a_trim(kit: Kit) {
    empties(kit, |_, t| {
        vec![
            settle(t.id, dead_verdict(1)),
            Op::Trim(Trim { of: Retained::Dead, before: Time::MAX, keep: 0, limit: 1_000 }),
        ]
    })
    .await;
}

pub(super) async fn after_a_trim_of_unconfirmed_ones(kit: Kit) {
    empties(kit, |_, t| {
        vec![
            Op::take(t.id, 0),
            settle(t.id, Verdict::Unconfirmed),
            Op::Trim(Trim { of: Retained::Unconfirmed, before: Time::MAX, keep: 0, limit: 1_000 }),
            settle(t.id, Verdict::Ack),
        ]
    })
    .await;
}

pub(super) async fn after_replays(kit: Kit) {
    empties(kit, |kit, t| {
        let (id, fire) = (t.id, kit.now + 7 * DAY);
        let reason = DeadReason::Exhausted;
        let again = Verdict::Dead { reason, failed: 4, error: "x".into() };
        vec![
            settle(id, dead_verdict(2)),
            Op::Replay(Replay { id, fire }),
            settle(id, again),
            Op::Replay(Replay { id, fire: kit.now }),
            settle(id, Verdict::Ack),
        ]
    })
    .await;
}

pub(super) async fn after_replacements(kit: Kit) {
    empties(kit, |kit, t| {
        let id = TimerId::new(kit.now + DAY, kit.now, t.id.partition(), unique());
        let next = Timer { id, due: kit.now + DAY, ..t.clone() };
        vec![schedule_with(&next, KeyPolicy::Replace), cancel(id), settle(t.id, Verdict::Ack)]
    })
    .await;
}

pub(super) async fn after_requests_for_unknown_timers(kit: Kit) {
    empties(kit, |kit, t| {
        let stranger = kit.timer(t.due).id;
        vec![cancel(stranger), reschedule(stranger, kit.now), settle(stranger, Verdict::Ack), cancel(t.id)]
    })
    .await;
}

pub(super) async fn after_wide_windows_were_loaded_bit_by_bit(mut kit: Kit) {
    let owner = kit.owner().await;
    let mut timers = Vec::new();
    for width in SlotWidth::ALL {
        let start = width.start_of(kit.now + 3 * width.ms());
        timers.extend((0..300).map(|n| {
            let due = start + n * (width.ms() / 300);
            Timer { id: TimerId::with_width(due, width, kit.partition, unique()), ..kit.timer(due) }
        }));
    }
    owner.add_all(&timers).await;
    let (mut now, mut wheel) = (kit.now, Vec::new());
    while now < kit.now + 5 * DAY {
        now = now + 5 * HOUR;
        // Time goes by: due timers are settled before the next step. Timers loaded beyond the
        // horizon are kept.
        wheel.extend(owner.load(now).await);
        let fired: Vec<_> = wheel.extract_if(.., |t| t.fire <= now).collect();
        let ops: Vec<_> = fired.iter().map(|t| settle(t.record.timer.id, Verdict::Ack)).collect();
        owner.apply(ops).await;
    }
    assert_eq!(owner.census().await, EMPTY);
}

pub(super) async fn after_a_handover(mut kit: Kit) {
    let first = kit.owner().await;
    let timers = mixed(&kit, 60);
    first.add_all(&timers).await;
    let left = timers[..20].iter().map(|t| crate::InFlight {
        id: t.id,
        attempt: 1,
        session: 1,
        until: kit.now + MINUTE,
    });
    first.lane.release(left.collect()).await.unwrap();
    let second = kit.owner().await;
    assert_eq!(second.in_flight.len(), 20);
    each(&second, &timers, |t| vec![settle(t.id, Verdict::Ack)]).await;
    second.lane.release(Vec::new()).await.unwrap();
    assert_eq!(kit.owner().await.census().await, EMPTY);
}

pub(super) async fn it_can_be_filled_again(mut kit: Kit) {
    let owner = kit.owner().await;
    for _ in 0..3 {
        let timers = mixed(&kit, 100);
        owner.add_all(&timers).await;
        assert_eq!(owner.pending().await.len(), 100);
        let answers = owner.apply(timers.iter().map(|t| settle(t.id, Verdict::Ack)).collect()).await;
        assert!(answers.iter().all(|a| *a == Answer::Settle(SettleAnswer::Done)));
        assert_eq!(owner.census().await, EMPTY);
        assert_eq!(owner.pending().await.len(), 0);
    }
}
