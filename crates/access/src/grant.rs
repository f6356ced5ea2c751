//! Verbs, patterns of destinations, and grants, which join the two.

use std::fmt;
use std::str::FromStr;

use mtimer_types::{Destination, UnknownVerb, Verb, limits::MAX_NAME_BYTES};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A set of verbs.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Verbs(u8);

impl Verbs {
    /// No verb.
    pub const NONE: Self = Self(0);

    /// Says whether a verb is one of them.
    pub fn contains(self, verb: Verb) -> bool {
        self.0 & (1 << verb as u8) != 0
    }

    /// Returns the verbs of either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Says whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns them in the order of [`Verb::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Verb> {
        Verb::ALL.into_iter().filter(move |verb| self.contains(*verb))
    }
}

impl FromIterator<Verb> for Verbs {
    fn from_iter<T: IntoIterator<Item = Verb>>(verbs: T) -> Self {
        Self(verbs.into_iter().fold(0, |bits, verb| bits | 1 << verb as u8))
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Names the destinations of a grant.
///
/// A name with `/` in it cannot be written in a pattern: only [`Pattern::All`] covers such
/// destinations. So no pattern can be read in two ways.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// `*`: every destination, and requests that name none.
    All,
    /// `group/*`: every app of a group.
    Group(Box<str>),
    /// `group/app`: one destination.
    One(Destination),
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Group(group) => write!(f, "{group}/*"),
            Self::One(dest) => write!(f, "{dest}"),
        }
    }
}

impl FromStr for Pattern {
    type Err = InvalidGrant;

    fn from_str(text: &str) -> Result<Self, InvalidGrant> {
        let bad = |why: String| InvalidGrant::Pattern { pattern: shown(text), why };
        if text == "*" {
            return Ok(Self::All);
        }
        let (group, app) = text.split_once('/').ok_or_else(|| bad("it has no /".to_owned()))?;
        if app.contains('/') {
            return Err(bad("it has more than one /; only * covers names with / in them".to_owned()));
        }
        if group.contains('*') || app.contains('*') && app != "*" {
            return Err(bad("* stands for a whole app, or alone for everything".to_owned()));
        }
        // Checks the group as well.
        let dest = Destination::new(group, app).map_err(|e| bad(e.to_string()))?;
        Ok(if app == "*" { Self::Group(group.into()) } else { Self::One(dest) })
    }
}

/// The beginning of a text, for an error.
fn shown(text: &str) -> String {
    text.chars().take(2 * MAX_NAME_BYTES).collect()
}

/// Why a grant is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidGrant {
    /// No such verb.
    #[error(transparent)]
    Verb(#[from] UnknownVerb),
    /// No pattern.
    #[error("{pattern:?} is no pattern of destinations: {why}; write group/app, group/* or *")]
    Pattern {
        /// The given pattern.
        pattern: String,
        /// The mistake.
        why: String,
    },
    /// Half of a grant is missing.
    #[error("a grant has no {0}: name at least one, or remove the grant")]
    Empty(&'static str),
    /// A broker serves all destinations.
    #[error("the verb broker is granted on {0}: it can only be granted on *")]
    Broker(String),
    /// Not VERBS:PATTERNS.
    #[error("{0:?} is no grant: write VERBS:PATTERNS, such as schedule,cancel:shop/*")]
    Shape(String),
}

/// Allows verbs on destinations.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// The allowed verbs.
    pub verbs: Vec<Verb>,
    /// The destinations.
    pub on: Vec<Pattern>,
}

impl Grant {
    /// Checks that it grants something, and that `broker` is only granted on `*`.
    ///
    /// # Errors
    ///
    /// [`InvalidGrant`] if a list is empty or `broker` has a narrower pattern.
    pub fn validate(&self) -> Result<(), InvalidGrant> {
        if self.verbs.is_empty() {
            return Err(InvalidGrant::Empty("verbs"));
        }
        if self.on.is_empty() {
            return Err(InvalidGrant::Empty("patterns"));
        }
        match self.on.iter().find(|pattern| **pattern != Pattern::All) {
            Some(pattern) if self.verbs.contains(&Verb::Broker) => {
                Err(InvalidGrant::Broker(pattern.to_string()))
            }
            _ => Ok(()),
        }
    }
}

/// `verbs:patterns`, both separated by commas: `schedule,cancel:shop/*`.
impl FromStr for Grant {
    type Err = InvalidGrant;

    fn from_str(text: &str) -> Result<Self, InvalidGrant> {
        let (verbs, on) = text.split_once(':').ok_or_else(|| InvalidGrant::Shape(shown(text)))?;
        let grant = Self {
            verbs: verbs.split(',').map(|verb| verb.trim().parse()).collect::<Result<_, _>>()?,
            on: on.split(',').map(|pattern| pattern.trim().parse()).collect::<Result<_, _>>()?,
        };
        grant.validate()?;
        Ok(grant)
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verbs: Vec<&str> = self.verbs.iter().map(|verb| verb.name()).collect();
        let on: Vec<String> = self.on.iter().map(ToString::to_string).collect();
        write!(f, "{}:{}", verbs.join(","), on.join(","))
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_read_in_one_way_only() {
        for text in ["*", "shop/*", "shop/orders", "a b/ü"] {
            assert_eq!(text.parse::<Pattern>().unwrap().to_string(), text);
        }
        for text in
            ["", "shop", "/", "shop/", "/orders", "*/*", "*/orders", "s*/o", "shop/o*", "a/b/c", "a/\n"]
        {
            let error = text.parse::<Pattern>().unwrap_err().to_string();
            assert!(error.contains("is no pattern of destinations"), "{text}: {error}");
        }
    }

    #[test]
    fn grants_say_what_is_wrong_with_them() {
        let grant: Grant = "schedule, cancel:shop/*,bank/pay".parse().unwrap();
        assert_eq!(grant.to_string(), "schedule,cancel:shop/*,bank/pay");
        for (text, part) in [
            ("schedule", "VERBS:PATTERNS"),
            (":*", "\"\" is no verb"),
            ("write:*", "\"write\" is no verb"),
            ("broker:shop/*", "only be granted on *"),
            ("read:", "is no pattern"),
        ] {
            let error = text.parse::<Grant>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert_eq!(
            Grant { verbs: vec![], on: vec![Pattern::All] }.validate(),
            Err(InvalidGrant::Empty("verbs"))
        );
    }
}
