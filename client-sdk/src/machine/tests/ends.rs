//! Inputs between the steps of a connection, and after the end.

use mtimer_protocol::{ErrorCode, OpReply, ServerMessage, ops};
use mtimer_types::Destination;
use mtimer_types::limits::REPEAT_HORIZON_MS;

use super::*;
use crate::RequestError;
use crate::machine::call::RequestFrame;

const TIMEOUT: Duration = Duration::from_secs(10);

/// The types of these tests.
#[derive(Debug)]
struct Test;

impl Caller for Test {
    type Call = Ticket;
    type Question = Ticket;
    type Callbacks = Local;
    type Random = Half;
}

const NOW: Moment = Moment::ORIGIN;

/// A machine with a connection of number 1.
fn connected() -> Machine<Test> {
    let mut machine = Machine::new(settings(&["fake:1"]), Half, NOW).unwrap();
    open(&mut machine, 1);
    machine
}

fn open(machine: &mut Machine<Test>, connection: u64) {
    machine.handle(NOW, Input::Connected { connection, address: "fake:1".into() });
    machine.poll_transmit(NOW, connection, &mut Vec::new());
    machine.handle(NOW, Input::Frame { connection, message: ServerMessage::Welcome(welcome()) });
}

/// A machine with a connection, and a frame taken out of it that was neither filed nor written yet.
fn gathered() -> (Machine<Test>, RequestFrame<Ticket>) {
    let mut machine = connected();
    let op = ops::Purge { id: TimerId::from_u128(0) }.into();
    machine.handle(NOW, Input::Call { op, token: Ticket::new(1) });
    let mut out = Vec::new();
    machine.poll_transmit(NOW, 1, &mut out);
    let frame = out.into_iter().find_map(|transmit| match transmit {
        Transmit::Request(frame) => Some(frame),
        Transmit::Message(_) => None,
    });
    (machine, frame.unwrap())
}

/// All answers, and whether the connection was left.
fn events(machine: &mut Machine<Test>) -> (Vec<Result<OpReply, RequestError>>, bool) {
    let (mut answers, mut left) = (Vec::new(), false);
    while let Some(event) = machine.poll_event() {
        match event {
            Event::Answered { answer, .. } => answers.push(answer),
            Event::Disconnect { connection: 1 } => left = true,
            _ => {}
        }
    }
    (answers, left)
}

fn closing(machine: &mut Machine<Test>) {
    machine.handle(NOW, Input::Frame { connection: 1, message: ServerMessage::Closing });
}

#[test]
fn what_is_about_to_be_written_is_under_way() {
    let (mut machine, frame) = gathered();
    assert!(!machine.is_idle(), "closing would not wait for it");
    closing(&mut machine);
    assert_eq!(events(&mut machine), (vec![], false), "its connection would be left");
    assert!(machine.poll_timeout().is_some(), "nobody would look at the time again");
    machine.handle(NOW, Input::Sent(frame));
    assert!(machine.poll_timeout().is_some() && !machine.is_idle());
    // Its time is looked at, and once nothing is under way the connection is left.
    let horizon = NOW + Duration::from_millis(REPEAT_HORIZON_MS);
    machine.handle(horizon, Input::Timeout);
    let (answers, left) = events(&mut machine);
    assert!(matches!(answers[..], [Err(RequestError::Unknown { .. })]), "{answers:?}");
    assert!(machine.is_idle() && left);
}

#[test]
fn what_cannot_be_written_is_under_way_no_more() {
    let (mut machine, frame) = gathered();
    machine.handle(NOW, Input::Unsent { frame, reason: "too long".into() });
    let (answers, _) = events(&mut machine);
    let refused = matches!(answers[..], [Err(RequestError::Refused { code: ErrorCode::Invalid, .. })]);
    assert!(refused, "{answers:?}");
    assert!(machine.is_idle());
    closing(&mut machine);
    assert!(events(&mut machine).1);
}

#[test]
fn a_connection_that_ends_before_it_writes_leaves_nothing_behind() {
    let (mut machine, frame) = gathered();
    drop(frame);
    machine.handle(NOW, Input::Closed { connection: 1, end: LinkError::Closed });
    assert!(machine.is_idle());
}

