//! Reading replies: the same shape in RESP2 and RESP3, and typed access that never fails on any
//! reply.

use bytes::Bytes;
use redis::Value;

/// Typed access to a reply. Each method returns `None`, or nothing, for a reply of another kind.
pub(crate) trait Reply {
    /// A whole number: an integer, or a string that is one. Scores may be written as floating point
    /// numbers.
    fn number(&self) -> Option<u64>;
    /// A string that is UTF-8.
    fn text(&self) -> Option<&str>;
    /// A string.
    fn bytes(&self) -> Option<&[u8]>;
    /// The elements of an array.
    fn items(&self) -> &[Value];
    /// The error text, if the server refused: the code and the details, as they were sent.
    fn refusal(&self) -> Option<String>;
    /// A string, without copying it.
    fn into_bytes(self) -> Option<Bytes>;
    /// The elements of an array.
    fn into_items(self) -> Vec<Value>;
    /// The pairs of a hash, or of a sorted set with its scores.
    fn into_pairs(self) -> Vec<(Value, Value)>;
}

impl Reply for Value {
    fn number(&self) -> Option<u64> {
        if let Self::Int(n) = self {
            return u64::try_from(*n).ok();
        }
        let text = self.text()?;
        // Redis keeps scores as floating point numbers: whole numbers up to 2^53 are exact.
        let score = || text.parse().ok().filter(|n| (0.0..=(1u64 << 53) as f64).contains(n));
        text.parse().ok().or_else(|| score().map(|n| n as u64))
    }

    fn text(&self) -> Option<&str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::BulkString(bytes) => Some(bytes),
            Self::SimpleString(text) => Some(text.as_bytes()),
            Self::Okay => Some(b"OK"),
            _ => None,
        }
    }

    fn items(&self) -> &[Value] {
        if let Self::Array(items) = self { items } else { &[] }
    }

    fn refusal(&self) -> Option<String> {
        let Self::ServerError(error) = self else { return None };
        Some(match error.details() {
            Some(details) => format!("{} {details}", error.code()),
            None => error.code().to_owned(),
        })
    }

    fn into_bytes(self) -> Option<Bytes> {
        match self {
            Self::BulkString(bytes) => Some(bytes.into()),
            other => other.bytes().map(Bytes::copy_from_slice),
        }
    }

    fn into_items(self) -> Vec<Value> {
        if let Self::Array(items) = self { items } else { Vec::new() }
    }

    fn into_pairs(self) -> Vec<(Value, Value)> {
        let mut items = self.into_items().into_iter();
        std::iter::from_fn(|| match items.next()? {
            // RESP3 has an array for each member of a sorted set.
            Self::Array(pair) => <[Value; 2]>::try_from(pair).ok().map(Into::into),
            first => Some((first, items.next()?)),
        })
        .collect()
    }
}

/// The first elements of an array as numbers; 0 in place of one that is none.
pub(crate) fn numbers<const N: usize>(items: &[Value]) -> [u64; N] {
    std::array::from_fn(|i| items.get(i).and_then(Reply::number).unwrap_or_default())
}

/// Gives a RESP3 reply the shape that the same command has in RESP2, so that only connections know
/// the protocol.
pub(crate) fn in_resp2(value: Value) -> Value {
    match value {
        Value::Map(pairs) => {
            Value::Array(pairs.into_iter().flat_map(|(k, v)| [in_resp2(k), in_resp2(v)]).collect())
        }
        Value::Array(items) | Value::Set(items) => Value::Array(items.into_iter().map(in_resp2).collect()),
        Value::Attribute { data, .. } => in_resp2(*data),
        Value::Double(n) => Value::BulkString(n.to_string().into_bytes()),
        Value::Boolean(yes) => Value::Int(yes.into()),
        Value::VerbatimString { text, .. } => Value::BulkString(text.into_bytes()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_reply_is_what_it_is_asked_for_or_nothing() {
        assert_eq!((bulk("12").number(), Value::Int(12).number()), (Some(12), Some(12)));
        assert_eq!((bulk("x").number(), Value::Int(-1).number(), Value::Nil.number()), (None, None, None));
        assert_eq!((Value::Okay.text(), bulk("a").text()), (Some("OK"), Some("a")));
        assert_eq!(Value::BulkString(vec![0xff]).text(), None);
        assert_eq!(Value::Array(vec![Value::Nil]).items(), [Value::Nil]);
        assert_eq!(bulk("").items(), []);
        assert_eq!(numbers(&[bulk("1"), Value::Nil]), [1, 0, 0]);
    }

    #[test]
    fn scores_are_whole_numbers() {
        assert_eq!(bulk("9.007199254740992e15").number(), Some(1 << 53));
        for none in ["9.1e15", "-1.0", "NaN", ""] {
            assert_eq!(bulk(none).number(), None, "{none}");
        }
    }

    #[test]
    fn a_hash_is_read_in_both_protocols() {
        let expected = vec![(bulk("a"), bulk("1")), (bulk("b"), bulk("2"))];
        let pairs = [("a", "1"), ("b", "2")].map(|(name, value)| [bulk(name), bulk(value)]);
        assert_eq!(Value::Array(pairs.concat()).into_pairs(), expected);
        assert_eq!(Value::Array(pairs.map(|pair| Value::Array(pair.into())).into()).into_pairs(), expected);
        assert_eq!(Value::Nil.into_pairs(), []);
    }

    #[test]
    fn an_error_is_told_as_it_was_sent() {
        let said =
            |text: &str| redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).map(|v| v.refusal());
        for text in
            ["MOVED 866 127.0.0.1:7001", "ERR user_script:3: boo", "NOAUTH", "OOM no", "WRONGPASS no: no"]
        {
            assert_eq!(said(text).unwrap(), Some(text.to_owned()));
        }
    }

    #[test]
    fn resp3_replies_have_the_shape_of_resp2() {
        let parse = |text: &str| in_resp2(redis::parse_redis_value(text.as_bytes()).unwrap());
        assert_eq!(parse("%1\r\n$1\r\na\r\n:1\r\n"), Value::Array(vec![bulk("a"), Value::Int(1)]));
        assert_eq!(parse("~1\r\n$1\r\na\r\n"), Value::Array(vec![bulk("a")]));
        assert_eq!(parse("*1\r\n,1790000000000\r\n"), Value::Array(vec![bulk("1790000000000")]));
        assert_eq!(parse("=7\r\ntxt:a:b\r\n"), bulk("a:b"));
        assert_eq!(parse("#t\r\n"), Value::Int(1));
        assert_eq!(parse("_\r\n"), Value::Nil);
    }
}
