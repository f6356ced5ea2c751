//! The cluster's task: hands the node events and carries out its decisions.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use mtimer_core::cluster::{DrainError, Node, NodeEffect, NodeInput, PeerId};
use mtimer_protocol::{ErrorCode, PeerRequest, Query, QueryAnswer, ServerMessage, Topology, encode};
use mtimer_store::{Coordination, StoreError};
use mtimer_types::PartitionId;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::board::{Board, Posted};
use super::change;
use super::event::{Order, PeerEvent, PeerWhat};
use super::link::{LeaderConnection, LinkEvent};
use super::taken::AddressReach;
use crate::access::AccessControl;
use crate::acquire::HighestEpoch;
use crate::clock::BrokerClock;
use crate::counters::ShellCounters;
use crate::error::BrokerError;
use crate::outbox::Outbox;

/// How often it is looked whether the store can be reached.
const REACH_EVERY: Duration = Duration::from_secs(1);
/// How long a call on the lease is waited for: a later answer is worth nothing.
const LEASE_CALL: Duration = Duration::from_secs(2);
/// How long giving up the lease may take when the broker stops.
const RESIGN: Duration = Duration::from_secs(1);

/// Parts of the task.
pub(crate) struct ClusterTaskParts {
    pub(crate) node: Node,
    /// Partitions of the store.
    pub(crate) partitions: u16,
    /// This broker's address in the topology.
    pub(crate) address: String,
    pub(crate) store: Arc<dyn Coordination>,
    pub(crate) clock: Arc<BrokerClock>,
    pub(crate) board: Arc<Board>,
    pub(crate) orders: mpsc::Sender<Order>,
    pub(crate) peers: mpsc::Receiver<PeerEvent>,
    pub(crate) topology: watch::Sender<Option<Arc<Topology>>>,
    /// The highest known epoch: acquisitions have to be above it.
    pub(crate) highest: Arc<HighestEpoch>,
    pub(crate) counters: Arc<ShellCounters>,
    pub(crate) software: String,
    /// Has this broker's own token, for the leader.
    pub(crate) access: Arc<AccessControl>,
    /// Whether this broker is reached at its address.
    pub(crate) reach: watch::Receiver<AddressReach>,
}

/// See the module.
pub(crate) struct ClusterTask {
    parts: ClusterTaskParts,
    link: Option<LeaderConnection>,
    peers: HashMap<PeerId, Arc<Outbox>>,
    calls: FuturesUnordered<BoxFuture<'static, NodeInput>>,
    reaching: bool,
    reach_at: Instant,
    /// Partitions whose place in the store was not reached when it was last looked.
    away: Vec<PartitionId>,
    posted: Posted,
    /// Brokers that the log has called lost.
    lost: BTreeSet<String>,
}

/// Events that the cluster's task waits for.
enum ClusterTaskEvent {
    Time,
    Node(NodeInput),
    Link(LinkEvent),
    Peer(PeerEvent),
    Board,
    /// Whether this broker is reached at its address has been looked at.
    Reach,
    /// The engine's task has ended.
    End,
}

impl ClusterTask {
    pub(crate) fn new(parts: ClusterTaskParts) -> Self {
        Self {
            parts,
            link: None,
            peers: HashMap::new(),
            calls: FuturesUnordered::new(),
            reaching: false,
            reach_at: Instant::now(),
            away: Vec::new(),
            lost: BTreeSet::new(),
            posted: Posted::default(),
        }
    }

    /// Runs until the engine's task has ended; then gives the lease up.
    pub(crate) async fn run(mut self) -> Result<(), BrokerError> {
        // Usually it is reached within milliseconds, and nobody ever hears that it was not.
        // An error means that the broker ends.
        _ = self.parts.reach.wait_for(|reach| *reach != AddressReach::Unknown).await;
        self.tell_reach();
        loop {
            self.look_at_reach();
            if !self.carry_out().await {
                break;
            }
            let node = &self.parts.node;
            self.parts.counters.note_node(node.counters(), node.leads(), node.term());
            self.note_lost();
            self.note_unreached_leader();
            match self.next().await {
                ClusterTaskEvent::Time => self.tell(NodeInput::Tick),
                ClusterTaskEvent::Node(NodeInput::Unreachable(partitions)) => {
                    self.reaching = false;
                    let owned = partitions.iter().filter(|p| self.posted.owned.contains_key(p)).count();
                    self.parts.counters.note_unreachable(owned);
                    self.away = partitions;
                    self.tell_unreachable();
                }
                ClusterTaskEvent::Node(input) => self.tell(input),
                ClusterTaskEvent::Reach => self.tell_reach(),
                ClusterTaskEvent::Link(event) => self.take_from_link(event),
                ClusterTaskEvent::Peer(event) => self.take_from_peer(event),
                ClusterTaskEvent::Board => self.read_board(),
                ClusterTaskEvent::End => break,
            }
        }
        if let Some(lease) = self.parts.node.lease() {
            // A lease that is not given up runs out by itself.
            let _ = timeout(RESIGN, self.parts.store.resign(lease)).await;
        }
        Ok(())
    }

