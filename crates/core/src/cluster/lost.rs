//! Brokers that the cluster has lost, as far as this one has seen.
//!
//! Purpose: a broker is lost that one topology names and the next one does not, unless it was being
//! emptied and had nothing left to own. The last topology of the store counts too, so a broker that
//! leads after others have died knows which they were.
//! Invariant: a broker that is back is not lost; after [`REMEMBERED_MS`] none is.
//! Not in here: when a broker counts as dead (`members`).

use std::collections::BTreeMap;

use mtimer_protocol::Topology;
use mtimer_types::Term;

/// How long a lost broker is remembered, ms.
const REMEMBERED_MS: u64 = 3_600_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LostBrokers {
    /// The newest topology that was seen: its term and version.
    seen: (Term, u64),
    /// Its brokers, and whether each may go without being lost.
    members: BTreeMap<String, bool>,
    /// Since when each is lost, monotonic ms.
    lost: BTreeMap<String, u64>,
}

impl LostBrokers {
    /// Compares a topology with the one before it.
    pub(super) fn see(&mut self, now: u64, topology: &Topology) {
        if topology.stamp() <= self.seen {
            return;
        }
        self.seen = topology.stamp();
        let entry = |at: usize| {
            let broker = &topology.brokers[at];
            let owns = topology.owners.iter().flatten().any(|owner| usize::from(*owner) == at);
            (broker.address.clone(), broker.draining && !owns)
        };
        let members: BTreeMap<_, _> = (0..topology.brokers.len()).map(entry).collect();
        let before = std::mem::replace(&mut self.members, members);
        self.lost.retain(|address, since| {
            !self.members.contains_key(address) && now.saturating_sub(*since) < REMEMBERED_MS
        });
        let gone =
            before.into_iter().filter(|(address, may_go)| !may_go && !self.members.contains_key(address));
        self.lost.extend(gone.map(|(address, _)| (address, now)));
    }

    /// The brokers that are lost, and since when, monotonic ms.
    pub(super) fn iter(&self, now: u64) -> impl Iterator<Item = (&str, u64)> {
        let lost = self.lost.iter().filter(move |(_, since)| now.saturating_sub(**since) < REMEMBERED_MS);
        lost.map(|(address, since)| (address.as_str(), *since))
    }
}

#[cfg(test)]
mod tests {
    use mtimer_protocol::BrokerEntry;

    use super::*;

    /// A topology of brokers, those in capitals being emptied; each owns a partition, but for the
    /// last one if it is a capital.
    fn topology(version: u64, brokers: &[&str]) -> Topology {
        let is_draining = |b: &str| b == b.to_uppercase();
        let entry = |b: &&str| BrokerEntry { address: b.to_lowercase(), draining: is_draining(b) };
        let owns = |at: &usize| !is_draining(brokers[*at]) || at + 1 < brokers.len();
        Topology {
            term: Term(1),
            version,
            leader: "a".to_owned(),
            brokers: brokers.iter().map(entry).collect(),
            owners: (0..brokers.len()).filter(owns).map(|at| Some(at as u16)).collect(),
        }
    }

    fn names(lost: &LostBrokers, now: u64) -> Vec<(&str, u64)> {
        lost.iter(now).collect()
    }

    #[test]
    fn who_vanishes_is_lost_until_it_is_back_or_an_hour_is_over() {
        let mut lost = LostBrokers::default();
        lost.see(10, &topology(1, &["a", "b", "c"]));
        assert_eq!(names(&lost, 10), []);
        lost.see(20, &topology(2, &["a"]));
        assert_eq!(names(&lost, 20), [("b", 20), ("c", 20)]);
        lost.see(30, &topology(1, &["a", "b", "c"]));
        assert_eq!(names(&lost, 30).len(), 2, "an older topology says nothing");
        lost.see(40, &topology(3, &["a", "b"]));
        assert_eq!(names(&lost, 40), [("c", 20)]);
        assert_eq!(names(&lost, 20 + REMEMBERED_MS), []);
    }

    #[test]
    fn who_was_emptied_has_left_and_who_died_before_that_is_lost() {
        let mut lost = LostBrokers::default();
        lost.see(10, &topology(1, &["a", "b", "C"]));
        lost.see(20, &topology(2, &["a", "b"]));
        assert_eq!(names(&lost, 20), []);
        lost.see(30, &topology(3, &["a", "B", "c"]));
        lost.see(40, &topology(4, &["a", "c"]));
        assert_eq!(names(&lost, 40), [("b", 40)], "it owned partitions still");
    }
}
