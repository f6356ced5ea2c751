//! Names of the counters of stores ([`Store::counters`](crate::Store::counters)) that others look
//! up: metrics, the log, `mtimer status`.

/// Bytes of the log of last writes.
pub const LOG_BYTES: &str = "store_log_bytes";
/// Records that the log dropped for want of memory before they were safe.
pub const LOG_DROPPED_RECORDS: &str = "store_log_dropped_records_total";
/// Records that the store had lost and that were applied again.
pub const LOG_REPLAYED_RECORDS: &str = "store_log_replayed_records_total";
/// Slots with timers that the store had lost when its owner read them.
pub const LOST_SLOTS: &str = "store_lost_slots_total";
/// 1 if a failover or a restart of the store may lose answered writes, else 0.
pub const LOG_AT_RISK: &str = "store_log_at_risk";
/// Partitions whose last write replicas did not confirm in time, at level `redis-replicated`.
pub const UNCONFIRMED_PARTITIONS: &str = "store_unconfirmed_partitions";
/// Masters of Redis that keep no append-only file and have no replica.
pub const UNPROTECTED_MASTERS: &str = "store_unprotected_masters";
/// Masters of Redis that may evict keys when their memory is full.
pub const EVICTING_MASTERS: &str = "store_evicting_masters";
/// Free bytes on the disk of the data directory.
pub const DISK_FREE_BYTES: &str = "store_disk_free_bytes";
/// 1 if that is below the watermark, 2 if it is below the reserve, else 0.
pub const DISK_LEVEL: &str = "store_disk_level";
