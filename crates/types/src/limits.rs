//! Bounds that several parts of mtimer share, each with its reason.
//!
//! Nothing in mtimer queues, buffers or decodes without a bound. One that a single queue has is a
//! constant beside that queue.

use crate::{Epoch, Term};

/// Bytes of a group key or an app key. They are interned, so this bounds memory per destination,
/// not per timer.
pub const MAX_NAME_BYTES: usize = 128;
/// Bytes of an application's key: enough for a URL path or two UUIDs.
pub const MAX_KEY_BYTES: usize = 256;
/// Bytes of a payload: a frame of a few timers stays under the frame limit, and one Redis script
/// moving a handful stays around a millisecond.
pub const MAX_PAYLOAD_BYTES: usize = 64 * 1024;
/// Headers of a timer: enough for a trace context, a tenant and a dozen more; finding one means
/// looking at each.
pub const MAX_HEADERS: usize = 32;
/// Bytes of a header's name, which is written with every timer that has it.
pub const MAX_HEADER_NAME_BYTES: usize = 64;
/// Bytes of a header's value: twice what W3C asks every system to pass on of a `tracestate`, or a
/// token of a few claims. Longer values belong in the payload.
pub const MAX_HEADER_VALUE_BYTES: usize = 1_024;
/// Bytes of a timer's header names and values in all: a sixteenth of a largest payload, so that
/// bounds on payloads hold for headers, too.
pub const MAX_HEADERS_BYTES: usize = 4 * 1024;
/// Extensions of a timer, and of a record: fields that were added since the first version are few.
pub const MAX_EXTENSIONS: usize = 16;
/// Bytes of a timer's extensions in all, and of a record's: as many as a header's value. What
/// applications write belongs in headers and payload.
pub const MAX_EXTENSIONS_BYTES: usize = 1_024;
/// Bytes of a handler's error text that are kept.
pub const MAX_ERROR_BYTES: usize = 512;
/// How far ahead a timer may be due, ms: ten years, far below the range of the wheel and of the id.
pub const MAX_AHEAD_MS: u64 = 3_653 * 86_400_000;
/// How far beyond its fire time a timer is stored while it is staged ([`crate::Staging`]), ms: a
/// whole number of days, up to the year 6350, which no clock reaches.
pub const STAGED_MS: u64 = 1_600_000 * 86_400_000;
/// Shortest callback timeout, ms: below it a network hiccup would count as a failed handler.
pub const MIN_CALLBACK_TIMEOUT_MS: u32 = 100;
/// Longest callback timeout, ms.
pub const MAX_CALLBACK_TIMEOUT_MS: u32 = 86_400_000;
/// Longest quiet time and longest wait of a debounce, ms: a day. What waits longer is a timer with
/// a due time of its own.
pub const MAX_DEBOUNCE_MS: u32 = 86_400_000;
/// Callback timeout when a timer has none, ms.
pub const DEFAULT_CALLBACK_TIMEOUT_MS: u32 = 30_000;
/// Retry tiers a timer may bring: the track number of a slot is one byte, and nobody waits for
/// more.
pub const MAX_RETRY_TIERS: usize = 32;
/// Longest single retry delay, ms: 30 days.
pub const MAX_RETRY_DELAY_MS: u32 = 30 * 86_400_000;
/// Longest delay with which a handler can answer later: 24 hours. Beyond it a broker takes this.
pub const MAX_LATER_MS: u32 = 86_400_000;
/// How often in a row handlers can answer later: the next one is a failure as any other, so that a
/// timer that is never done becomes a dead letter some day.
pub const MAX_LATER_IN_A_ROW: u32 = 20;
/// Retry delays when neither timer nor destination has any, ms.
pub const DEFAULT_RETRY_TIERS_MS: [u32; 5] = [1_000, 5_000, 30_000, 120_000, 600_000];

/// A repeated request this old, ms, is refused as unknown: outcomes are remembered no longer than
/// this.
pub const REPEAT_HORIZON_MS: u64 = 30_000;
/// How far ahead of a broker's clock a request may have been sent, ms: more than a client's view of
/// that clock can be wrong by. Such a request looks younger than it is, by as much.
pub const MAX_SENT_AHEAD_MS: u64 = 5_000;

