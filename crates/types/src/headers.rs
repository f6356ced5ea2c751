//! Headers: short texts that travel with a timer from its schedule to its callbacks.

use std::fmt;
use std::sync::Arc;

use serde::de::MapAccess;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::limits::{MAX_HEADER_NAME_BYTES, MAX_HEADER_VALUE_BYTES, MAX_HEADERS, MAX_HEADERS_BYTES};
use crate::name::Text;

/// Trace context as W3C defines it: the trace and the span that a timer belongs to.
pub const TRACEPARENT: &str = "traceparent";
/// Header of W3C's trace context with the entries of tracing systems, beside [`TRACEPARENT`].
pub const TRACESTATE: &str = "tracestate";

/// Holds names and values, in order of name. Cheap to clone; no headers take no memory.
///
/// A name has 1 to 64 of the characters `a-z`, `0-9`, `-`, `_` and `.`; a value up to 1,024 bytes
/// of text without control characters. A timer has at most 32 headers, with 4 KiB of names and
/// values in all.
///
/// ```
/// use mtimer_types::Headers;
///
/// # fn main() -> Result<(), mtimer_types::HeaderError> {
/// let headers = Headers::new([("tenant", "acme"), ("priority", "7")])?;
/// assert_eq!(headers.get("tenant"), Some("acme"));
/// assert_eq!(headers.iter().next(), Some(("priority", "7")));
/// assert!(Headers::new([("Tenant", "acme")]).is_err());
/// # Ok(())
/// # }
/// ```
// A line `name=value` for each, in order of name. Neither `=` can be in a name nor a line break in
// a value. One allocation holds them all.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Headers(Option<Arc<str>>);

/// Says why headers were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// A name without characters, or with too many.
    #[error("the header name {name:?} has {len} bytes, allowed are 1 to {limit}")]
    NameLength {
        /// The name, or its beginning.
        name: String,
        /// Its bytes.
        len: usize,
        /// Most bytes allowed.
        limit: usize,
    },
    /// A character that names do not have.
    #[error(
        "the header name {name:?} has {found:?} in it: use lower-case letters, digits, \"-\", \"_\" and \".\" only"
    )]
    NameCharacter {
        /// The name.
        name: String,
        /// The first such character.
        found: char,
    },
    /// Too long a value.
    #[error(
        "the value of header {name:?} has {len} bytes, the limit is {limit}: put long values into the payload"
    )]
    ValueLength {
        /// Whose.
        name: String,
        /// Its bytes.
        len: usize,
        /// Most bytes allowed.
        limit: usize,
    },
    /// A control character in a value.
    #[error("the value of header {name:?} has a control character at byte {at}: leave it out")]
    ValueControl {
        /// Whose.
        name: String,
        /// Where.
        at: usize,
    },
    /// A name twice.
    #[error("the header {name:?} is given twice: give each name once")]
    Twice {
        /// Which.
        name: String,
    },
    /// Too many headers.
    #[error("there are more than {limit} headers: put the rest into the payload")]
    TooMany {
        /// Most headers allowed.
        limit: usize,
    },
    /// Too much text in all.
    #[error(
        "the headers' names and values have {bytes} bytes in all, the limit is {limit}: put long values into the payload"
    )]
    TooLarge {
        /// Their bytes.
        bytes: usize,
        /// Most bytes allowed.
        limit: usize,
    },
}

impl Headers {
    /// No headers.
    pub const NONE: Self = Self(None);

    /// Makes headers of names and values in any order.
    ///
    /// # Errors
    ///
    /// [`HeaderError`] for the first limit that they break, and for a name that comes twice.
    pub fn new<N, V>(pairs: impl IntoIterator<Item = (N, V)>) -> Result<Self, HeaderError>
    where
        N: AsRef<str>,
        V: AsRef<str>,
    {
        let mut lines = HeaderLines::default();
        for (name, value) in pairs {
            lines.push(name.as_ref(), value.as_ref())?;
        }
        lines.finish()
    }

    /// Returns these headers with one more, in place of that of the same name.
    ///
    /// # Errors
    ///
    /// [`HeaderError`] as for [`Headers::new`].
    pub fn with(&self, name: &str, value: &str) -> Result<Self, HeaderError> {
        Self::new(self.iter().filter(|(other, _)| *other != name).chain([(name, value)]))
    }

