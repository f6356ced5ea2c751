//! What was promised of each timer, by the store's answers as the engine has seen them, and whether
//! deliveries keep it.

use std::collections::{HashMap, HashSet};

use mtimer_protocol::Delivery;
use mtimer_types::{Epoch, Mode, Time, TimerId};

use super::backend::Known;

#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) fates: HashMap<TimerId, Fate>,
}

/// What is known of one timer.
#[derive(Debug, Default)]
pub(super) struct Fate {
    /// It has ended so: no delivery may follow.
    ended: Option<&'static str>,
    /// A cancel came too late: so many deliveries had begun, and no more may.
    pub(super) most: Option<usize>,
    /// It was moved to this time.
    pub(super) moved: Option<Time>,
    /// It was given new attempts so often.
    replays: usize,
    /// Its deliveries.
    sent: HashSet<(Epoch, u32)>,
    /// How many.
    pub(super) deliveries: usize,
    /// Its deadline does not count any more.
    pub(super) without_deadline: bool,
}

impl Fate {
    /// Nothing is known for certain any more, but for what was sent.
    pub(super) fn forget(&mut self) {
        (self.ended, self.most, self.moved) = (None, None, None);
    }
}

impl Ledger {
    pub(super) fn end(&mut self, id: TimerId, how: &'static str) {
        self.fates.entry(id).or_default().ended = Some(how);
    }

    pub(super) fn replayed(&mut self, id: TimerId) {
        let fate = self.fates.entry(id).or_default();
        fate.forget();
        fate.replays += 1;
        fate.without_deadline = true;
    }

    /// A delivery begins.
    pub(super) fn delivered(&mut self, known: &Known, d: &Delivery) {
        let (id, now) = (d.id, known.now.time);
        let timer = known.timers.iter().find(|t| t.id == id);
        let timer = timer.unwrap_or_else(|| panic!("{id} is delivered, and nobody has scheduled it"));
        let fate = self.fates.entry(id).or_default();
        assert!(d.due <= now, "{id} is delivered at {now}, {} ms early", d.due.ms_since(now));
        assert!(fate.ended.is_none(), "{id} is delivered after it was {}", fate.ended.unwrap_or_default());
        assert!(
            fate.sent.insert((d.epoch, d.attempt)),
            "{id} is delivered twice under epoch {} as attempt {}",
            d.epoch,
            d.attempt
        );
        fate.deliveries += 1;
        if let Some(moved) = fate.moved {
            assert!(moved <= now, "{id} is delivered at {now}, but was moved to {moved}");
        }
        if let Some(most) = fate.most {
            assert!(fate.deliveries <= most, "a new attempt of {id} begins after a late cancel");
        }
        if timer.mode == Mode::AtMostOnce {
            assert!(fate.deliveries <= 1 + fate.replays, "{id} is delivered {} times", fate.deliveries);
        }
        if let Some(deadline) = timer.deadline.filter(|_| !fate.without_deadline) {
            assert!(now <= deadline, "{id} is delivered {} ms after its deadline", now.ms_since(deadline));
        }
    }
}
