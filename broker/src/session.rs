//! One session, from its welcome to its end.
//!
//! Purpose: reads messages and hands them to the engine's task; writes the messages that the
//! engine's task has put into the outbox; notices when the other side has gone silent.
//! Invariant: a session that the broker refuses or closes is counted and told why (`Refused`),
//! unless memory for answers has run out; the engine hears of a session's end exactly once.
//! Not in here: the steps before the welcome (`connection`), the meaning of messages.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use mtimer_core::{SessionEvent, SessionId};
use mtimer_protocol::{ErrorCode, Role, ServerMessage, VERSION, Welcome};
use mtimer_tls::{ReadHalf, WriteHalf};
use mtimer_types::limits::{MAX_BATCH, MAX_FRAME};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::access::{AccessControl, Guard};
use crate::admission::{Admission, Admitted, ForCluster, Sender};
use crate::clock::BrokerClock;
use crate::cluster::{BrokerIdentity, PeerEvent, PeerWhat, SOFTWARE};
use crate::counters::{ShellCounter, ShellCounters};
use crate::frames::{FrameReader, ReceiveBudget};
use crate::handshake::{ConnectionRefusal, ReadError, read_message};
use crate::inbox::{EngineGone, Gate, Ingress, IngressPermit, What};
use crate::limits::connections::CountedConnection;
use crate::outbox::Outboxes;
use crate::outbox::{Outbox, Overflow};
use crate::writer::{Pace, WriteError, write_all};

/// How long the last messages to a client may take.
pub(crate) const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes that are read and thrown away after the last messages, so that the system does not reset
/// the connection before the client has read them.
const LINGER_BYTES: u64 = 1024 * 1024;

/// State that all sessions share.
pub(crate) struct SessionContext {
    pub(crate) gate: Gate,
    pub(crate) clock: Arc<BrokerClock>,
    pub(crate) counters: Arc<ShellCounters>,
    pub(crate) access: Arc<AccessControl>,
    pub(crate) admission: Admission,
    /// Memory for frames that are being received, from other brokers and from everybody else.
    pub(crate) receiving: Arc<ReceiveBudget>,
    pub(crate) receiving_from_brokers: Arc<ReceiveBudget>,
    pub(crate) outboxes: Arc<Outboxes>,
    pub(crate) outbox_limit: usize,
    pub(crate) sessions: Arc<Semaphore>,
    pub(crate) max_sessions: usize,
    /// Slots for other brokers, and for observers.
    pub(crate) brokers: Arc<Semaphore>,
    pub(crate) observers: Arc<Semaphore>,
    pub(crate) heartbeat: Duration,
    pub(crate) heartbeat_timeout: Duration,
    pub(crate) handshake_timeout: Duration,
    /// The welcome of every session; its number and the time are filled in.
    pub(crate) welcome: Welcome,
    /// The broker is stopping: nobody is welcomed any more.
    pub(crate) stopping: CancellationToken,
    pub(crate) identity: Arc<BrokerIdentity>,
    /// The way to the cluster's task, if there is a cluster.
    pub(crate) cluster: Option<mpsc::Sender<PeerEvent>>,
}

/// Why a session has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionEnd {
    #[error("closed by the client")]
    Client,
    /// Nobody is there to be told.
    #[error("lost: {0}")]
    Lost(String),
    #[error("closed by us: {0}")]
    Refused(ConnectionRefusal),
    /// Everything was sent and the outbox is closed: the engine or the stopping broker wants it so.
    #[error("closed by us")]
    Closed,
    /// The outbox holds the last words already.
    #[error("closed by us: {0}")]
    Overflowed(Overflow),
    #[error("closed by us: the broker has ended")]
    EngineGone,
}

impl SessionEnd {
    /// Whether the outbox is flushed before the connection is closed. Not if all sessions together
    /// have too much waiting: the memory is needed at once.
    fn flushes_outbox(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::EngineGone | Self::Overflowed(Overflow::Session { .. }))
    }
}

/// Says that nothing follows, and reads on for a moment.
pub(crate) async fn linger(frames: &mut FrameReader<ReadHalf>, write: &mut WriteHalf) {
    if write.shutdown().await.is_err() {
        return;
    }
    let mut rest = frames.socket_mut().take(LINGER_BYTES);
    // However this ends, the connection is closed next.
    let _ = timeout(FAREWELL_TIMEOUT, tokio::io::copy(&mut rest, &mut tokio::io::sink())).await;
}

