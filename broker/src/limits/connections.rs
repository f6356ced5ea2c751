//! A token's connections and their registrations, counted while they last.

use std::collections::HashSet;
use std::sync::Arc;

use mtimer_access::{Limit, Principal};
use mtimer_types::limits::MAX_TOKEN_REGISTRATIONS;
use parking_lot::Mutex;

use super::{Limiter, OverLimit, Usage, Whose};
use crate::counters::ShellCounter;

/// A connection that counts for its token until it is dropped, with its registrations.
#[derive(Debug)]
pub(crate) struct CountedConnection {
    limiter: Arc<Limiter>,
    token: Arc<str>,
    /// Their numbers.
    registrations: Mutex<HashSet<u32>>,
}

impl Limiter {
    /// Lets a connection of a token in, or says why not.
    pub(crate) fn connect(self: &Arc<Self>, who: &Principal) -> Result<CountedConnection, String> {
        let limits = who.limits();
        self.note_pending_limit(&limits);
        let mut state = self.state();
        let usage = state.tokens.entry(who.shared_id()).or_insert(Usage::new());
        if let Some(most) = limits.connections
            && usage.connections >= most
        {
            let (whose, connections) = (Whose::Token(who.shared_id()), u64::from(usage.connections));
            let over = OverLimit { whose, limit: Limit::Connections, limits, found: connections };
            let why = over.to_string();
            self.count(&mut state, over.whose, over.limit);
            return Err(why);
        }
        usage.connections += 1;
        let (limiter, token) = (self.clone(), who.shared_id());
        Ok(CountedConnection { limiter, token, registrations: Mutex::default() })
    }
}

impl CountedConnection {
    /// Takes note of a registration, or says why there may be no more of them.
    pub(crate) fn register(&self, number: u32) -> Result<(), String> {
        let mut own = self.registrations.lock();
        if own.contains(&number) {
            return Ok(());
        }
        let mut state = self.limiter.state();
        let Some(usage) = state.tokens.get_mut(&self.token) else { return Ok(()) };
        if usage.registrations >= MAX_TOKEN_REGISTRATIONS {
            self.limiter.counters.count(ShellCounter::LimitTokenRegistrations);
            return Err(format!(
                "the connections of token {} have {MAX_TOKEN_REGISTRATIONS} registrations at this broker, the \
                 most there can be: register for fewer destinations, or use another token",
                self.token
            ));
        }
        usage.registrations += 1;
        own.insert(number);
        Ok(())
    }

    /// A registration has ended.
    pub(crate) fn unregister(&self, number: u32) {
        if self.registrations.lock().remove(&number)
            && let Some(usage) = self.limiter.state().tokens.get_mut(&self.token)
        {
            usage.registrations = usage.registrations.saturating_sub(1);
        }
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        let mut state = self.limiter.state();
        if let Some(usage) = state.tokens.get_mut(&self.token) {
            usage.connections = usage.connections.saturating_sub(1);
            usage.registrations = usage.registrations.saturating_sub(self.registrations.get_mut().len());
        }
    }
}
