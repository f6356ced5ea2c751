//! Every metric: its name with its unit, its type, its help.
//!
//! Invariant: docs/metrics.md documents exactly these; `tests/metrics.rs` compares them with a
//! scrape.

use prometheus_client::metrics::MetricType;

/// One metric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: MetricType,
    pub(crate) help: &'static str,
}

macro_rules! metrics {
    ($( $kind:ident $id:ident = $name:literal, $help:literal; )*) => {
        $( pub(crate) const $id: Metric = Metric { name: $name, kind: MetricType::$kind, help: $help }; )*
    };
}

metrics! {
    Gauge BUILD_INFO = "mtimer_build_info", "1; the label says which version runs";
    Gauge READY = "mtimer_ready", "1 if /readyz answers 200, else 0";

    Histogram FIRE_LATENESS = "mtimer_fire_lateness_seconds",
        "From a timer's due time to its first delivery, by the cluster clock in ms";
    Histogram ACKNOWLEDGE_LATENESS = "mtimer_acknowledge_lateness_seconds",
        "From a timer's due time until the store has its acknowledgement, retries included";
    Counter SCHEDULES = "mtimer_schedules_total", "Timers stored by a schedule";
    Counter CANCELS = "mtimer_cancels_total", "Cancels answered, by outcome";
    Counter RESCHEDULES = "mtimer_reschedules_total", "Timers moved to another time";
    Counter FIRES = "mtimer_fires_total", "Deliveries sent to clients, repeated ones included";
    Counter SETTLEMENTS = "mtimer_settlements_total", "Outcomes that the store has, by outcome";
    Counter SETTLEMENTS_REFUSED = "mtimer_settlements_refused_total", "Outcomes of clients that were not taken, by reason";
    Counter RETRIES = "mtimer_retries_total", "Further attempts that the store has, by retry tier";
    Counter DEAD_LETTERS = "mtimer_dead_letters_total", "Timers that became dead letters, by reason";
    Counter REDELIVERIES = "mtimer_redeliveries_total", "Deliveries that are or will be repeated, by cause";
    Counter REFUSALS = "mtimer_refusals_total", "Operations of clients that were not done, by reason";
    Counter PARKS = "mtimer_parks_total", "Due timers set aside because nobody took them";
    Counter UNPARKS = "mtimer_unparks_total", "Parked timers taken back to be delivered";
    Counter TRIMMED = "mtimer_trimmed_total", "Dead letters and unconfirmed timers removed for their age or number, by kind";
    Counter UNLOADS = "mtimer_unloads_total", "Timers taken out of memory again because its budget was exceeded";

    Gauge STORED_TIMERS = "mtimer_stored_timers", "Timers of the owned partitions in the store, by state";
    Gauge STORED_KEYS = "mtimer_stored_keys", "Application keys of live timers in the store";
    Gauge LOADED_TIMERS = "mtimer_loaded_timers", "Timers in memory";
    Gauge UNSETTLED = "mtimer_unsettled_deliveries", "Deliveries and settlements under way";
    Gauge SESSIONS = "mtimer_sessions", "Sessions of clients and of other brokers";

    Gauge DESTINATION_PENDING = "mtimer_destination_pending_timers", "Timers in memory or parked";
    Gauge DESTINATION_OVERDUE = "mtimer_destination_overdue_timers", "Timers that are due and not delivered, the parked ones included (about)";
    Gauge DESTINATION_OLDEST = "mtimer_destination_oldest_overdue_seconds", "Age of the oldest overdue timer, as far as is known";
    Gauge DESTINATION_PARKED = "mtimer_destination_parked_timers", "Parked timers (about)";
    Gauge DESTINATION_IN_FLIGHT = "mtimer_destination_in_flight_timers", "Deliveries not settled";
    Gauge DESTINATION_SESSIONS = "mtimer_destination_sessions", "Registrations of sessions";
    Gauge DESTINATIONS = "mtimer_destinations", "Destinations that have clients, timers in memory or parked timers";

    Histogram STORE_CALLS = "mtimer_store_call_seconds", "From a call on the store to its answer, by operation";
    Counter STORE_BATCHES = "mtimer_store_batches_total", "Batches sent to the store";
    Counter STORE_OPERATIONS = "mtimer_store_operations_total", "Operations in those batches";
    Counter STORE_OUTAGES = "mtimer_store_outages_total", "Times that acquiring a partition found the store away";
    Gauge STORE_UNREACHABLE = "mtimer_store_unreachable_partitions", "Owned partitions whose store cannot be reached";
    Counter STORE_REPLAYED = "mtimer_store_replayed_records_total", "Log records applied again because Redis had lost them";
    Counter STORE_LOG_DROPPED = "mtimer_store_log_dropped_records_total", "Log records dropped for want of memory before they were safe";
    Counter STORE_LOST_SLOTS = "mtimer_store_lost_slots_total", "Slots with timers that Redis had lost when their owner read them";
    Gauge STORE_LOG_BYTES = "mtimer_store_log_bytes", "Memory of the log of last writes";
    Gauge STORE_UNCONFIRMED = "mtimer_store_unconfirmed_partitions", "Partitions of which too few replicas confirm what is written (redis-replicated)";
    Gauge STORE_LOG_AT_RISK = "mtimer_store_log_at_risk", "1 if a failover of Redis may lose answered writes, else 0";
    Gauge STORE_UNPROTECTED = "mtimer_store_unprotected_masters", "Masters of Redis without an append-only file and without replicas";
    Gauge STORE_EVICTING = "mtimer_store_evicting_masters", "Masters of Redis that may evict keys when their memory is full";
    Gauge STORE_DISK_FREE = "mtimer_store_disk_free_bytes", "Free space on the disk of the embedded store";
    Gauge STORE_DISK_LEVEL = "mtimer_store_disk_level", "2 if new timers are refused for want of space on the disk of the embedded store, 1 if that is near, else 0";
    Counter LANES_ENDED = "mtimer_partition_ownerships_ended_total", "Ownerships of a partition that ended, by reason: fenced, rolled_back, broken, released";

    Gauge LEADER = "mtimer_leader", "1 if this broker leads its cluster, else 0; 1 where there is no cluster";
    Gauge LOST_BROKERS = "mtimer_lost_brokers", "Brokers that the cluster has lost within the last hour and that have not come back";
    Gauge ADDRESS_REACHED = "mtimer_address_reached", "1 if this broker is reached at the address that it advertises, or has none; else 0";
    Gauge TERM = "mtimer_term", "Highest term of a leader that this broker has seen; 0 where there is no cluster";
    Counter CLUSTER_EVENTS = "mtimer_cluster_events_total", "What has happened to this broker's part in the cluster, by event";
    Gauge PARTITIONS_OWNED = "mtimer_partitions_owned", "Partitions that this broker owns";
    Gauge PARTITIONS_ASSIGNED = "mtimer_partitions_assigned", "Partitions that this broker is to own";
    Counter PARTITIONS_ACQUIRED = "mtimer_partitions_acquired_total", "Partitions acquired";
    Counter HANDOVERS_FORCED = "mtimer_handovers_forced_total", "Partitions taken from a broker that did not give them up in time";
    Histogram PARTITION_ACQUIRE = "mtimer_partition_acquire_seconds", "From the assignment of a partition until it is owned";
    Histogram PARTITION_RELEASE = "mtimer_partition_release_seconds", "From the order to give a partition up until it is released";

    Gauge QUEUE_DEPTH = "mtimer_queue_depth", "What waits, by queue: events, operations, put_off, store_calls";
    Gauge MEMORY_BYTES = "mtimer_memory_bytes", "Memory in use, by what for: timers, inbox, receiving, outboxes";
    Gauge MEMORY_LIMIT_BYTES = "mtimer_memory_limit_bytes", "Limit of that memory";
    Counter CONNECTIONS = "mtimer_connections_total", "Connections accepted";
    Counter CONNECTIONS_REFUSED = "mtimer_connections_refused_total", "Connections and sessions refused, by reason";
    Counter SESSIONS_CLOSED = "mtimer_sessions_closed_total", "Sessions that the broker closed, by reason";
    Counter ACCESS_DENIED = "mtimer_access_denied_total", "Messages and scrapes that a token does not allow";
    Gauge CREDENTIALS_STALE = "mtimer_credentials_stale", "1 if a file, as it is now, could not be read and what was read before is in use, else 0";
    Gauge CERTIFICATE_EXPIRES = "mtimer_certificate_expires_timestamp_seconds", "When the first certificate in a file of this broker expires, seconds since 1970, by the setting that names the file";
    Gauge TOKEN_EXPIRES = "mtimer_token_expires_timestamp_seconds", "When the first token expires, seconds since 1970, by whose: peer_token, tokens";
    Counter LIMIT_REFUSALS = "mtimer_limit_refusals_total", "Schedules and connections refused because a limit of a token or a group was reached, by reason";
    Gauge CLOCK_STANDSTILL = "mtimer_clock_standstill_seconds", "How long time stands still yet, because the deciding clock was set back; 0 if it does not";
    Counter CLOCK_EVENTS = "mtimer_clock_events_total", "Trouble with the cluster clock, by event: step, outlier, missed_reading, doubtful";
    Counter ACCEPT_ERRORS = "mtimer_accept_errors_total", "Errors of the listener, mostly for want of file descriptors";

    Counter PROCESS_CPU = "process_cpu_seconds_total", "Processor time of the process";
    Gauge PROCESS_RSS = "process_resident_memory_bytes", "Resident memory of the process";
    Gauge PROCESS_FDS = "process_open_fds", "Open file descriptors";
    Gauge PROCESS_MAX_FDS = "process_max_fds", "Limit of open file descriptors";
    Gauge PROCESS_START = "process_start_time_seconds", "When the broker was started, seconds since 1970";
}
