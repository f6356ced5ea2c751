//! Slots of every width, siblings, splitting, and how long scripts take on a crowd.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use std::collections::HashSet;
use std::sync::Arc;

use mtimer_store::ops::{Cancel, MoveAnswer, Park, Replay, Reschedule, Settle, SettleAnswer, Take, Unpark};
use mtimer_store::{Answer, CancelAnswer, Op, RequestId, RescheduleAnswer, ScheduleAnswer, Verdict};
use mtimer_store_redis::test_support::{Server, print_durations};
use mtimer_types::{DeadReason, Mode, SlotWidth, Target, Time, Timer, TimerId};
use support::owner::{Owner, PARTITION, ack, keyed, now, schedule, timer, unique};

fn slots(server: &Server) -> Vec<String> {
    server.keys().into_iter().filter_map(|k| k.strip_prefix("slot:{2}:t:").map(str::to_owned)).collect()
}

/// Checks that no keys are left but the fixed ones and those of outcomes.
fn assert_empty(server: &Server) {
    let fixed = ["owner:", "meta:", "dest:", "term:", "ended:"];
    let left: Vec<_> =
        server.keys().into_iter().filter(|k| !fixed.iter().any(|f| k.starts_with(f))).collect();
    assert_eq!(left, Vec::<String>::new(), "keys are left");
}

/// Commands for each timer, those within scripts too: the counted number, and about 15 % more. A
/// number far below its bound is a success to be written down: lower the bound then.
struct Bounds {
    schedule: f64,
    take: f64,
    end: f64,
}

/// How a timer's life ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Acknowledged,
    CancelledById,
    CancelledByKey,
}

impl End {
    fn op(self, timer: &Timer) -> Op {
        let target = match self {
            Self::Acknowledged => {
                let (id, timer) = (timer.id, Some(Arc::new(timer.clone())));
                return Op::Settle(Settle { id, verdict: Verdict::Ack, timer, attempt: None });
            }
            Self::CancelledById => Target::Id(timer.id),
            Self::CancelledByKey => Target::Key(timer.dest.clone(), timer.key.clone().unwrap()),
        };
        Op::Cancel(Cancel { target, sent_attempt: None, request: RequestId(unique()) })
    }

    fn answer(self, timer: &Timer) -> Answer {
        match self {
            Self::Acknowledged => Answer::Settle(SettleAnswer::Done),
            Self::CancelledById | Self::CancelledByKey => Answer::Cancel(CancelAnswer::Cancelled(timer.id)),
        }
    }
}

/// The cost of a test to the server since the last look.
struct Meter<'a> {
    server: &'a Server,
    title: &'a str,
    timers: f64,
    before: (u64, u64),
}

impl<'a> Meter<'a> {
    fn new(server: &'a Server, title: &'a str, timers: usize) -> Self {
        server.note_durations();
        let before = (server.processor_micros(), server.commands());
        Self { server, title, timers: timers as f64, before }
    }

    /// Prints the cost of a step, and checks the number of commands.
    fn step(&mut self, step: &str, bound: f64) {
        let Self { server, title, timers, before } = *self;
        print_durations(&format!("{title}: {step}"), &server.durations());
        let commands = (server.commands() - before.1) as f64 / timers;
        let micros = (server.processor_micros() - before.0) as f64 / timers;
        println!("{title}: {step}: {micros:.2} us of processor time and {commands:.3} commands a timer\n");
        assert!(commands <= bound, "{title}: {step}: {commands:.3} commands a timer, the bound is {bound}");
        server.note_durations();
        self.before = (server.processor_micros(), server.commands());
    }
}

/// Sends operations as a busy broker does, and checks the answers.
async fn carry_out(
    owner: &Owner,
    timers: &[Timer],
    op: impl Fn(&Timer) -> Op,
    is: impl Fn(&Timer) -> Answer,
) {
    for group in timers.chunks(8_000) {
        let sent: Vec<_> = group.chunks(1_000).map(|c| owner.send(c.iter().map(&op).collect())).collect();
        for (answers, timers) in sent.into_iter().zip(group.chunks(1_000)) {
            let answers = answers.await.unwrap();
            assert!(answers.into_iter().eq(timers.iter().map(&is)));
        }
    }
}

/// Schedules, loads, takes at-most-once timers, and ends all in the order of firing.
async fn life(title: &str, timers: Vec<Timer>, end: End, bounds: Bounds) {
    const NEW: Answer = Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None });
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    let mut meter = Meter::new(&server, title, timers.len());
    carry_out(&owner, &timers, schedule, |_| NEW).await;
    meter.step("schedule", bounds.schedule);
    println!("{} slots", slots(&server).len());
    let mut fired = timers;
    fired.sort_by_key(|t| t.due);
    if end == End::Acknowledged {
        let loaded = owner.load(fired.last().unwrap().due).await;
        let ids: HashSet<_> = loaded.iter().map(|t| t.record.timer.id).collect();
        assert_eq!(ids.len(), fired.len());
        meter.step("load", f64::INFINITY);
    }
    if fired[0].mode == Mode::AtMostOnce {
        let take = |t: &Timer| Op::Take(Take { id: t.id, failed: 0, timer: Some(Arc::new(t.clone())) });
        carry_out(&owner, &fired, take, |_| Answer::Take(MoveAnswer::Done)).await;
        meter.step("take", bounds.take);
    }
    carry_out(&owner, &fired, |t| end.op(t), |t| end.answer(t)).await;
    meter.step("end", bounds.end);
    assert_empty(&server);
}

