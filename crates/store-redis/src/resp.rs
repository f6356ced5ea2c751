//! RESP 2, as far as a client needs it.
//!
//! Purpose: commands to bytes, bytes to replies. Not in here: sockets, meaning.

use bytes::{Buf, Bytes, BytesMut};

/// Nesting of replies that is accepted: ours have three levels.
const MAX_DEPTH: usize = 8;
/// Bytes of one string that are accepted: Redis's own limit.
const MAX_BULK: usize = 512 << 20;
/// Elements of one array that are accepted.
const MAX_ARRAY: usize = 1 << 24;
/// Elements that an array gets room for before they are there.
const RESERVED: usize = 1 << 12;

/// What a server said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    Nil,
    Int(i64),
    Status(String),
    Error(String),
    Bulk(Bytes),
    Array(Vec<Reply>),
}

impl Reply {
    /// Bytes of a string, or nothing.
    pub(crate) fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Bulk(b) => Some(b),
            _ => None,
        }
    }

    /// Text of a string or status, or nothing.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Bulk(b) => std::str::from_utf8(b).ok(),
            Self::Status(s) => Some(s),
            _ => None,
        }
    }

    /// A number, also if it comes as text.
    pub(crate) fn number(&self) -> Option<u64> {
        match self {
            Self::Int(n) => u64::try_from(*n).ok(),
            other => other.text()?.parse().ok(),
        }
    }

    pub(crate) fn array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(a) => Some(a),
            _ => None,
        }
    }
}

