//! Outcomes that are kept for the repeat horizon: how timers ended, and answers to requests.
//!
//! The space `ended` of [`crate::layout`]: in buckets of the horizon's length, so that older
//! outcomes are forgotten bucket by bucket. A value is a time (6 bytes) and the bytes of
//! [`mtimer_store::remembered`].

use bytes::{Buf, BufMut};
use fjall::Slice;
use mtimer_types::{PartitionId, Time, TimerId, limits};

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

/// The value of something remembered since `at`.
pub(crate) fn encode_value(at: Time, remembered: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(6 + remembered.len());
    out.put_uint(at.as_ms(), 6);
    out.put_slice(remembered);
    out
}

/// What a value holds, and since when. `None`: it is damaged.
pub(crate) fn decode_value<T>(
    mut value: &[u8],
    decode: impl FnOnce(&[u8]) -> Option<T>,
) -> Option<(Time, T)> {
    let at = Time::from_ms(value.try_get_uint(6).ok()?);
    Some((at, decode(value)?))
}

#[cfg(test)]
mod tests {
    use mtimer_store::remembered::{decode_ended, encode_ended};
    use mtimer_types::Ended;

    use super::*;

    #[test]
    fn a_value_says_since_when() {
        let at = Time::from_ms(5);
        let value = encode_value(at, &encode_ended(Ended::Expired));
        assert_eq!(decode_value(&value, decode_ended), Some((at, Ended::Expired)));
    }

    #[test]
    fn damaged_values_are_refused() {
        for bytes in [&b""[..], b"\x07", b"\x01\0", b"\x07\0\0\0\0\0\x09"] {
            assert_eq!(decode_value(bytes, decode_ended), None);
        }
    }
}
