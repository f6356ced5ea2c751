//! A leader that this broker cannot reach: for how long, and why.
//!
//! Purpose: to tell people why a broker stays out of its cluster.
//! Not in here: the reaction to it; another connection is tried for as long as the lease names that
//! leader.

/// The leader that was not reached when it was last tried.
#[derive(Debug, Default)]
pub(super) struct LeaderTrouble(Option<Unreached>);

#[derive(Debug)]
struct Unreached {
    address: String,
    why: String,
    since: u64,
}

impl LeaderTrouble {
    /// The leader at this address was not reached.
    pub(super) fn note(&mut self, now: u64, address: Option<&str>, why: String) {
        let Some(address) = address else { return };
        let before = self.0.as_ref().filter(|unreached| unreached.address == address);
        let since = before.map_or(now, |unreached| unreached.since);
        self.0 = Some(Unreached { address: address.to_owned(), why, since });
    }

    /// A leader was reached, there is none, or nobody knows who leads.
    pub(super) fn end(&mut self) {
        self.0 = None;
    }

    /// Who has not been reached for `ms`, and why.
    pub(super) fn after(&self, now: u64, ms: u64) -> Option<(&str, &str)> {
        let unreached = self.0.as_ref().filter(|unreached| now >= unreached.since + ms)?;
        Some((&unreached.address, &unreached.why))
    }
}
