//! Imports: timers of another cluster are staged, until a bulk job releases or withdraws them.
//!
//! Not in here: files, which the `mtimer` program reads and writes; the release, which is a bulk
//! job.

use mtimer_protocol::ops::{self, ImportReply, ImportedRecord, Operation};
use mtimer_types::{Ended, ImportGoal, ImportId, InvalidTimer, Staging, Timer, TimerId};

use crate::{Client, RequestError};

/// A timer of another cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForeignTimer {
    /// The timer, with its id there.
    pub timer: Timer,
    /// What it becomes here.
    pub goal: ImportGoal,
    /// What its record has there.
    pub record: ImportedRecord,
}

/// Answers an import of one timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Staged {
    /// Its id in this cluster.
    pub id: TimerId,
    /// False: the same import had staged it before.
    pub new: bool,
}

/// Says why a timer of another cluster was not staged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// It breaks a limit. It was not sent.
    #[error(transparent)]
    Invalid(#[from] InvalidTimer),
    /// A timer of its new id is there, and is not what this import stages. Nothing changed.
    #[error("the timer {id} is there already: released, or staged by another import, or with other contents")]
    Exists {
        /// The new id.
        id: TimerId,
    },
    /// The timer of its new id has ended a moment ago. Nothing changed.
    #[error("the timer {id} has ended already ({how:?})")]
    Ended {
        /// The new id.
        id: TimerId,
        /// How it ended.
        how: Ended,
    },
    /// Its import is being released, or was: the timer of its new id may have been delivered.
    /// Nothing changed.
    #[error("timer {id}: its import was released already")]
    Released {
        /// The new id.
        id: TimerId,
    },
    /// The request failed.
    #[error("timer {id}: {error}")]
    Request {
        /// The new id.
        id: TimerId,
        /// Why.
        #[source]
        error: RequestError,
    },
}

impl ImportError {
    /// Says whether importing the timer again under the same name can help.
    pub fn is_retryable(&self) -> bool {
        match self {
            // What it was staged by is in its record.
            Self::Request { error: RequestError::Unknown { .. }, .. } => true,
            Self::Request { error, .. } => error.is_retryable(),
            Self::Invalid(_) | Self::Exists { .. } | Self::Ended { .. } | Self::Released { .. } => false,
        }
    }
}

impl Client {
    /// Returns the id that a timer of another cluster gets in this one. It follows from its id
    /// there, its key and the number of partitions here.
    pub fn imported_id(&self, timer: &Timer) -> TimerId {
        timer.id.imported(&timer.dest, timer.key.as_ref(), self.info().partitions)
    }

    /// Stages timers of another cluster; returns one answer for each, in the same order.
    ///
    /// Nothing delivers them until a bulk job with
    /// [`BulkAction::Release`](crate::BulkAction::Release) has released them; one with
    /// [`BulkAction::Withdraw`](crate::BulkAction::Withdraw) removes them. `import` is a random
    /// name, the same for all of its timers and for every repeat. Until a release has begun the
    /// same import can be repeated as often as it takes; from then on it is refused.
    ///
    /// # Errors
    ///
    /// Each answer has its own [`ImportError`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future breaks nothing; timers that were sent may be staged all the same.
    pub async fn import_all(
        &self,
        import: ImportId,
        timers: Vec<ForeignTimer>,
    ) -> Vec<Result<Staged, ImportError>> {
        let now = self.now();
        let op = |foreign: ForeignTimer| {
            let op = operation(self.imported_id(&foreign.timer), import, foreign);
            op.check(now).map(|()| op)
        };
        let ops: Vec<_> = timers.into_iter().map(op).collect();
        let ids: Vec<_> =
            ops.iter().map(|op| op.as_ref().map(|op| op.timer.id).map_err(Clone::clone)).collect();
        let mut replies = self.state().request_all(ops.into_iter().flatten()).await;
        let mut answer = |id| staged(id, replies.next().unwrap_or(Err(RequestError::Mismatched)));
        ids.into_iter().map(|id| id.map_err(ImportError::from).and_then(&mut answer)).collect()
    }
}

fn operation(id: TimerId, import: ImportId, foreign: ForeignTimer) -> ops::Import {
    let ForeignTimer { timer, goal, record } = foreign;
    let staging = Staging { import, goal };
    ops::Import { timer: Timer { id, ..timer }.into(), staging, record: record.into() }
}

fn staged(id: TimerId, reply: Result<ImportReply, RequestError>) -> Result<Staged, ImportError> {
    match reply {
        Ok(ImportReply::Staged { new }) => Ok(Staged { id, new }),
        Ok(ImportReply::Exists) => Err(ImportError::Exists { id }),
        Ok(ImportReply::Ended(how)) => Err(ImportError::Ended { id, how }),
        Ok(ImportReply::Released) => Err(ImportError::Released { id }),
        Err(error) => Err(ImportError::Request { id, error }),
    }
}
