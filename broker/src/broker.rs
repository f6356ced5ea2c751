//! A running broker: start, stop, wait.
//!
//! Stop order: in a cluster hand over, serving on; then accept none, drain, release, close.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, TryStreamExt, stream};
use mtimer_core::cluster::{Node, NodeOptions};
use mtimer_core::{Engine, EngineOptions};
use mtimer_protocol::Status;
use mtimer_store::{Acquired, Coordination, Store};
use mtimer_types::{Epoch, PartitionId, limits};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinError;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::acquire::{Acquirer, Outage};
use crate::clock::{Clock, keep};
use crate::cluster::{
    Answers, Assigned, Board, ClusterTask, Identity, ORDERS, Order, PEER_EVENTS, Parts as ClusterParts,
    PeerEvent, claim, who_answers,
};
use crate::counters::Counters;
use crate::error::{BrokerError, StartError};
use crate::frames::ReceiveBudget;
use crate::http::{self, DEFAULT_HTTP, Sources};
use crate::inbox::Gate;
use crate::lanes::{AcquireMode, Lanes};
use crate::listener::listen;
use crate::metrics::Source;
use crate::options::{BrokerOptions, HttpListen};
use crate::outbox::Outboxes;
use crate::reports;
use crate::session::{SessionContext, welcome};
use crate::shell::{Control, Membership, Parts, Shell};
use crate::tasks::{End, Tasks, wait};
use crate::traces::Traces;
use crate::wheel::Wheel;

/// Partitions that are acquired at the same time.
const ACQUIRE_AT_ONCE: usize = 64;
/// A partition whose place in the store its owner has not reached for so long, ms, goes to one that
/// reaches it.
const UNREACHABLE_MS: u64 = 2_000;
/// Requests to the engine's task that may wait.
const CONTROLS: usize = 64;
/// Connections that the system accepts before the listener does.
const BACKLOG: u32 = 1_024;
/// The same for metrics and health probes.
const HTTP_BACKLOG: u32 = 64;
/// Name and version of this software, as other brokers see them.
const SOFTWARE: &str = concat!("mtimer/", env!("CARGO_PKG_VERSION"));

/// Starts a broker on a store.
///
/// On a store of its own it acquires every partition, then accepts clients. On one that brokers
/// share it joins their cluster, or founds it, and is given its share. Returns once it owns what it
/// is to own. While the store is away it waits, up to [`BrokerOptions::startup_timeout`]. Must be
/// called within a tokio runtime.
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
/// is `None`. What a broker of a cluster owns by then is handed over as by [`Broker::stop`].
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

/// A broker that runs, and what waits until it is ready.
async fn begin(
    options: BrokerOptions,
    store: Arc<dyn Store>,
) -> Result<(Broker, impl Future<Output = Result<(), StartError>>), StartError> {
    options.validate()?;
    let access = Arc::new(Access::open(options.access.clone())?);
    // First of all: a second broker started by mistake on the same address must not take the
    // partitions over.
    let addr = options.listen;
    let listen_error = |source| StartError::Listen { addr, source };
    let socket = bind(addr).map_err(listen_error)?;
    let local = socket.local_addr().map_err(listen_error)?;
    let coordination = store.coordination();
    let identity = Arc::new(Identity::random());
    if coordination.is_some() {
        // Before it listens: whoever answers now is not this process.
        let (address, cluster) = (options.address(local)?, options.cluster.clone());
        let own = access.peer_credentials();
        if who_answers(&address, &cluster, SOFTWARE, own, &identity).await == Answers::Another {
            return Err(BrokerError::AddressTaken { address, cluster }.into());
        }
    }
    let listener = socket.listen(BACKLOG).map_err(listen_error)?;
    let web = Web::start(options.http, &access)?;
    if let (protection, true) = access.protection()
        && let Some(missing) = protection.missing()
    {
        tracing::warn!(%local, "insecure: {missing}: trusted networks only");
    }
    let counters = Arc::new(Counters::default());
    let patience = options.startup_timeout;
    let (ownership, joined) = match coordination {
        Some(coordination) => {
            let clock = Arc::new(start_clock(&options, &*store).await?);
            let (cluster, mode, joined) =
                found(&options, &store, coordination, &counters, &clock, &access, local)?;
            (Ownership { mode, clock, acquired: Vec::new(), cluster: Some(cluster) }, Some(joined))
        }
        None => (own_all(&options, &store, &counters).await?, None),
    };
    let endpoint = Endpoint { listener, identity, access, web };
    let (broker, running) = assemble(options, store, counters, ownership, endpoint)?;
    tokio::spawn(running);
    let end = broker.end.clone();
    let joining = async move {
        if let Some(joined) = joined {
            join(end, joined, patience).await?;
        }
        tracing::info!(%local, "ready");
        Ok(())
    };
    Ok((broker, joining))
}

