//! The engine's task: the one place where the engine is called.
//!
//! Purpose: a loop that waits for one [`ShellEvent`], hands it and all other waiting events to the
//! engine, flushes once, and carries out the effects.
//! Invariant: between two waits everything is synchronous; nothing here waits for a client or for
//! the store, and one round takes a bounded amount of work, so that alarms are not late because of
//! it.
//! Not in here: decisions about timers.

mod orders;
mod state;
mod turn;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use mtimer_core::{Effect, Engine, Input, SessionEvent, SessionId};
use mtimer_protocol::{ErrorCode, Query, ServerMessage, Status};
use mtimer_store::{Acquired, Census, Store};
use mtimer_types::PartitionId;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::clock::BrokerClock;
use crate::cluster::{Membership, Order};
use crate::counters::ShellCounters;
use crate::deaths::DeathLog;
use crate::error::BrokerError;
use crate::inbox::{FromSession, What};
use crate::lanes::{LaneEvent, Lanes};
use crate::limits::Limiter;
use crate::observed::Observed;
use crate::sessions::Sessions;
use crate::stopping::StopPhase;
use crate::traces::Traces;
use crate::wheel::Wheel;

/// Operations and settlements that are handed to the engine in one round: about a millisecond of
/// work.
const ROUND_OPS: usize = 2_000;
/// Answers of lanes that are handed to the engine in one round.
const ROUND_ANSWERS: usize = 256;
/// The broker's own session, for its own questions.
const SELF: SessionId = SessionId(0);

/// Requests to the engine's task.
#[derive(Debug)]
pub(crate) enum Control {
    /// Stop gracefully.
    Stop,
    /// Tell the state, as clients see it; counts in the store.
    Status(oneshot::Sender<Status>),
    /// Count the timers in the store; `None`: not all partitions could be counted.
    Stored(oneshot::Sender<Option<Census>>),
    /// Tell the state for metrics, with the figures of so many destinations.
    Observe(usize, oneshot::Sender<Observed>),
    /// Tell why this broker is not ready; nothing if it is.
    Unready(oneshot::Sender<Vec<String>>),
}

/// Events that the shell's loop waits for.
enum ShellEvent {
    /// Time has come: an alarm, a timeout of the engine, or the deadline of a phase of the stop.
    Time,
    Lane(LaneEvent),
    Control(Control),
    ClockMoved,
    Session(FromSession),
    Order(Order),
}

/// The engine and everything that it is wired to.
pub(crate) struct Shell {
    engine: Engine,
    clock: Arc<BrokerClock>,
    wheel: Wheel,
    lanes: Lanes,
    store: Arc<dyn Store>,
    counters: Arc<ShellCounters>,
    limiter: Arc<Limiter>,
    inbox: mpsc::Receiver<FromSession>,
    control: mpsc::Receiver<Control>,
    sessions: Sessions,
    /// Questions of the broker itself, by number.
    questions: HashMap<u64, oneshot::Sender<Status>>,
    last_question: u64,
    /// Callers that wait for the count of the store.
    stored_for: Vec<oneshot::Sender<Option<Census>>>,
    effects: Vec<Effect>,
    /// Deliveries were withdrawn while effects were carried out.
    has_recalled: bool,
    phase: StopPhase,
    drain_timeout: Duration,
    stopping: CancellationToken,
    membership: Membership,
    /// The partitions that this broker is to own, as far as it has been told.
    share: Vec<PartitionId>,
    is_member: bool,
    /// When the load was posted last, monotonic ms.
    load_posted: u64,
    /// Partitions that are being given up, and since when.
    giving_up: HashMap<PartitionId, Instant>,
    /// Lower bound of the cluster clock minus the monotonic clock that sessions have been told, µs.
    announced_offset: i64,
    /// Spans of traced timers, if they are wanted.
    traces: Option<Traces>,
    deaths: DeathLog,
}

