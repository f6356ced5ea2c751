//! From operations to a script call: keys, arguments, and where everything goes.
//!
//! Purpose: lays a run of operations out as `lua/slots.lua` wants it. Not in here: what a run is ([`crate::cut`]), sending,
//! sequence numbers, answers.

mod acks;
mod plain;

use std::collections::{BTreeMap, HashMap};

use mtimer_store::op::Verdict;
use mtimer_store::record::cut_error;
use mtimer_store::{Op, Record, Retained};
use mtimer_types::{Destination, Epoch, Key, KeyPolicy, Nonce, SlotWidth, Target, Time, TimerId};

use crate::cut::Weight;
use crate::dests::{self, Destinations};
use crate::hints::Hints;
use crate::keys::{IndexKey, Keyspace, SHELVES, SlotKey};
use crate::mirror::Mirror;
use crate::resp::Args;
use crate::script::Script;

/// KEYS before the shelves, as in `lua/slots.lua`.
const FIXED_KEYS: usize = 7;

/// What a script call needs besides its fence.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) script: Script,
    pub(crate) keys: Vec<String>,
    /// ARGV from the fourth on.
    pub(crate) args: Args,
    /// The slots it was told about, in order.
    pub(crate) slots: Vec<SlotKey>,
    /// The highest number of a destination that it stores, or 0.
    pub(crate) dests: u32,
}

impl Plan {
    /// A call that files nothing.
    pub(crate) const fn new(script: Script, keys: Vec<String>, args: Args) -> Self {
        Self { script, keys, args, slots: Vec::new(), dests: 0 }
    }
}

/// Where a script is to file a timer. It stays so when the script is laid out again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    id: TimerId,
    fire: Time,
    pub(crate) slot: SlotKey,
    pub(crate) size: usize,
}

/// What a script asked for when it was run before.
#[derive(Clone, Default, Debug)]
pub(crate) struct Needs {
    pub(crate) slots: Vec<SlotKey>,
    pub(crate) ids: Vec<TimerId>,
    /// By the field of the key.
    pub(crate) named: HashMap<Vec<u8>, TimerId>,
    /// The application keys.
    pub(crate) keys: bool,
    /// How often it asked.
    pub(crate) rounds: u32,
}

/// The fixed facts of an ownership.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) keys: Keyspace,
    pub(crate) epoch: Epoch,
    pub(crate) nonce: Nonce,
    pub(crate) prior_claim: Time,
}

/// The script that does an operation.
pub(crate) const fn script_of(op: &Op) -> Script {
    match op {
        Op::Schedule { .. } => Script::Schedule,
        Op::Cancel { .. } => Script::Cancel,
        Op::Reschedule { .. } => Script::Reschedule,
        Op::Take { .. } => Script::Take,
        Op::Settle { .. } => Script::Settle,
        Op::Park { .. } => Script::Park,
        Op::Unpark { .. } => Script::Unpark,
        Op::Replay { .. } => Script::Replay,
        Op::Purge { .. } => Script::Purge,
        Op::Trim { .. } => Script::Trim,
    }
}

/// Timers that one script trims at most.
pub(crate) const TRIM_STEP: u32 = 100;

/// Lays out scripts.
pub(crate) struct Planner<'a> {
    pub(crate) facts: &'a Facts,
    pub(crate) mirror: &'a mut Mirror,
    pub(crate) hints: &'a mut Hints,
    pub(crate) dests: &'a mut Destinations,
    /// Whether there are application keys: scripts are told about them from the first one on.
    pub(crate) keyed: &'a mut bool,
    /// The number of the script in the lane.
    pub(crate) no: u64,
    /// Where it files timers, as far as it was laid out before.
    pub(crate) placed: &'a mut Vec<Placed>,
    /// What each operation has of fixed size, of the scripts that take it so.
    heads: Vec<u8>,
    /// Destinations that it stores, by number.
    named: BTreeMap<u32, Destination>,
    slots: Vec<SlotKey>,
    numbers: HashMap<SlotKey, usize>,
    ids: Vec<TimerId>,
    seen: std::collections::HashSet<TimerId>,
    /// Shelves of moved timers that it may touch, a bit each.
    shelves: u16,
    /// It may replace timers, those among them that it has just filed.
    replaces: bool,
}

