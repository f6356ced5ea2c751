//! Group keys, app keys and application keys.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::limits::{MAX_KEY_BYTES, MAX_NAME_BYTES};

/// Says why a name was refused.
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

/// Names where a timer's callback goes: a group and an app. Cheap to clone.
///
/// Functions that take a [`Destination`] take a reference to one, too.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination(Arc<(Box<str>, Box<str>)>);

impl Destination {
    /// Makes a destination of a group and an app, 1 to 128 bytes each, without control characters.
    ///
    /// # Errors
    ///
    /// [`NameError`] if one of them is empty, too long, or has a control character in it.
    pub fn new(group: &str, app: &str) -> Result<Self, NameError> {
        check("group", group, MAX_NAME_BYTES)?;
        check("app", app, MAX_NAME_BYTES)?;
        Ok(Self(Arc::new((group.into(), app.into()))))
    }

    /// Returns the group.
    pub fn group(&self) -> &str {
        &self.0.0
    }

    /// Returns the app.
    pub fn app(&self) -> &str {
        &self.0.1
    }
}

impl From<&Self> for Destination {
    fn from(dest: &Self) -> Self {
        dest.clone()
    }
}

/// `group/app`.
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
        let (group, app) = <(Text<'de>, Text<'de>)>::deserialize(d)?;
        let (group, app) = (group.as_str(), app.as_str());
        // Most timers have the destination of the one before, in the same frame even: one
        // allocation serves them all, and it has been checked.
        LAST.with_borrow_mut(|last| match last {
            Some(last) if last.app() == app && last.group() == group => Ok(last.clone()),
            _ => {
                let dest = Self::new(group, app).map_err(de::Error::custom)?;
                *last = Some(dest.clone());
                Ok(dest)
            }
        })
    }
}

thread_local! {
    /// The destination that this thread has read last.
    static LAST: RefCell<Option<Destination>> = const { RefCell::new(None) };
}

/// A text that is read where it stands, if the format allows that.
pub(crate) enum Text<'de> {
    Borrowed(&'de str),
    Owned(String),
}

impl Text<'_> {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Owned(text) => text,
        }
    }
}

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_str(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> de::Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text::Borrowed(text))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text::Owned(text.to_owned()))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Text<'de>, E> {
        Ok(Text::Owned(text))
    }
}

/// Names a timer in the application's own words; unique within its destination while the timer is
/// live. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Makes a key of 1 to 256 bytes, without control characters.
    ///
    /// # Errors
    ///
    /// [`NameError`] if it is empty, too long, or has a control character in it.
    pub fn new(key: &str) -> Result<Self, NameError> {
        check("key", key, MAX_KEY_BYTES)?;
        Ok(Self(key.into()))
    }

    /// Returns the key's text.
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
        Self::new(Text::deserialize(d)?.as_str()).map_err(de::Error::custom)
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

    #[test]
    fn names_of_just_the_limit_are_taken() {
        let (name, key) = ("x".repeat(128), "x".repeat(256));
        assert_eq!(Destination::new(&name, &name).unwrap().to_string(), format!("{name}/{name}"));
        assert_eq!(Key::new(&key).unwrap().as_str(), key);
        assert!(Key::new(&format!("{key}x")).is_err());
        assert!(Destination::new("g", &format!("{name}x")).is_err());
    }

    #[test]
    fn what_is_read_again_is_shared_and_what_is_another_is_not() {
        let read = |text: &str| serde_json::from_str::<Destination>(text);
        let first = read(r#"["g", "a"]"#).unwrap();
        assert!(Arc::ptr_eq(&first.0, &read(r#"["g", "\u0061"]"#).unwrap().0));
        for (group, app) in [("a", "g"), ("g", "ab"), ("ga", "a"), ("g", "a")] {
            let dest = read(&format!(r#"["{group}", "{app}"]"#)).unwrap();
            assert_eq!((dest.group(), dest.app()), (group, app));
            assert!(read(r#"["g", ""]"#).is_err());
        }
    }
}
