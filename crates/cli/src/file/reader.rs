//! Reading a file of lines twice, of any kind and size.
//!
//! Invariant: never more than one line in memory, and of a line never more than [`MAX_LINE`] bytes.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use crate::exit::{Exit, Failure};

/// Bytes of a line: the largest payload, every byte of it escaped in the longest way, is well below
/// it.
pub(crate) const MAX_LINE: usize = 1024 * 1024;

/// Something that can be read from its beginning more than once.
#[derive(Debug)]
pub(crate) struct InputSource {
    file: File,
    /// Bytes.
    pub(crate) len: u64,
}

impl InputSource {
    /// Opens a file; `-` is standard input, which is kept in a temporary file.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        if path == Path::new("-") {
            return Self::spool(io::stdin().lock());
        }
        let failed = |e: io::Error| Failure::file("read", path, &e);
        let file = File::open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if meta.is_dir() {
            return Err(Failure::usage(format!("{} is a folder: name a file", path.display())));
        }
        // A pipe or the like can be read once only.
        if meta.is_file() { Ok(Self { file, len: meta.len() }) } else { Self::spool(file) }
    }

    fn spool(mut from: impl Read) -> Result<Self, Failure> {
        let failed = |e: io::Error| {
            Failure::new(Exit::Failed, format!("cannot keep the input in a temporary file: {e}"))
        };
        let mut file = tempfile::tempfile().map_err(failed)?;
        let len = io::copy(&mut from, &mut file).map_err(failed)?;
        Ok(Self { file, len })
    }

    /// Its lines, from the first.
    pub(crate) fn lines(&mut self) -> io::Result<LineReader<BufReader<&File>>> {
        self.file.seek(SeekFrom::Start(0))?;
        Ok(LineReader::new(BufReader::with_capacity(256 * 1024, &self.file)))
    }
}

/// The lines of something.
#[derive(Debug)]
pub(crate) struct LineReader<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
    /// Bytes read so far.
    pub(crate) read: u64,
}

/// A line that is not blank.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Numbered<'a> {
    /// Counted from 1, blank lines included.
    pub(crate) number: u64,
    /// `None`: it has more than [`MAX_LINE`] bytes.
    pub(crate) text: Option<&'a [u8]>,
}

impl<R: BufRead> LineReader<R> {
    fn new(input: R) -> Self {
        Self { input, line: Vec::new(), number: 0, read: 0 }
    }

    /// The next line that is not blank; `None` at the end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Numbered<'_>>> {
        loop {
            let Some(fits) = self.read_line()? else { return Ok(None) };
            if !fits {
                return Ok(Some(Numbered { number: self.number, text: None }));
            }
            if self.line.iter().any(|b| !b.is_ascii_whitespace()) {
                break;
            }
        }
        let text = match self.number {
            1 => self.line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.line),
            _ => &self.line,
        };
        Ok(Some(Numbered { number: self.number, text: Some(text) }))
    }

    /// Reads a line without its end; whether it fits, or `None` at the end.
    fn read_line(&mut self) -> io::Result<Option<bool>> {
        self.line.clear();
        let (mut any, mut fits) = (false, true);
        loop {
            let available = match self.input.fill_buf() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            if available.is_empty() {
                break;
            }
            any = true;
            let end = available.iter().position(|b| *b == b'\n');
            let part = &available[..end.unwrap_or(available.len())];
            fits &= self.line.len() + part.len() <= MAX_LINE;
            if fits {
                self.line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(end.is_some());
            self.input.consume(used);
            self.read += used as u64;
            if end.is_some() {
                break;
            }
        }
        self.number += u64::from(any);
        Ok(any.then_some(fits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Vec<(u64, Option<usize>)> {
        let mut lines = LineReader::new(BufReader::with_capacity(7, text));
        let mut found = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            found.push((line.number, line.text.map(<[u8]>::len)));
        }
        assert_eq!(lines.read, text.len() as u64);
        found
    }

    #[test]
    fn lines_are_counted_and_blank_ones_left_out() {
        assert_eq!(all(b""), []);
        assert_eq!(all(b"\n \r\n"), []);
        assert_eq!(all(b"\xef\xbb\xbf{}\n\n{\"a\":1}\n  \nlast"), [(1, Some(2)), (3, Some(7)), (5, Some(4))]);
    }

    #[test]
    fn a_line_without_an_end_does_not_fill_the_memory() {
        let mut text = vec![b'x'; MAX_LINE + 1];
        text.extend_from_slice(b"\n{}\n");
        assert_eq!(all(&text), [(1, None), (2, Some(2))]);
        assert_eq!(all(&vec![b'x'; MAX_LINE]), [(1, Some(MAX_LINE))]);
    }

    #[test]
    fn what_can_be_read_once_can_be_read_twice() {
        let mut source = InputSource::spool(&b"a\nb\n"[..]).unwrap();
        for _ in 0..2 {
            let mut lines = source.lines().unwrap();
            assert_eq!(lines.next().unwrap().unwrap().text, Some(&b"a"[..]));
            assert_eq!(lines.next().unwrap().unwrap().number, 2);
            assert!(lines.next().unwrap().is_none());
        }
        assert_eq!(source.len, 4);
    }
}
