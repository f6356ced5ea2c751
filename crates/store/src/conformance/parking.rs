//! The park: where timers wait for their destination, out of the owner's memory.

use std::collections::BTreeSet;

use mtimer_types::{Destination, Extensions, Priority, Time, Timer, TimerId};

use super::kit::Kit;
use super::owner::{Owner, pages};
use super::values::{HOUR, MINUTE, SECOND, dest, other_dest, pending_at};
use crate::listing::{park_priority, park_start};
use crate::ops::{MoveAnswer, Park, Unpark};
use crate::{Answer, Census, Op, Place, Record};

fn ids(rows: &[Record]) -> Vec<TimerId> {
    let mut ids: Vec<_> = rows.iter().map(|r| r.timer.id).collect();
    ids.sort_unstable();
    ids
}

pub(super) async fn a_parked_timer_is_not_loaded(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add_parked(&timer).await;
    assert_eq!(owner.place(timer.id).await, Some(Place::Parked));
    assert_eq!(owner.pending().await.len(), 0);
    assert_eq!(owner.parked_counts().await.into_iter().collect::<Vec<_>>(), [(dest(), 1)]);
    let rows = owner.all_parked(&dest(), 10).await;
    assert_eq!(*rows[0].timer, timer);
    assert_eq!(
        owner.census().await,
        Census { parked: 1, residue: owner.census().await.residue, ..Census::default() }
    );
}

pub(super) async fn it_comes_back_at_the_time_asked_for(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now - HOUR);
    owner.add_parked(&timer).await;
    assert_eq!(owner.unpark(timer.id, kit.now).await, MoveAnswer::Done);
    let loaded = owner.pending().await.remove(&timer.id).unwrap();
    assert_eq!((loaded.fire, loaded.tier, loaded.record.timer.due), (kit.now, 0, timer.due));
    assert_eq!(owner.parked_counts().await.len(), 0);
}

pub(super) async fn to_park_and_unpark_twice_is_a_repeat(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add_parked(&timer).await;
    assert_eq!(owner.one(Op::Park(Park { id: timer.id, failed: 5 })).await, Answer::Park(MoveAnswer::Done));
    assert_eq!(owner.record(timer.id).await.progress.failed, 0, "the first time counts");
    assert_eq!(owner.unpark(timer.id, kit.now + SECOND).await, MoveAnswer::Done);
    assert_eq!(owner.unpark(timer.id, kit.now + HOUR).await, MoveAnswer::Done);
    assert_eq!(owner.place(timer.id).await, pending_at(kit.now + SECOND), "the first time counts");
}

pub(super) async fn what_is_elsewhere_is_gone(mut kit: Kit) {
    let owner = kit.owner().await;
    let (dead, unconfirmed) = (kit.timer(kit.now), kit.amo(kit.now));
    owner.add_dead(&dead).await;
    owner.add_unconfirmed(&unconfirmed).await;
    for id in [dead.id, unconfirmed.id, kit.timer(kit.now).id] {
        assert_eq!(owner.park(id).await, MoveAnswer::Gone);
        assert_eq!(owner.unpark(id, kit.now).await, MoveAnswer::Gone);
    }
    assert_eq!(owner.parked_counts().await.len(), 0);
}

pub(super) async fn destinations_are_apart(mut kit: Kit) {
    let owner = kit.owner().await;
    let dests = [dest(), other_dest(), Destination::new("orders-b", "illing").unwrap()];
    for (n, dest) in (1..).zip(&dests) {
        for _ in 0..n * 3 {
            owner.add_parked(&Timer { dest: dest.clone(), ..kit.timer(kit.now) }).await;
        }
    }
    let counts = owner.parked_counts().await;
    assert_eq!(dests.iter().map(|d| counts[d]).collect::<Vec<_>>(), [3, 6, 9]);
    for dest in &dests {
        let rows = owner.all_parked(dest, 4).await;
        assert_eq!(rows.len() as u64, counts[dest]);
        assert!(rows.iter().all(|r| r.timer.dest == *dest));
    }
    let nobody = Destination::new("no", "body").unwrap();
    assert_eq!(owner.all_parked(&nobody, 10).await, []);
}

pub(super) async fn many_destinations(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<_> = (0..300)
        .map(|n| Timer { dest: Destination::new(&format!("g{n}"), "a").unwrap(), ..kit.timer(kit.now) })
        .collect();
    owner.add_all(&timers).await;
    owner.apply(timers.iter().map(|t| Op::Park(Park { id: t.id, failed: 0 })).collect()).await;
    let counts = owner.parked_counts().await;
    assert_eq!(counts.len(), 300);
    assert!(counts.values().all(|n| *n == 1));
}

