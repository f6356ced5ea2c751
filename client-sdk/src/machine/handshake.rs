//! The first two messages of a connection.

use mtimer_protocol::{ClientMessage, Hello, MAGIC, Role, ServerMessage, VERSION, Welcome, encode};
use mtimer_types::limits::{MAX_FRAME_BEFORE_AUTH, MAX_PARTITIONS};

use crate::ConnectError;

/// Longest name of the client software.
const SOFTWARE_BYTES: usize = 128;

/// Makes the hello of a client.
///
/// # Errors
///
/// [`ConnectError::TokenTooLong`] if it does not fit a frame.
pub(crate) fn hello(
    client: u128,
    software: &str,
    token: &str,
    role: Role,
) -> Result<ClientMessage, ConnectError> {
    let end = (0..=SOFTWARE_BYTES.min(software.len())).rev().find(|i| software.is_char_boundary(*i));
    let hello = ClientMessage::Hello(Hello {
        magic: MAGIC,
        min_version: VERSION,
        max_version: VERSION,
        client,
        software: software[..end.unwrap_or(0)].to_owned(),
        token: token.to_owned(),
        role,
    });
    let len = encode(&hello).map_or(usize::MAX, |body| body.len());
    if len > MAX_FRAME_BEFORE_AUTH {
        return Err(ConnectError::TokenTooLong { len, limit: MAX_FRAME_BEFORE_AUTH });
    }
    Ok(hello)
}

/// Takes in the first message of a broker.
///
/// # Errors
///
/// [`ConnectError::Refused`] if it says no, [`ConnectError::Protocol`] if it is no answer to a
/// hello or not one of this version.
pub(crate) fn welcome(broker: &str, answer: ServerMessage) -> Result<Welcome, ConnectError> {
    let broker = broker.to_owned();
    let what = match answer {
        ServerMessage::Welcome(welcome) if welcome.version != VERSION => {
            format!("it chose version {}, offered was {VERSION}", welcome.version)
        }
        ServerMessage::Welcome(welcome) if !(1..=MAX_PARTITIONS).contains(&welcome.partitions) => {
            format!("it names {} partitions", welcome.partitions)
        }
        ServerMessage::Welcome(welcome) => return Ok(welcome),
        ServerMessage::Refused { code, message } => {
            return Err(ConnectError::Refused { broker, code, message });
        }
        _ => "its first message is no answer to a hello".to_owned(),
    };
    Err(ConnectError::Protocol { broker, what })
}