/// Parts of a shell.
pub(crate) struct ShellParts {
    pub(crate) engine: Engine,
    pub(crate) clock: Arc<BrokerClock>,
    pub(crate) wheel: Wheel,
    pub(crate) lanes: Lanes,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) counters: Arc<ShellCounters>,
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) inbox: mpsc::Receiver<FromSession>,
    pub(crate) control: mpsc::Receiver<Control>,
    pub(crate) drain_timeout: Duration,
    /// Cancelled when the broker begins to stop.
    pub(crate) stopping: CancellationToken,
    pub(crate) membership: Membership,
    pub(crate) traces: Option<Traces>,
}

impl Shell {
    pub(crate) fn new(parts: ShellParts) -> Self {
        let ShellParts { engine, clock, wheel, lanes, store, counters, inbox, .. } = parts;
        let ShellParts { control, drain_timeout, stopping, membership, limiter, traces, .. } = parts;
        let announced_offset = clock.offset_us();
        Self {
            engine,
            clock,
            wheel,
            lanes,
            store,
            counters,
            limiter,
            inbox,
            control,
            sessions: Sessions::default(),
            questions: HashMap::new(),
            last_question: 0,
            stored_for: Vec::new(),
            effects: Vec::new(),
            has_recalled: false,
            phase: StopPhase::Serving,
            drain_timeout,
            stopping,
            membership,
            share: Vec::new(),
            is_member: false,
            load_posted: 0,
            giving_up: HashMap::new(),
            announced_offset,
            traces,
            deaths: DeathLog::default(),
        }
    }

    /// Runs until the broker has stopped gracefully or cannot go on. Closes all sessions.
    pub(crate) async fn run(mut self) -> Result<(), BrokerError> {
        self.handle(Input::Session(SELF, SessionEvent::Opened { client: 0 }));
        let ended = self.serve().await;
        let last = ended.as_ref().err().map(|error| {
            let code = if matches!(error, BrokerError::Fenced { .. }) {
                ErrorCode::NotOwner
            } else {
                ErrorCode::Unavailable
            };
            ServerMessage::Refused { code, message: error.to_string() }
        });
        self.sessions.close_all(last.as_ref());
        let now = self.clock.now().time;
        self.traces.iter_mut().for_each(|traces| traces.close(now));
        ended
    }

    async fn serve(&mut self) -> Result<(), BrokerError> {
        self.tick_and_flush();
        while self.phase != StopPhase::Released {
            let event = self.next().await;
            self.take(event)?;
            self.take_what_is_there()?;
            self.tick_and_flush();
            self.advance_stop();
        }
        Ok(())
    }

    /// Waits for the next event.
    async fn next(&mut self) -> ShellEvent {
        // Something the engine wants at a time that has passed is done at once, but not more often
        // than every ms.
        let now = self.clock.now().mono_ms;
        let tick = self.engine.next_tick().map(|ms| self.clock.instant_of_mono(ms.max(now + 1)));
        let count = self.limiter.next_count().map(|ms| self.clock.instant_of_mono(ms.max(now + 1)));
        let phase_end = self.phase.until();
        let first = [tick, count, phase_end].into_iter().flatten().min();
        tokio::select! {
            // Rare events come first; more of the others is taken after every event anyway.
            biased;
            () = self.wheel.due() => ShellEvent::Time,
            () = self.clock.moved() => ShellEvent::ClockMoved,
            Some(control) = self.control.recv() => ShellEvent::Control(control),
            Some(order) = self.membership.orders.recv() => ShellEvent::Order(order),
            () = sleep_until(first.unwrap_or_else(Instant::now)), if first.is_some() => ShellEvent::Time,
            event = self.lanes.next() => ShellEvent::Lane(event),
            Some(event) = self.inbox.recv() => ShellEvent::Session(event),
        }
    }

    fn take(&mut self, event: ShellEvent) -> Result<(), BrokerError> {
        match event {
            ShellEvent::Time => {}
            ShellEvent::Lane(event) => self.take_lane_event(event)?,
            ShellEvent::Control(control) => self.take_control(control),
            ShellEvent::ClockMoved => {
                self.wheel.rederive();
                // Time that was left out may hold timers that are not in memory.
                self.handle(Input::Tick);
            }
            ShellEvent::Order(order) => self.take_order(order)?,
            ShellEvent::Session(event) => {
                self.take_from_session(event);
            }
        }
        Ok(())
    }

