//! Import: a client stages a timer of another cluster.

use std::sync::Arc;

use mtimer_types::extensions::BULK_MARK;
use mtimer_types::limits::{MAX_EPOCH, MAX_RETRY_TIERS};
use mtimer_types::timer::check_distance;
use mtimer_types::{
    DeadReason, Ended, Epoch, Extensions, ImportGoal, ImportId, InvalidImport, InvalidTimer, Mode, Staging,
    Time, Timer, Verb,
};
use serde::{Deserialize, Serialize};

use super::operation::{NotDone, Operation, Reply};
use super::schedule::shared;
use super::subject::Subject;
use crate::sample::{self, Source};

/// Stage a timer of another cluster. Nothing delivers it until its import is released.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Import {
    /// The timer, with its new id ([`TimerId::imported`](mtimer_types::TimerId::imported)).
    #[serde(deserialize_with = "shared")]
    pub timer: Arc<Timer>,
    /// Of which import it is, and what it becomes.
    pub staging: Staging,
    /// What its record is to have.
    pub record: Box<ImportedRecord>,
}

/// What the record of a timer has in the cluster from which it comes, and is to have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ImportedRecord {
    /// When it fires; of one that is not live its due time.
    pub fire: Time,
    /// Failed attempts, for life.
    pub failed: u32,
    /// How many of them do not count for its retry budget.
    pub budget_from: u32,
    /// A cancel came too late: no attempt follows.
    pub stopped: bool,
    /// The last error.
    pub last_error: Option<String>,
    /// When its due time was accepted, if that had passed already.
    pub accepted: Option<Time>,
    /// Extensions of its record.
    pub extensions: Extensions,
}

/// Answers an import.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ImportReply {
    /// It is staged.
    Staged {
        /// False: an earlier request of the same import has staged it.
        new: bool,
    },
    /// A timer of this id is there, and is not what this import stages: it was released, or another
    /// import has staged it, or this one has with other contents. Nothing changed.
    Exists,
    /// The timer of this id has ended a moment ago, so. Nothing changed.
    Ended(Ended),
    /// The import is being released, or was, so this timer may have been delivered. Nothing
    /// changed.
    Released,
}

impl ImportedRecord {
    /// That of a timer that was never delivered.
    pub fn new(fire: Time) -> Self {
        Self {
            fire,
            failed: 0,
            budget_from: 0,
            stopped: false,
            last_error: None,
            accepted: None,
            extensions: Extensions::NONE,
        }
    }
}

impl Import {
    /// A timer that is pending at its due time and was never delivered.
    pub fn new(timer: Arc<Timer>, staging: Staging) -> Self {
        let record = ImportedRecord::new(timer.due).into();
        Self { timer, staging, record }
    }

    /// The extensions of the staged record. Marks of bulk jobs mean nothing in another cluster.
    ///
    /// # Errors
    ///
    /// [`InvalidImport`] if there are too many, or one must be understood and is not.
    pub fn record_extensions(&self) -> Result<Extensions, InvalidImport> {
        let extensions = &self.record.extensions;
        match extensions.not_understood() {
            Some(tag) => Err(InvalidImport::Extension { tag }),
            None => Ok(extensions.without(BULK_MARK).staged(self.staging)?),
        }
    }
}

impl Operation for Import {
    type Reply = ImportReply;

    const VERB: Verb = Verb::Schedule;

    fn subject(&self) -> Subject<'_> {
        Subject::New(&self.timer)
    }

    fn check(&self, now: Time) -> Result<(), InvalidTimer> {
        self.timer.validate_content(now)?;
        check_distance(self.record.fire, now)?;
        self.record_extensions()?;
        let ImportedRecord { failed, budget_from, accepted, .. } = *self.record;
        if budget_from > failed {
            return Err(InvalidImport::Budget { failed, budget_from }.into());
        }
        accepted.map_or(Ok(()), |accepted| check_distance(accepted, now))?;
        match self.staging.goal {
            ImportGoal::Live { tier } if usize::from(tier) > MAX_RETRY_TIERS => {
                Err(InvalidImport::Tier { tier, limit: MAX_RETRY_TIERS }.into())
            }
            ImportGoal::Unconfirmed { .. } if self.timer.mode == Mode::AtLeastOnce => {
                Err(InvalidImport::Unconfirmed.into())
            }
            ImportGoal::Unconfirmed { epoch, .. } if epoch > MAX_EPOCH => {
                Err(InvalidImport::Epoch(epoch.0).into())
            }
            ImportGoal::Live { .. } => Ok(()),
            ImportGoal::Dead { died: since, .. } | ImportGoal::Unconfirmed { since, .. } => {
                check_distance(since, now)
            }
        }
    }

    fn bytes_beside_subject(&self) -> usize {
        let ImportedRecord { last_error, extensions, .. } = &*self.record;
        last_error.as_ref().map_or(0, String::len) + extensions.as_bytes().len()
    }

    fn samples() -> Vec<Self> {
        let import = sample::import_id();
        let of = |goal| Self::new(sample::plain_timer().into(), Staging { import, goal });
        let full = ImportedRecord {
            fire: sample::time(9_000),
            failed: 3,
            budget_from: 1,
            stopped: true,
            last_error: Some("no".into()),
            accepted: Some(sample::time(6_000)),
            extensions: sample::extensions(),
        };
        let staging = Staging { import, goal: ImportGoal::Live { tier: 2 } };
        let full = Self { timer: sample::full_timer().into(), staging, record: full.into() };
        let dead = ImportGoal::Dead { reason: DeadReason::Exhausted, died: sample::time(7_000) };
        let unconfirmed = ImportGoal::Unconfirmed { epoch: Epoch(3), since: sample::time(8_000) };
        vec![of(ImportGoal::Live { tier: 0 }), full, of(dead), of(unconfirmed)]
    }

    fn arbitrary(from: &mut impl Source) -> Self {
        let (timer, _) = from.timer();
        let import = ImportId(from.request().into());
        let goal = match timer.id.random() % 4 {
            0 => ImportGoal::Dead { reason: DeadReason::Failed, died: timer.due },
            1 if timer.mode == Mode::AtMostOnce => {
                ImportGoal::Unconfirmed { epoch: Epoch(1), since: timer.due }
            }
            _ => ImportGoal::Live { tier: 0 },
        };
        Self::new(timer, Staging { import, goal })
    }
}

impl Reply for ImportReply {
    fn not_done(&self) -> Option<NotDone> {
        match self {
            Self::Staged { .. } => None,
            Self::Exists | Self::Released => Some(NotDone::Conflict),
            Self::Ended(_) => Some(NotDone::Ended),
        }
    }

    fn samples() -> Vec<Self> {
        let staged = [true, false].map(|new| Self::Staged { new });
        let others = [Self::Exists, Self::Ended(Ended::Acknowledged), Self::Released];
        staged.into_iter().chain(others).collect()
    }
}
