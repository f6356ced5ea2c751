//! Reading replies: the same shape in RESP2 and RESP3, and typed access that never fails on what a
//! server sends.

use redis::{ServerError, Value};

/// Typed access to a reply. Each method returns `None` for a reply of another kind.
pub(crate) trait Reply {
    /// An integer, or a string that is one.
    fn number(&self) -> Option<u64>;
    /// A string that is UTF-8.
    fn text(&self) -> Option<&str>;
    /// A string.
    fn bytes(&self) -> Option<&[u8]>;
    /// The elements of an array.
    fn items(&self) -> Option<&[Value]>;
    /// What the server said, if it refused: the code and the details, as they were sent.
    fn refusal(&self) -> Option<String>;
}

impl Reply for Value {
    fn number(&self) -> Option<u64> {
        match self {
            Self::Int(n) => u64::try_from(*n).ok(),
            other => other.text()?.parse().ok(),
        }
    }

    fn text(&self) -> Option<&str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::BulkString(bytes) => Some(bytes),
            Self::SimpleString(text) => Some(text.as_bytes()),
            Self::VerbatimString { text, .. } => Some(text.as_bytes()),
            Self::Okay => Some(b"OK"),
            _ => None,
        }
    }

    fn items(&self) -> Option<&[Value]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    fn refusal(&self) -> Option<String> {
        match self {
            Self::ServerError(error) => Some(error_text(error)),
            _ => None,
        }
    }
}

/// An error reply as the server sent it, without the leading `-`.
pub(crate) fn error_text(error: &ServerError) -> String {
    match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    }
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
        assert_eq!(Value::Array(vec![Value::Nil]).items(), Some(&[Value::Nil][..]));
        assert_eq!(bulk("").items(), None);
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
