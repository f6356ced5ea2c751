//! One connection to one server, shared by all partitions of that server.
//!
//! A task per connection hands pipelines to the `redis` crate's multiplexed connection in the order
//! of the calls, at most [`UNDER_WAY`] at a time, and passes the answers on. Commands are sent once
//! or not at all. A connection that breaks, or is silent while an answer is due, is over for good,
//! and everything unanswered is [`Lost`].
//!
//! Not in here: what to do about an answer, which server to use.

use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Display};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{BoxFuture, ready};
use futures_util::{FutureExt, poll};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisResult, Value, cmd};
use tokio::sync::{Notify, oneshot};
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::TaskTracker;

use super::access::Access;
use super::node::{Lost, Node};
use super::reply::{Reply, in_resp2};
use super::script;

/// Pipelines sent and not yet answered. Others wait for their turn.
const UNDER_WAY: usize = 1_024;
/// Pipelines that wait for their turn. A partition has a few, so more are a sign that callers
/// abandon their calls while the server stands still.
const WAITING: usize = 16_384;
/// Bytes gathered for one write.
const WRITE_BYTES: usize = 128 << 10;
/// How long a connection attempt may take, TLS included.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// All that the crate says of a connection that was closed before the first command. A server that
/// refuses a certificate closes it when the TLS handshake is over for the client.
const BROKEN: &str = "broken pipe";

/// How a connection is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Use {
    /// A server that is silent for longer, while an answer is due, is lost.
    pub(crate) answer_within: Duration,
    /// Load the scripts when the connection is opened.
    pub(crate) scripts: bool,
}

/// A live connection, until it is not: see the module.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    /// What `INFO` said when the connection was opened.
    info: HashMap<String, String>,
}

struct Shared {
    address: String,
    queue: Mutex<Queue>,
    /// Something was put into the queue, or nothing will be any more.
    changed: Notify,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Request>,
    over: Option<Lost>,
    /// Nobody has the connection any more.
    abandoned: bool,
}

struct Request {
    commands: Pipeline,
    to: oneshot::Sender<Vec<Value>>,
}

impl fmt::Debug for Connection {
    /// Without the commands that wait: one of them may have a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = self.shared.queue().over.clone();
        f.debug_struct("Connection").field("address", &self.shared.address).field("over", &over).finish()
    }
}

impl Connection {
    /// Connects, logs in and, if asked to, loads the scripts.
    pub(crate) async fn open(
        address: &str,
        access: &Access,
        how: Use,
        tasks: &TaskTracker,
    ) -> Result<Self, Lost> {
        let lost = |e: &dyn Display| Lost(format!("{address}: {e}"));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            // Whatever is under way fits in, so handing a pipeline over never waits.
            .set_pipeline_buffer_size(UNDER_WAY)
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
        let shared =
            Arc::new(Shared { address: address.to_owned(), queue: Mutex::default(), changed: Notify::new() });
        let exchange = Exchange {
            shared: shared.clone(),
            server,
            resp3: access.resp3,
            answer_within: how.answer_within,
            unanswered: VecDeque::new(),
            heard: Instant::now(),
        };
        tasks.spawn(exchange.run());
        let mut this = Self { shared, info: HashMap::new() };
        match this.begin(access, how).await {
            Err(Lost(why)) if access.tls.is_some() && why.ends_with(BROKEN) => {
                Err(Lost(format!("{why} (does it ask for another client certificate?)")))
            }
            begun => begun.map(|()| this),
        }
    }

    /// What every connection begins with.
    async fn begin(&mut self, access: &Access, how: Use) -> Result<(), Lost> {
        for command in access.login() {
            self.must(command).await?;
        }
        // Servers before 7.0 take one section only; "everything" is one.
        let info = self.must(cmd("INFO").arg("everything").to_owned()).await?;
        self.info = parse_info(info.text().unwrap_or_default());
        if how.scripts {
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
    pub(crate) const fn info(&self) -> &HashMap<String, String> {
        &self.info
    }

    /// Sends one command.
    pub(crate) fn ask(&self, command: Cmd) -> BoxFuture<'static, Result<Value, Lost>> {
        ask(self, command)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.shared.queue().over.is_some()
    }
}

/// Sends one command.
pub(crate) fn ask(node: &dyn Node, command: Cmd) -> BoxFuture<'static, Result<Value, Lost>> {
    let mut commands = Pipeline::with_capacity(1);
    commands.add_command(command);
    let answers = node.call(commands);
    async move { Ok(answers.await?.pop().unwrap_or(Value::Nil)) }.boxed()
}

impl Node for Connection {
    fn address(&self) -> &str {
        &self.shared.address
    }

