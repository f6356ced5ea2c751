//! The broker's shell in the simulated world: it acquires, carries effects out, and brings answers back late.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mtimer_core::{CallAnswer, Effect, Engine, EngineOptions, Input};
use mtimer_protocol::{BrokerEntry, Topology};
use mtimer_store::{Acquire, Lane, LaneError, Store};
use mtimer_types::{Nonce, PartitionId, RetryTiers, Term};

use super::sabotage::call_lane;
use super::{PARTITIONS, World};

const ADDRESS: &str = "a:1";

/// A lane, and the answers that are on their way from it, each with the time of its arrival.
pub(super) struct LaneLink {
    pub(super) lane: Arc<dyn Lane>,
    pub(super) answers: VecDeque<(u64, BoxFuture<'static, Result<CallAnswer, LaneError>>)>,
}

impl World {
    pub(super) fn start_broker(&mut self) {
        let options = EngineOptions {
            partitions: PARTITIONS,
            memory_bytes: self.plan.memory_bytes,
            preload_ms: 2_000,
            // Small ones make operations wait, and go out in another order than they came in.
            batch_ops: [1, 2, 5, 250][self.rng.below(4) as usize],
            retry: RetryTiers(vec![100, 500, 1_000]),
            callback_timeout_ms: 1_000,
            seed: self.rng.next(),
            address: self.plan.handovers.then(|| ADDRESS.to_owned()),
            ..EngineOptions::default()
        };
        self.engine = Engine::new(options, self.now());
        if self.plan.handovers {
            let topology = Topology {
                term: Term(1),
                version: 1,
                leader: ADDRESS.to_owned(),
                brokers: vec![BrokerEntry { address: ADDRESS.to_owned(), draining: false }],
                owners: vec![Some(0); usize::from(PARTITIONS)],
            };
            self.input(Input::Topology(Arc::new(topology)));
        }
        self.alarms.clear();
        self.term += 1;
        for p in 0..PARTITIONS {
            self.lanes[usize::from(p)] = None;
            self.reacquire.insert(p, self.ms);
        }
        for c in &mut self.clients {
            c.session = None;
            c.back_at = self.ms + 5;
        }
    }

    pub(super) fn acquire(&mut self, p: u16) {
        let partition = PartitionId(p);
        self.version += 1;
        let nonce = Nonce(self.rng.next());
        let Some(Ok(owner)) = self.store.owner(partition).now_or_never() else {
            self.reacquire.insert(p, self.ms + 50);
            return;
        };
        let acquire =
            Acquire { partition, expected: owner.epoch, nonce, term: Term(self.term), version: self.version };
        match self.store.acquire(acquire).now_or_never() {
            Some(Ok(a)) => {
                self.lanes[usize::from(p)] = Some(LaneLink { lane: a.lane, answers: VecDeque::new() });
                let (epoch, prior_claim, in_flight) = (a.epoch, a.prior_claim, a.in_flight);
                self.input(Input::Acquired { partition, epoch, prior_claim, in_flight });
            }
            _ => _ = self.reacquire.insert(p, self.ms + 50),
        }
    }

    pub(super) fn health(&mut self) {
        for p in 0..PARTITIONS {
            if let Some(link) = &self.lanes[usize::from(p)] {
                let mut watch = link.lane.health();
                if watch.has_changed().unwrap_or(false) || self.ms.is_multiple_of(50) {
                    let health = watch.borrow_and_update().clone();
                    // Answers that are on their way come first.
                    if !matches!(health, mtimer_store::Health::Ended(_)) || link.answers.is_empty() {
                        self.input(Input::Health { partition: PartitionId(p), health });
                    }
                }
            }
        }
    }

    pub(super) fn take_answers(&mut self) {
        for p in 0..PARTITIONS {
            while let Some(link) = &mut self.lanes[usize::from(p)] {
                let epoch = link.lane.epoch();
                let Some((ready, future)) = link.answers.front_mut() else { break };
                if *ready > self.ms {
                    break;
                }
                let Some(answer) = future.now_or_never() else { break };
                link.answers.pop_front();
                let answer = answer.unwrap_or_else(CallAnswer::Ended);
                self.input(Input::Answered { partition: PartitionId(p), epoch, answer });
            }
        }
    }

    pub(super) fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Send(session, message) => self.receive(session, message),
            Effect::Close(_, reason) => panic!("a client was thrown out: {reason}"),
            Effect::Alarm(at) => _ = self.alarms.insert(at.as_ms()),
            Effect::LaneEnded(p, _) => {
                self.lanes[usize::from(p.0)] = None;
                self.reacquire.insert(p.0, self.ms + 5);
            }
            Effect::Released => {}
            Effect::Call(p, call) => {
                let delay = self.rng.below(4);
                let Some(link) = &mut self.lanes[usize::from(p.0)] else { return };
                let future = call_lane(&*link.lane, call, self.plan.sabotage);
                link.answers.push_back((self.ms + delay, future));
            }
        }
    }
}
