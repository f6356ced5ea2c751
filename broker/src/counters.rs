//! Counters of the shell, beside the engine's own.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use mtimer_core::figures::Durations;
use mtimer_types::Term;
use parking_lot::Mutex;

use crate::refused::RefusalSummary;

/// One number of the shell. All count up since start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum ShellCounter {
    /// Connections taken from the listener.
    ConnectionsAccepted,
    /// Connections closed before they were admitted: newer ones needed their slots.
    ConnectionsRefused,
    /// Sessions refused: too many of them.
    SessionsRefused,
    /// Hellos with a token that is missing, unknown, expired, or lacks the verb for the role.
    AuthRefused,
    /// Connections that were not encrypted: their TLS handshake failed, or they began none.
    TlsRefused,
    /// Hellos without a common version.
    VersionRefused,
    /// Handshakes that did not end in time.
    HandshakesTimedOut,
    /// First messages that were no valid hello.
    HandshakesMalformed,
    /// Frames whose body is no message.
    FramesMalformed,
    /// Frames that announce more than the limit.
    FramesOversized,
    /// Connections that ended in the middle of a frame.
    FramesTruncated,
    /// Frames that began and did not go on.
    FramesSlow,
    /// Unfinished frames given up because others waited for their memory.
    FramesEvicted,
    /// Messages that are not allowed where they came.
    FramesOutOfPlace,
    /// Sessions closed by the engine: they broke the protocol.
    SessionsBroken,
    /// Sessions that were silent for too long.
    HeartbeatsMissed,
    /// Sessions that did not read their messages.
    WritesStalled,
    /// Sessions that let too much pile up.
    OutboxOverflows,
    /// Sessions closed because their token was revoked, has expired, or allows less than before.
    SessionsRevoked,
    /// Operations, queries, registrations and messages of outcomes that a token does not allow.
    AccessDenied,
    /// Schedules refused because a token's limit of schedules per second was reached.
    LimitTokenSchedules,
    /// The same of its limit of pending timers.
    LimitTokenPending,
    /// The same of its limit of payload bytes.
    LimitTokenPayload,
    /// Connections refused because a token's limit was reached.
    LimitTokenConnections,
    LimitTokenRegistrations,
    /// Schedules refused because a group's limit of schedules per second was reached.
    LimitGroupSchedules,
    /// The same of its limit of pending timers.
    LimitGroupPending,
    /// The same of its limit of payload bytes.
    LimitGroupPayload,
    /// Messages that fit no frame and went out in parts.
    MessagesSplit,
    /// Messages that fit no frame and went out as an error.
    MessagesTooLarge,
    /// Alarms given to the engine.
    Alarms,
    /// Readings of the store's clocks far from the cluster clock.
    ClockOutliers,
    /// Clocks of the store that did not answer in time.
    ClockReadingsMissed,
    /// Corrections of the cluster clock by a step.
    ClockSteps,
    /// Rounds of readings, one a second, in which the time was not known well enough.
    ClockDoubtful,
    /// Partitions that were acquired.
    PartitionsAcquired,
    /// Partitions taken from a broker that did not give them up in time.
    HandoversForced,
    /// Times that the store went away.
    StoreOutages,
    /// Errors of the listener.
    AcceptErrors,
}

use ShellCounter as C;

const ALL: &[(ShellCounter, &str)] = &[
    (C::ConnectionsAccepted, "connections_accepted_total"),
    (C::ConnectionsRefused, "connections_refused_total"),
    (C::SessionsRefused, "sessions_refused_total"),
    (C::AuthRefused, "auth_refused_total"),
    (C::TlsRefused, "tls_refused_total"),
    (C::VersionRefused, "version_refused_total"),
    (C::HandshakesTimedOut, "handshakes_timed_out_total"),
    (C::HandshakesMalformed, "handshakes_malformed_total"),
    (C::FramesMalformed, "frames_malformed_total"),
    (C::FramesOversized, "frames_oversized_total"),
    (C::FramesTruncated, "frames_truncated_total"),
    (C::FramesSlow, "frames_slow_total"),
    (C::FramesEvicted, "frames_evicted_total"),
    (C::FramesOutOfPlace, "frames_out_of_place_total"),
    (C::SessionsBroken, "sessions_broken_total"),
    (C::HeartbeatsMissed, "heartbeats_missed_total"),
    (C::WritesStalled, "writes_stalled_total"),
    (C::OutboxOverflows, "outbox_overflows_total"),
    (C::SessionsRevoked, "sessions_revoked_total"),
    (C::AccessDenied, "access_denied_total"),
    (C::LimitTokenSchedules, "limit_token_schedules_total"),
    (C::LimitTokenPending, "limit_token_pending_total"),
    (C::LimitTokenPayload, "limit_token_payload_total"),
    (C::LimitTokenConnections, "limit_token_connections_total"),
    (C::LimitTokenRegistrations, "limit_token_registrations_total"),
    (C::LimitGroupSchedules, "limit_group_schedules_total"),
    (C::LimitGroupPending, "limit_group_pending_total"),
    (C::LimitGroupPayload, "limit_group_payload_total"),
    (C::MessagesSplit, "messages_split_total"),
    (C::MessagesTooLarge, "messages_too_large_total"),
    (C::Alarms, "wheel_wakeups_total"),
    (C::ClockOutliers, "clock_outliers_total"),
    (C::ClockReadingsMissed, "clock_readings_missed_total"),
    (C::ClockSteps, "clock_steps_total"),
    (C::ClockDoubtful, "clock_doubtful_total"),
    (C::PartitionsAcquired, "partitions_acquired_total"),
    (C::HandoversForced, "handovers_forced_total"),
    (C::StoreOutages, "store_outages_total"),
    (C::AcceptErrors, "accept_errors_total"),
];

