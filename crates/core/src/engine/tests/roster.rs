//! Members, credit and queues on their own.

use mtimer_types::Priority;
use mtimer_types::limits::MAX_SESSION_UNSETTLED_BYTES;

use super::*;
use crate::engine::destination_members::MemberRef;
use crate::engine::hash::Seeded;
use crate::engine::roster::Roster;

const S: SessionId = SessionId(1);

/// One session that takes so many deliveries of each of these, registered under 1 and so on.
fn roster(apps: &[&str], credit: u32) -> Roster {
    let mut roster = Roster::new(Seeded(1));
    roster.open(S, 1);
    for (registration, app) in (1..).zip(apps) {
        roster.register(S, registration, &dest(app), credit).unwrap();
    }
    roster.take_dirty();
    roster
}

fn member(roster: &Roster, session: SessionId, registration: u32) -> MemberRef {
    roster.registered(session, registration).unwrap()
}

fn id(n: u128) -> TimerId {
    TimerId::from_u128(n)
}

/// A delivery of a timer.
fn delivery(n: u128) -> Delivery {
    Delivery {
        id: id(n),
        key: None,
        due: Time::from_ms(START),
        epoch: Epoch(1),
        attempt: 1,
        mode: Mode::AtMostOnce,
        timeout_ms: 1_000,
        payload: b"x".as_slice().into(),
        headers: Headers::NONE,
    }
}

#[test]
fn a_reference_to_a_member_that_has_left_names_no_other() {
    let mut roster = roster(&["a"], 10);
    let first = member(&roster, S, 1);
    assert!(roster.takes(first));
    roster.unregister(S, 1);
    roster.register(S, 2, &dest("a"), 10).unwrap();
    let second = member(&roster, S, 2);
    assert_eq!((roster.takes(first), roster.takes(second)), (false, true));
}

#[test]
fn whatever_the_session_takes_is_looked_at_when_it_has_fewer_bytes_to_settle_than_it_may() {
    let mut roster = roster(&["a", "b"], 10);
    let dests = [dest("a"), dest("b")].map(|name| roster.dest_ix(&name));
    let free = |roster: &Roster| dests.map(|ix| roster.free(ix));
    roster.begin_flight(S, id(1), 10);
    assert_eq!(free(&roster), [10, 10]);
    roster.begin_flight(S, id(2), MAX_SESSION_UNSETTLED_BYTES);
    assert_eq!(free(&roster), [0, 0]);
    roster.end_flight(S, id(1));
    assert_eq!((free(&roster), roster.take_dirty()), ([0, 0], vec![]), "as many as it may");
    roster.end_flight(S, id(2));
    let mut dirty = roster.take_dirty();
    dirty.sort_unstable();
    assert_eq!((free(&roster), dirty), ([10, 10], dests.to_vec()));
}

#[test]
fn a_delivery_that_is_withdrawn_takes_no_other_along() {
    let mut roster = roster(&["a"], 10);
    let to = member(&roster, S, 1);
    (1..=2).for_each(|n| roster.post(to, delivery(n)));
    roster.withdraw(to, id(1));
    let outbox = roster.member(to).unwrap().outbox();
    assert_eq!(outbox.iter().map(|d| d.id).collect::<Vec<_>>(), [id(2)]);
}

#[test]
fn the_view_of_clients_has_the_sums_of_each_destination() {
    let mut roster = roster(&["a", "b"], 10);
    roster.open(SessionId(2), 2);
    roster.register(SessionId(2), 1, &dest("a"), 20).unwrap();
    let (one, other) = (member(&roster, S, 1), member(&roster, SessionId(2), 1));
    [one, one, other].into_iter().for_each(|m| roster.charge(m));
    let ix = roster.dest_ix(&dest("a"));
    roster.dest_mut(ix).ready.push(id(1), Priority::Normal, None);
    let views = roster.client_views().map(|v| (v.dest, v.sessions, v.credit, v.in_flight, v.waiting));
    assert_eq!(views.collect::<Vec<_>>(), [(dest("a"), 2, 30, 3, 1), (dest("b"), 1, 10, 0, 0)]);
}

#[test]
fn a_member_with_deliveries_of_this_turn_is_outgoing_once() {
    let mut roster = roster(&["a", "b"], 10);
    let (one, other) = (member(&roster, S, 1), member(&roster, S, 2));
    [(one, 1), (other, 2), (one, 3)].into_iter().for_each(|(to, n)| roster.post(to, delivery(n)));
    assert_eq!(roster.take_outgoing(), [one, other]);
    assert_eq!(roster.take_outgoing(), []);
    assert_eq!(roster.member(one).unwrap().take_outbox().len(), 2);
    roster.post(one, delivery(4));
    assert_eq!(roster.take_outgoing(), [one], "its outbox was empty");
}

#[test]
fn a_session_that_is_closed_leaves_its_deliveries_and_no_member() {
    let mut roster = roster(&["a", "b"], 10);
    let dests = [dest("a"), dest("b")].map(|name| roster.dest_ix(&name));
    [3, 1, 2].into_iter().for_each(|n| roster.begin_flight(S, id(n), 10));
    roster.end_flight(S, id(2));
    assert_eq!(roster.close(S), [id(1), id(3)]);
    assert_eq!(dests.map(|ix| roster.members(ix)), [0, 0]);
    assert_eq!((roster.is_open(S), roster.session_ids(), roster.close(S)), (false, vec![], vec![]));
    let mut dirty = roster.take_dirty();
    dirty.sort_unstable();
    assert_eq!(dirty, dests, "both are looked at");
}

#[test]
fn a_delivery_counts_once_towards_the_bytes_of_its_session() {
    let mut roster = roster(&["a"], 10);
    let to = member(&roster, S, 1);
    (0..2).for_each(|_| roster.begin_flight(S, id(1), MAX_SESSION_UNSETTLED_BYTES));
    assert!(roster.is_full(to));
    roster.end_flight(S, id(1));
    assert!(!roster.is_full(to));
    roster.end_flight(S, id(1));
    assert!(!roster.is_full(to), "it was settled already");
}

#[test]
fn operations_are_counted_until_they_are_answered_or_the_session_is_closed() {
    let mut roster = roster(&["a"], 10);
    assert_eq!(roster.begin_operations(S, 3), Some(3));
    assert_eq!(roster.begin_operations(S, 2), Some(5));
    assert!(roster.end_operations(S, 3));
    assert_eq!(roster.begin_operations(S, 1), Some(3));
    roster.close(S);
    assert_eq!((roster.begin_operations(S, 1), roster.end_operations(S, 1)), (None, false));
}
