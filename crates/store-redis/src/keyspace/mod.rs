//! Names of keys, places of timers, bytes of values, and the owner's knowledge of its keys.
//!
//! | module | question |
//! |---|---|
//! | `keys` | how is a key named? |
//! | `secret` | the keyed hash of an id, the field of an application key |
//! | `levels` | how many siblings has a slot? |
//! | `place` | in which slots may a timer be filed? |
//! | `fingerprints` | can a field be ruled out in a hash? |
//! | `slot_counts` | how many timers has a destination in a slot, and in all? |
//! | `catalog` | which slots are there, where does a timer go, which slots are loaded next? |
//! | `value` | which value do these bytes encode? |
//!
//! Everything is pure: no I/O, no clock, no randomness.

pub(crate) mod catalog;
pub(crate) mod fingerprints;
pub(crate) mod keys;
pub(crate) mod levels;
pub(crate) mod place;
pub(crate) mod secret;
pub(crate) mod slot_counts;
pub(crate) mod value;
