//! The messages of protocol version 1.
//!
//! The order of variants and fields is the wire format: new ones go to the end, and, once version 1
//! is released, only with a new [`VERSION`]. [`ClientMessage::Hello`], [`ServerMessage::Welcome`]
//! and [`ServerMessage::Refused`] keep their place for ever. Their contents are in `request`,
//! `ops`, `error`, `query`, `delivery` and `cluster`.

use std::fmt;

use mtimer_types::limits::{MAX_BATCH, MAX_CREDIT};
use mtimer_types::{Destination, Epoch, Time, TimerId};
use serde::{Deserialize, Serialize};

use crate::bounded::at_most;
use crate::cluster::{PeerAnswer, PeerRequest, Topology};
use crate::delivery::{Delivery, SettleRefusal, Settlement};
use crate::error::ErrorCode;
use crate::ops::OpReply;
use crate::query::{Query, QueryAnswer};
use crate::request::Request;

/// The first field of a hello: `MTMR` read as a big-endian number.
pub const MAGIC: u32 = 0x4d54_4d52;
/// Most outcomes or callbacks of one message.
const MAX_CALLBACKS: usize = MAX_CREDIT as usize;
/// The number of a pong that answers no ping: pings are numbered from 1.
pub const UNASKED_PONG: u64 = 0;
/// The protocol version that this code speaks. Version 1 is not released yet: until it is, it may
/// still grow.
pub const VERSION: u16 = 1;

/// From a client to a broker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ClientMessage {
    /// The first message of a connection, and only that.
    Hello(Hello),
    /// Offers to take callbacks of a destination. Repeating it with the same number changes the
    /// credit. Answered only if it is refused, by [`ServerMessage::RegisterRefused`].
    Register {
        /// Chosen by the client, used in deliveries in place of the destination.
        registration: u32,
        /// Whose callbacks.
        dest: Destination,
        /// How many unsettled callbacks of this registration it accepts: 0 (none for now) to
        /// `MAX_CREDIT`.
        credit: u32,
    },
    /// Takes no more callbacks under this number; delivered timers may still be settled.
    Unregister {
        /// Which.
        registration: u32,
    },
    /// Operations, answered together by one [`ServerMessage::Reply`].
    Request(Request),
    /// Outcomes of deliveries, answered by [`ServerMessage::Settled`].
    Settle(#[serde(deserialize_with = "at_most::<MAX_CALLBACKS, _, _>")] Vec<Settlement>),
    /// A handler needs more time. Not answered.
    Extend {
        /// Which timer.
        id: TimerId,
        /// The delivery's epoch.
        epoch: Epoch,
        /// The delivery's attempt.
        attempt: u32,
        /// From now, in ms; up to the limit of callback timeouts.
        by_ms: u32,
    },
    /// A question, answered by [`ServerMessage::Answer`].
    Query {
        /// Chosen by the client, comes back in the answer.
        corr: u64,
        /// The question.
        query: Query,
    },
    /// To be answered with the same number.
    Ping(u64),
    /// The answer to a ping.
    Pong(u64),
    /// No more deliveries, please: the client stops after it has settled the deliveries that it
    /// has.
    Goodbye,
    /// From one broker to another, answered by [`ServerMessage::Peer`].
    Peer(PeerRequest),
}

/// The client's half of the handshake. Its `Debug` does not show the token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: u32,
    /// Lowest protocol version the client speaks.
    pub min_version: u16,
    /// Highest protocol version the client speaks.
    pub max_version: u16,
    /// The client's name for itself, random, kept over reconnects.
    pub client: u128,
    /// Name and version of the client software, for people; at most 128 bytes.
    pub software: String,
    /// Proof of who it is; empty where none is needed.
    pub token: String,
    /// The purpose of the connection.
    pub role: Role,
}

impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hello")
            .field("magic", &self.magic)
            .field("min_version", &self.min_version)
            .field("max_version", &self.max_version)
            .field("client", &self.client)
            .field("software", &self.software)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

/// The purpose of a connection. Places for brokers and observers are kept apart from those for
/// clients, so that a broker that is full of clients still takes part in its cluster and can be
/// looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Role {
    /// Schedules timers and takes callbacks; everything is allowed but [`ClientMessage::Peer`].
    #[default]
    Client,
    /// Another broker: [`ClientMessage::Peer`] and all that an observer may send.
    Broker,
    /// Looks on: [`ClientMessage::Query`], pings, and a goodbye.
    Observer,
}

/// From a broker to a client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ServerMessage {
    /// The handshake is done.
    Welcome(Welcome),
    /// The connection closes after this.
    Refused {
        /// The kind.
        code: ErrorCode,
        /// For people.
        message: String,
    },
    /// To [`ClientMessage::Request`].
    Reply {
        /// The request's.
        corr: u64,
        /// One for each operation, in the request's order.
        #[serde(deserialize_with = "at_most::<MAX_BATCH, _, _>")]
        replies: Vec<OpReply>,
    },
    /// To [`ClientMessage::Query`].
    Answer {
        /// The query's.
        corr: u64,
        /// The answer.
        answer: QueryAnswer,
    },
    /// Callbacks.
    Deliver {
        /// Under which registration.
        registration: u32,
        /// The callbacks.
        #[serde(deserialize_with = "at_most::<MAX_CALLBACKS, _, _>")]
        deliveries: Vec<Delivery>,
    },
    /// To [`ClientMessage::Settle`], once stored.
    Settled {
        /// Deliveries settled.
        accepted: u32,
        /// Deliveries that this client could not settle, and why.
        #[serde(deserialize_with = "at_most::<MAX_CALLBACKS, _, _>")]
        refused: Vec<(TimerId, SettleRefusal)>,
    },
    /// To be answered with the same number.
    Ping(u64),
    /// The answer to a ping, with the cluster clock. With [`UNASKED_PONG`] it answers none: the
    /// clock was corrected.
    Pong(u64, Time),
    /// The broker stops: settle your deliveries, then go elsewhere.
    Closing,
    /// Who is to own which partition: after the welcome of a broker that is part of a cluster, and
    /// at every change.
    Topology(Topology),
    /// To [`ClientMessage::Peer`].
    Peer(PeerAnswer),
    /// To [`ClientMessage::Register`], if it is refused. The session goes on.
    RegisterRefused {
        /// Which.
        registration: u32,
        /// The kind.
        code: ErrorCode,
        /// For people.
        message: String,
    },
}

/// The broker's half of the handshake.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The version both sides speak from here on.
    pub version: u16,
    /// The session's number at this broker, for logs.
    pub session: u64,
    /// The cluster's name.
    pub cluster: String,
    /// Name and version of the broker software.
    pub software: String,
    /// Kind of store.
    pub store: String,
    /// The durability level of an answered schedule.
    pub durability: String,
    /// Partitions of the cluster.
    pub partitions: u16,
    /// The cluster clock.
    pub now: Time,
    /// How often either side sends something, in ms.
    pub heartbeat_ms: u64,
    /// Most bytes of a frame.
    pub max_frame: u32,
    /// Most operations of a request.
    pub max_batch: u32,
    /// The broker's own address in the topology, which follows; `None`: it has no cluster around it
    /// and owns everything.
    pub broker: Option<String>,
}
