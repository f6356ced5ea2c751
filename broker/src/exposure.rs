//! Whether a broker may be reached from other machines: a decision without any I/O.

use std::net::IpAddr;

/// The protection of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Protection {
    /// Every client has to show a token or a certificate.
    pub(crate) is_authenticated: bool,
    /// Connections are encrypted.
    pub(crate) is_encrypted: bool,
}

/// The missing protection of a port that other machines reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lacks {
    Authentication,
    Encryption,
}

impl Protection {
    /// Checks whether it is enough for an address. Loopback addresses need none.
    pub(crate) fn check(self, addr: IpAddr) -> Result<(), Lacks> {
        match self {
            _ if addr.is_loopback() => Ok(()),
            Self { is_authenticated: false, .. } => Err(Lacks::Authentication),
            Self { is_encrypted: false, .. } => Err(Lacks::Encryption),
            Self { is_authenticated: true, is_encrypted: true } => Ok(()),
        }
    }

    /// Returns the missing protection, in words; `None` if nothing is missing.
    pub(crate) fn missing(self) -> Option<&'static str> {
        match (self.is_authenticated, self.is_encrypted) {
            (true, true) => None,
            (true, false) => Some("connections are not encrypted"),
            (false, true) => Some("connections are not authenticated"),
            (false, false) => Some("connections are neither authenticated nor encrypted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_loopback_both_are_needed() {
        const LACKS: [Lacks; 2] = [Lacks::Authentication, Lacks::Encryption];
        let [authentication, encryption] = LACKS.map(Err);
        // Address, authenticated, encrypted, allowed.
        for (addr, is_authenticated, is_encrypted, expected) in [
            ("127.0.0.1", false, false, Ok(())),
            ("127.0.0.1", true, false, Ok(())),
            ("::1", false, true, Ok(())),
            ("0.0.0.0", false, false, authentication),
            ("0.0.0.0", false, true, authentication),
            ("0.0.0.0", true, false, encryption),
            ("0.0.0.0", true, true, Ok(())),
            ("::", true, false, encryption),
            ("10.0.0.5", false, true, authentication),
            ("10.0.0.5", true, true, Ok(())),
        ] {
            let protection = Protection { is_authenticated, is_encrypted };
            assert_eq!(protection.check(addr.parse().unwrap()), expected, "{addr} {protection:?}");
        }
    }
}
