//! Questions to a cluster as a whole: its state, its brokers, maintenance.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use mtimer_protocol::{
    BrokerView, ClusterView, LimitedDestination, MAX_LIMITED_DESTINATIONS, MAX_PARKED_DESTINATIONS,
    MAX_PAUSED_DESTINATIONS, ParkedDestination, PausedDestination, Query, QueryAnswer, Status, Topology,
};
use mtimer_types::Destination;
use tokio::time::Instant;

use crate::{Client, RequestError};

impl Client {
    /// Returns the brokers' state in numbers: the sum over all that are connected, counters by
    /// their names; of counters whose names end in `_ms` the longest.
    ///
    /// Every broker counts over its partitions in the store for it. While partitions are between
    /// two owners, their timers are not counted; a client is counted by every broker that it is
    /// connected to. The counter `stored_unknown_partitions` says how many partitions are not
    /// counted, `brokers_unanswered` how many brokers of the topology are not connected.
    ///
    /// # Errors
    ///
    /// [`RequestError`]. It changes nothing, and can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the question back.
    pub async fn status(&self) -> Result<Status, RequestError> {
        let end = Instant::now() + self.state().settings.request_timeout;
        loop {
            let brokers = self.connected_brokers();
            if brokers.is_empty() {
                // A broker without a cluster around it, or the first one to connect.
                return status(self.state().query(Query::Status).await?);
            }
            let asked = brokers.clone();
            let ask = brokers.into_iter().map(|name| self.state().query_broker(Query::Status, name));
            let answers = join_all(ask).await;
            match answers.into_iter().map(|answer| status(answer?)).collect::<Result<Vec<_>, _>>() {
                Ok(all) => {
                    let sum = all.into_iter().fold(Status::default(), add);
                    return Ok(add(sum, self.left_out(&asked)));
                }
                // One went away while it was asked; the next round does not ask it.
                Err(RequestError::Unanswered { .. }) if Instant::now() < end => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the newest topology: which broker is to own which partition. `None`: the broker has
    /// no cluster around it.
    pub fn topology(&self) -> Option<Arc<Topology>> {
        self.state().topology()
    }

    /// Returns the cluster as its leader sees it, or as another broker does if the leader is not
    /// connected (then without the members).
    ///
    /// # Errors
    ///
    /// [`RequestError`]. It changes nothing, and can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the question back.
    pub async fn cluster(&self) -> Result<ClusterView, RequestError> {
        match self.state().query(Query::Cluster).await? {
            QueryAnswer::Cluster(view) => Ok(view),
            _ => Err(RequestError::Mismatched),
        }
    }

    /// Returns the view that every broker of the topology has of itself, by address. A broker
    /// without a cluster around it goes by the address that the client has dialled.
    ///
    /// # Errors
    ///
    /// Each answer has its own [`RequestError`]; that of a broker that is not connected says so.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the question back.
    pub async fn broker_views(&self) -> Vec<(String, Result<BrokerView, RequestError>)> {
        let names: Vec<String> = match self.topology() {
            Some(topology) => topology.brokers.iter().map(|broker| broker.address.clone()).collect(),
            None => vec![self.info().broker.clone()],
        };
        let connected = self.connected_brokers();
        let alone = self.topology().is_none();
        let ask = names.into_iter().map(async |name| {
            let view = match alone || connected.contains(&name) {
                true => self.state().query_broker(Query::Broker, name.clone()).await,
                false => Err(RequestError::Unanswered { ms: 0, reason: format!("{name} is not connected") }),
            };
            let view = view.and_then(|answer| match answer {
                QueryAnswer::Broker(view) => Ok(view),
                _ => Err(RequestError::Mismatched),
            });
            (name, view)
        });
        join_all(ask).await
    }

    /// Has the leader empty a broker for maintenance, or give it partitions again. `broker` is its
    /// address in the topology. Returns when the leader has taken note; the topology shows how far
    /// it is.
    ///
    /// # Errors
    ///
    /// [`RequestError`]. It can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future breaks nothing; a request that was sent may be done all the same.
    pub async fn drain(&self, broker: impl Into<String>, drain: bool) -> Result<(), RequestError> {
        match self.state().query(Query::Drain { broker: broker.into(), drain }).await? {
            QueryAnswer::Done => Ok(()),
            _ => Err(RequestError::Mismatched),
        }
    }

    /// Counts the brokers of the topology that were not asked, and their partitions.
    fn left_out(&self, asked: &[String]) -> Status {
        let Some(topology) = self.topology().filter(|_| !self.state().settings.one_broker) else {
            return Status::default();
        };
        let others = || topology.brokers.iter().filter(|broker| !asked.contains(&broker.address));
        let partitions: usize = others().map(|broker| topology.partitions_of(&broker.address).count()).sum();
        let counters = [("brokers_unanswered", others().count()), ("stored_unknown_partitions", partitions)];
        let some = counters.into_iter().filter(|(_, n)| *n > 0);
        let counters = some.map(|(name, n)| (name.to_owned(), n as u64)).collect();
        Status { counters, ..Status::default() }
    }

    /// Brokers of the topology to which there is a connection.
    fn connected_brokers(&self) -> Vec<String> {
        self.state().with_shell(|shell| {
            let routes = shell.machine.routes();
            let Some(topology) = routes.topology() else { return Vec::new() };
            let open: Vec<&str> = routes.connected().collect();
            let names = topology.brokers.iter().map(|broker| &broker.address);
            names.filter(|name| open.contains(&name.as_str())).cloned().collect()
        })
    }
}

fn status(answer: QueryAnswer) -> Result<Status, RequestError> {
    match answer {
        QueryAnswer::Status(status) => Ok(status),
        _ => Err(RequestError::Mismatched),
    }
}

fn add(a: Status, b: Status) -> Status {
    let mut counters: BTreeMap<String, u64> = BTreeMap::new();
    for (name, n) in a.counters.into_iter().chain(b.counters) {
        let is_duration = name.ends_with("_ms");
        let both = counters.entry(name).or_default();
        *both = if is_duration { n.max(*both) } else { both.saturating_add(n) };
    }
    Status {
        sessions: a.sessions.saturating_add(b.sessions),
        loaded: a.loaded.saturating_add(b.loaded),
        loaded_bytes: a.loaded_bytes.saturating_add(b.loaded_bytes),
        in_flight: a.in_flight.saturating_add(b.in_flight),
        ready: a.ready.saturating_add(b.ready),
        pending: a.pending.saturating_add(b.pending),
        retrying: a.retrying.saturating_add(b.retrying),
        parked: a.parked.saturating_add(b.parked),
        taken: a.taken.saturating_add(b.taken),
        dead: a.dead.saturating_add(b.dead),
        residue: a.residue.saturating_add(b.residue),
        keys: a.keys.saturating_add(b.keys),
        staged: a.staged.saturating_add(b.staged),
        counters: counters.into_iter().collect(),
        parked_destinations: most_parked(a.parked_destinations, b.parked_destinations),
        lost_brokers: lost_by_either(a.lost_brokers, b.lost_brokers),
        unreached_leaders: unreached_by_either(a.unreached_leaders, b.unreached_leaders),
        paused_destinations: paused_at_either(a.paused_destinations, b.paused_destinations),
        limited_destinations: limited_at_both(a.limited_destinations, b.limited_destinations),
    }
}

/// The destinations with the most parked timers at two brokers together.
fn most_parked(a: Vec<ParkedDestination>, b: Vec<ParkedDestination>) -> Vec<ParkedDestination> {
    let mut all: BTreeMap<Destination, (u64, u64)> = BTreeMap::new();
    for ParkedDestination { dest, parked, sessions } in a.into_iter().chain(b) {
        let sum = all.entry(dest).or_default();
        *sum = (sum.0.saturating_add(parked), sum.1.saturating_add(sessions));
    }
    let parked = |(dest, (parked, sessions))| ParkedDestination { dest, parked, sessions };
    let mut all: Vec<_> = all.into_iter().map(parked).collect();
    all.sort_by_key(|one| Reverse(one.parked));
    all.truncate(MAX_PARKED_DESTINATIONS);
    all
}

/// The destinations that are paused by what either of two brokers knows, by the newer settings.
fn paused_at_either(a: Vec<PausedDestination>, b: Vec<PausedDestination>) -> Vec<PausedDestination> {
    let mut all: BTreeMap<Destination, PausedDestination> = BTreeMap::new();
    for paused in a.into_iter().chain(b) {
        let known = all.entry(paused.dest.clone()).or_insert_with(|| paused.clone());
        if paused.version > known.version {
            *known = paused;
        }
    }
    let mut all: Vec<_> = all.into_values().collect();
    all.sort_by_key(|one| one.pause.since);
    all.truncate(MAX_PAUSED_DESTINATIONS);
    all
}

/// The destinations that their limits hold back at either of two brokers.
fn limited_at_both(a: Vec<LimitedDestination>, b: Vec<LimitedDestination>) -> Vec<LimitedDestination> {
    let mut all: BTreeMap<Destination, LimitedDestination> = BTreeMap::new();
    for limited in a.into_iter().chain(b) {
        if let Some(sum) = all.get_mut(&limited.dest) {
            sum.waiting = sum.waiting.saturating_add(limited.waiting);
            sum.oldest_ms = sum.oldest_ms.max(limited.oldest_ms);
        } else {
            all.insert(limited.dest.clone(), limited);
        }
    }
    let mut all: Vec<_> = all.into_values().collect();
    all.sort_by_key(|one| Reverse(one.oldest_ms));
    all.truncate(MAX_LIMITED_DESTINATIONS);
    all
}

/// The brokers that either of two brokers has lost, and how long ago the first of them saw it, ms.
fn lost_by_either(a: Vec<(String, u64)>, b: Vec<(String, u64)>) -> Vec<(String, u64)> {
    let mut all: BTreeMap<String, u64> = BTreeMap::new();
    for (address, ms) in a.into_iter().chain(b) {
        let longest = all.entry(address).or_default();
        *longest = ms.max(*longest);
    }
    all.into_iter().collect()
}

/// The leaders that either of two brokers does not reach, and why one of them does not.
fn unreached_by_either(a: Vec<(String, String)>, b: Vec<(String, String)>) -> Vec<(String, String)> {
    let all: BTreeMap<String, String> = a.into_iter().chain(b).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use mtimer_types::DeliveryLimits;

    use super::*;

    #[test]
    fn what_limits_hold_back_at_two_brokers_is_added_up_and_the_oldest_comes_first() {
        let of = |app: &str, waiting, oldest_ms| LimitedDestination {
            dest: Destination::new("g", app).expect("a destination"),
            limits: DeliveryLimits { concurrency: Some(1), rate: None },
            waiting,
            oldest_ms,
        };
        let both = limited_at_both(vec![of("a", 3, 10), of("b", 1, 5)], vec![of("b", 2, 20)]);
        assert_eq!(both, [of("b", 3, 20), of("a", 3, 10)]);
        let many = (0..20).map(|n| of(&n.to_string(), 1, n)).collect();
        assert_eq!(limited_at_both(many, Vec::new()).len(), MAX_LIMITED_DESTINATIONS);
    }

    #[test]
    fn brokers_are_added_up_but_durations_are_not() {
        let parked = |app: &str, parked, sessions| {
            let dest = Destination::new("g", app).expect("a destination");
            ParkedDestination { dest, parked, sessions }
        };
        let of = |n: u64, parked_destinations, lost: &str| Status {
            pending: n,
            counters: vec![("fired_total".into(), n), ("stored_age_ms".into(), n)],
            parked_destinations,
            lost_brokers: vec![("x:1".into(), n), (lost.into(), 1)],
            unreached_leaders: vec![("x:1".into(), "refused".into())],
            ..Status::default()
        };
        let one = of(3, vec![parked("a", 5, 0), parked("b", 4, 1)], "y:1");
        let other = of(5, vec![parked("b", 3, 1), parked("c", 1, 0)], "z:1");
        let both = add(one, other);
        assert_eq!(both.pending, 8);
        assert_eq!(both.counters, [("fired_total".to_owned(), 8), ("stored_age_ms".to_owned(), 5)]);
        assert_eq!(both.parked_destinations, [parked("b", 7, 2), parked("a", 5, 0), parked("c", 1, 0)]);
        let lost = [("x:1", 5), ("y:1", 1), ("z:1", 1)].map(|(address, ms)| (address.to_owned(), ms));
        assert_eq!(both.lost_brokers, lost);
        assert_eq!(both.unreached_leaders, [("x:1".to_owned(), "refused".to_owned())]);
    }
}