    async fn next(&mut self) -> ClusterTaskEvent {
        let wake = self.parts.clock.instant_of_mono(self.parts.node.next_tick()).min(self.reach_at);
        let link = async {
            match &mut self.link {
                Some(link) => link.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.parts.orders.closed() => ClusterTaskEvent::End,
            Some(input) = self.calls.next() => ClusterTaskEvent::Node(input),
            event = link => ClusterTaskEvent::Link(event),
            Some(event) = self.parts.peers.recv() => ClusterTaskEvent::Peer(event),
            () = self.parts.board.changed() => ClusterTaskEvent::Board,
            Ok(()) = self.parts.reach.changed() => ClusterTaskEvent::Reach,
            () = sleep_until(wake) => ClusterTaskEvent::Time,
        }
    }

    fn now(&self) -> u64 {
        self.parts.clock.now().mono_ms
    }

    fn tell(&mut self, input: NodeInput) {
        let now = self.parts.clock.now();
        self.parts.node.handle(now, input);
    }

    /// Tells the node whether this broker is reached at its address, and carries out the
    /// consequences.
    fn tell_reach(&mut self) {
        let is_reached = *self.parts.reach.borrow() == AddressReach::Reached;
        self.tell(NodeInput::Reached(is_reached));
        self.tell_unreachable();
    }

    /// Tells the node which partitions this broker cannot serve now: all, if it was never reached
    /// at its address. One that was reached keeps them: perhaps only the way to itself is broken.
    fn tell_unreachable(&mut self) {
        let was_reached = self.parts.reach.borrow().was_reached();
        let all = || (0..self.parts.partitions).map(PartitionId).collect();
        self.tell(NodeInput::Unreachable(if was_reached { self.away.clone() } else { all() }));
    }

    /// Notes which brokers the cluster has lost; each has a line of the log, and another when it is
    /// back.
    fn note_lost(&mut self) {
        let lost: Vec<_> = self.parts.node.lost_brokers().map(|(a, since)| (a.to_owned(), since)).collect();
        if lost.is_empty() && self.lost.is_empty() {
            return;
        }
        for (address, _) in lost.iter().filter(|(address, _)| !self.lost.contains(address)) {
            tracing::warn!(address, "the cluster has lost a broker: the others take its partitions over");
        }
        let members = self.parts.topology.borrow().clone();
        for address in self.lost.iter().filter(|address| lost.iter().all(|(other, _)| other != *address)) {
            if members.iter().any(|t| t.brokers.iter().any(|broker| broker.address == *address)) {
                tracing::info!(address, "a broker that was lost is back");
            }
        }
        self.lost = lost.iter().map(|(address, _)| address.clone()).collect();
        self.parts.counters.note_lost(lost);
    }

    /// Notes which leader this broker does not reach; that has a line of the log.
    fn note_unreached_leader(&mut self) {
        let of = |(address, why): (&str, &str)| (address.to_owned(), why.to_owned());
        let now = self.parts.node.unreached_leader().map(of);
        let before = self.parts.counters.unreached_leader();
        if now == before {
            return;
        }
        match &now {
            Some((leader, why)) if before.is_none_or(|(before, _)| before != *leader) => tracing::warn!(
                leader,
                why,
                "the cluster's leader cannot be reached: this broker cannot join the cluster, or learns of no changes; \
                 correct that broker's --advertise, or the network between the brokers"
            ),
            Some(_) => {}
            None => tracing::info!("the cluster's leader is reached, or another one leads"),
        }
        self.parts.counters.note_unreached_leader(now);
    }

    /// Tells the node how things on the board have changed.
    fn read_board(&mut self) {
        let now = self.parts.board.take();
        if !now.asks.is_empty() {
            self.tell(NodeInput::AskShares(now.asks.values().cloned().collect()));
        }
        let before = std::mem::replace(&mut self.posted, now.clone());
        // An ownership that began and ended since the last look is reported as lost, too.
        for partition in &now.ended {
            if before.owned.contains_key(partition) || !now.owned.contains_key(partition) {
                self.tell(NodeInput::Lost(*partition));
            }
        }
        for (partition, epoch) in &now.owned {
            if before.owned.get(partition) != Some(epoch) {
                self.tell(NodeInput::Owned(*partition, *epoch));
            }
        }
        if before.load != now.load {
            self.tell(NodeInput::Load(now.load));
        }
        if now.stop && !before.stop {
            tracing::info!("stopping: others take the partitions over");
            self.tell(NodeInput::Stop);
        }
    }

    fn take_from_link(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Up => self.tell(NodeInput::LinkUp),
            LinkEvent::Answer(answer) => self.tell(NodeInput::FromLeader(answer)),
            LinkEvent::Down(why) => {
                self.link = None;
                self.tell(NodeInput::LinkDown(why));
            }
        }
    }

