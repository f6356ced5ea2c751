//! The leader's assignments and the topologies that it publishes.

use super::*;

#[test]
fn a_new_leader_waits_for_those_who_had_something_and_believes_what_they_own() {
    let last = topology(6, 9, "a:1", &["a:1", ME, "c:1"]);
    let mut lab = Lab::new();
    lab.held("a:1", 6, Some(100));
    lab.pass(151, false);
    lab.win(7, Some(&last));
    lab.take();
    lab.beat(1, Heartbeat { owned: vec![(PartitionId(4), Epoch(3))], ..beat("c:1", 5) });
    let heard = heard(1, 7, None);
    assert_eq!(
        lab.take(),
        [NodeEffect::ToPeer(PeerId(1), heard)],
        "it waits for the leader that let the lease run out"
    );
    lab.pass(599, true);
    assert!(lab.node.topology().is_none());
    lab.pass(1, true);
    assert_eq!(lab.topology().stamp(), (Term(7), 1));
    // c:1 keeps 2 and 5 as published, and 4 as it says itself; the partitions of a:1 go to this
    // broker, which keeps 1.
    let of_c: Vec<u16> = lab.topology().partitions_of("c:1").map(|p| p.0).collect();
    assert_eq!(of_c, [2, 4, 5]);
}

#[test]
fn who_is_not_known_to_have_let_the_lease_run_out_is_waited_for_longer() {
    let last = topology(6, 9, "a:1", &["a:1", ME]);
    let held = |lab: &mut Lab, by: &str, remaining| {
        lab.held(by, 6, remaining);
        lab.pass(remaining.unwrap_or(0) + 51, false);
    };
    let before: [&dyn Fn(&mut Lab); 5] = [
        &|_| (),
        // It is another's lease that has run out.
        &|lab| held(lab, "c:1", Some(100)),
        &|lab| held(lab, "a string", Some(100)),
        // The store could not be asked meanwhile: nor could the leader renew.
        &|lab| {
            held(lab, "a:1", Some(100));
            let answer = Err(StoreError::Unavailable("away".into()));
            lab.feed(NodeInput::Campaigned { sent: lab.now, answer });
        },
        // It is long ago.
        &|lab| {
            held(lab, "a:1", Some(100));
            lab.pass(200, false);
        },
    ];
    for (i, before) in before.into_iter().enumerate() {
        let mut lab = Lab::new();
        before(&mut lab);
        lab.win(7, Some(&last));
        lab.pass(1_499, true);
        assert!(lab.node.topology().is_none(), "{i}");
        lab.pass(1, true);
        assert_eq!(lab.share(ME), 6, "{i}");
    }
}

#[test]
fn an_operator_empties_a_broker_and_the_next_leader_remembers() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    assert!(lab.node.drain(lab.now, "x:1", true).unwrap_err().to_string().contains("a:1, b:7000"));
    lab.node.drain(lab.now, "a:1", true).unwrap();
    assert_eq!(lab.share("a:1"), 0);
    let published = lab.topology().clone();
    assert!(published.brokers[0].draining);

    let mut next = Lab::leading(8, Some(&published));
    next.beat(1, Heartbeat { topology: published.stamp(), ..beat("a:1", 5) });
    assert_eq!(next.share("a:1"), 0, "the same incarnation of it");
    next.node.drain(next.now, "a:1", false).unwrap();
    assert_eq!(next.share("a:1"), 3);

    let mut next = Lab::leading(8, Some(&published));
    next.beat(1, beat("a:1", 6));
    assert_eq!(next.share("a:1"), 3, "it came back as another");

    let mut follower = Lab::new();
    assert!(
        follower.node.drain(follower.now, "a:1", true).unwrap_err().to_string().contains("none just now")
    );
    follower.follow("a:1", 7, None);
    assert!(follower.node.drain(follower.now, "a:1", true).unwrap_err().to_string().contains("ask a:1"));
}

#[test]
fn who_is_emptied_keeps_what_nobody_else_takes() {
    let mut lab = Lab::leading(7, None);
    lab.node.drain(lab.now, ME, true).unwrap();
    assert_eq!(lab.share(ME), 6);
    lab.beat(1, beat("a:1", 5));
    assert_eq!((lab.share(ME), lab.share("a:1")), (0, 6));
}

#[test]
fn out_of_reach_for_two_seconds_it_goes_to_one_who_reaches_it() {
    let mut lab = Lab::leading(7, None);
    let peers = [(1, "a:1", 5)];
    lab.beat(1, beat("a:1", 5));
    let mine = lab.topology().partitions_of(ME).next().unwrap();
    lab.feed(NodeInput::Unreachable(vec![mine]));
    lab.pass_with(1_750, &peers);
    assert_eq!(lab.topology().owner(mine), Some(ME));
    lab.pass_with(250, &peers);
    assert_eq!(lab.topology().owner(mine), Some("a:1"));
    assert_eq!((lab.share(ME), lab.share("a:1")), (3, 3), "it has another for it");
    let version = lab.topology().version;
    lab.feed(NodeInput::Unreachable(vec![]));
    lab.pass_with(10_000, &peers);
    assert_eq!(lab.topology().version, version);
}

#[test]
fn a_new_leader_that_stood_still_waits_on_for_those_who_had_something() {
    let mut lab = Lab::leading(7, Some(&topology(6, 9, "a:1", &["a:1", ME])));
    lab.now += 1_400;
    lab.feed(NodeInput::Tick);
    lab.be_well();
    lab.pass(1_499, true);
    assert!(lab.node.topology().is_none());
    lab.pass(1, true);
    assert_eq!(lab.share(ME), 6);
}

