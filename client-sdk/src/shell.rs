//! The machine behind its lock, and the effects of its events in a runtime.
//!
//! Invariant: after any input, all events of the machine are taken out before the lock is released.
//! Work that may take a while is done after that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mtimer_protocol::{OpReply, QueryAnswer};
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};
use tokio_util::sync::CancellationToken;

use crate::RequestError;
use crate::batch::Part;
use crate::clock::SuspensionLog;
use crate::intake::Intake;
use crate::machine::caller::{Caller, Waiting};
use crate::machine::dial::Place;
use crate::machine::moment::Moment;
use crate::machine::random::Random;
use crate::machine::{Event, Machine};
use crate::sync::Locked;

/// The types of the client's machine.
#[derive(Debug)]
pub(crate) struct Runtime;

impl Caller for Runtime {
    type Call = ReplyTarget;
    type Question = AnswerTarget;
    type Callbacks = Arc<Intake>;
    type Random = ThreadRandom;
}

/// Where the answer to an operation goes. With it the operation's permits are released.
#[derive(Debug)]
pub(crate) enum ReplyTarget {
    /// To a call for this operation alone.
    Alone(oneshot::Sender<Result<OpReply, RequestError>>, OwnedSemaphorePermit),
    /// To one for many.
    Together(Part),
}

impl Waiting for ReplyTarget {
    fn is_abandoned(&self) -> bool {
        match self {
            Self::Alone(reply, _) => reply.is_closed(),
            Self::Together(part) => part.is_abandoned(),
        }
    }
}

impl ReplyTarget {
    pub(crate) fn answer(self, answer: Result<OpReply, RequestError>) {
        match self {
            // The caller may have stopped waiting.
            Self::Alone(reply, _permits) => _ = reply.send(answer),
            Self::Together(part) => part.answer(answer),
        }
    }
}

/// Where the answer to a question goes. With it its permit is released.
#[derive(Debug)]
pub(crate) struct AnswerTarget {
    pub(crate) reply: oneshot::Sender<Result<QueryAnswer, RequestError>>,
    pub(crate) _permit: OwnedSemaphorePermit,
}

impl Waiting for AnswerTarget {
    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }
}

/// The random numbers of each thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadRandom;

impl Random for ThreadRandom {
    fn client(&mut self) -> u128 {
        rand::random()
    }

    fn jitter(&mut self) -> u64 {
        rand::random()
    }
}

/// One connection, for its tasks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Link {
    /// The machine has given it up.
    pub(crate) closed: CancellationToken,
    /// There is something to send.
    pub(crate) to_send: Arc<Notify>,
    heartbeat_ms: Arc<AtomicU64>,
}

impl Link {
    /// The broker's heartbeats come after so many ms.
    pub(crate) fn set_heartbeat(&self, ms: u64) {
        self.heartbeat_ms.store(ms, Ordering::Relaxed);
    }

    /// Heartbeats after so many ms, `default` until the broker has named another.
    pub(crate) fn heartbeat(&self, default: u64) -> Duration {
        let ms = self.heartbeat_ms.load(Ordering::Relaxed);
        Duration::from_millis(if ms == 0 { default } else { ms }.clamp(100, 60_000))
    }
}

/// A connection that is to be made.
#[derive(Debug)]
pub(crate) struct Dial {
    pub(crate) connection: u64,
    pub(crate) place: Place,
    pub(crate) link: Link,
}

#[derive(Debug)]
pub(crate) struct Shell {
    pub(crate) machine: Machine<Runtime>,
    pub(crate) suspensions: SuspensionLog,
    links: HashMap<u64, Link>,
    dials: Vec<Dial>,
    /// When the driver comes back by itself.
    pub(crate) armed: Option<Moment>,
}

impl Shell {
    pub(crate) fn new(machine: Machine<Runtime>, suspensions: SuspensionLog) -> Self {
        Self { machine, suspensions, links: HashMap::new(), dials: Vec::new(), armed: None }
    }

    /// Takes the machine's events out: those about connections are carried out, the rest are
    /// returned.
    pub(crate) fn drain(&mut self) -> Vec<Event<Runtime>> {
        let mut rest = Vec::new();
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Connect { connection, place } => {
                    let link = Link::default();
                    self.links.insert(connection, link.clone());
                    self.dials.push(Dial { connection, place, link });
                }
                Event::Disconnect { connection } => self.forget(connection),
                Event::Transmit { connection } => {
                    if let Some(link) = self.links.get(&connection) {
                        link.to_send.notify_one();
                    }
                }
                Event::Opened { connection, ref welcome, .. } => {
                    if let Some(link) = self.links.get(&connection) {
                        link.set_heartbeat(welcome.heartbeat_ms);
                    }
                    rest.push(event);
                }
                Event::Lost { connection, .. } => {
                    self.forget(connection);
                    rest.push(event);
                }
                event => rest.push(event),
            }
        }
        rest
    }

    /// Whether the driver has something to do before it comes back by itself.
    pub(crate) fn is_urgent(&mut self) -> bool {
        let next = self.machine.poll_timeout();
        let sooner = next.is_some_and(|next| self.armed.is_none_or(|armed| next < armed));
        if sooner {
            self.armed = next;
        }
        sooner || !self.dials.is_empty()
    }

    /// The connections that are to be made, and when to come back.
    pub(crate) fn take_work(&mut self) -> (Vec<Dial>, Option<Moment>) {
        self.armed = self.machine.poll_timeout();
        (std::mem::take(&mut self.dials), self.armed)
    }

    /// A connection could not be made, or is gone.
    pub(crate) fn forget(&mut self, connection: u64) {
        if let Some(link) = self.links.remove(&connection) {
            link.closed.cancel();
        }
    }
}

/// Somebody who waits for one event.
#[derive(Debug)]
pub(crate) struct Mailbox<T>(Mutex<Option<oneshot::Sender<T>>>);

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Mailbox<T> {
    /// Waits for the next event, in the place of who waited before.
    pub(crate) fn wait(&self) -> oneshot::Receiver<T> {
        let (sender, receiver) = oneshot::channel();
        *self.0.locked() = Some(sender);
        receiver
    }

    /// The event is there.
    pub(crate) fn put(&self, event: T) {
        if let Some(sender) = self.0.locked().take() {
            // The caller may have stopped waiting.
            let _ = sender.send(event);
        }
    }
}
