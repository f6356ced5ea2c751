//! Group keys, app keys and application keys.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::limits::{MAX_KEY_BYTES, MAX_NAME_BYTES};

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing in it.
    #[error("the {what} is empty: give 1 to {limit} bytes")]
    Empty {
        /// Which name.
        what: &'static str,
        /// Most bytes allowed.
        limit: usize,
    },
    /// Too long.
    #[error("the {what} has {len} bytes, the limit is {limit}: shorten it")]
    TooLong {
        /// Which name.
        what: &'static str,
        /// Its bytes.
        len: usize,
        /// Most bytes allowed.
        limit: usize,
    },
    /// A control character (this includes the zero byte, which separates names in storage).
    #[error("the {what} has a control character at byte {at}: leave it out")]
    Control {
        /// Which name.
        what: &'static str,
        /// Where.
        at: usize,
    },
}

fn check(what: &'static str, s: &str, limit: usize) -> Result<(), NameError> {
    if s.is_empty() {
        return Err(NameError::Empty { what, limit });
    }
    if s.len() > limit {
        return Err(NameError::TooLong { what, len: s.len(), limit });
    }
    match s.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, _)) => Err(NameError::Control { what, at }),
        None => Ok(()),
    }
}

/// Where a timer's callback goes: a group key and an app key. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination(Arc<(Box<str>, Box<str>)>);

impl Destination {
    /// Group and app, 1 to 128 bytes each, without control characters.
    pub fn new(group: &str, app: &str) -> Result<Self, NameError> {
        check("group", group, MAX_NAME_BYTES)?;
        check("app", app, MAX_NAME_BYTES)?;
        Ok(Self(Arc::new((group.into(), app.into()))))
    }

    /// The group key.
    pub fn group(&self) -> &str {
        &self.0.0
    }

    /// The app key.
    pub fn app(&self) -> &str {
        &self.0.1
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group(), self.app())
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Destination {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        (self.group(), self.app()).serialize(s)
    }
}

impl<'de> Deserialize<'de> for Destination {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (group, app) = <(std::borrow::Cow<'de, str>, std::borrow::Cow<'de, str>)>::deserialize(d)?;
        Self::new(&group, &app).map_err(de::Error::custom)
    }
}

/// An application's own name for a timer, unique within its destination while the timer is live.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// 1 to 256 bytes, without control characters.
    pub fn new(key: &str) -> Result<Self, NameError> {
        check("key", key, MAX_KEY_BYTES)?;
        Ok(Self(key.into()))
    }

    /// The key's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        Self::new(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_value_limit_and_fix() {
        assert_eq!(Key::new("").unwrap_err().to_string(), "the key is empty: give 1 to 256 bytes");
        let long = Destination::new(&"x".repeat(129), "a").unwrap_err();
        assert_eq!(long.to_string(), "the group has 129 bytes, the limit is 128: shorten it");
        let zero = Destination::new("g", "a\0b").unwrap_err();
        assert_eq!(zero.to_string(), "the app has a control character at byte 1: leave it out");
    }
}
