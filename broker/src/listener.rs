//! Accepts connections, within caps, and keeps their tasks.
//!
//! Purpose: every connection is a task of its own in one set, so that none outlives the broker and
//! none fails unseen.
//! Invariant: connections in their handshake have one of [`ConnectionSlots`] before a byte is read;
//! sessions are capped when they are welcomed.
//! Not in here: the messages of a connection.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mtimer_core::SessionId;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::{JoinError, JoinSet};

use crate::connection::serve;
use crate::connection_slots::ConnectionSlots;
use crate::counters::ShellCounter;
use crate::error::BrokerError;
use crate::session::SessionContext;

/// Pause after an error of the listener, which usually means that the process has no file
/// descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a handshake keeps its slot: most take milliseconds, also when thousands of clients
/// connect at once.
const HANDSHAKE_KEPT: Duration = Duration::from_secs(1);

/// Reserves an address without listening on it. Fails if another socket listens there.
pub(crate) fn bind(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // So that connections of an earlier process that are still closing do not hold up a restart.
    // Elsewhere than on Unix the option would allow two listeners.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    Ok(socket)
}

/// Accepts until the broker stops, then waits for the sessions to end. Aborting it ends them at
/// once.
pub(crate) async fn listen(
    listener: TcpListener,
    context: Arc<SessionContext>,
    max_handshakes: usize,
) -> Result<(), BrokerError> {
    let handshakes = ConnectionSlots::new(max_handshakes, HANDSHAKE_KEPT);
    let mut tasks = JoinSet::new();
    // 0 is the broker itself.
    let mut last = 0;
    let mut failing = false;
    loop {
        let accepted = tokio::select! {
            () = context.stopping.cancelled() => break,
            Some(ended) = tasks.join_next() => {
                check(ended)?;
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, peer)) => {
                failing = false;
                context.counters.count(ShellCounter::ConnectionsAccepted);
                let Some(slot) = handshakes.take(peer.ip()) else {
                    context.counters.refuse(ShellCounter::ConnectionsRefused, peer, None);
                    continue;
                };
                last += 1;
                tasks.spawn(serve(socket, peer, SessionId(last), context.clone(), slot));
            }
            Err(error) => {
                context.counters.count(ShellCounter::AcceptErrors);
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "cannot accept connections, trying again");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while let Some(ended) = tasks.join_next().await {
        check(ended)?;
    }
    Ok(())
}

fn check(ended: Result<(), JoinError>) -> Result<(), BrokerError> {
    ended.map_err(|error| BrokerError::Panicked { task: "session", what: error.to_string() })
}
