//! The client that applications call.

use std::sync::Arc;
use std::time::Duration;

use mtimer_protocol::ops::{self, ScheduleReply};
use mtimer_protocol::{Query, QueryAnswer, TimerStory, TimerView};
use mtimer_types::{Destination, KeyPolicy, Target, Time, Timer, TimerId};
use tokio::sync::watch;
use tracing::Instrument as _;

use crate::answer::{Info, Scheduled, Stats};
use crate::driver;
use crate::sending::ClientOperation;
use crate::settings::Settings;
use crate::state::{ClientState, StopOnDrop};
use crate::trace::{self, Carried};
use crate::{
    Callback, Cancelled, CloseError, ConnectError, Extended, Outcome, Register, RegisterError, Registration,
    RequestError, Rescheduled, Schedule, ScheduleError, When,
};

/// How long [`Client::connect`] waits for a cluster's other brokers once it has one: they are not
/// needed to begin with.
const OTHERS: Duration = Duration::from_secs(1);

/// Holds the connections to an mtimer cluster. Cheap to clone; all clones share them.
///
/// A lost connection is made again in the background. Calls wait for it meanwhile, up to
/// [`ClientBuilder::request_timeout`], and a request whose answer was lost is repeated as the same
/// request, so that it is never done twice.
///
/// When the last clone and the last [`Registration`] are dropped, everything stops at once;
/// [`Client::close`] ends it gracefully.
///
/// [`ClientBuilder::request_timeout`]: crate::ClientBuilder::request_timeout
#[derive(Clone, Debug)]
pub struct Client {
    handle: Arc<StopOnDrop>,
}

impl Client {
    pub(crate) async fn connect(settings: Settings) -> Result<Self, ConnectError> {
        let limit = settings.connect_timeout.min(OTHERS);
        let state = Arc::new(ClientState::new(settings)?);
        let (first, mut ready) = (state.first.wait(), state.ready.subscribe());
        let drive = driver::drive(Arc::clone(&state));
        state.tasks.spawn(state.token.clone().run_until_cancelled_owned(drive));
        // From here on, dropping it closes the connections.
        let client = Self { handle: Arc::new(StopOnDrop { state }) };
        // Without a word the runtime is ending.
        first.await.unwrap_or(Err(ConnectError::NoBroker))?;
        // In a cluster, the other brokers have a chance to be there from the beginning; it works
        // without them, too.
        if !client.state().settings.one_broker {
            let _ = tokio::time::timeout(limit, ready.wait_for(|ready| *ready)).await;
        }
        Ok(client)
    }

    /// Returns the time by the cluster clock, to the millisecond.
    ///
    /// It is learned in the handshake, carried on by this machine's monotonic clock and the time
    /// for which it was suspended, and corrected by every heartbeat and by the due times of
    /// deliveries. It is never behind a time that a broker has shown, and ahead of the cluster's
    /// clock by a round trip and a millisecond at most. This machine's wall clock has no part in
    /// it.
    pub fn now(&self) -> Time {
        self.state().now()
    }

    /// Returns a broker's description of itself, from the latest handshake with any of them.
    pub fn info(&self) -> Arc<Info> {
        self.state().info()
    }

    /// Watches whether there is a connection, to whichever broker.
    pub fn connected(&self) -> watch::Receiver<bool> {
        self.state().connected()
    }

    /// Returns counters since the client was made.
    pub fn stats(&self) -> Stats {
        self.state().stats()
    }

