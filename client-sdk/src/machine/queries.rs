//! Questions on their way. They change nothing, so they are simply asked again until they are
//! answered in time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use mtimer_protocol::{ErrorCode, Query, QueryAnswer};

use crate::RequestError;
use crate::machine::backoff::RETRY;
use crate::machine::caller::Waiting;
use crate::machine::moment::{Moment, earlier};
use crate::machine::random::Random;
use crate::machine::requests::ABANDONED_WITHIN;
use crate::machine::routes::{Goal, Routes};

/// One question that somebody waits for.
#[derive(Debug)]
pub(crate) struct PendingQuery<T> {
    query: Query,
    goal: Goal,
    token: T,
    at: Moment,
    timeout: Duration,
    tries: u32,
    /// Where the last answer sent it.
    hint: Option<String>,
    last: Option<RequestError>,
}

/// A question has ended.
#[derive(Debug)]
pub(crate) struct Told<T> {
    pub(crate) question: T,
    pub(crate) answer: Result<QueryAnswer, RequestError>,
}

impl<T: Waiting> PendingQuery<T> {
    pub(crate) const fn new(query: Query, goal: Goal, token: T, at: Moment, timeout: Duration) -> Self {
        Self { query, goal, token, at, timeout, tries: 0, hint: None, last: None }
    }

    fn answer(self, answer: Result<QueryAnswer, RequestError>) -> Told<T> {
        Told { question: self.token, answer }
    }

    fn connection(&mut self, routes: &Routes) -> Option<u64> {
        let hinted = self.hint.take().and_then(|name| routes.query_connection(&Goal::Broker(name)));
        hinted.or_else(|| routes.query_connection(&self.goal))
    }

    /// When it is given up.
    fn limit(&self) -> Moment {
        self.at + self.timeout
    }

    fn is_late(&self, now: Moment) -> bool {
        self.limit() <= now || self.token.is_abandoned()
    }

    fn give_up(mut self, reason: &str) -> Told<T> {
        let ms = self.timeout.as_millis() as u64;
        let none = RequestError::Unanswered { ms, reason: reason.to_owned() };
        let error = self.last.take().unwrap_or(none);
        self.answer(Err(error))
    }
}

#[derive(Debug)]
struct ConnectionQueries<T> {
    queue: VecDeque<PendingQuery<T>>,
    sent: BTreeMap<u64, PendingQuery<T>>,
}

/// All questions of a client.
#[derive(Debug)]
pub(crate) struct Queries<T> {
    connections: BTreeMap<u64, ConnectionQueries<T>>,
    /// Who is to be asked is not connected.
    unrouted: VecDeque<PendingQuery<T>>,
    /// To be queued again at that time.
    waiting: BTreeMap<(Moment, u64), PendingQuery<T>>,
    last_number: u64,
    /// Nothing has to be given up before.
    look_at: Option<Moment>,
    /// Questions that have ended, for the caller.
    told: VecDeque<Told<T>>,
    closed: bool,
}

impl<T: Waiting> Queries<T> {
    pub(crate) const fn new() -> Self {
        Self {
            connections: BTreeMap::new(),
            unrouted: VecDeque::new(),
            waiting: BTreeMap::new(),
            last_number: 0,
            look_at: None,
            told: VecDeque::new(),
            closed: false,
        }
    }

    /// Returns the next question that has ended.
    pub(crate) fn poll_told(&mut self) -> Option<Told<T>> {
        self.told.pop_front()
    }

    /// When [`Queries::sweep`] is due.
    pub(crate) fn next_timeout(&self) -> Option<Moment> {
        earlier(self.look_at, self.waiting.keys().next().map(|(at, _)| *at))
    }

    pub(crate) fn opened(&mut self, connection: u64) {
        let queries = ConnectionQueries { queue: VecDeque::new(), sent: BTreeMap::new() };
        self.connections.insert(connection, queries);
    }

    /// Queues a question; says for which connection. Once the client is closed it is answered.
    pub(crate) fn push(&mut self, mut asked: PendingQuery<T>, routes: &Routes) -> Option<u64> {
        if self.closed {
            self.told.push_back(asked.answer(Err(RequestError::Closed)));
            return None;
        }
        self.look_at = earlier(self.look_at, Some(asked.limit()));
        let connection = asked.connection(routes);
        match connection.and_then(|c| self.connections.get_mut(&c)) {
            Some(queries) => queries.queue.push_back(asked),
            // Only this one can answer, and it may never come back.
            None if matches!(asked.goal, Goal::Broker(_)) => {
                self.told.push_back(asked.give_up("the broker is not connected"));
            }
            None => self.unrouted.push_back(asked),
        }
        connection
    }

