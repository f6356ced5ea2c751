//! Screening of messages from sessions with a token: allowed, answered with a refusal, or the end
//! of the session.
//!
//! Not in here: the permission that a message needs ([`mtimer_access::needs`]), sockets.

use mtimer_access::{Principal, denied_ops, needs};
use mtimer_core::DeniedOp;
use mtimer_protocol::{ClientMessage, ErrorCode, QueryAnswer, ServerMessage, SettleRefusal};

/// A message, and the operations of it that are refused, in the order of their places.
pub(crate) type Allowed = (ClientMessage, Vec<DeniedOp>);

/// The result of looking at one message.
#[derive(Debug, PartialEq)]
pub(crate) enum Screened {
    /// Goes on, all of it or some operations of it.
    Allowed(Allowed),
    /// Refused, with this answer if its kind has one.
    Answered(Option<ServerMessage>),
    /// Refused, and no message but the end of the session can say so.
    Refused(String),
}

/// Checks whether a message is allowed.
pub(crate) fn screen_message(who: &Principal, message: ClientMessage) -> Screened {
    if let ClientMessage::Request(request) = &message {
        let code = ErrorCode::Unauthorized;
        let denied = denied_ops(who, request).into_iter().map(|(at, why)| DeniedOp { at, code, why });
        let denied = denied.collect();
        return Screened::Allowed((message, denied));
    }
    let Err(denied) = needs::of_message(&message).check(who) else {
        return Screened::Allowed((message, Vec::new()));
    };
    let (code, text) = (ErrorCode::Unauthorized, denied.to_string());
    match message {
        ClientMessage::Query { corr, .. } => {
            let answer = QueryAnswer::Failed { code, message: text };
            Screened::Answered(Some(ServerMessage::Answer { corr, answer }))
        }
        ClientMessage::Register { registration, .. } => {
            Screened::Answered(Some(ServerMessage::RegisterRefused { registration, code, message: text }))
        }
        // A client that may not register has no deliveries to settle.
        ClientMessage::Settle(settlements) => {
            let refused = settlements.into_iter().map(|s| (s.id, SettleRefusal::NotYours)).collect();
            Screened::Answered(Some(ServerMessage::Settled { accepted: 0, refused }))
        }
        ClientMessage::Extend { .. } => Screened::Answered(None),
        _ => Screened::Refused(text),
    }
}
