//! Several brokers on one Redis: started, watched, and done everything to that hurts.
//!
//! Purpose: the parties of a cluster as processes, with a proxy between any two of them on request,
//! and the record of what was done to whom.
//! Invariant: whatever is done to a party is noted in the history, with what it excuses.
//! Not in here: the load (see [`Load`]) and the verdict (see [`judge`](crate::judge)).

mod load;
mod netns;
mod proxy;
mod redis;

use std::sync::Arc;
use std::time::Duration;

use mtimer_client::{Client, ClientBuilder, Status};
use mtimer_protocol::{BrokerView, ClusterView, Query, QueryAnswer};
use mtimer_store_redis::test_support::Place;
use rustix::process::Signal;

pub use load::{Load, Work};
pub use netns::{Net, apart};
pub use proxy::{Proxy, Way, Ways};
pub use redis::{Lag, Redis, RedisKind};

use crate::broker::{Broker, Launch, Sabotage};
use crate::history::{Excuse, History};
use crate::journal::Journal;
use crate::left::Final;
use crate::party::Parties;
use crate::recorder::Recorder;
use crate::wire::Wire;
use crate::{host_ms, wait_for};

/// How long things may take that have no bound in the contract: a loaded machine is slow.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a broker may take to stop.
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// Nobody listens there.
const NOBODY: &str = "127.0.0.1:1";

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Brokers at first.
    pub brokers: usize,
    /// Below them.
    pub redis: RedisKind,
    /// A proxy before each broker, for clients and other brokers.
    pub fronts: bool,
    /// A proxy between each broker and the one Redis server.
    pub backs: bool,
    /// Every broker in a place of its own and three Redis masters in another: only within
    /// [`apart`].
    pub net: bool,
    /// Partitions.
    pub partitions: u16,
    /// More of the brokers' command lines.
    pub flags: Vec<String>,
    /// Brokers that can be broken on purpose, and what is broken in them.
    pub sabotage: Option<Sabotage>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            brokers: 3,
            redis: RedisKind::Masters,
            fronts: false,
            backs: false,
            net: false,
            partitions: 24,
            flags: Vec::new(),
            sabotage: None,
        }
    }
}

/// One broker and what is around it.
#[derive(Debug)]
pub struct Member {
    /// The process; it may be killed or stopped.
    pub broker: Broker,
    /// Its name in the topology: where it is reached.
    pub name: String,
    /// Between it and those who dial it.
    pub front: Option<Proxy>,
    /// Between it and Redis.
    pub back: Option<Proxy>,
    /// Where it runs, if not on the loopback.
    pub place: Option<Place>,
    /// Whether it is to be there: started, not killed, not paused, not stopped.
    pub up: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Cluster {
    /// The brokers.
    pub members: Vec<Member>,
    /// Below them.
    pub redis: Redis,
    /// The network between them, if it is not the loopback.
    pub net: Option<Net>,
    /// What the brokers said.
    pub journal: Journal,
    /// What clients saw.
    pub recorder: Arc<Recorder>,
    parties: Parties,
    setup: Setup,
    /// A process has ended, and its counters with it.
    has_lost_counters: bool,
}

impl Cluster {
    /// Starts everything and waits until all partitions are owned.
    pub async fn start(setup: Setup) -> Self {
        let net = setup.net.then(Net::lay);
        let redis = match &net {
            Some(net) => Redis::masters_in(net.redis.clone()),
            None => Redis::start(setup.redis).await,
        };
        let mut this = Self {
            members: Vec::new(),
            redis,
            net,
            journal: Journal::default(),
            recorder: Arc::default(),
            parties: Parties::default(),
            setup,
            has_lost_counters: false,
        };
        for _ in 0..this.setup.brokers {
            this.add().await;
        }
        this.settled().await;
        this
    }

    /// Starts one more broker; returns its number.
    pub async fn add(&mut self) -> usize {
        let setup = &self.setup;
        let (mut front, mut back) = (None, None);
        let mut urls = self.redis.urls();
        if setup.backs {
            let proxy = Proxy::plain(&self.redis.one().address()).await;
            urls = format!("redis://{}", proxy.address());
            back = Some(proxy);
        }
        let mut launch =
            Launch::redis(&urls).journal(&self.journal).known_to(&self.parties).flags(["--cluster", "t"]);
        let place = self.net.as_mut().map(|net| net.place(&format!("broker-{}", self.members.len())));
        if let Some(place) = &place {
            launch = launch.at(place);
        }
        if setup.fronts {
            let proxy = Proxy::start(NOBODY, self.parties.label()).await;
            launch = launch.advertise(proxy.address());
            front = Some(proxy);
        }
        let partitions = setup.partitions.to_string();
        launch = launch.flags(["--partitions", &partitions, "--startup-timeout", "60s"]).more(&setup.flags);
        if let Some(sabotage) = setup.sabotage {
            launch = launch.breakable(sabotage);
        }
        let aim = front.as_ref().map(Proxy::aimer);
        // It is ready when it has its partitions, and for that others may have to reach it.
        let starting = tokio::task::spawn_blocking(move || {
            launch.start_telling(|addr| {
                if let Some(aim) = &aim {
                    aim(&addr.to_string());
                }
            })
        });
        let broker = starting.await.expect("a broker");
        let name = front.as_ref().map_or_else(|| broker.address(), |p| p.address().to_owned());
        self.members.push(Member { broker, name, front, back, place, up: true });
        self.members.len() - 1
    }

