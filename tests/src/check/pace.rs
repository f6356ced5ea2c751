//! Invariants 9, 11 and 12: nothing waits for ever, nothing starves, and a clock that jumps changes
//! neither this nor 3.
//!
//! The limits are the history's, and generous: what is decided here is whether something hangs, not
//! how fast it is.

use super::violation::Violation;
use crate::fires::{Fire, fires};
use crate::history::{ClockReading, Event, Excuse, Fault, History};
use crate::tell::tell;

/// Deliveries of others that must have overtaken a timer before it counts as starved.
const OVERTAKEN: usize = 50;

/// All violations of them, with the timers' numbers.
pub(super) fn check(history: &History) -> Vec<(u64, Violation)> {
    let firsts = fires(history);
    let mut found = Vec::new();
    if let Some(limit) = history.limits.liveness_ms {
        for f in &firsts {
            let ready = after_faults(history, f, limit);
            if f.at > ready.saturating_add(limit) {
                let what = format!("delivered {} ms after it could have been", f.at - ready);
                let about = tell(history, &Default::default(), f.serial);
                found.push((f.serial, Violation { invariant: 9, what, about }));
            }
        }
    }
    if let Some(limit) = history.limits.starving_ms {
        starved(history, &firsts, limit, &mut found);
    }
    found
}

/// Clocks that were further from the reference than the history allows.
pub(super) fn clocks(history: &History) -> Vec<Violation> {
    let Some(limit) = history.limits.clock_ms else { return Vec::new() };
    let off = |r: &ClockReading| r.before.saturating_sub(r.says).max(r.says.saturating_sub(r.after));
    let violation = |r: &ClockReading| Violation {
        invariant: 12,
        what: format!("the clock of {} was {} ms away from the reference", r.broker, off(r)),
        about: format!("{r:?}"),
    };
    history.clocks.iter().filter(|r| off(r) > limit).map(violation).collect()
}

/// A break of 3 or 9 that follows a jump of a clock breaks 12.
pub(super) fn blame_jumps(history: &History, violations: &mut [Violation], serial: u64) {
    // Looking for a timer's events is dear, and hardly ever needed.
    if violations.is_empty() || history.jumps.is_empty() {
        return;
    }
    let of = |event: &(u64, Event)| (event.0 == serial).then(|| event.1.at());
    let times: Vec<u64> = history.events.iter().filter_map(of).collect();
    let (Some(first), Some(last)) = (times.iter().min(), times.iter().max()) else { return };
    if history.jumps.iter().any(|jump| (first..=last).contains(&jump)) {
        for violation in violations.iter_mut().filter(|v| matches!(v.invariant, 3 | 9)) {
            violation.what = format!("with a clock that jumped: {}", violation.what);
            violation.invariant = 12;
        }
    }
}

/// Faults that may have held something up: not what was planned.
fn faults(history: &History) -> impl Iterator<Item = &Fault> {
    history.faults.iter().filter(|fault| fault.excuse != Excuse::Nothing)
}

/// From when on it could have been delivered: not before the faults in between were over. One that
/// began when it should have been delivered long since explains nothing.
fn after_faults(history: &History, f: &Fire, limit: u64) -> u64 {
    let mut ready = f.ready;
    let mut between: Vec<&Fault> = faults(history).filter(|fault| fault.until >= ready).collect();
    between.sort_unstable_by_key(|fault| fault.from);
    for fault in between {
        if fault.from <= ready.saturating_add(limit) && fault.from <= f.at {
            ready = ready.max(fault.until.min(f.at));
        }
    }
    ready
}

/// Timers that waited while many later ones of other destinations were delivered.
fn starved(history: &History, firsts: &[Fire], limit: u64, found: &mut Vec<(u64, Violation)>) {
    let undisturbed = |f: &Fire| !faults(history).any(|x| x.from <= f.at && x.until + limit >= f.ready);
    let waited = |f: &&Fire| f.at > f.ready.saturating_add(limit) && undisturbed(f);
    for f in firsts.iter().filter(waited) {
        let dest = &history.plans[&f.serial].dest;
        let overtook = |o: &&Fire| {
            o.due > f.due && o.at < f.at && o.ready > f.ready && history.plans[&o.serial].dest != *dest
        };
        let others = firsts.iter().filter(overtook).count();
        if others > OVERTAKEN {
            let what =
                format!("it waited for {} ms, and {others} later ones of others did not", f.at - f.ready);
            let about = tell(history, &Default::default(), f.serial);
            found.push((f.serial, Violation { invariant: 11, what, about }));
        }
    }
}
