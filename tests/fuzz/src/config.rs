//! Settings: the file, the environment, values with units.

use std::fmt::{Debug, Display};
use std::net::SocketAddr;
use std::str::FromStr;

use mtimer_broker::config::{CommaList, PartialConfig, Size, Span};

/// A settings file.
pub(crate) fn settings(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(config) = toml::from_str::<PartialConfig>(text) {
        resolve(config);
    }
}

/// Environment variables, one a line; and each value in each of the ways that a value can be read.
pub(crate) fn environment(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let vars: Vec<(String, String)> =
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    for (_, value) in &vars {
        round_trip::<Span>(value);
        let _ = value.parse::<Size>();
        let _ = value.parse::<CommaList<Span>>();
        let _ = value.parse::<CommaList<String>>();
    }
    if let Ok(config) = PartialConfig::from_env(vars) {
        resolve(config);
    }
}

/// What is shown of a value is read as the same value.
fn round_trip<T: FromStr + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>().ok(), Some(value));
    }
}

fn resolve(mut config: PartialConfig) {
    // A name is looked up in the network.
    config.listen = config.listen.filter(|text| text.parse::<SocketAddr>().is_ok());
    let again = config.clone().or(PartialConfig::default());
    assert_eq!(again, config);
    let _ = config.resolve();
}
