//! How many timers a partition has, by place.

use crate::table::At;

/// How many timers of a partition are where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// First delivery to come.
    pub pending: u64,
    /// Retries to come.
    pub retrying: u64,
    /// Parked.
    pub parked: u64,
    /// Taken, unconfirmed ones included.
    pub taken: u64,
    /// Dead letters.
    pub dead: u64,
    /// Live keys.
    pub keys: u64,
    /// Staged by imports; they are in none of the others.
    pub staged: u64,
    /// Everything else that is left in the store for this partition besides remembered outcomes and
    /// fixed facts (index entries, entries for moved ids): 0 once all of the above are 0.
    pub residue: u64,
}

impl Census {
    /// Moves one count between places.
    pub fn shift(&mut self, before: Option<At>, after: Option<At>) {
        if let Some(at) = before {
            let n = self.of(at);
            *n = n.saturating_sub(1);
        }
        if let Some(at) = after {
            *self.of(at) += 1;
        }
    }

    const fn of(&mut self, at: At) -> &mut u64 {
        match at {
            At::Pending { fire, .. } if fire.is_staged() => &mut self.staged,
            At::Pending { tier: 0, .. } => &mut self.pending,
            At::Pending { .. } => &mut self.retrying,
            At::Parked => &mut self.parked,
            At::Taken { .. } | At::Unconfirmed { .. } => &mut self.taken,
            At::Dead { .. } => &mut self.dead,
        }
    }
}
