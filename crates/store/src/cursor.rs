//! How far an owner has loaded its pending timers, for stores that keep them ordered by (fire time,
//! id).
//!
//! Purpose: the bookkeeping behind [`crate::Loaded::horizon`], shared by such stores.
//!
//! Invariant: everything pending below [`LoadCursor::start`] was returned, except the timers that
//! [`LoadCursor::pop_behind`] still holds. More timers can share one millisecond than one load may
//! return, so the cursor can stand in the middle of one; timers filed behind it in that millisecond
//! are remembered by id.
//!
//! Not in here: reading the timers.

use std::collections::BTreeSet;

use mtimer_types::{Time, TimerId};

/// Ids remembered behind the cursor, at most; beyond it the millisecond is loaded again from its
/// beginning.
const MAX_BEHIND: usize = 65_536;

/// How far an owner has loaded.
#[derive(Debug, Default)]
pub struct LoadCursor {
    /// The first millisecond that is not loaded completely. Beyond [`Time::MAX`] when all are.
    next: u64,
    /// The last id returned of that millisecond.
    inside: Option<TimerId>,
    behind: BTreeSet<TimerId>,
}

impl LoadCursor {
    /// See [`crate::Loaded::horizon`].
    pub const fn horizon(&self) -> Time {
        Time::from_ms(self.next.saturating_sub(1))
    }

    /// Where to read on: the first millisecond, and the id in it after which to start. `None`: all
    /// is loaded.
    pub fn start(&self) -> Option<(Time, Option<TimerId>)> {
        (self.next <= Time::MAX.as_ms()).then(|| (Time::from_ms(self.next), self.inside))
    }

    /// Whether everything up to and including `until` was returned.
    pub const fn reaches(&self, until: Time) -> bool {
        self.next > until.as_ms()
    }

    /// A timer was filed at `fire`.
    pub fn filed(&mut self, fire: Time, id: TimerId) {
        if fire.as_ms() == self.next && self.inside.is_some_and(|inside| id <= inside) {
            self.behind.insert(id);
            if self.behind.len() > MAX_BEHIND {
                self.behind.clear();
                self.inside = None;
            }
        }
    }

    /// An id that was filed behind the cursor, in the millisecond of [`Self::start`]. If it is
    /// still pending there, this load must return it. A load reads on from the start only when
    /// there are none left.
    pub fn pop_behind(&mut self) -> Option<TimerId> {
        self.behind.pop_first()
    }

    /// Everything up to and including `until` was returned.
    pub fn all_until(&mut self, until: Time) {
        if !self.reaches(until) {
            self.next = until.as_ms() + 1;
            self.inside = None;
            self.behind.clear();
        }
    }

    /// The load stopped after `last`; the timer that comes next fires at `next`.
    pub fn stopped(&mut self, last: (Time, TimerId), next: Time) {
        self.behind.clear();
        self.next = next.as_ms();
        self.inside = (last.0 == next).then_some(last.1);
    }

    /// The owner has forgotten the timers that fire after `beyond`.
    pub fn unload(&mut self, beyond: Time) {
        if self.next > beyond.as_ms() {
            self.next = beyond.as_ms() + 1;
            self.inside = None;
            self.behind.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use mtimer_types::PartitionId;

    use super::*;

    fn id(due: u64, n: u64) -> TimerId {
        TimerId::new(Time::from_ms(due), Time::ZERO, PartitionId(0), n)
    }

    #[test]
    fn what_is_filed_behind_the_cursor_in_its_millisecond_is_remembered() {
        let mut cursor = LoadCursor::default();
        let at = Time::from_ms(7);
        cursor.stopped((at, id(7, 50)), at);
        assert_eq!(cursor.horizon(), Time::from_ms(6));
        cursor.filed(at, id(7, 60));
        cursor.filed(at, id(7, 40));
        assert_eq!(cursor.pop_behind(), Some(id(7, 40)));
        assert_eq!(cursor.pop_behind(), None);
        assert_eq!(cursor.start(), Some((at, Some(id(7, 50)))));
    }

    #[test]
    fn nothing_else_is_behind_the_cursor() {
        let mut cursor = LoadCursor::default();
        let at = Time::from_ms(7);
        cursor.filed(Time::ZERO, id(0, 40));
        cursor.stopped((Time::from_ms(6), id(6, 50)), at);
        assert_eq!(cursor.start(), Some((at, None)), "nothing of this millisecond was returned");
        cursor.filed(at, id(7, 40));
        cursor.stopped((at, id(7, 50)), at);
        [6, 8].into_iter().for_each(|ms| cursor.filed(Time::from_ms(ms), id(ms, 40)));
        assert_eq!(cursor.pop_behind(), None);
    }

    #[test]
    fn too_much_behind_the_cursor_starts_the_millisecond_again() {
        let mut cursor = LoadCursor::default();
        let at = Time::from_ms(7);
        cursor.stopped((at, id(7, 1 << 40)), at);
        let mut filed = (0..=MAX_BEHIND as u64).map(|n| id(7, n));
        filed.by_ref().take(MAX_BEHIND).for_each(|id| cursor.filed(at, id));
        assert_eq!(cursor.start(), Some((at, Some(id(7, 1 << 40)))), "there is still capacity");
        filed.for_each(|id| cursor.filed(at, id));
        assert_eq!(cursor.pop_behind(), None);
        assert_eq!(cursor.start(), Some((at, None)));
    }

    #[test]
    fn a_millisecond_that_is_loaded_in_part_is_not_reached() {
        let mut cursor = LoadCursor::default();
        assert_eq!((cursor.horizon(), cursor.reaches(Time::ZERO)), (Time::ZERO, false));
        let at = Time::from_ms(7);
        cursor.stopped((at, id(7, 50)), at);
        assert_eq!([6, 7, 8].map(|ms| cursor.reaches(Time::from_ms(ms))), [true, false, false]);
        cursor.all_until(at);
        assert_eq!(cursor.start(), Some((Time::from_ms(8), None)));
    }

    #[test]
    fn unload_forgets_a_millisecond_as_a_whole_or_not_at_all() {
        let at = Time::from_ms(7);
        let unloaded = |beyond| {
            let mut cursor = LoadCursor::default();
            cursor.stopped((at, id(7, 50)), at);
            cursor.unload(Time::from_ms(beyond));
            cursor.start()
        };
        assert_eq!(unloaded(7), Some((at, Some(id(7, 50)))));
        assert_eq!(unloaded(6), Some((at, None)));
        assert_eq!(unloaded(5), Some((Time::from_ms(6), None)));
    }

    #[test]
    fn unload_goes_back_and_load_never_does() {
        let mut cursor = LoadCursor::default();
        cursor.all_until(Time::from_ms(100));
        cursor.all_until(Time::from_ms(50));
        assert_eq!(cursor.horizon(), Time::from_ms(100));
        cursor.unload(Time::from_ms(30));
        assert_eq!(cursor.horizon(), Time::from_ms(30));
        cursor.unload(Time::from_ms(60));
        assert_eq!(cursor.horizon(), Time::from_ms(30));
        cursor.all_until(Time::MAX);
        assert_eq!(cursor.start(), None);
        assert_eq!(cursor.horizon(), Time::MAX);
    }
}
