//! Loading the wheel, and unloading it.
//!
//! Purpose: the next slots in the order of need, whole; dense wide slots are split into narrow ones first. How far
//! everything is loaded is the mirror's business.

use bytes::{Buf, Bytes};
use mtimer_store::{LaneError, Load, Loaded, LoadedTimer, Record};
use mtimer_types::{Time, TimerId};

use crate::answer;
use crate::keys::{IndexKey, SHELVES, SlotKey};
use crate::lane::Engine;
use crate::mirror::Step;
use crate::plan::Plan;
use crate::resp::{Args, Reply};
use crate::script::Script;
use crate::window::Alone;

/// Split steps (of up to five slots of about 128 timers) of one load.
const SPLITS: u32 = 8;
/// The same of one load that splits what is not needed yet: a few ms.
const SPLITS_AHEAD: u32 = 2;
/// Slots that one script moves from the copy to the list.
const UNLOAD_STEP: usize = 200;
/// Timers, and bytes, that one script moves out of wide slots.
const SPLIT_STEP: usize = 128;
const SPLIT_BYTES: usize = 64 << 10;
/// The first byte of a value that is not at its birth position.
const MOVED: u8 = 128;

impl Engine {
    /// See [`mtimer_store::Lane::load`].
    pub(crate) async fn load(&mut self, load: Load) -> Result<Loaded, LaneError> {
        let (mut timers, mut bytes, mut splits, mut claim) = (Vec::new(), 0, 0, load.claim);
        let mut done = false;
        while timers.len() < load.max_timers.max(1) && bytes < load.max_bytes.max(1) {
            match self.mirror.step(load.until) {
                Step::Done => {
                    done = true;
                    break;
                }
                Step::Split(slots) => {
                    splits += 1;
                    if splits > SPLITS {
                        break;
                    }
                    bytes += self.split(&slots, &mut timers).await?;
                }
                Step::Read(slots) => bytes += self.read(&slots, claim.take(), &mut timers).await?,
            }
        }
        if let Some(until) = claim {
            let mut args = Args::new();
            args.number(until.as_ms());
            let plan = Plan::new(Script::Claim, vec![self.facts.keys.owner()], args);
            self.run_alone(Alone { plan, confirm: true }).await?;
        }
        self.mirror.advance(load.until);
        // Whoever claims waits to deliver.
        if done && load.claim.is_none() {
            for _ in 0..SPLITS_AHEAD {
                let Some(slots) = self.mirror.split_ahead(load.until) else { break };
                self.split(&slots, &mut timers).await?;
            }
        }
        Ok(Loaded { timers, horizon: self.mirror.horizon() })
    }

    /// Reads slots whole. Bytes of payload.
    async fn read(
        &mut self,
        slots: &[SlotKey],
        claim: Option<Time>,
        timers: &mut Vec<LoadedTimer>,
    ) -> Result<usize, LaneError> {
        let space = &self.facts.keys;
        let mut keys = vec![space.owner(), space.index(IndexKey::Copy)];
        let mut args = Args::new();
        args.optional(claim.map(Time::as_ms));
        for slot in slots {
            keys.push(space.index(self.mirror.index(*slot)));
            keys.push(space.slot(*slot));
            args.number(slot.start).push(slot.to_string());
        }
        let plan = Plan::new(Script::Load, keys, args);
        let contents = self.run_alone(Alone { plan, confirm: claim.is_some() }).await?;
        let mut payload = 0;
        for (slot, content) in slots.iter().zip(&contents) {
            let pairs = content.array().unwrap_or_default();
            let stored: usize = pairs.iter().filter_map(Reply::bytes).map(Bytes::len).sum();
            self.mirror.loaded(*slot, (pairs.len() / 2) as u32, u32::try_from(stored).unwrap_or(u32::MAX));
            let alone = slot.sibling == 0 && !self.mirror.has_siblings(*slot);
            for pair in pairs.chunks_exact(2) {
                if let Some(timer) = self.loaded(*slot, alone, &pair[0], &pair[1]) {
                    payload += timer.record.timer.payload.len();
                    timers.push(timer);
                }
            }
        }
        Ok(payload)
    }

    /// A timer of a slot that was read; `alone`: it has no siblings.
    fn loaded(&mut self, slot: SlotKey, alone: bool, id: &Reply, value: &Reply) -> Option<LoadedTimer> {
        let id = timer_id(id)?;
        let mut value = value.bytes()?.clone();
        let (mut fire, mut tier) = (id.birth_due(), 0);
        if value.first().is_some_and(|b| *b >= MOVED) {
            tier = value.get_u8() - MOVED;
            fire = Time::from_ms(value.try_get_uint_le(6).ok()?);
            self.hints.note(id, slot);
        } else if !alone || slot.width != id.birth_width() {
            // It may be in one of several places.
            self.hints.note(id, slot);
        }
        let record = match Record::decode(id, &value, |number| self.dests.name(number)) {
            Ok(record) => record,
            Err(error) => {
                self.unreadable.report(self.partition, &error);
                return None;
            }
        };
        self.keyed |= record.timer.key.is_some();
        let covered = record.covered(fire, self.facts.epoch, self.facts.prior_claim);
        Some(LoadedTimer { record, fire, tier, covered })
    }

