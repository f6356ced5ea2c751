//! Tests that look inside of a lane: what it knows, what stays of things that came to nothing, what becomes of damaged records.

mod damaged;
mod endings;
mod eviction;
mod ids;
mod orders;
mod short_ways;

use bytes::Bytes;
use mtimer_store::{
    Acquire, Answer, Batch, CancelAnswer, DeadFilter, LaneError, Load, Op, Refusal, RequestId, Retained,
    ScheduleAnswer, Store, Verdict,
};
use mtimer_types::{
    DeadReason, Destination, Epoch, Key, KeyPolicy, Mode, Nonce, PartitionId, SlotWidth, Target, Term, Time,
    Timer, TimerId,
};
use tokio::sync::oneshot;

use crate::lane::{Engine, Shared};
use crate::test_support::Server;
use crate::{Options, RedisStore};

const PARTITION: PartitionId = PartitionId(2);
const DAY: u64 = 86_400_000;
const NOW: Time = Time::from_ms(1_700_000_000_000);

async fn engine(server: &Server) -> Engine {
    engine_of(server, "t").await
}

async fn engine_of(server: &Server, cluster: &str) -> Engine {
    let store =
        RedisStore::connect(Options::new([server.url()], cluster)).await.expect("the store can be used");
    let stored = store.owner(PARTITION).await.expect("the store can be reached");
    let (nonce, version) = (Nonce(7), stored.version + 1);
    let acquire = Acquire { partition: PARTITION, expected: stored.epoch, nonce, term: Term(1), version };
    store.engine(acquire).await.expect("the partition can be acquired")
}

fn timer(n: u64, due: Time, key: Option<&str>) -> Timer {
    Timer {
        id: TimerId::new(due, NOW, PARTITION, n),
        dest: Destination::new("orders", "billing").expect("a destination"),
        key: key.map(|k| Key::new(k).expect("a key")),
        due,
        mode: Mode::AtLeastOnce,
        deadline: None,
        callback_timeout_ms: None,
        retry: None,
        payload: Bytes::from_static(b"hello"),
    }
}

fn schedule(timer: &Timer, policy: KeyPolicy) -> Op {
    Op::Schedule { timer: timer.clone().into(), policy }
}

fn settle(id: TimerId, verdict: Verdict) -> Op {
    Op::settle(id, verdict)
}

const NEW: Answer = Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None });

const HOUR: u64 = 3_600_000;
/// When an hour begins that is a day away.
const LATER: Time = Time::from_ms((NOW.as_ms() / HOUR + 24) * HOUR);
const STORED: Answer = Answer::Schedule(ScheduleAnswer::Scheduled { new: false, replaced: None });

/// Timers of an hour, in wide slots that are dense.
fn in_an_hour(numbers: std::ops::Range<u64>) -> Vec<Op> {
    numbers.map(|n| schedule(&of_an_hour(n), KeyPolicy::Create)).collect()
}

fn of_an_hour(n: u64) -> Timer {
    timer(n, LATER + n * 7_919 % 3_600 * 1_000, None)
}

/// The scripts that ran since it was told to note them, those that were refused among them.
fn scripts(server: &Server) -> Vec<(String, usize)> {
    let ran = server.durations().into_iter().filter(|(name, _)| name.ends_with(".lua"));
    ran.map(|(name, durations)| (name, durations.len())).collect()
}

impl Engine {
    fn take_in(&mut self, ops: Vec<Op>) -> oneshot::Receiver<Result<Vec<Answer>, LaneError>> {
        let (to, answers) = oneshot::channel();
        self.admit(Batch { now: NOW, claim: None, ops }, to);
        answers
    }

    /// Sends batches all at once.
    async fn pipeline<const N: usize>(&mut self, batches: [Vec<Op>; N]) -> Vec<Answer> {
        let sent = batches.map(|ops| self.take_in(ops));
        self.drain().await.expect("the lane is alive");
        let mut answers = Vec::new();
        for answer in sent {
            answers.extend(answer.await.expect("an answer").expect("the lane is alive"));
        }
        answers
    }

    fn known_slots(&self) -> usize {
        self.mirror.slots().count()
    }

