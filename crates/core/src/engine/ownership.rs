//! The beginning and the end of a partition's ownership, and the calls of its lane in between.

use mtimer_protocol::ErrorCode;
use mtimer_store::{Health, InFlight, LaneError};
use mtimer_types::{Epoch, PartitionId, Time};

use super::calls::OpenCall;
use super::partition::{OwnedPartition, Unfinished};
use super::pending::{Own, Pending, failed};
use super::{Engine, EnginePhase};
use crate::api::{Call, Counter, Effect, Now};

impl Engine {
    pub(super) fn acquired(
        &mut self,
        now: Now,
        id: PartitionId,
        epoch: Epoch,
        prior_claim: Time,
        in_flight: Vec<InFlight>,
    ) {
        let mut p = OwnedPartition::new(id, epoch, prior_claim, now, self.seed);
        p.inherited.take_over(in_flight);
        // Not those of all partitions at once.
        p.trim_from(now.mono_ms + u64::from(id.0) * 997 % 60_000);
        self.partitions.insert(p);
        self.ask_taken(id, 0);
        self.call(id, OpenCall::ParkedDestinations, Call::ParkedDestinations);
        self.call(id, OpenCall::Controls, Call::Controls);
    }

    pub(super) fn health(&mut self, id: PartitionId, health: Health) {
        let Some(p) = self.partition(id) else { return };
        match health {
            Health::Up => p.set_health(None),
            Health::Down(why) => p.set_health(Some(why)),
            Health::Ended(error) => self.lane_ended(id, error),
        }
    }

    /// Drops everything of a partition: its sent deliveries are not ours any more, its open
    /// requests are answered with an error.
    pub(super) fn lane_ended(&mut self, id: PartitionId, error: LaneError) {
        let Some(p) = self.partitions.remove(id) else { return };
        self.count(Counter::LanesEnded, 1);
        let Unfinished { table, sent, unsent, waiting, questions } = p.end();
        for (timer, entry) in table.iter() {
            self.retire(*timer, entry);
        }
        let code = match &error {
            LaneError::Fenced { .. } | LaneError::Closed => ErrorCode::NotOwner,
            LaneError::RolledBack(_) | LaneError::Broken(_) => ErrorCode::Unavailable,
        };
        let text = error.to_string();
        // A request that has left may have been applied, whichever error has ended the lane: its
        // answer may be lost, or on its way here.
        let unknown = format!("{error}; whether it was done is not known, repeat it");
        let sent = sent.into_iter().map(|pending| (pending, ErrorCode::Unknown, &unknown));
        let unsent = unsent.into_iter().map(|pending| (pending, code, &text));
        for (pending, code, text) in sent.chain(unsent) {
            match pending {
                Pending::Asked(asked) => self.not_applied(id, asked, code, text),
                Pending::Own(Own::Settle(settling)) => {
                    let why = self.settled_elsewhere();
                    self.report(settling.report, settling.id, Some(why));
                }
                Pending::Own(Own::Take { .. } | Own::Park(_) | Own::Unpark(_) | Own::Trim(_)) => {}
                // The next owner reads on where the job is.
                Pending::Own(Own::BulkAct(_) | Own::BulkAdvance { .. }) => {}
            }
        }
        for part in questions {
            self.query_failed(id, part, code, &text);
        }
        for asked in waiting {
            self.reply(asked.reply, failed(code, text.as_str()));
        }
        self.forget_parks(id);
        self.effects.push(Effect::LaneEnded(id, error));
        if self.phase == EnginePhase::Releasing {
            self.check_released();
        }
    }

    pub(super) fn check_released(&mut self) {
        if self.phase == EnginePhase::Releasing && self.partitions.owned() == 0 {
            self.phase = EnginePhase::Released;
            self.effects.push(Effect::Released);
        }
    }
}
