//! Slots of every width, siblings, splitting, and how long scripts take on a crowd.

mod support;

use std::collections::HashSet;

use mtimer_store::{Answer, Op, RescheduleAnswer};
use mtimer_store_redis::test_support::{Server, print_durations};
use mtimer_types::{SlotWidth, Target, Time, Timer, TimerId};
use support::owner::{Owner, PARTITION, ack, now, schedule, timer, unique};

fn slots(server: &Server) -> Vec<String> {
    server.keys().into_iter().filter_map(|k| k.strip_prefix("slot:{2}:t:").map(str::to_owned)).collect()
}

/// What is left when nothing is pending any more and outcomes are forgotten.
fn assert_empty(server: &Server) {
    let fixed = ["owner:", "meta:", "dest:", "term:", "ended:"];
    let left: Vec<_> =
        server.keys().into_iter().filter(|k| !fixed.iter().any(|f| k.starts_with(f))).collect();
    assert_eq!(left, Vec::<String>::new(), "keys are left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_thousand_in_one_second() {
    const COUNT: usize = 200_000;
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    let start = SlotWidth::Second.start_of(now() + 60_000);
    let timers: Vec<_> = (0..COUNT).map(|n| timer(start + (n % 1_000) as u64, 100)).collect();
    server.note_durations();
    for group in timers.chunks(8_000) {
        let sent: Vec<_> =
            group.chunks(1_000).map(|c| owner.send(c.iter().map(schedule).collect())).collect();
        for answers in sent {
            assert!(answers.await.unwrap().iter().all(|a| matches!(a, Answer::Schedule(_))));
        }
    }
    print_durations("schedule 200,000 in one second", &server.durations());
    println!("{} slots", slots(&server).len());
    server.note_durations();
    let loaded = owner.load(start + 1_000).await;
    print_durations("load them", &server.durations());
    let ids: HashSet<_> = loaded.iter().map(|t| t.record.timer.id).collect();
    assert_eq!(ids.len(), COUNT);
    server.note_durations();
    for group in timers.chunks(8_000) {
        let sent: Vec<_> =
            group.chunks(1_000).map(|c| owner.send(c.iter().map(|t| ack(t.id)).collect())).collect();
        for answers in sent {
            assert!(answers.await.unwrap().iter().all(|a| *a == Answer::Done));
        }
    }
    print_durations("acknowledge them", &server.durations());
    assert_empty(&server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_is_filed_by_its_distance() {
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    let at = now();
    let dues = [at + 30_000, at + 3_600_000, at + 86_400_000, at + 10 * 86_400_000];
    let timers: Vec<_> = dues.iter().map(|due| timer(*due, 5)).collect();
    owner.apply(timers.iter().map(schedule).collect()).await;
    let mut expected: Vec<_> = SlotWidth::ALL
        .iter()
        .zip(dues)
        .map(|(width, due)| format!("0.{}.{}.0", *width as u8, width.start_of(due).as_ms()))
        .collect();
    expected.sort_unstable();
    assert_eq!(slots(&server), expected);
    owner.apply(timers.iter().map(|t| ack(t.id)).collect()).await;
    assert_empty(&server);
}

fn of_width(width: SlotWidth, due: Time, n: u64) -> Timer {
    Timer { id: TimerId::with_width(due, width, PARTITION, n), ..timer(due, 60) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_slot_gets_siblings_and_every_id_is_found() {
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    let start = SlotWidth::Second.start_of(now() + 60_000);
    let timers: Vec<_> =
        (0..3_000).map(|n| of_width(SlotWidth::Second, start + n % 1_000, unique())).collect();
    for some in timers.chunks(500) {
        owner.apply(some.iter().map(schedule).collect()).await;
    }
    let siblings = slots(&server);
    assert!(siblings.len() > 16, "{siblings:?}");
    for slot in &siblings {
        let length: u64 = server.call(&["HLEN", &format!("slot:{{2}}:t:{slot}")]);
        assert!(length <= 160, "slot {slot} has {length} timers");
    }
    // A successor knows them, too, and repeats find what is there.
    let next = Owner::of(owner.store.clone()).await;
    for some in timers.chunks(500) {
        let answers = next.apply(some.iter().map(schedule).collect()).await;
        assert!(answers.iter().all(|a| format!("{a:?}").contains("new: false")), "{answers:?}");
        let answers = next.apply(some.iter().map(|t| ack(t.id)).collect()).await;
        assert!(answers.iter().all(|a| *a == Answer::Done));
    }
    assert_empty(&server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dense_wide_slot_is_split_and_every_id_is_still_found() {
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    let at = now();
    let start = SlotWidth::Day.start_of(at + 3 * 86_400_000);
    let timers: Vec<_> = (0..2_000).map(|n| of_width(SlotWidth::Day, start + n * 40_000, unique())).collect();
    owner.apply(timers.iter().map(schedule).collect()).await;
    // Some are not at their birth position.
    for t in timers.iter().step_by(7) {
        let request = mtimer_store::RequestId(unique());
        let op = Op::Reschedule { target: Target::Id(t.id), due: t.due + 1, in_flight: false, request };
        assert_eq!(owner.one(op).await, Answer::Reschedule(RescheduleAnswer::Rescheduled(t.id)));
    }
    assert!(slots(&server).iter().any(|s| s.starts_with("0.3.")));
    server.note_durations();
    let loaded: HashSet<_> = owner
        .load(start + 43_200_000)
        .await
        .into_iter()
        .filter(|t| t.fire <= start + 43_200_000)
        .map(|t| t.record.timer.id)
        .collect();
    print_durations("split and load half a day", &server.durations());
    let expected: HashSet<_> = timers
        .iter()
        .enumerate()
        .filter(|(n, t)| t.due + u64::from(n % 7 == 0) <= start + 43_200_000)
        .map(|(_, t)| t.id)
        .collect();
    assert_eq!(loaded, expected);
    for some in timers.chunks(500) {
        let answers = owner.apply(some.iter().map(|t| ack(t.id)).collect()).await;
        assert!(answers.iter().all(|a| *a == Answer::Done));
    }
    assert_empty(&server);
}
