//! Authentication and permissions of sessions: tokens and certificates, read again when their files
//! change.
//!
//! Purpose: holds the tokens, the certificates, and this broker's own credentials; lets connections
//! and sessions in, and tells each session when its token has been revoked or has expired.
//! Invariant: a file that cannot be read or is not valid changes nothing: the last valid contents
//! stay, and the file is read again every two seconds until it is valid. No error and no log line
//! has a secret in it.
//! Not in here: the permissions of a token ([`mtimer_access`]).

mod certificates;
mod expiry;
mod files;
mod guard;
mod options;
#[cfg(test)]
mod tests;
mod wall_clock;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mtimer_access::{Denied, InvalidTokens, MAX_FILE_BYTES, Rejected, Token, Tokens, Verb, needs};
use mtimer_protocol::Hello;
use mtimer_tls::{AcceptError, ClientCertificate, ClientTls, PrivateFileError, Stream, read_private};
use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub(crate) use self::certificates::CERTIFICATE_FILES;
use self::certificates::CertificateExpiries;
pub(crate) use self::expiry::Expiries;
use self::expiry::Reminder;
use self::files::{Credential, Files, stamps};
pub(crate) use self::guard::Guard;
pub use self::options::{AccessOptions, PeerToken, RedisCertificates};
use self::wall_clock::now;
use crate::counters::ShellCounters;
use crate::exposure::Protection;
use crate::tls::{BrokerTls, BrokerTlsError};

/// How often it is looked whether a file has changed.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Most bytes of a file with one token in it.
const MAX_TOKEN_FILE: u64 = 4 * 1024;

/// The tokens or certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A file cannot be read.
    #[error("the {what}: {source}")]
    File {
        /// Which.
        what: &'static str,
        /// Why not.
        source: PrivateFileError,
    },
    /// The tokens file is not valid.
    #[error("the tokens file {} is not valid: {source}", .path.display())]
    Tokens {
        /// The file.
        path: PathBuf,
        /// The fault.
        source: InvalidTokens,
    },
    /// Certificates or keys cannot be used.
    #[error(transparent)]
    Tls(#[from] BrokerTlsError),
    /// This broker's own token is none.
    #[error("this broker's own token ({from}) is {source}")]
    PeerToken {
        /// Where it is from.
        from: String,
        /// The fault.
        source: mtimer_access::InvalidToken,
    },
}

/// Why metrics are not shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoMetrics {
    /// The token is missing or not valid.
    #[error(transparent)]
    Unauthorized(Rejected),
    /// The token is valid and lacks the verb.
    #[error(transparent)]
    Forbidden(Denied),
    /// Clients have certificates here, and this one has shown none.
    #[error(
        "metrics are shown to clients with a certificate: give one that this broker's tls-client-ca signed"
    )]
    NoCertificate,
}

/// The contents of the files, by which connections are let in.
pub(crate) struct AccessControl {
    options: AccessOptions,
    /// `None`: everybody may do everything.
    tokens: Option<Arc<watch::Sender<Arc<Tokens>>>>,
    peer_token: RwLock<Arc<str>>,
    tls: Option<BrokerTls>,
    files: Mutex<Files>,
    /// When the certificates read last expire.
    certificates: Mutex<CertificateExpiries>,
    asked: Notify,
}

/// The credentials of a broker for others, and how it connects to them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerCredentials {
    pub(crate) token: String,
    /// `None`: connections to other brokers are not encrypted.
    pub(crate) tls: Option<ClientTls>,
}

impl AccessControl {
    /// Reads the files.
    pub(crate) fn open(options: AccessOptions) -> Result<Self, AccessError> {
        let files = Mutex::new(Files::new(stamps(&options)));
        let tokens = options.tokens.as_deref().map(read_tokens).transpose()?;
        let peer_token = RwLock::new(read_peer_token(&options.peer_token)?);
        let tokens = tokens.map(|tokens| Arc::new(watch::Sender::new(Arc::new(tokens))));
        let tls = options.tls.clone().map(BrokerTls::open).transpose()?;
        let mut certificates = CertificateExpiries::default();
        certificates.read(&options);
        let certificates = Mutex::new(certificates);
        Ok(Self { options, tokens, peer_token, tls, files, certificates, asked: Notify::new() })
    }

