//! One connection to one Redis node, shared by all lanes of that node, and the pool of them.
//!
//! Purpose: requests go out in the order in which they were handed in, many to a write; answers come back one to a
//! request. A connection that breaks, or is silent for too long, is over for good: everything unanswered gets
//! [`Lost`], and nothing is ever sent twice.
//!
//! With a replication demand, WAIT follows each group of writes on the same connection, and the group's answers are held
//! back until it has spoken.
//!
//! Not in here: what to do about an answer, routes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::eviction::{Evicting, parse_info};
use crate::resp::{Args, Decoder, Reply};
use crate::script::Script;

/// Requests handed in and not yet written; whoever hands in more waits.
const QUEUE: usize = 1_024;
/// Requests written and not yet answered.
const UNANSWERED: usize = 4_096;
/// Requests that go into one write.
const GROUP: usize = 128;
/// How long a connection attempt may take.
const CONNECT: Duration = Duration::from_secs(2);
/// How long after the end of its connection a request waits to be told why it was lost.
const STRANDED: Duration = Duration::from_millis(100);
/// A node that just refused is not asked again for so long.
const REFUSED_FOR: Duration = Duration::from_millis(30);

/// The connection is over; whether the request was carried out is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Lost(pub(crate) String);

/// An answer.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) reply: Reply,
    /// Enough replicas have it (true if none are asked for).
    pub(crate) confirmed: bool,
}

/// The answer to a request, to come.
#[derive(Debug)]
pub(crate) struct Waiting {
    answer: oneshot::Receiver<Result<Answered, Lost>>,
    over: CancellationToken,
    /// It was seen that the connection is over: how long an answer may still come.
    until: Option<Instant>,
    address: Arc<str>,
}

impl Waiting {
    /// Waits for it. Cancel safe; to be waited for once.
    pub(crate) async fn answer(&mut self) -> Result<Answered, Lost> {
        let answered = tokio::select! {
            biased;
            answered = &mut self.answer => answered.ok(),
            // A request that was handed in while the connection ended may be left lying in its queue for as long as anybody has
            // a handle of it: a sender that has its permit puts it there, and the receiver, which is gone, does not look any more.
            () = self.over.cancelled() => {
                let until = *self.until.get_or_insert_with(|| Instant::now() + STRANDED);
                timeout_at(until, &mut self.answer).await.ok().and_then(Result::ok)
            }
        };
        answered.unwrap_or_else(|| Err(Lost(format!("{}: the connection is closed", self.address))))
    }
}

struct Request {
    bytes: Vec<u8>,
    asking: bool,
    write: bool,
    to: oneshot::Sender<Result<Answered, Lost>>,
}

/// How many replicas must have a write, and how long to wait for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Replication {
    pub(crate) replicas: u32,
    pub(crate) timeout: Duration,
}

/// Who we are to a server, and how patient.
#[derive(Clone, Debug, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) db: i64,
    pub(crate) answer_within: Duration,
}

/// A live connection. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Conn {
    requests: mpsc::Sender<Request>,
    over: CancellationToken,
    /// `host:port`.
    pub(crate) address: Arc<str>,
    /// The server's, as it said at connection.
    pub(crate) run_id: Arc<str>,
    /// All of INFO's `server`, `memory`, `replication` and `cluster` sections, as it was at connection.
    pub(crate) info: Arc<HashMap<String, String>>,
}

