//! The engine's tables and manifests, checked without the engine: it reads them as it needs them,
//! and some damage in them stops it, or makes it remove files that it does not know.
//!
//! A key space is a folder (`db/keyspaces/<n>`): `current` names the manifest (`v<n>`) and holds
//! its XXH3-128; the manifest lists the tables (`tables/<n>`) with theirs. A table begins with
//! blocks: a header of 33 bytes (`LSM\x03`, type, XXH3-128 of the data, stored and real length,
//! XXH3-128 of the header cut to 32 bits), then the data.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Buf;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::damage::Damage;

/// Bytes that are read at once.
const CHUNK: usize = 1024 * 1024;
const BLOCK_HEADER: usize = 33;

/// A table that a manifest lists.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) path: PathBuf,
    checksum: u128,
}

/// Reads the manifest of a key space, and returns its tables.
///
/// # Errors
///
/// Which file is damaged, where and how.
pub(crate) fn manifest(folder: &Path) -> Result<Vec<Listed>, Damage> {
    let current = folder.join("current");
    let bytes = read(&current)?;
    let (mut fields, kind) = match *bytes {
        [ref fields @ .., kind] if bytes.len() == 25 => (fields, kind),
        _ => return Err(Damage::new(&current, 0, "it does not name a manifest")),
    };
    if kind != 0 {
        return Err(Damage::new(&current, 24, "its checksum is of an unknown kind"));
    }
    let (version, checksum) = (fields.get_u64_le(), fields.get_u128_le());
    let path = folder.join(format!("v{version}"));
    if !path.is_file() {
        return Err(Damage::new(&current, 0, format!("it names the manifest v{version}, which is missing")));
    }
    let bytes = read(&path)?;
    if xxh3_128(&bytes) != checksum {
        return Err(Damage::new(&path, 0, "the manifest does not match its checksum in `current`"));
    }
    let tables = parse_manifest(&bytes).ok_or_else(|| Damage::new(&path, 0, "the manifest is unreadable"))?;
    let listed = |(id, checksum)| Listed { path: folder.join("tables").join(format!("{id}")), checksum };
    Ok(tables.into_iter().map(listed).collect())
}

fn read(path: &Path) -> Result<Vec<u8>, Damage> {
    std::fs::read(path).map_err(|error| Damage::new(path, 0, format!("it cannot be read: {error}")))
}

/// The tables in a manifest, which is an archive with a table of contents at its end.
fn parse_manifest(bytes: &[u8]) -> Option<Vec<(u64, u128)>> {
    let trailer = bytes.get(bytes.len().checked_sub(38)?..)?;
    let mut trailer = trailer.strip_prefix(b"SFA!\x01\x00")?;
    trailer.advance(16);
    let at = usize::try_from(trailer.get_u64_le()).ok()?;
    let mut contents = bytes.get(at..)?.strip_prefix(b"TOC!")?;
    for _ in 0..contents.try_get_u32_le().ok()? {
        let at = usize::try_from(contents.try_get_u64_le().ok()?).ok()?;
        let length = usize::try_from(contents.try_get_u64_le().ok()?).ok()?;
        let name = usize::from(contents.try_get_u16_le().ok()?);
        let (name, rest) = contents.split_at_checked(name)?;
        contents = rest;
        if name == b"tables" {
            return parse_tables(bytes.get(at..at.checked_add(length)?)?);
        }
    }
    None
}

fn parse_tables(mut section: &[u8]) -> Option<Vec<(u64, u128)>> {
    let mut tables = Vec::new();
    for _ in 0..section.try_get_u8().ok()? {
        for _ in 0..section.try_get_u8().ok()? {
            for _ in 0..section.try_get_u32_le().ok()? {
                let id = section.try_get_u64_le().ok()?;
                let kind = section.try_get_u8().ok()?;
                let checksum = section.try_get_u128_le().ok()?;
                section.try_get_u64_le().ok()?;
                if kind != 0 {
                    return None;
                }
                tables.push((id, checksum));
            }
        }
    }
    Some(tables)
}

impl Listed {
    pub(crate) fn bytes(&self) -> u64 {
        self.path.metadata().map_or(0, |metadata| metadata.len())
    }

    /// Checks the table against its checksum.
    ///
    /// # Errors
    ///
    /// Where it is damaged and how.
    pub(crate) fn check(&self) -> Result<(), Damage> {
        if !self.path.is_file() {
            return Err(Damage::new(&self.path, 0, "the table is missing"));
        }
        let failed = |error: io::Error| Damage::new(&self.path, 0, format!("it cannot be read: {error}"));
        if hash(&self.path).map_err(failed)? == self.checksum {
            return Ok(());
        }
        let bytes = std::fs::read(&self.path).map_err(failed)?;
        let (at, what) = first_flaw(&bytes);
        Err(Damage::new(&self.path, at as u64, what))
    }
}

fn hash(path: &Path) -> io::Result<u128> {
    let mut file = File::open(path)?;
    let mut hash = Xxh3::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hash.digest128()),
            read => hash.update(&chunk[..read]),
        }
    }
}

/// The first block that differs from what was written.
fn first_flaw(bytes: &[u8]) -> (usize, String) {
    let mut at = 0;
    while let Some((header, data)) =
        bytes.get(at..).and_then(|rest| rest.split_at_checked(BLOCK_HEADER)).filter(|(h, _)| {
            let (fields, sum) = h.split_at(BLOCK_HEADER - 4);
            fields.starts_with(b"LSM\x03") && sum == (xxh3_128(fields) as u32).to_le_bytes()
        })
    {
        let mut fields = &header[5..];
        let (checksum, length) = (fields.get_u128_le(), fields.get_u32_le() as usize);
        if data.get(..length).map(xxh3_128) != Some(checksum) {
            return (at, format!("a block of {length} bytes does not match its checksum"));
        }
        at += BLOCK_HEADER + length;
    }
    (at, "what follows here is not what was written (the table's checksum does not match)".to_owned())
}