pub(super) async fn pages_show_each_timer_once(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<_> = (0..400).map(|n| kit.timer(kit.now - n)).collect();
    owner.add_all(&timers).await;
    owner.apply(timers.iter().map(|t| Op::Park(Park { id: t.id, failed: 0 })).collect()).await;
    let mut expected: Vec<_> = timers.iter().map(|t| t.id).collect();
    expected.sort_unstable();
    for limit in [1, 7, 128, 1_000] {
        assert_eq!(ids(&owner.all_parked(&dest(), limit).await), expected, "in pages of {limit}");
    }
}

pub(super) async fn pages_while_timers_come_and_go(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<_> = (0..300).map(|n| kit.timer(kit.now + n)).collect();
    owner.add_all(&timers).await;
    owner.apply(timers.iter().map(|t| Op::Park(Park { id: t.id, failed: 0 })).collect()).await;
    // Those of even place stay, those of odd place leave one by one, new ones come.
    let (mut seen, mut cursor, mut leaving) = (Vec::new(), 0, timers.iter().skip(1).step_by(2));
    for _ in 0..10_000 {
        let page = owner.lane.parked(dest(), cursor, 10).await.unwrap();
        seen.extend(page.rows.iter().map(|r| r.timer.id));
        for timer in leaving.by_ref().take(5) {
            owner.unpark(timer.id, kit.now).await;
        }
        owner.add_parked(&kit.timer(kit.now - HOUR)).await;
        let Some(next) = page.next else { break };
        cursor = next;
    }
    let stay: BTreeSet<_> = timers.iter().step_by(2).map(|t| t.id).collect();
    let mut staid: Vec<_> = seen.iter().filter(|id| stay.contains(id)).copied().collect();
    staid.sort_unstable();
    assert_eq!(staid, stay.into_iter().collect::<Vec<_>>(), "those that stay are seen exactly once");
}

pub(super) async fn a_destination_is_emptied_page_by_page(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<_> = (0..500).map(|n| kit.timer(kit.now + n)).collect();
    owner.add_all(&timers).await;
    owner.apply(timers.iter().map(|t| Op::Park(Park { id: t.id, failed: 0 })).collect()).await;
    let mut back = 0;
    for _ in 0..500 {
        let page = owner.lane.parked(dest(), 0, 60).await.unwrap();
        let ops: Vec<_> =
            page.rows.iter().map(|r| Op::Unpark(Unpark { id: r.timer.id, fire: kit.now })).collect();
        back += ops.len();
        assert!(owner.apply(ops).await.iter().all(|a| *a == Answer::Unpark(MoveAnswer::Done)));
        if back == 500 {
            break;
        }
    }
    assert_eq!(back, 500, "from the front there is always something to take");
    assert_eq!(owner.parked_counts().await.len(), 0);
    assert_eq!(owner.pending().await.len(), 500);
}

pub(super) async fn about_the_longest_parked_come_first(mut kit: Kit) {
    let mut owner = kit.owner().await;
    let mut early = BTreeSet::new();
    for hour in 0..6 {
        owner.now = kit.now + hour * HOUR;
        let timers: Vec<_> = (0..200).map(|n| kit.timer(owner.now + n)).collect();
        owner.add_all(&timers).await;
        owner.apply(timers.iter().map(|t| Op::Park(Park { id: t.id, failed: 0 })).collect()).await;
        if hour < 3 {
            early.extend(timers.iter().map(|t| t.id));
        }
    }
    let rows = pages(100, |cursor| owner.lane.parked(dest(), cursor, 100)).await;
    let among_first = rows[..400].iter().filter(|r| early.contains(&r.timer.id)).count();
    assert!(among_first > 200, "of the first 400 rows only {among_first} are of the earlier half");
}

pub(super) async fn the_park_outlives_its_owner(mut kit: Kit) {
    let first = kit.owner().await;
    let timers: Vec<_> = (0..50).map(|n| kit.timer(kit.now + n)).collect();
    first.add_all(&timers).await;
    first.apply(timers.iter().map(|t| Op::Park(Park { id: t.id, failed: 2 })).collect()).await;
    let second = kit.owner().await;
    assert_eq!(second.pending().await.len(), 0, "a restart does not reload them");
    let rows = second.all_parked(&dest(), 20).await;
    assert_eq!(rows.len(), 50);
    assert!(rows.iter().all(|r| r.progress.failed == 2));
    assert_eq!(second.unpark(timers[0].id, kit.now).await, MoveAnswer::Done);
    second.load(kit.now + MINUTE).await;
    second.lane.unload(Time::ZERO).await.unwrap();
    assert_eq!(second.fires().await, [(timers[0].id, kit.now)]);
}