impl<'a> Planner<'a> {
    pub(crate) fn new(
        facts: &'a Facts,
        mirror: &'a mut Mirror,
        hints: &'a mut Hints,
        dests: &'a mut Destinations,
        keyed: &'a mut bool,
        no: u64,
        placed: &'a mut Vec<Placed>,
    ) -> Self {
        let (heads, named, slots, numbers, ids, seen, shelves, replaces) = Default::default();
        Self {
            facts,
            mirror,
            hints,
            dests,
            keyed,
            no,
            placed,
            heads,
            named,
            slots,
            numbers,
            ids,
            seen,
            shelves,
            replaces,
        }
    }

    /// A script that applies a run of operations of one kind.
    pub(crate) fn ops(mut self, ops: &[Op], needs: &Needs, now: Time, claim: Option<Time>) -> Plan {
        if let Some(plan) = self.plain(ops, needs, now, claim).or_else(|| self.acks(ops, needs, claim)) {
            return plan;
        }
        let script = ops.first().map_or(Script::Claim, script_of);
        let mut rest = Args::new();
        for op in ops {
            self.op(op, needs, now, &mut rest);
        }
        self.finish(script, needs, now, claim, &rest)
    }

    /// A script that looks a timer up.
    pub(crate) fn get(mut self, target: &Target, needs: &Needs) -> Plan {
        let mut rest = Args::new();
        self.target(target, needs, &mut rest);
        self.finish(Script::Get, needs, Time::ZERO, None, &rest)
    }

    fn finish(mut self, script: Script, needs: &Needs, now: Time, claim: Option<Time>, rest: &Args) -> Plan {
        for slot in &needs.slots {
            self.mirror.asked(*slot);
            self.slot(*slot);
        }
        needs.ids.iter().for_each(|id| self.id(*id));
        self.note_endings(script);
        *self.keyed |= needs.keys;
        let mut places = Vec::with_capacity(self.ids.len() * 24);
        for id in std::mem::take(&mut self.ids) {
            self.places(id, &mut places);
        }
        let mut keys = fixed_keys(&self.facts.keys, now);
        let mut layout = declare_shelves(&self.facts.keys, self.shelves, *self.keyed, &mut keys);
        let indexes: Vec<_> = self.slots.iter().map(|slot| self.mirror.index(*slot)).collect();
        let indexes = declare_indexes(&self.facts.keys, &indexes, &mut keys);
        layout.extend((keys.len() as u16).to_be_bytes());
        // A cluster's name is short: it fits.
        layout.push(self.facts.keys.slot_prefix() as u8);
        layout.extend(indexes);
        let mut args = Args::new();
        args.number(now.as_ms());
        args.optional(claim.map(Time::as_ms));
        args.number(self.facts.prior_claim.as_ms()).push(self.facts.epoch.0.to_le_bytes());
        args.push(layout).push(places);
        if !self.heads.is_empty() {
            args.push(&self.heads);
        }
        args.append(rest);
        keys.extend(self.slots.iter().map(|slot| self.facts.keys.slot(*slot)));
        if !self.named.is_empty() {
            keys.push(self.facts.keys.destinations());
        }
        for (number, dest) in &self.named {
            args.number(u64::from(*number)).push(dests::encode(dest));
        }
        let dests = self.named.last_key_value().map_or(0, |(number, _)| *number);
        Plan { script, keys, args, slots: self.slots, dests }
    }

    /// Notes which timers the script may leave a word of how they ended: it touches none that it was not told of.
    fn note_endings(&mut self, script: Script) {
        let endings = &mut self.hints.endings;
        match script {
            Script::Schedule if !self.replaces => {}
            Script::Schedule | Script::Cancel | Script::Settle | Script::Purge => {
                self.ids.iter().for_each(|id| endings.note(*id));
            }
            _ => {}
        }
    }

