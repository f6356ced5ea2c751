//! One connection, from its first byte to the welcome, and its session.
//!
//! Purpose: encrypts, reads the hello, and welcomes its sender if there is a slot; a refused client
//! is told why, in clear text if it does not speak TLS.
//! Not in here: the contents of a hello (`handshake`), the session (`session`).

use std::net::SocketAddr;
use std::sync::Arc;

use mtimer_core::SessionId;
use mtimer_protocol::{ErrorCode, Hello, Role};
use mtimer_tls::{AcceptError, ClientCertificate, ReadHalf, Stream, WriteHalf};
use mtimer_types::limits::{MAX_BROKERS, MAX_FRAME, MAX_FRAME_BEFORE_AUTH, MAX_OBSERVERS};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout, timeout_at};

use crate::access::Guard;
use crate::connection_slots::ConnectionSlot;
use crate::counters::ShellCounter;
use crate::frames::FrameReader;
use crate::handshake::{ConnectionRefusal, ReadError, read_hello};
use crate::limits::connections::CountedConnection;
use crate::outbox::Outbox;
use crate::session::{FAREWELL_TIMEOUT, Session, SessionContext, linger};
use crate::writer::write_all;

/// Serves a connection until it ends.
pub(crate) async fn serve(
    socket: TcpStream,
    peer: SocketAddr,
    session: SessionId,
    context: Arc<SessionContext>,
    slot: ConnectionSlot,
) {
    let admitted = tokio::select! {
        admitted = admit(socket, peer, &context) => admitted,
        () = slot.evicted() => {
            context.counters.refuse(ShellCounter::ConnectionsRefused, peer, None);
            tracing::debug!(%peer, "connection closed in its handshake: a newer one needs its slot");
            return;
        }
    };
    let Some((welcomed, mut frames, mut write)) = admitted else { return };
    drop(slot);
    frames.begin_session(MAX_FRAME, context.heartbeat_timeout, context.receiving_of(welcomed.hello.role));
    let (role, software) = (welcomed.hello.role, &welcomed.hello.software);
    tracing::debug!(session = session.0, %peer, ?role, software, "session opened");
    let end = Session {
        session,
        peer,
        role: welcomed.hello.role,
        guard: welcomed.guard.clone(),
        connection: welcomed.connection.as_ref(),
        context: &context,
    }
    .run(&mut frames, &mut write, welcomed.hello.client)
    .await;
    tracing::debug!(session = session.0, %peer, %end, "session closed");
}

/// Encrypts a connection and reads its hello. `None`: it is not let in, and was told why.
async fn admit(
    socket: TcpStream,
    peer: SocketAddr,
    context: &SessionContext,
) -> Option<(Welcomed, FrameReader<ReadHalf>, WriteHalf)> {
    // A lone small frame goes out at once; the writer coalesces by itself. Where that is refused,
    // it is a bit slower.
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%peer, %error, "cannot turn Nagle's algorithm off");
    }
    let deadline = Instant::now() + context.handshake_timeout;
    let (stream, refusal) = encrypt(socket, peer, context).await?;
    let (read, mut write) = stream.into_split();
    // Longer than the handshake may take, so that its own deadline ends it, with its own reason.
    let window = 2 * context.handshake_timeout;
    let mut frames = FrameReader::new(read, MAX_FRAME_BEFORE_AUTH, window, context.receiving.clone());
    let shaken = match refusal {
        None => shake_hands(&mut frames, context, deadline).await,
        Some(refusal) => Err(ReadError::Refused(refusal)),
    };
    match shaken {
        Ok(welcomed) => return Some((welcomed, frames, write)),
        Err(ReadError::Refused(refusal)) => {
            context.counters.refuse(refusal.counter, peer, refusal.token.as_deref());
            tracing::debug!(%peer, %refusal, "connection refused");
            refuse(&mut frames, &mut write, context, refusal).await;
        }
        Err(ReadError::Ended) => {}
        Err(ReadError::Lost { truncated, error }) => {
            if truncated {
                context.counters.count(ShellCounter::FramesTruncated);
            }
            tracing::debug!(%peer, %error, "connection lost in its handshake");
        }
    }
    None
}

