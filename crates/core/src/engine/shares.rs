//! Shares of destinations' limits: asked for, and lent.
//!
//! Not in here: what a share lets this broker deliver (`limit`), and when that is asked
//! (`delivery`).

use mtimer_protocol::Share;

use super::Engine;
use super::destination_members::DestIx;
use crate::api::Now;

impl Engine {
    /// Asks for a share of a destination's limits if it is time, and notes when to look again.
    pub(super) fn ask_share(&mut self, now: Now, ix: DestIx) {
        let limit = &self.roster.dest(ix).limit;
        if !limit.is_set() && !limit.is_busy() {
            return;
        }
        let waiting = self.roster.waiting_for_limits(ix);
        let dest = self.roster.dest_mut(ix);
        let name = dest.name().clone();
        let ask = dest.limit.ask(now.mono_ms, &name, waiting);
        self.asks.extend(ask);
        self.roster.wake_for_limits(now.mono_ms, ix, waiting);
    }

    /// The leader has lent shares.
    pub(super) fn lent(&mut self, now: Now, shares: &[Share]) {
        for share in shares {
            let Some(ix) = self.roster.find_dest(&share.dest) else { continue };
            let waiting = self.roster.waiting_for_limits(ix);
            self.roster.dest_mut(ix).limit.answered(now.mono_ms, share, waiting);
            self.roster.touch(ix);
        }
    }
}
