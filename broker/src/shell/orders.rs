//! Orders to the broker: own partitions, give them up, stop.

use mtimer_core::Input;
use tokio::time::Instant;

use super::Shell;
use crate::cluster::Order;
use crate::error::BrokerError;
use crate::stopping::{LEAVE_TIMEOUT, RELEASE_TIMEOUT, StopPhase, StopStep};

impl Shell {
    pub(super) fn take_order(&mut self, order: Order) -> Result<(), BrokerError> {
        match order {
            Order::Adopt(topology) => {
                self.handle(Input::Topology(topology));
            }
            Order::Share { partitions, is_member } => {
                (self.share, self.is_member) = (partitions, is_member);
                self.check_joined();
            }
            // Partitions to give up are not acquired any more.
            Order::Own { .. } if !matches!(self.phase, StopPhase::Serving | StopPhase::Leaving { .. }) => {}
            Order::Own { partition, term, version } => self.lanes.own(partition, (term, version)),
            Order::Disown(partition) => {
                if self.lanes.withdraw(partition) {
                    self.giving_up.entry(partition).or_insert_with(Instant::now);
                    self.handle(Input::Disown(partition));
                }
            }
            Order::Lent(shares) => self.handle(Input::Lent(shares)),
            Order::Left if matches!(self.phase, StopPhase::Leaving { .. }) => self.begin_drain(),
            Order::Left => {}
            Order::Refused(why) => return Err(BrokerError::Refused(why)),
            Order::AddressTaken { address, cluster } => {
                return Err(BrokerError::AddressTaken { address, cluster });
            }
        }
        Ok(())
    }

    /// Says once that this broker owns its assigned partitions.
    pub(super) fn check_joined(&self) {
        let open = self.is_member && !self.has_joined();
        if open && self.share.iter().all(|p| self.lanes.owns(*p)) {
            self.membership.joined.send_replace(true);
        }
    }

    pub(super) fn begin_drain(&mut self) {
        tracing::info!(unsettled = self.engine.unsettled(), "stopping: no new work, waiting for handlers");
        self.stopping.cancel();
        self.phase = StopPhase::Draining { until: Instant::now() + self.drain_timeout };
        self.handle(Input::Drain);
    }

    /// Begins to stop. First tells the leader, so that it gives this broker no more partitions.
    pub(super) fn begin_stop(&mut self) {
        if self.phase == StopPhase::Serving {
            self.membership.board.stop();
            self.phase = StopPhase::Leaving { until: Instant::now() + LEAVE_TIMEOUT };
        }
    }

    /// Goes on with a stop once its present step is done, or has taken too long.
    pub(super) fn advance_stop(&mut self) {
        match self.phase.next(Instant::now(), self.engine.unsettled()) {
            None => {}
            Some(StopStep::Drain) => {
                tracing::warn!("nobody has taken the partitions over in time, stopping without");
                self.begin_drain();
                self.tick_and_flush();
            }
            Some(StopStep::Release { unsettled }) => {
                if unsettled > 0 {
                    tracing::warn!(
                        unsettled,
                        "handlers are still at work after the drain timeout, giving up the wait"
                    );
                }
                self.phase = StopPhase::Releasing { until: Instant::now() + RELEASE_TIMEOUT };
                self.handle(Input::Release);
                self.tick_and_flush();
            }
            Some(StopStep::End) => {
                tracing::warn!("the store did not take the partitions back in time, stopping without");
                self.phase = StopPhase::Released;
            }
        }
    }
}
