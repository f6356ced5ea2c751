//! Acknowledgements that are written without reading their timers first: nearly all timers end so.
//!
//! Not in here: the second turn for a timer that was not there after all ([`super::turn`]).

use std::collections::{HashMap, HashSet};

use mtimer_store::ops::Settle;
use mtimer_store::{Op, Verdict};
use mtimer_types::{Ended, Key, Mode, Time, TimerId};

use super::encode::{Draft, UNKNOWN_DESTINATION};
use super::knowledge::Knowledge;
use crate::keyspace::keys::SlotKey;

/// An acknowledgement that is written blind: the operation's place in the batch, the timer, its
/// slot. `None`: this owner has taken it.
pub(super) struct BlindAck {
    pub(super) at: usize,
    pub(super) id: TimerId,
    slot: Option<SlotKey>,
}

impl Knowledge {
    /// The acknowledgements that may be written blind: of timers that can be at one place only, and
    /// that no other operation of the turn is about.
    pub(super) fn blind_acks(&self, ops: &[Op]) -> Vec<BlindAck> {
        if !ops
            .iter()
            .any(|op| matches!(op, Op::Settle(Settle { verdict: Verdict::Ack, timer: Some(_), .. })))
        {
            return Vec::new();
        }
        let mut named: HashMap<TimerId, u32> = HashMap::new();
        ops.iter().filter_map(Op::id).for_each(|id| *named.entry(id).or_default() += 1);
        let keys: HashSet<&Key> = ops.iter().filter_map(|op| op.subject().key()).collect();
        let any_key = ops.iter().any(|op| op.is().takes_key_back);
        let ack = |(at, op): (usize, &Op)| {
            let Op::Settle(Settle { id, verdict: Verdict::Ack, timer: Some(timer), .. }) = op else {
                return None;
            };
            let id = *id;
            let is_alone = named.get(&id) == Some(&1)
                && timer.key.as_ref().is_none_or(|key| !any_key && !keys.contains(key));
            if !is_alone {
                return None;
            }
            if timer.mode == Mode::AtMostOnce {
                let is_ours = self.taken.contains(&id);
                let is_ours = is_ours || broken!(AllTakenForOurs);
                return is_ours.then_some(BlindAck { at, id, slot: None });
            }
            match self.catalog.candidates(id)[..] {
                [slot] if self.catalog.knows_ids(slot) && !self.moved.may_have(self.secret.id(id)) => {
                    Some(BlindAck { at, id, slot: Some(slot) })
                }
                _ => None,
            }
        };
        ops.iter().enumerate().filter_map(ack).collect()
    }

    /// Adds the writes of an acknowledgement.
    pub(super) fn draft_ack(&self, draft: &mut Draft, ack: &BlindAck, op: &Op, now: Time) {
        let Op::Settle(Settle { timer: Some(timer), .. }) = op else { return };
        let dest = self.dests.number(&timer.dest).unwrap_or(UNKNOWN_DESTINATION);
        if let Some(slot) = ack.slot {
            draft.leave(slot, ack.id, dest);
        } else {
            draft.end_taken(self.secret.id(ack.id).shard(), ack.id, dest);
            self.remember_end(draft, ack.id, Ended::Acknowledged, now);
        }
        if let Some(key) = &timer.key {
            draft.free(self.secret.key(&timer.dest, key), ack.id);
        }
    }
}
