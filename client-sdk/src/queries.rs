//! Questions on their way. They change nothing, so they are simply asked again until they are answered in time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use mtimer_protocol::{ErrorCode, Query, QueryAnswer};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use crate::RequestError;
use crate::backoff::backoff;

const RETRY_FIRST: Duration = Duration::from_millis(25);
const RETRY_MOST: Duration = Duration::from_secs(1);

/// One question that somebody waits for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) query: Query,
    pub(crate) reply: oneshot::Sender<Result<QueryAnswer, RequestError>>,
    /// Its part of the room for operations on their way.
    pub(crate) _room: OwnedSemaphorePermit,
    pub(crate) at: Instant,
    pub(crate) timeout: Duration,
    pub(crate) tries: u32,
    pub(crate) last: Option<RequestError>,
}

impl Asked {
    fn answer(self, answer: Result<QueryAnswer, RequestError>) {
        // Whoever asked may have stopped waiting.
        let _ = self.reply.send(answer);
    }
}

/// All questions of a client.
#[derive(Debug, Default)]
pub(crate) struct Queries {
    queue: VecDeque<Asked>,
    /// To be queued again at that time.
    waiting: BTreeMap<(Instant, u64), Asked>,
    sent: BTreeMap<u64, Asked>,
    last_number: u64,
}

impl Queries {
    pub(crate) fn push(&mut self, asked: Asked) {
        self.queue.push_back(asked);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.waiting.is_empty() && self.sent.is_empty()
    }

    pub(crate) fn next(&mut self) -> Option<(u64, Query)> {
        let asked = loop {
            let asked = self.queue.pop_front()?;
            if !asked.reply.is_closed() {
                break asked;
            }
        };
        let (number, query) = (self.number(), asked.query.clone());
        self.sent.insert(number, asked);
        Some((number, query))
    }

    /// A number for a question.
    pub(crate) fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Takes in an answer. An error is a breach of the protocol, and changes nothing.
    pub(crate) fn answer(
        &mut self,
        corr: u64,
        answer: QueryAnswer,
        now: Instant,
    ) -> Result<(), &'static str> {
        if corr == 0 || corr > self.last_number {
            return Err("an answer to a query that was never made");
        }
        let Some(mut asked) = self.sent.remove(&corr) else { return Ok(()) };
        let QueryAnswer::Failed { code, message } = answer else {
            asked.answer(Ok(answer));
            return Ok(());
        };
        let error = RequestError::Refused { code, message };
        let again = now + backoff(asked.tries, RETRY_FIRST, RETRY_MOST);
        let passing = matches!(
            code,
            ErrorCode::NotOwner | ErrorCode::Unavailable | ErrorCode::Overloaded | ErrorCode::Stopping
        );
        if !passing || again >= asked.at + asked.timeout {
            asked.answer(Err(error));
            return Ok(());
        }
        asked.tries += 1;
        asked.last = Some(error);
        self.waiting.insert((again, corr), asked);
        Ok(())
    }

    /// The connection is gone: what was asked over it is asked again over the next.
    pub(crate) fn disconnected(&mut self) {
        self.queue.extend(std::mem::take(&mut self.sent).into_values());
    }

    /// Queues what has waited long enough, and gives up what has waited too long. Says whether something was queued.
    pub(crate) fn sweep(&mut self, now: Instant, reason: &str) -> bool {
        let late = |asked: &Asked| asked.at + asked.timeout <= now || asked.reply.is_closed();
        let sent = std::mem::take(&mut self.sent).into_iter();
        let (late_sent, sent): (BTreeMap<_, _>, _) = sent.partition(|(_, asked)| late(asked));
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (late_waiting, waiting): (BTreeMap<_, _>, _) = waiting.partition(|(_, asked)| late(asked));
        let (late_queue, queue): (VecDeque<_>, _) =
            std::mem::take(&mut self.queue).into_iter().partition(late);
        (self.sent, self.waiting, self.queue) = (sent, waiting, queue);
        let given_up =
            late_queue.into_iter().chain(late_sent.into_values()).chain(late_waiting.into_values());
        for mut asked in given_up {
            let ms = asked.timeout.as_millis() as u64;
            let none = RequestError::Unanswered { ms, reason: reason.to_owned() };
            let error = asked.last.take().unwrap_or(none);
            asked.answer(Err(error));
        }
        let mut queued = false;
        while let Some(entry) = self.waiting.first_entry().filter(|e| e.key().0 <= now) {
            self.queue.push_back(entry.remove());
            queued = true;
        }
        queued
    }

    /// The client is closed.
    pub(crate) fn close(&mut self) {
        let waiting = std::mem::take(&mut self.waiting).into_values();
        let sent = std::mem::take(&mut self.sent).into_values();
        for asked in std::mem::take(&mut self.queue).into_iter().chain(waiting).chain(sent) {
            asked.answer(Err(RequestError::Closed));
        }
    }
}
