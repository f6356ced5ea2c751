//! Tests of the owner with servers that give fixed answers.

mod stale;
