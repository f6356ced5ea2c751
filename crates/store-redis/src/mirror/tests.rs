//! What the picture promises: places, prints, horizons.

use mtimer_types::PartitionId;
use proptest::prelude::*;

use super::*;
use crate::ledger::SIBLINGS;
use crate::wide::STRANGE;

fn id(due: u64, width: SlotWidth, random: u64) -> TimerId {
    TimerId::with_width(Time::from_ms(due), width, PartitionId(0), random)
}

#[test]
fn timers_of_about_the_same_time_share_siblings_and_those_of_one_millisecond_spread() {
    let siblings = |fire: &dyn Fn(u64) -> u64| {
        let mut mirror = Mirror::default();
        let mut filed = Vec::new();
        for n in 0..6_000u64 {
            let id = id(7_000 + fire(n), SlotWidth::Second, n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2);
            filed.push(mirror.place(id, id.birth_due(), 0, SlotWidth::Second, 10, n));
        }
        assert!(mirror.entries.values().all(|e| e.count <= FULL));
        // Of the last hundred: what a script that files or settles them has to write.
        filed[5_900..].iter().collect::<BTreeSet<_>>().len()
    };
    assert!(siblings(&|n| n / 6) <= 20);
    assert!(siblings(&|_| 500) >= 40);
}

#[test]
fn a_slot_that_fills_up_gets_siblings_and_stays_findable() {
    let mut mirror = Mirror::default();
    for n in 0..5_000u64 {
        let id = id(7_000, SlotWidth::Second, n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2);
        let slot = mirror.place(id, id.birth_due(), 0, SlotWidth::Second, 10, n);
        assert!(mirror.birth_places(id).contains(&slot));
    }
    assert!(mirror.entries.values().all(|e| e.count <= FULL));
    assert!(mirror.slots().count() > 40);
}

#[test]
fn an_id_that_nobody_filed_is_looked_for_only_where_ids_are_not_known() {
    let mut mirror = Mirror::default();
    let new = |n: u64| id(7_000, SlotWidth::Second, n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2);
    for n in 0..5_000 {
        mirror.place(new(n), new(n).birth_due(), 0, SlotWidth::Second, 10, n);
    }
    // One print in 65,536 is another's, and a slot has up to 128.
    let places = |mirror: &Mirror| (5_000..6_000).map(|n| mirror.birth_places(new(n)).len()).sum::<usize>();
    assert!(places(&mirror) < 50);
    let first = SlotKey { track: 0, width: SlotWidth::Second, start: 7_000, sibling: 0 };
    mirror.found(first, Room::Waiting);
    assert!(!mirror.knows_ids(first) && places(&mirror) >= 1_000);
    // A later script may have filed something there.
    mirror.place(new(6_000), new(6_000).birth_due(), 0, SlotWidth::Minute, 10, 6_000);
    let wide = mirror.birth_places(TimerId::with_width(
        new(6_000).birth_due(),
        SlotWidth::Minute,
        PartitionId(0),
        new(6_000).random(),
    ));
    mirror.found(wide[0], Room::Waiting);
    mirror.add(wide[0], new(6_000), 7_000, 10, 6_001);
    mirror.ids(wide[0], std::iter::empty(), 6_001);
    assert!(!mirror.knows_ids(wide[0]));
    mirror.ids(first, std::iter::once(new(5_000)), 6_001);
    assert!(mirror.knows_ids(first) && places(&mirror) < 50);
    assert!(mirror.birth_places(new(5_000)).contains(&first));
}

const HOUR: u64 = 3_600_000;

/// Timer `n` of an hour, filed in it.
fn file_over_an_hour(mirror: &mut Mirror, n: u64) -> SlotKey {
    let id = id(10 * HOUR + n * 7_919 % HOUR, SlotWidth::Hour, n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2);
    let slot = mirror.place(id, id.birth_due(), 0, SlotWidth::Hour, 10, n);
    assert_eq!(mirror.birth_places(id), [slot]);
    slot
}

#[test]
fn a_wide_slot_fills_its_siblings_in_the_order_in_which_timers_come() {
    let mut mirror = Mirror::default();
    let most = u64::from(SIBLINGS * FULL);
    for n in 0..most {
        let slot = file_over_an_hour(&mut mirror, n);
        assert_eq!((slot.width, u64::from(slot.sibling)), (SlotWidth::Hour, n / u64::from(FULL)));
    }
    assert_eq!(file_over_an_hour(&mut mirror, most).width, SlotWidth::Minute);
    // What has left makes room.
    let of = |sibling| SlotKey { track: 0, width: SlotWidth::Hour, start: 10 * HOUR, sibling };
    mirror.length(of(7), FULL / 2 - 1, most + 1);
    assert_eq!(file_over_an_hour(&mut mirror, most + 2), of(7));
    mirror.length(of(9), 0, most + 3);
    mirror.length(of(7), FULL, most + 3);
    assert_eq!(file_over_an_hour(&mut mirror, most + 4), of(9));
}

