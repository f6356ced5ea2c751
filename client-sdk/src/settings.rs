//! Settings of a client, as its parts read them. [`ClientBuilder`](crate::ClientBuilder) documents
//! each.

use std::fmt;
use std::time::Duration;

use mtimer_protocol::Role;
use mtimer_types::limits::REPEAT_HORIZON_MS;

use crate::TlsOptions;

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) brokers: Vec<String>,
    #[cfg(feature = "redis")]
    pub(crate) redis: Vec<crate::leader::LeaderLookup>,
    pub(crate) one_broker: bool,
    pub(crate) token: String,
    pub(crate) tls: Option<TlsOptions>,
    pub(crate) software: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) answer_timeout: Duration,
    pub(crate) max_in_flight: u32,
    pub(crate) role: Role,
}

/// Shows neither the token nor the addresses of Redis, which may have a password.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("brokers", &self.brokers)
            .field("software", &self.software)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            brokers: Vec::new(),
            #[cfg(feature = "redis")]
            redis: Vec::new(),
            one_broker: false,
            token: String::new(),
            tls: None,
            software: concat!("mtimer-client/", env!("CARGO_PKG_VERSION")).to_owned(),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_millis(REPEAT_HORIZON_MS),
            max_in_flight: 16_384,
            role: Role::Client,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_token() {
        let settings = Settings {
            brokers: vec!["b1:7400".to_owned()],
            token: "PLANTED".to_owned(),
            ..Settings::default()
        };
        let hello = mtimer_protocol::Hello {
            magic: mtimer_protocol::MAGIC,
            min_version: 1,
            max_version: 1,
            client: 7,
            software: "shop/1.2".to_owned(),
            token: "PLANTED".to_owned(),
            role: Role::Client,
        };
        let shown = format!("{settings:?} {hello:?}");
        assert!(shown.contains("b1:7400") && shown.contains("shop/1.2"), "{shown}");
        assert!(!shown.contains("PLANTED"), "{shown}");
    }
}
