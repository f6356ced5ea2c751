//! The verbs that a token may allow.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A name that is no [`Verb`]'s.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no verb: write schedule, cancel, register, read, operate or broker")]
pub struct UnknownVerb(String);

/// A kind of action that a token may allow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Verb {
    /// Schedule timers.
    Schedule,
    /// Cancel and reschedule timers, extend their deadlines.
    Cancel,
    /// Take callbacks, and settle them.
    Register,
    /// Look at timers, dead letters, metrics and the cluster.
    Read,
    /// Replay and purge dead letters, drain brokers.
    Operate,
    /// Join the cluster as a broker.
    Broker,
}

impl Verb {
    /// Every verb.
    pub const ALL: [Self; 6] =
        [Self::Schedule, Self::Cancel, Self::Register, Self::Read, Self::Operate, Self::Broker];

    /// Returns its name, as in the tokens file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Cancel => "cancel",
            Self::Register => "register",
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Broker => "broker",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Verb {
    type Err = UnknownVerb;

    fn from_str(name: &str) -> Result<Self, UnknownVerb> {
        let found = Self::ALL.into_iter().find(|verb| verb.name() == name);
        found.ok_or_else(|| UnknownVerb(name.to_owned()))
    }
}

impl Serialize for Verb {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Verb {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}
