//! A broker that is not reached at its address, and a leader that this broker does not reach.

use super::*;
use crate::cluster::address::{DEFER_MS, LONELY_MS};

/// A broker that has never been reached.
fn unreached() -> Lab {
    let mut lab = Lab::before_the_first_input();
    lab.feed(NodeInput::Reached(false));
    lab
}

#[test]
fn one_that_was_never_reached_looks_who_leads_and_follows() {
    let mut lab = unreached();
    assert_eq!(lab.take(), [NodeEffect::Look]);
    lab.looked(Some(("a:1", 3)));
    assert_eq!(lab.take(), [NodeEffect::Connect("a:1".into())]);
    lab.feed(NodeInput::LinkUp);
    lab.hear(3, Some(topology(3, 1, "a:1", &["a:1"])));
    assert_eq!((lab.topology().stamp(), lab.node.leads()), ((Term(3), 1), false));
    // The leader dies: it is still looked at only.
    lab.feed(NodeInput::LinkDown("closed".into()));
    lab.pass_while_free(60_000);
    let out = lab.take();
    assert_eq!(campaigns(&out), 0);
    assert!((120..=240).contains(&looks(&out)), "{}", looks(&out));
}

#[test]
fn one_that_is_reached_at_last_campaigns_at_once() {
    let mut lab = unreached();
    lab.looked(None);
    lab.pass_while_free(10_000);
    lab.take();
    lab.pass(20, true);
    lab.looked(None);
    lab.feed(NodeInput::Reached(true));
    lab.pass(20, true);
    assert_eq!(campaigns(&lab.take()), 1);
    lab.win(7, None);
    assert!(lab.node.leads());
}

#[test]
fn a_lease_that_was_asked_for_before_is_given_back() {
    let mut lab = Lab::new();
    lab.feed(NodeInput::Reached(false));
    lab.take();
    lab.win(7, None);
    assert!(!lab.node.leads() && resigned(&lab.take()));
    lab.pass(500, true);
    let out = lab.take();
    assert_eq!((campaigns(&out), looks(&out)), (0, 1));
}

#[test]
fn a_leader_that_is_not_reached_any_more_goes_on_while_another_broker_talks_to_it() {
    let mut lab = Lab::before_the_first_input();
    lab.feed(NodeInput::Reached(true));
    lab.win(7, None);
    lab.feed(NodeInput::Reached(false));
    lab.pass_with(60_000, &[(1, "a:1", 5)]);
    assert!(lab.node.leads());
    lab.take();
    lab.pass(LONELY_MS - 1, true);
    assert!(lab.node.leads());
    lab.pass(1, true);
    let out = lab.take();
    assert!(!lab.node.leads() && resigned(&out));
    assert_eq!(ended(&out), [(7, LeadershipEnd::Unreached)]);
    // It keeps the partitions that it owns, and with nobody else there it does not come back by
    // itself.
    lab.pass_while_free(60_000);
    let out = lab.take();
    assert_eq!((campaigns(&out), disowns(&out)), (0, vec![]));
    lab.feed(NodeInput::Reached(true));
    lab.pass(500, true);
    assert_eq!(campaigns(&lab.take()), 1);
}

#[test]
fn a_member_that_is_not_reached_any_more_leaves_the_lease_to_others_first() {
    let mut lab = Lab::before_the_first_input();
    lab.feed(NodeInput::Reached(true));
    lab.follow("a:1", 3, Some(topology(3, 1, "a:1", &["a:1", ME])));
    lab.feed(NodeInput::Reached(false));
    let heard = lab.now;
    lab.feed(NodeInput::LinkDown("closed".into()));
    lab.take();
    while campaigns(&lab.out) == 0 {
        lab.pass_while_free(1);
    }
    assert!((DEFER_MS..=DEFER_MS + 500).contains(&(lab.now - heard)), "{} ms", lab.now - heard);
}

#[test]
fn a_leader_that_cannot_be_reached_is_told_of_after_five_seconds() {
    let mut lab = Lab::new();
    let began = lab.now;
    // Its lease is renewed, and no connection is made.
    while lab.node.unreached_leader().is_none() {
        if matches!(lab.out.last(), Some(NodeEffect::Campaign(_))) {
            lab.held("a:1", 3, Some(2_500));
        }
        if matches!(lab.out.last(), Some(NodeEffect::Connect(_))) {
            lab.feed(NodeInput::LinkDown("refused".into()));
        }
        lab.pass(10, true);
    }
    assert_eq!(lab.node.unreached_leader(), Some(("a:1", "refused")));
    assert!((5_000..5_100).contains(&(lab.now - began)), "{} ms", lab.now - began);
    // Another one has the lease.
    lab.held("c:1", 4, Some(2_500));
    lab.feed(NodeInput::LinkUp);
    lab.pass(10, true);
    lab.hear(4, None);
    assert_eq!(lab.node.unreached_leader(), None);
}

#[test]
fn a_lease_that_was_given_up_is_not_led_under_again() {
    let mut lab = Lab::before_the_first_input();
    lab.feed(NodeInput::Reached(true));
    lab.win(7, None);
    lab.pass(LONELY_MS, true);
    lab.feed(NodeInput::Reached(false));
    assert!(!lab.node.leads() && resigned(&lab.take()));
    lab.feed(NodeInput::Reached(true));
    lab.pass(500, true);
    assert_eq!(campaigns(&lab.take()), 1);
    // The store has not heard of it yet: the lease still is this broker's, for a moment.
    lab.win(7, None);
    assert!(!lab.node.leads() && resigned(&lab.take()));
    lab.pass(500, true);
    assert_eq!(campaigns(&lab.take()), 1);
    lab.win(8, None);
    assert!(lab.node.leads());
}
