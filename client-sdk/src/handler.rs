//! Registering handlers, and running them.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use mtimer_types::Destination;

use crate::client::Shared;
use crate::{Callback, Client, Outcome, RegisterError};

/// How a destination's callbacks are to be taken; made by [`Client::register`].
#[derive(Debug)]
#[must_use = "nothing is registered until a handler is given with on"]
pub struct Register {
    client: Client,
    dest: Destination,
    concurrency: u32,
    dedupe: usize,
}

impl Register {
    /// Handlers of a registration that may run at once, if nothing else is said.
    pub const DEFAULT_CONCURRENCY: u32 = 1_000;

    pub(crate) fn new(client: Client, dest: Destination) -> Self {
        Self { client, dest, concurrency: Self::DEFAULT_CONCURRENCY, dedupe: 0 }
    }

    /// How many handlers may run at once, and so how many unsettled callbacks the broker may send: 1 to 10,000.
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
    /// A panic is a failed attempt, with the panic's text as the error.
    pub fn on<H, F, O>(self, handler: H) -> Result<Registration, RegisterError>
    where
        H: Fn(Callback) -> F + Send + Sync + 'static,
        F: Future<Output = O> + Send + 'static,
        O: Into<Outcome>,
    {
        let _handler: Handler = Arc::new(move |callback| {
            let outcome = handler(callback);
            Box::pin(async move { outcome.await.into() })
        });
        Err(RegisterError::Closed)
    }
}

pub(crate) type Handler = Arc<dyn Fn(Callback) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// Callbacks are taken while this lives. Dropping it takes no more; what was delivered is still handled.
#[derive(Debug)]
#[must_use = "dropping a registration ends it"]
pub struct Registration {
    shared: Arc<Shared>,
    number: u32,
}

impl Registration {
    /// Takes no more callbacks, and waits until those that were delivered are handled.
    pub async fn stop(self) {
        let _ = (&self.shared, self.number);
    }
}