    fn op(&mut self, op: &Op, needs: &Needs, now: Time, out: &mut Args) {
        match op {
            Op::Schedule { timer, policy } => {
                self.id(timer.id);
                *self.keyed |= timer.key.is_some();
                self.replaces |= *policy == KeyPolicy::Replace;
                let (dest, stored) = self.dests.intern(&timer.dest);
                if !stored {
                    self.named.insert(dest, timer.dest.clone());
                }
                let mut record = Vec::with_capacity(timer.payload.len() + 32);
                Record::new(timer.clone()).encode(dest, &mut record);
                let (width, size) = (timer.id.birth_width(), record.len());
                let slot = self.place(timer.id, timer.due, 0, width, size);
                self.heads.extend(timer.id.to_bytes());
                self.heads.push(match policy {
                    KeyPolicy::Create => b'c',
                    KeyPolicy::Replace => b'r',
                    KeyPolicy::Keep => b'k',
                });
                self.heads.extend((slot as u16).to_be_bytes());
                out.push(record);
            }
            Op::Cancel { target, in_flight, request } => {
                self.target(target, needs, out);
                out.number(u64::from(in_flight.unwrap_or(0))).push(request.0.to_le_bytes());
            }
            Op::Reschedule { target, due, in_flight, request } => {
                let id = self.target(target, needs, out);
                let slot = id.map_or(0, |id| self.file(id, *due, 0, now));
                out.push(if *in_flight { "1" } else { "0" }).push(request.0.to_le_bytes());
                out.number(due.as_ms()).number(slot as u64);
            }
            Op::Purge { id } => {
                self.id(*id);
                out.push(id.to_bytes());
            }
            Op::Take { id, failed } | Op::Park { id, failed } => {
                self.id(*id);
                out.push(id.to_bytes()).number(u64::from(*failed));
            }
            Op::Unpark { id, fire } | Op::Replay { id, fire } => {
                self.id(*id);
                let slot = self.file(*id, *fire, 0, now);
                out.push(id.to_bytes()).number(fire.as_ms()).number(slot as u64);
            }
            Op::Settle { id, verdict, .. } => self.verdict(*id, verdict, now, out),
            Op::Trim { of, before, keep, limit } => {
                self.shelves = u16::MAX;
                out.number(before.as_ms()).number(*keep).number(u64::from(*limit));
                out.push(match of {
                    Retained::Dead => "d",
                    Retained::Unconfirmed => "u",
                });
            }
        }
    }

    fn verdict(&mut self, id: TimerId, verdict: &Verdict, now: Time, out: &mut Args) {
        self.id(id);
        self.heads.extend(id.to_bytes());
        self.heads.push(match verdict {
            Verdict::Ack => b'a',
            Verdict::Expired => b'e',
            Verdict::Unconfirmed => b'u',
            Verdict::LateAck { .. } => b'l',
            Verdict::Retry { .. } => b'r',
            Verdict::Dead { .. } => b'd',
        });
        match verdict {
            Verdict::Ack | Verdict::Expired | Verdict::Unconfirmed => {}
            Verdict::LateAck { attempt } => {
                out.number(u64::from(*attempt));
            }
            Verdict::Retry { fire, tier, failed, error } => {
                let slot = self.file(id, *fire, *tier, now);
                out.number(u64::from(*failed)).push(cut_error(error).as_bytes());
                out.number(fire.as_ms()).push(format!("{tier}x{slot}"));
            }
            Verdict::Dead { reason, failed, error } => {
                out.number(u64::from(*failed)).push(cut_error(error).as_bytes());
                out.number(*reason as u64);
            }
        }
    }

    /// Writes a target; its id, if it is known.
    fn target(&mut self, target: &Target, needs: &Needs, out: &mut Args) -> Option<TimerId> {
        match target {
            Target::Id(id) => {
                self.id(*id);
                out.push([b"i".as_slice(), &id.to_bytes()].concat());
                Some(*id)
            }
            Target::Key(dest, key) => {
                *self.keyed = true;
                let field = key_field(self.dests, dest, key);
                out.push([b"k".as_slice(), &field].concat());
                let id = needs.named.get(&field).copied();
                id.into_iter().for_each(|id| self.id(id));
                id
            }
        }
    }

    /// A place away from the birth position.
    fn file(&mut self, id: TimerId, fire: Time, track: u8, now: Time) -> usize {
        let width = SlotWidth::for_distance(fire.ms_since(now));
        let size = Weight::of(id, self.mirror, self.hints).bytes;
        let number = self.place(id, fire, track, width, size);
        self.hints.note(id, self.slots[number - 1]);
        number
    }

