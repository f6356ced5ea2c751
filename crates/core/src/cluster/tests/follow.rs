//! A follower and its leader: which one it believes, and for how long.

use mtimer_types::limits::MAX_TERM;

use super::*;

#[test]
fn a_leader_who_answers_is_left_only_for_a_newer_one() {
    let mut lab = Lab::new();
    lab.follow("a:1", 7, None);
    lab.take();
    lab.held("z:1", 6, Some(100));
    assert_eq!(lab.take(), []);
    lab.held("d:1", 8, Some(100));
    assert_eq!(lab.take(), [NodeEffect::Connect("d:1".into())]);
}

#[test]
fn a_follower_that_stood_still_gives_its_leader_time() {
    let mut lab = Lab::new();
    lab.follow("a:1", 7, None);
    lab.now += 10_000;
    lab.feed(NodeInput::Tick);
    lab.pass(1_499, false);
    assert!(!lab.out.contains(&NodeEffect::Disconnect));
    lab.pass(1, false);
    assert!(lab.out.contains(&NodeEffect::Disconnect));
}

#[test]
fn a_connection_that_does_not_come_about_is_given_up() {
    for stood_still in [0, 5_000] {
        let mut lab = Lab::new();
        lab.held("a:1", 7, None);
        lab.now += stood_still;
        lab.feed(NodeInput::Tick);
        lab.pass(1_499, false);
        assert!(!lab.out.contains(&NodeEffect::Disconnect));
        lab.pass(1, false);
        assert!(lab.out.contains(&NodeEffect::Disconnect));
    }
}

#[test]
fn an_answer_to_a_heartbeat_that_was_never_sent_is_none() {
    let mut lab = Lab::new();
    lab.follow("a:1", 7, None);
    for seq in 1_000..1_003 {
        assert!(!lab.out.contains(&NodeEffect::Disconnect));
        lab.feed(NodeInput::FromLeader(heard(seq, 7, None)));
        lab.pass(500, false);
    }
    assert!(lab.out.contains(&NodeEffect::Disconnect));
}

#[test]
fn who_does_not_lead_says_who_does() {
    let mut lab = Lab::new();
    lab.follow("a:1", 7, None);
    lab.take();
    lab.beat(4, beat("d:1", 5));
    let answer = PeerAnswer::NotLeader { leader: Some("a:1".into()), term: Term(7) };
    assert_eq!(lab.take(), [NodeEffect::ToPeer(PeerId(4), answer)]);
    // And who is told so goes there.
    lab.feed(NodeInput::FromLeader(PeerAnswer::NotLeader { leader: Some("d:1".into()), term: Term(8) }));
    assert_eq!(lab.take(), [NodeEffect::Disconnect, NodeEffect::Connect("d:1".into())]);
}

#[test]
fn what_is_older_than_known_is_ignored_and_counted() {
    let mut lab = Lab::new();
    lab.follow("a:1", 7, Some(topology(7, 3, "a:1", &["a:1", ME])));
    assert_eq!(lab.topology().stamp(), (Term(7), 3));
    lab.feed(NodeInput::FromLeader(heard(0, 6, Some(topology(6, 9, "z:1", &[ME])))));
    assert_eq!(lab.counter("stale_frames_total"), 1);
    lab.take();
    lab.feed(NodeInput::FromLeader(PeerAnswer::NotLeader { leader: Some("z:1".into()), term: Term(6) }));
    assert_eq!(lab.take(), [], "it keeps the link to who leads now");
    assert_eq!(lab.counter("stale_frames_total"), 2);
    let unsound = |change: fn(&mut Topology)| {
        let mut t = topology(7, 5, "a:1", &["a:1", ME]);
        change(&mut t);
        Some(t)
    };
    let bad: [fn(&mut Topology); 4] =
        [|t| t.version = 2, |t| t.owners.truncate(3), |t| t.owners[0] = Some(2), |t| t.term = Term(8)];
    for change in bad {
        lab.hear(7, unsound(change));
        assert_eq!(lab.topology().stamp(), (Term(7), 3));
    }
    lab.hear(7, unsound(|_| ()));
    assert_eq!(lab.topology().stamp(), (Term(7), 5));
    for (term, version) in [(8, 0), (MAX_TERM.0, 1)] {
        lab.hear(term, Some(topology(term, version, "a:1", &["a:1", ME])));
        assert_eq!(lab.topology().stamp(), (Term(7), 5));
    }
}

#[test]
fn what_is_said_before_the_connection_is_there_is_ignored() {
    let mut lab = Lab::new();
    lab.held("a:1", 7, Some(2_500));
    lab.take();
    lab.feed(NodeInput::FromLeader(PeerAnswer::Refused { message: "no".into() }));
    assert_eq!(lab.take(), []);
}

#[test]
fn who_is_told_of_no_other_leader_connects_to_nobody() {
    for named in [None, Some("nowhere"), Some(ME), Some("a:1")] {
        let mut lab = Lab::new();
        lab.follow("a:1", 7, None);
        lab.take();
        let leader = named.map(str::to_owned);
        lab.feed(NodeInput::FromLeader(PeerAnswer::NotLeader { leader, term: Term(7) }));
        assert_eq!(lab.take(), [NodeEffect::Disconnect], "{named:?}");
    }
}

#[test]
fn what_is_gained_is_told_within_50_ms_and_in_a_handover_within_5() {
    let mut lab = Lab::new();
    lab.follow("a:1", 7, Some(topology(7, 1, "a:1", &["a:1", ME])));
    let told_after = |lab: &mut Lab, input| {
        lab.pass(200, false);
        lab.take();
        lab.feed(NodeInput::Owned(PartitionId(1), Epoch(1)));
        lab.take();
        lab.feed(input);
        let since = lab.now;
        while lab.sent().is_empty() {
            lab.pass(1, false);
        }
        lab.now - since
    };
    // The first of two goes at once: the last heartbeat was long ago.
    assert_eq!(told_after(&mut lab, NodeInput::Owned(PartitionId(3), Epoch(1))), 50);
    let mut next = topology(7, 2, "a:1", &["a:1", ME]);
    next.owners[1] = Some(0);
    lab.hear(7, Some(next));
    assert_eq!(told_after(&mut lab, NodeInput::Owned(PartitionId(5), Epoch(1))), 5);
}

#[test]
fn who_is_refused_ends_and_says_why() {
    let mut lab = Lab::new();
    lab.follow("a:1", 7, None);
    lab.take();
    lab.feed(NodeInput::FromLeader(PeerAnswer::Refused { message: "no".into() }));
    lab.pass(5_000, false);
    assert_eq!(lab.take(), [NodeEffect::Refused("no".into())]);
}

#[test]
fn who_follows_nobody_loses_no_link() {
    let mut lab = Lab::new();
    lab.feed(NodeInput::LinkDown("late".into()));
    assert_eq!(lab.counter("leader_links_lost_total"), 0);
    lab.win(7, None);
    assert!(!lab.out.contains(&NodeEffect::Disconnect), "{:?}", lab.out);
}

#[test]
fn it_is_woken_for_a_heartbeat_that_is_to_go_soon() {
    let mut lab = Lab::new();
    lab.follow("a:1", 7, Some(topology(7, 1, "a:1", &["a:1", ME])));
    lab.pass(200, false);
    // The first goes at once, the second 50 ms after it.
    lab.feed(NodeInput::Owned(PartitionId(1), Epoch(1)));
    lab.feed(NodeInput::Owned(PartitionId(3), Epoch(1)));
    assert_eq!(lab.node.next_tick(), lab.now + 50);
}
