//! Making one connection: addresses and encryption.

use std::time::Duration;

use mtimer_protocol::frame_codec;
use mtimer_tls::{ClientTls, ReadHalf, Stream, WriteHalf};
use mtimer_types::limits::{HANDSHAKE_DEADLINE_MS, MAX_FRAME_BEFORE_AUTH};
use tokio::net::TcpStream;
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};

use crate::ConnectError;
use crate::machine::dial::Place;
use crate::settings::Settings;
use crate::tls::CurrentTls;

/// How long encryption may take to begin.
const HANDSHAKE: Duration = Duration::from_millis(HANDSHAKE_DEADLINE_MS);

/// Frames as they arrive.
pub(crate) type Frames = FramedRead<ReadHalf, LengthDelimitedCodec>;

/// A connection before its handshake.
#[derive(Debug)]
pub(crate) struct BrokerStream {
    /// Where it was made to.
    pub(crate) address: String,
    /// Frames as long as a handshake's.
    pub(crate) frames: Frames,
    pub(crate) write: WriteHalf,
    pub(crate) tls: Option<ClientTls>,
}

/// Why a broker has ended a connection before its first message: one that does not like our
/// certificate says so only then.
pub(crate) fn explain(
    tls: Option<&ClientTls>,
    address: &str,
    error: std::io::Error,
) -> Result<ConnectError, std::io::Error> {
    match tls {
        Some(tls) => tls.explain(error).map(|error| of_tls(address, error)),
        None => Err(error),
    }
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

    /// For people.
    fn name(&self) -> String {
        match self {
            Self::Address(address) => address.clone(),
            #[cfg(feature = "redis")]
            Self::Leader(_) => "the leader that Redis names".to_owned(),
        }
    }
}

/// The addresses and the TLS settings for all connections of a client.
#[derive(Debug)]
pub(crate) struct Dialler {
    places: Vec<DialAddress>,
    tls: Option<CurrentTls>,
}

impl Dialler {
    /// For the brokers that the settings name.
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
        let tls = settings.tls.as_ref().map(CurrentTls::open).transpose()?;
        Ok(Self { places, tls })
    }

    /// The names of the places, for people.
    pub(crate) fn names(&self) -> Vec<String> {
        self.places.iter().map(DialAddress::name).collect()
    }

    /// Makes a connection.
    pub(crate) async fn open(&self, place: &Place) -> Result<BrokerStream, ConnectError> {
        let broker = match place {
            Place::Seed(number) => self.places[*number].address().await?,
            Place::Broker(address) => address.clone(),
        };
        let unreachable = |source| ConnectError::Unreachable { broker: broker.clone(), source };
        let stream = TcpStream::connect(&broker).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let tls = match &self.tls {
            Some(tls) => Some(tls.current().await),
            None => None,
        };
        let stream = match &tls {
            Some(tls) => tls.connect(stream, &broker, HANDSHAKE).await.map_err(|e| of_tls(&broker, e))?,
            None => Stream::Plain(stream),
        };
        let (read, write) = stream.into_split();
        let frames = FramedRead::new(read, frame_codec(MAX_FRAME_BEFORE_AUTH));
        Ok(BrokerStream { address: broker, frames, write, tls })
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