/// One session.
pub(crate) struct Session<'a> {
    pub(crate) session: SessionId,
    pub(crate) peer: SocketAddr,
    pub(crate) role: Role,
    /// `None`: it may do everything.
    pub(crate) guard: Option<Arc<Guard>>,
    /// Its count among the connections of its token.
    pub(crate) connection: Option<&'a CountedConnection>,
    pub(crate) context: &'a SessionContext,
}

impl Session<'_> {
    /// Serves it until it ends.
    pub(crate) async fn run(
        &self,
        frames: &mut FrameReader<ReadHalf>,
        write: &mut WriteHalf,
        client: u128,
    ) -> SessionEnd {
        let context = self.context;
        let outbox = Outbox::open(context.outbox_limit, &context.outboxes);
        let ingress = context.gate.ingress(self.session);
        outbox.push(ServerMessage::Welcome(self.welcome()));
        let guard = self.guard.clone();
        if ingress.send(What::Opened { client, outbox: outbox.clone(), guard }).await.is_err() {
            outbox.close(Some(stopping()));
        }
        // Whether another broker has made itself known here.
        let mut peer = false;
        let end = {
            let mut writer =
                pin!(write_all(write, &outbox, context.pace(), &context.clock, &context.counters));
            let mut written = false;
            let end = tokio::select! {
                end = self.read(frames, &ingress, &outbox, &mut peer) => end,
                wrote = &mut writer => {
                    written = true;
                    self.wrote(wrote, &outbox)
                }
                over = outbox.overflowed() => self.overflowed(over),
                EngineGone = return_withdrawn(&outbox, &ingress) => SessionEnd::EngineGone,
                () = ingress.engine_gone() => SessionEnd::EngineGone,
                why = self.revoked() => {
                    self.refused(ConnectionRefusal::new(ShellCounter::SessionsRevoked, ErrorCode::Unauthorized, why))
                }
            };
            match &end {
                SessionEnd::Refused(refusal) => outbox.close(Some(refusal.clone().into())),
                SessionEnd::EngineGone => outbox.close(Some(stopping())),
                SessionEnd::Client | SessionEnd::Lost(_) | SessionEnd::Closed | SessionEnd::Overflowed(_) => {
                    outbox.close(None)
                }
            }
            if !written && end.flushes_outbox() {
                // A client whose connection takes nothing misses them.
                let _ = timeout(FAREWELL_TIMEOUT, &mut writer).await;
            }
            end
        };
        // If the engine is gone it need not know, and neither need the cluster's task.
        let _ = ingress.send(What::Closed).await;
        if let Some(cluster) = context.cluster.as_ref().filter(|_| peer) {
            let _ = cluster.send(PeerEvent { session: self.session, what: PeerWhat::Gone }).await;
        }
        if matches!(end, SessionEnd::Refused(_) | SessionEnd::EngineGone | SessionEnd::Closed) {
            linger(frames, write).await;
        }
        end
    }

    /// Reads until something ends it.
    async fn read(
        &self,
        frames: &mut FrameReader<ReadHalf>,
        ingress: &Ingress,
        outbox: &Arc<Outbox>,
        peer: &mut bool,
    ) -> SessionEnd {
        let context = self.context;
        loop {
            // Only the wait for the client counts as silence, not that for the engine.
            let frame = match frames.next().await {
                Ok(frame) => frame,
                Err(error) => return self.unreadable(error.into()),
            };
            // Messages of other brokers and observers are small, and must not wait behind clients.
            let permit = match self.role {
                Role::Client => ingress.reserve(frame.body.len()).await,
                Role::Broker | Role::Observer => Ok(IngressPermit::default()),
            };
            let Ok(permit) = permit else { return SessionEnd::EngineGone };
            let message = match read_message(&frame) {
                Ok(message) => message,
                Err(error) => return self.unreadable(error),
            };
            let bytes = frame.body.len();
            drop(frame);
            let sent = match context.admission.admit(self.sender(), message) {
                Ok(Admitted::ForEngine(event)) => ingress.send_message(event, bytes, permit).await,
                Ok(Admitted::ForCluster(what)) => {
                    *peer |= matches!(what, ForCluster::Request(_));
                    self.tell_cluster(what, outbox).await
                }
                Ok(Admitted::Answered(answer)) => {
                    answer.into_iter().for_each(|answer| outbox.push(answer));
                    Ok(())
                }
                Err(refusal) => return self.refused(refusal),
            };
            if sent.is_err() {
                return SessionEnd::EngineGone;
            }
        }
    }

    fn sender(&self) -> Sender<'_> {
        let Self { peer, role, connection, .. } = *self;
        Sender { peer, role, guard: self.guard.as_deref(), connection }
    }

    async fn tell_cluster(&self, what: ForCluster, outbox: &Arc<Outbox>) -> Result<(), EngineGone> {
        let Some(cluster) = &self.context.cluster else { return Ok(()) };
        let outbox = outbox.clone();
        let what = match what {
            ForCluster::Request(request) => PeerWhat::Request { request, outbox },
            ForCluster::Query { corr, query } => PeerWhat::Query { corr, query, outbox },
        };
        cluster.send(PeerEvent { session: self.session, what }).await.map_err(|_| EngineGone)
    }

    fn unreadable(&self, error: ReadError) -> SessionEnd {
        match error {
            ReadError::Ended => SessionEnd::Client,
            ReadError::Refused(refusal) => self.refused(refusal),
            ReadError::Lost { truncated, error } => {
                if truncated {
                    self.context.counters.count(ShellCounter::FramesTruncated);
                }
                SessionEnd::Lost(error.to_string())
            }
        }
    }

    /// Completes when the session's token is valid no longer.
    async fn revoked(&self) -> &'static str {
        match &self.guard {
            Some(guard) => guard.revoked().await,
            None => std::future::pending().await,
        }
    }

    fn refused(&self, refusal: ConnectionRefusal) -> SessionEnd {
        self.context.counters.count(refusal.counter);
        tracing::info!(session = self.session.0, %refusal, "closing a session");
        SessionEnd::Refused(refusal)
    }

    fn overflowed(&self, over: Overflow) -> SessionEnd {
        self.context.counters.count(ShellCounter::OutboxOverflows);
        tracing::info!(session = self.session.0, %over, "closing a session that does not read");
        SessionEnd::Overflowed(over)
    }

    fn wrote(&self, wrote: Result<(), WriteError>, outbox: &Outbox) -> SessionEnd {
        match wrote {
            Ok(()) => outbox.why_overflowed().map_or(SessionEnd::Closed, |over| self.overflowed(over)),
            Err(error) => {
                if let WriteError::Stalled { .. } = error {
                    self.context.counters.count(ShellCounter::WritesStalled);
                    tracing::info!(session = self.session.0, %error, "closing a session");
                }
                SessionEnd::Lost(error.to_string())
            }
        }
    }

    fn welcome(&self) -> Welcome {
        let context = self.context;
        Welcome { session: self.session.0, now: context.clock.now().time, ..context.welcome.clone() }
    }
}

