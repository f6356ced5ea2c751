//! Clients' questions about single timers, and listings.
//!
//! How many a session may have unanswered is bounded where they come in; how many are at the store,
//! by `questions`.

use bytes::Bytes;
use mtimer_protocol::{
    BulkState, BulkView, CountsQuery, DeadRow, DestinationCounts, ErrorCode, ForecastQuery, PendingQuery,
    PendingRow, Query, QueryAnswer, RecordRest, TimerState, TimerView, UnconfirmedRow,
};
use mtimer_store::{
    BulkEnd, BulkJob, Counts, CountsPage, CountsRange, DeadFilter, Forecast, ForecastRange, ListPage, Listed,
    Listing, Pending, PendingPage, PendingRange, Place, Record,
};
use mtimer_types::{Destination, Filter, PartitionId, Time, Timer, limits};

use super::Engine;
use super::calls::OpenCall;
use super::counts::{About, Asker};
use super::questions::QueryPart;
use crate::api::{Call, CallAnswer, Now, SessionId};

/// Rows of one page of a listing: with the largest payloads they still fit a frame. A client that
/// wants more asks again.
const PAGE_ROWS: u32 = 48;
/// The same without payloads.
const SHORT_ROWS: u32 = 400;
/// Bytes of the rows of one page of pending timers. A quarter of the frame is left for what
/// [`row_bytes`] does not count.
const PAGE_BYTES: usize = limits::MAX_FRAME / 4 * 3;
/// Bytes of a row beside its names, texts, retry delays and payload.
const ROW_BYTES: usize = 128;

