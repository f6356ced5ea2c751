//! A turn of the engine: it takes inputs, decides, and its effects are carried out.

use mtimer_core::clock::ALARM_MS;
use mtimer_core::{Effect, Input, SessionEvent, SessionId};
use mtimer_protocol::{BrokerLoad, QueryAnswer, ServerMessage, UNASKED_PONG};

use super::{SELF, Shell};
use crate::counters::ShellCounter;
use crate::stopping::StopPhase;

/// How often the load is posted for the leader, ms: well below the interval of heartbeats.
const LOAD_EVERY_MS: u64 = 100;
/// A correction of the cluster clock forward that clients are told at once, µs: they are told whole
/// milliseconds.
const WORTH_TELLING_US: i64 = 1_000;
/// A correction backward that they are told at once, µs.
const STEP_US: i64 = (ALARM_MS * 1_000).cast_signed();

impl Shell {
    pub(super) fn handle(&mut self, input: Input) {
        self.engine.handle(self.clock.now(), input);
    }

    /// Gives the engine its tick if it is time, lets it act on all inputs, and carries out its
    /// effects.
    pub(super) fn tick_and_flush(&mut self) {
        let now = self.clock.now();
        self.announce_correction();
        let alarm = self.wheel.take_due(now.time);
        if alarm {
            self.counters.count(ShellCounter::Alarms);
        }
        if alarm || self.engine.next_tick().is_some_and(|ms| ms <= now.mono_ms) {
            self.engine.handle(now, Input::Tick);
        }
        self.engine.flush(now, &mut self.effects);
        let mut effects = std::mem::take(&mut self.effects);
        // Calls last: their tasks would keep the workers from writing deliveries out. With half of
        // the timers keyed, p99 of `bench lateness` at 10,000/s is 0.82 ms so and 0.95 ms otherwise
        // (medians of nine rounds in turn).
        for effect in effects.extract_if(.., |effect| !matches!(effect, Effect::Call(..))) {
            self.carry_out(effect);
        }
        effects.drain(..).for_each(|effect| self.carry_out(effect));
        self.effects = effects;
        if std::mem::take(&mut self.has_recalled) {
            // What was withdrawn waits for no event of its own.
            return self.tick_and_flush();
        }
        if self.limiter.next_count().is_some_and(|ms| ms <= now.mono_ms) {
            let clock = &self.clock;
            self.limiter.note_pending(now.mono_ms, self.engine.pending(), || clock.now().mono_ms);
        }
        // The partitions are counted over for it: not at every turn.
        if self.load_posted + LOAD_EVERY_MS <= now.mono_ms {
            self.load_posted = now.mono_ms;
            let (loaded, in_flight) = (self.engine.in_memory(), self.engine.unsettled() as u64);
            let sessions = self.sessions.count();
            self.membership.board.load(BrokerLoad { sessions, loaded, in_flight });
        }
    }

    pub(super) fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Send(SELF, message) => self.answer_own(message),
            Effect::Send(session, message) => self.send(session, message),
            Effect::SendBy(session, message, by) => self.send_by(session, message, Some(by)),
            Effect::AskShares(asks) => self.membership.board.ask_shares(asks),
            Effect::Recall(session, registration) => {
                let ids = self.sessions.recall(session, registration);
                if !ids.is_empty() {
                    self.has_recalled = true;
                    self.handle(Input::Session(session, SessionEvent::Recalled(ids)));
                }
            }
            Effect::Close(session, text) => {
                if self.sessions.close(session, text.clone()) {
                    self.counters.count(ShellCounter::SessionsBroken);
                    tracing::info!(session = session.0, reason = text, "closing a session");
                }
            }
            Effect::Settled(id, verdict) => {
                let now = self.clock.now().time;
                if let Some(traces) = &mut self.traces {
                    traces.settled(id, verdict, now);
                }
            }
            Effect::Died(died) => self.deaths.log(&died),
            // The askers may have gone.
            Effect::Stored(census) => self.stored_for.drain(..).for_each(|to| _ = to.send(census)),
            Effect::Call(partition, call) => self.lanes.call(partition, call),
            Effect::Alarm(time) => self.wheel.arm(time),
            Effect::LaneEnded(partition, error) => {
                self.lanes.end(partition, &error, self.phase != StopPhase::Serving);
                if let Some(since) = self.giving_up.remove(&partition) {
                    self.counters.released_after(since.elapsed());
                }
                self.membership.board.lost(partition);
                let now = self.clock.now().time;
                self.traces.iter_mut().for_each(|traces| traces.lost(partition, now));
            }
            Effect::Released => self.phase = StopPhase::Released,
        }
    }

    pub(super) fn send(&mut self, session: SessionId, message: ServerMessage) {
        self.send_by(session, message, None);
    }

    /// `by`: the monotonic time, ms, after which deliveries may not leave any more.
    fn send_by(&mut self, session: SessionId, mut message: ServerMessage, by: Option<u64>) {
        match &mut message {
            ServerMessage::Answer { answer: QueryAnswer::Status(status), .. } => self.complete(status),
            ServerMessage::Answer { answer: QueryAnswer::Ready(why), .. } => *why = self.unready(),
            _ => {}
        }
        if let (Some(traces), ServerMessage::Deliver { registration, deliveries }) =
            (&mut self.traces, &message)
        {
            traces.sent(session, *registration, deliveries, self.clock.now().time);
        }
        self.sessions.send(session, message, by);
    }

    /// Tells every session the cluster clock if it was corrected since the last time. Until then
    /// times that a client counts from now would be too early, and after a step its requests would
    /// look like repeats that are too old. To be called before any message that rests on the new
    /// time: no client may receive a timer before it knows that it is due.
    pub(super) fn announce_correction(&mut self) {
        let offset = self.clock.offset_us();
        let ahead = offset.saturating_sub(self.announced_offset);
        if (-STEP_US..=WORTH_TELLING_US).contains(&ahead) {
            // A client that is ahead by a little is late by it, until its next heartbeat.
            self.announced_offset = offset.min(self.announced_offset);
            return;
        }
        self.announced_offset = offset;
        let now = self.clock.now().time;
        for session in self.sessions.ids() {
            self.send(session, ServerMessage::Pong(UNASKED_PONG, now));
        }
    }
}
