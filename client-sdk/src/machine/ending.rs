//! The steps of a client's end.

use crate::machine::caller::Caller;
use crate::machine::closing::Closing;
use crate::machine::io::Event;
use crate::machine::moment::Moment;
use crate::machine::outbox::{Barrier, Outbox};
use crate::machine::state::Machine;

impl<C: Caller> Machine<C> {
    /// Takes no more callbacks at all.
    pub(super) fn drain(&mut self, now: Moment) {
        if self.closing.is_closed() {
            return self.events.push_back(Event::Drained);
        }
        if self.closing.is_open() {
            self.outboxes.each(Outbox::goodbye);
        }
        self.closing = Closing::Draining { by: now + self.request_timeout };
        self.barrier(Barrier::Drained);
    }

    /// Waits for the outstanding answers.
    pub(super) fn flush(&mut self, now: Moment) {
        if self.closing.is_closed() {
            return self.events.push_back(Event::Flushed { unsettled: 0 });
        }
        self.closing = Closing::Flushing { by: now + self.request_timeout };
    }

    /// Tells once nothing is on its way any more.
    pub(super) fn tell_flushed(&mut self) {
        if let Closing::Flushing { .. } = self.closing
            && self.is_idle()
        {
            self.flushed();
        }
    }

    fn flushed(&mut self) {
        self.closing = Closing::Flushed;
        self.events.push_back(Event::Flushed { unsettled: self.settling.unconfirmed() });
    }

    /// A broker that does not answer in time has heard the goodbye all the same, or is not there.
    pub(super) fn closing_timeout(&mut self, now: Moment) {
        match self.closing {
            Closing::Draining { by } if by <= now => self.drained(),
            Closing::Flushing { by } if by <= now => self.flushed(),
            Closing::Open
            | Closing::Draining { .. }
            | Closing::Drained
            | Closing::Flushing { .. }
            | Closing::Flushed
            | Closing::Closed => {}
        }
    }

    /// Everything ends at once.
    pub(super) fn stop(&mut self) {
        match self.closing {
            Closing::Closed => return,
            // Somebody may wait.
            Closing::Draining { .. } => self.drained(),
            Closing::Flushing { .. } => self.flushed(),
            Closing::Open | Closing::Drained | Closing::Flushed => {}
        }
        self.closing = Closing::Closed;
        self.outboxes.clear();
        self.requests.close();
        self.queries.close();
        self.registrations.close();
        self.dialling.close();
    }
}
