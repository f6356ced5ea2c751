//! The permissions of one session, and when it has to end.

use std::sync::Arc;
use std::time::Duration;

use mtimer_access::{Principal, TokenHash, Tokens, Verb};
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::time::sleep;

use super::wall_clock::now;

/// Longest wait for an expiry before the wall clock is looked at again: it may be set.
const EXPIRY_STEP: Duration = Duration::from_secs(60);

/// The present permissions of one session.
#[derive(Debug)]
pub(crate) struct Guard {
    /// Those of the tokens file as it was read last.
    tokens: Arc<watch::Sender<Arc<Tokens>>>,
    hash: TokenHash,
    principal: RwLock<Arc<Principal>>,
}

impl Guard {
    pub(super) fn new(
        tokens: Arc<watch::Sender<Arc<Tokens>>>,
        hash: TokenHash,
        principal: Arc<Principal>,
    ) -> Self {
        Self { tokens, hash, principal: RwLock::new(principal) }
    }

    /// The present permissions of its token.
    pub(crate) fn principal(&self) -> Arc<Principal> {
        self.principal.read().clone()
    }

    /// Follows the tokens file; completes, saying why, when the session has to end.
    pub(crate) async fn revoked(&self) -> &'static str {
        let mut changes = self.tokens.subscribe();
        loop {
            let tokens = changes.borrow_and_update().clone();
            let before = self.principal();
            let Some(current) = tokens.current(before.id(), &self.hash, now()) else {
                return "the token of this session was revoked or has expired";
            };
            if !current.covers(&before, Verb::Register) || !current.covers(&before, Verb::Broker) {
                return "the token of this session allows less than before: connect anew";
            }
            *self.principal.write() = current.clone();
            let expires = tokens.entry(before.id()).and_then(|entry| entry.expires());
            let expiry = async {
                match expires {
                    None => std::future::pending().await,
                    Some(at) => sleep(EXPIRY_STEP.min(Duration::from_millis(at.ms_since(now())))).await,
                }
            };
            tokio::select! {
                // This guard holds the sender: it cannot be gone.
                _ = changes.changed() => {}
                () = expiry => {}
            }
        }
    }
}
