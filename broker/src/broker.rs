//! A running broker: start, stop, wait.
//!
//! Stop order: in a cluster hand over, serving on; then accept none, drain, release, close.

use std::fmt;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::SystemTime;

use mtimer_core::{Engine, EngineOptions};
use mtimer_protocol::Status;
use mtimer_store::Store;
use mtimer_types::limits;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use crate::access::AccessControl;
use crate::admission::Admission;
use crate::clock::{BrokerClock, keep};
use crate::cluster::{
    AddressHolder, BrokerIdentity, ClusterSetup, Joining, PeerEvent, Resources, SOFTWARE, set_up_alone,
    set_up_member, who_answers,
};
use crate::error::{BrokerError, StartError};
use crate::frames::ReceiveBudget;
use crate::http::Web;
use crate::inbox::Gate;
use crate::lanes::Lanes;
use crate::limits::Limiter;
use crate::listener::{bind, listen};
use crate::metrics::{LastCount, MetricsSource};
use crate::options::BrokerOptions;
use crate::outbox::Outboxes;
use crate::reports;
use crate::session::{SessionContext, welcome};
use crate::shell::{Control, Shell, ShellParts};
use crate::tasks::{BrokerExit, wait};
use crate::traces::Traces;
use crate::wheel::Wheel;

/// Requests to the engine's task that may wait.
const CONTROLS: usize = 64;
/// Connections that the system accepts before the listener does.
const BACKLOG: u32 = 1_024;

/// Starts a broker on a store.
///
/// On a store of its own it acquires every partition, then accepts clients. On one that brokers
/// share it joins their cluster, or founds it, and is given its share. Returns once it owns its
/// share. While the store is away it waits, up to [`BrokerOptions::startup_timeout`]. Must be
/// called within a tokio runtime.
///
/// # Errors
///
/// [`StartError`] if an option is out of range, the address is taken, the store refuses this
/// broker, or `startup_timeout` has passed.
///
/// # Cancel safety
///
/// Dropping the future stops the broker at once; partitions that were acquired by then stay with it
/// in the store until the next broker acquires them.
pub async fn start(options: BrokerOptions, store: Arc<dyn Store>) -> Result<Broker, StartError> {
    let (broker, joining) = begin(options, store).await?;
    joining.await?;
    Ok(broker)
}

/// Starts a broker as [`start`] does, unless `stop` completes before it is ready: then the result
/// is `None`. The partitions that a broker of a cluster owns by then are handed over as by
/// [`Broker::stop`].
///
/// # Errors
///
/// As those of [`start`].
///
/// # Cancel safety
///
/// As that of [`start`].
pub async fn start_unless(
    options: BrokerOptions,
    store: Arc<dyn Store>,
    stop: impl Future<Output = ()>,
) -> Result<Option<Broker>, StartError> {
    let mut stop = pin!(stop);
    let (broker, joining) = tokio::select! {
        begun = begin(options, store) => begun?,
        () = &mut stop => return Ok(None),
    };
    tokio::select! {
        joined = joining => joined?,
        () = stop => return broker.stop().await.map(|()| None).map_err(StartError::Ended),
    }
    Ok(Some(broker))
}

/// A broker that runs, and the future that waits until it is ready.
async fn begin(
    options: BrokerOptions,
    store: Arc<dyn Store>,
) -> Result<(Broker, impl Future<Output = Result<(), StartError>>), StartError> {
    options.validate()?;
    let access = Arc::new(AccessControl::open(options.access.clone())?);
    // First of all: a second broker started by mistake on the same address must not take the
    // partitions over.
    let addr = options.listen;
    let listen_error = |source| StartError::Listen { addr, source };
    let socket = bind(addr).map_err(listen_error)?;
    let local = socket.local_addr().map_err(listen_error)?;
    let coordination = store.coordination();
    let identity = Arc::new(BrokerIdentity::random());
    if coordination.is_some() {
        options.check_shared()?;
        // This process does not listen yet, so an answer comes from another one.
        let (address, cluster) = (options.address(local)?, options.cluster.clone());
        let own = access.peer_credentials();
        let holder = who_answers(&address, &cluster, SOFTWARE, own, &identity).await;
        if holder == AddressHolder::Another {
            return Err(BrokerError::AddressTaken { address, cluster }.into());
        }
    }
    let listener = socket.listen(BACKLOG).map_err(listen_error)?;
    let counters = Arc::default();
    let web = Web::start(options.http, &access, &counters)?;
    if let (protection, true) = access.protection()
        && let Some(missing) = protection.missing()
    {
        tracing::warn!(%local, "insecure: {missing}: trusted networks only");
    }
    let resources = Resources { store, counters, access, identity, local };
    let setup = match coordination {
        Some(coordination) => set_up_member(&options, coordination, &resources).await?,
        None => set_up_alone(&options, &resources).await?,
    };
    let (joining, startup_timeout) = (setup.joining.clone(), options.startup_timeout);
    let opened = web.opened();
    let (broker, running) = assemble(options, resources, setup, listener, web)?;
    tokio::spawn(running);
    let end = broker.end.clone();
    let joining = async move {
        joining.wait(end, startup_timeout).await?;
        opened.await;
        tracing::info!(%local, "ready");
        Ok(())
    };
    Ok((broker, joining))
}

