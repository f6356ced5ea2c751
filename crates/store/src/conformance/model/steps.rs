//! Steps of the model that several operations share.

use mtimer_types::{Destination, Key, Time, TimerId};

use super::{Entry, Model};
use crate::Place;

impl Model {
    pub(super) fn file(&mut self, id: TimerId, fire: Time, tier: u8) {
        let (epoch, prior_claim) = (self.epoch, self.prior_claim);
        let e = self.timers.get_mut(&id).unwrap();
        let fire = if fire < e.timer.due { e.timer.due } else { fire };
        let fresh = fire <= prior_claim;
        e.place = Place::Pending { fire, tier };
        (e.death, e.unconfirmed_since) = (None, None);
        e.progress.fresh = fresh.then_some(epoch);
    }

    /// The live timer that a key names.
    pub fn holder(&self, dest: &Destination, key: &Key) -> Option<TimerId> {
        let names = |e: &Entry| e.timer.dest == *dest && e.timer.key.as_ref() == Some(key);
        self.timers.iter().find(|(_, e)| names(e) && e.holds_key()).map(|(id, _)| *id)
    }
}
