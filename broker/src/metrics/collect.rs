//! Which number becomes which metric.

use std::fmt;

use mtimer_core::Counter;
use mtimer_core::figures::{Backlog, DEAD_REASONS, REFUSALS, RedeliveryCause};
use mtimer_store::{Census, counters};
use mtimer_types::Time;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::names as m;
use super::process::Process;
use super::write::MetricWriter;
use crate::access::{CERTIFICATE_FILES, Expiries};
use crate::counters::{ShellCounter as C, ShellFigures};
use crate::lanes::ENDS;
use crate::observed::Observed;

/// The names that stand for all destinations that have none of their own in metrics. Names of
/// destinations cannot be empty, so that no destination has these.
const OTHER: (&str, &str) = ("other", "");

/// Everything that one scrape has read.
#[derive(Debug)]
pub(super) struct Scrape {
    pub(super) observed: Observed,
    /// The count of the store; `None`: it was not counted in time.
    pub(super) stored: Option<Census>,
    pub(super) shell: ShellFigures,
    pub(super) store: Vec<(&'static str, u64)>,
    pub(super) inbox: (u64, u64),
    pub(super) receiving: (u64, u64),
    pub(super) outboxes: (u64, u64),
    /// Whether tokens and certificates could not be read again.
    pub(super) stale: [(&'static str, bool); 3],
    pub(super) expiries: Expiries,
    pub(super) process: Process,
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let out = &mut MetricWriter(encoder);
        self.about(out)?;
        self.timers(out)?;
        self.timers_by_kind(out)?;
        self.stored(out)?;
        self.destinations(out)?;
        self.store(out)?;
        self.cluster(out)?;
        self.partitions(out)?;
        self.queues(out)?;
        self.sessions(out)?;
        self.expiries(out)?;
        self.process(out)
    }
}

impl Scrape {
    fn count(&self, counter: Counter) -> u64 {
        self.observed.engine.counters.get(counter as usize).copied().unwrap_or(0)
    }

    fn about(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        out.by(&m::BUILD_INFO, [(env!("CARGO_PKG_VERSION"), 1u64)])?;
        out.one(&m::READY, u64::from(self.observed.unready.is_empty()))
    }

    fn timers(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let tallies = &self.observed.engine.tallies;
        out.durations(&m::FIRE_LATENESS, &tallies.sent_after)?;
        out.durations(&m::PAUSE_LATENESS, &tallies.sent_after_pause)?;
        out.durations(&m::ACKNOWLEDGE_LATENESS, &tallies.acknowledged_after)?;
        let single = [
            (&m::SCHEDULES, Counter::Scheduled),
            (&m::RESCHEDULES, Counter::Rescheduled),
            (&m::FIRES, Counter::Delivered),
            (&m::PARKS, Counter::Parked),
            (&m::UNPARKS, Counter::Unparked),
            (&m::UNLOADS, Counter::Unloaded),
            (&m::RECALLS, Counter::Recalled),
        ];
        single.into_iter().try_for_each(|(metric, counter)| out.one(metric, self.count(counter)))
    }

    fn timers_by_kind(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let tallies = &self.observed.engine.tallies;
        let all = |kinds: &[(&'static str, Counter)]| {
            kinds.iter().map(|(kind, counter)| (*kind, self.count(*counter))).collect::<Vec<_>>()
        };
        let cancels = [("cancelled", Counter::Cancelled), ("too_late", Counter::CancelTooLate)];
        out.by(&m::CANCELS, all(&cancels))?;
        let settlements = [
            ("acknowledged", Counter::Acknowledged),
            ("late_acknowledged", Counter::LateAcknowledged),
            ("retried", Counter::Retried),
            ("postponed", Counter::Postponed),
            ("dead", Counter::Dead),
            ("expired", Counter::Expired),
            ("unconfirmed", Counter::Unconfirmed),
        ];
        out.by(&m::SETTLEMENTS, all(&settlements))?;
        let refused = [("not_yours", Counter::SettleNotYours), ("late", Counter::SettleLate)];
        out.by(&m::SETTLEMENTS_REFUSED, all(&refused))?;
        let trimmed = [("dead", Counter::DeadTrimmed), ("unconfirmed", Counter::UnconfirmedTrimmed)];
        out.by(&m::TRIMMED, all(&trimmed))?;
        // Tiers that nobody has used but the first would only be noise.
        let used = tallies.retries.iter().rposition(|n| *n > 0).map_or(1, |last| last + 1);
        let tiers: Vec<String> = (1..=used).map(|tier| tier.to_string()).collect();
        out.by(&m::RETRIES, tiers.iter().map(String::as_str).zip(tallies.retries))?;
        let reasons = DEAD_REASONS.into_iter().map(|(_, name)| name);
        out.by(&m::DEAD_LETTERS, reasons.zip(tallies.dead))?;
        out.one(&m::BULK_PARTITIONS, self.observed.engine.bulk_partitions())?;
        let bulk = [
            ("done", Counter::BulkDone),
            ("not_done", Counter::BulkNotDone),
            ("refused", Counter::BulkRefused),
        ];
        out.by(&m::BULK_TIMERS, all(&bulk))?;
        let causes = RedeliveryCause::ALL.into_iter().map(|(_, name)| name);
        out.by(&m::REDELIVERIES, causes.zip(tallies.redeliveries))?;
        out.by(&m::REFUSALS, REFUSALS.into_iter().zip(tallies.refusals))
    }

    /// Writes the count of the store; nothing if it was not counted.
    fn stored(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        // Timers of a partition without an owner are in no count.
        let is_whole = self.observed.engine.partitions >= self.observed.assigned;
        let Some(s) = self.stored.as_ref().filter(|_| is_whole) else { return Ok(()) };
        let states = [
            ("pending", s.pending),
            ("retrying", s.retrying),
            ("parked", s.parked),
            ("taken", s.taken),
            ("dead", s.dead),
            ("staged", s.staged),
        ];
        out.by(&m::STORED_TIMERS, states)?;
        out.one(&m::STORED_KEYS, s.keys)
    }

    fn destinations(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let engine = &self.observed.engine;
        let (others, unnamed) = &engine.others;
        out.one(&m::DESTINATIONS, engine.top.len() as u64 + unnamed)?;
        let of = |value: fn(&Backlog) -> u64| {
            let named = engine.top.iter().map(move |(d, b)| ((d.group(), d.app()), value(b)));
            named.chain([(OTHER, value(others))])
        };
        out.by_destination(&m::DESTINATION_PENDING, of(|b| b.pending))?;
        out.by_destination(&m::DESTINATION_OVERDUE, of(|b| b.waiting + b.parked))?;
        out.by_destination(&m::DESTINATION_PARKED, of(|b| b.parked))?;
        out.by_destination(&m::DESTINATION_IN_FLIGHT, of(|b| b.in_flight))?;
        out.by_destination(&m::DESTINATION_SESSIONS, of(|b| b.sessions))?;
        let now = self.observed.now;
        let ages = |oldest: fn(&Backlog) -> Option<Time>| {
            let age = move |b: &Backlog| oldest(b).map_or(0, |due| now.ms_since(due)) as f64 / 1_000.0;
            let named = engine.top.iter().map(move |(d, b)| ((d.group(), d.app()), age(b)));
            named.chain([(OTHER, age(others))])
        };
        out.by_destination(&m::DESTINATION_OLDEST, ages(|b| b.oldest))?;
        out.by_destination(&m::DESTINATION_OLDEST_PAUSED, ages(|b| b.oldest_paused))?;
        out.by_destination(&m::DESTINATION_PAUSED, of(|b| b.paused))?;
        out.by_destination(&m::DESTINATION_OLDEST_LIMITED, ages(|b| b.oldest_limited))?;
        out.by_destination(&m::DESTINATION_LIMITED, of(|b| b.limited))?;
        out.one(&m::PAUSED_DESTINATIONS, engine.paused)
    }

    fn store(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let lanes = &self.observed.lanes;
        out.durations_by(&m::STORE_CALLS, lanes.calls.iter().map(|(name, took)| (*name, took)))?;
        out.one(&m::STORE_BATCHES, lanes.batches)?;
        out.one(&m::STORE_OPERATIONS, lanes.operations)?;
        out.one(&m::STORE_OUTAGES, self.shell.get(C::StoreOutages))?;
        out.one(&m::STORE_UNREACHABLE, self.observed.unreachable)?;
        let find = |name| self.store.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
        if let Some(free) = find(counters::DISK_FREE_BYTES) {
            out.one(&m::STORE_DISK_FREE, free)?;
        }
        if let Some(level) = find(counters::DISK_LEVEL) {
            out.one(&m::STORE_DISK_LEVEL, level)?;
        }
        // Of a store that keeps no log they are 0.
        let of = |name| find(name).unwrap_or(0);
        out.one(&m::STORE_REPLAYED, of(counters::LOG_REPLAYED_RECORDS))?;
        out.one(&m::STORE_LOG_DROPPED, of(counters::LOG_DROPPED_RECORDS))?;
        out.one(&m::STORE_LOST_SLOTS, of(counters::LOST_SLOTS))?;
        out.one(&m::STORE_LOG_BYTES, of(counters::LOG_BYTES))?;
        out.one(&m::STORE_UNPROTECTED, of(counters::UNPROTECTED_MASTERS))?;
        out.one(&m::STORE_EVICTING, of(counters::EVICTING_MASTERS))?;
        out.one(&m::STORE_UNCONFIRMED, of(counters::UNCONFIRMED_PARTITIONS))?;
        out.one(&m::STORE_LOG_AT_RISK, of(counters::LOG_AT_RISK))
    }

    fn cluster(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        out.one(&m::LEADER, u64::from(self.shell.leads))?;
        out.one(&m::TERM, self.shell.term)?;
        out.one(&m::LOST_BROKERS, self.observed.lost_brokers)?;
        out.one(&m::ADDRESS_REACHED, u64::from(self.observed.is_reached))?;
        let events = self.shell.node.iter().map(|(name, n)| (name.trim_end_matches("_total"), *n));
        out.by(&m::CLUSTER_EVENTS, events)
    }

    fn partitions(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let (observed, shell) = (&self.observed, &self.shell);
        out.one(&m::PARTITIONS_OWNED, observed.engine.partitions)?;
        out.one(&m::PARTITIONS_ASSIGNED, observed.assigned)?;
        out.one(&m::PARTITIONS_ACQUIRED, shell.get(C::PartitionsAcquired))?;
        out.one(&m::HANDOVERS_FORCED, shell.get(C::HandoversForced))?;
        out.durations(&m::PARTITION_ACQUIRE, &shell.acquired_after)?;
        out.durations(&m::PARTITION_RELEASE, &shell.released_after)?;
        out.by(&m::LANES_ENDED, ENDS.into_iter().zip(observed.lanes.ended))
    }

    fn queues(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let (observed, engine) = (&self.observed, &self.observed.engine);
        let depths = [
            ("events", observed.events),
            ("operations", engine.queued),
            ("put_off", engine.put_off),
            ("store_calls", observed.lanes.under_way),
        ];
        out.by(&m::QUEUE_DEPTH, depths)?;
        let memory = [
            ("timers", (engine.memory.1, engine.memory_budget)),
            ("inbox", self.inbox),
            ("receiving", self.receiving),
            ("outboxes", self.outboxes),
        ];
        out.by(&m::MEMORY_BYTES, memory.map(|(name, (used, _))| (name, used)))?;
        out.by(&m::MEMORY_LIMIT_BYTES, memory.map(|(name, (_, limit))| (name, limit)))?;
        out.one(&m::LOADED_TIMERS, engine.memory.0)?;
        out.one(&m::UNSETTLED, engine.unsettled)
    }

    fn sessions(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let by = |kinds: &[(&'static str, C)]| {
            kinds.iter().map(|(kind, counter)| (*kind, self.shell.get(*counter))).collect::<Vec<_>>()
        };
        out.one(&m::SESSIONS, self.observed.sessions)?;
        out.one(&m::CONNECTIONS, self.shell.get(C::ConnectionsAccepted))?;
        out.one(&m::ACCESS_DENIED, self.shell.get(C::AccessDenied))?;
        out.one(&m::ACCEPT_ERRORS, self.shell.get(C::AcceptErrors))?;
        let refused = [
            ("handshakes", C::ConnectionsRefused),
            ("sessions", C::SessionsRefused),
            ("auth", C::AuthRefused),
            ("tls", C::TlsRefused),
            ("version", C::VersionRefused),
            ("handshake_timeout", C::HandshakesTimedOut),
            ("handshake_malformed", C::HandshakesMalformed),
        ];
        out.by(&m::CONNECTIONS_REFUSED, by(&refused))?;
        let closed = [
            ("protocol", C::SessionsBroken),
            ("malformed", C::FramesMalformed),
            ("oversized", C::FramesOversized),
            ("truncated", C::FramesTruncated),
            ("slow", C::FramesSlow),
            ("evicted", C::FramesEvicted),
            ("out_of_place", C::FramesOutOfPlace),
            ("heartbeat", C::HeartbeatsMissed),
            ("write_stalled", C::WritesStalled),
            ("outbox_overflow", C::OutboxOverflows),
            ("revoked", C::SessionsRevoked),
        ];
        out.by(&m::SESSIONS_CLOSED, by(&closed))?;
        let limits = [
            ("token_schedules", C::LimitTokenSchedules),
            ("token_pending", C::LimitTokenPending),
            ("token_payload", C::LimitTokenPayload),
            ("token_connections", C::LimitTokenConnections),
            ("token_registrations", C::LimitTokenRegistrations),
            ("group_schedules", C::LimitGroupSchedules),
            ("group_pending", C::LimitGroupPending),
            ("group_payload", C::LimitGroupPayload),
        ];
        out.by(&m::CREDENTIALS_STALE, self.stale.map(|(what, stale)| (what, u64::from(stale))))?;
        out.by(&m::LIMIT_REFUSALS, by(&limits))?;
        let clock = [
            ("step", C::ClockSteps),
            ("outlier", C::ClockOutliers),
            ("missed_reading", C::ClockReadingsMissed),
            ("doubtful", C::ClockDoubtful),
        ];
        out.by(&m::CLOCK_EVENTS, by(&clock))?;
        out.one(&m::CLOCK_STANDSTILL, self.observed.still_ms as f64 / 1_000.0)
    }

    /// A credential that does not expire has no sample.
    fn expiries(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let Expiries { certificates, peer_token, tokens } = self.expiries;
        let seconds = |(name, at): (&'static str, Option<Time>)| Some((name, at?.as_ms() / 1_000));
        let files = CERTIFICATE_FILES.into_iter().zip(certificates).filter_map(seconds);
        out.by(&m::CERTIFICATE_EXPIRES, files)?;
        let tokens = [("peer_token", peer_token), ("tokens", tokens)];
        out.by(&m::TOKEN_EXPIRES, tokens.into_iter().filter_map(seconds))
    }

    /// Values that the system does not tell are left out.
    fn process(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let p = &self.process;
        p.cpu_seconds.map_or(Ok(()), |value| out.one(&m::PROCESS_CPU, value))?;
        p.resident_bytes.map_or(Ok(()), |value| out.one(&m::PROCESS_RSS, value))?;
        p.open_fds.map_or(Ok(()), |value| out.one(&m::PROCESS_FDS, value))?;
        p.max_fds.map_or(Ok(()), |value| out.one(&m::PROCESS_MAX_FDS, value))?;
        out.one(&m::PROCESS_START, p.started_seconds)
    }
}
