//! Questions on their way. They change nothing, so they are simply asked again until they are
//! answered in time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use mtimer_protocol::{ErrorCode, Query, QueryAnswer};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use crate::RequestError;
use crate::backoff::RETRY;
use crate::routes::{Goal, Routes};

/// One question that somebody waits for.
#[derive(Debug)]
pub(crate) struct PendingQuery {
    query: Query,
    goal: Goal,
    reply: oneshot::Sender<Result<QueryAnswer, RequestError>>,
    /// Bounds how many operations and questions are under way.
    _permit: OwnedSemaphorePermit,
    at: Instant,
    timeout: Duration,
    tries: u32,
    /// Where the last answer sent it.
    hint: Option<String>,
    last: Option<RequestError>,
}

impl PendingQuery {
    pub(crate) fn new(
        query: Query,
        goal: Goal,
        reply: oneshot::Sender<Result<QueryAnswer, RequestError>>,
        permit: OwnedSemaphorePermit,
        timeout: Duration,
    ) -> Self {
        let at = Instant::now();
        Self { query, goal, reply, _permit: permit, at, timeout, tries: 0, hint: None, last: None }
    }

    fn answer(self, answer: Result<QueryAnswer, RequestError>) {
        // The caller may have stopped waiting.
        let _ = self.reply.send(answer);
    }

    fn session(&mut self, routes: &Routes) -> Option<u64> {
        let hinted = self.hint.take().and_then(|name| routes.query_session(&Goal::Broker(name)));
        hinted.or_else(|| routes.query_session(&self.goal))
    }

    fn is_late(&self, now: Instant) -> bool {
        self.at + self.timeout <= now || self.reply.is_closed()
    }

    fn give_up(mut self, reason: &str) {
        let ms = self.timeout.as_millis() as u64;
        let none = RequestError::Unanswered { ms, reason: reason.to_owned() };
        let error = self.last.take().unwrap_or(none);
        self.answer(Err(error));
    }
}

#[derive(Debug, Default)]
struct SessionQuestions {
    queue: VecDeque<PendingQuery>,
    sent: BTreeMap<u64, PendingQuery>,
}

/// All questions of a client.
#[derive(Debug, Default)]
pub(crate) struct Queries {
    sessions: BTreeMap<u64, SessionQuestions>,
    /// Who is to be asked is not connected.
    unrouted: VecDeque<PendingQuery>,
    /// To be queued again at that time.
    waiting: BTreeMap<(Instant, u64), PendingQuery>,
    last_number: u64,
}

impl Queries {
    pub(crate) fn opened(&mut self, session: u64) {
        self.sessions.insert(session, SessionQuestions::default());
    }

    /// Queues a question; says for which connection.
    pub(crate) fn push(&mut self, mut asked: PendingQuery, routes: &Routes) -> Option<u64> {
        let session = asked.session(routes);
        match session.and_then(|s| self.sessions.get_mut(&s)) {
            Some(connection) => connection.queue.push_back(asked),
            // Only this one can answer, and it may never come back.
            None if matches!(asked.goal, Goal::Broker(_)) => asked.give_up("the broker is not connected"),
            None => self.unrouted.push_back(asked),
        }
        session
    }

    pub(crate) fn is_empty(&self) -> bool {
        let idle = |connection: &SessionQuestions| connection.queue.is_empty() && connection.sent.is_empty();
        self.unrouted.is_empty() && self.waiting.is_empty() && self.sessions.values().all(idle)
    }

    /// Whether everything that was asked over this connection is answered.
    pub(crate) fn none_sent(&self, session: u64) -> bool {
        self.sessions.get(&session).is_none_or(|connection| connection.sent.is_empty())
    }

    pub(crate) fn next(&mut self, session: u64) -> Option<(u64, Query)> {
        let connection = self.sessions.get_mut(&session)?;
        let asked = loop {
            let asked = connection.queue.pop_front()?;
            if !asked.reply.is_closed() {
                break asked;
            }
        };
        self.last_number += 1;
        let query = asked.query.clone();
        connection.sent.insert(self.last_number, asked);
        Some((self.last_number, query))
    }

