//! Plays a scenario: puts its inputs into a machine, and writes down its outputs.
//!
//! docs/client.md describes the format.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::BytesMut;
use mtimer_protocol::{
    ClientMessage, OpReply, Query, QueryAnswer, ServerMessage, Settlement, decode, encode, ops,
};
use mtimer_types::{Destination, HandlerOutcome, Key, TimerId};
use serde_json::{Value, json};

use super::json;
use super::script::{Asked, Happening, Header, Queues};
use super::*;
use crate::RequestError;
use crate::machine::dial::Place;
use crate::machine::inbox::{BeginningCallback, NextStep};
use crate::spread::Spreader;
use crate::{Schedule, When};

/// The types of a scenario's machine.
#[derive(Debug)]
struct Scene;

impl Caller for Scene {
    type Call = Ticket;
    type Question = Ticket;
    type Callbacks = Local;
    type Random = Queues;
}

/// A handler that runs.
struct Running {
    registration: u32,
    callback: BeginningCallback,
    slot: u64,
}

/// Plays one scenario.
pub(super) struct Player {
    seeds: Vec<String>,
    machine: Machine<Scene>,
    /// For the numbers that a caller draws itself.
    random: Queues,
    spreader: Option<Spreader>,
    calls: BTreeMap<u64, Ticket>,
    inboxes: BTreeMap<u32, Local>,
    running: BTreeMap<u64, Running>,
    last_callback: u64,
    drained: bool,
    now: u64,
    lines: Vec<String>,
}

impl Player {
    /// Begins with the scenario's first line; writes down the machine's first actions.
    pub(super) fn new(header: &str) -> Self {
        let header: Header = serde_json::from_str(header).unwrap();
        assert_eq!(header.version, 1, "of {}", header.scenario);
        let of = header.settings;
        let settings = MachineSettings {
            seeds: of.seeds.clone(),
            one_broker: of.one_broker,
            software: of.software,
            token: of.token,
            role: Role::Client,
            connect_timeout: Duration::from_millis(of.connect_timeout_ms),
            request_timeout: Duration::from_millis(of.request_timeout_ms),
            answer_timeout: Duration::from_millis(of.answer_timeout_ms),
        };
        let machine = Machine::new(settings, header.random.clone(), Moment::ORIGIN).unwrap();
        let mut player = Self {
            seeds: of.seeds,
            machine,
            random: header.random,
            spreader: None,
            calls: BTreeMap::new(),
            inboxes: BTreeMap::new(),
            running: BTreeMap::new(),
            last_callback: 0,
            drained: false,
            now: 0,
            lines: Vec::new(),
        };
        player.settle();
        player
    }

    /// Returns the lines since the last call.
    pub(super) fn take_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    /// Plays an input; returns its line as it should be.
    pub(super) fn play(&mut self, line: &str) -> String {
        let happening: Happening = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        self.pass(happening.at());
        let line = match &happening {
            Happening::Frame { at, conn, hex, msg } => self.frame(*at, *conn, hex.as_deref(), msg),
            _ => line.to_owned(),
        };
        self.lines.push(line.clone());
        self.happen(happening);
        self.settle();
        line
    }

    fn moment(&self) -> Moment {
        Moment::ORIGIN + Duration::from_millis(self.now)
    }

    fn handle(&mut self, input: Input<Scene>) {
        self.machine.handle(self.moment(), input);
    }

    /// Lets time pass, up to `at`.
    fn pass(&mut self, at: u64) {
        assert!(at >= self.now, "time goes on: {at}");
        while let Some(next) = self.machine.poll_timeout() {
            // Whole ms, rounded up: nothing is early.
            let next = next.since_origin().as_nanos().div_ceil(1_000_000) as u64;
            if next > at {
                break;
            }
            self.now = self.now.max(next);
            self.handle(Input::Timeout);
            self.settle();
        }
        self.now = at;
    }

