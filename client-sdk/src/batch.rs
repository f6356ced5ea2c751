//! Operations of one call that are waited for together.
//!
//! Each has its own answer, and they come in any order; the caller is woken once, with all of them.
//! No operation costs an allocation or a place in the queue for permits of its own.
//!
//! Invariant: every [`Part`] ends exactly once, with an answer or, if it is dropped, without; the
//! permits are released as they end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use mtimer_protocol::OpReply;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::RequestError;
use crate::sync::Locked;

/// Permits that are released together: others who wait for them need not wait for the whole batch,
/// which may last until the timeout of an operation whose broker is away.
const RELEASED: u32 = 64;
/// Parts in which a smaller batch releases its permits.
const RELEASED_PARTS: u32 = 8;

type OpResult = Result<OpReply, RequestError>;

#[derive(Debug)]
struct CallBatch {
    state: Mutex<BatchState>,
    /// Nobody waits any more.
    abandoned: AtomicBool,
}

#[derive(Debug)]
struct BatchState {
    answers: Vec<Option<OpResult>>,
    missing: usize,
    permits: OwnedSemaphorePermit,
    /// Permits of all operations.
    total: u32,
    /// Permits of operations that have ended, not released yet.
    free: u32,
    /// Taken when nothing is missing any more.
    done: Option<oneshot::Sender<Vec<Option<OpResult>>>>,
}

/// One operation's place in a batch.
#[derive(Debug)]
pub(crate) struct Part {
    /// Taken when it ends.
    batch: Option<Arc<CallBatch>>,
    index: u32,
    /// Its permits.
    weight: u32,
}

/// The caller that waits for a batch.
#[derive(Debug)]
pub(crate) struct BatchAnswers {
    batch: Arc<CallBatch>,
    done: oneshot::Receiver<Vec<Option<OpResult>>>,
    len: usize,
}

/// A batch of operations of these weights, which are their numbers of permits.
pub(crate) fn batch(
    weights: &[u32],
    permits: OwnedSemaphorePermit,
) -> (impl Iterator<Item = Part>, BatchAnswers) {
    let (done, all) = oneshot::channel();
    let len = weights.len();
    let answers = std::iter::repeat_with(|| None).take(len).collect();
    let state =
        BatchState { answers, missing: len, permits, total: weights.iter().sum(), free: 0, done: Some(done) };
    let batch = Arc::new(CallBatch { state: Mutex::new(state), abandoned: AtomicBool::new(false) });
    let of = Arc::clone(&batch);
    let part =
        move |(index, weight): (u32, &u32)| Part { batch: Some(Arc::clone(&of)), index, weight: *weight };
    ((0..).zip(weights).map(part), BatchAnswers { batch, done: all, len })
}

impl Part {
    pub(crate) fn answer(mut self, answer: OpResult) {
        self.end(Some(answer));
    }

    /// Whether nobody waits any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.batch.as_ref().is_none_or(|batch| batch.abandoned.load(Ordering::Acquire))
    }

    fn end(&mut self, answer: Option<OpResult>) {
        let Some(batch) = self.batch.take() else { return };
        let mut state = batch.state.locked();
        if let Some(place) = state.answers.get_mut(self.index as usize) {
            *place = answer;
        }
        state.missing -= 1;
        state.free += self.weight;
        let whole = state.missing == 0;
        if whole || state.free >= RELEASED.min(state.total.div_ceil(RELEASED_PARTS)) {
            let free = std::mem::take(&mut state.free);
            drop(state.permits.split(free as usize));
        }
        if whole && let Some(done) = state.done.take() {
            let answers = std::mem::take(&mut state.answers);
            drop(state);
            // The caller may have stopped waiting.
            let _ = done.send(answers);
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.end(None);
    }
}

impl BatchAnswers {
    /// How many operations there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Waits for all answers, in the order of the operations; an operation that was given up
    /// without one counts as closed.
    pub(crate) async fn all(mut self) -> impl Iterator<Item = OpResult> {
        let answers = (&mut self.done).await.unwrap_or_default();
        let missing = self.len - answers.len();
        let none = std::iter::repeat_with(|| None).take(missing);
        answers.into_iter().chain(none).map(|answer| answer.unwrap_or(Err(RequestError::Closed)))
    }
}

impl Drop for BatchAnswers {
    fn drop(&mut self) {
        self.batch.abandoned.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;
    use mtimer_protocol::ops::PurgeReply;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn answers_come_in_order_and_permits_are_released_on_the_way() {
        let semaphore = Arc::new(Semaphore::new(200));
        let taken = Arc::clone(&semaphore).try_acquire_many_owned(200).unwrap();
        let weights = [1, 100, 98, 1];
        let (parts, answers) = batch(&weights, taken);
        let mut parts: Vec<Part> = parts.collect();
        assert_eq!(answers.len(), 4);
        let waiting = answers.all();
        tokio::pin!(waiting);
        parts.pop().unwrap().answer(Ok(PurgeReply::Done.into()));
        assert_eq!(semaphore.available_permits(), 0, "a few are not released alone");
        drop(parts.pop());
        assert_eq!(semaphore.available_permits(), 99);
        assert!(waiting.as_mut().now_or_never().is_none());
        parts.remove(0).answer(Ok(PurgeReply::NotFound.into()));
        parts.remove(0).answer(Err(RequestError::Observer));
        assert_eq!(semaphore.available_permits(), 200);
        let all: Vec<_> = waiting.await.collect();
        assert!(matches!(
            &all[..],
            [
                Ok(OpReply::Purge(PurgeReply::NotFound)),
                Err(RequestError::Observer),
                Err(RequestError::Closed),
                Ok(OpReply::Purge(PurgeReply::Done))
            ]
        ));
    }

    #[tokio::test]
    async fn what_is_answered_keeps_little_of_a_small_batch() {
        for (total, rest) in [(60, 7), (200, 24), (512, 63), (2_000, 63), (9, 1), (8, 0), (1, 0)] {
            let semaphore = Arc::new(Semaphore::new(total));
            let taken = Arc::clone(&semaphore).try_acquire_many_owned(total as u32).unwrap();
            let weights = vec![1; total];
            let (parts, _answers) = batch(&weights, taken);
            let mut parts: Vec<Part> = parts.collect();
            let mut most = 0;
            // The first is not answered for long.
            for (answered, part) in parts.drain(1..).enumerate() {
                part.answer(Ok(PurgeReply::Done.into()));
                most = most.max(answered + 1 - semaphore.available_permits());
            }
            assert_eq!(most, rest, "of {total}");
            drop(parts);
            assert_eq!(semaphore.available_permits(), total);
        }
    }

    #[tokio::test]
    async fn what_nobody_waits_for_is_abandoned() {
        let semaphore = Arc::new(Semaphore::new(2));
        let taken = Arc::clone(&semaphore).try_acquire_many_owned(2).unwrap();
        let (parts, answers) = batch(&[1, 1], taken);
        let parts: Vec<Part> = parts.collect();
        assert!(parts.iter().all(|part| !part.is_abandoned()));
        drop(answers);
        assert!(parts.iter().all(Part::is_abandoned));
        drop(parts);
        assert_eq!(semaphore.available_permits(), 2);
    }
}
