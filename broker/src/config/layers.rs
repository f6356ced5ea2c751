//! The layers that give settings their values: file, variables, flags.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use mtimer_tls::check_private;

use super::error::ConfigError;
use super::list::{PartialConfig, SETTINGS, Setting};
use super::units::RedisUrl;
use crate::access::PeerToken;

/// Variables that are not settings of a broker but belong to other commands or name the file.
const OTHER_VARIABLES: &[&str] = &[
    "MTIMER_CONFIG",
    "MTIMER_BROKER",
    "MTIMER_TOKEN",
    "MTIMER_TOKEN_FILE",
    "MTIMER_TLS_SERVER_NAME",
    PEER_TOKEN,
];
/// The variable with this broker's own token.
pub(super) const PEER_TOKEN: &str = "MTIMER_PEER_TOKEN";

impl PartialConfig {
    /// Reads a TOML file.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] with the line, if the file cannot be read, has an unknown name or a value
    /// that is not valid; if it holds a password of Redis, and others than its owner and group can
    /// read it.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let failed = |source| ConfigError::Read { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(failed)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        let config: Self =
            toml::from_str(&text).map_err(|e| ConfigError::of_file(path, &text, &e, setting_of))?;
        let mut urls = config.redis.iter().flat_map(|list| &list.0);
        if urls.any(RedisUrl::has_password) {
            check_private(&file, path)?;
        }
        Ok(config)
    }

    /// Reads `MTIMER_*` variables, usually from [`std::env::vars`]; others are not looked at.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] with the variable's name, if it is unknown or its value is not valid.
    pub fn from_env(vars: impl IntoIterator<Item = (String, String)>) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for (name, value) in vars {
            if name == PEER_TOKEN {
                config.peer_token = PeerToken::Value(value);
            } else if name.starts_with("MTIMER_") && !OTHER_VARIABLES.contains(&name.as_str()) {
                let setting = SETTINGS.iter().find(|setting| setting.variable() == name);
                let Some(setting) = setting else {
                    return Err(ConfigError::UnknownVariable { name, known: known_variables() });
                };
                setting
                    .read(&mut config, &value)
                    .map_err(|message| ConfigError::Variable { name, message })?;
            }
        }
        Ok(config)
    }

    /// Puts flags over the environment over the file (if there is one).
    ///
    /// # Errors
    ///
    /// As those of [`PartialConfig::from_file`] and [`PartialConfig::from_env`].
    pub fn layered(
        flags: Self,
        vars: impl IntoIterator<Item = (String, String)>,
        file: Option<&Path>,
    ) -> Result<Self, ConfigError> {
        let file = file.map(Self::from_file).transpose()?.unwrap_or_default();
        Ok(flags.or(Self::from_env(vars)?).or(file))
    }
}

/// The setting that a line of the file gives a value to, and an example of one.
fn setting_of(line: &str) -> Option<(String, String)> {
    let (name, _) = line.split_once('=')?;
    let setting = SETTINGS.iter().find(|setting| setting.name() == name.trim())?;
    Some((setting.name(), setting.example()))
}

fn known_variables() -> String {
    let settings = SETTINGS.iter().map(Setting::variable);
    let known: BTreeSet<String> =
        settings.chain(OTHER_VARIABLES.iter().map(|&name| name.to_owned())).collect();
    known.into_iter().collect::<Vec<_>>().join(", ")
}
