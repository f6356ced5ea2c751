//! Values of settings as people write them: durations, sizes, lists.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::time::Duration;

use mtimer_store::without_password;
use serde::de::{self, DeserializeOwned, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::value::{InvalidValue, SettingValue};

/// A duration such as `250ms`, `5s`, `2h 30m`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Span(pub Duration);

/// A size such as `64KiB`, `256MiB`, `2GiB`, or a plain number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

/// Values separated by commas; in the file an array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommaList<T>(pub Vec<T>);

/// The address of a Redis server, maybe with a password in it, which its `Debug` does not show.
/// `HOST:PORT` is understood, too.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct RedisUrl(pub String);

/// What addresses of Redis begin with; those of Sentinels with one of these and `-sentinel`.
const REDIS_SCHEMES: [&str; 7] =
    ["redis", "rediss", "valkey", "valkeys", "unix", "redis+unix", "valkey+unix"];

impl RedisUrl {
    /// Whether there may be a password in it.
    pub fn has_password(&self) -> bool {
        without_password(&self.0) != self.0
    }

    /// Checks what it begins with. What is wrong and what to write, without the address, which may
    /// have a password.
    ///
    /// # Errors
    ///
    /// If it begins with nothing that is known.
    pub fn check(&self) -> Result<(), String> {
        const WRITE: &str = "write redis://HOST:6379, or redis://USER:PASSWORD@HOST:6379 with @ / ? # , % in user and \
                             password as %40 %2F %3F %23 %2C %25";
        match self.0.split_once("://") {
            None => Err(format!("an address begins with no redis://: {WRITE}")),
            Some((scheme, _)) if REDIS_SCHEMES.contains(&scheme.trim_end_matches("-sentinel")) => Ok(()),
            // The password may be in front.
            Some((scheme, _)) if scheme.contains(['@', ':']) => {
                Err(format!("an address begins with no redis://: {WRITE}"))
            }
            Some((scheme, _)) => {
                let scheme: String = scheme.chars().take(20).collect();
                Err(format!("an address begins with {:?}: {WRITE}", format!("{scheme}://")))
            }
        }
    }
}

impl FromStr for RedisUrl {
    type Err = InvalidValue;

    fn from_str(s: &str) -> Result<Self, InvalidValue> {
        // A part of a password with commas in it must not be taken for a host, which is shown.
        let is_host = |host: &str| {
            !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || ".-_:[]".contains(c))
        };
        let is_plain = |(host, port): (&str, &str)| is_host(host) && port.parse::<u16>().is_ok();
        let is_plain = s.rsplit_once(':').is_some_and(is_plain);
        Ok(Self(if is_plain { format!("redis://{s}") } else { s.to_owned() }))
    }
}

impl<'de> Deserialize<'de> for RedisUrl {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

/// Without its password.
impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_password(&self.0))
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&without_password(&self.0), f)
    }
}

impl Span {
    /// Whole milliseconds, up to `u32::MAX`.
    pub fn as_ms_u32(self) -> u32 {
        u32::try_from(self.0.as_millis()).unwrap_or(u32::MAX)
    }

    /// Whole milliseconds.
    pub fn as_ms(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl FromStr for Span {
    type Err = InvalidValue;

    fn from_str(s: &str) -> Result<Self, InvalidValue> {
        if let Some(rest) = s.trim().strip_prefix('-')
            && humantime::parse_duration(rest).is_ok()
        {
            return Err(InvalidValue::because(s, "negative: a duration is 0s or longer"));
        }
        humantime::parse_duration(s.trim())
            .map(Self)
            .map_err(|_| InvalidValue::new(s, "a duration: write a number and a unit, such as 250ms, 5s, 2h"))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl FromStr for Size {
    type Err = InvalidValue;

    fn from_str(s: &str) -> Result<Self, InvalidValue> {
        let bad =
            || InvalidValue::new(s, "a size: write bytes, or a number and KiB, MiB or GiB, such as 256MiB");
        let text = s.trim();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = text[..digits].parse().map_err(|_| bad())?;
        let unit: u64 = match text[digits..].trim() {
            "" | "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return Err(bad()),
        };
        number.checked_mul(unit).map(Self).ok_or_else(bad)
    }
}

impl<T: FromStr> FromStr for CommaList<T>
where
    T::Err: fmt::Display,
{
    type Err = InvalidValue;

    fn from_str(s: &str) -> Result<Self, InvalidValue> {
        if s.trim().is_empty() {
            return Ok(Self(Vec::new()));
        }
        let item = |part: &str| {
            part.trim().parse().map_err(|e: T::Err| InvalidValue::new(s, format!("a list: {e}")))
        };
        s.split(',').map(item).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes > 0 && bytes.is_multiple_of(1 << 30) => write!(f, "{}GiB", bytes >> 30),
            bytes if bytes.is_multiple_of(1 << 20) => write!(f, "{}MiB", bytes >> 20),
            bytes => write!(f, "{bytes}"),
        }
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<T: Serialize> Serialize for CommaList<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Bytes(u64),
            Text(String),
        }
        match Form::deserialize(d)? {
            Form::Bytes(n) => Ok(Self(n)),
            Form::Text(s) => s.parse().map_err(de::Error::custom),
        }
    }
}

/// An array, or the text that a flag takes.
impl<'de, T> Deserialize<'de> for CommaList<T>
where
    T: Deserialize<'de> + FromStr,
    T::Err: fmt::Display,
{
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct ListVisitor<T>(PhantomData<T>);
        impl<'de, T> Visitor<'de> for ListVisitor<T>
        where
            T: Deserialize<'de> + FromStr,
            T::Err: fmt::Display,
        {
            type Value = CommaList<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of texts, or a text with commas")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<CommaList<T>, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<CommaList<T>, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = seq.next_element()? {
                    all.push(one);
                }
                Ok(CommaList(all))
            }
        }
        d.deserialize_any(ListVisitor(PhantomData))
    }
}

