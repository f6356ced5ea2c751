//! Who leads: the lease, its deadline, campaigns and terms.

use mtimer_types::limits::MAX_TERM;

use super::*;

#[test]
fn a_lone_first_broker_has_everything_at_once() {
    let mut lab = Lab::leading(7, None);
    let out = lab.take();
    assert_eq!(campaigns(&out), 1);
    assert_eq!(owns(&out), [0, 1, 2, 3, 4, 5]);
    assert_eq!(lab.topology().stamp(), (Term(7), 1));
    let adopt = out.iter().position(|e| matches!(e, NodeEffect::Adopt(_))).unwrap();
    let own = out.iter().position(|e| matches!(e, NodeEffect::Own { .. })).unwrap();
    assert!(adopt < own && out.iter().any(|e| matches!(e, NodeEffect::Publish(..))));
}

#[test]
fn it_leads_until_the_deadline_and_not_a_moment_longer() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    lab.take();
    lab.pass(1_000, false);
    lab.beat(1, beat("a:1", 5));
    lab.pass(1_249, false);
    assert!(lab.node.view(lab.now).leads);
    lab.take();
    assert!(!lab.node.view(lab.now + 1).leads);
    lab.now += 1;
    lab.beat(1, beat("a:1", 5));
    let out = lab.take();
    assert!(!lab.node.leads() && lab.node.lease().is_none());
    assert_eq!(ended(&out), [(7, LeadershipEnd::Expired)]);
    let not_leader = |e: &&NodeEffect| matches!(e, NodeEffect::ToPeer(_, PeerAnswer::NotLeader { .. }));
    assert_eq!(out.iter().filter(not_leader).count(), 2, "told at once, and when it asks: {out:?}");
    assert_eq!((campaigns(&out), disowns(&out)), (1, vec![]));
    // Won again under the same term, its versions go on.
    let version = lab.topology().version;
    lab.win(7, Some(&lab.topology().clone()));
    lab.beat(1, beat("a:1", 5));
    assert!(lab.node.leads() && lab.topology().version >= version);
}

#[test]
fn renewals_count_from_when_they_were_sent_and_failures_are_tried_again() {
    let mut lab = Lab::leading(7, None);
    lab.pass(700, false);
    let renewals = |out: &[NodeEffect]| out.iter().filter(|e| matches!(e, NodeEffect::Renew(..))).count();
    assert_eq!(renewals(&lab.take()), 1);
    let sent = lab.now;
    lab.pass(400, false);
    assert_eq!(renewals(&lab.take()), 0, "one at a time");
    lab.feed(NodeInput::Renewed { sent, answer: Err(StoreError::Unavailable("away".into())) });
    lab.pass(99, false);
    assert_eq!(renewals(&lab.take()), 0);
    lab.pass(1, false);
    assert_eq!(renewals(&lab.take()), 1);
    lab.feed(NodeInput::Renewed { sent: lab.now, answer: Ok(true) });
    let until = lab.now + 2_249;
    assert!(lab.node.view(until).leads && !lab.node.view(until + 1).leads);
}

#[test]
fn a_lease_that_is_lost_stays_lost_whatever_comes_late() {
    let mut lab = Lab::leading(7, None);
    lab.pass(700, false);
    lab.feed(NodeInput::Renewed { sent: lab.now, answer: Ok(false) });
    assert!(!lab.node.leads());
    assert_eq!(ended(&lab.take()), [(7, LeadershipEnd::Taken)]);
    for ago in [600, 0] {
        let answer = Ok(Campaigned::Won { term: Term(7), published: None });
        lab.feed(NodeInput::Campaigned { sent: lab.now - ago, answer });
        assert!(!lab.node.leads());
    }
    assert_eq!(lab.take(), []);
    lab.pass(500, false);
    assert_eq!(campaigns(&lab.take()), 1);
    lab.win(8, None);
    assert!(lab.node.leads());
}

#[test]
fn a_campaign_that_is_not_answered_is_given_up_after_four_lifetimes_of_a_lease() {
    let mut lab = Lab::new();
    assert_eq!(campaigns(&lab.take()), 1);
    // An answer to an earlier one changes nothing about that, although it says that the lease is
    // free soon.
    let holder = LeaseHolder { address: "a:1".into(), term: Term(3), remaining_ms: Some(10) };
    let answer = Ok(Campaigned::Held(holder));
    lab.feed(NodeInput::Campaigned { sent: lab.now - 1, answer });
    lab.pass(9_999, false);
    assert_eq!(campaigns(&lab.take()), 0);
    lab.pass(1, false);
    assert_eq!(campaigns(&lab.take()), 1);
    lab.pass(10_000, false);
    assert_eq!(campaigns(&lab.take()), 1);
}

