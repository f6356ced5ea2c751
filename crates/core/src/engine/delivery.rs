//! From due to sent.

use mtimer_protocol::{Delivery, ServerMessage};
use mtimer_store::Verdict;
use mtimer_store::ops::MoveAnswer;
use mtimer_types::{LateCause, Mode, Time, TimerId};

use super::clearance::{Clearance, Facts, Stage, clearance};
use super::destination::Dest;
use super::destination_members::{DestIx, MemberRef};
use super::partition::OwnedPartition;
use super::table::{EntryState, Flight, TakeState, TimerEntry};
use super::{Engine, EnginePhase};
use crate::api::{Counter, Effect, Now, SessionId};
use crate::figures::RedeliveryCause;

/// Deliveries of one frame.
const FRAME_DELIVERIES: usize = 500;
/// Bytes of payloads and headers of one frame.
const FRAME_BYTES: usize = 1024 * 1024;

impl Engine {
    /// Takes the due timers from the wheels, and passes on those that a claim covers.
    pub(super) fn collect_due(&mut self, now: Now) {
        for at in self.partitions.ids() {
            let Some(p) = self.partitions.get_mut(at) else { continue };
            let able = self.phase == EnginePhase::Running && p.is_active() && p.may_send(now.mono_ms);
            if able && !p.due().is_empty() {
                let due = p.take_due();
                due.into_iter().for_each(|id| self.make_ready(now, id, None));
            }
            while let Some(p) = self.partitions.get_mut(at)
                && let Some((fire, ids)) = p.table.take_due(now.time)
            {
                // Of many timers of one millisecond each is evicted from the CPU cache before all
                // have been looked at: all work on a timer is done at the first look.
                for id in ids {
                    if able {
                        self.make_ready(now, id, Some(fire));
                    } else if let Some(p) = self.partitions.get_mut(at)
                        && let Some(e) = p.table.get_mut(id).filter(|e| e.is_waiting_for(fire))
                    {
                        e.state = EntryState::Due;
                        e.waits_for(now, LateCause::Store);
                        p.push_due(id);
                    }
                }
            }
        }
    }

    /// A due timer, or one that still waits for `from` in the wheel, goes to its destination's
    /// queue, or waits on for its claim, or for the end of an edit.
    pub(super) fn make_ready(&mut self, now: Now, id: TimerId, from: Option<Time>) {
        let Some(p) = self.partition(id.partition()) else { return };
        let is_meant = |e: &&mut TimerEntry| match from {
            Some(fire) => e.is_waiting_for(fire),
            None => e.state.is_due(),
        };
        let Some(entry) = p.table.get_mut(id).filter(is_meant) else { return };
        entry.state = EntryState::Due;
        let (ix, timer) = (entry.dest, &entry.record.timer);
        let (priority, deadline) = (timer.priority(), timer.deadline);
        let timeout_ms = timer.callback_timeout_ms.unwrap_or(self.options.callback_timeout_ms);
        match self.clearance(now, id, Stage::Due) {
            Clearance::Send => {
                self.set_state(id, EntryState::Ready { since: now.mono_ms });
                let dest = self.roster.dest_mut(ix);
                dest.limit.note_timeout(timeout_ms);
                dest.ready.push(id, priority, deadline);
                self.roster.touch(ix);
            }
            Clearance::Hold => self.hold(now, id),
            Clearance::AwaitClaim => self.await_claim(now, id),
            Clearance::Expire => self.settle(id, None, Verdict::Expired { next: now.time }, None),
            Clearance::Stop => self.dead_letter_stopped(id),
            Clearance::Park => self.park(now, id),
        }
    }

    /// Whether a timer may be sent now.
    fn clearance(&self, now: Now, id: TimerId, stage: Stage) -> Clearance {
        self.facts(now, id).map_or(Clearance::AwaitClaim, |facts| clearance(stage, &facts))
    }

