//! The bytes of remembered outcomes, kept for the repeat horizon: how timers ended, and answers to
//! requests.
//!
//! The space `ended` of [`crate::layout`]: in buckets of the horizon's length, so that older
//! outcomes are forgotten bucket by bucket.

use bytes::{Buf, BufMut};
use fjall::Slice;
use mtimer_store::{Answer, CancelAnswer, RescheduleAnswer};
use mtimer_types::{Ended, PartitionId, Time, TimerId, limits};

/// The key of an outcome that is remembered for the repeat horizon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RememberedKey {
    Ended(TimerId),
    Answered(u64),
}

pub(crate) fn bucket_of(at: Time) -> u32 {
    // 2^48 ms / 30 s is below 2^34, far beyond the years that matter; the last bucket takes the
    // rest.
    u32::try_from(at.as_ms() / limits::REPEAT_HORIZON_MS).unwrap_or(u32::MAX)
}

pub(crate) fn ended_key(p: PartitionId, bucket: u32, memory: RememberedKey) -> Slice {
    let mut key = bucket_key(p, bucket);
    match memory {
        RememberedKey::Ended(id) => {
            key.put_u8(0);
            key.put_slice(&id.to_bytes());
        }
        RememberedKey::Answered(request) => {
            key.put_u8(1);
            key.put_u64(request);
        }
    }
    key.into()
}

/// The beginning of every key of a bucket.
pub(crate) fn bucket_key(p: PartitionId, bucket: u32) -> Vec<u8> {
    let mut key = Vec::with_capacity(23);
    key.put_u16(p.0);
    key.put_u32(bucket);
    key
}

pub(crate) fn encode_ended(how: Ended, at: Time) -> Vec<u8> {
    let mut out = Vec::with_capacity(7);
    out.put_uint(at.as_ms(), 6);
    out.put_u8(how as u8);
    out
}

pub(crate) fn decode_ended(mut bytes: &[u8]) -> Option<(Time, Ended)> {
    let at = Time::from_ms(bytes.try_get_uint(6).ok()?);
    Some((at, Ended::from_u8(bytes.try_get_u8().ok()?)?))
}

/// Answers to cancels and reschedules are remembered; of any other kind there is nothing to encode.
pub(crate) fn encode_answer(answer: &Answer, at: Time) -> Option<Vec<u8>> {
    let (kind, id) = match answer {
        Answer::Cancel(CancelAnswer::Cancelled(id)) => (0, Some(id)),
        Answer::Cancel(CancelAnswer::TooLate(id)) => (1, Some(id)),
        Answer::Cancel(CancelAnswer::NotFound) => (2, None),
        Answer::Reschedule(RescheduleAnswer::Rescheduled(id)) => (3, Some(id)),
        Answer::Reschedule(RescheduleAnswer::TooLate(id)) => (4, Some(id)),
        Answer::Reschedule(RescheduleAnswer::PastDeadline(id)) => (5, Some(id)),
        Answer::Reschedule(RescheduleAnswer::NotFound) => (6, None),
        _ => return None,
    };
    let mut out = Vec::with_capacity(23);
    out.put_uint(at.as_ms(), 6);
    out.put_u8(kind);
    if let Some(id) = id {
        out.put_slice(&id.to_bytes());
    }
    Some(out)
}

pub(crate) fn decode_answer(mut bytes: &[u8]) -> Option<(Time, Answer)> {
    let at = Time::from_ms(bytes.try_get_uint(6).ok()?);
    let kind = bytes.try_get_u8().ok()?;
    let mut id = || Some(TimerId::from_u128(bytes.try_get_u128().ok()?));
    let answer = match kind {
        0 => Answer::Cancel(CancelAnswer::Cancelled(id()?)),
        1 => Answer::Cancel(CancelAnswer::TooLate(id()?)),
        2 => Answer::Cancel(CancelAnswer::NotFound),
        3 => Answer::Reschedule(RescheduleAnswer::Rescheduled(id()?)),
        4 => Answer::Reschedule(RescheduleAnswer::TooLate(id()?)),
        5 => Answer::Reschedule(RescheduleAnswer::PastDeadline(id()?)),
        6 => Answer::Reschedule(RescheduleAnswer::NotFound),
        _ => return None,
    };
    Some((at, answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_remembered_answer_reads_back() {
        let (at, id) = (Time::from_ms(5), TimerId::from_u128(9));
        for answer in [
            Answer::Cancel(CancelAnswer::Cancelled(id)),
            Answer::Cancel(CancelAnswer::TooLate(id)),
            Answer::Cancel(CancelAnswer::NotFound),
            Answer::Reschedule(RescheduleAnswer::Rescheduled(id)),
            Answer::Reschedule(RescheduleAnswer::TooLate(id)),
            Answer::Reschedule(RescheduleAnswer::PastDeadline(id)),
            Answer::Reschedule(RescheduleAnswer::NotFound),
        ] {
            let bytes = encode_answer(&answer, at).unwrap();
            assert_eq!(decode_answer(&bytes), Some((at, answer)));
        }
        assert_eq!(encode_answer(&Answer::Done, at), None);
        assert_eq!(decode_ended(&encode_ended(Ended::Expired, at)), Some((at, Ended::Expired)));
    }

    #[test]
    fn damaged_values_are_refused() {
        for bytes in [&b""[..], b"\x07", b"\x01\0", b"\x07\0\0\0\0\0\x09"] {
            assert_eq!(decode_answer(bytes), None);
            assert_eq!(decode_ended(bytes), None);
        }
    }
}