    /// The names of all brokers that there were.
    pub fn names(&self) -> Vec<String> {
        self.members.iter().map(|m| m.name.clone()).collect()
    }

    /// The brokers that are up.
    pub fn up(&self) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(|i| self.members[*i].up)
    }

    /// A client's settings; clients are told apart by their numbers.
    pub fn client_builder(&self, number: u32) -> ClientBuilder {
        let software = format!("client-{number}/test");
        Client::builder().brokers(self.names()).software(software).connect_timeout(TIMEOUT)
    }

    /// A client that knows all brokers.
    pub async fn client(&self, number: u32) -> Client {
        self.client_builder(number).connect().await.unwrap_or_else(|e| panic!("client {number}: {e}"))
    }

    /// Asks one broker, past its proxy.
    pub async fn ask(&self, member: usize, query: Query) -> Option<QueryAnswer> {
        let mut wire = Wire::open(&self.members[member].broker.address()).await;
        wire.ask(query).await
    }

    /// The cluster as one broker sees it.
    pub async fn view_of(&self, member: usize) -> Option<ClusterView> {
        match self.ask(member, Query::Cluster).await? {
            QueryAnswer::Cluster(view) => Some(view),
            _ => None,
        }
    }

    /// One broker's own word.
    pub async fn broker_view(&self, member: usize) -> Option<BrokerView> {
        match self.ask(member, Query::Broker).await? {
            QueryAnswer::Broker(view) => Some(view),
            _ => None,
        }
    }

    /// One broker's numbers.
    pub async fn status_of(&self, member: usize) -> Option<Status> {
        match self.ask(member, Query::Status).await? {
            QueryAnswer::Status(status) => Some(status),
            _ => None,
        }
    }

    /// A counter of one broker.
    pub async fn counter(&self, member: usize, name: &str) -> u64 {
        let status = self.status_of(member).await.expect("a broker that answers");
        crate::counter(&status, name)
    }

    /// The same, of one that may not be counted.
    pub async fn maybe_counter(&self, member: usize, name: &str) -> Option<u64> {
        let status = self.status_of(member).await.expect("a broker that answers");
        status.counters.iter().find(|(n, _)| n == name).map(|c| c.1)
    }

    /// The number of the broker that leads.
    pub async fn leader(&self) -> usize {
        let mut found = None;
        let mut look = async || {
            for i in self.up() {
                if self.view_of(i).await.is_some_and(|view| view.leads) {
                    found = Some(i);
                }
            }
            found.is_some()
        };
        wait_for("a leader", TIMEOUT, &mut look).await;
        found.expect("a leader")
    }

    /// A broker that is up and does not lead.
    pub async fn follower(&self) -> usize {
        let leader = self.leader().await;
        self.up().find(|i| *i != leader).expect("a follower")
    }

    /// Waits until all brokers that are up, and nobody else, have one topology, and own what it
    /// gives them.
    pub async fn settled(&self) {
        let members: Vec<usize> = self.up().collect();
        self.agree(&members).await;
    }

    /// The same, and nobody is held back any more after coming and going: everybody has a share.
    pub async fn balanced(&self) {
        self.settled().await;
        let all_have = async || {
            let observer = self.up().next().expect("a broker");
            let Some(view) = self.view_of(observer).await else { return false };
            self.up().all(|i| view.topology.partitions_of(&self.members[i].name).next().is_some())
        };
        wait_for("a share for every broker", 2 * TIMEOUT, all_have).await;
        self.settled().await;
    }

