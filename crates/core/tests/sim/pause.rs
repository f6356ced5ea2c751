//! What a pause means to the checker: once it was answered, no broker begins a delivery of that
//! destination from that partition, until it is over or somebody has asked for newer settings that
//! are no pause.

use std::collections::BTreeMap;

use mtimer_protocol::ops::{self, ConfigureReply};
use mtimer_protocol::{Delivery, OpReply};
use mtimer_types::{Destination, DestinationSettings, PartitionId, Pause, SettingsVersion, Time};

use super::check::Moment;
use super::history::History;

/// The settings that clients have asked for, and those that brokers have confirmed.
#[derive(Debug, Default)]
pub(super) struct PauseWatch {
    /// By destination and version: when the pause ends; `None`: there is none.
    asked: BTreeMap<Destination, BTreeMap<u64, Option<Time>>>,
    /// The highest version that was answered.
    answered: BTreeMap<(PartitionId, Destination), u64>,
    /// How many pauses have been answered.
    pub(super) confirmed: u64,
}

impl PauseWatch {
    /// The version of the next settings that clients ask for.
    pub(super) fn next_version(&self) -> u64 {
        let versions = self.asked.values().filter_map(|versions| versions.last_key_value());
        1 + versions.map(|(version, _)| *version).max().unwrap_or(0)
    }

    /// Whether a destination is certain to be paused in a partition at this time.
    fn holds(&self, at: PartitionId, dest: &Destination, time: Time) -> bool {
        let Some(answered) = self.answered.get(&(at, dest.clone())) else { return false };
        let mut since = self.asked[dest].range(answered..);
        since.all(|(_, end)| end.is_some_and(|end| time < end))
    }
}

/// Settings that a client may ask for: a pause that ends by itself, or none.
pub(super) fn settings(now: Time, lasts_ms: Option<u64>) -> DestinationSettings {
    let pause = |ms| Pause { since: now, until: Some(now + ms), over_ms: ms / 2, ..Pause::default() };
    DestinationSettings { pause: lasts_ms.map(pause), ..DestinationSettings::default() }
}

impl History {
    pub(super) fn asked_configure(&mut self, op: &ops::Configure) {
        let SettingsVersion::Given(version) = op.version else { return };
        let end = op.settings.pause.as_ref().and_then(|pause| pause.until);
        self.pauses.asked.entry(op.dest.clone()).or_default().insert(version, end);
    }

    pub(super) fn answered_configure(&mut self, op: &ops::Configure, reply: &OpReply) {
        if let OpReply::Configure(ConfigureReply::Done(version)) = reply {
            let known = self.pauses.answered.entry((op.partition, op.dest.clone())).or_default();
            *known = (*known).max(*version);
            self.pauses.confirmed += 1;
        }
    }

    /// Checks a delivery that begins, by the clock of its broker.
    pub(super) fn check_pause(&mut self, m: Moment, d: &Delivery) {
        let Some(dest) = self.bulks.dest_of(d.id) else { return };
        if self.pauses.holds(d.id.partition(), &dest, m.time) {
            self.fail(m.ms, Some(d.id), "pause: sent after a pause was answered");
        }
    }
}
