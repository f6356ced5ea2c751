//! The pending timers of a partition in the order of time, page by page.
//!
//! Slots overlap, and siblings hold timers of the same time. So a page reads all slots that reach
//! its first moment, then further ones as they begin; what fires before the next unread slot begins
//! is complete. Slots without timers of the wanted destinations are not read: the catalogue knows
//! them, but for those of an owner before that were not read yet.
//!
//! How many slots reach a moment is bounded: 65 of each wide width and track, and of its second
//! those of the same 31 ms.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use mtimer_store::pending::PAGE_READS;
use mtimer_store::{LaneError, Pending, PendingPage, PendingRange, Position};
use mtimer_types::{Time, TimerId, limits};
use redis::Pipeline;

use super::owner::Owner;

/// Slots that are read at a time: up to 2,048 timers, for which others wait 2 ms. In tests so few
/// that pages end between slots.
const STEP: usize = if cfg!(test) { 2 } else { 16 };
/// Bytes of payloads and headers after which a page ends.
const PAGE_BYTES: usize = 1 << 20;

impl Owner {
    /// See [`mtimer_store::Call::Pending`].
    pub(crate) async fn pending(&mut self, range: PendingRange) -> Result<PendingPage, LaneError> {
        let wanted = self.known.dests.wanted(&range.filter);
        let mut nearest = Nearest::new(range.limit);
        let (mut read, mut after, first) = (0, None, range.from.0);
        let complete = loop {
            let slots = self.known.catalog.from(first, range.until, &wanted, after, STEP);
            // Where the next slot begins: what fires before it was read.
            let Some((begin, _)) = slots.first().copied() else { break None };
            let begin = Time::from_ms(begin);
            let is_enough = nearest.is_full_before(begin) || read >= PAGE_READS;
            if is_enough && begin > first {
                break Some((begin, TimerId::from_u128(0)));
            }
            after = slots.last().copied();
            let slots: Vec<_> = slots.into_iter().map(|(_, slot)| slot).collect();
            let rows = self.read_pending(&slots).await?;
            read += rows.len();
            rows.into_iter().filter_map(|row| range.pick(row)).for_each(|row| nearest.push(row));
        };
        self.writer.read_as_owner(&Pipeline::new()).await?;
        Ok(nearest.page(complete))
    }
}

/// The first rows of those that were read, as many as a page takes.
struct Nearest {
    rows: BinaryHeap<ByPosition>,
    limit: usize,
    bytes: usize,
    /// The first row that did not fit.
    beyond: Option<Position>,
}

impl Nearest {
    fn new(limit: u32) -> Self {
        let limit = limit.clamp(1, limits::MAX_PAGE) as usize;
        Self { rows: BinaryHeap::new(), limit, bytes: 0, beyond: None }
    }

    /// Whether no row that fires at `begin` or later can be among them.
    fn is_full_before(&self, begin: Time) -> bool {
        let is_full = self.beyond.is_some() || self.rows.len() == self.limit;
        is_full && self.rows.peek().is_some_and(|ByPosition(last)| last.fire < begin)
    }

    fn push(&mut self, row: Pending) {
        if self.beyond.is_some_and(|beyond| row.position() >= beyond) {
            return;
        }
        self.bytes += row.record.timer.content_bytes();
        self.rows.push(ByPosition(row));
        while self.rows.len() > self.limit || (self.bytes > PAGE_BYTES && self.rows.len() > 1) {
            let Some(ByPosition(last)) = self.rows.pop() else { return };
            self.bytes -= last.record.timer.content_bytes();
            self.beyond = Some(last.position());
        }
    }

    /// The page. Everything before `complete` was read; `None`: everything.
    fn page(self, complete: Option<Position>) -> PendingPage {
        let complete = complete.filter(|_| !broken!(UnreadSlotsIgnored));
        let next = self.beyond.into_iter().chain(complete).min();
        let rows = self.rows.into_sorted_vec().into_iter().map(|ByPosition(row)| row);
        let rows: Vec<_> = rows.take_while(|row| next.is_none_or(|next| row.position() < next)).collect();
        PendingPage { rows, next }
    }
}

/// A row that is compared by its position.
struct ByPosition(Pending);

impl PartialEq for ByPosition {
    fn eq(&self, other: &Self) -> bool {
        self.0.position() == other.0.position()
    }
}

impl Eq for ByPosition {}

impl PartialOrd for ByPosition {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByPosition {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.position().cmp(&other.0.position())
    }
}
