//! Certificates for tests, made by the `openssl` program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// An authority that signs certificates. Its files go with it.
#[derive(Debug)]
pub struct Authority {
    dir: TempDir,
}

impl Authority {
    /// A new one, which nobody trusts yet.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("mtimer-tls-").tempdir().expect("a temporary folder");
        let this = Self { dir };
        this.request("authority", &["-addext", "basicConstraints=critical,CA:TRUE"]);
        this
    }

    /// The file of its own certificate, for clients and servers that trust it.
    pub fn certificate(&self) -> PathBuf {
        self.file("authority", "pem")
    }

    /// The files of a new certificate, made out to `127.0.0.1`, and of its key.
    pub fn issue(&self, name: &str) -> (PathBuf, PathBuf) {
        let (authority, key) = (self.certificate(), self.file("authority", "key"));
        let path = |path: &Path| path.display().to_string();
        let signed = ["-CA", &path(&authority), "-CAkey", &path(&key)];
        let made_out = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"];
        self.request(name, &[signed, made_out].concat());
        (self.file(name, "pem"), self.file(name, "key"))
    }

    fn file(&self, name: &str, kind: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.{kind}"))
    }

    fn request(&self, name: &str, more: &[&str]) {
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
            .args(["-days", "2", "-subj", &format!("/CN={name}")])
            .args(more)
            .arg("-keyout")
            .arg(self.file(name, "key"))
            .arg("-out")
            .arg(self.file(name, "pem"))
            .stdin(Stdio::null())
            .output()
            .expect("openssl is installed");
        assert!(made.status.success(), "openssl: {}", String::from_utf8_lossy(&made.stderr));
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}
