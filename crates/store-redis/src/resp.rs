//! RESP 2, as far as a client needs it.
//!
//! Purpose: commands to bytes, bytes to replies. Not in here: sockets, meaning.

use bytes::Bytes;

/// Nesting of replies that is accepted: ours have three levels.
const MAX_DEPTH: u8 = 8;
/// Bytes of one string that are accepted: Redis's own limit.
const MAX_BULK: i64 = 512 << 20;
/// Elements of one array that are accepted.
const MAX_ARRAY: i64 = 1 << 24;

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

/// Reads one reply from the front of `buf`: the reply and its bytes, or `None` if it is not complete.
pub(crate) fn decode(buf: &[u8]) -> Result<Option<(Reply, usize)>, ProtocolError> {
    let mut at = 0;
    Ok(value(buf, &mut at, 0)?.map(|reply| (reply, at)))
}

fn value(buf: &[u8], at: &mut usize, depth: u8) -> Result<Option<Reply>, ProtocolError> {
    if depth > MAX_DEPTH {
        return Err(ProtocolError("a reply is nested too deeply"));
    }
    let Some(line) = line(buf, at)? else { return Ok(None) };
    let Some((kind, rest)) = line.split_first() else { return Err(ProtocolError("an empty line")) };
    let text = || String::from_utf8_lossy(rest).into_owned();
    Ok(Some(match kind {
        b'+' => Reply::Status(text()),
        b'-' => Reply::Error(text()),
        b':' => Reply::Int(number(rest)?),
        b'$' => match number(rest)? {
            -1 => Reply::Nil,
            n if !(0..=MAX_BULK).contains(&n) => {
                return Err(ProtocolError("a string with an impossible length"));
            }
            n => {
                let end = *at + n as usize;
                if buf.len() < end + 2 {
                    return Ok(None);
                }
                let bulk = Bytes::copy_from_slice(&buf[*at..end]);
                *at = end + 2;
                Reply::Bulk(bulk)
            }
        },
        b'*' => match number(rest)? {
            -1 => Reply::Nil,
            n if !(0..=MAX_ARRAY).contains(&n) => {
                return Err(ProtocolError("an array with an impossible length"));
            }
            n => {
                let mut items = Vec::with_capacity((n as usize).min(buf.len() / 4));
                for _ in 0..n {
                    let Some(item) = value(buf, at, depth + 1)? else { return Ok(None) };
                    items.push(item);
                }
                Reply::Array(items)
            }
        },
        _ => return Err(ProtocolError("a line starts with an unknown sign")),
    }))
}

/// The next line without its end; longest 64 KiB.
fn line<'a>(buf: &'a [u8], at: &mut usize) -> Result<Option<&'a [u8]>, ProtocolError> {
    let rest = &buf[*at..];
    match rest.iter().position(|b| *b == b'\r') {
        Some(end) if end + 1 < rest.len() => {
            if rest[end + 1] != b'\n' {
                return Err(ProtocolError("a line does not end as it should"));
            }
            *at += end + 2;
            Ok(Some(&rest[..end]))
        }
        None if rest.len() > 65_536 => Err(ProtocolError("a line does not end")),
        _ => Ok(None),
    }
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

    #[test]
    fn replies_of_every_kind_are_read_and_incomplete_ones_waited_for() {
        let text = b"*6\r\n+OK\r\n-ERR no\r\n:-7\r\n$3\r\na\r\n\r\n$-1\r\n*-1\r\n";
        let (reply, used) = decode(text).unwrap().unwrap();
        assert_eq!(used, text.len());
        let expected = vec![
            Reply::Status("OK".into()),
            Reply::Error("ERR no".into()),
            Reply::Int(-7),
            Reply::Bulk(Bytes::from_static(b"a\r\n")),
            Reply::Nil,
            Reply::Nil,
        ];
        assert_eq!(reply, Reply::Array(expected));
        (0..text.len()).for_each(|n| assert_eq!(decode(&text[..n]), Ok(None), "{n} bytes"));
    }

    #[test]
    fn what_is_not_resp_is_refused() {
        assert!(decode(b"HTTP/1.1 400 Bad Request\r\n").is_err());
        assert!(decode(b"$99999999999\r\n").is_err());
        assert!(decode(&b"*1\r\n".repeat(20)).is_err());
    }

    #[test]
    fn a_command_is_an_array_of_strings() {
        let mut args = Args::of(["GET"]);
        args.number(0).number(120);
        assert_eq!(args.command(), b"*3\r\n$3\r\nGET\r\n$1\r\n0\r\n$3\r\n120\r\n");
    }
}
