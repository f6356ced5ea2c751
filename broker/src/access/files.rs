//! Stamps of the files of tokens and certificates as they were last read, and which could not be
//! read.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use super::options::{AccessOptions, PeerToken};
use crate::tls::BrokerTlsOptions;

/// Credentials that are read from files, and read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Credential {
    Tokens,
    Certificates,
    PeerToken,
}

impl Credential {
    pub(super) const ALL: [Self; 3] = [Self::Tokens, Self::Certificates, Self::PeerToken];

    /// As in metrics.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Certificates => "certificates",
            Self::PeerToken => "peer_token",
        }
    }
}

/// Metadata of a file that changes with its contents or its rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    modified: Option<SystemTime>,
    len: u64,
    #[cfg(unix)]
    inode: u64,
    #[cfg(unix)]
    mode: u32,
    /// When content, owner or mode changed, in seconds and nanoseconds.
    #[cfg(unix)]
    changed: (i64, i64),
}

/// The state of all files.
#[derive(Debug, Default)]
pub(super) struct Files {
    stamps: Vec<Option<Stamp>>,
    /// Why the last attempt to read it failed, by [`Credential`].
    failures: [Option<String>; Credential::ALL.len()],
}

impl Files {
    pub(super) fn new(stamps: Vec<Option<Stamp>>) -> Self {
        Self { stamps, ..Self::default() }
    }

    /// Notes the present stamps of the files. Returns whether they have changed.
    pub(super) fn change(&mut self, stamps: Vec<Option<Stamp>>) -> bool {
        let has_changed = self.stamps != stamps;
        self.stamps = stamps;
        has_changed
    }

    pub(super) fn has_failed(&self, what: Credential) -> bool {
        self.failures[what as usize].is_some()
    }

    /// Notes how reading has ended. Returns whether it ended differently the last time.
    pub(super) fn note(&mut self, what: Credential, failure: Option<String>) -> bool {
        let is_new = self.failures[what as usize] != failure;
        self.failures[what as usize] = failure;
        is_new
    }
}

/// Looks at every file, in a fixed order. `None`: it cannot be looked at.
pub(super) fn stamps(options: &AccessOptions) -> Vec<Option<Stamp>> {
    let peer = match &options.peer_token {
        PeerToken::File(path) => Some(path),
        PeerToken::None | PeerToken::Value(_) => None,
    };
    let tls = options.tls.iter().flat_map(BrokerTlsOptions::files);
    let redis = [&options.redis.certificate, &options.redis.ca].into_iter().flatten();
    options.tokens.iter().chain(peer).chain(tls).chain(redis).map(|path| stamp(path)).collect()
}

fn stamp(path: &Path) -> Option<Stamp> {
    #[cfg(unix)]
    use std::os::unix::fs::MetadataExt;
    let data = fs::metadata(path).ok()?;
    Some(Stamp {
        modified: data.modified().ok(),
        len: data.len(),
        #[cfg(unix)]
        inode: data.ino(),
        #[cfg(unix)]
        mode: data.mode(),
        #[cfg(unix)]
        changed: (data.ctime(), data.ctime_nsec()),
    })
}
