//! The settings of destinations that this broker knows, whichever of its partitions told them.
//!
//! Invariant: of each destination those with the highest version are known. They are not forgotten
//! with a partition: what another broker has told of them since would have a higher version.

use std::collections::BTreeSet;

use mtimer_types::{DeliveryLimits, Destination, StoredSettings, Time};

use super::hash::{Map, Seeded};
use super::policy::Policy;

/// See the module.
#[derive(Debug)]
pub(super) struct Policies {
    known: Map<Destination, StoredSettings>,
    /// Pauses that end by themselves, by their ends.
    ends: BTreeSet<(Time, Destination)>,
    /// Up to when ends were looked at.
    now: Time,
}

impl Policies {
    pub(super) fn new(seed: Seeded) -> Self {
        Self { known: Map::with_hasher(seed), ends: BTreeSet::new(), now: Time::ZERO }
    }

    /// Takes in settings. False if they are known, or newer ones are.
    pub(super) fn learn(&mut self, row: StoredSettings) -> bool {
        let old = self.known.get(&row.dest);
        if old.is_some_and(|old| old.version >= row.version) {
            return false;
        }
        if let Some(end) = old.and_then(end_of) {
            self.ends.remove(&(end, row.dest.clone()));
        }
        let end = end_of(&row).filter(|end| *end > self.now);
        self.ends.extend(end.map(|end| (end, row.dest.clone())));
        self.known.insert(row.dest.clone(), row);
        true
    }

    /// The policy of a destination, as of the last look.
    pub(super) fn of(&self, dest: &Destination) -> Policy {
        if self.known.is_empty() {
            return Policy::default();
        }
        self.known.get(dest).map_or_else(Policy::default, |row| Policy::of(&row.settings, self.now))
    }

    /// The limits of a destination, and the version of its settings, if they are known.
    pub(super) fn limits_of(&self, dest: &Destination) -> Option<(u64, DeliveryLimits)> {
        self.known.get(dest).map(|row| (row.version, row.settings.limits))
    }

    /// Looks at the clock. Returns the destinations whose pauses have ended since.
    pub(super) fn look(&mut self, now: Time) -> Vec<Destination> {
        self.now = self.now.max(now);
        let mut ended = Vec::new();
        while let Some((end, _)) = self.ends.first()
            && *end <= self.now
        {
            ended.extend(self.ends.pop_first().map(|(_, dest)| dest));
        }
        ended
    }

    /// The destinations that are paused, and their settings, in no particular order.
    pub(super) fn paused(&self) -> impl Iterator<Item = &StoredSettings> {
        self.known.values().filter(|row| row.settings.is_paused(self.now))
    }
}

/// When the pause ends by itself.
fn end_of(row: &StoredSettings) -> Option<Time> {
    row.settings.pause.as_ref()?.until
}

#[cfg(test)]
mod tests {
    use mtimer_types::{DestinationSettings, Pause};

    use super::*;

    const NOW: Time = Time::from_ms(1_000_000);

    fn dest() -> Destination {
        Destination::new("test", "a").unwrap()
    }

    fn row(version: u64, until: Option<u64>) -> StoredSettings {
        let pause = Pause { until: until.map(|ms| NOW + ms), ..Pause::default() };
        let settings = DestinationSettings { pause: Some(pause), ..DestinationSettings::default() };
        StoredSettings { dest: dest(), version, settings }
    }

    fn policies() -> Policies {
        let mut policies = Policies::new(Seeded(1));
        policies.look(NOW);
        policies
    }

    #[test]
    fn the_highest_version_holds_in_whichever_order_they_are_told() {
        let mut policies = policies();
        assert!(policies.learn(row(2, None)));
        assert!(!policies.learn(row(1, Some(0))) && !policies.learn(row(2, Some(0))));
        assert!(policies.of(&dest()).is_paused());
        assert!(policies.learn(row(3, Some(0))));
        assert_eq!((policies.of(&dest()).is_paused(), policies.paused().count()), (false, 0));
    }

    #[test]
    fn a_pause_ends_at_its_time_once_and_not_if_it_was_replaced() {
        let mut policies = policies();
        policies.learn(row(1, Some(10)));
        assert_eq!(policies.look(NOW + 9), []);
        policies.learn(row(2, Some(20)));
        assert_eq!(policies.look(NOW + 10), []);
        assert!(policies.of(&dest()).is_paused());
        assert_eq!(policies.look(NOW + 20), [dest()]);
        assert!(!policies.of(&dest()).is_paused());
        assert_eq!(policies.look(NOW + 21), []);
        // The clock was set back.
        assert_eq!(policies.look(NOW), []);
        assert!(!policies.of(&dest()).is_paused());
    }
}
