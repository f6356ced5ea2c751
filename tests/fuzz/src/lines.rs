//! Lines of NDJSON, and times and durations as people write them.

// Its unit tests stay where they are.
#[rustfmt::skip]
#[allow(dead_code, unreachable_pub)]
#[path = "../../../crates/cli/src/file/line.rs"]
mod line;

use line::{Fields, Maker, RetryDelays};
use mtimer_client::Time;

use crate::bounded::bounded;
use crate::moment::{self, Deadline};

const NOW: Time = Time::from_ms(1_700_000_000_000);

/// A line of a file for `mtimer schedule --file`. The same line gives the same timer, if that is
/// asked for.
pub(crate) fn ndjson(data: &[u8]) {
    let read = || bounded(data, 64 * 1024, 512, || Fields::parse(data));
    let Ok(fields) = read() else { return };
    let make = |fields: Fields, repeatable: bool| {
        let defaults = Fields { group: Some("g".into()), app: Some("a".into()), ..Fields::default() };
        let mut maker = Maker { defaults, policy: None, repeatable, partitions: 64, dest: None };
        maker.schedule(fields, NOW)
    };
    let first = make(fields.clone(), true).map(|s| format!("{s:?}"));
    assert_eq!(make(fields.clone(), true).map(|s| format!("{s:?}")), first);
    let _ = make(fields, false);
}

/// Times, durations, deadlines and lists of delays.
pub(crate) fn times(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(time) = moment::time(text) {
        let shown = moment::shown(time);
        // What no calendar has is shown in milliseconds, with the unit.
        let again = shown.strip_suffix(" ms").unwrap_or(&shown);
        assert_eq!(moment::time(again), Ok(time), "{shown}");
    }
    if let Ok(span) = moment::span(text) {
        let _ = moment::millis(span);
    }
    if let Ok(deadline) = Deadline::parse(text) {
        let due = mtimer_client::When::At(NOW);
        let after = mtimer_client::When::After(std::time::Duration::MAX);
        let _ = (deadline.after(due), deadline.after(after));
    }
    let _ = RetryDelays::read(text);
}