#[test]
fn of_two_that_say_they_own_it_the_higher_epoch_is_believed() {
    let last = topology(6, 9, "a:1", &["a:1", ME, "c:1"]);
    for (a, c, owner) in [(2, 3, "c:1"), (3, 2, "a:1")] {
        let mut lab = Lab::leading(7, Some(&last));
        let owned = |epoch| vec![(PartitionId(4), Epoch(epoch))];
        lab.beat(1, Heartbeat { owned: owned(a), ..beat("a:1", 5) });
        lab.beat(2, Heartbeat { owned: owned(c), ..beat("c:1", 5) });
        assert_eq!(lab.topology().owner(PartitionId(4)), Some(owner));
    }
}

#[test]
fn a_broker_is_emptied_before_its_new_leader_has_heard_of_it() {
    let published = topology(7, 3, "a:1", &["a:1", ME]);
    let mut lab = Lab::new();
    lab.follow("a:1", 7, Some(published.clone()));
    lab.win(8, Some(&published));
    lab.node.drain(lab.now, "a:1", true).unwrap();
    lab.pass(1_000, true);
    lab.beat(1, Heartbeat { topology: published.stamp(), ..beat("a:1", 5) });
    assert_eq!(lab.share("a:1"), 0);
}

#[test]
fn what_time_alone_changes_is_seen_by_a_leader_that_looks_late() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    let mine = lab.topology().partitions_of(ME).next().unwrap();
    lab.feed(NodeInput::Unreachable(vec![mine]));
    for _ in 0..7 {
        assert_eq!(lab.topology().owner(mine), Some(ME));
        lab.now += 300;
        lab.beat(1, beat("a:1", 5));
        lab.be_well();
    }
    assert_eq!(lab.topology().owner(mine), Some("a:1"));
}

#[test]
fn who_reaches_the_store_again_waits_two_seconds_for_its_share() {
    let mut lab = Lab::leading(7, None);
    let all: Vec<_> = (0..P).map(PartitionId).collect();
    let beat_for = |lab: &mut Lab, ms: u64, unreachable: &[PartitionId]| {
        for _ in 0..ms / 250 {
            lab.pass(250, true);
            lab.beat(1, Heartbeat { unreachable: unreachable.to_vec(), ..beat("a:1", 5) });
        }
        lab.share("a:1")
    };
    assert_eq!(beat_for(&mut lab, 2_500, &all), 0, "nothing is given to it at first");
    assert_eq!(beat_for(&mut lab, 2_000, &[]), 0);
    assert_eq!(beat_for(&mut lab, 250, &[]), 3);
}

#[test]
fn what_is_reached_again_is_taken_from_the_dead_at_once_and_from_the_living_not_yet() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    let its: Vec<_> = lab.topology().partitions_of("a:1").collect();
    lab.feed(NodeInput::Unreachable(its.clone()));
    lab.pass(1_000, true);
    lab.feed(NodeInput::Unreachable(vec![]));
    lab.beat(1, Heartbeat { unreachable: its, ..beat("a:1", 5) });
    lab.feed(NodeInput::PeerGone(PeerId(1)));
    lab.pass(500, true);
    assert_eq!(lab.share(ME), 6);
}

#[test]
fn a_topology_is_published_one_at_a_time_until_it_is_kept() {
    let published = |out: &[NodeEffect]| -> Vec<u64> {
        let version = |e: &NodeEffect| match e {
            NodeEffect::Publish(_, t) => Some(t.version),
            _ => None,
        };
        out.iter().filter_map(version).collect()
    };
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    lab.beat(2, beat("c:1", 5));
    assert_eq!(published(&lab.take()), [1]);
    lab.feed(NodeInput::Published {
        term: Term(7),
        version: 1,
        answer: Err(StoreError::Unavailable("away".into())),
    });
    assert_eq!(published(&lab.take()), []);
    lab.pass(200, false);
    assert_eq!(published(&lab.take()), [3]);
    lab.feed(NodeInput::Published { term: Term(7), version: 3, answer: Ok(true) });
    lab.pass(400, false);
    assert_eq!(published(&lab.take()), []);
    lab.beat(3, beat("d:1", 5));
    // Of an earlier leadership.
    lab.feed(NodeInput::Published { term: Term(6), version: 4, answer: Ok(false) });
    assert!(lab.node.leads());
    lab.feed(NodeInput::Published { term: Term(7), version: 4, answer: Ok(false) });
    assert!(!lab.node.leads());
}

#[test]
fn a_newer_topology_is_pushed_to_all_and_answered_to_who_caused_it() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    lab.take();
    lab.beat(2, beat("c:1", 5));
    let told: Vec<(u64, u64, u64)> = lab
        .take()
        .iter()
        .filter_map(|e| match e {
            NodeEffect::ToPeer(p, PeerAnswer::Heard { seq, topology, .. }) => {
                Some((p.0, *seq, topology.as_ref().map_or(0, |t| t.version)))
            }
            _ => None,
        })
        .collect();
    assert_eq!(told, [(1, 0, 3), (2, 1, 3)]);
    let version = lab.topology().version;
    let stamp = lab.topology().stamp();
    lab.beat(1, Heartbeat { topology: stamp, ..beat("a:1", 5) });
    let heard = heard(2, 7, None);
    assert_eq!(lab.take(), [NodeEffect::ToPeer(PeerId(1), heard)]);
    assert_eq!(lab.topology().version, version);
}
