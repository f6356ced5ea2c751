//! The pending timers in the order in which they fire: pages, filters, what moves meanwhile.

use std::collections::BTreeMap;

use mtimer_types::{Destination, Filter, Headers, Time, Timer, TimerId};

use super::kit::Kit;
use super::owner::Owner;
use super::values::{DAY, HOUR, MINUTE, SECOND, YEAR, dest, other_dest};
use crate::{Counts, CountsRange, Pending, PendingRange, Verdict};

/// The timers' positions, in order.
fn in_order<'a>(timers: impl IntoIterator<Item = &'a Timer>) -> Vec<(Time, TimerId)> {
    let mut places: Vec<_> = timers.into_iter().map(|t| (t.due, t.id)).collect();
    places.sort_unstable();
    places
}

fn places(rows: &[Pending]) -> Vec<(Time, TimerId)> {
    rows.iter().map(Pending::position).collect()
}

async fn list(owner: &Owner, filter: Filter, limit: u32) -> Vec<(Time, TimerId)> {
    places(&owner.listed(PendingRange::of(filter, limit)).await)
}

/// Timers near and far, so that they are in slots of every width, 41 ms apart.
async fn spread(kit: &Kit, owner: &Owner) -> Vec<Timer> {
    let distances = [0, 7, SECOND, 30 * SECOND, MINUTE, HOUR, DAY, 40 * DAY, YEAR];
    let due = distances.iter().flat_map(|far| (0..23).map(move |n| kit.now + *far + n * 41));
    let timers: Vec<_> = due.map(|due| kit.timer(due)).collect();
    owner.add_all(&timers).await;
    timers
}

pub(super) async fn nothing_is_listed_at_once(mut kit: Kit) {
    let owner = kit.owner().await;
    let page = owner.lane.pending(PendingRange::of(Filter::default(), 10)).await.unwrap();
    assert_eq!((page.rows.len(), page.next), (0, None));
}

pub(super) async fn in_the_order_of_fire_times_in_pages(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers = spread(&kit, &owner).await;
    for limit in [1, 3, 50, 1_000] {
        assert_eq!(list(&owner, Filter::default(), limit).await, in_order(&timers), "in pages of {limit}");
    }
    let rows = owner.listed(PendingRange::of(Filter::default(), 100)).await;
    let listed = rows.iter().find(|row| row.record.timer.id == timers[3].id).unwrap();
    assert_eq!((&*listed.record.timer, listed.tier), (&timers[3], 0), "complete, with its payload");
}

pub(super) async fn many_of_the_same_millisecond(mut kit: Kit) {
    let owner = kit.owner().await;
    for far in [2 * SECOND, 3 * DAY] {
        let timers: Vec<_> = (0..700).map(|_| kit.timer(kit.now + far)).collect();
        owner.add_all(&timers).await;
        let only = PendingRange {
            from: (kit.now + far, TimerId::from_u128(0)),
            until: kit.now + far,
            ..PendingRange::of(Filter::default(), 13)
        };
        assert_eq!(places(&owner.listed(only).await), in_order(&timers));
    }
}

pub(super) async fn a_page_begins_and_ends_where_it_is_told(mut kit: Kit) {
    let owner = kit.owner().await;
    let all = in_order(&spread(&kit, &owner).await);
    for (first, last) in [(0, all.len() - 1), (1, 1), (20, 90), (100, all.len() - 1)] {
        let (from, until) = (all[first], all[last].0);
        let range = PendingRange { from, until, ..PendingRange::of(Filter::default(), 9) };
        assert_eq!(places(&owner.listed(range).await), all[first..=last], "from {first} to {last}");
    }
    for (first, last) in [(90, 20), (all.len() - 1, 0)] {
        let (from, until) = (all[first], all[last].0);
        let range = PendingRange { from, until, ..PendingRange::of(Filter::default(), 9) };
        assert_eq!(owner.listed(range).await, [], "it ends before it begins");
    }
    let from = (Time::MAX, TimerId::from_u128(0));
    let beyond = PendingRange { from, ..PendingRange::of(Filter::default(), 9) };
    assert_eq!(owner.listed(beyond).await, []);
}

