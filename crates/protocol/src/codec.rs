//! Frames and their bytes. The one place that knows bincode.
//!
//! A frame is a length (u32, big endian, of the body) and a body. The body is one message in
//! bincode 2's standard configuration (little endian, variable-length integers), through serde.
//! Every decode has a limit: without one, a few bytes that announce a huge text would make the
//! allocator abort the process. bincode reserves and clears the memory of a text before it looks
//! whether its bytes are there, so short bodies have a limit of their own ([`SHORT_LIMIT`]).

use bincode::enc::write::Writer;
use bytes::{Bytes, BytesMut};
use mtimer_types::limits::{MAX_FRAME, MAX_FRAME_BEFORE_AUTH};
use serde::{Serialize, de::DeserializeOwned};
#[cfg(feature = "codec")]
use tokio_util::codec::LengthDelimitedCodec;

type WireConfig<const LIMIT: usize> = bincode::config::Configuration<
    bincode::config::LittleEndian,
    bincode::config::Varint,
    bincode::config::Limit<LIMIT>,
>;

/// Bytes that a message may announce. bincode counts a number with its full width, however short it
/// is written, so this is more than [`MAX_FRAME`]: for 10,000 deliveries the difference is about
/// 700,000 bytes, for 2,000 timers with 32 short headers and 32 retry tiers each 1,200,000.
const LIMIT: usize = MAX_FRAME + 2 * 1024 * 1024;
/// The same for a body of [`MAX_FRAME_BEFORE_AUTH`] bytes at most: no number has more than 16
/// bytes.
const SHORT_LIMIT: usize = 16 * MAX_FRAME_BEFORE_AUTH;

const CONFIG: WireConfig<LIMIT> = bincode::config::standard().with_limit::<LIMIT>();
const SHORT_CONFIG: WireConfig<SHORT_LIMIT> = bincode::config::standard().with_limit::<SHORT_LIMIT>();

/// The body is not a message of this version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Malformed or over the limit.
    #[error("malformed message: {0}")]
    Malformed(String),
    /// A message, and then more.
    #[error("{extra} bytes follow a message of {used} bytes")]
    Trailing {
        /// Bytes of the message.
        used: usize,
        /// Bytes after it.
        extra: usize,
    },
}

/// The message does not fit a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Over the limit.
    #[error("the message has {len} bytes, a frame holds {limit}: send fewer at once")]
    TooLarge {
        /// Bytes of the message.
        len: usize,
        /// Most bytes allowed.
        limit: usize,
    },
    /// The message cannot be expressed.
    #[error("the message cannot be encoded: {0}")]
    Unencodable(String),
}

/// Encodes one message as the body of a frame.
///
/// # Errors
///
/// [`EncodeError::TooLarge`] if the body has more than [`MAX_FRAME`] bytes.
pub fn encode<M: Serialize>(message: &M) -> Result<Bytes, EncodeError> {
    let body = bincode::serde::encode_to_vec(message, CONFIG)
        .map_err(|e| EncodeError::Unencodable(e.to_string()))?;
    if body.len() > MAX_FRAME {
        return Err(EncodeError::TooLarge { len: body.len(), limit: MAX_FRAME });
    }
    Ok(body.into())
}

/// Appends one message to `out` as a whole frame, with its length. After an error `out` is as it
/// was.
///
/// # Errors
///
/// As those of [`encode`].
pub fn encode_frame<M: Serialize>(message: &M, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let begin = out.len();
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    let encoded = bincode::serde::encode_into_writer(message, Append(out), CONFIG)
        .map_err(|e| EncodeError::Unencodable(e.to_string()));
    let len = out.len() - begin - LENGTH_BYTES;
    let checked = encoded.and_then(|()| match u32::try_from(len) {
        Ok(length) if len <= MAX_FRAME => Ok(length),
        _ => Err(EncodeError::TooLarge { len, limit: MAX_FRAME }),
    });
    match checked {
        Ok(length) => {
            out[begin..begin + LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
            Ok(())
        }
        Err(error) => {
            out.truncate(begin);
            Err(error)
        }
    }
}

/// Bytes of the length before a body.
const LENGTH_BYTES: usize = 4;

/// Writes to the end of a buffer.
struct Append<'a>(&'a mut Vec<u8>);

impl Writer for Append<'_> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Result<(), bincode::error::EncodeError> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

/// Decodes the body of a frame; all of it must be one message.
///
/// # Errors
///
/// [`DecodeError`] if the body is no message, or bytes are left after it.
pub fn decode<M: DeserializeOwned>(body: &BytesMut) -> Result<M, DecodeError> {
    let decoded = if body.len() <= MAX_FRAME_BEFORE_AUTH {
        bincode::serde::decode_from_slice(body, SHORT_CONFIG)
    } else {
        bincode::serde::decode_from_slice(body, CONFIG)
    };
    let (message, used) = decoded.map_err(|e| DecodeError::Malformed(e.to_string()))?;
    match body.len() - used {
        0 => Ok(message),
        extra => Err(DecodeError::Trailing { used, extra }),
    }
}

/// The frame codec, for frames of at most `max_frame` bytes.
#[cfg(feature = "codec")]
pub fn frame_codec(max_frame: usize) -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().length_field_type::<u32>().max_frame_length(max_frame).new_codec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message whose encoding has this many bytes: a length of five bytes, and the rest.
    fn message_of(bytes: usize) -> Vec<u8> {
        vec![7; bytes - 5]
    }

    #[test]
    fn a_frame_is_the_length_and_the_body_behind_what_was_there() {
        let mut out = b"before".to_vec();
        encode_frame(&("abc", 5_u8), &mut out).unwrap();
        encode_frame(&9_u8, &mut out).unwrap();
        assert_eq!(out, b"before\x00\x00\x00\x05\x03abc\x05\x00\x00\x00\x01\x09");
        assert_eq!(encode(&("abc", 5_u8)).unwrap(), b"\x03abc\x05"[..]);
    }

    #[test]
    fn a_message_of_just_the_limit_fits_and_one_byte_more_does_not() {
        let (fits, large) = (message_of(MAX_FRAME), message_of(MAX_FRAME + 1));
        let error = EncodeError::TooLarge { len: MAX_FRAME + 1, limit: MAX_FRAME };
        assert_eq!(encode(&fits).unwrap().len(), MAX_FRAME);
        assert_eq!(encode(&large), Err(error.clone()));
        let mut out = b"before".to_vec();
        assert_eq!(encode_frame(&large, &mut out), Err(error));
        assert_eq!(out, b"before", "a message that does not fit leaves nothing");
        encode_frame(&fits, &mut out).unwrap();
        assert_eq!(out.len(), b"before".len() + LENGTH_BYTES + MAX_FRAME);
    }
}
