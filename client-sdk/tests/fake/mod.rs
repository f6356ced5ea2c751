//! A scripted broker: the test gives its answers, message by message.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use mtimer_client::{
    Client, ClientBuilder, Destination, Epoch, Headers, Mode, PartitionId, Target, Time, TimerId, limits,
};
use mtimer_protocol::ops;
use mtimer_protocol::ops::ScheduleReply;
use mtimer_protocol::{
    BrokerEntry, ClientMessage, Delivery, Hello, OpReply, Query, QueryAnswer, Request, RequestOp, Role,
    ServerMessage, Settlement, Topology, Welcome, decode, encode, frame_codec,
};
use mtimer_types::Term;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

/// The cluster clock of every fake broker, at its start.
pub const START: Time = Time::from_ms(1_700_000_000_000);

/// The number of the ping by which [`Peer::until_heard`] finds out.
const HEARD: u64 = u64::MAX;

/// The log at level warn and above.
#[derive(Clone, Default)]
pub struct TextLog(Arc<Mutex<Vec<u8>>>);

impl TextLog {
    /// Takes the log of this thread, for as long as the guard lives.
    pub fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let writer = Self(Arc::clone(&log.0));
        let all = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_ansi(false);
        let all = all.with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(all))
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for TextLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub struct Broker {
    listener: TcpListener,
    pub address: String,
    began: tokio::time::Instant,
}

/// One client's connection, seen from the broker.
pub struct Peer {
    pub frames: Framed<TcpStream, LengthDelimitedCodec>,
    pub hello: Hello,
    began: tokio::time::Instant,
    /// Answers pings by itself.
    pub alive: bool,
    /// Answers barriers by itself, as a broker does.
    pub answers: bool,
    /// The credit that the client has offered last, as far as that was looked at.
    pub credit: Option<u32>,
}

pub fn welcome(now: Time) -> Welcome {
    Welcome {
        version: mtimer_protocol::VERSION,
        session: 7,
        cluster: "test".into(),
        software: "fake/1".into(),
        store: "none".into(),
        durability: "none".into(),
        partitions: 8,
        now,
        heartbeat_ms: limits::HEARTBEAT_MS,
        max_frame: limits::MAX_FRAME as u32,
        max_batch: limits::MAX_BATCH as u32,
        broker: None,
    }
}

impl Broker {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        Self { listener, address, began: tokio::time::Instant::now() }
    }

    pub fn client(&self) -> ClientBuilder {
        Client::builder().brokers([self.address.clone()])
    }

    /// Connects a client and gives both ends.
    pub async fn connect(&self) -> (Client, Peer) {
        let (client, peer) = tokio::join!(self.client().connect(), self.accept());
        (client.unwrap(), peer)
    }

    /// The same, of a cluster with so many partitions.
    pub async fn connect_to_partitions(&self, partitions: u16) -> (Client, Peer) {
        let accept = async {
            let mut peer = self.greet().await;
            let welcome = Welcome { partitions, ..welcome(peer.now()) };
            peer.send(ServerMessage::Welcome(welcome)).await;
            peer
        };
        let (client, peer) = tokio::join!(self.client().connect(), accept);
        (client.unwrap(), peer)
    }

    /// Takes a connection without a word.
    pub async fn accept_silently(&self) -> TcpStream {
        let stream = self.listener.accept().await.unwrap().0;
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Takes a connection and its hello.
    pub async fn greet(&self) -> Peer {
        let frames = Framed::new(self.accept_silently().await, frame_codec(limits::MAX_FRAME));
        let hello = Hello {
            magic: 0,
            min_version: 0,
            max_version: 0,
            client: 0,
            software: String::new(),
            token: String::new(),
            role: Role::Client,
        };
        let mut peer = Peer { frames, hello, began: self.began, alive: true, answers: true, credit: None };
        match peer.recv().await {
            ClientMessage::Hello(hello) => peer.hello = hello,
            other => panic!("not a hello: {other:?}"),
        }
        peer
    }

    /// Takes a connection and does the handshake.
    pub async fn accept(&self) -> Peer {
        let mut peer = self.greet().await;
        let now = peer.now();
        peer.send(ServerMessage::Welcome(welcome(now))).await;
        peer
    }
}

impl Peer {
    pub fn now(&self) -> Time {
        START + self.began.elapsed().as_millis() as u64
    }

    /// The next message that is no heartbeat; pings and barriers (by which a client learns that its
    /// earlier messages were taken in) are answered on the way. `None`: the client closed.
    pub async fn next(&mut self) -> Option<ClientMessage> {
        loop {
            let body = self.frames.next().await?.ok()?;
            match decode(&body).unwrap() {
                ClientMessage::Ping(n) if self.alive => {
                    let now = self.now();
                    self.send(ServerMessage::Pong(n, now)).await;
                }
                ClientMessage::Ping(_) | ClientMessage::Pong(_) => {}
                ClientMessage::Query { corr, query: Query::Get(Target::Id(TimerId::NOBODYS)) } => {
                    if self.answers {
                        self.send(ServerMessage::Answer { corr, answer: QueryAnswer::Timer(None) }).await;
                    }
                }
                message => return Some(message),
            }
        }
    }