impl SessionContext {
    pub(crate) fn receiving_of(&self, role: Role) -> Arc<ReceiveBudget> {
        match role {
            Role::Broker => self.receiving_from_brokers.clone(),
            Role::Client | Role::Observer => self.receiving.clone(),
        }
    }

    pub(crate) fn pace(&self) -> Pace {
        Pace { heartbeat: self.heartbeat, stalled: self.heartbeat_timeout }
    }
}

/// The welcome of a broker, but for the parts that differ between sessions.
pub(crate) fn welcome(
    cluster: String,
    store: mtimer_store::StoreInfo,
    heartbeat: Duration,
    broker: Option<String>,
) -> Welcome {
    Welcome {
        version: VERSION,
        session: 0,
        cluster,
        software: SOFTWARE.to_owned(),
        store: store.kind.to_owned(),
        durability: store.durability.to_owned(),
        partitions: store.partitions,
        now: mtimer_types::Time::ZERO,
        heartbeat_ms: u64::try_from(heartbeat.as_millis()).unwrap_or(u64::MAX),
        // Both are small constants.
        max_frame: MAX_FRAME as u32,
        max_batch: MAX_BATCH as u32,
        broker,
    }
}

/// Gives the engine back the deliveries that have not left in time.
async fn return_withdrawn(outbox: &Outbox, ingress: &Ingress) -> EngineGone {
    loop {
        let event = SessionEvent::Recalled(outbox.withdrawn().await);
        if let Err(gone) = ingress.send_message(event, 0, IngressPermit::default()).await {
            return gone;
        }
    }
}

fn stopping() -> ServerMessage {
    ServerMessage::Refused { code: ErrorCode::Stopping, message: "the broker is stopping".to_owned() }
}

impl From<ConnectionRefusal> for ServerMessage {
    fn from(refusal: ConnectionRefusal) -> Self {
        Self::Refused { code: refusal.code, message: refusal.message }
    }
}