pub(super) async fn every_condition_of_a_filter(mut kit: Kit) {
    let owner = kit.owner().await;
    let elsewhere = Destination::new("stock", "billing").unwrap();
    let dests = [dest(), other_dest(), elsewhere, dest()];
    let make = |n: usize| {
        let dest = dests[n % 4].clone();
        let key = n
            .is_multiple_of(3)
            .then(|| kit.key_of(&format!("{}-{n}-", if n.is_multiple_of(2) { "a" } else { "b" }), &dest));
        let tenant = if n.is_multiple_of(5) { "acme" } else { "other" };
        let headers = Headers::new([("tenant", tenant)]).unwrap();
        Timer { dest, key, headers, ..kit.timer(kit.now + n as u64 * MINUTE) }
    };
    let timers: Vec<_> = (0..60).map(make).collect();
    owner.add_all(&timers).await;
    let text = |text: &str| Some(text.to_owned());
    let header = Some(("tenant".to_owned(), "acme".to_owned()));
    for (filter, count) in [
        (Filter::default(), 60),
        (Filter { group: text("orders"), ..Filter::default() }, 45),
        (Filter { app: text("billing"), ..Filter::default() }, 45),
        (Filter::of(&dest()), 30),
        (Filter { group: text("nobody"), ..Filter::default() }, 0),
        (Filter { key_prefix: text(""), ..Filter::default() }, 20),
        (Filter { key_prefix: text("a-"), ..Filter::default() }, 10),
        (Filter { header: header.clone(), ..Filter::default() }, 12),
        (Filter { key_prefix: text("b-"), header, ..Filter::of(&other_dest()) }, 1),
    ] {
        for limit in [2, 100] {
            let expected = in_order(timers.iter().filter(|t| filter.accepts(t)));
            assert_eq!(expected.len(), count, "{filter:?}");
            assert_eq!(list(&owner, filter.clone(), limit).await, expected, "{filter:?}");
        }
    }
}

pub(super) async fn retries_are_told_apart(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<_> = (0..40).map(|n| kit.timer(kit.now + n * SECOND)).collect();
    owner.add_all(&timers).await;
    let (failed, first) = timers.split_at(15);
    let mut retries = Vec::new();
    for (n, timer) in (0..).zip(failed) {
        let fire = kit.now + HOUR + n * 77;
        let tier = 1 + (n % 3) as u8;
        owner.settle(timer.id, Verdict::Retry { fire, tier, failed: 1, error: "x".into() }).await;
        retries.push((fire, timer.id));
    }
    retries.sort_unstable();
    let all = PendingRange::of(Filter::default(), 4);
    for (retrying, expected) in [
        (Some(true), retries.clone()),
        (Some(false), in_order(first)),
        (None, [in_order(first), retries].concat()),
    ] {
        assert_eq!(places(&owner.listed(PendingRange { retrying, ..all.clone() }).await), expected);
    }
    let rows = owner.listed(PendingRange { retrying: Some(true), ..all }).await;
    assert_eq!(rows[1].tier, 2, "with their tier");
}

