//! The in-memory store passes the conformance suite.

mod support;

use futures_util::future::BoxFuture;
use mtimer_store::conformance::{Harness, Site};

/// Makes in-memory stores.
struct Memory;

impl Harness for Memory {
    fn fresh(&self, partitions: u16) -> BoxFuture<'_, Box<dyn Site>> {
        let site = support::MemorySite::new(partitions);
        Box::pin(async move { Box::new(site) as Box<dyn Site> })
    }
}

mtimer_store::conformance_tests!(|| Memory);
