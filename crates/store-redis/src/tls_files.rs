//! Files for TLS, which are read again for every connection.
//!
//! Invariant: files that cannot be used change nothing: those read last stay in use.

use std::sync::Arc;

use mtimer_store::StoreError;
use mtimer_tls::{ClientFiles, ClientPem};
use parking_lot::Mutex;

/// TLS: the trusted authorities, and our own certificate.
#[derive(Clone)]
pub(crate) struct RedisTls {
    files: ClientFiles,
    last: Arc<Mutex<LastRead>>,
}

struct LastRead {
    pem: ClientPem,
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
        let pem = files.read().map_err(|error| StoreError::Unusable(error.to_string()))?;
        Ok(Self { files, last: Arc::new(Mutex::new(LastRead { pem, failure: None })) })
    }

    /// Reads the files again. If they cannot be used it logs why, once, and returns the contents
    /// read last.
    pub(crate) fn current(&self) -> ClientPem {
        let read = self.files.read().map_err(|error| error.to_string());
        let mut last = self.last.lock();
        let failure = read.map(|pem| last.pem = pem).err();
        if let Some(why) = failure.as_ref().filter(|_| failure != last.failure) {
            tracing::warn!(
                why,
                "the files for TLS to Redis were not read again, those read last stay in use"
            );
        }
        last.failure = failure;
        last.pem.clone()
    }
}