pub(super) async fn each_destination_is_counted_by_place(mut kit: Kit) {
    let owner = kit.owner().await;
    let dests: Vec<_> = (0..30).map(|n| Destination::new("many", &format!("app-{n}")).unwrap()).collect();
    let make = |n: usize| Timer { dest: dests[n % 30].clone(), ..kit.amo(kit.now + n as u64 * MINUTE) };
    let timers: Vec<_> = (0..300).map(make).collect();
    owner.add_all(&timers).await;
    let (taken, unconfirmed, dead) = (&timers[0], &timers[1], &timers[2]);
    let (parked, done, cancelled) = (&timers[3], &timers[4], &timers[5]);
    owner.take(taken.id).await;
    owner.take(unconfirmed.id).await;
    owner.settle(unconfirmed.id, Verdict::Unconfirmed).await;
    owner.dead_letter(dead.id).await;
    owner.park(parked.id).await;
    owner.take(done.id).await;
    owner.settle(done.id, Verdict::Ack).await;
    owner.cancel(cancelled.id).await;
    let again = Timer { dest: dests[6].clone(), ..kit.timer(kit.now) };
    owner.add(&again).await;
    let retry = Verdict::Retry { fire: kit.now + HOUR, tier: 2, failed: 1, error: "x".into() };
    owner.settle(again.id, retry).await;
    let of = |n: usize| match n {
        0 => Counts { pending: 9, taken: 1, ..Counts::default() },
        1 => Counts { pending: 9, unconfirmed: 1, ..Counts::default() },
        2 => Counts { pending: 9, dead: 1, ..Counts::default() },
        3 => Counts { pending: 9, parked: 1, ..Counts::default() },
        4 | 5 => Counts { pending: 9, ..Counts::default() },
        6 => Counts { pending: 10, retrying: 1, ..Counts::default() },
        _ => Counts { pending: 10, ..Counts::default() },
    };
    let expected: BTreeMap<_, _> = (0..30).map(|n| (dests[n].clone(), of(n))).collect();
    for limit in [1, 7, 30, 100] {
        assert_eq!(owner.counts(limit).await, expected, "in pages of {limit}");
    }
    let filter = Filter { key_prefix: Some("x".into()), ..Filter::of(&dests[3]) };
    let one = CountsRange { filter, ..CountsRange::of(1) };
    let page = owner.lane.counts(one).await.unwrap();
    assert_eq!((page.rows, page.next), (vec![(dests[3].clone(), of(3))], None), "of a destination alone");
    let next = kit.owner().await;
    assert_eq!(next.counts(7).await, expected, "by the next owner, too");
    next.load(kit.far).await;
    assert_eq!(next.counts(7).await, expected, "and with everything loaded");
}

pub(super) async fn only_what_is_pending(mut kit: Kit) {
    let owner = kit.owner().await;
    let (parked, taken, dead) = (kit.timer(kit.now), kit.amo(kit.now), kit.timer(kit.now));
    let (done, stays) = (kit.timer(kit.now), kit.timer(kit.now + SECOND));
    owner.add_parked(&parked).await;
    owner.add_taken(&taken).await;
    owner.add_dead(&dead).await;
    owner.add_all(&[done.clone(), stays.clone()]).await;
    owner.settle(done.id, Verdict::Ack).await;
    assert_eq!(list(&owner, Filter::default(), 10).await, in_order([&stays]));
}

pub(super) async fn loaded_or_not_makes_no_difference(mut kit: Kit) {
    let owner = kit.owner().await;
    let mut timers = spread(&kit, &owner).await;
    for until in [kit.now + 5, kit.now + 20 * SECOND, kit.now + 2 * DAY] {
        owner.load(until).await;
        let late = [kit.timer(until - 1), kit.timer(until + 1), kit.timer(kit.now - MINUTE)];
        owner.add_all(&late).await;
        timers.extend(late);
        assert_eq!(list(&owner, Filter::default(), 31).await, in_order(&timers), "loaded up to {until}");
        assert_eq!(list(&owner, Filter::of(&dest()), 31).await, in_order(&timers));
    }
    owner.lane.unload(kit.now + SECOND).await.unwrap();
    assert_eq!(list(&owner, Filter::of(&dest()), 31).await, in_order(&timers), "and forgotten");
}