/// Encrypts a connection, if connections are encrypted here. One whose client does not speak TLS
/// comes back as it is, with the message for the client, in clear text.
async fn encrypt(
    socket: TcpStream,
    peer: SocketAddr,
    context: &SessionContext,
) -> Option<(Stream, Option<ConnectionRefusal>)> {
    let accepting = context.access.accept(socket, ClientCertificate::Required, context.handshake_timeout);
    let accepted = tokio::select! {
        accepted = accepting => accepted,
        () = context.stopping.cancelled() => return None,
    };
    match accepted {
        Ok(stream) => Some((stream, None)),
        Err(AcceptError::NotTls(socket)) => {
            let text = "this broker speaks TLS: give the client the authority that signed its certificate, \
                        as --tls-ca of the command line or ClientBuilder::tls";
            let refusal = ConnectionRefusal::protocol(ShellCounter::TlsRefused, text);
            Some((Stream::Plain(socket), Some(refusal)))
        }
        Err(AcceptError::Ended) => None,
        Err(error) => {
            let counter = match &error {
                AcceptError::Timeout(_) => ShellCounter::HandshakesTimedOut,
                _ => ShellCounter::TlsRefused,
            };
            context.counters.refuse(counter, peer, None);
            tracing::debug!(%peer, %error, "connection refused");
            None
        }
    }
}

/// A hello that was accepted, and the slot among the sessions that goes with it.
struct Welcomed {
    hello: Hello,
    guard: Option<Arc<Guard>>,
    _slot: OwnedSemaphorePermit,
    /// Its slot among the connections of its token.
    connection: Option<CountedConnection>,
}

async fn shake_hands(
    frames: &mut FrameReader<ReadHalf>,
    context: &SessionContext,
    deadline: Instant,
) -> Result<Welcomed, ReadError> {
    let (hello, guard) = tokio::select! {
        hello = timeout_at(deadline, read_hello(frames, &context.access, &context.identity)) => hello.map_err(|_| {
            let text = format!("no hello within {} ms", context.handshake_timeout.as_millis());
            ReadError::Refused(ConnectionRefusal::protocol(ShellCounter::HandshakesTimedOut, text))
        })??,
        () = context.stopping.cancelled() => {
            let text = "the broker is stopping";
            return Err(ReadError::Refused(ConnectionRefusal::new(ShellCounter::SessionsRefused, ErrorCode::Stopping, text)));
        }
    };
    let connection = match &guard {
        Some(guard) if hello.role != Role::Broker => {
            let counted = context.admission.limiter.connect(&guard.principal()).map_err(|why| {
                let counter = ShellCounter::SessionsRefused;
                ReadError::Refused(ConnectionRefusal::new(counter, ErrorCode::LimitReached, why))
            });
            Some(counted?)
        }
        _ => None,
    };
    let (slots, whose, most) = match hello.role {
        Role::Client => (&context.sessions, "clients", context.max_sessions),
        Role::Broker => (&context.brokers, "other brokers", MAX_BROKERS),
        Role::Observer => (&context.observers, "observers", MAX_OBSERVERS),
    };
    let slot = slots.clone().try_acquire_owned().map_err(|_| {
        let text = format!("all {most} sessions of this broker for {whose} are taken: try again later");
        ReadError::Refused(ConnectionRefusal::new(ShellCounter::SessionsRefused, ErrorCode::Overloaded, text))
    })?;
    Ok(Welcomed { hello, guard, _slot: slot, connection })
}

/// Tells an unauthenticated client why it is refused.
async fn refuse(
    frames: &mut FrameReader<ReadHalf>,
    write: &mut WriteHalf,
    context: &SessionContext,
    refusal: ConnectionRefusal,
) {
    let outbox = Outbox::open(context.outbox_limit, &context.outboxes);
    outbox.close(Some(refusal.into()));
    let sent = timeout(
        FAREWELL_TIMEOUT,
        write_all(write, &outbox, context.pace(), &context.clock, &context.counters),
    )
    .await;
    if let Ok(Ok(())) = sent {
        linger(frames, write).await;
    }
}
