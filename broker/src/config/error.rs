//! Why settings cannot be used.

use std::path::{Path, PathBuf};

use mtimer_tls::PrivateFileError;

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
    /// The file has a secret in it, and others can read it.
    #[error("the settings file holds the password of Redis: {0}")]
    Exposed(#[from] PrivateFileError),
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
    #[error("{}: {message}", .setting.replace('_', "-"))]
    Setting {
        /// The setting: its name, or its field.
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
    /// library's own words may have both. `setting`: which setting a line is about, and what can be
    /// written there.
    pub(super) fn of_file(
        path: &Path,
        text: &str,
        error: &toml::de::Error,
        setting: impl FnOnce(&str) -> Option<(String, String)>,
    ) -> Self {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let what = without_passwords(error.message());
        let message = match setting(text.lines().nth(line - 1).unwrap_or_default()) {
            None => format!("line {line}: {what}"),
            Some((name, example)) => format!("line {line}, {name}: {what}; for example: {example}"),
        };
        Self::File { path: path.to_owned(), message }
    }
}

/// The same text with `***` in place of all that is quoted, if there may be an address in it.
fn without_passwords(text: &str) -> String {
    let is_quote = |c| c == '"' || c == '`';
    if !["://", "@", "pass="].iter().any(|sign| text.contains(sign)) {
        return text.to_owned();
    }
    match (text.find(is_quote), text.rfind(is_quote)) {
        (Some(from), Some(to)) if from < to => format!("{}***{}", &text[..=from], &text[to..]),
        _ => "***".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_a_message_lose_their_passwords() {
        for (text, shown) in [
            (
                "invalid type: string \"redis://u:s3@c,r \\\"`et@h:1\", expected a list",
                "invalid type: string \"***\", expected a list",
            ),
            ("string \"unix:///s?pass=x&db=1\"", "string \"***\""),
            ("string \"u:s3cret@h:1\"", "string \"***\""),
            ("unknown field `redis://u:s3cret`, expected one of `a`, `b`", "unknown field `***`"),
            ("redis://:s3cret@h", "***"),
            ("unknown field `x`", "unknown field `x`"),
        ] {
            assert_eq!(without_passwords(text), shown);
        }
    }
}