    /// Returns the value of this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// Returns names and values, in order of name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> + Clone {
        self.text().split_terminator('\n').map(|line| line.split_once('=').unwrap_or((line, "")))
    }

    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Says whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns how many bytes of memory they take, about: 0 if there are none.
    pub fn bytes(&self) -> usize {
        self.text().len()
    }

    /// Returns names and values without the trace context, which names the requester and is no
    /// content.
    pub fn content(&self) -> impl Iterator<Item = (&str, &str)> + Clone {
        self.iter().filter(|(name, _)| *name != TRACEPARENT && *name != TRACESTATE)
    }

    /// Says whether others are the same but for the trace context.
    pub fn same_content(&self, other: &Self) -> bool {
        self == other || self.content().eq(other.content())
    }

    fn text(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Headers that are being collected.
#[derive(Default)]
struct HeaderLines {
    text: String,
    count: usize,
    /// Some name is not greater than the one before it.
    unsorted: bool,
    /// Where the last line begins, and how long its name is.
    last: (usize, usize),
}

impl HeaderLines {
    fn push(&mut self, name: &str, value: &str) -> Result<(), HeaderError> {
        check_name(name)?;
        check_value(name, value)?;
        if self.count == MAX_HEADERS {
            return Err(HeaderError::TooMany { limit: MAX_HEADERS });
        }
        let (begin, len) = self.last;
        self.unsorted |= self.count > 0 && name <= &self.text[begin..begin + len];
        self.last = (self.text.len(), name.len());
        self.text.reserve(name.len() + value.len() + SEPARATORS);
        self.text.extend([name, "=", value, "\n"]);
        self.count += 1;
        let bytes = self.text.len() - SEPARATORS * self.count;
        if bytes > MAX_HEADERS_BYTES {
            return Err(HeaderError::TooLarge { bytes, limit: MAX_HEADERS_BYTES });
        }
        Ok(())
    }

    fn finish(self) -> Result<Headers, HeaderError> {
        if self.text.is_empty() {
            return Ok(Headers::NONE);
        }
        if !self.unsorted {
            return Ok(Headers(Some(self.text.into())));
        }
        // "a-b=" is before "a=", as a line, but not as a name.
        let mut pairs: Vec<_> = self.text.lines().filter_map(|line| line.split_once('=')).collect();
        pairs.sort_unstable();
        if let Some(twice) = pairs.windows(2).find(|two| two[0].0 == two[1].0) {
            return Err(HeaderError::Twice { name: twice[0].0.to_owned() });
        }
        let mut text = String::with_capacity(self.text.len());
        pairs.iter().for_each(|(name, value)| text.extend([*name, "=", *value, "\n"]));
        Ok(Headers(Some(text.into())))
    }
}

/// Bytes of a line beside name and value.
const SEPARATORS: usize = 2;

fn check_name(name: &str) -> Result<(), HeaderError> {
    if name.is_empty() || name.len() > MAX_HEADER_NAME_BYTES {
        let mut end = name.len().min(MAX_HEADER_NAME_BYTES);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        let (len, limit) = (name.len(), MAX_HEADER_NAME_BYTES);
        return Err(HeaderError::NameLength { name: name[..end].to_owned(), len, limit });
    }
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
    match name.chars().find(|c| !allowed(*c)) {
        Some(found) => Err(HeaderError::NameCharacter { name: name.to_owned(), found }),
        None => Ok(()),
    }
}

fn check_value(name: &str, value: &str) -> Result<(), HeaderError> {
    if value.len() > MAX_HEADER_VALUE_BYTES {
        let (len, limit) = (value.len(), MAX_HEADER_VALUE_BYTES);
        return Err(HeaderError::ValueLength { name: name.to_owned(), len, limit });
    }
    match value.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, _)) => Err(HeaderError::ValueControl { name: name.to_owned(), at }),
        None => Ok(()),
    }
}

/// A map of names to values.
impl Serialize for Headers {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(Some(self.len()))?;
        for (name, value) in self.iter() {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_map(HeadersVisitor)
    }
}

struct HeadersVisitor;

