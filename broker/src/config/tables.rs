//! Settings that the file alone has: what single destinations and groups have of their own.

use serde::{Deserialize, Serialize};

use super::units::{CommaList, Size, Span};

/// Retry tiers of one destination.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DestinationConfig {
    /// Group key.
    pub group: String,
    /// App key.
    pub app: String,
    /// Delays before attempt 2, 3, ...
    pub retry: CommaList<Span>,
}

/// Limits of a group at this broker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct GroupLimitConfig {
    /// Group key; `*`: each group that has no limits of its own.
    pub group: String,
    /// Schedules per second, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedules: Option<u32>,
    /// Schedules at once after a pause; without it as many as in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Timers in memory or parked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<u64>,
    /// Bytes of payload and headers of one timer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Size>,
}
