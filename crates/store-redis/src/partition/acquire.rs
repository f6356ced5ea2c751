//! Acquiring a partition: its owner record, then the state that an owner keeps in memory.

use std::sync::Arc;

use mtimer_store::{Acquire, AcquireError, Health, InFlight, LaneError, OwnerRecord, StoreError};
use mtimer_types::{Epoch, Nonce, PartitionId, Term, Time};
use redis::{Pipeline, Value};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::identity::WriterIdentity;
use super::knowledge::Knowledge;
use super::listing::index_keys;
use super::log::{Log, LogBudget};
use super::owner::Owner;
use super::shortage::Quorum;
use super::trim::{Trimmer, Trimming};
use super::unreadable::Unreadable;
use super::writer::PartitionWriter;
use crate::keyspace::keys::{HashKey, IndexKey, Keyspace, SlotKey, hash_slot};
use crate::keyspace::secret::{KeyedHash, SHARDS, Secret};
use crate::keyspace::value::{decode_destination, decode_in_flight};
use crate::wire::{Network, Reply, Script, ask, numbers};

/// Entries of each index that are read at a time.
const INDEX_PAGE: usize = 300;
/// Most application keys that an acquisition reads, which takes the server half a millisecond. If
/// there are more, any key may be there.
const KNOWN_KEYS: u64 = 4_096;
/// Destinations that are read at a time.
const DESTINATION_PAGE: u32 = 200;

/// State shared by all partitions of a store.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) network: Arc<dyn Network>,
    pub(crate) cluster: Arc<str>,
    pub(crate) secret: Secret,
    pub(crate) log_budget: Arc<LogBudget>,
    pub(crate) trimming: Trimming,
    /// `None`: answers wait for no replicas.
    pub(crate) quorum: Option<Quorum>,
    /// One partition counts at a time.
    pub(crate) counting: Arc<Semaphore>,
}

/// The answer of the script acquire.
struct Granted {
    epoch: Epoch,
    prior_claim: Time,
    seq: u64,
    in_flight: Vec<InFlight>,
    position: u64,
}

/// Acquires a partition and reads its indexes. Also returns the deliveries that were under way when
/// it was released.
pub(crate) async fn acquire(
    shared: &Shared,
    request: Acquire,
    health: watch::Sender<Health>,
    abandoned: CancellationToken,
) -> Result<(Owner, Vec<InFlight>), AcquireError> {
    let space = Keyspace::new(&shared.cluster, request.partition);
    let owner_key = space.owner();
    let slot = hash_slot(&owner_key);
    let request = if broken!(NoFloor) { Acquire { floor: Epoch(0), ..request } } else { request };
    let Acquire { expected, nonce, term, version, floor, .. } = request;
    let mut command = Script::Acquire.command(&[&owner_key]);
    command.arg(&[expected.0, nonce.0, term.0, version, floor.0]);
    let granted = granted(&request, &owner_key, &ask(&*shared.network, slot, &command).await?)?;
    let identity = WriterIdentity {
        partition: request.partition,
        owner_key,
        hash_slot: slot,
        epoch: granted.epoch,
        nonce: request.nonce,
    };
    let log = Arc::new(Log::new(shared.log_budget.clone()));
    let trimmer = Trimmer::new(shared.trimming.clone(), identity.clone(), log.clone());
    let (network, quorum) = (shared.network.clone(), shared.quorum.clone());
    let writer = PartitionWriter::new(network, identity, granted.seq, log, quorum, health, abandoned);
    // The epoch is the store's clock, or above it.
    let begun = Time::from_ms(granted.epoch.0);
    let mut owner = Owner {
        writer,
        trimmer: Arc::new(trimmer),
        known: Knowledge::new(space, shared.secret, begun, granted.prior_claim, granted.position),
        unreadable: Unreadable::default(),
        counting: shared.counting.clone(),
        is_released: false,
    };
    owner.rebuild().await.map_err(|error| match error {
        LaneError::Broken(what) => StoreError::Unusable(what),
        passing => StoreError::Unavailable(passing.to_string()),
    })?;
    Ok((owner, granted.in_flight))
}

fn granted(request: &Acquire, key: &str, answer: &Value) -> Result<Granted, AcquireError> {
    let (kind, fields) = answer.items().split_first().unwrap_or((&Value::Nil, &[]));
    let partition = request.partition;
    let unusable = |what: &str| AcquireError::Store(StoreError::Unusable(format!("{key} {what}")));
    match kind.text() {
        Some("OK") => {
            let [epoch, prior_claim, seq, _, position] = numbers(fields);
            let in_flight = fields.get(3).and_then(Reply::bytes).unwrap_or_default();
            let in_flight = decode_in_flight(in_flight)
                .ok_or_else(|| unusable("is damaged: its deliveries under way cannot be read"))?;
            let (epoch, prior_claim) = (Epoch(epoch), Time::from_ms(prior_claim));
            Ok(Granted { epoch, prior_claim, seq, in_flight, position })
        }
        Some("EPOCH") => {
            let [stored] = numbers(fields);
            Err(AcquireError::Epoch { partition, stored: Epoch(stored), expected: request.expected })
        }
        Some("ASSIGNMENT") => {
            let [term, version] = numbers(fields);
            let (given, stored) = ((request.term, request.version), (Term(term), version));
            Err(AcquireError::Assignment { given, stored })
        }
        _ => Err(unusable("is not mtimer's: choose another cluster name")),
    }
}