    async fn loaded_ids(&mut self, until: Time) -> Vec<TimerId> {
        let mut ids = Vec::new();
        loop {
            let load = Load { until, max_timers: 1_000, max_bytes: 1 << 20, claim: None };
            let loaded = self.load(load).await.expect("the lane is alive");
            ids.extend(loaded.timers.iter().map(|t| t.record.timer.id));
            if loaded.horizon >= until {
                ids.sort_unstable();
                return ids;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_that_are_refused_leave_no_slots_in_memory() {
    let server = Server::start();
    let mut engine = engine(&server).await;
    let holder = timer(1, NOW + DAY, Some("k"));
    assert_eq!(engine.pipeline([vec![schedule(&holder, KeyPolicy::Create)]]).await, [NEW]);
    let before = engine.known_slots();
    for hundred in 0..100 {
        let all: Vec<_> =
            (hundred * 100..).take(100).map(|n| timer(2 + n, NOW + (2 + n) * DAY, Some("k"))).collect();
        let (create, keep) = all.split_at(50);
        let taken = create.iter().map(|t| schedule(t, KeyPolicy::Create)).collect();
        let kept = keep.iter().map(|t| schedule(t, KeyPolicy::Keep)).collect();
        let expected = [ScheduleAnswer::KeyTaken(holder.id), ScheduleAnswer::Kept(holder.id)];
        let expected = expected.map(|a| vec![Answer::Schedule(a); 50]).concat();
        assert_eq!(engine.pipeline([taken, kept]).await, expected);
    }
    assert_eq!(engine.known_slots(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_comes_to_nothing_leaves_no_slots_in_memory() {
    let server = Server::start();
    let mut engine = engine(&server).await;
    let ended = timer(1, NOW + DAY, None);
    let stays = timer(2, NOW + DAY, None);
    engine.pipeline([vec![schedule(&ended, KeyPolicy::Create), schedule(&stays, KeyPolicy::Create)]]).await;
    let expired = Op::settle(ended.id, Verdict::Expired);
    engine.pipeline([vec![expired], vec![Op::Park { id: stays.id, failed: 0 }]]).await;
    let before = engine.known_slots();
    let other = Timer { payload: Bytes::from_static(b"other"), ..stays.clone() };
    let moves = (10..200).flat_map(|n| {
        let (id, fire) = (timer(n, NOW + n * DAY, None).id, NOW + n * DAY);
        let retry = Verdict::Retry { fire, tier: 1, failed: 1, error: "no".into() };
        [Op::Unpark { id, fire }, Op::Replay { id, fire }, Op::settle(id, retry)]
    });
    let answers = engine.pipeline([moves.collect()]).await;
    assert!(answers.iter().all(|a| *a == Answer::Gone));
    let answers = engine
        .pipeline([vec![schedule(&ended, KeyPolicy::Create)], vec![schedule(&other, KeyPolicy::Create)]])
        .await;
    assert!(matches!(answers[0], Answer::Schedule(ScheduleAnswer::Ended(_))));
    assert_eq!(answers[1], Answer::Schedule(ScheduleAnswer::Conflict));
    server.call::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let fresh: Vec<_> = (300..400).map(|n| timer(n, NOW + n * DAY, None)).collect();
    let all = || fresh.iter().map(|t| schedule(t, KeyPolicy::Create)).collect();
    assert_eq!(engine.pipeline([all()]).await, vec![Answer::Refused(Refusal::OutOfMemory); 100]);
    assert_eq!(engine.known_slots(), before);
    server.call::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(engine.pipeline([all()]).await, vec![NEW; 100]);
    assert_eq!(engine.known_slots(), before + 100);
    engine.pipeline([fresh.iter().map(|t| Op::settle(t.id, Verdict::Ack)).collect()]).await;
    assert_eq!(engine.known_slots(), before);
}

/// Scripts under way at the same time place timers in one slot, of which some are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_is_known_for_as_long_as_any_script_has_filled_it() {
    let server = Server::start();
    let mut engine = engine(&server).await;
    let holder = timer(1, NOW + DAY, Some("k"));
    engine.pipeline([vec![schedule(&holder, KeyPolicy::Create)]]).await;
    let before = engine.known_slots();
    let refused = |n, at| vec![schedule(&timer(n, at, Some("k")), KeyPolicy::Create)];
    let filed = |n, at| vec![schedule(&timer(n, at, None), KeyPolicy::Create)];
    let ack = |n, at| vec![Op::settle(timer(n, at, None).id, Verdict::Ack)];
    let at = |day: u64| NOW + day * DAY;
    engine.pipeline([refused(10, at(10)), filed(11, at(10))]).await;
    assert_eq!(engine.known_slots(), before + 1, "refused, filed");
    engine.pipeline([filed(20, at(20)), refused(21, at(20))]).await;
    assert_eq!(engine.known_slots(), before + 2, "filed, refused");
    engine.pipeline([refused(30, at(30)), filed(31, at(30)), refused(32, at(30))]).await;
    assert_eq!(engine.known_slots(), before + 3, "refused, filed, refused");
    engine.pipeline([filed(40, at(40)), ack(40, at(40)), refused(41, at(40))]).await;
    assert_eq!(engine.known_slots(), before + 3, "filed, removed, refused");
    engine.pipeline([refused(50, at(50)), refused(51, at(50))]).await;
    assert_eq!(engine.known_slots(), before + 3, "refused, refused");
    let mut expected =
        vec![holder.id, timer(11, at(10), None).id, timer(20, at(20), None).id, timer(31, at(30), None).id];
    expected.sort_unstable();
    assert_eq!(engine.loaded_ids(at(60)).await, expected);
}

/// Scripts that change anything, of what is done.
async fn scripts_of(engine: &mut Engine, ops: Vec<Op>) -> u64 {
    let before = engine.seq;
    let answers = engine.pipeline([ops]).await;
    assert!(answers.iter().all(|a| *a == Answer::Done), "{answers:?}");
    engine.seq - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_script_moves_or_loads_more_than_a_few_large_records() {
    let server = Server::start();
    let mut engine = engine(&server).await;
    let payload = Bytes::from(vec![7; 32 << 10]);
    let timers: Vec<_> =
        (0..40).map(|n| Timer { payload: payload.clone(), ..timer(n, NOW + DAY + n * 20, None) }).collect();
    let each = |make: &dyn Fn(TimerId) -> Op| timers.iter().map(|t| make(t.id)).collect::<Vec<_>>();
    engine.pipeline([timers.iter().map(|t| schedule(t, KeyPolicy::Create)).collect()]).await;
    let park = scripts_of(&mut engine, each(&|id| Op::Park { id, failed: 0 })).await;
    assert!(park >= 20, "{park} scripts park 1.25 MiB");
    // What is parked is in no slot: a listing tells how large it is.
    let mut cursor = Some(0);
    while let Some(from) = cursor {
        cursor = engine.parked(&timers[0].dest, from, 100).await.unwrap().next;
    }
    let fire = NOW + DAY;
    let unpark = scripts_of(&mut engine, each(&|id| Op::Unpark { id, fire })).await;
    assert!(unpark >= 20, "{unpark} scripts file 1.25 MiB");
    let before = engine.seq;
    assert_eq!(engine.loaded_ids(fire).await.len(), timers.len());
    assert!(engine.seq - before >= 5, "{} scripts load 1.25 MiB", engine.seq - before);
    let fire = NOW + 2 * DAY;
    let retry = Verdict::Retry { fire, tier: 1, failed: 1, error: "no".into() };
    let retried = scripts_of(&mut engine, each(&|id| settle(id, retry.clone()))).await;
    assert!(retried >= 20, "{retried} scripts file 1.25 MiB again");
    let before = engine.seq;
    assert_eq!(engine.loaded_ids(fire).await.len(), timers.len());
    assert!(engine.seq - before >= 5, "{} scripts load 1.25 MiB of retries", engine.seq - before);
    // What is only read and removed may be more at a time.
    let ack = scripts_of(&mut engine, each(&|id| settle(id, Verdict::Ack))).await;
    assert!((5..20).contains(&ack), "{ack} scripts remove 1.25 MiB");
    assert_eq!(engine.census().await.unwrap().residue, 0);
}

fn to_app(n: u64, app: &str) -> Timer {
    Timer { dest: Destination::new("orders", app).expect("a destination"), ..timer(n, NOW + DAY + n, None) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destination_is_named_together_with_its_first_timer_or_not_at_all() {
    let server = Server::start();
    let mut engine = engine(&server).await;
    assert_eq!(engine.pipeline([vec![schedule(&to_app(0, "first"), KeyPolicy::Create)]]).await, [NEW]);
    let named = || server.call::<u64>(&["HLEN", "dest:{2}:t"]);
    assert_eq!((named(), engine.dests.known()), (1, 1));
    server.call::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let to = |n: u64| to_app(n, &format!("app-{n}"));
    for round in 0..10 {
        let some = |from: u64| {
            (from..from + 50).map(|n| schedule(&to(1 + round * 100 + n), KeyPolicy::Create)).collect()
        };
        let refused = vec![Answer::Refused(Refusal::OutOfMemory); 100];
        assert_eq!(engine.pipeline([some(0), some(50)]).await, refused);
    }
    assert_eq!((named(), engine.dests.known()), (1, 1), "refused timers leave no destinations");
    server.call::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    // The same ones at the same time, in several scripts.
    let some = |n: [u64; 3]| {
        n.map(|n| schedule(&to_app(5_000 + n, &format!("app-{}", n % 4)), KeyPolicy::Create)).to_vec()
    };
    assert_eq!(engine.pipeline([some([0, 1, 4]), some([2, 5, 8]), some([3, 6, 7])]).await, vec![NEW; 9]);
    assert_eq!((named(), engine.dests.known()), (5, 5));
    let mut next = self::engine(&server).await;
    let load = Load { until: NOW + 2 * DAY, max_timers: 100, max_bytes: 1 << 20, claim: None };
    let loaded = next.load(load).await.unwrap().timers;
    assert_eq!(loaded.len(), 10);
    for t in loaded.iter().map(|t| &t.record.timer).filter(|t| t.id.random() >= 5_000) {
        assert_eq!(t.dest.app().to_string(), format!("app-{}", t.id.random() % 4));
    }
}
