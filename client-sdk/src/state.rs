//! The state of a client, which its handles and tasks share.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use mtimer_protocol::{Topology, Welcome};
use mtimer_types::Time;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::answer::{Info, Stats};
use crate::clock::RuntimeClock;
use crate::counters::HandlerCounters;
use crate::error::LinkError;
use crate::intake::Intake;
use crate::link::Dialler;
use crate::machine::moment::Moment;
use crate::machine::{ConnectionsLeft, Event, Input, Machine, MachineSettings};
use crate::settings::Settings;
use crate::shell::{Mailbox, Runtime, Shell, ThreadRandom};
use crate::spread::Spreader;
use crate::sync::Locked;
use crate::{CloseError, ConnectError, RegisterError};

#[derive(Debug)]
pub(crate) struct ClientState {
    pub(crate) settings: Settings,
    pub(crate) clock: RuntimeClock,
    pub(crate) dialler: Dialler,
    shell: Mutex<Shell>,
    /// The driver has to look at the machine.
    pub(crate) hurry: Notify,
    info: Mutex<Arc<Info>>,
    spreader: OnceLock<Spreader>,
    connected: watch::Sender<bool>,
    /// Whether everything was tried that a client connects to at its start.
    pub(crate) ready: watch::Sender<bool>,
    /// How the first connection has turned out.
    pub(crate) first: Mailbox<Result<(), ConnectError>>,
    drained: Mailbox<()>,
    flushed: Mailbox<usize>,
    pub(crate) counters: HandlerCounters,
    pub(crate) token: CancellationToken,
    pub(crate) tasks: TaskTracker,
    pub(crate) runtime: Handle,
    /// For operations and questions that are under way.
    pub(crate) permits: Arc<Semaphore>,
    /// How many permits there are.
    pub(crate) capacity: u32,
    /// Registrations whose handlers may run.
    intakes: Mutex<Vec<Arc<Intake>>>,
    closing: tokio::sync::Mutex<()>,
}

impl ClientState {
    pub(crate) fn new(settings: Settings) -> Result<Self, ConnectError> {
        let dialler = Dialler::new(&settings)?;
        let capacity = settings.max_in_flight.clamp(1, crate::limits::MAX_SESSION_INFLIGHT as u32);
        let clock = RuntimeClock::new();
        let of_machine = MachineSettings {
            seeds: dialler.names(),
            one_broker: settings.one_broker,
            software: settings.software.clone(),
            token: settings.token.clone(),
            role: settings.role,
            connect_timeout: settings.connect_timeout,
            request_timeout: settings.request_timeout,
            answer_timeout: settings.answer_timeout,
        };
        let machine = Machine::new(of_machine, ThreadRandom, clock.moment())?;
        let mut shell = Shell::new(machine, clock.suspensions());
        shell.drain();
        Ok(Self {
            settings,
            dialler,
            shell: Mutex::new(shell),
            clock,
            hurry: Notify::new(),
            info: Mutex::new(Arc::new(nobodys_info())),
            spreader: OnceLock::new(),
            connected: watch::Sender::new(false),
            ready: watch::Sender::new(false),
            first: Mailbox::default(),
            drained: Mailbox::default(),
            flushed: Mailbox::default(),
            counters: HandlerCounters::default(),
            token: CancellationToken::new(),
            tasks: TaskTracker::new(),
            runtime: Handle::current(),
            permits: Arc::new(Semaphore::new(capacity as usize)),
            capacity,
            intakes: Mutex::default(),
            closing: tokio::sync::Mutex::new(()),
        })
    }

    /// Gives the machine an input.
    pub(crate) fn handle(&self, input: Input<Runtime>) {
        self.with(|machine, now| machine.handle(now, input));
    }

