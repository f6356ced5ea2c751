//! Where a pending timer belongs, by its id and fire time alone.
//!
//! The slots of one track, width and start are *siblings*, in levels. A timer has one candidate in
//! each level, and goes to the first that is not full; if a wide slot (a minute, an hour, a day)
//! has none, to the next narrower width.
//!
//! | width | siblings of its levels | chosen by |
//! |---|---|---|
//! | day, hour, minute | 1, 64 | the id's cohort: 128 timers that a client files in turn share a hash |
//! | second | 1, 4, 32, 256, ... | the time within the second, and the keyed hash of the id |
//!
//! So a client can choose in which of few wide slots its timers are, but not that they outgrow
//! them; and in a second it can choose nothing but the time. Not in here: which slots are full.

use mtimer_types::{SlotWidth, Time, TimerId};

use super::keys::SlotKey;
use super::levels::{bits, first_of, level, levels};
use super::secret::KeyedHash;

/// The values that determine in which slots a timer may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// The timer.
    pub(crate) id: TimerId,
    /// Of its id.
    pub(crate) hash: KeyedHash,
    /// When it fires.
    pub(crate) fire: Time,
}

impl Placed {
    /// The timer's candidates in one track and width, in the order in which they are filled.
    pub(crate) fn candidates(self, track: u8, width: SlotWidth) -> impl Iterator<Item = SlotKey> {
        let start = width.start_of(self.fire).as_ms();
        let slot = move |level| SlotKey { track, width, start, sibling: self.sibling(width, level) };
        (0..levels(width)).map(slot)
    }

    fn sibling(self, width: SlotWidth, level: u32) -> u32 {
        match (width, level) {
            (_, 0) => 0,
            (SlotWidth::Second, _) => {
                let (time, spread) = (time_bits(level), bits(level) - time_bits(level));
                let part = ((self.fire.as_ms() % 1_000) << time) / 1_000;
                first_of(level) + (part as u32) * (1 << spread) + self.hash.spread() % (1 << spread)
            }
            _ => 1 + u32::from(self.id.cohort()),
        }
    }
}

/// When the timers of a slot fire: from the first of these moments on, and before the second, ms.
pub(crate) const fn span(slot: SlotKey) -> (u64, u64) {
    let level = level(slot.width, slot.sibling);
    if level == 0 || !matches!(slot.width, SlotWidth::Second) {
        return (slot.start, slot.end());
    }
    let (time, spread) = (time_bits(level), bits(level) - time_bits(level));
    let part = ((slot.sibling - first_of(level)) >> spread) as u64;
    (slot.start + (part * 1_000).div_ceil(1 << time), slot.start + ((part + 1) * 1_000).div_ceil(1 << time))
}

/// Of the bits that choose a sibling of a second, those that are taken from the fire time: timers
/// of about the same time, which are mostly filed and settled together, share siblings. The others
/// are the hash's: timers of the same millisecond spread. With bits of the time alone, up to the
/// fifth, `bench burst` takes 1.8 times the commands at 0.87 of the rate.
const fn time_bits(level: u32) -> u32 {
    match level {
        0 | 1 => 0,
        2 => 2,
        3 => 4,
        _ => 5,
    }
}

#[cfg(test)]
mod tests {
    use mtimer_types::PartitionId;
    use proptest::prelude::*;

    use super::super::levels::siblings;
    use super::super::secret::Secret;
    use super::*;

    fn placed(fire: u64, random: u64) -> Placed {
        let id = TimerId::with_width(Time::from_ms(fire), SlotWidth::Day, PartitionId(0), random);
        Placed { id, hash: Secret::new([1; 16]).id(id), fire: Time::from_ms(fire) }
    }

    proptest! {
        #[test]
        fn candidates_have_one_sibling_a_level(fire in 0u64..1 << 44, random: u64, width in 0usize..4) {
            let width = SlotWidth::ALL[width];
            let slots: Vec<_> = placed(fire, random).candidates(3, width).collect();
            prop_assert_eq!(slots.len() as u32, levels(width));
            for (l, slot) in (0..).zip(slots) {
                prop_assert_eq!(level(width, slot.sibling), l);
                prop_assert!(slot.sibling < siblings(width));
                prop_assert!(slot.start <= fire && fire < slot.end() && slot.track == 3);
                let (from, before) = span(slot);
                prop_assert!(from <= fire && fire < before, "{slot} spans {from} to {before}");
                prop_assert!(slot.start <= from && before <= slot.end());
            }
        }
    }
}
