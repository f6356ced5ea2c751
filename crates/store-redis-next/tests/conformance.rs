//! The store passes the conformance suite on a standalone server.

mod support;

mtimer_store::conformance_tests!(support::Standalone::default);
