//! The messages of protocol version 1.
//!
//! The order of variants and fields is the wire format: new ones go to the end, and only with a new
//! [`VERSION`]. [`ClientMessage::Hello`], [`ServerMessage::Welcome`] and [`ServerMessage::Refused`]
//! keep their place for ever.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use mtimer_types::limits::{MAX_BATCH, MAX_CREDIT, MAX_PAGE};
use mtimer_types::timer::bytes;
use mtimer_types::{
    DeadReason, Destination, Ended, Epoch, HandlerOutcome, Headers, Key, KeyPolicy, Mode, Target, Time,
    Timer, TimerId,
};
use serde::{Deserialize, Deserializer, Serialize};

use crate::bounded::at_most;
use crate::cluster::{BrokerView, ClusterView, PeerAnswer, PeerRequest, Topology};

/// The first field of a hello: `MTMR` read as a big-endian number.
pub const MAGIC: u32 = 0x4d54_4d52;
/// Most outcomes or callbacks of one message.
const MAX_CALLBACKS: usize = MAX_CREDIT as usize;
/// Most rows of a page.
const MAX_ROWS: usize = MAX_PAGE as usize;
/// Most counters of a status.
const MAX_COUNTERS: usize = 1_000;
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
    /// Takes no more callbacks under this number; what is delivered may still be settled.
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
        /// What is asked.
        query: Query,
    },
    /// To be answered with the same number.
    Ping(u64),
    /// The answer to a ping.
    Pong(u64),
    /// No more deliveries, please: the client stops after it has settled what it has.
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
    /// What it is here for.
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

/// What a connection is for. Places for brokers and observers are kept apart from those for
/// clients, so that a broker that is full of clients still takes part in its cluster and can be
/// looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Role {
    /// Schedules timers and takes callbacks; everything is allowed but [`ClientMessage::Peer`].
    #[default]
    Client,
    /// Another broker: [`ClientMessage::Peer`] and what an observer may.
    Broker,
    /// Looks on: [`ClientMessage::Query`], pings, and a goodbye.
    Observer,
}

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

/// One operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RequestOp {
    /// Schedule a timer.
    Schedule {
        /// The timer.
        #[serde(deserialize_with = "shared")]
        timer: Arc<Timer>,
        /// If its key is taken.
        policy: KeyPolicy,
    },
    /// Cancel a timer.
    Cancel {
        /// Which.
        target: Target,
        /// Random, the same in every repeat.
        request: u64,
    },
    /// Give a timer another due time.
    Reschedule {
        /// Which.
        target: Target,
        /// The new due time.
        due: Time,
        /// Random, the same in every repeat.
        request: u64,
    },
    /// Deliver a dead or unconfirmed timer anew, now, with a new retry budget.
    Replay {
        /// Which.
        id: TimerId,
    },
    /// Remove a dead or unconfirmed timer.
    Purge {
        /// Which.
        id: TimerId,
    },
}

/// Reads a timer into the place where it stays: it is shared from then on.
fn shared<'de, D: Deserializer<'de>>(d: D) -> Result<Arc<Timer>, D::Error> {
    Timer::deserialize(d).map(Arc::new)
}

/// The answer to one [`RequestOp`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OpReply {
    /// Schedule: stored at the broker's durability level.
    Scheduled {
        /// False: an earlier request with the same content had stored it.
        new: bool,
        /// The timer that this one replaced.
        replaced: Option<TimerId>,
    },
    /// Schedule with keep: this live timer has the key.
    Kept(TimerId),
    /// Cancel: no delivery starts after this answer.
    Cancelled(TimerId),
    /// Cancel, reschedule: delivered, being delivered, or possibly so. After a cancel no further
    /// attempt follows.
    TooLate(TimerId),
    /// Cancel, reschedule, replay, purge: nothing of that name.
    NotFound,
    /// Reschedule: the old time never fires.
    Rescheduled(TimerId),
    /// Replay, purge: done.
    Done,
    /// Schedule with create, replay: this live timer has the key.
    KeyTaken(TimerId),
    /// Schedule: the id is in use with other content.
    Conflict,
    /// Schedule: the timer of this id has ended already, so.
    Ended(Ended),
    /// Not done.
    Failed {
        /// The kind.
        code: ErrorCode,
        /// For people: value, limit, fix.
        message: String,
    },
    /// Not done: this partition is another broker's. Ask there.
    Moved {
        /// Its address.
        owner: String,
    },
}

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

/// The outcome of one delivery.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settlement {
    /// Which timer.
    pub id: TimerId,
    /// The delivery's epoch.
    pub epoch: Epoch,
    /// The delivery's attempt.
    pub attempt: u32,
    /// The outcome.
    pub outcome: HandlerOutcome,
}

/// A question.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Query {
    /// One timer, live or dead.
    Get(Target),
    /// Dead letters, oldest first in each partition.
    Dead {
        /// Only of this group.
        group: Option<String>,
        /// Only of this app.
        app: Option<String>,
        /// Where to go on; `None` for the first page.
        cursor: Option<(u16, u64)>,
        /// Rows at most.
        limit: u32,
    },
    /// At-most-once timers that were claimed and never confirmed.
    Unconfirmed {
        /// Where to go on; `None` for the first page.
        cursor: Option<(u16, u64)>,
        /// Rows at most.
        limit: u32,
    },
    /// The broker's state.
    Status,
    /// The cluster as this broker sees it.
    Cluster,
    /// This broker in detail.
    Broker,
    /// Empties a broker for maintenance, or gives it partitions again. Only the leader does it.
    Drain {
        /// The broker's address, as in the topology.
        broker: String,
        /// Whether to empty it, or to end that.
        drain: bool,
    },
}