/// Puts the parts together: the handle, and the future that runs everything.
fn assemble(
    options: BrokerOptions,
    resources: Resources,
    setup: ClusterSetup,
    listener: TcpListener,
    web: Web,
) -> Result<(Broker, impl Future<Output = ()> + Send + use<>), StartError> {
    let ClusterSetup { clock, acquirer, membership, joining, address, peers, tasks } = setup;
    let partitions = resources.store.info().partitions;
    let (gate, inbox) = Gate::new();
    let (control, controls) = mpsc::channel(CONTROLS);
    let stopping = CancellationToken::new();
    let own = address.clone();
    let context = session_context(&options, &resources, &clock, gate, address, peers, stopping.clone());
    let limiter = context.admission.limiter.clone();
    let seed = if options.engine.seed == 0 { rand::random() } else { options.engine.seed };
    let traces = options.traces.is_some();
    let engine = EngineOptions { partitions, seed, address: own, traces, ..options.engine.clone() };
    let shell = Shell::new(ShellParts {
        engine: Engine::new(engine, clock.now()),
        clock: clock.clone(),
        wheel: Wheel::new(clock.clone()).map_err(StartError::AlarmTimer)?,
        lanes: Lanes::new(acquirer),
        store: resources.store.clone(),
        counters: resources.counters.clone(),
        limiter: limiter.clone(),
        inbox,
        control: controls,
        drain_timeout: options.drain_timeout,
        stopping: stopping.clone(),
        membership,
        traces: options.traces.clone().map(Traces::new),
    });
    let (ended, end) = watch::channel(None);
    let abort = CancellationToken::new();
    let source = metrics_source(&options, &resources, &context, control.clone());
    let Resources { store, counters, access, local, .. } = resources;
    let http = web.addr();
    let broker =
        Broker { local, http, control: control.clone(), end, access: access.clone(), abort: abort.clone() };
    let listening = Listening { listener, context, max_handshakes: options.max_handshakes, joining };
    let running = async move {
        let (mut all, sources) = web.into_parts();
        all.spawn("engine", shell.run());
        all.spawn("reports", reports::run(control, limiter, counters.clone(), store.clone()));
        let watch = access.watch(counters.clone(), stopping.clone());
        let panicked = |e: JoinError| BrokerError::Panicked { task: "access", what: e.to_string() };
        all.spawn("access", async move { watch.await.map_err(panicked) });
        tasks.into_iter().for_each(|(name, task)| all.spawn(name, task));
        all.spawn("listener", listening.run(move || _ = sources.send_replace(Some(Arc::new(source)))));
        let clock_stop = stopping.clone();
        all.spawn("clock", async move {
            keep(clock, store, counters, clock_stop).await;
            Ok(())
        });
        let end = all.supervise(&stopping, &abort).await;
        if let Err(error) = &end {
            tracing::error!(%error, "the broker has ended");
        }
        ended.send_replace(Some(end));
    };
    Ok((broker, running))
}

/// The source of the metrics.
fn metrics_source(
    options: &BrokerOptions,
    resources: &Resources,
    context: &SessionContext,
    control: mpsc::Sender<Control>,
) -> MetricsSource {
    MetricsSource {
        control,
        store: resources.store.clone(),
        counters: resources.counters.clone(),
        gate: context.gate.clone(),
        receiving: context.receiving.clone(),
        outboxes: context.outboxes.clone(),
        destinations: options.metrics_destinations,
        access: resources.access.clone(),
        started: SystemTime::now(),
        stored: LastCount::default(),
    }
}

