//! What an owner knows of which timers have ended.

use mtimer_types::Ended;

use super::*;

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
            8..11 => Op::Cancel { target, in_flight: None, request },
            11 => settle(id, Verdict::Ack),
            12 => settle(id, Verdict::Expired),
            13 => settle(id, Verdict::Dead { reason: DeadReason::Failed, failed: 1, error }),
            14 => Op::Purge { id },
            _ if self.below(8) == 0 => Op::Trim { of: Retained::Dead, before: NOW, keep: 1, limit: 2 },
            _ => Op::Take { id, failed: 0 },
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
        |n: u64| Op::Cancel { target: Target::Id(of_an_hour(n).id), in_flight: None, request: RequestId(n) };
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
    let trim = |limit| [vec![Op::Trim { of: Retained::Dead, before: NOW, keep: 0, limit }]];
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
