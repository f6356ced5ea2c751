//! Getting a connection: addresses, one after another, with growing delays, and the handshake.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use mtimer_protocol::{
    ClientMessage, Hello, MAGIC, ServerMessage, VERSION, Welcome, decode, encode, encode_frame, frame_codec,
};
use mtimer_tls::{ReadHalf, Stream, WriteHalf};
use mtimer_types::limits::{HANDSHAKE_DEADLINE_MS, MAX_FRAME, MAX_FRAME_BEFORE_AUTH, MAX_PARTITIONS};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};

use crate::ConnectError;
use crate::backoff::RECONNECT;
use crate::settings::Settings;
use crate::sync::Locked;
use crate::tls::CurrentTls;

/// Longest name of the client software.
const SOFTWARE_BYTES: usize = 128;

/// A connection past its handshake.
#[derive(Debug)]
pub(crate) struct BrokerConnection {
    pub(crate) broker: String,
    pub(crate) welcome: Welcome,
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
    pub(crate) frames: FramedRead<ReadHalf, LengthDelimitedCodec>,
    pub(crate) write: WriteHalf,
}

/// What all connections of a client have in common.
#[derive(Debug)]
pub(crate) struct Dialler {
    hello: ClientMessage,
    tls: Option<CurrentTls>,
    /// Name and partition count of the cluster, once known.
    cluster: Mutex<Option<(String, u16)>>,
}

/// Where a broker may be.
#[derive(Clone, Debug)]
enum DialAddress {
    /// There.
    Address(String),
    /// Wherever the leader is by now.
    #[cfg(feature = "redis")]
    Leader(crate::leader::LeaderLookup),
}

impl DialAddress {
    async fn address(&self) -> Result<String, ConnectError> {
        match self {
            Self::Address(address) => Ok(address.clone()),
            #[cfg(feature = "redis")]
            Self::Leader(lookup) => lookup.leader().await,
        }
    }
}

/// How to get one connection: where, and after how many tries.
#[derive(Debug)]
pub(crate) struct DialPlan {
    dialler: Arc<Dialler>,
    places: Vec<DialAddress>,
    next: usize,
    tries: u32,
}

impl Dialler {
    fn new(settings: &Settings) -> Result<Self, ConnectError> {
        let mut software = settings.software.clone();
        let end = (0..=SOFTWARE_BYTES.min(software.len())).rev().find(|i| software.is_char_boundary(*i));
        software.truncate(end.unwrap_or(0));
        let hello = ClientMessage::Hello(Hello {
            magic: MAGIC,
            min_version: VERSION,
            max_version: VERSION,
            client: rand::random(),
            software,
            token: settings.token.clone(),
            role: settings.role,
        });
        let len = encode(&hello).map_or(usize::MAX, |body| body.len());
        if len > MAX_FRAME_BEFORE_AUTH {
            return Err(ConnectError::TokenTooLong { len, limit: MAX_FRAME_BEFORE_AUTH });
        }
        let tls = settings.tls.as_ref().map(CurrentTls::open).transpose()?;
        Ok(Self { hello, tls, cluster: Mutex::new(None) })
    }
}

/// The addresses that a text names, separated by commas.
fn split_addresses(text: &str) -> Result<Vec<String>, ConnectError> {
    let address = |part: &str| {
        let part = part.trim();
        let (host, port) = part.rsplit_once(':')?;
        let valid = !host.is_empty() && port.parse::<u16>().is_ok();
        valid.then(|| part.to_owned())
    };
    let all: Option<Vec<String>> = text.split(',').map(address).collect();
    all.ok_or_else(|| ConnectError::Address(text.to_owned()))
}

/// How long an attempt may take.
const HANDSHAKE: Duration = Duration::from_millis(HANDSHAKE_DEADLINE_MS);
/// However little time is left, an address has so much: a broker that is busy answers late.
const LEAST_ATTEMPT: Duration = Duration::from_secs(1);

impl DialPlan {
    /// To any of the brokers that the settings name.
    pub(crate) fn new(settings: &Settings) -> Result<Self, ConnectError> {
        let mut addresses = Vec::new();
        for text in &settings.brokers {
            addresses.extend(split_addresses(text)?);
        }
        let addresses = addresses.into_iter().map(DialAddress::Address);
        #[cfg(not(feature = "redis"))]
        let places: Vec<DialAddress> = addresses.collect();
        #[cfg(feature = "redis")]
        let places: Vec<DialAddress> = {
            settings.redis.iter().try_for_each(crate::leader::LeaderLookup::check)?;
            addresses.chain(settings.redis.iter().cloned().map(DialAddress::Leader)).collect()
        };
        if places.is_empty() {
            return Err(ConnectError::NoBroker);
        }
        let dialler = Arc::new(Dialler::new(settings)?);
        Ok(Self { dialler, places, next: 0, tries: 0 })
    }

    /// To the same brokers, as if none had been tried.
    pub(crate) fn copy(&self) -> Self {
        Self { dialler: Arc::clone(&self.dialler), places: self.places.clone(), next: 0, tries: 0 }
    }

    /// For the same client, to the broker at this address.
    pub(crate) fn to(&self, broker: String) -> Self {
        Self { places: vec![DialAddress::Address(broker)], ..self.copy() }
    }

