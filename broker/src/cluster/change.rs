//! Log lines about the effect of a new topology on this broker.

use std::collections::BTreeSet;

use mtimer_protocol::Topology;

/// Logs the changes of a new topology for the broker at this address: a line for each event, not
/// one for each partition.
pub(super) fn log(before: Option<&Topology>, now: &Topology, own: &str) {
    let change = Change::between(before, now, own);
    match change.leads {
        Some(true) => tracing::info!(term = now.term.0, "this broker leads the cluster"),
        Some(false) => {
            tracing::info!(term = now.term.0, leader = now.leader, "another broker leads the cluster");
        }
        None => {}
    }
    if (change.taken, change.given) != (0, 0) {
        let Change { taken, given, owned, .. } = change;
        tracing::info!(taken, given, owned, "the partitions of this broker changed");
    }
}

/// The changes of a new topology for one broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Change {
    /// Whether it leads; `None`: the leader is the same as before.
    leads: Option<bool>,
    /// Partitions that it is to own and was not before.
    taken: usize,
    /// Partitions that it was to own and is not any more.
    given: usize,
    /// Partitions that it is to own.
    owned: usize,
}

impl Change {
    fn between(before: Option<&Topology>, now: &Topology, own: &str) -> Self {
        let share = |topology: &Topology| topology.partitions_of(own).collect::<BTreeSet<_>>();
        let (old, new) = (before.map(share).unwrap_or_default(), share(now));
        let is_same = before.is_some_and(|before| before.leader == now.leader);
        Self {
            leads: (!is_same).then(|| now.leader == own),
            taken: new.difference(&old).count(),
            given: old.difference(&new).count(),
            owned: new.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use mtimer_protocol::BrokerEntry;
    use mtimer_types::Term;

    use super::*;

    fn topology(leader: &str, owners: &[u16]) -> Topology {
        let broker = |address: &str| BrokerEntry { address: address.to_owned(), draining: false };
        Topology {
            term: Term(1),
            version: 1,
            leader: leader.to_owned(),
            brokers: ["a:1", "b:1"].map(broker).to_vec(),
            owners: owners.iter().copied().map(Some).collect(),
        }
    }

    #[test]
    fn a_topology_is_compared_with_the_one_before() {
        let first = topology("a:1", &[0, 0, 0, 1]);
        let change = |before, now, own| Change::between(before, now, own);
        let begun = Change { leads: Some(true), taken: 3, given: 0, owned: 3 };
        assert_eq!(change(None, &first, "a:1"), begun);
        assert_eq!(change(None, &first, "b:1"), Change { leads: Some(false), taken: 1, given: 0, owned: 1 });
        let same = Change { leads: None, taken: 0, given: 0, owned: 3 };
        assert_eq!(change(Some(&first), &first, "a:1"), same);
        let second = topology("b:1", &[0, 1, 1, 0]);
        let changed = Change { leads: Some(false), taken: 1, given: 2, owned: 2 };
        assert_eq!(change(Some(&first), &second, "a:1"), changed);
    }
}
