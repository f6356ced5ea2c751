//! The engine's journals, read without the engine: which batches are whole, where the first flaw
//! is, and whether the batches after it were ever answered.
//!
//! The engine (fjall 3.1.13) stops reading silently at some flaws, refuses others, and cannot tell
//! whether a batch had been synced. So the journals are checked here before it opens them; a golden
//! test (`the_format_is_that_of_the_engine`) fails if a new version writes another format.
//!
//! A batch is: start (tag 1, item count u32, sequence number u64), items, end (tag 3, XXH3-64 over
//! the items' bytes, `FJL\x03`). An item is: tag 2, kind, compression, keyspace u64, key length
//! u16, value length u32, stored length u32, key, value. All integers are little endian. Behind the
//! last batch there may be zeros, which the engine allocates ahead.
//!
//! Not in here: files.

use bytes::Buf;
use xxhash_rust::xxh3::Xxh3;

use crate::group::{self, Group};

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const TRAILER: &[u8] = b"FJL\x03";
/// Bytes of a start, of an item but for its key and value, of an end.
const START_LEN: usize = 13;
const ITEM_LEN: usize = 21;
const END_LEN: usize = 13;
/// Where a header's value stands in a batch: the header is the first item.
const HEADER_AT: usize = START_LEN + ITEM_LEN + group::KEY.len();

/// A whole batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct JournalBatch {
    /// Its first byte.
    pub(crate) at: usize,
    /// Behind its last byte.
    pub(crate) end: usize,
    pub(crate) seqno: u64,
    /// Its header, and the keyspace that the header is in. Every batch of the store has one.
    pub(crate) header: Option<(Group, u64)>,
}

/// Reads the batch at an offset.
///
/// # Errors
///
/// The flaw, in words.
pub(crate) fn parse(bytes: &[u8], at: usize) -> Result<JournalBatch, &'static str> {
    const SHORT: &str = "the batch is cut off";
    let mut rest = bytes.get(at..).ok_or(SHORT)?;
    let length = rest.len();
    if rest.try_get_u8().map_err(|_| SHORT)? != START {
        return Err("no batch starts here");
    }
    let count = rest.try_get_u32_le().map_err(|_| SHORT)?;
    let seqno = rest.try_get_u64_le().map_err(|_| SHORT)?;
    let mut hash = Xxh3::new();
    let mut header = None;
    for n in 0..count {
        let item = rest;
        let mut fields = rest;
        let taken = match fields.try_get_u8().map_err(|_| SHORT)? {
            CLEAR => 1 + 8,
            ITEM => {
                let fixed = fields.split_at_checked(ITEM_LEN - 1).ok_or(SHORT)?.0;
                let mut fixed = fixed;
                let (kind, compression) = (fixed.get_u8(), fixed.get_u8());
                if kind > 2 || compression > 1 {
                    return Err("an item's kind is unknown");
                }
                let keyspace = fixed.get_u64_le();
                let (key, value) = (usize::from(fixed.get_u16_le()), fixed.get_u32_le());
                let stored = fixed.get_u32_le();
                if compression == 0 && value != stored {
                    return Err("an item's lengths differ");
                }
                let taken = ITEM_LEN + key + stored as usize;
                if n == 0 {
                    let pair = item.get(ITEM_LEN..taken).ok_or(SHORT)?;
                    let value = pair.strip_prefix(group::KEY).filter(|_| key == group::KEY.len());
                    header = value.and_then(Group::decode).map(|group| (group, keyspace));
                }
                taken
            }
            _ => return Err("an item's tag is unknown"),
        };
        hash.update(item.get(..taken).ok_or(SHORT)?);
        rest = &item[taken..];
    }
    let mut end = rest.get(..END_LEN).ok_or(SHORT)?;
    if end.get_u8() != END {
        return Err("the batch has no end");
    }
    if end.get_u64_le() != hash.digest() {
        return Err("the checksum does not match");
    }
    if end != TRAILER {
        return Err("the batch has no trailer");
    }
    Ok(JournalBatch { at, end: at + length - rest.len() + END_LEN, seqno, header })
}

