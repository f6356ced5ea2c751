//! The short ways of filing and of acknowledging.

use super::*;

/// New timers among repeats, conflicts, moved ones and ended ones, more than one script takes: each is answered in its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_short_way_of_filing_tells_what_is_not_new() {
    let server = Server::start();
    let mut engine = engine(&server).await;
    // Over twenty hours: each has few.
    let at = |n: u64| NOW + DAY + n * 7_919 % 600 * 120_000;
    let make = |n: u64| timer(n, at(n), None);
    let all = |numbers: std::ops::Range<u64>| -> Vec<Op> {
        numbers.map(|n| schedule(&make(n), KeyPolicy::Create)).collect()
    };
    let short = |server: &Server| server.call::<String>(&["INFO", "commandstats"]).contains("cmdstat_hsetnx");
    assert_eq!(engine.pipeline([all(0..1)]).await, [NEW]);
    assert_eq!(engine.pipeline([all(1..300)]).await, vec![NEW; 299]);

    // Repeats with progress and without, another content, and new ones.
    let [stored, conflict] =
        [ScheduleAnswer::Scheduled { new: false, replaced: None }, ScheduleAnswer::Conflict];
    let other = Timer { payload: Bytes::from_static(b"other"), ..make(8) };
    let mut batch = all(0..8);
    batch.push(schedule(&other, KeyPolicy::Create));
    batch.extend(all(300..302));
    batch.extend(all(9..150));
    let mut expected = vec![Answer::Schedule(stored); 8];
    expected.extend([Answer::Schedule(conflict), NEW, NEW]);
    expected.extend(vec![Answer::Schedule(stored); 141]);
    assert_eq!(engine.pipeline([batch.clone()]).await, expected);
    assert!(short(&server), "they went another way");
    let stopped = Op::Cancel { target: Target::Id(make(0).id), in_flight: Some(1), request: RequestId(1) };
    engine.pipeline([vec![stopped]]).await;
    expected[9..11].fill(Answer::Schedule(stored));
    assert_eq!(engine.pipeline([batch.clone()]).await, expected);

    // What was moved or has ended is found, too.
    let retried = Verdict::Retry { fire: at(1) + DAY, tier: 1, failed: 1, error: "no".into() };
    let moved = vec![
        Op::Park { id: make(2).id, failed: 0 },
        settle(make(1).id, retried),
        settle(make(3).id, Verdict::Expired),
    ];
    engine.pipeline([moved]).await;
    expected[3] = Answer::Schedule(ScheduleAnswer::Ended(mtimer_types::Ended::Expired));
    assert_eq!(engine.pipeline([batch]).await, expected);

    // A new owner, who knows slots only, finds the same.
    let mut expected: Vec<_> =
        (0..302).map(|n| make(n).id).filter(|id| ![2, 3].map(|n| make(n).id).contains(id)).collect();
    expected.sort_unstable();
    assert_eq!(engine.loaded_ids(NOW + 4 * DAY).await, expected);
}

/// Acknowledgements go a short way of their own, until one is not of the common kind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_acknowledgements_have_a_short_way() {
    let server = Server::start();
    let mut engine = engine(&server).await;
    let plain: Vec<Timer> = (0..210).map(|n| timer(n, NOW + DAY, None)).collect();
    let keyed = timer(500, NOW + DAY, Some("k"));
    let all = plain.iter().chain([&keyed]).map(|t| schedule(t, KeyPolicy::Create)).collect();
    assert_eq!(engine.pipeline([all]).await, vec![NEW; 211]);
    let ack = |timer: &Timer| vec![settle(timer.id, Verdict::Ack)];
    let mut acks = plain.iter().map(ack);
    let ran = |ack, settle| {
        let count = |name: &str, n| (n > 0).then(|| (format!("{name}.lua"), n));
        count("ack", ack).into_iter().chain(count("settle", settle)).collect::<Vec<_>>()
    };
    server.note_durations();
    for batch in acks.by_ref().take(4) {
        assert_eq!(engine.pipeline([batch]).await, [Answer::Done]);
    }
    assert_eq!(scripts(&server), ran(4, 0));
    // One with a key is refused there, and those behind it do not try for a while.
    server.note_durations();
    assert_eq!(engine.pipeline([ack(&keyed)]).await, [Answer::Done]);
    for batch in acks.by_ref().take(200) {
        assert_eq!(engine.pipeline([batch]).await, [Answer::Done]);
    }
    assert_eq!(scripts(&server), ran(1, 201));
    server.note_durations();
    for batch in acks {
        assert_eq!(engine.pipeline([batch]).await, [Answer::Done]);
    }
    assert_eq!(scripts(&server), ran(6, 0));
    assert_eq!(engine.known_slots(), 0);
}

/// A new owner does not know which of a second's slots has which timer; where it has loaded them from it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timers_of_a_crowded_second_are_acknowledged_where_they_were_loaded_from() {
    let server = Server::start();
    let mut former = engine(&server).await;
    let crowd: Vec<Timer> = (0..2_000).map(|n| timer(n, NOW + 5_000 + n % 1_000, None)).collect();
    for batch in crowd.chunks(500) {
        let batch = batch.iter().map(|t| schedule(t, KeyPolicy::Create)).collect();
        assert_eq!(former.pipeline([batch]).await, vec![NEW; 500]);
    }
    let mut engine = engine(&server).await;
    let loaded = engine.loaded_ids(NOW + 6_000).await;
    assert_eq!(loaded.len(), 2_000);
    assert!(engine.known_slots() > 8, "{}", engine.known_slots());
    server.note_durations();
    let acks = loaded.chunks(100).map(|ids| ids.iter().map(|id| settle(*id, Verdict::Ack)).collect());
    for batch in acks.collect::<Vec<Vec<Op>>>() {
        assert_eq!(engine.pipeline([batch]).await, vec![Answer::Done; 100]);
    }
    let ran = scripts(&server);
    assert!(ran.len() == 1 && ran[0].0 == "ack.lua", "{ran:?}");
    assert_eq!(engine.known_slots(), 0);
}