/// As a client makes the ids of a batch: about 128 of one window have one cohort.
fn in_cohorts(timers: impl Iterator<Item = Timer>) -> Vec<Timer> {
    let of = |(n, timer): (usize, Timer)| Timer { id: timer.id.with_cohort((n / 128) as u8), ..timer };
    timers.enumerate().map(of).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_thousand_in_one_second() {
    let start = SlotWidth::Second.start_of(now() + 3_600_000);
    let of = |n: u64| of_width(SlotWidth::Second, start + n % 1_000, unique());
    let bounds = Bounds { schedule: 0.85, take: 0.0, end: 0.8 };
    life("200,000 in one second", in_cohorts((0..200_000).map(of)), End::Acknowledged, bounds).await;
}

/// 50,000 timers over ten minutes, an hour ahead.
fn over_ten_minutes(of: impl Fn(Time, u64) -> Timer) -> Vec<Timer> {
    let first = now() + 3_600_000;
    in_cohorts((0..50_000).map(|n| of(first + n * 12, n)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_thousand_over_ten_minutes() {
    let bounds = Bounds { schedule: 0.04, take: 0.0, end: 0.065 };
    life("plain", over_ten_minutes(|due, _| timer(due, 100)), End::Acknowledged, bounds).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_thousand_with_keys() {
    let bounds = Bounds { schedule: 0.045, take: 0.0, end: 0.08 };
    let timers = over_ten_minutes(|due, n| keyed(due, &format!("order-{n}")));
    life("with keys", timers, End::Acknowledged, bounds).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_thousand_at_most_once() {
    let bounds = Bounds { schedule: 0.04, take: 0.22, end: 0.12 };
    let timers = over_ten_minutes(|due, _| Timer { mode: Mode::AtMostOnce, ..timer(due, 100) });
    life("at most once", timers, End::Acknowledged, bounds).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_thousand_cancelled_by_id() {
    let bounds = Bounds { schedule: 0.04, take: 0.0, end: 0.095 };
    life("cancelled by id", over_ten_minutes(|due, _| timer(due, 100)), End::CancelledById, bounds).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_thousand_cancelled_by_key() {
    let bounds = Bounds { schedule: 0.045, take: 0.0, end: 0.1 };
    let timers = over_ten_minutes(|due, n| keyed(due, &format!("order-{n}")));
    life("cancelled by key", timers, End::CancelledByKey, bounds).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_a_hash_table_from_the_first_one_on_until_the_last_one_is_free() {
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    let timers = ["order-1", "order-2"].map(|key| keyed(now() + 3_600_000, key));
    for timer in &timers {
        owner.one(schedule(timer)).await;
        assert_eq!(server.call::<String>(&["OBJECT", "ENCODING", "key:{2}:t"]), "hashtable");
    }
    for (timer, left) in timers.iter().zip([2, 0]) {
        owner.one(ack(timer.id)).await;
        assert_eq!(server.call::<u64>(&["HLEN", "key:{2}:t"]), left);
    }
    assert_empty(&server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_owner_frees_keys_that_it_has_not_seen() {
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    let at = now() + 3_600_000;
    let timers = [keyed(at, "order-1"), timer(at, 10), keyed(at, "order-2")];
    owner.apply(timers.iter().map(schedule).collect()).await;
    let next = Owner::of(owner.store.clone()).await;
    let answers = next.apply(timers.iter().map(|t| ack(t.id)).collect()).await;
    assert!(answers.iter().all(|a| *a == Answer::Settle(SettleAnswer::Done)), "{answers:?}");
    assert_empty(&server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_timer_takes_few_commands() {
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    owner.one(schedule(&timer(now() + 60_000, 10))).await;
    let lone = timer(now() + 20 * 86_400_000, 10);
    let before = server.commands();
    assert!(format!("{:?}", owner.one(schedule(&lone)).await).contains("new: true"));
    let filed = server.commands();
    assert_eq!(owner.one(ack(lone.id)).await, Answer::Settle(SettleAnswer::Done));
    let settled = server.commands();
    // Each: the command that counts, the reads (outcomes of former owners among them), the call,
    // and the commands within it.
    println!("schedule: {} commands, acknowledge: {}", filed - before, settled - filed);
    assert!(filed - before <= 10, "{}", filed - before);
    assert!(settled - filed <= 10, "{}", settled - filed);
    // A repeat finds out that it is one, on every path.
    owner.one(schedule(&lone)).await;
    assert!(format!("{:?}", owner.one(schedule(&lone)).await).contains("new: false"));
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
        .map(|(width, due)| format!("0.{}.{}", *width as u8, due.as_ms() / width.ms()))
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
    // A successor knows them, too, and repeats find the stored timers.
    let next = Owner::of(owner.store.clone()).await;
    for some in timers.chunks(500) {
        let answers = next.apply(some.iter().map(schedule).collect()).await;
        assert!(answers.iter().all(|a| format!("{a:?}").contains("new: false")), "{answers:?}");
        let answers = next.apply(some.iter().map(|t| ack(t.id)).collect()).await;
        assert!(answers.iter().all(|a| *a == Answer::Settle(SettleAnswer::Done)));
    }
    assert_empty(&server);
}

/// A script writes about 256 KiB of large payloads at most, in any operation on their timers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_timers_go_through_in_scripts_of_bounded_size() {
    const BYTES: usize = 60_000;
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    let due = now() + 86_400_000;
    let timers: Vec<_> = (0..100).map(|_| Timer { mode: Mode::AtMostOnce, ..timer(due, BYTES) }).collect();
    type MakeOp = Box<dyn Fn(&Timer) -> Op>;
    let steps: [(&str, MakeOp); 8] = [
        ("schedule", Box::new(schedule)),
        (
            "reschedule",
            Box::new(move |t| {
                let (target, request) = (Target::Id(t.id), RequestId(unique()));
                Op::Reschedule(Reschedule { target, due: due + 86_400_000, is_begun: false, request })
            }),
        ),
        (
            "retry",
            Box::new(move |t| {
                let (fire, error) = (due + 1_000, "no".into());
                Op::settle(t.id, Verdict::Retry { fire, tier: 1, failed: 1, error })
            }),
        ),
        ("park", Box::new(|t| Op::Park(Park { id: t.id, failed: 1 }))),
        ("unpark", Box::new(move |t| Op::Unpark(Unpark { id: t.id, fire: due }))),
        ("take", Box::new(|t| Op::take(t.id, 1))),
        (
            "dead-letter",
            Box::new(|t| {
                let (reason, error) = (DeadReason::Failed, "no".into());
                Op::settle(t.id, Verdict::Dead { reason, failed: 1, error })
            }),
        ),
        ("replay", Box::new(move |t| Op::Replay(Replay { id: t.id, fire: due }))),
    ];
    for (step, op) in &steps {
        let before = server.calls_of("evalsha");
        let answers = owner.apply(timers.iter().map(op).collect()).await;
        let is_gone = |answer: &Answer| format!("{answer:?}").contains("Gone");
        assert!(!answers.iter().any(is_gone) && answers.len() == timers.len(), "{step}: {answers:?}");
        let scripts = (server.calls_of("evalsha") - before) as usize;
        assert!(scripts >= timers.len() * BYTES / (256 << 10), "{step}: {scripts} scripts");
    }
    carry_out(&owner, &timers, |t| ack(t.id), |_| Answer::Settle(SettleAnswer::Done)).await;
    assert_empty(&server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takeovers_neither_overfill_slots_nor_waste_them() {
    let server = Server::start();
    let mut owner = Owner::new(&server.url()).await;
    // Of one cohort, at one time.
    let due = SlotWidth::Day.start_of(now() + 3 * 86_400_000);
    for takeover in 0..10 {
        let timers: Vec<_> = (0..100).map(|n| of_width(SlotWidth::Day, due, takeover * 100 + n)).collect();
        owner.apply(timers.iter().map(schedule).collect()).await;
        owner = Owner::of(owner.store.clone()).await;
    }
    let lengths =
        slots(&server).into_iter().map(|slot| server.call(&["HLEN", &format!("slot:{{2}}:t:{slot}")]));
    let lengths: Vec<u64> = lengths.collect();
    assert_eq!(lengths.iter().sum::<u64>(), 1_000);
    assert!(lengths.iter().all(|length| *length <= 128), "{lengths:?}");
    // Seven are full, and the rest is in the siblings of a second: as if one owner had filed them.
    assert!(lengths.len() <= 11, "{lengths:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dense_wide_slot_is_split_and_every_id_is_still_found() {
    let server = Server::start();
    let owner = Owner::new(&server.url()).await;
    let at = now();
    let start = SlotWidth::Day.start_of(at + 3 * 86_400_000);
    let timers: Vec<_> = (0..2_000).map(|n| of_width(SlotWidth::Day, start + n * 40_000, unique())).collect();
    owner.apply(timers.iter().map(schedule).collect()).await;
    // Some are not at a slot that their id implies.
    for t in timers.iter().step_by(7) {
        let request = mtimer_store::RequestId(unique());
        let op =
            Op::Reschedule(Reschedule { target: Target::Id(t.id), due: t.due + 1, is_begun: false, request });
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
        assert!(answers.iter().all(|a| *a == Answer::Settle(SettleAnswer::Done)));
    }
    assert_empty(&server);
}
