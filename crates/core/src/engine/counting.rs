//! Questions about the whole broker: `Status` and `Broker` by clients, and the contents of the
//! store by the shell, for metrics.
//!
//! Purpose: counts all partitions once for everybody who has asked by then. A count for metrics
//! alone does not look at timers in memory, of which there may be very many.
//! Not in here: when a count begins and which partitions it asks (`counts`); questions about single
//! timers and listings.

use std::cmp::Reverse;

use mtimer_protocol::{
    BrokerLoad, BrokerView, ClientView, LimitedDestination, MAX_CLIENT_VIEWS, MAX_LIMITED_DESTINATIONS,
    MAX_PARKED_DESTINATIONS, MAX_PAUSED_DESTINATIONS, ParkedDestination, PartitionView, PausedDestination,
    QueryAnswer, Status,
};
use mtimer_store::Census;

use super::Engine;
use super::counts::{About, Asker, CountedPartition, CountingRun};
use super::destination::HeldBack;
use super::partition::OwnedPartition;
use super::questions::QueryPart;
use super::table::EntryState;
use crate::api::{Call, Effect, Now};

impl Engine {
    /// Begins a count if it is time, asks further partitions, and answers when all have answered.
    pub(super) fn count_partitions(&mut self, now: Now) {
        self.counting.begin_if_due(now.mono_ms, self.partitions.iter().map(OwnedPartition::id));
        self.counting.give_up_if_silent(now.mono_ms);
        for at in self.counting.asked() {
            if self.partitions.get(at).is_none_or(|p| !p.is_up()) {
                self.counting.lost(at);
            }
        }
        while let Some(at) = self.counting.next_partition() {
            let view =
                if self.counting.has_askers() { OwnedPartition::view } else { OwnedPartition::outline };
            let Some(view) = self.partitions.get(at).map(view) else { continue };
            debug_assert!(!self.counting.has_askers() || view.in_flight == self.flights.of_partition(at));
            if let Some(number) = self.counting.add(view) {
                self.ask_store(now, at, QueryPart::Count(number), Call::Census);
            }
        }
        if let Some(count) = self.counting.finish(now.mono_ms) {
            self.answer_count(now, count);
        }
    }

