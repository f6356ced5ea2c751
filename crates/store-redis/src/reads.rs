//! Looking into a partition: single timers, listings, counts; and the picture that a new owner starts from.

use bytes::{Buf, Bytes};
use mtimer_store::{
    Census, DeadFilter, DeadLetter, InFlight, LaneError, Page, Place, Record, RecordError, Taken, Unconfirmed,
};
use mtimer_types::{DeadReason, Destination, Epoch, Target, Time, TimerId, limits};

use crate::dests;
use crate::keys::{IndexKey, SHELVES, SlotKey};
use crate::lane::Engine;
use crate::load::timer_id;
use crate::mirror::Room;
use crate::plan::Plan;
use crate::resp::{Args, Reply};
use crate::script::Script;
use crate::window::{Alone, Work};

/// Entries of each index that are read at a time.
const INDEX_PAGE: u64 = 300;
/// Destinations that are read at a time.
const DESTINATION_PAGE: u64 = 200;
/// Slots that are counted at a time.
const COUNT_STEP: usize = 500;
/// Bytes of records after which a page of a listing ends.
const PAGE_BYTES: u64 = 256 << 10;
/// Orders within one destination's park.
const PARK_ORDERS: u64 = 1 << 32;
/// Above every order that is given: the largest whole number a score holds exactly.
const MAX_ORDER: u64 = 1 << 53;
/// Unconfirmed timers have orders from here on in the index that they share with the taken ones, as in `lua/timers.lua`.
const UNCONFIRMED: u64 = 1 << 52;

impl Engine {
    async fn look(&mut self, script: Script, keys: Vec<String>, args: Args) -> Result<Vec<Reply>, LaneError> {
        let plan = Plan::new(script, keys, args);
        self.run_alone(Alone { plan, confirm: false }).await
    }

    /// All indexes of slots there can be.
    fn indexes() -> Vec<IndexKey> {
        let tiers = (1..=limits::MAX_RETRY_TIERS as u8).map(IndexKey::Retry);
        [IndexKey::Copy, IndexKey::List, IndexKey::Zset].into_iter().chain(tiers).collect()
    }

    /// Reads destinations and slot indexes: what an owner knows by heart.
    pub(crate) async fn rebuild(&mut self) -> Result<(), LaneError> {
        self.read_destinations().await?;
        let mut from = 0;
        loop {
            let indexes = Self::indexes();
            let mut keys = vec![self.facts.keys.owner()];
            keys.extend(indexes.iter().map(|index| self.facts.keys.index(*index)));
            let mut args = Args::new();
            args.number(from).number(from + INDEX_PAGE - 1);
            let pages = self.look(Script::Indexes, keys, args).await?;
            let mut more = false;
            for (index, page) in indexes.iter().zip(&pages) {
                let names = page.array().unwrap_or_default();
                more |= names.len() as u64 == INDEX_PAGE;
                for slot in names.iter().filter_map(Reply::text).filter_map(SlotKey::parse) {
                    let room = match index {
                        IndexKey::Copy => Room::Copy,
                        IndexKey::List => Room::List,
                        IndexKey::Zset | IndexKey::Retry(_) => Room::Waiting,
                    };
                    self.mirror.found(slot, room);
                }
            }
            if !more {
                return Ok(());
            }
            from += INDEX_PAGE;
        }
    }

    async fn read_destinations(&mut self) -> Result<(), LaneError> {
        loop {
            let first = self.dests.stored() as u64 + 1;
            let keys = vec![self.facts.keys.owner(), self.facts.keys.destinations()];
            let mut args = Args::new();
            (first..first + DESTINATION_PAGE).for_each(|n| {
                args.number(n);
            });
            let rows = self.look(Script::Destinations, keys, args).await?;
            for row in rows.first().and_then(Reply::array).unwrap_or_default() {
                let Some(text) = row.text() else { return Ok(()) };
                let damaged = || LaneError::Broken(format!("the destination {text:?} is damaged"));
                let dest = dests::decode(text).ok_or_else(damaged)?;
                let (number, _) = self.dests.intern(&dest);
                self.dests.note_stored(number);
            }
        }
    }

