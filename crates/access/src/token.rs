//! A token: an id, which is no secret, and a secret of 256 random bits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Prefix of every token, so that scanners for secrets can find it.
const PREFIX: &str = "mtimer_";
/// Hexadecimal digits of an id.
const ID_DIGITS: usize = 16;
/// Hexadecimal digits of a secret, and of its hash.
const SECRET_DIGITS: usize = 64;

/// A token as its holder has it. Its `Debug` shows no secret.
#[derive(Clone)]
pub struct Token {
    id: Box<str>,
    secret: [u8; 32],
}

impl Token {
    /// Makes a token of random bytes, which the caller takes from a cryptographic generator.
    pub fn from_random(id: [u8; 8], secret: [u8; 32]) -> Self {
        Self { id: hex(&id).into(), secret }
    }

    /// Returns its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the hash of its secret. The secret is random, so a slow hash is not needed.
    pub fn hash(&self) -> TokenHash {
        TokenHash(Sha256::digest(self.secret).into())
    }

    /// Returns the text to give to its holder, with the secret in it.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}_{}", self.id, hex(&self.secret))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A text that is no token. The text is not shown: it may be a secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "not a token: it is mtimer_, 16 hexadecimal digits, _, and 64 more, as `mtimer token create` shows it"
)]
pub struct InvalidToken;

impl FromStr for Token {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let (id, secret) =
            text.strip_prefix(PREFIX).and_then(|rest| rest.split_once('_')).ok_or(InvalidToken)?;
        if !is_id(id) {
            return Err(InvalidToken);
        }
        Ok(Self { id: id.into(), secret: unhex(secret).ok_or(InvalidToken)? })
    }
}

/// Says whether a text is the id of a token.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// SHA-256 of a token's secret.
#[derive(Clone, Copy)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// A hash that no secret is known for.
    pub(crate) const NONE: Self = Self([0; 32]);

    /// Compares with another one in constant time.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl PartialEq for TokenHash {
    fn eq(&self, other: &Self) -> bool {
        self.matches(other)
    }
}

impl Eq for TokenHash {}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash")
    }
}

impl Serialize for TokenHash {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for TokenHash {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        unhex(&text).map(Self).ok_or_else(|| {
            de::Error::custom(format!(
                "a hash is {SECRET_DIGITS} hexadecimal digits, this has {}",
                text.len()
            ))
        })
    }
}

/// Why a token opens no session. The texts go to strangers and say nothing that helps to guess.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rejected {
    /// The hello has none.
    #[error("this broker asks for a token: give one with --token-file or MTIMER_TOKEN")]
    Missing,
    /// Malformed, unknown, revoked, or another secret.
    #[error("the token is not known here: it is mistyped, was revoked, or belongs to another cluster")]
    Unknown,
    /// It was right.
    #[error("the token has expired: make a new one with `mtimer token create`")]
    Expired,
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |n: u8| char::from(DIGITS[usize::from(n)]);
    bytes.iter().flat_map(|b| [digit(b >> 4), digit(b & 15)]).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    if text.len() != SECRET_DIGITS {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digit = |c: u8| char::from(c).to_digit(16).and_then(|n| u8::try_from(n).ok());
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_shown() {
        let token = Token::from_random([0xab; 8], [7; 32]);
        let text = token.reveal();
        let read: Token = text.parse().unwrap();
        assert_eq!((read.id(), read.hash()), (token.id(), token.hash()));
        let other = Token::from_random([0xab; 8], [8; 32]);
        assert!(!other.hash().matches(&token.hash()));
        for bad in ["", "mtimer_", "secret", &text[1..], &text[..text.len() - 1], &text.replace('a', "x")] {
            assert!(bad.parse::<Token>().is_err(), "{bad}");
        }
    }

    #[test]
    fn nothing_but_reveal_shows_a_secret() {
        let token = Token::from_random([1; 8], [0x5e; 32]);
        let shown = format!("{token:?} {:?} {InvalidToken}", token.hash());
        assert!(!shown.contains("5e5e"), "{shown}");
        assert!(shown.contains(token.id()), "{shown}");
    }

    /// The hash is SHA-256 of the secret's 32 bytes: other tools can compute it.
    #[test]
    fn the_hash_is_sha_256() {
        let token = Token::from_random([0; 8], [0; 32]);
        let expected = "66687aadf862bd776c8fc18b8e9f8e20089714856ee233b3902a591d0d5f2925";
        assert_eq!(hex(&token.hash().0), expected);
    }
}