/// State that all sessions share.
fn session_context(
    options: &BrokerOptions,
    resources: &Resources,
    clock: &Arc<BrokerClock>,
    gate: Gate,
    address: Option<String>,
    peers: Option<mpsc::Sender<PeerEvent>>,
    stopping: CancellationToken,
) -> Arc<SessionContext> {
    let info = resources.store.info();
    let counters = resources.counters.clone();
    let limiter = Limiter::new(options.group_limits.clone(), options.engine.preload_ms, counters.clone());
    let admission = Admission {
        limiter: Arc::new(limiter),
        clock: clock.clone(),
        counters: counters.clone(),
        has_cluster: peers.is_some(),
    };
    Arc::new(SessionContext {
        gate,
        clock: clock.clone(),
        counters,
        access: resources.access.clone(),
        admission,
        receiving: Arc::new(ReceiveBudget::new(options.receiving_bytes)),
        receiving_from_brokers: Arc::new(ReceiveBudget::new(limits::MAX_RECEIVING_FROM_BROKERS)),
        outboxes: Arc::new(Outboxes::new(options.outboxes_bytes)),
        outbox_limit: options.session_outbox_bytes,
        sessions: Arc::new(Semaphore::new(options.max_sessions)),
        max_sessions: options.max_sessions,
        brokers: Arc::new(Semaphore::new(limits::MAX_BROKERS)),
        observers: Arc::new(Semaphore::new(limits::MAX_OBSERVERS)),
        heartbeat: options.heartbeat,
        heartbeat_timeout: options.heartbeat_timeout,
        handshake_timeout: options.handshake_timeout,
        welcome: welcome(options.cluster.clone(), info, options.heartbeat, address),
        identity: resources.identity.clone(),
        stopping,
        cluster: peers,
    })
}

/// The listener, to be started once clients may come.
struct Listening {
    listener: TcpListener,
    context: Arc<SessionContext>,
    max_handshakes: usize,
    joining: Joining,
}

impl Listening {
    /// `opened` is called when connections begin to be taken in.
    async fn run(self, opened: impl FnOnce()) -> Result<(), BrokerError> {
        if !self.joining.open().await {
            return Ok(());
        }
        opened();
        listen(self.listener, self.context, self.max_handshakes).await
    }
}

/// A running broker. Dropping it stops it at once, like [`Broker::abort`].
pub struct Broker {
    local: SocketAddr,
    http: Option<SocketAddr>,
    control: mpsc::Sender<Control>,
    end: BrokerExit,
    access: Arc<AccessControl>,
    abort: CancellationToken,
}

impl Broker {
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Where it serves metrics and health probes, if it does.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http
    }

    /// Stops gracefully: in a cluster hands its partitions over first and serves each until then,
    /// for 10 s at most. Then it accepts nobody, delivers nothing more, waits for settlements up to
    /// the drain timeout, gives up the partitions that it still has (5 s at most), and closes the
    /// sessions (4 s at most). Returns when it has ended.
    ///
    /// # Errors
    ///
    /// [`BrokerError`] if it ended for another reason than this call.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take the stop back.
    pub async fn stop(&self) -> Result<(), BrokerError> {
        // If nobody takes it, it has ended already.
        let _ = self.control.send(Control::Stop).await;
        self.wait().await
    }

    /// Reads the tokens file, this broker's own token and the certificates again now. It does so by
    /// itself within seconds when one of the files changes. A file that is not valid changes
    /// nothing.
    pub fn reload(&self) {
        self.access.reload();
    }

    /// Stops at once: work under way is left as if the process had been killed. [`Broker::wait`]
    /// tells when everything is gone.
    pub fn abort(&self) {
        self.abort.cancel();
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    ///
    /// [`BrokerError`] if it ended without having been told to.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again.
    pub async fn wait(&self) -> Result<(), BrokerError> {
        wait(self.end.clone()).await
    }

    /// Its state in numbers: a client's answer to [`mtimer_protocol::Query::Status`]. `None` if it
    /// has ended.
    pub async fn status(&self) -> Option<Status> {
        let place = self.control.reserve().await.ok()?;
        ask(place, &self.control).await
    }
}

/// Asks the engine's task for its state. A question whose place was taken before that task ended,
/// and used after, is left lying there for as long as the broker's handle lives: nobody answers it.
async fn ask(place: mpsc::Permit<'_, Control>, control: &mpsc::Sender<Control>) -> Option<Status> {
    let (to, mut status) = oneshot::channel();
    place.send(Control::Status(to));
    tokio::select! {
        biased;
        status = &mut status => status.ok(),
        () = control.closed() => status.try_recv().ok(),
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").field("local", &self.local).finish_non_exhaustive()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.abort.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_question_that_comes_as_the_engine_ends_is_not_waited_for() {
        let (control, controls) = mpsc::channel(CONTROLS);
        let place = control.reserve().await.unwrap();
        drop(controls);
        let status = timeout(Duration::from_secs(60), ask(place, &control)).await;
        assert!(status.expect("it is told").is_none());
    }
}
