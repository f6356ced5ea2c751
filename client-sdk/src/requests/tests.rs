//! Any order of sending, answering, losing connections and time passing.

use std::collections::BTreeMap;
use std::sync::Arc;

use mtimer_types::TimerId;
use proptest::prelude::*;
use tokio::sync::Semaphore;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Somebody asks.
    Ask,
    /// The connection has room for a frame.
    Send,
    /// The oldest frame that was sent is answered: done, not now, stored but not replicated, full, or refused.
    Answer(u8),
    /// An answer to something that was answered before.
    Stale,
    Disconnect,
    /// So many ms.
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Ask),
        4 => Just(Step::Send),
        3 => (0u8..6).prop_map(Step::Answer),
        1 => Just(Step::Stale),
        1 => Just(Step::Disconnect),
        4 => prop_oneof![0u64..50, 0u64..5_000, 9_000u64..31_000].prop_map(Step::Wait),
    ]
}

fn failed(code: ErrorCode) -> OpReply {
    OpReply::Failed { code, message: String::new() }
}

/// What one operation has gone through, as the wire saw it.
#[derive(Default)]
struct Seen {
    /// `first_sent` of all sendings since the last word that nothing was done.
    first: Option<(Time, Instant)>,
    /// It may have been done, or has been.
    open: bool,
    /// An answer never came, or said that it is stored.
    tainted: bool,
}

struct World {
    requests: Requests,
    room: Arc<Semaphore>,
    start: Instant,
    now: Instant,
    answers: Vec<oneshot::Receiver<Result<OpReply, RequestError>>>,
    seen: BTreeMap<u64, Seen>,
    frames: BTreeMap<u64, Request>,
    /// On the wire of this connection.
    sent: Vec<u64>,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            requests: Requests::new(),
            room: Arc::new(Semaphore::new(10_000)),
            start: now,
            now,
            answers: Vec::new(),
            seen: BTreeMap::new(),
            frames: BTreeMap::new(),
            sent: Vec::new(),
        }
    }

    fn time(&self) -> Time {
        Time::from_ms(1_000_000 + self.now.duration_since(self.start).as_millis() as u64)
    }

    fn ask(&mut self) {
        let (reply, answer) = oneshot::channel();
        let room = Arc::clone(&self.room).try_acquire_owned().unwrap();
        let op = RequestOp::Purge { id: TimerId::from_u128(self.answers.len() as u128) };
        self.requests.push(Call { op, waiter: Waiter::new(reply, room, self.now, TIMEOUT) });
        self.answers.push(answer);
    }

    fn send(&mut self) -> Result<(), TestCaseError> {
        let Some(mut frame) = self.requests.next(self.time(), self.now) else { return Ok(()) };
        let request = frame.take_request();
        frame.put_back(request.clone());
        self.requests.sent(frame);
        // The same number is the same frame.
        let before = self.frames.entry(request.corr).or_insert_with(|| request.clone());
        prop_assert_eq!(&*before, &request);
        for op in &request.ops {
            let seen = self.seen.entry(number(op)).or_default();
            if let Some((time, at)) = seen.first {
                prop_assert_eq!(time, request.first_sent, "a repeat keeps its time");
                prop_assert!(self.now < at + Duration::from_millis(REPEAT_HORIZON_MS), "and comes in time");
            }
            seen.first.get_or_insert((request.first_sent, self.now));
            seen.open = true;
        }
        self.sent.push(request.corr);
        Ok(())
    }

    fn answer(&mut self, kind: u8) -> Result<(), TestCaseError> {
        if self.sent.is_empty() {
            return Ok(());
        }
        let corr = self.sent.remove(0);
        let ops = &self.frames[&corr].ops;
        let reply = match kind {
            0 => OpReply::Done,
            1 => failed(ErrorCode::Unavailable),
            2 => failed(ErrorCode::NotReplicated),
            3 => failed(ErrorCode::StoreFull),
            5 => failed(ErrorCode::Unknown),
            _ => failed(ErrorCode::Invalid),
        };
        for op in ops {
            let seen = self.seen.entry(number(op)).or_default();
            // "Nothing was done" speaks of this sending only: after a lost one, or one that was stored, it changes nothing.
            match kind {
                1 | 3 if !seen.tainted => (seen.open, seen.first) = (false, None),
                2 | 5 => seen.tainted = true,
                0 | 4 => seen.open = false,
                _ => {}
            }
        }
        let replies = vec![reply; ops.len()];
        prop_assert!(self.requests.reply(corr, replies, self.now).is_ok());
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Ask => self.ask(),
            Step::Send => self.send()?,
            Step::Answer(kind) => self.answer(kind)?,
            Step::Stale => {
                let old = self.frames.keys().copied().find(|corr| !self.requests.sent.contains_key(corr));
                if let Some(corr) = old {
                    prop_assert_eq!(self.requests.reply(corr, vec![OpReply::Done], self.now), Ok(0));
                }
            }
            Step::Disconnect => {
                for corr in std::mem::take(&mut self.sent) {
                    let ops = self.frames[&corr].ops.iter().map(number);
                    ops.for_each(|n| self.seen.entry(n).or_default().tainted = true);
                }
                self.requests.disconnected();
            }
            Step::Wait(ms) => {
                self.now += Duration::from_millis(ms);
                self.requests.sweep(self.now, "no connection");
            }
        }
        Ok(())
    }
}

fn number(op: &RequestOp) -> u64 {
    match op {
        RequestOp::Purge { id } => id.as_u128() as u64,
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
            world.requests.sweep(world.now, "no connection");
        }
        prop_assert!(world.requests.is_empty());
        prop_assert_eq!(world.room.available_permits(), 10_000, "all room is given back");
        for (n, mut answer) in world.answers.into_iter().enumerate() {
            let answer = answer.try_recv();
            prop_assert!(answer.is_ok(), "number {n}: {answer:?}");
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
    world.send().unwrap();
    world.ask();
    world.requests.close();
    assert!(world.requests.is_empty());
    let answers: Vec<_> = world.answers.iter_mut().map(|a| a.try_recv().unwrap().unwrap_err()).collect();
    assert!(matches!(answers[..], [RequestError::Unknown { .. }, RequestError::Closed]), "{answers:?}");
}
