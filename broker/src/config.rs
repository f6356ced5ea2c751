//! Settings: defaults < file < environment < flags, then checks.
//!
//! Purpose: one list of settings ([`PartialConfig`], [`SETTINGS`]) that a TOML file, `MTIMER_*`
//! variables and flags fill in; the later overrides the earlier; [`PartialConfig::resolve`] adds
//! the defaults and checks every value; [`Config::settings`] shows the result under the same names.
//! Invariant: a key or variable that is not known is an error, so that a typing mistake never goes
//! unnoticed.
//! Not in here: opening the store, starting the broker, setting up the log, how flags are read.

mod error;
mod list;
mod resolve;
mod shown;
mod units;

pub use error::ConfigError;
pub use list::{DestinationConfig, GroupLimitConfig, PartialConfig, SETTINGS, Setting};
pub use resolve::{Config, RedisConfig, Replication, StoreConfig};
pub use units::{CommaList, Durability, InvalidValue, LogFormat, RedisUrl, SettingValue, Size, Span};

#[cfg(test)]
mod tests;
