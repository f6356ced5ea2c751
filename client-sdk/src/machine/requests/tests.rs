//! Any order of sending, answering, losing connections and time passing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mtimer_protocol::ops;
use mtimer_protocol::ops::PurgeReply;
use mtimer_protocol::{BrokerEntry, ClientMessage, Request, RequestOp, Topology};
use mtimer_types::limits::REPEAT_HORIZON_MS;
use mtimer_types::{Term, TimerId};
use proptest::prelude::*;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::*;
use crate::RequestError;
use crate::machine::call::Waiter;
use crate::machine::origin::Origin;
use crate::machine::tests::Half;

const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Somebody asks.
    Ask,
    /// A connection can take a frame.
    Send(usize),
    /// The oldest frame that was sent is answered: done, not now, stored but not replicated, full,
    /// refused, unknown, or moved.
    Answer(usize, u8),
    /// An answer to something that was answered before.
    Stale(usize),
    /// A connection is lost, or there again.
    Cut(usize),
    /// Both partitions have other owners.
    Assign(usize, usize),
    /// So many ms.
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Ask),
        4 => (0usize..2).prop_map(Step::Send),
        3 => (0usize..2, 0u8..7).prop_map(|(at, kind)| Step::Answer(at, kind)),
        1 => (0usize..2).prop_map(Step::Stale),
        1 => (0usize..2).prop_map(Step::Cut),
        1 => (0usize..2, 0usize..2).prop_map(|(a, b)| Step::Assign(a, b)),
        4 => prop_oneof![0u64..50, 0u64..5_000, 9_000u64..31_000].prop_map(Step::Wait),
    ]
}

fn failed(code: ErrorCode) -> OpReply {
    OpReply::Failed { code, message: String::new() }
}

/// The history of one operation, as the wire saw it.
#[derive(Default)]
struct Seen {
    /// `first_sent` of all sendings since the last word that nothing was done.
    first: Option<(Time, Moment)>,
    /// It may have been done, or has been.
    open: bool,
    /// An answer never came, or said that it is stored.
    tainted: bool,
}

const NAMES: [&str; 2] = ["a", "b"];

/// Who waits for an operation: its number, and its permit.
#[derive(Debug)]
struct Caller(usize, OwnedSemaphorePermit);

impl Waiting for Caller {
    fn is_abandoned(&self) -> bool {
        false
    }
}

/// Two brokers, two partitions.
struct World {
    requests: Requests<Caller>,
    routes: Routes,
    permits: Arc<Semaphore>,
    start: Moment,
    now: Moment,
    answers: Vec<Option<Result<OpReply, RequestError>>>,
    seen: BTreeMap<u64, Seen>,
    frames: BTreeMap<u64, Request>,
    /// By broker: the connection, and the frames on its wire.
    sessions: [Option<(u64, Vec<u64>)>; 2],
    last_session: u64,
    version: u64,
}

impl World {
    fn new() -> Self {
        let now = Moment::ORIGIN;
        let mut world = Self {
            requests: Requests::new(Duration::from_secs(30)),
            routes: Routes::new(2),
            permits: Arc::new(Semaphore::new(10_000)),
            start: now,
            now,
            answers: Vec::new(),
            seen: BTreeMap::new(),
            frames: BTreeMap::new(),
            sessions: [None, None],
            last_session: 0,
            version: 0,
        };
        world.open(0);
        world.open(1);
        world.assign(0, 1);
        world
    }

    fn open(&mut self, at: usize) {
        self.last_session += 1;
        self.routes.opened(&Origin::new(self.last_session, Some(NAMES[at].to_owned())));
        self.requests.opened(self.last_session, 4 << 20, 2_000);
        self.requests.reroute(&self.routes);
        self.sessions[at] = Some((self.last_session, Vec::new()));
    }

    fn assign(&mut self, a: usize, b: usize) {
        self.version += 1;
        let entry = |address: &str| BrokerEntry { address: address.to_owned(), draining: false };
        let topology = Topology {
            term: Term(1),
            version: self.version,
            leader: "a".into(),
            brokers: NAMES.map(entry).into(),
            owners: vec![Some(a as u16), Some(b as u16)],
        };
        assert!(self.routes.observe(topology));
        self.requests.reroute(&self.routes);
    }

    fn time(&self) -> Time {
        Time::from_ms(1_000_000 + self.now.since(self.start).as_millis() as u64)
    }

