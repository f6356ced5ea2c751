//! TLS of a client's connections.

use std::path::PathBuf;
use std::sync::Mutex;

use mtimer_tls::{ClientTls, ClientTlsOptions, Identity, Pem};
use tokio::task::spawn_blocking;

use crate::ConnectError;
use crate::sync::Locked;

/// The authorities that brokers' certificates are checked by, and the client's own certificate; for
/// [`ClientBuilder::tls`].
///
/// TLS 1.3 or 1.2. A broker's certificate is always checked: it has to be signed by an authority
/// given here, and made out to the host that the client connects to. Files are read again for every
/// connection, so that renewed certificates are used without a restart; if they cannot be read
/// then, the contents read last are used.
///
/// ```no_run
/// # use mtimer_client::{Client, ConnectError, TlsOptions};
/// # async fn example() -> Result<(), ConnectError> {
/// let tls = TlsOptions::ca_file("ca.pem").certificate_files("shop.pem", "shop.key");
/// let client = Client::builder().brokers(["b1:7400"]).tls(tls).connect().await?;
/// # Ok(())
/// # }
/// ```
///
/// [`ClientBuilder::tls`]: crate::ClientBuilder::tls
#[derive(Clone, Debug)]
#[must_use = "it is for ClientBuilder::tls"]
pub struct TlsOptions {
    options: ClientTlsOptions,
}

impl TlsOptions {
    /// Trusts the authorities in a PEM file.
    pub fn ca_file(path: impl Into<PathBuf>) -> Self {
        Self::new(Pem::File(path.into()))
    }

    /// Trusts the authorities in a PEM text.
    pub fn ca_pem(text: impl Into<Vec<u8>>) -> Self {
        Self::new(Pem::Text(text.into()))
    }

    fn new(authorities: Pem) -> Self {
        Self { options: ClientTlsOptions { authorities, identity: None, server_name: None } }
    }

    /// Shows a certificate, with its chain, to brokers that ask for one. PEM files.
    pub fn certificate_files(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        let (certificate, key) = (Pem::File(certificate.into()), Pem::File(key.into()));
        self.options.identity = Some(Identity { certificate, key });
        self
    }

    /// Shows a certificate, with its chain, to brokers that ask for one. PEM texts.
    pub fn certificate_pem(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        let (certificate, key) = (Pem::Text(certificate.into()), Pem::Text(key.into()));
        self.options.identity = Some(Identity { certificate, key });
        self
    }

    /// Expects every broker's certificate to be made out to this name, a host name or an IP
    /// address. Default: the host that the client connects to.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.options.server_name = Some(name.into());
        self
    }
}

/// The TLS options, with the contents of their files as read last.
#[derive(Debug)]
pub(crate) struct CurrentTls {
    options: ClientTlsOptions,
    last: Mutex<ClientTls>,
}

impl CurrentTls {
    /// Reads the files.
    pub(crate) fn open(tls: &TlsOptions) -> Result<Self, ConnectError> {
        let options = tls.options.clone();
        let last = Mutex::new(ClientTls::open(&options)?);
        Ok(Self { options, last })
    }

    /// Reads the files again; returns the contents read last if that fails.
    pub(crate) async fn current(&self) -> ClientTls {
        let options = self.options.clone();
        match spawn_blocking(move || ClientTls::open(&options)).await {
            Ok(Ok(tls)) => {
                *self.last.locked() = tls.clone();
                tls
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "the files for TLS were not read again, those read last are used");
                self.last.locked().clone()
            }
            // The runtime is ending.
            Err(_) => self.last.locked().clone(),
        }
    }
}
