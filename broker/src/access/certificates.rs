//! When certificates expire that this broker has in files: its own, those of authorities, and those
//! for Redis.
//!
//! Invariant: a file that cannot be read, or has no certificate in it, changes nothing: its former
//! contents count. The user of the file reports the fault.
//! Not in here: when that is logged (`expiry`).

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use mtimer_types::Time;
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::options::AccessOptions;

/// The settings that name files of certificates.
pub(crate) const CERTIFICATE_FILES: [&str; 5] =
    ["tls-cert", "tls-client-ca", "tls-ca", "redis-tls-cert", "redis-tls-ca"];
/// Most bytes of a file, as for TLS.
const MAX_FILE: u64 = 1024 * 1024;

/// When the certificates of each of [`CERTIFICATE_FILES`] expire; `None`: never, or there is none.
pub(super) type FileExpiries = [Option<Time>; CERTIFICATE_FILES.len()];

/// When each certificate in the files of [`CERTIFICATE_FILES`] expires.
#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct CertificateExpiries([Vec<Time>; CERTIFICATE_FILES.len()]);

/// The files of [`CERTIFICATE_FILES`].
pub(super) fn files(options: &AccessOptions) -> [Option<&PathBuf>; CERTIFICATE_FILES.len()] {
    let tls = options.tls.as_ref();
    [
        tls.map(|tls| &tls.certificate),
        tls.and_then(|tls| tls.client_ca.as_ref()),
        tls.and_then(|tls| tls.ca.as_ref()),
        options.redis.certificate.as_ref(),
        options.redis.ca.as_ref(),
    ]
}

impl CertificateExpiries {
    /// Reads the files again.
    pub(super) fn read(&mut self, options: &AccessOptions) {
        for (file, known) in files(options).into_iter().zip(&mut self.0) {
            let found = file.and_then(|path| expiries_in(path).ok()).filter(|all| !all.is_empty());
            found.into_iter().for_each(|all| *known = all);
        }
    }

    /// When the certificates of each file expire. Which of several certificates counts changes with
    /// time.
    pub(super) fn expiries(&self, now: Time) -> FileExpiries {
        let mut expiries = FileExpiries::default();
        for ((setting, all), expiry) in CERTIFICATE_FILES.into_iter().zip(&self.0).zip(&mut expiries) {
            *expiry = if setting.ends_with("-cert") { first(all) } else { next_of_authorities(all, now) };
        }
        expiries
    }
}

/// Of a certificate and its chain the first to expire counts.
fn first(all: &[Time]) -> Option<Time> {
    all.iter().min().copied()
}

/// Of authorities the next to expire counts: one that has expired beside others that have not was
/// replaced by them. If all have expired, the last one does.
fn next_of_authorities(all: &[Time], now: Time) -> Option<Time> {
    all.iter().filter(|at| **at > now).min().or(all.iter().max()).copied()
}

/// When each certificate in a file expires.
fn expiries_in(path: &Path) -> io::Result<Vec<Time>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE).read_to_end(&mut bytes)?;
    let all = Pem::iter_from_buffer(&bytes).filter_map(Result::ok);
    Ok(all.filter(|pem| pem.label == "CERTIFICATE").filter_map(|pem| expiry(&pem.contents)).collect())
}

/// When a certificate in DER expires; `None`: it cannot be read, or never did so since 1970.
fn expiry(der: &[u8]) -> Option<Time> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let seconds = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    Some(Time::from_ms(seconds.saturating_mul(1_000)))
}

#[cfg(test)]
mod tests {
    use mtimer_tls::test_support::Authority;

    use super::*;
    use crate::access::RedisCertificates;
    use crate::tls::BrokerTlsOptions;

    const NOW: Time = Time::from_ms(1_800_000_000_000);
    /// 2002-01-01: the end of the test authority's expired certificates.
    const OLD: Time = Time::from_ms(1_009_843_200_000);
    /// 4096-01-01: rcgen's default end.
    const NEW: Time = Time::from_ms(67_090_118_400_000);

    #[test]
    fn each_file_counts_by_itself_and_one_that_is_damaged_as_before() {
        let authority = Authority::new();
        let (new, old) = (authority.issue("new"), authority.issue_expired("old"));
        let tls = BrokerTlsOptions {
            certificate: new.certificate.clone(),
            key: new.key,
            client_ca: Some(old.certificate.clone()),
            ca: None,
        };
        let redis = RedisCertificates { certificate: Some(old.certificate), ca: None };
        let options = AccessOptions { tls: Some(tls), redis, ..AccessOptions::default() };
        let found = [Some(NEW), Some(OLD), None, Some(OLD), None];
        let mut all = CertificateExpiries::default();
        let mut read = |options| {
            all.read(options);
            all.expiries(NOW)
        };
        assert_eq!(read(&options), found);
        for damaged in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            std::fs::write(&new.certificate, damaged).unwrap();
            assert_eq!(read(&options), found);
        }
        std::fs::remove_file(&new.certificate).unwrap();
        assert_eq!(read(&options), found);
    }

    #[test]
    fn of_a_chain_the_first_counts_and_of_authorities_the_next() {
        let authority = Authority::new();
        let (new, old) = (authority.issue("new").certificate, authority.issue_expired("old").certificate);
        let both = [std::fs::read(&new).unwrap(), std::fs::read(old).unwrap()].concat();
        std::fs::write(&new, both).unwrap();
        let redis = RedisCertificates { certificate: Some(new.clone()), ca: Some(new) };
        let options = AccessOptions { redis, ..AccessOptions::default() };
        let mut all = CertificateExpiries::default();
        all.read(&options);
        let [.., certificate, ca] = all.expiries(NOW);
        assert_eq!((certificate, ca), (Some(OLD), Some(NEW)));
        // The old one counted for as long as it was the next; nothing was read since.
        let [.., ca] = all.expiries(Time::from_ms(1));
        assert_eq!(ca, Some(OLD));
        assert_eq!(next_of_authorities(&[OLD, Time::from_ms(1)], NOW), Some(OLD), "all have expired");
    }
}
