//! Entry points for the fuzz targets in `tests/fuzz`. Not part of the crate's interface.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use mtimer_protocol::Hello;
use mtimer_types::limits::MAX_FRAME_BEFORE_AUTH;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::runtime::Runtime;

use crate::access::AccessControl;
use crate::cluster::BrokerIdentity;
use crate::frames::{FrameError, FrameReader, ReceiveBudget};
use crate::handshake::read_hello;

/// A connection that sends these bytes in pieces of these lengths, then the rest at once, and ends.
struct Pieces<'a> {
    stream: &'a [u8],
    lengths: std::slice::Iter<'a, usize>,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let length = self.lengths.next().copied().unwrap_or(usize::MAX);
        let (piece, rest) = self.stream.split_at(length.max(1).min(buf.remaining()).min(self.stream.len()));
        buf.put_slice(piece);
        self.stream = rest;
        Poll::Ready(Ok(()))
    }
}

fn reader<'a>(
    stream: &'a [u8],
    lengths: &'a [usize],
    limit: usize,
    budget: usize,
) -> FrameReader<Pieces<'a>> {
    let pieces = Pieces { stream, lengths: lengths.iter() };
    FrameReader::new(pieces, limit, Duration::from_secs(60), Arc::new(ReceiveBudget::new(budget)))
}

/// Runs a future that never waits for long: it only needs the runtime's timer.
fn wait<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: Runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap_or_else(|e| panic!("the runtime does not start: {e}"));
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}

/// The bodies of the frames of a connection, and whether it is refused: a frame is announced with
/// more than `limit` bytes. The bodies are copies: a frame keeps the buffer that it was read into.
/// `budget` is the memory for large frames.
pub fn frames(stream: &[u8], lengths: &[usize], limit: usize, budget: usize) -> (Vec<Vec<u8>>, bool) {
    let mut reader = reader(stream, lengths, limit, budget);
    let mut bodies = Vec::new();
    loop {
        match wait(reader.next()) {
            Ok(frame) => bodies.push(frame.body.to_vec()),
            Err(FrameError::Ended | FrameError::Truncated) => return (bodies, false),
            Err(FrameError::Oversized { .. }) => return (bodies, true),
            Err(error) => panic!("a connection that never waits has failed: {error}"),
        }
    }
}

/// Reads the first frame of a connection that sends `bytes` and ends. `None`: the connection is
/// refused or has ended.
pub fn hello(bytes: &[u8]) -> Option<Hello> {
    let access = Arc::new(AccessControl::everybody());
    let read = wait(read_hello(
        &mut reader(bytes, &[], MAX_FRAME_BEFORE_AUTH, 0),
        &access,
        &BrokerIdentity::random(),
    ));
    read.ok().map(|(hello, _)| hello)
}
