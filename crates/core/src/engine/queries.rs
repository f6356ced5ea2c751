//! Clients' questions about single timers, and listings.
//!
//! How many a session may have unanswered is bounded where they come in; how many are at the store,
//! by `questions`.

use mtimer_protocol::{DeadRow, ErrorCode, Query, QueryAnswer, TimerState, TimerView, UnconfirmedRow};
use mtimer_store::{DeadFilter, ListPage, Listed, Listing, Place, Record};
use mtimer_types::PartitionId;

use super::Engine;
use super::calls::OpenCall;
use super::counts::{About, Asker};
use super::questions::QueryPart;
use crate::api::{Call, CallAnswer, Now, SessionId};

/// Rows of one page of a listing: with the largest payloads they still fit a frame. A client that
/// wants more asks again.
const PAGE_ROWS: u32 = 48;

impl Engine {
    pub(super) fn query(&mut self, session: SessionId, corr: u64, query: Query) {
        match query {
            Query::Get(target) => {
                let at = target.partition(self.options.partitions);
                self.ask(at, QueryPart::One { session, corr }, Call::Get(target));
            }
            Query::Dead { group, app, cursor, limit } => {
                self.ask_page(session, corr, Listed::Dead(DeadFilter { group, app }), cursor, limit);
            }
            Query::Unconfirmed { cursor, limit } => {
                self.ask_page(session, corr, Listed::Unconfirmed, cursor, limit);
            }
            Query::Status => self.counting.ask(Asker { session, corr, about: About::Status }),
            Query::Broker => self.counting.ask(Asker { session, corr, about: About::Broker }),
            // The shell knows: it puts the reasons in.
            Query::Ready => self.answer(session, corr, QueryAnswer::Ready(Vec::new())),
            // The shell answers these itself where there is a cluster.
            Query::Cluster | Query::Drain { .. } => {
                let message = "this broker has no cluster around it".to_owned();
                self.answer(session, corr, QueryAnswer::Failed { code: ErrorCode::Invalid, message });
            }
        }
    }

    /// Asks for a page of a listing that goes through all partitions, one after the other. The
    /// cursor: which of them, and the cursor there.
    fn ask_page(
        &mut self,
        session: SessionId,
        corr: u64,
        of: Listed,
        cursor: Option<(u16, u64)>,
        limit: u32,
    ) {
        let (at, cursor) = cursor.unwrap_or_default();
        let listing = Listing { of, cursor, limit: limit.clamp(1, PAGE_ROWS) };
        self.ask(PartitionId(at), QueryPart::One { session, corr }, Call::List(listing));
    }

    fn ask(&mut self, at: PartitionId, part: QueryPart, call: Call) {
        if !self.serves(at) {
            let (Some((session, corr)), answer) = (part.asker(), self.not_asked(at)) else { return };
            return self.answer(session, corr, answer);
        }
        match self.partition(at) {
            None => {}
            Some(p) => match p.down() {
                Some(why) => {
                    let text = format!("the store is away: {why}");
                    self.query_failed(at, part, ErrorCode::Unavailable, &text);
                }
                None => p.questions.push(part, call),
            },
        }
    }

    /// Asks the store the waiting questions, as far as it may.
    pub(super) fn ask_waiting(&mut self, now: Now) {
        for at in self.partitions.ids() {
            while let Some(p) = self.partitions.get_mut(at)
                && !p.is_releasing()
                && let Some((part, call)) = p.questions.next()
            {
                self.ask_store(now, at, part, call);
            }
        }
    }

    /// Asks the store, behind the acknowledgements that wait for others to go along with.
    pub(super) fn ask_store(&mut self, now: Now, at: PartitionId, part: QueryPart, call: Call) {
        self.flush_deferred(now, at);
        self.call(at, OpenCall::Query(part), call);
    }

    pub(super) fn query_answered(&mut self, at: PartitionId, part: QueryPart, answer: CallAnswer) {
        if part.asker().is_some()
            && let Some(p) = self.partition(at)
        {
            p.questions.answered();
        }
        match (part, answer) {
            (QueryPart::One { session, corr }, CallAnswer::Get(found)) => {
                let view = found.map(|(record, place)| self.view(record, place));
                self.answer(session, corr, QueryAnswer::Timer(view));
            }
            (QueryPart::One { session, corr }, CallAnswer::List(ListPage::Dead(page))) => {
                let next = self.next_page(at, page.next);
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
            (QueryPart::One { session, corr }, CallAnswer::List(ListPage::Unconfirmed(page))) => {
                let next = self.next_page(at, page.next);
                let rows = page.rows.into_iter();
                let rows = rows.map(|r| UnconfirmedRow { timer: (*r.record.timer).clone(), epoch: r.epoch });
                let answer = QueryAnswer::Unconfirmed { rows: rows.collect(), next };
                self.answer(session, corr, answer);
            }
            (QueryPart::Count(number), CallAnswer::Census(census)) => {
                self.counting.answered(number, at, Some(census));
            }
            (part, _) => {
                let text = "the store gave an answer of another kind";
                self.query_failed(at, part, ErrorCode::Unavailable, text);
            }
        }
    }

    /// Where a listing goes on behind this partition's page: here, or with the next partition.
    fn next_page(&self, at: PartitionId, next: Option<u64>) -> Option<(u16, u64)> {
        match next {
            Some(cursor) => Some((at.0, cursor)),
            None => (at.0 + 1 < self.options.partitions).then_some((at.0 + 1, 0)),
        }
    }

    fn view(&mut self, record: Record, place: Place) -> TimerView {
        let id = record.timer.id;
        let flight = self.partition(id.partition()).and_then(|p| {
            let epoch = p.epoch();
            let flight = p.table.get(id)?.state.flight()?;
            Some(TimerState::InFlight { epoch, attempt: flight.attempt })
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

    pub(super) fn query_failed(&mut self, at: PartitionId, part: QueryPart, code: ErrorCode, message: &str) {
        match part {
            QueryPart::One { session, corr } => {
                self.answer(session, corr, QueryAnswer::Failed { code, message: message.to_owned() });
            }
            QueryPart::Count(number) => self.counting.answered(number, at, None),
        }
    }
}