impl Conn {
    /// Connects, logs in and loads the scripts.
    pub(crate) async fn open(
        address: &str,
        login: &Login,
        replication: Option<Replication>,
        tasks: &TaskTracker,
    ) -> Result<Self, Lost> {
        let lost = |e: &dyn std::fmt::Display| Lost(format!("{address}: {e}"));
        let stream = timeout(CONNECT, TcpStream::connect(address))
            .await
            .map_err(|_| lost(&"no connection within 2 s"))?
            .map_err(|e| lost(&e))?;
        stream.set_nodelay(true).map_err(|e| lost(&e))?;
        let (read, write) = stream.into_split();
        let (requests, handed_in) = mpsc::channel(QUEUE);
        let (written, unanswered) = mpsc::channel(UNANSWERED);
        let over = CancellationToken::new();
        let patience = login.answer_within + replication.map_or(Duration::ZERO, |r| r.timeout);
        let writer = Writer { write, handed_in, written, replication };
        let reader = Reader {
            read,
            buf: BytesMut::with_capacity(64 << 10),
            decoder: Decoder::default(),
            unanswered,
            held: Vec::new(),
            hold: replication.is_some(),
            address: address.into(),
            patience,
        };
        let (stop, stopped) = (over.clone(), over.clone());
        tasks.spawn(async move {
            // Dropping the writer closes the socket's other half as well; both end together.
            let _end = stop.clone().drop_guard();
            stop.run_until_cancelled(writer.run()).await;
        });
        tasks.spawn(async move {
            let _end = stopped.clone().drop_guard();
            reader.run(&stopped).await;
        });
        let mut conn =
            Self { requests, over, address: address.into(), run_id: "".into(), info: Arc::default() };
        conn.log_in(login).await?;
        Ok(conn)
    }

    async fn log_in(&mut self, login: &Login) -> Result<(), Lost> {
        if let Some(password) = &login.password {
            let mut auth = Args::of(["AUTH"]);
            if let Some(user) = &login.user {
                auth.push(user);
            }
            self.must(auth.push(password)).await?;
        }
        if login.db != 0 {
            self.must(&Args::of(["SELECT", &login.db.to_string()])).await?;
        }
        // 7.0 takes several sections at once, older servers give everything with "everything".
        let info = self.must(&Args::of(["INFO", "everything"])).await?;
        let info = parse_info(info.text().unwrap_or_default());
        self.run_id = info.get("run_id").map_or("", String::as_str).into();
        self.info = Arc::new(info);
        Ok(())
    }

    /// Loads all scripts. Idempotent.
    pub(crate) async fn load_scripts(&self) -> Result<(), Lost> {
        let mut waiting = Vec::new();
        for script in Script::ALL {
            let load = Args::of(["SCRIPT", "LOAD", &script.text()]);
            waiting.push(self.send(load.command(), false, false).await);
        }
        for mut answer in waiting {
            answer.answer().await?;
        }
        Ok(())
    }

    async fn must(&self, args: &Args) -> Result<Reply, Lost> {
        match self.ask(args).await? {
            Reply::Error(e) => Err(Lost(format!("{}: {e}", self.address))),
            reply => Ok(reply),
        }
    }

    /// Sends a command that changes nothing that has to be replicated, and waits for its reply.
    pub(crate) async fn ask(&self, args: &Args) -> Result<Reply, Lost> {
        let mut waiting = self.send(args.command(), false, false).await;
        Ok(waiting.answer().await?.reply)
    }

    /// Hands in a command. It takes its place behind all that were handed in before.
    pub(crate) async fn send(&self, bytes: Vec<u8>, asking: bool, write: bool) -> Waiting {
        let (to, answer) = oneshot::channel();
        // A connection that is over drops the request, or leaves it lying: see `Waiting::answer`.
        let _ = self.requests.send(Request { bytes, asking, write, to }).await;
        Waiting { answer, over: self.over.clone(), until: None, address: self.address.clone() }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }
}

/// What was written and is to be answered.
enum Unanswered {
    Asking,
    Request(oneshot::Sender<Result<Answered, Lost>>),
    /// Ends a group; how many replicas there must be.
    Wait(u32),
}

struct Writer {
    write: OwnedWriteHalf,
    handed_in: mpsc::Receiver<Request>,
    written: mpsc::Sender<Unanswered>,
    replication: Option<Replication>,
}

