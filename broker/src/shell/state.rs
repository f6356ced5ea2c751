//! What the engine's task tells of itself: metrics, readiness, the state in numbers.

use mtimer_core::{Input, SessionEvent};
use mtimer_protocol::{Query, QueryAnswer, ServerMessage, Status};
use tokio::sync::oneshot;

use super::{SELF, Shell};
use crate::observed::Observed;
use crate::stopping::StopPhase;

impl Shell {
    pub(super) fn observe(&self, top: usize) -> Observed {
        Observed {
            now: self.clock.now().time,
            engine: self.engine.figures(top),
            lanes: self.lanes.figures(),
            assigned: self.share.len() as u64,
            unreachable: self.unreachable() as u64,
            sessions: self.sessions.count(),
            events: self.inbox.len() as u64,
            unready: self.unready(),
        }
    }

    /// Why clients are better sent elsewhere.
    pub(super) fn unready(&self) -> Vec<String> {
        let mut why = Vec::new();
        if self.phase != StopPhase::Serving {
            why.push("the broker is stopping".to_owned());
        }
        if !self.has_joined() {
            why.push("the broker has not joined its cluster yet".to_owned());
        }
        let missing = self.share.iter().filter(|partition| !self.lanes.owns(**partition)).count();
        if missing > 0 {
            why.push(format!("{missing} of {} partitions are not acquired yet", self.share.len()));
        }
        let down = self.unreachable();
        if down > 0 {
            let owned = self.lanes.reach().0;
            why.push(format!("the store of {down} of {owned} partitions cannot be reached"));
        }
        why
    }

    /// Owned partitions whose store cannot be reached. A partition with nothing to do notices late
    /// by itself; the cluster's task looks every second.
    fn unreachable(&self) -> usize {
        let (owned, down) = self.lanes.reach();
        down.max(self.counters.unreachable()).min(owned)
    }

    /// Asks the engine for the state, as a client would.
    pub(super) fn ask_for_status(&mut self, to: oneshot::Sender<Status>) {
        self.last_question += 1;
        let corr = self.last_question;
        self.questions.insert(corr, to);
        self.handle(Input::Session(SELF, SessionEvent::Query { corr, query: Query::Status }));
    }

    /// An answer to a question of the broker itself.
    pub(super) fn answer_own(&mut self, message: ServerMessage) {
        if let ServerMessage::Answer { corr, answer: QueryAnswer::Status(mut status) } = message {
            self.complete(&mut status);
            if let Some(to) = self.questions.remove(&corr) {
                // The asker may have gone.
                let _ = to.send(status);
            }
        }
    }

    pub(super) fn complete(&self, status: &mut Status) {
        status.sessions = self.sessions.count();
        let stored = self.store.counters().into_iter().map(|(name, n)| (name.to_owned(), n));
        status.counters.extend(stored);
        status.counters.push(("not_ready".to_owned(), self.unready().len() as u64));
        status.counters.push(("store_unreachable_partitions".to_owned(), self.unreachable() as u64));
        self.counters.merge_into(&mut status.counters);
    }
}
