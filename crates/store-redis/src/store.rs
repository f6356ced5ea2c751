//! The store: connecting, the checks at the start, acquisitions.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use mtimer_store::{
    Acquire, AcquireError, Acquired, Coordination, Health, OwnerRecord, Store, StoreClock, StoreError,
    StoreFuture, StoreInfo, counters,
};
use mtimer_types::{PartitionId, Term};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::coordination::{RedisCoordination, URGENT};
use crate::facts::{clocks, facts, raise_term};
use crate::keyspace::keys::{check_cluster, hash_slot};
use crate::options::{RedisDurability, RedisOptions};
use crate::other_clusters::other_clusters;
use crate::partition::acquire::{Shared, acquire, owner_key, read_owner};
use crate::partition::lane::RedisLane;
use crate::partition::log::{LogBudget, LogStatus};
use crate::partition::shortage::Quorum;
use crate::partition::trim::Trimming;
use crate::wire::{
    Confirmations, ConnectionPool, Purpose, Servers, Use, check_server, check_wait, explain,
    watch as watch_servers,
};

/// How long an acquisition may take to read the partition's indexes.
const REBUILD_WITHIN: Duration = Duration::from_secs(60);
/// How long a log that is trimmed waits for replicas: one that lags by more holds it up.
const TRIM_TIMEOUT: Duration = Duration::from_secs(1);

/// mtimer's store on Redis 7.0 or later, standalone or cluster.
pub struct RedisStore {
    servers: Servers,
    /// Connections on which nothing waits behind a partition's work.
    urgent: Servers,
    shared: Shared,
    info: StoreInfo,
    coordination: RedisCoordination,
    other_clusters: Vec<String>,
    tasks: TaskTracker,
    /// Ends the tasks that belong to the store alone.
    _end: DropGuard,
}

impl RedisStore {
    /// Connects and checks that the servers can be used.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`]: try again. [`StoreError::Unusable`] says what to change.
    pub async fn connect(options: RedisOptions) -> Result<Self, StoreError> {
        let (seeds, access) = options.check()?;
        check_cluster(&options.cluster)?;
        let tasks = TaskTracker::new();
        let answer_within = options.answer_within;
        let how = Use { purpose: Purpose::Partitions, answer_within };
        let servers = Servers::discover(seeds, ConnectionPool::new(access, tasks.clone()), how)
            .await
            .map_err(explain)?;
        for address in servers.masters() {
            let server = servers.connection(&address).await.map_err(explain)?;
            check_server(&address, &server)?;
            check_wait(&server).await?;
        }
        let urgent = servers.over(URGENT);
        let cluster: Arc<str> = options.cluster.as_str().into();
        let facts = facts(&servers, &cluster, options.partitions).await?;
        let other_clusters = if facts.is_new { other_clusters(&servers, &cluster).await } else { Vec::new() };
        let slots = (0..facts.partitions).map(|p| hash_slot(&owner_key(&cluster, PartitionId(p))));
        let coordination = RedisCoordination::new(urgent.clone(), &cluster, slots.collect());
        let end = CancellationToken::new();
        let shared_servers = Arc::new(servers.clone());
        let log_budget = Arc::new(LogBudget::new(options.log_bytes));
        let unsure = log_budget.clone();
        let tell_unsure = move |is_unsure| unsure.set_unsure(is_unsure);
        tasks.spawn(watch_servers(servers.clone(), end.clone(), tell_unsure));
        let confirmations =
            |purpose, wait| Arc::new(Confirmations::new(&servers, purpose, wait, answer_within));
        let trimming = Trimming {
            replicas: confirmations(Purpose::Trimming, TRIM_TIMEOUT),
            network: shared_servers.clone(),
            began: Instant::now(),
        };
        let quorum = match options.durability {
            RedisDurability::Redis => None,
            RedisDurability::Replicated { replicas, timeout } => {
                let confirmations = confirmations(Purpose::Quorum, timeout);
                Some(Quorum { confirmations, replicas, shortage: Arc::default() })
            }
        };
        let kind = if servers.is_cluster() { "redis-cluster" } else { "redis" };
        Ok(Self {
            shared: Shared {
                network: shared_servers,
                cluster,
                secret: facts.secret,
                log_budget,
                trimming,
                quorum,
                counting: Arc::new(Semaphore::new(1)),
            },
            servers,
            urgent,
            info: StoreInfo { kind, durability: options.durability.name(), partitions: facts.partitions },
            coordination,
            other_clusters,
            tasks,
            _end: end.drop_guard(),
        })
    }