impl Writer {
    async fn run(mut self) {
        let mut group = Vec::with_capacity(GROUP);
        let mut bytes = Vec::new();
        while self.handed_in.recv_many(&mut group, GROUP).await > 0 {
            bytes.clear();
            // The first request wakes this task up before lanes that are ready as well have handed in theirs.
            tokio::task::yield_now().await;
            while group.len() < GROUP
                && let Ok(more) = self.handed_in.try_recv()
            {
                group.push(more);
            }
            let write = group.iter().any(|r| r.write);
            for request in group.drain(..) {
                if request.asking {
                    bytes.extend_from_slice(b"*1\r\n$6\r\nASKING\r\n");
                    if self.written.send(Unanswered::Asking).await.is_err() {
                        return;
                    }
                }
                bytes.extend_from_slice(&request.bytes);
                if self.written.send(Unanswered::Request(request.to)).await.is_err() {
                    return;
                }
            }
            if let Some(demand) = self.replication {
                let (replicas, ms) = (if write { demand.replicas } else { 0 }, demand.timeout.as_millis());
                bytes.extend(Args::of(["WAIT", &replicas.to_string(), &ms.to_string()]).command());
                if self.written.send(Unanswered::Wait(replicas)).await.is_err() {
                    return;
                }
            }
            if self.write.write_all(&bytes).await.is_err() {
                return;
            }
            bytes.shrink_to(1 << 20);
        }
    }
}

struct Reader {
    read: OwnedReadHalf,
    buf: BytesMut,
    decoder: Decoder,
    unanswered: mpsc::Receiver<Unanswered>,
    /// Answers that wait for the WAIT of their group.
    held: Vec<(oneshot::Sender<Result<Answered, Lost>>, Reply)>,
    hold: bool,
    address: Arc<str>,
    patience: Duration,
}

impl Reader {
    async fn run(mut self, over: &CancellationToken) {
        let why = over.run_until_cancelled(self.read_all()).await;
        over.cancel();
        let lost =
            Lost(format!("{}: {}", self.address, why.unwrap_or_else(|| "the connection was closed".into())));
        self.held.drain(..).for_each(|(to, _)| drop(to.send(Err(lost.clone()))));
        self.unanswered.close();
        while let Some(rest) = self.unanswered.recv().await {
            if let Unanswered::Request(to) = rest {
                // Whoever asked may have gone.
                let _ = to.send(Err(lost.clone()));
            }
        }
    }

    /// Reads replies until there is nothing more to read; why.
    async fn read_all(&mut self) -> String {
        while let Some(next) = self.unanswered.recv().await {
            let reply = match self.reply().await {
                Ok(reply) => reply,
                Err(why) => {
                    if let Unanswered::Request(to) = next {
                        let _ = to.send(Err(Lost(format!("{}: {why}", self.address))));
                    }
                    return why;
                }
            };
            match next {
                Unanswered::Asking => {}
                Unanswered::Request(to) if self.hold => self.held.push((to, reply)),
                Unanswered::Request(to) => drop(to.send(Ok(Answered { reply, confirmed: true }))),
                Unanswered::Wait(replicas) => {
                    let confirmed = reply.number().is_some_and(|n| n >= u64::from(replicas));
                    self.held
                        .drain(..)
                        .for_each(|(to, reply)| drop(to.send(Ok(Answered { reply, confirmed }))));
                }
            }
        }
        "the connection is not used any more".into()
    }

    async fn reply(&mut self) -> Result<Reply, String> {
        loop {
            if let Some(reply) = self.decoder.decode(&mut self.buf).map_err(|e| e.to_string())? {
                return Ok(reply);
            }
            match timeout(self.patience, self.read.read_buf(&mut self.buf)).await {
                Err(_) => return Err(format!("no answer within {} ms", self.patience.as_millis())),
                Ok(Err(e)) => return Err(e.to_string()),
                Ok(Ok(0)) => return Err("the server closed the connection".into()),
                Ok(Ok(_)) => {}
            }
        }
    }
}

#[derive(Default)]
struct Node {
    conn: Option<Conn>,
    refused: Option<(Instant, Lost)>,
}

/// The connections of a store, one to a node.
#[derive(Debug)]
pub(crate) struct Pool {
    login: Login,
    replication: Option<Replication>,
    /// Load the scripts when a connection is opened, not only when one is missed.
    scripts: bool,
    tasks: TaskTracker,
    nodes: std::sync::Mutex<HashMap<String, Arc<Mutex<Node>>>>,
    pub(crate) evicting: Evicting,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("connected", &self.conn.is_some()).finish()
    }
}

