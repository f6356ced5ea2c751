//! The partitions that a broker acquires and gives up, up to its own stop.

use super::*;

#[test]
fn the_topology_says_what_to_acquire_and_what_to_hand_over() {
    let mut lab = Lab::new();
    lab.follow("a:1", 7, Some(topology(7, 1, "a:1", &["a:1", ME])));
    assert_eq!(owns(&lab.take()), [1, 3, 5]);
    lab.feed(NodeInput::Owned(PartitionId(1), Epoch(10)));
    lab.feed(NodeInput::Owned(PartitionId(3), Epoch(10)));
    // Confirmed while it is not owned: once more, by the newer assignment.
    lab.hear(7, Some(topology(7, 2, "a:1", &["a:1", ME])));
    assert_eq!(owns(&lab.take()), [5]);
    // Nobody's: kept. Another's: handed over, or not acquired any more.
    let mut next = topology(7, 3, "a:1", &["a:1", ME]);
    (next.owners[1], next.owners[3], next.owners[5]) = (None, Some(0), Some(0));
    lab.hear(7, Some(next));
    assert_eq!(disowns(&lab.take()), [3, 5]);
    // It came too late, and is the other's already.
    lab.feed(NodeInput::Owned(PartitionId(5), Epoch(11)));
    assert_eq!(disowns(&lab.take()), [5]);
    lab.feed(NodeInput::Lost(PartitionId(3)));
    lab.feed(NodeInput::Lost(PartitionId(5)));
    lab.pass(60, false);
    let owned: Vec<_> = lab.sent().last().unwrap().owned.iter().map(|(p, _)| p.0).collect();
    assert_eq!((owns(&lab.out), owned), (vec![], vec![1]));
}

#[test]
fn what_is_lost_is_asked_for_again_less_and_less_often() {
    let mut lab = Lab::leading(7, None);
    let p = PartitionId(2);
    let mut waits = Vec::new();
    for _ in 0..8 {
        lab.feed(NodeInput::Owned(p, Epoch(1)));
        lab.take();
        lab.feed(NodeInput::Lost(p));
        let since = lab.now;
        while owns(&lab.out).is_empty() {
            lab.pass(1, true);
        }
        waits.push((lab.now - since) / 10 * 10);
    }
    assert_eq!(waits, [0, 250, 500, 1_000, 2_000, 4_000, 5_000, 5_000]);
    lab.feed(NodeInput::Owned(p, Epoch(1)));
    lab.pass(10_000, true);
    lab.take();
    lab.feed(NodeInput::Lost(p));
    assert_eq!(owns(&lab.take()), [2]);
}

#[test]
fn a_lone_leader_that_stops_can_go_at_once_and_keeps_the_lease() {
    let mut lab = Lab::leading(7, None);
    lab.feed(NodeInput::Owned(PartitionId(0), Epoch(1)));
    lab.feed(NodeInput::Stop);
    assert!(has_left(&lab.take()) && lab.node.lease().is_some());
}

#[test]
fn a_leader_that_stops_hands_over_and_resigns() {
    let mut lab = Lab::leading(7, None);
    (0..P).for_each(|p| lab.feed(NodeInput::Owned(PartitionId(p), Epoch(1))));
    lab.beat(1, beat("a:1", 5));
    lab.take();
    lab.feed(NodeInput::Stop);
    let out = lab.take();
    assert_eq!((disowns(&out).len(), lab.share("a:1"), has_left(&out)), (3, 6, false));
    (0..P).for_each(|p| lab.feed(NodeInput::Lost(PartitionId(p))));
    let out = lab.take();
    assert!(has_left(&out) && out.iter().any(|e| matches!(e, NodeEffect::Resign(_))));
    assert!(!lab.node.leads());
    lab.pass(10_000, false);
    assert_eq!(campaigns(&lab.take()), 0);
}

#[test]
fn a_follower_that_stops_says_so_and_goes_when_it_owns_nothing() {
    let mut lab = Lab::new();
    lab.follow("a:1", 7, Some(topology(7, 1, "a:1", &["a:1", ME])));
    lab.feed(NodeInput::Owned(PartitionId(1), Epoch(1)));
    lab.pass(100, false);
    lab.take();
    lab.feed(NodeInput::Stop);
    assert!(lab.sent().last().unwrap().stopping);
    assert_eq!(disowns(&lab.out), [3, 5], "what was being acquired is not wanted any more");
    let mut next = topology(7, 2, "a:1", &["a:1", ME]);
    next.brokers[1].draining = true;
    next.owners = vec![Some(0); usize::from(P)];
    lab.hear(7, Some(next));
    assert_eq!(disowns(&lab.out), [3, 5, 1]);
    lab.take();
    lab.feed(NodeInput::Lost(PartitionId(1)));
    let out = lab.take();
    let last = [matches!(out[0], NodeEffect::ToLeader(_)), out[1] == NodeEffect::Left];
    assert_eq!((out.len(), last), (2, [true, true]), "{out:?}");
}

#[test]
fn a_broker_that_stops_waits_for_nobody_in_vain() {
    // The leader says that nobody else takes it.
    let mut lab = Lab::new();
    lab.follow("a:1", 7, Some(topology(7, 1, "a:1", &["a:1", ME])));
    lab.feed(NodeInput::Owned(PartitionId(1), Epoch(1)));
    lab.feed(NodeInput::Stop);
    assert!(!has_left(&lab.take()));
    let mut next = topology(7, 2, "a:1", &["a:1", ME]);
    next.brokers[1].draining = true;
    lab.feed(NodeInput::FromLeader(heard(0, 7, Some(next))));
    assert!(has_left(&lab.take()));

    // No leader answers.
    let mut lab = Lab::new();
    lab.feed(NodeInput::Owned(PartitionId(1), Epoch(1)));
    lab.pass(5_000, false);
    lab.feed(NodeInput::Stop);
    lab.pass(1_999, false);
    assert!(!has_left(&lab.take()));
    lab.pass(1, false);
    assert!(has_left(&lab.take()));
}