/// The next whole batch with a header that begins at an offset or behind it.
pub(crate) fn resume(bytes: &[u8], from: usize) -> Option<JournalBatch> {
    let mut search = from.saturating_add(HEADER_AT);
    loop {
        let found = search + find(bytes.get(search..)?, group::MAGIC)?;
        let batch = parse(bytes, found - HEADER_AT).ok().filter(|batch| batch.header.is_some());
        if batch.is_some() {
            return batch;
        }
        search = found + 1;
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let first = *what.first()?;
    let mut from = 0;
    while let Some(at) = bytes.get(from..)?.iter().position(|byte| *byte == first) {
        if bytes[from + at..].starts_with(what) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

/// A batch with one item, the header: written by a repair in place of batches that were lost.
pub(crate) fn bridge(group: Group, keyspace: u64) -> Vec<u8> {
    let value = group.encode();
    let mut item = vec![ITEM, 0, 0];
    item.extend(keyspace.to_le_bytes());
    item.extend((group::KEY.len() as u16).to_le_bytes());
    item.extend((value.len() as u32).to_le_bytes());
    item.extend((value.len() as u32).to_le_bytes());
    item.extend(group::KEY);
    item.extend(value);
    let mut hash = Xxh3::new();
    hash.update(&item);
    let mut batch = vec![START];
    batch.extend(1_u32.to_le_bytes());
    batch.extend(group.seqno_floor.to_le_bytes());
    batch.extend(item);
    batch.push(END);
    batch.extend(hash.digest().to_le_bytes());
    batch.extend(TRAILER);
    batch
}

/// The place of a flaw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Flaw {
    pub(crate) at: usize,
    pub(crate) what: &'static str,
}

/// The kinds of flaws, and the consequence of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FlawKind {
    /// Nothing of it was synced: it may be cut off.
    Torn,
    /// Some of it was synced, so it may have been answered. `next` is the next whole batch.
    Damaged { next: Option<JournalBatch> },
}

/// Reads journals one after the other, the oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walk {
    /// The last batch's number, if there was one.
    pub(crate) last: Option<u64>,
    /// The last batch's sequence number.
    pub(crate) seqno: Option<u64>,
    /// The highest number that the headers say was synced.
    pub(crate) synced: u64,
    /// The keyspace of the headers.
    pub(crate) keyspace: Option<u64>,
    /// Whole batches.
    pub(crate) batches: u64,
}

impl Walk {
    /// Takes whole batches in order, from an offset to the first flaw or to the end. `bytes`: the
    /// journal without the zeros at its end. Returns where it stopped.
    pub(crate) fn take(&mut self, bytes: &[u8], mut at: usize) -> (usize, Option<Flaw>) {
        let mut parsed = parse(bytes, at);
        while at < bytes.len() {
            let next = parsed.and_then(|batch| parse(bytes, batch.end));
            match parsed.and_then(|batch| self.accept(&batch, next.as_ref().ok()).map(|()| batch)) {
                Ok(batch) => (at, parsed) = (batch.end, next),
                Err(what) => return (at, Some(Flaw { at, what })),
            }
        }
        (at, None)
    }

