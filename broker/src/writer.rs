//! A session's writer: encodes the messages of the outbox and puts them on the wire.
//!
//! Purpose: frames are encoded here, on the session's task, many into one write; a heartbeat goes
//! out when nothing else did.
//! Invariant: no message is dropped in silence. One that fits no frame goes out in parts, or as an
//! error in its place.
//! Not in here: which messages are sent, and when.

use std::time::Duration;

use mtimer_protocol::{EncodeError, ErrorCode, OpReply, QueryAnswer, ServerMessage, encode_frame};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

use crate::clock::BrokerClock;
use crate::counters::{ShellCounter, ShellCounters};
use crate::frames::least;
use crate::outbox::Outbox;

/// Bytes of messages that are encoded before they are written.
const CHUNK: usize = 256 * 1024;
/// Capacity of the buffer that a session keeps between two writes: it is not counted with the
/// waiting messages, and all of [`MAX_SESSIONS`](mtimer_types::limits::MAX_SESSIONS) may have it.
const KEPT: usize = 16 * 1024;

/// Why a writer ended before its outbox was closed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The connection is gone.
    #[error("cannot write: {0}")]
    Io(#[from] std::io::Error),
    /// The other side takes nothing, or next to nothing.
    #[error("the client took {taken} bytes within {} ms, {least} are the least", .within.as_millis())]
    Stalled { taken: usize, within: Duration, least: usize },
    /// A message cannot be encoded at all.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// How often something is sent, and the time in which the other side has to take as many bytes as
/// [`MIN_FRAME_RATE`](mtimer_types::limits::MIN_FRAME_RATE) demands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) heartbeat: Duration,
    pub(crate) stalled: Duration,
}

/// Sends until the outbox is closed and empty.
pub(crate) async fn write_all<W: AsyncWrite + Unpin>(
    socket: &mut W,
    outbox: &Outbox,
    pace: Pace,
    clock: &BrokerClock,
    counters: &ShellCounters,
) -> Result<(), WriteError> {
    let mut buffer = Vec::new();
    let mut pings = 0;
    loop {
        match timeout_at(Instant::now() + pace.heartbeat, outbox.take(CHUNK, || clock.now().mono_ms)).await {
            Ok(Some((messages, bytes))) => {
                for message in messages {
                    put(&mut buffer, message, counters)?;
                }
                write_out(socket, &mut buffer, pace.stalled).await?;
                outbox.sent(bytes);
            }
            Ok(None) => return Ok(()),
            Err(_) => {
                pings += 1;
                put(&mut buffer, ServerMessage::Ping(pings), counters)?;
                write_out(socket, &mut buffer, pace.stalled).await?;
            }
        }
        if buffer.capacity() > KEPT {
            buffer = Vec::new();
        }
    }
}

/// Writes the buffer and empties it, unless the other side is too slow.
async fn write_out<W: AsyncWrite + Unpin>(
    socket: &mut W,
    buffer: &mut Vec<u8>,
    stalled: Duration,
) -> Result<(), WriteError> {
    let least = least(stalled);
    let mut rest = &buffer[..];
    let mut taken = 0;
    let mut until = Instant::now() + stalled;
    while !rest.is_empty() {
        match timeout_at(until, socket.write(rest)).await {
            Ok(Ok(0)) => return Err(std::io::Error::from(std::io::ErrorKind::WriteZero).into()),
            Ok(wrote) => {
                let wrote = wrote?;
                rest = &rest[wrote..];
                taken += wrote;
            }
            Err(_) if taken >= least => {
                (taken, until) = (0, Instant::now() + stalled);
            }
            Err(_) => return Err(WriteError::Stalled { taken, within: stalled, least }),
        }
    }
    // Nothing waits in a plain connection; an encrypted one may hold records back.
    match timeout_at(until, socket.flush()).await {
        Ok(flushed) => flushed?,
        Err(_) => return Err(WriteError::Stalled { taken, within: stalled, least }),
    }
    buffer.clear();
    Ok(())
}

