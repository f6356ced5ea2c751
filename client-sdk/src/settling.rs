//! Outcomes on their way to the broker.
//!
//! An outcome counts as stored once the broker says so. Over a new connection only an `ok` is worth repeating: it still
//! settles a live timer, while the broker has counted everything else as a failed attempt with the old connection.

use std::collections::VecDeque;

use mtimer_protocol::Settlement;
use mtimer_types::{Epoch, HandlerOutcome, TimerId};

/// Outcomes in one frame: with the longest errors still under the frame limit.
const FRAME_OUTCOMES: usize = 2_000;

#[derive(Debug, Default)]
pub(crate) struct Settling {
    queue: Vec<Settlement>,
    /// Sent over this connection, not confirmed. Those that are no `ok` only count.
    sent: VecDeque<Option<(TimerId, Epoch, u32)>>,
}

impl Settling {
    pub(crate) fn push(&mut self, outcomes: impl IntoIterator<Item = Settlement>) {
        self.queue.extend(outcomes);
    }

    /// Outcomes that the broker has not confirmed.
    pub(crate) fn unconfirmed(&self) -> usize {
        self.queue.len() + self.sent.len()
    }

    pub(crate) fn next(&mut self) -> Option<Vec<Settlement>> {
        if self.queue.is_empty() {
            return None;
        }
        let rest = self.queue.split_off(self.queue.len().min(FRAME_OUTCOMES));
        let frame = std::mem::replace(&mut self.queue, rest);
        self.sent.extend(
            frame.iter().map(|s| (s.outcome == HandlerOutcome::Ok).then_some((s.id, s.epoch, s.attempt))),
        );
        Some(frame)
    }

    /// The broker has dealt with so many, in the order of sending. An error is a breach of the protocol.
    pub(crate) fn settled(&mut self, count: usize) -> Result<(), &'static str> {
        if count > self.sent.len() {
            return Err("more outcomes confirmed than were sent");
        }
        self.sent.drain(..count);
        Ok(())
    }

    /// The connection is gone. Returns how many outcomes are pointless now.
    pub(crate) fn disconnected(&mut self) -> u64 {
        let all = self.unconfirmed();
        let queue = std::mem::take(&mut self.queue);
        let ok = |(id, epoch, attempt)| Settlement { id, epoch, attempt, outcome: HandlerOutcome::Ok };
        self.queue.extend(self.sent.drain(..).flatten().map(ok));
        self.queue.extend(queue.into_iter().filter(|s| s.outcome == HandlerOutcome::Ok));
        (all - self.queue.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settlement(n: u128, outcome: HandlerOutcome) -> Settlement {
        Settlement { id: TimerId::from_u128(n), epoch: Epoch(1), attempt: 1, outcome }
    }

    #[test]
    fn only_ok_is_repeated_over_a_new_connection() {
        let retry = || HandlerOutcome::Retry { after_ms: None, error: String::new() };
        let mut settling = Settling::default();
        settling.push([
            settlement(1, HandlerOutcome::Ok),
            settlement(2, HandlerOutcome::Ok),
            settlement(3, retry()),
        ]);
        assert_eq!(settling.next().map(|f| f.len()), Some(3));
        settling.settled(1).unwrap();
        settling.push([settlement(4, retry()), settlement(5, HandlerOutcome::Ok)]);
        assert_eq!(settling.disconnected(), 2);
        let again = settling.next().unwrap();
        assert_eq!(again.iter().map(|s| s.id.as_u128()).collect::<Vec<_>>(), [2, 5]);
        assert!(settling.settled(3).is_err());
        settling.settled(2).unwrap();
        assert_eq!(settling.unconfirmed(), 0);
    }

    #[test]
    fn frames_are_bounded() {
        let mut settling = Settling::default();
        settling.push((0..4_500).map(|n| settlement(n, HandlerOutcome::Ok)));
        let sizes: Vec<usize> = std::iter::from_fn(|| settling.next()).map(|f| f.len()).collect();
        assert_eq!(sizes, [2_000, 2_000, 500]);
    }
}
