//! Inputs and effects of an [`Engine`](crate::Engine).

use std::collections::HashMap;
use std::sync::Arc;

use mtimer_protocol::{ErrorCode, Query, Request, ServerMessage, Settlement, Share, ShareRequest, Topology};
pub use mtimer_store::{Call, CallAnswer};
use mtimer_store::{Census, Health, InFlight, LaneError, Verdict};
use mtimer_types::{DeadReason, Destination, Epoch, PartitionId, RetryTiers, Time, TimerId, limits};

/// The present, by both clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// The cluster clock; it may jump (forward) and stand still, but the shell never lets it step
    /// back.
    pub time: Time,
    /// Milliseconds by the host's monotonic clock, from any fixed beginning: for durations. It goes
    /// on while the host is suspended, as far as the host can tell.
    pub mono_ms: u64,
}

/// A connection past its handshake, numbered by the shell; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u64);

/// An input from the shell to the engine.
#[derive(Debug)]
pub enum Input {
    /// A partition was acquired; the shell has its lane. An earlier ownership of it has ended
    /// before.
    Acquired {
        /// Which.
        partition: PartitionId,
        /// Under this epoch.
        epoch: Epoch,
        /// Predecessors may have sent timers up to this time.
        prior_claim: Time,
        /// Deliveries that the predecessor left under way.
        in_flight: Vec<InFlight>,
    },
    /// The oldest unanswered [`Effect::Call`] of this partition and epoch was answered.
    Answered {
        /// Which partition.
        partition: PartitionId,
        /// The ownership it belongs to; answers to an earlier one are ignored.
        epoch: Epoch,
        /// The answer, or why the lane has ended.
        answer: Result<CallAnswer, LaneError>,
    },
    /// The store of this partition can or cannot be reached.
    Health {
        /// Which partition.
        partition: PartitionId,
        /// How it is.
        health: Health,
    },
    /// A newer topology: the assigned owner of each partition. Given only where there is a cluster.
    Topology(Arc<Topology>),
    /// The partition is another broker's: give it up gracefully. [`Effect::LaneEnded`] says when
    /// that is done.
    Disown(PartitionId),
    /// An event of a session.
    Session(SessionId, SessionEvent),
    /// To [`Effect::AskShares`]: this broker has these shares now.
    Lent(Vec<Share>),
    /// Count the stored timers: [`Effect::Stored`] follows. One count answers all that came before
    /// it began.
    CountStored,
    /// A time asked for with [`Effect::Alarm`] or [`Engine::next_tick`](crate::Engine::next_tick)
    /// has come.
    Tick,
    /// Stop gracefully, step one: refuse new work, deliver nothing more, say so to the sessions,
    /// wait for settlements.
    Drain,
    /// Stop gracefully, step two: release every partition, with a list of the deliveries still
    /// under way.
    Release,
}

/// An operation of a request that the session may not do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeniedOp {
    /// Its place in the request.
    pub at: usize,
    /// The kind.
    pub code: ErrorCode,
    /// For people.
    pub why: String,
}

/// An event of a session.
#[derive(Debug)]
pub enum SessionEvent {
    /// Its handshake is done.
    Opened {
        /// The client's durable name.
        client: u128,
    },
    /// `ClientMessage::Register`.
    Register {
        /// Chosen by the client.
        registration: u32,
        /// Whose callbacks.
        dest: Destination,
        /// How many unsettled at most.
        credit: u32,
    },
    /// `ClientMessage::Unregister`.
    Unregister {
        /// Chosen by the client.
        registration: u32,
    },
    /// `ClientMessage::Request`.
    Request(Request),
    /// The same, of which some operations are not allowed to this session.
    Screened {
        /// The request.
        request: Request,
        /// The operations that are refused, in ascending order of their places. Not empty.
        denied: Vec<DeniedOp>,
    },
    /// `ClientMessage::Settle`.
    Settle(Vec<Settlement>),
    /// `ClientMessage::Extend`.
    Extend {
        /// Which timer.
        id: TimerId,
        /// The delivery's epoch.
        epoch: Epoch,
        /// The delivery's attempt.
        attempt: u32,
        /// From now, ms.
        by_ms: u32,
    },
    /// `ClientMessage::Query`.
    Query {
        /// Chosen by the client.
        corr: u64,
        /// The question.
        query: Query,
    },
    /// To [`Effect::Recall`] or [`Effect::SendBy`]: these deliveries had not left for it, and do
    /// not any more.
    Recalled(Vec<TimerId>),
    /// `ClientMessage::Goodbye`.
    Goodbye,
    /// The connection is gone.
    Closed,
}

