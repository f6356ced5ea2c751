//! mtimer's wire protocol: length-delimited frames, each one bincode message.
//!
//! Purpose: the messages, their bytes, their versions. `docs/protocol.md` describes the same bytes
//! for those who write a client in another language; golden tests hold both together.
//! Invariant: decoding any bytes allocates no more than the frame limit and never panics.
//! Not in here: sockets, sessions, permissions, the order of messages.

#![warn(missing_docs, clippy::missing_errors_doc)]

mod bounded;
mod cluster;
mod codec;
mod delivery;
mod error;
mod message;
pub mod ops;
mod query;
mod request;
pub mod sample;
mod status;

pub use cluster::{
    BrokerEntry, BrokerLoad, BrokerView, ClientView, ClusterView, Heartbeat, MAX_CLIENT_VIEWS, MemberView,
    PartitionView, PeerAnswer, PeerRequest, Share, ShareParts, ShareRequest, Topology,
};
#[cfg(feature = "codec")]
pub use codec::frame_codec;
pub use codec::{DecodeError, EncodeError, decode, encode, encode_frame};
pub use delivery::{Delivery, SettleRefusal, Settlement};
pub use error::ErrorCode;
pub use message::{ClientMessage, Hello, MAGIC, Role, ServerMessage, UNASKED_PONG, VERSION, Welcome};
pub use ops::{OpReply, RequestOp};
pub use query::{
    BulkState, BulkView, CountsQuery, DeadRow, DestinationCounts, ForecastQuery, PendingQuery, PendingRow,
    Query, QueryAnswer, RecordRest, TimerState, TimerStory, TimerView, UnconfirmedRow,
};
pub use request::Request;
pub use status::{
    LimitedDestination, MAX_LIMITED_DESTINATIONS, MAX_PARKED_DESTINATIONS, MAX_PAUSED_DESTINATIONS,
    ParkedDestination, PausedDestination, Status,
};
