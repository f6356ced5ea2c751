//! The short way of acknowledging: pending timers of the common kind, laid out as `lua/ack.lua` wants them.
//!
//! Not in here: timers that are acknowledged otherwise, for what is known here or found by the script.

use mtimer_store::Op;
use mtimer_store::op::Verdict;
use mtimer_types::{Time, TimerId};

use super::{Needs, Plan, Planner, declare_indexes};
use crate::keys::SlotKey;
use crate::resp::Args;
use crate::script::Script;

impl Planner<'_> {
    /// A script that removes the timers of these operations, if all are acknowledgements and it is known where each is likely to be.
    pub(super) fn acks(&mut self, ops: &[Op], needs: &Needs, claim: Option<Time>) -> Option<Plan> {
        let is_ack = |op: &Op| matches!(op, Op::Settle { verdict: Verdict::Ack, .. });
        if ops.is_empty() || u8::try_from(ops.len()).is_err() || !ops.iter().all(is_ack) {
            return None;
        }
        if needs.rounds > 0 || !self.hints.acks_are_common() {
            return None;
        }
        let place = |op: &Op| op.id().and_then(|id| Some((self.likeliest(id)?, id)));
        let mut acked: Vec<(SlotKey, TimerId)> = ops.iter().map(place).collect::<Option<_>>()?;
        acked.sort_unstable();
        if acked.windows(2).any(|pair| pair[0] == pair[1]) {
            return None;
        }
        let facts = self.facts;
        let groups: Vec<_> = acked.chunk_by(|a, b| a.0 == b.0).collect();
        let slots: Vec<SlotKey> = groups.iter().map(|group| group[0].0).collect();
        let indexes: Vec<_> = slots.iter().map(|slot| self.mirror.index(*slot)).collect();
        let mut keys = vec![facts.keys.owner()];
        let indexes = declare_indexes(&facts.keys, &indexes, &mut keys);
        // Indexes are few, timers fewer than 256, and a cluster's name is short.
        let mut layout = vec![keys.len() as u8, facts.keys.slot_prefix() as u8];
        for (group, index) in groups.iter().zip(indexes.chunks_exact(2)) {
            layout.extend([index[1], group.len() as u8]);
        }
        keys.extend(slots.iter().map(|slot| facts.keys.slot(*slot)));
        let mut args = Args::new();
        args.optional(claim.map(Time::as_ms)).push(layout);
        acked.iter().for_each(|(_, id)| _ = args.push(id.to_bytes()));
        Some(Plan { script: Script::Ack, keys, args, slots, dests: 0 })
    }

    /// Where a timer is likely to be, if it is likely to be at its birth position. To look for it in one of several places would cost a
    /// refused script too often.
    fn likeliest(&self, id: TimerId) -> Option<SlotKey> {
        let hint = self.hints.get(id).filter(|slot| self.mirror.has(*slot));
        let slot = hint.or_else(|| match self.mirror.birth_places(id)[..] {
            [only] => Some(only),
            _ => None,
        })?;
        let due = id.birth_due().as_ms();
        (slot.track == 0 && (slot.start..slot.end()).contains(&due)).then_some(slot)
    }
}
