//! This broker in detail, for an operator: its partitions and its clients.

use mtimer_protocol::{BrokerLoad, BrokerView, ClientView, MAX_CLIENT_VIEWS, PartitionView, QueryAnswer};
use mtimer_store::Census;
use mtimer_types::PartitionId;

use super::Engine;
use super::partition::Partition;
use super::queries::QueryPart;
use super::table::State;
use crate::api::{Call, Now, SessionId};

/// A view that some partitions have not added to yet.
#[derive(Debug)]
pub(super) struct ViewQuery {
    session: SessionId,
    corr: u64,
    missing: usize,
    view: BrokerView,
}

impl Engine {
    pub(super) fn ask_view(&mut self, now: Now, session: SessionId, corr: u64) {
        let (loaded, loaded_bytes) = self.memory();
        let partitions: Vec<PartitionView> = self.partitions.iter().flatten().map(|p| p.view()).collect();
        let in_flight = partitions.iter().map(|p| p.in_flight).sum();
        let sessions = self.roster.sessions.len() as u64;
        let mut clients: Vec<ClientView> = self.roster.client_views().collect();
        clients.sort_unstable_by(|a, b| a.dest.cmp(&b.dest));
        clients.truncate(MAX_CLIENT_VIEWS);
        let view = BrokerView {
            address: self.options.address.clone().unwrap_or_default(),
            load: BrokerLoad { sessions, loaded, in_flight },
            loaded_bytes,
            partitions,
            clients,
        };
        let asked: Vec<PartitionId> =
            view.partitions.iter().filter(|p| p.reachable).map(|p| p.partition).collect();
        let missing = asked.len();
        let query = self.views.insert(ViewQuery { session, corr, missing, view });
        if missing == 0 {
            self.finish_view(query);
        }
        for at in asked {
            self.ask_store(now, at, QueryPart::View(query, at), Call::Census);
        }
    }

    /// Adds what the store has of one partition; `None`: its reign has ended meanwhile.
    pub(super) fn add_to_view(&mut self, query: usize, at: PartitionId, census: Option<Census>) {
        let Some(q) = self.views.get_mut(query) else { return };
        let row = q.view.partitions.iter_mut().find(|p| p.partition == at);
        match (row, census) {
            (Some(row), Some(c)) => {
                row.pending = c.pending;
                row.retrying = c.retrying;
                row.parked = c.parked;
                row.taken = c.taken;
                row.dead = c.dead;
                row.overdue += c.parked;
            }
            (Some(row), None) => row.reachable = false,
            (None, _) => {}
        }
        q.missing -= 1;
        if q.missing == 0 {
            self.finish_view(query);
        }
    }

    fn finish_view(&mut self, query: usize) {
        let ViewQuery { session, corr, view, .. } = self.views.remove(query);
        self.answer(session, corr, QueryAnswer::Broker(view));
    }
}

impl Partition {
    /// What memory knows of it.
    fn view(&self) -> PartitionView {
        let mut view = PartitionView {
            partition: self.id,
            epoch: self.epoch,
            reachable: self.down.is_none() && !self.release_out,
            loaded: self.table.len() as u64,
            ..PartitionView::default()
        };
        for (_, entry) in self.table.iter() {
            match entry.state {
                State::InFlight(_) => view.in_flight += 1,
                State::Due | State::Held | State::Ready { .. } | State::Taking { .. } => view.overdue += 1,
                State::Waiting | State::Settling { .. } | State::Parking | State::Unparking => {}
            }
        }
        view
    }
}
