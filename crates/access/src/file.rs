//! The tokens file: which tokens there are.

use std::collections::HashMap;
use std::sync::Arc;

use mtimer_types::Time;
use serde::{Deserialize, Serialize};

use crate::grant::{Grant, InvalidGrant};
use crate::limits::{InvalidLimit, Limits};
use crate::principal::Principal;
use crate::token::{Rejected, Token, TokenHash, is_id};

/// Most tokens of a file.
pub const MAX_TOKENS: usize = 10_000;
/// Most bytes of a file.
pub const MAX_FILE_BYTES: usize = 16 * 1024 * 1024;
/// Most grants of a token.
const MAX_GRANTS: usize = 1_000;
/// Longest name of a token, bytes.
const MAX_NAME: usize = 128;

/// One token, as the file has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenEntry {
    /// The first part of the token; no secret.
    pub id: String,
    /// Whose it is, for people.
    pub name: String,
    /// SHA-256 of the secret, in hexadecimal.
    pub sha256: TokenHash,
    /// When it ends to be valid, in ms since 1970; without it: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// The permissions.
    #[serde(default)]
    pub grants: Vec<Grant>,
    /// How much of it, at each broker.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
}

impl TokenEntry {
    /// Returns when it ends to be valid.
    pub fn expires(&self) -> Option<Time> {
        self.expires_ms.map(Time::from_ms)
    }

    fn validate(&self) -> Result<(), InvalidTokens> {
        let wrong = |why: String| Err(InvalidTokens::Token { id: self.id.chars().take(32).collect(), why });
        if !is_id(&self.id) {
            return wrong("an id is 16 hexadecimal digits in lower case".to_owned());
        }
        if self.name.is_empty() || self.name.len() > MAX_NAME || self.name.chars().any(char::is_control) {
            let len = self.name.len();
            return wrong(format!("its name has {len} bytes: 1 to {MAX_NAME} without control characters"));
        }
        if self.grants.len() > MAX_GRANTS {
            return wrong(format!("it has {} grants, the limit is {MAX_GRANTS}", self.grants.len()));
        }
        self.limits.validate().or_else(|e: InvalidLimit| wrong(e.to_string()))?;
        self.grants.iter().try_for_each(Grant::validate).or_else(|e: InvalidGrant| wrong(e.to_string()))
    }
}

/// Why a tokens file is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidTokens {
    /// Too large.
    #[error("it has {len} bytes, the limit is {MAX_FILE_BYTES}: remove expired tokens")]
    TooLarge {
        /// Its bytes.
        len: usize,
    },
    /// No TOML, or not as it should be.
    #[error("line {line}: {message}")]
    Toml {
        /// Where.
        line: usize,
        /// The mistake. The text of the line is left out.
        message: String,
    },
    /// Too many tokens.
    #[error("it has {count} tokens, the limit is {MAX_TOKENS}: remove expired ones")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// One token is not right.
    #[error("token {id:?}: {why}")]
    Token {
        /// Its id.
        id: String,
        /// The fault.
        why: String,
    },
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default, rename = "token")]
    tokens: Vec<TokenEntry>,
}

/// Splits a text before each `[[token]]` and the comments right above it. The text above the first
/// one is a part of its own.
fn parts(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut above, mut at) = (Vec::new(), 0, 0, 0);
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim();
        if trimmed.starts_with("[[token]]") {
            parts.push(&text[start..above]);
            start = above;
        }
        at += line.len();
        // A comment belongs to the line that follows it directly.
        if !trimmed.starts_with('#') {
            above = at;
        }
    }
    parts.push(&text[start..]);
    parts.retain(|part| !part.is_empty());
    parts
}

/// The tokens of a file.
#[derive(Clone, Default, Debug)]
pub struct Tokens {
    entries: Vec<TokenEntry>,
    by_id: HashMap<String, (usize, Arc<Principal>)>,
}