    fn ask(&mut self) {
        let permit = Arc::clone(&self.permits).try_acquire_owned().unwrap();
        let n = self.answers.len() as u64;
        let zero = Time::from_ms(0);
        let op = RequestOp::Purge(ops::Purge {
            id: TimerId::new(zero, zero, mtimer_types::PartitionId(n as u16 % 2), n),
        });
        let call = PendingOp::new(op, 2, Waiter::new(Caller(n as usize, permit), self.now, TIMEOUT));
        self.requests.push(call, &self.routes);
        self.answers.push(None);
    }

    /// Takes in the operations that have ended.
    fn drain(&mut self) {
        while let Some(Answered { call: Caller(n, _permit), answer }) = self.requests.poll_answered() {
            assert!(self.answers[n].replace(answer).is_none(), "answered once");
        }
    }

    fn answer_to(&mut self, n: usize) -> Option<Result<OpReply, RequestError>> {
        self.drain();
        self.answers[n].clone()
    }

    fn send(&mut self, at: usize) -> Result<(), TestCaseError> {
        let Some((session, _)) = self.sessions[at] else { return Ok(()) };
        let Some(frame) = self.requests.next(session, self.time(), self.now) else { return Ok(()) };
        let ClientMessage::Request(request) = frame.message.clone() else { panic!("{frame:?}") };
        self.requests.sent(frame, &self.routes);
        prop_assert!(self.frames.insert(request.corr, request.clone()).is_none(), "numbers are used once");
        for op in &request.ops {
            let seen = self.seen.entry(number(op)).or_default();
            if let Some((time, at)) = seen.first {
                prop_assert_eq!(time, request.first_sent, "a repeat keeps its time");
                prop_assert!(self.now < at + Duration::from_millis(REPEAT_HORIZON_MS), "and comes in time");
            }
            seen.first.get_or_insert((request.first_sent, self.now));
            seen.open = true;
        }
        if let Some((_, sent)) = &mut self.sessions[at] {
            sent.push(request.corr);
        }
        Ok(())
    }

    fn answer(&mut self, at: usize, kind: u8) -> Result<(), TestCaseError> {
        let Some((session, sent)) = &mut self.sessions[at] else { return Ok(()) };
        if sent.is_empty() {
            return Ok(());
        }
        let (session, corr) = (*session, sent.remove(0));
        let ops = &self.frames[&corr].ops;
        let reply = match kind {
            0 => OpReply::Purge(PurgeReply::Done),
            1 => failed(ErrorCode::Unavailable),
            2 => failed(ErrorCode::NotReplicated),
            3 => failed(ErrorCode::StoreFull),
            5 => failed(ErrorCode::Unknown),
            6 => OpReply::Moved { owner: NAMES[1 - at].to_owned() },
            _ => failed(ErrorCode::Invalid),
        };
        for op in ops {
            let seen = self.seen.entry(number(op)).or_default();
            // "Nothing was done" speaks of this sending only: after a lost one, or one that was
            // stored, it changes nothing.
            match kind {
                1 | 3 | 4 | 6 if !seen.tainted => (seen.open, seen.first) = (false, None),
                2 | 5 => seen.tainted = true,
                0 => seen.open = false,
                _ => {}
            }
        }
        let replies = vec![reply; ops.len()];
        prop_assert!(
            self.requests.reply(session, corr, replies, self.now, &mut self.routes, &mut Half).is_ok()
        );
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Ask => self.ask(),
            Step::Send(at) => self.send(at)?,
            Step::Answer(at, kind) => self.answer(at, kind)?,
            Step::Stale(at) => {
                let Some((session, open)) = &self.sessions[at] else { return Ok(()) };
                if let Some(old) = self.frames.keys().copied().find(|corr| !open.contains(corr)) {
                    let reply = vec![OpReply::Purge(PurgeReply::Done)];
                    let replied =
                        self.requests.reply(*session, old, reply, self.now, &mut self.routes, &mut Half);
                    prop_assert_eq!(replied, Ok(0));
                }
            }
            Step::Cut(at) => match self.sessions[at].take() {
                None => self.open(at),
                Some((session, sent)) => {
                    for corr in sent {
                        let ops = self.frames[&corr].ops.iter().map(number);
                        ops.for_each(|n| self.seen.entry(n).or_default().tainted = true);
                    }
                    self.routes.closed(session);
                    self.requests.closed(session, &self.routes);
                    self.requests.reroute(&self.routes);
                }
            },
            Step::Assign(a, b) => self.assign(a, b),
            Step::Wait(ms) => {
                self.now += Duration::from_millis(ms);
                self.requests.sweep(self.now, |_| "no connection".to_owned(), &self.routes);
            }
        }
        Ok(())
    }
}