    /// Takes a batch if it is the next one. The sequence number is outside the checksum; one that
    /// is too high is only told by the header of the batch behind.
    fn accept(&mut self, batch: &JournalBatch, next: Option<&JournalBatch>) -> Result<(), &'static str> {
        let next_floor = next.and_then(|next| next.header).map(|(group, _)| group.seqno_floor);
        if next_floor.is_some_and(|floor| batch.seqno >= floor) {
            return Err("the batch's sequence number is too high");
        }
        if self.seqno.is_some_and(|last| batch.seqno <= last) {
            return Err("the batch's sequence number is not higher than the one before");
        }
        if batch.seqno > MAX_SEQNO {
            return Err("the batch's sequence number is out of range");
        }
        let Some((group, keyspace)) = batch.header else { return Err("the batch has no header") };
        if batch.seqno < group.seqno_floor {
            return Err("the batch's sequence number is too low");
        }
        if self.last.is_some_and(|last| group.first != last + 1) {
            return Err("batches before this one are missing");
        }
        self.last = Some(group.last);
        self.synced = self.synced.max(group.synced);
        self.keyspace = Some(keyspace);
        self.seqno = Some(batch.seqno);
        self.batches += 1;
        Ok(())
    }

    /// Goes on with a batch behind a flaw, however many are missing in between.
    pub(crate) fn skip_to(&mut self, batch: &JournalBatch) {
        let first = batch.header.map(|(group, _)| group.first);
        self.last = first.map(|first| first.saturating_sub(1));
        self.seqno = None;
    }

    /// Whether the flawed bytes were synced. `watermark`: the number of the last synced batch
    /// according to its file. `is_sealed`: there is a newer journal, so this one was synced whole.
    pub(crate) fn judge(
        &self,
        bytes: &[u8],
        flaw: Flaw,
        watermark: Option<u64>,
        is_sealed: bool,
    ) -> FlawKind {
        let next = resume(bytes, flaw.at + 1).filter(|next| {
            // A batch with an older number is a copy within a payload.
            let first = next.header.map_or(0, |(group, _)| group.first);
            self.last.is_none_or(|last| first > last)
        });
        let missing = self.last.map(|last| last + 1);
        let synced_by = |synced: u64| match missing {
            Some(missing) => synced >= missing,
            // The number of the flawed batch is not known. It is below that of the next one.
            None => next.and_then(|next| next.header).is_some_and(|(group, _)| synced + 1 >= group.first),
        };
        let mut later = next;
        // A batch without a header that is whole was never torn: somebody else wrote it.
        let is_foreign = parse(bytes, flaw.at).is_ok_and(|batch| batch.header.is_none());
        let mut is_synced = is_sealed || is_foreign || synced_by(watermark.unwrap_or(0));
        while let (false, Some(batch)) = (is_synced, later) {
            is_synced = batch.header.is_some_and(|(group, _)| synced_by(group.synced));
            later = resume(bytes, batch.end);
        }
        if is_synced { FlawKind::Damaged { next } } else { FlawKind::Torn }
    }
}

/// Sequence numbers stay far below; the engine keeps the highest bit for itself.
const MAX_SEQNO: u64 = 1 << 60;

#[cfg(test)]
mod tests {
    use fjall::{Database, KeyspaceCreateOptions, PersistMode};

    use super::*;

    const KEYSPACE: u64 = 1;

    fn header(last: u64) -> Group {
        Group { last, first: last, synced: last - 1, seqno_floor: last * 10 }
    }

