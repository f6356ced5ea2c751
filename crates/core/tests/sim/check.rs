//! The rules: those on each event, checked as it happens, and those on the end of a run. What each
//! operation means to them is in [`super::operations`].
//!
//! The numbers are those of `docs/guarantees.md`.

use mtimer_protocol::Delivery;
use mtimer_store::Place;
use mtimer_types::limits::REPEAT_HORIZON_MS;
use mtimer_types::{Epoch, Mode, PartitionId, Time, TimerId};

use super::HOP_MS;
use super::history::{Answered, History, Life, Sent};

/// An owner that has lost its partition without knowing may send for so long, ms by its own
/// monotonic clock.
const FENCE_MS: u64 = 1_000;
/// How far a broker's time may be from the clock that decides, µs: the difference between store
/// clocks, and the ways to them.
pub(super) const CLOCK_BOUND_US: i64 = 60_000;

/// By how much a predecessor's clock may be ahead for all that it has sent to be known, ms.
const HANDOVER_MS: u64 = 1_000;

/// A clock that goes ahead by more than this at once makes outcomes that were stored before it be
/// forgotten too early to recognise repeats, ms.
pub(super) const FORGETFUL_MS: u64 = REPEAT_HORIZON_MS / 3;

/// A broker's clock error that is excused, because the deciding clock has stepped, or its host
/// stood still.
#[derive(Clone, Copy, Debug)]
pub(super) struct Excuse {
    /// By how much it may be ahead besides, µs: it stands still until that is over.
    pub(super) ahead_us: i64,
    /// It may be behind: it has not read the clocks since.
    pub(super) behind: bool,
}

/// The moment of a broker's act.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Reference time, ms since the beginning.
    pub(super) ms: u64,
    pub(super) broker: usize,
    /// By the broker's clocks.
    pub(super) time: Time,
    pub(super) mono_ms: u64,
}

impl History {
    /// A delivery begins: it leaves its broker.
    pub(super) fn sent(&mut self, m: Moment, d: &Delivery, claimed: Option<Time>) {
        let (id, ms, epoch, attempt, seq) = (d.id, m.ms, d.epoch, d.attempt, self.seq);
        self.note(ms, Some(id), || {
            format!("{id}: broker {} sends {epoch}/{attempt} at {}", m.broker, m.time)
        });
        self.check_pause(m, d);
        self.check_priority(m, d);
        let newer = self.owners[usize::from(id.partition().0)].iter().find(|r| r.epoch > epoch).cloned();
        let Some(life) = self.lives.get_mut(&id).filter(|l| l.asked) else {
            return self.fail(ms, Some(id), "2: sent, and was never scheduled");
        };
        let before = life.sent.clone();
        life.sent.push(Sent { seq, ms, epoch, attempt, time: m.time });
        let life = life.clone();
        if life.mode == Mode::AtMostOnce && before.len() > life.replays.len() && !life.forgotten {
            return self.fail(ms, Some(id), "4: an at-most-once timer is sent again");
        }
        if life.cancelled.is_some() && !life.forgotten {
            return self.fail(ms, Some(id), "6: sent after a cancel was answered");
        }
        let is_extended = life.extensions.iter().any(|(_, of)| *of == epoch);
        let lifted = !life.replays.is_empty() && life.deadline.is_none() || is_extended;
        if let Some(deadline) = life.deadline.filter(|d| !lifted && m.time > *d + HOP_MS) {
            let late = m.time.ms_since(deadline);
            return self.fail(ms, Some(id), &format!("deadline: sent {late} ms after it"));
        }
        if let Some(ownership) = newer {
            let since = m.mono_ms.saturating_sub(ownership.monos.get(m.broker).copied().unwrap_or_default());
            if since > FENCE_MS + HOP_MS {
                let text = format!("10: sent by an owner that was succeeded {since} ms ago");
                self.fail(ms, Some(id), &text);
            }
            // Its clients refuse its deliveries in this window, or may see them.
            return;
        }
        if let Some(last) = before.last()
            && (epoch, attempt) <= (last.epoch, last.attempt)
        {
            let text = format!("5: {epoch}/{attempt} is sent after {}/{}", last.epoch, last.attempt);
            return self.fail(ms, Some(id), &text);
        }
        self.check_sent_in_epoch(m, d, claimed);
    }

