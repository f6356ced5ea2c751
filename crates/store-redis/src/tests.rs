//! Tests that look inside of a lane: what stays of things that came to nothing, and what becomes of damaged records.

use bytes::Bytes;
use mtimer_store::{
    Acquire, Answer, Batch, CancelAnswer, DeadFilter, LaneError, Load, Op, Refusal, RequestId,
    ScheduleAnswer, Store, Verdict,
};
use mtimer_types::{
    DeadReason, Destination, Ended, Key, KeyPolicy, Mode, Nonce, PartitionId, SlotWidth, Target, Term, Time,
    Timer, TimerId,
};
use tokio::sync::oneshot;

use crate::lane::Engine;
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
    Op::Settle { id, verdict }
}

const NEW: Answer = Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None });

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
    let expired = Op::Settle { id: ended.id, verdict: Verdict::Expired };
    engine.pipeline([vec![expired], vec![Op::Park { id: stays.id, failed: 0 }]]).await;
    let before = engine.known_slots();
    let other = Timer { payload: Bytes::from_static(b"other"), ..stays.clone() };
    let moves = (10..200).flat_map(|n| {
        let (id, fire) = (timer(n, NOW + n * DAY, None).id, NOW + n * DAY);
        let retry = Verdict::Retry { fire, tier: 1, failed: 1, error: "no".into() };
        [Op::Unpark { id, fire }, Op::Replay { id, fire }, Op::Settle { id, verdict: retry }]
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
    engine.pipeline([fresh.iter().map(|t| Op::Settle { id: t.id, verdict: Verdict::Ack }).collect()]).await;
    assert_eq!(engine.known_slots(), before);
}

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
    let stopped = Op::Cancel { target: Target::Id(make(0).id), in_flight: true, request: RequestId(1) };
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

const HOUR: u64 = 3_600_000;
/// When an hour begins that is a day away.
const LATER: Time = Time::from_ms((NOW.as_ms() / HOUR + 24) * HOUR);
const STORED: Answer = Answer::Schedule(ScheduleAnswer::Scheduled { new: false, replaced: None });

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

/// Timers of an hour, in wide slots that are dense.
fn in_an_hour(numbers: std::ops::Range<u64>) -> Vec<Op> {
    numbers.map(|n| schedule(&of_an_hour(n), KeyPolicy::Create)).collect()
}

fn of_an_hour(n: u64) -> Timer {
    timer(n, LATER + n * 7_919 % 3_600 * 1_000, None)
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

/// Numbers that look random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    /// Something is done to one of a few timers.
    fn op(&mut self, request: u64) -> Op {
        let n = self.below(24);
        let key = ["a", "b", "c"][(n % 3) as usize];
        // At times the same id comes without its key.
        let keyed = n.is_multiple_of(4) && self.below(4) > 0;
        let mode = if n.is_multiple_of(5) { Mode::AtMostOnce } else { Mode::AtLeastOnce };
        let one = Timer { mode, ..timer(n, NOW + DAY + n * 1_000, keyed.then_some(key)) };
        let id = one.id;
        let by_key = keyed && self.below(2) == 0;
        let target = if by_key {
            Target::Key(one.dest.clone(), Key::new(key).expect("a key"))
        } else {
            Target::Id(id)
        };
        let (request, error) = (RequestId(request), String::new().into());
        match self.below(16) {
            0..8 => {
                let policy = [KeyPolicy::Create, KeyPolicy::Replace, KeyPolicy::Keep][self.below(3) as usize];
                Op::Schedule { timer: one.into(), policy }
            }
            8..11 => Op::Cancel { target, in_flight: false, request },
            11 => settle(id, Verdict::Ack),
            12 => settle(id, Verdict::Expired),
            13 => settle(id, Verdict::Dead { reason: DeadReason::Failed, failed: 1, error }),
            14 => Op::Purge { id },
            _ if self.below(8) == 0 => Op::TrimDead { before: NOW, keep: 1, limit: 2 },
            _ => Op::Take { id },
        }
    }
}

/// What an owner knows of how timers ended saves a search, and changes no answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn to_know_what_has_ended_changes_no_answer() {
    let server = Server::start();
    let (mut ended, mut denied) = (0, 0);
    for seed in 0..30 {
        let cluster = |knowing| format!("{seed}{knowing}");
        let mut ignorant = engine_of(&server, &cluster(false)).await;
        let mut knowing = engine_of(&server, &cluster(true)).await;
        let mut dice = Dice(seed);
        for round in 0..40 {
            // Nothing was there before it.
            knowing.hints.endings.assume_complete();
            let batches = [0, 1, 2, 3].map(|batch| {
                let request = |n| (round * 4 + batch) * 100 + n;
                (0..1 + dice.below(6)).map(|n| dice.op(request(n))).collect::<Vec<_>>()
            });
            let said = knowing.pipeline(batches.clone()).await;
            assert_eq!(said, ignorant.pipeline(batches.clone()).await, "seed {seed}, {batches:?}");
            let has_ended = |a: &&Answer| matches!(a, Answer::Schedule(ScheduleAnswer::Ended(_)));
            ended += said.iter().filter(has_ended).count();
            denied += (0..24)
                .filter(|n| !knowing.hints.endings.may_have(timer(*n, NOW + DAY + n * 1_000, None).id))
                .count();
        }
    }
    assert!(ended > 1_000 && denied > 1_000, "{ended} {denied}");
}

