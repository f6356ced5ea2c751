//! Writes a draft, and updates the owner's state.

use std::collections::HashSet;

use mtimer_store::{LaneError, Refusal};
use mtimer_types::{Time, TimerId};

use super::encode::{Draft, Drafted, Note, UNKNOWN_DESTINATION};
use super::knowledge::Knowledge;
use super::owner::Owner;
use super::writer::{TakenOut, Written};
use crate::keyspace::keys::{HashKey, SlotKey};
use crate::wire::Reply;

/// The outcome of a write.
pub(super) enum WriteOutcome {
    /// It was applied. `missed`: all timers that this write removed from slots in which at least
    /// one was absent, or may have been; any of them may be the absent one.
    Applied { missed: HashSet<TimerId> },
    /// It was not applied.
    Refused(Refusal),
}

impl Owner {
    /// Writes, and updates the owner's state. `confirms`: the master has to confirm that the
    /// partition is ours if there is nothing to write.
    pub(super) async fn write(
        &mut self,
        Drafted { writes, note }: Drafted,
        confirms: bool,
    ) -> Result<WriteOutcome, LaneError> {
        if writes.is_empty() {
            if confirms {
                self.writer.read_as_owner(&redis::Pipeline::new()).await?;
            }
            return Ok(WriteOutcome::Applied { missed: HashSet::new() });
        }
        let missed = match self.writer.write(writes).await? {
            Written::Refused(why) => {
                self.known.catalog.abandon(note.placements);
                self.known.dests.forget_unstored();
                return Ok(WriteOutcome::Refused(why));
            }
            Written::Applied(taken_out) => self.record_applied(note, &taken_out).await?,
            Written::Unreported => self.record_unreported(note).await?,
        };
        Ok(WriteOutcome::Applied { missed })
    }

    /// Writes a draft that a full store takes, too, as it stores nothing for a client (a split
    /// moves timers to new hashes). Updates the owner's state. If there is a claim and nothing to
    /// write, asks the master whether the partition is still ours.
    pub(super) async fn write_anyway(&mut self, draft: Draft, claim: Option<Time>) -> Result<(), LaneError> {
        let drafted = self.known.finish(draft, claim);
        match self.write(drafted, claim.is_some()).await? {
            WriteOutcome::Applied { .. } => Ok(()),
            WriteOutcome::Refused(why) => {
                Err(LaneError::Broken(format!("a write that is never refused was refused: {why}")))
            }
        }
    }

    /// Takes note of a write. Returns [`Noted::missed`].
    pub(super) async fn record_applied(
        &mut self,
        note: Note,
        taken_out: &[TakenOut],
    ) -> Result<HashSet<TimerId>, LaneError> {
        let Noted { missed, unknown } = self.known.note_applied(note, taken_out);
        if !unknown.is_empty() {
            self.read_ids(unknown.into_iter()).await?;
        }
        Ok(if broken!(MissesIgnored) { HashSet::new() } else { missed })
    }

    /// The same for a write that was applied and whose answer was lost: its slots are looked at
    /// anew.
    pub(super) async fn record_unreported(&mut self, note: Note) -> Result<HashSet<TimerId>, LaneError> {
        let Noted { missed, unknown } = self.known.note_unreported(note);
        self.read_ids(unknown.into_iter()).await?;
        Ok(missed)
    }

    /// Removes timers from slots in which they are not any more.
    pub(crate) async fn remove_leftovers(&mut self, timers: &[(SlotKey, TimerId)]) -> Result<(), LaneError> {
        if timers.is_empty() {
            return Ok(());
        }
        let mut draft = Draft::default();
        timers.iter().for_each(|(slot, id)| draft.leave(*slot, *id, UNKNOWN_DESTINATION));
        // If the answer is lost the slots are read again. Giving up there would leave slots in the
        // catalog that this write has removed from their index.
        let may_give_up = self.writer.set_may_give_up(false);
        self.write_anyway(draft, None).await?;
        self.writer.set_may_give_up(may_give_up);
        Ok(())
    }

    /// Reads which ids are in slots. Of those that this owner has neither read nor made, only
    /// whether they are empty: leftovers may be in them.
    pub(crate) async fn read_ids(&mut self, slots: impl Iterator<Item = SlotKey>) -> Result<(), LaneError> {
        let slots: Vec<_> = slots.collect();
        let keys = slots.iter().map(|slot| self.known.space.hash(HashKey::Slot(*slot)));
        let found = self.writer.read_each("HKEYS", keys).await?;
        for (slot, ids) in slots.into_iter().zip(found) {
            let ids: Vec<_> = ids.items().iter().filter_map(|id| self.known.space.id(id.bytes()?)).collect();
            if ids.is_empty() {
                self.known.catalog.emptied(slot);
                continue;
            }
            self.known.catalog.uncount(slot);
            if self.known.catalog.knows_ids(slot) {
                self.known.catalog.read_ids(slot, ids.into_iter());
            }
        }
        Ok(())
    }
}

/// What a write leaves open.
struct Noted {
    /// All timers that were to leave a slot in which some of them were missing.
    missed: HashSet<TimerId>,
    /// Slots whose timers are not known any more.
    unknown: Vec<SlotKey>,
}

impl Knowledge {
    /// Takes note of a write, and of the timers and keys that it has found to remove.
    fn note_applied(&mut self, mut note: Note, taken_out: &[TakenOut]) -> Noted {
        let mut noted = Noted { missed: HashSet::new(), unknown: Vec::new() };
        let leaving = std::mem::take(&mut note.leaving);
        for timers in leaving.chunk_by(|(one, ..), (other, ..)| one == other) {
            let ((command, slot, ..), ids) = (timers[0], || timers.iter().map(|(_, _, id, _)| *id));
            let with_dests = || timers.iter().map(|(_, _, id, dest)| (*id, *dest));
            let found = taken_out.binary_search_by_key(&command, |taken| taken.command);
            let found = found.ok().map(|at| taken_out[at]);
            match found {
                Some(taken) if taken.left == 0 => self.catalog.emptied(slot),
                Some(taken) if taken.removed == timers.len() as u64 => {
                    self.catalog.removed(slot, with_dests())
                }
                _ => noted.unknown.push(slot),
            }
            if found.is_none_or(|taken| taken.removed < timers.len() as u64) {
                noted.missed.extend(ids());
            }
        }
        let freed = taken_out.iter().find(|taken| Some(taken.command) == note.freeing);
        let freed_keys = std::mem::take(&mut note.freed_keys);
        self.note(note);
        match freed {
            // The large value has gone with the last key.
            Some(freed) if freed.left == 0 => {
                self.keys_are_hash_table = false;
                (self.keys, self.found_keys) = Default::default();
            }
            Some(freed) if freed.removed == freed_keys.len() as u64 => {
                freed_keys.into_iter().for_each(|key| self.keys.remove(key));
            }
            // Some of them name other timers: they stay known as keys that may.
            _ => {}
        }
        noted
    }

    /// Takes note of a write whose answer was lost: any of its timers may have been missing.
    fn note_unreported(&mut self, mut note: Note) -> Noted {
        let leaving = std::mem::take(&mut note.leaving);
        if broken!(UnreportedBulksForgotten) {
            note.controls = None;
        }
        self.note(note);
        self.keys_are_hash_table = false;
        let mut unknown: Vec<SlotKey> = leaving.iter().map(|(_, slot, ..)| *slot).collect();
        unknown.dedup();
        Noted { missed: leaving.into_iter().map(|(_, _, id, _)| id).collect(), unknown }
    }
}
