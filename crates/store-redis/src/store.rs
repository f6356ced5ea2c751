//! The store: connecting, the checks at the start, acquisitions, clocks, terms.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use mtimer_store::{
    Acquire, AcquireError, Acquired, Coordination, Health, InFlight, OwnerRecord, Store, StoreClock,
    StoreError, StoreFuture, StoreInfo,
};
use mtimer_types::{Epoch, Nonce, PartitionId, Term, Time, limits::MAX_PARTITIONS};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::backoff::Backoff;
use crate::conn::{Conn, Lost, Pool};
use crate::coordination::{Handle, RedisCoordination};
use crate::fault::{Remedy, remedy};
use crate::handle::RedisLane;
use crate::keys::{self, Keyspace, hash_slot};
use crate::lane::{Engine, Shared};
use crate::options::{DEFAULT_PARTITIONS, Options, unusable};
use crate::plan::Facts;
use crate::reads::decode_in_flight;
use crate::resp::{Args, Reply};
use crate::script::Script;
use crate::topology::Topology;

/// The layout of keys and values that this version writes.
const FORMAT: u64 = 3;
/// How long a request outside a lane is tried.
const TRY_FOR: Duration = Duration::from_secs(5);
/// How long an acquisition may take to read the partition's indexes.
const REBUILD_WITHIN: Duration = Duration::from_secs(60);

/// mtimer's store on Redis 7.0 or later, standalone or cluster.
pub struct RedisStore {
    shared: Arc<Shared>,
    cluster: Arc<str>,
    info: StoreInfo,
    tasks: TaskTracker,
    /// Connections on which nothing waits behind a partition's work or its replicas.
    urgent: Arc<Pool>,
    coordination: Handle,
}

impl RedisStore {
    /// Connects and checks that the servers can be used. [`StoreError::Unavailable`]: try again;
    /// [`StoreError::Unusable`] says what to change.
    pub async fn connect(options: Options) -> Result<Self, StoreError> {
        let (addresses, login) = options.check()?;
        let tasks = TaskTracker::new();
        let urgent = Arc::new(Pool::bare(&login, crate::coordination::ANSWER_WITHIN, tasks.clone()));
        let pool = Pool::new(login, options.replication(), tasks.clone());
        for address in &addresses {
            // Those that cannot be reached are passed over: others may do.
            if let Ok(conn) = pool.get(address).await {
                check_server(&conn)?;
            }
        }
        let topology = Topology::discover(addresses, &pool).await.map_err(explain)?;
        let shared = Arc::new(Shared { pool, topology });
        for address in shared.topology.masters() {
            let conn = shared.pool.get(&address).await.map_err(explain)?;
            check_server(&conn)?;
        }
        let kind = if shared.topology.is_cluster() { "redis-cluster" } else { "redis" };
        let cluster: Arc<str> = options.cluster.as_str().into();
        let partitions = found(&shared, &cluster, options.partitions).await?;
        let coordination =
            RedisCoordination::new(shared.clone(), urgent.clone(), cluster.clone(), partitions);
        Ok(Self {
            shared,
            cluster,
            info: StoreInfo { kind, durability: options.durability.name(), partitions },
            tasks,
            urgent,
            coordination: Handle(Arc::new(coordination)),
        })
    }

    /// The engine of a lane, for tests that look inside.
    #[cfg(test)]
    pub(crate) async fn engine(&self, acquire: Acquire) -> Result<Engine, AcquireError> {
        acquire_partition(self.shared.clone(), &self.cluster, acquire).await.map(|(engine, ..)| engine)
    }
}

/// Reads the cluster's fixed facts, or fixes them.
async fn found(shared: &Shared, cluster: &str, wanted: Option<u16>) -> Result<u16, StoreError> {
    let key = keys::meta(cluster);
    let mut args = Args::of(["EVALSHA", Script::Found.sha(), "1", &key]);
    args.push(wanted.map_or_else(String::new, |n| n.to_string()));
    args.number(u64::from(DEFAULT_PARTITIONS)).number(FORMAT);
    let answer = ask(shared, &key, &args).await?;
    let number = |i: usize| answer.array().and_then(|a| a.get(i)).and_then(Reply::number);
    let (Some(stored), Some(format)) = (number(0), number(1)) else {
        return Err(unusable(format!("{key} is not mtimer's: choose another cluster name")));
    };
    if format != FORMAT {
        return Err(unusable(format!(
            "cluster {cluster} is stored in format {format}, this version reads format {FORMAT}: use the version that \
             wrote it"
        )));
    }
    let partitions = u16::try_from(stored).ok().filter(|n| (1..=MAX_PARTITIONS).contains(n));
    let partitions =
        partitions.ok_or_else(|| unusable(format!("{key} says {stored} partitions: it is damaged")))?;
    match wanted {
        Some(wanted) if wanted != partitions => Err(unusable(format!(
            "cluster {cluster} has {partitions} partitions, configured are {wanted}: configure {partitions}, or use \
             another cluster name (the number is fixed when a cluster is created)"
        ))),
        _ => Ok(partitions),
    }
}

