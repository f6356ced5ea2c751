//! A batch is applied, operation by operation.

use mtimer_store::ops::Subject;
use mtimer_store::table::{Context, Table};
use mtimer_store::{Answer, Batch, Op, Refusal};
use mtimer_types::Time;

use super::PartitionTable;
use crate::fault::Fault;

impl PartitionTable<'_> {
    /// Applies a batch.
    pub(crate) fn apply(&mut self, batch: &Batch) -> Result<Vec<Answer>, Fault> {
        self.tidy(batch.now, batch.ops.len())?;
        self.partition.claim(batch.claim, self.tree);
        let ctx = Context { epoch: self.lane.epoch, prior_claim: self.lane.prior_claim, now: batch.now };
        let mut answers = Vec::with_capacity(batch.ops.len());
        for op in &batch.ops {
            self.memo.clear();
            let answer = match self.refusal(op, batch.now)? {
                Some(refusal) => Answer::Refused(refusal),
                None => op.decide(self, &ctx)?,
            };
            answers.push(answer);
        }
        self.partition.filed(&self.filed);
        self.store_mirror()?;
        Ok(answers)
    }

    /// Why an operation is refused, if it is: it would add to a disk that is full. A repeat of an
    /// operation that was done adds nothing.
    fn refusal(&mut self, op: &Op, now: Time) -> Result<Option<Refusal>, Fault> {
        let Some((path, free)) = self.full.filter(|_| op.adds()) else { return Ok(None) };
        let is_repeat = match op.subject() {
            Subject::New(timer) => self.row(timer.id)?.is_some() || self.ended(timer.id, now)?.is_some(),
            Subject::Named { request, .. } => self.answered(request, now)?.is_some(),
            Subject::Timer(_) | Subject::Retained { .. } | Subject::Controls => false,
        };
        Ok((!is_repeat).then(|| Refusal::DiskFull { path: path.clone(), free }))
    }
}
