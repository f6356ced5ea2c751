//! Who may open a session. The hook for tokens; by default everybody may.

use std::fmt;
use std::net::SocketAddr;

use mtimer_protocol::Hello;

/// Looks at a client's hello before it is welcomed.
///
/// Called on the session's task, so it must not block. It must not log the token.
pub trait Authenticator: Send + Sync + fmt::Debug + 'static {
    /// Lets the client in or says why not.
    fn authenticate(&self, peer: SocketAddr, hello: &Hello) -> Result<(), Denied>;
}

/// The client may not come in; the text is for people and goes to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Denied(pub String);

/// Lets everybody in.
#[derive(Debug, Clone, Copy, Default)]
pub struct AcceptAll;

impl Authenticator for AcceptAll {
    fn authenticate(&self, _peer: SocketAddr, _hello: &Hello) -> Result<(), Denied> {
        Ok(())
    }
}
