//! Which connections there are: one to a broker that has no cluster around it, or one to every
//! broker of the topology, unless the settings ask for one only.
//!
//! Invariant: never two connections to the same broker, and never more tries than the pauses of a
//! [`DialPlan`] allow.
//!
//! With no connection at all, the addresses of the settings are tried in turn, next to the brokers
//! that were known last. Not in here: the messages over a connection, and when one is left.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use mtimer_protocol::{Topology, Welcome};
use mtimer_types::limits::HANDSHAKE_DEADLINE_MS;

use crate::ConnectError;
use crate::machine::backoff::RECONNECT;
use crate::machine::moment::Moment;
use crate::machine::random::Random;

/// How long a try may take.
const HANDSHAKE: Duration = Duration::from_millis(HANDSHAKE_DEADLINE_MS);
/// However little time is left, a try has so much: a broker that is busy answers late.
const LEAST_ATTEMPT: Duration = Duration::from_secs(1);
/// A connection that lasted so long was a good one: the next loss is answered at once.
const GOOD: Duration = Duration::from_secs(5);

/// The places of one target, tried in turn with growing pauses between rounds.
#[derive(Clone, Debug)]
pub(crate) struct DialPlan {
    places: usize,
    next: usize,
    tries: u32,
}

impl DialPlan {
    pub(crate) const fn new(places: usize) -> Self {
        Self { places, next: 0, tries: 0 }
    }

    /// How long to wait before the next try: not at all within the first round.
    pub(crate) fn pause(&self, random: &mut impl Random) -> Duration {
        match self.tries / self.places.max(1) as u32 {
            0 => Duration::ZERO,
            rounds => RECONNECT.jittered(rounds - 1, random.jitter()),
        }
    }

    /// Begins a try: returns the place's number.
    pub(crate) const fn begin(&mut self) -> usize {
        let place = self.next;
        self.next = (self.next + 1) % self.places;
        self.tries = self.tries.saturating_add(1);
        place
    }

    /// Whether every place was tried.
    pub(crate) const fn all_tried(&self) -> bool {
        self.tries as usize >= self.places
    }
}

/// Until when a client that is not connected yet goes on trying.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    end: Moment,
    timeout: Duration,
}

impl Patience {
    pub(crate) fn new(now: Moment, timeout: Duration) -> Self {
        Self { end: now + timeout, timeout }
    }

    /// How long a try may take. A timeout of zero means one try with the usual limit.
    pub(crate) fn limit(self, now: Moment) -> Duration {
        match self.timeout.is_zero() {
            true => HANDSHAKE,
            false => self.end.since(now).clamp(LEAST_ATTEMPT, HANDSHAKE),
        }
    }

    /// Whether to give up after a try that failed with `error`.
    pub(crate) fn is_over(self, plan: &DialPlan, error: &ConnectError, again: Moment) -> bool {
        plan.all_tried() && (!error.is_retryable() || again >= self.end)
    }
}

/// Where a connection is to be made to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// To the one of this number of those that the settings name.
    Seed(usize),
    /// To the broker of this address.
    Broker(String),
}

/// An action for the caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DialOrder {
    /// Make a connection, and give it this number.
    Connect { connection: u64, place: Place },
    /// Close a connection, or give up making it.
    Disconnect { connection: u64 },
}

/// The target of a try.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum DialTarget {
    /// Any broker that the settings name.
    Seed,
    /// A broker of the topology.
    Broker(String),
}

#[derive(Debug)]
enum Try {
    /// It begins then.
    Resting(Moment),
    Begun(Attempt),
}

/// A connection that is not past its handshake.
#[derive(Debug)]
struct Attempt {
    connection: u64,
    place: Place,
    until: Moment,
    limit: Duration,
    stage: AttemptStage,
}

#[derive(Debug)]
enum AttemptStage {
    Connecting,
    /// It is there, to this address; the hello is to be sent.
    Connected(String),
    /// The hello was sent then.
    Greeted(String, Moment),
}