    /// Journals of batches with headers, and where each batch ends.
    fn written(numbers: impl IntoIterator<Item = u64>) -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for n in numbers {
            bytes.extend(bridge(header(n), KEYSPACE));
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    #[test]
    fn the_format_is_that_of_the_engine() {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::builder(dir.path()).open().unwrap();
        let space = db.keyspace("facts", KeyspaceCreateOptions::default).unwrap();
        let floor = db.seqno();
        let mut batch = db.batch();
        batch.insert(&space, group::KEY, Group { seqno_floor: floor, ..header(1) }.encode());
        batch.insert(&space, "long", vec![7; 10_000]);
        batch.remove(&space, "gone");
        batch.commit().unwrap();
        space.insert("one", "row").unwrap();
        db.persist(PersistMode::SyncAll).unwrap();
        let bytes = crate::check::read_journal(&dir.path().join("0.jnl")).unwrap();
        let first = parse(&bytes, 0).unwrap();
        assert_eq!(first.header.map(|(group, _)| group.last), Some(1));
        assert!(first.seqno >= floor);
        assert!(first.end < 2_000, "a long value is compressed");
        let second = parse(&bytes, first.end).unwrap();
        assert_eq!((second.end, second.header), (bytes.len(), None));
        // The start and the end as bytes, which a bridge imitates.
        assert_eq!(bytes[..5], [START, 3, 0, 0, 0]);
        assert_eq!(bytes[first.end - 4..first.end], *TRAILER);
        let last = bridge(Group { seqno_floor: first.seqno, ..header(1) }, KEYSPACE);
        assert_eq!(last[START_LEN..HEADER_AT], bytes[START_LEN..HEADER_AT]);
    }

    #[test]
    fn a_whole_batch_without_a_header_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::builder(dir.path()).open().unwrap();
        let space = db.keyspace("facts", KeyspaceCreateOptions::default).unwrap();
        space.insert("one", "row").unwrap();
        db.persist(PersistMode::SyncAll).unwrap();
        let bytes = crate::check::read_journal(&dir.path().join("0.jnl")).unwrap();
        let mut walk = Walk::default();
        let flaw = Flaw { at: 0, what: "the batch has no header" };
        assert_eq!(walk.take(&bytes, 0), (0, Some(flaw)));
        assert_eq!(walk.judge(&bytes, flaw, None, false), FlawKind::Damaged { next: None });
    }

    #[test]
    fn every_flipped_bit_of_every_batch_is_a_flaw_or_changes_nothing() {
        let (bytes, ends) = written(1..=4);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                let mut walk = Walk::default();
                let (_, flaw) = walk.take(&bytes, 0);
                // A sequence number may become another one that is in order.
                let in_seqno = ends.iter().any(|end| (end + 5..end + 13).contains(&at)) || at < 13;
                assert!(flaw.is_some() || in_seqno && walk.last == Some(4), "byte {at} bit {bit}");
                if let Some(flaw) = flaw {
                    let damaged =
                        matches!(walk.judge(&bytes, flaw, Some(4), false), FlawKind::Damaged { .. });
                    assert!(damaged, "byte {at} bit {bit}");
                }
            }
        }
    }

    #[test]
    fn a_flaw_is_torn_only_if_nothing_says_that_it_was_synced() {
        let (bytes, ends) = written(1..=4);
        let judge = |spoilt: usize, watermark, is_sealed| {
            let mut bytes = bytes.clone();
            bytes[spoilt] ^= 0x40;
            let mut walk = Walk::default();
            let (at, flaw) = walk.take(&bytes, 0);
            assert!(at <= spoilt);
            matches!(walk.judge(&bytes, flaw.unwrap(), watermark, is_sealed), FlawKind::Torn)
        };
        let (third, last) = (ends[1] + 40, ends[2] + 40);
        assert!(judge(last, None, false) && judge(last, Some(3), false), "nobody was answered");
        assert!(!judge(last, Some(4), false), "the watermark says that it was synced");
        assert!(!judge(last, None, true), "a newer journal says so");
        assert!(!judge(third, None, false) && !judge(0, None, false), "a later batch says so");
        // At the fast level several batches may follow the last sync, in any state.
        let mut bytes = Vec::new();
        for n in 1..=4 {
            bytes.extend(bridge(Group { synced: 1, ..header(n) }, KEYSPACE));
        }
        bytes[third] ^= 0x40;
        let mut walk = Walk::default();
        let (at, flaw) = walk.take(&bytes, 0);
        assert_eq!((at, walk.judge(&bytes, flaw.unwrap(), Some(1), false)), (ends[1], FlawKind::Torn));
    }

    #[test]
    fn a_batch_that_is_missing_is_a_flaw() {
        let (bytes, ends) = written([1, 2, 4]);
        let mut walk = Walk::default();
        let (at, flaw) = walk.take(&bytes, 0);
        let what = "batches before this one are missing";
        assert_eq!((at, flaw), (ends[1], Some(Flaw { at: ends[1], what })));
        assert!(matches!(walk.judge(&bytes, flaw.unwrap(), Some(4), false), FlawKind::Damaged { .. }));
    }
}
