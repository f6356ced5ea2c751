//! Import: a client stages a timer of another cluster.

use std::sync::Arc;

use mtimer_protocol::ops::{self as asked, ImportReply};
use mtimer_types::extensions::BULK_MARK;
use mtimer_types::{Ended, Time};

use super::asked::{Applied, Asked, Memory, MemoryEffect};
use super::operation::{Operation, Origin, Properties};
use super::subject::Subject;
use crate::place::Retained;
use crate::record::{Progress, Record, cut_error};
use crate::table::{At, Context, Row, Table};

/// Files a timer as staged, with its progress (see *Staged timers* in [`crate::ops`]). Looked at in
/// this order: a timer of this id, an [`Ended`] of this id, the releases of the import that the
/// partition remembers. See [`ImportAnswer`].
#[derive(Clone, PartialEq, Debug)]
pub struct Import {
    /// The record. It has an [`Extensions::staging`](mtimer_types::Extensions::staging).
    pub record: Box<Record>,
    /// When it fires once it is released; the due time if that is later.
    pub fire: Time,
}

/// To an [`Import`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImportAnswer {
    /// It is staged.
    Staged {
        /// False: the same import has staged the same before, and it still is.
        new: bool,
    },
    /// A timer of this id is there, and is not what this import stages; nothing changed.
    Exists,
    /// A timer with this id ended within the repeat horizon; nothing changed.
    Ended(Ended),
    /// A bulk job releases the import, or has done so: this timer may have been one of it, and may
    /// have ended since. Nothing changed.
    Released,
}

impl Import {
    /// The row that it files.
    fn row(&self) -> Row {
        let fire = self.fire.max(self.record.timer.due).staged();
        Row { record: Record::clone(&self.record), at: At::Pending { fire, tier: 0 } }
    }
}

/// Whether two rows are the same but for what bulk jobs have done with them.
fn is_same(a: &Row, b: &Row) -> bool {
    let unmarked =
        |row: &Row| Record { extensions: row.record.extensions.without(BULK_MARK), ..row.record.clone() };
    a.at == b.at && unmarked(a) == unmarked(b)
}

impl Operation for Import {
    type Answer = ImportAnswer;

    const IS: Properties = Properties {
        origin: Origin::Client,
        adds: true,
        waits: true,
        reads_content: false,
        takes_key_back: false,
    };

    fn subject(&self) -> Subject<'_> {
        Subject::New(&self.record.timer)
    }

    fn removes(&self) -> [usize; Retained::COUNT] {
        [0, 0]
    }

    fn decide<T: Table>(&self, table: &mut T, ctx: &Context) -> Result<ImportAnswer, T::Error> {
        let (id, mut row) = (self.record.timer.id, self.row());
        if let Some(there) = table.row(id)? {
            let same = is_same(&there, &row);
            return Ok(if same { ImportAnswer::Staged { new: false } } else { ImportAnswer::Exists });
        }
        if let Some(how) = table.ended(id, ctx.now)? {
            return Ok(ImportAnswer::Ended(how));
        }
        if table.bulks().all().iter().any(|job| job.is_release() && job.matches(&row)) {
            return Ok(ImportAnswer::Released);
        }
        row.record.extensions.raise_bulk_mark(table.bulks().mark());
        table.put(None, row)?;
        Ok(ImportAnswer::Staged { new: true })
    }
}

impl Asked for asked::Import {
    type Op = Import;

    const CHANGES_UNHELD: bool = false;

    fn holds(&self, _: &impl Memory) -> bool {
        false
    }

    fn complete(&self, _: &impl Memory, _: Time) -> Import {
        let imported = &*self.record;
        let progress = Progress {
            failed: imported.failed,
            budget_from: imported.budget_from,
            stopped: imported.stopped,
            fresh: None,
            last_error: imported.last_error.as_deref().filter(|error| !error.is_empty()).map(cut_error),
        };
        let record = Record {
            timer: Arc::clone(&self.timer),
            progress,
            accepted: imported.accepted.filter(|accepted| *accepted > self.timer.due),
            // They fit: the owner has checked the request.
            extensions: self.record_extensions().unwrap_or_default(),
        };
        Import { record: record.into(), fire: imported.fire }
    }

    fn applied(&self, answer: ImportAnswer) -> Applied {
        let reply = match answer {
            ImportAnswer::Staged { new } => ImportReply::Staged { new },
            ImportAnswer::Exists => ImportReply::Exists,
            ImportAnswer::Ended(ended) => ImportReply::Ended(ended),
            ImportAnswer::Released => ImportReply::Released,
        };
        let is_new = answer == ImportAnswer::Staged { new: true };
        Applied::new(reply, if is_new { MemoryEffect::Staged } else { MemoryEffect::Nothing })
    }
}
