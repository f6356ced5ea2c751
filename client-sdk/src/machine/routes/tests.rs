use mtimer_protocol::BrokerEntry;
use mtimer_types::Term;
use proptest::prelude::*;

use super::*;

const P: u16 = 4;

fn topology(term: u64, version: u64, brokers: &[&str], owners: &[Option<u16>]) -> Topology {
    let entry = |a: &&str| BrokerEntry { address: (*a).to_owned(), draining: false };
    Topology {
        term: Term(term),
        version,
        leader: brokers.first().copied().unwrap_or_default().to_owned(),
        brokers: brokers.iter().map(entry).collect(),
        owners: owners.to_vec(),
    }
}

fn handle(session: u64, name: &str) -> Origin {
    Origin::new(session, (!name.is_empty()).then(|| name.to_owned()))
}

/// a (1) owns 0 and 1, b (2) owns 2, nobody owns 3.
fn two() -> Routes {
    let mut routes = Routes::new(P);
    routes.opened(&handle(1, "a"));
    routes.opened(&handle(2, "b"));
    assert!(routes.observe(topology(1, 1, &["a", "b"], &[Some(0), Some(0), Some(1), None])));
    routes
}

fn table(routes: &Routes) -> Vec<Option<u64>> {
    (0..P).map(|p| routes.request_connection(PartitionId(p))).collect()
}

#[test]
fn a_broker_without_a_cluster_gets_everything() {
    let mut routes = Routes::new(P);
    assert_eq!(table(&routes), [None; 4]);
    routes.opened(&handle(1, ""));
    assert_eq!(table(&routes), [Some(1); 4]);
    for goal in [Goal::Leader, Goal::Informed, Goal::Broker("x".into()), Goal::Partition(PartitionId(2))] {
        assert_eq!(routes.query_connection(&goal), Some(1));
    }
    assert_eq!(routes.settle_connection(PartitionId(1), &handle(1, "")), Some(1));
    assert!(!routes.may_know(2, &handle(1, "")));
    routes.stopping(1);
    assert_eq!(table(&routes), [None; 4]);
    assert_eq!(routes.settle_connection(PartitionId(1), &handle(1, "")), Some(1), "outcomes still go there");
}

#[test]
fn requests_go_to_the_owner_and_an_older_topology_changes_nothing() {
    let mut routes = two();
    assert_eq!(table(&routes), [Some(1), Some(1), Some(2), None]);
    assert_eq!(routes.reachable().len(), 3);
    assert!(!routes.observe(topology(1, 1, &["a", "b"], &[Some(1); 4])));
    assert!(!routes.observe(topology(0, 9, &["a", "b"], &[Some(1); 4])));
    assert_eq!(table(&routes), [Some(1), Some(1), Some(2), None]);
    assert!(routes.observe(topology(2, 0, &["a", "b"], &[Some(1); 4])));
    assert_eq!(table(&routes), [Some(2); 4]);
    routes.closed(2);
    assert_eq!(table(&routes), [None; 4]);
}

#[test]
fn what_moved_taught_holds_until_a_newer_topology_or_a_loss() {
    let mut routes = two();
    let p = PartitionId(0);
    routes.moved(p, "c");
    assert_eq!(routes.request_connection(p), Some(1), "nobody is connected to c");
    routes.moved(p, "b");
    assert_eq!(routes.request_connection(p), Some(2));
    routes.disowned(p, 1);
    assert_eq!(routes.request_connection(p), Some(2), "the word of another broker says nothing about b");
    routes.disowned(p, 2);
    assert_eq!(routes.request_connection(p), Some(1));
    routes.moved(p, "b");
    routes.closed(2);
    assert_eq!(routes.request_connection(p), Some(1));
    routes.opened(&handle(3, "b"));
    assert_eq!(routes.request_connection(p), Some(1));
    routes.moved(p, "b");
    routes.observe(topology(1, 2, &["a", "b"], &[Some(0); 4]));
    assert_eq!(routes.request_connection(p), Some(1));
}

