//! Which timers a bulk job is to act on.

use mtimer_types::Bulk;

use crate::bulk::BulkJob;
use crate::table::{At, Row};

impl BulkJob {
    /// Whether it is to act on a timer: it matches, and is not marked.
    pub fn wants(&self, row: &Row) -> bool {
        self.matches(row) && row.record.extensions.bulk_mark() < self.number
    }

    /// Whether it is about a timer, by what and where that is.
    pub fn matches(&self, row: &Row) -> bool {
        let Row { record, at } = row;
        let live = self.is_of_live();
        let import = row.staging().map(|staging| staging.import);
        if import != self.bulk.action.import() || row.at.is_staged() != import.is_some() {
            return false;
        }
        let time = match at {
            At::Pending { fire, .. } if live => fire.unstaged().unwrap_or(*fire),
            At::Parked | At::Taken { .. } if live => record.timer.due,
            At::Dead { died, .. } if !live => *died,
            At::Unconfirmed { since, .. } if !live => *since,
            At::Pending { .. } | At::Parked | At::Taken { .. } | At::Unconfirmed { .. } | At::Dead { .. } => {
                return false;
            }
        };
        let Bulk { filter, retrying, from, until, .. } = &self.bulk;
        let retries = record.progress.failed != record.progress.budget_from;
        (*from..=*until).contains(&time)
            && (!live || retrying.is_none_or(|retrying| retrying == retries))
            && filter.accepts(&record.timer)
    }
}