/// Starts the clock, which waits for the store's.
async fn start_clock(options: &BrokerOptions, store: &dyn Store) -> Result<Clock, StartError> {
    let (began, start) = (Instant::now(), Clock::start(options.host_clock.clone(), store));
    match options.startup_timeout {
        None => Ok(start.await),
        Some(patience) => timeout(patience, start).await.map_err(|_| {
            let last = "none of its clocks has answered".to_owned();
            StartError::StoreAway { waited: began.elapsed(), last }
        }),
    }
}

/// Reserves an address without listening on it. Fails if another socket listens there.
fn bind(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // So that connections of an earlier process that are still closing do not hold up a restart.
    // Elsewhere than on Unix the option would allow two listeners.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    Ok(socket)
}

/// Waits until a broker of a cluster owns what it was first assigned.
async fn join(
    end: End,
    mut joined: watch::Receiver<bool>,
    patience: Option<Duration>,
) -> Result<(), StartError> {
    let began = Instant::now();
    let done = async {
        tokio::select! {
            // An error means that the engine's task has ended: the other branch tells.
            Ok(_) = joined.wait_for(|joined| *joined) => Ok(()),
            ended = wait(end) => ended.map_err(StartError::Ended),
        }
    };
    match patience {
        None => done.await,
        Some(patience) => timeout(patience, done).await.unwrap_or_else(|_| {
            let why = "there is no leader that has given it anything, or the store is away".to_owned();
            Err(StartError::NotJoined { waited: began.elapsed(), why })
        }),
    }
}

/// The parts of a broker's cluster side.
struct ClusterSide {
    task: ClusterTask,
    membership: Membership,
    peers: mpsc::Sender<PeerEvent>,
    orders: mpsc::Sender<Order>,
}

type Founded = (ClusterSide, AcquireMode, watch::Receiver<bool>);

fn found(
    options: &BrokerOptions,
    store: &Arc<dyn Store>,
    coordination: Arc<dyn Coordination>,
    counters: &Arc<Counters>,
    clock: &Arc<Clock>,
    access: &Arc<Access>,
    local: SocketAddr,
) -> Result<Founded, StartError> {
    let address = options.address(local)?;
    let own = &options.membership;
    let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    let software = SOFTWARE.to_owned();
    let node = NodeOptions {
        cluster: options.cluster.clone(),
        partitions: store.info().partitions,
        address: address.clone(),
        incarnation: rand::random(),
        software: software.clone(),
        weight: own.weight,
        heartbeat_ms: ms(own.peer_heartbeat),
        member_timeout_ms: ms(own.peer_timeout),
        lease_ttl_ms: ms(own.lease_ttl),
        renew_ms: ms(own.lease_ttl) * 7 / 25,
        unreachable_ms: UNREACHABLE_MS,
        seed: rand::random(),
    };
    let (orders_in, orders) = mpsc::channel(ORDERS);
    let (peers, peers_out) = mpsc::channel(PEER_EVENTS);
    let (topology, topology_out) = watch::channel(None);
    let (joined, joined_out) = watch::channel(false);
    let board = Arc::new(Board::default());
    let task = ClusterTask::new(ClusterParts {
        node: Node::new(node, clock.now().mono_ms),
        store: coordination,
        clock: clock.clone(),
        board: board.clone(),
        orders: orders_in.clone(),
        peers: peers_out,
        topology,
        counters: counters.clone(),
        software,
        access: access.clone(),
    });
    let patience = own.handover_timeout;
    let assigned = Assigned::new(store.clone(), &address, topology_out, patience, counters.clone());
    let membership = Membership { address, board, orders, joined, topology: None };
    let side = ClusterSide { task, membership, peers, orders: orders_in };
    Ok((side, AcquireMode::Assigned(Arc::new(assigned)), joined_out))
}

