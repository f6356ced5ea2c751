//! The bulk jobs of a partition: read at the acquisition, then in memory.

use std::sync::Arc;

use mtimer_store::{BulkJob, Bulks, LaneError};
use redis::{Pipeline, Value};

use super::owner::Owner;
use crate::keyspace::value::decode_bulk;
use crate::wire::Reply;

impl Owner {
    /// See [`mtimer_store::Call::Bulks`].
    pub(crate) async fn bulks(&mut self) -> Result<Vec<BulkJob>, LaneError> {
        self.writer.read_as_owner(&Pipeline::new()).await?;
        Ok(self.known.bulks.all().to_vec())
    }

    /// Takes in the jobs that the acquisition has found.
    ///
    /// # Errors
    ///
    /// One of them is damaged. It is not passed over: a new job would get its number, and pass by
    /// the timers that have its mark.
    pub(super) fn found_bulks(&mut self, stored: Value) -> Result<(), LaneError> {
        let mut jobs = Vec::new();
        for (field, value) in stored.into_pairs() {
            let (field, value) =
                (field.into_bytes().unwrap_or_default(), value.into_bytes().unwrap_or_default());
            let damaged = || {
                let (partition, key) = (self.partition(), self.known.space.bulks());
                let field = String::from_utf8_lossy(&field);
                LaneError::Broken(format!(
                    "partition {partition}: the bulk job {field} in {key} is damaged: restore it; if it is removed, a later job may pass by timers that this one has met"
                ))
            };
            jobs.push(decode_bulk(&field, &value).ok_or_else(damaged)?);
        }
        self.known.bulks = Arc::new(Bulks::stored(jobs));
        Ok(())
    }
}
