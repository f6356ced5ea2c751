//! The file that identifies a data directory: format, partition count, a checksum.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use crate::open_error::{OpenError, io_error};

/// The file's name.
pub(crate) const MARKER: &str = "mtimer-store";
const TITLE: &str = "mtimer embedded store";
/// The only format that is read. A change of the stored bytes needs another one.
pub(crate) const FORMAT: u32 = 13;
const CHECK: &str = "check ";

/// Refuses a directory of another format or another number of partitions.
pub(crate) fn check_marker(path: &Path, marker: &Path, partitions: u16) -> Result<(), OpenError> {
    let stored = read_marker(path, marker)?;
    if stored != partitions {
        return Err(OpenError::Partitions { path: path.to_owned(), stored, given: partitions });
    }
    Ok(())
}

/// The directory's partition count, if the directory has the format that is read.
pub(crate) fn read_marker(path: &Path, marker: &Path) -> Result<u16, OpenError> {
    let damaged = || OpenError::Damaged {
        path: path.to_owned(),
        what: format!("{MARKER} at offset 0: it does not say its format and partition count"),
    };
    let bytes = std::fs::read(marker).map_err(io_error("read", marker))?;
    let text = String::from_utf8(bytes).map_err(|_| damaged())?;
    let (text, checksum) = match text.rsplit_once(CHECK) {
        Some((text, checksum)) => (text, Some(checksum)),
        None => (&text[..], None),
    };
    let mut lines = text.lines();
    if lines.next() != Some(TITLE) || checksum.is_some_and(|checksum| checksum != checksum_of(text)) {
        return Err(damaged());
    }
    let number = |line: Option<&str>, name: &str| line?.strip_prefix(name)?.trim().parse::<u32>().ok();
    let format = number(lines.next(), "format").ok_or_else(damaged)?;
    // Formats 1 and 2 have no checksum.
    if format != FORMAT {
        return Err(OpenError::Format { path: path.to_owned(), stored: format, ours: FORMAT });
    }
    if checksum.is_none() {
        return Err(damaged());
    }
    number(lines.next(), "partitions").and_then(|n| u16::try_from(n).ok()).ok_or_else(damaged)
}

/// The name under which it is written first.
pub(crate) fn temporary_name() -> String {
    format!("{MARKER}.new")
}

/// Writes the marker so that it is there whole or not at all.
pub(crate) fn write_marker(path: &Path, marker: &Path, partitions: u16) -> Result<(), OpenError> {
    let temporary = path.join(temporary_name());
    let write = || {
        let text = format!("{TITLE}\nformat {FORMAT}\npartitions {partitions}\n");
        let mut file = File::create(&temporary)?;
        write!(file, "{text}{}", check_line(&text))?;
        file.sync_all()?;
        std::fs::rename(&temporary, marker)?;
        File::open(path)?.sync_all()
    };
    write().map_err(io_error("write", marker))
}

/// The last line, for a text before it.
pub(crate) fn check_line(text: &str) -> String {
    format!("{CHECK}{}", checksum_of(text))
}

fn checksum_of(text: &str) -> String {
    format!("{:016x}\n", xxh3_64(text.as_bytes()))
}