impl Owner {
    /// Reads destinations, slot indexes, controls, how many timers have moved, which buckets of
    /// outcomes are empty, and the application keys if they are few.
    async fn rebuild(&mut self) -> Result<(), LaneError> {
        self.read_destinations().await?;
        self.read_indexes().await?;
        self.find_listed().await?;
        let hashes = (0..SHARDS).map(HashKey::Moved).chain(self.known.ended.to_look_at().map(HashKey::Ended));
        let hashes = hashes.chain([HashKey::AppKeys]).map(|hash| self.known.space.hash(hash));
        let mut reads = Pipeline::new();
        reads.cmd("HGETALL").arg(self.known.space.bulks());
        reads.cmd("HGETALL").arg(self.known.space.settings());
        hashes.for_each(|hash| _ = reads.cmd("HLEN").arg(hash));
        let mut lengths = self.writer.read(&reads).await?;
        let (bulks, settings) = (lengths.remove(0), lengths.remove(0));
        self.found_controls(bulks, settings)?;
        let keys = lengths.pop().as_ref().and_then(Reply::number);
        let mut lengths = lengths.iter().map(Reply::number);
        for shard in 0..SHARDS {
            self.known.moved.found(shard, lengths.next().flatten().unwrap_or_default());
        }
        for (bucket, length) in self.known.ended.to_look_at().zip(lengths) {
            if length == Some(0) {
                self.known.ended.found_empty(bucket);
            }
        }
        self.read_keys(keys.unwrap_or(u64::MAX)).await
    }

    async fn read_keys(&mut self, count: u64) -> Result<(), LaneError> {
        let count = if broken!(FoundKeysTakenForFree) { 0 } else { count };
        if count == 0 {
            (self.known.keys, self.known.found_keys) = Default::default();
        } else if count <= KNOWN_KEYS {
            let key = self.known.space.hash(HashKey::AppKeys);
            let fields = self.writer.read_each("HKEYS", [key]).await?.pop().unwrap_or_default().into_items();
            // The empty field is none: see `LARGE`.
            if fields.len() as u64 == count {
                let keys = fields.into_iter().filter_map(|field| field.bytes()?[..].try_into().ok());
                self.known.keys = keys.map(|key| KeyedHash::of_key(&key)).collect();
                self.known.found_keys = self.known.keys.clone();
            }
        }
        Ok(())
    }

    async fn read_indexes(&mut self) -> Result<(), LaneError> {
        let mut from = 0;
        loop {
            let mut reads = Pipeline::new();
            for index in index_keys() {
                reads.cmd("ZRANGE").arg(self.known.space.index(index)).arg(from).arg(from + INDEX_PAGE - 1);
            }
            let mut is_last = true;
            for (index, names) in index_keys().zip(self.writer.read(&reads).await?) {
                let names = names.into_items();
                is_last &= names.len() < INDEX_PAGE;
                let names = names.into_iter().filter_map(Reply::into_bytes);
                let slots = names.filter_map(|name| SlotKey::parse(std::str::from_utf8(&name).ok()?));
                self.read_lengths(index, slots.collect()).await?;
            }
            if is_last {
                return Ok(());
            }
            from += INDEX_PAGE;
        }
    }

    async fn read_lengths(&mut self, index: IndexKey, slots: Vec<SlotKey>) -> Result<(), LaneError> {
        if slots.is_empty() {
            return Ok(());
        }
        let keys = slots.iter().map(|slot| self.known.space.hash(HashKey::Slot(*slot)));
        let lengths = self.writer.read_each("HLEN", keys).await?;
        for (slot, length) in slots.into_iter().zip(lengths) {
            let timers = length.number().and_then(|n| u32::try_from(n).ok());
            self.known.catalog.found(slot, index, timers.unwrap_or_default());
        }
        Ok(())
    }

    async fn read_destinations(&mut self) -> Result<(), LaneError> {
        loop {
            let first = self.known.dests.stored() as u32 + 1;
            let mut reads = Pipeline::new();
            let numbers: Vec<u32> = (first..first + DESTINATION_PAGE).collect();
            reads.cmd("HMGET").arg(self.known.space.destinations()).arg(&numbers);
            let answer = self.writer.read(&reads).await?.pop().unwrap_or_default();
            for value in answer.into_items() {
                let Some(bytes) = value.into_bytes() else { return Ok(()) };
                let dest = std::str::from_utf8(&bytes).ok().and_then(decode_destination);
                let damaged = || {
                    let (partition, key) = (self.partition(), self.known.space.destinations());
                    LaneError::Broken(format!(
                        "partition {partition}: the name of a destination in {key} is damaged: restore it, or \
                         remove the partition's keys and what they hold"
                    ))
                };
                self.known.dests.intern(&dest.ok_or_else(damaged)?);
                self.known.dests.set_stored();
            }
        }
    }
}

/// Reads who owns a partition.
///
/// # Errors
///
/// As [`ask`].
pub(crate) async fn read_owner(shared: &Shared, partition: PartitionId) -> Result<OwnerRecord, StoreError> {
    let key = owner_key(&shared.cluster, partition);
    let read = redis::cmd("HMGET").arg(&key).arg(&["e", "n", "t", "v", "c", "r"]).to_owned();
    let answer = ask(&*shared.network, hash_slot(&key), &read).await?;
    let [epoch, nonce, term, version, claimed_until, released] = numbers(answer.items());
    Ok(OwnerRecord {
        epoch: Epoch(epoch),
        nonce: Nonce(nonce),
        term: Term(term),
        version,
        claimed_until: Time::from_ms(claimed_until),
        released: released == 1,
    })
}

/// The key of a partition's owner record.
pub(crate) fn owner_key(cluster: &str, partition: PartitionId) -> String {
    Keyspace::new(cluster, partition).owner()
}