#[test]
fn outcomes_go_back_while_the_broker_owns_the_partition_and_then_to_the_owner() {
    let mut routes = two();
    let (a, p) = (handle(1, "a"), PartitionId(0));
    assert_eq!(routes.settle_connection(p, &a), Some(1));
    routes.stopping(1);
    assert_eq!(routes.settle_connection(p, &a), Some(1));
    assert_eq!(routes.settle_connection(PartitionId(3), &a), Some(1), "nobody else owns it");
    routes.observe(topology(1, 2, &["a", "b"], &[Some(1), Some(0), Some(1), None]));
    assert_eq!(routes.settle_connection(p, &a), Some(2));
    assert!(routes.may_know(2, &a) && routes.may_know(1, &a));
    routes.closed(1);
    assert_eq!(routes.settle_connection(PartitionId(1), &a), None);
    // The same broker, again: it has counted all that is not ok with the old connection.
    routes.opened(&handle(3, "a"));
    assert_eq!(routes.settle_connection(PartitionId(1), &a), Some(3));
    a.ended(false);
    assert!(!routes.may_know(3, &a));
    // Unless it had stopped gracefully, and handed over its in-flight list.
    a.ended(true);
    assert!(routes.may_know(3, &a));
}

#[test]
fn questions_find_the_leader_or_anybody() {
    let mut routes = two();
    assert_eq!(routes.query_connection(&Goal::Leader), Some(1));
    assert_eq!(routes.query_connection(&Goal::Broker("b".into())), Some(2));
    assert_eq!(routes.query_connection(&Goal::Broker("c".into())), None);
    routes.stopping(1);
    assert_eq!(routes.query_connection(&Goal::Leader), None);
    assert_eq!(routes.query_connection(&Goal::Informed), Some(2));
}

#[test]
fn who_is_outside_is_left_only_if_somebody_is_inside() {
    let mut routes = Routes::new(P);
    routes.opened(&handle(1, "new"));
    routes.observe(topology(1, 1, &["a"], &[Some(0); 4]));
    assert!(!routes.is_outside(1));
    routes.opened(&handle(2, "a"));
    assert!(routes.is_outside(1) && !routes.is_outside(2));
    assert_eq!(routes.brokers(), 1);
}

#[test]
fn a_broker_alone_ends_what_was_known_of_a_cluster() {
    let mut routes = two();
    routes.closed(1);
    routes.closed(2);
    routes.opened(&handle(3, ""));
    assert_eq!((table(&routes), routes.topology()), (vec![Some(3); 4], None));
}

#[test]
fn an_error_names_the_broker_that_is_not_connected() {
    let mut routes = Routes::new(P);
    routes.opened(&handle(1, "a"));
    routes.observe(topology(1, 1, &["a", "b"], &[Some(0), Some(1), None, None]));
    let why = |goal: Goal, fault| routes.why_unrouted(&goal, fault);
    let owned_by_b = || Goal::Partition(PartitionId(1));
    assert_eq!(why(owned_by_b(), "no route to x"), "the partition's owner, b, is not connected");
    let fault = "no connection to a broker at b: refused";
    let named = "the partition's owner, b, is not connected: no connection to a broker at b: refused";
    assert_eq!(why(owned_by_b(), fault), named);
    assert_eq!(why(Goal::Partition(PartitionId(2)), fault), "the partition's owner is not known");
    assert_eq!(why(Goal::Broker("c".to_owned()), ""), "the broker, c, is not connected");
}

proptest! {
    #[test]
    fn requests_never_go_to_a_closed_or_stopping_broker(steps in proptest::collection::vec((0u8..5, 0u64..6, 0u16..4), 0..60)) {
        let names = ["a", "b", "c"];
        let mut routes = Routes::new(P);
        let (mut next, mut open) = (1, BTreeMap::new());
        for (kind, n, p) in steps {
            let pick = open.keys().nth(n as usize % open.len().max(1)).copied();
            match (kind, pick) {
                (0, _) => {
                    let name = names[n as usize % 3];
                    if !open.values().any(|(known, _)| *known == name) {
                        routes.opened(&handle(next, name));
                        open.insert(next, (name, false));
                        next += 1;
                    }
                }
                (1, Some(session)) => {
                    routes.closed(session);
                    open.remove(&session);
                }
                (2, Some(session)) => {
                    routes.stopping(session);
                    open.entry(session).and_modify(|o| o.1 = true);
                }
                (3, _) => _ = routes.observe(topology(1, n, &names, &[Some(p % 3), Some(n as u16 % 3), None, Some(0)])),
                _ => routes.moved(PartitionId(p), names[n as usize % 3]),
            }
            for handle in table(&routes).into_iter().flatten() {
                prop_assert!(open.get(&handle).is_some_and(|(_, stopping)| !stopping));
            }
        }
    }
}
