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
mod timer;
mod violation;

use std::collections::{BTreeMap, HashMap};

use self::timelines::{Timeline, timelines};
use self::timer::{Found, Timer};
use crate::history::History;
use crate::left::Final;
use crate::tell::tell;

pub use self::timer::HOP_MS;
pub use self::violation::Violation;

/// What a store that loses writes may break: it never makes a timer early, changes it, or leaves it
/// incomplete.
const LOSABLE: [u8; 5] = [1, 4, 5, 6, 7];

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
    /// What would, if the store had not lost what it had answered, see
    /// [`Excuse::Losses`](crate::history::Excuse::Losses).
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
}