    fn take_from_peer(&mut self, PeerEvent { session, what }: PeerEvent) {
        let peer = PeerId(session.0);
        match what {
            PeerWhat::Request { request, outbox } => {
                self.peers.insert(peer, outbox);
                self.tell(NodeInput::FromPeer(peer, request));
            }
            PeerWhat::Query { corr, query, outbox } => {
                let answer = self.answer(query);
                outbox.push(ServerMessage::Answer { corr, answer });
            }
            PeerWhat::Gone => {
                self.peers.remove(&peer);
                self.tell(NodeInput::PeerGone(peer));
            }
        }
    }

    fn answer(&mut self, query: Query) -> QueryAnswer {
        let now = self.now();
        match query {
            Query::Cluster => QueryAnswer::Cluster(self.parts.node.view(now)),
            Query::Drain { broker, drain } => match self.parts.node.drain(now, &broker, drain) {
                Ok(()) => QueryAnswer::Done,
                Err(DrainError::NotLeader(Some(owner))) => QueryAnswer::Moved { owner },
                Err(error @ DrainError::NotLeader(None)) => {
                    QueryAnswer::Failed { code: ErrorCode::NotOwner, message: error.to_string() }
                }
                Err(error @ DrainError::Unknown { .. }) => {
                    QueryAnswer::Failed { code: ErrorCode::Invalid, message: error.to_string() }
                }
            },
            _ => QueryAnswer::Failed {
                code: ErrorCode::Invalid,
                message: "not a question about the cluster".to_owned(),
            },
        }
    }

    /// Begins to look whether the store can be reached, if it is time.
    fn look_at_reach(&mut self) {
        if self.reach_at > Instant::now() {
            return;
        }
        self.reach_at = Instant::now() + REACH_EVERY;
        self.tell(NodeInput::Load(self.parts.board.look_at_load()));
        if !std::mem::replace(&mut self.reaching, true) {
            let reach = self.parts.store.unreachable();
            let partitions = self.posted.owned.keys().copied().collect::<Vec<PartitionId>>();
            self.calls.push(Box::pin(async move {
                // A store that does not answer at all is away; then all owned partitions are
                // concerned.
                NodeInput::Unreachable(reach.await.unwrap_or(partitions))
            }));
        }
    }

    /// Carries out the node's effects. `false`: the engine's task has ended.
    async fn carry_out(&mut self) -> bool {
        // Before anything is acquired because of it.
        self.parts.highest.see(self.parts.node.epoch());
        let mut effects = self.parts.node.effects();
        while !effects.is_empty() {
            for effect in effects {
                if !self.carry_out_one(effect).await {
                    return false;
                }
            }
            // Carrying them out may have told the node something.
            effects = self.parts.node.effects();
        }
        true
    }

