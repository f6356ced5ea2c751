//! The operations of one partition that wait for a batch, and whose turn it is.
//!
//! Purpose: a flood of one kind must not make the others wait. Operations that end a delivery or
//! are needed for one (settle, take) go first; then those that move a timer to the park or back;
//! then clients' requests, the sessions taking turns. Nobody waits for ever: each lower queue has a
//! share of every batch. Parks go before schedules, which bounds memory when overdue timers are
//! scheduled faster than they can be parked.
//! Invariant: each queue is first in, first out. If one of the owner's queues holds an operation on
//! a timer, a client's request about that timer waits there behind it ([`QueueClass`]). So
//! operations of one client on different timers may change places.
//! Not in here: which queue an operation belongs to (`requests`), how many batches are under way
//! (`calls`).

use std::collections::VecDeque;

use super::hash::{Map, Seeded};
use super::pending::{Asked, Own, Pending};
use super::table::ENTRY_BYTES;
use crate::api::SessionId;

/// Operations of one session in one turn.
const TURN_OPS: usize = 32;

/// Where an operation waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueClass {
    /// The owner's: settlements, takes, trims.
    Prompt,
    /// The owner's: to the park and back.
    Parks,
    /// Requests of this session.
    Session(SessionId),
}

#[derive(Debug)]
pub(super) struct OpQueue {
    prompt: VecDeque<Pending>,
    parks: VecDeque<Pending>,
    sessions: Map<SessionId, VecDeque<Asked>>,
    /// The sessions in `sessions`, in the order of their turns.
    turns: VecDeque<SessionId>,
    len: usize,
    /// How many of these may wait for others to go along with.
    deferrable: usize,
}

