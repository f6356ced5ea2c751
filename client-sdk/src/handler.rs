//! Registering handlers, and running them.
//!
//! A registration has one dispatcher. It begins handlers in the order of arrival, as many at once as were asked for; it
//! polls each one once where it stands, and only one that is not ready then gets a task of its own. Outcomes of what
//! came together are handed over together.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mtimer_protocol::{Delivery, Role, Settlement};
use mtimer_types::limits::MAX_CREDIT;
use mtimer_types::{Destination, HandlerOutcome, Mode, TimerId};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::client::Inner;
use crate::dedupe::Dedupe;
use crate::inbox::{Arrived, Inbox};
use crate::line::{Fate, Line};
use crate::settling::Told;
use crate::shared::{Shared, count};
use crate::sync::Locked;
use crate::{Callback, Outcome, RegisterError};

/// Outcomes handed over together at most, and for how long the first of them waits for the others.
const TOGETHER: usize = 256;
const TOGETHER_FOR: Duration = Duration::from_millis(1);
/// Callbacks begun before others get a turn on this thread.
const IN_A_ROW: u32 = 128;

/// How a destination's callbacks are to be taken; made by [`Client::register`](crate::Client::register).
#[derive(Debug)]
#[must_use = "nothing is registered until a handler is given with on"]
pub struct Register {
    inner: Arc<Inner>,
    dest: Destination,
    concurrency: u32,
    dedupe: usize,
}

impl Register {
    /// Handlers of a registration that may run at once, if nothing else is said.
    pub const DEFAULT_CONCURRENCY: u32 = 1_000;

    pub(crate) fn new(inner: Arc<Inner>, dest: Destination) -> Self {
        Self { inner, dest, concurrency: Self::DEFAULT_CONCURRENCY, dedupe: 0 }
    }

    /// How many handlers may run at once, and so how many unsettled callbacks the brokers may send: 1 to 10,000. Each of n
    /// brokers of a cluster is given an n-th of it, rounded up, so that together they send little more than can run.
    pub fn concurrency(mut self, n: u32) -> Self {
        self.concurrency = n;
        self
    }

    /// Settles a callback with ok, without running the handler, if its timer is among the last `n` that were handled ok.
    /// 0, the default, turns it off. About 50 bytes each.
    pub fn dedupe(mut self, n: usize) -> Self {
        self.dedupe = n;
        self
    }

    /// Starts taking callbacks.
    ///
    /// The handler's future is first polled where the callbacks arrive; one that is not ready at once goes on in a task
    /// of its own. A handler that blocks its thread holds up the callbacks behind it: use `spawn_blocking` there.
    /// A panic is a failed attempt, with the panic's text as the error. The client does not end a handler at its
    /// timeout: a late ok is still worth something.
    pub fn on<H, F, O>(self, handler: H) -> Result<Registration, RegisterError>
    where
        H: Fn(Callback) -> F + Send + Sync + 'static,
        F: Future<Output = O> + Send + 'static,
        O: Into<Outcome>,
    {
        if !(1..=MAX_CREDIT).contains(&self.concurrency) {
            return Err(RegisterError::Concurrency { given: self.concurrency, limit: MAX_CREDIT });
        }
        let shared = Arc::clone(&self.inner.shared);
        if shared.settings.role != Role::Client {
            return Err(RegisterError::Observer);
        }
        let inbox = Arc::new(Inbox::new(self.dest, self.concurrency));
        let number = shared.with_router(|router| router.register(Arc::clone(&inbox)))?;
        let handler = Arc::new(handler);
        let dispatcher = Dispatcher {
            shared: Arc::clone(&shared),
            inbox: Arc::clone(&inbox),
            running: Arc::default(),
            dedupe: (self.dedupe > 0).then(|| Arc::new(Dedupe::new(self.dedupe))),
            outcomes: Vec::new(),
            since: Instant::now(),
            returned: Instant::now(),
            in_a_row: 0,
        };
        let begin = move |callback| -> BoxFuture<'static, Outcome> {
            let handler = Arc::clone(&handler);
            Box::pin(async move { handler(callback).await.into() })
        };
        let token = shared.token.clone();
        // Also when it is cut short, or never begins: whoever waits for its end must not wait for ever.
        let done = inbox.done.clone().drop_guard();
        shared.tasks.spawn_on(
            async move {
                token.run_until_cancelled(dispatcher.run(begin)).await;
                drop(done);
            },
            &shared.runtime,
        );
        Ok(Registration { inner: self.inner, number })
    }
}

/// Callbacks are taken while this lives. Dropping it takes no more; what was delivered is still handled.
///
/// It keeps the client alive, as a clone of it does.
#[derive(Debug)]
#[must_use = "dropping a registration ends it"]
pub struct Registration {
    inner: Arc<Inner>,
    number: u32,
}

impl Registration {
    /// Takes no more callbacks, and waits until those that were delivered are handled. (Their outcomes may still be on
    /// their way to the broker; [`Client::close`](crate::Client::close) waits for that too.) For the broker to say that
    /// nothing more comes it waits as long as a request may take
    /// ([`ClientBuilder::request_timeout`](crate::ClientBuilder::request_timeout)).
    ///
    /// Cancel safe: the registration ends anyhow. Never call it from the registration's own handler, which it would wait
    /// for.
    pub async fn stop(self) {
        let inbox = self.inner.shared.router.locked().inbox(self.number).cloned();
        self.end();
        if let Some(inbox) = inbox {
            inbox.done.cancelled().await;
        }
    }

    fn end(&self) {
        self.inner.shared.unregister(self.number);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.end();
    }
}

