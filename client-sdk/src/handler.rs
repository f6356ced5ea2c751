//! Runs handlers, and logs their failures.
//!
//! A registration has one dispatcher. It begins handlers in the order of arrival, as many at once
//! as were asked for; it polls each one once where it stands, and only one that is not ready then
//! gets a task of its own. Outcomes of callbacks that came together are handed over together.

use std::any::Any;
use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mtimer_protocol::{Delivery, Settlement};
use mtimer_types::{Destination, HandlerOutcome, TimerId};
use tracing::Instrument as _;

use crate::counters::count;
use crate::dedupe::Dedupe;
use crate::intake::Intake;
use crate::machine::Input;
use crate::machine::inbox::{BeginningCallback, NextStep};
use crate::machine::moment::Moment;
use crate::machine::settling::OutgoingOutcome;
use crate::state::ClientState;
use crate::trace;
use crate::{Callback, Outcome};

/// Outcomes handed over together at most, and for how long the first of them waits for the others.
const TOGETHER: usize = 256;
const TOGETHER_FOR: Duration = Duration::from_millis(1);
/// Callbacks begun before others get a turn on this thread.
const IN_A_ROW: u32 = 128;

/// The result of a handler's future: its outcome, or why its payload could not be read.
pub(crate) type Ran = Result<Outcome, serde_json::Error>;

pub(crate) struct Dispatcher {
    state: Arc<ClientState>,
    intake: Arc<Intake>,
    /// The registration's number.
    number: u32,
    dedupe: Option<Arc<Dedupe>>,
    outcomes: Vec<OutgoingOutcome>,
    /// When the first of them came.
    since: Moment,
    /// When the latest handler returned.
    returned: Moment,
    in_a_row: u32,
}

impl Dispatcher {
    pub(crate) fn new(
        state: Arc<ClientState>,
        intake: Arc<Intake>,
        number: u32,
        dedupe: Option<Arc<Dedupe>>,
    ) -> Self {
        let now = state.clock.moment();
        Self { state, intake, number, dedupe, outcomes: Vec::new(), since: now, returned: now, in_a_row: 0 }
    }

    pub(crate) async fn run(mut self, begin: impl Fn(Callback) -> BoxFuture<'static, Ran>) {
        loop {
            let (next, renewed) = self.intake.next();
            if renewed {
                self.state.handle(Input::Renew { registration: self.number });
            }
            match next {
                NextStep::Begin(callback) => self.step(callback, &begin).await,
                NextStep::Wait => {
                    self.flush();
                    self.intake.changed().await;
                    self.since = self.state.clock.moment();
                    self.returned = self.since;
                }
                NextStep::End => break,
            }
        }
        self.flush();
        self.intake.idle().await;
    }

    async fn step(
        &mut self,
        callback: BeginningCallback,
        begin: &impl Fn(Callback) -> BoxFuture<'static, Ran>,
    ) {
        if callback.is_pointless(self.returned) {
            let connection = callback.origin.connection;
            return self.state.handle(Input::LeftOut { connection, callbacks: 1 });
        }
        self.begin(callback, begin);
        self.in_a_row += 1;
        if self.in_a_row >= IN_A_ROW {
            self.in_a_row = 0;
            tokio::task::yield_now().await;
        }
        if self.outcomes.len() >= TOGETHER || self.returned.since(self.since) >= TOGETHER_FOR {
            self.flush();
        }
    }

    fn begin(&mut self, callback: BeginningCallback, begin: &impl Fn(Callback) -> BoxFuture<'static, Ran>) {
        let Delivery { id, epoch, attempt, .. } = callback.delivery;
        let over = Arc::clone(&callback.origin);
        // A handler that was given more time ends later than this, and then that moment counts.
        let deadline = callback.deadline.at();
        let settlement_of = move |outcome, now| {
            let settlement = Settlement { id, epoch, attempt, outcome };
            OutgoingOutcome::new(settlement, over, deadline.max(now))
        };
        if self.dedupe.as_ref().is_some_and(|d| d.knows(id)) {
            count(&self.state.counters.deduplicated, 1);
            self.outcomes.push(settlement_of(HandlerOutcome::Ok, self.returned));
            return;
        }
        let callback = self.callback_of(callback);
        let span = trace::callback(&callback);
        let attempted = Attempted { dest: self.intake.dest.clone(), id, attempt, span: span.clone() };
        let begun = match span.is_disabled() {
            true => begin(callback),
            false => span.in_scope(|| begin(callback)).instrument(span.clone()).boxed(),
        };
        let mut handler = AssertUnwindSafe(begun).catch_unwind();
        match self.poll_once(&mut handler) {
            Poll::Ready(result) => {
                let outcome = conclude(&self.state, self.dedupe.as_deref(), &attempted, result);
                self.outcomes.push(settlement_of(outcome.0, self.returned));
            }
            Poll::Pending => {
                let (state, dedupe) = (Arc::clone(&self.state), self.dedupe.clone());
                let slot = TakenSlot::keep(&self.state, &self.intake, self.number);
                let token = self.state.token.clone();
                self.state.tasks.spawn(token.run_until_cancelled_owned(async move {
                    let outcome = conclude(&state, dedupe.as_deref(), &attempted, handler.await);
                    let outcome = settlement_of(outcome.0, state.clock.moment());
                    state.handle(Input::Outcomes(vec![outcome]));
                    drop(slot);
                }));
            }
        }
    }