/// Timers of all classes, parked in turn.
async fn of_all_classes(kit: &mut Kit, owner: &Owner, of_each: usize) -> Vec<Timer> {
    let mut timers = Vec::new();
    for n in 0..of_each * Priority::COUNT {
        // The least urgent ones are the longest parked.
        let class = Priority::ALL[Priority::COUNT - 1 - n % Priority::COUNT];
        let extensions = Extensions::NONE.with_priority(class).unwrap();
        timers.push(Timer { extensions, ..kit.timer(kit.now) });
    }
    for timer in &timers {
        owner.add_parked(timer).await;
    }
    timers
}

/// The parked timers of a page that begins there, and where the next one does.
async fn park_page(owner: &Owner, cursor: u64, limit: u32) -> (Vec<Timer>, Option<u64>) {
    let page = owner.lane.parked(dest(), cursor, limit).await.unwrap();
    (page.rows.into_iter().map(|record| (*record.timer).clone()).collect(), page.next)
}

pub(super) async fn the_most_urgent_come_first_and_a_class_is_a_range(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers = of_all_classes(&mut kit, &owner, 5).await;
    let of = |class: Priority| timers.iter().filter(move |t| t.priority() == class).cloned();
    let sorted: Vec<Timer> = Priority::ALL.into_iter().flat_map(of).collect();
    let all = owner.all_parked(&dest(), 3).await;
    assert_eq!(all.iter().map(|r| (*r.timer).clone()).collect::<Vec<_>>(), sorted, "in small pages");
    for class in Priority::ALL {
        let start = park_start(class);
        let (rows, next) = park_page(&owner, start, 5).await;
        assert_eq!(rows, of(class).collect::<Vec<_>>());
        let following = Priority::from_u8(class as u8 + 1);
        assert_eq!(next.and_then(park_priority), following, "the next position tells its class");
        let (rest, _) = park_page(&owner, start, 99).await;
        assert_eq!(rest, sorted[5 * class.rank()..], "and what is less urgent");
    }
    // The next owner finds them in the same order.
    let owner = kit.owner().await;
    assert_eq!(owner.parked_counts().await[&dest()], 20);
    let (rows, _) = park_page(&owner, 0, 99).await;
    assert_eq!(rows, sorted);
}

pub(super) async fn pages_of_classes_while_timers_come_and_go(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers = of_all_classes(&mut kit, &owner, 6).await;
    // All urgent ones leave, then others come.
    let (urgent, others): (Vec<_>, Vec<_>) =
        timers.into_iter().partition(|t| t.priority() == Priority::Urgent);
    let (rows, _) = park_page(&owner, 0, 6).await;
    assert_eq!(rows, urgent);
    for timer in &urgent {
        assert_eq!(owner.unpark(timer.id, kit.now).await, MoveAnswer::Done);
    }
    let (rows, _) = park_page(&owner, 0, 1).await;
    assert_eq!(rows[0].priority(), Priority::High);
    assert_eq!(park_page(&owner, park_start(Priority::Low), 99).await.0.len(), 6);
    owner.park(urgent[0].id).await;
    let (rows, next) = park_page(&owner, 0, 1).await;
    assert_eq!((rows[0].id, next.and_then(park_priority)), (urgent[0].id, Some(Priority::High)));
    // A park that was emptied and is filled anew.
    for timer in others.iter().chain(&urgent[..1]) {
        assert_eq!(owner.unpark(timer.id, kit.now).await, MoveAnswer::Done);
    }
    assert_eq!(park_page(&owner, 0, 99).await, (vec![], None));
    let low = others.iter().find(|t| t.priority() == Priority::Low).unwrap();
    for timer in [low, &urgent[1]] {
        owner.park(timer.id).await;
    }
    let (rows, next) = park_page(&owner, 0, 99).await;
    assert_eq!((ids_of(&rows), next), (vec![urgent[1].id, low.id], None));
}

fn ids_of(timers: &[Timer]) -> Vec<TimerId> {
    timers.iter().map(|timer| timer.id).collect()
}