    /// Lets everybody in.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn everybody() -> Self {
        Self {
            options: AccessOptions::default(),
            tokens: None,
            peer_token: RwLock::new("".into()),
            tls: None,
            files: Mutex::default(),
            certificates: Mutex::default(),
            asked: Notify::new(),
        }
    }

    /// The protection of its ports, and whether `insecure` is set.
    pub(crate) fn protection(&self) -> (Protection, bool) {
        (self.options.protection(), self.options.insecure)
    }

    /// The credentials for other brokers.
    pub(crate) fn peer_credentials(&self) -> PeerCredentials {
        let token = self.peer_token.read().to_string();
        PeerCredentials { token, tls: self.tls.as_ref().and_then(BrokerTls::peers) }
    }

    /// Encrypts a connection, if connections are encrypted here.
    pub(crate) async fn accept(
        &self,
        socket: TcpStream,
        clients: ClientCertificate,
        within: Duration,
    ) -> Result<Stream, AcceptError> {
        match &self.tls {
            None => Ok(Stream::Plain(socket)),
            Some(tls) => tls.server().accept(socket, clients, within).await,
        }
    }

    /// Lets a session in, or says why not. `None`: it may do everything.
    pub(crate) fn authenticate(&self, hello: &Hello) -> Result<Option<Arc<Guard>>, String> {
        let Some(source) = &self.tokens else { return Ok(None) };
        let tokens = source.borrow().clone();
        let principal = tokens.authenticate(&hello.token, now()).map_err(|e| e.to_string())?;
        needs::of_role(hello.role).check(principal).map_err(|denied| denied.to_string())?;
        let token: Token = hello.token.parse().map_err(|_| Rejected::Unknown.to_string())?;
        Ok(Some(Arc::new(Guard::new(source.clone(), token.hash(), principal.clone()))))
    }

    /// Checks whether a client with this token may read metrics over HTTP.
    pub(crate) fn may_scrape(&self, token: &str, has_certificate: bool) -> Result<(), NoMetrics> {
        if self.options.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some()) && !has_certificate {
            return Err(NoMetrics::NoCertificate);
        }
        let Some(tokens) = &self.tokens else { return Ok(()) };
        let tokens = tokens.borrow().clone();
        let who = tokens.authenticate(token, now()).map_err(NoMetrics::Unauthorized)?;
        needs::Requirement::Everywhere(Verb::Read).check(who).map_err(NoMetrics::Forbidden)
    }

    /// Has the files read again soon, changed or not.
    pub(crate) fn reload(&self) {
        self.asked.notify_one();
    }

    /// Reads the files again when they change or when asked to, and warns of credentials that
    /// expire, until the broker stops.
    ///
    /// # Errors
    ///
    /// If reading panics.
    pub(crate) async fn watch(
        self: Arc<Self>,
        counters: Arc<ShellCounters>,
        stopping: CancellationToken,
    ) -> Result<(), JoinError> {
        let mut reminder = Reminder::default();
        loop {
            let expiries = self.expiries();
            expiries.say(&mut reminder, now());
            counters.note_credentials(expiries.own_soon(now()), self.stale().iter().filter(|s| s.1).count());
            let asked = tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                () = self.asked.notified() => true,
                () = sleep(LOOK_EVERY) => false,
            };
            let access = self.clone();
            spawn_blocking(move || access.look(asked)).await?;
        }
    }

    /// For each credential, whether the last read of its file failed, so that an older one is in
    /// use.
    pub(crate) fn stale(&self) -> [(&'static str, bool); Credential::ALL.len()] {
        let files = self.files();
        Credential::ALL.map(|what| (what.name(), files.has_failed(what)))
    }

    /// When the credentials in use expire.
    pub(crate) fn expiries(&self) -> Expiries {
        let certificates = self.certificates().expiries(now());
        let Some(tokens) = &self.tokens else { return Expiries { certificates, ..Expiries::default() } };
        let own = self.peer_token.read().parse::<Token>().ok();
        Expiries { certificates, ..Expiries::of_tokens(&tokens.borrow(), own.as_ref(), now()) }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock()
    }

    fn certificates(&self) -> MutexGuard<'_, CertificateExpiries> {
        self.certificates.lock()
    }

    /// Reads everything if a file has changed or if `asked`; otherwise the files that could not be
    /// read the last time: the reason may have passed without a change of the file.
    fn look(&self, asked: bool) {
        // Taken before reading: a change while it is read is seen the next time.
        let stamps = stamps(&self.options);
        let all = self.files().change(stamps) || asked;
        let had_failed = self.files().has_failed(Credential::Certificates);
        for what in Credential::ALL {
            if all || self.files().has_failed(what) {
                self.read_again(what, all);
            }
        }
        // Expiries count only loaded files.
        if (all || had_failed) && !self.files().has_failed(Credential::Certificates) {
            self.certificates().read(&self.options);
        }
    }

    /// Reads one of them. A failure that was logged is not logged again, unless `always`.
    fn read_again(&self, what: Credential, always: bool) {
        let read = match what {
            Credential::Tokens => self.read_tokens_again(),
            Credential::Certificates => self.read_certificates_again(),
            Credential::PeerToken => self.read_peer_token_again(),
        };
        let is_new = self.files().note(what, read.as_ref().err().map(ToString::to_string));
        let Err(error) = read else { return };
        if !is_new && !always {
            return;
        }
        match what {
            Credential::Tokens => {
                tracing::warn!(%error, "the tokens were not read again, those read last stay valid")
            }
            Credential::Certificates => {
                tracing::warn!(%error, "the certificates were not read again, those read last stay in use")
            }
            Credential::PeerToken => {
                tracing::warn!(%error, "this broker's own token was not read again, the last one stays")
            }
        }
    }

    fn read_tokens_again(&self) -> Result<(), AccessError> {
        if let (Some(path), Some(current)) = (&self.options.tokens, &self.tokens) {
            let tokens = read_tokens(path)?;
            tracing::info!(tokens = tokens.entries().len(), "the tokens were read again");
            current.send_replace(Arc::new(tokens));
        }
        Ok(())
    }

    fn read_certificates_again(&self) -> Result<(), AccessError> {
        if let Some(tls) = &self.tls {
            tls.reload()?;
            tracing::info!("the certificates were read again");
        }
        Ok(())
    }

    fn read_peer_token_again(&self) -> Result<(), AccessError> {
        let token = read_peer_token(&self.options.peer_token)?;
        *self.peer_token.write() = token;
        Ok(())
    }
}

impl fmt::Debug for AccessControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessControl").field("options", &self.options).finish_non_exhaustive()
    }
}

fn read_text(what: &'static str, path: &Path, limit: u64) -> Result<String, AccessError> {
    read_private(path, limit).map_err(|source| AccessError::File { what, source })
}

fn read_tokens(path: &Path) -> Result<Tokens, AccessError> {
    let text = read_text("tokens file", path, MAX_FILE_BYTES as u64)?;
    Tokens::parse(&text).map_err(|source| AccessError::Tokens { path: path.to_owned(), source })
}

fn read_peer_token(token: &PeerToken) -> Result<Arc<str>, AccessError> {
    let (text, from) = match token {
        PeerToken::None => return Ok("".into()),
        PeerToken::Value(text) => (text.clone(), "MTIMER_PEER_TOKEN".to_owned()),
        PeerToken::File(path) => {
            (read_text("file of this broker's own token", path, MAX_TOKEN_FILE)?, path.display().to_string())
        }
    };
    let text = text.trim();
    text.parse::<Token>().map_err(|source| AccessError::PeerToken { from, source })?;
    Ok(text.into())
}
