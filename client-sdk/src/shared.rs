//! What the client's handles and tasks share.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mtimer_protocol::{OpReply, Query, QueryAnswer, RequestOp, Settlement, Welcome};
use mtimer_types::{Destination, Epoch, Key, PartitionId, TimerId};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::answer::{Info, Stats};
use crate::clock::Clock;
use crate::outbox::{Outbox, Stage};
use crate::queries::Asked;
use crate::requests::{Call, Waiter, op_bytes};
use crate::sync::Locked;
use crate::{ClientBuilder, CloseError, RequestError};

/// Schedules in a row that go to the same partition: enough for a broker to store them together, few enough for one
/// script.
const PARTITION_RUN: u64 = 128;
/// Bytes of an operation that count as one.
const ROOM_BYTES: usize = 4 * 1024;
/// Operations that [`Shared::request_all`] hands over at once.
const CHUNK: usize = 500;
/// How often deadlines are looked at while something waits.
const TICK: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: ClientBuilder,
    pub(crate) clock: Clock,
    pub(crate) partitions: u16,
    pub(crate) info: Mutex<Arc<Info>>,
    pub(crate) outbox: Mutex<Outbox>,
    /// There is something to send.
    pub(crate) to_send: Notify,
    /// Something was settled or answered; for closing.
    pub(crate) progress: Notify,
    pub(crate) connected: watch::Sender<bool>,
    pub(crate) counters: Counters,
    /// As in the outbox, to be read without its lock.
    pub(crate) session: AtomicU64,
    pub(crate) token: CancellationToken,
    pub(crate) tasks: TaskTracker,
    pub(crate) runtime: Handle,
    room: Arc<Semaphore>,
    capacity: u32,
    busy: Notify,
    closing: tokio::sync::Mutex<()>,
    partition: AtomicU64,
}

/// See [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) connections: AtomicU64,
    pub(crate) repeated: AtomicU64,
    pub(crate) retried: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) stale: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) deduplicated: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) settled: AtomicU64,
    pub(crate) settle_refused: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    if n > 0 {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

impl Counters {
    pub(crate) fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            connections: read(&self.connections),
            repeated: read(&self.repeated),
            retried: read(&self.retried),
            received: read(&self.received),
            stale: read(&self.stale),
            dropped: read(&self.dropped),
            deduplicated: read(&self.deduplicated),
            panics: read(&self.panics),
            settled: read(&self.settled),
            settle_refused: read(&self.settle_refused),
        }
    }
}

impl Shared {
    pub(crate) fn new(settings: ClientBuilder, clock: Clock, broker: &str, welcome: &Welcome) -> Self {
        let capacity = settings.max_in_flight.clamp(1, crate::limits::MAX_SESSION_INFLIGHT as u32);
        Self {
            settings,
            clock,
            partitions: welcome.partitions,
            info: Mutex::new(Arc::new(info(broker, welcome))),
            outbox: Mutex::new(Outbox::new()),
            to_send: Notify::new(),
            progress: Notify::new(),
            connected: watch::Sender::new(false),
            counters: Counters::default(),
            session: AtomicU64::new(0),
            token: CancellationToken::new(),
            tasks: TaskTracker::new(),
            runtime: Handle::current(),
            room: Arc::new(Semaphore::new(capacity as usize)),
            capacity,
            busy: Notify::new(),
            closing: tokio::sync::Mutex::new(()),
            partition: AtomicU64::new(u64::from(rand::random::<u16>()) * PARTITION_RUN),
        }
    }

    /// Where a new timer goes: by its key, or where the ones before it went.
    pub(crate) fn partition(&self, dest: &Destination, key: Option<&Key>) -> PartitionId {
        if let Some(key) = key {
            return PartitionId::of_key(dest, key, self.partitions);
        }
        let run = self.partition.fetch_add(1, Ordering::Relaxed) / PARTITION_RUN;
        PartitionId((run % u64::from(self.partitions)) as u16)
    }

    /// A connection is there.
    pub(crate) fn connected(&self, broker: &str, welcome: &Welcome) {
        *self.info.locked() = Arc::new(info(broker, welcome));
        let mut outbox = self.outbox.locked();
        outbox.connected(welcome.max_frame, welcome.max_batch);
        self.session.store(outbox.session, Ordering::Relaxed);
        drop(outbox);
        count(&self.counters.connections, 1);
        self.connected.send_replace(true);
    }