    /// Works with the machine, and carries out its events.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Machine<Runtime>, Moment) -> R) -> R {
        let mut shell = self.shell();
        let result = work(&mut shell.machine, self.clock.moment());
        let events = self.release(shell);
        events.into_iter().for_each(|event| self.tell(event));
        result
    }

    /// Takes the lock; the machine knows of suspensions then.
    fn shell(&self) -> MutexGuard<'_, Shell> {
        let mut shell = self.shell.locked();
        let Shell { machine, suspensions, .. } = &mut *shell;
        if let Some(by) = self.clock.find_suspension(suspensions) {
            machine.handle(self.clock.moment(), Input::Suspended { by });
        }
        shell
    }

    /// Releases the lock; returns the events to tell after that.
    fn release(&self, mut shell: MutexGuard<'_, Shell>) -> Vec<Event<Runtime>> {
        let events = shell.drain();
        if events.iter().any(|event| matches!(event, Event::Rerouted | Event::Opened { .. }))
            && let Some(spreader) = self.spreader.get()
        {
            spreader.set_reachable(shell.machine.routes().reachable());
        }
        self.clock.publish(shell.machine.clock().at_origin());
        let urgent = shell.is_urgent();
        drop(shell);
        if urgent {
            self.hurry.notify_one();
        }
        events
    }

    /// Works with the shell alone, for the driver.
    pub(crate) fn with_shell<R>(&self, work: impl FnOnce(&mut Shell) -> R) -> R {
        work(&mut self.shell())
    }

    fn tell(&self, event: Event<Runtime>) {
        match event {
            Event::Answered { call, answer } => call.answer(answer),
            // The caller may have stopped waiting.
            Event::Told { question, answer } => _ = question.reply.send(answer),
            Event::Opened { connection, address, welcome, away } => {
                self.opened(connection, &address, &welcome, away);
            }
            Event::Lost { connection, broker, end, rest } => {
                say_lost(&broker, connection, &end, rest);
                self.tell_connected();
            }
            Event::Unreached(error) => tracing::debug!(%error, "no connection yet"),
            Event::GaveUp(error) => self.first.put(Err(error)),
            Event::Ready => _ = self.ready.send_replace(true),
            Event::Hung { callbacks, handlers } => {
                for handler in handlers {
                    let (group, app) = (callbacks.dest.group(), callbacks.dest.app());
                    let (id, attempt) = (handler.id, handler.attempt);
                    tracing::warn!(group, app, %id, attempt, "a handler has not ended within its callback timeout and takes its place until it does");
                }
            }
            Event::RegistrationRefused { callbacks, code, message } => {
                let (group, app) = (callbacks.dest.group(), callbacks.dest.app());
                tracing::warn!(group, app, ?code, reason = message, "the broker refused a registration");
                callbacks.refuse(RegisterError::Refused { code, message });
            }
            Event::Drained => self.drained.put(()),
            Event::Flushed { unsettled } => self.flushed.put(unsettled),
            // Done under the lock.
            Event::Connect { .. } | Event::Disconnect { .. } | Event::Transmit { .. } | Event::Rerouted => {}
        }
    }

    fn opened(&self, connection: u64, address: &str, welcome: &Welcome, away: Option<Duration>) {
        match away {
            // As loud as the loss.
            Some(away) => {
                let away_ms = away.as_millis() as u64;
                tracing::warn!(broker = address, session = connection, away_ms, "connected again");
            }
            None => tracing::info!(broker = address, session = connection, "connected"),
        }
        *self.info.locked() = Arc::new(info(address, welcome));
        self.spreader.get_or_init(|| {
            let spreader = Spreader::new(welcome.partitions, rand::random(), rand::random());
            spreader.set_reachable(self.shell.locked().machine.routes().reachable());
            spreader
        });
        self.tell_connected();
        self.first.put(Ok(()));
    }

    /// Publishes whether there is a connection. Of several calls at once the last one sees the
    /// effects of all of them. The machine's lock is taken while holding `connected`'s lock, as by
    /// a caller who holds a borrow of it; never the other way round.
    fn tell_connected(&self) {
        self.connected.send_if_modified(|published| {
            let connected = self.shell.locked().machine.is_connected();
            std::mem::replace(published, connected) != connected
        });
    }

    /// The cluster's time.
    pub(crate) fn now(&self) -> Time {
        if self.clock.is_suspicious() {
            let shell = self.shell();
            self.clock.publish(shell.machine.clock().at_origin());
        }
        self.clock.time()
    }

    /// A broker's description of itself, from the latest handshake.
    pub(crate) fn info(&self) -> Arc<Info> {
        Arc::clone(&self.info.locked())
    }

    pub(crate) fn connected(&self) -> watch::Receiver<bool> {
        self.connected.subscribe()
    }

    pub(crate) fn spreader(&self) -> &Spreader {
        self.spreader.get_or_init(|| Spreader::new(1, 0, 0))
    }

    pub(crate) fn stats(&self) -> Stats {
        self.counters.add_to(self.shell.locked().machine.stats())
    }

    pub(crate) fn topology(&self) -> Option<Arc<Topology>> {
        self.shell.locked().machine.routes().topology().cloned()
    }

    /// Begins a registration.
    pub(crate) fn register(&self, intake: &Arc<Intake>) -> Result<u32, RegisterError> {
        let number = self.with(|machine, _| machine.register(Arc::clone(intake)))?;
        let mut intakes = self.intakes.locked();
        intakes.retain(|intake| !intake.done.is_cancelled());
        intakes.push(Arc::clone(intake));
        Ok(number)
    }

    /// See [`crate::Client::close`].
    pub(crate) async fn close(&self) -> Result<(), CloseError> {
        let _one_at_a_time = self.closing.lock().await;
        let drained = self.drained.wait();
        self.handle(Input::Drain);
        let _ = drained.await;
        let intakes = self.intakes.locked().clone();
        for intake in intakes {
            intake.done.cancelled().await;
        }
        let flushed = self.flushed.wait();
        self.handle(Input::Flush);
        let settlements = flushed.await.unwrap_or_default();
        self.stop();
        self.tasks.close();
        self.tasks.wait().await;
        if settlements > 0 {
            let ms = self.settings.request_timeout.as_millis() as u64;
            return Err(CloseError::Unsettled { settlements, ms });
        }
        Ok(())
    }

    /// Stops everything at once.
    pub(crate) fn stop(&self) {
        self.token.cancel();
        self.permits.close();
        self.handle(Input::Stop);
        self.tell_connected();
    }
}