    /// Fixes the due time and the id and checks the limits, without sending anything.
    ///
    /// Scheduling the result again schedules no second timer while the timer of that id lives, and
    /// for 30 s after it has ended. So a failed call of [`Client::schedule`] can be repeated, if it
    /// is given up in time.
    ///
    /// ```no_run
    /// # use std::time::{Duration, Instant};
    /// # use mtimer_client::{Client, Destination, Schedule, ScheduleError, TimerId};
    /// # async fn example(client: &Client, dest: &Destination) -> Result<TimerId, ScheduleError> {
    /// let (id, schedule) = client.prepare(Schedule::after(dest, Duration::from_secs(5)))?;
    /// let began = Instant::now();
    /// loop {
    ///     match client.schedule(schedule.clone()).await {
    ///         Err(error) if error.is_retryable() && began.elapsed() < Duration::from_secs(25) => {
    ///             tokio::time::sleep(Duration::from_secs(1)).await;
    ///         }
    ///         // An earlier attempt stored it, and it is done.
    ///         Err(ScheduleError::Ended { .. }) => return Ok(id),
    ///         answer => return answer.map(|_| id),
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ScheduleError::Invalid`] if it breaks a limit.
    pub fn prepare(&self, schedule: Schedule) -> Result<(TimerId, Schedule), ScheduleError> {
        let (timer, policy) = self.resolve(schedule)?;
        Ok((timer.id, Schedule::fixed(timer, policy)))
    }

    /// Schedules one timer, and waits until it is stored at the durability level of the cluster
    /// ([`Info::durability`]).
    ///
    /// Calls at the same time are sent together; a lone one is not delayed by that.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`]; [`ScheduleError::is_retryable`] says whether another try can help. After
    /// [`ScheduleError::Request`] the timer may be stored, unless
    /// [`ScheduleError::has_no_side_effects`]: schedule it again with the same id
    /// ([`Client::prepare`]), or ask [`Client::get`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future breaks nothing; a request that was sent may be done all the same.
    pub async fn schedule(&self, schedule: Schedule) -> Result<Scheduled, ScheduleError> {
        let (mut timer, policy) = self.resolve(schedule)?;
        let (id, span) = (timer.id, trace::schedule(&timer));
        Carried::of(&span).inject(&mut timer);
        let request = self.request(ops::Schedule { timer: Arc::new(timer), policy });
        let result = scheduled(id, request.instrument(span.clone()).await);
        trace::scheduled(&span, &result);
        result
    }

    /// Schedules many timers in as few frames as possible; returns one answer for each, in the same
    /// order.
    ///
    /// Each is stored or refused on its own. Thousands at a time are fine; more than
    /// [`ClientBuilder::max_in_flight`](crate::ClientBuilder::max_in_flight) wait for their turn.
    ///
    /// # Errors
    ///
    /// Each answer has its own [`ScheduleError`], as [`Client::schedule`] would return.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future breaks nothing; a request that was sent may be done all the same.
    pub async fn schedule_all(&self, schedules: Vec<Schedule>) -> Vec<Result<Scheduled, ScheduleError>> {
        let mut slots = Vec::with_capacity(schedules.len());
        let mut ops = Vec::with_capacity(schedules.len());
        let (now, mut spread) = (self.now(), self.state().spreader().spread(schedules.len()));
        let span = trace::schedule_all(schedules.len());
        let carried = Carried::of(&span);
        for schedule in schedules {
            slots.push(
                match schedule.resolve(now, |dest, key, due| spread.id(dest, key, due, now, rand::random())) {
                    Ok((mut timer, policy)) => {
                        let id = timer.id;
                        carried.inject(&mut timer);
                        ops.push(ops::Schedule { timer: Arc::new(timer), policy });
                        Ok(id)
                    }
                    Err(error) => Err(error.into()),
                },
            );
        }
        let requests = self.state().request_all(ops.into_iter());
        let mut replies = requests.instrument(span.clone()).await;
        let mut answer = |id| scheduled(id, replies.next().unwrap_or(Err(RequestError::Mismatched)));
        let results: Vec<_> = slots.into_iter().map(|slot| slot.and_then(&mut answer)).collect();
        results.iter().for_each(|result| trace::scheduled(&span, result));
        results
    }

    /// Cancels a timer, by id or by key ([`Destination::key`]).
    ///
    /// ```no_run
    /// # use mtimer_client::{Cancelled, Client, Destination};
    /// # async fn example(client: &Client, orders: &Destination) -> Result<(), Box<dyn std::error::Error>> {
    /// match client.cancel(orders.key("order-17")?).await? {
    ///     Cancelled::Cancelled(id) => println!("{id} is never delivered"),
    ///     Cancelled::TooLate(id) => println!("{id} was delivered, or is just now"),
    ///     Cancelled::NotFound => println!("there is no such timer"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError`]. A cancel can always be repeated. If the first one had worked, a repeat by
    /// id answers `Cancelled` for 30 s, and one by key answers `NotFound`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future breaks nothing; a request that was sent may be done all the same.
    pub async fn cancel(&self, target: impl Into<Target>) -> Result<Cancelled, RequestError> {
        self.request(ops::Cancel { target: target.into(), request: rand::random() }).await
    }

    /// Gives a timer another due time, by id or by key ([`Destination::key`]). Its id stays valid.
    ///
    /// A [`Duration`] counts from this call; [`Duration::ZERO`] makes the timer due now.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use mtimer_client::{Client, Destination};
    /// # async fn example(client: &Client, orders: &Destination) -> Result<(), Box<dyn std::error::Error>> {
    /// client.reschedule(orders.key("order-17")?, Duration::from_secs(900)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError`]; [`RequestError::Refused`] also if the new time is more than ten years
    /// ahead or after the timer's own deadline. A reschedule can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future breaks nothing; a request that was sent may be done all the same.
    pub async fn reschedule(
        &self,
        target: impl Into<Target>,
        when: impl Into<When>,
    ) -> Result<Rescheduled, RequestError> {
        let due = when.into().time(self.now());
        self.request(ops::Reschedule { target: target.into(), due, request: rand::random() }).await
    }

    /// Gives a live timer another deadline, later or earlier, by id or by key
    /// ([`Destination::key`]).
    ///
    /// A [`Duration`] counts from this call. A delivery under way goes on; the deadline counts for
    /// the attempts that follow. [`Extended::TooLate`]: none follows.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use mtimer_client::{Client, Destination};
    /// # async fn example(client: &Client, orders: &Destination) -> Result<(), Box<dyn std::error::Error>> {
    /// client.extend_deadline(orders.key("order-17")?, Duration::from_secs(3_600)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError`]; [`RequestError::Refused`] also if the deadline is more than ten years
    /// ahead or before the timer's next delivery. It can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future breaks nothing; a request that was sent may be done all the same.
    pub async fn extend_deadline(
        &self,
        target: impl Into<Target>,
        deadline: impl Into<When>,
    ) -> Result<Extended, RequestError> {
        let deadline = deadline.into().time(self.now());
        self.request(ops::ExtendDeadline { target: target.into(), deadline, request: rand::random() }).await
    }

    /// Returns one timer, live or dead, by id or by key ([`Destination::key`]); `None` if there is
    /// none.
    ///
    /// A timer that was acknowledged or cancelled is gone. A key names live timers only; a dead
    /// letter is found by its id.
    ///
    /// # Errors
    ///
    /// [`RequestError`]. It changes nothing, and can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the question back.
    pub async fn get(&self, target: impl Into<Target>) -> Result<Option<TimerView>, RequestError> {
        match self.query(Query::Get(target.into())).await? {
            QueryAnswer::Timer(view) => Ok(view.map(|view| *view)),
            _ => Err(RequestError::Mismatched),
        }
    }

    /// Returns one timer like [`Client::get`], with its story: its last attempts that ended without
    /// success, when each was sent to whom and how late, and why; the attempt under way; and what
    /// it waits for if its time has come. Nothing is known of attempts before the last
    /// [`MAX_STORY_ATTEMPTS`](mtimer_types::story::MAX_STORY_ATTEMPTS), or of timers that were
    /// acknowledged.
    ///
    /// # Errors
    ///
    /// [`RequestError`]. It changes nothing, and can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the question back.
    pub async fn story(&self, target: impl Into<Target>) -> Result<Option<TimerStory>, RequestError> {
        match self.query(Query::Story(target.into())).await? {
            QueryAnswer::Story(story) => Ok(story.map(|story| *story)),
            _ => Err(RequestError::Mismatched),
        }
    }

    /// Takes a destination's callbacks, with the default settings of [`Client::register`].
    ///
    /// See [`Register`] for the return types of a handler and where it runs.
    ///
    /// # Errors
    ///
    /// [`RegisterError`] if the client has 1,000 registrations, is closed, or is an observer.
    pub fn on<H, F, O>(&self, dest: impl Into<Destination>, handler: H) -> Result<Registration, RegisterError>
    where
        H: Fn(Callback) -> F + Send + Sync + 'static,
        F: Future<Output = O> + Send + 'static,
        O: Into<Outcome>,
    {
        self.register(dest).on(handler)
    }

    /// Returns the settings for taking a destination's callbacks, to be given a handler.
    ///
    /// Callbacks are taken from every broker that is connected, now or later.
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
    pub fn register(&self, dest: impl Into<Destination>) -> Register {
        Register::new(Arc::clone(&self.handle), dest.into())
    }

    /// Takes no more callbacks, finishes those that were delivered, waits for the outstanding
    /// answers, and closes the connections.
    ///
    /// Handlers may still make requests meanwhile; later ones fail with [`RequestError::Closed`].
    /// It waits for handlers without a limit, and for the brokers as long as a request may take
    /// ([`ClientBuilder::request_timeout`](crate::ClientBuilder::request_timeout)): to say that
    /// nothing more comes, and after the last handler once more, for the answers. Never call it
    /// from a handler, which it would wait for.
    ///
    /// # Errors
    ///
    /// [`CloseError::Unsettled`] if outcomes of handlers were not confirmed in time. The client is
    /// closed all the same.
    ///
    /// # Cancel safety
    ///
    /// May be dropped: call it again, or drop the client.
    pub async fn close(&self) -> Result<(), CloseError> {
        self.state().close().await
    }

    pub(crate) fn state(&self) -> &ClientState {
        &self.handle.state
    }

    fn resolve(&self, schedule: Schedule) -> Result<(Timer, KeyPolicy), ScheduleError> {
        let (now, mut spread) = (self.now(), self.state().spreader().spread(1));
        Ok(schedule.resolve(now, |dest, key, due| spread.id(dest, key, due, now, rand::random()))?)
    }

    pub(crate) async fn request<O: ClientOperation>(&self, op: O) -> Result<O::Reply, RequestError> {
        self.state().request(op).await
    }

    pub(crate) async fn query(&self, query: Query) -> Result<QueryAnswer, RequestError> {
        self.state().query(query).await
    }
}

fn scheduled(id: TimerId, reply: Result<ScheduleReply, RequestError>) -> Result<Scheduled, ScheduleError> {
    match reply {
        Ok(ScheduleReply::Scheduled { new, replaced }) => {
            let due = Some(id.birth_due());
            Ok(Scheduled { id, new, replaced, due, kept: false, being_delivered: false })
        }
        Ok(ScheduleReply::Timed { new, replaced, due }) => {
            Ok(Scheduled { id, new, replaced, due: Some(due), kept: false, being_delivered: false })
        }
        Ok(ScheduleReply::Kept { id, being_delivered }) => {
            Ok(Scheduled { id, new: false, replaced: None, due: None, kept: true, being_delivered })
        }
        Ok(ScheduleReply::KeyTaken(id)) => Err(ScheduleError::KeyTaken(id)),
        Ok(ScheduleReply::Conflict) => Err(ScheduleError::Conflict { id }),
        Ok(ScheduleReply::Ended(how)) => Err(ScheduleError::Ended { id, how }),
        Err(error) => Err(ScheduleError::Request { id, error }),
    }
}