/// The answer to a question.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum QueryAnswer {
    /// To [`Query::Get`].
    Timer(Option<TimerView>),
    /// To [`Query::Dead`].
    Dead {
        /// The rows; may be fewer than asked, even none, and yet not the end.
        #[serde(deserialize_with = "at_most::<MAX_ROWS, _, _>")]
        rows: Vec<DeadRow>,
        /// Where to go on; `None` at the end.
        next: Option<(u16, u64)>,
    },
    /// To [`Query::Unconfirmed`].
    Unconfirmed {
        /// The rows; may be fewer than asked, even none, and yet not the end.
        #[serde(deserialize_with = "at_most::<MAX_ROWS, _, _>")]
        rows: Vec<UnconfirmedRow>,
        /// Where to go on; `None` at the end.
        next: Option<(u16, u64)>,
    },
    /// To [`Query::Status`].
    Status(Status),
    /// No answer.
    Failed {
        /// The kind.
        code: ErrorCode,
        /// For people.
        message: String,
    },
    /// No answer: this partition is another broker's. Ask there.
    Moved {
        /// Its address.
        owner: String,
    },
    /// To [`Query::Cluster`].
    Cluster(ClusterView),
    /// To [`Query::Broker`].
    Broker(BrokerView),
    /// To [`Query::Drain`]: the leader has taken note; the topology shows how far it is.
    Done,
}

/// A timer as `get` shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TimerView {
    /// The timer.
    pub timer: Timer,
    /// Where it stands.
    pub state: TimerState,
    /// Failed attempts so far.
    pub failed: u32,
    /// A cancel came too late: no attempt follows.
    pub stopped: bool,
    /// The last error.
    pub last_error: Option<String>,
}

/// Where a timer stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TimerState {
    /// Waits for its due time.
    Pending {
        /// When it is delivered.
        fire: Time,
    },
    /// Waits for its next attempt.
    Retrying {
        /// When it is delivered.
        fire: Time,
        /// The tier.
        tier: u8,
    },
    /// Waits for a client of its destination.
    Parked,
    /// Sent, not settled.
    InFlight {
        /// Under this epoch.
        epoch: Epoch,
        /// This attempt.
        attempt: u32,
    },
    /// At-most-once, claimed and never confirmed.
    Unconfirmed,
    /// A dead letter.
    Dead,
}

/// A dead letter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeadRow {
    /// The timer with its payload.
    pub timer: Timer,
    /// Why.
    pub reason: DeadReason,
    /// Failed attempts.
    pub attempts: u32,
    /// The last error.
    pub last_error: Option<String>,
    /// When it died.
    pub died: Time,
}

/// An at-most-once timer that was claimed and never confirmed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnconfirmedRow {
    /// The timer with its payload.
    pub timer: Timer,
    /// Claimed by this owner.
    pub epoch: Epoch,
}

/// A broker's state in numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Sessions past the handshake.
    pub sessions: u64,
    /// Timers in memory.
    pub loaded: u64,
    /// Payload and bookkeeping bytes of timers in memory (estimate).
    pub loaded_bytes: u64,
    /// Deliveries not settled.
    pub in_flight: u64,
    /// Due, waiting for claim or credit.
    pub ready: u64,
    /// In the store: first delivery to come.
    pub pending: u64,
    /// In the store: retries to come.
    pub retrying: u64,
    /// In the store: parked.
    pub parked: u64,
    /// In the store: at-most-once timers taken.
    pub taken: u64,
    /// In the store: dead letters.
    pub dead: u64,
    /// In the store: index entries and the like without a timer; 0 after a drain.
    pub residue: u64,
    /// In the store: live keys.
    pub keys: u64,
    /// Counters since start, by name, in order of name.
    #[serde(deserialize_with = "at_most::<MAX_COUNTERS, _, _>")]
    pub counters: Vec<(String, u64)>,
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
    /// clock has stepped.
    Pong(u64, Time),
    /// The broker stops: settle what you have, then go elsewhere.
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

/// Why a settlement was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum SettleRefusal {
    /// The delivery was not this session's.
    NotYours,
    /// Too late: the delivery had timed out or the timer has ended. (A late `ok` still settles a
    /// live timer.)
    Late,
    /// The partition is another broker's by now: send it there. The topology says who.
    Moved,
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
    /// What an answered schedule means.
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

/// One callback.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Delivery {
    /// The timer. Its partition is in the id.
    pub id: TimerId,
    /// The application's key.
    pub key: Option<Key>,
    /// When it was due.
    pub due: Time,
    /// The owner's epoch.
    pub epoch: Epoch,
    /// 1 for the first delivery.
    pub attempt: u32,
    /// At-most-once or at-least-once.
    pub mode: Mode,
    /// How long the handler may take, in ms from the sending.
    pub timeout_ms: u32,
    /// The payload.
    #[serde(deserialize_with = "bytes")]
    pub payload: Bytes,
    /// The timer's headers.
    pub headers: Headers,
}

impl Delivery {
    /// Returns the bytes of payload and headers: what one delivery takes more than another.
    pub fn content_bytes(&self) -> usize {
        self.payload.len() + self.headers.bytes()
    }
}