    /// The facts about a timer, if it is in memory.
    fn facts(&self, now: Now, id: TimerId) -> Option<TimerFacts<'_>> {
        let partition = self.partitions.get(id.partition())?;
        Some(TimerFacts { engine: self, partition, entry: partition.table.get(id)?, now })
    }

    /// The timer stays due.
    fn await_claim(&mut self, now: Now, id: TimerId) {
        self.set_state(id, EntryState::Due);
        let Some(p) = self.partition(id.partition()) else { return };
        p.push_due(id);
        let cause = if p.owned_lately(now.mono_ms) { LateCause::Claim } else { LateCause::Store };
        p.table.get_mut(id).into_iter().for_each(|e| e.waits_for(now, cause));
    }

    /// Settles timers that wait for credit and have missed their deadlines. Called every
    /// [`HOUSEKEEPING_MS`](super::HOUSEKEEPING_MS); looks only at those.
    pub(super) fn expire_ready(&mut self, now: Now) {
        if self.phase != EnginePhase::Running {
            return;
        }
        let missed = |d: &Dest| d.ready.next_deadline().is_some_and(|deadline| deadline < now.time);
        for dest in self.roster.busy_dests() {
            if !missed(self.roster.dest(dest)) {
                continue;
            }
            while let Some(id) = self.roster.dest_mut(dest).ready.pop_missed(now.time) {
                self.not_offered(now, id, self.clearance(now, id, Stage::Offered));
            }
            let partitions = &self.partitions;
            self.roster.dest_mut(dest).ready.compact(|id| {
                let entry = partitions.get(id.partition()).and_then(|p| p.table.get(id));
                entry.is_some_and(|e| e.state.is_ready())
            });
            self.roster.touch(dest);
        }
    }

    /// Gives ready timers to members with credit.
    pub(super) fn dispatch(&mut self, now: Now) {
        if self.phase != EnginePhase::Running {
            return;
        }
        for dest in self.roster.take_dirty() {
            let sent = self.dispatch_to(now, dest);
            let (attended, free) = (self.attended.ms(), self.roster.free(dest));
            let d = self.roster.dest_mut(dest);
            let is_scarce = d.limit.allowance(now.mono_ms) == 0 && free > 0 && d.awaits_credit();
            d.limit.note_scarce(is_scarce);
            // As for what comes back from the park: it is not to be parked again.
            d.flow.note_credit(attended, sent, free > 0 && d.limit.may_return(now.mono_ms) > 0);
            if d.flow.is_settling() && !d.ready.is_empty() {
                self.deferral.await_credit();
            }
            self.unpark_more(now, dest);
            self.ask_share(now, dest);
            self.roster.forget_unused(dest);
        }
    }

    /// Returns how many deliveries were given out.
    fn dispatch_to(&mut self, now: Now, dest: DestIx) -> usize {
        let mut sent = 0;
        let mut allowance = self.roster.dest_mut(dest).limit.allowance(now.mono_ms);
        while allowance > 0 && !self.roster.dest(dest).ready.is_empty() {
            let waiting = self.roster.dest(dest).ready.len();
            let Some((member, share)) = self.roster.least_loaded(dest, waiting) else { break };
            for _ in 0..share {
                if allowance == 0 || self.roster.is_full(member) {
                    break;
                }
                let Some(id) = self.next_ready(now, dest) else { return sent };
                self.give(now, id, member);
                (sent, allowance) = (sent + 1, allowance - 1);
            }
        }
        sent
    }

    /// The first timer of the destination's queue that may be sent now.
    fn next_ready(&mut self, now: Now, dest: DestIx) -> Option<TimerId> {
        loop {
            let d = self.roster.dest_mut(dest);
            let (id, class) = d.ready.pop_next(d.policy.is_strict())?;
            let Some(facts) = self.facts(now, id) else { continue };
            if !facts.entry.state.is_ready() {
                continue;
            }
            let (deadline, answer) = (facts.entry.record.timer.deadline, clearance(Stage::Offered, &facts));
            self.roster.dest_mut(dest).ready.leave(id, deadline);
            match answer {
                Clearance::Send => {
                    self.roster.dest_mut(dest).ready.took(class);
                    return Some(id);
                }
                other => self.not_offered(now, id, other),
            }
        }
    }

    /// A timer that was ready, and has left its destination's queue, is not sent.
    fn not_offered(&mut self, now: Now, id: TimerId, clearance: Clearance) {
        match clearance {
            Clearance::Hold => self.hold(now, id),
            Clearance::Expire => self.settle(id, None, Verdict::Expired { next: now.time }, None),
            Clearance::Park => self.park(now, id),
            Clearance::Send | Clearance::AwaitClaim | Clearance::Stop => self.await_claim(now, id),
        }
    }

    fn give(&mut self, now: Now, id: TimerId, member: MemberRef) {
        self.roster.charge(member);
        self.unsettled += 1;
        let mut entry = self.partitions.get_mut(id.partition()).and_then(|p| p.table.get_mut(id));
        if let Some(entry) = &mut entry {
            let limit = &mut self.roster.dest_mut(entry.dest).limit;
            limit.reserve();
            if let Some(since) = entry.state.ready_since() {
                let cause = if limit.is_scarce() { LateCause::Limited } else { LateCause::Credit };
                entry.was_ready_for(now, now.mono_ms.saturating_sub(since), cause);
            }
        }
        match entry {
            Some(entry) if entry.record.timer.mode == Mode::AtMostOnce => {
                entry.state = EntryState::Taking { member };
                if entry.take != TakeState::Taken {
                    entry.waits_for(now, LateCause::Store);
                }
                match entry.take {
                    TakeState::NotAsked => {
                        self.partition(id.partition()).into_iter().for_each(|p| p.ask_take(id))
                    }
                    TakeState::Asked => {}
                    TakeState::Taken => self.taken(now, id, MoveAnswer::Done),
                }
            }
            _ => self.deliver(now, id, member),
        }
    }

    /// Puts a delivery on its way. The credit is charged already.
    fn deliver(&mut self, now: Now, id: TimerId, to: MemberRef) {
        let timeout_default = self.options.callback_timeout_ms;
        let Some(m) = self.roster.member(to) else { return };
        let session = m.session;
        let Some(client) = self.roster.client(session) else { return };
        let Some(p) = self.partitions.get_mut(id.partition()) else { return };
        let epoch = p.epoch();
        let Some(entry) = p.table.get_mut(id) else { return };
        let timer = &entry.record.timer;
        let timeout_ms = timer.callback_timeout_ms.unwrap_or(timeout_default);
        let (dest, attempt) = (entry.dest, entry.attempt());
        let taken_over = entry.covered && attempt > 1;
        let delivery = Delivery {
            id,
            key: timer.key.clone(),
            due: timer.due,
            epoch,
            attempt,
            mode: timer.mode,
            timeout_ms,
            payload: timer.payload.clone(),
            headers: timer.headers.clone(),
        };
        let until = now.mono_ms + u64::from(timeout_ms);
        entry.state = EntryState::InFlight(Flight {
            attempt,
            member: Some(to),
            session: Some(session),
            client,
            sent: now.time,
            until,
        });
        self.timeouts.add(until, id, attempt);
        self.flights.begin(id.partition(), dest);
        if self.roster.dest_mut(dest).limit.start(now.mono_ms) {
            self.started.push(dest);
        }
        if taken_over {
            self.tallies.redelivery(RedeliveryCause::Takeover);
        }
        self.roster.begin_flight(session, id, delivery.content_bytes());
        self.roster.post(to, delivery);
    }

    /// An at-most-once timer was taken. If it was given to a member it may be sent now, once. It is
    /// not if an edit or a late acknowledgement of it is under way, whose answer decides, or if its
    /// deadline has passed; otherwise it goes to its member, to another one, or to the park.
    pub(super) fn taken(&mut self, now: Now, id: TimerId, answer: MoveAnswer) {
        let Some(entry) = self.partition(id.partition()).and_then(|p| p.table.get_mut(id)) else { return };
        if answer == MoveAnswer::Gone {
            self.forget(id);
            return;
        }
        entry.take = TakeState::Taken;
        let Some(member) = entry.state.taking() else { return };
        let dest = entry.dest;
        // The answer may be old: a process that was stopped, a store that is slow.
        let clearance = self.clearance(now, id, Stage::Taken);
        let is_sent = clearance == Clearance::Send && self.roster.dest(dest).limit.may_start(now.mono_ms);
        if is_sent && self.roster.takes(member) {
            return self.deliver(now, id, member);
        }
        self.roster.give_back(member);
        if let Some((other, _)) = self.roster.least_loaded(dest, 1).filter(|_| is_sent) {
            self.roster.charge(other);
            return self.deliver(now, id, other);
        }
        self.unsettled -= 1;
        self.roster.dest_mut(dest).limit.unreserve();
        self.set_state(id, EntryState::Due);
        match clearance {
            Clearance::Hold => self.hold(now, id),
            Clearance::Expire => self.settle(id, None, Verdict::Expired { next: now.time }, None),
            Clearance::Send | Clearance::AwaitClaim | Clearance::Stop | Clearance::Park => self.park(now, id),
        }
    }

    /// Takes back the deliveries that were given out while the answers of this turn were handled
    /// and that may not be sent any more: the process may have been stopped since, for longer than
    /// the deadline or the fence allows. [`Engine::taken`] decides on them as if they were answered
    /// now. Called before edits leave for the store: they say which deliveries are under way.
    pub(super) fn take_back(&mut self, now: Now) {
        for member in self.roster.take_outgoing() {
            let Some(m) = self.roster.member(member) else { continue };
            let session = m.session;
            for delivery in m.take_outbox() {
                let id = delivery.id;
                let Some(facts) = self.facts(now, id) else { continue };
                if facts.entry.state.flight().is_none() {
                    continue;
                }
                let may_leave = self.roster.dest(facts.entry.dest).limit.may_leave(now.mono_ms);
                if may_leave && clearance(Stage::Outgoing, &facts) == Clearance::Send {
                    self.roster.post(member, delivery);
                    continue;
                }
                self.unsend(id, session, member);
                self.taken(now, id, MoveAnswer::Done);
            }
        }
    }

    /// A delivery that was given to a member is not under way: it is as before it was given out.
    pub(super) fn unsend(&mut self, id: TimerId, session: SessionId, member: MemberRef) {
        let Some(dest) = self.partition(id.partition()).and_then(|p| p.table.get(id)).map(|e| e.dest) else {
            return;
        };
        self.set_state(id, EntryState::Taking { member });
        self.flights.end(id.partition(), dest);
        self.roster.dest_mut(dest).limit.take_back();
        self.roster.end_flight(session, id);
    }

    /// Takes note of how late a first delivery is sent. That of a timer that has waited for the end
    /// of a pause counts from then on, and apart.
    fn note_lateness(&mut self, now: Now, delivery: &Delivery) {
        let entry = self.partitions.get(delivery.id.partition()).and_then(|p| p.table.get(delivery.id));
        let late_from = entry.map_or(delivery.due, |entry| entry.record.late_from());
        let resumed = entry.and_then(|entry| self.roster.dest(entry.dest).policy.resumed());
        if let Some(resumed) = resumed.filter(|resumed| *resumed > late_from) {
            return self.tallies.sent_after_pause.add_ms(now.time.ms_since(resumed));
        }
        let late_ms = now.time.ms_since(late_from);
        self.tallies.sent_after.add_ms(late_ms);
        self.tallies.sent_after_of.note(&delivery.headers, late_ms, now.time);
    }

    /// Sends this turn's deliveries, in frames of bounded size.
    pub(super) fn send(&mut self, now: Now) {
        for member in self.roster.take_outgoing() {
            let Some(m) = self.roster.member(member) else { continue };
            let (session, registration, dest) = (m.session, m.registration, m.dest);
            let mut frame = Vec::new();
            let mut bytes = 0;
            let outbox = m.take_outbox();
            let by = self.roster.dest(dest).limit.leave_by();
            let again = outbox.iter().filter(|d| d.attempt > 1).count();
            self.count(Counter::Delivered, outbox.len() as u64);
            self.count(Counter::Redelivered, again as u64);
            for delivery in outbox {
                if delivery.attempt == 1 {
                    self.note_lateness(now, &delivery);
                }
                bytes += delivery.content_bytes();
                frame.push(delivery);
                if frame.len() >= FRAME_DELIVERIES || bytes >= FRAME_BYTES {
                    bytes = 0;
                    let deliveries = std::mem::take(&mut frame);
                    self.effects.push(deliver(session, registration, deliveries, by));
                }
            }
            if !frame.is_empty() {
                self.effects.push(deliver(session, registration, frame, by));
            }
        }
        // What is given out from now on is of another turn.
        self.started.drain(..).for_each(|dest| self.roster.note_sent(dest));
    }
}