    /// Somebody does not wait any more.
    pub(crate) fn abandoned(&mut self, now: Moment) {
        if !self.is_empty() {
            self.look_at = earlier(self.look_at, Some(now + ABANDONED_WITHIN));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let idle = |queries: &ConnectionQueries<T>| queries.queue.is_empty() && queries.sent.is_empty();
        self.unrouted.is_empty() && self.waiting.is_empty() && self.connections.values().all(idle)
    }

    /// Whether everything that was asked over this connection is answered.
    pub(crate) fn none_sent(&self, connection: u64) -> bool {
        self.connections.get(&connection).is_none_or(|queries| queries.sent.is_empty())
    }

    pub(crate) fn next(&mut self, connection: u64) -> Option<(u64, Query)> {
        let queries = self.connections.get_mut(&connection)?;
        let asked = loop {
            let asked = queries.queue.pop_front()?;
            if !asked.token.is_abandoned() {
                break asked;
            }
        };
        self.last_number += 1;
        let query = asked.query.clone();
        queries.sent.insert(self.last_number, asked);
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
        connection: u64,
        corr: u64,
        answer: QueryAnswer,
        now: Moment,
        routes: &mut Routes,
        random: &mut impl Random,
    ) -> Result<(), &'static str> {
        if corr == 0 || corr > self.last_number {
            return Err("an answer to a query that was never made");
        }
        let sent = self.connections.get_mut(&connection).and_then(|queries| queries.sent.remove(&corr));
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
                self.told.push_back(asked.answer(Ok(answer)));
                return Ok(());
            }
        };
        if let (ErrorCode::NotOwner, Goal::Partition(partition), None) = (code, &asked.goal, &asked.hint) {
            routes.disowned(*partition, connection);
        }
        let error = RequestError::Refused { code, message };
        if !is_passing(code) {
            self.told.push_back(asked.answer(Err(error)));
            return Ok(());
        }
        let again = now + RETRY.jittered(asked.tries, random.jitter());
        if again >= asked.limit() {
            self.told.push_back(asked.answer(Err(error)));
            return Ok(());
        }
        asked.tries += 1;
        asked.last = Some(error);
        self.waiting.insert((again, corr), asked);
        Ok(())
    }

    /// A connection is gone: the questions asked over it are asked again.
    pub(crate) fn closed(&mut self, connection: u64, routes: &Routes) {
        let Some(queries) = self.connections.remove(&connection) else { return };
        for asked in queries.sent.into_values().chain(queries.queue) {
            self.push(asked, routes);
        }
    }

    /// The routes have changed: everything that is queued finds its way again.
    pub(crate) fn reroute(&mut self, routes: &Routes) {
        let queues = self.connections.values_mut().map(|queries| std::mem::take(&mut queries.queue));
        let mut all: Vec<_> = queues.collect();
        all.push(std::mem::take(&mut self.unrouted));
        for asked in all.into_iter().flatten() {
            self.push(asked, routes);
        }
    }

    /// Queues questions that have waited long enough, and gives up questions that have waited too
    /// long. Says whether something was queued.
    pub(crate) fn sweep(&mut self, now: Moment, unrouted: impl Fn(&Goal) -> String, routes: &Routes) -> bool {
        if self.look_at.is_some_and(|at| at <= now) {
            self.give_up(now, unrouted);
            self.look_at = self.next_limit();
        }
        let mut queued = false;
        while let Some(entry) = self.waiting.first_entry().filter(|e| e.key().0 <= now) {
            let asked = entry.remove();
            self.push(asked, routes);
            queued = true;
        }
        queued
    }

    fn give_up(&mut self, now: Moment, unrouted: impl Fn(&Goal) -> String) {
        for asked in take_late(&mut self.unrouted, now) {
            let reason = unrouted(&asked.goal);
            self.told.push_back(asked.give_up(&reason));
        }
        for queries in self.connections.values_mut() {
            let late = take_late(&mut queries.queue, now).into_iter();
            self.told.extend(late.map(|asked| asked.give_up("the broker does not take it")));
            let late = take_late_sent(&mut queries.sent, now).into_iter();
            self.told.extend(late.map(|asked| asked.give_up("the broker was asked and has not answered")));
        }
        let late = take_late_sent(&mut self.waiting, now).into_iter();
        self.told.extend(late.map(|asked| asked.give_up("it was to be asked again")));
    }

    /// When the first question has to be given up.
    fn next_limit(&self) -> Option<Moment> {
        let connections = self.connections.values();
        let of_connections =
            connections.flat_map(|queries| queries.queue.iter().chain(queries.sent.values()));
        let all = of_connections.chain(&self.unrouted).chain(self.waiting.values());
        all.map(PendingQuery::limit).min()
    }

    /// The client is closed.
    pub(crate) fn close(&mut self) {
        let mut all = std::mem::take(&mut self.unrouted);
        all.extend(std::mem::take(&mut self.waiting).into_values());
        for queries in std::mem::take(&mut self.connections).into_values() {
            all.extend(queries.queue.into_iter().chain(queries.sent.into_values()));
        }
        self.told.extend(all.into_iter().map(|asked| asked.answer(Err(RequestError::Closed))));
        (self.look_at, self.closed) = (None, true);
    }
}

/// Whether a broker that refuses a question with this code may answer it later.
const fn is_passing(code: ErrorCode) -> bool {
    match code {
        ErrorCode::NotOwner
        | ErrorCode::Unavailable
        | ErrorCode::Overloaded
        | ErrorCode::LimitReached
        | ErrorCode::Stopping => true,
        ErrorCode::Invalid
        | ErrorCode::Unauthorized
        | ErrorCode::Version
        | ErrorCode::StoreFull
        | ErrorCode::Unknown
        | ErrorCode::NotReplicated
        | ErrorCode::Protocol => false,
    }
}

fn take_late<T: Waiting>(queue: &mut VecDeque<PendingQuery<T>>, now: Moment) -> Vec<PendingQuery<T>> {
    let (late, rest): (VecDeque<_>, _) =
        std::mem::take(queue).into_iter().partition(|asked| asked.is_late(now));
    *queue = rest;
    late.into()
}

fn take_late_sent<K: Ord, T: Waiting>(
    sent: &mut BTreeMap<K, PendingQuery<T>>,
    now: Moment,
) -> Vec<PendingQuery<T>> {
    if !sent.values().any(|asked| asked.is_late(now)) {
        return Vec::new();
    }
    let (late, rest): (BTreeMap<_, _>, _) =
        std::mem::take(sent).into_iter().partition(|(_, asked)| asked.is_late(now));
    *sent = rest;
    late.into_values().collect()
}