impl<'de> de::Visitor<'de> for HeadersVisitor {
    type Value = Headers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of header names to texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Headers, A::Error> {
        let mut lines = HeaderLines::default();
        while let Some((name, value)) = map.next_entry::<Text<'de>, Text<'de>>()? {
            lines.push(name.as_str(), value.as_str()).map_err(de::Error::custom)?;
        }
        lines.finish().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(pairs: &[(&str, &str)]) -> String {
        Headers::new(pairs.iter().copied()).unwrap_err().to_string()
    }

    #[test]
    fn headers_are_sorted_by_name_and_found() {
        // As lines "a-b=" comes before "a=".
        let headers = Headers::new([("b", "2"), ("a-b", "x=y"), ("a", ""), ("0", "é")]).unwrap();
        let all: Vec<_> = headers.iter().collect();
        assert_eq!(all, [("0", "é"), ("a", ""), ("a-b", "x=y"), ("b", "2")]);
        assert_eq!((headers.len(), headers.is_empty()), (4, false));
        assert_eq!((headers.get("a-b"), headers.get("a"), headers.get("c")), (Some("x=y"), Some(""), None));
        let other = Headers::new([("0", "é"), ("a", ""), ("a-b", "x=y"), ("b", "2")]).unwrap();
        assert_eq!(headers, other);
        assert_eq!(format!("{:?}", Headers::new([("a", "1")]).unwrap()), r#"{"a": "1"}"#);
    }

    #[test]
    fn no_headers_take_no_memory() {
        let none = Headers::new::<&str, &str>([]).unwrap();
        assert_eq!((none.len(), none.is_empty(), none.bytes()), (0, true, 0));
        assert_eq!((&none, none.get("a")), (&Headers::NONE, None));
        assert_eq!(size_of::<Headers>(), 2 * size_of::<usize>());
        assert_eq!(Headers::new([("ab", "cde")]).unwrap().bytes(), 7);
    }

    #[test]
    fn one_more_takes_the_place_of_the_one_of_its_name() {
        let headers = Headers::NONE.with("b", "1").unwrap().with("a", "2").unwrap().with("b", "3").unwrap();
        assert_eq!(headers, Headers::new([("a", "2"), ("b", "3")]).unwrap());
        assert!(headers.with("a", "\n").is_err());
    }

    #[test]
    fn refusals_name_value_limit_and_fix() {
        assert_eq!(refused(&[("", "x")]), r#"the header name "" has 0 bytes, allowed are 1 to 64"#);
        let long = "n".repeat(65);
        assert!(refused(&[(&long, "")]).ends_with("has 65 bytes, allowed are 1 to 64"));
        assert_eq!(
            refused(&[("Tenant", "x")]),
            r#"the header name "Tenant" has 'T' in it: use lower-case letters, digits, "-", "_" and "." only"#
        );
        for name in ["a b", "a=b", "é", "a\n", "a:b"] {
            assert!(refused(&[(name, "")]).contains(" in it: use lower-case"), "{name:?}");
        }
        let long = "v".repeat(1_025);
        assert_eq!(
            refused(&[("a", &long)]),
            "the value of header \"a\" has 1025 bytes, the limit is 1024: put long values into the payload"
        );
        assert_eq!(
            refused(&[("a", "x\ny")]),
            "the value of header \"a\" has a control character at byte 1: leave it out"
        );
        assert_eq!(
            refused(&[("b", ""), ("a", "1"), ("b", "2")]),
            "the header \"b\" is given twice: give each name once"
        );
        assert_eq!(
            refused(&[("a", "1"), ("a", "1")]),
            "the header \"a\" is given twice: give each name once"
        );
    }

    #[test]
    fn headers_at_the_limits_are_valid_and_beyond_are_not() {
        let (name, value) = ("n".repeat(64), "v".repeat(1_024));
        assert_eq!(Headers::new([(&name, &value)]).unwrap().get(&name), Some(value.as_str()));
        let names: Vec<String> = (0..33).map(|n| format!("{n:02}")).collect();
        assert_eq!(Headers::new(names[..32].iter().map(|n| (n, "v"))).unwrap().len(), 32);
        assert_eq!(
            Headers::new(names.iter().map(|n| (n, "v"))).unwrap_err().to_string(),
            "there are more than 32 headers: put the rest into the payload"
        );
        let of = |last: usize| {
            let values = [1_024, 1_024, 1_024, last].map(|len| "v".repeat(len));
            Headers::new(names.iter().zip(values))
        };
        assert_eq!(of(4_096 - 3 * 1_024 - 8).unwrap().len(), 4);
        assert_eq!(
            of(4_096 - 3 * 1_024 - 7).unwrap_err().to_string(),
            "the headers' names and values have 4097 bytes in all, the limit is 4096: put long values into \
             the payload"
        );
    }

    #[test]
    fn the_trace_context_is_not_content() {
        let of = |pairs: &[(&str, &str)]| Headers::new(pairs.iter().copied()).unwrap();
        let plain = of(&[("a", "1"), ("z", "2")]);
        let traced = of(&[("a", "1"), ("traceparent", "x"), ("tracestate", "y"), ("z", "2")]);
        assert!(plain.same_content(&traced) && traced.same_content(&plain) && plain.same_content(&plain));
        assert!(of(&[("traceparent", "x")]).same_content(&Headers::NONE));
        for other in [of(&[("a", "1")]), of(&[("a", "1"), ("z", "3")]), Headers::NONE] {
            assert!(!plain.same_content(&other) && !other.same_content(&traced), "{other:?}");
        }
    }

    #[test]
    fn a_text_form_is_an_object_in_any_order() {
        let headers = Headers::new([("a", "1"), ("b", "\"")]).unwrap();
        let text = serde_json::to_string(&headers).unwrap();
        assert_eq!(text, r#"{"a":"1","b":"\""}"#);
        assert_eq!(serde_json::from_str::<Headers>(r#"{"b":"\"","a":"1"}"#).unwrap(), headers);
        assert_eq!(serde_json::from_str::<Headers>("{}").unwrap(), Headers::NONE);
        for bad in [r#"{"a":"1","a":"1"}"#, r#"{"A":"1"}"#, r#"{"a":1}"#, "[]"] {
            assert!(serde_json::from_str::<Headers>(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn headers_are_a_sorted_map(map in proptest::collection::btree_map("[a-z0-9._-]{1,9}", "[^\\p{Cc}]{0,20}", 0..9)) {
            let headers = Headers::new(map.iter().rev()).unwrap();
            prop_assert_eq!(headers.len(), map.len());
            let expected: Vec<_> = map.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            prop_assert_eq!(headers.iter().collect::<Vec<_>>(), expected);
            let read: Headers = serde_json::from_str(&serde_json::to_string(&headers).unwrap()).unwrap();
            prop_assert_eq!(read, headers);
        }
    }
}
