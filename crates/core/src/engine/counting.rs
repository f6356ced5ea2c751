//! What is asked about the whole broker: `Status` and `Broker` by clients, and what the store holds
//! by the shell, for metrics.
//!
//! Purpose: counts all partitions once for everybody who has asked by then. Invariants: one count
//! is under way at a time, of at most [`PARTITIONS_AT_ONCE`] partitions at the same time; an answer
//! counts what was stored when its question came, because who asks during a count waits for the
//! next; counting takes about a tenth of the time, however much is asked. A count for metrics alone
//! does not look at timers in memory, of which there may be very many.
//! Not in here: questions about single timers and listings.

use std::collections::VecDeque;

use mtimer_protocol::{
    BrokerLoad, BrokerView, ClientView, MAX_CLIENT_VIEWS, PartitionView, QueryAnswer, Status,
};
use mtimer_store::Census;
use mtimer_types::PartitionId;

use super::Engine;
use super::partition::Partition;
use super::questions::QueryPart;
use super::table::EntryState;
use crate::api::{Call, Effect, Now, SessionId};

/// Partitions that are counted at the same time: the store has other things to do meanwhile.
const PARTITIONS_AT_ONCE: usize = 4;
/// The least and the most time from a count to the next, ms.
const PAUSE_MS: (u64, u64) = (50, 1_000);
/// The pause after a count, in relation to its duration.
const PAUSE_FACTOR: u64 = 9;

/// Who asks, and what for.
#[derive(Debug)]
struct Asker {
    session: SessionId,
    corr: u64,
    about: About,
}

/// What is to be told of a count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum About {
    /// The sums over all partitions.
    Status,
    /// Each partition, and the clients.
    Broker,
}

/// The counting of partitions.
#[derive(Debug, Default)]
pub(super) struct Counting {
    /// Who waits for the next count.
    waiting: Vec<Asker>,
    /// Whether the shell waits for it, too.
    wants_stored: bool,
    /// The count under way.
    current: Option<Count>,
    /// Number of the latest count: late answers to earlier ones are ignored.
    number: u64,
    /// When the next count may begin, monotonic ms.
    next_at: u64,
}

/// A count under way.
#[derive(Debug)]
struct Count {
    askers: Vec<Asker>,
    /// Whether the shell has asked what the store holds.
    wants_stored: bool,
    began: u64,
    /// Partitions that have not been asked.
    left: VecDeque<PartitionId>,
    /// Partitions that were asked and have not answered.
    asked: Vec<PartitionId>,
    rows: Vec<Row>,
}

/// One partition.
#[derive(Debug)]
struct Row {
    view: PartitionView,
    census: Option<Census>,
}

impl Counting {
    /// When the next count is to begin, monotonic ms, if anybody waits for it.
    pub(super) fn next(&self) -> Option<u64> {
        let is_wanted = !self.waiting.is_empty() || self.wants_stored;
        (self.current.is_none() && is_wanted).then_some(self.next_at)
    }

    /// Tells the shell what the store holds, after the next count.
    pub(super) fn want_stored(&mut self) {
        self.wants_stored = true;
    }
}

impl Count {
    /// Notes what a partition has; `None`: it cannot be reached.
    fn note(&mut self, at: PartitionId, census: Option<Census>) {
        self.asked.retain(|asked| *asked != at);
        if let Some(row) = self.rows.iter_mut().find(|row| row.view.partition == at) {
            row.note(census);
        }
    }
}

impl Row {
    fn note(&mut self, census: Option<Census>) {
        match census {
            Some(c) => {
                self.view.pending = c.pending;
                self.view.retrying = c.retrying;
                self.view.parked = c.parked;
                self.view.taken = c.taken;
                self.view.dead = c.dead;
                self.view.overdue += c.parked;
            }
            None => self.view.reachable = false,
        }
        self.census = census;
    }
}

impl Engine {
    /// Answers after the next count.
    pub(super) fn ask_for_count(&mut self, session: SessionId, corr: u64, about: About) {
        self.counting.waiting.push(Asker { session, corr, about });
    }

    /// Begins a count if it is time, asks further partitions, and answers when all have answered.
    pub(super) fn count_partitions(&mut self, now: Now) {
        if self.counting.next().is_some_and(|at| at <= now.mono_ms) {
            self.counting.number += 1;
            self.counting.current = Some(Count {
                askers: std::mem::take(&mut self.counting.waiting),
                wants_stored: std::mem::take(&mut self.counting.wants_stored),
                began: now.mono_ms,
                left: self.partitions.iter().map(Partition::id).collect(),
                asked: Vec::new(),
                rows: Vec::new(),
            });
        }
        let Some(mut count) = self.counting.current.take() else { return };
        let is_away = |p: Option<&mut Partition>| p.is_none_or(|p| !p.is_up());
        let away: Vec<PartitionId> =
            count.asked.iter().copied().filter(|at| is_away(self.partition(*at))).collect();
        away.into_iter().for_each(|at| count.note(at, None));
        while count.asked.len() < PARTITIONS_AT_ONCE
            && let Some(at) = count.left.pop_front()
        {
            let with_memory = !count.askers.is_empty();
            let view = |p: &mut Partition| if with_memory { p.view() } else { p.outline() };
            let Some(view) = self.partition(at).map(view) else { continue };
            if view.reachable {
                count.asked.push(at);
                let part = QueryPart::Count(self.counting.number);
                self.ask_store(now, at, part, Call::Census);
            }
            count.rows.push(Row { view, census: None });
        }
        if count.left.is_empty() && count.asked.is_empty() {
            self.finish_count(now, count);
        } else {
            self.counting.current = Some(count);
        }
    }