#[test]
fn a_campaign_that_fails_is_followed_by_the_next_in_a_quarter_to_half_a_second() {
    let mut lab = Lab::new();
    for _ in 0..20 {
        lab.take();
        let answer = Err(StoreError::Unavailable("away".into()));
        lab.feed(NodeInput::Campaigned { sent: lab.now, answer });
        let since = lab.now;
        while campaigns(&lab.out) == 0 {
            lab.pass(1, false);
        }
        assert!((250..=500).contains(&(lab.now - since)), "{} ms", lab.now - since);
    }
}

#[test]
fn a_lease_that_is_won_again_goes_on_and_one_of_a_higher_term_is_another() {
    let mut lab = Lab::leading(7, None);
    let led_and_lost = |lab: &Lab| (lab.counter("terms_led_total"), lab.counter("stepped_down_total"));
    lab.win(7, None);
    assert_eq!((lab.node.lease().map(|l| l.term), led_and_lost(&lab)), (Some(Term(7)), (1, 0)));
    lab.win(8, None);
    assert_eq!((lab.node.lease().map(|l| l.term), led_and_lost(&lab)), (Some(Term(8)), (2, 1)));
}

#[test]
fn the_lease_is_renewed_at_its_time_and_no_more_often() {
    let mut lab = Lab::leading(7, None);
    lab.take();
    let mut renewals = 0;
    for _ in 0..70 {
        lab.pass(100, false);
        renewals += lab.out.iter().filter(|e| matches!(e, NodeEffect::Renew(..))).count();
        lab.be_well();
    }
    assert_eq!(renewals, 10, "every 700 ms");
}

#[test]
fn what_belongs_to_an_earlier_lease_does_not_end_this_one() {
    let mut lab = Lab::leading(7, None);
    lab.pass(700, false);
    let sent = lab.now;
    lab.pass(1_600, false);
    assert!(!lab.node.leads());
    lab.win(8, None);
    lab.feed(NodeInput::Renewed { sent, answer: Ok(false) });
    assert_eq!(lab.node.lease().map(|l| l.term), Some(Term(8)));
}

#[test]
fn a_win_that_comes_too_late_is_none() {
    let mut lab = Lab::new();
    lab.now += 2_250;
    lab.feed(NodeInput::Campaigned {
        sent: 1_000,
        answer: Ok(Campaigned::Won { term: Term(3), published: None }),
    });
    assert!(!lab.node.leads());
    lab.take();
    lab.pass(50, false);
    assert_eq!(campaigns(&lab.take()), 1);
}

#[test]
fn a_higher_term_ends_a_leadership_unless_it_is_another_clusters() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, Heartbeat { term: Term(9), cluster: "other".into(), ..beat("a:1", 5) });
    assert!(lab.node.leads());
    assert!(refused(&lab.take()).unwrap().contains("\"other\""));
    lab.beat(1, Heartbeat { term: Term(8), ..beat("a:1", 5) });
    assert!(!lab.node.leads());
    assert_eq!(lab.node.term(), Term(8));
    let out = lab.take();
    assert!(out.iter().any(|e| matches!(e, NodeEffect::Resign(l) if l.term == Term(7))));
    assert_eq!(ended(&out), [(7, LeadershipEnd::Outdated)]);
}

#[test]
fn a_store_that_forgot_terms_is_asked_for_another() {
    let mut lab = Lab::new();
    let known = topology(9, 4, "a:1", &["a:1", ME]);
    lab.win(5, Some(&known));
    assert!(!lab.node.leads());
    assert!(lab.take().iter().any(|e| matches!(e, NodeEffect::Resign(l) if l.term == Term(5))));
}

#[test]
fn a_lease_that_names_no_leader_or_never_runs_out_is_looked_at_every_second() {
    for (address, term, remaining) in
        [("a string", 0, None), ("x:1", 0, Some(9_000)), ("no port", 3, Some(9_000)), ("a:1", 3, None)]
    {
        let mut lab = Lab::new();
        lab.take();
        lab.held(address, term, remaining);
        let connects = lab.take().iter().filter(|e| matches!(e, NodeEffect::Connect(_))).count();
        assert_eq!(connects, usize::from(address == "a:1"), "{address}");
        lab.pass(999, false);
        assert_eq!(campaigns(&lab.take()), 0, "{address}");
        lab.pass(1, false);
        assert_eq!(campaigns(&lab.take()), 1, "{address}");
    }
    // One that runs out sooner is asked for at once, by everybody, so that all hear of the new
    // leader.
    let mut lab = Lab::new();
    lab.take();
    lab.held("a string", 0, Some(300));
    lab.pass(300, false);
    assert_eq!(campaigns(&lab.take()), 0);
    lab.pass(51, false);
    assert_eq!(campaigns(&lab.take()), 1);
}

