//! Settings: defaults < file < environment < flags, then checks.
//!
//! Purpose: one list of settings ([`PartialConfig`], [`SETTINGS`]) that a TOML file, `MTIMER_*`
//! variables and flags fill in; the later overrides the earlier; [`PartialConfig::resolve`] adds
//! the defaults and checks every value; [`Config::settings`] has the result under the same names.
//! Invariant: a key or variable that is not known is an error, so that a typing mistake never goes
//! unnoticed.
//! Not in here: opening the store, starting the broker, setting up the log, how flags are read.

mod error;
mod kept;
mod layers;
mod list;
mod resolve;
mod settings;
mod store;
mod tables;
mod units;
mod value;

pub use error::ConfigError;
pub use list::{PartialConfig, SETTINGS, Setting};
pub use resolve::Config;
pub use store::{RedisConfig, Replication, StoreConfig};
pub use tables::{DestinationConfig, GroupLimitConfig};
pub use units::{CommaList, Durability, LogFormat, RedisUrl, Size, Span};
pub use value::{InvalidValue, SettingValue};

#[cfg(test)]
mod tests;
