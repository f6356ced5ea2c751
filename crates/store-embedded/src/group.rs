//! The header of a write batch, and the file that says up to which batch was synced.
//!
//! Purpose: to tell a batch that a power cut tore from one that was answered and then damaged, and
//! to notice a batch that is missing. The engine's batches have neither numbers nor a checksum over
//! their sequence numbers.
//!
//! Invariant: `synced` never names a batch that is not on disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::{Buf, BufMut};
use xxhash_rust::xxh3::xxh3_64;

/// The key of the header, in the space of facts. No other key of any space has one byte of this
/// value.
pub(crate) const KEY: &[u8] = b"n";
/// Begins every header's value: eight bytes that are unlikely anywhere else in a journal.
pub(crate) const MAGIC: &[u8; 8] = b"mtGrp\xf3\x01\n";
/// Bytes of a header's value.
pub(crate) const LEN: usize = 40;

/// The header of a batch. A batch is written with one sync, so it is answered as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Group {
    /// The batch's number. Batches are numbered from 1, without gaps.
    pub(crate) last: u64,
    /// The first number it stands for: its own, or that of the first lost batch if a repair wrote
    /// it in place of lost ones.
    pub(crate) first: u64,
    /// This batch and all before it were on disk when this one was written.
    pub(crate) synced: u64,
    /// The engine's sequence number of this batch is not lower. Those of all earlier ones are.
    pub(crate) seqno_floor: u64,
}

impl Group {
    pub(crate) fn encode(self) -> [u8; LEN] {
        let mut value = [0; LEN];
        let mut free = &mut value[..];
        free.put_slice(MAGIC);
        for number in [self.last, self.first, self.synced, self.seqno_floor] {
            free.put_u64(number);
        }
        value
    }

    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        let mut rest = value.strip_prefix(MAGIC).filter(|rest| rest.len() == LEN - MAGIC.len())?;
        Some(Self {
            last: rest.get_u64(),
            first: rest.get_u64(),
            synced: rest.get_u64(),
            seqno_floor: rest.get_u64(),
        })
    }
}

/// Name of the watermark's file in the data directory.
pub(crate) const WATERMARK: &str = "mtimer-synced";
const WATERMARK_MAGIC: &[u8; 8] = b"mtSync\x01\n";
const WATERMARK_LEN: usize = 24;

/// The file that holds the number of the last synced batch. It is written after every sync and
/// synced only when the store closes: a crash of the process leaves it exact, a power cut leaves it
/// at most behind.
#[derive(Debug)]
pub(crate) struct Watermark(File);

impl Watermark {
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        let path = directory.join(WATERMARK);
        Ok(Self(File::options().create(true).truncate(false).write(true).open(path)?))
    }

    /// Records that everything up to this batch is on disk.
    pub(crate) fn set(&self, synced: u64) -> io::Result<()> {
        let mut bytes = [0; WATERMARK_LEN];
        let mut free = &mut bytes[..];
        free.put_slice(WATERMARK_MAGIC);
        free.put_u64(synced);
        let checksum = xxh3_64(&bytes[..16]);
        bytes[16..].copy_from_slice(&checksum.to_be_bytes());
        self.0.write_all_at(&bytes, 0)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// Reads the watermark's file. `None` if there is none, or none that can be read: then the journal
/// alone tells which batches were synced.
///
/// # Errors
///
/// If the file is there and cannot be read.
pub(crate) fn watermark(directory: &Path) -> io::Result<Option<u64>> {
    match std::fs::read(directory.join(WATERMARK)) {
        Ok(bytes) => Ok(decode_watermark(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn decode_watermark(bytes: &[u8]) -> Option<u64> {
    let (head, checksum) = bytes.split_at_checked(16).filter(|(_, rest)| rest.len() == 8)?;
    let synced = head.strip_prefix(WATERMARK_MAGIC)?;
    (xxh3_64(head).to_be_bytes() == checksum).then(|| synced.try_into().ok().map(u64::from_be_bytes))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_read_back() {
        let group = Group { last: 9, first: 7, synced: 6, seqno_floor: 12 };
        assert_eq!(Group::decode(&group.encode()), Some(group));
        assert_eq!(Group::decode(&group.encode()[1..]), None);
        assert_eq!(Group::decode(b""), None);
    }

    #[test]
    fn a_watermark_reads_back_unless_it_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(watermark(dir.path()).unwrap(), None);
        let file = Watermark::open(dir.path()).unwrap();
        for synced in [3, 1_000_000] {
            file.set(synced).unwrap();
            assert_eq!(watermark(dir.path()).unwrap(), Some(synced));
        }
        let path = dir.path().join(WATERMARK);
        let bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 4;
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(watermark(dir.path()).unwrap(), None);
        }
    }
}
