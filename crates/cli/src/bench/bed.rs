//! The bed of a measurement: a broker of its own or a running one, a client, counters.

use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mtimer_client::{Client, Destination, Info, Outcome, Registration, Schedule};
use mtimer_core::EngineOptions;

use super::args::Common;
use super::made::{Made, Mark};
use super::meter::{Meter, Tuned};
use super::mix::Mix;
use super::own::Own;
use crate::args::destination;
use crate::exit::Failure;
use crate::load;
use crate::output::grouped;
use crate::signals::StopSignal;
use crate::tally::{CallbackTally, Reference, payload};

/// The error of a handler that is to fail once.
const FIRST_ATTEMPT: &str = "the first attempt fails";
/// Callbacks that may be under way.
const CONCURRENCY: u32 = 10_000;
/// How long a request may wait: an overloaded broker is slow, and that is to be seen.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may take until no settled timer is left in the store.
const CLEARED_WITHIN: Duration = Duration::from_secs(5);
/// How often the store is asked for that.
const ASK: Duration = Duration::from_millis(50);

pub(super) struct Bed {
    common: Common,
    partitions: Option<u16>,
    tuned: Option<Tuned>,
    /// `None`: a running cluster is measured.
    own: Option<Own>,
    pub(super) client: Client,
    /// In the running cluster.
    made: Made,
    pub(super) meter: Meter,
    pub(super) reference: Reference,
    /// Of this run alone.
    group: String,
    pub(super) payload: usize,
    pub(super) mix: Mix,
    pub(super) stop: StopSignal,
}

/// Counts of a broker's store, from its status.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoreCounts {
    /// In any state.
    pub(super) timers: u64,
    /// Keys of live timers.
    pub(super) keys: u64,
    /// Index entries and the like: none in a store without timers.
    pub(super) residue: u64,
}

impl Bed {
    pub(super) async fn new(common: &Common, partitions: Option<u16>, mix: Mix) -> Result<Self, Failure> {
        common.log.start_for_bench()?;
        if !common.redis.is_empty() {
            common.tls.settings(&common.redis).resolve()?;
        }
        let stop = StopSignal::on_signals_and_hangup("stopping")?;
        let mut meter = Meter::new(common.broker_pid.clone(), &common.tls.options(&common.redis, "")).await?;
        let tuned = if common.tune_redis { Some(meter.tune().await?) } else { None };
        let (own, client) = match begin(common, partitions).await {
            Ok(begun) => begun,
            Err(failure) => {
                if let Some(tuned) = tuned {
                    tuned.restore().await?;
                }
                return Err(failure);
            }
        };
        if let Some(own) = &own {
            meter.pids = own.pid().into_iter().collect();
        }
        let reference = reference(common, &client).await;
        let group = format!("bench-{:016x}", rand::random::<u64>());
        let (common, payload) = (common.clone(), common.payload);
        let made = Made::default();
        Ok(Self { common, partitions, tuned, own, client, made, meter, reference, group, payload, mix, stop })
    }

    /// An empty store and a new broker, if they are its own.
    pub(super) async fn renew(&mut self) -> Result<(), Failure> {
        if !self.is_own() {
            return Ok(());
        }
        self.client.close().await?;
        if let Some(own) = self.own.take() {
            own.end().await;
        }
        (self.own, self.client) = begin(&self.common, self.partitions).await?;
        self.arrive().await;
        Ok(())
    }

    /// Stops (or kills) the broker, if it is its own.
    pub(super) async fn halt(&mut self, crash: bool) -> Result<(), Failure> {
        let Some(own) = &mut self.own else { return Ok(()) };
        // A client that finds its broker gone would complain.
        self.client.close().await?;
        if crash {
            own.crash().await
        } else {
            own.stop().await
        }
        Ok(())
    }

    /// Starts the stopped broker again, on its store, with a new client.
    pub(super) async fn resume(&mut self) -> Result<(), Failure> {
        if let Some(own) = &mut self.own {
            own.resume().await?;
            self.client = connect(own.addr().into_iter().map(str::to_owned), &self.common).await?;
            self.arrive().await;
        }
        Ok(())
    }

    /// With a new broker and a new client.
    async fn arrive(&mut self) {
        if let Some(own) = &self.own {
            self.meter.pids = own.pid().into_iter().collect();
        }
        self.reference = reference(&self.common, &self.client).await;
    }

    /// Whether the broker and its store belong to this measurement.
    pub(super) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// The destination of one part of the run.
    pub(super) fn dest(&self, part: &str) -> Result<Destination, Failure> {
        destination(&self.group, part)
    }

    pub(super) fn info(&self) -> Arc<Info> {
        self.client.info()
    }

    /// How far ahead the broker loads timers. Of a running cluster: how far brokers usually do.
    pub(super) fn preload(&self) -> Duration {
        let usual = || Duration::from_millis(EngineOptions::default().preload_ms);
        self.own.as_ref().map_or_else(usual, Own::preload)
    }

    /// Timer `n`, about to be sent, with its payload and the traits of the mix. In a running
    /// cluster its id is kept, so that it can be cancelled even if the call fails.
    pub(super) fn timer(&self, n: u64, schedule: Schedule) -> Schedule {
        let schedule = self.mix.apply(n, schedule.payload(payload(n, self.payload)));
        if self.is_own() {
            return schedule;
        }
        match self.client.prepare(schedule.clone()) {
            Ok((id, fixed)) => {
                self.made.add(id);
                fixed
            }
            // The call itself will report the fault.
            Err(_) => schedule,
        }
    }

