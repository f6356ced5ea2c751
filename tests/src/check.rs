//! Decides the contract's invariants on a history and what was left at its end.
//!
//! Invariant: what is allowed for because an answer is missing is exactly what the missing answer leaves open; a broken
//! invariant names the timer and shows everything that happened to it. That everything has fired in the end (9) is also
//! decided by whoever waits for the drain.

mod epochs;
mod pace;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use mtimer_client::{DeadReason, Mode, TimerId};

use crate::history::{Event, Excuse, Fault, Final, Handled, History, Left, Plan, Said};
use crate::journal::{Entry, Note};
use crate::tell::tell;

/// How far a record of a delivery may be behind the delivery, ms: a client that is short of processor time.
const RECORD_LAG_MS: u64 = 10_000;
/// How far ahead an owner's claim can reach, ms, with room for clocks and logs.
const CLAIM_MS: u64 = 1_000;
/// How far back a store that loses writes may go, ms.
const LOSS_MS: u64 = 2_000;
/// How long an outcome may be on its way to the broker's decision that there was none, ms.
const SETTLE_LAG_MS: u64 = 4_000;

/// A broken invariant.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Its number in the contract.
    pub invariant: u8,
    /// What is wrong.
    pub what: String,
    /// Which timer, if it is one, and everything that happened to it.
    pub about: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}\n{}", self.invariant, self.what, self.about)
    }
}

/// One delivery.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: u64,
    id: TimerId,
    epoch: u64,
    attempt: u32,
    due: u64,
    intact: bool,
}

/// One reschedule that may have been done.
#[derive(Clone, Copy, Debug)]
struct Moved {
    asked: u64,
    answered: u64,
    due: u64,
    said: Said,
}

/// One timer's history, sorted by kind.
#[derive(Debug, Default)]
struct Life {
    schedules: Vec<(u64, Said)>,
    cancels: Vec<(u64, u64, Said)>,
    moves: Vec<Moved>,
    deliveries: Vec<Seen>,
    settled: Vec<(u64, u64, u32, Handled)>,
    /// Certainly replaced.
    replaced: bool,
    /// A schedule that replaces its key may have replaced it.
    maybe_replaced: bool,
    left: Vec<Left>,
}

/// What a history comes to.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// What breaks the contract, in the order of the timers' numbers.
    pub violations: Vec<Violation>,
    /// What would, if the store had not lost what it had answered (see [`Excuse::Losses`]).
    pub losses: Vec<Violation>,
}

/// All violations, in the order of the timers' numbers.
pub fn check(history: &History, end: &Final) -> Vec<Violation> {
    judge(history, end).violations
}

/// All violations, and what a store that loses writes explains.
pub fn judge(history: &History, end: &Final) -> Verdict {
    let lives = lives(history, end);
    let mut verdict = Verdict::default();
    let mut late: HashMap<u64, Vec<Violation>> = HashMap::new();
    for (serial, violation) in pace::check(history) {
        late.entry(serial).or_default().push(violation);
    }
    for (serial, plan) in &history.plans {
        let empty = Life::default();
        let life = lives.get(serial).unwrap_or(&empty);
        let mut found = Vec::new();
        let timer = Timer { plan, life, faults: &history.faults, journal: &history.journal };
        timer.check(&mut found);
        let to_violation =
            |(invariant, what)| Violation { invariant, what, about: tell(history, end, *serial) };
        let mut found: Vec<_> = found.into_iter().map(to_violation).collect();
        found.extend(late.remove(serial).unwrap_or_default());
        pace::blame_jumps(history, &mut found, *serial);
        let lost = !found.is_empty() && timer.may_be_lost();
        let heap = if lost { &mut verdict.losses } else { &mut verdict.violations };
        heap.append(&mut found);
    }
    let all = &mut verdict.violations;
    all.extend(epochs::check(history));
    let about = String::new;
    for stranger in history.strangers.iter().chain(&end.strangers) {
        all.push(Violation { invariant: 2, what: format!("nobody scheduled {stranger}"), about: about() });
    }
    let s = &end.status;
    for (what, n) in [
        ("pending timers", s.pending),
        ("retrying timers", s.retrying),
        ("parked timers", s.parked),
        ("index entries without a timer", s.residue),
        ("keys", s.keys),
        ("taken timers", s.taken),
        ("dead letters", s.dead),
        ("timers in memory", s.loaded),
    ] {
        if n > 0 {
            all.push(Violation { invariant: 13, what: format!("{n} {what} are left"), about: about() });
        }
    }
    for leak in &end.leaks {
        all.push(Violation { invariant: 13, what: leak.clone(), about: about() });
    }
    verdict
}

