//! Registering handlers: the settings, the shapes that a handler may have, and ending a
//! registration.
//!
//! Not in here: running handlers (see [`crate::handler`]).

use std::sync::Arc;

use futures_util::future::BoxFuture;
use mtimer_protocol::Role;
use mtimer_types::Destination;
use mtimer_types::limits::MAX_CREDIT;
use serde::de::DeserializeOwned;

use crate::dedupe::Dedupe;
use crate::handler::{Dispatcher, Ran};
use crate::intake::Intake;
use crate::machine::Input;
use crate::state::StopOnDrop;
use crate::{Callback, Outcome, RegisterError};

/// Settings for taking a destination's callbacks; made by
/// [`Client::register`](crate::Client::register).
///
/// A handler is a function or a closure that returns a future. Four shapes are taken:
///
/// | | arguments |
/// |---|---|
/// | `register(dest).on(..)` | [`Callback`] |
/// | `register(dest).on_json(..)` | payload, [`Callback`] |
/// | `register(dest).state(state).on(..)` | `Arc<S>`, [`Callback`] |
/// | `register(dest).state(state).on_json(..)` | `Arc<S>`, payload, [`Callback`] |
///
/// It returns an [`Outcome`], `()` for done, or `Result<(), E>`, where an error means another
/// attempt.
///
/// Handlers run on the client's runtime. The future is first polled where the callbacks arrive; one
/// that is not ready at once goes on in a task of its own. A handler that blocks its thread holds
/// up the callbacks behind it: use `tokio::task::spawn_blocking` there.
///
/// The client does not end a handler at its timeout: the broker counts the attempt as failed by
/// then, but a late ok still settles a timer that lives. [`Callback::timed_out`] tells the handler,
/// and a warning says once which one has not ended. Until it has, its place takes no other
/// callback: the brokers are offered less credit. Callbacks that wait for a place in vain are given
/// back before their time, and delivered again as the same attempt, here or to another client.
///
/// A handler's failure is logged once, at level warn by `tracing`, with group, app, id, attempt and
/// error, and never with the payload. A panic is caught, and is a failed attempt with the panic's
/// text as the error.
#[derive(Debug)]
#[must_use = "nothing is registered until a handler is given with on or on_json"]
pub struct Register<S = ()> {
    client: Arc<StopOnDrop>,
    dest: Destination,
    concurrency: u32,
    dedupe: usize,
    state: S,
}

impl<S> Register<S> {
    /// Sets how many handlers may run at once, and so how many unsettled callbacks the brokers may
    /// send: 1 to 10,000, default [`Register::DEFAULT_CONCURRENCY`]. Each of n brokers of a cluster
    /// is given an n-th of it, rounded up, so that together they send little more than can run.
    pub fn concurrency(mut self, n: u32) -> Self {
        self.concurrency = n;
        self
    }

    /// Settles a callback with ok, without running the handler, if its timer is among the last `n`
    /// that were handled ok by this registration. Default: 0, which turns it off. About 50 bytes
    /// each.
    pub fn dedupe(mut self, n: usize) -> Self {
        self.dedupe = n;
        self
    }

    fn start(
        self,
        begin: impl Fn(Callback) -> BoxFuture<'static, Ran> + Send + Sync + 'static,
    ) -> Result<Registration, RegisterError> {
        if !(1..=MAX_CREDIT).contains(&self.concurrency) {
            return Err(RegisterError::Concurrency { given: self.concurrency, limit: MAX_CREDIT });
        }
        let client_state = Arc::clone(&self.client.state);
        if client_state.settings.role != Role::Client {
            return Err(RegisterError::Observer);
        }
        let intake = Arc::new(Intake::new(self.dest, self.concurrency));
        let number = client_state.register(&intake)?;
        let dedupe = (self.dedupe > 0).then(|| Arc::new(Dedupe::new(self.dedupe)));
        let dispatcher = Dispatcher::new(Arc::clone(&client_state), Arc::clone(&intake), number, dedupe);
        let token = client_state.token.clone();
        // Also when it is cut short, or never begins: callers that wait for its end must not wait
        // for ever.
        let done = intake.done.clone().drop_guard();
        client_state.tasks.spawn_on(
            async move {
                token.run_until_cancelled(dispatcher.run(begin)).await;
                drop(done);
            },
            &client_state.runtime,
        );
        Ok(Registration { client: self.client, number, intake })
    }
}

