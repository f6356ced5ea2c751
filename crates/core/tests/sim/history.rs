//! What happened, and whether it may have.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use mtimer_protocol::{Delivery, ErrorCode, OpReply, RequestOp, Settlement};
use mtimer_store::{Census, Place, Record};
use mtimer_types::{Ended, Epoch, HandlerOutcome, KeyPolicy, Mode, Target, Time, Timer, TimerId};

/// One timer's life as its clients saw it.
#[derive(Debug, Default, Hash)]
struct Life {
    due: u64,
    mode: Mode,
    /// Answered OK (or found acknowledged by a repeat).
    scheduled: bool,
    refused: bool,
    deliveries: Vec<(u64, Epoch, u32)>,
    ok_sent: bool,
    final_sent: bool,
    cancelled_at: Option<u64>,
    replaced: bool,
    /// A replacing schedule of its key was asked for, whose first answer may have been lost.
    maybe_replaced: bool,
    name: Option<(String, String)>,
    stopped: bool,
    /// Reschedules answered OK: (when asked, when answered, new due time).
    moved: Vec<(u64, u64, u64)>,
    asked_to_move: bool,
    deadline: Option<u64>,
    early: bool,
    left: Option<&'static str>,
    dead_complete: bool,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    lives: BTreeMap<TimerId, Life>,
    events: Vec<(u64, String)>,
    /// Replacing schedules not answered yet, by key: they may still be applied.
    replacing: BTreeMap<(String, String), u32>,
    pub census: Vec<Census>,
    /// When the run ended, by the cluster clock, ms.
    pub end: u64,
}

/// Whether the SDK would repeat the request.
pub(crate) fn is_temporary(reply: &OpReply) -> bool {
    use ErrorCode::{NotOwner, NotReplicated, Overloaded, Stopping, StoreFull, Unavailable, Unknown};
    matches!(reply, OpReply::Failed { code, .. }
        if matches!(code, NotOwner | NotReplicated | Overloaded | Stopping | StoreFull | Unavailable | Unknown))
}

impl History {
    pub(crate) fn note(&mut self, ms: u64, what: &str) {
        self.events.push((ms, what.to_owned()));
    }

    pub(crate) fn asked_schedule(&mut self, timer: &Timer, policy: KeyPolicy) {
        let deadline = timer.deadline.map(Time::as_ms);
        let name = timer.key.as_ref().map(|k| (timer.dest.app().to_owned(), k.as_str().to_owned()));
        let maybe_replaced =
            name.as_ref().is_some_and(|n| self.replacing.get(n).is_some_and(|open| *open > 0));
        if policy == KeyPolicy::Replace
            && let Some(n) = &name
        {
            *self.replacing.entry(n.clone()).or_default() += 1;
            self.lives.values_mut().filter(|l| l.name == name).for_each(|l| l.maybe_replaced = true);
        }
        let life = Life {
            name,
            due: timer.due.as_ms(),
            mode: timer.mode,
            deadline,
            maybe_replaced,
            ..Life::default()
        };
        self.lives.insert(timer.id, life);
    }

    pub(crate) fn answered(&mut self, asked: u64, ms: u64, op: &RequestOp, reply: &OpReply) {
        self.events.push((ms, format!("{reply:?} <- {op:?}").chars().take(240).collect()));
        if let RequestOp::Schedule { timer, policy: KeyPolicy::Replace } = op
            && let Some(key) = &timer.key
        {
            let name = (timer.dest.app().to_owned(), key.as_str().to_owned());
            self.replacing.entry(name).and_modify(|open| *open -= 1);
        }
        match (op, reply) {
            (RequestOp::Schedule { timer, .. }, OpReply::Scheduled { replaced, .. }) => {
                if let Some(old) = replaced.and_then(|id| self.lives.get_mut(&id)) {
                    old.replaced = true;
                }
                self.life(timer.id).scheduled = true;
            }
            (RequestOp::Schedule { timer, .. }, OpReply::Ended(Ended::Acknowledged)) => {
                self.life(timer.id).scheduled = true;
            }
            (RequestOp::Schedule { timer, .. }, _) => self.life(timer.id).refused = true,
            (RequestOp::Cancel { .. }, OpReply::Cancelled(id)) => {
                self.life(*id).cancelled_at.get_or_insert(ms);
            }
            (RequestOp::Cancel { .. }, OpReply::TooLate(id)) => self.life(*id).stopped = true,
            (RequestOp::Reschedule { due, .. }, OpReply::Rescheduled(id)) => {
                self.life(*id).moved.push((asked, ms, due.as_ms()));
            }
            (RequestOp::Reschedule { target: Target::Id(id), .. }, _) => self.life(*id).asked_to_move = true,
            _ => {}
        }
    }

    fn life(&mut self, id: TimerId) -> &mut Life {
        self.lives.entry(id).or_default()
    }

    pub(crate) fn delivered_at(&mut self, ms: u64, time: u64, d: &Delivery) {
        self.events.push((ms, format!("{} delivered, epoch {}, attempt {}", d.id, d.epoch, d.attempt)));
        let Some(life) = self.lives.get_mut(&d.id) else {
            self.events.push((ms, format!("{} was never scheduled", d.id)));
            let life = Life { refused: true, ..Life::default() };
            self.lives.insert(d.id, life);
            return;
        };
        life.early |= d.due.as_ms() > time;
        life.deliveries.push((ms, d.epoch, d.attempt));
    }

