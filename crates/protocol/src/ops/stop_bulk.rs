//! Stop bulk: a person ends a bulk job before its end.

use mtimer_types::{BulkId, InvalidTimer, PartitionId, Time, Verb};
use serde::{Deserialize, Serialize};

use super::operation::{NotDone, Operation, Reply};
use super::subject::Subject;
use crate::sample::{self, Source};

/// End a bulk job in one partition. What it has done stays done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StopBulk {
    /// Where.
    pub partition: PartitionId,
    /// Which.
    pub id: BulkId,
    /// The group of the job's filter: by this it is permitted. One of another is not found.
    pub group: Option<String>,
    /// The app of its filter, likewise.
    pub app: Option<String>,
}

/// Answers a stop bulk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StopBulkReply {
    /// It does nothing more: it is stopped, now or by an earlier request.
    Stopped,
    /// It has come to its end before.
    Done,
    /// Nothing of that name.
    NotFound,
}

impl Operation for StopBulk {
    type Reply = StopBulkReply;

    const VERB: Verb = Verb::Operate;

    fn subject(&self) -> Subject<'_> {
        let (group, app) = (self.group.as_deref(), self.app.as_deref());
        let bytes = [group, app].into_iter().flatten().map(str::len).sum();
        Subject::Partition { partition: self.partition, group, app, bytes }
    }

    fn check(&self, _: Time) -> Result<(), InvalidTimer> {
        Ok(())
    }

    fn samples() -> Vec<Self> {
        let of = |group: Option<&str>, app: Option<&str>| {
            let [group, app] = [group, app].map(|name| name.map(str::to_owned));
            Self { partition: PartitionId(9), id: sample::bulk_id(), group, app }
        };
        vec![of(Some("orders"), Some("billing")), of(None, None)]
    }

    fn arbitrary(from: &mut impl Source) -> Self {
        let (partition, id, bulk) = from.bulk();
        Self { partition, id, group: bulk.filter.group, app: bulk.filter.app }
    }
}

impl Reply for StopBulkReply {
    fn not_done(&self) -> Option<NotDone> {
        None
    }

    fn samples() -> Vec<Self> {
        vec![Self::Stopped, Self::Done, Self::NotFound]
    }
}