impl OpQueue {
    pub(super) fn new(seed: Seeded) -> Self {
        Self {
            prompt: VecDeque::new(),
            parks: VecDeque::new(),
            sessions: Map::with_hasher(seed),
            turns: VecDeque::new(),
            len: 0,
            deferrable: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Operations on their way to the park and back.
    pub(super) fn parks(&self) -> usize {
        self.parks.len()
    }

    /// Whether a take waits.
    pub(super) fn has_take(&self) -> bool {
        self.prompt.iter().any(Pending::is_take)
    }

    /// Whether something is here, and all of it may wait.
    pub(super) fn may_wait(&self) -> bool {
        self.len > 0 && self.deferrable == self.len
    }

    /// Whether something is here that may wait and has not had its turn.
    pub(super) fn has_deferrable(&self) -> bool {
        self.deferrable > 0
    }

    /// Queues an operation of the owner's own that may wait until others go.
    pub(super) fn push_deferrable(&mut self, own: Own) {
        self.deferrable += 1;
        self.push_own(own);
    }

    /// Queues an operation of the owner's own.
    pub(super) fn push_own(&mut self, own: Own) {
        self.len += 1;
        let queue = if own.is_about_the_park() { &mut self.parks } else { &mut self.prompt };
        queue.push_back(Pending::Own(own));
    }

    /// Queues a client's request.
    pub(super) fn push_asked(&mut self, class: QueueClass, asked: Asked) {
        self.len += 1;
        match class {
            QueueClass::Prompt => self.prompt.push_back(Pending::Asked(asked)),
            QueueClass::Parks => self.parks.push_back(Pending::Asked(asked)),
            QueueClass::Session(session) => {
                let queue = self.sessions.entry(session).or_insert_with(|| {
                    self.turns.push_back(session);
                    VecDeque::new()
                });
                queue.push_back(asked);
            }
        }
    }

    /// Takes the next batch: so many operations at most, and timers of so many bytes (one at
    /// least).
    pub(super) fn take(&mut self, most: usize, most_bytes: u64) -> Vec<Pending> {
        let of_sessions = self.len - self.prompt.len() - self.parks.len();
        let mut batch = Vec::with_capacity(self.len.min(most));
        let lower = (self.parks.len() + of_sessions).min(most / 4);
        batch.extend(self.prompt.drain(..self.prompt.len().min(most - lower)));
        let space = most - batch.len();
        let lower = of_sessions.min(most / 8).min(space);
        batch.extend(self.parks.drain(..self.parks.len().min(space - lower)));
        let mut bytes = 0;
        while batch.len() < most && (bytes < most_bytes || batch.is_empty()) {
            let Some(session) = self.turns.pop_front() else { break };
            let Some(queue) = self.sessions.get_mut(&session) else { continue };
            for _ in 0..TURN_OPS.min(most - batch.len()) {
                let Some(asked) = queue.pop_front() else { break };
                bytes += weigh(&asked);
                batch.push(Pending::Asked(asked));
                if bytes >= most_bytes {
                    break;
                }
            }
            if queue.is_empty() {
                self.sessions.remove(&session);
            } else {
                self.turns.push_back(session);
            }
        }
        self.len -= batch.len();
        // The deferrable rest had its turn.
        self.deferrable = 0;
        batch
    }

    /// Takes the requests that wait in the queues of sessions.
    pub(super) fn take_sessions(&mut self) -> Vec<Asked> {
        let mut all = Vec::new();
        while let Some(session) = self.turns.pop_front() {
            all.extend(self.sessions.remove(&session).into_iter().flatten());
        }
        self.len -= all.len();
        all
    }

    /// Takes everything.
    pub(super) fn take_all(&mut self) -> Vec<Pending> {
        let mut all = Vec::with_capacity(self.len);
        while !self.is_empty() {
            all.append(&mut self.take(usize::MAX, u64::MAX));
        }
        all
    }
}

/// Memory that an operation may come to need, bytes.
fn weigh(asked: &Asked) -> u64 {
    asked.op.subject().brings().map_or(0, |timer| ENTRY_BYTES + timer.content_bytes() as u64)
}

#[cfg(test)]
mod tests {
    use mtimer_protocol::RequestOp;
    use mtimer_protocol::ops::{Purge, Schedule};
    use mtimer_store::Verdict;
    use mtimer_types::{Destination, KeyPolicy, Time, Timer, TimerId};

    use super::*;
    use crate::engine::pending::ReplyRef;

    fn id(n: u128) -> TimerId {
        TimerId::from_u128(n)
    }

    fn asked(op: impl Into<RequestOp>) -> Asked {
        Asked::new(op.into(), ReplyRef { request: 0, index: 0 })
    }

    fn number(asked: &Asked) -> u128 {
        let RequestOp::Purge(Purge { id }) = &asked.op else { unreachable!() };
        id.as_u128()
    }

    fn numbers(batch: &[Pending]) -> Vec<u128> {
        let of = |pending: &Pending| match pending {
            Pending::Own(own) => own.id().unwrap().as_u128(),
            Pending::Asked(asked) => number(asked),
        };
        batch.iter().map(of).collect()
    }

    fn queue() -> OpQueue {
        OpQueue::new(Seeded(1))
    }

    fn park(q: &mut OpQueue, n: u128) {
        q.push_own(Own::Park(id(n)));
    }

    fn ask(q: &mut OpQueue, session: u64, n: u128) {
        q.push_asked(QueueClass::Session(SessionId(session)), asked(Purge { id: id(n) }));
    }

    fn settle(q: &mut OpQueue, n: u128) {
        q.push_own(Own::settle(id(n), Verdict::Ack));
    }

    #[test]
    fn a_lone_operation_does_not_wait_for_a_flood() {
        let mut q = queue();
        (0..1_000).for_each(|n| ask(&mut q, 1, n));
        (1_000..2_000).for_each(|n| park(&mut q, n));
        ask(&mut q, 2, 5_000);
        settle(&mut q, 5_001);
        let batch = numbers(&q.take(256, u64::MAX));
        assert_eq!(batch.len(), 256);
        assert_eq!(batch[0], 5_001, "settlements come first");
        assert_eq!(
            batch[1..224],
            (1_000..1_223).collect::<Vec<_>>(),
            "then parks, but for a share of the others"
        );
        // The other session has its turn after one of the flood's.
        let second = numbers(&q.take(256, u64::MAX));
        assert!(batch.contains(&5_000) || second.contains(&5_000));
        assert_eq!(q.len(), 2_002 - 512);
    }

    #[test]
    fn every_line_keeps_its_order_and_has_a_share() {
        let mut q = queue();
        for n in 0..100 {
            settle(&mut q, n);
            park(&mut q, 1_000 + n);
            ask(&mut q, 1, 2_000 + n);
            ask(&mut q, 2, 3_000 + n);
        }
        let mut all = Vec::new();
        while !q.is_empty() {
            let batch = numbers(&q.take(16, u64::MAX));
            if all.is_empty() {
                assert!(batch.iter().any(|n| *n >= 1_000) && batch.iter().any(|n| *n >= 2_000), "{batch:?}");
            }
            all.extend(batch);
        }
        assert_eq!(all.len(), 400);
        for line in 0..4 {
            let of_line: Vec<u128> = all.iter().copied().filter(|n| n / 1_000 == line).collect();
            assert!(of_line.is_sorted() && of_line.len() == 100);
        }
    }

    #[test]
    fn each_line_has_its_share_and_what_another_line_does_not_need() {
        for (waiting, taken) in [
            ([1_000, 1_000, 1_000], [192, 32, 32]),
            ([1_000, 1_000, 0], [192, 64, 0]),
            ([1_000, 0, 1_000], [192, 0, 64]),
            ([0, 1_000, 1_000], [0, 224, 32]),
            ([0, 1_000, 0], [0, 256, 0]),
            ([10, 10, 1_000], [10, 10, 236]),
        ] {
            let mut q = queue();
            (0..waiting[0]).for_each(|n| settle(&mut q, n));
            (0..waiting[1]).for_each(|n| park(&mut q, 1_000 + n));
            (0..waiting[2]).for_each(|n| ask(&mut q, 1, 2_000 + n));
            let batch = numbers(&q.take(256, u64::MAX));
            let of_line = |line| batch.iter().filter(|n| **n / 1_000 == line).count();
            assert_eq!([0, 1, 2].map(of_line), taken, "{waiting:?}");
        }
    }

    #[test]
    fn what_may_wait_does_so_alone_and_until_it_has_had_its_turn() {
        let mut q = queue();
        let states = |q: &OpQueue| (q.may_wait(), q.has_deferrable());
        assert_eq!(states(&q), (false, false));
        (0..2).for_each(|n| q.push_deferrable(Own::settle(id(n), Verdict::Ack)));
        assert_eq!(states(&q), (true, true));
        ask(&mut q, 1, 2);
        assert_eq!(states(&q), (false, true), "the other takes them along");
        q.take(1, u64::MAX);
        assert_eq!(states(&q), (false, false), "the batch could not take it");
        assert_eq!((q.len(), q.parks()), (2, 0));
        park(&mut q, 3);
        assert_eq!((q.len(), q.parks()), (3, 1));
    }

    #[test]
    fn what_sessions_ask_for_can_be_taken_without_the_rest() {
        let mut q = queue();
        for n in 0..3 {
            ask(&mut q, n as u64, n);
            settle(&mut q, 10 + n);
            park(&mut q, 20 + n);
        }
        assert_eq!(q.take_sessions().iter().map(number).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!((q.len(), q.parks(), q.take_sessions().len()), (6, 3, 0));
        ask(&mut q, 1, 5);
        assert_eq!(numbers(&q.take_all()), [10, 11, 12, 20, 21, 22, 5]);
    }

    #[test]
    fn bytes_bound_a_batch_but_one_goes_always() {
        let mut q = queue();
        (0..3).for_each(|n| ask(&mut q, 1, n));
        assert_eq!(q.take(16, 0).len(), 1);
        assert_eq!(q.take_all().len(), 2);
        assert!(q.is_empty() && q.take_all().is_empty());
        assert_eq!(weigh(&asked(Purge { id: id(1) })), 0);
    }

    #[test]
    fn new_timers_count_with_their_payload() {
        let schedule = |n| {
            let due = Time::from_ms(1);
            let timer = Timer {
                payload: vec![0; 1_000].into(),
                ..Timer::new(id(n), Destination::new("test", "a").unwrap(), due)
            };
            asked(Schedule { timer: timer.into(), policy: KeyPolicy::Create })
        };
        let one = ENTRY_BYTES + 1_000;
        assert_eq!(weigh(&schedule(1)), one);
        for (most_bytes, count) in [(1, 1), (one, 1), (one + 1, 2), (2 * one, 2), (10 * one, 5)] {
            let mut q = queue();
            for n in 0..5 {
                q.push_asked(QueueClass::Session(SessionId(1)), schedule(n));
            }
            assert_eq!(q.take(16, most_bytes).len(), count, "{most_bytes} bytes");
        }
    }
}
