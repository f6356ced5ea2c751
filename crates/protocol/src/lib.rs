//! mtimer's wire protocol: length-delimited frames, each one bincode message.
//!
//! Purpose: the messages, their bytes, their versions. `docs/protocol.md` describes the same bytes
//! for those who write a client in another language; golden tests hold both together.
//! Invariant: whatever arrives, decoding allocates no more than the frame limit and never panics.
//! Not in here: sockets, sessions, who may say what when.

#![warn(missing_docs)]

mod bounded;
mod cluster;
mod codec;
mod message;

pub use cluster::{
    BrokerEntry, BrokerLoad, BrokerView, ClientView, ClusterView, Heartbeat, MAX_CLIENT_VIEWS, MemberView,
    PartitionView, PeerAnswer, PeerRequest, Topology,
};
pub use codec::{DecodeError, EncodeError, decode, encode, encode_frame, frame_codec};
pub use message::{
    ClientMessage, DeadRow, Delivery, ErrorCode, Hello, MAGIC, OpReply, Query, QueryAnswer, Request,
    RequestOp, Role, ServerMessage, SettleRefusal, Settlement, Status, TimerState, TimerView, UNASKED_PONG,
    UnconfirmedRow, VERSION, Welcome,
};
