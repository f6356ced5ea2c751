//! Clusters of brokers, simulated: processes that die, stop and stand still, clocks that differ,
//! links cut one way or both, a store that answers late or not at all. Everything comes from one
//! seed; a failure prints the command that repeats it: see `explore`.

mod cluster_sim;
mod explore;

use std::cell::RefCell;

use cluster_sim::{Cut, Plan, Sabotage, Stats, World};
use explore::Explore;

/// The seeds of a scenario: the first ones, many more in a long round, or the one that is asked
/// for.
fn seeds(default: u64) -> Vec<u64> {
    let last = if explore::is_long() { 10 * default } else { default };
    explore::number("MTIMER_SIM_SEED").map_or_else(|| (1..=last).collect(), |seed| vec![seed])
}

/// A life full of faults, then health; returns the failure, if any.
fn live(seed: u64, sabotage: Option<Sabotage>) -> (World, Result<(), String>) {
    let brokers = 1 + (seed % 5) as usize;
    let partitions = 1 + (seed * 7 % 40) as u16;
    let mut world = World::new(seed, Plan { brokers, partitions, sabotage });
    world.run(5_000);
    world.suffer(60_000);
    let result = settle(&mut world);
    (world, result)
}

/// After everything has healed: all is owned where it is to be, balanced, and stays so.
fn settle(world: &mut World) -> Result<(), String> {
    // A broker that came and went is held back for up to a minute; operators' wishes end when
    // somebody leads.
    let led = world.until(20_000, |w| w.topology().is_some());
    world.undrain();
    world.run(5_000);
    world.undrain();
    let settled = led.and_then(|_| world.until(100_000, |w| w.missing().is_none()));
    wrong(world)?;
    if settled.is_none() {
        return Err(format!("not settled: {:?}", world.missing()));
    }
    // Leftovers of a moment ago: brokers that have just come back to a part of the store.
    world.run(5_000);
    let (decided, ends) = (world.topology().map(|t| t.stamp()), world.ends);
    world.run(20_000);
    wrong(world)?;
    if decided != world.topology().map(|t| t.stamp()) || ends != world.ends {
        return Err("something moved though nothing had changed".into());
    }
    world.missing().map_or(Ok(()), Err)
}

fn wrong(world: &World) -> Result<(), String> {
    world.watch.wrong.clone().map_or(Ok(()), Err)
}

#[test]
fn elections() {
    let stats = RefCell::new(Stats::default());
    let failed = Explore::new("cluster", "elections", 0).run(|seed, log| {
        let (world, result) = live(seed, None);
        if !log {
            stats.borrow_mut().add(&world);
        }
        let idle = world.watch.acted == 0 || world.watch.decided == 0;
        let result = result.and_then(|()| if idle { Err("nobody ever led".into()) } else { Ok(()) });
        result.map_err(|e| if log { format!("{}\n{e}", world.watch.tail(150)) } else { e })
    });
    println!("elections: {}", stats.into_inner());
    assert_eq!(failed, 0, "so many seeds of elections fail");
}

#[test]
fn one_seed_gives_one_history() {
    let (a, b) = (live(7, None).0, live(7, None).0);
    assert_eq!(a.watch.digest(), b.watch.digest());
    assert_ne!(a.watch.digest(), live(8, None).0.watch.digest());
}

#[test]
fn the_checker_can_fail() {
    for (sabotage, sign) in [
        (Sabotage::DeadlineIgnored, "both lead"),
        (Sabotage::LeaseForAll, "both lead"),
        (Sabotage::SameTermForAll, "was led by"),
        (Sabotage::LossUntold, "is to be"),
    ] {
        let caught = (1..=60).any(|seed| live(seed, Some(sabotage)).1.is_err_and(|e| e.contains(sign)));
        assert!(caught, "{sabotage:?} went unnoticed");
    }
}

/// A healthy cluster, and its leader.
fn healthy(seed: u64, brokers: usize, partitions: u16) -> (World, usize) {
    let mut world = World::new(seed, Plan { brokers, partitions, sabotage: None });
    world.run(4_000);
    assert!(world.until(20_000, |w| w.missing().is_none()).is_some(), "seed {seed}: {:?}", world.missing());
    world.run(3_000);
    let leader = world.leader().expect("somebody leads");
    (world, leader)
}

