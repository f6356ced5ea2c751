//! Who was refused lately, for the log.
//!
//! Invariant: its size is bounded, for any number of clients and attempts; it holds no secret.
//! Not in here: when it is logged (`reports`), metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

/// Peers and tokens that are named at most, of each kind.
const MAX_NAMED: usize = 10;

/// Refusals since the last report.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct RefusalSummary {
    /// How often, by the name of the counter.
    pub(crate) reasons: BTreeMap<&'static str, u64>,
    /// Whose connections and messages were refused.
    pub(crate) peers: Named<IpAddr>,
    /// The ids of the tokens that they showed.
    pub(crate) tokens: Named<Box<str>>,
}

/// The first [`MAX_NAMED`] of some things.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Named<T> {
    names: BTreeSet<T>,
    there_are_more: bool,
}

impl RefusalSummary {
    /// Notes one refusal.
    pub(crate) fn note(&mut self, reason: &'static str, peer: IpAddr, token: Option<&str>) {
        *self.reasons.entry(reason).or_default() += 1;
        self.peers.add(peer.to_canonical());
        if let Some(token) = token {
            self.tokens.add(token.into());
        }
    }
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self { names: BTreeSet::new(), there_are_more: false }
    }
}

impl<T: Ord> Named<T> {
    fn add(&mut self, name: T) {
        if self.names.len() < MAX_NAMED || self.names.contains(&name) {
            self.names.insert(name);
        } else {
            self.there_are_more = true;
        }
    }
}

impl<T: fmt::Display> fmt::Display for Named<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, name) in self.names.iter().enumerate() {
            write!(f, "{}{name}", if n == 0 { "" } else { ", " })?;
        }
        f.write_str(if self.there_are_more { " and others" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_peers_and_tokens_are_named_and_all_refusals_are_counted() {
        let mut refused = RefusalSummary::default();
        for n in 0..10_000_u32 {
            refused.note("auth_refused", IpAddr::from(n.to_be_bytes()), Some(&format!("{n:016x}")));
        }
        refused.note("tls_refused", "::ffff:0.0.0.3".parse().unwrap(), None);
        let counts: Vec<_> = refused.reasons.into_iter().collect();
        assert_eq!(counts, [("auth_refused", 10_000), ("tls_refused", 1)]);
        let peers = refused.peers.to_string();
        assert!(
            peers.starts_with("0.0.0.0, 0.0.0.1, 0.0.0.2, ") && peers.ends_with("0.0.0.9 and others"),
            "{peers}"
        );
        assert_eq!(refused.tokens.names.len(), MAX_NAMED);
        let mut few = RefusalSummary::default();
        few.note("tls_refused", "::1".parse().unwrap(), None);
        few.note("tls_refused", "::1".parse().unwrap(), None);
        assert_eq!((few.peers.to_string().as_str(), few.tokens.to_string().as_str()), ("::1", ""));
    }
}