/// Refuses a server that mtimer cannot keep its promises on.
fn check_server(conn: &Conn) -> Result<(), StoreError> {
    let (address, info) = (&conn.address, &conn.info);
    let version = info.get("redis_version").map_or("unknown", String::as_str);
    let major: u32 = version.split('.').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    if major < 7 {
        return Err(unusable(format!(
            "{address} runs Redis {version}: mtimer needs Redis 7.0 or later, upgrade it"
        )));
    }
    match info.get("maxmemory_policy").map(String::as_str) {
        Some("noeviction") => Ok(()),
        Some(policy) => Err(unusable(format!(
            "{address} may evict keys (maxmemory-policy {policy}), and timers would vanish: set maxmemory-policy noeviction"
        ))),
        None => {
            Err(unusable(format!("{address} does not tell its maxmemory_policy in INFO memory: allow INFO")))
        }
    }
}

/// Tells what will never work from what may work later.
fn explain(lost: Lost) -> StoreError {
    let text = lost.0;
    let advice = if text.contains("NOAUTH") || text.contains("WRONGPASS") {
        "give user and password in the address, as in redis://user:pass@host:6379"
    } else if text.contains("does not speak the Redis protocol") {
        "it is not Redis, or it expects TLS: give the address of a plain Redis port"
    } else if text.contains("DENIED") || text.contains("NOPERM") {
        "allow this host and user in Redis"
    } else if text.contains("ERR Client sent AUTH") || text.contains("ERR AUTH") {
        "this Redis has no password: leave it out of the address"
    } else if text.contains("DB index") || text.contains("SELECT is not allowed") {
        "leave the database number out of the address"
    } else {
        return StoreError::Unavailable(text);
    };
    unusable(format!("{text}: {advice}"))
}

/// Asks the node that has `key`; follows redirections and waits out what passes, for some seconds.
async fn ask(shared: &Shared, key: &str, args: &Args) -> Result<Reply, StoreError> {
    let slot = hash_slot(key);
    let mut backoff = Backoff::new(u64::from(slot) << 16 | 1);
    let deadline = tokio::time::Instant::now() + TRY_FOR;
    loop {
        let why = match once(&shared.pool, &shared.topology, slot, args).await {
            Ok(Ok(reply)) => return Ok(reply),
            Ok(Err(why)) => why,
            Err(error @ StoreError::Unusable(_)) => return Err(error),
            Err(StoreError::Unavailable(why)) => {
                // A look at the map costs little; if it fails, the next attempt will tell.
                let _ = shared.topology.refresh(&shared.pool).await;
                why
            }
        };
        if tokio::time::Instant::now() >= deadline {
            return Err(StoreError::Unavailable(why));
        }
        backoff.wait().await;
    }
}

/// One attempt. The inner error: try again.
pub(crate) async fn once(
    pool: &Pool,
    topology: &Topology,
    slot: u16,
    args: &Args,
) -> Result<Result<Reply, String>, StoreError> {
    let unavailable = |lost: Lost| StoreError::Unavailable(lost.0);
    let Some(address) = topology.master(slot) else {
        return Err(StoreError::Unavailable(format!("no node has hash slot {slot}")));
    };
    let conn = pool.get(&address).await.map_err(unavailable)?;
    let error = match conn.ask(args).await.map_err(unavailable)? {
        Reply::Error(error) => error,
        reply => return Ok(Ok(reply)),
    };
    match remedy(&error, &address) {
        Remedy::Follow(address) => topology.moved(slot, &address),
        Remedy::Ask(address) => {
            let conn = pool.get(&address).await.map_err(unavailable)?;
            let mut waiting = conn.send(args.command(), true, false).await;
            match waiting.answer().await.map_err(unavailable)?.reply {
                Reply::Error(error) => return Ok(Err(error)),
                reply => return Ok(Ok(reply)),
            }
        }
        Remedy::LoadScripts => conn.load_scripts().await.map_err(unavailable)?,
        Remedy::Broken(why) => return Err(explain_broken(&why)),
        Remedy::Rediscover(why) => return Err(StoreError::Unavailable(why)),
        Remedy::Wait(_) | Remedy::OutOfMemory | Remedy::NoWrites(_) => {}
    }
    Ok(Err(error))
}

fn explain_broken(why: &str) -> StoreError {
    match explain(Lost(why.to_owned())) {
        StoreError::Unavailable(why) => unusable(format!("Redis refuses mtimer's commands: {why}")),
        unusable => unusable,
    }
}

impl Store for RedisStore {
    fn info(&self) -> StoreInfo {
        self.info.clone()
    }

    fn owner(&self, partition: PartitionId) -> StoreFuture<OwnerRecord> {
        let (shared, key) = (self.shared.clone(), Keyspace::new(&self.cluster, partition).owner());
        async move {
            let reply = ask(&shared, &key, &Args::of(["HMGET", &key, "e", "n", "t", "v", "c", "r"])).await?;
            let fields = reply.array().unwrap_or_default();
            let number = |i: usize| fields.get(i).and_then(Reply::number).unwrap_or_default();
            Ok(OwnerRecord {
                epoch: Epoch(number(0)),
                nonce: Nonce(number(1)),
                term: Term(number(2)),
                version: number(3),
                claimed_until: Time::from_ms(number(4)),
                released: number(5) == 1,
            })
        }
        .boxed()
    }

