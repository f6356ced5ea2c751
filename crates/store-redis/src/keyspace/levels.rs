//! How many siblings a slot has, in levels: see [`super::place`].

use mtimer_types::{SlotWidth, TimerId};

/// Levels of a slot of a second: the last one alone takes eight thousand million timers, and 260
/// million of one millisecond.
const SECOND_LEVELS: u32 = 10;
/// Levels of a wide slot.
const WIDE_LEVELS: u32 = 2;

/// Levels of a slot.
pub(crate) const fn levels(width: SlotWidth) -> u32 {
    if matches!(width, SlotWidth::Second) { SECOND_LEVELS } else { WIDE_LEVELS }
}

/// Siblings of a slot: their numbers are below this.
pub(crate) const fn siblings(width: SlotWidth) -> u32 {
    if matches!(width, SlotWidth::Second) { first_of(SECOND_LEVELS) } else { 1 + TimerId::COHORTS as u32 }
}

/// The level of a sibling.
pub(crate) const fn level(width: SlotWidth, sibling: u32) -> u32 {
    let mut level = 0;
    while level + 1 < levels(width) && sibling >= first_of(level + 1) {
        level += 1;
    }
    level
}

/// Bits that choose a sibling of a level of a second: few levels, so that an id has few candidates.
pub(crate) const fn bits(level: u32) -> u32 {
    if level == 0 { 0 } else { 3 * level - 1 }
}

/// The first sibling of a level: behind 1 + 4 + 32 + ... of the levels below.
pub(crate) const fn first_of(level: u32) -> u32 {
    // From the second level on each has eight times as many: a geometric sum.
    if level == 0 { 0 } else { 1 + 4 * ((1 << (3 * (level - 1))) - 1) / 7 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_levels_of_a_second_follow_each_other() {
        assert_eq!([0, 1, 2, 3, 4].map(first_of), [0, 1, 5, 37, 293]);
        for l in 0..SECOND_LEVELS {
            assert_eq!(first_of(l + 1) - first_of(l), 1 << bits(l));
            assert_eq!(level(SlotWidth::Second, first_of(l)), l);
            assert_eq!(level(SlotWidth::Second, first_of(l + 1) - 1), l);
        }
    }
}