    /// The connection is gone.
    pub(crate) fn disconnected(&self, fault: String) {
        self.session.store(0, Ordering::Relaxed);
        let (pointless, dropped) = self.outbox.locked().disconnected(fault);
        count(&self.counters.settle_refused, pointless);
        count(&self.counters.dropped, dropped);
        self.connected.send_replace(false);
        self.progress.notify_waiters();
    }

    /// A new reason why there is no connection.
    pub(crate) fn outbox_fault(&self, fault: String) {
        self.outbox.locked().fault = fault;
    }

    /// Callbacks of connection `session` were left out; the broker is going to deliver them again.
    pub(crate) fn drop_unstarted(&self, session: u64, n: u64) {
        count(&self.counters.dropped, n);
        let mut outbox = self.outbox.locked();
        if outbox.session == session {
            outbox.unsettled = outbox.unsettled.saturating_sub(n);
        }
    }

    /// Sends one operation and waits for its answer.
    pub(crate) async fn request(&self, op: RequestOp) -> Result<OpReply, RequestError> {
        let room = self.take_room(weight(&op)).await?;
        let (reply, answer) = oneshot::channel();
        let waiter = Waiter::new(reply, room, Instant::now(), self.settings.request_timeout);
        self.hand_over(|outbox| outbox.requests.push(Call { op, waiter }))?;
        answer.await.unwrap_or(Err(RequestError::Closed))
    }

    /// Sends many operations and waits for their answers, which come in the same order.
    pub(crate) async fn request_all(
        &self,
        ops: impl Iterator<Item = RequestOp>,
    ) -> Vec<Result<OpReply, RequestError>> {
        let mut ops = ops.peekable();
        let mut answers = Vec::with_capacity(ops.size_hint().0);
        let mut pending = VecDeque::new();
        while ops.peek().is_some() {
            let (mut chunk, mut total) = (Vec::new(), 0);
            while let Some(op) = ops.next_if(|op| {
                let more = total + weight(op).min(self.capacity);
                chunk.is_empty() || (chunk.len() < CHUNK && more <= self.capacity)
            }) {
                let weight = weight(&op).min(self.capacity);
                total += weight;
                chunk.push((op, weight));
            }
            let waiting = chunk.len();
            match self.take_room(total).await.and_then(|room| self.hand_over_all(chunk, room)) {
                Ok(receivers) => pending.extend(receivers),
                Err(error) => {
                    // What was handed over before is answered before it.
                    collect(&mut pending, &mut answers, 0).await;
                    answers.extend(std::iter::repeat_n(Err(error), waiting));
                }
            }
            collect(&mut pending, &mut answers, self.capacity as usize).await;
        }
        collect(&mut pending, &mut answers, 0).await;
        answers
    }

    fn hand_over_all(
        &self,
        chunk: Vec<(RequestOp, u32)>,
        mut room: OwnedSemaphorePermit,
    ) -> Result<Vec<Answer>, RequestError> {
        let mut receivers = Vec::with_capacity(chunk.len());
        let (now, timeout) = (Instant::now(), self.settings.request_timeout);
        let mut calls = Vec::with_capacity(chunk.len());
        for (op, weight) in chunk {
            // The room was taken for the sum of the weights.
            let Some(room) = room.split(weight as usize) else { return Err(RequestError::Closed) };
            let (reply, answer) = oneshot::channel();
            receivers.push(answer);
            calls.push(Call { op, waiter: Waiter::new(reply, room, now, timeout) });
        }
        self.hand_over(|outbox| calls.into_iter().for_each(|call| outbox.requests.push(call)))?;
        Ok(receivers)
    }

    /// Asks a question and waits for its answer.
    pub(crate) async fn query(&self, query: Query) -> Result<QueryAnswer, RequestError> {
        let room = self.take_room(1).await?;
        let (reply, answer) = oneshot::channel();
        let (at, timeout) = (Instant::now(), self.settings.request_timeout);
        let asked = Asked { query, reply, _room: room, at, timeout, tries: 0, last: None };
        self.hand_over(|outbox| outbox.queries.push(asked))?;
        answer.await.unwrap_or(Err(RequestError::Closed))
    }

