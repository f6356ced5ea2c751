//! Frames and messages, in both directions, and the handshake.

use std::fmt::Debug;

use bytes::BytesMut;
use mtimer_protocol::{ClientMessage, ServerMessage, decode, encode, encode_frame, frame_codec};
use mtimer_types::limits::MAX_FRAME;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::codec::Decoder;

use crate::bounded::bounded;

/// Memory for a message beside its elements: what is reserved for lists before their elements are
/// there. Ours reserve 1,024 elements; serde's own, of retry tiers, a mebibyte.
const LEAST: u64 = 1536 * 1024;
/// Memory for one byte of a message: the smallest element of a list takes two bytes there, and some
/// hundreds here.
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

/// A byte stream gives a broker the same frames whatever pieces it comes in, and a client, which
/// reads with another codec, the same ones. The input: the number of pieces, their lengths, the
/// number of frames, their lengths and fills, and bytes that need not be frames.
pub(crate) fn frames(data: &[u8]) {
    const LIMIT: usize = 40_000;
    let mut data = data.iter().copied();
    let mut byte = || data.next().map_or(0, usize::from);
    let lengths: Vec<usize> = (0..byte() % 32).map(|_| byte() * 41 + 1).collect();
    let mut stream = Vec::new();
    for _ in 0..byte() % 8 {
        let (length, fill) = (byte() * 160, byte() as u8);
        stream.extend((length as u32).to_be_bytes());
        stream.resize(stream.len() + length, fill);
    }
    stream.extend(data);
    // A frame is in memory twice while its buffer grows; then in the list.
    let read = |lengths: &[usize], budget| {
        bounded(&stream, 64 * 1024, 64, || mtimer_broker::fuzzing::frames(&stream, lengths, LIMIT, budget))
    };
    let whole = read(&[], 2 * LIMIT);
    assert_eq!(read(&lengths, 0), whole);
    assert_eq!(read(&[1; 500], LIMIT), whole);
    let mut codec = frame_codec(LIMIT);
    let (mut buffer, mut frames) = (BytesMut::from(&stream[..]), Vec::new());
    let refused = loop {
        match codec.decode(&mut buffer) {
            Ok(Some(frame)) => frames.push(frame.to_vec()),
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    assert!((frames, refused) == whole, "broker and client read different frames");
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
