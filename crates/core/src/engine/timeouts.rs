//! Callback timeouts: by the monotonic clock, coarse, cheap to set and free to forget.

use std::collections::BTreeMap;

use mtimer_types::TimerId;

/// Timeouts are rounded up to multiples of this, ms.
const GRAIN_MS: u64 = 16;

/// Deliveries by the time at which they may time out. An entry whose delivery was settled stays
/// until its time or until such entries are the majority.
#[derive(Debug, Default)]
pub(super) struct Timeouts {
    buckets: BTreeMap<u64, Vec<(TimerId, u32)>>,
    len: usize,
}

impl Timeouts {
    pub(super) fn add(&mut self, until_ms: u64, id: TimerId, attempt: u32) {
        self.buckets.entry(until_ms.div_ceil(GRAIN_MS)).or_default().push((id, attempt));
        self.len += 1;
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The next time at which something may time out, ms.
    pub(super) fn next(&self) -> Option<u64> {
        self.buckets.keys().next().map(|k| k * GRAIN_MS)
    }

    /// Takes the deliveries that may have timed out by `now_ms`.
    pub(super) fn take_due(&mut self, now_ms: u64) -> Vec<(TimerId, u32)> {
        let mut due = Vec::new();
        while let Some(bucket) = self.buckets.first_entry().filter(|b| b.key() * GRAIN_MS <= now_ms) {
            due.append(&mut bucket.remove());
        }
        self.len -= due.len();
        due
    }

    /// Forgets settled deliveries once they are the majority. `live` says how many there are,
    /// `is_live` which.
    pub(super) fn prune(&mut self, live: usize, is_live: impl Fn(TimerId, u32) -> bool) {
        if self.len < 2 * live + 8_192 {
            return;
        }
        self.buckets.retain(|_, bucket| {
            bucket.retain(|(id, attempt)| is_live(*id, *attempt));
            !bucket.is_empty()
        });
        self.len = self.buckets.values().map(Vec::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_is_taken_when_it_is_said_to_be_and_not_before() {
        let mut timeouts = Timeouts::default();
        assert_eq!(timeouts.next(), None);
        timeouts.add(1_000, TimerId::from_u128(1), 1);
        let at = timeouts.next().unwrap();
        assert!((1_000..1_000 + GRAIN_MS).contains(&at), "{at}");
        assert_eq!(timeouts.take_due(at - 1), []);
        assert_eq!(timeouts.take_due(at), [(TimerId::from_u128(1), 1)]);
        assert_eq!((timeouts.next(), timeouts.len()), (None, 0));
    }

    #[test]
    fn settled_deliveries_are_forgotten_once_they_are_the_majority() {
        let mut timeouts = Timeouts::default();
        let is_live = |_, attempt| attempt == 1;
        (0..10).for_each(|n| timeouts.add(n * 1_000, TimerId::from_u128(1), 1));
        (0..8_201).for_each(|n| timeouts.add(n * 1_000, TimerId::from_u128(2), 2));
        timeouts.prune(10, is_live);
        assert_eq!(timeouts.len(), 8_211, "they are few");
        timeouts.add(0, TimerId::from_u128(2), 2);
        timeouts.prune(10, is_live);
        assert_eq!((timeouts.len(), timeouts.take_due(u64::MAX / 2).len()), (10, 10));
        timeouts.add(0, TimerId::from_u128(2), 2);
        timeouts.prune(0, is_live);
        assert_eq!(timeouts.len(), 1);
    }
}