    async fn take_room(&self, weight: u32) -> Result<OwnedSemaphorePermit, RequestError> {
        let room = Arc::clone(&self.room).acquire_many_owned(weight.min(self.capacity)).await;
        room.map_err(|_| RequestError::Closed)
    }

    fn hand_over(&self, push: impl FnOnce(&mut Outbox)) -> Result<(), RequestError> {
        let mut outbox = self.outbox.locked();
        if outbox.stage == Stage::Closed {
            return Err(RequestError::Closed);
        }
        push(&mut outbox);
        let wake = !std::mem::replace(&mut outbox.ticking, true);
        drop(outbox);
        self.to_send.notify_one();
        if wake {
            self.busy.notify_one();
        }
        Ok(())
    }

    /// Queues outcomes of deliveries that came over connection `session`.
    pub(crate) fn settle(&self, session: u64, outcomes: &mut Vec<Settlement>) {
        if outcomes.is_empty() {
            return;
        }
        let pointless = self.outbox.locked().settle(session, outcomes);
        count(&self.counters.settle_refused, pointless);
        self.to_send.notify_one();
    }

    pub(crate) fn extend(&self, id: TimerId, epoch: Epoch, attempt: u32, by_ms: u32) {
        self.outbox.locked().extend(id, epoch, attempt, by_ms);
        self.to_send.notify_one();
    }

    /// Gives up what has waited too long, and queues what has waited long enough.
    pub(crate) async fn keep_time(self: Arc<Self>) {
        loop {
            self.busy.notified().await;
            loop {
                tokio::time::sleep(TICK).await;
                let (to_send, again) = self.outbox.locked().sweep(Instant::now());
                if to_send {
                    self.to_send.notify_one();
                }
                self.progress.notify_waiters();
                if !again {
                    break;
                }
            }
        }
    }

    /// See [`crate::Client::close`].
    pub(crate) async fn close(&self) -> Result<(), CloseError> {
        let _one_at_a_time = self.closing.lock().await;
        let barrier = self.outbox.locked().drain();
        self.to_send.notify_one();
        // An error: the connection is gone, and nothing comes over it.
        let _ = barrier.await;
        let inboxes = self.outbox.locked().end_registrations();
        for inbox in inboxes {
            inbox.done.cancelled().await;
        }
        let timeout = self.settings.request_timeout;
        let flushed = tokio::time::timeout(timeout, self.flushed()).await;
        let settlements = self.outbox.locked().settling.unconfirmed();
        self.shut().await;
        match flushed {
            Err(_) if settlements > 0 => {
                Err(CloseError::Unsettled { settlements, ms: timeout.as_millis() as u64 })
            }
            _ => Ok(()),
        }
    }

    async fn flushed(&self) {
        loop {
            let progress = self.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            if self.outbox.locked().is_idle() {
                return;
            }
            progress.await;
        }
    }

    /// Stops everything at once, and waits until it has stopped.
    async fn shut(&self) {
        self.stop();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Stops everything at once.
    pub(crate) fn stop(&self) {
        self.token.cancel();
        self.room.close();
        self.outbox.locked().close();
        self.connected.send_replace(false);
    }
}

type Answer = oneshot::Receiver<Result<OpReply, RequestError>>;

/// Waits for the oldest answers, until no more than `rest` are left to wait for.
async fn collect(
    pending: &mut VecDeque<Answer>,
    answers: &mut Vec<Result<OpReply, RequestError>>,
    rest: usize,
) {
    while pending.len() > rest {
        let Some(answer) = pending.pop_front() else { break };
        answers.push(answer.await.unwrap_or(Err(RequestError::Closed)));
    }
}

/// How much room an operation takes.
fn weight(op: &RequestOp) -> u32 {
    1 + (op_bytes(op) / ROOM_BYTES) as u32
}

fn info(broker: &str, w: &Welcome) -> Info {
    Info {
        broker: broker.to_owned(),
        session: w.session,
        cluster: w.cluster.clone(),
        software: w.software.clone(),
        store: w.store.clone(),
        durability: w.durability.clone(),
        partitions: w.partitions,
        version: w.version,
        heartbeat_ms: w.heartbeat_ms,
        max_frame: w.max_frame,
        max_batch: w.max_batch,
    }
}