    fn call(&self, commands: Pipeline) -> BoxFuture<'static, Result<Vec<Value>, Lost>> {
        if commands.is_empty() {
            return ready(Ok(Vec::new())).boxed();
        }
        let (to, answers) = oneshot::channel();
        if let Err(lost) = self.shared.put(Request { commands, to }) {
            return ready(Err(lost)).boxed();
        }
        let shared = self.shared.clone();
        async move { answers.await.map_err(|_| shared.why_over()) }.boxed()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.queue().abandoned = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, request: Request) -> Result<(), Lost> {
        let mut queue = self.queue();
        if let Some(lost) = &queue.over {
            return Err(lost.clone());
        }
        if queue.waiting.len() >= WAITING {
            drop(queue);
            self.end(&format!("{WAITING} calls wait for an answer"));
            return Err(self.why_over());
        }
        queue.waiting.push_back(request);
        drop(queue);
        self.changed.notify_one();
        Ok(())
    }

    /// The connection is over. The first reason stays.
    fn end(&self, why: &dyn Display) {
        let mut queue = self.queue();
        queue.over.get_or_insert_with(|| Lost(format!("{}: {why}", self.address)));
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        // Those who wait look for the reason when their sender is gone.
        drop(waiting);
        self.changed.notify_one();
    }

    fn why_over(&self) -> Lost {
        self.queue()
            .over
            .clone()
            .unwrap_or_else(|| Lost(format!("{}: the connection is closed", self.address)))
    }
}

type Answers = BoxFuture<'static, RedisResult<Vec<Value>>>;

/// The task of a connection. However it ends, the connection is over.
struct Exchange {
    shared: Arc<Shared>,
    server: MultiplexedConnection,
    resp3: bool,
    answer_within: Duration,
    /// What was sent, in order.
    unanswered: VecDeque<(Answers, oneshot::Sender<Vec<Value>>)>,
    /// When the last answer came, or when one became due.
    heard: Instant,
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.shared.end(&"the connection is closed");
    }
}

impl Exchange {
    async fn run(mut self) {
        let why = self.exchange().await;
        self.shared.end(&why);
    }

    /// Sends and receives until the connection is over; why.
    async fn exchange(&mut self) -> String {
        let silence = sleep_until(self.heard + self.answer_within);
        let mut silence = std::pin::pin!(silence);
        loop {
            if let Err(why) = self.send().await {
                return why;
            }
            tokio::select! {
                biased;
                answered = front(&mut self.unanswered) => {
                    if let Err(why) = self.pass_on(answered) {
                        return why;
                    }
                }
                () = silence.as_mut(), if !self.unanswered.is_empty() => {
                    if self.heard.elapsed() >= self.answer_within {
                        return format!("no answer within {} ms", self.answer_within.as_millis());
                    }
                    silence.as_mut().reset(self.heard + self.answer_within);
                }
                () = self.shared.changed.notified() => {}
            }
        }
    }

    /// Sends what waits, as much as may be under way; an error if the connection is over.
    async fn send(&mut self) -> Result<(), String> {
        loop {
            let request = {
                let mut queue = self.shared.queue();
                if let Some(lost) = &queue.over {
                    return Err(lost.0.clone());
                }
                if self.unanswered.len() >= UNDER_WAY {
                    return Ok(());
                }
                match queue.waiting.pop_front() {
                    Some(request) => request,
                    None if queue.abandoned && self.unanswered.is_empty() => {
                        return Err("the connection is not used any more".into());
                    }
                    None => return Ok(()),
                }
            };
            if self.unanswered.is_empty() {
                self.heard = Instant::now();
            }
            let (mut server, Request { commands, to }) = (self.server.clone(), request);
            let mut answers: Answers = async move {
                match only(&commands) {
                    // Of a command alone the crate tells why the connection broke; of a pipeline it
                    // does not.
                    Some(command) => Ok(vec![server.send_packed_command(command).await?]),
                    None => server.send_packed_commands(&commands, 0, commands.len()).await,
                }
            }
            .boxed();
            // The first poll puts it into the crate's queue, which has room for it: that fixes the
            // order.
            if let Poll::Ready(answered) = poll!(unconstrained(&mut answers)) {
                answers = ready(answered).boxed();
            }
            self.unanswered.push_back((answers, to));
        }
    }

    /// Passes the answers to the oldest pipeline on; an error if the connection is over.
    fn pass_on(&mut self, answered: RedisResult<Vec<Value>>) -> Result<(), String> {
        let answers = answered.map_err(|e| e.to_string())?;
        self.heard = Instant::now();
        let answers = if self.resp3 { answers.into_iter().map(in_resp2).collect() } else { answers };
        if let Some((_, to)) = self.unanswered.pop_front() {
            // The caller may have dropped its future.
            let _ = to.send(answers);
        }
        Ok(())
    }
}

/// The command of a pipeline that has one.
fn only(commands: &Pipeline) -> Option<&Cmd> {
    commands.cmd_iter().next().filter(|_| commands.len() == 1)
}

/// The answers to the oldest pipeline; pending if there is none.
async fn front(unanswered: &mut VecDeque<(Answers, oneshot::Sender<Vec<Value>>)>) -> RedisResult<Vec<Value>> {
    match unanswered.front_mut() {
        Some((answers, _)) => answers.await,
        None => std::future::pending().await,
    }
}

/// The lines of INFO.
pub(crate) fn parse_info(text: &str) -> HashMap<String, String> {
    let pairs = text.lines().filter_map(|l| l.split_once(':'));
    pairs.map(|(k, v)| (k.to_owned(), v.trim_end().to_owned())).collect()
}
