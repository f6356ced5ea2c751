//! A client that does not keep to anything: raw frames on a socket.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use mtimer_protocol::{
    ClientMessage, Hello, MAGIC, Query, QueryAnswer, Role, ServerMessage, VERSION, decode, encode,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::history::ClockReading;
use crate::host_ms;

/// How long an answer may take: a loaded machine is slow.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How long a broker is waited for that is asked for the time.
const CLOCK_WITHIN: Duration = Duration::from_secs(1);

/// A connection to a broker.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    asked: u64,
}

impl Wire {
    /// Connects, and says nothing yet.
    pub async fn connect(address: &str) -> Self {
        Self { stream: TcpStream::connect(address).await.unwrap(), asked: 0 }
    }

    /// Connects and does the handshake.
    pub async fn open(address: &str) -> Self {
        let mut wire = Self::connect(address).await;
        wire.send(&Self::hello(VERSION, VERSION)).await;
        let welcome = wire.next().await;
        assert!(matches!(welcome, Some(ServerMessage::Welcome(_))), "{welcome:?}");
        wire
    }

    /// Asks a broker for the cluster clock, by a handshake; `None`: it does not answer within
    /// a second.
    pub async fn clock(address: &str) -> Option<ClockReading> {
        let before = host_ms();
        let shake = async {
            let mut wire = Self { stream: TcpStream::connect(address).await.ok()?, asked: 0 };
            wire.send(&Self::hello(VERSION, VERSION)).await;
            match wire.next().await? {
                ServerMessage::Welcome(welcome) => Some(welcome.now.as_ms()),
                _ => None,
            }
        };
        let says = tokio::time::timeout(CLOCK_WITHIN, shake).await.ok()??;
        Some(ClockReading { broker: address.to_owned(), before, says, after: host_ms() })
    }

    /// A hello for these versions.
    pub fn hello(min_version: u16, max_version: u16) -> ClientMessage {
        let client = rand::random();
        let (software, token) = ("hostile/0".to_owned(), String::new());
        ClientMessage::Hello(Hello {
            magic: MAGIC,
            min_version,
            max_version,
            client,
            software,
            token,
            role: Role::Client,
        })
    }

    /// Sends a message as a frame.
    pub async fn send(&mut self, message: &ClientMessage) {
        let frame = Self::frame(&encode(message).unwrap());
        self.send_bytes(&frame).await;
    }

    /// Sends bytes as they are. It is no error if the broker has closed the connection.
    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    /// A body with its length before it.
    pub fn frame(body: &[u8]) -> Bytes {
        let mut frame = BytesMut::new();
        frame.put_u32(u32::try_from(body.len()).unwrap());
        frame.put_slice(body);
        frame.freeze()
    }

    /// No more is sent, but the other direction stays open.
    pub async fn shutdown(&mut self) {
        let _ = self.stream.shutdown().await;
    }

    /// The next message; `None` at the end of the connection. Dropping the future may leave half a
    /// message unread.
    pub async fn next(&mut self) -> Option<ServerMessage> {
        let read = async {
            let mut length = [0; 4];
            self.stream.read_exact(&mut length).await.ok()?;
            let mut body = BytesMut::zeroed(u32::from_be_bytes(length) as usize);
            self.stream.read_exact(&mut body).await.ok()?;
            Some(decode(&body).expect("a message of the protocol"))
        };
        tokio::time::timeout(TIMEOUT, read).await.expect("the broker says something, or closes")
    }

    /// The next message that is neither a heartbeat nor a topology; heartbeats are answered.
    pub async fn next_word(&mut self) -> Option<ServerMessage> {
        loop {
            match self.next().await? {
                ServerMessage::Ping(n) => self.send(&ClientMessage::Pong(n)).await,
                // A topology comes unasked, whenever there is a new one.
                ServerMessage::Pong(..) | ServerMessage::Topology(_) => {}
                word => return Some(word),
            }
        }
    }

    /// Asks this broker, and waits for its answer; `None`: the connection ended first, or it took
    /// too long.
    pub async fn ask(&mut self, query: Query) -> Option<QueryAnswer> {
        tokio::time::timeout(TIMEOUT, self.answer(query)).await.ok()?
    }

    async fn answer(&mut self, query: Query) -> Option<QueryAnswer> {
        self.asked += 1;
        let corr = self.asked;
        self.send(&ClientMessage::Query { corr, query }).await;
        loop {
            match self.next_word().await? {
                ServerMessage::Answer { corr: to, answer } if to == corr => return Some(answer),
                _ => {}
            }
        }
    }

    /// What a broker says before it closes the connection: a refusal's text, or nothing.
    pub async fn closed_with(&mut self) -> Option<String> {
        let mut last = None;
        while let Some(word) = self.next().await {
            if let ServerMessage::Refused { message, .. } = word {
                last = Some(message);
            }
        }
        last
    }
}
