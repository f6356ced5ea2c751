//! Entry points for the fuzz targets in `tests/fuzz`. Not part of the crate's interface.

use std::net::{Ipv4Addr, SocketAddr};

use futures_util::FutureExt;
use mtimer_protocol::{Hello, frame_codec};
use mtimer_types::limits::MAX_FRAME_BEFORE_AUTH;
use tokio_util::codec::FramedRead;

use crate::auth::AcceptAll;
use crate::handshake::read_hello;

/// Reads the first frame of a connection that sends `bytes` and ends. `None`: the connection is refused or has ended.
pub fn hello(bytes: &[u8]) -> Option<Hello> {
    let mut frames = FramedRead::new(bytes, frame_codec(MAX_FRAME_BEFORE_AUTH));
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    read_hello(&mut frames, peer, &AcceptAll).now_or_never()?.ok()
}