/// An action that the engine asks of the shell. The shell carries them out in order.
#[derive(Debug)]
pub enum Effect {
    /// Send to a session. Never blocks the engine: the shell bounds its queue and closes a session
    /// that exceeds it.
    Send(SessionId, ServerMessage),
    /// Send deliveries to a session, if they leave for its socket by this monotonic time, ms;
    /// otherwise [`SessionEvent::Recalled`] follows.
    SendBy(SessionId, ServerMessage, u64),
    /// Ask the leader for shares of destinations' limits; [`Input::Lent`] follows. Those that are
    /// lost are asked for again.
    AskShares(Vec<ShareRequest>),
    /// Take back what was sent to this registration of a session and has not left for its socket;
    /// [`SessionEvent::Recalled`] follows if there is any.
    Recall(SessionId, u32),
    /// Close a session that broke the protocol: send `Refused` with this text, then close.
    Close(SessionId, String),
    /// Make this call on the partition's lane at once; feed the answers back in the order of the
    /// calls.
    Call(PartitionId, Call),
    /// Feed [`Input::Tick`] when the cluster clock reaches this time.
    Alarm(Time),
    /// This ownership has ended; its calls need not be answered any more. The shell drops the lane,
    /// and may acquire again.
    LaneEnded(PartitionId, LaneError),
    /// The outcome of a timer with a `traceparent` is stored; `None`: the store had nothing of it
    /// any more. Only with [`EngineOptions::traces`]. The timer may have had no delivery under way.
    Settled(TimerId, Option<Verdict>),
    /// A timer has become a dead letter, and the store has it.
    Died(Died),
    /// The stored timers of all partitions together; `None`: not all of them could be counted.
    Stored(Option<Census>),
    /// After [`Input::Release`]: every partition has been given up.
    Released,
}

/// A timer that has become a dead letter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Died {
    /// Which.
    pub id: TimerId,
    /// Whose it was; `None`: it was not in memory.
    pub dest: Option<Destination>,
    /// Why.
    pub reason: DeadReason,
    /// How many attempts there were.
    pub attempts: u32,
}

/// Operator settings of the engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// This broker's address in the topology; `None`: there is no cluster around it.
    pub address: Option<String>,
    /// Partitions of the cluster.
    pub partitions: u16,
    /// How far ahead timers are loaded into memory, ms; less once half of [`Self::memory_bytes`] is
    /// used.
    pub preload_ms: u64,
    /// Budget for timers in memory, bytes (payload, headers and about 300 bytes each). From one
    /// half on, a due timer that finds no credit is parked without delay, before more is stored.
    /// These may come on top: deliveries that clients have not settled (as many as their credit),
    /// timers scheduled to be due within the next second, and one batch.
    pub memory_bytes: u64,
    /// Operations of one batch to the store: a smaller one makes others wait less behind it.
    pub batch_ops: usize,
    /// How long a due timer waits for a session or credit before it is parked, ms.
    pub park_after_ms: u64,
    /// Retry tiers of destinations that have none of their own.
    pub retry: RetryTiers,
    /// Retry tiers by destination.
    pub retry_by_dest: HashMap<Destination, RetryTiers>,
    /// Random part of a retry delay: up to this many percent are added.
    pub jitter_percent: u8,
    /// Callback timeout of timers that have none of their own, ms.
    pub callback_timeout_ms: u32,
    /// Dead letters older than this, ms, are trimmed.
    pub dead_max_age_ms: u64,
    /// Dead letters beyond this many in one partition are trimmed, the oldest first.
    pub dead_max_count: u64,
    /// At-most-once timers that are unconfirmed for longer than this, ms, are trimmed.
    pub unconfirmed_max_age_ms: u64,
    /// Unconfirmed timers beyond this many in one partition are trimmed, the oldest first.
    pub unconfirmed_max_count: u64,
    /// Whether [`Effect::Settled`] is wanted.
    pub traces: bool,
    /// Seed for jitter.
    pub seed: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            address: None,
            partitions: 1,
            preload_ms: 5_000,
            memory_bytes: 256 * 1024 * 1024,
            batch_ops: 500,
            park_after_ms: 250,
            retry: RetryTiers(limits::DEFAULT_RETRY_TIERS_MS.to_vec()),
            retry_by_dest: HashMap::new(),
            jitter_percent: 10,
            callback_timeout_ms: limits::DEFAULT_CALLBACK_TIMEOUT_MS,
            dead_max_age_ms: 30 * 86_400_000,
            dead_max_count: 1_000_000,
            unconfirmed_max_age_ms: 30 * 86_400_000,
            unconfirmed_max_count: 1_000_000,
            traces: false,
            seed: 0,
        }
    }
}

