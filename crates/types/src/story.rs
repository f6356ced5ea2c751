//! The story of a timer: its attempts that ended without success, and why they were late.
//!
//! Kept with its record as an extension, and written only in writes that its progress needs anyway:
//! a timer that is acknowledged at its first attempt has none.
//!
//! The bytes of an attempt, integers little endian, varints as in [`crate::extensions`]:
//!
//! | part | bytes |
//! |---|---|
//! | number | varint |
//! | end | 1: the number of [`AttemptEnd`] |
//! | cause of its lateness | 1: the number of [`LateCause`] + 1; 0: none |
//! | epoch | 8 |
//! | client | 8 |
//! | sent, ms since 1970 | 6; 0: a predecessor of the owner has sent it |
//! | ended, ms since 1970 | 6 |
//! | late, ms | varint |
//! | error | varint + n: UTF-8 |

use serde::{Deserialize, Serialize};

use crate::partition::Epoch;
use crate::text::beginning;
use crate::time::Time;
use crate::varint::{put_varint, take, take_varint};

/// Most attempts that a story keeps: the last ones. With it stories stay below the limit of a
/// record's extensions, together with the other fields.
pub const MAX_STORY_ATTEMPTS: usize = 8;
/// Bytes of an attempt's error in a story; that of the last one is kept in full beside it.
pub const MAX_STORY_ERROR_BYTES: usize = 64;
/// An attempt that is sent later than its time by at least so much, ms, is late: its story says
/// why.
pub const LATE_MS: u64 = 10;

/// One attempt to deliver a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attempt {
    /// Which, from 1.
    pub number: u32,
    /// Of the owner that has it under way, or has seen it end.
    pub epoch: Epoch,
    /// The first half of the random name that its client has given itself ([`client_shown`]):
    /// enough to tell clients apart, and not enough to settle in the place of one.
    pub client: u64,
    /// When it was sent; `None`: a predecessor of that owner has sent it.
    pub sent: Option<Time>,
    /// How much later than its time it was sent, ms: the due time of the first attempt, the time
    /// that was set for a later one. 0 if `sent` is unknown.
    pub late_ms: u32,
    /// What it waited for most; `None`: it was late by less than [`LATE_MS`]. Of what was parked it
    /// is told in any case.
    pub late_by: Option<LateCause>,
}

/// An attempt that has ended without success.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FailedAttempt {
    /// The attempt.
    pub attempt: Attempt,
    /// When its owner took note of its end.
    pub ended: Time,
    /// How it ended.
    pub end: AttemptEnd,
    /// The handler's words, at most [`MAX_STORY_ERROR_BYTES`] bytes.
    pub error: Box<str>,
}

