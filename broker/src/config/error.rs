//! Why settings cannot be used.

use std::path::{Path, PathBuf};

use crate::options::InvalidOptions;

/// The settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the settings file {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is not right.
    #[error("the settings file {} is not valid: {message}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Line, key and what is wrong.
        message: String,
    },
    /// The settings cannot be written as a file.
    #[error("cannot write the settings: {message}")]
    Write {
        /// What is wrong.
        message: String,
    },
    /// A variable that nobody reads.
    #[error("the environment variable {name} is not known: remove it, or use one of {known}")]
    UnknownVariable {
        /// The variable.
        name: String,
        /// Those that are known.
        known: String,
    },
    /// A variable's value is not right.
    #[error("the environment variable {name} is not valid: {message}")]
    Variable {
        /// The variable.
        name: String,
        /// What is wrong.
        message: String,
    },
    /// A setting's value is not right.
    #[error("{setting}: {message}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// Value, limit, fix.
        message: String,
    },
    /// An option is out of range.
    #[error(transparent)]
    Options(#[from] InvalidOptions),
}

impl ConfigError {
    /// What is wrong with a file. Its lines are not shown, nor the passwords of addresses: the
    /// library's own words may have both.
    pub(super) fn of_file(path: &Path, text: &str, error: &toml::de::Error) -> Self {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let message = format!("line {line}: {}", without_passwords(error.message()));
        Self::File { path: path.to_owned(), message }
    }
}

/// The same text with `***` in place of what precedes the host in each address.
fn without_passwords(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        let end = after.find(['"', '`', ' ', '\n', ',']).unwrap_or(after.len());
        let host = after[..end].rfind('@').unwrap_or(0);
        out += before;
        out += if host > 0 { "://***" } else { "://" };
        rest = &after[host..];
    }
    out += rest;
    // Of a Unix socket's address it is in the query.
    match out.split_once("pass=") {
        None => out,
        Some((before, after)) => {
            let end = after.find(['"', '`', ' ', '\n', ',', '&']).unwrap_or(after.len());
            format!("{before}pass=***{}", &after[end..])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_a_message_lose_their_passwords() {
        for (text, shown) in [
            (
                "invalid type: string \"redis://u:s3@cret@h:1\", expected a list",
                "invalid type: string \"redis://***@h:1\", expected a list",
            ),
            ("redis://:a@h,rediss://:b@i and c@d", "redis://***@h,rediss://***@i and c@d"),
            ("string \"unix:///s?pass=x&db=1\"", "string \"unix:///s?pass=***&db=1\""),
            ("redis://h:1 is not a", "redis://h:1 is not a"),
            ("unknown field `x`", "unknown field `x`"),
        ] {
            assert_eq!(without_passwords(text), shown);
        }
    }
}
