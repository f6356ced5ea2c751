//! The highest epoch: which brokers hear of it, and from which.

use super::*;

/// The highest epoch in the answers to each other broker.
fn told(out: &[NodeEffect]) -> Vec<(u64, u64)> {
    let told = out.iter().filter_map(|e| match e {
        NodeEffect::ToPeer(peer, PeerAnswer::Heard { epoch, .. }) => Some((peer.0, epoch.0)),
        _ => None,
    });
    told.collect()
}

#[test]
fn a_leader_tells_everybody_of_the_highest_epoch_that_anybody_has_seen() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, Heartbeat { epoch: Epoch(70), ..beat("a:1", 5) });
    lab.take();
    // With the topology that gives it something, too.
    lab.beat(2, Heartbeat { epoch: Epoch(60), ..beat("c:1", 6) });
    assert_eq!(told(&lab.take()), [(1, 70), (2, 70)]);
    lab.feed(NodeInput::Owned(PartitionId(1), Epoch(90)));
    lab.beat(1, Heartbeat { epoch: Epoch(70), ..beat("a:1", 5) });
    assert_eq!(told(&lab.take()), [(1, 90)]);
    assert_eq!(lab.node.epoch(), Epoch(90));
}

#[test]
fn the_next_leader_knows_what_a_member_has_heard() {
    let mut lab = Lab::new();
    lab.follow("a:1", 7, Some(topology(7, 1, "a:1", &["a:1", ME])));
    lab.feed(NodeInput::FromLeader(PeerAnswer::Heard {
        seq: 0,
        term: Term(7),
        topology: None,
        epoch: Epoch(80),
    }));
    lab.feed(NodeInput::Owned(PartitionId(1), Epoch(30)));
    lab.feed(NodeInput::Lost(PartitionId(1)));
    lab.take();
    lab.pass(500, false);
    assert_eq!(lab.sent().last().map(|beat| beat.epoch), Some(Epoch(80)));
    lab.feed(NodeInput::LinkDown("it is dead".into()));
    lab.win(8, None);
    lab.beat(2, beat("c:1", 6));
    assert_eq!(told(&lab.take()).last(), Some(&(2, 80)));
}

#[test]
fn an_epoch_more_than_a_day_ahead_of_the_cluster_clock_is_not_believed() {
    let mut lab = Lab::leading(7, None);
    let (clock, day) = (1_800_000_000_000, 86_400_000);
    lab.clock = Time::from_ms(clock);
    for epoch in [clock + day + 1, (1 << 50) - 1, u64::MAX] {
        lab.beat(1, Heartbeat { epoch: Epoch(epoch), ..beat("a:1", 5) });
    }
    lab.beat(1, Heartbeat { epoch: Epoch(50), cluster: "other".into(), ..beat("a:1", 5) });
    assert_eq!((lab.node.epoch(), lab.counter("stale_frames_total")), (Epoch(0), 3));

    // The one after the highest that is believed is believed as well, a moment later.
    let highest = Epoch(clock + day);
    lab.beat(1, Heartbeat { epoch: highest, ..beat("a:1", 5) });
    assert_eq!(lab.node.epoch(), highest);
    lab.clock = Time::from_ms(clock + 1);
    lab.feed(NodeInput::Owned(PartitionId(1), Epoch(highest.0 + 1)));
    assert_eq!((lab.node.epoch(), lab.counter("stale_frames_total")), (Epoch(highest.0 + 1), 3));
}
