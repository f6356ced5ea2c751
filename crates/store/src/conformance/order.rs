//! Calls take effect in the order in which they are made, whole, and their answers are ready in
//! that order.

use futures_util::FutureExt;
use mtimer_types::{Ended, KeyPolicy, Target};

use super::kit::Kit;
use super::pair::schedule_with;
use super::values::{HOUR, MINUTE, NEW, OLD, SECOND, schedule_op, unique};
use crate::ops::{Cancel, MoveAnswer, Park, SettleAnswer};
use crate::{Answer, CancelAnswer, Op, RequestId, ScheduleAnswer, Verdict};

pub(super) async fn an_empty_batch_has_no_answers(mut kit: Kit) {
    let owner = kit.owner().await;
    assert_eq!(owner.apply(Vec::new()).await, []);
}

pub(super) async fn answers_are_in_the_order_of_operations(mut kit: Kit) {
    let owner = kit.owner().await;
    let (a, b) = (kit.timer(kit.now + MINUTE), kit.amo(kit.now));
    let key = kit.key("ordered-");
    let (c, d) = (kit.keyed(kit.now, &key), kit.keyed(kit.now + 1, &key));
    let cancel =
        |id| Op::Cancel(Cancel { target: Target::Id(id), sent_attempt: None, request: RequestId(unique()) });
    let ops = vec![
        schedule_op(&a),
        Op::take(b.id, 0),
        schedule_op(&b),
        Op::take(b.id, 0),
        cancel(a.id),
        schedule_op(&a),
        schedule_op(&c),
        schedule_op(&d),
        schedule_with(&d, KeyPolicy::Replace),
        Op::settle(b.id, Verdict::Ack),
        Op::settle(b.id, Verdict::Ack),
        schedule_op(&d),
    ];
    let expected = [
        Answer::Schedule(NEW),
        Answer::Take(MoveAnswer::Gone),
        Answer::Schedule(NEW),
        Answer::Take(MoveAnswer::Done),
        Answer::Cancel(CancelAnswer::Cancelled(a.id)),
        Answer::Schedule(ScheduleAnswer::Ended(Ended::Cancelled)),
        Answer::Schedule(NEW),
        Answer::Schedule(ScheduleAnswer::KeyTaken(c.id)),
        Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: Some(c.id) }),
        Answer::Settle(SettleAnswer::Done),
        Answer::Settle(SettleAnswer::Gone),
        Answer::Schedule(OLD),
    ];
    assert_eq!(owner.apply(ops).await, expected);
    assert_eq!(owner.fires().await, [(d.id, d.due)]);
}

pub(super) async fn batches_take_effect_in_the_order_of_calls(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    // None of them is polled before the last one was made.
    let calls: Vec<_> = (1..=100u32)
        .map(|n| {
            let error = format!("{n}").into();
            let verdict = Verdict::Retry { fire: kit.now + u64::from(n), tier: 1, failed: n, error };
            let settle = Op::settle(timer.id, verdict);
            owner.send(if n == 1 { vec![schedule_op(&timer), settle] } else { vec![settle] })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap().last(), Some(&Answer::Settle(SettleAnswer::Done)));
    }
    let record = owner.record(timer.id).await;
    assert_eq!(record.progress.failed, 100);
    assert_eq!(record.progress.last_error.as_deref(), Some("100"));
}

pub(super) async fn answers_are_ready_in_the_order_of_calls(mut kit: Kit) {
    let owner = kit.owner().await;
    let mut calls: Vec<_> =
        (0..60).map(|n| owner.send(vec![schedule_op(&kit.timer(kit.now + n * SECOND))])).collect();
    let load = owner.send_load(kit.now + HOUR);
    let last = owner.send(Vec::new());
    last.await.unwrap();
    for call in &mut calls {
        let answer = tokio::task::unconstrained(call).now_or_never();
        assert_eq!(answer, Some(Ok(vec![Answer::Schedule(NEW)])), "ready when a later one is");
    }
    let loaded = tokio::task::unconstrained(load).now_or_never();
    assert_eq!(loaded.map(|l| l.unwrap().timers.len()), Some(60));
}