/// Nothing was wrong so far.
fn fine(seed: u64, world: &World) {
    assert_eq!(world.watch.wrong, None, "{}\nseed {seed}", world.watch.tail(100));
}

fn differences(a: &[Option<String>], b: &[Option<String>]) -> usize {
    a.iter().zip(b).filter(|(a, b)| a != b).count()
}

#[test]
fn after_a_death_others_own_everything_soon() {
    for seed in seeds(30) {
        for (kills_leader, loud, most) in
            [(false, true, 1_000), (false, false, 2_000), (true, true, 4_500), (true, false, 4_500)]
        {
            let (mut world, leader) = healthy(seed, 3, 24);
            let dead = if kills_leader { leader } else { (leader + 1) % 3 };
            world.end(dead, loud);
            assert_eq!(world.orphans(), 8, "seed {seed}");
            let took = world.until(most, |w| w.orphans() == 0);
            assert!(took.is_some(), "{}\nseed {seed}: not owned after {most} ms", world.watch.tail(60));
            world.run(5_000);
            fine(seed, &world);
        }
    }
}

#[test]
fn a_way_that_stays_cut_moves_things_once() {
    for seed in seeds(30) {
        for (to_leader, from_leader) in [(true, false), (false, true), (true, true)] {
            let (mut world, leader) = healthy(seed, 3, 24);
            let far = (leader + 1) % 3;
            if to_leader {
                world.cut(Cut::Way(far, leader));
            }
            if from_leader {
                world.cut(Cut::Way(leader, far));
            }
            let took = world.until(6_000, |w| w.topology().is_some_and(|t| t.brokers.len() == 2));
            assert!(took.is_some(), "{}\nseed {seed}: still a member", world.watch.tail(60));
            world.run(6_000);
            let (decided, leads) = (world.topology().map(|t| t.stamp()), world.leader());
            world.run(60_000);
            assert_eq!(decided, world.topology().map(|t| t.stamp()), "seed {seed}: it flaps");
            assert_eq!((world.orphans(), leads), (0, Some(leader)), "seed {seed}");
            world.recover();
            let back = world.until(5_000, |w| w.missing().is_none());
            assert!(back.is_some(), "seed {seed}: {:?}", world.missing());
            fine(seed, &world);
        }
    }
}

#[test]
fn while_the_lease_names_no_leader_owners_go_on() {
    for seed in seeds(20) {
        let (mut world, _) = healthy(seed, 3, 24);
        let before = world.assigned();
        world.cut(Cut::Lease);
        world.run(60_000);
        assert_eq!((world.leader(), world.orphans()), (None, 0), "seed {seed}");
        world.recover();
        assert!(
            world.until(10_000, |w| w.missing().is_none()).is_some(),
            "seed {seed}: {:?}",
            world.missing()
        );
        assert_eq!(before, world.assigned(), "seed {seed}: something moved");
        fine(seed, &world);
    }
}

#[test]
fn what_one_cannot_reach_goes_to_another_and_what_nobody_reaches_stays() {
    for seed in seeds(20) {
        let (mut world, leader) = healthy(seed, 3, 24);
        let before = world.assigned();
        let all = (0..3).map(|i| (i, seed % 400));
        for (i, _) in all.clone() {
            world.cut(Cut::Third(i, 1));
        }
        world.run(10_000);
        for (i, late) in all {
            world.run(late);
            world.heal(Cut::Third(i, 1));
        }
        world.run(10_000);
        assert_eq!(before, world.assigned(), "{}\nseed {seed}: something moved", world.watch.tail(60));
        let cut = (leader + 1) % 3;
        world.cut(Cut::Third(cut, 1));
        let me = cluster_sim::address(cut);
        let free =
            |w: &World| w.assigned().iter().enumerate().all(|(p, a)| p % 3 != 1 || a.as_deref() != Some(&me));
        assert!(world.until(5_000, free).is_some(), "seed {seed}: it keeps what it cannot reach");
        world.run(5_000);
        let decided = world.topology().map(|t| t.stamp());
        world.run(20_000);
        assert_eq!(decided, world.topology().map(|t| t.stamp()), "seed {seed}: it flaps");
        assert_eq!(world.missing(), None, "seed {seed}");
        fine(seed, &world);
    }
}

