//! Where a timer is, and the retained state of timers that are not live any more.

use mtimer_types::{Epoch, Time};

/// Where a timer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Waits for its time.
    Pending {
        /// When it is to be delivered next.
        fire: Time,
        /// 0: first delivery; n: the n-th retry tier. A matter of filing and of counting only.
        tier: u8,
    },
    /// Waits for its destination.
    Parked,
    /// At-most-once, sent or about to be.
    Taken {
        /// By which owner.
        epoch: Epoch,
        /// Nobody is going to settle it any more; its key is free.
        unconfirmed: bool,
    },
    /// A dead letter.
    Dead,
}

/// Timers that stay stored until a person replays or purges them, or a trim removes them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Retained {
    /// Dead letters, oldest by time of death.
    Dead,
    /// Unconfirmed timers, oldest by the time at which they became unconfirmed.
    Unconfirmed,
}

impl Retained {
    /// How many kinds there are.
    pub const COUNT: usize = Self::ALL.len();
    /// All kinds, in their order.
    pub const ALL: [Self; 2] = [Self::Dead, Self::Unconfirmed];
}