    /// Checks a delivery that the present owner sends.
    fn check_sent_in_epoch(&mut self, m: Moment, d: &Delivery, claimed: Option<Time>) {
        let (id, ms, epoch) = (d.id, m.ms, d.epoch);
        let life = &self.lives[&id];
        let seq = self.seq;
        let follows = |a: &Answered| a.seq < seq && a.epoch <= epoch && !life.replayed_since(a.applied);
        if life.forgotten {
            return;
        }
        let back = self.stepped_back_ms;
        let wrong = if m.time + back < d.due {
            // A client takes a delivery as proof that its due time has been reached.
            let early = d.due.ms_since(m.time);
            Some(format!("3: sent {early} ms before its due time, by its owner's clock"))
        } else if life.too_late.as_ref().is_some_and(follows) {
            Some("TooLate: an attempt begins after a cancel was answered".to_owned())
        } else if life.replaced.as_ref().is_some_and(follows) {
            Some("replace: sent after the replacing schedule was answered".to_owned())
        } else if let Some((_, due)) =
            life.moved.filter(|(a, due)| follows(a) && a.applied >= life.move_applied && m.time + back < *due)
        {
            Some(format!("7: sent {} ms before the time that it was moved to", due.ms_since(m.time)))
        } else if let Some(end) =
            life.ends.iter().rfind(|e| !e.late && e.epoch <= epoch && !life.replayed_since(e.seq))
        {
            Some(format!("1: sent after it had ended at {} ms by {}", end.ms, end.by))
        } else if let Some((_, at)) = life.not_before.filter(|(a, at)| d.attempt > *a && ms < *at) {
            Some(format!("retry: sent {} ms before the time that its handler has asked for", at - ms))
        } else if let Some(at) = life.postponed.not_before(d.attempt).filter(|at| ms < *at) {
            Some(format!("later: sent {} ms before the time to which its handler has put it off", at - ms))
        } else {
            match life.place {
                Some(Place::Taken { epoch: by, unconfirmed: false }) if life.mode == Mode::AtMostOnce => {
                    (by != epoch).then(|| "4: sent, and taken by another owner".to_owned())
                }
                _ if life.mode == Mode::AtMostOnce => Some("4: sent without being taken".to_owned()),
                Some(Place::Pending { fire, .. }) if m.time + back < fire && life.filed_in <= epoch => {
                    Some(format!("3: sent {} ms before its time", fire.ms_since(m.time)))
                }
                Some(Place::Pending { fire, .. }) if claimed.is_some_and(|c| c < fire) => {
                    Some("claims: sent beyond what is claimed".to_owned())
                }
                _ => None,
            }
        };
        if let Some(text) = wrong {
            self.fail(ms, Some(id), &text);
        }
    }

    /// Whether the owner of this epoch can know of a delivery of the timer: not of one that a
    /// predecessor has begun at a time that the owner's clock had not nearly reached when its
    /// ownership began (see `docs/guarantees.md`, under "When partitions change hands").
    pub(super) fn knows_of_sent(&self, id: TimerId, epoch: Epoch) -> bool {
        let ownerships = &self.owners[usize::from(id.partition().0)];
        let begun = ownerships.iter().find(|r| r.epoch == epoch).and_then(|r| r.begun);
        let known = |s: &Sent| s.epoch == epoch || begun.is_none_or(|begun| s.time <= begun + HANDOVER_MS);
        let life = &self.lives[&id];
        life.sent.iter().filter(|s| life.reborn.is_none_or(|at| s.seq > at)).any(known)
    }

