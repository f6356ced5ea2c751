//! The credentials that a broker asks for.

use std::fmt;
use std::path::PathBuf;

use crate::exposure::Protection;
use crate::tls::BrokerTlsOptions;

/// The credentials that clients and other brokers have to show.
#[derive(Clone, Debug, Default)]
pub struct AccessOptions {
    /// The file with the tokens. Without it every client that is let in may do everything.
    pub tokens: Option<PathBuf>,
    /// This broker's own token, for the other brokers of its cluster.
    pub peer_token: PeerToken,
    /// Files for TLS; without them nothing is encrypted.
    pub tls: Option<BrokerTlsOptions>,
    /// Certificates for Redis, to warn before they expire.
    pub redis: RedisCertificates,
    /// Whether to listen beyond this machine without TLS, or without tokens and clients'
    /// certificates.
    pub insecure: bool,
}

/// Certificates of Redis's side: only looked at here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisCertificates {
    /// The certificate that this broker shows to Redis.
    pub certificate: Option<PathBuf>,
    /// The authorities that sign the certificates of Redis.
    pub ca: Option<PathBuf>,
}

impl AccessOptions {
    /// Returns the protection of the ports of a broker with these options.
    pub(crate) fn protection(&self) -> Protection {
        let clients_have_certificates = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        Protection {
            is_authenticated: self.tokens.is_some() || clients_have_certificates,
            is_encrypted: self.tls.is_some(),
        }
    }
}

/// Where a broker has its own token from. Its `Debug` shows no secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum PeerToken {
    /// It has none.
    #[default]
    None,
    /// The token itself.
    Value(String),
    /// A file with nothing but the token in it, read again when it changes.
    File(PathBuf),
}

impl fmt::Debug for PeerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Value(_) => f.write_str("Value(***)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}