/// Handlers that got a task of their own.
#[derive(Debug, Default)]
struct Running {
    count: AtomicU32,
    ended: Notify,
}

/// Counts a handler's task for as long as it lives.
struct Slot(Arc<Running>);

impl Slot {
    fn take(running: &Arc<Running>) -> Self {
        running.count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(running))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Release);
        self.0.ended.notify_one();
    }
}

struct Dispatcher {
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    running: Arc<Running>,
    dedupe: Option<Arc<Dedupe>>,
    outcomes: Vec<Told>,
    /// When the first of them came.
    since: Instant,
    /// When the latest handler gave the word back.
    returned: Instant,
    in_a_row: u32,
}

impl Dispatcher {
    async fn run(mut self, begin: impl Fn(Callback) -> BoxFuture<'static, Outcome>) {
        while let Some(arrived) = self.inbox.next().await {
            self.batch(arrived, &begin).await;
        }
        self.room(1).await;
    }

    /// Begins everything that came in one frame.
    async fn batch(&mut self, arrived: Arrived, begin: &impl Fn(Callback) -> BoxFuture<'static, Outcome>) {
        let Arrived { line, received, at, deliveries } = arrived;
        self.since = Instant::now();
        self.returned = self.since;
        let mut late = self.since.duration_since(at) > TOGETHER_FOR;
        let mut dropped = 0;
        for delivery in deliveries {
            if self.running.count.load(Ordering::Acquire) >= self.inbox.credit {
                self.flush();
                self.room(self.inbox.credit).await;
                late = true;
            }
            if late && is_pointless(&delivery, &line, at) {
                dropped += 1;
                continue;
            }
            self.begin(&line, at, received, delivery, begin);
            self.in_a_row += 1;
            if self.in_a_row >= IN_A_ROW {
                self.in_a_row = 0;
                tokio::task::yield_now().await;
                late = true;
            }
            if self.outcomes.len() >= TOGETHER || self.returned.duration_since(self.since) >= TOGETHER_FOR {
                self.flush();
            }
        }
        self.flush();
        if dropped > 0 {
            self.shared.drop_unstarted(&line, dropped);
        }
    }

    fn begin(
        &mut self,
        line: &Arc<Line>,
        at: Instant,
        received: mtimer_types::Time,
        delivery: Delivery,
        begin: &impl Fn(Callback) -> BoxFuture<'static, Outcome>,
    ) {
        let Delivery { id, key, due, epoch, attempt, mode, timeout_ms, payload } = delivery;
        let timeout = Duration::from_millis(u64::from(timeout_ms));
        let over = Arc::clone(line);
        // A handler that was given more time tells later than this, and then this moment counts.
        let told = move |outcome, now| {
            let settlement = Settlement { id, epoch, attempt, outcome };
            Told::new(settlement, over, (at + timeout).max(now))
        };
        if self.dedupe.as_ref().is_some_and(|d| d.knows(id)) {
            count(&self.shared.counters.deduplicated, 1);
            self.outcomes.push(told(HandlerOutcome::Ok, self.returned));
            return;
        }
        let callback = Callback {
            id,
            key,
            dest: self.inbox.dest.clone(),
            due,
            attempt,
            epoch,
            mode,
            timeout,
            payload,
            received,
            line: Arc::clone(line),
            shared: Arc::clone(&self.shared),
        };
        let mut handler = AssertUnwindSafe(begin(callback)).catch_unwind();
        let polled = handler.poll_unpin(&mut Context::from_waker(Waker::noop()));
        self.returned = Instant::now();
        match polled {
            Poll::Ready(result) => {
                let outcome = outcome(&self.shared, self.dedupe.as_deref(), id, result);
                self.outcomes.push(told(outcome.0, self.returned));
            }
            Poll::Pending => {
                let (shared, dedupe) = (Arc::clone(&self.shared), self.dedupe.clone());
                let slot = Slot::take(&self.running);
                let token = self.shared.token.clone();
                self.shared.tasks.spawn(token.run_until_cancelled_owned(async move {
                    let outcome = outcome(&shared, dedupe.as_deref(), id, handler.await);
                    shared.settle(&mut vec![told(outcome.0, Instant::now())]);
                    drop(slot);
                }));
            }
        }
    }

    fn flush(&mut self) {
        self.shared.settle(&mut self.outcomes);
        self.since = Instant::now();
    }

    /// Waits until fewer than `limit` handlers run.
    async fn room(&self, limit: u32) {
        while self.running.count.load(Ordering::Acquire) >= limit {
            self.running.ended.notified().await;
        }
    }
}

/// Whether the broker has given this delivery up already and will make another.
fn is_pointless(delivery: &Delivery, line: &Line, at: Instant) -> bool {
    if delivery.mode == Mode::AtMostOnce {
        return false;
    }
    let timed_out = at.elapsed() >= Duration::from_millis(u64::from(delivery.timeout_ms));
    timed_out || line.fate() == Fate::Lost
}

/// What is done with the result of a handler.
fn outcome(
    shared: &Shared,
    dedupe: Option<&Dedupe>,
    id: TimerId,
    result: Result<Outcome, Box<dyn Any + Send>>,
) -> Outcome {
    let outcome = result.unwrap_or_else(|panic| {
        count(&shared.counters.panics, 1);
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Outcome::retry(format_args!("the handler panicked: {}", text.unwrap_or("(no text)")))
    });
    if let Some(dedupe) = dedupe.filter(|_| outcome.is_ok()) {
        dedupe.add(id);
    }
    outcome
}
