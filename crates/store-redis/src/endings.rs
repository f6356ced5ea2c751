//! Which ids may have ended lately.
//!
//! How a timer ended is remembered in Redis for a while, so that a repeated schedule does not bring it back, and every new id would have to be
//! searched there: most have never been seen. But nobody else ends timers while an owner reigns. So once it has reigned for as long as Redis
//! remembers, an id that it has no print of has not ended, for certain.
//!
//! Prints are noted when a script that may end timers is laid out, whatever becomes of it. Nothing is laid out behind it before. They grow
//! old from then on, what Redis remembers from when the script runs: so after every trouble that may lie in between, and after what finds
//! timers by itself, it is as at the beginning of a reign; and after a pause as long as prints are kept, in which a script may have waited
//! that was laid out before it.
//!
//! Not in here: how a timer ended; acknowledgements that leave no word.

use std::collections::HashSet;
use std::time::Duration;

use mtimer_types::TimerId;
use tokio::time::Instant;

const GENERATIONS: usize = 3;
/// How long a generation is added to.
const SPAN: Duration = Duration::from_secs(50);
/// How long a print is kept at least: as long as Redis keeps what is remembered from the last of its kind on (`PEXPIRE` in `lua/timers.lua`),
/// and three times as long as it has to be.
const KEPT: Duration = Duration::from_secs(100);
/// Prints of a generation: of one that gets more any id may be in it. A table of 2^16 places with 5 bytes each holds so many.
const MOST: usize = 57_344;

#[derive(Debug, Default)]
struct Generation {
    prints: HashSet<u32>,
    /// There were too many.
    overflowed: bool,
}

/// See the module. Of an owner that begins to reign.
#[derive(Debug)]
pub(crate) struct Endings {
    /// The latest first.
    generations: [Generation; GENERATIONS],
    /// When the latest began.
    begun: Instant,
    /// When time was last seen to pass.
    turned: Instant,
    /// When everything that may still be remembered was noted here.
    complete_from: Instant,
    complete: bool,
}

impl Default for Endings {
    fn default() -> Self {
        Self::beginning(Instant::now())
    }
}

impl Endings {
    fn beginning(now: Instant) -> Self {
        let generations = Default::default();
        Self { generations, begun: now, turned: now, complete_from: now + KEPT, complete: false }
    }

    /// Time has passed.
    pub(crate) fn turn(&mut self, now: Instant) {
        if now >= self.turned + KEPT {
            *self = Self::beginning(now);
        }
        self.turned = now;
        self.complete = now >= self.complete_from;
        while now >= self.begun + SPAN {
            self.generations.rotate_right(1);
            self.generations[0] = Generation::default();
            self.begun += SPAN;
        }
    }

    /// The id is about to end, perhaps.
    pub(crate) fn note(&mut self, id: TimerId) {
        let latest = &mut self.generations[0];
        if latest.prints.len() < MOST {
            latest.prints.insert(print(id));
        } else {
            latest.overflowed = true;
        }
    }

    /// Whatever may still be remembered, not all of it was noted here.
    pub(crate) fn lose(&mut self, now: Instant) {
        (self.complete_from, self.complete) = (now + KEPT, false);
    }

    /// Whether the id may have ended, and this be remembered.
    pub(crate) fn may_have(&self, id: TimerId) -> bool {
        let has = |generation: &Generation| generation.overflowed || generation.prints.contains(&print(id));
        !self.complete || self.generations.iter().any(has)
    }

    /// Everything was noted: for tests that cannot wait.
    #[cfg(test)]
    pub(crate) fn assume_complete(&mut self) {
        self.complete_from = Instant::now();
    }
}

/// What is kept of an id: 32 bits, wherever in it two ids differ.
const fn print(id: TimerId) -> u32 {
    ((id.random() ^ id.birth_due().as_ms() << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use mtimer_types::{PartitionId, SlotWidth, Time};

    use super::*;

    fn id(n: u64) -> TimerId {
        TimerId::with_width(Time::from_ms(7_000), SlotWidth::Second, PartitionId(0), n)
    }

    fn at(endings: &mut Endings, start: Instant, seconds: u64) -> &mut Endings {
        endings.turn(start + Duration::from_secs(seconds));
        endings
    }

    #[test]
    fn what_was_noted_may_have_ended_for_as_long_as_it_is_remembered() {
        let mut endings = Endings::default();
        let start = endings.begun;
        endings.note(id(1));
        // Nobody knows what the former owner did.
        assert!(at(&mut endings, start, 99).may_have(id(2)));
        at(&mut endings, start, 99).note(id(3));
        assert!(!at(&mut endings, start, 100).may_have(id(2)));
        assert!(endings.may_have(id(3)));
        assert!(at(&mut endings, start, 199).may_have(id(3)));
        assert!(!at(&mut endings, start, 250).may_have(id(3)));
        assert!(endings.generations.iter().all(|generation| generation.prints.is_empty()));
    }

    #[test]
    fn a_print_is_kept_for_long_enough_whenever_it_was_noted() {
        for second in 0..200 {
            let mut endings = Endings::default();
            let start = endings.begun;
            (0..=second).for_each(|s| _ = at(&mut endings, start, s));
            endings.note(id(1));
            assert!(at(&mut endings, start, second + KEPT.as_secs() - 1).may_have(id(1)), "{second}");
            assert!(at(&mut endings, start, second + 151).complete && !endings.may_have(id(1)), "{second}");
        }
    }

    /// A script that was laid out before the pause may run after it, and be remembered for longer than its prints are kept.
    #[test]
    fn after_a_long_pause_it_begins_anew() {
        let mut endings = Endings::default();
        let start = endings.begun;
        at(&mut endings, start, 99);
        assert!(!at(&mut endings, start, 198).may_have(id(1)));
        endings.note(id(1));
        assert!(!at(&mut endings, start, 297).may_have(id(2)));
        assert!(at(&mut endings, start, 397).may_have(id(1)) && endings.may_have(id(2)));
        assert!(at(&mut endings, start, 496).may_have(id(2)));
        assert!(!at(&mut endings, start, 497).may_have(id(2)));
        assert!(at(&mut endings, start, 1 << 32).may_have(id(2)));
    }

    #[test]
    fn too_many_are_any() {
        let mut endings = Endings::default();
        let start = endings.begun;
        at(&mut endings, start, 60);
        at(&mut endings, start, 100);
        (0..MOST as u64 + 1_000).for_each(|n| endings.note(id(n)));
        assert!(endings.may_have(id(1 << 40)) && endings.generations[0].prints.len() == MOST);
        at(&mut endings, start, 180);
        assert!(!at(&mut endings, start, 251).may_have(id(1 << 40)));
        let now = start + Duration::from_secs(251);
        endings.lose(now);
        assert!(endings.may_have(id(1)) && at(&mut endings, start, 350).may_have(id(1)));
        assert!(!at(&mut endings, start, 351).may_have(id(1)));
    }
}
