//! Counters of a node's events.

/// Names in the order of [`ClusterCounter`].
const NAMES: [&str; 11] = [
    "campaigns_total",
    "terms_led_total",
    "stepped_down_total",
    "stale_frames_total",
    "members_refused_total",
    "member_deaths_total",
    "topologies_decided_total",
    "topologies_adopted_total",
    "partitions_moved_total",
    "leader_links_lost_total",
    "stalls_total",
];

/// Events of elections and membership that are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(super) enum ClusterCounter {
    Campaigns,
    TermsLed,
    SteppedDown,
    StaleFrames,
    MembersRefused,
    MemberDeaths,
    TopologiesDecided,
    TopologiesAdopted,
    PartitionsMoved,
    LinksLost,
    Stalls,
}

/// The value of each [`ClusterCounter`].
#[derive(Debug, Default)]
pub(super) struct ClusterCounters([u64; NAMES.len()]);

impl ClusterCounters {
    pub(super) fn add(&mut self, what: ClusterCounter, n: u64) {
        self.0[what as usize] += n;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.0)
    }
}
