//! A broker on the in-memory store, and a client that speaks the protocol byte by byte.

#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod http;
pub(crate) mod tokens;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use mtimer_broker::{Broker, BrokerOptions, start};
use mtimer_core::EngineOptions;
use mtimer_protocol::ops::{Schedule, ScheduleReply};
use mtimer_protocol::{
    BrokerLoad, ClientMessage, Delivery, Heartbeat, Hello, MAGIC, OpReply, PeerRequest, Query, QueryAnswer,
    Request, RequestOp, Role, ServerMessage, Settlement, Status, VERSION, Welcome, decode, encode,
    frame_codec,
};
use mtimer_store::MemoryStore;
use mtimer_types::limits::MAX_FRAME;
use mtimer_types::{
    Destination, Epoch, HandlerOutcome, KeyPolicy, PartitionId, RetryTiers, Term, Time, Timer, TimerId,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;
use tokio_util::codec::{Framed, FramedRead, LengthDelimitedCodec};

/// Nothing in these tests takes this long: what does has failed.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn options() -> BrokerOptions {
    BrokerOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        cluster: "test".to_owned(),
        engine: EngineOptions {
            retry: RetryTiers(vec![50; 5]),
            jitter_percent: 0,
            seed: 7,
            ..EngineOptions::default()
        },
        drain_timeout: Duration::from_secs(5),
        startup_timeout: Some(TIMEOUT),
        ..BrokerOptions::default()
    }
}

pub(crate) async fn broker_on(store: &MemoryStore, options: BrokerOptions) -> Broker {
    start(options, Arc::new(store.clone())).await.unwrap()
}

pub(crate) async fn broker(options: BrokerOptions) -> Broker {
    broker_on(&MemoryStore::new(2), options).await
}

pub(crate) async fn count(broker: &Broker, name: &str) -> u64 {
    let status = broker.status().await.expect("the broker is up");
    counter(&status, name)
}

pub(crate) fn counter(status: &Status, name: &str) -> u64 {
    status.counters.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no counter {name}")).1
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    until_async(what, async || condition()).await;
}

/// Waits until a condition that has to be asked for holds. Nothing notifies of its changes, so it
/// is polled.
pub(crate) async fn until_async(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let so = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT, so).await.unwrap_or_else(|_| panic!("never happened: {what}"));
}

/// Waits until a counter has reached `n`.
pub(crate) async fn wait_count(broker: &Broker, name: &str, n: u64) {
    until_async(&format!("{name} is {n}"), async || count(broker, name).await >= n).await;
}

pub(crate) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Time::from_ms(since.as_millis() as u64)
}

pub(crate) fn dest(app: &str) -> Destination {
    Destination::new("group", app).unwrap()
}

/// A timer due `ahead` ms from now.
pub(crate) fn timer(app: &str, ahead: u64, payload: &[u8]) -> Timer {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    timer_in(PartitionId((n % 2) as u16), n, app, ahead, payload)
}

pub(crate) fn timer_in(partition: PartitionId, n: u64, app: &str, ahead: u64, payload: &[u8]) -> Timer {
    let now = now();
    let due = now + ahead;
    Timer {
        payload: Bytes::copy_from_slice(payload),
        ..Timer::new(TimerId::new(due, now, partition, n), dest(app), due)
    }
}

pub(crate) fn schedule(timer: &Timer) -> RequestOp {
    RequestOp::Schedule(Schedule { timer: timer.clone().into(), policy: KeyPolicy::Create })
}

pub(crate) fn hello() -> Hello {
    Hello {
        magic: MAGIC,
        min_version: VERSION,
        max_version: VERSION,
        client: 77,
        software: "test".to_owned(),
        token: String::new(),
        role: Role::Client,
    }
}