/// The shell's counters, shared by its tasks.
#[derive(Debug)]
pub(crate) struct ShellCounters {
    shell: [AtomicU64; ALL.len()],
    /// The cluster node's, as last noted; none without a cluster.
    node: Mutex<NodeCounters>,
    /// Brokers that the cluster has lost, and since when, monotonic ms.
    lost: Mutex<Vec<(String, u64)>>,
    /// The leader that this broker has not reached for a while, and why.
    unreached_leader: Mutex<Option<(String, String)>>,
    /// Owned partitions whose store did not answer when the cluster's task last looked.
    unreachable: AtomicUsize,
    /// See [`Self::note_credentials`].
    expiring: AtomicUsize,
    stale: AtomicUsize,
    handovers: Mutex<Handovers>,
    /// Troubles at the last look of the reports; none before the first.
    troubles: Mutex<Vec<(&'static str, u64)>>,
    /// Who was refused since the reports last looked.
    refused: Mutex<RefusalSummary>,
}

impl Default for ShellCounters {
    fn default() -> Self {
        Self {
            shell: std::array::from_fn(|_| AtomicU64::new(0)),
            node: Mutex::default(),
            lost: Mutex::default(),
            unreached_leader: Mutex::default(),
            unreachable: AtomicUsize::new(0),
            expiring: AtomicUsize::new(0),
            stale: AtomicUsize::new(0),
            handovers: Mutex::default(),
            troubles: Mutex::default(),
            refused: Mutex::default(),
        }
    }
}

/// Counters of the cluster node.
#[derive(Clone, Debug, Default)]
struct NodeCounters {
    counters: Vec<(&'static str, u64)>,
    leads: bool,
    term: u64,
}

/// How long partitions took to change hands. They do so rarely.
#[derive(Clone, Copy, Debug, Default)]
struct Handovers {
    acquired: Durations,
    released: Durations,
}

/// All of this at one moment.
#[derive(Debug)]
pub(crate) struct ShellFigures {
    shell: [u64; ALL.len()],
    /// The cluster node's counters; none without a cluster.
    pub(crate) node: Vec<(&'static str, u64)>,
    /// Whether the cluster node leads.
    pub(crate) leads: bool,
    /// The highest term that it has seen.
    pub(crate) term: u64,
    /// From assignment to ownership.
    pub(crate) acquired_after: Durations,
    /// From the order to give up to the release.
    pub(crate) released_after: Durations,
}

impl ShellFigures {
    pub(crate) fn get(&self, counter: ShellCounter) -> u64 {
        self.shell[counter as usize]
    }
}

impl ShellCounters {
    pub(crate) fn add(&self, counter: ShellCounter, n: u64) {
        self.shell[counter as usize].fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, counter: ShellCounter) {
        self.add(counter, 1);
    }

    /// Counts a connection or a message that is refused, and notes whose it is for the log.
    /// `token`: the id of the token that was shown.
    pub(crate) fn refuse(&self, counter: ShellCounter, peer: SocketAddr, token: Option<&str>) {
        self.count(counter);
        let name = ALL[counter as usize].1.trim_end_matches("_total");
        self.refused.lock().note(name, peer.ip(), token);
    }

    /// Returns who was refused since the last call.
    pub(crate) fn take_refused(&self) -> RefusalSummary {
        std::mem::take(&mut self.refused.lock())
    }