    /// The connection was a good one: the next try is made at once.
    pub(crate) fn reset(&mut self) {
        self.tries = 0;
    }

    /// The first connection: tries every address once, and then again until `timeout` has passed or
    /// a retry is pointless.
    pub(crate) async fn first(&mut self, timeout: Duration) -> Result<BrokerConnection, ConnectError> {
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            // A timeout of zero means one try with the usual limit.
            let limit = if timeout.is_zero() { HANDSHAKE } else { left.clamp(LEAST_ATTEMPT, HANDSHAKE) };
            let error = match self.attempt(limit).await {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            let delay = self.delay();
            let all_tried = self.tries as usize >= self.places.len();
            if all_tried && (!error.is_retryable() || Instant::now() + delay >= end) {
                return Err(error);
            }
            sleep(delay).await;
        }
    }

    /// One more try, after its delay.
    pub(crate) async fn again(&mut self) -> Result<BrokerConnection, ConnectError> {
        sleep(self.delay()).await;
        self.attempt(HANDSHAKE).await
    }

    /// How long to wait before the next try: nothing within the first round of addresses.
    fn delay(&self) -> Duration {
        match self.tries / self.places.len() as u32 {
            0 => Duration::ZERO,
            rounds => RECONNECT.jittered(rounds - 1, rand::random()),
        }
    }

    async fn attempt(&mut self, limit: Duration) -> Result<BrokerConnection, ConnectError> {
        let place = self.places[self.next % self.places.len()].clone();
        self.next = (self.next + 1) % self.places.len();
        self.tries = self.tries.saturating_add(1);
        let broker = place.address().await?;
        let connection = match timeout(limit, self.handshake(broker.clone())).await {
            Ok(result) => result?,
            Err(_) => return Err(ConnectError::Timeout { broker, ms: limit.as_millis() as u64 }),
        };
        let found = (connection.welcome.cluster.clone(), connection.welcome.partitions);
        let mut cluster = self.dialler.cluster.locked();
        let expected = cluster.get_or_insert_with(|| found.clone());
        if *expected != found {
            let text = |(name, partitions): &(String, u16)| format!("{name:?} with {partitions} partitions");
            return Err(ConnectError::OtherCluster { broker, expected: text(expected), found: text(&found) });
        }
        Ok(connection)
    }

    async fn handshake(&self, broker: String) -> Result<BrokerConnection, ConnectError> {
        let unreachable = |source| ConnectError::Unreachable { broker: broker.clone(), source };
        let protocol = |what: String| ConnectError::Protocol { broker: broker.clone(), what };
        let stream = TcpStream::connect(&broker).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let tls = match &self.dialler.tls {
            Some(tls) => Some(tls.current().await),
            None => None,
        };
        let stream = match &tls {
            Some(tls) => tls.connect(stream, &broker, HANDSHAKE).await.map_err(|e| of_tls(&broker, e))?,
            None => Stream::Plain(stream),
        };
        let (read, mut write) = stream.into_split();
        let mut frames = FramedRead::new(read, frame_codec(MAX_FRAME_BEFORE_AUTH));
        let mut bytes = Vec::new();
        encode_frame(&self.dialler.hello, &mut bytes).map_err(|e| protocol(e.to_string()))?;
        let sent = Instant::now();
        write.write_all(&bytes).await.map_err(unreachable)?;
        write.flush().await.map_err(unreachable)?;
        let answer = frames.next().await;
        // A broker that does not like our certificate says so only now.
        let answer = match (answer, &tls) {
            (Some(Err(error)), Some(tls)) => match tls.explain(error) {
                Ok(error) => return Err(of_tls(&broker, error)),
                Err(error) => Some(Err(error)),
            },
            (answer, _) => answer,
        };
        let answer = match answer {
            Some(Ok(body)) => decode(&body).map_err(|e| protocol(e.to_string()))?,
            Some(Err(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
                return Err(protocol(error.to_string()));
            }
            Some(Err(_)) | None => return Err(ConnectError::Closed { broker }),
        };
        let received = Instant::now();
        let welcome: Welcome = match answer {
            ServerMessage::Welcome(welcome) => welcome,
            ServerMessage::Refused { code, message } => {
                return Err(ConnectError::Refused { broker, code, message });
            }
            _ => return Err(protocol("its first message is no answer to a hello".to_owned())),
        };
        if welcome.version != VERSION {
            let what = format!("it chose version {}, offered was {VERSION}", welcome.version);
            return Err(protocol(what));
        }
        if !(1..=MAX_PARTITIONS).contains(&welcome.partitions) {
            return Err(protocol(format!("it names {} partitions", welcome.partitions)));
        }
        frames.decoder_mut().set_max_frame_length(MAX_FRAME);
        Ok(BrokerConnection { broker, welcome, sent, received, frames, write })
    }
}

fn of_tls(broker: &str, error: mtimer_tls::TlsConnectError) -> ConnectError {
    let broker = broker.to_owned();
    match error {
        mtimer_tls::TlsConnectError::Lost(source) => ConnectError::Unreachable { broker, source },
        mtimer_tls::TlsConnectError::Timeout(_) => {
            ConnectError::Timeout { broker, ms: HANDSHAKE_DEADLINE_MS }
        }
        error => ConnectError::Encryption { broker, what: error.to_string() },
    }
}
