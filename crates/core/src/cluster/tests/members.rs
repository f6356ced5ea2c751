//! Who is there, in the leader's eyes: heartbeats, deaths, new incarnations, refusals.

use super::*;

#[test]
fn what_comes_by_an_earlier_session_is_too_late() {
    let mut lab = Lab::leading(7, None);
    lab.beat(5, beat("a:1", 5));
    lab.take();
    lab.beat(3, Heartbeat { stopping: true, ..beat("a:1", 5) });
    lab.feed(NodeInput::PeerGone(PeerId(3)));
    assert_eq!((lab.take(), lab.share("a:1")), (vec![], 3));
}

#[test]
fn who_contradicts_the_cluster_is_told_what_and_what_to_do() {
    let mut lab = Lab::leading(7, None);
    let good = beat("a:1", 5);
    for (bad, says) in [
        (Heartbeat { cluster: "d".into(), ..good.clone() }, ["\"d\"", "\"c\""]),
        (Heartbeat { partitions: 64, ..good.clone() }, ["64 partitions", "one of 6"]),
        (Heartbeat { weight: 0, ..good.clone() }, ["weight 0", "1 to 1000"]),
        (Heartbeat { weight: 1_001, ..good.clone() }, ["weight 1001", "1 to 1000"]),
        (Heartbeat { address: "nowhere".into(), ..good.clone() }, ["\"nowhere\"", "host:port"]),
        (Heartbeat { address: ME.into(), ..good }, [ME, "of its own"]),
    ] {
        lab.take();
        lab.beat(1, bad);
        let out = lab.take();
        let text = refused(&out).expect("a refusal");
        assert!(says.iter().all(|s| text.contains(s)), "{text}");
    }
    assert_eq!(lab.counter("members_refused_total"), 6);
    assert_eq!(lab.topology().brokers.len(), 1);
}

#[test]
fn of_two_living_processes_with_one_address_the_second_is_refused() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    lab.take();
    lab.beat(2, beat("a:1", 6));
    assert!(refused(&lab.take()).unwrap().contains("a:1"));
    // Once the first is gone, or silent, the second is a new incarnation of it: it keeps its
    // partitions.
    let before = lab.topology().clone();
    lab.feed(NodeInput::PeerGone(PeerId(1)));
    lab.beat(3, beat("a:1", 6));
    assert_eq!((refused(&lab.take()), lab.topology()), (None, &before));
    lab.pass(999, true);
    lab.take();
    lab.beat(4, beat("a:1", 7));
    assert!(refused(&lab.take()).is_some());
    lab.pass(1, true);
    lab.beat(5, beat("a:1", 7));
    assert_eq!(refused(&lab.take()), None);
    assert_eq!(lab.counter("member_deaths_total"), 0);
}

#[test]
fn a_member_is_dead_when_silent_or_half_a_second_after_its_session() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    assert_eq!((lab.share("a:1"), lab.share(ME)), (3, 3));
    lab.pass(1_499, true);
    assert_eq!(lab.share("a:1"), 3);
    lab.pass(1, true);
    assert_eq!((lab.share("a:1"), lab.share(ME)), (0, 6));
    lab.beat(2, beat("c:1", 5));
    lab.feed(NodeInput::PeerGone(PeerId(2)));
    lab.pass(499, true);
    assert_eq!(lab.share("c:1"), 3);
    lab.pass(1, true);
    assert_eq!((lab.share("c:1"), lab.counter("member_deaths_total")), (0, 2));
}

#[test]
fn who_is_heard_but_hears_nothing_is_not_there() {
    let mut lab = Lab::leading(7, None);
    for seq in 1..=4 {
        let beat = Heartbeat { seq, heard: 0, ..beat("a:1", 5) };
        lab.feed(NodeInput::FromPeer(PeerId(1), PeerRequest::Heartbeat(beat)));
        lab.pass(500, true);
    }
    assert_eq!(lab.share("a:1"), 3);
    for seq in 5..=6 {
        let beat = Heartbeat { seq, heard: 0, ..beat("a:1", 5) };
        lab.feed(NodeInput::FromPeer(PeerId(1), PeerRequest::Heartbeat(beat)));
        lab.pass(500, true);
    }
    assert_eq!(lab.share(ME), 6);
}