    fn answer_count(&mut self, now: Now, count: CountingRun) {
        let status = count.is_wanted(About::Status).then(|| self.status_of(now, &count.rows));
        let view = count.is_wanted(About::Broker).then(|| self.view_of(&count.rows));
        if count.wants_stored {
            let stored = StoredSum::of(&count.rows);
            self.effects.push(Effect::Stored(stored.is_fresh().then_some(stored.census)));
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

    fn status_of(&self, now: Now, rows: &[CountedPartition]) -> Status {
        let (loaded, loaded_bytes) = self.memory();
        let StoredSum { census: stored, unknown, age_ms } = StoredSum::of(rows);
        let mut status = Status {
            sessions: self.roster.sessions(),
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
            staged: stored.staged,
            residue: stored.residue,
            parked_destinations: self.parked_destinations(),
            paused_destinations: self.paused_destinations(),
            limited_destinations: self.limited_destinations(now),
            lost_brokers: Vec::new(),
            unreached_leaders: Vec::new(),
        };
        status.counters.push(("stored_unknown_partitions".to_owned(), unknown));
        status.counters.push(("stored_age_ms".to_owned(), age_ms));
        let late: usize = self.partitions.iter().map(|p| p.late_acks.len()).sum();
        status.counters.push(("unsettled_deliveries".to_owned(), (self.unsettled + late) as u64));
        // Of all brokers together it rises with every change of an owner, restarts included.
        let epochs = rows.iter().map(|row| row.view.epoch.0).sum();
        status.counters.push(("owned_epochs".to_owned(), epochs));
        status.counters.sort_unstable();
        status
    }

    /// The destinations with the most parked timers.
    fn parked_destinations(&self) -> Vec<ParkedDestination> {
        let all = self.roster.dests().map(|(ix, dest)| (Reverse(dest.parks.count()), ix));
        let mut parked: Vec<_> = all.filter(|(Reverse(count), _)| *count > 0).collect();
        parked.sort_unstable();
        parked.truncate(MAX_PARKED_DESTINATIONS);
        let named = parked.into_iter().map(|(Reverse(parked), ix)| ParkedDestination {
            dest: self.roster.dest(ix).name().clone(),
            parked,
            sessions: self.roster.members(ix) as u64,
        });
        named.collect()
    }

    /// The destinations that are paused, those that have been for longest first.
    fn paused_destinations(&self) -> Vec<PausedDestination> {
        let mut paused: Vec<_> = self.roster.paused().collect();
        paused.sort_unstable_by_key(|row| (row.settings.pause.as_ref().map(|pause| pause.since), &row.dest));
        paused.truncate(MAX_PAUSED_DESTINATIONS);
        let named = paused.into_iter().filter_map(|row| {
            let pause = row.settings.pause.clone()?;
            Some(PausedDestination { dest: row.dest.clone(), version: row.version, pause })
        });
        named.collect()
    }

    /// The destinations that their limits hold back, those whose timers have waited for longest
    /// first.
    fn limited_destinations(&self, now: Now) -> Vec<LimitedDestination> {
        let held_back = self.roster.dests().filter(|(_, dest)| dest.held_back() == Some(HeldBack::Limited));
        let shown = held_back.map(|(ix, dest)| {
            let backlog = self.backlog(ix);
            LimitedDestination {
                dest: dest.name().clone(),
                limits: dest.limit.limits(),
                waiting: backlog.waiting + backlog.parked,
                oldest_ms: backlog.oldest_limited.map_or(0, |due| now.time.ms_since(due)),
            }
        });
        let mut all: Vec<_> = shown.collect();
        all.sort_by(|a, b| b.oldest_ms.cmp(&a.oldest_ms).then_with(|| a.dest.cmp(&b.dest)));
        all.truncate(MAX_LIMITED_DESTINATIONS);
        all
    }

    fn view_of(&self, rows: &[CountedPartition]) -> BrokerView {
        let (loaded, loaded_bytes) = self.memory();
        let mut clients: Vec<ClientView> = self.roster.client_views().collect();
        clients.sort_unstable_by(|a, b| a.dest.cmp(&b.dest));
        clients.truncate(MAX_CLIENT_VIEWS);
        let partitions: Vec<PartitionView> = rows.iter().map(|row| row.view).collect();
        let in_flight = partitions.iter().map(|p| p.in_flight).sum();
        BrokerView {
            address: self.options.address.clone().unwrap_or_default(),
            load: BrokerLoad { sessions: self.roster.sessions(), loaded, in_flight },
            loaded_bytes,
            partitions,
            clients,
        }
    }
}

/// The stored timers of all partitions, as far as their counts are known.
struct StoredSum {
    census: Census,
    /// Partitions of which nothing is known: they are not in `census`.
    unknown: u64,
    /// How old the oldest count is that is in `census`, ms; 0 if all partitions were counted now.
    age_ms: u64,
}

impl StoredSum {
    fn of(rows: &[CountedPartition]) -> Self {
        let mut sum = Self { census: Census::default(), unknown: 0, age_ms: 0 };
        for row in rows {
            match (row.census, row.earlier) {
                (Some(census), _) => sum.add(census),
                (None, Some((census, age_ms))) => {
                    sum.add(census);
                    // Not 0, which would mean that it was counted now.
                    sum.age_ms = sum.age_ms.max(age_ms).max(1);
                }
                (None, None) => sum.unknown += 1,
            }
        }
        sum
    }

    /// Whether all partitions were counted now.
    fn is_fresh(&self) -> bool {
        (self.unknown, self.age_ms) == (0, 0)
    }

    fn add(&mut self, c: Census) {
        let sum = &mut self.census;
        sum.pending += c.pending;
        sum.retrying += c.retrying;
        sum.parked += c.parked;
        sum.taken += c.taken;
        sum.dead += c.dead;
        sum.keys += c.keys;
        sum.staged += c.staged;
        sum.residue += c.residue;
    }
}

impl OwnedPartition {
    /// Describes the partition without a look at its timers in memory.
    fn outline(&self) -> PartitionView {
        PartitionView {
            partition: self.id(),
            epoch: self.epoch(),
            reachable: self.is_up() && !self.is_releasing(),
            loaded: self.table.len() as u64,
            ..PartitionView::default()
        }
    }

    /// Describes the partition, with its timers in memory.
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