    /// A client has received a delivery when the deciding clock showed `deciding_ms`.
    pub(super) fn received(&mut self, ms: u64, deciding_ms: u64, ahead_ms: u64, d: &Delivery) {
        self.note(ms, Some(d.id), || format!("{}: received", d.id));
        if deciding_ms + ahead_ms + self.stepped_back_ms < d.due.as_ms() {
            let early = d.due.as_ms() - deciding_ms;
            self.fail(ms, Some(d.id), &format!("3: received {early} ms early by the deciding clock"));
        }
    }

    /// A broker's time, beside the clock that decides. `advance_ms`: how far it has gone since the
    /// last look.
    pub(super) fn timed(&mut self, m: Moment, error_us: i64, excuse: Excuse, advance_ms: Option<i64>) {
        let (b, error_ms) = (m.broker, error_us / 1_000);
        let text = if advance_ms.is_some_and(|ms| ms < 0) {
            format!("12: the time of broker {b} goes back")
        } else if error_us > CLOCK_BOUND_US + excuse.ahead_us {
            format!("12: the time of broker {b} is {error_ms} ms ahead of the clock that decides")
        } else if error_us < -CLOCK_BOUND_US && !excuse.behind {
            format!("12: the time of broker {b} is {} ms behind the clock that decides", -error_ms)
        } else {
            return;
        };
        self.fail(m.ms, None, &text);
    }

    /// Timers whose cancel came too late, and which wait for another attempt although nothing is
    /// under way.
    pub(super) fn check_stopped(&mut self, ms: u64, now: Time, quiet_ms: u64) {
        let found = self.live().find(|(_, l)| {
            let stopped = l.too_late.filter(|a| !l.replayed_since(a.applied));
            let mut sent = l.sent.iter().chain(&l.given_back).map(|s| s.time);
            let waits = match l.place {
                // A timer that has been sent for this time waits for no other, though the clock
                // went back.
                Some(Place::Pending { fire, .. }) => fire > now && sent.all(|time| time < fire),
                _ => false,
            };
            let since = |at: u64| ms.saturating_sub(at) > quiet_ms;
            waits && stopped.is_some_and(|a| since(a.ms)) && l.sent.last().is_none_or(|s| since(s.ms))
        });
        if let Some((id, life)) = found {
            let (id, text) = (*id, format!("TooLate: stopped, and still {:?}", life.place));
            self.fail(ms, Some(id), &text);
        }
    }

    /// Everything that should have been sent by now.
    pub(super) fn check_overdue(&mut self, ms: u64, now: Time, grace_ms: u64) {
        let late = |t: Time| now.ms_since(t) > grace_ms;
        let found = self.live().find_map(|(id, l)| match l.place {
            Some(Place::Pending { fire, .. }) if late(fire) => Some((*id, "9: overdue and not sent")),
            Some(Place::Parked) if l.deadline.is_some_and(late) => {
                Some((*id, "deadline: parked long after it"))
            }
            _ => None,
        });
        if let Some((id, text)) = found {
            self.fail(ms, Some(id), text);
        }
    }

    /// After everything has drained.
    pub(super) fn check_whole(&mut self, ms: u64) {
        let faultless = self.plan.is_faultless();
        let mut wrong = None;
        for (id, l) in &self.lives {
            let text = if l.answered_ok && !l.stored {
                "1: answered OK and never stored"
            } else if l.is_live() {
                "1: still there after the drain"
            } else if faultless
                && l.sent.len()
                    > 1 + l.retries_given.len()
                        + l.postponed.count()
                        + l.replays.len()
                        + self.by_force(id.partition(), l)
            {
                "5: a duplicate without a fault"
            } else {
                continue;
            };
            wrong = Some((*id, text));
            break;
        }
        if let Some((id, text)) = wrong {
            self.fail(ms, Some(id), text);
        }
    }

    /// How many owners have sent a timer that took its partition from one which did not release it
    /// in time: they know of no delivery under way.
    fn by_force(&self, at: PartitionId, life: &Life) -> usize {
        let owners = self.owners[usize::from(at.0)].iter().filter(|owner| owner.by_force);
        owners.filter(|owner| life.sent.iter().any(|sent| sent.epoch == owner.epoch)).count()
    }
}