/// What a broker needs before it serves anybody.
struct Ownership {
    mode: AcquireMode,
    clock: Arc<Clock>,
    acquired: Vec<(PartitionId, Acquired)>,
    cluster: Option<ClusterSide>,
}

async fn own_all(
    options: &BrokerOptions,
    store: &Arc<dyn Store>,
    counters: &Arc<Counters>,
) -> Result<Ownership, StartError> {
    let outage = Arc::new(Outage::default());
    let own = async {
        let acquirer = Acquirer::start(store.clone(), outage.clone(), counters.clone())
            .await
            .map_err(StartError::Store)?;
        let clock = Clock::start(options.host_clock.clone(), &**store).await;
        let one = |p| {
            let acquirer = &acquirer;
            async move {
                acquirer.acquire(PartitionId(p), Epoch(0)).await.map(|acquired| (PartitionId(p), acquired))
            }
        };
        let partitions = stream::iter(0..store.info().partitions);
        let acquired = partitions.map(one).buffer_unordered(ACQUIRE_AT_ONCE).try_collect().await?;
        let mode = AcquireMode::Alone(Arc::new(acquirer));
        Ok(Ownership { mode, clock: Arc::new(clock), acquired, cluster: None })
    };
    let began = Instant::now();
    match options.startup_timeout {
        None => own.await,
        Some(patience) => timeout(patience, own).await.unwrap_or_else(|_| {
            let last =
                outage.why().map_or_else(|| "it has not answered".to_owned(), |error| error.to_string());
            Err(StartError::StoreAway { waited: began.elapsed(), last })
        }),
    }
}

/// What serves HTTP: it is there before the partitions are.
struct Web {
    tasks: Tasks,
    sources: watch::Sender<Option<Arc<Source>>>,
    addr: Option<SocketAddr>,
}

/// Where others connect, and who is let in there.
struct Endpoint {
    listener: TcpListener,
    identity: Arc<Identity>,
    access: Arc<Access>,
    web: Web,
}

impl Web {
    fn start(http: HttpListen, access: &Arc<Access>) -> Result<Self, StartError> {
        let (sources, answered_from) = watch::channel(None);
        let mut web = Self { tasks: Tasks::default(), sources, addr: None };
        match http {
            HttpListen::Off => {}
            HttpListen::At(addr) => {
                web.listen(addr, answered_from, access)
                    .map_err(|source| StartError::Http { addr, source })?;
            }
            HttpListen::Auto => {
                if let Err(error) = web.listen(DEFAULT_HTTP, answered_from, access) {
                    tracing::warn!(
                        addr = %DEFAULT_HTTP, %error,
                        "metrics and health probes are not served: give this broker an address with --http"
                    );
                }
            }
        }
        Ok(web)
    }

    fn listen(&mut self, addr: SocketAddr, answered_from: Sources, access: &Arc<Access>) -> io::Result<()> {
        let listener = bind(addr)?.listen(HTTP_BACKLOG)?;
        let local = listener.local_addr()?;
        if !local.ip().is_loopback() && !access.protection().0.is_authenticated {
            tracing::warn!(
                %local,
                "metrics are served beyond this machine, to anybody: they name destinations; trusted networks only"
            );
        }
        tracing::info!(%local, "metrics and health probes are served");
        self.addr = Some(local);
        self.tasks.spawn("http", http::serve(listener, answered_from, access.clone()));
        Ok(())
    }
}