    /// Up to here ids have been kept.
    pub(super) fn mark(&self) -> Mark {
        self.made.mark()
    }

    /// Timers that were sent since are known to be gone.
    pub(super) fn forget(&self, mark: Mark) {
        self.made.forget(mark);
    }

    /// Cancels the timers sent since then, in a running cluster; returns how many were there.
    pub(super) async fn cancel_since(&self, mark: Mark) -> Result<u64, Failure> {
        let cancelled = load::cancel_all(&self.client, self.made.since(mark)).await?;
        self.made.forget(mark);
        Ok(cancelled)
    }

    /// Takes and counts the callbacks of a destination; timers fail as the mix says.
    pub(super) fn listen(
        &self,
        dest: &Destination,
        timers: u64,
    ) -> Result<(Arc<CallbackTally>, Registration), Failure> {
        let mix = self.mix;
        let tally = Arc::new(CallbackTally::new(timers, self.reference.clone(), |n| mix.deliveries(n)));
        let counted = Arc::clone(&tally);
        let registration =
            self.client.register(dest.clone()).concurrency(CONCURRENCY).on(move |callback| {
                let is_last = counted.entered(&callback);
                std::future::ready(if is_last { Outcome::ok() } else { Outcome::retry(FIRST_ATTEMPT) })
            })?;
        Ok((tally, registration))
    }

    /// Counts the store.
    pub(super) async fn census(&self) -> Result<StoreCounts, Failure> {
        let status = self.client.status().await?;
        let timers = status.pending + status.retrying + status.parked + status.taken + status.dead;
        Ok(StoreCounts { timers, keys: status.keys, residue: status.residue })
    }

    /// How often timers were set aside because nobody took them, so far.
    pub(super) async fn parked(&self) -> Result<u64, Failure> {
        let status = self.client.status().await?;
        Ok(status.counters.iter().find(|(name, _)| name == "parked_total").map_or(0, |(_, n)| *n))
    }

    /// How many timers and keys more than `before` are in the store, once it has had time to clear
    /// up. Of a cluster that is not its own nobody knows.
    pub(super) async fn left(&self, before: StoreCounts) -> Result<u64, Failure> {
        let more = |now: StoreCounts| {
            now.timers.saturating_sub(before.timers) + now.keys.saturating_sub(before.keys)
        };
        self.cleared(more).await
    }

    /// How many timers, keys and index entries are in the store, which should be empty, once it has
    /// had time to clear up. Of a cluster that is not its own nobody knows.
    pub(super) async fn residue(&self) -> Result<u64, Failure> {
        self.cleared(|now| now.timers + now.keys + now.residue).await
    }

    /// The rest by this count: 0, or more if it does not get there in time.
    async fn cleared(&self, count: impl Fn(StoreCounts) -> u64) -> Result<u64, Failure> {
        if !self.is_own() {
            return Ok(0);
        }
        let began = Instant::now();
        loop {
            let left = count(self.census().await?);
            if left == 0 || began.elapsed() > CLEARED_WITHIN || self.stop.is_asked() {
                return Ok(left);
            }
            tokio::time::sleep(ASK).await;
        }
    }

    /// Removes everything that was made, and restores changed settings.
    pub(super) async fn end(self) -> Result<(), Failure> {
        let cleared = self.cancel_since(Mark::FIRST).await.map_err(|failure| {
            let (left, group) = (grouped(self.made.since(Mark::FIRST).len() as u64), &self.group);
            let why = failure.message;
            Failure::new(
                failure.exit,
                format!("up to {left} timers of the group {group} may be left in the cluster: {why}"),
            )
        });
        let closed = self.client.close().await;
        if let Some(own) = self.own {
            own.end().await;
        }
        if let Some(tuned) = self.tuned {
            tuned.restore().await?;
        }
        cleared?;
        Ok(closed?)
    }
}

async fn begin(common: &Common, partitions: Option<u16>) -> Result<(Option<Own>, Client), Failure> {
    if !common.broker.is_empty() {
        return Ok((None, connect(common.broker.iter().cloned(), common).await?));
    }
    let own = Own::start(common, partitions).await?;
    match connect(own.addr().into_iter().map(str::to_owned), common).await {
        Ok(client) => Ok((Some(own), client)),
        Err(failure) => {
            own.end().await;
            Err(failure)
        }
    }
}

async fn connect(addresses: impl Iterator<Item = String>, common: &Common) -> Result<Client, Failure> {
    let client = Client::builder().brokers(addresses).software(concat!("mtimer/", env!("CARGO_PKG_VERSION")));
    let client = client.token(common.token.read()?).request_timeout(REQUEST_TIMEOUT);
    // A broker of one's own listens on this machine only, without TLS.
    let client = if common.broker.is_empty() { client } else { common.connect_tls.apply(client)? };
    Ok(client.connect().await?)
}

/// The clock that tells lateness: to the microsecond where the brokers are on this machine.
async fn reference(common: &Common, client: &Client) -> Reference {
    let here =
        |addr: &String| addr.to_socket_addrs().is_ok_and(|mut all| all.all(|addr| addr.ip().is_loopback()));
    if common.broker.iter().all(here) {
        Reference::with_store_clocks(client).await
    } else {
        Reference::Cluster(client.clone())
    }
}