/// The first heartbeat of a broker that nobody has heard of.
pub(crate) fn heartbeat() -> ClientMessage {
    ClientMessage::Peer(PeerRequest::Heartbeat(Heartbeat {
        cluster: "test".to_owned(),
        partitions: 2,
        address: "127.0.0.1:1".to_owned(),
        incarnation: 1,
        software: "test".to_owned(),
        weight: 100,
        seq: 1,
        heard: 0,
        term: Term(1),
        topology: (Term(0), 0),
        stopping: false,
        owned: Vec::new(),
        unreachable: Vec::new(),
        load: BrokerLoad::default(),
        epoch: Epoch(0),
    }))
}

/// A frame as it goes over the wire.
pub(crate) fn frame(message: &ClientMessage) -> BytesMut {
    let body = encode(message).unwrap();
    let mut frame = BytesMut::new();
    frame.put_u32(body.len() as u32);
    frame.put_slice(&body);
    frame
}

pub(crate) struct Client {
    pub(crate) frames: Framed<TcpStream, LengthDelimitedCodec>,
    corr: u64,
    /// Callbacks that came while something else was waited for.
    early: VecDeque<(Delivery, Time)>,
}

impl Client {
    /// Connected, not welcomed.
    pub(crate) async fn connect(broker: &Broker) -> Self {
        let socket = TcpStream::connect(broker.local_addr()).await.unwrap();
        Self { frames: Framed::new(socket, frame_codec(MAX_FRAME)), corr: 0, early: VecDeque::new() }
    }

    pub(crate) async fn welcomed(broker: &Broker) -> Self {
        let mut client = Self::connect(broker).await;
        client.shake_hands(hello()).await;
        client
    }

    pub(crate) async fn shake_hands(&mut self, hello: Hello) -> Welcome {
        self.send(&ClientMessage::Hello(hello)).await;
        match self.next().await {
            Some(ServerMessage::Welcome(welcome)) => welcome,
            other => panic!("no welcome but {other:?}"),
        }
    }

    pub(crate) async fn send(&mut self, message: &ClientMessage) {
        self.send_bytes(&frame(message)).await;
    }

    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        self.frames.get_mut().write_all(bytes).await.unwrap();
    }

    /// The two directions of the connection, for one that reads and writes at the same time.
    pub(crate) fn into_halves(self) -> (FramedRead<OwnedReadHalf, LengthDelimitedCodec>, OwnedWriteHalf) {
        let (read, write) = self.frames.into_inner().into_split();
        (FramedRead::new(read, frame_codec(MAX_FRAME)), write)
    }

    /// The next message, heartbeats included; `None` at the end of the connection.
    pub(crate) async fn next_raw(&mut self) -> Option<ServerMessage> {
        next_raw(&mut self.frames).await
    }

    /// The next message, answering heartbeats.
    pub(crate) async fn next(&mut self) -> Option<ServerMessage> {
        loop {
            match self.next_raw().await? {
                ServerMessage::Ping(n) => self.send(&ClientMessage::Pong(n)).await,
                message => return Some(message),
            }
        }
    }

    /// The end of the connection, and the refusal before it.
    pub(crate) async fn refused(&mut self) -> (mtimer_protocol::ErrorCode, String) {
        refused(&mut self.frames).await
    }

    pub(crate) async fn register(&mut self, registration: u32, app: &str, credit: u32) {
        self.send(&ClientMessage::Register { registration, dest: dest(app), credit }).await;
    }

    pub(crate) async fn request(&mut self, ops: Vec<RequestOp>) -> Vec<OpReply> {
        self.corr += 1;
        let corr = self.corr;
        self.send(&ClientMessage::Request(Request { corr, first_sent: now(), ops })).await;
        self.wait_for(|message| match message {
            ServerMessage::Reply { corr: c, replies } if c == corr => Some(replies),
            _ => None,
        })
        .await
    }

    /// Schedules, and insists that it is new.
    pub(crate) async fn schedule(&mut self, timer: &Timer) {
        let replies = self.request(vec![schedule(timer)]).await;
        assert_eq!(replies, [OpReply::Schedule(ScheduleReply::Scheduled { new: true, replaced: None })]);
    }

    pub(crate) async fn query(&mut self, query: Query) -> QueryAnswer {
        self.corr += 1;
        let corr = self.corr;
        self.send(&ClientMessage::Query { corr, query }).await;
        self.wait_for(|message| match message {
            ServerMessage::Answer { corr: c, answer } if c == corr => Some(answer),
            _ => None,
        })
        .await
    }

    /// The first message that `want` takes; callbacks before it are kept, everything else is passed
    /// over.
    async fn wait_for<T>(&mut self, mut want: impl FnMut(ServerMessage) -> Option<T>) -> T {
        loop {
            let message = self.next().await.expect("closed before the answer");
            if let ServerMessage::Deliver { deliveries, .. } = message {
                let at = now();
                self.early.extend(deliveries.into_iter().map(|d| (d, at)));
            } else if let Some(found) = want(message) {
                return found;
            }
        }
    }

    /// The next `n` callbacks, with the time of arrival of each; everything else is passed over.
    pub(crate) async fn deliveries(&mut self, n: usize) -> Vec<(Delivery, Time)> {
        while self.early.len() < n {
            match self.next().await {
                Some(ServerMessage::Deliver { deliveries, .. }) => {
                    let at = now();
                    self.early.extend(deliveries.into_iter().map(|d| (d, at)));
                }
                Some(_) => {}
                None => panic!("closed after {} of {n} deliveries", self.early.len()),
            }
        }
        self.early.drain(..n).collect()
    }

    pub(crate) async fn settle(&mut self, delivery: &Delivery, outcome: HandlerOutcome) {
        let settlement =
            Settlement { id: delivery.id, epoch: delivery.epoch, attempt: delivery.attempt, outcome };
        self.send(&ClientMessage::Settle(vec![settlement])).await;
    }

    /// Waits for the answer to a settlement.
    pub(crate) async fn settled(&mut self) -> (u32, Vec<(TimerId, mtimer_protocol::SettleRefusal)>) {
        self.wait_for(|message| match message {
            ServerMessage::Settled { accepted, refused } => Some((accepted, refused)),
            _ => None,
        })
        .await
    }
}