    /// See [`mtimer_store::Lane::get`].
    pub(crate) async fn get(&mut self, target: Target) -> Result<Option<(Record, Place)>, LaneError> {
        let found = self.alone_with(Work::Get(target.clone())).await?;
        let [id, place, record] = &found[..] else { return Ok(None) };
        let damaged = || LaneError::Broken(format!("the answer about {target:?} is damaged"));
        let id = timer_id(id).ok_or_else(damaged)?;
        let Some(place) = place.bytes().cloned().and_then(read_place) else {
            self.unreadable.report(self.partition, &RecordError { id, what: "its place is cut off" });
            return Ok(None);
        };
        Ok(self.record(id, &record.bytes().cloned().unwrap_or_default()).map(|record| (record, place)))
    }

    /// A record; `None` for one that cannot be read, which is told: it must not take others, or the lane, with it.
    fn record(&mut self, id: TimerId, bytes: &Bytes) -> Option<Record> {
        let read = Record::decode(id, bytes, |number| self.dests.name(number));
        if let Err(error) = &read {
            self.unreadable.report(self.partition, error);
        }
        read.ok()
    }

    /// See [`mtimer_store::Lane::parked_destinations`].
    pub(crate) async fn parked_destinations(&mut self) -> Result<Vec<(Destination, u64)>, LaneError> {
        let mut found = Vec::new();
        let mut from = 0;
        loop {
            let keys = vec![self.facts.keys.owner(), self.facts.keys.park()];
            let mut args = Args::new();
            args.number(from).number(DESTINATION_PAGE);
            let answer = self.look(Script::ParkedDestinations, keys, args).await?;
            let rows = answer.first().and_then(Reply::array).unwrap_or_default();
            for row in rows.chunks_exact(2) {
                let number = row[0].number().and_then(|n| u32::try_from(n).ok());
                if let (Some(dest), Some(count)) = (number.and_then(|n| self.dests.name(n)), row[1].number())
                {
                    found.push((dest, count));
                }
            }
            match answer.get(1).and_then(Reply::number) {
                Some(next) => from = next,
                None => return Ok(found),
            }
        }
    }

    /// A page of a listing: entries of `moved` with their orders, and the order to go on at.
    async fn listing(
        &mut self,
        index: String,
        from: u64,
        to: u64,
        limit: u32,
    ) -> Result<(Vec<Listed>, Option<u64>), LaneError> {
        let mut keys = vec![self.facts.keys.owner(), index];
        keys.extend((0..SHELVES).map(|shelf| self.facts.keys.moved(shelf)));
        let mut args = Args::new();
        args.number(from).number(to).number(u64::from(limit.clamp(1, limits::MAX_PAGE))).number(PAGE_BYTES);
        let answer = self.look(Script::Listing, keys, args).await?;
        let rows = answer.first().and_then(Reply::array).unwrap_or_default();
        let entry = |row: &[Reply]| Some((timer_id(&row[0])?, order(&row[1])?, row[2].bytes()?.clone()));
        Ok((rows.chunks_exact(3).filter_map(entry).collect(), answer.get(1).and_then(order)))
    }

