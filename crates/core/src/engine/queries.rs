//! What clients ask about: one timer, listings, the broker's state.

use mtimer_protocol::{
    DeadRow, ErrorCode, Query, QueryAnswer, ServerMessage, Status, TimerState, TimerView, UnconfirmedRow,
};
use mtimer_store::{Census, DeadFilter, Place, Record};
use mtimer_types::{PartitionId, Target};

use super::Engine;
use super::partition::Pending;
use super::table::State;
use crate::api::{Call, CallAnswer, Effect, Now, SessionId};

/// Rows of one page of a listing: with the largest payloads they still fit a frame. Whoever wants more asks again.
const PAGE_ROWS: u32 = 48;

/// What the answer to a call is for.
#[derive(Debug)]
pub(super) enum QueryPart {
    Get { session: SessionId, corr: u64 },
    Dead { session: SessionId, corr: u64 },
    Unconfirmed { session: SessionId, corr: u64 },
    Status(usize),
    View(usize, PartitionId),
}

impl QueryPart {
    /// Who waits for this answer alone.
    fn asker(&self) -> Option<(SessionId, u64)> {
        match *self {
            Self::Get { session, corr }
            | Self::Dead { session, corr }
            | Self::Unconfirmed { session, corr } => Some((session, corr)),
            Self::Status(_) | Self::View(..) => None,
        }
    }
}

/// A status that some partitions have not added to yet.
#[derive(Debug)]
pub(super) struct StatusQuery {
    session: SessionId,
    corr: u64,
    missing: usize,
    status: Status,
}

impl Engine {
    pub(super) fn query(&mut self, now: Now, session: SessionId, corr: u64, query: Query) {
        match query {
            Query::Get(target) => {
                let at = match &target {
                    Target::Id(id) => id.partition(),
                    Target::Key(dest, key) => PartitionId::of_key(dest, key, self.options.partitions),
                };
                self.ask(now, at, QueryPart::Get { session, corr }, Call::Get(target));
            }
            Query::Dead { group, app, cursor, limit } => {
                let (at, cursor) = cursor.unwrap_or_default();
                let call = Call::Dead(DeadFilter { group, app }, cursor, limit.clamp(1, PAGE_ROWS));
                self.ask(now, PartitionId(at), QueryPart::Dead { session, corr }, call);
            }
            Query::Unconfirmed { cursor, limit } => {
                let (at, cursor) = cursor.unwrap_or_default();
                let call = Call::Unconfirmed(cursor, limit.clamp(1, PAGE_ROWS));
                self.ask(now, PartitionId(at), QueryPart::Unconfirmed { session, corr }, call);
            }
            Query::Status => self.ask_status(now, session, corr),
            Query::Broker => self.ask_view(now, session, corr),
            // The shell answers these itself where there is a cluster.
            Query::Cluster | Query::Drain { .. } => {
                let message = "this broker has no cluster around it".to_owned();
                self.answer(session, corr, QueryAnswer::Failed { code: ErrorCode::Invalid, message });
            }
        }
    }

    fn ask(&mut self, now: Now, at: PartitionId, part: QueryPart, call: Call) {
        if !self.serves(at) {
            let (Some((session, corr)), answer) = (part.asker(), self.not_asked(at)) else { return };
            return self.answer(session, corr, answer);
        }
        match self.partition(at) {
            None => {}
            Some(p) => match &p.down {
                Some(why) => {
                    let text = format!("the store is away: {why}");
                    self.query_failed(part, ErrorCode::Unavailable, &text);
                }
                None => self.ask_store(now, at, part, call),
            },
        }
    }

    /// Asks the store, behind the acknowledgements that wait for others to go along with.
    pub(super) fn ask_store(&mut self, now: Now, at: PartitionId, part: QueryPart, call: Call) {
        self.let_go(now, at);
        self.call(at, Pending::Query(part), call);
    }

    fn ask_status(&mut self, now: Now, session: SessionId, corr: u64) {
        let (loaded, loaded_bytes) = self.memory();
        let mut status = Status {
            sessions: self.roster.sessions.len() as u64,
            loaded,
            loaded_bytes,
            ready: self.roster.dests().map(|(_, d)| d.ready.len() as u64).sum(),
            counters: self.counters().map(|(name, n)| (name.to_owned(), n)).collect(),
            ..Status::default()
        };
        status.counters.sort_unstable();
        for p in self.partitions.iter().flatten() {
            let flying = p.table.iter().filter(|(_, e)| matches!(e.state, State::InFlight(_))).count();
            status.in_flight += flying as u64;
        }
        let owned: Vec<PartitionId> =
            self.partitions.iter().flatten().filter(|p| p.down.is_none()).map(|p| p.id).collect();
        let missing = owned.len();
        let query = self.statuses.insert(StatusQuery { session, corr, missing, status });
        if missing == 0 {
            self.finish_status(query);
        }
        for at in owned {
            self.ask_store(now, at, QueryPart::Status(query), Call::Census);
        }
    }