/// Not RESP.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the server does not speak the Redis protocol: {0}")]
pub(crate) struct ProtocolError(pub(crate) &'static str);

/// Reads replies as their bytes come in. What was read of a reply stays read, however many pieces it comes in.
#[derive(Default, Debug)]
pub(crate) struct Decoder {
    /// Arrays that are being read, the outermost first.
    open: Vec<Open>,
    /// Bytes of the string that is being read.
    bulk: Option<usize>,
}

/// An array that is not complete.
#[derive(Debug)]
struct Open {
    items: Vec<Reply>,
    missing: usize,
}

impl Decoder {
    /// Takes what is complete out of `buf`: the next reply, or `None` if it needs more bytes.
    pub(crate) fn decode(&mut self, buf: &mut BytesMut) -> Result<Option<Reply>, ProtocolError> {
        while let Some(mut reply) = self.value(buf)? {
            loop {
                let Some(array) = self.open.last_mut() else { return Ok(Some(reply)) };
                array.items.push(reply);
                array.missing -= 1;
                if array.missing > 0 {
                    break;
                }
                let Some(array) = self.open.pop() else { return Ok(None) };
                reply = Reply::Array(array.items);
            }
        }
        Ok(None)
    }

    /// The next value that is no array, or an empty one.
    fn value(&mut self, buf: &mut BytesMut) -> Result<Option<Reply>, ProtocolError> {
        loop {
            if let Some(length) = self.bulk {
                if buf.len() < length + 2 {
                    return Ok(None);
                }
                self.bulk = None;
                let bulk = Bytes::copy_from_slice(&buf[..length]);
                buf.advance(length + 2);
                return Ok(Some(Reply::Bulk(bulk)));
            }
            let Some(end) = line(buf)? else { return Ok(None) };
            let value = self.head(&buf[..end])?;
            buf.advance(end + 2);
            if value.is_some() {
                return Ok(value);
            }
        }
    }

    /// A value of one line; `None`: what it begins follows.
    fn head(&mut self, line: &[u8]) -> Result<Option<Reply>, ProtocolError> {
        let Some((kind, rest)) = line.split_first() else { return Err(ProtocolError("an empty line")) };
        let text = || String::from_utf8_lossy(rest).into_owned();
        Ok(Some(match (kind, rest) {
            (b'+', _) => Reply::Status(text()),
            (b'-', _) => Reply::Error(text()),
            (b':', _) => Reply::Int(number(rest)?),
            (b'$' | b'*', b"-1") => Reply::Nil,
            (b'$', _) => {
                self.bulk = Some(length(rest, MAX_BULK, "a string with an impossible length")?);
                return Ok(None);
            }
            (b'*', _) if self.open.len() >= MAX_DEPTH => {
                return Err(ProtocolError("a reply is nested too deeply"));
            }
            (b'*', _) => {
                let missing = length(rest, MAX_ARRAY, "an array with an impossible length")?;
                if missing == 0 {
                    return Ok(Some(Reply::Array(Vec::new())));
                }
                self.open.push(Open { items: Vec::with_capacity(missing.min(RESERVED)), missing });
                return Ok(None);
            }
            _ => return Err(ProtocolError("a line starts with an unknown sign")),
        }))
    }
}

/// The length of the line at the front of `buf`, without its end; longest 64 KiB.
fn line(buf: &[u8]) -> Result<Option<usize>, ProtocolError> {
    match buf.iter().position(|b| *b == b'\r') {
        Some(end) if end + 1 < buf.len() => {
            if buf[end + 1] != b'\n' {
                return Err(ProtocolError("a line does not end as it should"));
            }
            Ok(Some(end))
        }
        None if buf.len() > 65_536 => Err(ProtocolError("a line does not end")),
        _ => Ok(None),
    }
}

fn length(text: &[u8], most: usize, impossible: &'static str) -> Result<usize, ProtocolError> {
    usize::try_from(number(text)?).ok().filter(|n| *n <= most).ok_or(ProtocolError(impossible))
}

fn number(text: &[u8]) -> Result<i64, ProtocolError> {
    std::str::from_utf8(text).ok().and_then(|t| t.parse().ok()).ok_or(ProtocolError("a number is none"))
}

/// Arguments of a command, encoded as they come.
#[derive(Clone, Default, Debug)]
pub(crate) struct Args {
    body: Vec<u8>,
    count: usize,
}

impl Args {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A whole command.
    pub(crate) fn of<A: AsRef<[u8]>>(args: impl IntoIterator<Item = A>) -> Self {
        let mut this = Self::new();
        args.into_iter().for_each(|a| {
            this.push(a);
        });
        this
    }

    pub(crate) fn push(&mut self, arg: impl AsRef<[u8]>) -> &mut Self {
        let arg = arg.as_ref();
        self.head(b'$', arg.len());
        self.body.extend_from_slice(arg);
        self.body.extend_from_slice(b"\r\n");
        self.count += 1;
        self
    }

    pub(crate) fn number(&mut self, n: u64) -> &mut Self {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        let mut n = n;
        loop {
            at -= 1;
            digits[at] = b'0' + (n % 10) as u8;
            n /= 10;
            if n == 0 {
                break;
            }
        }
        self.push(&digits[at..])
    }

    /// A number, or an empty string.
    pub(crate) fn optional(&mut self, n: Option<u64>) -> &mut Self {
        match n {
            Some(n) => self.number(n),
            None => self.push(""),
        }
    }

    pub(crate) fn append(&mut self, other: &Self) -> &mut Self {
        self.body.extend_from_slice(&other.body);
        self.count += other.count;
        self
    }

    /// The command as it is sent.
    pub(crate) fn command(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.body.len() + 16);
        out.extend_from_slice(format!("*{}\r\n", self.count).as_bytes());
        out.extend_from_slice(&self.body);
        out
    }

    fn head(&mut self, sign: u8, n: usize) {
        self.body.push(sign);
        self.body.extend_from_slice(n.to_string().as_bytes());
        self.body.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &[u8]) -> Result<Option<Reply>, ProtocolError> {
        Decoder::default().decode(&mut BytesMut::from(text))
    }

    #[test]
    fn replies_of_every_kind_are_read_and_incomplete_ones_waited_for() {
        let text = b"*8\r\n+OK\r\n-ERR no\r\n:-7\r\n$3\r\na\r\n\r\n$-1\r\n*-1\r\n*0\r\n*1\r\n$0\r\n\r\n";
        let expected = Reply::Array(vec![
            Reply::Status("OK".into()),
            Reply::Error("ERR no".into()),
            Reply::Int(-7),
            Reply::Bulk(Bytes::from_static(b"a\r\n")),
            Reply::Nil,
            Reply::Nil,
            Reply::Array(Vec::new()),
            Reply::Array(vec![Reply::Bulk(Bytes::new())]),
        ]);
        let behind = b":1\r\n";
        let mut buf = BytesMut::from(&[&text[..], behind].concat()[..]);
        assert_eq!(Decoder::default().decode(&mut buf), Ok(Some(expected.clone())));
        assert_eq!(&buf[..], behind);
        for cut in 1..text.len() {
            let (mut decoder, mut buf) = (Decoder::default(), BytesMut::from(&text[..cut]));
            assert_eq!(decoder.decode(&mut buf), Ok(None), "{cut} bytes");
            buf.extend_from_slice(&text[cut..]);
            assert_eq!(decoder.decode(&mut buf), Ok(Some(expected.clone())), "cut after {cut} bytes");
            assert!(buf.is_empty());
        }
    }

    #[test]
    fn nothing_of_a_reply_is_read_twice() {
        let (mut decoder, mut buf) = (Decoder::default(), BytesMut::from(&b"*100\r\n"[..]));
        let one = b"$10\r\n0123456789\r\n";
        for n in 1..100 {
            buf.extend_from_slice(&one[..8]);
            assert_eq!(decoder.decode(&mut buf), Ok(None));
            buf.extend_from_slice(&one[8..]);
            assert_eq!(decoder.decode(&mut buf), Ok(None));
            assert!(buf.is_empty(), "{} bytes are kept after {n} elements", buf.len());
        }
        buf.extend_from_slice(one);
        let reply = decoder.decode(&mut buf).unwrap().unwrap();
        assert_eq!(reply.array().map(<[Reply]>::len), Some(100));
    }

    #[test]
    fn an_empty_array_is_empty_however_its_length_is_written() {
        for text in ["*0\r\n", "*00\r\n", "*-0\r\n", "*+0\r\n"] {
            assert_eq!(decode(text.as_bytes()), Ok(Some(Reply::Array(Vec::new()))), "{text:?}");
        }
        assert_eq!(decode(b"*1\r\n*00\r\n"), Ok(Some(Reply::Array(vec![Reply::Array(Vec::new())]))));
    }

    #[test]
    fn what_is_not_resp_is_refused() {
        assert!(decode(b"HTTP/1.1 400 Bad Request\r\n").is_err());
        assert!(decode(b"$99999999999\r\n").is_err());
        assert!(decode(b"*-7\r\n").is_err());
        assert!(decode(b"\r\n").is_err());
        assert!(decode(&b"*1\r\n".repeat(20)).is_err());
    }

    #[test]
    fn a_command_is_an_array_of_strings() {
        let mut args = Args::of(["GET"]);
        args.number(0).number(120);
        assert_eq!(args.command(), b"*3\r\n$3\r\nGET\r\n$1\r\n0\r\n$3\r\n120\r\n");
    }
}