/// A connection in use.
#[derive(Debug)]
struct OpenConnection {
    name: Option<String>,
    since: Moment,
    target: DialTarget,
}

/// A connection is past its handshake.
#[derive(Debug)]
pub(crate) struct Greeting {
    /// The address that was dialled.
    pub(crate) address: String,
    /// When the hello was sent.
    pub(crate) sent: Moment,
}

/// A try has failed.
#[derive(Debug)]
pub(crate) enum Unreached {
    /// It is made again.
    ForNow(ConnectError),
    /// It was the last.
    ForGood(ConnectError),
}

#[derive(Debug)]
pub(crate) struct Dialling {
    /// For people, the places that the settings name.
    seeds: Vec<String>,
    one_broker: bool,
    plans: BTreeMap<DialTarget, DialPlan>,
    tries: BTreeMap<DialTarget, Try>,
    open: BTreeMap<u64, OpenConnection>,
    /// Brokers that could not be reached at the first try.
    failed: BTreeSet<String>,
    last_connection: u64,
    /// Until the first connection is there.
    patience: Option<Patience>,
    /// Name and partition count of the cluster, once known.
    cluster: Option<(String, u16)>,
    orders: VecDeque<DialOrder>,
    closed: bool,
}

impl Dialling {
    /// Begins with the first of the places, at once.
    pub(crate) fn new(seeds: Vec<String>, one_broker: bool, patience: Patience) -> Self {
        let start = Moment::ORIGIN;
        Self {
            plans: BTreeMap::from([(DialTarget::Seed, DialPlan::new(seeds.len()))]),
            tries: BTreeMap::from([(DialTarget::Seed, Try::Resting(start))]),
            seeds,
            one_broker,
            open: BTreeMap::new(),
            failed: BTreeSet::new(),
            last_connection: 0,
            patience: Some(patience),
            cluster: None,
            orders: VecDeque::new(),
            closed: false,
        }
    }

    /// Returns the next action for the caller.
    pub(crate) fn poll_order(&mut self) -> Option<DialOrder> {
        self.orders.pop_front()
    }

    /// Whether this connection is being made.
    pub(crate) fn is_trying(&self, connection: u64) -> bool {
        self.attempts().any(|attempt| attempt.connection == connection)
    }

    /// The connection is there, to this address, and waits for the hello.
    pub(crate) fn connected(&mut self, connection: u64, address: String) -> bool {
        let Some(attempt) = self.attempt(connection) else { return false };
        attempt.stage = AttemptStage::Connected(address);
        true
    }

    /// Whether the hello is to be sent over this connection; it is sent at `now` then.
    pub(crate) fn poll_hello(&mut self, connection: u64, now: Moment) -> bool {
        let Some(attempt) = self.attempt(connection) else { return false };
        let AttemptStage::Connected(address) = &mut attempt.stage else { return false };
        attempt.stage = AttemptStage::Greeted(std::mem::take(address), now);
        true
    }

    /// The address that a connection which is being made goes to.
    pub(crate) fn address(&self, connection: u64) -> String {
        let attempt = self.attempts().find(|attempt| attempt.connection == connection);
        attempt.map(|attempt| self.address_of(attempt)).unwrap_or_default()
    }