impl Register {
    /// Handlers of a registration that may run at once, if nothing else is set.
    pub const DEFAULT_CONCURRENCY: u32 = 1_000;

    pub(crate) fn new(client: Arc<StopOnDrop>, dest: Destination) -> Self {
        Self { client, dest, concurrency: Self::DEFAULT_CONCURRENCY, dedupe: 0, state: () }
    }

    /// Hands every call of the handler a reference to this state, as its first argument.
    ///
    /// ```no_run
    /// # use mtimer_client::{Callback, Client, Destination, RegisterError};
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// # fn example(client: &Client, dest: &Destination) -> Result<(), RegisterError> {
    /// let seen = Arc::new(AtomicU64::new(0));
    /// let registration = client.register(dest).state(Arc::clone(&seen)).on(async |seen: Arc<AtomicU64>, _| {
    ///     seen.fetch_add(1, Ordering::Relaxed);
    /// })?;
    /// # drop(registration);
    /// # Ok(())
    /// # }
    /// ```
    pub fn state<S: Send + Sync + 'static>(self, state: Arc<S>) -> Register<Arc<S>> {
        let Self { client, dest, concurrency, dedupe, state: () } = self;
        Register { client, dest, concurrency, dedupe, state }
    }

    /// Starts taking callbacks with a handler of the [`Callback`].
    ///
    /// # Errors
    ///
    /// [`RegisterError`] if the concurrency is out of range, the client has 1,000 registrations, is
    /// closed, or is an observer.
    pub fn on<H, F, O>(self, handler: H) -> Result<Registration, RegisterError>
    where
        H: Fn(Callback) -> F + Send + Sync + 'static,
        F: Future<Output = O> + Send + 'static,
        O: Into<Outcome>,
    {
        let handler = Arc::new(handler);
        self.start(move |callback| {
            let handler = Arc::clone(&handler);
            Box::pin(async move { Ok(handler(callback).await.into()) })
        })
    }

    /// Starts taking callbacks with a handler of the payload, read as JSON, and the [`Callback`].
    ///
    /// A payload that cannot be read as a `T` never gets to the handler: its timer is a dead letter
    /// at once ([`Outcome::fail`]), with the cause as its last error.
    ///
    /// ```no_run
    /// # use mtimer_client::{Callback, Client, Destination, RegisterError};
    /// #[derive(serde::Deserialize)]
    /// struct Order {
    ///     number: u32,
    /// }
    ///
    /// async fn on_unpaid(order: Order, callback: Callback) -> Result<(), std::io::Error> {
    ///     println!("order {} was due at {}", order.number, callback.due);
    ///     Ok(())
    /// }
    ///
    /// # fn example(client: &Client, dest: &Destination) -> Result<(), RegisterError> {
    /// let registration = client.register(dest).on_json(on_unpaid)?;
    /// # drop(registration);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Register::on`].
    pub fn on_json<T, H, F, O>(self, handler: H) -> Result<Registration, RegisterError>
    where
        T: DeserializeOwned + 'static,
        H: Fn(T, Callback) -> F + Send + Sync + 'static,
        F: Future<Output = O> + Send + 'static,
        O: Into<Outcome>,
    {
        let handler = Arc::new(handler);
        self.start(move |callback| {
            let handler = Arc::clone(&handler);
            Box::pin(async move {
                let called = handler(callback.json()?, callback);
                Ok(called.await.into())
            })
        })
    }
}