#[test]
fn a_leader_that_stood_still_leads_no_more_and_comes_back_as_a_member() {
    for seed in seeds(20) {
        let (mut world, leader) = healthy(seed, 3, 24);
        world.pause(leader, 15_000);
        let took = world.until(6_000, |w| w.leader().is_some_and(|l| l != leader));
        assert!(took.is_some(), "{}\nseed {seed}: nobody else leads", world.watch.tail(60));
        world.run(15_000);
        assert!(
            world.until(5_000, |w| w.missing().is_none()).is_some(),
            "seed {seed}: {:?}",
            world.missing()
        );
        fine(seed, &world);
    }
}

#[test]
fn a_rolling_restart_moves_what_it_must_and_leaves_nothing_alone_for_long() {
    for seed in seeds(20) {
        let (mut world, _) = healthy(seed, 3, 24);
        for i in 0..3 {
            let before = world.assigned();
            world.stop(i);
            let gone = world.until(5_000, |w| w.ends > i as u64);
            assert!(gone.is_some(), "{}\nseed {seed}: it does not stop", world.watch.tail(60));
            // The partition released last is on its way to its next owner.
            let owned = world.until(300, |w| w.orphans() == 0);
            assert!(owned.is_some(), "{}\nseed {seed}: not handed over", world.watch.tail(60));
            world.run(4_000);
            assert!(
                world.until(9_000, |w| w.missing().is_none()).is_some(),
                "seed {seed}: {:?}",
                world.missing()
            );
            assert!(differences(&before, &world.assigned()) <= 16, "seed {seed}: too much has moved");
        }
        fine(seed, &world);
    }
}

#[test]
fn a_broker_that_joins_is_given_its_share_and_no_more_moves() {
    for seed in seeds(20) {
        let (mut world, leader) = healthy(seed, 4, 24);
        let joins = (leader + 2) % 4;
        world.end(joins, true);
        assert!(world.until(3_000, |w| w.orphans() == 0).is_some(), "seed {seed}");
        let before = world.assigned();
        world.start(joins);
        assert!(
            world.until(5_000, |w| w.missing().is_none()).is_some(),
            "seed {seed}: {:?}",
            world.missing()
        );
        assert_eq!(differences(&before, &world.assigned()), 6, "seed {seed}");
        fine(seed, &world);
    }
}

/// Its clock was ahead, and a failover loses the acquisitions made by it: by the store alone their
/// epochs would come again.
fn forgetful(seed: u64, which: Which, sabotage: Option<Sabotage>) -> (World, Result<(), String>) {
    let mut world = World::new(seed, Plan { brokers: 3, partitions: 24, sabotage });
    world.store.ahead = 60_000;
    // All three are there, and have had time to tell each other.
    world.run(4_000);
    let ready = world.until(20_000, |w| w.missing().is_none()).is_some();
    world.run(1_000 + seed % 700);
    let Some(leader) = world.leader().filter(|_| ready) else { return (world, Err("no leader".into())) };
    let dead = match which {
        Which::Leader => leader,
        Which::Another | Which::AnotherThatReturns => (leader + 1) % 3,
    };
    world.forget();
    world.end(dead, true);
    if which == Which::AnotherThatReturns {
        world.run(20);
        world.start(dead);
    }
    let owned = world.until(10_000, |w| w.orphans() == 0);
    world.run(10_000);
    let result = wrong(&world)
        .and_then(|()| owned.map(|_| ()).ok_or_else(|| format!("{} are nobody's", world.orphans())));
    (world, result)
}

/// Who dies when the store forgets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Which {
    Leader,
    Another,
    AnotherThatReturns,
}

#[test]
fn an_epoch_that_the_store_has_forgotten_is_not_given_again() {
    for which in [Which::Leader, Which::Another, Which::AnotherThatReturns] {
        for seed in seeds(30) {
            let (world, result) = forgetful(seed, which, None);
            assert_eq!(result, Ok(()), "{}\nseed {seed}, {which:?}", world.watch.tail(60));
        }
        // The checker can fail: so it would be if each broker knew of its own epochs only.
        let (_, result) = forgetful(1, which, Some(Sabotage::OwnEpochsOnly));
        assert!(result.is_err_and(|e| e.contains("goes from epoch")), "{which:?} went unnoticed");
    }
}