    /// The broker has let the client in. `None`: one connection to it is enough.
    ///
    /// # Errors
    ///
    /// [`ConnectError::OtherCluster`]
    pub(crate) fn welcomed(
        &mut self,
        connection: u64,
        welcome: &Welcome,
        now: Moment,
    ) -> Result<Option<Greeting>, ConnectError> {
        let address = self.address(connection);
        let found = (welcome.cluster.clone(), welcome.partitions);
        let expected = self.cluster.get_or_insert_with(|| found.clone());
        if *expected != found {
            let text = |(name, partitions): &(String, u16)| format!("{name:?} with {partitions} partitions");
            let (expected, found) = (text(expected), text(&found));
            return Err(ConnectError::OtherCluster { broker: address, expected, found });
        }
        let Some((target, attempt)) = self.take(connection) else { return Ok(None) };
        let name = welcome.broker.clone();
        let known = self.open.values().any(|open| name.is_none() || open.name.is_none() || open.name == name);
        if known {
            // Another name for a broker that is connected already, or one that is not of the
            // cluster.
            self.orders.push_back(DialOrder::Disconnect { connection });
            if let DialTarget::Broker(target) = target {
                self.failed.insert(target);
            }
            return Ok(None);
        }
        self.patience = None;
        self.open.insert(connection, OpenConnection { name, since: now, target });
        let sent = match attempt.stage {
            AttemptStage::Greeted(_, sent) => sent,
            AttemptStage::Connecting | AttemptStage::Connected(_) => now,
        };
        Ok(Some(Greeting { address, sent }))
    }

    /// The connection could not be made, or has not got past its handshake.
    pub(crate) fn failed(
        &mut self,
        connection: u64,
        error: ConnectError,
        now: Moment,
        random: &mut impl Random,
    ) -> Option<Unreached> {
        let (target, _) = self.take(connection)?;
        if let Some(patience) = self.patience {
            let plan = self.plans.entry(DialTarget::Seed).or_insert(DialPlan::new(self.seeds.len()));
            let again = now + plan.pause(random);
            if patience.is_over(plan, &error, again) {
                self.close();
                return Some(Unreached::ForGood(error));
            }
            self.tries.insert(target, Try::Resting(again));
        } else if let DialTarget::Broker(name) = target {
            self.failed.insert(name);
        }
        Some(Unreached::ForNow(error))
    }

    /// A connection in use is gone.
    pub(crate) fn lost(&mut self, connection: u64, now: Moment) {
        let Some(open) = self.open.remove(&connection) else { return };
        if now.since(open.since) >= GOOD
            && let Some(plan) = self.plans.get_mut(&open.target)
        {
            plan.tries = 0;
        }
    }

    /// Begins the tries that are needed, and gives up those that are not. Says whether everything
    /// was tried that a client connects to.
    pub(crate) fn plan(
        &mut self,
        topology: Option<&Topology>,
        now: Moment,
        random: &mut impl Random,
    ) -> bool {
        if self.closed || self.patience.is_some() {
            return false;
        }
        let alone = self.open.values().any(|open| open.name.is_none());
        let brokers = topology.into_iter().filter(|_| !alone && !self.one_broker).flat_map(|t| &t.brokers);
        let is_open = |address: &str| self.open.values().any(|open| open.name.as_deref() == Some(address));
        let mut wanted: BTreeSet<DialTarget> = brokers
            .filter(|broker| !is_open(&broker.address))
            .map(|broker| DialTarget::Broker(broker.address.clone()))
            .collect();
        let tried =
            wanted.iter().all(|t| matches!(t, DialTarget::Broker(name) if self.failed.contains(name)));
        let ready = !self.open.is_empty() && (alone || (topology.is_some() && tried));
        if self.open.is_empty() {
            wanted.insert(DialTarget::Seed);
        }
        self.give_up(&wanted);
        for target in wanted {
            if !self.tries.contains_key(&target) {
                let places = if target == DialTarget::Seed { self.seeds.len() } else { 1 };
                let plan = self.plans.entry(target.clone()).or_insert(DialPlan::new(places));
                self.tries.insert(target, Try::Resting(now + plan.pause(random)));
            }
        }
        self.begin(now);
        ready
    }