    /// Takes what the store has of one partition; `None`: it cannot be reached any more.
    pub(super) fn partition_counted(&mut self, number: u64, at: PartitionId, census: Option<Census>) {
        if number == self.counting.number
            && let Some(count) = &mut self.counting.current
        {
            count.note(at, census);
        }
    }

    fn finish_count(&mut self, now: Now, count: Count) {
        let took = now.mono_ms.saturating_sub(count.began);
        self.counting.next_at = now.mono_ms + (took * PAUSE_FACTOR).clamp(PAUSE_MS.0, PAUSE_MS.1);
        let wanted = |about| count.askers.iter().any(|asker| asker.about == about);
        let status = wanted(About::Status).then(|| self.status_of(&count.rows));
        let view = wanted(About::Broker).then(|| self.view_of(&count.rows));
        if count.wants_stored {
            self.effects.push(Effect::Stored(stored(&count.rows)));
        }
        for Asker { session, corr, about } in count.askers {
            let answer = match about {
                About::Status => status.clone().map(QueryAnswer::Status),
                About::Broker => view.clone().map(QueryAnswer::Broker),
            };
            if let Some(answer) = answer {
                self.answer(session, corr, answer);
            }
        }
    }

    fn status_of(&self, rows: &[Row]) -> Status {
        let (loaded, loaded_bytes) = self.memory();
        let stored = stored(rows);
        let mut status = Status {
            sessions: self.roster.sessions.len() as u64,
            loaded,
            loaded_bytes,
            ready: self.roster.dests().map(|(_, d)| d.ready.len() as u64).sum(),
            in_flight: rows.iter().map(|row| row.view.in_flight).sum(),
            counters: self.counters().map(|(name, n)| (name.to_owned(), n)).collect(),
            pending: stored.pending,
            retrying: stored.retrying,
            parked: stored.parked,
            taken: stored.taken,
            dead: stored.dead,
            keys: stored.keys,
            residue: stored.residue,
        };
        status.counters.sort_unstable();
        status
    }

    fn view_of(&self, rows: &[Row]) -> BrokerView {
        let (loaded, loaded_bytes) = self.memory();
        let mut clients: Vec<ClientView> = self.roster.client_views().collect();
        clients.sort_unstable_by(|a, b| a.dest.cmp(&b.dest));
        clients.truncate(MAX_CLIENT_VIEWS);
        let partitions: Vec<PartitionView> = rows.iter().map(|row| row.view).collect();
        let in_flight = partitions.iter().map(|p| p.in_flight).sum();
        BrokerView {
            address: self.options.address.clone().unwrap_or_default(),
            load: BrokerLoad { sessions: self.roster.sessions.len() as u64, loaded, in_flight },
            loaded_bytes,
            partitions,
            clients,
        }
    }
}

/// What the store holds of all partitions that were reached.
fn stored(rows: &[Row]) -> Census {
    let mut sum = Census::default();
    for c in rows.iter().filter_map(|row| row.census) {
        sum.pending += c.pending;
        sum.retrying += c.retrying;
        sum.parked += c.parked;
        sum.taken += c.taken;
        sum.dead += c.dead;
        sum.keys += c.keys;
        sum.residue += c.residue;
    }
    sum
}

impl Partition {
    /// What memory knows of it without a look at its timers.
    fn outline(&self) -> PartitionView {
        PartitionView {
            partition: self.id(),
            epoch: self.epoch(),
            reachable: self.is_up() && !self.is_releasing(),
            loaded: self.table.len() as u64,
            ..PartitionView::default()
        }
    }

    /// What memory knows of it.
    fn view(&self) -> PartitionView {
        let mut view = self.outline();
        for (_, entry) in self.table.iter() {
            match entry.state {
                EntryState::InFlight(_) => view.in_flight += 1,
                EntryState::Due | EntryState::Held | EntryState::Ready { .. } | EntryState::Taking { .. } => {
                    view.overdue += 1
                }
                EntryState::Waiting
                | EntryState::Settling { .. }
                | EntryState::Parking { .. }
                | EntryState::Unparking => {}
            }
        }
        view
    }
}