macro_rules! numbered {
    ($(#[$enum_doc:meta])* $enum:ident: $of:literal { $($(#[$doc:meta])* $name:ident = $n:literal, $text:literal;)* }) => {
        $(#[$enum_doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum $enum {
            $($(#[$doc])* $name = $n,)*
            /// One that this version does not know.
            Unknown = 254,
        }

        impl $enum {
            #[doc = concat!("Each ", $of, ", in the order of the numbers in storage.")]
            pub const ALL: &[Self] = &[$(Self::$name,)* Self::Unknown];

            /// From its number in storage.
            pub const fn from_u8(n: u8) -> Self {
                match n {
                    $($n => Self::$name,)*
                    _ => Self::Unknown,
                }
            }

            /// Its name, as people and programs see it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    Self::Unknown => "unknown",
                }
            }
        }
    };
}

numbered! {
    /// How an attempt ended.
    AttemptEnd: "end" {
        /// The handler asked for another one.
        Retry = 0, "retry";
        /// The handler said that it will never be done.
        Fail = 1, "fail";
        /// No outcome came within the callback timeout.
        TimedOut = 2, "timed-out";
        /// The client's connection was lost.
        ConnectionLost = 3, "connection-lost";
        /// No handler had begun, and it was not sent again: it was being cancelled or replaced, or
        /// a former owner had sent it.
        NotBegun = 4, "not-begun";
        /// The handler answered later.
        Later = 5, "later";
    }
}

numbered! {
    /// What a late delivery has waited for.
    LateCause: "cause" {
        /// No client of its destination had free capacity.
        Credit = 0, "credit";
        /// It was set aside: no client of its destination had capacity, or its owner could not
        /// send.
        Parked = 1, "parked";
        /// Its partition had changed hands.
        Takeover = 2, "takeover";
        /// The store had not yet confirmed that its owner may send what is due then.
        Claim = 3, "claim";
        /// The store was slow or away, or the broker's memory was used up: it was read late, or taken
        /// late.
        Store = 4, "store";
        /// A cancel, reschedule or replace of it, or a late acknowledgement, was under way.
        Edit = 5, "edit";
        /// None of these: its broker was busy, or its host stood still.
        Broker = 6, "broker";
        /// Its destination was paused.
        Paused = 7, "paused";
        /// As many deliveries of its destination ran, or had started, as its limits allow.
        Limited = 8, "limited";
    }
}

/// Returns the half of a client's name that stories tell.
pub const fn client_shown(client: u128) -> u64 {
    (client >> 64) as u64
}

/// Reads a story's bytes; `None` if they are no story.
pub(crate) fn decode(mut bytes: &[u8]) -> Option<Vec<FailedAttempt>> {
    let mut attempts = Vec::new();
    while !bytes.is_empty() {
        attempts.push(decode_one(&mut bytes)?);
    }
    Some(attempts)
}

fn decode_one(rest: &mut &[u8]) -> Option<FailedAttempt> {
    let number = take_varint(rest).ok()?;
    let [end, cause] = take(rest).ok()?;
    let epoch = Epoch(u64::from_le_bytes(take(rest).ok()?));
    let client = u64::from_le_bytes(take(rest).ok()?);
    let (sent, ended) = (take_time(rest)?, take_time(rest)?);
    let late_ms = take_varint(rest).ok()?;
    let len = take_varint(rest).ok()? as usize;
    let (error, after) = rest.split_at_checked(len)?;
    *rest = after;
    let sent = (sent != Time::ZERO).then_some(sent);
    let late_by = cause.checked_sub(1).map(LateCause::from_u8);
    Some(FailedAttempt {
        attempt: Attempt { number, epoch, client, sent, late_ms, late_by },
        ended,
        end: AttemptEnd::from_u8(end),
        error: std::str::from_utf8(error).ok()?.into(),
    })
}

fn take_time(rest: &mut &[u8]) -> Option<Time> {
    let [a, b, c, d, e, f] = take(rest).ok()?;
    Some(Time::from_ms(u64::from_le_bytes([a, b, c, d, e, f, 0, 0])))
}

/// Writes the last attempts of a story.
pub(crate) fn encode(attempts: &[FailedAttempt]) -> Vec<u8> {
    let last = attempts.len().saturating_sub(MAX_STORY_ATTEMPTS);
    let mut out = Vec::new();
    for FailedAttempt { attempt, ended, end, error } in &attempts[last..] {
        put_varint(attempt.number, &mut out);
        out.extend([*end as u8, attempt.late_by.map_or(0, |cause| cause as u8 + 1)]);
        out.extend(attempt.epoch.0.to_le_bytes());
        out.extend(attempt.client.to_le_bytes());
        for time in [attempt.sent.unwrap_or(Time::ZERO), *ended] {
            out.extend(&time.as_ms().to_le_bytes()[..6]);
        }
        put_varint(attempt.late_ms, &mut out);
        let error = beginning(error, MAX_STORY_ERROR_BYTES);
        put_varint(error.len() as u32, &mut out);
        out.extend(error.as_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

    use super::*;
    use crate::limits::MAX_EXTENSIONS_BYTES;

    fn attempt(number: u32, error: &str) -> FailedAttempt {
        let (epoch, client, sent) = (Epoch(7), u64::MAX - 1, Some(Time::from_ms(1_000)));
        let (late_ms, late_by) = (u32::MAX, Some(LateCause::Broker));
        FailedAttempt {
            attempt: Attempt { number, epoch, client, sent, late_ms, late_by },
            ended: Time::from_ms(2_000),
            end: AttemptEnd::NotBegun,
            error: error.into(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut plain = attempt(1, "");
        plain.attempt = Attempt { sent: None, late_by: None, late_ms: 0, ..plain.attempt };
        let story = vec![plain, attempt(2, "no"), attempt(70_000, "ä")];
        assert_eq!(decode(&encode(&story)), Some(story));
        assert_eq!(decode(&[]), Some(Vec::new()));
    }

    #[test]
    fn the_last_attempts_and_the_beginnings_of_errors_are_kept() {
        let long = "ä".repeat(40) + "b";
        let story: Vec<FailedAttempt> = (1..=20).map(|n| attempt(n, &long)).collect();
        let kept = decode(&encode(&story)).unwrap();
        assert_eq!(kept.iter().map(|a| a.attempt.number).collect::<Vec<_>>(), (13..=20).collect::<Vec<_>>());
        assert!(kept.iter().all(|a| *a.error == *"ä".repeat(32)));
        // The largest one fits beside the other fields of a record.
        let largest: Vec<FailedAttempt> = (0..8).map(|n| attempt(u32::MAX - n, &long)).collect();
        assert!(encode(&largest).len() + 100 <= MAX_EXTENSIONS_BYTES, "{}", encode(&largest).len());
    }

    #[test]
    fn bytes_that_are_no_story_are_not_taken_for_one() {
        let bytes = encode(&[attempt(1, "no")]);
        for len in 1..bytes.len() {
            assert_eq!(decode(&bytes[..len]), None, "{len}");
        }
    }

    #[test]
    fn ends_and_causes_of_newer_versions_are_unknown() {
        let mut bytes = encode(&[attempt(1, "no"), attempt(2, "no")]);
        (bytes[1], bytes[2]) = (99, 99);
        let story = decode(&bytes).unwrap();
        let told = story.iter().map(|failed| (failed.end, failed.attempt.late_by)).collect::<Vec<_>>();
        let known = (AttemptEnd::NotBegun, Some(LateCause::Broker));
        assert_eq!(told, [(AttemptEnd::Unknown, Some(LateCause::Unknown)), known]);
        assert_eq!(decode(&encode(&story)), Some(story));
    }

    #[test]
    fn numbers_in_storage_mean_what_they_meant() {
        let ends = AttemptEnd::ALL.iter().map(|end| (*end as u8, end.name())).collect::<Vec<_>>();
        let expected = ["retry", "fail", "timed-out", "connection-lost", "not-begun", "later"];
        let unknown = (254, "unknown");
        assert_eq!(ends, (0..).zip(expected).chain([unknown]).collect::<Vec<_>>());
        let causes = LateCause::ALL.iter().map(|cause| (*cause as u8, cause.name())).collect::<Vec<_>>();
        let expected =
            ["credit", "parked", "takeover", "claim", "store", "edit", "broker", "paused", "limited"];
        assert_eq!(causes, (0..).zip(expected).chain([unknown]).collect::<Vec<_>>());
    }
}