    /// Notes how the cluster node's counters stand, and whether this broker leads: a broker alone
    /// does.
    pub(crate) fn note_node(
        &self,
        counters: impl Iterator<Item = (&'static str, u64)>,
        leads: bool,
        term: Term,
    ) {
        let mut node = self.node.lock();
        node.counters.clear();
        node.counters.extend(counters);
        (node.leads, node.term) = (leads, term.0);
    }

    /// Notes which brokers the cluster has lost, and since when, monotonic ms.
    pub(crate) fn note_lost(&self, brokers: Vec<(String, u64)>) {
        *self.lost.lock() = brokers;
    }

    /// See [`Self::note_lost`]; none without a cluster.
    pub(crate) fn lost_brokers(&self) -> Vec<(String, u64)> {
        self.lost.lock().clone()
    }

    /// Notes which leader this broker has not reached for a while, and why.
    pub(crate) fn note_unreached_leader(&self, leader: Option<(String, String)>) {
        *self.unreached_leader.lock() = leader;
    }

    /// See [`Self::note_unreached_leader`]; none without a cluster.
    pub(crate) fn unreached_leader(&self) -> Option<(String, String)> {
        self.unreached_leader.lock().clone()
    }

    /// The same in words.
    pub(crate) fn leader_problem(&self) -> Option<String> {
        let (leader, why) = self.unreached_leader()?;
        Some(format!("the leader at {leader} cannot be reached: {why}"))
    }

    /// Notes the present troubles for `mtimer status`, by name.
    pub(crate) fn note_troubles(&self, troubles: Vec<(&'static str, u64)>) {
        *self.troubles.lock() = troubles;
    }

    /// Notes of how many owned partitions the store does not answer.
    pub(crate) fn note_unreachable(&self, partitions: usize) {
        self.unreachable.store(partitions, Ordering::Relaxed);
    }

    /// See [`Self::note_unreachable`]; 0 without a cluster.
    pub(crate) fn unreachable(&self) -> usize {
        self.unreachable.load(Ordering::Relaxed)
    }

    /// Notes how many of this broker's own credentials expire soon, and how many kinds of them
    /// could not be read again.
    pub(crate) fn note_credentials(&self, expiring: usize, stale: usize) {
        self.expiring.store(expiring, Ordering::Relaxed);
        self.stale.store(stale, Ordering::Relaxed);
    }

    /// A partition was acquired, so long after it was assigned.
    pub(crate) fn acquired_after(&self, took: Duration) {
        self.handovers.lock().acquired.add_us(us(took));
    }

    /// A partition was given up, so long after it was ordered.
    pub(crate) fn released_after(&self, took: Duration) {
        self.handovers.lock().released.add_us(us(took));
    }

    /// Reads everything.
    pub(crate) fn read(&self) -> ShellFigures {
        let NodeCounters { counters, leads, term } = self.node.lock().clone();
        let Handovers { acquired, released } = *self.handovers.lock();
        let shell = std::array::from_fn(|i| self.shell[i].load(Ordering::Relaxed));
        ShellFigures {
            shell,
            node: counters,
            leads,
            term,
            acquired_after: acquired,
            released_after: released,
        }
    }

    /// Puts these counters among the engine's and the store's, in order of name.
    pub(crate) fn merge_into(&self, counters: &mut Vec<(String, u64)>) {
        let own =
            ALL.iter().map(|(c, name)| ((*name).to_owned(), self.shell[*c as usize].load(Ordering::Relaxed)));
        counters.extend(own);
        counters.extend(self.node.lock().counters.iter().map(|(name, n)| ((*name).to_owned(), *n)));
        let credentials = [("credentials_expiring", &self.expiring), ("credentials_stale", &self.stale)];
        counters.extend(credentials.map(|(name, n)| (name.to_owned(), n.load(Ordering::Relaxed) as u64)));
        counters.extend(self.troubles.lock().iter().map(|(name, n)| ((*name).to_owned(), *n)));
        counters.sort();
    }
}

fn us(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_its_own_name_and_place() {
        for (i, (counter, _)) in ALL.iter().enumerate() {
            assert_eq!(*counter as usize, i);
        }
        let counters = ShellCounters::default();
        counters.add(C::Alarms, 3);
        counters.note_node([("campaigns_total", 1)].into_iter(), false, Term(1));
        counters.note_node([("campaigns_total", 2)].into_iter(), true, Term(2));
        let mut merged = vec![("scheduled_total".to_owned(), 7)];
        counters.merge_into(&mut merged);
        assert_eq!(merged.len(), ALL.len() + 4);
        assert!(merged.contains(&("campaigns_total".to_owned(), 2)));
        assert!(merged.windows(2).all(|w| w[0].0 < w[1].0), "in order, none twice");
        assert!(merged.contains(&("wheel_wakeups_total".to_owned(), 3)));
        counters.acquired_after(Duration::from_millis(7));
        let read = counters.read();
        assert_eq!((read.get(C::Alarms), read.leads, read.term), (3, true, 2));
        assert_eq!((read.acquired_after.count(), read.released_after.count()), (1, 0));
    }
}
