//! Reading what Redis answers, in RESP2 and RESP3.

use bytes::Bytes;
use redis::Value;

/// The bytes of a string; `None` for anything else.
pub(crate) fn bytes(value: Value) -> Option<Bytes> {
    match value {
        Value::BulkString(bytes) => Some(bytes.into()),
        Value::SimpleString(text) => Some(text.into_bytes().into()),
        Value::Okay => Some(Bytes::from_static(b"OK")),
        _ => None,
    }
}

/// A whole number, also one that is written as a string or as a floating point number, as scores
/// are.
pub(crate) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(n) => u64::try_from(*n).ok(),
        Value::Double(n) => whole(*n),
        Value::BulkString(text) => {
            let text = std::str::from_utf8(text).ok()?;
            text.parse().ok().or_else(|| whole(text.parse().ok()?))
        }
        _ => None,
    }
}

fn whole(n: f64) -> Option<u64> {
    // Redis keeps scores as floating point numbers: whole numbers up to 2^53 are exact.
    (0.0..=(1u64 << 53) as f64).contains(&n).then_some(n as u64)
}

/// The elements of a list.
pub(crate) fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(values) | Value::Set(values) => values,
        _ => Vec::new(),
    }
}

/// The pairs of a hash, or of a sorted set with its scores.
pub(crate) fn pairs(value: Value) -> Vec<(Value, Value)> {
    match value {
        Value::Map(pairs) => pairs,
        Value::Array(values)
            if values.iter().all(|value| matches!(value, Value::Array(pair) if pair.len() == 2)) =>
        {
            let pair = |value| {
                let mut pair = list(value).into_iter();
                Some((pair.next()?, pair.next()?))
            };
            values.into_iter().filter_map(pair).collect()
        }
        Value::Array(values) => {
            let mut values = values.into_iter();
            std::iter::from_fn(|| Some((values.next()?, values.next()?))).collect()
        }
        _ => Vec::new(),
    }
}

/// The text of an error, as the server wrote it.
pub(crate) fn error(value: &Value) -> Option<String> {
    let Value::ServerError(error) = value else { return None };
    let detail = error.details().unwrap_or_default();
    Some(format!("{} {detail}", error.code()).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn a_hash_is_read_in_both_protocols() {
        let expected = vec![(text("a"), text("1")), (text("b"), text("2"))];
        let flat = Value::Array(vec![text("a"), text("1"), text("b"), text("2")]);
        let nested = Value::Array(vec![
            Value::Array(vec![text("a"), text("1")]),
            Value::Array(vec![text("b"), text("2")]),
        ]);
        assert_eq!(pairs(flat), expected);
        assert_eq!(pairs(nested), expected);
        assert_eq!(pairs(Value::Map(expected.clone())), expected);
        assert_eq!(pairs(Value::Nil), []);
    }

    #[test]
    fn scores_are_whole_numbers() {
        assert_eq!(number(&text("12")), Some(12));
        assert_eq!(number(&text("9.007199254740992e15")), Some(1 << 53));
        assert_eq!(number(&Value::Double(3.0)), Some(3));
        assert_eq!(number(&Value::Int(-1)), None);
        assert_eq!(number(&text("many")), None);
    }
}