    /// If connecting has created the cluster: names of other clusters on the same servers, a few at
    /// most, as far as a short look has found any. Perhaps one of them was meant.
    pub fn other_clusters(&self) -> &[String] {
        &self.other_clusters
    }

    /// The addresses of masters that keep no append-only file and have no replica, as they last
    /// said: a restart of one loses all timers since its last snapshot.
    pub fn unprotected_masters(&self) -> Vec<String> {
        let mut masters = self.servers.masters();
        masters.retain(|master| self.servers.settings().is_unprotected(master));
        masters
    }

    /// Reads user and password of Redis again ([`RedisOptions::read_urls`]); whether they are
    /// others now. New connections use them; those that exist stay.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`] says why they cannot be read: those in use stay.
    pub fn reload(&self) -> Result<bool, StoreError> {
        self.servers.login().read_again().map_err(StoreError::Unusable)
    }

    /// How many masters may evict keys when their memory is full, as they last said: new timers are
    /// refused there.
    fn evicting_masters(&self) -> usize {
        let settings = self.servers.settings();
        self.servers.masters().iter().filter(|master| settings.may_evict(master)).count()
    }

    /// Returns the state of the logs from which writes lost at a failover of Redis are applied
    /// again.
    pub fn log_status(&self) -> LogStatus {
        self.shared.log_budget.status()
    }
}

impl Store for RedisStore {
    fn info(&self) -> StoreInfo {
        self.info.clone()
    }

    fn owner(&self, partition: PartitionId) -> StoreFuture<OwnerRecord> {
        let shared = self.shared.clone();
        async move { read_owner(&shared, partition).await }.boxed()
    }

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired, AcquireError> {
        let (shared, tasks) = (self.shared.clone(), self.tasks.clone());
        async move {
            let partition = request.partition;
            let (health, _) = watch::channel(Health::Up);
            let abandoned = CancellationToken::new();
            let acquiring = acquire(&shared, request, health.clone(), abandoned.clone());
            let (owner, in_flight) =
                tokio::time::timeout(REBUILD_WITHIN, acquiring).await.map_err(|_| {
                    let why = format!("partition {partition}: reading its indexes took too long");
                    StoreError::Unavailable(why)
                })??;
            let (epoch, prior_claim) = (owner.epoch(), owner.prior_claim());
            let (lane, task) = RedisLane::new(owner, health, abandoned.drop_guard());
            tasks.spawn(task);
            Ok(Acquired { lane: Arc::new(lane), epoch, prior_claim, in_flight })
        }
        .boxed()
    }

    fn raise_term(&self) -> StoreFuture<Term> {
        let (servers, cluster) = (self.servers.clone(), self.shared.cluster.clone());
        async move { raise_term(&servers, &cluster).await }.boxed()
    }

    fn clocks(&self) -> Vec<StoreClock> {
        clocks(&self.urgent)
    }

    fn coordination(&self) -> Option<Arc<dyn Coordination>> {
        Some(Arc::new(self.coordination.clone()))
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let LogStatus { bytes, dropped, replayed, lost_slots, at_risk_since } = self.log_status();
        let unconfirmed = self.shared.quorum.as_ref().map_or(0, |quorum| quorum.shortage.partitions());
        vec![
            (counters::LOG_BYTES, bytes as u64),
            (counters::LOG_DROPPED_RECORDS, dropped),
            (counters::LOG_REPLAYED_RECORDS, replayed),
            (counters::LOST_SLOTS, lost_slots),
            (counters::LOG_AT_RISK, at_risk_since.is_some().into()),
            (counters::UNCONFIRMED_PARTITIONS, unconfirmed as u64),
            (counters::UNPROTECTED_MASTERS, self.unprotected_masters().len() as u64),
            (counters::EVICTING_MASTERS, self.evicting_masters() as u64),
        ]
    }
}