    /// See [`mtimer_store::Lane::parked`].
    pub(crate) async fn parked(
        &mut self,
        dest: &Destination,
        cursor: u64,
        limit: u32,
    ) -> Result<Page<Record>, LaneError> {
        let base = u64::from(self.dests.number(dest)) * PARK_ORDERS;
        if base == 0 {
            return Ok(Page { rows: Vec::new(), next: None });
        }
        let mut from = base + cursor.min(PARK_ORDERS - 1);
        let limit = limit.max(1) as usize;
        let (mut rows, mut unreadable) = (Vec::new(), 0);
        loop {
            // Whoever asks for one page only must get past rows that cannot be read, however many there are.
            let count = u32::try_from(limit - rows.len() + unreadable).unwrap_or(u32::MAX);
            let (entries, next) =
                self.listing(self.facts.keys.park(), from, base + PARK_ORDERS - 1, count).await?;
            for (id, order, entry) in entries {
                self.hints.note_size(id, entry.len());
                if rows.len() == limit {
                    return Ok(Page { rows, next: Some(order - base) });
                }
                let parked = entry.first() == Some(&b'p');
                match parked.then(|| self.record(id, &entry.slice(1..))).flatten() {
                    Some(record) => rows.push(record),
                    None => unreadable += 1,
                }
            }
            match next {
                Some(next) if rows.is_empty() => from = next,
                next => return Ok(Page { rows, next: next.map(|n| n - base) }),
            }
        }
    }

    /// See [`mtimer_store::Lane::dead`].
    pub(crate) async fn dead(
        &mut self,
        filter: &DeadFilter,
        cursor: u64,
        limit: u32,
    ) -> Result<Page<DeadLetter>, LaneError> {
        let (entries, next) = self.listing(self.facts.keys.dead(), cursor, MAX_ORDER, limit).await?;
        let mut rows = Vec::new();
        for (id, _, mut entry) in entries {
            self.hints.note_size(id, entry.len());
            let Some((reason, died)) = read_dead(&mut entry) else { continue };
            let Some(record) = self.record(id, &entry) else { continue };
            if filter.accepts(&record.timer.dest) {
                rows.push(DeadLetter { record, reason, died });
            }
        }
        Ok(Page { rows, next })
    }

    /// See [`mtimer_store::Lane::taken`].
    pub(crate) async fn taken(&mut self, cursor: u64, limit: u32) -> Result<Page<Taken>, LaneError> {
        let (entries, next) = self.listing(self.facts.keys.taken(), cursor, UNCONFIRMED - 1, limit).await?;
        let mut rows = Vec::new();
        for (id, _, mut entry) in entries {
            let Some(epoch) = read_taken(&mut entry) else { continue };
            rows.extend(self.record(id, &entry).map(|record| Taken { record, epoch }));
        }
        Ok(Page { rows, next })
    }

    /// See [`mtimer_store::Lane::unconfirmed`].
    pub(crate) async fn unconfirmed(
        &mut self,
        cursor: u64,
        limit: u32,
    ) -> Result<Page<Unconfirmed>, LaneError> {
        let from = cursor.max(UNCONFIRMED);
        let (entries, next) = self.listing(self.facts.keys.taken(), from, MAX_ORDER, limit).await?;
        let mut rows = Vec::new();
        for (id, _, mut entry) in entries {
            let Some((epoch, since)) = read_unconfirmed(&mut entry) else { continue };
            rows.extend(self.record(id, &entry).map(|record| Unconfirmed { record, epoch, since }));
        }
        Ok(Page { rows, next })
    }

    /// See [`mtimer_store::Lane::census`].
    pub(crate) async fn census(&mut self) -> Result<Census, LaneError> {
        let mut census = Census::default();
        let slots: Vec<_> = self.mirror.slots().collect();
        for some in slots.chunks(COUNT_STEP) {
            let mut keys = vec![self.facts.keys.owner()];
            keys.extend(some.iter().map(|slot| self.facts.keys.slot(*slot)));
            let counts = self.look(Script::CountSlots, keys, Args::new()).await?;
            for (slot, count) in some.iter().zip(&counts) {
                let field = if slot.track == 0 { &mut census.pending } else { &mut census.retrying };
                *field += count.number().unwrap_or_default();
            }
        }
        let space = &self.facts.keys;
        let mut keys = vec![space.owner(), space.park(), space.taken(), space.dead()];
        keys.extend((0..SHELVES).map(|shelf| space.app_keys(shelf)));
        keys.extend((0..SHELVES).map(|shelf| space.moved(shelf)));
        keys.extend(Self::indexes().into_iter().map(|index| space.index(index)));
        let rest = self.look(Script::CountRest, keys, Args::new()).await?;
        let count = |i: usize| rest.get(i).and_then(Reply::number).unwrap_or_default();
        (census.parked, census.taken, census.dead, census.keys) = (count(0), count(1), count(2), count(3));
        // Entries for moved ids beyond those that hold a parked, taken or dead timer, and entries of slot indexes.
        let holding = census.parked + census.taken + census.dead;
        census.residue = count(4).saturating_sub(holding) + count(5);
        Ok(census)
    }

