//! The supervision of a broker's tasks.
//!
//! Purpose: names each task, and ends all of them with the first that ends or fails.
//! Invariant: every task belongs to one set; the broker's end is that of the first task that ended,
//! unless a later one failed.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::error::BrokerError;

/// How long sessions and tasks may take to end when the engine's task has ended: last words and
/// lingering, twice over.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(4);

/// The broker's tasks, by name. Dropping it aborts them.
#[derive(Default)]
pub(crate) struct Tasks {
    set: JoinSet<Result<(), BrokerError>>,
    names: HashMap<Id, &'static str>,
}

impl Tasks {
    /// Starts a task under a name that errors give.
    pub(crate) fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), BrokerError>> + Send + 'static,
    ) {
        let id = self.set.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Waits for the end of the engine's task, or for any task to fail, or to be aborted; then ends
    /// all others.
    pub(crate) async fn supervise(
        mut self,
        stopping: &CancellationToken,
        abort: &CancellationToken,
    ) -> Result<(), BrokerError> {
        let mut end = loop {
            let joined = tokio::select! {
                () = abort.cancelled() => {
                    self.set.shutdown().await;
                    return Ok(());
                }
                joined = self.set.join_next_with_id() => joined,
            };
            match joined.map(|joined| self.name_of(joined)) {
                // The clock and, without sessions, the listener end by themselves once the broker
                // is stopping; who looks after the address, once it leads here; the others with the
                // engine.
                Some((
                    "clock" | "listener" | "cluster" | "address" | "http" | "access" | "reports",
                    Ok(()),
                )) => {}
                Some((_, end)) => break end,
                None => break Ok(()),
            }
        };
        stopping.cancel();
        let rest = async {
            while let Some(joined) = self.set.join_next_with_id().await {
                let (_, also) = self.name_of(joined);
                end = end.clone().and(also);
            }
        };
        tokio::select! {
            _ = timeout(CLOSE_TIMEOUT, rest) => {}
            () = abort.cancelled() => {}
        }
        self.set.shutdown().await;
        end
    }

    fn name_of(
        &self,
        joined: Result<(Id, Result<(), BrokerError>), JoinError>,
    ) -> (&'static str, Result<(), BrokerError>) {
        let id = joined.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let task = self.names.get(&id).copied().unwrap_or("unnamed");
        let end = joined.map_or_else(
            |error| Err(BrokerError::Panicked { task, what: error.to_string() }),
            |(_, end)| end,
        );
        (task, end)
    }
}

/// How a broker has ended, once it has.
pub(crate) type BrokerExit = watch::Receiver<Option<Result<(), BrokerError>>>;

/// Waits until the broker has ended.
pub(crate) async fn wait(mut end: BrokerExit) -> Result<(), BrokerError> {
    let ended = end.wait_for(Option::is_some).await;
    match ended {
        Ok(end) => end.clone().unwrap_or(Ok(())),
        // Only when the runtime itself is going down: its tasks are dropped.
        Err(_) => Ok(()),
    }
}