impl Tokens {
    /// Checks tokens and puts them together.
    ///
    /// # Errors
    ///
    /// [`InvalidTokens`] if there are too many, one is not right, or two have the same id.
    pub fn new(entries: Vec<TokenEntry>) -> Result<Self, InvalidTokens> {
        if entries.len() > MAX_TOKENS {
            return Err(InvalidTokens::TooMany { count: entries.len() });
        }
        let mut by_id = HashMap::with_capacity(entries.len());
        for (at, entry) in entries.iter().enumerate() {
            entry.validate()?;
            let principal = Arc::new(Principal::new(&entry.id, &entry.grants).with_limits(entry.limits));
            if by_id.insert(entry.id.clone(), (at, principal)).is_some() {
                let why = "it is there twice: remove one of them".to_owned();
                return Err(InvalidTokens::Token { id: entry.id.clone(), why });
            }
        }
        Ok(Self { entries, by_id })
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// [`InvalidTokens`] if it is too large or not valid. The error shows no line of the file.
    pub fn parse(text: &str) -> Result<Self, InvalidTokens> {
        if text.len() > MAX_FILE_BYTES {
            return Err(InvalidTokens::TooLarge { len: text.len() });
        }
        let file: File = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            InvalidTokens::Toml { line, message: error.message().to_owned() }
        })?;
        Self::new(file.tokens)
    }

    /// Returns the text of a file with these tokens.
    pub fn to_toml(&self) -> String {
        let file = File { tokens: self.entries.clone() };
        // Tables of texts and numbers up to 2^63: nothing in them that TOML cannot have.
        toml::to_string_pretty(&file).unwrap_or_default()
    }

    /// Returns the text of a file that was `before` and is to have these tokens. Comments stay with
    /// the tokens that they stand above or in, and tokens that are as before are not touched. A
    /// text that is not made of `[[token]]` tables is written anew.
    pub fn update(&self, before: &str) -> String {
        let mut text = String::new();
        let mut left: Vec<&TokenEntry> = self.entries.iter().collect();
        for part in parts(before) {
            let one = Self::parse(part).ok().filter(|tokens| tokens.entries.len() == 1);
            let Some(old) = one.as_ref().and_then(|tokens| tokens.entries.first()) else {
                text += part;
                continue;
            };
            // One that is gone takes its comments with it.
            let Some(at) = left.iter().position(|entry| entry.id == old.id) else { continue };
            let entry = left.remove(at);
            if entry == old {
                text += part;
                continue;
            }
            let comments = part.lines().filter(|line| line.trim_start().starts_with('#'));
            comments.for_each(|line| text += &format!("{line}\n"));
            text += &format!("{}\n", Self::alone(entry));
        }
        for entry in left {
            let gap = if text.is_empty() || text.ends_with("\n\n") { "" } else { "\n" };
            text += &format!("{gap}{}", Self::alone(entry));
        }
        match Self::parse(&text) {
            Ok(written)
                if written.entries.iter().all(|entry| self.entry(&entry.id) == Some(entry))
                    && written.entries.len() == self.entries.len() =>
            {
                text
            }
            _ => self.to_toml(),
        }
    }

    fn alone(entry: &TokenEntry) -> String {
        Self { entries: vec![entry.clone()], by_id: HashMap::new() }.to_toml()
    }

    /// Returns the tokens, in the order of the file.
    pub fn entries(&self) -> &[TokenEntry] {
        &self.entries
    }

    /// Finds out whose token this is. The secret is compared in constant time.
    ///
    /// # Errors
    ///
    /// [`Rejected`] if there is no such token, or it has expired.
    pub fn authenticate(&self, token: &str, now: Time) -> Result<&Arc<Principal>, Rejected> {
        if token.is_empty() {
            return Err(Rejected::Missing);
        }
        let token: Token = token.parse().map_err(|_| Rejected::Unknown)?;
        let found = self.by_id.get(token.id());
        // Compared in any case: an unknown id takes as long as a wrong secret.
        let expected = found.map_or(TokenHash::NONE, |(at, _)| self.entries[*at].sha256);
        let same = token.hash().matches(&expected);
        let (at, principal) = found.filter(|_| same).ok_or(Rejected::Unknown)?;
        match self.entries[*at].expires() {
            Some(expires) if expires <= now => Err(Rejected::Expired),
            _ => Ok(principal),
        }
    }

    /// Returns the present permissions of a token that was accepted earlier; `None` if it is gone,
    /// has another secret, or has expired.
    pub fn current(&self, id: &str, hash: &TokenHash, now: Time) -> Option<&Arc<Principal>> {
        let (at, principal) = self.by_id.get(id)?;
        let entry = &self.entries[*at];
        let valid = entry.sha256.matches(hash) && entry.expires().is_none_or(|expires| now < expires);
        valid.then_some(principal)
    }

    /// Returns the entry of an id.
    pub fn entry(&self, id: &str) -> Option<&TokenEntry> {
        self.by_id.get(id).map(|(at, _)| &self.entries[*at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_ms(1_000_000);

    fn entry(token: &Token, expires_ms: Option<u64>, grant: &str) -> TokenEntry {
        TokenEntry {
            id: token.id().to_owned(),
            name: "shop".to_owned(),
            sha256: token.hash(),
            expires_ms,
            grants: vec![grant.parse().unwrap()],
            limits: Limits::default(),
        }
    }

    fn token(n: u8) -> Token {
        Token::from_random([n; 8], [n; 32])
    }

    #[test]
    fn comments_stay_with_their_tokens_and_what_is_as_before_is_not_touched() {
        let old =
            Tokens::new(vec![entry(&token(1), None, "read:*"), entry(&token(2), None, "read:a/*")]).unwrap();
        let [one, two] = [&old.entries[0], &old.entries[1]];
        let alone = |entry: &TokenEntry| Tokens::alone(entry);
        let before = format!(
            "# All tokens of the shop.\n\n# For alice.\n{}  # until she leaves\n\n# For bob.\n{}",
            alone(one).replace(" = ", "   =   "),
            alone(two)
        );
        let of = |entries: Vec<TokenEntry>| Tokens::new(entries).unwrap();
        assert_eq!(old.update(&before), before);
        // A grant more for bob, and a third token.
        let mut more = two.clone();
        more.grants.push("operate:*".parse().unwrap());
        let third = entry(&token(3), Some(5), "schedule:c/*");
        let after = of(vec![one.clone(), more.clone(), third.clone()]).update(&before);
        let (alice, rest) = after.split_once("# For bob.\n").unwrap();
        assert_eq!(alice, before.split_once("# For bob.\n").unwrap().0);
        assert_eq!(rest, format!("{}\n{}", alone(&more), alone(&third)));
        // Who is gone takes the comments along.
        let after = of(vec![two.clone()]).update(&before);
        assert_eq!(after, format!("# All tokens of the shop.\n\n# For bob.\n{}", alone(two)));
        // Any file has these tokens afterwards.
        for before in ["", "token = []\n", "# nothing\n", "nonsense"] {
            let written = Tokens::parse(&old.update(before)).unwrap();
            assert_eq!(written.entries, old.entries, "{before}");
        }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let tokens = Tokens::new(vec![
            entry(&token(1), None, "read:*"),
            TokenEntry {
                limits: "schedules=5,pending=9".parse().unwrap(),
                ..entry(&token(2), Some(5), "schedule:a/b,c/*")
            },
        ])
        .unwrap();
        let text = tokens.to_toml();
        let read = Tokens::parse(&text).unwrap();
        assert_eq!(read.entries(), tokens.entries());
        assert!(!text.contains(&token(1).reveal()[24..]), "{text}");
        assert!(Tokens::parse("").unwrap().entries().is_empty());
    }

    #[test]
    fn only_the_right_secret_of_a_live_token_is_let_in() {
        let entries = vec![
            entry(&token(1), None, "read:*"),
            entry(&token(2), Some(NOW.as_ms()), "read:*"),
            entry(&token(3), Some(NOW.as_ms() + 1), "read:*"),
        ];
        let tokens = Tokens::new(entries).unwrap();
        let who = |text: &str| tokens.authenticate(text, NOW).map(|p| p.id().to_owned());
        assert_eq!(who(&token(1).reveal()), Ok(token(1).id().to_owned()));
        assert_eq!(who(&token(2).reveal()), Err(Rejected::Expired));
        assert_eq!(who(&token(3).reveal()), Ok(token(3).id().to_owned()));
        let wrong_secret = Token::from_random([1; 8], [9; 32]);
        for text in [wrong_secret.reveal(), token(4).reveal(), "wrong".to_owned()] {
            assert_eq!(who(&text), Err(Rejected::Unknown));
        }
        assert_eq!(who(""), Err(Rejected::Missing));
        // An unknown id must not be let in by the placeholder it is compared with.
        assert!(tokens.current(token(4).id(), &TokenHash::NONE, NOW).is_none());
        assert!(tokens.current(token(1).id(), &token(1).hash(), NOW).is_some());
        assert!(tokens.current(token(1).id(), &wrong_secret.hash(), NOW).is_none());
        assert!(tokens.current(token(2).id(), &token(2).hash(), NOW).is_none());
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_without_showing_it() {
        let good = Tokens::new(vec![entry(&token(1), None, "read:*")]).unwrap().to_toml();
        let hash = good.split("sha256 = \"").nth(1).unwrap()[..64].to_owned();
        for (text, part) in [
            (good.replace("name =", "nmae ="), "unknown field `nmae`"),
            (format!("{good}{good}"), "there twice"),
            (good.replace("\"read\"", "\"write\""), "is no verb"),
            (good.replace("\"*\"", "\"a\""), "is no pattern"),
            (good.replace(&hash, "abc"), "64 hexadecimal digits"),
            (good.replace("0101", "01X1"), "16 hexadecimal digits"),
            (good.replace("\"shop\"", "\"\""), "its name has 0 bytes"),
            (good.replace("name = \"shop\"", "name = "), "line "),
            ("x".repeat(MAX_FILE_BYTES + 1), "the limit is"),
            (format!("{good}\n[token.limits]\nburst = 5\n"), "without schedules"),
            (format!("{good}\n[token.limits]\nspeed = 5\n"), "unknown field `speed`"),
        ] {
            let error = Tokens::parse(&text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
            assert!(!error.contains(&hash), "{error}");
        }
    }
}
