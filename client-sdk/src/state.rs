//! The state of a client, which its handles and tasks share.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mtimer_protocol::{ErrorCode, SettleRefusal, Topology, Welcome};
use mtimer_types::{Epoch, TimerId};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::answer::Info;
use crate::clock::ClientClock;
use crate::counters::{ClientCounters, count};
use crate::handle::SessionHandle;
use crate::link::BrokerConnection;
use crate::router::{ClientStage, Losses, Router};
use crate::settings::Settings;
use crate::settling::OutgoingOutcome;
use crate::spread::Spreader;
use crate::sync::Locked;
use crate::{CloseError, RegisterError};

/// How often deadlines are looked at while something waits.
const TICK: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct ClientState {
    pub(crate) settings: Settings,
    pub(crate) clock: ClientClock,
    pub(crate) partitions: u16,
    pub(crate) info: Mutex<Arc<Info>>,
    pub(crate) router: Mutex<Router>,
    /// The topology has changed; for the pool.
    pub(crate) rewire: Notify,
    /// Something was settled or answered; for closing.
    pub(crate) progress: Notify,
    pub(crate) connected: watch::Sender<bool>,
    pub(crate) counters: ClientCounters,
    /// Whether everything was tried that a client connects to at its start.
    pub(crate) ready: watch::Sender<bool>,
    pub(crate) token: CancellationToken,
    pub(crate) tasks: TaskTracker,
    pub(crate) runtime: Handle,
    /// For operations and questions that are under way.
    pub(crate) permits: Arc<Semaphore>,
    /// How many permits there are.
    pub(crate) capacity: u32,
    pub(crate) busy: Notify,
    closing: tokio::sync::Mutex<()>,
    pub(crate) spreader: Spreader,
}

impl ClientState {
    pub(crate) fn new(settings: Settings, clock: ClientClock, broker: &str, welcome: &Welcome) -> Self {
        let capacity = settings.max_in_flight.clamp(1, crate::limits::MAX_SESSION_INFLIGHT as u32);
        let router = Mutex::new(Router::new(welcome.partitions, settings.answer_timeout));
        Self {
            settings,
            clock,
            partitions: welcome.partitions,
            info: Mutex::new(Arc::new(info(broker, welcome))),
            router,
            rewire: Notify::new(),
            progress: Notify::new(),
            connected: watch::Sender::new(false),
            counters: ClientCounters::default(),
            ready: watch::Sender::new(false),
            token: CancellationToken::new(),
            tasks: TaskTracker::new(),
            runtime: Handle::current(),
            permits: Arc::new(Semaphore::new(capacity as usize)),
            capacity,
            busy: Notify::new(),
            closing: tokio::sync::Mutex::new(()),
            spreader: Spreader::new(welcome.partitions),
        }
    }

    /// Works with the router, and wakes the writers.
    pub(crate) fn with_router<R>(&self, work: impl FnOnce(&mut Router) -> R) -> R {
        let mut router = self.router.locked();
        let result = work(&mut router);
        router.wake_all();
        result
    }

    /// Works with the router, and wakes the writers if the result asks for it.
    pub(crate) fn with_router_if<R, E>(
        &self,
        work: impl FnOnce(&mut Router) -> Result<R, E>,
        wake: impl FnOnce(&R) -> bool,
    ) -> Result<R, E> {
        let mut router = self.router.locked();
        let result = work(&mut router)?;
        if wake(&result) {
            router.wake_all();
        }
        Ok(result)
    }

    /// A connection is there.
    pub(crate) fn opened(&self, connection: &BrokerConnection) -> Arc<SessionHandle> {
        let BrokerConnection { broker, welcome, sent, received, .. } = connection;
        *self.info.locked() = Arc::new(info(broker, welcome));
        let (handle, losses) = self.with_router(|router| router.opened(welcome));
        self.clock.observe(handle.session, welcome.now, *sent, *received);
        count(&self.counters.connections, 1);
        self.changed(losses);
        self.tell_connected();
        handle
    }

    /// A connection is gone.
    pub(crate) fn closed(&self, handle: &SessionHandle, fault: &str) {
        let losses = self.with_router(|router| router.closed(handle.session, fault));
        self.clock.forget(handle.session);
        self.changed(losses);
        self.tell_connected();
    }

