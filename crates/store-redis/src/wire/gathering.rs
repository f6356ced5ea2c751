//! Calls that are made at the same time begin together, so that one write carries them.
//!
//! A write costs the broker a system call and wakes the server, however much it carries. Of timers
//! that come one by one that is a large part of the cost: see "Calls that share a write" in
//! `docs/performance-notes.md`. So a call waits until the tasks that can run have made theirs.
//!
//! Invariant: calls begin in the order in which they were made. Each begins when its task runs
//! again after its first poll, or when its future is dropped, at the latest.
//! Not in here: what a call does when it begins.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, MaybeDone, maybe_done};
use parking_lot::Mutex;
use tokio::task::yield_now;

/// A call, which begins with its first poll.
type Exchange<T> = Arc<Mutex<MaybeDone<BoxFuture<'static, T>>>>;

/// The calls of one connection that have not begun, oldest first.
pub(super) struct Gathering<T>(Mutex<Vec<Exchange<T>>>);

impl<T: Send + 'static> Gathering<T> {
    pub(super) fn new() -> Self {
        Self(Mutex::default())
    }

    /// Makes a call. It begins together with others, in the order of these calls.
    pub(super) fn call(self: &Arc<Self>, exchange: BoxFuture<'static, T>) -> BoxFuture<'static, T> {
        let exchange = Arc::new(Mutex::new(maybe_done(exchange)));
        self.0.lock().push(exchange.clone());
        let gathered = BeginOnDrop(self.clone());
        let answer = async move {
            yield_now().await;
            gathered.0.begin();
            poll_fn(|cx| answer(&exchange, cx)).await
        };
        answer.boxed()
    }

    /// Begins all calls that have not begun.
    fn begin(&self) {
        let mut calls = self.0.lock();
        // Under the lock: a later call must not begin before these.
        for exchange in calls.drain(..) {
            // Its caller polls it again in any case.
            _ = exchange.lock().poll_unpin(&mut Context::from_waker(Waker::noop()));
        }
    }
}

fn answer<T>(exchange: &Exchange<T>, cx: &mut Context<'_>) -> Poll<T> {
    let mut exchange = exchange.lock();
    _ = exchange.poll_unpin(cx);
    Pin::new(&mut *exchange).take_output().map_or(Poll::Pending, Poll::Ready)
}

/// A call that nobody waits for begins when its future is dropped, with all others.
struct BeginOnDrop<T: Send + 'static>(Arc<Gathering<T>>);

impl<T: Send + 'static> Drop for BeginOnDrop<T> {
    fn drop(&mut self) {
        self.0.begin();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;

    /// Calls that note when they begin, and are answered at once with their number.
    #[derive(Clone)]
    struct Calls {
        gathering: Arc<Gathering<usize>>,
        begun: Arc<Mutex<Vec<usize>>>,
    }

    impl Calls {
        fn new() -> Self {
            Self { gathering: Arc::new(Gathering::new()), begun: Arc::default() }
        }

        fn call(&self, number: usize) -> BoxFuture<'static, usize> {
            let begun = self.begun.clone();
            let exchange = async move {
                begun.lock().push(number);
                number
            };
            self.gathering.call(exchange.boxed())
        }

        fn begun(&self) -> Vec<usize> {
            self.begun.lock().clone()
        }
    }

    #[tokio::test]
    async fn calls_of_all_tasks_that_can_run_begin_together_in_their_order() {
        let calls = Calls::new();
        let tasks = (0..3).map(|number| {
            let calls = calls.clone();
            tokio::spawn(async move {
                let call = calls.call(number);
                (calls.begun(), call.await)
            })
        });
        for (number, task) in join_all(tasks).await.into_iter().enumerate() {
            assert_eq!(task.unwrap(), (vec![], number), "none begins before all are made");
        }
        assert_eq!(calls.begun(), [0, 1, 2]);
    }

    #[tokio::test]
    async fn one_that_nobody_polls_begins_before_those_after_it() {
        let calls = Calls::new();
        let (first, second) = (calls.call(1), calls.call(2));
        assert_eq!((second.await, calls.begun()), (2, vec![1, 2]));
        assert_eq!((first.await, calls.begun()), (1, vec![1, 2]), "once");
    }

    #[tokio::test]
    async fn one_that_is_dropped_begins_with_those_before_it() {
        let calls = Calls::new();
        let (first, second) = (calls.call(1), calls.call(2));
        drop(second);
        assert_eq!(calls.begun(), [1, 2]);
        assert_eq!(first.await, 1);
    }
}