/// Of what it has not ended an owner need not ask, once it has reigned for long enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_timers_are_not_searched_among_those_that_have_ended() {
    let server = Server::start();
    let mut engine = engine(&server).await;
    let cancel =
        |n: u64| Op::Cancel { target: Target::Id(of_an_hour(n).id), in_flight: false, request: RequestId(n) };
    assert_eq!(engine.pipeline([in_an_hour(0..100)]).await, vec![NEW; 100]);
    engine.pipeline([(0..50).map(cancel).collect()]).await;
    let searched = |server: &Server| server.calls_of("hmget");
    // Each script reads the owner's record.
    let before = searched(&server);
    assert_eq!(engine.pipeline([in_an_hour(100..200)]).await, vec![NEW; 100]);
    assert_eq!(searched(&server) - before, 2);
    engine.hints.endings.assume_complete();
    let before = searched(&server);
    assert_eq!(engine.pipeline([in_an_hour(200..300)]).await, vec![NEW; 100]);
    assert_eq!(searched(&server) - before, 1);
    let answers = engine.pipeline([in_an_hour(49..51)]).await;
    assert_eq!(answers, [Answer::Schedule(ScheduleAnswer::Ended(Ended::Cancelled)), STORED]);
    // What trimming finds it does not know; that it finds nothing it does, if nothing was laid out meanwhile.
    let any_may_have = |engine: &Engine| engine.hints.endings.may_have(of_an_hour(999).id);
    let trim = |limit| [vec![Op::TrimDead { before: NOW, keep: 0, limit }]];
    assert_eq!(engine.pipeline(trim(200)).await, [Answer::Trimmed { removed: 0, more: false }]);
    assert!(!any_may_have(&engine));
    let failed = Verdict::Dead { reason: DeadReason::Failed, failed: 1, error: "no".into() };
    engine.pipeline([vec![settle(of_an_hour(200).id, failed)]]).await;
    assert!(!any_may_have(&engine));
    assert_eq!(engine.pipeline(trim(200)).await, [Answer::Trimmed { removed: 1, more: false }]);
    assert!(any_may_have(&engine));
    engine.hints.endings.assume_complete();
    engine.pipeline(trim(10)).await;
    assert!(any_may_have(&engine));
    // Nor does it know after trouble how old is what scripts have written.
    engine.hints.endings.assume_complete();
    engine.pipeline([in_an_hour(300..301)]).await;
    assert!(!any_may_have(&engine));
    server.call::<()>(&["SCRIPT", "FLUSH"]);
    assert_eq!(engine.pipeline([in_an_hour(301..302)]).await, [NEW]);
    assert!(any_may_have(&engine));
    engine.hints.endings.assume_complete();
    engine.pipeline([in_an_hour(302..303)]).await;
    server.call::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    assert_eq!(engine.pipeline([in_an_hour(303..304)]).await, [NEW]);
    assert!(any_may_have(&engine));
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

