//! Every metric: its name with its unit, its type, its help, and what docs/metrics.md says of it.
//!
//! Invariant: the table of docs/metrics.md comes from here: `documented.rs` compares it, and writes
//! it. `tests/metrics.rs` compares it with a scrape.

use prometheus_client::metrics::MetricType;

/// One metric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: MetricType,
    pub(crate) labels: &'static [&'static str],
    pub(crate) help: &'static str,
}

/// What only the documentation says of a metric.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Documented {
    pub(super) metric: Metric,
    /// What is counted; empty: nothing with a unit.
    pub(super) unit: &'static str,
    /// What it means; empty: what its help says.
    pub(super) meaning: &'static str,
    /// When to look at it.
    pub(super) when: &'static str,
}

/// Type, constant and name of a metric, its unit and labels if it has any, its help, what the
/// documentation says instead of the help if that is more, and when to look at it.
macro_rules! metrics {
    ($(
        $kind:ident $id:ident = $name:literal $(in $unit:literal)? $(by [$($label:literal),+])?,
        $help:literal $(, doc $meaning:literal)?, when $when:literal;
    )*) => {
        $( pub(crate) const $id: Metric = Metric {
            name: $name,
            kind: MetricType::$kind,
            labels: &[$($($label),+)?],
            help: $help,
        }; )*

        /// All of them.
        #[cfg(test)]
        pub(super) const DOCUMENTED: &[Documented] = &[$( Documented {
            metric: $id,
            unit: concat!($($unit)?),
            meaning: concat!($($meaning)?),
            when: $when,
        }, )*];
    };
}