/// Appends a message's frame, or frames if it fits no single one.
fn put(buffer: &mut Vec<u8>, message: ServerMessage, counters: &ShellCounters) -> Result<(), EncodeError> {
    let too_large = match encode_frame(&message, buffer) {
        Ok(()) => return Ok(()),
        Err(error @ EncodeError::TooLarge { .. }) => error,
        Err(error @ EncodeError::Unencodable(_)) => return Err(error),
    };
    let mut message = message;
    if let Some(rest) = cut_in_half(&mut message) {
        counters.count(ShellCounter::MessagesSplit);
        put(buffer, message, counters)?;
        return put(buffer, rest, counters);
    }
    counters.count(ShellCounter::MessagesTooLarge);
    let instead = in_place_of(message, &too_large).ok_or(too_large)?;
    put(buffer, instead, counters)
}

/// Cuts the second half off a message of a kind that means the same in two parts.
fn cut_in_half(message: &mut ServerMessage) -> Option<ServerMessage> {
    match message {
        ServerMessage::Deliver { registration, deliveries } if deliveries.len() > 1 => {
            let rest = deliveries.split_off(deliveries.len() / 2);
            Some(ServerMessage::Deliver { registration: *registration, deliveries: rest })
        }
        _ => None,
    }
}

/// The error that goes out in place of an answer that fits no frame.
fn in_place_of(message: ServerMessage, error: &EncodeError) -> Option<ServerMessage> {
    let text = |what: &str| format!("{what} does not fit: {error}");
    match message {
        ServerMessage::Reply { corr, replies } => {
            // Operations that were done stay done; the client can ask for each.
            let code = ErrorCode::Unknown;
            let mut replies = vec![OpReply::Failed { code, message: String::new() }; replies.len()];
            if let Some(first) = replies.first_mut() {
                *first = OpReply::Failed { code, message: text("the reply") };
            }
            Some(ServerMessage::Reply { corr, replies })
        }
        ServerMessage::Answer { corr, answer: QueryAnswer::Failed { code, .. } } => {
            Some(ServerMessage::Answer { corr, answer: QueryAnswer::Failed { code, message: String::new() } })
        }
        ServerMessage::Answer { corr, .. } => {
            let answer = QueryAnswer::Failed {
                code: ErrorCode::Invalid,
                message: text("the answer; ask for fewer rows"),
            };
            Some(ServerMessage::Answer { corr, answer })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use futures_util::StreamExt;
    use mtimer_protocol::ops::PurgeReply;
    use mtimer_protocol::{Delivery, decode, frame_codec};
    use mtimer_types::limits::MAX_FRAME;
    use mtimer_types::{Epoch, Headers, Mode, Time, TimerId};
    use tokio::io::AsyncReadExt;
    use tokio_util::codec::FramedRead;

    use super::*;
    use crate::clock::tests::clock_at;
    use crate::outbox::Outboxes;

    fn delivery(n: u128, payload: usize) -> Delivery {
        Delivery {
            id: TimerId::from_u128(n),
            key: None,
            due: Time::from_ms(1),
            epoch: Epoch(1),
            attempt: 1,
            mode: Mode::AtLeastOnce,
            timeout_ms: 1_000,
            payload: Bytes::from(vec![7; payload]),
            headers: Headers::NONE,
        }
    }

    fn outbox() -> Arc<Outbox> {
        Outbox::open(usize::MAX, &Arc::new(Outboxes::new(usize::MAX)))
    }

    /// The messages that a client reads when these are sent.
    async fn over_the_wire(messages: Vec<ServerMessage>) -> (Vec<ServerMessage>, ShellCounters) {
        let counters = ShellCounters::default();
        let outbox = outbox();
        messages.into_iter().for_each(|m| outbox.push(m));
        outbox.close(None);
        let (mut here, there) = tokio::io::duplex(64 * 1024);
        let pace = Pace { heartbeat: Duration::from_secs(5), stalled: Duration::from_secs(5) };
        let write = async {
            write_all(&mut here, &outbox, pace, &clock_at(0), &counters).await.unwrap();
            drop(here);
        };
        let read = async {
            let frames = FramedRead::new(there, frame_codec(MAX_FRAME));
            frames.map(|frame| decode(&frame.unwrap()).unwrap()).collect().await
        };
        let ((), read) = tokio::join!(write, read);
        (read, counters)
    }

    #[tokio::test]
    async fn a_delivery_batch_over_the_frame_limit_goes_out_in_parts() {
        let deliveries: Vec<Delivery> = (0..150).map(|n| delivery(n, 64 * 1024)).collect();
        let sent = ServerMessage::Deliver { registration: 3, deliveries: deliveries.clone() };
        let (read, _) = over_the_wire(vec![sent, ServerMessage::Closing]).await;
        assert!(read.len() > 3, "two parts at least, and the message after");
        assert_eq!(read.last(), Some(&ServerMessage::Closing));
        let mut seen = Vec::new();
        for message in &read[..read.len() - 1] {
            let ServerMessage::Deliver { registration: 3, deliveries } = message else {
                panic!("{message:?}")
            };
            seen.extend(deliveries.iter().cloned());
        }
        assert!(seen == deliveries, "all of them, in order");
    }

    #[tokio::test]
    async fn an_answer_over_the_frame_limit_goes_out_as_an_error() {
        let failed = OpReply::Failed { code: ErrorCode::Invalid, message: "x".repeat(MAX_FRAME) };
        let reply = ServerMessage::Reply { corr: 8, replies: vec![failed, PurgeReply::Done.into()] };
        let counters = (0..80).map(|n| ("x".repeat(64 * 1024), n)).collect();
        let answer = QueryAnswer::Status(mtimer_protocol::Status { counters, ..Default::default() });
        let (read, counters) = over_the_wire(vec![reply, ServerMessage::Answer { corr: 9, answer }]).await;
        let [ServerMessage::Reply { corr: 8, replies }, ServerMessage::Answer { corr: 9, answer }] =
            &read[..]
        else {
            panic!("{} messages", read.len())
        };
        assert!(matches!(
            &replies[..],
            [OpReply::Failed { code: ErrorCode::Unknown, .. }, OpReply::Failed { .. }]
        ));
        let QueryAnswer::Failed { code: ErrorCode::Invalid, message } = answer else { panic!("not failed") };
        assert!(
            message.contains("ask for fewer rows") && message.contains("a frame holds 4194304"),
            "{message}"
        );
        let mut merged = Vec::new();
        counters.merge_into(&mut merged);
        assert!(merged.contains(&("messages_too_large_total".to_owned(), 2)));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_filled_with_heartbeats_and_a_full_pipe_is_noticed() {
        let counters = ShellCounters::default();
        let outbox = outbox();
        let (mut here, _there) = tokio::io::duplex(64);
        let pace = Pace { heartbeat: Duration::from_secs(5), stalled: Duration::from_secs(15) };
        let started = Instant::now();
        let error = write_all(&mut here, &outbox, pace, &clock_at(0), &counters).await.unwrap_err();
        assert!(matches!(error, WriteError::Stalled { taken: 4, .. }), "{error}");
        // A ping is 6 bytes: ten fit, the eleventh is stuck.
        assert_eq!(started.elapsed().as_secs(), 11 * 5 + 15);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_a_byte_now_and_then_is_noticed() {
        let counters = ShellCounters::default();
        let outbox = outbox();
        let deliveries = (0..100).map(|n| delivery(n, 64 * 1024)).collect();
        outbox.push(ServerMessage::Deliver { registration: 1, deliveries });
        let (mut here, mut there) = tokio::io::duplex(64);
        tokio::spawn(async move {
            while there.read_u8().await.is_ok() {
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        });
        let pace = Pace { heartbeat: Duration::from_secs(5), stalled: Duration::from_secs(15) };
        let started = Instant::now();
        let error = write_all(&mut here, &outbox, pace, &clock_at(0), &counters).await.unwrap_err();
        assert_eq!(error.to_string(), "the client took 67 bytes within 15000 ms, 245760 are the least");
        assert_eq!(started.elapsed(), Duration::from_secs(15));
    }
}
