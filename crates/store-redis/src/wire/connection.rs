//! One connection to one server, shared by all partitions of that server.
//!
//! Pipelines go to the `redis` crate's multiplexed connection in the order of the calls. Commands
//! are sent once or not at all. A connection that breaks, or is silent while an answer is due, is
//! over for good, and everything unanswered is [`Lost`].
//!
//! Not in here: the handling of answers, the choice of a server.

use std::fmt::{self, Display};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use parking_lot::{Mutex, MutexGuard};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, InfoDict, Pipeline, RedisResult, Value, cmd};
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::access::ServerAccess;
use super::node::{Lost, RedisNode};
use super::reply::{Reply, in_resp2};
use super::script;

/// Pipelines that are not answered. A partition has one, and housekeeping a few, so more are a sign
/// that the server stands still.
const UNANSWERED: usize = 16_384;
/// Bytes gathered for one write.
const WRITE_BYTES: usize = 128 << 10;
/// How long a connection attempt may take, TLS included.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// A connection that is not used is asked for a sign of life so often: the first call after Redis
/// has gone is then not sent in vain, which would leave open whether it was carried out.
const IDLE: Duration = Duration::from_secs(1);
/// All that the crate says of a connection that was closed before the first command. A server that
/// refuses a certificate closes it when the TLS handshake is over for the client.
const BROKEN: &str = "broken pipe";
/// The possible reason then.
pub(super) const ANOTHER_CERTIFICATE: &str = "does it ask for another client certificate?";

/// How a connection is used. Each use has a connection of its own to a server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Use {
    pub(crate) purpose: Purpose,
    /// A server that is silent for longer, while an answer is due, is lost.
    pub(crate) answer_within: Duration,
}

/// The purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Purpose {
    /// Partitions, and all calls that may wait behind them: it has the scripts.
    Partitions,
    /// The lease and clocks: nothing waits behind a partition's work.
    Urgent,
    /// `WAIT` for the replicas that a log waits for. It holds back all calls behind it.
    Trimming,
    /// `WAIT` for the replicas that answers wait for.
    Quorum,
    /// A question to a Sentinel, or a look at the servers.
    Look,
}

/// A live connection, until it is not: see the module.
pub(crate) struct RedisConnection {
    shared: Arc<ConnectionState>,
    /// The reply to `INFO` when the connection was opened.
    info: InfoDict,
}

/// State shared by the connection, its calls and its watchdog.
struct ConnectionState {
    address: String,
    resp3: bool,
    opened: Instant,
    /// Calls that are not answered.
    unanswered: AtomicUsize,
    /// When the last answer came, and when one became due while none was: µs since `opened`.
    heard_us: AtomicU64,
    due_us: AtomicU64,
    /// The server, or why the connection is over. It is closed when the last call of it has ended.
    server: Mutex<Result<MultiplexedConnection, Lost>>,
    /// Cancelled when the connection is over.
    over: CancellationToken,
    /// Cancelled when neither the connection nor any of its calls is left.
    unused: CancellationToken,
}

impl fmt::Debug for RedisConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = self.shared.server().as_ref().err().cloned();
        f.debug_struct("RedisConnection").field("address", &self.shared.address).field("over", &over).finish()
    }
}

impl RedisConnection {
    /// Connects, logs in and, if asked to, loads the scripts.
    pub(crate) async fn open(
        address: &str,
        access: &ServerAccess,
        how: Use,
        tasks: &TaskTracker,
    ) -> Result<Self, Lost> {
        let lost = |e: &dyn Display| Lost(format!("{address}: {e}"));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            // All unanswered calls fit in, so handing a pipeline over never waits.
            .set_pipeline_buffer_size(UNANSWERED)
            .set_write_backpressure_boundary(WRITE_BYTES);
        let client = access.client(address).map_err(|e| lost(&e))?;
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let server = timeout(CONNECT_WITHIN, connecting)
            .await
            .map_err(|_| {
                let tls = if access.tls.is_some() { " (is it a TLS port?)" } else { "" };
                lost(&format!("no connection within {} s{tls}", CONNECT_WITHIN.as_secs()))
            })?
            .map_err(|e| lost(&e))?;
        let shared = Arc::new(ConnectionState::new(address, access.resp3, server));
        tasks.spawn(watch(Arc::downgrade(&shared), shared.unused.clone(), how.answer_within));
        let mut this = Self { shared, info: InfoDict::new("") };
        match this.begin(access, how).await {
            Err(Lost(why)) if access.tls.is_some() && why.ends_with(BROKEN) => {
                Err(Lost(format!("{why} ({ANOTHER_CERTIFICATE})")))
            }
            begun => begun.map(|()| this),
        }
    }