#[test]
fn a_dense_wide_slot_is_split_before_it_begins_and_takes_nothing_in_from_then_on() {
    let mut mirror = Mirror::default();
    (0..2_000).for_each(|n| _ = file_over_an_hour(&mut mirror, n));
    let at = |ms: u64| Time::from_ms(10 * HOUR - LEAD - 1 + ms);
    assert_eq!(mirror.split_ahead(at(0)), None);
    assert_eq!(file_over_an_hour(&mut mirror, 2_000).width, SlotWidth::Hour);
    let first = mirror.split_ahead(at(1)).unwrap();
    assert_eq!(first.iter().map(|slot| slot.sibling).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(mirror.split_width(first[0]), SlotWidth::Minute);
    assert_eq!(file_over_an_hour(&mut mirror, 2_001).width, SlotWidth::Minute);
    // What is left when it is dense no more is loaded whole.
    for slots in std::iter::from_fn(|| mirror.split_ahead(at(1))).take(3).collect::<Vec<_>>() {
        slots.into_iter().for_each(|slot| mirror.length(slot, 0, 3_000));
    }
    (5..12).for_each(|sibling| mirror.length(SlotKey { sibling, ..first[0] }, 0, 3_000));
    assert_eq!(mirror.split_ahead(at(1)), None);
    assert_eq!(file_over_an_hour(&mut mirror, 2_002).width, SlotWidth::Hour);
}

#[test]
fn the_ids_of_a_crowded_wide_slot_are_asked_for_once() {
    let mut mirror = Mirror::default();
    let of = |sibling| SlotKey { track: 0, width: SlotWidth::Hour, start: 10 * HOUR, sibling };
    let new = |n: u64| id(10 * HOUR + n, SlotWidth::Hour, n);
    (0..STRANGE).for_each(|sibling| mirror.found(of(sibling), Room::Waiting));
    assert_eq!(mirror.strange(new(1)), []);
    (STRANGE..20).for_each(|sibling| mirror.found(of(sibling), Room::Waiting));
    assert_eq!(mirror.strange(id(11 * HOUR, SlotWidth::Hour, 1)), []);
    assert_eq!(mirror.birth_places(new(1)).len(), 20);
    let strange = mirror.strange(new(1));
    assert_eq!(strange, (0..20).map(of).collect::<Vec<_>>());
    assert_eq!(mirror.strange(new(1)), []);
    strange.into_iter().for_each(|slot| mirror.ids(slot, std::iter::once(new(slot.sibling.into())), 1));
    assert_eq!(mirror.birth_places(new(7)), [of(7)]);
    assert_eq!(mirror.birth_places(new(20)), []);
}

#[test]
fn ids_that_are_not_known_any_more_are_asked_for_anew() {
    let mut mirror = Mirror::default();
    let of = |sibling| SlotKey { track: 0, width: SlotWidth::Hour, start: 10 * HOUR, sibling };
    let new = |n: u64| id(10 * HOUR + n % HOUR, SlotWidth::Hour, n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2);
    (0..20).for_each(|sibling| mirror.found(of(sibling), Room::Waiting));
    assert_eq!((mirror.searches(new(0)), mirror.strange(new(0)).len(), mirror.searches(new(0))), (20, 20, 0));
    (0..20).for_each(|sibling| mirror.ids(of(sibling), std::iter::empty(), 1));
    // Of each, more come and go than are kept.
    let mut n = 0;
    for sibling in 0..=STRANGE {
        assert_eq!((mirror.searches(new(0)), mirror.strange(new(0))), (sibling as usize, vec![]));
        for _ in 0..=crate::ledger::MOST_PRINTS {
            n += 1;
            mirror.add(of(sibling), new(n), new(n).birth_due().as_ms(), 10, n);
        }
        mirror.length(of(sibling), 1, n);
    }
    assert_eq!((mirror.searches(new(0)), mirror.strange(new(0)).len()), (9, 9));
    // One is told too late: another was filed there meanwhile.
    assert_eq!(mirror.searches(new(0)), 0);
    mirror.add(of(3), new(n + 1), new(n + 1).birth_due().as_ms(), 10, n + 2);
    (0..=STRANGE).for_each(|sibling| mirror.ids(of(sibling), std::iter::empty(), n + 2));
    assert_eq!((mirror.searches(new(0)), mirror.birth_places(new(0))), (1, vec![of(3)]));
}

#[test]
fn a_sibling_that_others_have_filled_twice_takes_none_back() {
    let mut mirror = Mirror::default();
    let slot = file_over_an_hour(&mut mirror, 0);
    mirror.length(slot, 2 * FULL - 1, 1);
    let again = id(10 * HOUR, SlotWidth::Hour, 0);
    let mut place = |no| mirror.place(again, again.birth_due(), 0, SlotWidth::Hour, 10, no);
    assert_eq!(place(2), slot);
    assert_ne!(place(3), slot);
}

/// What scripts do, and become.
#[derive(Clone, Debug)]
enum Script {
    /// It files timers: due times, and random parts.
    File(Vec<(u64, u64)>),
    /// The first of those under way is done, or refused.
    Done { applied: bool },
    /// Everything in the slot of a timer goes.
    Empty { timer: usize },
    /// The ids of the slot of a timer are told.
    Tell { timer: usize },
    /// The ids that have to be known before a timer is looked for are told.
    Ask { due: u64 },
    /// A step of splitting.
    Split,
}

fn script() -> impl Strategy<Value = Script> {
    let due = HOUR + 5_000..HOUR + 7_000;
    let timers = proptest::collection::vec((due.clone(), 0u64..4), 1..200);
    prop_oneof![
        3 => timers.prop_map(Script::File),
        3 => any::<bool>().prop_map(|applied| Script::Done { applied }),
        1 => (0usize..1_000).prop_map(|timer| Script::Empty { timer }),
        1 => (0usize..1_000).prop_map(|timer| Script::Tell { timer }),
        1 => due.prop_map(|due| Script::Ask { due }),
        1 => Just(Script::Split),
    ]
}

proptest! {
    /// Whatever is filed, refused, emptied and told: an id is looked for where it is, and where it may come to be.
    #[test]
    fn no_timer_is_passed_over(
        scripts in proptest::collection::vec(script(), 1..60),
        unknown in any::<bool>(),
        width in prop_oneof![Just(SlotWidth::Second), Just(SlotWidth::Hour)],
    ) {
        let mut mirror = Mirror::default();
        let mut stored: BTreeMap<SlotKey, BTreeSet<TimerId>> = BTreeMap::new();
        let mut under_way: std::collections::VecDeque<(u64, Vec<(SlotKey, TimerId)>)> = Default::default();
        if unknown {
            let slots: Vec<_> = match width {
                SlotWidth::Second => [5_000, 6_000].map(|start| (HOUR + start, 0)).to_vec(),
                _ => (0..12).map(|sibling| (HOUR, sibling)).collect(),
            };
            for (start, sibling) in slots {
                let slot = SlotKey { track: 0, width, start, sibling };
                let due = start.max(HOUR + 5_000);
                let old = (0..100).map(|n| id(due + n, width, 1 << 20 | u64::from(sibling) << 10 | n));
                stored.entry(slot).or_default().extend(old);
                mirror.found(slot, Room::Waiting);
            }
        }
        for (no, script) in (1..).zip(scripts) {
            let nth = |stored: &BTreeMap<SlotKey, BTreeSet<TimerId>>, n: usize| {
                let all = stored.iter().flat_map(|(slot, ids)| ids.iter().map(|_| *slot));
                all.collect::<Vec<_>>().get(n).copied()
            };
            match script {
                Script::File(timers) => {
                    let ids: BTreeSet<_> = timers
                        .into_iter()
                        .enumerate()
                        .map(|(n, (due, random))| id(due, width, no << 40 | (n as u64) << 2 | random))
                        .collect();
                    let place = |id| (mirror.place(id, id.birth_due(), 0, width, 10, no), id);
                    under_way.push_back((no, ids.into_iter().map(place).collect()));
                }
                Script::Done { applied } => {
                    let Some((no, placed)) = under_way.pop_front() else { continue };
                    for (slot, id) in placed {
                        if applied {
                            stored.entry(slot).or_default().insert(id);
                            mirror.length(slot, stored[&slot].len() as u32, no);
                        } else {
                            mirror.withdraw(slot, 10, no);
                        }
                    }
                }
                // What empties or tells comes behind all that is under way: here it waits until nothing is.
                Script::Empty { timer } if under_way.is_empty() => {
                    let Some(slot) = nth(&stored, timer) else { continue };
                    stored.remove(&slot);
                    mirror.length(slot, 0, no);
                }
                Script::Tell { timer } if under_way.is_empty() => {
                    let Some(slot) = nth(&stored, timer) else { continue };
                    mirror.ids(slot, stored[&slot].iter().copied(), no);
                }
                Script::Ask { due } if under_way.is_empty() => {
                    for slot in mirror.strange(id(due, width, 0)) {
                        let ids = stored.get(&slot).cloned().unwrap_or_default();
                        mirror.ids(slot, ids.into_iter(), no);
                    }
                }
                Script::Split if under_way.is_empty() => {
                    for from in mirror.split_ahead(Time::from_ms(HOUR)).unwrap_or_default() {
                        for id in stored.remove(&from).unwrap_or_default() {
                            let narrower = mirror.split_width(from);
                            let to = mirror.place(id, id.birth_due(), 0, narrower, 10, 0);
                            prop_assert!(to.width < from.width);
                            stored.entry(to).or_default().insert(id);
                            mirror.length(to, stored[&to].len() as u32, u64::MAX);
                        }
                        mirror.length(from, 0, u64::MAX);
                    }
                }
                Script::Empty { .. } | Script::Tell { .. } | Script::Ask { .. } | Script::Split => {}
            }
            if no % 4 > 0 {
                continue;
            }
            let coming = under_way.iter().flat_map(|(_, placed)| placed.iter().copied());
            let there = stored.iter().flat_map(|(slot, ids)| ids.iter().map(|id| (*slot, *id)));
            for (slot, id) in coming.chain(there) {
                prop_assert!(mirror.birth_places(id).contains(&slot), "{id} is in {slot}");
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Act {
    File { fire: u64, width: usize, track: u8 },
    Load { until: u64, steps: usize },
    Unload { beyond: u64 },
}

fn act() -> impl Strategy<Value = Act> {
    let time = 0u64..400_000;
    prop_oneof![
        4 => (time.clone(), 0usize..4, 0u8..2).prop_map(|(fire, width, track)| Act::File { fire, width, track }),
        2 => (time.clone(), 1usize..4).prop_map(|(until, steps)| Act::Load { until, steps }),
        1 => time.prop_map(|beyond| Act::Unload { beyond }),
    ]
}

proptest! {
    /// Whatever is filed, loaded and unloaded: what is at or below the horizon is in the wheel.
    #[test]
    fn the_horizon_is_exact(acts in proptest::collection::vec(act(), 1..60)) {
        let mut mirror = Mirror::default();
        let mut stored: BTreeMap<SlotKey, Vec<u64>> = BTreeMap::new();
        // Fire times of everything, and whether the owner has it.
        let mut wheel: BTreeMap<(SlotKey, u64), bool> = BTreeMap::new();
        for (no, act) in acts.into_iter().enumerate() {
            match act {
                Act::File { fire, width, track } => {
                    let id = TimerId::from_u128(no as u128);
                    let at = Time::from_ms(fire);
                    let slot = mirror.place(id, at, track, SlotWidth::ALL[width], 10, no as u64);
                    stored.entry(slot).or_default().push(fire);
                    let own = fire < mirror.next;
                    let known = wheel.entry((slot, fire)).or_insert(own);
                    *known &= own;
                }
                Act::Load { until, steps } => {
                    let before = mirror.horizon();
                    for _ in 0..steps {
                        let Step::Read(slots) = mirror.step(Time::from_ms(until)) else { break };
                        for slot in slots {
                            let content = stored.get(&slot).cloned().unwrap_or_default();
                            wheel.extend(content.iter().map(|fire| ((slot, *fire), true)));
                            mirror.loaded(slot, content.len() as u32, 10);
                        }
                    }
                    mirror.advance(Time::from_ms(until));
                    prop_assert!(mirror.horizon() >= before);
                }
                Act::Unload { beyond } => {
                    for slot in mirror.unload(Time::from_ms(beyond)) {
                        mirror.listed(slot);
                    }
                    wheel.iter_mut().for_each(|((_, fire), known)| *known &= *fire <= beyond);
                }
            }
            for ((slot, fire), known) in &wheel {
                prop_assert!(*known || *fire >= mirror.next, "{slot} has {fire}, loaded is up to {}", mirror.next);
            }
        }
    }
}