/// Counters of an engine, in the order of [`Counter::ALL`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum Counter {
    /// Timers stored by a schedule; repeats do not count.
    Scheduled,
    /// Schedules and imports that were not stored, for any reason.
    ScheduleRefused,
    /// Timers cancelled before any delivery.
    Cancelled,
    /// Cancels that came after a delivery had begun, or may have.
    CancelTooLate,
    /// Timers moved to another time.
    Rescheduled,
    /// Deliveries sent, repeated ones included.
    Delivered,
    /// Deliveries sent with an attempt above 1.
    Redelivered,
    /// Timers removed by an ok in time.
    Acknowledged,
    /// Timers removed by an ok that came after the callback timeout, or after its connection was
    /// lost.
    LateAcknowledged,
    /// Attempts filed under a retry tier.
    Retried,
    /// Attempts that handlers have postponed.
    Postponed,
    /// Timers that became dead letters.
    Dead,
    /// Dead letters removed for their age or number.
    DeadTrimmed,
    /// Unconfirmed timers removed for their age or number.
    UnconfirmedTrimmed,
    /// Timers that missed their deadline.
    Expired,
    /// Deliveries without an outcome within the callback timeout.
    TimedOut,
    /// Deliveries whose session ended before their outcome.
    SessionLost,
    /// Due timers that the store moved to a park.
    Parked,
    /// Timers taken back from a park.
    Unparked,
    /// At-most-once timers whose outcome is not known any more.
    Unconfirmed,
    /// Outcomes of deliveries that another session has.
    SettleNotYours,
    /// Outcomes of deliveries that are not under way any more.
    SettleLate,
    /// Timers taken out of memory because its budget was exceeded.
    Unloaded,
    /// Ownerships of partitions that ended, for any reason.
    LanesEnded,
    /// Sessions closed because they broke the protocol.
    ProtocolErrors,
    /// Timers on which bulk jobs have acted.
    BulkDone,
    /// Timers on which bulk jobs could not act.
    BulkNotDone,
    /// Acts of bulk jobs that the store would not take, or could not confirm; they are tried again.
    BulkRefused,
    /// Dead letters and unconfirmed timers that are delivered again.
    Replayed,
    /// Dead letters and unconfirmed timers that somebody has removed.
    Purged,
    /// Timers that got another deadline.
    Extended,
    /// Timers that imports have staged.
    Staged,
    /// Deliveries that were withdrawn before they had left: their destination was paused, or they
    /// would have left later than its limits allow.
    Recalled,
}

impl Counter {
    /// All of them.
    pub const ALL: [(Self, &'static str); 33] = [
        (Self::Scheduled, "scheduled_total"),
        (Self::ScheduleRefused, "schedule_refused_total"),
        (Self::Cancelled, "cancelled_total"),
        (Self::CancelTooLate, "cancel_too_late_total"),
        (Self::Rescheduled, "rescheduled_total"),
        (Self::Delivered, "delivered_total"),
        (Self::Redelivered, "redelivered_total"),
        (Self::Acknowledged, "acknowledged_total"),
        (Self::LateAcknowledged, "late_acknowledged_total"),
        (Self::Retried, "retried_total"),
        (Self::Postponed, "postponed_total"),
        (Self::Dead, "dead_total"),
        (Self::DeadTrimmed, "dead_trimmed_total"),
        (Self::UnconfirmedTrimmed, "unconfirmed_trimmed_total"),
        (Self::Expired, "expired_total"),
        (Self::TimedOut, "timed_out_total"),
        (Self::SessionLost, "session_lost_total"),
        (Self::Parked, "parked_total"),
        (Self::Unparked, "unparked_total"),
        (Self::Unconfirmed, "unconfirmed_total"),
        (Self::SettleNotYours, "settle_not_yours_total"),
        (Self::SettleLate, "settle_late_total"),
        (Self::Unloaded, "unloaded_total"),
        (Self::LanesEnded, "lanes_ended_total"),
        (Self::ProtocolErrors, "protocol_errors_total"),
        (Self::BulkDone, "bulk_done_total"),
        (Self::BulkNotDone, "bulk_not_done_total"),
        (Self::BulkRefused, "bulk_refused_total"),
        (Self::Replayed, "replayed_total"),
        (Self::Purged, "purged_total"),
        (Self::Extended, "extended_total"),
        (Self::Staged, "staged_total"),
        (Self::Recalled, "recalled_total"),
    ];
}
