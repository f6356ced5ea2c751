//! The connection to the leader: an ordinary session that carries heartbeats.
//!
//! Purpose: connect, shake hands, write queued messages, pass on incoming ones; end with a reason.
//! Invariant: bounded in both directions; a leader that takes nothing or says nothing ends it.
//! Not in here: when to connect, the contents of heartbeats.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use mtimer_protocol::{
    ClientMessage, Hello, MAGIC, PeerAnswer, PeerRequest, Role, ServerMessage, VERSION, Welcome, decode,
    encode, frame_codec,
};
use mtimer_tls::{ClientTls, Stream};
use mtimer_types::limits::MAX_FRAME;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::codec::{Framed, LengthDelimitedCodec};
use tokio_util::task::AbortOnDropHandle;

use crate::access::PeerCredentials;

/// How long connecting, the handshakes and a single write may take.
const STEP: Duration = Duration::from_secs(1);
/// Heartbeats that may wait to be written: more means that the leader takes nothing.
const WAITING: usize = 16;
/// Messages from the leader that wait for the cluster's task.
const COMING: usize = 64;

/// Events of the connection to the leader.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    Up,
    Answer(PeerAnswer),
    Down(String),
}

/// The connection to a leader, from when it is asked for. Dropping it closes it.
pub(crate) struct LeaderConnection {
    out: mpsc::Sender<PeerRequest>,
    events: mpsc::Receiver<LinkEvent>,
    _task: AbortOnDropHandle<()>,
}

impl LeaderConnection {
    /// Begins to connect.
    pub(crate) fn open(address: String, software: &str, own: PeerCredentials) -> Self {
        let (out, waiting) = mpsc::channel(WAITING);
        let (events, coming) = mpsc::channel(COMING);
        let software = software.to_owned();
        let task = async move {
            let why = match connect(&address, software, own, Role::Broker, rand::random()).await {
                Ok((frames, _)) => carry(frames, waiting, &events).await,
                Err(why) => why,
            };
            tracing::debug!(address, why, "no link to the leader");
            // Nobody listens any more if the connection was dropped.
            let _ = events.send(LinkEvent::Down(why)).await;
        };
        Self { out, events: coming, _task: AbortOnDropHandle::new(tokio::spawn(task)) }
    }

    /// Queues a message; `false`: the leader takes nothing.
    pub(crate) fn send(&self, request: PeerRequest) -> bool {
        self.out.try_send(request).is_ok()
    }

    /// The next event; after [`LinkEvent::Down`] there is none, and this waits for ever.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(crate) async fn next(&mut self) -> LinkEvent {
        match self.events.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }
}

pub(super) type Frames = Framed<Stream, LengthDelimitedCodec>;

/// Connects and shakes hands, within [`STEP`]; returns the welcome of the other side.
pub(super) async fn connect(
    address: &str,
    software: String,
    own: PeerCredentials,
    role: Role,
    client: u128,
) -> Result<(Frames, Welcome), String> {
    let hello = ClientMessage::Hello(Hello {
        magic: MAGIC,
        min_version: VERSION,
        max_version: VERSION,
        client,
        software,
        token: own.token,
        role,
    });
    let shake = async {
        let stream = TcpStream::connect(address).await.map_err(|e| e.to_string())?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        let stream = match &own.tls {
            Some(tls) => tls.connect(stream, address, STEP).await.map_err(|e| e.to_string())?,
            None => Stream::Plain(stream),
        };
        let mut frames = Framed::new(stream, frame_codec(MAX_FRAME));
        // With TLS 1.3 a refused certificate shows after the handshake.
        let explained = |error| explained(error, own.tls.as_ref());
        write(&mut frames, &hello).await.map_err(explained)?;
        match read(&mut frames).await.map_err(explained)? {
            ServerMessage::Welcome(welcome) => Ok((frames, welcome)),
            ServerMessage::Refused { message, .. } => Err(message),
            _ => Err("its first message is no answer to a hello".to_owned()),
        }
    };
    timeout(STEP, shake).await.unwrap_or_else(|_| {
        Err(format!("no handshake within {} ms: is it an mtimer broker?", STEP.as_millis()))
    })
}

/// Carries messages until the connection ends; returns the reason.
async fn carry(
    mut frames: Frames,
    mut waiting: mpsc::Receiver<PeerRequest>,
    events: &mpsc::Sender<LinkEvent>,
) -> String {
    if events.send(LinkEvent::Up).await.is_err() {
        return "not wanted any more".to_owned();
    }
    loop {
        let message = tokio::select! {
            message = read(&mut frames) => message,
            request = waiting.recv() => {
                let Some(request) = request else { return "not wanted any more".to_owned() };
                if let Err(why) = write(&mut frames, &ClientMessage::Peer(request)).await {
                    return why.to_string();
                }
                continue;
            }
        };
        match message {
            Ok(ServerMessage::Peer(answer)) => {
                if events.send(LinkEvent::Answer(answer)).await.is_err() {
                    return "not wanted any more".to_owned();
                }
            }
            Ok(ServerMessage::Ping(n)) => {
                if let Err(why) = write(&mut frames, &ClientMessage::Pong(n)).await {
                    return why.to_string();
                }
            }
            Ok(ServerMessage::Refused { message, .. }) => return message,
            // Messages to every session: the topology comes in the answers to heartbeats too.
            Ok(_) => {}
            Err(why) => return why.to_string(),
        }
    }
}

/// The error, with the fix if it is about TLS.
fn explained(error: io::Error, tls: Option<&ClientTls>) -> String {
    match tls {
        Some(tls) => {
            tls.explain(error).map_or_else(|other| other.to_string(), |about_tls| about_tls.to_string())
        }
        None => error.to_string(),
    }
}

async fn write(frames: &mut Frames, message: &ClientMessage) -> io::Result<()> {
    let body: Bytes = encode(message).map_err(io::Error::other)?;
    match timeout(STEP, frames.send(body)).await {
        Ok(sent) => sent,
        Err(_) => Err(io::Error::other(format!("it takes nothing for {} ms", STEP.as_millis()))),
    }
}

async fn read(frames: &mut Frames) -> io::Result<ServerMessage> {
    match frames.next().await {
        Some(Ok(body)) => decode(&body).map_err(io::Error::other),
        Some(Err(error)) => Err(error),
        None => Err(io::Error::other("the connection was closed")),
    }
}