    /// See [`mtimer_store::Lane::release`].
    pub(crate) async fn release(&mut self, in_flight: &[InFlight]) -> Result<(), LaneError> {
        let mut args = Args::new();
        args.push(encode_in_flight(in_flight));
        let plan = Plan::new(Script::Release, vec![self.facts.keys.owner()], args);
        self.run_alone(Alone { plan, confirm: true }).await.map(drop)
    }
}

/// A row of a listing: which timer, its order, its entry of `moved`.
type Listed = (TimerId, u64, Bytes);

/// A score, which comes as a floating point number's text.
fn order(reply: &Reply) -> Option<u64> {
    let score: f64 = reply.text()?.parse().ok()?;
    (score >= 0.0 && score <= MAX_ORDER as f64).then_some(score as u64)
}

fn read_place(mut bytes: Bytes) -> Option<Place> {
    match bytes.first()? {
        b's' => {
            bytes.advance(1);
            let fire = Time::from_ms(bytes.try_get_uint_le(6).ok()?);
            Some(Place::Pending { fire, tier: bytes.try_get_u8().ok()? })
        }
        b'p' => Some(Place::Parked),
        b't' => read_taken(&mut bytes).map(|epoch| Place::Taken { epoch, unconfirmed: false }),
        b'u' => read_unconfirmed(&mut bytes).map(|(epoch, _)| Place::Taken { epoch, unconfirmed: true }),
        b'd' => Some(Place::Dead),
        _ => None,
    }
}

/// Takes the head off a taken timer's entry.
fn read_taken(entry: &mut Bytes) -> Option<Epoch> {
    if entry.try_get_u8().ok()? != b't' {
        return None;
    }
    let epoch = Epoch(entry.try_get_u64_le().ok()?);
    entry.try_get_u8().ok()?;
    Some(epoch)
}

/// Takes the head off an unconfirmed timer's entry.
fn read_unconfirmed(entry: &mut Bytes) -> Option<(Epoch, Time)> {
    if entry.try_get_u8().ok()? != b'u' {
        return None;
    }
    let epoch = Epoch(entry.try_get_u64_le().ok()?);
    Some((epoch, Time::from_ms(entry.try_get_uint_le(6).ok()?)))
}

/// Takes the head off a dead letter's entry.
fn read_dead(entry: &mut Bytes) -> Option<(DeadReason, Time)> {
    if entry.try_get_u8().ok()? != b'd' {
        return None;
    }
    let reason = DeadReason::from_u8(entry.try_get_u8().ok()?)?;
    Some((reason, Time::from_ms(entry.try_get_uint_le(6).ok()?)))
}

fn encode_in_flight(rows: &[InFlight]) -> Vec<u8> {
    let mut out = Vec::with_capacity(rows.len() * 44);
    for row in rows {
        out.extend(row.id.to_bytes());
        out.extend(row.attempt.to_le_bytes());
        out.extend(row.session.to_le_bytes());
        out.extend(row.until.as_ms().to_le_bytes());
    }
    out
}

/// What [`Engine::release`] has left.
pub(crate) fn decode_in_flight(mut bytes: Bytes) -> Vec<InFlight> {
    std::iter::from_fn(|| {
        Some(InFlight {
            id: TimerId::from_u128(bytes.try_get_u128().ok()?),
            attempt: bytes.try_get_u32_le().ok()?,
            session: bytes.try_get_u128_le().ok()?,
            until: Time::from_ms(bytes.try_get_u64_le().ok()?),
        })
    })
    .collect()
}