    fn callback_of(&self, callback: BeginningCallback) -> Callback {
        let BeginningCallback { origin, received, deadline, delivery } = callback;
        let Delivery { id, key, due, epoch, attempt, mode, timeout_ms, payload, headers } = delivery;
        Callback {
            id,
            key,
            dest: self.intake.dest.clone(),
            due,
            attempt,
            epoch,
            mode,
            timeout: Duration::from_millis(u64::from(timeout_ms)),
            payload,
            headers,
            received: received.max(due),
            deadline,
            origin,
            state: Arc::clone(&self.state),
        }
    }

    /// Polls a handler on this task. Most need no more; the others get a task of their own.
    fn poll_once<F: Future + Unpin>(&mut self, handler: &mut F) -> Poll<F::Output> {
        let polled = handler.poll_unpin(&mut Context::from_waker(Waker::noop()));
        self.returned = self.state.clock.moment();
        polled
    }

    fn flush(&mut self) {
        if !self.outcomes.is_empty() {
            self.state.handle(Input::Outcomes(std::mem::take(&mut self.outcomes)));
        }
        self.since = self.state.clock.moment();
    }
}

/// Holds a handler's place for as long as its task lives.
struct TakenSlot {
    state: Arc<ClientState>,
    intake: Arc<Intake>,
    registration: u32,
    number: u64,
}

impl TakenSlot {
    fn keep(state: &Arc<ClientState>, intake: &Arc<Intake>, registration: u32) -> Self {
        let (number, renewed) = intake.keep();
        if renewed {
            state.handle(Input::Renew { registration });
        }
        Self { state: Arc::clone(state), intake: Arc::clone(intake), registration, number }
    }
}

impl Drop for TakenSlot {
    fn drop(&mut self) {
        if self.intake.vacate(self.number) {
            self.state.handle(Input::Renew { registration: self.registration });
        }
    }
}

/// One call of a handler, for the log.
struct Attempted {
    dest: Destination,
    id: TimerId,
    attempt: u32,
    span: tracing::Span,
}

impl Attempted {
    /// Logs a failure under this module's name, by which it can be left out.
    fn log(&self, what: &'static str, error: impl Display) {
        let (group, app, id, attempt) = (self.dest.group(), self.dest.app(), self.id, self.attempt);
        self.span.in_scope(|| tracing::warn!(group, app, %id, attempt, %error, "{what}"));
    }
}

/// Makes an outcome of a handler's result; counts, remembers and logs it.
fn conclude(
    state: &ClientState,
    dedupe: Option<&Dedupe>,
    attempted: &Attempted,
    result: Result<Ran, Box<dyn Any + Send>>,
) -> Outcome {
    let outcome = match result {
        Ok(Ok(outcome)) => {
            match &outcome.0 {
                HandlerOutcome::NotBegun | HandlerOutcome::Later { .. } => {}
                HandlerOutcome::Ok => {
                    if let Some(dedupe) = dedupe {
                        dedupe.add(attempted.id);
                    }
                }
                HandlerOutcome::Retry { error, .. } => attempted.log("the handler failed", error),
                HandlerOutcome::Fail { error } => attempted.log("the handler failed for good", error),
            }
            outcome
        }
        Ok(Err(error)) => {
            // The full text may quote the payload: it goes where the payload is, into the dead
            // letter.
            let (kind, line, column) = (error.classify(), error.line(), error.column());
            attempted.log(
                "the payload cannot be read as what the handler takes, it was not called",
                format_args!("{kind:?} error at line {line} column {column}"),
            );
            Outcome::fail(format_args!("the payload is not the JSON that the handler takes: {error}"))
        }
        Err(panic) => {
            count(&state.counters.panics, 1);
            let text = panic.downcast_ref::<&str>().copied();
            let text =
                text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no text)");
            attempted.log("the handler panicked", text);
            Outcome::retry(format_args!("the handler panicked: {text}"))
        }
    };
    trace::concluded(&attempted.span, &outcome);
    outcome
}
