//! The side that is connected to.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::{AcceptError, Encrypted, Stream, TlsError, pem, provider};

/// First byte that a TLS client sends.
const HANDSHAKE_RECORD: u8 = 0x16;
/// How long a client that was refused may take to read why.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of it that are read and thrown away meanwhile, so that the system does not reset the
/// connection first.
const LINGER_BYTES: u64 = 64 * 1024;

/// Files of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// Its certificate and the chain to the authority.
    pub certificate: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
    /// The authorities that sign clients' certificates; without it clients are asked for none.
    pub client_ca: Option<PathBuf>,
}

/// Whether a client that has no certificate is let in, if there are authorities for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificate {
    /// It is not.
    Required,
    /// It is; one that shows a certificate has to show a valid one.
    Optional,
}

/// Accepts TLS connections with certificates from files.
#[derive(Debug)]
pub struct ServerTls {
    files: ServerFiles,
    current: RwLock<Configs>,
}

#[derive(Clone, Debug)]
struct Configs {
    chain: Arc<[CertificateDer<'static>]>,
    required: Arc<ServerConfig>,
    optional: Arc<ServerConfig>,
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// [`TlsError`] that names the file if one cannot be read or used.
    pub fn open(files: ServerFiles) -> Result<Self, TlsError> {
        let current = RwLock::new(read(&files)?);
        Ok(Self { files, current })
    }

    /// Returns its files.
    pub fn files(&self) -> &ServerFiles {
        &self.files
    }

    /// Returns the certificate in use, in DER, and its chain.
    pub fn chain(&self) -> Arc<[CertificateDer<'static>]> {
        self.current().chain.clone()
    }

    /// Reads the files again. Later connections use them; existing ones go on, and none is resumed
    /// without its certificate being checked again.
    ///
    /// # Errors
    ///
    /// As [`ServerTls::open`]; then the files read last stay in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        let new = read(&self.files)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// The configuration read last. A panic elsewhere leaves it whole: it is replaced as a whole.
    fn current(&self) -> RwLockReadGuard<'_, Configs> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shakes hands with a client within a time limit. A client that is refused is told so.
    ///
    /// # Errors
    ///
    /// [`AcceptError`] if it fails or takes too long.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    pub async fn accept(
        &self,
        socket: TcpStream,
        clients: ClientCertificate,
        within: Duration,
    ) -> Result<Stream, AcceptError> {
        let config = {
            let current = self.current();
            match clients {
                ClientCertificate::Required => current.required.clone(),
                ClientCertificate::Optional => current.optional.clone(),
            }
        };
        let shake = async {
            let mut first = [0];
            match socket.peek(&mut first).await {
                Ok(0) => return Err(AcceptError::Ended),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(AcceptError::Ended);
                }
                Err(error) => return Err(AcceptError::Failed(error)),
                Ok(_) => {}
            }
            if first[0] != HANDSHAKE_RECORD {
                return Err(AcceptError::NotTls(socket));
            }
            Ok(TlsAcceptor::from(config).accept(socket).into_fallible().await)
        };
        match timeout(within, shake).await.unwrap_or(Err(AcceptError::Timeout(within)))? {
            Ok(stream) => Ok(Stream::Tls(Box::new(Encrypted::new(stream)))),
            Err((error, socket)) => {
                // However this ends, the connection is closed next.
                let _ = timeout(FAREWELL_TIMEOUT, linger(socket)).await;
                Err(AcceptError::Failed(error))
            }
        }
    }
}

/// Says that nothing follows the alert, and reads the incoming bytes meanwhile.
async fn linger(mut socket: TcpStream) {
    if socket.shutdown().await.is_ok() {
        let _ = tokio::io::copy(&mut socket.take(LINGER_BYTES), &mut tokio::io::sink()).await;
    }
}

fn read(files: &ServerFiles) -> Result<Configs, TlsError> {
    let (from, key_from) = (files.certificate.display().to_string(), files.key.display().to_string());
    let chain = pem::certificates("certificate", &from, &pem::read("certificate", &files.certificate)?)?;
    let key = pem::key(&key_from, &pem::read("private key", &files.key)?)?;
    let what = "authorities of clients";
    let roots = match &files.client_ca {
        Some(path) => {
            Some(Arc::new(pem::authorities(what, &path.display().to_string(), &pem::read(what, path)?)?))
        }
        None => None,
    };
    let config = |clients: ClientCertificate| {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| pem::unusable(&from, &key_from, &error))?;
        let builder = match &roots {
            None => builder.with_no_client_auth(),
            Some(roots) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider());
                let verifier = match clients {
                    ClientCertificate::Required => verifier,
                    ClientCertificate::Optional => verifier.allow_unauthenticated(),
                };
                let verifier = verifier.build().map_err(|error| TlsError::Unusable {
                    what,
                    from: files.client_ca.iter().map(|path| path.display().to_string()).collect(),
                    message: error.to_string(),
                })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder.with_single_cert(chain.clone(), key.clone_key());
        config.map(Arc::new).map_err(|error| pem::unusable(&from, &key_from, &error))
    };
    Ok(Configs {
        required: config(ClientCertificate::Required)?,
        optional: config(ClientCertificate::Optional)?,
        chain: chain.into(),
    })
}