    /// Moves the timers of dense wide slots into narrower ones. Bytes of payload, if it comes to reading after all.
    async fn split(&mut self, slots: &[SlotKey], timers: &mut Vec<LoadedTimer>) -> Result<usize, LaneError> {
        let mut keys = vec![self.facts.keys.owner()];
        keys.extend(slots.iter().map(|slot| self.facts.keys.slot(*slot)));
        let plan = Plan::new(Script::Peek, keys, Args::new());
        let contents = self.run_alone(Alone { plan, confirm: false }).await?;
        let (mut payload, mut heads) = (0, Vec::new());
        for (from, content) in slots.iter().zip(&contents) {
            let pairs = content.array().unwrap_or_default();
            let before = heads.len();
            heads.extend(pairs.chunks_exact(2).filter_map(|pair| head(*from, &pair[0], &pair[1])));
            if heads.len() == before {
                // Empty, or all damaged: reading it takes it out of its index.
                payload += self.read(&[*from], None, timers).await?;
            }
        }
        // Those of one narrow slot go together, whichever wide ones they come from.
        heads.sort_by_key(|head| head.fire);
        let mut rest = &heads[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |head: &&Head| {
                bytes += head.size;
                bytes <= SPLIT_BYTES
            };
            let count = rest.iter().take(SPLIT_STEP).take_while(fits).count().max(1);
            let (some, later) = rest.split_at(count);
            self.split_some(some).await?;
            rest = later;
        }
        Ok(payload)
    }

    /// `heads` are of one track.
    async fn split_some(&mut self, heads: &[Head]) -> Result<(), LaneError> {
        let (mut from, mut to, mut moves): (Vec<SlotKey>, Vec<SlotKey>, Vec<_>) = Default::default();
        for head in heads {
            let width = self.mirror.split_width(head.from);
            let target = self.mirror.place(head.id, head.fire, head.from.track, width, head.size, 0);
            moves.push((head.id, number(&mut from, head.from), number(&mut to, target)));
            if !head.born {
                self.hints.note(head.id, target);
            }
        }
        let plan = self.split_plan(&from, &to, &moves);
        let answer = self.run_alone(Alone { plan, confirm: false }).await?;
        let lengths = answer::lengths(answer.get(1).and_then(Reply::bytes).cloned().unwrap_or_default());
        let slots: Vec<SlotKey> = from.into_iter().chain(to).collect();
        for (number, length) in lengths {
            let slot = number.checked_sub(1).and_then(|n| slots.get(n));
            slot.into_iter().for_each(|slot| self.mirror.length(*slot, length, u64::MAX));
        }
        Ok(())
    }

    fn split_plan(&self, from: &[SlotKey], to: &[SlotKey], moves: &[(TimerId, usize, usize)]) -> Plan {
        let space = &self.facts.keys;
        let mut keys = vec![space.owner()];
        keys.extend((0..SHELVES).map(|shelf| space.moved(shelf)));
        let mut args = Args::new();
        args.number(from.len() as u64);
        for slot in from.iter().chain(to) {
            keys.extend([space.index(self.mirror.index(*slot)), space.slot(*slot)]);
            args.number(slot.start).push(slot.to_string());
        }
        // One script moves fewer than 256 timers.
        let of = |(id, from, to): &(TimerId, usize, usize)| {
            [&id.to_bytes()[..], &[*from as u8, *to as u8]].concat()
        };
        args.push(moves.iter().flat_map(of).collect::<Vec<u8>>());
        Plan::new(Script::Split, keys, args)
    }

    /// See [`mtimer_store::Lane::unload`].
    pub(crate) async fn unload(&mut self, beyond: Time) -> Result<(), LaneError> {
        let moving = self.mirror.unload(beyond);
        for slots in moving.chunks(UNLOAD_STEP) {
            let space = &self.facts.keys;
            let keys = vec![space.owner(), space.index(IndexKey::Copy), space.index(IndexKey::List)];
            let mut args = Args::new();
            slots.iter().for_each(|slot| {
                args.number(slot.start).push(slot.to_string());
            });
            let plan = Plan::new(Script::Unload, keys, args);
            self.run_alone(Alone { plan, confirm: false }).await?;
            slots.iter().for_each(|slot| self.mirror.listed(*slot));
        }
        Ok(())
    }
}

/// The number of a slot, from 1.
fn number(slots: &mut Vec<SlotKey>, slot: SlotKey) -> usize {
    // The latest is likeliest.
    slots.iter().rposition(|s| *s == slot).map_or_else(
        || {
            slots.push(slot);
            slots.len()
        },
        |at| at + 1,
    )
}

/// What a split has to know of a timer.
struct Head {
    /// The wide slot that it is in.
    from: SlotKey,
    id: TimerId,
    fire: Time,
    size: usize,
    /// It is at its birth position.
    born: bool,
}

fn head(from: SlotKey, id: &Reply, head: &Reply) -> Option<Head> {
    let id = timer_id(id)?;
    let mut head = head.bytes()?.clone();
    let size = head.try_get_u32_le().ok()? as usize;
    let born = head.try_get_u8().ok()? < MOVED;
    let fire = if born { id.birth_due() } else { Time::from_ms(head.try_get_uint_le(6).ok()?) };
    Some(Head { from, id, fire, size, born })
}

pub(crate) fn timer_id(reply: &Reply) -> Option<TimerId> {
    <[u8; 16]>::try_from(&reply.bytes()?[..]).ok().map(TimerId::from_bytes)
}