pub(super) async fn one_destination_among_many(mut kit: Kit) {
    let owner = kit.owner().await;
    let dests: Vec<_> = (0..50).map(|n| Destination::new("many", &format!("app-{n}")).unwrap()).collect();
    let due = |n: u64| kit.now + if n.is_multiple_of(2) { DAY } else { n * SECOND };
    let make = |n: u64| Timer { dest: dests[n as usize % 50].clone(), ..kit.timer(due(n)) };
    let timers: Vec<_> = (0..2_000).map(make).collect();
    owner.add_all(&timers).await;
    let of = |dest: &Destination| in_order(timers.iter().filter(|t| t.dest == *dest));
    for dest in [&dests[0], &dests[17], &dests[49]] {
        assert_eq!(list(&owner, Filter::of(dest), 7).await, of(dest));
    }
    // A timer of it that is moved, and one that comes back from the park, are found again.
    let moved = timers.iter().find(|t| t.dest == dests[17]).unwrap();
    owner.reschedule(moved.id, kit.now + 2 * HOUR).await;
    let back = timers.iter().rev().find(|t| t.dest == dests[17]).unwrap();
    owner.park(back.id).await;
    owner.unpark(back.id, kit.now + 3 * HOUR).await;
    let mut expected = of(&dests[17]);
    expected.retain(|(_, id)| *id != moved.id && *id != back.id);
    expected.extend([(kit.now + 2 * HOUR, moved.id), (kit.now + 3 * HOUR, back.id)]);
    expected.sort_unstable();
    assert_eq!(list(&owner, Filter::of(&dests[17]), 7).await, expected);
    let next = kit.owner().await;
    assert_eq!(list(&next, Filter::of(&dests[17]), 7).await, expected, "by the next owner, too");
    assert_eq!(list(&next, Filter::of(&dests[17]), 7).await, expected, "and when it has looked before");
}

pub(super) async fn pages_without_a_match_lead_on(mut kit: Kit) {
    let owner = kit.owner().await;
    let others = crate::pending::PAGE_READS as u64 + 5_000;
    let timers: Vec<_> = (0..others).map(|n| kit.timer(kit.now + HOUR + n * 997)).collect();
    owner.add_all(&timers).await;
    let keyed = kit.keyed(kit.now + YEAR, &kit.key("last-"));
    owner.add(&keyed).await;
    let filter = Filter { key_prefix: Some("last-".into()), ..Filter::of(&dest()) };
    let range = PendingRange::of(filter, 10);
    let first = owner.lane.pending(range.clone()).await.unwrap();
    assert!(first.rows.is_empty() && first.next.is_some(), "it ends before it has read everything");
    assert_eq!(places(&owner.listed(range).await), in_order([&keyed]));
}

pub(super) async fn what_keeps_its_time_is_seen_once_while_others_come_and_go(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers = spread(&kit, &owner).await;
    let (stay, go): (Vec<_>, Vec<_>) = timers.into_iter().enumerate().partition(|(n, _)| n % 3 != 0);
    let mut go = go.into_iter().map(|(_, timer)| timer);
    let mut range = PendingRange::of(Filter::default(), 10);
    let mut seen = Vec::new();
    for step in 0.. {
        let page = owner.lane.pending(range.clone()).await.unwrap();
        seen.extend(places(&page.rows));
        let Some(next) = page.next else { break };
        range.from = next;
        // Between the pages timers come, go, and move both ways, and slots are loaded and split.
        owner.add(&kit.timer(kit.now + step * HOUR)).await;
        if let Some(timer) = go.next() {
            owner.cancel(timer.id).await;
        }
        if let Some(timer) = go.next() {
            owner.reschedule(timer.id, kit.now + (97 - step.min(97)) * MINUTE).await;
        }
        owner.load(kit.now + step * SECOND * 10).await;
    }
    let stay = in_order(stay.iter().map(|(_, timer)| timer));
    let seen: Vec<_> = seen.into_iter().filter(|place| stay.contains(place)).collect();
    assert_eq!(seen, stay);
}
