#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use mtimer_access::TokenEntry;
use mtimer_types::Time;
use tempfile::TempDir;

use super::*;

/// Tokens in a file that is replaced.
struct TokensFile {
    _dir: TempDir,
    path: PathBuf,
}

impl TokensFile {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.toml");
        let this = Self { _dir: dir, path };
        this.write(&[(1, None)]);
        this
    }

    /// Writes a token for each number, with its expiry. The file may be of the same age and length
    /// as before.
    fn write(&self, tokens: &[(u8, Option<u64>)]) {
        let entries = tokens.iter().map(|&(n, expires_ms)| TokenEntry {
            id: token(n).id().to_owned(),
            name: "test".to_owned(),
            sha256: token(n).hash(),
            expires_ms,
            grants: vec!["read:*".parse().unwrap()],
            limits: Default::default(),
        });
        fs::write(&self.path, Tokens::new(entries.collect()).unwrap().to_toml()).unwrap();
        self.set_mode(0o600);
    }

    fn set_mode(&self, mode: u32) {
        fs::set_permissions(&self.path, PermissionsExt::from_mode(mode)).unwrap();
    }

    fn access(&self, peer_token: PeerToken) -> AccessControl {
        let options =
            AccessOptions { tokens: Some(self.path.clone()), peer_token, ..AccessOptions::default() };
        AccessControl::open(options).unwrap()
    }
}

fn token(n: u8) -> Token {
    Token::from_random([n; 8], [n; 32])
}

fn knows(access: &AccessControl, n: u8) -> bool {
    access.may_scrape(&token(n).reveal(), false).is_ok()
}

fn is_stale(access: &AccessControl) -> bool {
    access.stale().contains(&("tokens", true))
}

#[test]
fn a_mode_that_is_changed_and_corrected_is_noticed_without_being_asked() {
    let file = TokensFile::new();
    let access = file.access(PeerToken::None);
    access.look(false);
    assert!(!is_stale(&access) && knows(&access, 1));
    file.set_mode(0o644);
    access.look(false);
    assert!(is_stale(&access) && knows(&access, 1), "others can read it");
    access.look(false);
    assert!(is_stale(&access), "it is as it was");
    file.set_mode(0o600);
    access.look(false);
    assert!(!is_stale(&access) && knows(&access, 1));
}

#[test]
fn what_could_not_be_read_is_read_again_although_its_file_has_not_changed() {
    let file = TokensFile::new();
    let access = file.access(PeerToken::None);
    fs::write(&file.path, "nonsense").unwrap();
    access.look(false);
    assert!(is_stale(&access) && knows(&access, 1));
    // As if the file had been like this, and the system had refused to read it.
    file.write(&[(2, None)]);
    assert!(access.files().change(stamps(&access.options)));
    access.look(false);
    assert!(!is_stale(&access) && knows(&access, 2) && !knows(&access, 1), "the first token was revoked");
}

#[test]
fn a_failure_is_new_once_and_when_it_changes() {
    let mut files = Files::default();
    let mut note = |failure: Option<&str>| files.note(Credential::Tokens, failure.map(str::to_owned));
    assert!(!note(None) && note(Some("a")) && !note(Some("a")) && note(Some("b")) && note(None));
    assert!(!files.has_failed(Credential::Tokens));
}

#[test]
fn the_brokers_own_token_and_the_first_of_the_others_have_expiries() {
    let file = TokensFile::new();
    let in_ms = |ms: u64| now().as_ms() + ms;
    let (own, first, later) = (in_ms(500_000), in_ms(300_000), in_ms(400_000));
    file.write(&[(1, Some(own)), (2, Some(later)), (3, Some(first)), (4, Some(1)), (5, None)]);
    let peer_token = PeerToken::Value(token(1).reveal());
    let expiries = file.access(peer_token).expiries();
    let at = |ms| Some(Time::from_ms(ms));
    assert_eq!(expiries, Expiries { peer_token: at(own), tokens: at(first), ..Expiries::default() });
    let expiries = file.access(PeerToken::None).expiries();
    assert_eq!((expiries.peer_token, expiries.tokens), (None, at(first)));
}