fn lives(history: &History, end: &Final) -> BTreeMap<u64, Life> {
    let mut lives: BTreeMap<u64, Life> = BTreeMap::new();
    let mut ids: HashMap<TimerId, u64> = HashMap::new();
    let mut by_key: HashMap<_, Vec<u64>> = HashMap::new();
    for plan in history.plans.values() {
        if let Some(key) = &plan.key {
            by_key.entry((&plan.dest, key)).or_default().push(plan.serial);
        }
    }
    for (serial, event) in &history.events {
        let life = lives.entry(*serial).or_default();
        match event {
            Event::Schedule { answered, said, .. } => {
                life.schedules.push((*answered, *said));
                if let Said::Stored { id: Some(id), .. } = said {
                    ids.insert(*id, *serial);
                }
            }
            Event::Cancel { asked, answered, said } => life.cancels.push((*asked, *answered, *said)),
            Event::Move { asked, answered, due, said } => {
                life.moves.push(Moved { asked: *asked, answered: *answered, due: *due, said: *said });
            }
            Event::Delivered { at, id, epoch, attempt, due, intact, .. } => {
                ids.insert(*id, *serial);
                let (at, id, epoch, attempt, due, intact) = (*at, *id, *epoch, *attempt, *due, *intact);
                life.deliveries.push(Seen { at, id, epoch, attempt, due, intact });
            }
            Event::Settled { at, epoch, attempt, outcome } => {
                life.settled.push((*at, *epoch, *attempt, *outcome));
            }
        }
    }
    for (serial, left) in &end.left {
        lives.entry(*serial).or_default().left.push(left.clone());
    }
    // What replaced what, where that was said; and what may have been, where the answer is missing.
    for (serial, event) in &history.events {
        let Event::Schedule { said, .. } = event else { continue };
        let plan = &history.plans[serial];
        let Some(key) = plan.key.as_ref().filter(|_| plan.replaces) else { continue };
        match said {
            Said::Stored { replaced: Some(replaced), .. } => {
                let old = replaced.and_then(|id| ids.get(&id));
                if let Some(old) = old {
                    lives.entry(*old).or_default().replaced = true;
                }
            }
            Said::Stored { replaced: None, .. } | Said::Unknown => {
                for other in by_key[&(&plan.dest, key)].iter().filter(|o| *o != serial) {
                    lives.entry(*other).or_default().maybe_replaced = true;
                }
            }
            _ => {}
        }
    }
    lives
}

struct Timer<'a> {
    plan: &'a Plan,
    life: &'a Life,
    faults: &'a [Fault],
    journal: &'a [Entry],
}

type Found = Vec<(u8, String)>;

