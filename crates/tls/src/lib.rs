//! TLS of mtimer's connections: who the other side has to be, and the encrypted stream.
//!
//! Purpose: certificates and keys from PEM files, read again while running ([`ServerTls`]) or once
//! ([`ClientTls`]); files that only their owner and group may read ([`read_private`]); handshakes
//! with a time limit; one type for encrypted and plain connections ([`Stream`]).
//! Invariant: TLS 1.3 and 1.2 only, with the cryptography of *ring*, and without any process-wide
//! default. A certificate is always checked. No error shows anything of a key.
//! Not in here: when TLS is used, and the rights of the other side.

#![deny(missing_docs, clippy::missing_errors_doc)]

mod client;
mod error;
mod pem;
mod private_file;
mod server;
mod stream;
#[cfg(any(test, feature = "test-support"))]
pub mod test_support;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use client::{ClientFiles, ClientPem, ClientTls, ClientTlsOptions, Identity, Pem};
pub use error::{AcceptError, TlsConnectError, TlsError};
pub use private_file::{PrivateFileError, check_private, read_private};
pub use server::{ClientCertificate, ServerFiles, ServerTls};
pub use stream::{Encrypted, ReadHalf, Stream, WriteHalf};

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
