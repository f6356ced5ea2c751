//! Decides the contract's invariants on a history and what was left at its end.
//!
//! Invariant: what is allowed for because an answer is missing is exactly what the missing answer
//! leaves open; a broken invariant names the timer and shows everything that happened to it. That
//! everything has fired in the end (9) is also decided by whoever waits for the drain.

mod attempts;
mod deadlines;
mod deliveries;
mod ends;
mod epochs;
mod pace;
mod timelines;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use self::timelines::{Timeline, timelines};
use crate::history::{Excuse, Fault, History, Said};
use crate::journal::Entry;
use crate::left::Final;
use crate::plan::Plan;
use crate::tell::tell;

/// How far a record of a delivery may be behind the delivery, ms: a client that is short of
/// processor time.
const RECORD_LAG_MS: u64 = 10_000;
/// One hop, ms: from a broker's decision to send until the client has recorded the delivery, with
/// no fault in between. Debug builds that share two processors with other tests need up to some
/// hundred ms; a timer that is sent without a look at its state is late by whole waits for credit.
pub const HOP_MS: u64 = 1_500;
/// Longer than any delay between two attempts in these tests, ms.
const RETRY_MS: u64 = 5_000;
/// How far the cluster clock may be from the host's when times of both are compared, ms.
const CLOCK_MS: u64 = 100;
/// How far ahead an owner's claim can reach, ms, with a margin for clocks and logs.
const CLAIM_MS: u64 = 1_000;
/// How far back a store that loses writes may go, ms.
const LOSS_MS: u64 = 2_000;
/// How long an outcome may be on its way to the broker's decision that there was none, ms.
const SETTLE_LAG_MS: u64 = 4_000;
/// How far a record of a delivery may be behind a fault that ended its sender, ms.
const ARRIVAL_MS: u64 = 2_000;
/// What a store that loses writes may break: it never makes a timer early, changes it, or leaves it
/// incomplete.
const LOSABLE: [u8; 5] = [1, 4, 5, 6, 7];

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

/// Most violations of each invariant that are printed.
const PRINTED: usize = 3;

/// Prints how many violations there are of each invariant, and the first of each.
pub fn print_violations(name: &str, violations: &[Violation]) {
    let mut counts: BTreeMap<u8, usize> = BTreeMap::new();
    for violation in violations {
        let count = counts.entry(violation.invariant).or_default();
        *count += 1;
        if *count <= PRINTED {
            eprintln!("{violation}");
        }
    }
    if !counts.is_empty() {
        eprintln!("{name}: violations by invariant: {counts:?}");
    }
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
    let timelines = timelines(history, end);
    let mut verdict = Verdict::default();
    let mut late: HashMap<u64, Vec<Violation>> = HashMap::new();
    for (serial, violation) in pace::check(history) {
        late.entry(serial).or_default().push(violation);
    }
    deadlines::counted(history, &timelines, end, &mut verdict.violations);
    for (serial, plan) in &history.plans {
        let empty = Timeline::default();
        let timeline = timelines.get(serial).unwrap_or(&empty);
        let mut found = Vec::new();
        let timer =
            Timer { plan, timeline, faults: &history.faults, journal: &history.journal, read: end.at };
        timer.check(&mut found);
        let to_violation =
            |(invariant, what)| Violation { invariant, what, about: tell(history, end, *serial) };
        let mut found: Vec<_> = found.into_iter().map(to_violation).collect();
        found.extend(late.remove(serial).unwrap_or_default());
        pace::blame_jumps(history, &mut found, *serial);
        if !found.is_empty() && timer.may_be_lost() {
            verdict.losses.extend(found.extract_if(.., |v| LOSABLE.contains(&v.invariant)));
        }
        verdict.violations.append(&mut found);
    }
    let all = &mut verdict.violations;
    all.extend(epochs::check(history));
    all.extend(pace::clocks(history));
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
    for key in &end.taken_keys {
        all.push(Violation { invariant: 13, what: format!("not free: {key}"), about: about() });
    }
    for leak in &end.leaks {
        all.push(Violation { invariant: 13, what: leak.clone(), about: about() });
    }
    verdict
}

/// A timer, and what it is judged by.
struct Timer<'a> {
    plan: &'a Plan,
    timeline: &'a Timeline,
    faults: &'a [Fault],
    journal: &'a [Entry],
    /// When the end was read; 0: it was not.
    read: u64,
}

/// Broken invariants of one timer: number and words.
type Found = Vec<(u8, String)>;

impl Timer<'_> {
    fn check(&self, found: &mut Found) {
        self.ends_once(found);
        self.was_scheduled(found);
        self.is_not_early(found);
        self.is_delivered_as_often_as_allowed(found);
        self.stays_cancelled(found);
        self.ends_when_stopped(found);
        self.stays_replaced(found);
        self.stays_moved(found);
        self.keeps_its_deadline(found);
        self.expires_in_time(found);
        self.is_unconfirmed_for_a_reason(found);
        self.is_complete_when_dead(found);
    }

    /// Answered OK.
    fn stored(&self) -> bool {
        self.timeline.schedules.iter().any(|(_, said)| matches!(said, Said::Stored { .. }))
    }

    /// Certainly never stored.
    fn never_stored(&self) -> bool {
        !self.timeline.schedules.iter().any(|(_, said)| matches!(said, Said::Stored { .. } | Said::Unknown))
    }

    /// Whether a fault falls between two moments.
    fn fault_between(&self, from: u64, to: u64) -> bool {
        let excused = |f: &&Fault| f.excuse != Excuse::Nothing;
        self.faults.iter().filter(excused).any(|f| f.from <= to && f.until >= from)
    }

    /// Whether something that was sent may have been held back between two moments.
    fn held_between(&self, from: u64, to: u64) -> bool {
        let holds = |f: &&Fault| matches!(f.excuse, Excuse::Delays | Excuse::Losses);
        self.faults.iter().filter(holds).any(|f| f.from <= to && f.until >= from)
    }

    /// The replays that may have been done: when each was asked for, and when it was answered.
    ///
    /// One that was repeated because of a fault answers NotFound if the first sending was done and
    /// the timer has ended since.
    fn replays(&self) -> impl Iterator<Item = (u64, u64)> {
        self.timeline.replays.iter().filter_map(|&(asked, answered, said)| {
            let may_be_done = match said {
                Said::Done | Said::Unknown => true,
                Said::NotFound => self.fault_between(asked, answered),
                _ => false,
            };
            may_be_done.then_some((asked, answered))
        })
    }

    /// Whether a replay that may have been done took place between two moments.
    fn replayed_between(&self, from: u64, to: u64) -> bool {
        self.replays().any(|(asked, answered)| asked <= to && answered >= from)
    }

    /// Whether the store may have lost something of it that was answered.
    fn may_be_lost(&self) -> bool {
        let l = self.timeline;
        let lost = |at: &u64| {
            let mut losses = self.faults.iter().filter(|f| f.excuse == Excuse::Losses);
            losses.any(|f| f.from.saturating_sub(LOSS_MS) <= *at && f.until >= *at)
        };
        let answers = l.schedules.iter().map(|s| s.0).chain(l.cancels.iter().map(|c| c.1));
        let others = l.moves.iter().map(|m| m.answered).chain(l.deliveries.iter().map(|d| d.at));
        let others = others.chain(l.replays.iter().chain(&l.purges).map(|r| r.1));
        answers.chain(others).chain(l.settled.iter().map(|s| s.0)).any(|at| lost(&at))
    }
}
