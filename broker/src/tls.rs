//! The broker's TLS: certificates of its ports, and its own for other brokers.
//!
//! Invariant: a file that cannot be read or used changes nothing: the files read last stay in use.
//! Not in here: handshakes and the checking of certificates ([`mtimer_tls`]).

use std::fs::File;
use std::path::PathBuf;

use mtimer_tls::{
    ClientTls, ClientTlsOptions, Identity, Pem, PrivateFileError, ServerFiles, ServerTls, TlsError,
    check_private,
};
use parking_lot::RwLock;

/// Files for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerTlsOptions {
    /// This broker's certificate and its chain, for its ports and for other brokers.
    pub certificate: PathBuf,
    /// The key of that certificate.
    pub key: PathBuf,
    /// The authorities that sign clients' certificates, and other brokers'; with it, a client
    /// without a certificate is refused.
    pub client_ca: Option<PathBuf>,
    /// The authorities that sign the certificates of other brokers' ports.
    pub ca: Option<PathBuf>,
}

/// The files for TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BrokerTlsError {
    /// Others can read the key, or it cannot be opened.
    #[error("the private key: {0}")]
    Key(#[from] PrivateFileError),
    /// A file cannot be read or used.
    #[error(transparent)]
    Files(#[from] TlsError),
}

impl BrokerTlsOptions {
    /// Returns all its files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.certificate, &self.key].into_iter().chain(&self.client_ca).chain(&self.ca)
    }

    fn check_key(&self) -> Result<(), PrivateFileError> {
        let path = &self.key;
        let file =
            File::open(path).map_err(|source| PrivateFileError::Read { path: path.clone(), source })?;
        check_private(&file, path)
    }

    fn peers(&self) -> Result<Option<ClientTls>, TlsError> {
        let Some(ca) = &self.ca else { return Ok(None) };
        let file = |path: &PathBuf| Pem::File(path.clone());
        let identity = Identity { certificate: file(&self.certificate), key: file(&self.key) };
        let options = ClientTlsOptions { authorities: file(ca), identity: Some(identity), server_name: None };
        ClientTls::open(&options).map(Some)
    }
}

/// The configuration in the files.
#[derive(Debug)]
pub(crate) struct BrokerTls {
    options: BrokerTlsOptions,
    server: ServerTls,
    peers: RwLock<Option<ClientTls>>,
}

impl BrokerTls {
    /// Reads the files.
    pub(crate) fn open(options: BrokerTlsOptions) -> Result<Self, BrokerTlsError> {
        options.check_key()?;
        let BrokerTlsOptions { certificate, key, client_ca, .. } = options.clone();
        let server = ServerTls::open(ServerFiles { certificate, key, client_ca })?;
        let peers = RwLock::new(options.peers()?);
        Ok(Self { options, server, peers })
    }

    /// Reads the files again, for connections made from now on.
    pub(crate) fn reload(&self) -> Result<(), BrokerTlsError> {
        self.options.check_key()?;
        let peers = self.options.peers()?;
        self.server.reload()?;
        *self.peers.write() = peers;
        Ok(())
    }

    /// For the ports.
    pub(crate) fn server(&self) -> &ServerTls {
        &self.server
    }

    /// For connections to other brokers.
    pub(crate) fn peers(&self) -> Option<ClientTls> {
        self.peers.read().clone()
    }
}
