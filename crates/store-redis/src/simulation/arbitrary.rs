//! Random timers, and times that matter to where they are stored.

use mtimer_store::conformance::SeededRandom;
use mtimer_types::{Destination, Extensions, Key, Mode, PartitionId, Time, Timer, TimerId};

pub(super) const PARTITION: PartitionId = PartitionId(2);
pub(super) const SECOND: u64 = 1_000;
pub(super) const HOUR: u64 = 3_600 * SECOND;
pub(super) const DAY: u64 = 24 * HOUR;

pub(super) fn arbitrary_time(r: &mut SeededRandom, now: Time) -> Time {
    let jitter = r.pick(&[0, 0, 20, 40, 1, 13]);
    match r.below(4) {
        0 => now - r.pick(&[0, 1, SECOND, HOUR]) - jitter,
        1 => now + jitter,
        2 => now + r.pick(&[SECOND, 5 * SECOND, 119 * SECOND]) + jitter,
        _ => now + r.pick(&[120 * SECOND, HOUR, 20 * HOUR, 3 * DAY, 300 * DAY]) + jitter,
    }
}

pub(super) fn arbitrary_timer(r: &mut SeededRandom, now: Time) -> Timer {
    let app = r.pick(&["billing", "shipping"]);
    let key = r.one_in(2).then(|| Key::new(r.pick(&["a", "b", "c"])).unwrap());
    let due = arbitrary_time(r, now);
    Timer {
        key,
        mode: if r.one_in(3) { Mode::AtMostOnce } else { Mode::AtLeastOnce },
        deadline: r.one_in(3).then(|| due + r.pick(&[0, 10, 60 * SECOND, DAY])),
        payload: vec![b'x'; r.pick(&[0, 1, 30])].into(),
        extensions: if r.one_in(3) { Extensions::new([(4, "x")]).unwrap() } else { Extensions::NONE },
        ..Timer::new(
            TimerId::new(due, now, PARTITION, r.next_u64()),
            Destination::new("orders", app).unwrap(),
            due,
        )
    }
}