    /// Waits until the client has taken in everything that was sent before; it says nothing else
    /// meanwhile.
    pub async fn until_heard(&mut self) {
        self.send(ServerMessage::Ping(HEARD)).await;
        loop {
            let body = self.frames.next().await.expect("a frame").unwrap();
            match decode(&body).unwrap() {
                ClientMessage::Pong(HEARD) => return,
                ClientMessage::Ping(_) => {}
                other => panic!("not a heartbeat: {other:?}"),
            }
        }
    }

    pub async fn recv(&mut self) -> ClientMessage {
        self.next().await.expect("the client closed the connection")
    }

    /// Waits until the client has closed the connection; returns the messages that it sent before.
    pub async fn until_closed(&mut self) -> Vec<ClientMessage> {
        let mut all = Vec::new();
        while let Some(message) = self.next().await {
            all.push(message);
        }
        all
    }

    pub async fn request(&mut self) -> Request {
        match self.recv().await {
            ClientMessage::Request(request) => request,
            other => panic!("not a request: {other:?}"),
        }
    }

    /// Requests until they have `n` operations.
    pub async fn requests(&mut self, n: usize) -> Vec<Request> {
        let mut all = vec![self.request().await];
        while all.iter().map(|r| r.ops.len()).sum::<usize>() < n {
            all.push(self.request().await);
        }
        all
    }

    /// The next outcomes; on the way it takes note of the credit that is offered.
    pub async fn settlements(&mut self) -> Vec<Settlement> {
        loop {
            match self.recv().await {
                ClientMessage::Settle(settlements) => return settlements,
                ClientMessage::Register { credit, .. } => self.credit = Some(credit),
                other => panic!("not a settle: {other:?}"),
            }
        }
    }

    /// Waits until the client offers this credit; nothing else comes from it meanwhile.
    pub async fn until_offered(&mut self, wanted: u32) {
        while self.credit != Some(wanted) {
            match self.recv().await {
                ClientMessage::Register { credit, .. } => self.credit = Some(credit),
                other => panic!("not a registration: {other:?}"),
            }
        }
    }

    /// Collects outcomes until there are `n`, and confirms them.
    pub async fn settle(&mut self, n: usize) -> Vec<Settlement> {
        let mut all = Vec::new();
        while all.len() < n {
            let some = self.settlements().await;
            self.send(ServerMessage::Settled { accepted: some.len() as u32, refused: vec![] }).await;
            all.extend(some);
        }
        all
    }

    /// Takes the next registration, which must be of `dest`; returns its number and credit.
    pub async fn registration(&mut self, dest: &Destination) -> (u32, u32) {
        match self.recv().await {
            ClientMessage::Register { registration, dest: d, credit } if d == *dest => (registration, credit),
            other => panic!("not a registration of {dest}: {other:?}"),
        }
    }

    pub async fn send(&mut self, message: ServerMessage) {
        // The client may be gone; the test then notices at its next receive.
        let _ = self.frames.send(encode(&message).unwrap()).await;
    }

    pub async fn deliver(&mut self, registration: u32, deliveries: Vec<Delivery>) {
        self.send(ServerMessage::Deliver { registration, deliveries }).await;
    }

    /// Says that every operation of a request is stored.
    pub async fn scheduled(&mut self, request: &Request) {
        let replies = request
            .ops
            .iter()
            .map(|_| OpReply::Schedule(ScheduleReply::Scheduled { new: true, replaced: None }))
            .collect();
        self.send(ServerMessage::Reply { corr: request.corr, replies }).await;
    }

    /// Bytes as they are, without a frame around them.
    pub async fn raw(&mut self, bytes: &[u8]) {
        let _ = self.frames.get_mut().write_all(bytes).await;
    }

    /// Bytes in a frame.
    pub async fn frame(&mut self, body: &[u8]) {
        let mut bytes = BytesMut::new();
        bytes.put_u32(body.len() as u32);
        bytes.extend_from_slice(body);
        self.raw(&bytes).await;
    }
}

pub fn dest() -> Destination {
    Destination::new("orders", "billing").unwrap()
}

pub fn delivery(n: u64) -> Delivery {
    Delivery {
        id: TimerId::new(START, START, PartitionId(3), n),
        key: None,
        due: START,
        epoch: Epoch(10),
        attempt: 1,
        mode: Mode::AtLeastOnce,
        timeout_ms: 30_000,
        payload: Bytes::from_static(b"hi"),
        headers: Headers::NONE,
    }
}

pub fn ids(request: &Request) -> Vec<TimerId> {
    request
        .ops
        .iter()
        .map(|op| match op {
            RequestOp::Schedule(ops::Schedule { timer, .. }) => timer.id,
            other => panic!("not a schedule: {other:?}"),
        })
        .collect()
}