/// Logs the end of a connection. The attempts until there is another one are not logged.
///
/// A client that closes wants its connections to end. Work left open then is in the result of
/// [`Client::close`](crate::Client::close).
fn say_lost(broker: &str, session: u64, end: &LinkError, rest: ConnectionsLeft) {
    let reason = end.to_string();
    match (rest, end) {
        (ConnectionsLeft::Closing, _) => {
            tracing::info!(broker, session, reason, "disconnected while the client closes");
        }
        (ConnectionsLeft::None, _) => {
            tracing::warn!(
                broker,
                session,
                reason,
                "the last connection is lost, and is tried again until a broker answers"
            );
        }
        (ConnectionsLeft::Some, LinkError::Left) => {
            tracing::info!(broker, session, reason, "disconnected from a broker that stopped");
        }
        (ConnectionsLeft::Some, _) => tracing::warn!(broker, session, reason, "connection lost"),
    }
}

/// State held by handles: when the last handle is dropped, everything stops.
#[derive(Debug)]
pub(crate) struct StopOnDrop {
    pub(crate) state: Arc<ClientState>,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.state.stop();
    }
}

/// Before a broker has said anything.
fn nobodys_info() -> Info {
    Info {
        broker: String::new(),
        session: 0,
        cluster: String::new(),
        software: String::new(),
        store: String::new(),
        durability: String::new(),
        partitions: 0,
        version: 0,
        heartbeat_ms: 0,
        max_frame: 0,
        max_batch: 0,
    }
}

pub(crate) fn info(broker: &str, w: &Welcome) -> Info {
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

#[cfg(test)]
mod tests;
