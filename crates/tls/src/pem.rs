//! PEM files: certificates, authorities, keys.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::TlsError;

/// Most bytes of a file: the system's whole list of authorities has a quarter of that.
pub(crate) const MAX_FILE: u64 = 1024 * 1024;

/// Reads a file.
pub(crate) fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let from = || path.display().to_string();
    let failed = |source| TlsError::Read { what, from: from(), source };
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(TlsError::TooLarge { what, from: from(), limit: MAX_FILE });
    }
    Ok(bytes)
}

/// The certificates in a PEM text, at least one.
pub(crate) fn certificates(
    what: &'static str,
    from: &str,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        // The library's own words may show a line of the file.
        _ => Err(TlsError::Pem { what, from: from.to_owned(), section: "CERTIFICATE" }),
    }
}

/// The first private key in a PEM text: PKCS #8, PKCS #1 or SEC1, not encrypted.
pub(crate) fn key(from: &str, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| TlsError::Pem {
        what: "private key",
        from: from.to_owned(),
        section: "PRIVATE KEY",
    })
}

/// The authorities in a PEM text.
pub(crate) fn authorities(what: &'static str, from: &str, pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(what, from, pem)? {
        roots.add(certificate).map_err(|error| TlsError::Unusable {
            what,
            from: from.to_owned(),
            message: error.to_string(),
        })?;
    }
    Ok(roots)
}

/// Why a certificate and its key are not accepted by the library.
pub(crate) fn unusable(certificate: &str, key: &str, error: &rustls::Error) -> TlsError {
    let message = match error {
        rustls::Error::InconsistentKeys(_) => {
            format!("the key in {key} is not the one of this certificate: give the two that belong together")
        }
        other => format!("{other} (its key is in {key})"),
    };
    TlsError::Unusable { what: "certificate", from: certificate.to_owned(), message }
}
