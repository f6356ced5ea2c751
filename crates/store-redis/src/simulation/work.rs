//! The requests of a run.

use mtimer_store::conformance::arbitrary::{Around, Kind, arbitrary_op, is_repeated, of_job_under_way};
use mtimer_store::conformance::properties::assert_all_occur;
use mtimer_store::{Op, RequestId};

use super::arbitrary::arbitrary_time;
use super::run::{ONE_IN, Run, block_on};

impl Run {
    pub(super) fn op(&mut self, window: u64) -> Op {
        let timer = self.timer(window);
        let entry = self.model.timers.get(&timer.id);
        let r = &mut self.random;
        let kind = Kind::any(r, entry.map(|entry| entry.place));
        if kind == Kind::Again && !self.asked.is_empty() {
            return self.asked[r.index(self.asked.len())].clone();
        }
        // A timer that has ended meanwhile may still be in memory.
        let known = match entry.map(|entry| entry.record()) {
            Some(record) => record.is_plain().then_some(record.timer),
            None => Some(timer.clone().into()),
        };
        let fire = arbitrary_time(r, self.now);
        let around = Around { timer, known, now: self.now, fire, request: RequestId(r.next_u64()) };
        let op = of_job_under_way(arbitrary_op(kind, around, r), &self.model.jobs, r);
        if is_repeated(&op) {
            self.asked.push(op.clone());
        }
        op
    }
}

#[test]
fn runs_ask_for_every_operation() {
    let ops: Vec<Op> = block_on(async {
        let mut run = Run::new(1, ONE_IN).await.unwrap();
        (0..500).map(|_| run.op(0)).collect()
    });
    assert_all_occur(&ops);
}