    /// Waits until these brokers have one topology of just them, and own what it gives them.
    pub async fn agree(&self, members: &[usize]) {
        let mut last = String::new();
        let mut look = async || match self.disagreement(members).await {
            None => true,
            Some(why) => {
                last = why;
                false
            }
        };
        let began = std::time::Instant::now();
        while !look().await {
            assert!(began.elapsed() < TIMEOUT, "the cluster does not settle within {TIMEOUT:?}: {last}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn disagreement(&self, members: &[usize]) -> Option<String> {
        let mut names: Vec<&str> = members.iter().map(|i| self.members[*i].name.as_str()).collect();
        names.sort_unstable();
        let mut stamp = None;
        for &i in members {
            let name = &self.members[i].name;
            let Some(view) = self.view_of(i).await else { return Some(format!("{name} does not answer")) };
            let topology = view.topology;
            let mut known: Vec<&str> = topology.brokers.iter().map(|b| b.address.as_str()).collect();
            known.sort_unstable();
            if known != names {
                return Some(format!("{name} knows {known:?}, not {names:?}"));
            }
            if *stamp.get_or_insert(topology.stamp()) != topology.stamp() {
                return Some(format!("{name} has topology {:?}, not {stamp:?}", topology.stamp()));
            }
            if topology.owners.iter().any(Option::is_none) {
                return Some(format!("partitions have no owner: {:?}", topology.owners));
            }
            let mut wanted: Vec<_> = topology.partitions_of(name).collect();
            wanted.sort_unstable();
            let Some(view) = self.broker_view(i).await else {
                return Some(format!("{name} does not answer"));
            };
            let has: Vec<_> = view.partitions.iter().filter(|p| p.reachable).map(|p| p.partition).collect();
            if has != wanted {
                let away: Vec<_> = view.partitions.iter().filter(|p| !p.reachable).collect();
                return Some(format!("{name} has {has:?}, not {wanted:?}; not reached: {away:?}"));
            }
        }
        None
    }

    /// SIGKILL.
    pub fn kill(&mut self, member: usize) -> u64 {
        let at = host_ms();
        self.has_lost_counters = true;
        let member = &mut self.members[member];
        member.broker.kill();
        member.up = false;
        at
    }

    /// SIGSTOP.
    pub fn pause(&mut self, member: usize) -> u64 {
        let at = host_ms();
        let member = &mut self.members[member];
        member.broker.process().signal(Signal::STOP);
        member.up = false;
        at
    }

    /// SIGCONT.
    pub fn resume(&mut self, member: usize) {
        let member = &mut self.members[member];
        member.broker.process().signal(Signal::CONT);
        member.up = true;
    }

    /// SIGTERM, and waits for its end.
    pub async fn stop(&mut self, member: usize) {
        self.has_lost_counters = true;
        let member = &mut self.members[member];
        member.up = false;
        let status = tokio::task::block_in_place(|| member.broker.terminate(STOP_WITHIN));
        assert!(status.success(), "{}: {status}", member.name);
    }

    /// Starts a broker again under its address, and waits until it serves.
    pub async fn restart(&mut self, member: usize) {
        let member = &mut self.members[member];
        tokio::task::block_in_place(|| member.broker.restart());
        member.up = true;
    }

    /// Notes what was done from then until now.
    pub fn note(&self, from: u64, what: impl Into<String>, excuse: Excuse) {
        self.recorder.over(from, what, excuse);
    }

    /// The whole record.
    pub fn history(&self) -> History {
        let mut history = self.recorder.history();
        history.journal = self.journal.entries();
        history
    }

    /// The numbers of all brokers that are up, added up.
    pub async fn status(&self) -> Option<Status> {
        let mut sum = Status::default();
        for i in self.up() {
            let s = self.status_of(i).await?;
            sum.loaded += s.loaded;
            sum.in_flight += s.in_flight;
            sum.ready += s.ready;
            sum.pending += s.pending;
            sum.retrying += s.retrying;
            sum.parked += s.parked;
            sum.taken += s.taken;
            sum.dead += s.dead;
            sum.residue += s.residue;
            sum.keys += s.keys;
        }
        Some(sum)
    }

    /// Waits until no timer is live, reads what is left, empties the store and looks for leaks.
    pub async fn finish(&self, client: &Client, limit: Duration) -> (History, Final) {
        self.drain(client, limit).await;
        self.recorder.handlers_return(limit).await;
        let history = self.history();
        let mut end = Final::read(client, &history).await;
        crate::free_keys(client, &history, &mut end).await;
        crate::purge(client, None, &mut end).await;
        end.status = self.status().await.expect("brokers that answer");
        end.expired = self.expired(&history).await;
        end.leaks.extend(self.redis.leaks());
        (history, end)
    }

    /// Timers that the brokers counted as expired. What a fault undid or hid is not known.
    async fn expired(&self, history: &History) -> Option<u64> {
        let disturbed = history.faults.iter().any(|f| f.excuse != Excuse::Nothing);
        if disturbed || self.has_lost_counters {
            return None;
        }
        let mut sum = 0;
        for member in self.up() {
            sum += self.counter(member, "expired_total").await;
        }
        Some(sum)
    }

    async fn drain(&self, client: &Client, limit: Duration) {
        let mut last = None;
        let began = std::time::Instant::now();
        loop {
            if let Some(s) = self.status().await {
                let live = s.pending + s.retrying + s.parked + s.in_flight + s.loaded;
                let unconfirmed = client.unconfirmed().all().await.map(|rows| rows.len() as u64);
                if live == 0 && unconfirmed.as_ref().is_ok_and(|n| *n == s.taken) {
                    return;
                }
                last = Some((s, unconfirmed));
            }
            assert!(
                began.elapsed() < limit,
                "invariant 9: not drained within {limit:?}; status, listed as unconfirmed: {last:?}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