/// Sends deliveries, by this monotonic time or not at all.
fn deliver(session: SessionId, registration: u32, deliveries: Vec<Delivery>, by: Option<u64>) -> Effect {
    let message = ServerMessage::Deliver { registration, deliveries };
    match by {
        Some(by) => Effect::SendBy(session, message, by),
        None => Effect::Send(session, message),
    }
}

/// The facts about one timer.
struct TimerFacts<'a> {
    engine: &'a Engine,
    partition: &'a OwnedPartition,
    entry: &'a TimerEntry,
    now: Now,
}

impl Facts for TimerFacts<'_> {
    fn is_able(&self) -> bool {
        self.engine.phase == EnginePhase::Running && self.partition.may_send(self.now.mono_ms)
    }

    fn is_leaving(&self) -> bool {
        self.partition.is_leaving()
    }

    fn is_in_time(&self) -> bool {
        self.entry.state.flight().is_some_and(|flight| self.now.mono_ms < flight.until)
    }

    fn is_edited(&self) -> bool {
        self.partition.edited(self.entry.record.timer.id)
    }

    fn is_acknowledged_late(&self) -> bool {
        self.partition.late_acks.holds(self.entry.record.timer.id)
    }

    fn is_expired(&self) -> bool {
        self.entry.record.timer.is_past_deadline(self.now.time)
    }

    fn is_stopped(&self) -> bool {
        self.entry.record.progress.stopped
    }

    fn is_paused(&self) -> bool {
        self.engine.roster.dest(self.entry.dest).policy.is_paused()
    }

    fn is_claimed(&self) -> bool {
        self.entry.take == TakeState::Taken || self.partition.claims.covers(self.entry.fire)
    }

    fn is_backlog_full(&self) -> bool {
        self.engine.parks_new(self.entry.dest, self.entry.record.timer.priority())
    }
}
