//! Values from which samples of messages are made, for tests of these and other programs.

#![expect(clippy::unwrap_used, reason = "the names and headers below are valid")]

use bytes::Bytes;
use mtimer_types::{Destination, Headers, Key, Mode, PartitionId, RetryTiers, Target, Time, Timer, TimerId};

/// So many ms after a time of 2023.
pub fn time(ms: u64) -> Time {
    Time::from_ms(1_700_000_000_000 + ms)
}

/// An id of partition 9.
pub fn id() -> TimerId {
    TimerId::new(time(5_000), time(0), PartitionId(9), 0x0123_4567_89ab_cdef)
}

/// A destination.
pub fn dest() -> Destination {
    Destination::new("orders", "billing").unwrap()
}

/// A key.
pub fn key() -> Key {
    Key::new("order-1").unwrap()
}

/// A timer that is named by its key.
pub fn by_key() -> Target {
    Target::Key(dest(), key())
}

/// Headers, a trace among them.
pub fn headers() -> Headers {
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    Headers::new([("tenant", "acme"), ("traceparent", traceparent)]).unwrap()
}

/// A timer with nothing that can be left out.
pub fn plain_timer() -> Timer {
    Timer { payload: Bytes::from_static(b"hello"), ..Timer::new(id(), dest(), time(5_000)) }
}

/// A timer with everything.
pub fn full_timer() -> Timer {
    Timer {
        key: Some(key()),
        mode: Mode::AtMostOnce,
        deadline: Some(time(60_000)),
        callback_timeout_ms: Some(2_000),
        retry: Some(RetryTiers(vec![250, 251, 70_000])),
        headers: headers(),
        ..plain_timer()
    }
}