/// Waits until something is so.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("never happened: {what}");
}

/// Several fake brokers, one client, and the client's connection to each.
pub struct Cluster {
    pub brokers: Vec<Broker>,
    pub peers: Vec<Peer>,
}

impl Cluster {
    /// Starts `n` brokers and connects a client by the first; partition p belongs to broker p mod
    /// n.
    pub async fn start(n: usize) -> (Self, Client) {
        let mut brokers = Vec::new();
        for _ in 0..n {
            brokers.push(Broker::start().await);
        }
        let cluster = Self { brokers, peers: Vec::new() };
        let builder = cluster.brokers[0].client();
        cluster.connect(builder).await
    }

    pub async fn connect(mut self, builder: ClientBuilder) -> (Self, Client) {
        let n = self.brokers.len();
        let topology = self.topology(1, |p| p % n);
        let accept = futures_util::future::join_all(self.brokers.iter().map(|b| b.join(&topology)));
        let (client, peers) = tokio::join!(builder.connect(), accept);
        self.peers = peers;
        (self, client.unwrap())
    }

    /// Of all brokers.
    pub fn topology(&self, version: u64, owner: impl Fn(usize) -> usize) -> Topology {
        let all: Vec<usize> = (0..self.brokers.len()).collect();
        self.topology_of(version, &all, owner)
    }

    /// Of the brokers with these numbers; `owner` gives a place in that list.
    pub fn topology_of(&self, version: u64, members: &[usize], owner: impl Fn(usize) -> usize) -> Topology {
        let entry = |n: &usize| BrokerEntry { address: self.brokers[*n].address.clone(), draining: false };
        let brokers: Vec<BrokerEntry> = members.iter().map(entry).collect();
        Topology {
            term: Term(1),
            version,
            leader: brokers[0].address.clone(),
            brokers,
            owners: (0..8).map(|p| Some(owner(p) as u16)).collect(),
        }
    }

    /// Tells the client over the connection to one broker.
    pub async fn tell(&mut self, n: usize, topology: Topology) {
        self.peers[n].send(ServerMessage::Topology(topology)).await;
    }

    /// The client's registration at every broker: its number, and the credits.
    pub async fn registrations(&mut self) -> (u32, Vec<u32>) {
        let (mut number, mut credits) = (0, Vec::new());
        for peer in &mut self.peers {
            let (n, credit) = peer.registration(&dest()).await;
            number = n;
            credits.push(credit);
        }
        (number, credits)
    }

    /// Takes peer `n` out, which closes its connection when it is dropped.
    pub fn take(&mut self, n: usize) -> Peer {
        self.peers.remove(n)
    }
}

impl Broker {
    /// Takes a connection as a broker of a cluster.
    pub async fn join(&self, topology: &Topology) -> Peer {
        let mut peer = self.greet().await;
        let welcome = Welcome { broker: Some(self.address.clone()), ..welcome(peer.now()) };
        peer.send(ServerMessage::Welcome(welcome)).await;
        peer.send(ServerMessage::Topology(topology.clone())).await;
        peer
    }

    /// Connections that wait to be taken, within so long.
    pub async fn knocks(&self, within: Duration) -> usize {
        let end = tokio::time::Instant::now() + within;
        let mut n = 0;
        while tokio::time::timeout_at(end, self.listener.accept()).await.is_ok() {
            n += 1;
        }
        n
    }
}

impl Peer {
    /// Answers every operation of a request in the same way.
    pub async fn reply(&mut self, request: &Request, reply: OpReply) {
        let replies = vec![reply; request.ops.len()];
        self.send(ServerMessage::Reply { corr: request.corr, replies }).await;
    }

    /// Nothing comes from the client for so long, heartbeats apart.
    pub async fn silent(&mut self, time: Duration) {
        if let Ok(message) = tokio::time::timeout(time, self.next()).await {
            panic!("not silent: {message:?}");
        }
    }
}

/// An id in a partition.
pub fn id_in(partition: u16, n: u64) -> TimerId {
    TimerId::new(START, START, PartitionId(partition), n)
}

/// A delivery of a timer in a partition.
pub fn delivery_in(partition: u16, n: u64) -> Delivery {
    Delivery { id: id_in(partition, n), ..delivery(n) }
}

/// What a broker was asked.
pub type Asked<T> = Arc<Mutex<Vec<T>>>;

/// Answers all questions of a kind, which `pick` takes out; returns those that it was asked.
pub fn serve<T: Send + 'static>(
    mut peer: Peer,
    pick: fn(Query) -> Option<T>,
    answer: impl Fn(&T) -> QueryAnswer + Send + 'static,
) -> Asked<T> {
    let asked = Asked::default();
    let told = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Some(message) = peer.next().await {
            if let ClientMessage::Query { corr, query } = message
                && let Some(query) = pick(query)
            {
                let answer = answer(&query);
                told.lock().unwrap().push(query);
                peer.send(ServerMessage::Answer { corr, answer }).await;
            }
        }
    });
    asked
}
