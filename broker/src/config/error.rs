//! Why settings cannot be used.

use std::path::PathBuf;

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
