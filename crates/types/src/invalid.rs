//! Why a timer is refused.

use crate::limits::MAX_EPOCH;
use crate::{ExtensionError, HeaderError, Time, TimerId};

/// Says why a timer was refused before it reached a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTimer {
    /// The payload is over the limit.
    #[error("the payload has {len} bytes, the limit is {limit}: store it elsewhere and send a reference")]
    Payload {
        /// Its bytes.
        len: usize,
        /// Most bytes allowed.
        limit: usize,
    },
    /// A header is not allowed, or there is too much of them.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// An extension that must be understood is unknown.
    #[error(
        "the timer has extension {tag}, which must be understood, and this version of mtimer does not know it: \
         schedule it without, or by a broker and a client of the version that has it"
    )]
    Extension {
        /// Its tag.
        tag: u32,
    },
    /// The id was made for another due time.
    #[error(
        "the id {id} was made for due time {}, but the timer is due at {}: make a new id",
        birth.utc(),
        due.utc()
    )]
    IdDue {
        /// The id.
        id: TimerId,
        /// The due time inside it.
        birth: Time,
        /// The due time beside it.
        due: Time,
    },
    /// The deadline is before the due time.
    #[error(
        "the deadline {} is before the due time {}: give a later one or none",
        deadline.utc(),
        due.utc()
    )]
    Deadline {
        /// The deadline.
        deadline: Time,
        /// The due time.
        due: Time,
    },
    /// The callback timeout is out of range.
    #[error("the callback timeout is {ms} ms, allowed are {min} to {max} ms")]
    CallbackTimeout {
        /// The requested timeout.
        ms: u32,
        /// Least.
        min: u32,
        /// Most.
        max: u32,
    },
    /// The times of a debounce are out of range.
    #[error(
        "debounce with quiet {quiet_ms} ms and max {max_ms} ms: allowed are 1 to {limit} ms, and quiet not above max"
    )]
    Debounce {
        /// The quiet time.
        quiet_ms: u32,
        /// The longest wait.
        max_ms: u32,
        /// Most of either.
        limit: u32,
    },
    /// Too many or too long retry tiers.
    #[error("retry tier {tier} of {count} is {ms} ms: allowed are {max_tiers} tiers of 1 to {max_ms} ms")]
    Retry {
        /// The first tier out of range, counted from 1 (the first too many, if there are too many).
        tier: usize,
        /// How many there are.
        count: usize,
        /// Its delay.
        ms: u32,
        /// Most tiers.
        max_tiers: usize,
        /// Longest delay.
        max_ms: u32,
    },
    /// Too far ahead.
    #[error(
        "the due time {} is more than {max_days} days ahead of {}: schedule it nearer to its time",
        due.utc(),
        now.utc()
    )]
    TooFar {
        /// The due time.
        due: Time,
        /// The cluster clock.
        now: Time,
        /// The limit.
        max_days: u64,
    },
    /// Of a bulk job.
    #[error(transparent)]
    Bulk(#[from] InvalidBulk),
    /// Of an import.
    #[error(transparent)]
    Import(#[from] InvalidImport),
    /// Of a destination's settings.
    #[error(transparent)]
    Settings(#[from] InvalidSettings),
}

/// Says why settings of a destination were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSettings {
    /// A text of a pause is too long.
    #[error("the {} has {bytes} bytes, the limit is {limit}", if *what == "name" { "name of who pauses" } else { what })]
    PauseText {
        /// Which: `name` or `reason`.
        what: &'static str,
        /// Its bytes.
        bytes: usize,
        /// Most bytes allowed.
        limit: usize,
    },
    /// The pause ends too late.
    #[error("the pause lasts until {}, more than {max_days} days: leave its end out, and resume by hand", until.utc())]
    PauseTooLong {
        /// Its end.
        until: Time,
        /// The limit.
        max_days: u64,
    },
    /// What has waited is let go too slowly.
    #[error("what has waited is to be let go over {ms} ms, the limit is {limit} ms")]
    ReleaseTooLong {
        /// The time asked for.
        ms: u64,
        /// The limit.
        limit: u64,
    },
    /// The limit on concurrent deliveries is out of range.
    #[error(
        "the concurrency is {concurrency}, it can be 1 to {limit}; to stop deliveries, pause the destination"
    )]
    Concurrency {
        /// The limit asked for.
        concurrency: u32,
        /// The highest.
        limit: u32,
    },
    /// A part of the rate is out of range.
    #[error("the rate has {value} {what}, they can be {least} to {most}")]
    Rate {
        /// Which: `starts`, `burst` or `milliseconds`.
        what: &'static str,
        /// Its value.
        value: u32,
        /// The least.
        least: u32,
        /// The most.
        most: u32,
    },
    /// The version that they are to have is 0, which means that there are none.
    #[error("settings cannot have version 0: give the one that partition 0 has answered")]
    NoVersion,
    /// The version comes from a partition that gives none.
    #[error("partition {partition} was asked for a new version of settings: only partition 0 gives them")]
    NotNumbering {
        /// The partition.
        partition: u16,
    },
}

/// Says why a timer of another cluster was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidImport {
    /// Its record's extensions do not fit.
    #[error(transparent)]
    Extensions(#[from] ExtensionError),
    /// Its record has an extension that must be understood, and that is unknown or that imports
    /// set.
    #[error(
        "the record has extension {tag}, which must be understood: import it by a broker of the version that has it"
    )]
    Extension {
        /// Its tag.
        tag: u32,
    },
    /// Its tier is out of range.
    #[error("the retry tier is {tier}, the highest is {limit}")]
    Tier {
        /// The tier.
        tier: u8,
        /// Highest.
        limit: usize,
    },
    /// More of its failed attempts are not to count for its retries than there are.
    #[error("of {failed} failed attempts {budget_from} are not to count: there are not so many")]
    Budget {
        /// Failed attempts.
        failed: u32,
        /// Those that do not count.
        budget_from: u32,
    },
    /// Its epoch is over the limit.
    #[error("the epoch is {0}, the highest is {max}", max = MAX_EPOCH.0)]
    Epoch(u64),
    /// It is to be unconfirmed, and its mode is not at most once.
    #[error("only a timer that is delivered at most once can be unconfirmed")]
    Unconfirmed,
}

/// Says why a bulk job was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBulk {
    /// The shift is over the limit.
    #[error("a shift by {ms} ms: due times can be moved by {limit} ms at most")]
    Shift {
        /// The shift.
        ms: i64,
        /// The limit, either way.
        limit: u64,
    },
    /// The range is empty.
    #[error("the range of times ends at {}, before it begins at {}: exchange them", until.utc(), from.utc())]
    Range {
        /// Its beginning.
        from: Time,
        /// Its end.
        until: Time,
    },
    /// The filter's texts are too long. No timer can match such a filter.
    #[error("the texts of the filter have {bytes} bytes, the limit is {limit}")]
    Filter {
        /// Their bytes.
        bytes: usize,
        /// Most bytes allowed.
        limit: usize,
    },
}
