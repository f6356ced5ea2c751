//! The short way of filing: new timers of the common kind, laid out as `lua/file.lua` wants them.
//!
//! Purpose: most schedules need neither tables of ids nor of places, and what a script holds and looks up for each timer is
//! most of what it costs Redis. Not in here: timers that are filed otherwise, for what is known here or found by the script.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use mtimer_store::{Op, Record};
use mtimer_types::{SlotWidth, Time, Timer, TimerId};

use super::{Needs, Plan, Planner, declare_indexes, shelf};
use crate::dests::Destinations;
use crate::keys::{SHELVES, SlotKey};
use crate::resp::Args;
use crate::script::Script;

/// Added to the number of a slot's index, which is far below, if none of the slot's timers is there yet.
const ABSENT: u8 = 128;

/// Added to the number of a slot, which is far below, whose ids are to be told.
const WANTED: u16 = 1 << 15;
/// Slots whose ids one script tells: a tenth of a millisecond, about.
const MOST_WANTED: usize = 16;

/// A timer to be filed.
struct Plain {
    slot: SlotKey,
    /// Its place among the operations.
    op: u8,
    id: TimerId,
    /// Where its record is among all.
    record: Range<usize>,
    /// It is not in its slot yet, for certain.
    absent: bool,
}

/// Slots that are only looked into, for the timer of an operation.
type Looks = Vec<(SlotKey, u8)>;