#[test]
fn a_broker_that_nobody_reaches_does_not_lead_whoever_starts_first() {
    for seed in seeds(30) {
        let mut world = World::new(seed, Plan { brokers: 3, partitions: 24, sabotage: None });
        world.cut(Cut::Address(0));
        world.start(0);
        world.run(2_000);
        assert_ne!(world.leader(), Some(0), "seed {seed}");
        let serves = |w: &World| w.leader().is_some_and(|l| l != 0) && w.orphans() == 0;
        let took = world.until(6_000, serves);
        assert!(took.is_some(), "{}\nseed {seed}: nobody serves", world.watch.tail(60));
        world.run(20_000);
        let (members, own) = (world.topology().map(|t| t.brokers.len()), cluster_sim::address(0));
        assert_eq!(members, Some(3), "seed {seed}: it is a member");
        assert!(world.assigned().iter().flatten().all(|a| *a != own), "seed {seed}: it is given partitions");
        world.recover();
        let back = world.until(5_000, |w| w.missing().is_none());
        assert!(back.is_some(), "seed {seed}: {:?}", world.missing());
        fine(seed, &world);
    }
}

#[test]
fn a_lone_broker_that_nobody_reaches_waits_and_goes_on_when_it_is_reached() {
    for seed in seeds(20) {
        let mut world = World::new(seed, Plan { brokers: 1, partitions: 4, sabotage: None });
        world.cut(Cut::Address(0));
        world.run(30_000);
        assert_eq!((world.leader(), world.orphans()), (None, 4), "seed {seed}");
        world.recover();
        let took = world.until(2_000, |w| w.missing().is_none());
        assert!(took.is_some(), "{}\nseed {seed}: {:?}", world.watch.tail(60), world.missing());
        fine(seed, &world);
    }
}

#[test]
fn a_leader_that_lost_the_way_to_itself_leads_on_while_others_talk_to_it() {
    for seed in seeds(20) {
        let (mut world, leader) = healthy(seed, 3, 24);
        world.cut(Cut::Way(leader, leader));
        let before = world.assigned();
        world.run(60_000);
        assert_eq!((world.leader(), world.orphans()), (Some(leader), 0), "seed {seed}");
        assert_eq!(before, world.assigned(), "seed {seed}: something moved");
        fine(seed, &world);
    }
}

#[test]
fn a_leader_that_nobody_reaches_any_more_makes_room_for_one_that_is_reached() {
    for seed in seeds(20) {
        let (mut world, leader) = healthy(seed, 2, 24);
        world.end(1 - leader, true);
        world.run(3_000);
        world.cut(Cut::Address(leader));
        world.run(10_000);
        // Alone it owns on, and does not lead.
        assert_eq!((world.leader(), world.orphans()), (None, 0), "seed {seed}");
        world.start(1 - leader);
        let serves = |w: &World| w.leader() == Some(1 - leader) && w.missing().is_none();
        let took = world.until(10_000, serves);
        assert!(took.is_some(), "{}\nseed {seed}: {:?}", world.watch.tail(60), world.missing());
        fine(seed, &world);
    }
}

#[test]
fn if_all_have_lost_the_way_to_themselves_one_leads_all_the_same() {
    for seed in seeds(20) {
        let (mut world, leader) = healthy(seed, 3, 24);
        // As a router that sends no packet back to where it came from.
        (0..3).for_each(|i| world.cut(Cut::Way(i, i)));
        world.run(10_000);
        world.end(leader, true);
        let took = world.until(20_000, |w| w.leader().is_some() && w.orphans() == 0);
        assert!(took.is_some(), "{}\nseed {seed}: nobody leads", world.watch.tail(60));
        world.run(60_000);
        assert!(world.leader().is_some(), "{}\nseed {seed}: nobody leads", world.watch.tail(60));
        fine(seed, &world);
    }
}
