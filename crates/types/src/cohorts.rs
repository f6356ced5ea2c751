//! Which cohort a new id gets: see [`TimerId`].

use std::sync::atomic::{AtomicU16, Ordering};

use crate::hash::mix;
use crate::{SlotWidth, Time, TimerId};

/// Ids of one slot that get the same cohort in turn: as many as a store likes to keep together.
const RUN: u16 = 128;
/// Counters. Slots that share one change cohorts sooner, and nothing else happens: with so many, 64
/// partitions and all hours of two days do so a little.
const COUNTERS: usize = 4_096;

/// Gives cohorts to the ids that one client makes: about 128 ids of one partition, slot width and
/// slot get the same, the next 128 the next. Always 8 KiB.
#[derive(Debug)]
pub struct Cohorts {
    /// Ids made so far, by slot.
    counters: Box<[AtomicU16]>,
}

impl Cohorts {
    /// Begins, for each slot, with a cohort that `random` chooses: clients should not begin with
    /// the same one.
    pub fn new(random: u64) -> Self {
        let begin = |n: usize| AtomicU16::new((mix(random ^ n as u64) >> 48) as u16 / RUN * RUN);
        Self { counters: (0..COUNTERS).map(begin).collect() }
    }

    /// The id with the cohort that is its turn in its slot.
    pub fn assign(&self, id: TimerId) -> TimerId {
        let start = id.birth_width().start_of(id.birth_due());
        let made = self.counters[counter(id.birth_width(), start, id)].fetch_add(1, Ordering::Relaxed);
        // The counter overflows at a multiple of a run.
        id.with_cohort((made / RUN) as u8)
    }
}

fn counter(width: SlotWidth, start: Time, id: TimerId) -> usize {
    let slot = start.as_ms() / width.ms();
    mix(slot << 18 | u64::from(id.partition().0) << 2 | width as u64) as usize % COUNTERS
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::PartitionId;

    const HOUR: u64 = 3_600_000;

    fn id(due: u64, width: SlotWidth, partition: u16, random: u64) -> TimerId {
        TimerId::with_width(Time::from_ms(due), width, PartitionId(partition), random)
    }

    #[test]
    fn a_slot_gets_one_cohort_after_the_other() {
        let cohorts = Cohorts::new(7);
        let next = |n: u64| cohorts.assign(id(9 * HOUR + n, SlotWidth::Hour, 3, n)).cohort();
        let given: Vec<u8> = (0..3 * 65_536).map(next).collect();
        let first = given[0];
        for (n, cohort) in given.iter().enumerate() {
            assert_eq!(usize::from(*cohort), (usize::from(first) + n / 128) % 64, "{n}");
        }
    }

    #[test]
    fn a_batch_over_a_day_has_few_cohorts() {
        let cohorts = Cohorts::new(7);
        // A million timers over a day in 64 partitions, 128 to a partition in turn.
        let (batches, mut hashes) = (1_000_000 / 128, 0);
        for batch in 0..batches as u64 {
            let make = |n: u64| {
                let n = batch * 128 + n;
                let id = id(30 * HOUR + mix(n) % (24 * HOUR), SlotWidth::Hour, (batch % 64) as u16, mix(n));
                let id = cohorts.assign(id);
                (id.birth_due().as_ms() / HOUR, id.cohort())
            };
            hashes += (0..128).map(make).collect::<BTreeSet<_>>().len();
        }
        // 24 slots, and those in which a run ends.
        assert!((24..28).contains(&(hashes / batches)), "{}", hashes / batches);
    }

    #[test]
    fn two_clients_begin_with_different_cohorts() {
        let first = |seed: u64| Cohorts::new(mix(seed)).assign(id(HOUR, SlotWidth::Hour, 0, 0)).cohort();
        let mut seen = BTreeMap::new();
        (0..640).for_each(|seed| *seen.entry(first(seed)).or_insert(0) += 1);
        assert!(seen.len() > 60 && seen.values().all(|n| *n < 30), "{seen:?}");
    }
}
