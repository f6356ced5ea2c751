//! Requests: batches of operations on timers.
//!
//! The order of variants and fields is the wire format, see [`crate::message`].

use mtimer_types::Time;
use mtimer_types::limits::MAX_BATCH;
use serde::{Deserialize, Serialize};

use crate::bounded::at_most;
#[cfg(doc)]
use crate::error::ErrorCode;
use crate::ops::RequestOp;

/// A batch of operations.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the client, comes back in the reply.
    pub corr: u64,
    /// When these operations were first sent, by the cluster clock: the same in every repeat. Older
    /// than the repeat horizon (30 s), all of them are answered [`ErrorCode::Unknown`].
    pub first_sent: Time,
    /// At most 2,000. They are independent of each other and may be applied in any order.
    #[serde(deserialize_with = "at_most::<MAX_BATCH, _, _>")]
    pub ops: Vec<RequestOp>,
}
