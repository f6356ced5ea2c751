//! The handshake: an unauthenticated client becomes a session, or learns why not.
//!
//! Purpose: the first frame, of 4 KiB at most, is a hello; magic, version and token are looked at
//! in this order.
//! Invariant: until the hello is accepted nothing about the client is kept and nothing reaches
//! the engine.
//! Not in here: the deadline and the caps (the session's and the listener's).

use std::sync::Arc;

use mtimer_access::Token;
use mtimer_protocol::{ClientMessage, ErrorCode, Hello, MAGIC, VERSION, decode};
use tokio::io::AsyncRead;

use crate::access::{AccessControl, Guard};
use crate::cluster::BrokerIdentity;
use crate::counters::ShellCounter;
use crate::frames::{FrameError, FrameReader, ReceivedFrame};

/// Longest name of a client software, bytes.
const MAX_SOFTWARE: usize = 128;

/// Why a connection is refused or closed, and how it is counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ConnectionRefusal {
    pub(crate) counter: ShellCounter,
    pub(crate) code: ErrorCode,
    pub(crate) message: String,
    /// The id of the token that was shown, if that is why.
    pub(crate) token: Option<Box<str>>,
}

impl ConnectionRefusal {
    pub(crate) fn new(counter: ShellCounter, code: ErrorCode, message: impl Into<String>) -> Self {
        Self { counter, code, message: message.into(), token: None }
    }

    pub(crate) fn protocol(counter: ShellCounter, message: impl Into<String>) -> Self {
        Self::new(counter, ErrorCode::Protocol, message)
    }
}

/// A message could not be read.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The connection has ended between two frames.
    Ended,
    /// The connection has ended in the middle of a frame, or failed; nobody is there to be told.
    Lost { truncated: bool, error: FrameError },
    /// The hello is not allowed.
    Refused(ConnectionRefusal),
}

impl From<FrameError> for ReadError {
    fn from(error: FrameError) -> Self {
        let (counter, code) = match &error {
            FrameError::Ended => return Self::Ended,
            FrameError::Truncated => return Self::Lost { truncated: true, error },
            FrameError::Io(_) => return Self::Lost { truncated: false, error },
            FrameError::Oversized { .. } => (ShellCounter::FramesOversized, ErrorCode::Protocol),
            FrameError::Silent(_) => (ShellCounter::HeartbeatsMissed, ErrorCode::Protocol),
            FrameError::Slow { .. } => (ShellCounter::FramesSlow, ErrorCode::Protocol),
            FrameError::Evicted { .. } => (ShellCounter::FramesEvicted, ErrorCode::Overloaded),
        };
        Self::Refused(ConnectionRefusal::new(counter, code, error.to_string()))
    }
}

/// Decodes the message of a frame.
pub(crate) fn read_message(frame: &ReceivedFrame) -> Result<ClientMessage, ReadError> {
    decode(&frame.body).map_err(|error| {
        ReadError::Refused(ConnectionRefusal::protocol(ShellCounter::FramesMalformed, error.to_string()))
    })
}

/// Reads and checks the hello.
pub(crate) async fn read_hello<R: AsyncRead + Unpin>(
    frames: &mut FrameReader<R>,
    access: &Arc<AccessControl>,
    identity: &BrokerIdentity,
) -> Result<(Hello, Option<Arc<Guard>>), ReadError> {
    let hello = match read_message(&frames.next().await?)? {
        ClientMessage::Hello(hello) => hello,
        _ => {
            let text = "the first message of a connection is a hello";
            return Err(ReadError::Refused(ConnectionRefusal::protocol(
                ShellCounter::HandshakesMalformed,
                text,
            )));
        }
    };
    check(&hello).map_err(ReadError::Refused)?;
    // Before the token is checked: a client that says this has found the way here.
    identity.meet(hello.client);
    let guard = access.authenticate(&hello).map_err(|why| {
        let refusal = ConnectionRefusal::new(ShellCounter::AuthRefused, ErrorCode::Unauthorized, why);
        ReadError::Refused(ConnectionRefusal { token: token_id(&hello.token), ..refusal })
    })?;
    Ok((hello, guard))
}

/// Returns the id of a token, which is no secret; `None` if the text is none.
pub(crate) fn token_id(token: &str) -> Option<Box<str>> {
    token.parse::<Token>().ok().map(|token| token.id().into())
}

fn check(hello: &Hello) -> Result<(), ConnectionRefusal> {
    if hello.magic != MAGIC {
        let text =
            format!("the hello begins with {:#010x}, an mtimer client says {MAGIC:#010x}", hello.magic);
        return Err(ConnectionRefusal::protocol(ShellCounter::HandshakesMalformed, text));
    }
    if !(hello.min_version..=hello.max_version).contains(&VERSION) {
        let text = format!(
            "this broker speaks protocol version {VERSION}, the client speaks {} to {}: update the older one",
            hello.min_version, hello.max_version
        );
        return Err(ConnectionRefusal::new(ShellCounter::VersionRefused, ErrorCode::Version, text));
    }
    if hello.software.len() > MAX_SOFTWARE {
        let text = format!(
            "the software's name has {} bytes, the limit is {MAX_SOFTWARE}: shorten it",
            hello.software.len()
        );
        return Err(ConnectionRefusal::new(ShellCounter::HandshakesMalformed, ErrorCode::Invalid, text));
    }
    Ok(())
}