/// Most partitions of a cluster: owner records and heartbeats stay small.
pub const MAX_PARTITIONS: u16 = 1_024;

/// Most brokers of a cluster: each holds a connection to the leader, and clients one to each.
pub const MAX_BROKERS: usize = 128;
/// Sessions of observers that a broker takes beyond those of clients and of other brokers: probes,
/// operators, dashboards.
pub const MAX_OBSERVERS: usize = 256;
/// Terms are below this, which is a time in ms far beyond every clock: a higher one that somebody
/// claims to have seen is invalid, and would leave no later ones if it was believed.
pub const MAX_TERM: Term = Term(1 << 50);
/// Epochs are below this: brokers tell each other of none more than a day ahead of their clock.
pub const MAX_EPOCH: Epoch = Epoch(1 << 50);
/// Bytes of a broker's address.
pub const MAX_ADDRESS_BYTES: usize = 255;

/// Bytes of a frame before the handshake is done: a hello fits easily, and a stranger can make us
/// hold no more.
pub const MAX_FRAME_BEFORE_AUTH: usize = 4 * 1024;
/// Bytes of a frame afterwards: a batch of 1,000 small timers or of 58 largest.
pub const MAX_FRAME: usize = 4 * 1024 * 1024;
/// How long a connection may take for its handshake, ms.
pub const HANDSHAKE_DEADLINE_MS: u64 = 5_000;
/// Connections that have not finished the handshake; each further one has the oldest closed.
pub const MAX_HANDSHAKES: usize = 256;
/// Sessions of one broker: about 20 KiB each.
pub const MAX_SESSIONS: usize = 10_000;
/// Operations in one request frame: a batch this large is already at full speed.
pub const MAX_BATCH: usize = 2_000;
/// Unanswered operations of one session; its frames are not read while it is over.
pub const MAX_SESSION_INFLIGHT: usize = 20_000;
/// Callbacks a session may have unsettled.
pub const MAX_CREDIT: u32 = 10_000;
/// Deliveries of traced timers whose spans a broker keeps until their outcomes are stored: about 20
/// MiB. Beyond them deliveries have no span.
pub const MAX_TRACED_DELIVERIES: usize = 100_000;
/// Registrations of one session. A session that settles some of its largest backlog makes the
/// engine look at each of them, once a turn.
pub const MAX_REGISTRATIONS: usize = 1_000;
/// Registrations of one session for the same destination, which share the session's deliveries:
/// choosing one of them looks at all. More handlers at once need more credit, not more of these.
pub const MAX_REGISTRATIONS_OF_DESTINATION: usize = 16;
/// Registrations of all sessions of one token, at each broker: ten clients with as many as there
/// can be, or a thousand that take ten destinations each.
pub const MAX_TOKEN_REGISTRATIONS: usize = 10_000;
/// Payload and header bytes of callbacks that a session may have unsettled; beyond them it gets no
/// more, even with credit left. A quarter of its outbox, so that a client that reads slowly but
/// honestly is not closed for it.
pub const MAX_SESSION_UNSETTLED_BYTES: usize = 16 * 1024 * 1024;
/// Bytes queued for a session that does not read; beyond it the session is closed.
pub const MAX_SESSION_OUTBOX: usize = 64 * 1024 * 1024;
/// Bytes queued for all sessions together; no message is queued beyond it. Eight sessions may have
/// their largest outbox, or ten thousand 50 KiB each.
pub const MAX_OUTBOXES: usize = 512 * 1024 * 1024;
/// One part in so many of [`MAX_OUTBOXES`] is a reserve: when it is touched, the sessions with the
/// most queued are closed. It holds the messages to other sessions until the memory of the closed
/// ones is free, which takes milliseconds.
pub const OUTBOX_RESERVE: usize = 8;
/// Bytes of frames that are being received, of all sessions together. Sixteen largest frames, or a
/// thousand of 64 KiB: a broker decodes a frame faster than a network brings the next one.
pub const MAX_RECEIVING: usize = 64 * 1024 * 1024;
/// The same for other brokers, apart, so that clients cannot hold up heartbeats: each of
/// [`MAX_BROKERS`] sends about 20 KiB at a time.
pub const MAX_RECEIVING_FROM_BROKERS: usize = 16 * 1024 * 1024;
/// Bytes a second that an unfinished frame, or one that is being sent, makes at least. At this rate
/// a largest frame takes four minutes; a telephone's network is ten times as fast.
pub const MIN_FRAME_RATE: usize = 16 * 1024;
/// How long a frame may take while other frames wait for memory, ms. A largest frame needs 40 ms of
/// a network of 1 Gbit/s, which brings no more in this time than four times [`MAX_RECEIVING`].
pub const MAX_PRESSED_FRAME_MS: u64 = 2_000;
/// Bytes of one session's unanswered requests; its frames are not read while it is over. A few
/// largest frames.
pub const MAX_SESSION_INGRESS: usize = 16 * 1024 * 1024;
/// Bytes of all sessions' unanswered requests; frames are not read while they are over.
pub const MAX_INGRESS: usize = 256 * 1024 * 1024;
/// Interval of heartbeats in either direction, ms.
pub const HEARTBEAT_MS: u64 = 5_000;
/// Silence after which the other side is taken for dead, ms: three heartbeats.
pub const HEARTBEAT_TIMEOUT_MS: u64 = 15_000;
/// Rows of one page of a listing.
pub const MAX_PAGE: u32 = 1_000;
/// Bytes of the texts of a bulk job's filter: two names, a key, a header's name and its value fit.
pub const MAX_FILTER_BYTES: usize = 2 * 1024;
/// Bulk jobs that a partition keeps, ended ones included: each is some kilobytes at most.
pub const MAX_BULK_JOBS: usize = 16;
/// Timers on which a bulk job could not act that are named, in each partition.
pub const MAX_BULK_FAILURES: usize = 100;
/// Destinations that have settings. Every partition has a copy of them all, some 100 bytes each,
/// which its owner reads when it acquires it.
pub const MAX_CONFIGURED_DESTINATIONS: usize = 1_000;
/// Highest limit on a destination's concurrent deliveries: more than any fleet of handlers runs.
pub const MAX_CONCURRENCY: u32 = 1_000_000;
/// Most starts that a destination's rate may allow in its time.
pub const MAX_RATE_STARTS: u32 = 1_000_000;
/// Most starts at once of a destination's rate.
pub const MAX_RATE_BURST: u32 = 1_000_000;
/// Shortest time of a destination's rate, ms: a second, by which rates are usually given.
pub const MIN_RATE_PER_MS: u32 = 1_000;
/// Longest time of a destination's rate, ms: a day.
pub const MAX_RATE_PER_MS: u32 = 86_400_000;
/// Bytes of each text of a pause, who and why: a sentence or two, and a link.
pub const MAX_PAUSE_TEXT_BYTES: usize = 256;
/// Longest time over which the timers that have waited for the end of a pause are let go, ms: a
/// week.
pub const MAX_RELEASE_MS: u64 = 7 * 86_400_000;
/// Tokens, and groups, whose use of their limits a broker tracks: about 100 bytes each. As many as
/// there are tokens in a file at most.
pub const MAX_LIMITED: usize = 10_000;
/// How long a store has to be away until operations that have not left for it are refused, ms. A
/// failover often takes less, and then nobody notices; the client asks again.
pub const AWAY_MS: u64 = 2_000;
/// Free bytes on the disk of the embedded store's directory below which it warns, unless set: a
/// few minutes of a busy broker's writes, so that somebody can do something about it.
pub const DISK_WATERMARK_BYTES: u64 = 1024 * 1024 * 1024;
/// The same below which it refuses operations that add, unless set. It still has to write the data
/// in memory, the journal of settlements and cancels, and merged tables before the old ones are
/// removed. The store refuses it earlier if it needs more for that.
pub const DISK_RESERVE_BYTES: u64 = 256 * 1024 * 1024;
/// Least that can be set: a journal of the embedded store.
pub const MIN_DISK_RESERVE_BYTES: u64 = 64 * 1024 * 1024;
/// Bytes of the writes to Redis that a broker keeps until Redis cannot lose them any more, unless
/// set: those of 5 s at 13 MiB a second.
pub const WRITE_LOG_BYTES: usize = 64 * 1024 * 1024;