async fn next_raw<F>(frames: &mut F) -> Option<ServerMessage>
where
    F: Stream<Item = std::io::Result<BytesMut>> + Unpin,
{
    let frame = timeout(TIMEOUT, frames.next()).await.expect("a message in time")?;
    // A reset is an end as well.
    Some(decode(&frame.ok()?).unwrap())
}

/// Reads to the end of a connection; returns the refusal before it.
pub(crate) async fn refused<F>(frames: &mut F) -> (mtimer_protocol::ErrorCode, String)
where
    F: Stream<Item = std::io::Result<BytesMut>> + Unpin,
{
    let mut refusal = None;
    while let Some(message) = next_raw(frames).await {
        match message {
            ServerMessage::Refused { code, message } => refusal = Some((code, message)),
            ServerMessage::Ping(_) | ServerMessage::Closing | ServerMessage::Welcome(_) => {}
            other => panic!("no refusal but {other:?}"),
        }
    }
    refusal.expect("a refusal before the end")
}

/// Schedules a timer on one connection, takes it on another, settles it: the broker is well.
pub(crate) async fn works(broker: &Broker, app: &str) {
    works_with(broker, app, timer(app, 20, b"well")).await;
}

/// The same with this timer, of which the payload is `well`.
pub(crate) async fn works_with(broker: &Broker, app: &str, timer: Timer) {
    let mut client = Client::welcomed(broker).await;
    client.register(1, app, 10).await;
    client.schedule(&timer).await;
    let (delivery, at) = client.deliveries(1).await.remove(0);
    assert_eq!((delivery.id, &delivery.payload[..]), (timer.id, &b"well"[..]));
    assert!(at >= timer.due, "{at} is before {}", timer.due);
    client.settle(&delivery, HandlerOutcome::Ok).await;
    assert_eq!(client.settled().await, (1, vec![]));
}

/// Waits until the broker has so many sessions.
pub(crate) async fn wait_sessions(broker: &Broker, n: u64) {
    let sessions = async || broker.status().await.expect("the broker is up").sessions;
    until_async(&format!("{n} sessions"), async || sessions().await == n).await;
}