    /// A number for a question.
    pub(crate) fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Takes in an answer. An error is a breach of the protocol, and changes nothing.
    pub(crate) fn answer(
        &mut self,
        session: u64,
        corr: u64,
        answer: QueryAnswer,
        now: Instant,
        routes: &mut Routes,
    ) -> Result<(), &'static str> {
        if corr == 0 || corr > self.last_number {
            return Err("an answer to a query that was never made");
        }
        let sent = self.sessions.get_mut(&session).and_then(|connection| connection.sent.remove(&corr));
        let Some(mut asked) = sent else { return Ok(()) };
        let (code, message) = match answer {
            QueryAnswer::Failed { code, message } => (code, message),
            QueryAnswer::Moved { owner } => {
                let message = format!("{owner} is to be asked");
                match asked.goal {
                    Goal::Partition(partition) => routes.moved(partition, &owner),
                    _ => asked.hint = Some(owner),
                }
                if asked.tries == 0 {
                    asked.tries = 1;
                    self.push(asked, routes);
                    return Ok(());
                }
                (ErrorCode::NotOwner, message)
            }
            answer => {
                asked.answer(Ok(answer));
                return Ok(());
            }
        };
        if let (ErrorCode::NotOwner, Goal::Partition(partition), None) = (code, &asked.goal, &asked.hint) {
            routes.disowned(*partition, session);
        }
        let error = RequestError::Refused { code, message };
        let again = now + RETRY.jittered(asked.tries, rand::random());
        let passing = matches!(
            code,
            ErrorCode::NotOwner
                | ErrorCode::Unavailable
                | ErrorCode::Overloaded
                | ErrorCode::LimitReached
                | ErrorCode::Stopping
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

    /// A connection is gone: what was asked over it is asked again.
    pub(crate) fn closed(&mut self, session: u64, routes: &Routes) {
        let Some(connection) = self.sessions.remove(&session) else { return };
        for asked in connection.sent.into_values().chain(connection.queue) {
            self.push(asked, routes);
        }
    }

    /// The routes have changed: everything that is queued finds its way again.
    pub(crate) fn reroute(&mut self, routes: &Routes) {
        let queues = self.sessions.values_mut().map(|connection| std::mem::take(&mut connection.queue));
        let mut all: Vec<_> = queues.collect();
        all.push(std::mem::take(&mut self.unrouted));
        for asked in all.into_iter().flatten() {
            self.push(asked, routes);
        }
    }

    /// Queues what has waited long enough, and gives up what has waited too long. Says whether
    /// something was queued.
    pub(crate) fn sweep(
        &mut self,
        now: Instant,
        unrouted: impl Fn(&Goal) -> String,
        routes: &Routes,
    ) -> bool {
        for asked in take_late(&mut self.unrouted, now) {
            let reason = unrouted(&asked.goal);
            asked.give_up(&reason);
        }
        for connection in self.sessions.values_mut() {
            let late = take_late(&mut connection.queue, now);
            late.into_iter().for_each(|asked| asked.give_up("the broker does not take it"));
            let late = take_late_sent(&mut connection.sent, now);
            late.into_iter().for_each(|asked| asked.give_up("the broker was asked and has not answered"));
        }
        let late = take_late_sent(&mut self.waiting, now);
        late.into_iter().for_each(|asked| asked.give_up("it was to be asked again"));
        let mut queued = false;
        while let Some(entry) = self.waiting.first_entry().filter(|e| e.key().0 <= now) {
            let asked = entry.remove();
            self.push(asked, routes);
            queued = true;
        }
        queued
    }

    /// The client is closed.
    pub(crate) fn close(&mut self) {
        let mut all = std::mem::take(&mut self.unrouted);
        all.extend(std::mem::take(&mut self.waiting).into_values());
        for connection in std::mem::take(&mut self.sessions).into_values() {
            all.extend(connection.queue.into_iter().chain(connection.sent.into_values()));
        }
        all.into_iter().for_each(|asked| asked.answer(Err(RequestError::Closed)));
    }
}

fn take_late(queue: &mut VecDeque<PendingQuery>, now: Instant) -> Vec<PendingQuery> {
    let (late, rest): (VecDeque<_>, _) =
        std::mem::take(queue).into_iter().partition(|asked| asked.is_late(now));
    *queue = rest;
    late.into()
}

fn take_late_sent<K: Ord>(sent: &mut BTreeMap<K, PendingQuery>, now: Instant) -> Vec<PendingQuery> {
    if !sent.values().any(|asked| asked.is_late(now)) {
        return Vec::new();
    }
    let (late, rest): (BTreeMap<_, _>, _) =
        std::mem::take(sent).into_iter().partition(|(_, asked)| asked.is_late(now));
    *sent = rest;
    late.into_values().collect()
}
