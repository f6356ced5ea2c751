//! How a broker comes to own partitions: as a member of a cluster, or alone on its store.
//!
//! Either way somebody gives it partitions by [`Order`]s and reads the [`Board`]: the cluster's
//! task, or [`Solo`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use mtimer_core::cluster::{Node, NodeOptions};
use mtimer_store::{Coordination, Store};
use mtimer_types::Term;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

use super::board::Board;
use super::event::{Order, PeerEvent};
use super::solo::{Solo, raise_term};
use super::taken::{AddressReach, AddressWatch, BrokerIdentity};
use super::task::{ClusterTask, ClusterTaskParts};
use super::{ORDERS, PEER_EVENTS, SOFTWARE};
use crate::access::AccessControl;
use crate::acquire::{AcquirePolicy, Acquirer, HighestEpoch, Superseded};
use crate::clock::BrokerClock;
use crate::counters::ShellCounters;
use crate::error::{BrokerError, StartError};
use crate::options::BrokerOptions;
use crate::outage::Outage;
use crate::tasks::{BrokerExit, wait};

/// A partition whose place in the store its owner has not reached for so long, ms, goes to one that
/// reaches it.
const UNREACHABLE_MS: u64 = 2_000;
/// Acquisitions at the same time in a cluster: reading a large partition's indexes is work, and
/// this broker has others to serve meanwhile.
const ACQUIRE_AT_ONCE: usize = 8;
/// The same for a broker alone, which serves nobody before it owns everything: a store that syncs
/// takes all of them with one sync.
const ACQUIRE_AT_ONCE_ALONE: usize = 64;

/// Resources of every broker, with any store.
#[derive(Clone)]
pub(crate) struct Resources {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) counters: Arc<ShellCounters>,
    pub(crate) access: Arc<AccessControl>,
    pub(crate) identity: Arc<BrokerIdentity>,
    /// Where it listens.
    pub(crate) local: SocketAddr,
}

/// The engine's task's part of the cluster.
pub(crate) struct Membership {
    pub(crate) board: Arc<Board>,
    pub(crate) orders: mpsc::Receiver<Order>,
    /// Set once this broker owns its first share.
    pub(crate) joined: watch::Sender<bool>,
    /// Whether this broker is reached at its address; a broker alone has none.
    pub(crate) reach: watch::Receiver<AddressReach>,
}

/// How a broker takes part in its cluster, which may be a cluster of one.
pub(crate) struct ClusterSetup {
    pub(crate) clock: Arc<BrokerClock>,
    pub(crate) acquirer: Arc<Acquirer>,
    pub(crate) membership: Membership,
    pub(crate) joining: Joining,
    /// This broker's address in the topology; `None`: there is none.
    pub(crate) address: Option<String>,
    /// The way to the cluster's task for other brokers; `None`: there are none.
    pub(crate) peers: Option<mpsc::Sender<PeerEvent>>,
    /// Tasks to run, by name.
    pub(crate) tasks: Vec<(&'static str, BoxFuture<'static, Result<(), BrokerError>>)>,
}

/// Tells when a broker owns its first share.
#[derive(Clone)]
pub(crate) struct Joining {
    joined: watch::Receiver<bool>,
    reach: watch::Receiver<AddressReach>,
    began: Instant,
    counters: Arc<ShellCounters>,
    /// Of a broker alone: why the store is away, if it is.
    alone: Option<Arc<Outage>>,
}

/// Takes part in the cluster whose brokers share this store. Waits for the clock only.
pub(crate) async fn set_up_member(
    options: &BrokerOptions,
    coordination: Arc<dyn Coordination>,
    resources: &Resources,
) -> Result<ClusterSetup, StartError> {
    let Resources { store, counters, access, identity, local } = resources.clone();
    let address = options.address(local)?;
    let clock = within(options, Instant::now(), start_clock(options, &*store), no_clock).await?;
    let clock = Arc::new(clock);
    let (orders_in, orders) = mpsc::channel(ORDERS);
    let (peers, peers_out) = mpsc::channel(PEER_EVENTS);
    let (topology, topology_out) = watch::channel(None);
    let (board, highest) = (Arc::new(Board::default()), Arc::new(HighestEpoch::default()));
    let (reach_in, reach) = watch::channel(AddressReach::Unknown);
    let task = ClusterTask::new(ClusterTaskParts {
        node: Node::new(node_options(options, &*store, &address), clock.now().mono_ms),
        partitions: store.info().partitions,
        address: address.clone(),
        store: coordination,
        clock: clock.clone(),
        board: board.clone(),
        orders: orders_in.clone(),
        peers: peers_out,
        topology,
        highest: highest.clone(),
        counters: counters.clone(),
        software: SOFTWARE.to_owned(),
        access: access.clone(),
        reach: reach.clone(),
    });
    let policy = AcquirePolicy {
        handover_timeout: options.membership.handover_timeout,
        at_once: ACQUIRE_AT_ONCE,
        superseded: Superseded::Wait,
    };
    let acquirer =
        Acquirer::new(store, &address, topology_out, policy, highest, Arc::default(), counters.clone());
    let (own, cluster) = (address.clone(), options.cluster.clone());
    let watch =
        AddressWatch { address: own, cluster, access, identity, board: board.clone(), seen: reach_in };
    let look = async move {
        watch.run(orders_in).await;
        Ok(())
    };
    let (membership, joined) = membership(board, orders, reach.clone());
    Ok(ClusterSetup {
        clock,
        acquirer: Arc::new(acquirer),
        membership,
        joining: Joining { joined, reach, began: Instant::now(), counters, alone: None },
        address: Some(address),
        peers: Some(peers),
        tasks: vec![("cluster", Box::pin(task.run())), ("address", Box::pin(look))],
    })
}

