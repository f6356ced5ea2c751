//! The side that connects.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::{Encrypted, Stream, TlsConnectError, TlsError, pem, provider, read_private};

/// Name of the authorities in errors.
const AUTHORITIES: &str = "authorities of servers";

/// PEM text, or the file that it is in. Its `Debug` shows no text.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// A file.
    File(PathBuf),
    /// The text itself.
    Text(Vec<u8>),
}

impl Pem {
    fn read(&self, what: &'static str) -> Result<Vec<u8>, TlsError> {
        match self {
            Self::File(path) => pem::read(what, path),
            Self::Text(text) => Ok(text.clone()),
        }
    }
}

impl fmt::Display for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Text(_) => f.write_str("the given PEM text"),
        }
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pem({self})")
    }
}

/// Files of a client, in PEM format.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientFiles {
    /// The authorities that sign the servers' certificates; `None`: those that the operating system
    /// trusts.
    pub authorities: Option<PathBuf>,
    /// Its certificate, with the chain up to an authority that the servers trust.
    pub certificate: Option<PathBuf>,
    /// The key of its certificate, in PKCS #8, PKCS #1 or SEC1. Nobody but its owner and group may
    /// be able to read it.
    pub key: Option<PathBuf>,
}

/// Contents of a client's files, in PEM. It has no `Debug`, as a key is in it.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientPem {
    /// The authorities to trust; `None`: those of the operating system.
    pub authorities: Option<Vec<u8>>,
    /// Its certificate with the chain, and the key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl ClientFiles {
    /// Reads the files, for a library that takes PEM text.
    ///
    /// # Errors
    ///
    /// [`TlsError`] that names the file if one cannot be read, others than its owner and group can
    /// read the key, a certificate or the key is damaged, or the two do not belong together.
    pub fn read(&self) -> Result<ClientPem, TlsError> {
        let mut authorities = None;
        if let Some(path) = &self.authorities {
            let text = pem::read(AUTHORITIES, path)?;
            pem::authorities(AUTHORITIES, &path.display().to_string(), &text)?;
            authorities = Some(text);
        }
        let identity = match (&self.certificate, &self.key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => {
                let (from, key_from) = (certificate.display().to_string(), key.display().to_string());
                let chain = pem::read("certificate", certificate)?;
                let private = read_private(key, pem::MAX_FILE)?.into_bytes();
                let certificates = pem::certificates("certificate", &from, &chain)?;
                CertifiedKey::from_der(certificates, pem::key(&key_from, &private)?, &provider())
                    .map_err(|error| pem::unusable(&from, &key_from, &error))?;
                Some((chain, private))
            }
            _ => return Err(TlsError::HalfIdentity),
        };
        Ok(ClientPem { authorities, identity })
    }
}

/// A client's certificate with its chain, and the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificate and the chain to the authority.
    pub certificate: Pem,
    /// Its key.
    pub key: Pem,
}

/// The certificates that a client trusts, and the one that it shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTlsOptions {
    /// The authorities that sign servers' certificates.
    pub authorities: Pem,
    /// The certificate to show to servers that ask for one.
    pub identity: Option<Identity>,
    /// The name that a server's certificate has to be made out to; `None`: the host connected to.
    pub server_name: Option<String>,
}

/// Makes TLS connections. Cloning is cheap.
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    server_name: Option<ServerName<'static>>,
    /// Where the authorities are from.
    authorities: Arc<str>,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls")
            .field("authorities", &self.authorities)
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// [`TlsError`] that names the file if one cannot be read or used.
    pub fn open(options: &ClientTlsOptions) -> Result<Self, TlsError> {
        let from = options.authorities.to_string();
        let what = AUTHORITIES;
        let roots = pem::authorities(what, &from, &options.authorities.read(what)?)?;
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Unusable { what, from: from.clone(), message: error.to_string() })?
            .with_root_certificates(roots);
        let config = match &options.identity {
            None => builder.with_no_client_auth(),
            Some(Identity { certificate, key }) => {
                let (from, key_from) = (certificate.to_string(), key.to_string());
                let chain = pem::certificates("certificate", &from, &certificate.read("certificate")?)?;
                let key = pem::key(&key_from, &key.read("private key")?)?;
                let config = builder.with_client_auth_cert(chain, key);
                config.map_err(|error| pem::unusable(&from, &key_from, &error))?
            }
        };
        let server_name = options.server_name.as_deref().map(server_name).transpose()?;
        Ok(Self { config: Arc::new(config), server_name, authorities: from.into() })
    }

    /// Shakes hands, within a time limit, with the server at an address, `host:port`.
    ///
    /// # Errors
    ///
    /// [`TlsConnectError`]; [`TlsConnectError::is_retryable`] says whether another try can help.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    pub async fn connect(
        &self,
        socket: TcpStream,
        address: &str,
        within: Duration,
    ) -> Result<Stream, TlsConnectError> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => server_name(host(address)).map_err(TlsConnectError::Name)?,
        };
        let connector = TlsConnector::from(self.config.clone());
        match timeout(within, connector.connect(name, socket)).await {
            Ok(Ok(stream)) => Ok(Stream::Tls(Box::new(Encrypted::new(stream)))),
            Ok(Err(error)) => Err(self.explain(error).unwrap_or_else(TlsConnectError::Lost)),
            Err(_) => Err(TlsConnectError::Timeout(within)),
        }
    }

    /// Explains an error of one of its connections, if it is about TLS. With TLS 1.3 a server
    /// refuses a client's certificate when the handshake is over for the client, so that the first
    /// read fails.
    ///
    /// # Errors
    ///
    /// The error itself, if it is not about TLS.
    pub fn explain(&self, error: io::Error) -> Result<TlsConnectError, io::Error> {
        TlsConnectError::explain(error, &self.authorities)
    }
}

/// The host of `host:port`.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn server_name(name: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.to_owned())
        .map_err(|_| TlsError::ServerName { name: name.chars().take(80).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_an_address_is_the_name() {
        for (address, host_of) in
            [("b1:7400", "b1"), ("10.0.0.1:7400", "10.0.0.1"), ("[::1]:7400", "::1"), ("b1", "b1")]
        {
            assert_eq!(host(address), host_of);
            server_name(host_of).unwrap();
        }
        assert!(matches!(server_name("a b"), Err(TlsError::ServerName { .. })));
    }
}
