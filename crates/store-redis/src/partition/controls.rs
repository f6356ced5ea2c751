//! The controls of a partition: bulk jobs and settings. Read at the acquisition, then in memory.

use std::sync::Arc;

use mtimer_store::{Bulks, Controls, LaneError, Settings};
use redis::{Pipeline, Value};

use super::owner::Owner;
use crate::keyspace::value::{decode_bulk, decode_settings};
use crate::wire::Reply;

impl Owner {
    /// See [`mtimer_store::Call::Controls`].
    pub(crate) async fn controls(&mut self) -> Result<Controls, LaneError> {
        self.writer.read_as_owner(&Pipeline::new()).await?;
        Ok((*self.known.controls).clone())
    }

    /// Takes in the bulk jobs and the settings that the acquisition has found.
    ///
    /// # Errors
    ///
    /// One of them is damaged. It is not passed over: a new job would get the number of a damaged
    /// one, and pass by the timers that have its mark; and a destination might not be paused.
    pub(super) fn found_controls(&mut self, bulks: Value, settings: Value) -> Result<(), LaneError> {
        let jobs = self.read_all(bulks, &self.known.space.bulks(), decode_bulk, |field, key| {
            format!(
                "the bulk job {field} in {key} is damaged: restore it; if it is removed, a later job may pass by timers that this one has met"
            )
        })?;
        let rows = self.read_all(settings, &self.known.space.settings(), decode_settings, |field, key| {
            let name = field.replace('\0', "/");
            format!(
                "the settings of {name} in {key} are damaged: restore them; if they are removed, the destination has none here until it is configured again"
            )
        })?;
        let controls = Controls { bulks: Bulks::stored(jobs), settings: Settings::stored(rows) };
        self.known.controls = Arc::new(controls);
        Ok(())
    }

    /// Decodes all fields of the hash `key`. `damage`: what to say of one that cannot be decoded,
    /// by its name and the key.
    fn read_all<T>(
        &self,
        hash: Value,
        key: &str,
        decode: fn(&[u8], &[u8]) -> Option<T>,
        damage: fn(&str, &str) -> String,
    ) -> Result<Vec<T>, LaneError> {
        let mut all = Vec::new();
        for (field, value) in hash.into_pairs() {
            let [field, value] = [field, value].map(|bytes| bytes.into_bytes().unwrap_or_default());
            let damaged = || {
                let what = damage(&String::from_utf8_lossy(&field), key);
                LaneError::Broken(format!("partition {}: {what}", self.partition()))
            };
            all.push(decode(&field, &value).ok_or_else(damaged)?);
        }
        Ok(all)
    }
}