impl Planner<'_> {
    /// A script that files the timers of these operations, if all are of the common kind as far as is known here. It has
    /// taken note then of where they go.
    pub(super) fn plain(
        &mut self,
        ops: &[Op],
        needs: &Needs,
        now: Time,
        claim: Option<Time>,
    ) -> Option<Plan> {
        if needs.rounds > 0 || u8::try_from(ops.len()).is_err() {
            return None;
        }
        let timers: Vec<&Arc<Timer>> = ops.iter().map(|op| self.plain_timer(op)).collect::<Option<_>>()?;
        let mut ids: Vec<TimerId> = timers.iter().map(|timer| timer.id).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            return None;
        }
        let dests = stored_numbers(self.dests, &timers)?;
        // It may have been laid out before.
        let before: HashMap<TimerId, SlotKey> = self.placed.iter().map(|p| (p.id, p.slot)).collect();
        let (mut filed, mut looks, mut records) =
            (Vec::with_capacity(timers.len()), Looks::new(), Vec::new());
        for (op, (timer, dest)) in (0..).zip(timers.into_iter().zip(dests)) {
            let from = records.len();
            Record::new(timer.clone()).encode(dest, &mut records);
            let record = from..records.len();
            let others = self.mirror.birth_places(timer.id);
            let slot = match before.get(&timer.id) {
                Some(slot) => *slot,
                None => self.place_anew(timer.id, timer.due, 0, timer.id.birth_width(), record.len()),
            };
            // A wide slot that was split, or loaded, has it almost for certain: the general script looks there.
            let repeated =
                |o: &SlotKey| *o != slot && o.width != SlotWidth::Second && self.mirror.knows_ids(*o);
            if others.iter().any(repeated) {
                return None;
            }
            let absent = !others.contains(&slot);
            looks.extend(others.into_iter().filter(|other| *other != slot).map(|other| (other, op)));
            filed.push(Plain { slot, op, id: timer.id, record, absent });
        }
        filed.sort_unstable_by_key(|plain| (plain.slot, plain.op));
        looks.sort_unstable();
        Some(self.lay_out(&filed, &looks, &records, now, claim))
    }

    /// The timer of an operation that files one of the common kind.
    fn plain_timer<'op>(&self, op: &'op Op) -> Option<&'op Arc<Timer>> {
        let Op::Schedule { timer, .. } = op else { return None };
        let plain = timer.key.is_none()
            && timer.due == timer.id.birth_due()
            && timer.due > self.facts.prior_claim
            && self.hints.get(timer.id).is_none();
        plain.then_some(timer)
    }

    /// `filed` and `looks` are in the order of slots.
    fn lay_out(
        &mut self,
        filed: &[Plain],
        looks: &[(SlotKey, u8)],
        records: &[u8],
        now: Time,
        claim: Option<Time>,
    ) -> Plan {
        let facts = self.facts;
        let shelves = filed.iter().fold(0u16, |shelves, plain| shelves | 1 << shelf(plain.id));
        let endings = &self.hints.endings;
        // Timers are fewer than 256.
        let ended: Vec<u8> =
            (0..).zip(filed).filter(|(_, plain)| endings.may_have(plain.id)).map(|(at, _)| at).collect();
        let mut keys = vec![facts.keys.owner()];
        if !ended.is_empty() {
            keys.extend(facts.keys.ended(now));
        }
        let buckets = keys.len() - 1;
        keys.extend((0..SHELVES).filter(|s| shelves >> s & 1 == 1).map(|s| facts.keys.moved(s)));
        let groups: Vec<&[Plain]> = filed.chunk_by(|a, b| a.slot == b.slot).collect();
        self.slots = groups.iter().map(|group| group[0].slot).collect();
        let indexes: Vec<_> = self.slots.iter().map(|slot| self.mirror.index(*slot)).collect();
        let indexes = declare_indexes(&facts.keys, &indexes, &mut keys);

        // Shelves and indexes are fewer than 256 keys, and so are timers.
        let mut layout = vec![buckets as u8, shelves.count_ones() as u8];
        layout.extend((keys.len() as u16).to_be_bytes());
        layout.push(facts.keys.slot_prefix() as u8);
        for (group, index) in groups.iter().zip(indexes.chunks_exact(2)) {
            let absent = group.iter().all(|plain| plain.absent);
            layout.extend([index[1] + if absent { ABSENT } else { 0 }, group.len() as u8]);
        }
        let mut places = [0; 256];
        (0..).zip(filed).for_each(|(at, plain)| places[usize::from(plain.op)] = at);
        let (mut looked, written, mut wanted) = (Vec::new(), self.slots.len(), 0);
        for group in looks.chunk_by(|a, b| a.0 == b.0) {
            let slot = group[0].0;
            let number = self.slots[..written].binary_search(&slot).unwrap_or_else(|_| {
                self.slots.push(slot);
                self.slots.len() - 1
            });
            // Of a slot that this script itself files in they would be out of date.
            let want = wanted < MOST_WANTED && number >= written && !self.mirror.knows_ids(slot);
            wanted += usize::from(want);
            looked.extend((number as u16 + 1 + if want { WANTED } else { 0 }).to_be_bytes());
            looked.push(group.len() as u8);
            looked.extend(group.iter().map(|(_, op)| places[usize::from(*op)]));
        }

        let mut args = Args::new();
        args.optional(claim.map(Time::as_ms)).push(layout);
        args.push(filed.iter().map(|plain| plain.op).collect::<Vec<u8>>()).push(looked).push(ended);
        for plain in filed {
            args.push(plain.id.to_bytes()).push(&records[plain.record.clone()]);
        }
        let slots = std::mem::take(&mut self.slots);
        keys.extend(slots.iter().map(|slot| facts.keys.slot(*slot)));
        Plan { script: Script::File, keys, args, slots, dests: 0 }
    }
}

/// The numbers of timers' destinations, if all are stored.
fn stored_numbers(dests: &Destinations, timers: &[&Arc<Timer>]) -> Option<Vec<u32>> {
    let mut numbers = Vec::with_capacity(timers.len());
    for timer in timers {
        // They mostly come together.
        let number = match (timers.get(numbers.len().wrapping_sub(1)), numbers.last()) {
            (Some(last), Some(number)) if last.dest == timer.dest => *number,
            _ => dests.stored_number(&timer.dest)?,
        };
        numbers.push(number);
    }
    Some(numbers)
}