/// Makes a cluster of one, on a store that has no election. Waits for the store's term and for the
/// clock.
pub(crate) async fn set_up_alone(
    options: &BrokerOptions,
    resources: &Resources,
) -> Result<ClusterSetup, StartError> {
    let Resources { store, counters, local, .. } = resources.clone();
    let began = Instant::now();
    let outage = Arc::new(Outage::default());
    let start = async {
        let term = raise_term(&*store, &outage, &counters).await.map_err(StartError::Store)?;
        Ok((term, start_clock(options, &*store).await?))
    };
    let (term, clock) = within(options, began, start, || last_of(&outage)).await?;
    // It leads, in no term of a cluster.
    counters.note_node(std::iter::empty(), true, Term(0));
    let (orders_in, orders) = mpsc::channel(ORDERS);
    let board = Arc::new(Board::default());
    let clock = Arc::new(clock);
    let task = Solo::new(store.info().partitions, term, board.clone(), orders_in, clock.clone());
    let policy = AcquirePolicy {
        handover_timeout: Duration::ZERO,
        at_once: ACQUIRE_AT_ONCE_ALONE,
        superseded: Superseded::End,
    };
    let (_, nobody) = watch::channel(None);
    let (local, highest) = (local.to_string(), Arc::default());
    let acquirer = Acquirer::new(store, &local, nobody, policy, highest, outage.clone(), counters.clone());
    let (_, reach) = watch::channel(AddressReach::Reached);
    let (membership, joined) = membership(board, orders, reach.clone());
    Ok(ClusterSetup {
        clock,
        acquirer: Arc::new(acquirer),
        membership,
        joining: Joining { joined, reach, began, counters, alone: Some(outage) },
        address: None,
        peers: None,
        tasks: vec![("cluster", Box::pin(task.run()))],
    })
}

impl Joining {
    /// Waits until the broker is reached at its address and owns its first share.
    pub(crate) async fn wait(
        mut self,
        end: BrokerExit,
        startup_timeout: Option<Duration>,
    ) -> Result<(), StartError> {
        let began = self.began;
        let done = async {
            let is_ready = async {
                self.reach.wait_for(|reach| *reach == AddressReach::Reached).await.is_ok()
                    && self.joined.wait_for(|joined| *joined).await.is_ok()
            };
            tokio::select! {
                // Otherwise the engine's task has ended: the other branch tells.
                true = is_ready => Ok(()),
                ended = wait(end) => ended.map_err(StartError::Ended),
            }
        };
        let Some(startup_timeout) = startup_timeout else { return done.await };
        if let Ok(done) = timeout_at(began + startup_timeout, done).await {
            return done;
        }
        let waited = began.elapsed();
        Err(match &self.alone {
            Some(outage) => StartError::StoreAway { waited, last: last_of(outage) },
            None => {
                let none =
                    || "there is no leader that has given it anything, or the store is away".to_owned();
                let leader = || self.counters.leader_problem();
                let why = self.reach.borrow().problem().or_else(leader).unwrap_or_else(none);
                StartError::NotJoined { waited, why }
            }
        })
    }

    /// Waits until clients may come: in a cluster at once, because other brokers have to; to a
    /// broker alone once it owns everything. `false`: the broker has ended before.
    pub(crate) async fn open(mut self) -> bool {
        self.alone.is_none() || self.joined.wait_for(|joined| *joined).await.is_ok()
    }
}

fn membership(
    board: Arc<Board>,
    orders: mpsc::Receiver<Order>,
    reach: watch::Receiver<AddressReach>,
) -> (Membership, watch::Receiver<bool>) {
    let (joined, joined_out) = watch::channel(false);
    (Membership { board, orders, joined, reach }, joined_out)
}

fn node_options(options: &BrokerOptions, store: &dyn Store, address: &str) -> NodeOptions {
    let own = &options.membership;
    let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    NodeOptions {
        cluster: options.cluster.clone(),
        partitions: store.info().partitions,
        address: address.to_owned(),
        incarnation: rand::random(),
        software: SOFTWARE.to_owned(),
        weight: own.weight,
        heartbeat_ms: ms(own.peer_heartbeat),
        member_timeout_ms: ms(own.peer_timeout),
        lease_ttl_ms: ms(own.lease_ttl),
        renew_ms: ms(own.lease_ttl) * 7 / 25,
        unreachable_ms: UNREACHABLE_MS,
        seed: rand::random(),
    }
}

/// Starts the clock, which waits for the store's.
async fn start_clock(options: &BrokerOptions, store: &dyn Store) -> Result<BrokerClock, StartError> {
    Ok(BrokerClock::start(options.host_clock.clone(), store).await)
}

/// Gives something up when `startup_timeout` has passed. `last`: why, for people.
async fn within<T>(
    options: &BrokerOptions,
    began: Instant,
    start: impl Future<Output = Result<T, StartError>>,
    last: impl FnOnce() -> String,
) -> Result<T, StartError> {
    let Some(startup_timeout) = options.startup_timeout else { return start.await };
    let away = |_| Err(StartError::StoreAway { waited: began.elapsed(), last: last() });
    timeout_at(began + startup_timeout, start).await.unwrap_or_else(away)
}

fn no_clock() -> String {
    "none of its clocks has answered".to_owned()
}

fn last_of(outage: &Outage) -> String {
    outage.why().map_or_else(|| "it has not answered".to_owned(), |error| error.to_string())
}
