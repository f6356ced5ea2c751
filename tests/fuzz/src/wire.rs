//! Frames and messages, in both directions, and the handshake.

use std::fmt::Debug;

use bytes::BytesMut;
use mtimer_protocol::{ClientMessage, ServerMessage, decode, encode, encode_frame, frame_codec};
use mtimer_types::limits::MAX_FRAME;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::codec::Decoder;

use crate::bounded;

/// Memory for a message beside its elements: what is reserved for lists before their elements are there. Ours reserve
/// 1,024 elements; serde's own, of retry tiers, a mebibyte.
const LEAST: u64 = 1536 * 1024;
/// Memory for one byte of a message: the smallest element of a list takes two bytes there, and some hundreds here.
const PER_BYTE: u64 = 512;

pub(crate) fn client_message(data: &[u8]) {
    message::<ClientMessage>(data);
}

pub(crate) fn server_message(data: &[u8]) {
    message::<ServerMessage>(data);
}

/// What is read is written and read back as the same, as a body and as a frame.
fn message<M: Serialize + DeserializeOwned + PartialEq + Debug>(data: &[u8]) {
    let body = BytesMut::from(data);
    let Ok(message) = bounded(data, LEAST, PER_BYTE, || decode::<M>(&body)) else { return };
    let written = encode(&message).expect("a message that was read fits a frame");
    let again: M = decode(&BytesMut::from(&written[..])).expect("what is written can be read");
    assert_eq!(again, message);
    let mut frame = Vec::new();
    encode_frame(&message, &mut frame).expect("a message that was read fits a frame");
    assert_eq!(frame[4..], written[..]);
    let mut codec = frame_codec(MAX_FRAME);
    let mut buffer = BytesMut::from(&frame[..]);
    let read = codec.decode(&mut buffer).expect("a frame of ours is a frame").expect("it is complete");
    assert_eq!(read[..], written[..]);
}

/// A byte stream gives the same frames, and the same error at its end, whatever pieces it comes in. The first byte is the
/// number of cuts, the next ones are their distances.
pub(crate) fn frames(data: &[u8]) {
    let Some((count, rest)) = data.split_first() else { return };
    let (cuts, stream) = rest.split_at(rest.len().min(usize::from(*count % 32)));
    let whole = read_in_pieces(stream, &[]);
    assert_eq!(read_in_pieces(stream, cuts), whole);
    assert_eq!(read_in_pieces(stream, &[1; 4_096]), whole);
    for body in &whole.0 {
        let _ = decode::<ClientMessage>(body);
    }
}

/// The frames of a stream that comes in pieces of these lengths and then all at once; whether it is refused at its end.
fn read_in_pieces(stream: &[u8], cuts: &[u8]) -> (Vec<BytesMut>, bool) {
    const LIMIT: usize = 1_024;
    bounded(stream, 2 * LIMIT as u64 + 16 * 1024, 64, || {
        let mut codec = frame_codec(LIMIT);
        let (mut buffer, mut frames) = (BytesMut::new(), Vec::new());
        let (mut cuts, mut stream) = (cuts.iter(), stream);
        loop {
            let piece = cuts.next().map_or(stream.len(), |n| usize::from(*n).min(stream.len()));
            buffer.extend_from_slice(&stream[..piece]);
            stream = &stream[piece..];
            loop {
                match codec.decode(&mut buffer) {
                    Ok(Some(frame)) => frames.push(frame),
                    Ok(None) => break,
                    Err(_) => return (frames, true),
                }
            }
            if stream.is_empty() {
                return (frames, false);
            }
        }
    })
}

/// A broker's side of the handshake. Who is let in has said a hello of this version, of one frame.
pub(crate) fn hello(data: &[u8]) {
    let Some(hello) = bounded(data, 128 * 1024, 64, || mtimer_broker::fuzzing::hello(data)) else { return };
    assert_eq!(hello.magic, mtimer_protocol::MAGIC);
    assert!((hello.min_version..=hello.max_version).contains(&mtimer_protocol::VERSION));
    let mut frame = Vec::new();
    encode_frame(&ClientMessage::Hello(hello.clone()), &mut frame).expect("a hello fits a frame");
    assert_eq!(mtimer_broker::fuzzing::hello(&frame), Some(hello));
}
