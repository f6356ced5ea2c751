//! Answers to a client's calls.

use mtimer_protocol::DestinationCounts;
use mtimer_types::{Destination, DueSpan, Time, TimerId};

/// Answers a schedule: the timer is stored, at the durability level that [`Info::durability`]
/// names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scheduled {
    /// The timer's id. With [`Scheduled::kept`] it is the id of the timer that was there before.
    pub id: TimerId,
    /// False: an earlier request with the same content had stored it, or it was kept.
    pub new: bool,
    /// The live timer that this one replaced ([`KeyPolicy::Replace`](crate::KeyPolicy::Replace),
    /// and the policies that compute the due time).
    pub replaced: Option<TimerId>,
    /// When the timer is due: as it was asked for, or as the broker has computed it
    /// ([`Schedule::latest`](crate::Schedule::latest) and its like). `None` with
    /// [`Scheduled::kept`].
    pub due: Option<Time>,
    /// The key named a live timer and that one stays ([`KeyPolicy::Keep`](crate::KeyPolicy::Keep)).
    pub kept: bool,
    /// With [`Scheduled::kept`]: an attempt to deliver the timer has begun, or may have. Its handler
    /// may have read the state of before this call, and no other attempt need follow. To be certain
    /// that something runs after this call, schedule once more, without a key or with
    /// [`KeyPolicy::Replace`](crate::KeyPolicy::Replace).
    pub being_delivered: bool,
}

/// Answers a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replayed {
    /// It is delivered again, with a new retry budget.
    Replayed,
    /// Neither a dead letter nor unconfirmed (any more: a request that is repeated because its
    /// answer was lost may have replayed it the first time, and it has ended since).
    NotFound,
    /// Its key names this live timer by now. Nothing changed.
    KeyTaken(TimerId),
}

/// Describes a broker and its cluster, in the broker's words of the handshake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Info {
    /// The address the client is or was last connected to.
    pub broker: String,
    /// The session's number at that broker, for logs.
    pub session: u64,
    /// The cluster's name.
    pub cluster: String,
    /// Name and version of the broker software.
    pub software: String,
    /// Kind of store.
    pub store: String,
    /// The durability level of an answered schedule: `embedded-sync`, `embedded-fast`, `redis` or
    /// `redis-replicated`.
    pub durability: String,
    /// Partitions of the cluster; fixed for its life.
    pub partitions: u16,
    /// The protocol version both sides speak.
    pub version: u16,
    /// How often either side sends something, in ms.
    pub heartbeat_ms: u64,
    /// Most bytes of a frame.
    pub max_frame: u32,
    /// Most operations of a request.
    pub max_batch: u32,
}

/// Counts since the client was made; all numbers only rise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Handshakes done, with any broker; each reconnect counts.
    pub connections: u64,
    /// Requests sent again that may have been done: the connection was lost, or the broker could
    /// not say. In operations.
    pub repeated: u64,
    /// Operations sent again because a broker could not do them yet, or sent elsewhere because it
    /// does not own them.
    pub retried: u64,
    /// Callbacks received.
    pub received: u64,
    /// Callbacks refused because they came from an older epoch than one seen before for their
    /// partition.
    pub stale: u64,
    /// Callbacks dropped unstarted because their connection was lost; the broker delivers them
    /// again.
    pub dropped: u64,
    /// Callbacks given back because no handler was free for them; the broker delivers them again as
    /// the same attempt.
    pub not_begun: u64,
    /// Callbacks not run because they had been handled already
    /// ([`Register::dedupe`](crate::Register::dedupe)).
    pub deduplicated: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// Settlements that the broker stored.
    pub settled: u64,
    /// Settlements that the broker refused (too late, or not this client's), or that became
    /// pointless with their connection.
    pub settle_refused: u64,
}

/// Says which dead letters a listing shows. The default shows all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeadFilter {
    /// Only of this group.
    pub group: Option<String>,
    /// Only of this app.
    pub app: Option<String>,
}

/// Says which destinations are counted. The default counts all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DestinationFilter {
    /// Only of this group.
    pub group: Option<String>,
    /// Only of this app.
    pub app: Option<String>,
}

/// This destination.
impl From<&Destination> for DestinationFilter {
    fn from(dest: &Destination) -> Self {
        Self { group: Some(dest.group().into()), app: Some(dest.app().into()) }
    }
}

/// This destination.
impl From<Destination> for DestinationFilter {
    fn from(dest: Destination) -> Self {
        Self::from(&dest)
    }
}

/// Says which timers a forecast counts, and how exactly.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForecastRequest {
    /// Only those of these destinations.
    pub filter: DestinationFilter,
    /// The last moment at which a span may begin.
    pub until: Time,
    /// Length of a span, ms, 1 at least. Spans begin at its multiples since 1970.
    pub step_ms: u64,
}

/// Answers how many timers are due when: the sums over all partitions.
///
/// Partitions are asked at different times, so the sums show no one instant.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Forecast {
    /// In the order of their beginnings. What is in one that has ended is overdue, or being
    /// delivered. On Redis timers are counted by the slots in which they are kept: those that were
    /// scheduled hours or days before they are due, by an hour or a day. Such a span is longer than
    /// asked for, and overlaps others.
    pub spans: Vec<DueSpan>,
    /// Timers that are in no span yet although they may belong to one, of whatever destination:
    /// brokers have taken over their partitions lately, and count them. 0: the numbers are exact.
    pub uncounted: u64,
}

/// Answers how many timers destinations have: the sums over all partitions.
///
/// Partitions are asked at different times, so the sums show no one instant. A timer is in one
/// partition for its life, so none is counted in two of them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Destinations {
    /// Destinations that have timers, in order.
    pub rows: Vec<DestinationCounts>,
    /// Timers that are in nobody's counts yet, of whatever destination: brokers have taken over
    /// their partitions lately, and count them. 0: the counts are exact.
    pub uncounted: u64,
}
