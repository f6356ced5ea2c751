//! Permissions and limits at a broker.
//!
//! Purpose: tokens and the file that lists them ([`Tokens`]), permissions of a token
//! ([`Principal`]), the permission that each message of the protocol needs ([`needs`]), and limits
//! ([`Limits`]).
//! Invariant: a request is allowed only if a grant says so; the secret of a token is kept nowhere,
//! only its hash is.
//! Not in here: clocks, files, sockets, randomness.

#![deny(missing_docs, clippy::missing_errors_doc)]

mod file;
mod grant;
mod limits;
pub mod needs;
mod principal;
mod screen;
mod token;

pub use file::{InvalidTokens, MAX_FILE_BYTES, MAX_TOKENS, TokenEntry, Tokens};
pub use grant::{Grant, InvalidGrant, Pattern, Verbs};
pub use limits::{InvalidLimit, Limit, Limits, Rate, TokenBucket};
pub use mtimer_types::Verb;
pub use principal::{Denied, Principal};
pub use screen::{denied_ops, screen};
pub use token::{InvalidToken, Rejected, Token, TokenHash};
