//! One timer of the model.

use mtimer_types::{DeadReason, Extensions, FailedAttempt, Staging, Time, Timer};

use crate::{Place, Progress, Record};

/// A timer, live or dead.
#[derive(Clone, Debug)]
pub struct Entry {
    pub timer: Timer,
    pub progress: Progress,
    pub place: Place,
    /// Why and when, for a dead one.
    pub(super) death: Option<(DeadReason, Time)>,
    /// Since when, for an unconfirmed one.
    pub(super) unconfirmed_since: Option<Time>,
    /// When it came to the dead or the unconfirmed ones, if it is one of them.
    pub(super) arrived: Time,
    pub(super) accepted: Option<Time>,
    /// When its chain of debounces has begun.
    pub(super) debounced: Option<Time>,
    /// Bulk jobs up to this number pass it by.
    pub(super) mark: u32,
    /// The last eight attempts of which it was told, the first of them first.
    pub(super) story: Vec<FailedAttempt>,
    /// What it becomes, of a staged one.
    pub(super) staging: Option<Staging>,
    /// What an import has brought along, and which attempts were postponed.
    pub(super) extensions: Extensions,
}

impl Entry {
    pub fn record(&self) -> Record {
        let (timer, progress) = (std::sync::Arc::new(self.timer.clone()), self.progress.clone());
        let mut record = Record { progress, accepted: self.accepted, ..Record::new(timer) };
        record.extensions = match self.staging {
            Some(staging) => self.extensions.staged(staging).unwrap(),
            None => self.extensions.clone(),
        };
        record.extensions.raise_bulk_mark(self.mark);
        if let Some(first) = self.debounced {
            record.extensions.set_debounced_since(first);
        }
        self.story.iter().for_each(|attempt| record.extensions.add_attempt(attempt.clone()));
        assert_eq!(record.extensions.story(), self.story, "what a story says is what was told");
        record
    }

    pub(super) fn holds_key(&self) -> bool {
        !matches!(self.place, Place::Dead | Place::Taken { unconfirmed: true, .. }) && self.staging.is_none()
    }

    pub(super) fn is_unconfirmed(&self) -> bool {
        matches!(self.place, Place::Taken { unconfirmed: true, .. })
    }

    pub(super) fn waits(&self) -> bool {
        matches!(self.place, Place::Pending { .. } | Place::Parked)
    }

    pub(super) fn fail(&mut self, failed: u32, error: &str) {
        self.progress.failed = failed;
        self.extensions.end_postponing();
        self.progress.last_error = if error.is_empty() { None } else { Some(error.into()) };
    }

    pub(super) fn tell(&mut self, attempt: Option<&FailedAttempt>) {
        self.story.extend(attempt.cloned());
        if self.story.len() > 8 {
            self.story.remove(0);
        }
    }

    /// `newest`: the mark of what comes to the retained ones.
    pub(super) fn die(&mut self, reason: DeadReason, now: Time, newest: u32) {
        if self.place != Place::Dead && !self.is_unconfirmed() {
            self.mark = self.mark.max(newest);
        }
        if self.place != Place::Dead {
            self.arrived = now;
        }
        self.place = Place::Dead;
        self.death = Some((reason, now));
        self.unconfirmed_since = None;
    }
}
