//! Requests of clients some of whose operations are not answered yet.
//!
//! Invariant: every operation is answered once; a request is forgotten with its last answer.

use mtimer_protocol::{ErrorCode, OpReply};
use mtimer_types::Time;
use slab::Slab;

use super::pending::ReplyRef;
use crate::api::SessionId;

#[derive(Debug)]
struct OpenRequest {
    session: SessionId,
    corr: u64,
    first_sent: Time,
    replies: Vec<OpReply>,
    missing: usize,
}

/// A request all of whose operations are answered.
#[derive(Debug)]
pub(super) struct AnsweredRequest {
    pub(super) session: SessionId,
    pub(super) corr: u64,
    pub(super) replies: Vec<OpReply>,
}

/// The open requests.
#[derive(Debug, Default)]
pub(super) struct OpenRequests(Slab<OpenRequest>);

impl OpenRequests {
    /// Opens a request of so many operations, and returns its number. `first_sent`: when its client
    /// sent it for the first time, by the cluster clock.
    pub(super) fn open(
        &mut self,
        session: SessionId,
        corr: u64,
        first_sent: Time,
        operations: usize,
    ) -> usize {
        let missing = OpReply::Failed { code: ErrorCode::Unknown, message: String::new() };
        let replies = vec![missing; operations];
        self.0.insert(OpenRequest { session, corr, first_sent, replies, missing: operations })
    }

    /// Who has sent a request.
    pub(super) fn session(&self, of: ReplyRef) -> Option<SessionId> {
        self.0.get(of.request).map(|open| open.session)
    }

    /// When its client sent a request for the first time.
    pub(super) fn first_sent(&self, of: ReplyRef) -> Option<Time> {
        self.0.get(of.request).map(|open| open.first_sent)
    }

    /// Answers one operation. Returns the request if it was the last.
    pub(super) fn answer(&mut self, to: ReplyRef, reply: OpReply) -> Option<AnsweredRequest> {
        let open = self.0.get_mut(to.request)?;
        open.replies[to.index] = reply;
        open.missing -= 1;
        if open.missing > 0 {
            return None;
        }
        let OpenRequest { session, corr, replies, .. } = self.0.remove(to.request);
        Some(AnsweredRequest { session, corr, replies })
    }

    /// How many are open.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use mtimer_protocol::ops::PurgeReply;

    use super::*;

    #[test]
    fn a_request_is_answered_with_its_last_operation_and_in_their_order() {
        let mut requests = OpenRequests::default();
        let request = requests.open(SessionId(7), 3, Time::from_ms(5), 2);
        let at = |index| ReplyRef { request, index };
        assert_eq!(requests.session(at(0)), Some(SessionId(7)));
        assert_eq!(requests.first_sent(at(0)), Some(Time::from_ms(5)));
        assert!(requests.answer(at(1), PurgeReply::Done.into()).is_none());
        let answered = requests.answer(at(0), PurgeReply::NotFound.into()).unwrap();
        assert_eq!((answered.session, answered.corr), (SessionId(7), 3));
        assert_eq!(answered.replies, [PurgeReply::NotFound.into(), PurgeReply::Done.into()]);
        assert_eq!((requests.len(), requests.session(at(0))), (0, None));
    }
}
