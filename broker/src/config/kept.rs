//! How options keep the values of settings: as durations, milliseconds, bytes, addresses.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use mtimer_types::RetryTiers;

use super::units::{CommaList, Size, Span};
use crate::options::HttpListen;

/// A type of settings whose values an option of type `P` keeps.
pub(super) trait KeptAs<P>: Sized {
    /// Converts what is given. The error says what is wrong with it, and what to write.
    fn keep(self) -> Result<P, String>;

    /// Returns what is kept; `None`: the option is not set.
    fn kept(option: &P) -> Option<Self>;
}

impl<T: Clone> KeptAs<T> for T {
    fn keep(self) -> Result<T, String> {
        Ok(self)
    }

    fn kept(option: &T) -> Option<Self> {
        Some(option.clone())
    }
}

impl<T: Clone> KeptAs<Option<T>> for T {
    fn keep(self) -> Result<Option<T>, String> {
        Ok(Some(self))
    }

    fn kept(option: &Option<T>) -> Option<Self> {
        option.clone()
    }
}

impl KeptAs<Duration> for Span {
    fn keep(self) -> Result<Duration, String> {
        Ok(self.0)
    }

    fn kept(option: &Duration) -> Option<Self> {
        Some(Self(*option))
    }
}

/// As long as it takes is written as 0.
impl KeptAs<Option<Duration>> for Span {
    fn keep(self) -> Result<Option<Duration>, String> {
        Ok(Some(self.0).filter(|duration| !duration.is_zero()))
    }

    fn kept(option: &Option<Duration>) -> Option<Self> {
        Some(Self(option.unwrap_or_default()))
    }
}

/// Milliseconds.
impl KeptAs<u64> for Span {
    fn keep(self) -> Result<u64, String> {
        Ok(self.as_ms())
    }

    fn kept(option: &u64) -> Option<Self> {
        Some(Self(Duration::from_millis(*option)))
    }
}

/// Milliseconds.
impl KeptAs<u32> for Span {
    fn keep(self) -> Result<u32, String> {
        Ok(self.as_ms_u32())
    }

    fn kept(option: &u32) -> Option<Self> {
        Some(Self(Duration::from_millis((*option).into())))
    }
}

impl KeptAs<RetryTiers> for CommaList<Span> {
    fn keep(self) -> Result<RetryTiers, String> {
        Ok(RetryTiers(self.0.iter().map(|span| span.as_ms_u32()).collect()))
    }

    fn kept(option: &RetryTiers) -> Option<Self> {
        option.0.iter().map(Span::kept).collect::<Option<_>>().map(Self)
    }
}

impl KeptAs<u64> for Size {
    fn keep(self) -> Result<u64, String> {
        Ok(self.0)
    }

    fn kept(option: &u64) -> Option<Self> {
        Some(Self(*option))
    }
}

impl KeptAs<usize> for Size {
    fn keep(self) -> Result<usize, String> {
        Ok(usize::try_from(self.0).unwrap_or(usize::MAX))
    }

    fn kept(option: &usize) -> Option<Self> {
        Some(Self(*option as u64))
    }
}

impl KeptAs<SocketAddr> for String {
    fn keep(self) -> Result<SocketAddr, String> {
        address(&self, "host:port, such as 0.0.0.0:7400")
    }

    fn kept(option: &SocketAddr) -> Option<Self> {
        Some(option.to_string())
    }
}

impl KeptAs<HttpListen> for String {
    fn keep(self) -> Result<HttpListen, String> {
        match self.as_str() {
            "auto" => Ok(HttpListen::Auto),
            "off" => Ok(HttpListen::Off),
            text => address(text, "host:port, such as 127.0.0.1:7480, or off, or auto").map(HttpListen::At),
        }
    }

    fn kept(option: &HttpListen) -> Option<Self> {
        Some(match option {
            HttpListen::Off => "off".to_owned(),
            HttpListen::Auto => "auto".to_owned(),
            HttpListen::At(addr) => addr.to_string(),
        })
    }
}

/// Looks an address up.
fn address(text: &str, write: &str) -> Result<SocketAddr, String> {
    let bad = |what: String| format!("{text:?} is not an address: {what}; write {write}");
    let mut found = text.to_socket_addrs().map_err(|error| bad(error.to_string()))?;
    found.next().ok_or_else(|| bad("the name has no address".to_owned()))
}
