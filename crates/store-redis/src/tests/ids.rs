//! What an owner knows of which ids are where, in seconds and in wide slots.

use super::*;

/// A new owner does not know which ids there are, and is told of crowded slots as it asks them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_owner_learns_where_an_id_cannot_be() {
    let server = Server::start();
    let make = |n: u64| timer(n, NOW + 60_000 + n * 7_919 % 2_000, None);
    let file = |numbers: std::ops::Range<u64>| -> Vec<Op> {
        numbers.map(|n| schedule(&make(n), KeyPolicy::Create)).collect()
    };
    let places = |engine: &Engine| -> usize {
        (100_000..100_100).map(|n| engine.mirror.birth_places(make(n).id).len()).sum()
    };
    let mut former = engine(&server).await;
    for n in 0..6 {
        assert_eq!(former.pipeline([file(n * 500..(n + 1) * 500)]).await, vec![NEW; 500]);
    }
    assert!(places(&former) < 10);
    let mut engine = engine(&server).await;
    let crowded = places(&engine);
    assert!(crowded >= 200, "{crowded}");
    let mut next = 3_000;
    while places(&engine) > crowded / 2 {
        assert!(next < 6_000, "{} places still", places(&engine));
        assert_eq!(engine.pipeline([file(next..next + 100)]).await, vec![NEW; 100]);
        next += 100;
    }
    for n in (0..next).step_by(500) {
        let batch = file(n..(n + 500).min(next));
        let count = batch.len();
        assert_eq!(engine.pipeline([batch]).await, vec![STORED; count]);
    }
}

/// The ids of a crowded wide slot are asked for before anything is looked for in it, and then it is known which are there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_owner_asks_for_the_ids_of_crowded_wide_slots() {
    let server = Server::start();
    let mut former = engine(&server).await;
    for n in 0..6 {
        assert_eq!(former.pipeline([in_an_hour(n * 500..(n + 1) * 500)]).await, vec![NEW; 500]);
    }
    let mut engine = engine(&server).await;
    let places = |engine: &Engine, n: u64| engine.mirror.birth_places(of_an_hour(n).id);
    assert_eq!(places(&engine, 3_000).len(), 24);
    // They come in one batch: a new one, one that is stored, one whose content differs.
    let other = Timer { payload: Bytes::from_static(b"other"), ..of_an_hour(8) };
    let mut batch = in_an_hour(3_000..3_001);
    batch.extend(in_an_hour(7..8));
    batch.push(schedule(&other, KeyPolicy::Create));
    let answers = engine.pipeline([batch, in_an_hour(3_001..3_002)]).await;
    assert_eq!(answers, [NEW, STORED, Answer::Schedule(ScheduleAnswer::Conflict), NEW]);
    assert!((3_002..3_102).all(|n| places(&engine, n).is_empty()));
    assert!((0..3_002).all(|n| places(&engine, n).len() == 1));
    // Repeats are taken for what they are: they need no more scripts than new ones do.
    server.note_durations();
    assert_eq!(engine.pipeline([(); 3].map(|()| in_an_hour(0..128))).await, vec![STORED; 384]);
    assert_eq!(scripts(&server), [("file.lua".to_owned(), 3)]);
}

/// Fields that are no ids make no ids of their neighbours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ids_of_a_damaged_slot_are_not_known() {
    let server = Server::start();
    let mut former = engine(&server).await;
    for n in 0..6 {
        former.pipeline([in_an_hour(n * 500..(n + 1) * 500)]).await;
    }
    let slots: Vec<_> = server.keys().into_iter().filter(|key| key.starts_with("slot:{2}:t:0.2.")).collect();
    for slot in &slots {
        // Together as long as an id.
        server.call::<i64>(&["HSET", slot, "7 bytes", "", "9 bytes..", ""]);
    }
    let mut engine = engine(&server).await;
    for n in 0..6 {
        let batch = in_an_hour(n * 500..(n + 1) * 500);
        assert_eq!(engine.pipeline([batch]).await, vec![STORED; 500]);
    }
    assert_eq!(engine.mirror.birth_places(of_an_hour(3_000).id).len(), slots.len());
}

/// What is dense is split from two minutes before it begins, a little with each load; whoever was moved by it is found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dense_wide_slot_is_split_before_it_begins() {
    let server = Server::start();
    let mut engine = engine(&server).await;
    for n in 0..6 {
        assert_eq!(engine.pipeline([in_an_hour(n * 500..(n + 1) * 500)]).await, vec![NEW; 500]);
    }
    // Two that were not born there.
    let strangers = [4_001, 4_002].map(|n| timer(n, NOW + 3 * DAY, None));
    for timer in &strangers {
        let n = timer.id.random();
        let due = LATER + n % 3_600 * 1_000;
        let target = Target::Id(timer.id);
        let moved = Op::Reschedule { target, due, in_flight: false, request: RequestId(n) };
        engine.pipeline([vec![schedule(timer, KeyPolicy::Create)], vec![moved]]).await;
    }
    let wide = |engine: &Engine| engine.mirror.slots().filter(|slot| slot.width == SlotWidth::Hour).count();
    let load = |until| Load { until, max_timers: 1_000, max_bytes: 1 << 20, claim: None };
    let slots = wide(&engine);
    assert!(slots >= 24, "{slots}");
    let loaded = engine.load(load(LATER - 121_000)).await.expect("the lane is alive");
    assert_eq!((loaded.timers.len(), wide(&engine)), (0, slots));
    let mut loads = 0;
    while wide(&engine) > 5 {
        let (before, loaded) = (wide(&engine), engine.load(load(LATER - 60_000)).await);
        assert_eq!(loaded.expect("the lane is alive").timers, []);
        assert!((1..=10).contains(&(before - wide(&engine))), "{before}, {}", wide(&engine));
        loads += 1;
    }
    assert!(loads > 1);
    // Old ones are not filed anew, new ones go elsewhere.
    assert_eq!(engine.pipeline([in_an_hour(0..500)]).await, vec![STORED; 500]);
    assert_eq!(engine.pipeline([in_an_hour(3_000..3_100)]).await, vec![NEW; 100]);
    let cancelled: Vec<_> = (0..20).map(|n| of_an_hour(n * 150).id).chain(strangers.map(|t| t.id)).collect();
    let cancel = |id: &TimerId| Op::Cancel {
        target: Target::Id(*id),
        in_flight: None,
        request: RequestId(10_000 + id.random()),
    };
    let answers = engine.pipeline([cancelled.iter().map(cancel).collect()]).await;
    let expected = cancelled.iter().map(|id| Answer::Cancel(CancelAnswer::Cancelled(*id)));
    assert_eq!(answers, expected.collect::<Vec<_>>());
    let mut expected: Vec<_> = (0..3_100).map(|n| of_an_hour(n).id).collect();
    expected.retain(|id| !cancelled.contains(id));
    expected.sort_unstable();
    assert_eq!(engine.loaded_ids(LATER + HOUR).await, expected);
}