/// Defines an enum whose values have names.
macro_rules! choices {
    ($(#[$meta:meta])* $ty:ident, $what:literal: $( #[doc = $help:literal] $(#[$mark:ident])? $variant:ident = $name:literal, )*) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $ty {
            $( #[doc = $help] $(#[$mark])? $variant, )*
        }

        impl $ty {
            /// Returns the name that it has in settings.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => $name, )*
                }
            }
        }

        impl SettingValue for $ty {
            const CHOICES: &'static [(&'static str, &'static str)] = &[$( ($name, $help), )*];

            fn read(text: &str) -> Result<Self, String> {
                text.parse().map_err(|error: InvalidValue| error.to_string())
            }

            fn show(&self) -> String {
                self.name().to_owned()
            }
        }

        impl FromStr for $ty {
            type Err = InvalidValue;

            fn from_str(s: &str) -> Result<Self, InvalidValue> {
                match s.trim() {
                    $( $name => Ok(Self::$variant), )*
                    _ => Err(InvalidValue::new(s, format!(concat!($what, ": write {}"), any_of(Self::CHOICES)))),
                }
            }
        }

        impl Serialize for $ty {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(self.name())
            }
        }

        impl<'de> Deserialize<'de> for $ty {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                String::deserialize(d)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

fn any_of(choices: &[(&str, &str)]) -> String {
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

choices! {
    /// What an answered schedule means.
    Durability, "a durability level":
    /// Embedded store: committed and fsynced
    EmbeddedSync = "embedded-sync",
    /// Embedded store: written, fsynced a little later
    EmbeddedFast = "embedded-fast",
    /// Redis: in the master's memory
    Redis = "redis",
    /// Redis: confirmed by replicas
    RedisReplicated = "redis-replicated",
}

choices! {
    /// How log lines look.
    #[derive(Default)]
    LogFormat, "a log format":
    /// For people
    #[default]
    Text = "text",
    /// One JSON object a line
    Json = "json",
}

impl SettingValue for Span {
    const VALUE: &'static str = "DURATION";
    const EXAMPLE: &'static str = "\"5s\"";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: InvalidValue| error.to_string())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for Size {
    const VALUE: &'static str = "SIZE";
    const EXAMPLE: &'static str = "\"256MiB\"";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: InvalidValue| error.to_string())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl<T> SettingValue for CommaList<T>
where
    T: FromStr + fmt::Display + Serialize + DeserializeOwned,
    T::Err: fmt::Display,
{
    const VALUE: &'static str = "LIST";
    const EXAMPLE: &'static str = "[\"TEXT\"]";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: InvalidValue| error.to_string())
    }

    fn show(&self) -> String {
        self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_as_people_write_them() {
        assert_eq!("2h 30m".parse::<Span>().unwrap().as_ms(), 9_000_000);
        assert_eq!("256MiB".parse::<Size>().unwrap(), Size(256 << 20));
        assert_eq!("12".parse::<Size>().unwrap(), Size(12));
        let spans = "1s, 5s".parse::<CommaList<Span>>().unwrap();
        assert_eq!(spans.0.len(), 2);
        assert_eq!("".parse::<CommaList<Span>>().unwrap().0, []);
    }

    #[test]
    fn refusals_say_what_to_write() {
        assert_eq!(
            "5".parse::<Span>().unwrap_err().to_string(),
            "\"5\" is not a duration: write a number and a unit, such as 250ms, 5s, 2h"
        );
        assert_eq!(
            "-5s".parse::<Span>().unwrap_err().to_string(),
            "\"-5s\" is negative: a duration is 0s or longer"
        );
        for bad in ["", "MiB", "1MB", "-1", "99999999999999999999", "99999999999GiB"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
        assert!(
            "1s,x".parse::<CommaList<Span>>().unwrap_err().to_string().contains("\"x\" is not a duration")
        );
    }
}
