//! The in-memory model of the contract behind the engine, with the faults that it knows.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::FutureExt;
use mtimer_core::{Call, CallAnswer};
use mtimer_protocol::Delivery;
use mtimer_store::{Acquire, Health, Lane, LaneError, LaneFuture, MemoryStore, Op, Store};
use mtimer_types::{Nonce, PartitionId, Term};

use super::backend::{Acquired, Backend, Known};
use super::input::Program;
use super::ledger::Ledger;
use super::world::{PARTITIONS, World};

/// Runs a program against the model; then everything that was scheduled has to come to an end.
pub(crate) fn model_store(data: &[u8]) {
    let mut program = Program::new(data);
    let store = MemoryStore::new(PARTITIONS);
    let model = Model { store, lanes: [None, None], version: 0, ledger: Ledger::default() };
    let mut world = World::new(model, &mut program);
    world.run(&mut program);
    (0..PARTITIONS).for_each(|p| world.backend.mend(PartitionId(p)));
    if world.draining {
        world.stop(&mut program);
        world.restart();
    }
    let ended = world.serve_all(|world| world.backend.is_drained());
    assert!(
        ended,
        "not everything comes to an end: {} unsettled, {} in memory, {}",
        world.engine.unsettled(),
        world.engine.in_memory(),
        world.backend.left()
    );
    if let Some(view) = world.look() {
        for client in view.clients {
            assert_eq!(
                (client.in_flight, client.waiting),
                (0, 0),
                "credit of {} is not given back",
                client.dest
            );
        }
    }
    world.stop(&mut Program::new(&[]));
}

struct Model {
    store: MemoryStore,
    lanes: [Option<Arc<dyn Lane>>; PARTITIONS as usize],
    version: u64,
    ledger: Ledger,
}

/// A call on a lane, and what it does.
pub(super) struct Open {
    answer: LaneFuture<CallAnswer>,
    ops: Vec<Op>,
}

impl Model {
    fn mend(&mut self, at: PartitionId) {
        let faults = self.store.faults();
        faults.heal(at);
        faults.full(at, false);
    }

    /// Whether the store has only dead letters and what nobody will settle.
    fn is_drained(&self) -> bool {
        self.lanes.iter().all(|lane| {
            let Some(lane) = lane else { return false };
            let census = lane.census().now_or_never().and_then(Result::ok);
            let taken = || lane.taken(0, 1_000).now_or_never().and_then(Result::ok);
            census.is_some_and(|c| c.pending + c.retrying + c.parked == 0)
                && taken().is_some_and(|page| page.rows.is_empty())
        })
    }

    fn left(&self) -> String {
        let lanes = self.lanes.iter().flatten();
        lanes.map(|lane| format!("{:?} ", lane.census().now_or_never())).collect()
    }
}

impl Backend for Model {
    type Open = Open;

    fn acquire(&mut self, at: PartitionId, _: &Known, _: &mut Program<'_>) -> Option<Acquired> {
        let owner = self.store.owner(at).now_or_never()?.ok()?;
        self.version += 1;
        let (nonce, term, version) = (Nonce(self.version), Term(1), self.version);
        let acquire =
            Acquire { partition: at, expected: owner.epoch, floor: owner.epoch, nonce, term, version };
        let acquired = self.store.acquire(acquire).now_or_never()?.ok()?;
        self.lanes[usize::from(at.0)] = Some(acquired.lane);
        let (epoch, prior_claim, in_flight) = (acquired.epoch, acquired.prior_claim, acquired.in_flight);
        Some(Acquired { epoch, prior_claim, in_flight })
    }

    fn call(&mut self, at: PartitionId, call: Call) -> Open {
        let ops = if let Call::Apply(batch) = &call { batch.ops.clone() } else { Vec::new() };
        let answer = match &self.lanes[usize::from(at.0)] {
            Some(lane) => lane.call(call),
            None => futures_util::future::ready(Err(LaneError::Closed)).boxed(),
        };
        Open { answer, ops }
    }

    fn answer(
        &mut self,
        _: PartitionId,
        mut open: Open,
        _: &Known,
        _: &mut Program<'_>,
    ) -> Result<Result<CallAnswer, LaneError>, Open> {
        let Some(answer) = (&mut open.answer).now_or_never() else { return Err(open) };
        match &answer {
            Ok(CallAnswer::Apply(answers)) => self.ledger.applied(&open.ops, answers),
            Ok(_) => {}
            Err(_) => self.ledger.lost(&open.ops),
        }
        Ok(answer)
    }

    fn disturb(&mut self, at: PartitionId, program: &mut Program<'_>) -> Option<Health> {
        let faults = self.store.faults();
        match program.byte() % 16 {
            0 => faults.hold(at),
            1 => faults.cut(at),
            2 => faults.down(at, "away"),
            3 => faults.full(at, true),
            4 => faults.full(at, false),
            5 => _ = faults.fence(at),
            6 => faults.break_lanes(at, "broken"),
            _ => faults.heal(at),
        }
        let health = self.lanes[usize::from(at.0)].as_ref()?.health().borrow().clone();
        // A lane that has ended says so behind its answers.
        Some(health).filter(|health| !matches!(health, Health::Ended(_)))
    }

    fn ended(&mut self, at: PartitionId, open: VecDeque<Open>) {
        self.lanes[usize::from(at.0)] = None;
        open.iter().for_each(|open| self.ledger.lost(&open.ops));
    }

    fn delivered(&mut self, known: &Known, delivery: &Delivery) {
        self.ledger.delivered(known, delivery);
    }
}