    /// Sends the first commands of every connection.
    async fn begin(&mut self, access: &ServerAccess, how: Use) -> Result<(), Lost> {
        for command in access.login() {
            self.must(command).await?;
        }
        // Servers before 7.0 take one section only; "everything" is one.
        let info = self.must(cmd("INFO").arg("everything").to_owned()).await?;
        self.info = InfoDict::new(info.text().unwrap_or_default());
        if how.purpose == Purpose::Partitions {
            let refused = self.call(script::load_all()).await?.iter().find_map(Reply::refusal);
            // A server that cannot load scripts now (it is loading its data) is asked again when
            // one is missed.
            if let Some(refusal) = refused {
                tracing::debug!(address = self.shared.address, refusal, "scripts are not loaded yet");
            }
        }
        Ok(())
    }

    async fn must(&self, command: Cmd) -> Result<Value, Lost> {
        let reply = self.ask(command).await?;
        match reply.refusal() {
            Some(refusal) => Err(Lost(format!("{}: {refusal}", self.shared.address))),
            None => Ok(reply),
        }
    }

    /// The fields of `INFO` as they were when the connection was opened.
    pub(crate) const fn info(&self) -> &InfoDict {
        &self.info
    }

    /// Which process the server is: another after each start.
    pub(super) fn run_id(&self) -> Option<String> {
        self.info.get("run_id")
    }

    /// Ends the connection. Unanswered calls are [`Lost`].
    pub(super) fn end(&self, why: &str) {
        self.shared.end(&why);
    }

    /// Sends one command.
    pub(crate) fn ask(&self, command: Cmd) -> BoxFuture<'static, Result<Value, Lost>> {
        ask_node(self, command)
    }
}

/// Sends one command to a server, once.
pub(crate) fn ask_node(node: &dyn RedisNode, command: Cmd) -> BoxFuture<'static, Result<Value, Lost>> {
    let answers = node.call(alone(command));
    async move { Ok(answers.await?.pop().unwrap_or(Value::Nil)) }.boxed()
}

/// A pipeline of one command.
pub(crate) fn alone(command: Cmd) -> Pipeline {
    let mut commands = Pipeline::with_capacity(1);
    commands.add_command(command);
    commands
}

impl RedisNode for RedisConnection {
    fn address(&self) -> &str {
        &self.shared.address
    }

    fn call(&self, commands: Pipeline) -> BoxFuture<'static, Result<Vec<Value>, Lost>> {
        if commands.is_empty() {
            return ready(Ok(Vec::new())).boxed();
        }
        let (server, call) = match PendingCall::begin(&self.shared) {
            Ok(begun) => begun,
            Err(lost) => return ready(Err(lost)).boxed(),
        };
        let mut exchange = unconstrained(exchange(server, commands, call)).boxed();
        // The first poll puts it into the crate's queue, which has space for it: that fixes the
        // order.
        match exchange.poll_unpin(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answers) => ready(answers).boxed(),
            Poll::Pending => exchange,
        }
    }

    fn is_over(&self) -> bool {
        self.shared.over.is_cancelled()
    }
}

/// Sends commands and waits for their answers, or until the connection is over.
async fn exchange(
    mut server: MultiplexedConnection,
    commands: Pipeline,
    call: PendingCall,
) -> Result<Vec<Value>, Lost> {
    let shared = &*call.0;
    let answered = tokio::select! {
        biased;
        answered = send(&mut server, &commands) => answered,
        () = shared.over.cancelled() => return Err(shared.end(&"the connection is closed")),
    };
    let answers = answered.map_err(|e| shared.end(&e))?;
    shared.heard_us.fetch_max(shared.now_us(), Ordering::Relaxed);
    Ok(if shared.resp3 { answers.into_iter().map(in_resp2).collect() } else { answers })
}