#[test]
fn what_was_taken_out_as_its_connection_ended_is_sent_over_the_next() {
    let (mut machine, frame) = gathered();
    machine.handle(NOW, Input::Closed { connection: 1, end: LinkError::Closed });
    machine.handle(NOW, Input::Sent(frame));
    assert!(!machine.is_idle());
    let later = NOW + TIMEOUT;
    machine.handle(later, Input::Timeout);
    open(&mut machine, 2);
    let mut out = Vec::new();
    machine.poll_transmit(later, 2, &mut out);
    assert!(out.iter().any(|transmit| matches!(transmit, Transmit::Request(_))), "{out:?}");
}

#[test]
fn of_what_may_still_leave_as_the_client_closes_the_outcome_is_unknown() {
    let (mut machine, frame) = gathered();
    machine.handle(NOW, Input::Stop);
    machine.handle(NOW, Input::Sent(frame));
    assert_eq!(machine.stats().repeated, 0);
    let (answers, _) = events(&mut machine);
    assert!(matches!(answers[..], [Err(RequestError::Unknown { .. })]), "{answers:?}");
}

#[test]
fn a_connection_that_comes_after_the_end_is_nobodys() {
    let mut machine = Machine::<Test>::new(settings(&["fake:1"]), Half, NOW).unwrap();
    machine.handle(NOW, Input::Stop);
    open(&mut machine, 1);
    assert!(!machine.is_connected());
    assert!(events(&mut machine).1, "it is closed");
    machine.handle(NOW, Input::Drain);
    assert!(matches!(machine.poll_event(), Some(Event::Drained)), "nothing to wait for");
    machine.handle(NOW, Input::Flush);
    assert!(matches!(machine.poll_event(), Some(Event::Flushed { unsettled: 0 })));
}

#[test]
fn after_the_end_every_call_is_answered_at_once() {
    let mut machine = connected();
    machine.handle(NOW, Input::Stop);
    let op = ops::Purge { id: TimerId::from_u128(0) }.into();
    machine.handle(NOW, Input::Call { op, token: Ticket::new(1) });
    let (answers, _) = events(&mut machine);
    assert!(matches!(answers[..], [Err(RequestError::Closed)]), "{answers:?}");
    let inbox = Local::new(Destination::new("group", "app").unwrap(), 1);
    assert_eq!(machine.register(inbox), Err(RegisterError::Closed));
}

#[test]
fn a_registration_is_closed_in_time_whatever_the_broker_says() {
    let mut machine = connected();
    let dest = || Destination::new("group", "app").unwrap();
    let mut register = || machine.register(Local::new(dest(), 1)).unwrap();
    let (first, second, third) = (register(), register(), register());
    machine.handle(NOW, Input::Unregister { registration: first });
    machine.handle(NOW + TIMEOUT, Input::Unregister { registration: second });
    let is_open = |machine: &Machine<Test>, number| machine.registrations.callbacks(number).is_some();
    assert!(machine.registrations.next_timeout().is_some());
    machine.handle(NOW + (TIMEOUT - Duration::from_millis(1)), Input::Timeout);
    assert!(machine.registrations.next_timeout().is_some() && is_open(&machine, first));
    machine.handle(NOW + TIMEOUT, Input::Timeout);
    assert!(machine.registrations.next_timeout().is_some());
    assert!(!is_open(&machine, first) && is_open(&machine, second));
    machine.handle(NOW + 2 * TIMEOUT, Input::Timeout);
    assert!(machine.registrations.next_timeout().is_none());
    assert!(!is_open(&machine, second) && is_open(&machine, third));
}

#[test]
fn a_caller_that_comes_late_has_not_listened() {
    let mut machine = connected();
    let silence = Duration::from_millis(mtimer_types::limits::HEARTBEAT_TIMEOUT_MS);
    // The process was stopped: the broker has another chance.
    machine.handle(NOW + silence + TIMEOUT, Input::Timeout);
    assert!(!events(&mut machine).1);
    machine.handle(NOW + silence + TIMEOUT + silence, Input::Timeout);
    assert!(events(&mut machine).1);
}