    /// Whether the client closes, or is closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.router.locked().stage != ClientStage::Open
    }

    /// Publishes whether there is a connection. Of several calls at once the last one sees what all
    /// of them have done. The router's lock is taken while holding `connected`'s lock, as by a
    /// caller who holds a borrow of it; never the other way round.
    fn tell_connected(&self) {
        self.connected.send_if_modified(|published| {
            let connected = self.router.locked().is_connected();
            std::mem::replace(published, connected) != connected
        });
    }

    /// A broker wants to stop.
    pub(crate) fn stopping(&self, session: u64) {
        let losses = self.with_router(|router| router.stopping(session));
        self.changed(losses);
    }

    /// A broker has sent its topology.
    pub(crate) fn topology(&self, topology: Topology) {
        if let Some(losses) = self.with_router(|router| router.topology(topology)) {
            self.changed(losses);
            self.rewire.notify_one();
        }
    }

    /// The routes have changed.
    fn changed(&self, losses: Losses) {
        count(&self.counters.settle_refused, losses.pointless);
        count(&self.counters.dropped, losses.dropped);
        self.spreader.set_reachable(self.router.locked().reachable());
        self.progress.notify_waiters();
        self.tick();
    }

    /// A new reason why there is no connection.
    pub(crate) fn fault(&self, fault: String) {
        let mut router = self.router.locked();
        if !router.is_connected() {
            router.fault = fault;
        }
    }

    /// Callbacks that came over a connection were left out; they are going to be delivered again.
    pub(crate) fn drop_unstarted(&self, handle: &SessionHandle, n: u64) {
        count(&self.counters.dropped, n);
        self.router.locked().left_out(handle.session, n);
    }

    /// Queues outcomes.
    pub(crate) fn settle(&self, outcomes: &mut Vec<OutgoingOutcome>) {
        if outcomes.is_empty() {
            return;
        }
        let pointless = self.router.locked().settle(outcomes.drain(..));
        count(&self.counters.settle_refused, pointless);
        self.tick();
    }

    /// A broker has dealt with outcomes; see [`Router::settled`].
    pub(crate) fn settled(
        &self,
        session: u64,
        accepted: u32,
        refused: &[(TimerId, SettleRefusal)],
        now: Instant,
    ) -> Result<u64, &'static str> {
        let mut router = self.router.locked();
        let over = router.settled(session, accepted, refused, now);
        if !refused.is_empty() {
            router.wake_all();
            drop(router);
            self.tick();
        }
        over
    }

    pub(crate) fn extend(&self, over: &SessionHandle, id: TimerId, epoch: Epoch, attempt: u32, by_ms: u32) {
        self.with_router(|router| router.extend(over, id, epoch, attempt, by_ms));
    }

    /// A broker sends nothing for this registration. One that has ended is of no interest.
    pub(crate) fn register_refused(&self, number: u32, code: ErrorCode, message: String) {
        let Some(inbox) = self.router.locked().inbox(number).cloned() else { return };
        tracing::warn!(
            group = inbox.dest.group(),
            app = inbox.dest.app(),
            ?code,
            reason = message,
            "the broker refused a registration"
        );
        inbox.refuse(RegisterError::Refused { code, message });
    }

    /// What a registration offers has changed; see [`Router::renew`].
    pub(crate) fn renew(&self, number: u32) {
        self.with_router(|router| router.renew(number));
    }

    /// Takes no more callbacks for a registration; see [`Router::unregister`].
    pub(crate) fn unregister(&self, number: u32) {
        let by = Instant::now().checked_add(self.settings.request_timeout);
        self.with_router(|router| router.unregister(number, by));
        self.tick();
    }

    /// Somebody is to look at the time, if there is a reason.
    fn tick(&self) {
        let mut router = self.router.locked();
        if !router.ticking && router.is_timed() {
            router.ticking = true;
            self.busy.notify_one();
        }
    }

    /// Gives up what has waited too long, and queues what has waited long enough.
    pub(crate) async fn keep_time(self: Arc<Self>) {
        loop {
            self.busy.notified().await;
            loop {
                tokio::time::sleep(TICK).await;
                let mut router = self.router.locked();
                let (to_send, over) = router.sweep(Instant::now());
                if to_send {
                    router.wake_all();
                }
                let again = router.ticking;
                drop(router);
                count(&self.counters.settle_refused, over);
                self.progress.notify_waiters();
                if !again {
                    break;
                }
            }
        }
    }

    /// See [`crate::Client::close`].
    pub(crate) async fn close(&self) -> Result<(), CloseError> {
        let _one_at_a_time = self.closing.lock().await;
        let timeout = self.settings.request_timeout;
        let barrier = self.with_router(Router::drain);
        // A broker that does not answer in time has heard the goodbye all the same, or is not
        // there.
        let _ = tokio::time::timeout(timeout, barrier).await;
        let inboxes = self.router.locked().end_registrations();
        for inbox in inboxes {
            inbox.done.cancelled().await;
        }
        let flushed = tokio::time::timeout(timeout, self.flushed()).await;
        let settlements = self.router.locked().settling.unconfirmed();
        self.shut().await;
        match flushed {
            Err(_) if settlements > 0 => {
                Err(CloseError::Unsettled { settlements, ms: timeout.as_millis() as u64 })
            }
            _ => Ok(()),
        }
    }

    async fn flushed(&self) {
        loop {
            let progress = self.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            if self.router.locked().is_idle() {
                return;
            }
            progress.await;
        }
    }

    /// Stops everything at once, and waits until it has stopped.
    async fn shut(&self) {
        self.stop();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Stops everything at once.
    pub(crate) fn stop(&self) {
        self.token.cancel();
        self.permits.close();
        self.router.locked().close();
        self.tell_connected();
    }
}

/// What handles hold: when the last one is dropped, everything stops.
#[derive(Debug)]
pub(crate) struct StopOnDrop {
    pub(crate) state: Arc<ClientState>,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.state.stop();
    }
}

pub(crate) fn info(broker: &str, w: &Welcome) -> Info {
    Info {
        broker: broker.to_owned(),
        session: w.session,
        cluster: w.cluster.clone(),
        software: w.software.clone(),
        store: w.store.clone(),
        durability: w.durability.clone(),
        partitions: w.partitions,
        version: w.version,
        heartbeat_ms: w.heartbeat_ms,
        max_frame: w.max_frame,
        max_batch: w.max_batch,
    }
}

#[cfg(test)]
pub(crate) mod tests;