#[test]
fn it_campaigns_when_the_lease_runs_out_and_not_while_the_leader_answers() {
    let mut lab = Lab::new();
    lab.take();
    lab.held("a:1", 7, Some(1_200));
    assert_eq!(lab.take(), [NodeEffect::Connect("a:1".into())]);
    lab.pass(1_200, false);
    assert_eq!(campaigns(&lab.take()), 0);
    lab.pass(51, false);
    assert_eq!(campaigns(&lab.take()), 1);
    lab.held("a:1", 7, Some(1_200));
    lab.feed(NodeInput::LinkUp);
    for _ in 0..20 {
        lab.hear(7, None);
        lab.take();
        lab.pass(500, false);
        assert_eq!(campaigns(&lab.out), 0);
    }
    // Pushes are no answers.
    for _ in 0..4 {
        lab.pass(400, false);
        lab.feed(NodeInput::FromLeader(heard(0, 7, None)));
    }
    assert!(lab.out.contains(&NodeEffect::Disconnect));
    lab.pass(500, false);
    assert_eq!(campaigns(&lab.take()), 1);
}

#[test]
fn it_is_woken_only_now_and_then() {
    for mut lab in [Lab::new(), Lab::leading(7, None)] {
        let mut ticks = 0;
        let until = lab.now + 10_000;
        while lab.now < until {
            lab.now = lab.node.next_tick();
            lab.feed(NodeInput::Tick);
            lab.be_well();
            ticks += 1;
        }
        assert!(ticks < 120, "{ticks} times in 10 s");
    }
}

#[test]
fn it_wants_a_term_above_all_that_it_has_seen() {
    let mut lab = Lab::new();
    let seen = |out: &[NodeEffect]| {
        let of = |e: &NodeEffect| if let NodeEffect::Campaign(c) = e { Some(c.seen) } else { None };
        out.iter().filter_map(of).collect::<Vec<_>>()
    };
    assert_eq!(seen(&lab.take()), [Term(0)]);
    lab.held("a:1", 9, Some(100));
    lab.pass(400, false);
    assert_eq!(seen(&lab.take()), [Term(9)]);
}

#[test]
fn a_term_that_no_store_can_have_given_is_not_believed() {
    let mut lab = Lab::leading(7, None);
    for term in [u64::MAX, MAX_TERM.0 / 2, 7] {
        lab.beat(1, Heartbeat { term: Term(term), ..beat("a:1", 5) });
        assert!(lab.node.leads());
        assert_eq!(lab.node.term(), Term(7));
    }
    lab.beat(1, Heartbeat { term: Term(8), ..beat("a:1", 5) });
    assert!(!lab.node.leads());
}

#[test]
fn what_it_wins_after_it_has_left_it_gives_up_at_once() {
    let mut lab = Lab::new();
    lab.feed(NodeInput::Stop);
    lab.pass(3_000, false);
    let out = lab.take();
    assert!(out.contains(&NodeEffect::Left), "{out:?}");
    lab.win(7, None);
    let out = lab.take();
    assert!(matches!(&out[..], [NodeEffect::Resign(lease)] if lease.term == Term(7)), "{out:?}");
    assert!(!lab.node.leads());
}

#[test]
fn a_leader_whose_lease_has_run_out_empties_nobody() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    // It is asked before it has noticed that time has passed.
    let later = lab.now + 10_000;
    assert!(lab.node.drain(later, "a:1", true).is_err());
    assert!(!lab.node.leads());
}

#[test]
fn who_has_left_wants_the_lease_no_more() {
    let mut lab = Lab::new();
    lab.follow("a:1", 7, Some(topology(7, 1, "a:1", &["a:1", ME])));
    lab.feed(NodeInput::Stop);
    // The leader falls silent.
    lab.pass(10_000, false);
    let out = lab.take();
    let left = out.iter().position(|e| *e == NodeEffect::Left).expect("it has left");
    assert_eq!(campaigns(&out[left..]), 0, "{out:?}");
}