    /// A frame that arrives: checks that its bytes are the message, and makes them if there are none.
    fn frame(&self, at: u64, conn: u64, hex: Option<&str>, msg: &Value) -> String {
        let message: ServerMessage = json::read(&msg.to_string());
        let bytes = to_hex(&encode(&message).unwrap());
        if let Some(hex) = hex {
            assert_eq!(hex, bytes, "the bytes at {at} are those of the message");
        }
        frame_line(at, "in", conn, &bytes, &json::write(&message))
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Connected { conn, .. } => {
                assert!(self.machine.dialling.is_trying(conn), "connection {conn} is not asked for");
                let address = self.machine.dialling.address(conn);
                self.handle(Input::Connected { connection: conn, address });
            }
            Happening::Failed { conn, .. } => {
                assert!(self.machine.dialling.is_trying(conn), "connection {conn} is not asked for");
                let source = std::io::Error::other("refused");
                let error = ConnectError::Unreachable { broker: String::new(), source };
                self.handle(Input::Failed { connection: conn, error });
            }
            Happening::Frame { conn, msg, .. } => {
                let message = json::read::<ServerMessage>(&msg.to_string());
                // By its bytes, as it arrives.
                let message = decode(&BytesMut::from(&encode(&message).unwrap()[..])).unwrap();
                self.handle(Input::Frame { connection: conn, message });
            }
            Happening::Closed { conn, .. } => {
                self.handle(Input::Closed { connection: conn, end: LinkError::Closed });
            }
            Happening::Call { call, r#do, .. } => self.call(call, r#do),
            Happening::Abandon { call, .. } => {
                self.calls[&call].abandoned.set(true);
                self.handle(Input::Abandoned);
            }
            Happening::Register { registration, dest, concurrency, .. } => {
                let inbox = Local::new(dest, concurrency);
                assert_eq!(self.machine.register(inbox.clone()), Ok(registration));
                self.inboxes.insert(registration, inbox);
            }
            Happening::Unregister { registration, .. } => self.handle(Input::Unregister { registration }),
            Happening::End { callback, outcome, .. } => self.end(callback, outcome),
            Happening::Extend { callback, by_ms, .. } => {
                let BeginningCallback { origin, deadline, delivery, .. } = &self.running[&callback].callback;
                deadline.extend(self.moment(), by_ms);
                let (over, id) = (Arc::clone(origin), delivery.id);
                let (epoch, attempt) = (delivery.epoch, delivery.attempt);
                self.handle(Input::Extend { over, id, epoch, attempt, by_ms });
            }
            Happening::Suspended { ms, .. } => {
                self.handle(Input::Suspended { by: Duration::from_millis(ms) });
            }
            Happening::Clock { .. } => {
                let time = self.machine.clock().at(self.moment()).as_ms();
                self.out("clock", &format!(r#""is":"{time}""#));
            }
            Happening::Close { .. } => self.handle(Input::Drain),
            Happening::Nothing { .. } => {}
        }
    }

    /// Calls of the numbers from `call`.
    fn call(&mut self, call: u64, asked: Vec<Asked>) {
        let mut ops = Vec::new();
        for (number, asked) in (call..).zip(asked) {
            let ticket = Ticket::new(number);
            self.calls.insert(number, ticket.clone());
            match asked {
                Asked::Get(target) => {
                    let query = Query::Get(target);
                    self.handle(Input::Ask { query, goal: None, token: ticket });
                }
                asked => ops.push((self.op(asked), ticket)),
            }
        }
        self.handle(Input::Calls(ops));
    }

    fn op(&mut self, asked: Asked) -> RequestOp {
        let now = self.machine.clock().at(self.moment());
        let request = |queues: &mut Queues| Queues::number(&mut queues.request, "request");
        let after = |ms: u64| When::from(Duration::from_millis(ms)).time(now);
        match asked {
            Asked::Schedule { dest, key, after_ms, payload, policy, mode } => {
                let mut schedule = Schedule::after(&dest, Duration::from_millis(after_ms)).payload(payload);
                if let Some(key) = key {
                    schedule = schedule.key(key);
                }
                let schedule = schedule.policy(policy).mode(mode);
                let spreader = self.spreader.as_ref().expect("a connection has been there");
                let random = Queues::number(&mut self.random.id, "id");
                let id = |dest: &Destination, key: Option<&Key>, due| {
                    let partition = spreader.spread(1).partition(dest, key);
                    TimerId::new(due, now, partition, random)
                };
                let (timer, policy) = schedule.resolve(now, id).unwrap();
                ops::Schedule { timer: Arc::new(timer), policy }.into()
            }
            Asked::Cancel(target) => ops::Cancel { target, request: request(&mut self.random) }.into(),
            Asked::Reschedule { target, after_ms } => {
                let due = after(after_ms);
                ops::Reschedule { target, due, request: request(&mut self.random) }.into()
            }
            Asked::Replay(id) => ops::Replay { id }.into(),
            Asked::Purge(id) => ops::Purge { id }.into(),
            Asked::Get(_) => unreachable!("a question is no operation"),
        }
    }

    /// A handler ends.
    fn end(&mut self, callback: u64, outcome: HandlerOutcome) {
        let Running { registration, callback, slot } = self.running.remove(&callback).unwrap();
        let BeginningCallback { origin, deadline, delivery, .. } = callback;
        let settlement =
            Settlement { id: delivery.id, epoch: delivery.epoch, attempt: delivery.attempt, outcome };
        let outcome = OutgoingOutcome::new(settlement, origin, deadline.at().max(self.moment()));
        self.handle(Input::Outcomes(vec![outcome]));
        let renewed = self.inboxes[&registration].with(|inbox| inbox.vacate(slot));
        if renewed {
            self.handle(Input::Renew { registration });
        }
    }

    /// Takes everything out of the machine until it has nothing more.
    fn settle(&mut self) {
        loop {
            let mut transmit = std::collections::BTreeSet::new();
            while let Some(event) = self.machine.poll_event() {
                if let Some(connection) = self.event(event) {
                    transmit.insert(connection);
                }
            }
            let begun = self.begin();
            let sent = transmit.into_iter().map(|connection| self.transmit(connection)).sum::<usize>();
            if self.drained && self.running.is_empty() && self.machine.closing() == Closing::Drained {
                self.handle(Input::Flush);
                continue;
            }
            if !begun && sent == 0 && !self.machine_has_events() {
                return;
            }
        }
    }

    /// Whether taking things out has made events.
    fn machine_has_events(&mut self) -> bool {
        match self.machine.poll_event() {
            None => false,
            Some(event) => {
                if let Some(connection) = self.event(event) {
                    self.transmit(connection);
                }
                true
            }
        }
    }

    /// Writes an event down. Returns the connection that may have something to send.
    fn event(&mut self, event: Event<Scene>) -> Option<u64> {
        match event {
            Event::Connect { connection, place } => {
                let address = match place {
                    Place::Seed(number) => self.seeds[number].clone(),
                    Place::Broker(address) => address,
                };
                self.out("connect", &format!(r#""conn":{connection},"address":"{address}""#));
            }
            Event::Disconnect { connection } => self.out("disconnect", &format!(r#""conn":{connection}"#)),
            Event::Opened { connection, welcome, .. } => {
                self.spreader.get_or_insert_with(|| {
                    let first = self.random.spread.pop_front().unwrap_or_default();
                    Spreader::new(welcome.partitions, first, 0)
                });
                self.out("opened", &format!(r#""conn":{connection}"#));
            }
            Event::Lost { connection, .. } => self.out("lost", &format!(r#""conn":{connection}"#)),
            Event::GaveUp(error) => {
                let is = connect_error(&error);
                self.out("gave-up", &format!(r#""is":{is}"#));
            }
            Event::Rerouted => {
                let reachable = self.machine.routes().reachable();
                self.spreader.iter().for_each(|spreader| spreader.set_reachable(reachable.clone()));
            }
            Event::Transmit { connection } => return Some(connection),
            Event::Answered { call, answer } => self.answered(&call, answer),
            Event::Told { question, answer } => self.told(&question, answer),
            Event::Hung { handlers, .. } => {
                for handler in handlers {
                    self.out("hung", &format!(r#""id":"{}","attempt":{}"#, handler.id, handler.attempt));
                }
            }
            Event::RegistrationRefused { code, .. } => {
                self.out("refused", &format!(r#""code":"{code:?}""#));
            }
            Event::Drained => {
                self.drained = true;
                self.out("drained", "");
            }
            Event::Flushed { unsettled } => {
                self.out("closed", &format!(r#""unsettled":{unsettled}"#));
                self.handle(Input::Stop);
            }
            Event::Unreached(_) | Event::Ready => {}
        }
        None
    }

    fn answered(&mut self, call: &Ticket, answer: Result<OpReply, RequestError>) {
        if !call.abandoned.get() {
            let is = answer.map_or_else(|error| request_error(&error), |reply| json::write(&reply));
            self.out("result", &format!(r#""call":{},"is":{is}"#, call.number));
        }
    }

    fn told(&mut self, call: &Ticket, answer: Result<QueryAnswer, RequestError>) {
        if !call.abandoned.get() {
            let is = answer.map_or_else(|error| request_error(&error), |answer| json::write(&answer));
            self.out("result", &format!(r#""call":{},"is":{is}"#, call.number));
        }
    }

    /// Begins the handlers that can begin.
    fn begin(&mut self) -> bool {
        let mut any = false;
        let inboxes: Vec<(u32, Local)> = self.inboxes.iter().map(|(n, inbox)| (*n, inbox.clone())).collect();
        for (registration, inbox) in inboxes {
            inbox.with(Inbox::take_changed);
            loop {
                let (step, renewed) = inbox.with(Inbox::next);
                if renewed {
                    self.handle(Input::Renew { registration });
                }
                let NextStep::Begin(callback) = step else { break };
                any = true;
                if callback.is_pointless(self.moment()) {
                    let connection = callback.origin.connection;
                    self.handle(Input::LeftOut { connection, callbacks: 1 });
                    continue;
                }
                let (slot, renewed) = inbox.with(Inbox::keep);
                if renewed {
                    self.handle(Input::Renew { registration });
                }
                self.last_callback += 1;
                let (number, delivery) = (self.last_callback, &callback.delivery);
                let received = callback.received.max(delivery.due).as_ms();
                let of = format!(r#""callback":{number},"registration":{registration}"#);
                let is = format!(r#""id":"{}","epoch":"{}""#, delivery.id, delivery.epoch.0);
                let how = format!(r#""attempt":{},"received":"{received}""#, delivery.attempt);
                self.out("begin", &format!("{of},{is},{how}"));
                self.running.insert(number, Running { registration, callback, slot });
            }
        }
        any
    }

    /// Writes down the messages sent over a connection; returns their number.
    fn transmit(&mut self, connection: u64) -> usize {
        let mut sent = 0;
        loop {
            let mut out = Vec::new();
            self.machine.poll_transmit(self.moment(), connection, &mut out);
            if out.is_empty() {
                return sent;
            }
            for transmit in out {
                sent += 1;
                let message = match transmit {
                    Transmit::Message(message) => message,
                    Transmit::Request(frame) => {
                        let message = frame.message.clone();
                        self.handle(Input::Sent(frame));
                        message
                    }
                };
                self.sent(connection, &message);
            }
        }
    }

    fn sent(&mut self, connection: u64, message: &ClientMessage) {
        let bytes = to_hex(&encode(message).unwrap());
        let line = frame_line(self.now, "out", connection, &bytes, &json::write(message));
        self.lines.push(line);
    }

    fn out(&mut self, what: &str, rest: &str) {
        let comma = if rest.is_empty() { "" } else { "," };
        self.lines.push(format!(r#"{{"at":{},"out":"{what}"{comma}{rest}}}"#, self.now));
    }
}

fn frame_line(at: u64, way: &str, conn: u64, hex: &str, msg: &str) -> String {
    format!(r#"{{"at":{at},"{way}":"frame","conn":{conn},"hex":"{hex}","msg":{msg}}}"#)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn connect_error(error: &ConnectError) -> String {
    let is = match error {
        ConnectError::Refused { code, .. } => json!({ "refused": format!("{code:?}") }),
        ConnectError::Timeout { .. } => json!({ "failed": "timeout" }),
        ConnectError::Unreachable { .. } => json!({ "failed": "unreachable" }),
        ConnectError::Closed { .. } => json!({ "failed": "closed" }),
        ConnectError::OtherCluster { .. } => json!({ "failed": "other-cluster" }),
        _ => json!({ "failed": "protocol" }),
    };
    is.to_string()
}

fn request_error(error: &RequestError) -> String {
    let is = match error {
        RequestError::Refused { code, .. } => json!({ "refused": format!("{code:?}") }),
        RequestError::NotReplicated { .. } => json!({ "failed": "not-replicated" }),
        RequestError::NotSent { .. } => json!({ "failed": "not-sent" }),
        RequestError::Unanswered { .. } => json!({ "failed": "unanswered" }),
        RequestError::Unknown { .. } => json!({ "failed": "unknown" }),
        RequestError::Mismatched => json!({ "failed": "mismatched" }),
        RequestError::Closed => json!({ "failed": "closed" }),
        RequestError::Observer => json!({ "failed": "observer" }),
    };
    is.to_string()
}