/// Puts the parts together: the handle, and the future that runs everything.
fn assemble(
    options: BrokerOptions,
    store: Arc<dyn Store>,
    counters: Arc<Counters>,
    ownership: Ownership,
    endpoint: Endpoint,
) -> Result<(Broker, impl Future<Output = ()> + Send + use<>), StartError> {
    let Ownership { mode, clock, acquired, cluster } = ownership;
    let Endpoint { listener, identity, access, web } = endpoint;
    let (cluster_tasks, membership, peers) = match cluster {
        Some(ClusterSide { task, membership, peers, orders }) => {
            (Some((task, orders)), Some(membership), Some(peers))
        }
        None => (None, None, None),
    };
    let local =
        listener.local_addr().map_err(|source| StartError::Listen { addr: options.listen, source })?;
    let address = membership.as_ref().map(|m| m.address.clone());
    let cluster = options.cluster.clone();
    let info = store.info();
    let (gate, inbox) = Gate::new();
    let (control, controls) = mpsc::channel(CONTROLS);
    let stopping = CancellationToken::new();
    let seed = if options.engine.seed == 0 { rand::random() } else { options.engine.seed };
    let engine =
        EngineOptions { partitions: info.partitions, seed, address: address.clone(), ..options.engine };
    let engine = EngineOptions { traces: options.traces.is_some(), ..engine };
    let shell = Shell::new(Parts {
        engine: Engine::new(engine, clock.now()),
        clock: clock.clone(),
        wheel: Wheel::new(clock.clone()).map_err(StartError::Thread)?,
        lanes: Lanes::new(mode),
        store: store.clone(),
        counters: counters.clone(),
        inbox,
        control: controls,
        drain_timeout: options.drain_timeout,
        stopping: stopping.clone(),
        cluster: membership,
        traces: options.traces.map(Traces::new),
    });
    let context = Arc::new(SessionContext {
        gate,
        clock: clock.clone(),
        counters: counters.clone(),
        access: access.clone(),
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
        welcome: welcome(options.cluster, info, options.heartbeat, address.clone()),
        identity: identity.clone(),
        stopping: stopping.clone(),
        cluster: peers,
    });
    let (ended, end) = watch::channel(None);
    let abort = CancellationToken::new();
    let source = Source {
        control: control.clone(),
        store: store.clone(),
        counters: counters.clone(),
        gate: context.gate.clone(),
        receiving: context.receiving.clone(),
        outboxes: context.outboxes.clone(),
        destinations: options.metrics_destinations,
        started: SystemTime::now(),
    };
    let Web { mut tasks, sources, addr: http } = web;
    sources.send_replace(Some(Arc::new(source)));
    let reported = control.clone();
    let broker = Broker { local, http, control, end, access: access.clone(), abort: abort.clone() };
    let running = async move {
        tasks.spawn("engine", shell.run(acquired));
        tasks.spawn("reports", reports::run(reported));
        let watch = access.clone().watch(stopping.clone());
        let panicked = |e: JoinError| BrokerError::Panicked { task: "access", what: e.to_string() };
        tasks.spawn("access", async move { watch.await.map_err(panicked) });
        if let (Some((task, orders)), Some(address)) = (cluster_tasks, address) {
            tasks.spawn("cluster", task.run());
            tasks.spawn("address", async move {
                claim(address, cluster, SOFTWARE, &access, &identity, orders).await;
                Ok(())
            });
        }
        tasks.spawn("listener", listen(listener, context, options.max_handshakes));
        let clock_stop = stopping.clone();
        tasks.spawn("clock", async move {
            keep(clock, store, counters, clock_stop).await;
            Ok(())
        });
        let end = tasks.supervise(&stopping, &abort).await;
        if let Err(error) = &end {
            tracing::error!(%error, "the broker has ended");
        }
        ended.send_replace(Some(end));
    };
    Ok((broker, running))
}

/// A running broker. Dropping it stops it at once, like [`Broker::abort`].
pub struct Broker {
    local: SocketAddr,
    http: Option<SocketAddr>,
    control: mpsc::Sender<Control>,
    end: End,
    access: Arc<Access>,
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
    /// the drain timeout, gives up what it still has (5 s at most), and closes the sessions (4 s at
    /// most). Returns when it has ended; why, if not because of this.
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

    /// Stops at once: what is under way is left as if the process had been killed. [`Broker::wait`]
    /// tells when everything is gone.
    pub fn abort(&self) {
        self.abort.cancel();
    }

    /// Waits until it has ended: `Ok` if it was told to, otherwise why.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again.
    pub async fn wait(&self) -> Result<(), BrokerError> {
        wait(self.end.clone()).await
    }

    /// Its state in numbers: what a client gets for [`mtimer_protocol::Query::Status`]. `None` if
    /// it has ended.
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