    async fn carry_out_one(&mut self, effect: NodeEffect) -> bool {
        let order = match effect {
            NodeEffect::Adopt(topology) => {
                tracing::info!(
                    term = topology.term.0,
                    version = topology.version,
                    leader = topology.leader,
                    brokers = topology.brokers.len(),
                    "topology"
                );
                let before = self.parts.topology.send_replace(Some(topology.clone()));
                change::log(before.as_deref(), &topology, &self.parts.address);
                let share = self.share(&topology);
                if self.parts.orders.send(Order::Adopt(topology)).await.is_err() {
                    return false;
                }
                share
            }
            NodeEffect::Own { partition, term, version } => Order::Own { partition, term, version },
            NodeEffect::Disown(partition) => Order::Disown(partition),
            NodeEffect::Lent(shares) => Order::Lent(shares),
            NodeEffect::Left => Order::Left,
            NodeEffect::Refused(why) => Order::Refused(why),
            other => {
                self.carry_out_here(other);
                return true;
            }
        };
        self.parts.orders.send(order).await.is_ok()
    }

    /// The partitions of this broker by a topology.
    fn share(&self, topology: &Topology) -> Order {
        let own = &self.parts.address;
        Order::Share {
            partitions: topology.partitions_of(own).collect(),
            is_member: topology.brokers.iter().any(|b| b.address == *own),
        }
    }

    /// Carries out an effect that does not concern the engine's task.
    fn carry_out_here(&mut self, effect: NodeEffect) {
        let sent = self.now();
        match effect {
            NodeEffect::Campaign(candidate) => {
                let call = bounded(self.parts.store.campaign(candidate));
                self.call(async move { NodeInput::Campaigned { sent, answer: call.await } });
            }
            NodeEffect::Look => {
                let call = bounded(self.parts.store.holder());
                self.call(async move { NodeInput::Looked { sent, answer: call.await } });
            }
            NodeEffect::Renew(lease, ttl_ms) => {
                let call = bounded(self.parts.store.renew(lease, ttl_ms));
                self.call(async move { NodeInput::Renewed { sent, answer: call.await } });
            }
            NodeEffect::Resign(lease) => {
                let call = bounded(self.parts.store.resign(lease));
                self.call(async move {
                    // A lease that is not given up runs out by itself.
                    let _ = call.await;
                    NodeInput::Tick
                });
            }
            NodeEffect::SteppedDown(term, why) => {
                tracing::info!(term = term.0, %why, "this broker leads no more");
            }
            NodeEffect::Publish(lease, topology) => {
                let (term, version) = topology.stamp();
                match encode(&topology) {
                    Ok(bytes) => {
                        let call = bounded(self.parts.store.publish(lease, bytes));
                        self.call(async move { NodeInput::Published { term, version, answer: call.await } });
                    }
                    Err(error) => {
                        tracing::error!(%error, "a topology could not be encoded");
                        let answer = Err(StoreError::Unusable(error.to_string()));
                        self.tell(NodeInput::Published { term, version, answer });
                    }
                }
            }
            NodeEffect::Connect(address) => {
                let ClusterTaskParts { software, access, .. } = &self.parts;
                self.link = Some(LeaderConnection::open(address, software, access.peer_credentials()));
            }
            NodeEffect::Disconnect => self.link = None,
            NodeEffect::ToLeader(request) => self.send_to_leader(request),
            NodeEffect::ToPeer(peer, answer) => {
                if let Some(outbox) = self.peers.get(&peer) {
                    outbox.push(ServerMessage::Peer(answer));
                }
            }
            NodeEffect::Adopt(_)
            | NodeEffect::Own { .. }
            | NodeEffect::Disown(_)
            | NodeEffect::Lent(_)
            | NodeEffect::Left
            | NodeEffect::Refused(_) => {}
        }
    }

    fn send_to_leader(&mut self, request: PeerRequest) {
        if self.link.as_ref().is_some_and(|link| !link.send(request)) {
            self.take_from_link(LinkEvent::Down("the leader takes nothing".to_owned()));
        }
    }

    fn call(&mut self, call: impl Future<Output = NodeInput> + Send + 'static) {
        self.calls.push(Box::pin(call));
    }
}

/// A call on the lease, given up when its answer would be worth nothing any more.
async fn bounded<T>(call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let late = || StoreError::Unavailable(format!("no answer within {} ms", LEASE_CALL.as_millis()));
    timeout(LEASE_CALL, call).await.unwrap_or_else(|_| Err(late()))
}
