//! Records that cannot be read: logged once each, and left where they are.
//!
//! Purpose: operators learn of each damaged record, and the log is not flooded by a row that is
//! read again and again. Such a record is passed over by loads, listings and all operations that
//! read it. A trim takes it out of its listing; nothing removes the record itself but a timer that
//! is stored in its place under the same id, and operations that need not read it: an
//! acknowledgement, a cancel by key, a replacement. Bounded: after [`MOST`] ids it forgets them
//! all, and may log some again.

use std::collections::HashSet;

use mtimer_store::record::RecordError;
use mtimer_types::{PartitionId, TimerId};

/// Ids that are remembered.
const MOST: usize = 4_096;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Unreadable {
    logged: HashSet<TimerId>,
    found: u64,
}

impl Unreadable {
    /// Reports the remembered answer of a request, which is decided anew.
    pub(crate) fn report_answer(&mut self, partition: PartitionId) {
        self.found += 1;
        tracing::error!(
            partition = partition.0,
            found = self.found,
            "the remembered answer of a request cannot be read: the request is decided anew"
        );
    }

    /// Logs a damaged record, once for each id. `found` in the log says how many were logged.
    pub(crate) fn report(&mut self, partition: PartitionId, error: &RecordError) {
        if self.logged.len() >= MOST {
            self.logged.clear();
        }
        if self.logged.insert(error.id) {
            self.found += 1;
            tracing::error!(
                partition = partition.0, timer_id = %error.id, %error, found = self.found,
                "a timer cannot be read: it is passed over and left where it is"
            );
        }
    }
}
