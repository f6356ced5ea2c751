//! Errors of certificates and of handshakes.

use std::error::Error;
use std::io;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError};
use tokio::net::TcpStream;

use crate::PrivateFileError;

/// Says why certificates or keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read the {what} {from}: {source}")]
    Read {
        /// Its contents, in words.
        what: &'static str,
        /// The file.
        from: String,
        /// The system's error.
        source: io::Error,
    },
    /// A file is too large.
    #[error("the {what} {from} has more than {limit} bytes: is it the right file?")]
    TooLarge {
        /// The expected contents.
        what: &'static str,
        /// The file.
        from: String,
        /// Most bytes.
        limit: u64,
    },
    /// There is nothing of the kind in it.
    #[error("the {what} {from} has no PEM section {section:?}, or a damaged one: is it the right file?")]
    Pem {
        /// The expected contents.
        what: &'static str,
        /// The file.
        from: String,
        /// The first line of its section.
        section: &'static str,
    },
    /// A certificate is not one that can be used, or the key does not belong to it.
    #[error("the {what} {from} cannot be used: {message}")]
    Unusable {
        /// Which.
        what: &'static str,
        /// The file or files.
        from: String,
        /// The mistake and the fix.
        message: String,
    },
    /// The file of a private key cannot be read, or others can read or change it.
    #[error("the private key: {0}")]
    PrivateKey(#[from] PrivateFileError),
    /// A client's certificate without its key, or the key without the certificate.
    #[error("a client certificate and its key go together: give both, or none")]
    HalfIdentity,
    /// Invalid server name.
    #[error("{name:?} is not the name of a server: write a host name or an IP address, without a port")]
    ServerName {
        /// The name.
        name: String,
    },
}

/// Says why a client was not let in.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The client does not speak TLS. Nothing was read from the connection: it can be told so.
    #[error("the client does not speak TLS")]
    NotTls(TcpStream),
    /// The client has closed the connection without a byte: a health check, for example.
    #[error("the client has closed the connection")]
    Ended,
    /// The handshake has failed, or the connection is gone.
    #[error("the TLS handshake has failed: {0}")]
    Failed(io::Error),
    /// It took too long.
    #[error("no TLS handshake within {} ms", .0.as_millis())]
    Timeout(Duration),
}

/// Says why there is no TLS connection to a server.
#[derive(Debug, thiserror::Error)]
pub enum TlsConnectError {
    /// The server does not speak TLS.
    #[error("it does not speak TLS: connect without TLS, or give it a certificate")]
    NotTls,
    /// The server's certificate was not accepted.
    #[error("its certificate was not accepted: {0}")]
    Certificate(String),
    /// The server does not accept ours, or that there is none.
    #[error("it refuses our certificate: {0}")]
    Refused(String),
    /// The handshake has failed for another reason that will be the same next time.
    #[error("the TLS handshake has failed: {0}")]
    Handshake(String),
    /// The connection is gone.
    #[error("the connection was lost in the TLS handshake: {0}")]
    Lost(io::Error),
    /// It took too long.
    #[error("no TLS handshake within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The address names no server that a certificate could be made out to.
    #[error(transparent)]
    Name(TlsError),
}

impl TlsConnectError {
    /// Says whether another try with the same files can help.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Timeout(_))
    }

    /// Explains an error of an encrypted connection; `Err` returns one that is not about TLS. With
    /// TLS 1.3 a server refuses a client's certificate when the client's side of the handshake is
    /// over, so that the first read from the connection fails.
    pub(crate) fn explain(error: io::Error, authorities: &str) -> Result<Self, io::Error> {
        let Some(tls) = rustls_error(&error) else { return Err(error) };
        Ok(match tls {
            rustls::Error::InvalidMessage(_) => Self::NotTls,
            rustls::Error::InvalidCertificate(why) => Self::Certificate(certificate(why, authorities)),
            rustls::Error::AlertReceived(alert) => match refusal(*alert) {
                Some(why) => Self::Refused(why.to_owned()),
                None => Self::Handshake(tls.to_string()),
            },
            other => Self::Handshake(other.to_string()),
        })
    }
}

fn rustls_error(error: &io::Error) -> Option<&rustls::Error> {
    let mut source: Option<&(dyn Error + 'static)> = error.get_ref().map(|inner| inner as _);
    while let Some(inner) = source {
        if let Some(found) = inner.downcast_ref() {
            return Some(found);
        }
        source = inner.source();
    }
    None
}

/// The fault of a server's certificate, and the fix.
fn certificate(why: &CertificateError, authorities: &str) -> String {
    match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            format!(
                "it is signed by none of the authorities in {authorities}: give the file of the authority that signed it"
            )
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it has expired: renew it, or set this machine's clock".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet: set this machine's clock, or wait".to_owned()
        }
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "it is made out to {}, not to {}: connect by one of its names, or give the name as the server name",
            if presented.is_empty() { "no name".to_owned() } else { names(presented) },
            expected.to_str()
        ),
        CertificateError::NotValidForName => {
            "it is made out to another name: give that as the server name".to_owned()
        }
        other => other.to_string(),
    }
}

/// The names of a certificate; rustls has them as `DnsName("b1")` and `IpAddress(10.0.0.5)`.
fn names(presented: &[String]) -> String {
    let bare = |name: &String| {
        let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
        inner.unwrap_or(name).trim_matches('"').to_owned()
    };
    presented.iter().map(bare).collect::<Vec<_>>().join(", ")
}

/// A server's objection to a client's certificate.
fn refusal(alert: AlertDescription) -> Option<&'static str> {
    Some(match alert {
        AlertDescription::CertificateRequired => {
            "it asks for one, and none was given: give certificate and key"
        }
        AlertDescription::UnknownCA => "it is signed by none of the authorities that the server trusts",
        AlertDescription::CertificateExpired => "it has expired or is not valid yet: renew it",
        AlertDescription::CertificateRevoked => "it is revoked",
        AlertDescription::AccessDenied => "it is not allowed",
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::DecryptError => "it is not one for clients, or cannot be used",
        // TLS 1.2: how a server says that a certificate is required.
        AlertDescription::HandshakeFailure => {
            "it may ask for one, and none was given: give certificate and key"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_certificate_are_shown_as_people_write_them() {
        let presented = ["DnsName(\"b1.example\")", "IpAddress(10.0.0.5)", "other"].map(str::to_owned);
        assert_eq!(names(&presented), "b1.example, 10.0.0.5, other");
    }
}