impl Timer<'_> {
    fn check(&self, found: &mut Found) {
        self.ends_once(found);
        self.was_scheduled(found);
        self.is_not_early(found);
        self.is_delivered_as_often_as_allowed(found);
        self.stays_cancelled(found);
        self.stays_moved(found);
        self.is_unconfirmed_for_a_reason(found);
        self.is_complete_when_dead(found);
    }

    /// Answered OK.
    fn stored(&self) -> bool {
        self.life.schedules.iter().any(|(_, said)| matches!(said, Said::Stored { .. }))
    }

    /// Certainly never stored.
    fn never_stored(&self) -> bool {
        !self.life.schedules.iter().any(|(_, said)| matches!(said, Said::Stored { .. } | Said::Unknown))
    }

    /// Whether a fault falls between two moments.
    fn fault_between(&self, from: u64, to: u64) -> bool {
        let excused = |f: &&Fault| f.excuse != Excuse::Nothing;
        self.faults.iter().filter(excused).any(|f| f.from <= to && f.until >= from)
    }

    /// Whether the store may have lost something of it that was answered.
    fn may_be_lost(&self) -> bool {
        let l = self.life;
        let lost = |at: &u64| {
            let mut losses = self.faults.iter().filter(|f| f.excuse == Excuse::Losses);
            losses.any(|f| f.from.saturating_sub(LOSS_MS) <= *at && f.until >= *at)
        };
        let answers = l.schedules.iter().map(|s| s.0).chain(l.cancels.iter().map(|c| c.1));
        let others = l.moves.iter().map(|m| m.answered).chain(l.deliveries.iter().map(|d| d.at));
        answers.chain(others).chain(l.settled.iter().map(|s| s.0)).any(|at| lost(&at))
    }

    fn ends_once(&self, found: &mut Found) {
        let l = self.life;
        for left in &l.left {
            if let Left::Live(state) = left {
                found.push((1, format!("it has not ended: {state:?}")));
            }
        }
        if l.left.len() > 1 {
            found.push((1, format!("it is in {} places", l.left.len())));
        }
        let done = |said: Said| matches!(said, Said::Done);
        let cancelled = l.cancels.iter().any(|(_, _, said)| done(*said));
        let ended = [cancelled, l.replaced, !l.left.is_empty()];
        if ended.iter().filter(|e| **e).count() > 1 {
            let of = format!("cancelled: {cancelled}, replaced: {}, left: {:?}", l.replaced, l.left);
            found.push((1, format!("it has ended more than once: {of}")));
        }
        if !self.stored() || ended.contains(&true) {
            return;
        }
        // Gone: an ok, a cancel or replacement that may have been done, or its deadline must explain it.
        let ok = l.settled.iter().any(|s| s.3 == Handled::Ok);
        let maybe_cancelled = l.cancels.iter().any(|(_, _, said)| matches!(said, Said::Unknown));
        if !(ok || maybe_cancelled || l.maybe_replaced || self.plan.deadline.is_some()) {
            found.push((1, "it is gone, and nothing has ended it".to_owned()));
        }
    }

    fn was_scheduled(&self, found: &mut Found) {
        let l = self.life;
        if self.never_stored() && !l.deliveries.is_empty() {
            found.push((2, "it was refused, and yet delivered".to_owned()));
        }
        if self.never_stored() && !l.left.is_empty() {
            found.push((2, format!("it was refused, and yet is there: {:?}", l.left)));
        }
        if l.deliveries.iter().any(|d| !d.intact) {
            found.push((2, "it was delivered with another content than it was scheduled with".to_owned()));
        }
        if l.deliveries.iter().map(|d| d.id).collect::<HashSet<_>>().len() > 1 {
            found.push((2, "it was delivered under two ids".to_owned()));
        }
    }

    fn is_not_early(&self, found: &mut Found) {
        for d in &self.life.deliveries {
            if d.at < d.due {
                found.push((
                    3,
                    format!("delivered at {}, {} ms before its due time {}", d.at, d.due - d.at, d.due),
                ));
            }
            let asked_for = |m: &Moved| m.due == d.due && !matches!(m.said, Said::Refused);
            let born = if self.plan.exact { d.due == self.plan.due } else { d.due >= self.plan.due };
            if !born && !self.life.moves.iter().any(asked_for) {
                found.push((3, format!("delivered with the due time {}, which nobody asked for", d.due)));
            }
        }
    }

    fn is_delivered_as_often_as_allowed(&self, found: &mut Found) {
        let deliveries = &self.life.deliveries;
        if self.plan.mode == Mode::AtMostOnce {
            if deliveries.len() > 1 {
                found.push((4, format!("at most once, and delivered {} times", deliveries.len())));
            }
            return;
        }
        for (i, d) in deliveries.iter().enumerate() {
            let before = &deliveries[..i];
            let this = (d.epoch, d.attempt);
            // What the network held back comes late.
            let overtaken = |b: &Seen| {
                let other = (b.epoch, b.attempt);
                other == this || (other > this && !self.fault_between(d.due, d.at))
            };
            if before.iter().any(overtaken) {
                let what = format!("delivery {}/{} is not higher than one before it", d.epoch, d.attempt);
                found.push((5, what));
            }
            match before.iter().max_by_key(|b| (b.epoch, b.attempt)) {
                Some(last) if (last.epoch, last.attempt) >= this => {}
                Some(last) => self.has_a_cause(last, d, found),
                None if d.attempt > 1 => {
                    let since = self.life.schedules.iter().map(|s| s.0).min().unwrap_or(0);
                    // Before the first answer there may have been others, and deliveries to clients that are gone.
                    if !self.fault_between(since.min(d.due), d.at) {
                        found.push((
                            5,
                            format!("its first delivery is attempt {}, without a fault", d.attempt),
                        ));
                    }
                }
                None => {}
            }
        }
    }

    /// A delivery after another one: the handler asked for it, or was too slow, or something broke in between.
    fn has_a_cause(&self, last: &Seen, d: &Seen, found: &mut Found) {
        if self.fault_between(last.at.saturating_sub(RECORD_LAG_MS), d.at) {
            return;
        }
        let outcome = self.life.settled.iter().find(|s| (s.1, s.2) == (last.epoch, last.attempt));
        let in_time = outcome.filter(|s| s.0.saturating_sub(last.at) + SETTLE_LAG_MS <= self.plan.timeout_ms);
        match in_time {
            Some((.., Handled::Retry)) | None => {}
            Some((at, .., outcome)) => {
                found.push((5, format!("delivered again although its handler had said {outcome:?} at {at}")));
            }
        }
        // In other hands as well: an owner that releases in good order takes back what it claimed and did not send.
        let next = d.attempt == last.attempt + 1;
        if !next || (d.epoch != last.epoch && !self.changed_hands(last, d)) {
            let (a, b) = ((last.epoch, last.attempt), (d.epoch, d.attempt));
            found.push((5, format!("delivery {b:?} after {a:?} without a fault in between")));
        }
    }

    /// Whether its partition was acquired, under an epoch up to that of the second delivery, after the first.
    fn changed_hands(&self, last: &Seen, d: &Seen) -> bool {
        let partition = d.id.partition().0;
        let from = last.at.saturating_sub(CLAIM_MS);
        self.journal.iter().any(|entry| match entry.note {
            Note::Acquired { partition: p, epoch } => {
                p == partition && (last.epoch + 1..=d.epoch).contains(&epoch) && entry.at >= from
            }
            _ => false,
        })
    }

    fn stays_cancelled(&self, found: &mut Found) {
        let last = self.life.deliveries.last();
        for (_, answered, said) in &self.life.cancels {
            match (said, last) {
                (Said::Done, Some(d)) => {
                    found.push((6, format!("cancelled at {answered}, and delivered at {}", d.at)));
                }
                // What was under way then is the last attempt.
                (Said::TooLate, Some(d)) if d.at > answered + RECORD_LAG_MS => {
                    let what = format!(
                        "a cancel that came too late, at {answered}, did not stop attempt {}",
                        d.attempt
                    );
                    found.push((6, what));
                }
                _ => {}
            }
        }
    }

    /// After an answered reschedule it is delivered at that time, or at one that was asked for later or at the same time.
    fn stays_moved(&self, found: &mut Found) {
        let moves = &self.life.moves;
        if !moves.iter().any(|m| m.said == Said::Done) {
            return;
        }
        let undone = |m: &Moved| moves.iter().any(|n| n.said == Said::Done && n.asked > m.answered);
        let counts = |m: &&Moved| match m.said {
            Said::Done => !undone(m),
            Said::Unknown => true,
            _ => false,
        };
        let allowed: Vec<u64> = moves.iter().filter(counts).map(|m| m.due).collect();
        for d in self.life.deliveries.iter().filter(|d| !allowed.contains(&d.due)) {
            found.push((7, format!("moved to {allowed:?}, and delivered for {} at {}", d.due, d.at)));
        }
    }

    /// At most once, and nobody knows whether it was done: something must have broken, or the handler was too slow.
    fn is_unconfirmed_for_a_reason(&self, found: &mut Found) {
        let l = self.life;
        if !l.left.iter().any(|left| matches!(left, Left::Unconfirmed { .. })) {
            return;
        }
        let Some(d) = l.deliveries.first() else {
            let due = l.moves.iter().map(|m| m.due).chain([self.plan.due]);
            let (from, to) = due.fold((u64::MAX, 0), |(from, to), due| (from.min(due), to.max(due)));
            let asked = l.schedules.iter().map(|s| s.0).max().unwrap_or_default();
            if !self.fault_between(from.saturating_sub(CLAIM_MS), to.max(asked) + RECORD_LAG_MS) {
                found.push((1, "it is unconfirmed, and nobody got it, without a fault".to_owned()));
            }
            return;
        };
        let settled = l.settled.iter().find(|s| (s.1, s.2) == (d.epoch, d.attempt) && s.3 == Handled::Ok);
        let Some((at, ..)) = settled else { return };
        let in_time = at.saturating_sub(d.at) + SETTLE_LAG_MS <= self.plan.timeout_ms;
        if in_time && !self.fault_between(d.at.saturating_sub(CLAIM_MS), at + RECORD_LAG_MS) {
            found.push((1, format!("it is unconfirmed, although its handler had said Ok at {at}")));
        }
    }

    fn is_complete_when_dead(&self, found: &mut Found) {
        for left in &self.life.left {
            let (reason, attempts, error, intact) = match left {
                Left::Dead { reason, attempts, last_error, intact } => {
                    (*reason, *attempts, last_error, *intact)
                }
                Left::Unconfirmed { intact: false } => {
                    found.push((
                        8,
                        "it is unconfirmed with another content than it was scheduled with".to_owned(),
                    ));
                    continue;
                }
                _ => continue,
            };
            if !intact {
                found.push((8, "it is dead with another content than it was scheduled with".to_owned()));
            }
            // One that was stopped when a dead owner may have sent it has seen no error.
            let stopped = reason == DeadReason::Stopped;
            if !stopped && (attempts == 0 || error.as_deref().unwrap_or_default().is_empty()) {
                found.push((
                    8,
                    format!("a dead letter ({reason:?}) with {attempts} attempts and the error {error:?}"),
                ));
            }
            if reason == DeadReason::Exhausted && attempts < self.plan.attempts {
                found.push((8, format!("exhausted after {attempts} of {} attempts", self.plan.attempts)));
            }
            let fits = match reason {
                DeadReason::AtMostOnce => self.plan.mode == Mode::AtMostOnce,
                DeadReason::Stopped => self.life.cancels.iter().any(|c| !matches!(c.2, Said::Done)),
                DeadReason::Exhausted | DeadReason::Failed => self.plan.mode == Mode::AtLeastOnce,
            };
            if !fits {
                found.push((8, format!("its reason {reason:?} does not fit what happened")));
            }
        }
    }
}