#[test]
fn a_leader_that_stood_still_blames_nobody() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    lab.now += 2_000;
    lab.feed(NodeInput::Tick);
    assert!(lab.node.leads());
    assert_eq!((lab.share("a:1"), lab.counter("stalls_total")), (3, 1));
    lab.be_well();
    lab.pass(1_500, true);
    assert_eq!(lab.share("a:1"), 0);
}

#[test]
fn a_leader_that_stood_still_gives_a_lost_session_its_time() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    lab.feed(NodeInput::PeerGone(PeerId(1)));
    lab.now += 2_000;
    lab.feed(NodeInput::Tick);
    lab.be_well();
    lab.pass(499, true);
    assert_eq!(lab.share("a:1"), 3);
    lab.pass(1, true);
    assert_eq!(lab.share("a:1"), 0);
}

#[test]
fn deaths_more_than_a_minute_apart_hold_nobody_back() {
    let mut lab = Lab::leading(7, None);
    for inc in 1..=3 {
        lab.beat(inc, beat("a:1", inc));
        assert_eq!(lab.share("a:1"), 3, "incarnation {inc}");
        lab.feed(NodeInput::PeerGone(PeerId(inc)));
        lab.pass(61_000, true);
    }
    assert_eq!(lab.counter("member_deaths_total"), 3);
}

#[test]
fn another_weight_counts_at_once() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    assert_eq!(lab.share("a:1"), 3);
    lab.beat(1, Heartbeat { weight: 200, ..beat("a:1", 5) });
    assert_eq!(lab.share("a:1"), 4);
}

#[test]
fn who_comes_and_goes_is_held_back_longer_each_time() {
    let mut lab = Lab::leading(7, None);
    let mut inc = 0;
    let mut life = |lab: &mut Lab| {
        inc += 1;
        lab.beat(inc, beat("a:1", inc));
        let held = lab.node.view(lab.now).members[0].held_back_ms;
        assert_eq!(lab.share("a:1") == 0, held > 0);
        lab.feed(NodeInput::PeerGone(PeerId(inc)));
        lab.pass(600, true);
        held
    };
    let held: Vec<u64> = (0..80).map(|_| life(&mut lab)).collect();
    assert_eq!(held[..8], [0, 0, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000]);
    assert!(held[8..].iter().all(|ms| *ms == 60_000), "{held:?}");
    // Held back it is for so long; after a minute without a fault it is like everybody.
    let peers = [(100, "a:1", 100)];
    lab.pass_with(59_000, &peers);
    assert_eq!(lab.share("a:1"), 0);
    lab.pass_with(1_500, &peers);
    assert_eq!(lab.share("a:1"), 3);
    lab.pass_with(60_500, &peers);
    lab.feed(NodeInput::PeerGone(PeerId(100)));
    lab.pass(600, true);
    lab.beat(101, beat("a:1", 101));
    assert_eq!(lab.share("a:1"), 3);
}

#[test]
fn who_stops_in_good_order_is_no_flapper_and_leaves_the_topology() {
    let mut lab = Lab::leading(7, None);
    for inc in 1..=4 {
        let owned = vec![(PartitionId(0), Epoch(inc))];
        lab.beat(inc, Heartbeat { owned: owned.clone(), ..beat("a:1", inc) });
        assert_eq!(lab.share("a:1"), 3);
        lab.beat(inc, Heartbeat { stopping: true, owned, ..beat("a:1", inc) });
        assert_eq!((lab.share("a:1"), lab.topology().brokers.len()), (0, 2));
        assert!(lab.topology().brokers[0].draining);
        lab.beat(inc, Heartbeat { stopping: true, ..beat("a:1", inc) });
        assert_eq!(lab.topology().brokers.len(), 1);
        lab.feed(NodeInput::PeerGone(PeerId(inc)));
    }
    assert_eq!(lab.counter("member_deaths_total"), 0);
}