pub(super) async fn an_abandoned_call_is_made_all_the_same(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<_> = (0..30).map(|n| kit.timer(kit.now + n)).collect();
    for timer in &timers {
        drop(owner.send(vec![schedule_op(timer)]));
    }
    assert_eq!(owner.pending().await.len(), 30);
    let mut half = owner.send(vec![schedule_op(&kit.timer(kit.now))]);
    let _ = futures_util::poll!(&mut half);
    drop(half);
    assert_eq!(owner.census().await.pending, 31);
}

pub(super) async fn reads_see_what_was_called_before_them(mut kit: Kit) {
    let owner = kit.owner().await;
    for n in 0..50 {
        let timer = kit.timer(kit.now + n);
        let stored = owner.send(vec![schedule_op(&timer)]);
        let seen = owner.lane.get(Target::Id(timer.id));
        let settled = owner.send(vec![Op::settle(timer.id, Verdict::Ack)]);
        let gone = owner.lane.get(Target::Id(timer.id));
        let census = owner.lane.census();
        assert!(seen.await.unwrap().is_some(), "a read sees the call before it");
        assert!(gone.await.unwrap().is_none(), "and not the one behind it");
        assert_eq!(census.await.unwrap().pending, 0);
        assert_eq!(stored.await.unwrap(), [Answer::Schedule(NEW)]);
        assert_eq!(settled.await.unwrap(), [Answer::Settle(SettleAnswer::Done)]);
    }
}

pub(super) async fn a_batch_of_2000(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<_> = (0..2_000).map(|n| kit.timer(kit.now + n * 997)).collect();
    let answers = owner.apply(timers.iter().map(schedule_op).collect()).await;
    assert!(answers.iter().all(|a| *a == Answer::Schedule(NEW)));
    // A second one does something else to each.
    let ops = (0..).zip(&timers).map(|(n, t)| match n % 5 {
        0 => Op::settle(t.id, Verdict::Ack),
        1 => Op::Park(Park { id: t.id, failed: 0 }),
        2 => {
            Op::Cancel(Cancel { target: Target::Id(t.id), sent_attempt: None, request: RequestId(unique()) })
        }
        3 => Op::settle(t.id, super::values::dead_verdict(1)),
        _ => schedule_op(t),
    });
    let answers = owner.apply(ops.collect()).await;
    for (n, (answer, timer)) in answers.into_iter().zip(&timers).enumerate() {
        let expected = match n % 5 {
            0 | 3 => Answer::Settle(SettleAnswer::Done),
            1 => Answer::Park(MoveAnswer::Done),
            2 => Answer::Cancel(CancelAnswer::Cancelled(timer.id)),
            _ => Answer::Schedule(OLD),
        };
        assert_eq!(answer, expected, "operation {n}");
    }
    let census = owner.census().await;
    assert_eq!((census.pending, census.parked, census.dead), (400, 400, 400));
    assert_eq!(owner.pending().await.len(), 400);
}

pub(super) async fn many_batches_on_their_way(mut kit: Kit) {
    let owner = kit.owner().await;
    let calls: Vec<_> = (0..200)
        .map(|n| owner.send((0..10).map(|m| schedule_op(&kit.timer(kit.now + n * 60 + m))).collect()))
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap(), vec![Answer::Schedule(NEW); 10]);
    }
    assert_eq!(owner.pending().await.len(), 2_000);
}

pub(super) async fn partitions_do_not_wait_for_each_other(mut kit: Kit) {
    let here = kit.owner().await;
    let there = kit.owner_of(mtimer_types::PartitionId(1)).await;
    let calls: Vec<_> = (0..50)
        .flat_map(|n| {
            let a = here.send(vec![schedule_op(&kit.timer(kit.now + n))]);
            let timer = super::values::plain_timer(kit.now + n, kit.now, there.partition);
            [a, there.send(vec![schedule_op(&timer)])]
        })
        .collect();
    for call in calls.into_iter().rev() {
        assert_eq!(call.await.unwrap(), [Answer::Schedule(NEW)]);
    }
    assert_eq!((here.pending().await.len(), there.pending().await.len()), (50, 50));
}
