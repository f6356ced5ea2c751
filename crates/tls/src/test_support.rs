//! An authority that signs certificates for tests.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "test support: a failure here is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use tempfile::TempDir;

/// An authority. Its files and those of its certificates go with it.
#[derive(Debug)]
pub struct Authority {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

/// The files of a certificate and of its key.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key, which only its owner can read.
    pub key: PathBuf,
}

impl Authority {
    /// Makes one that nobody trusts yet.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("mtimer-tls-").tempdir().expect("a temporary folder");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = dir.path().file_name().expect("a name").to_string_lossy();
        params.distinguished_name.push(DnType::CommonName, name.as_ref());
        let key = KeyPair::generate().expect("a key");
        let own = params.self_signed(&key).expect("signed");
        fs::write(dir.path().join("ca.pem"), own.pem()).expect("written");
        Self { dir, issuer: Issuer::new(params, key) }
    }

    /// The file of its own certificate, for those who are to trust it.
    pub fn certificate(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Signs a certificate for 127.0.0.1 and localhost. If the files are there they are replaced,
    /// each at once, the certificate first.
    pub fn issue(&self, file: &str) -> Issued {
        self.sign(file, &["127.0.0.1", "localhost"], false)
    }

    /// The same for these names.
    pub fn issue_for(&self, file: &str, names: &[&str]) -> Issued {
        self.sign(file, names, false)
    }

    /// The same, and it has expired.
    pub fn issue_expired(&self, file: &str) -> Issued {
        self.sign(file, &["127.0.0.1", "localhost"], true)
    }

    fn sign(&self, file: &str, names: &[&str], is_expired: bool) -> Issued {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, file);
        if is_expired {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("signed");
        let path = |kind: &str| self.dir.path().join(format!("{file}.{kind}"));
        let issued = Issued { certificate: path("pem"), key: path("key") };
        replace(&issued.certificate, &signed.pem());
        replace(&issued.key, &key.serialize_pem());
        issued
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

/// Replaces a file at once, so that nobody reads half of it.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("written");
    #[cfg(unix)]
    fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("permissions");
    fs::rename(new, path).expect("renamed");
}
