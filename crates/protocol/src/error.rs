//! Kinds of failure.
//!
//! The order of variants is the wire format, see [`crate::message`].

use serde::{Deserialize, Serialize};

/// Kinds of failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum ErrorCode {
    /// The request breaks a limit or a rule; it will be refused again.
    Invalid,
    /// The token does not open this.
    Unauthorized,
    /// No common protocol version.
    Version,
    /// This broker does not own the timer's partition.
    NotOwner,
    /// The store is away; nothing was done. Try again.
    Unavailable,
    /// The store takes no more timers for now; nothing was done.
    StoreFull,
    /// Too much at once; nothing was done. Try again later.
    Overloaded,
    /// Whether it was done is not known. Repeated as it was and in time it gets the answer; later,
    /// `get` tells what is.
    Unknown,
    /// Stored, but not confirmed by enough replicas in time. Repeat it.
    NotReplicated,
    /// The connection broke the protocol.
    Protocol,
    /// The broker is stopping; nothing was done. Try another, or again later.
    Stopping,
    /// A limit that is set for the token or the group is reached; nothing was done. Try again
    /// later.
    LimitReached,
}
