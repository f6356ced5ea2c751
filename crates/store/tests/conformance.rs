//! The in-memory store passes the conformance suite.

mod support;

mtimer_store::conformance_tests!(|| support::Memory);