    fn acquire(&self, acquire: Acquire) -> StoreFuture<Acquired, AcquireError> {
        let (shared, cluster, tasks) = (self.shared.clone(), self.cluster.clone(), self.tasks.clone());
        async move {
            let (engine, health, in_flight) = acquire_partition(shared, &cluster, acquire).await?;
            let (epoch, prior_claim) = (engine.facts.epoch, engine.facts.prior_claim);
            let (lane, task) = RedisLane::new(engine, health);
            tasks.spawn(task);
            Ok(Acquired { lane: Arc::new(lane), epoch, prior_claim, in_flight })
        }
        .boxed()
    }

    fn raise_term(&self) -> StoreFuture<Term> {
        let (shared, key) = (self.shared.clone(), keys::term(&self.cluster));
        async move {
            let args = Args::of(["EVALSHA", Script::RaiseTerm.sha(), "1", &key]);
            let reply = ask(&shared, &key, &args).await?;
            reply.number().map(Term).ok_or_else(|| unusable(format!("{key} is not a number: it is damaged")))
        }
        .boxed()
    }

    fn clocks(&self) -> Vec<StoreClock> {
        let clock = |name: String| {
            let (pool, address) = (self.urgent.clone(), name.clone());
            let reading =
                async move { clock(&pool, &address).await.map_err(|lost| StoreError::Unavailable(lost.0)) };
            StoreClock { name, reading: reading.boxed() }
        };
        self.shared.topology.masters().into_iter().map(clock).collect()
    }

    fn coordination(&self) -> Option<Arc<dyn Coordination>> {
        Some(Arc::new(self.coordination.clone()))
    }
}

async fn clock(pool: &Pool, address: &str) -> Result<u64, Lost> {
    let reply = pool.get(address).await?.ask(&Args::of(["TIME"])).await?;
    let part = |i: usize| reply.array().and_then(|a| a.get(i)).and_then(Reply::number);
    match (part(0), part(1)) {
        (Some(seconds), Some(micros)) => Ok(seconds.saturating_mul(1_000_000).saturating_add(micros)),
        _ => Err(Lost(format!("{address} does not tell its time"))),
    }
}

/// Acquires a partition and reads its indexes. What was under way when it was released.
async fn acquire_partition(
    shared: Arc<Shared>,
    cluster: &str,
    acquire: Acquire,
) -> Result<(Engine, watch::Receiver<Health>, Vec<InFlight>), AcquireError> {
    let partition = acquire.partition;
    let keys = Keyspace::new(cluster, partition);
    let key = keys.owner();
    let slot = hash_slot(&key);
    let mut args = Args::of(["EVALSHA", Script::Acquire.sha(), "1", &key]);
    args.number(acquire.expected.0).number(acquire.nonce.0).number(acquire.term.0).number(acquire.version);
    let answer = ask(&shared, &key, &args).await?;
    let fields = answer.array().unwrap_or_default();
    let number = |i: usize| fields.get(i).and_then(Reply::number).unwrap_or_default();
    match fields.first().and_then(Reply::text) {
        Some("OK") => {}
        Some("EPOCH") => {
            let (stored, expected) = (Epoch(number(1)), acquire.expected);
            return Err(AcquireError::Epoch { partition, stored, expected });
        }
        Some("ASSIGNMENT") => {
            let (given, stored) = ((acquire.term, acquire.version), (Term(number(1)), number(2)));
            return Err(AcquireError::Assignment { given, stored });
        }
        _ => return Err(unusable(format!("{key} is not mtimer's: choose another cluster name")).into()),
    }
    let (epoch, prior_claim, seq) = (Epoch(number(1)), Time::from_ms(number(2)), number(3));
    let in_flight = fields.get(4).and_then(Reply::bytes).cloned().unwrap_or_else(Bytes::new);
    let facts = Facts { keys, epoch, nonce: acquire.nonce, prior_claim };
    let unavailable = |why: String| AcquireError::Store(StoreError::Unavailable(why));
    let address = shared.topology.master(slot).ok_or_else(|| unavailable(format!("no node has {key}")))?;
    let conn = shared.pool.get(&address).await.map_err(|lost| unavailable(lost.0))?;
    let (health_to, health) = watch::channel(Health::Up);
    let mut engine = Engine::new(shared, partition, facts, slot, seq, conn, health_to, acquire.nonce.0);
    match tokio::time::timeout(REBUILD_WITHIN, engine.rebuild()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(unavailable(error.to_string())),
        Err(_) => {
            return Err(unavailable(format!("partition {partition}: reading its indexes took too long")));
        }
    }
    Ok((engine, health, decode_in_flight(in_flight)))
}
