//! Replies of a Redis server.

#[allow(dead_code, unreachable_pub)]
#[path = "../../../crates/store-redis/src/resp.rs"]
mod decoder;

use bytes::BytesMut;
use decoder::{Decoder, ProtocolError, Reply};

use crate::bounded;

/// A byte stream gives the same replies whatever pieces it comes in. The first byte is the length of the pieces.
pub(crate) fn resp(data: &[u8]) {
    let Some((piece, stream)) = data.split_first() else { return };
    let whole = read(stream, usize::MAX);
    assert_eq!(read(stream, usize::from(*piece).max(1)), whole);
    whole.0.iter().for_each(look_at);
}

fn read(stream: &[u8], piece: usize) -> (Vec<Reply>, Option<ProtocolError>) {
    // An array has room for 4,096 elements before they are there, in up to eight levels.
    bounded(stream, 8 * 4_096 * 48, 256, || {
        let (mut decoder, mut buffer, mut replies) = (Decoder::default(), BytesMut::new(), Vec::new());
        for bytes in stream.chunks(piece.min(stream.len()).max(1)) {
            buffer.extend_from_slice(bytes);
            loop {
                match decoder.decode(&mut buffer) {
                    Ok(Some(reply)) => replies.push(reply),
                    Ok(None) => break,
                    Err(error) => return (replies, Some(error)),
                }
            }
        }
        (replies, None)
    })
}

fn look_at(reply: &Reply) {
    let _ = (reply.bytes(), reply.text(), reply.number());
    reply.array().unwrap_or_default().iter().for_each(look_at);
}