    pub(crate) fn settled(&mut self, ms: u64, s: &Settlement) {
        self.events.push((ms, format!("{} settled, attempt {}: {:?}", s.id, s.attempt, s.outcome)));
        let life = self.life(s.id);
        life.ok_sent |= s.outcome == HandlerOutcome::Ok;
        life.final_sent |= !matches!(s.outcome, HandlerOutcome::Retry { .. });
    }

    pub(crate) fn left(&mut self, id: TimerId, place: Place, record: &Record) {
        let life = self.life(id);
        life.left = Some(match place {
            Place::Pending { .. } => "pending",
            Place::Parked => "parked",
            Place::Taken { unconfirmed: true, .. } => "unconfirmed",
            Place::Taken { .. } => "taken",
            Place::Dead => "dead",
        });
        life.dead_complete = record.progress.failed > 0 && record.progress.last_error.is_some();
    }

    /// Timers that clients have scheduled and that `live` finds in the store.
    pub(crate) fn open(&self, live: impl Fn(TimerId) -> bool) -> usize {
        self.lives.keys().filter(|id| live(**id)).count()
    }

    pub(crate) fn delivered(&self) -> usize {
        self.lives.values().map(|l| l.deliveries.len()).sum()
    }

    pub(crate) fn digest(&self) -> u64 {
        let mut h = DefaultHasher::new();
        self.lives.hash(&mut h);
        self.events.hash(&mut h);
        h.finish()
    }

    /// Decides the invariants.
    pub(crate) fn check(&self, faults: bool) -> Result<(), String> {
        for (id, life) in &self.lives {
            self.check_life(id, life, faults).map_err(|why| {
                let text = id.to_string();
                let about: Vec<String> = self
                    .events
                    .iter()
                    .filter(|(_, e)| e.contains(&text) || e == "crash")
                    .map(|(ms, e)| format!("{ms}: {e}"))
                    .collect();
                format!("{id}: {why}\n{life:?}\n{}", about.join("\n"))
            })?;
        }
        for c in &self.census {
            let clean = c.pending == 0 && c.retrying == 0 && c.residue == 0;
            let keys_left = c.keys <= c.parked;
            if !clean || !keys_left {
                return Err(format!("left behind after the drain: {c:?}"));
            }
        }
        Ok(())
    }

    fn check_life(&self, _id: &TimerId, l: &Life, faults: bool) -> Result<(), String> {
        // An ended timer was settled with a final outcome, or cancelled, replaced, expired, or is kept somewhere.
        let expired = l.deadline.is_some();
        let ended = l.ok_sent
            || l.final_sent
            || l.cancelled_at.is_some()
            || l.replaced
            || l.maybe_replaced
            || expired;
        match l.left {
            Some("pending") => return Err("1: still pending".into()),
            Some("taken") => return Err("1: still taken, not unconfirmed".into()),
            Some(_) => {}
            None if l.scheduled && !ended => return Err("1: gone without an end".into()),
            None => {}
        }
        // One that was cancelled when it may have been sent by a crashed owner has seen no error.
        if l.left == Some("parked") && l.deadline.is_some_and(|d| d + 30_000 < self.end) {
            return Err("1: parked long after its deadline".into());
        }
        if l.left == Some("dead") && !l.dead_complete && !l.stopped {
            return Err("8: a dead letter without attempts or error".into());
        }
        if l.early {
            return Err("3: early".into());
        }
        if l.mode == Mode::AtMostOnce && l.deliveries.len() > 1 {
            return Err("4: at most once, delivered more often".into());
        }
        for pair in l.deliveries.windows(2) {
            let ((_, e1, a1), (_, e2, a2)) = (pair[0], pair[1]);
            if (e2, a2) <= (e1, a1) {
                return Err(format!("5: delivery {e2}/{a2} after {e1}/{a1}"));
            }
        }
        if !faults
            && l.deliveries.len() > 1
            && l.deliveries.iter().map(|d| d.2).ne(1..=l.deliveries.len() as u32)
        {
            return Err("5: a duplicate without a fault".into());
        }
        if let (Some(at), Some((ms, ..))) = (l.cancelled_at, l.deliveries.first()) {
            return Err(format!("6: cancelled at {at}, delivered at {ms}"));
        }
        // Of several moves those count that no later one can have undone; which of two concurrent ones came first is open.
        let last = |m: &&(u64, u64, u64)| !l.moved.iter().any(|later| later.0 > m.1);
        let known = l.moved.iter().map(|m| m.1).max().unwrap_or(u64::MAX);
        if let Some(due) = l.moved.iter().filter(last).map(|m| m.2).min()
            && let Some((ms, ..)) = l.deliveries.iter().find(|d| d.0 >= known && super::START + d.0 < due)
        {
            return Err(format!("7: moved to {due}, delivered at {ms}"));
        }
        Ok(())
    }
}