    /// Gives up the tries for targets that are not wanted, and forgets plans that are of no use.
    fn give_up(&mut self, wanted: &BTreeSet<DialTarget>) {
        let orders = &mut self.orders;
        self.tries.retain(|target, attempt| {
            let keep = wanted.contains(target);
            if let Try::Begun(attempt) = attempt
                && !keep
            {
                orders.push_back(DialOrder::Disconnect { connection: attempt.connection });
            }
            keep
        });
        let open = &self.open;
        self.plans.retain(|target, _| {
            let in_use = open.values().any(|open| open.target == *target);
            *target == DialTarget::Seed || wanted.contains(target) || in_use
        });
    }

    /// Begins the tries whose time has come.
    pub(crate) fn begin(&mut self, now: Moment) {
        for (target, one) in &mut self.tries {
            let Try::Resting(at) = one else { continue };
            let Some(plan) = self.plans.get_mut(target).filter(|_| *at <= now) else { continue };
            let number = plan.begin();
            let place = match target {
                DialTarget::Seed => Place::Seed(number),
                DialTarget::Broker(name) => Place::Broker(name.clone()),
            };
            self.last_connection += 1;
            let connection = self.last_connection;
            let limit = self.patience.map_or(HANDSHAKE, |patience| patience.limit(now));
            self.orders.push_back(DialOrder::Connect { connection, place: place.clone() });
            let stage = AttemptStage::Connecting;
            *one = Try::Begun(Attempt { connection, place, until: now + limit, limit, stage });
        }
    }

    /// Returns a try that has taken too long, and gives it up.
    pub(crate) fn poll_late(&mut self, now: Moment) -> Option<(u64, ConnectError)> {
        let attempt = self.attempts().find(|attempt| attempt.until <= now)?;
        let (connection, ms) = (attempt.connection, attempt.limit.as_millis() as u64);
        let error = ConnectError::Timeout { broker: self.address_of(attempt), ms };
        self.orders.push_back(DialOrder::Disconnect { connection });
        Some((connection, error))
    }

    /// When [`Dialling::begin`] or [`Dialling::poll_late`] is due.
    pub(crate) fn next_timeout(&self) -> Option<Moment> {
        let due = |one: &Try| match one {
            Try::Resting(at) => *at,
            Try::Begun(attempt) => attempt.until,
        };
        self.tries.values().map(due).min()
    }

    /// Makes no more connections, and closes those that there are.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        let trying: Vec<u64> = self.attempts().map(|attempt| attempt.connection).collect();
        let all = trying.into_iter().chain(std::mem::take(&mut self.open).into_keys());
        self.orders.extend(all.map(|connection| DialOrder::Disconnect { connection }));
        self.tries.clear();
    }

    fn attempts(&self) -> impl Iterator<Item = &Attempt> {
        self.tries.values().filter_map(|one| match one {
            Try::Begun(attempt) => Some(attempt),
            Try::Resting(_) => None,
        })
    }

    fn attempt(&mut self, connection: u64) -> Option<&mut Attempt> {
        let mut begun = self.tries.values_mut().filter_map(|one| match one {
            Try::Begun(attempt) => Some(attempt),
            Try::Resting(_) => None,
        });
        begun.find(|attempt| attempt.connection == connection)
    }

    fn take(&mut self, connection: u64) -> Option<(DialTarget, Attempt)> {
        let of = |one: &Try| matches!(one, Try::Begun(attempt) if attempt.connection == connection);
        let target = self.tries.iter().find(|(_, one)| of(one)).map(|(target, _)| target.clone())?;
        match self.tries.remove(&target)? {
            Try::Begun(attempt) => Some((target, attempt)),
            Try::Resting(_) => None,
        }
    }

    fn address_of(&self, attempt: &Attempt) -> String {
        match (&attempt.stage, &attempt.place) {
            (AttemptStage::Connected(address) | AttemptStage::Greeted(address, _), _) => address.clone(),
            (AttemptStage::Connecting, Place::Seed(n)) => self.seeds.get(*n).cloned().unwrap_or_default(),
            (AttemptStage::Connecting, Place::Broker(name)) => name.clone(),
        }
    }
}
