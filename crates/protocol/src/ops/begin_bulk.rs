//! Begin bulk: a person has one action done on every timer of a partition that matches.

use mtimer_types::{Bulk, BulkId, InvalidTimer, PartitionId, Time, Verb};
use serde::{Deserialize, Serialize};

use super::operation::{NotDone, Operation, Reply};
use super::subject::Subject;
use crate::sample::{self, Source};

/// File a bulk job in one partition. It is at work in a partition once that has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BeginBulk {
    /// Where.
    pub partition: PartitionId,
    /// The job's name, the same in every partition and every repeat.
    pub id: BulkId,
    /// The job.
    pub bulk: Box<Bulk>,
}

/// Answers a begin bulk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum BeginBulkReply {
    /// It is filed, now or by an earlier request.
    Begun,
    /// So many jobs are at work or wait there, as many as may. Nothing changed.
    TooMany(u32),
}

impl Operation for BeginBulk {
    type Reply = BeginBulkReply;

    const VERB: Verb = Verb::Operate;

    fn subject(&self) -> Subject<'_> {
        let Bulk { filter, .. } = &*self.bulk;
        Subject::Partition {
            partition: self.partition,
            group: filter.group.as_deref(),
            app: filter.app.as_deref(),
            bytes: filter.bytes(),
        }
    }

    fn check(&self, now: Time) -> Result<(), InvalidTimer> {
        self.bulk.check(now)
    }

    fn samples() -> Vec<Self> {
        let of = |bulk| Self { partition: PartitionId(9), id: sample::bulk_id(), bulk: Box::new(bulk) };
        sample::bulks().into_iter().map(of).collect()
    }

    fn arbitrary(from: &mut impl Source) -> Self {
        let (partition, id, bulk) = from.bulk();
        Self { partition, id, bulk: Box::new(bulk) }
    }
}

impl Reply for BeginBulkReply {
    fn not_done(&self) -> Option<NotDone> {
        None
    }

    fn samples() -> Vec<Self> {
        vec![Self::Begun, Self::TooMany(16)]
    }
}
