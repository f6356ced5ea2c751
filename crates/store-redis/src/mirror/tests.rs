//! What the picture promises: places, prints, horizons.

use mtimer_types::PartitionId;
use proptest::prelude::*;

use super::*;

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

#[test]
fn a_wide_slot_that_is_dense_takes_nothing_in_any_more() {
    let mut mirror = Mirror::default();
    for n in 0..2_000u64 {
        let id = id(3_600_000 + n, SlotWidth::Hour, n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2);
        let slot = mirror.place(id, id.birth_due(), 0, SlotWidth::Hour, 10, n);
        assert!(mirror.birth_places(id).contains(&slot));
    }
    let wide = mirror.group(0, SlotWidth::Hour, 3_600_000).count();
    assert_eq!(wide, SPLIT_ABOVE + 1);
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
}

fn script() -> impl Strategy<Value = Script> {
    let timers = proptest::collection::vec((5_000u64..7_000, 0u64..4), 1..200);
    prop_oneof![
        3 => timers.prop_map(Script::File),
        3 => any::<bool>().prop_map(|applied| Script::Done { applied }),
        1 => (0usize..1_000).prop_map(|timer| Script::Empty { timer }),
        1 => (0usize..1_000).prop_map(|timer| Script::Tell { timer }),
    ]
}

proptest! {
    /// Whatever is filed, refused, emptied and told: an id is looked for where it is, and where it may come to be.
    #[test]
    fn no_timer_is_passed_over(scripts in proptest::collection::vec(script(), 1..40), unknown in any::<bool>()) {
        let mut mirror = Mirror::default();
        let mut stored: BTreeMap<SlotKey, BTreeSet<TimerId>> = BTreeMap::new();
        let mut under_way: std::collections::VecDeque<(u64, Vec<(SlotKey, TimerId)>)> = Default::default();
        if unknown {
            for start in [5_000, 6_000] {
                let slot = SlotKey { track: 0, width: SlotWidth::Second, start, sibling: 0 };
                let old = (0..100).map(|n| id(start + n, SlotWidth::Second, 1 << 20 | n));
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
                        .map(|(n, (due, random))| id(due, SlotWidth::Second, no << 40 | (n as u64) << 2 | random))
                        .collect();
                    let place = |id| (mirror.place(id, id.birth_due(), 0, SlotWidth::Second, 10, no), id);
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
                Script::Empty { .. } | Script::Tell { .. } => {}
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
