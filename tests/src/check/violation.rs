//! What a check reports.

use std::fmt;

/// A broken invariant.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Its number in the contract.
    pub invariant: u8,
    /// What is wrong.
    pub what: String,
    /// Which timer, if it is one, and everything that happened to it.
    pub about: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}\n{}", self.invariant, self.what, self.about)
    }
}