    /// The number of the slot that a timer is to be filed in.
    fn place(&mut self, id: TimerId, fire: Time, track: u8, width: SlotWidth, size: usize) -> usize {
        let same = |p: &&Placed| p.id == id && p.fire == fire && p.slot.track == track;
        let slot = self.placed.iter().find(same).map(|p| p.slot);
        let slot = slot.unwrap_or_else(|| self.place_anew(id, fire, track, width, size));
        self.slot(slot)
    }

    fn place_anew(&mut self, id: TimerId, fire: Time, track: u8, width: SlotWidth, size: usize) -> SlotKey {
        let slot = self.mirror.place(id, fire, track, width, size, self.no);
        self.placed.push(Placed { id, fire, slot, size });
        slot
    }

    fn id(&mut self, id: TimerId) {
        if self.seen.insert(id) {
            self.ids.push(id);
            self.shelves |= 1 << shelf(id);
        }
    }

    /// The entry of an id in the script's table of ids.
    fn places(&mut self, id: TimerId, out: &mut Vec<u8>) {
        let mut places = self.mirror.birth_places(id);
        if let Some(slot) = self.hints.get(id).filter(|slot| self.mirror.has(*slot)) {
            match places.iter().position(|place| *place == slot) {
                Some(at) => places.swap(0, at),
                None => _ = self.slot(slot),
            }
        }
        out.extend(id.to_bytes());
        // 64 siblings of each of three widths and seven levels of a second at most: it fits.
        out.push(places.len() as u8);
        for slot in places {
            out.extend((self.slot(slot) as u16).to_be_bytes());
        }
    }

    /// The number of a slot in this script, from 1.
    fn slot(&mut self, slot: SlotKey) -> usize {
        let slots = &mut self.slots;
        *self.numbers.entry(slot).or_insert_with(|| {
            slots.push(slot);
            slots.len()
        })
    }
}

/// The field of an application key, as `lua/timers.lua` makes it from a record.
pub(crate) fn key_field(dests: &Destinations, dest: &Destination, key: &Key) -> Vec<u8> {
    let mut field = dests.number(dest).to_string().into_bytes();
    field.push(b':');
    field.extend_from_slice(key.as_str().as_bytes());
    field
}

/// The shelf on which a timer is that is not at its birth position.
const fn shelf(id: TimerId) -> u8 {
    id.to_bytes()[15] % SHELVES
}

fn fixed_keys(keys: &Keyspace, now: Time) -> Vec<String> {
    let mut all = Vec::with_capacity(FIXED_KEYS + 8);
    all.push(keys.owner());
    all.extend(keys.ended(now));
    all.extend([keys.dead(), keys.taken(), keys.park()]);
    all
}

/// Declares shelves of moved timers, and all of application keys or none; their numbers in KEYS, 0 for the others.
fn declare_shelves(keys: &Keyspace, moved: u16, keyed: bool, out: &mut Vec<String>) -> Vec<u8> {
    let mut declare = |wanted: bool, key: &dyn Fn(u8) -> String, shelf| {
        if wanted {
            out.push(key(shelf));
        }
        // At most 39 keys by now.
        if wanted { out.len() as u8 } else { 0 }
    };
    let moved = (0..SHELVES).map(|s| (moved >> s & 1 == 1, s));
    let mut numbers: Vec<u8> = moved.map(|(wanted, s)| declare(wanted, &|s| keys.moved(s), s)).collect();
    numbers.extend((0..SHELVES).map(|s| declare(keyed, &|s| keys.app_keys(s), s)));
    numbers
}

/// Declares each index once; the number in KEYS for each slot, in two bytes.
fn declare_indexes(keys: &Keyspace, indexes: &[IndexKey], out: &mut Vec<String>) -> Vec<u8> {
    let mut numbers: HashMap<IndexKey, u16> = HashMap::new();
    indexes
        .iter()
        .flat_map(|index| {
            let number = *numbers.entry(*index).or_insert_with(|| {
                out.push(keys.index(*index));
                out.len() as u16
            });
            number.to_be_bytes()
        })
        .collect()
}
