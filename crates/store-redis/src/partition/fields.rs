//! Reads fields of hashes with one command a hash; damaged values are reported, and left out.

use bytes::Bytes;
use mtimer_store::LaneError;
use mtimer_store::record::RecordError;
use mtimer_store::remembered::RememberedAnswer;
use redis::{Cmd, Pipeline};

use super::owner::Owner;
use super::writes::ByKey;
use crate::keyspace::keys::HashKey;
use crate::wire::Reply;

/// Fields of hashes to be read, one `HMGET` a hash.
pub(crate) type FieldLookup = ByKey<HashKey, 1>;

/// The place of a field in a [`FieldLookup`], and of its value in the result.
pub(crate) type FieldIndex = usize;

impl Owner {
    /// Reads fields. `None` in place of one that is not there.
    ///
    /// # Errors
    ///
    /// The lane has ended.
    pub(crate) async fn look_up(&mut self, mut lookup: FieldLookup) -> Result<Vec<Option<Bytes>>, LaneError> {
        let mut found = vec![None; lookup.len()];
        if lookup.is_empty() {
            return Ok(found);
        }
        let mut reads = Pipeline::new();
        for (hash, fields) in lookup.groups() {
            let name = self.known.space.hash(*hash);
            let mut command = Cmd::with_capacity(fields.len() + 2, name.len() + fields.len() * 16 + 8);
            command.arg("HMGET").arg(name);
            fields.for_each(|field| _ = command.arg(field));
            reads.add_command(command);
        }
        let values = self.writer.read(&reads).await?.into_iter().flat_map(Reply::into_items);
        lookup.order().zip(values).for_each(|(index, value)| found[index] = value.into_bytes());
        Ok(found)
    }

    pub(super) fn readable_answer(&mut self, value: &[u8]) -> Option<RememberedAnswer> {
        let answer = RememberedAnswer::decode(value);
        if answer.is_none() {
            self.unreadable.report_answer(self.partition());
        }
        answer
    }

    /// Returns the value that was read; `None` if it is damaged, which is reported: it must not
    /// fail other values, or the lane.
    pub(crate) fn readable<T>(&mut self, read: Result<T, RecordError>) -> Option<T> {
        read.inspect_err(|error| self.unreadable.report(self.partition(), error)).ok()
    }
}