metrics! {
    Gauge BUILD_INFO = "mtimer_build_info" by ["version"],
        "1; the label says which version runs",
        doc "1; which version runs",
        when "during an update";
    Gauge READY = "mtimer_ready",
        "1 if /readyz answers 200, else 0",
        doc "1 if `/readyz` answers 200",
        when "a broker takes no clients";

    Histogram FIRE_LATENESS = "mtimer_fire_lateness_seconds" in "seconds",
        "From a timer's due time to its first delivery, by the cluster clock in ms",
        doc "from due to the first delivery; if the due time had passed when it was accepted, from \
            then on, also after a restart. An outage between due and delivery counts in full. What \
            was parked because nobody took it counts, too",
        when "callbacks are late: compare with `mtimer_store_call_seconds` and with overdue timers";
    Histogram PAUSE_LATENESS = "mtimer_fire_after_pause_seconds" in "seconds",
        "From the end of a pause to the first delivery of a timer that has waited for it",
        doc "the same for timers that have waited for the end of a pause, since that: they do not \
            count above",
        when "a destination was resumed";
    Histogram ACKNOWLEDGE_LATENESS = "mtimer_acknowledge_lateness_seconds" in "seconds",
        "From a timer's due time until the store has its acknowledgement, retries included",
        doc "from due until the store has the acknowledgement, with all retries",
        when "handlers are slow or fail";
    Counter SCHEDULES = "mtimer_schedules_total" in "timers",
        "Timers stored by a schedule",
        doc "timers stored by a schedule; repeats do not count",
        when "load has changed";
    Counter CANCELS = "mtimer_cancels_total" in "operations" by ["outcome"],
        "Cancels answered, by outcome",
        doc "cancels: `cancelled`, `too_late`",
        when "cancels come too late";
    Counter RESCHEDULES = "mtimer_reschedules_total" in "timers",
        "Timers moved to another time",
        when "load has changed";
    Counter FIRES = "mtimer_fires_total" in "deliveries",
        "Deliveries sent to clients, repeated ones included",
        doc "deliveries sent, repeated ones included",
        when "load has changed";
    Counter SETTLEMENTS = "mtimer_settlements_total" in "outcomes" by ["outcome"],
        "Outcomes that the store has, by outcome",
        doc "outcomes in the store: `acknowledged`, `late_acknowledged`, `retried`, `postponed` (the \
            handler answered later), `dead` (dead letters that a cancel makes included), `expired`, \
            `unconfirmed`",
        when "handlers fail";
    Counter SETTLEMENTS_REFUSED = "mtimer_settlements_refused_total" in "outcomes" by ["reason"],
        "Outcomes of clients that were not taken, by reason",
        doc "outcomes not taken: `late` (a retry or fail after the callback timeout, or an ok that \
            the store does not take any more), `not_yours`",
        when "handlers take longer than their timeout";
    Counter RETRIES = "mtimer_retries_total" in "timers" by ["tier"],
        "Further attempts that the store has, by retry tier",
        doc "further attempts that the store has; tier 1 is the first retry",
        when "handlers fail; high tiers: for long";
    Counter DEAD_LETTERS = "mtimer_dead_letters_total" in "timers" by ["reason"],
        "Timers that became dead letters, by reason",
        doc "dead letters: `exhausted`, `failed`, `stopped`, `at_most_once`",
        when "anything moves: `mtimer dead list` shows why";
    Counter REDELIVERIES = "mtimer_redeliveries_total" in "deliveries" by ["cause"],
        "Deliveries that are or will be repeated, by cause",
        doc "deliveries that are or will be repeated: `handler` asked, `timeout`, \
            `connection_lost`, `takeover`, `not_begun` (the client had no free handler and gave it \
            back; mostly no attempt is used), `later` (the handler answered that)",
        when "callbacks come twice (not for `not_begun` and `later`)";
    Counter REFUSALS = "mtimer_refusals_total" in "operations" by ["reason"],
        "Operations of clients that were not done, by reason",
        doc "operations not done, by error code in the protocol, `key_taken`, `conflict`, `ended`, \
            `moved` (another broker's); `limit_reached`: see `mtimer_limit_refusals_total`",
        when "clients see errors";
    Counter PARKS = "mtimer_parks_total" in "timers",
        "Due timers set aside because nobody took them",
        when "with parked timers";
    Counter UNPARKS = "mtimer_unparks_total" in "timers",
        "Parked timers taken back to be delivered",
        doc "parked timers taken back",
        when "with parked timers";
    Counter RECALLS = "mtimer_recalls_total" in "deliveries",
        "Deliveries withdrawn before they had left, because their destination was paused",
        doc "deliveries withdrawn before they had left, because of a pause; they count as sent, too",
        when "a destination was paused";
    Counter TRIMMED = "mtimer_trimmed_total" in "timers" by ["kind"],
        "Dead letters and unconfirmed timers removed for their age or number, by kind",
        doc "`dead` letters and `unconfirmed` timers removed for their age or number",
        when "dead letters are missing";
    Counter UNLOADS = "mtimer_unloads_total" in "timers",
        "Timers taken out of memory again because its budget was exceeded",
        doc "timers taken out of memory again, its budget being exceeded",
        when "memory is short";

    Gauge BULK_PARTITIONS = "mtimer_bulk_job_partitions" in "partitions",
        "Partitions in which a bulk job is at work or waits, once for each job",
        doc "partitions in which a bulk job is at work or waits, once for each job",
        when "somebody undoes timers: `mtimer bulk list` names the jobs";
    Counter BULK_TIMERS = "mtimer_bulk_timers_total" in "timers" by ["outcome"],
        "Timers that bulk jobs have met, by outcome; about",
        doc "timers that bulk jobs have met: `done`, `not_done` (it could not act on them), \
            `refused` (the store would not take it, or could not confirm it: tried again). About: \
            `mtimer bulk show` is exact",
        when "`refused` grows: a full store, or too few replicas, hold a bulk job up";

    Gauge STORED_TIMERS = "mtimer_stored_timers" in "timers" by ["state"],
        "Timers of the owned partitions in the store, by state",
        doc "timers in the store: `pending`, `retrying`, `parked`, `taken` (at-most-once timers that \
            were sent or are about to be, unconfirmed ones included), `dead`, `staged` (by imports)",
        when "for capacity";
    Gauge STORED_KEYS = "mtimer_stored_keys" in "keys",
        "Application keys of live timers in the store",
        doc "keys of live timers in the store",
        when "for capacity";
    Gauge LOADED_TIMERS = "mtimer_loaded_timers" in "timers",
        "Timers in memory",
        when "memory is short";
    Gauge UNSETTLED = "mtimer_unsettled_deliveries" in "deliveries",
        "Deliveries and settlements under way",
        when "a stop takes long";
    Gauge SESSIONS = "mtimer_sessions" in "sessions",
        "Sessions of clients and of other brokers",
        doc "sessions of clients and other brokers",
        when "clients are missing";

    Gauge DESTINATION_PENDING = "mtimer_destination_pending_timers" in "timers" by ["group", "app"],
        "Timers in memory or parked",
        doc "timers in memory (due within `preload`) or parked",
        when "one destination takes all the memory";
    Gauge DESTINATION_OVERDUE = "mtimer_destination_overdue_timers" in "timers" by ["group", "app"],
        "Timers that are due and not delivered, the parked ones included (about)",
        doc "due and not delivered, parked ones included; about",
        when "callbacks are late";
    Gauge DESTINATION_OLDEST = "mtimer_destination_oldest_overdue_seconds" in "seconds" by ["group", "app"],
        "Age of the oldest overdue timer, as far as is known; 0 while a pause or limits hold it back",
        doc "age of the oldest of these, as far as is known; 0 if there is none, or a pause or limits \
            hold the destination back: the next four say so",
        when "callbacks are late: the destination that is stuck";
    Gauge DESTINATION_PAUSED = "mtimer_destination_paused" in "destinations" by ["group", "app"],
        "1 if the destination is paused",
        doc "1 while it is paused; for `other`: how many of them are",
        when "somebody has paused it: `mtimer destination list` shows who and why";
    Gauge DESTINATION_OLDEST_PAUSED = "mtimer_destination_oldest_paused_seconds" in "seconds" by ["group", "app"],
        "Age of the oldest timer that waits for the end of a pause, as far as is known",
        doc "age of the oldest timer that waits for the end of a pause, as far as is known",
        when "with the one before";
    Gauge DESTINATION_LIMITED = "mtimer_destination_limited" in "destinations" by ["group", "app"],
        "1 if its limits alone hold back what is due",
        doc "1 while its limits alone hold back what is due; for `other`: those of how many do",
        when "more is due than the limits let go: `mtimer destination get` shows them";
    Gauge DESTINATION_OLDEST_LIMITED = "mtimer_destination_oldest_limited_seconds" in "seconds" by ["group", "app"],
        "Age of the oldest timer that its destination's limits hold back, as far as is known",
        doc "age of the oldest timer that its destination's limits hold back, as far as is known",
        when "it rises: raise the limits, or less must be scheduled";
    Gauge DESTINATION_PARKED = "mtimer_destination_parked_timers" in "timers" by ["group", "app"],
        "Parked timers (about)",
        doc "parked timers; about",
        when "nobody listens, or without credit";
    Gauge DESTINATION_IN_FLIGHT = "mtimer_destination_in_flight_timers" in "timers" by ["group", "app"],
        "Deliveries not settled",
        when "handlers hang";
    Gauge DESTINATION_SESSIONS = "mtimer_destination_sessions" in "sessions" by ["group", "app"],
        "Registrations of sessions",
        when "nobody listens";
    Gauge PAUSED_DESTINATIONS = "mtimer_paused_destinations" in "destinations",
        "Destinations that are paused, also those without timers; every broker knows them all",
        doc "destinations that are paused; every broker counts them all",
        when "what is due is not delivered";
    Gauge DESTINATIONS = "mtimer_destinations" in "destinations",
        "Destinations that have clients, timers in memory or parked timers",
        doc "destinations with clients, timers in memory or parked timers",
        when "`other` is large: raise `metrics-destinations`";

    Histogram STORE_CALLS = "mtimer_store_call_seconds" in "seconds" by ["operation"],
        "From a call on the store to its answer, by operation",
        doc "from call to answer: `apply` (a batch), `load`, `unload`, `get`, `list`, `census`, `release`",
        when "callbacks are late, schedules are slow";
    Counter STORE_BATCHES = "mtimer_store_batches_total" in "batches",
        "Batches sent to the store",
        when "with the next: operations in a batch";
    Counter STORE_OPERATIONS = "mtimer_store_operations_total" in "operations",
        "Operations in those batches",
        when "load on the store";
    Counter STORE_OUTAGES = "mtimer_store_outages_total" in "outages",
        "Times that acquiring a partition found the store away",
        when "the broker starts slowly";
    Gauge STORE_UNREACHABLE = "mtimer_store_unreachable_partitions" in "partitions",
        "Owned partitions whose store cannot be reached",
        doc "owned partitions whose store cannot be reached, or takes no writes",
        when "anything but 0: timers are refused and late";
    Counter STORE_REPLAYED = "mtimer_store_replayed_records_total" in "records",
        "Log records applied again because Redis had lost them",
        when "it moves: Redis failed over or restarted";
    Counter STORE_LOG_DROPPED = "mtimer_store_log_dropped_records_total" in "records",
        "Log records dropped for want of memory before they were safe",
        when "it moves: replicas lag, or `redis-write-log` is too small";
    Counter STORE_LOST_SLOTS = "mtimer_store_lost_slots_total" in "slots",
        "Slots with timers that Redis had lost when their owner read them",
        doc "slots with timers that Redis had lost when their owner read them, mostly by a \
            failover while a hash slot migrated",
        when "it moves: timers are gone ([which](guarantees.md#when-redis-loses-writes))";
    Gauge STORE_LOG_BYTES = "mtimer_store_log_bytes" in "bytes",
        "Memory of the log of last writes",
        doc "memory of that log",
        when "it grows: replicas lag";
    Gauge STORE_UNCONFIRMED = "mtimer_store_unconfirmed_partitions" in "partitions",
        "Partitions of which too few replicas confirm what is written (redis-replicated)",
        doc "partitions of which too few replicas confirmed in time what was last written; 0 but \
            at level `redis-replicated`",
        when "anything but 0: schedules are *stored, not confirmed*, deliveries wait";
    Gauge STORE_LOG_AT_RISK = "mtimer_store_log_at_risk",
        "1 if a failover of Redis may lose answered writes, else 0",
        doc "1 if a failover of Redis may lose answered writes: the log has dropped some, replicas \
            may lack the acquisition of a partition, the master lacks writes that are not applied \
            again yet, or half of the Sentinels or more do not answer",
        when "anything but 0";
    Gauge STORE_UNPROTECTED = "mtimer_store_unprotected_masters" in "masters",
        "Masters of Redis without an append-only file and without replicas",
        doc "masters of Redis that keep no append-only file and have no replica",
        when "anything but 0: a restart of one loses timers";
    Gauge STORE_EVICTING = "mtimer_store_evicting_masters" in "masters",
        "Masters of Redis that may evict keys when their memory is full",
        doc "masters of Redis that may evict keys when their memory is full, as of the last 30 s",
        when "anything but 0: new timers are refused, and timers may vanish";
    Gauge STORE_DISK_FREE = "mtimer_store_disk_free_bytes" in "bytes",
        "Free space on the disk of the embedded store",
        doc "free space on the disk of the embedded store; missing on Redis",
        when "it nears `disk-reserve`: new timers are refused below it, or earlier \
            ([why](operations.md#the-disk-of-the-embedded-store))";
    Gauge STORE_DISK_LEVEL = "mtimer_store_disk_level",
        "2 if new timers are refused for want of space on the disk of the embedded store, 1 if \
            that is near, else 0",
        doc "2 if the embedded store refuses new timers for want of space, 1 if less than \
            `disk-watermark` is free, else 0; missing on Redis",
        when "anything but 0: [its disk](operations.md#the-disk-of-the-embedded-store)";
    Counter LANES_ENDED = "mtimer_partition_ownerships_ended_total" in "partitions" by ["reason"],
        "Ownerships of a partition that ended, by reason: fenced, rolled_back, broken, released",
        doc "ended: `fenced` (another broker took it), `rolled_back` (the store lost writes beyond \
            the log), `broken`, `released`",
        when "any of the first three moves";

    Gauge LEADER = "mtimer_leader",
        "1 if this broker leads its cluster, else 0; 1 where there is no cluster",
        doc "1 on the broker that leads; 1 where there is no cluster",
        when "the sum over the cluster is not 1";
    Gauge LOST_BROKERS = "mtimer_lost_brokers" in "brokers",
        "Brokers that the cluster has lost within the last hour and that have not come back",
        doc "brokers that the cluster has lost within the last hour and that have not come back, \
            as this one has seen it",
        when "anything but 0: `mtimer status` names them";
    Gauge ADDRESS_REACHED = "mtimer_address_reached",
        "1 if this broker is reached at the address that it advertises, or has none; else 0",
        doc "1 if this broker is reached at the address that it advertises, or has none (a store \
            that brokers do not share); else 0. It looks every second until it is, then every 15 \
            s, and three looks in a row have to fail",
        when "0: clients do not reach it; one that was never reached does not lead and is given no \
            partitions";
    Gauge TERM = "mtimer_term",
        "Highest term of a leader that this broker has seen; 0 where there is no cluster",
        doc "highest term seen; each new leader has a higher one",
        when "it rises often: the leader keeps changing";
    Counter CLUSTER_EVENTS = "mtimer_cluster_events_total" in "events" by ["event"],
        "What has happened to this broker's part in the cluster, by event",
        doc "this broker in its cluster: `campaigns`, `terms_led`, `stepped_down`, `stale_frames`, \
            `members_refused`, `member_deaths`, `topologies_decided`, `topologies_adopted`, \
            `partitions_moved`, `leader_links_lost`, `stalls`",
        when "partitions move without need";
    Gauge PARTITIONS_OWNED = "mtimer_partitions_owned" in "partitions",
        "Partitions that this broker owns",
        doc "partitions owned",
        when "the sum is less than there are";
    Gauge PARTITIONS_ASSIGNED = "mtimer_partitions_assigned" in "partitions",
        "Partitions that this broker is to own",
        doc "partitions to be owned",
        when "it differs from the former for long";
    Counter PARTITIONS_ACQUIRED = "mtimer_partitions_acquired_total" in "partitions",
        "Partitions acquired",
        when "partitions move without need";
    Counter HANDOVERS_FORCED = "mtimer_handovers_forced_total" in "partitions",
        "Partitions taken from a broker that did not give them up in time",
        doc "taken from a broker that did not give them up in time",
        when "a broker hangs";
    Histogram PARTITION_ACQUIRE = "mtimer_partition_acquire_seconds" in "seconds",
        "From the assignment of a partition until it is owned",
        doc "from assignment to ownership",
        when "handovers take long";
    Histogram PARTITION_RELEASE = "mtimer_partition_release_seconds" in "seconds",
        "From the order to give a partition up until it is released",
        doc "from the order to give up to the release",
        when "handovers take long";

    Gauge QUEUE_DEPTH = "mtimer_queue_depth" in "entries" by ["queue"],
        "What waits, by queue: events, operations, put_off, store_calls",
        doc "what waits: `events` for the engine, `operations` for a batch, `put_off` (the store \
            refuses them for now), `store_calls` for an answer",
        when "callbacks are late: where it is stuck";
    Gauge MEMORY_BYTES = "mtimer_memory_bytes" in "bytes" by ["for"],
        "Memory in use, by what for: timers, inbox, receiving, outboxes",
        doc "memory in use: `timers`, `inbox` (requests not answered), `receiving` (frames), \
            `outboxes` (what clients have to read)",
        when "memory is short";
    Gauge MEMORY_LIMIT_BYTES = "mtimer_memory_limit_bytes" in "bytes" by ["for"],
        "Limit of that memory",
        doc "its limits",
        when "with the former";
    Counter CONNECTIONS = "mtimer_connections_total" in "connections",
        "Connections accepted",
        when "clients connect again and again";
    Counter CONNECTIONS_REFUSED = "mtimer_connections_refused_total" in "connections" by ["reason"],
        "Connections and sessions refused, by reason",
        doc "refused, over HTTP too: `handshakes` (closed before they were admitted, because newer \
            ones needed their places), `sessions` (too many of them), `auth`, `tls`, `version`, \
            `handshake_timeout`, `handshake_malformed`",
        when "clients cannot connect";
    Counter SESSIONS_CLOSED = "mtimer_sessions_closed_total" in "sessions" by ["reason"],
        "Sessions that the broker closed, by reason",
        doc "closed by the broker: `protocol`, `malformed`, `oversized`, `truncated`, `slow`, \
            `evicted`, `out_of_place`, `heartbeat`, `write_stalled`, `outbox_overflow`, `revoked` \
            (token revoked, expired, or allowing less)",
        when "clients lose their connection";
    Counter ACCESS_DENIED = "mtimer_access_denied_total" in "messages",
        "Messages and scrapes that a token does not allow",
        doc "requests, queries, registrations, outcomes and scrapes refused for want of a \
            [permission](security.md)",
        when "a client has the wrong token";
    Gauge CREDENTIALS_STALE = "mtimer_credentials_stale" by ["what"],
        "1 if a file, as it is now, could not be read and what was read before is in use, else 0",
        doc "1 if the file of `tokens`, `certificates` or `peer_token`, as it is now, could not be \
            read, and what was read before is still in use",
        when "anything but 0: tokens are not revoked, certificates will expire; the log says why";
    Gauge CERTIFICATE_EXPIRES = "mtimer_certificate_expires_timestamp_seconds" in "seconds" by ["file"],
        "When the first certificate in a file of this broker expires, seconds since 1970, by the \
            setting that names the file",
        doc "when a certificate of this broker expires, since 1970, by the setting that names its \
            file: `tls-cert`, `redis-tls-cert` (or one of the chain if that is earlier); \
            `tls-client-ca`, `tls-ca`, `redis-tls-ca` (the next of these authorities to expire). \
            No sample for a file that is not given",
        when "less than 14 days are left: [renew it](security.md#tls)";
    Gauge TOKEN_EXPIRES = "mtimer_token_expires_timestamp_seconds" in "seconds" by ["what"],
        "When the first token expires, seconds since 1970, by whose: peer_token, tokens",
        doc "when a token expires, since 1970: `peer_token` is this broker's own, `tokens` the \
            first of all others that are still valid. No sample for what does not expire",
        when "less than 14 days are left of `peer_token`, or of a token that an application needs: \
            [replace it](security.md#replace-a-token)";
    Counter LIMIT_REFUSALS = "mtimer_limit_refusals_total" in "refusals" by ["reason"],
        "Schedules and connections refused because a limit of a token or a group was reached, by reason",
        doc "schedules, connections and registrations over a [limit](security.md#limits): \
            `token_schedules`, `token_pending`, `token_payload`, `token_connections`, \
            `token_registrations`, `group_schedules`, `group_pending`, `group_payload`",
        when "a client asks for more than it may: the log names it";
    Gauge CLOCK_STANDSTILL = "mtimer_clock_standstill_seconds" in "seconds",
        "How long time stands still yet, because the deciding clock was set back; 0 if it does not",
        when "anything but 0: [nothing becomes due](troubleshooting.md#time-stands-still)";
    Counter CLOCK_EVENTS = "mtimer_clock_events_total" in "events" by ["event"],
        "Trouble with the cluster clock, by event: step, outlier, missed_reading, doubtful",
        doc "trouble with the cluster clock: `step`, `outlier`, `missed_reading`, `doubtful`",
        when "`step` or `doubtful` moves: look at the time service of the Redis hosts";
    Counter ACCEPT_ERRORS = "mtimer_accept_errors_total" in "errors",
        "Errors of the listener, mostly for want of file descriptors",
        when "it moves";

    Counter PROCESS_CPU = "process_cpu_seconds_total" in "seconds",
        "Processor time of the process",
        doc "processor time (Linux)",
        when "the machine is busy";
    Gauge PROCESS_RSS = "process_resident_memory_bytes" in "bytes",
        "Resident memory of the process",
        doc "resident memory (Linux)",
        when "memory is short";
    Gauge PROCESS_FDS = "process_open_fds" in "descriptors",
        "Open file descriptors",
        doc "open file descriptors (Linux)",
        when "near the limit";
    Gauge PROCESS_MAX_FDS = "process_max_fds" in "descriptors",
        "Limit of open file descriptors",
        doc "their limit (Linux); missing if there is none",
        when "with the former";
    Gauge PROCESS_START = "process_start_time_seconds" in "seconds",
        "When the broker was started, seconds since 1970",
        doc "when the broker was started, since 1970",
        when "a broker was restarted";
}
