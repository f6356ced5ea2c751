//! Messages as JSON: numbers of 64 and 128 bits are strings, and so are bytes.

use std::io::{self, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::ser::{CompactFormatter, Formatter};

/// Writes numbers that not every language has as strings.
struct Strings;

impl Formatter for Strings {
    fn write_u64<W: ?Sized + Write>(&mut self, writer: &mut W, value: u64) -> io::Result<()> {
        write!(writer, "\"{value}\"")
    }

    fn write_u128<W: ?Sized + Write>(&mut self, writer: &mut W, value: u128) -> io::Result<()> {
        write!(writer, "\"{value}\"")
    }

    fn write_byte_array<W: ?Sized + Write>(&mut self, writer: &mut W, value: &[u8]) -> io::Result<()> {
        let text = std::str::from_utf8(value).map_err(io::Error::other)?;
        let mut json = serde_json::Serializer::with_formatter(writer, CompactFormatter);
        text.serialize(&mut json).map_err(io::Error::other)
    }
}

/// Writes a message.
pub(super) fn write(message: &impl Serialize) -> String {
    let mut text = Vec::new();
    message.serialize(&mut serde_json::Serializer::with_formatter(&mut text, Strings)).unwrap();
    String::from_utf8(text).unwrap()
}

/// Reads a message, in which no text has digits only.
pub(super) fn read<M: DeserializeOwned>(json: &str) -> M {
    let parts: Vec<&str> = json.split('"').collect();
    let mut text = String::new();
    for (n, part) in parts.iter().enumerate() {
        let is_number = n % 2 == 1 && !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        match (n % 2 == 1, is_number) {
            (true, true) => text.push_str(part),
            (true, false) => text.extend(["\"", part, "\""]),
            (false, _) => text.push_str(part),
        }
    }
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {json}"))
}
