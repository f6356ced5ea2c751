//! One connection's life: it is made, and has a reader and a writer then.
//!
//! The writer sends all queued messages whenever it is free: callers that come while it writes
//! travel together, and a lone one goes at once. The reader hands arriving messages to the machine.
//!
//! Invariant: no input makes a session panic, end without a reason, or keep anything without a
//! bound.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::{FutureExt, StreamExt};
use mtimer_protocol::{decode, encode_frame};
use mtimer_tls::WriteHalf;
use mtimer_types::limits::{HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS, MAX_FRAME};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::error::LinkError;
use crate::link::{BrokerStream, Frames, explain};
use crate::machine::{Input, Transmit};
use crate::shell::{Dial, Link, Runtime};
use crate::state::ClientState;

/// Heartbeats within which the broker is to take the written bytes.
const BEATS: u64 = HEARTBEAT_TIMEOUT_MS / HEARTBEAT_MS;

/// Makes a connection, and serves it until it ends.
pub(crate) async fn run(state: Arc<ClientState>, dial: Dial) {
    let Dial { connection, place, link } = dial;
    let life = async {
        match state.dialler.open(&place).await {
            Err(error) => Input::Failed { connection, error },
            Ok(stream) => {
                let address = stream.address.clone();
                state.handle(Input::Connected { connection, address });
                serve(&state, connection, &link, stream).await
            }
        }
    };
    let end = link.closed.run_until_cancelled(AssertUnwindSafe(life).catch_unwind()).await;
    // Without an end the machine has given it up.
    if let Some(end) = end {
        let panicked = |_| Input::Closed { connection, end: LinkError::Closed };
        state.handle(end.unwrap_or_else(panicked));
    }
    state.with_shell(|shell| shell.forget(connection));
}

async fn serve(
    state: &Arc<ClientState>,
    connection: u64,
    link: &Link,
    stream: BrokerStream,
) -> Input<Runtime> {
    let BrokerStream { address, mut frames, write, tls } = stream;
    let writer = SessionWriter { state: Arc::clone(state), connection, link: link.clone(), write };
    let mut writer = AbortOnDropHandle::new(state.tasks.spawn(writer.run()));
    let mut any = false;
    let end = tokio::select! {
        end = read(state, connection, &mut frames, &mut any) => end,
        end = &mut writer => end.unwrap_or(LinkError::Closed),
    };
    // The writer must not touch the machine any more when the connection is given up.
    writer.abort();
    if !writer.is_finished() {
        let _ = writer.await;
    }
    match end {
        LinkError::Io(error) if !any => match explain(tls.as_ref(), &address, error) {
            Ok(error) => Input::Failed { connection, error },
            Err(error) => Input::Closed { connection, end: error.into() },
        },
        end => Input::Closed { connection, end },
    }
}

/// Takes in arriving messages. `any`: one has arrived.
async fn read(state: &Arc<ClientState>, connection: u64, frames: &mut Frames, any: &mut bool) -> LinkError {
    loop {
        let body = match frames.next().await {
            None => return LinkError::Closed,
            Some(Err(error)) => return error.into(),
            Some(Ok(body)) => body,
        };
        match decode(&body) {
            Ok(message) => state.handle(Input::Frame { connection, message }),
            Err(error) => return error.into(),
        }
        if !std::mem::replace(any, true) {
            frames.decoder_mut().set_max_frame_length(MAX_FRAME);
        }
    }
}

struct SessionWriter {
    state: Arc<ClientState>,
    connection: u64,
    link: Link,
    write: WriteHalf,
}

impl SessionWriter {
    async fn run(mut self) -> LinkError {
        let (mut gathered, mut bytes) = (Vec::new(), Vec::new());
        loop {
            self.state.with(|machine, now| machine.poll_transmit(now, self.connection, &mut gathered));
            if gathered.is_empty() {
                self.link.to_send.notified().await;
                continue;
            }
            for transmit in gathered.drain(..) {
                self.put(&mut bytes, transmit);
            }
            let limit = self.link.heartbeat(HEARTBEAT_MS) * BEATS as u32;
            let written = async {
                self.write.write_all(&bytes).await?;
                self.write.flush().await
            };
            match timeout(limit, written).await {
                Ok(Ok(())) => bytes.clear(),
                Ok(Err(error)) => return error.into(),
                Err(_) => return LinkError::Stuck(limit.as_millis() as u64),
            }
        }
    }

    fn put(&self, bytes: &mut Vec<u8>, transmit: Transmit<Runtime>) {
        match transmit {
            Transmit::Message(message) => {
                if let Err(error) = encode_frame(&message, bytes) {
                    tracing::error!(%error, "a message could not be encoded and was left out");
                }
            }
            Transmit::Request(frame) => self.state.handle(match encode_frame(&frame.message, bytes) {
                Ok(()) => Input::Sent(frame),
                // The bounds of a frame are far below the limit; a value that cannot be encoded
                // fails its callers.
                Err(error) => Input::Unsent { frame, reason: error.to_string() },
            }),
        }
    }
}