impl Engine {
    pub(super) fn query(&mut self, session: SessionId, corr: u64, query: Query) {
        match query {
            Query::Get(target) => {
                let at = target.partition(self.options.partitions);
                self.ask(at, QueryPart::One { session, corr }, Call::Get(target));
            }
            Query::Story(target) => {
                let at = target.partition(self.options.partitions);
                self.ask(at, QueryPart::Story { session, corr }, Call::Get(target));
            }
            Query::Dead { group, app, cursor, limit } => {
                self.ask_page(session, corr, Listed::Dead(DeadFilter { group, app }), cursor, limit);
            }
            Query::Unconfirmed { cursor, limit } => {
                self.ask_page(session, corr, Listed::Unconfirmed, cursor, limit);
            }
            Query::Parked { dest, cursor, limit } => {
                self.ask_page(session, corr, Listed::Parked(dest), cursor, limit);
            }
            Query::Taken { cursor, limit } => self.ask_page(session, corr, Listed::Taken, cursor, limit),
            Query::Pending(query) => self.ask_pending(session, corr, *query),
            Query::Counts(query) => self.ask_counts(session, corr, query),
            Query::Forecast(query) => self.ask_forecast(session, corr, query),
            Query::Bulks { partition } => {
                if let Some(at) = self.partition_of_number(session, corr, partition) {
                    self.ask(at, QueryPart::One { session, corr }, Call::Controls);
                }
            }
            Query::Settings { partition } => {
                if let Some(at) = self.partition_of_number(session, corr, partition) {
                    self.ask(at, QueryPart::Settings { session, corr }, Call::Controls);
                }
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

    /// Asks for a page of the pending timers of one partition.
    fn ask_pending(&mut self, session: SessionId, corr: u64, query: PendingQuery) {
        let PendingQuery { partition, filter, retrying, from, until, limit, payloads, staged } = query;
        let limit = limit.clamp(1, if payloads { PAGE_ROWS } else { SHORT_ROWS });
        let (from, until) = match staged {
            true => ((from.0.staged(), from.1), until.staged()),
            false => (from, until.min(Time::LAST_UNSTAGED)),
        };
        let range = PendingRange { filter, retrying, from, until, limit };
        if let Some(at) = self.partition_of_number(session, corr, partition) {
            let part = QueryPart::Pending { session, corr, payloads };
            self.list_pages.push(at, part, Call::Pending(range));
        }
    }

    /// Asks for a page of the counts of one partition's destinations.
    fn ask_counts(&mut self, session: SessionId, corr: u64, query: CountsQuery) {
        let CountsQuery { partition, group, app, after, limit } = query;
        let filter = Filter { group, app, ..Filter::default() };
        let range = CountsRange { filter, after, limit: limit.clamp(1, limits::MAX_PAGE) };
        if let Some(at) = self.partition_of_number(session, corr, partition) {
            self.ask(at, QueryPart::One { session, corr }, Call::Counts(range));
        }
    }

    /// Asks when the pending timers of one partition are due.
    fn ask_forecast(&mut self, session: SessionId, corr: u64, query: ForecastQuery) {
        let ForecastQuery { partition, group, app, from, until, step_ms } = query;
        let filter = Filter { group, app, ..Filter::default() };
        let range = ForecastRange { filter, from, until: until.min(Time::LAST_UNSTAGED), step_ms };
        if let Some(at) = self.partition_of_number(session, corr, partition) {
            let part = QueryPart::Pending { session, corr, payloads: false };
            self.list_pages.push(at, part, Call::Forecast(range));
        }
    }

    /// The partition that a client has named by its number. If there is none, the client is told.
    fn partition_of_number(&mut self, session: SessionId, corr: u64, number: u16) -> Option<PartitionId> {
        let partitions = self.options.partitions;
        if number < partitions {
            return Some(PartitionId(number));
        }
        let last = partitions.saturating_sub(1);
        let message =
            format!("there is no partition {number}: the cluster has {partitions}, the last one is {last}");
        self.answer(session, corr, QueryAnswer::Failed { code: ErrorCode::Invalid, message });
        None
    }

    fn ask(&mut self, at: PartitionId, part: QueryPart, call: Call) {
        if !self.serves(at) {
            self.page_answered(&part);
            let (Some((session, corr)), answer) = (part.asker(), self.not_asked(at)) else { return };
            return self.answer(session, corr, answer);
        }
        match self.partition(at) {
            None => self.page_answered(&part),
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
        while let Some((at, part, call)) = self.list_pages.next() {
            self.ask(at, part, call);
        }
        for at in self.partitions.ids() {
            while let Some(p) = self.partitions.get_mut(at)
                && !p.is_releasing()
                && let Some((part, call)) = p.questions.next()
            {
                self.ask_store(now, at, part, call);
            }
        }
    }

    /// Notes that a page of pending timers is answered, if this was one.
    fn page_answered(&mut self, part: &QueryPart) {
        match part {
            QueryPart::Pending { .. } => self.list_pages.answered(),
            QueryPart::One { .. } | QueryPart::Story { .. } | QueryPart::Settings { .. } => {}
            QueryPart::Count(_) => {}
        }
    }

    /// Asks the store, behind the acknowledgements that wait for others to go along with.
    pub(super) fn ask_store(&mut self, now: Now, at: PartitionId, part: QueryPart, call: Call) {
        self.flush_deferred(now, at);
        self.call(at, OpenCall::Query(part), call);
    }

    pub(super) fn query_answered(&mut self, now: Now, at: PartitionId, part: QueryPart, answer: CallAnswer) {
        if part.asker().is_some()
            && let Some(p) = self.partition(at)
        {
            p.questions.answered();
        }
        match (part, answer) {
            (QueryPart::One { session, corr }, CallAnswer::Get(found)) => {
                let view = found.map(|(record, place)| self.view(record, place).into());
                self.answer(session, corr, QueryAnswer::Timer(view));
            }
            (QueryPart::Story { session, corr }, CallAnswer::Get(found)) => {
                let story = found.map(|(record, place)| {
                    let view = self.view(record.clone(), place);
                    self.story(now, &record, place, view).into()
                });
                self.answer(session, corr, QueryAnswer::Story(story));
            }
            (QueryPart::One { session, corr }, CallAnswer::List(ListPage::Dead(page))) => {
                let next = self.next_page(at, page.next);
                let rows = page.rows.into_iter().map(|d| DeadRow {
                    timer: (*d.record.timer).clone(),
                    reason: d.reason,
                    attempts: d.record.progress.failed,
                    rest: rest_of(&d.record, d.record.progress.failed),
                    last_error: d.record.progress.last_error.map(Into::into),
                    died: d.died,
                });
                let answer = QueryAnswer::Dead { rows: rows.collect(), next };
                self.answer(session, corr, answer);
            }
            (QueryPart::One { session, corr }, CallAnswer::List(ListPage::Unconfirmed(page))) => {
                let next = self.next_page(at, page.next);
                let rows = page.rows.into_iter().map(|r| UnconfirmedRow {
                    timer: (*r.record.timer).clone(),
                    epoch: r.epoch,
                    since: r.since,
                    failed: r.record.progress.failed,
                    rest: rest_of(&r.record, r.record.attempt(false)),
                    last_error: r.record.progress.last_error.map(Into::into),
                });
                let answer = QueryAnswer::Unconfirmed { rows: rows.collect(), next };
                self.answer(session, corr, answer);
            }
            (QueryPart::One { session, corr }, CallAnswer::List(page)) => {
                let (rows, next) = page.into_rows();
                let rows = rows.into_iter().map(|row| self.view(row.record, row.at.place())).collect();
                let next = self.next_page(at, next);
                self.answer(session, corr, QueryAnswer::Timers { rows, next });
            }
            (QueryPart::Pending { session, corr, payloads }, CallAnswer::Pending(page)) => {
                self.list_pages.answered();
                let PendingPage { rows, next } = cut(page, payloads);
                let rows = rows.into_iter().map(|row| self.pending_row(row, payloads)).collect();
                let next = next.map(|(fire, id)| (fire.unstaged().unwrap_or(fire), id));
                self.answer(session, corr, QueryAnswer::Pending { rows, next });
            }
            (QueryPart::Pending { session, corr, .. }, CallAnswer::Forecast(page)) => {
                self.list_pages.answered();
                let Forecast { spans, next, uncounted } = page;
                self.answer(session, corr, QueryAnswer::Forecast { spans, next, uncounted });
            }
            (QueryPart::One { session, corr }, CallAnswer::Counts(page)) => {
                let CountsPage { rows, next, uncounted } = page;
                let rows = rows.into_iter().map(|(dest, counts)| self.counts_row(at, dest, counts)).collect();
                self.answer(session, corr, QueryAnswer::Counts { rows, next, uncounted });
            }
            (QueryPart::Settings { session, corr }, CallAnswer::Controls(controls)) => {
                let rows = controls.settings.all().cloned().collect();
                self.answer(session, corr, QueryAnswer::Settings(rows));
            }
            (QueryPart::One { session, corr }, CallAnswer::Controls(controls)) => {
                let jobs = controls.bulks;
                let views = jobs.all().iter().map(|job| bulk_view(job, jobs.is_at_work(job.number)));
                self.answer(session, corr, QueryAnswer::Bulks(views.collect()));
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

    fn pending_row(&mut self, row: Pending, payloads: bool) -> PendingRow {
        let Pending { record, fire, tier } = row;
        let mut view = self.view(record, Place::Pending { fire, tier });
        let payload_bytes = u32::try_from(view.timer.payload.len()).unwrap_or(u32::MAX);
        if !payloads {
            view.timer.payload = Bytes::new();
        }
        PendingRow { fire: fire.unstaged().unwrap_or(fire), view, payload_bytes }
    }

    fn counts_row(&self, at: PartitionId, dest: Destination, counts: Counts) -> DestinationCounts {
        let Counts { pending, retrying, parked, taken, unconfirmed, dead, staged } = counts;
        let ix = self.roster.find_dest(&dest);
        let in_flight = ix.map_or(0, |ix| self.flights.of(at, ix));
        let oldest = ix.map(|ix| [self.first_ready(ix), self.roster.dest(ix).parks.oldest_in(at)]);
        let oldest_overdue = oldest.into_iter().flatten().flatten().min();
        DestinationCounts {
            dest,
            pending,
            retrying,
            parked,
            in_flight,
            taken,
            unconfirmed,
            dead,
            oldest_overdue,
            staged,
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
            Place::Pending { fire, .. } if fire.is_staged() => staged_state(&record, fire),
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
            rest: rest_of(&record, self.tried(&record, place)),
            state,
            failed: record.progress.failed,
            stopped: record.progress.stopped,
            last_error: record.progress.last_error.map(Into::into),
        }
    }

    pub(super) fn query_failed(&mut self, at: PartitionId, part: QueryPart, code: ErrorCode, message: &str) {
        self.page_answered(&part);
        match part {
            QueryPart::One { session, corr }
            | QueryPart::Story { session, corr }
            | QueryPart::Settings { session, corr }
            | QueryPart::Pending { session, corr, .. } => {
                self.answer(session, corr, QueryAnswer::Failed { code, message: message.to_owned() });
            }
            QueryPart::Count(number) => self.counting.answered(number, at, None),
        }
    }
}

/// The state of a timer that is stored as staged at this time.
fn staged_state(record: &Record, stored: Time) -> TimerState {
    let fire = stored.unstaged().unwrap_or(stored);
    match record.extensions.staging() {
        Some(staging) => TimerState::Staged { fire, staging },
        None => TimerState::Pending { fire },
    }
}

/// What an answer says of a record beside the timer, its failed attempts and its last error.
fn rest_of(record: &Record, tried: u32) -> RecordRest {
    RecordRest {
        budget_from: record.progress.budget_from,
        tried,
        accepted: record.accepted,
        extensions: record.extensions.clone(),
    }
}

/// Cuts a page off before the row with which it has more than [`PAGE_BYTES`], but not before the
/// first. What follows begins behind the last row that is left.
fn cut(mut page: PendingPage, payloads: bool) -> PendingPage {
    let mut bytes = 0;
    let fits = |row: &&Pending| {
        bytes += row_bytes(&row.record, payloads);
        bytes <= PAGE_BYTES
    };
    let fitting = page.rows.iter().take_while(fits).count().max(1);
    if fitting < page.rows.len() {
        page.rows.truncate(fitting);
        page.next = page.rows.last().map(Pending::next);
    }
    page
}

fn bulk_view(job: &BulkJob, is_at_work: bool) -> BulkView {
    let state = match job.ended {
        None if is_at_work => BulkState::Working,
        None => BulkState::Waiting,
        Some((_, BulkEnd::Done)) => BulkState::Done,
        Some((_, BulkEnd::Stopped)) => BulkState::Stopped,
    };
    BulkView {
        id: job.id,
        bulk: job.bulk.clone(),
        state,
        begun: job.begun,
        ended: job.ended.map(|(when, _)| when),
        done: job.done,
        not_done: job.not_done,
        failures: job.failures.clone(),
    }
}

/// About how many bytes a row takes in an answer.
fn row_bytes(record: &Record, payload: bool) -> usize {
    let Record { timer, progress, extensions: of_record, .. } = record;
    let Timer { dest, key, retry, headers, extensions, .. } = &**timer;
    let payload = if payload { timer.payload.len() } else { 0 };
    let names = dest.group().len() + dest.app().len();
    let key = key.as_ref().map_or(0, |key| key.as_str().len());
    let retry = retry.as_ref().map_or(0, |tiers| size_of_val(tiers.0.as_slice()));
    let error = progress.last_error.as_ref().map_or(0, |error| error.len());
    let extensions = extensions.as_bytes().len() + of_record.as_bytes().len();
    ROW_BYTES + names + key + retry + payload + headers.bytes() + extensions + error
}