    pub(super) fn query_answered(&mut self, at: PartitionId, part: QueryPart, answer: CallAnswer) {
        let next_partition = |next: Option<u64>, partitions: u16| match next {
            Some(cursor) => Some((at.0, cursor)),
            None => (at.0 + 1 < partitions).then_some((at.0 + 1, 0)),
        };
        match (part, answer) {
            (QueryPart::Get { session, corr }, CallAnswer::Get(found)) => {
                let view = found.map(|(record, place)| self.view(record, place));
                self.answer(session, corr, QueryAnswer::Timer(view));
            }
            (QueryPart::Dead { session, corr }, CallAnswer::Dead(page)) => {
                let next = next_partition(page.next, self.options.partitions);
                let rows = page.rows.into_iter().map(|d| DeadRow {
                    timer: (*d.record.timer).clone(),
                    reason: d.reason,
                    attempts: d.record.progress.failed,
                    last_error: d.record.progress.last_error.map(Into::into),
                    died: d.died,
                });
                let answer = QueryAnswer::Dead { rows: rows.collect(), next };
                self.answer(session, corr, answer);
            }
            (QueryPart::Unconfirmed { session, corr }, CallAnswer::Unconfirmed(page)) => {
                let next = next_partition(page.next, self.options.partitions);
                let rows = page.rows.into_iter();
                let rows = rows.map(|r| UnconfirmedRow { timer: (*r.record.timer).clone(), epoch: r.epoch });
                let answer = QueryAnswer::Unconfirmed { rows: rows.collect(), next };
                self.answer(session, corr, answer);
            }
            (QueryPart::Status(query), CallAnswer::Census(census)) => self.add_census(query, Some(census)),
            (QueryPart::View(query, at), CallAnswer::Census(census)) => {
                self.add_to_view(query, at, Some(census));
            }
            (part, _) => {
                self.query_failed(part, ErrorCode::Unavailable, "the store gave an answer of another kind")
            }
        }
    }

    fn view(&mut self, record: Record, place: Place) -> TimerView {
        let id = record.timer.id;
        let flight = self.partition(id.partition()).and_then(|p| {
            let epoch = p.epoch;
            match &p.table.get(id)?.state {
                State::InFlight(f) => Some(TimerState::InFlight { epoch, attempt: f.attempt }),
                _ => None,
            }
        });
        let state = match place {
            Place::Dead => TimerState::Dead,
            _ if flight.is_some() => flight.unwrap_or(TimerState::Parked),
            Place::Pending { fire, .. } if record.progress.failed == record.progress.budget_from => {
                TimerState::Pending { fire }
            }
            Place::Pending { fire, tier } => TimerState::Retrying { fire, tier },
            Place::Parked => TimerState::Parked,
            Place::Taken { unconfirmed: true, .. } => TimerState::Unconfirmed,
            Place::Taken { epoch, .. } => TimerState::InFlight { epoch, attempt: record.attempt(false) },
        };
        TimerView {
            timer: (*record.timer).clone(),
            state,
            failed: record.progress.failed,
            stopped: record.progress.stopped,
            last_error: record.progress.last_error.map(Into::into),
        }
    }

    fn add_census(&mut self, query: usize, census: Option<Census>) {
        let Some(q) = self.statuses.get_mut(query) else { return };
        let c = census.unwrap_or_default();
        q.status.pending += c.pending;
        q.status.retrying += c.retrying;
        q.status.parked += c.parked;
        q.status.taken += c.taken;
        q.status.dead += c.dead;
        q.status.keys += c.keys;
        q.status.residue += c.residue;
        q.missing -= 1;
        if q.missing == 0 {
            self.finish_status(query);
        }
    }

    fn finish_status(&mut self, query: usize) {
        let StatusQuery { session, corr, status, .. } = self.statuses.remove(query);
        self.answer(session, corr, QueryAnswer::Status(status));
    }

    pub(super) fn query_failed(&mut self, part: QueryPart, code: ErrorCode, message: &str) {
        match part {
            QueryPart::Get { session, corr }
            | QueryPart::Dead { session, corr }
            | QueryPart::Unconfirmed { session, corr } => {
                self.answer(session, corr, QueryAnswer::Failed { code, message: message.to_owned() });
            }
            QueryPart::Status(query) => self.add_census(query, None),
            QueryPart::View(query, at) => self.add_to_view(query, at, None),
        }
    }

    pub(super) fn answer(&mut self, session: SessionId, corr: u64, answer: QueryAnswer) {
        if self.roster.sessions.contains_key(&session) {
            self.effects.push(Effect::Send(session, ServerMessage::Answer { corr, answer }));
        }
    }
}
