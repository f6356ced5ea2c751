//! Whether this broker is reached at its address, and whether it may therefore lead.
//!
//! Purpose: a broker that others cannot reach does not lead them. They could not join it, and the
//! cluster would serve nobody for as long as it renews its lease.
//! Invariant: one that was never reached does not campaign. One that was reached may only have lost
//! the way to itself: it leads for as long as other brokers talk to it.
//! Not in here: how that is found out; whether others reach the leader (`trouble`).

/// So long after the last leader, ms, one that is not reached any more campaigns: brokers that are
/// reached come first.
pub(super) const DEFER_MS: u64 = 10_000;
/// A leader that is not reached any more, and that no other broker has talked to for so long, ms,
/// gives the lease up.
pub(super) const LONELY_MS: u64 = 5_000;

/// The state of this broker's own address.
#[derive(Debug)]
pub(super) struct OwnAddress {
    state: AddressState,
    /// When another broker was heard as a leader, or the leadership began.
    heard: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AddressState {
    /// Nobody has said otherwise.
    Unknown,
    Reached,
    Never,
    Lost,
}

impl OwnAddress {
    pub(super) fn new() -> Self {
        Self { state: AddressState::Unknown, heard: 0 }
    }

    /// It was looked at; `true`: it is reached, and was not.
    pub(super) fn set(&mut self, reached: bool) -> bool {
        let before = self.state;
        self.state = match (before, reached) {
            (_, true) => AddressState::Reached,
            (AddressState::Reached | AddressState::Lost, false) => AddressState::Lost,
            (AddressState::Unknown | AddressState::Never, false) => AddressState::Never,
        };
        reached && matches!(before, AddressState::Never | AddressState::Lost)
    }

    /// Another broker talks to this one, which leads; or the leadership begins.
    pub(super) fn heard(&mut self, now: u64) {
        self.heard = now;
    }

    /// Whether it may take the lease. `led`: when a leader was there last; `others`: whether there
    /// are other brokers that may not be reached either.
    pub(super) fn may_campaign(&self, now: u64, led: u64, others: bool) -> bool {
        match self.state {
            AddressState::Unknown | AddressState::Reached => true,
            AddressState::Lost => others && now >= led + DEFER_MS,
            AddressState::Never => false,
        }
    }

    /// Whether a leader may go on.
    pub(super) fn may_lead(&self, now: u64) -> bool {
        match self.state {
            AddressState::Unknown | AddressState::Reached => true,
            AddressState::Lost => now < self.heard + LONELY_MS,
            AddressState::Never => false,
        }
    }
}