fn number(op: &RequestOp) -> u64 {
    match op {
        RequestOp::Purge(ops::Purge { id }) => id.random(),
        other => panic!("never asked: {other:?}"),
    }
}

proptest! {
    #[test]
    fn every_operation_is_answered_once_and_repeated_only_as_it_was(steps in proptest::collection::vec(step(), 0..120)) {
        let mut world = World::new();
        for step in steps {
            world.step(step)?;
        }
        // Time alone ends everything.
        for _ in 0..4 {
            world.now += Duration::from_millis(REPEAT_HORIZON_MS);
            world.requests.sweep(world.now, |_| "no connection".to_owned(), &world.routes);
        }
        prop_assert!(world.requests.is_empty());
        prop_assert_eq!(world.requests.next_timeout(), None);
        world.drain();
        prop_assert_eq!(world.permits.available_permits(), 10_000, "all are released");
        for (n, answer) in world.answers.into_iter().enumerate() {
            prop_assert!(answer.is_some(), "number {n}: {answer:?}");
            let error = answer.unwrap().err();
            let harmless = error.is_some_and(|e| e.has_no_side_effects());
            let open = world.seen.get(&(n as u64)).is_some_and(|s| s.open);
            prop_assert!(!(harmless && open), "number {n} may have been done");
        }
    }
}

#[test]
fn closing_answers_everybody() {
    let mut world = World::new();
    world.ask();
    world.send(0).unwrap();
    world.ask();
    world.requests.close();
    assert!(world.requests.is_empty());
    world.drain();
    let answers: Vec<_> = world.answers.iter().map(|a| a.clone().unwrap().unwrap_err()).collect();
    assert!(matches!(answers[..], [RequestError::Unknown { .. }, RequestError::Closed]), "{answers:?}");
}

#[test]
fn a_call_finds_its_way_to_the_owner() {
    let mut world = World::new();
    let sent = |world: &mut World, at: usize| {
        let session = world.sessions[at].as_ref().unwrap().0;
        let frame = world.requests.next(session, world.time(), world.now);
        frame.map(|f| {
            let (corr, first) = (f.corr, f.first.time);
            world.requests.sent(f, &world.routes);
            (session, corr, first)
        })
    };
    let moved = |to: &str| vec![OpReply::Moved { owner: to.to_owned() }];
    world.ask();
    let (session, corr, _) = sent(&mut world, 0).unwrap();
    assert!(sent(&mut world, 1).is_none());
    // Moved: at once to b, and back again only after a delay.
    let retried = world.requests.reply(session, corr, moved("b"), world.now, &mut world.routes, &mut Half);
    assert_eq!(retried, Ok(1));
    let (session, corr, _) = sent(&mut world, 1).unwrap();
    world.requests.reply(session, corr, moved("a"), world.now, &mut world.routes, &mut Half).unwrap();
    assert!(sent(&mut world, 0).is_none() && sent(&mut world, 1).is_none());
    world.now += Duration::from_millis(25);
    assert!(world.requests.sweep(world.now, |_| String::new(), &world.routes));
    let (_, _, first) = sent(&mut world, 0).unwrap();
    // The owner dies: nobody has it, and then b does, with the time of the first sending.
    world.step(Step::Cut(0)).unwrap();
    assert!(sent(&mut world, 1).is_none());
    world.now += Duration::from_millis(900);
    world.assign(1, 1);
    let (session, corr, again) = sent(&mut world, 1).unwrap();
    assert_eq!(first, again);
    // A newer topology is faster than the delay.
    let not_owner = vec![failed(ErrorCode::NotOwner)];
    world.requests.reply(session, corr, not_owner, world.now, &mut world.routes, &mut Half).unwrap();
    assert!(sent(&mut world, 1).is_none());
    world.assign(1, 0);
    let (session, corr, _) = sent(&mut world, 1).unwrap();
    world
        .requests
        .reply(session, corr, vec![OpReply::Purge(PurgeReply::Done)], world.now, &mut world.routes, &mut Half)
        .unwrap();
    assert_eq!(world.answer_to(0).unwrap(), Ok(OpReply::Purge(PurgeReply::Done)));
}

#[test]
fn what_was_stored_is_so_called_if_a_repeat_is_not_answered() {
    let mut world = World::new();
    world.ask();
    world.send(0).unwrap();
    world.answer(0, 2).unwrap();
    world.step(Step::Wait(5_000)).unwrap();
    world.send(0).unwrap();
    world.step(Step::Wait(REPEAT_HORIZON_MS)).unwrap();
    let error = world.answer_to(0).unwrap().unwrap_err();
    assert!(matches!(error, RequestError::NotReplicated { .. }), "{error:?}");
}