    /// Takes more of the waiting events, up to a round's work.
    fn take_what_is_there(&mut self) -> Result<(), BrokerError> {
        for _ in 0..ROUND_ANSWERS {
            let Some(event) = self.lanes.next().now_or_never() else { break };
            self.take_lane_event(event)?;
        }
        while let Ok(order) = self.membership.orders.try_recv() {
            self.take_order(order)?;
        }
        let mut work = 0;
        while work < ROUND_OPS
            && let Ok(event) = self.inbox.try_recv()
        {
            work += self.take_from_session(event);
        }
        Ok(())
    }

    fn take_lane_event(&mut self, event: LaneEvent) -> Result<(), BrokerError> {
        match event {
            LaneEvent::Answered => {
                while let Some(input) = self.lanes.next_answer() {
                    self.handle(input);
                }
            }
            LaneEvent::Health(partition, health) => self.handle(Input::Health { partition, health }),
            // Too late for a partition that is to be given up: the next owner acquires it from the
            // store.
            LaneEvent::Acquired(..) if matches!(self.phase, StopPhase::Releasing { .. }) => {}
            LaneEvent::Acquired(partition, acquired) => self.begin(partition, acquired),
            LaneEvent::Ended(error) => return Err(error),
        }
        Ok(())
    }

    fn begin(&mut self, partition: PartitionId, acquired: Acquired) {
        let epoch = acquired.epoch;
        self.lanes.begin(partition, acquired).into_iter().for_each(|input| self.handle(input));
        if !self.lanes.is_wanted(partition) {
            self.handle(Input::Disown(partition));
        }
        self.membership.board.owns(partition, epoch);
        self.check_joined();
    }

    fn take_control(&mut self, control: Control) {
        match control {
            Control::Stop => self.begin_stop(),
            Control::Status(to) => self.ask_for_status(to),
            Control::Stored(to) => {
                // Callers that have given up wait no more.
                self.stored_for.retain(|to| !to.is_closed());
                self.stored_for.push(to);
                self.handle(Input::CountStored);
            }
            // The asker may have gone.
            Control::Observe(top, to) => _ = to.send(self.observe(top)),
            Control::Unready(to) => _ = to.send(self.unready()),
        }
    }

    /// Asks the engine for the state, as a client would.
    fn ask_for_status(&mut self, to: oneshot::Sender<Status>) {
        self.last_question += 1;
        let corr = self.last_question;
        self.questions.insert(corr, to);
        self.handle(Input::Session(SELF, SessionEvent::Query { corr, query: Query::Status }));
    }

    /// Hands something of a session to the engine; says how much work it was.
    fn take_from_session(&mut self, from: FromSession) -> usize {
        let session = from.session;
        let mut what = from.what;
        if let Some(traces) = &mut self.traces {
            match &mut what {
                What::Message { event, .. } => traces.see(session, event, self.clock.now().time),
                What::Closed => traces.closed(session),
                What::Opened { .. } => {}
            }
        }
        match what {
            What::Opened { client, outbox, guard } => {
                self.sessions.open(session, outbox, guard);
                self.handle(Input::Session(session, SessionEvent::Opened { client }));
                1
            }
            What::Closed => {
                if self.sessions.remove(session) {
                    self.handle(Input::Session(session, SessionEvent::Closed));
                }
                1
            }
            What::Message { event, permit } => {
                if !self.sessions.keep(session, &event, permit) {
                    return 1;
                }
                let work = match &event {
                    SessionEvent::Request(request) | SessionEvent::Screened { request, .. } => {
                        request.ops.len()
                    }
                    SessionEvent::Settle(settlements) => settlements.len(),
                    _ => 1,
                };
                self.handle(Input::Session(session, event));
                work.max(1)
            }
        }
    }
}