impl Pool {
    pub(crate) fn new(login: Login, replication: Option<Replication>, tasks: TaskTracker) -> Self {
        let (nodes, evicting) = Default::default();
        Self { login, replication, scripts: true, tasks, nodes, evicting }
    }

    /// For requests that are few and urgent: nothing waits for replicas, and a connection is opened without loading
    /// scripts.
    pub(crate) fn bare(login: &Login, answer_within: Duration, tasks: TaskTracker) -> Self {
        let login = Login { answer_within, ..login.clone() };
        Self { scripts: false, ..Self::new(login, None, tasks) }
    }

    /// The live connection to a node, made if there is none.
    pub(crate) async fn get(&self, address: &str) -> Result<Conn, Lost> {
        let node = {
            let mut nodes = self.nodes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            nodes.entry(address.to_owned()).or_default().clone()
        };
        // Held while connecting: one attempt serves all who wait.
        let mut node = node.lock().await;
        if let Some(conn) = node.conn.as_ref().filter(|c| !c.is_over()) {
            return Ok(conn.clone());
        }
        if let Some((at, lost)) = &node.refused
            && at.elapsed() < REFUSED_FOR
        {
            return Err(lost.clone());
        }
        let opened = self.open(address).await;
        (node.conn, node.refused) = match &opened {
            Ok(conn) => (Some(conn.clone()), None),
            Err(lost) => (None, Some((Instant::now(), lost.clone()))),
        };
        opened
    }

    async fn open(&self, address: &str) -> Result<Conn, Lost> {
        let conn = Conn::open(address, &self.login, self.replication, &self.tasks).await?;
        if self.scripts {
            conn.load_scripts().await?;
            self.evicting.note_connection(&conn);
        }
        Ok(conn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever waits is interrupted all the time.
    #[tokio::test(start_paused = true)]
    async fn a_stranded_request_is_lost_however_often_its_answer_was_asked_for() {
        let (requests, _handed_in) = mpsc::channel(1);
        let over = CancellationToken::new();
        let (run_id, info) = Default::default();
        let conn = Conn { requests, over: over.clone(), address: "here:1".into(), run_id, info };
        let mut waiting = conn.send(Vec::new(), false, false).await;
        over.cancel();
        let (mut asked, start) = (0, Instant::now());
        let lost = loop {
            asked += 1;
            match timeout(STRANDED / 4, waiting.answer()).await {
                Ok(answered) => break answered.unwrap_err(),
                Err(_) => assert!(asked < 10),
            }
        };
        assert_eq!(lost, Lost("here:1: the connection is closed".into()));
        assert!((3..6).contains(&asked) && start.elapsed() <= STRANDED * 2, "{asked}");
    }

    /// Its queue takes a request in and nobody looks there any more, as when the receiver's end is dropped between a sender's permit
    /// and what it sends.
    #[tokio::test]
    async fn a_request_that_is_stranded_when_its_connection_ends_is_lost_and_not_waited_for() {
        let (requests, mut handed_in) = mpsc::channel(1);
        let over = CancellationToken::new();
        let (run_id, info) = Default::default();
        let conn = Conn { requests, over: over.clone(), address: "here:1".into(), run_id, info };
        let mut waiting = conn.send(Vec::new(), false, false).await;
        over.cancel();
        assert_eq!(waiting.answer().await.unwrap_err(), Lost("here:1: the connection is closed".into()));
        // Who is told why is told that.
        let stranded = handed_in.recv().await.unwrap();
        let mut waiting = conn.send(Vec::new(), false, false).await;
        let request = handed_in.recv().await.unwrap();
        drop(stranded);
        let (told, ()) = tokio::join!(waiting.answer(), async {
            tokio::task::yield_now().await;
            request.to.send(Err(Lost("why".into()))).unwrap();
        });
        assert_eq!(told.unwrap_err(), Lost("why".into()));
    }
}
