//! The inputs and the events of a machine.

use std::sync::Arc;
use std::time::Duration;

use mtimer_protocol::{
    ClientMessage, ErrorCode, OpReply, Query, QueryAnswer, RequestOp, ServerMessage, Welcome,
};
use mtimer_types::{Epoch, TimerId};

use crate::error::LinkError;
use crate::machine::call::RequestFrame;
use crate::machine::caller::Caller;
use crate::machine::dial::Place;
use crate::machine::origin::Origin;
use crate::machine::routes::Goal;
use crate::machine::settling::OutgoingOutcome;
use crate::machine::slots::HungHandler;
use crate::{ConnectError, RequestError};

/// Something that has happened. Connections go by the numbers of [`Event::Connect`]; an input about
/// one that is gone changes nothing.
#[derive(Debug)]
pub(crate) enum Input<C: Caller> {
    /// A connection is there, to this address; the hello is next.
    Connected { connection: u64, address: String },
    /// A connection could not be made.
    Failed { connection: u64, error: ConnectError },
    /// A broker has sent this.
    Frame { connection: u64, message: ServerMessage },
    /// A connection is gone.
    Closed { connection: u64, end: LinkError },
    /// Somebody asks for an operation. Once the client is closed it is answered at once.
    Call { op: RequestOp, token: C::Call },
    /// Somebody asks for many.
    Calls(Vec<(RequestOp, C::Call)>),
    /// Somebody asks a question: of the broker that it concerns, or of `goal`.
    Ask { query: Query, goal: Option<Goal>, token: C::Question },
    /// A token of which nobody waits for the answer any more.
    Abandoned,
    /// A frame of [`Transmit::Request`] is about to be written.
    Sent(RequestFrame<C::Call>),
    /// A frame of [`Transmit::Request`] cannot be written.
    Unsent { frame: RequestFrame<C::Call>, reason: String },
    /// The credit that the inbox of a registration offers, or when it looks at the time, has
    /// changed.
    Renew { registration: u32 },
    /// A registration takes no more callbacks.
    Unregister { registration: u32 },
    /// Handlers have ended.
    Outcomes(Vec<OutgoingOutcome>),
    /// A handler asks for more time.
    Extend { over: Arc<Origin>, id: TimerId, epoch: Epoch, attempt: u32, by_ms: u32 },
    /// Callbacks of a connection were left to their next delivery.
    LeftOut { connection: u64, callbacks: u64 },
    /// The monotonic clock has stood still while this time passed.
    Suspended { by: Duration },
    /// The time of [`Machine::poll_timeout`](super::Machine::poll_timeout) has come.
    Timeout,
    /// No more callbacks are taken; [`Event::Drained`] follows.
    Drain,
    /// All handlers have ended; [`Event::Flushed`] follows.
    Flush,
    /// Everything ends at once.
    Stop,
}

/// An action for the caller, or news for it.
#[derive(Debug)]
pub(crate) enum Event<C: Caller> {
    /// Make a connection; [`Input::Connected`] or [`Input::Failed`] follows.
    Connect { connection: u64, place: Place },
    /// Close a connection, or give up making it. Nothing is taken from it any more.
    Disconnect { connection: u64 },
    /// A broker has let the client in. `away`: how long there was no connection before.
    Opened { connection: u64, address: String, welcome: Box<Welcome>, away: Option<Duration> },
    /// A connection is gone that was open.
    Lost { connection: u64, broker: String, end: LinkError, rest: ConnectionsLeft },
    /// A connection could not be made; it is tried again.
    Unreached(ConnectError),
    /// No broker has let the client in in time.
    GaveUp(ConnectError),
    /// Requests may go elsewhere than before.
    Rerouted,
    /// Everything was tried that a client connects to at its start.
    Ready,
    /// [`Machine::poll_transmit`](super::Machine::poll_transmit) may have something for this
    /// connection.
    Transmit { connection: u64 },
    /// An operation has ended.
    Answered { call: C::Call, answer: Result<OpReply, RequestError> },
    /// A question has ended.
    Told { question: C::Question, answer: Result<QueryAnswer, RequestError> },
    /// Handlers have not ended within their callback timeout.
    Hung { callbacks: C::Callbacks, handlers: Vec<HungHandler> },
    /// A broker sends nothing for a registration.
    RegistrationRefused { callbacks: C::Callbacks, code: ErrorCode, message: String },
    /// Nothing more is delivered; the callbacks that have arrived are still to be run.
    Drained,
    /// Everything that was on its way is answered, or its time is over.
    Flushed { unsettled: usize },
}

/// The connections left when one is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionsLeft {
    /// The client closes.
    Closing,
    None,
    Some,
}

/// One thing for the wire.
#[derive(Debug)]
pub(crate) enum Transmit<C: Caller> {
    Message(ClientMessage),
    /// [`Input::Sent`] has to follow before it is written, or [`Input::Unsent`].
    Request(RequestFrame<C::Call>),
}