async fn send(server: &mut MultiplexedConnection, commands: &Pipeline) -> RedisResult<Vec<Value>> {
    match only(commands) {
        // Of a command alone the crate tells why the connection broke; of a pipeline it does not.
        Some(command) => Ok(vec![server.send_packed_command(command).await?]),
        None => server.send_packed_commands(commands, 0, commands.len()).await,
    }
}

impl ConnectionState {
    fn new(address: &str, resp3: bool, server: MultiplexedConnection) -> Self {
        Self {
            address: address.to_owned(),
            resp3,
            opened: Instant::now(),
            unanswered: AtomicUsize::new(0),
            heard_us: AtomicU64::new(0),
            due_us: AtomicU64::new(0),
            server: Mutex::new(Ok(server)),
            over: CancellationToken::new(),
            unused: CancellationToken::new(),
        }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn heard(&self) -> Instant {
        self.opened + Duration::from_micros(self.heard_us.load(Ordering::Relaxed))
    }

    fn due(&self) -> Instant {
        self.opened + Duration::from_micros(self.due_us.load(Ordering::Relaxed))
    }

    fn server(&self) -> MutexGuard<'_, Result<MultiplexedConnection, Lost>> {
        self.server.lock()
    }

    /// The connection is over; returns why. The first reason stays.
    fn end(&self, why: &dyn Display) -> Lost {
        let mut server = self.server();
        if let Err(lost) = &*server {
            return lost.clone();
        }
        let lost = Lost(format!("{}: {why}", self.address));
        let _closed = std::mem::replace(&mut *server, Err(lost.clone()));
        drop(server);
        self.over.cancel();
        lost
    }
}

impl Drop for ConnectionState {
    fn drop(&mut self) {
        self.unused.cancel();
    }
}

/// A call that is not answered.
struct PendingCall(Arc<ConnectionState>);

impl PendingCall {
    fn begin(shared: &Arc<ConnectionState>) -> Result<(MultiplexedConnection, Self), Lost> {
        let server = shared.server().clone()?;
        if shared.unanswered.load(Ordering::Relaxed) == 0 {
            // Before the watchdog can see that an answer is due.
            shared.due_us.fetch_max(shared.now_us(), Ordering::Relaxed);
        }
        let before = shared.unanswered.fetch_add(1, Ordering::Release);
        let this = Self(shared.clone());
        if before >= UNANSWERED {
            return Err(shared.end(&format_args!("{UNANSWERED} calls wait for an answer")));
        }
        Ok((server, this))
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        self.0.unanswered.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Ends a connection whose server is silent for too long while an answer is due. Asks for an answer
/// if none has come for a while, also while others wait for one: they may give up before it is due.
async fn watch(shared: Weak<ConnectionState>, unused: CancellationToken, answer_within: Duration) {
    let quiet = answer_within.min(IDLE);
    let mut ping: Option<BoxFuture<'static, Result<Vec<Value>, Lost>>> = None;
    let mut next = Instant::now() + quiet;
    loop {
        let pinged = async {
            match &mut ping {
                Some(answer) => answer.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep_until(next) => {}
            () = unused.cancelled() => return,
            answered = pinged => match answered {
                Ok(_) => ping = None,
                Err(_) => return,
            },
        }
        let Some(shared) = shared.upgrade() else { return };
        let is_due = shared.unanswered.load(Ordering::Acquire) > 0;
        let (now, heard) = (Instant::now(), shared.heard());
        let silent_at = heard.max(shared.due()) + answer_within;
        if is_due && silent_at <= now {
            shared.end(&format_args!("no answer within {} ms", answer_within.as_millis()));
            return;
        }
        if ping.is_none() && heard + quiet <= now {
            let Ok((server, call)) = PendingCall::begin(&shared) else { return };
            ping = Some(exchange(server, alone(cmd("PING")), call).boxed());
        }
        // A ping that was begun just now is due `answer_within` from now at the earliest.
        next = match ping.is_some() {
            true if is_due => silent_at,
            true => now + answer_within,
            false => heard + quiet,
        };
    }
}

/// The command of a pipeline that has one.
fn only(commands: &Pipeline) -> Option<&Cmd> {
    commands.cmd_iter().next().filter(|_| commands.len() == 1)
}