impl<S: Send + Sync + 'static> Register<Arc<S>> {
    /// Starts taking callbacks with a handler of the shared state and the [`Callback`].
    ///
    /// # Errors
    ///
    /// [`RegisterError`] if the concurrency is out of range, the client has 1,000 registrations, is
    /// closed, or is an observer.
    pub fn on<H, F, O>(self, handler: H) -> Result<Registration, RegisterError>
    where
        H: Fn(Arc<S>, Callback) -> F + Send + Sync + 'static,
        F: Future<Output = O> + Send + 'static,
        O: Into<Outcome>,
    {
        let (stateless, state) = self.split();
        stateless.on(move |callback| handler(Arc::clone(&state), callback))
    }

    /// Starts taking callbacks with a handler of the shared state, the payload, read as JSON, and
    /// the [`Callback`].
    ///
    /// A payload that cannot be read as a `T` never gets to the handler: its timer is a dead letter
    /// at once ([`Outcome::fail`]), with the cause as its last error.
    ///
    /// ```no_run
    /// # use mtimer_client::{Callback, Client, Destination, RegisterError};
    /// use std::sync::{Arc, Mutex};
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Order {
    ///     number: u32,
    /// }
    ///
    /// type Unpaid = Mutex<Vec<u32>>;
    ///
    /// async fn on_unpaid(unpaid: Arc<Unpaid>, order: Order, _: Callback) -> Result<(), String> {
    ///     unpaid.lock().map_err(|error| error.to_string())?.push(order.number);
    ///     Ok(())
    /// }
    ///
    /// # fn example(client: &Client, dest: &Destination) -> Result<(), RegisterError> {
    /// let unpaid = Arc::new(Unpaid::default());
    /// let registration = client.register(dest).state(unpaid).on_json(on_unpaid)?;
    /// # drop(registration);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Register::on`].
    pub fn on_json<T, H, F, O>(self, handler: H) -> Result<Registration, RegisterError>
    where
        T: DeserializeOwned + 'static,
        H: Fn(Arc<S>, T, Callback) -> F + Send + Sync + 'static,
        F: Future<Output = O> + Send + 'static,
        O: Into<Outcome>,
    {
        let (stateless, state) = self.split();
        stateless.on_json(move |payload, callback| handler(Arc::clone(&state), payload, callback))
    }

    fn split(self) -> (Register, Arc<S>) {
        let Self { client, dest, concurrency, dedupe, state } = self;
        (Register { client, dest, concurrency, dedupe, state: () }, state)
    }
}

/// Takes callbacks for as long as it lives. Once it is dropped it takes no more; delivered
/// callbacks are still handled.
///
/// It keeps the client alive, as a clone of it does.
#[derive(Debug)]
#[must_use = "dropping a registration ends it"]
pub struct Registration {
    client: Arc<StopOnDrop>,
    number: u32,
    intake: Arc<Intake>,
}

impl Registration {
    /// Waits until a broker refuses the registration ([`RegisterError::Refused`]): it sends no
    /// callbacks of this destination, because the client's token does not allow it. Without a
    /// refusal it never completes; after one it completes at once.
    ///
    /// The refusal is logged at level warn, too, and ends nothing: other brokers may send
    /// callbacks, and the client offers the registration again over every new connection.
    ///
    /// # Cancel safety
    ///
    /// It can be called again.
    pub async fn refused(&self) -> RegisterError {
        self.intake.refused().await
    }

    /// Takes no more callbacks, and waits until those that were delivered are handled.
    ///
    /// Their outcomes may still be on their way to the broker;
    /// [`Client::close`](crate::Client::close) waits for that, too. For the broker to say that
    /// nothing more comes it waits as long as a request may take
    /// ([`ClientBuilder::request_timeout`](crate::ClientBuilder::request_timeout)); for handlers it
    /// waits without a limit. Never call it from the registration's own handler, which it would
    /// wait for.
    ///
    /// # Cancel safety
    ///
    /// The registration ends also if the future is dropped.
    pub async fn stop(self) {
        self.end();
        self.intake.done.cancelled().await;
    }

    fn end(&self) {
        self.client.state.handle(Input::Unregister { registration: self.number });
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.end();
    }
}
