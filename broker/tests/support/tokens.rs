//! Files of tokens, and clients that show one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use mtimer_access::{Token, TokenEntry, Tokens};
use mtimer_broker::{AccessOptions, Broker, BrokerOptions};
use mtimer_protocol::Hello;

use super::{Client, broker, hello, options};

pub(crate) fn token(n: u8) -> Token {
    Token::from_random([n; 8], [n; 32])
}

/// The entry of `token(n)`, which never expires and has no limits.
pub(crate) fn entry(n: u8, grants: &str) -> TokenEntry {
    TokenEntry {
        id: token(n).id().to_owned(),
        name: "test".to_owned(),
        sha256: token(n).hash(),
        expires_ms: None,
        grants: vec![grants.parse().unwrap()],
        limits: Default::default(),
    }
}

/// Writes a file of tokens with [`replace_file`].
pub(crate) fn write_tokens(path: &Path, entries: impl IntoIterator<Item = TokenEntry>) {
    let tokens = Tokens::new(entries.into_iter().collect()).unwrap();
    replace_file(path, &tokens.to_toml());
}

/// Replaces a file of tokens in one step. A broker may read it at any moment, and a file that is
/// empty while it is being written has no tokens.
pub(crate) fn replace_file(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::set_permissions(&new, PermissionsExt::from_mode(0o600)).unwrap();
    fs::rename(new, path).unwrap();
}

/// A broker that asks for a token of this file.
pub(crate) async fn guarded(path: &Path) -> Broker {
    broker(BrokerOptions { access: tokens_of(path), ..options() }).await
}

pub(crate) fn tokens_of(path: &Path) -> AccessOptions {
    AccessOptions { tokens: Some(path.to_owned()), ..AccessOptions::default() }
}

/// A client that has shown `token(n)` and was let in.
pub(crate) async fn with_token(broker: &Broker, n: u8) -> Client {
    let mut client = Client::connect(broker).await;
    client.shake_hands(Hello { token: token(n).reveal(), ..hello() }).await;
    client
}