/// The scripts that ran since it was told to note them, those that were refused among them.
fn scripts(server: &Server) -> Vec<(String, usize)> {
    let ran = server.durations().into_iter().filter(|(name, _)| name.ends_with(".lua"));
    ran.map(|(name, durations)| (name, durations.len())).collect()
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
        in_flight: false,
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
    let ack = |n, at| vec![Op::Settle { id: timer(n, at, None).id, verdict: Verdict::Ack }];
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

/// Damages the first records of a slot.
const DAMAGE_SLOT: &str = "for _, id in ipairs(redis.call('HKEYS', KEYS[1])) do redis.call('HSET', KEYS[1], id, ARGV[1]) \
    ARGV[2] = ARGV[2] - 1 if ARGV[2] == 0 then return 1 end end return 0";
/// Damages the first records of a sorted set's ids.
const DAMAGE_MOVED: &str = "for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, ARGV[2] - 1)) do \
    redis.call('HSET', KEYS[2 + string.byte(id, 16) % 16], id, ARGV[1]) end";

/// Damages the records of the first `count` ids of a sorted set.
fn damage_moved(server: &Server, index: &str, count: u64, value: &str) {
    let shelves: Vec<_> = (0..16).map(|n| format!("moved:{{2}}:t:{n}")).collect();
    let mut call = vec!["EVAL", DAMAGE_MOVED, "17", index];
    call.extend(shelves.iter().map(String::as_str));
    let count = count.to_string();
    call.extend([value, &count]);
    server.call::<()>(&call);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_records_at_the_head_of_a_park_are_passed_over() {
    let server = Server::start();
    let mut engine = engine(&server).await;
    let timers: Vec<_> = (0..400).map(|n| timer(n, NOW + DAY + n, None)).collect();
    engine.pipeline([timers.iter().map(|t| schedule(t, KeyPolicy::Create)).collect()]).await;
    engine.pipeline([timers.iter().map(|t| Op::Park { id: t.id, failed: 0 }).collect()]).await;
    damage_moved(&server, "park:{2}:t", 300, "p\x20");
    let dest = &timers[0].dest;
    for _ in 0..3 {
        let page = engine.parked(dest, 0, 1).await.unwrap();
        assert_eq!(page.rows.len(), 1);
        assert!(page.next.is_some());
        assert_eq!(engine.unreadable.found(), 300, "each is told once");
    }
    // Whoever follows the cursor sees every other row once.
    let (mut seen, mut cursor) = (Vec::new(), 0);
    loop {
        let page = engine.parked(dest, cursor, 7).await.unwrap();
        seen.extend(page.rows.iter().map(|r| r.timer.id));
        match page.next {
            Some(next) => cursor = next,
            None => break,
        }
    }
    let distinct: std::collections::BTreeSet<_> = seen.iter().collect();
    assert_eq!((seen.len(), distinct.len()), (100, 100));
    assert_eq!(engine.census().await.unwrap().parked, 400, "nothing is deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_records_in_a_dense_wide_slot_hold_up_nothing() {
    let server = Server::start();
    let mut engine = engine(&server).await;
    let start = SlotWidth::Day.start_of(NOW + 10 * DAY);
    let width = |n: u64, due| TimerId::with_width(due, SlotWidth::Day, PARTITION, n);
    let timers: Vec<_> = (0..3_000)
        .map(|n| {
            let due = start + n * 20_000;
            Timer { id: width(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2, due), ..timer(0, due, None) }
        })
        .collect();
    for some in timers.chunks(1_000) {
        engine.pipeline([some.iter().map(|t| schedule(t, KeyPolicy::Create)).collect()]).await;
    }
    let keys = server.keys();
    let wide: Vec<_> = keys.iter().filter(|k| k.starts_with("slot:{2}:t:0.3.")).collect();
    assert!(wide.len() > 5, "{keys:?}");
    // One of each kind: no head at all, and one that is cut off.
    for (n, slot) in wide.iter().enumerate() {
        let value = ["", "\u{80}"][n % 2];
        assert_eq!(server.call::<i64>(&["EVAL", DAMAGE_SLOT, "1", slot, value, "1"]), 1);
    }
    let until = start + DAY;
    assert_eq!(engine.loaded_ids(until).await.len(), timers.len() - wide.len());
    assert_eq!(engine.census().await.unwrap().pending, timers.len() as u64, "nothing is deleted");
}

/// Whatever is asked of a damaged record: the lane goes on, and the bytes stay unless they are removed on request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_on_damaged_records_do_not_end_the_lane() {
    let server = Server::start();
    let mut engine = engine(&server).await;
    for (round, value) in
        ["", "\x20", "\u{80}", "s", "p\x20", "t", "d", "d1234567\x20"].into_iter().enumerate()
    {
        let at = |n: u64| timer(round as u64 * 100 + n, NOW + DAY, None);
        let timers: Vec<_> = (0..30).map(at).collect();
        engine.pipeline([timers.iter().map(|t| schedule(t, KeyPolicy::Create)).collect()]).await;
        let failed = Verdict::Dead { reason: DeadReason::Failed, failed: 1, error: "no".into() };
        let dead = |id| settle(id, failed.clone());
        engine.pipeline([timers[10..20].iter().map(|t| Op::Park { id: t.id, failed: 0 }).collect()]).await;
        engine.pipeline([timers[20..].iter().map(|t| dead(t.id)).collect()]).await;
        let slot = server.keys().into_iter().find(|k| k.starts_with("slot:")).unwrap();
        server.call::<i64>(&["EVAL", DAMAGE_SLOT, "1", &slot, value, "10"]);
        damage_moved(&server, "park:{2}:t", 10, value);
        damage_moved(&server, "dead:{2}:t", 10, value);
        let again = engine.pipeline([timers.iter().map(|t| schedule(t, KeyPolicy::Create)).collect()]).await;
        let new = again.iter().filter(|a| **a == NEW).count();
        assert!(new == 0 || value == "s", "{value:?}: {again:?}");
        for t in &timers {
            let (id, fire) = (t.id, t.due + 5_000);
            let request = RequestId(t.id.random());
            let target = Target::Id(id);
            let retry = Verdict::Retry { fire, tier: 1, failed: 1, error: "no".into() };
            engine.get(target.clone()).await.unwrap();
            engine
                .pipeline([
                    vec![Op::Reschedule { target: target.clone(), due: fire, in_flight: false, request }],
                    vec![settle(id, retry)],
                    vec![Op::Park { id, failed: 0 }],
                    vec![Op::Unpark { id, fire }],
                    vec![Op::Take { id }],
                    vec![Op::Cancel { target, in_flight: false, request: RequestId(!t.id.random()) }],
                    vec![dead(id)],
                    vec![Op::Replay { id, fire }],
                    vec![dead(id)],
                ])
                .await;
        }
        engine.dead(&DeadFilter::default(), 0, 100).await.unwrap();
        engine.taken(0, 100).await.unwrap();
        engine.pipeline([vec![Op::TrimDead { before: NOW + 9 * DAY, keep: 0, limit: 1_000 }]]).await;
        assert_eq!(engine.census().await.unwrap().dead, 0, "{value:?}");
        server.call::<()>(&["FLUSHALL"]);
        engine = self::engine(&server).await;
    }
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
