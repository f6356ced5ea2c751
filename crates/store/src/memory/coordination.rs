//! The in-memory store as several brokers of one test share it: the lease, and the topology.
//!
//! Unlike everything else here it has a clock: tokio's, which a test may pause.

#![expect(clippy::disallowed_methods, reason = "leases run out by the clock that a test pauses")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::ready;
use mtimer_types::PartitionId;
use tokio::time::Instant;

use super::lease::StoredLease;
use super::partition::Reachability;
use super::shared::MemoryState;
use crate::coordination::{Campaigned, Candidate, Coordination, Lease, LeaseHolder};
use crate::error::{StoreError, StoreFuture};

/// One broker's view of the lease.
pub(super) struct MemoryCoordination(pub(super) Arc<MemoryState>);

impl MemoryCoordination {
    fn answer<T: Send + 'static>(&self, act: impl FnOnce(&mut StoredLease) -> T) -> StoreFuture<T> {
        let mut state = self.0.lease();
        if state.held.as_ref().is_some_and(|(_, until)| *until <= Instant::now()) {
            state.held = None;
        }
        let answer = match &state.down {
            Some(why) => Err(StoreError::Unavailable(why.clone())),
            None => Ok(act(&mut state)),
        };
        ready(answer).boxed()
    }
}

/// Who has a lease that lasts until then.
fn holder(held: &Lease, until: Instant) -> LeaseHolder {
    let remaining = until.saturating_duration_since(Instant::now()).as_millis();
    LeaseHolder {
        address: held.address.clone(),
        term: held.term,
        remaining_ms: Some(u64::try_from(remaining).unwrap_or(u64::MAX)),
    }
}

impl Coordination for MemoryCoordination {
    fn campaign(&self, candidate: Candidate) -> StoreFuture<Campaigned> {
        let shared = self.0.clone();
        self.answer(move |state| {
            let until = Instant::now() + Duration::from_millis(candidate.ttl_ms);
            let Candidate { address, incarnation, seen, .. } = candidate;
            let term = match &state.held {
                Some((held, until)) if held.address != address => {
                    return Campaigned::Held(holder(held, *until));
                }
                Some((held, _)) if held.incarnation == incarnation => held.term,
                _ => shared.raise_term(seen),
            };
            state.held = Some((Lease { address, incarnation, term }, until));
            Campaigned::Won { term, published: state.published.clone() }
        })
    }

    fn holder(&self) -> StoreFuture<Option<LeaseHolder>> {
        self.answer(|state| state.held.as_ref().map(|(held, until)| holder(held, *until)))
    }

    fn renew(&self, lease: Lease, ttl_ms: u64) -> StoreFuture<bool> {
        self.answer(move |state| {
            let holds = state.holds(&lease);
            if holds {
                state.held = Some((lease, Instant::now() + Duration::from_millis(ttl_ms)));
            }
            holds
        })
    }

    fn resign(&self, lease: Lease) -> StoreFuture<bool> {
        self.answer(move |state| {
            let holds = state.holds(&lease);
            if holds {
                state.held = None;
            }
            holds
        })
    }

    fn publish(&self, lease: Lease, topology: Bytes) -> StoreFuture<bool> {
        self.answer(move |state| {
            let holds = state.holds(&lease);
            if holds {
                state.published = Some(topology);
            }
            holds
        })
    }

    fn unreachable(&self) -> StoreFuture<Vec<PartitionId>> {
        let down = self.0.partitions.iter().filter_map(|p| {
            let p = p.lock();
            matches!(p.link, Reachability::Down(_)).then_some(p.id)
        });
        ready(Ok(down.collect())).boxed()
    }
}
