//! Files for TLS, which are read again for every connection.
//!
//! Invariant: files that cannot be read, or a certificate and a key that do not belong together,
//! change nothing: what was read last stays in use.

use std::path::Path;
use std::sync::Arc;

use mtimer_store::StoreError;
use mtimer_tls::{ClientFiles, read_private};
use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// Most bytes of a file with a key.
const MAX_KEY_FILE: u64 = 1024 * 1024;

/// What is in the files, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PemContents {
    /// The authorities to trust; `None`: those of the operating system.
    pub(crate) authorities: Option<Vec<u8>>,
    /// Our certificate and its key.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// TLS: whom to trust, and who we are.
#[derive(Clone)]
pub(crate) struct RedisTls {
    files: ClientFiles,
    last: Arc<Mutex<LastRead>>,
}

struct LastRead {
    certificates: PemContents,
    /// Why the files, as they are now, are not used.
    failure: Option<String>,
}

impl RedisTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`] names the file, and says what to change.
    pub(crate) fn open(files: ClientFiles) -> Result<Self, StoreError> {
        let last = LastRead { certificates: PemContents::read(&files)?, failure: None };
        Ok(Self { files, last: Arc::new(Mutex::new(last)) })
    }

    /// Reads the files again. If they cannot be used it logs why, once, and returns what was read
    /// last.
    pub(crate) fn current(&self) -> PemContents {
        let read = PemContents::read(&self.files).map_err(|error| error.to_string());
        let mut last = self.last.lock();
        let failure = match read {
            Ok(new) if new == last.certificates || new.belong_together() => {
                last.certificates = new;
                None
            }
            Ok(_) => Some("the key does not belong to the client certificate".to_owned()),
            Err(why) => Some(why),
        };
        if failure != last.failure {
            if let Some(why) = &failure {
                tracing::warn!(
                    why,
                    "the files for TLS to Redis were not read again, those read last stay in use"
                );
            }
            last.failure = failure;
        }
        last.certificates.clone()
    }
}

impl PemContents {
    fn read(files: &ClientFiles) -> Result<Self, StoreError> {
        let authorities = files.authorities.as_deref().map(read_authorities).transpose()?;
        let identity = match (&files.certificate, &files.key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read_key(key)?)),
            (None, None) => None,
            _ => {
                return Err(StoreError::Unusable(
                    "a client certificate and its key go together: give both, or none".to_owned(),
                ));
            }
        };
        Ok(Self { authorities, identity })
    }

    fn belong_together(&self) -> bool {
        let Some((certificate, key)) = &self.identity else { return true };
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
        let (Ok(chain), Ok(key)) = (chain, PrivateKeyDer::from_pem_slice(key)) else { return false };
        CertifiedKey::from_der(chain, key, &default_provider()).is_ok()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, StoreError> {
    std::fs::read(path).map_err(|e| {
        StoreError::Unusable(format!("{} cannot be read ({e}): give another file", path.display()))
    })
}

/// Reads authorities: one at least, all of which can be used.
fn read_authorities(path: &Path) -> Result<Vec<u8>, StoreError> {
    let pem = read(path)?;
    let mut roots = RootCertStore::empty();
    let is_usable = CertificateDer::pem_slice_iter(&pem).all(|cert| cert.is_ok_and(|c| roots.add(c).is_ok()));
    if is_usable && !roots.is_empty() {
        return Ok(pem);
    }
    let path = path.display();
    Err(StoreError::Unusable(format!(
        "{path} has no certificate of an authority, or a damaged one: give another file"
    )))
}

fn read_key(path: &Path) -> Result<Vec<u8>, StoreError> {
    let unusable = |error| StoreError::Unusable(format!("the key of the client certificate: {error}"));
    read_private(path, MAX_KEY_FILE).map(String::into_bytes).map_err(unusable)
}
