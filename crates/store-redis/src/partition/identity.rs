//! Who writes a partition, and the commands that say so.

use mtimer_store::LaneError;
use mtimer_types::{Epoch, Nonce, PartitionId};
use redis::{Cmd, Value};

use super::log::LogRecord;
use crate::wire::{OwnerQuery, Script, numbers};

/// Who writes.
#[derive(Clone, Debug)]
pub(crate) struct WriterIdentity {
    pub(crate) partition: PartitionId,
    /// The key of the owner record.
    pub(crate) owner_key: String,
    pub(crate) hash_slot: u16,
    pub(crate) epoch: Epoch,
    pub(crate) nonce: Nonce,
}

impl WriterIdentity {
    /// The command that reads whose the partition is, and the stored sequence number.
    pub(crate) fn read(&self) -> Cmd {
        redis::cmd("HMGET").arg(&self.owner_key).arg(&["e", "n", "s"]).to_owned()
    }

    /// The commands with which replicas, or the append-only file, are asked for.
    pub(crate) fn query(&self) -> OwnerQuery {
        let mut touch = Script::Touch.command(&[&self.owner_key]);
        touch.arg(self.epoch.0).arg(self.nonce.0);
        if broken!(WaitWithoutWrite) {
            touch = self.read();
        }
        OwnerQuery { read: self.read(), touch }
    }

    /// The command that reads whose the partition was before, and the sequence number that its
    /// present owner found.
    pub(crate) fn read_before(&self) -> Cmd {
        redis::cmd("HMGET").arg(&self.owner_key).arg(&["pe", "ps"]).to_owned()
    }

    /// The stored sequence number, from the answer to [`Self::read`].
    ///
    /// # Errors
    ///
    /// The partition is not ours there.
    pub(crate) fn stored_seq(&self, record: &[Value]) -> Result<u64, LaneError> {
        let Self { partition, epoch, nonce, .. } = *self;
        let [stored_epoch, stored_nonce, seq] = numbers(record);
        match (Epoch(stored_epoch), Nonce(stored_nonce)) {
            owner if owner == (epoch, nonce) => Ok(seq),
            #[cfg(feature = "test-support")]
            _ if crate::test_support::fence_is_cut() => Ok(seq),
            (stored, _) if stored < epoch => Err(LaneError::RolledBack(partition)),
            (stored, _) => Err(LaneError::Fenced { partition, stored, ours: epoch }),
        }
    }

    /// The script that writes a record if this owner has written all before it.
    pub(crate) fn command(&self, record: &LogRecord, script: Script) -> Cmd {
        let (keys, args) = (record.writes.keys(), record.writes.args());
        let names: usize = keys.iter().map(String::len).sum();
        let mut command =
            Cmd::with_capacity(keys.len() + args.len() + 8, names + record.writes.bytes() + 256);
        command.arg("EVALSHA").arg(script.sha1()).arg(keys.len() + 1).arg(&self.owner_key);
        keys.iter().for_each(|key| _ = command.arg(key));
        command.arg(self.epoch.0).arg(self.nonce.0).arg(record.seq).arg(record.next);
        args.for_each(|argument| _ = command.arg(argument));
        command
    }
}
