//! Siblings of an overfull slot of one second: which one a timer belongs to.
//!
//! They come in levels of 1, 4, 32, 256, ... (see [`bits`]), chosen by the time at which a timer fires and the lowest bits of its id's
//! random part (see [`time_bits`]). Not in here: when a slot gets a level more; wide slots ([`crate::mirror`]).

/// Levels of siblings: the 131,072 siblings of the sixth take sixteen million timers of one second of one partition.
pub(crate) const MAX_LEVEL: u32 = 6;

/// Bits that choose a sibling of a level: few levels, so that a script that looks for an id has few places to look at.
const fn bits(level: u32) -> u32 {
    if level == 0 { 0 } else { 3 * level - 1 }
}

/// The first sibling of a level: behind 1 + 4 + 32 + ... of the levels below.
const fn first_of(level: u32) -> u32 {
    // From the second level on each has eight times as many: a geometric sum.
    if level == 0 { 0 } else { 1 + 4 * ((1 << (3 * (level - 1))) - 1) / 7 }
}

/// Of the bits that choose a sibling, those that are taken from the fire time: timers of about the same time, which are
/// mostly filed and settled together, share siblings. The others are random: timers of the same millisecond spread.
const fn time_bits(level: u32) -> u32 {
    match level {
        0 | 1 => 0,
        2 => 2,
        3 => 4,
        _ => 5,
    }
}

/// The sibling of a level that an id belongs to that fires `at` ms behind the start of its second.
pub(crate) const fn sibling(level: u32, random: u64, at: u64) -> u32 {
    let (time, random_bits) = ((at << time_bits(level)) / 1_000, bits(level) - time_bits(level));
    first_of(level) + ((time << random_bits) | (random & ((1 << random_bits) - 1))) as u32
}

/// The level of a sibling.
pub(crate) const fn level(sibling: u32) -> u32 {
    let mut level = 0;
    while level < MAX_LEVEL && sibling >= first_of(level + 1) {
        level += 1;
    }
    level
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_know_their_level() {
        assert_eq!([first_of(0), first_of(1), first_of(2), first_of(3)], [0, 1, 5, 37]);
        for l in 0..=MAX_LEVEL {
            assert_eq!(level(first_of(l)), l);
            assert_eq!(level(sibling(l, u64::MAX, 999)), l);
            assert_eq!(sibling(l, u64::MAX, 999) + 1, first_of(l + 1));
            assert_eq!(sibling(l, 0, 0), first_of(l));
        }
    }
}
