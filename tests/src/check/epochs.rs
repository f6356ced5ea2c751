//! Invariant 10, on what brokers said in their logs and under which epochs clients got deliveries.

use std::collections::{BTreeMap, BTreeSet};

use mtimer_client::Destination;

use super::violation::Violation;
use crate::history::{Event, Excuse, Fault, History};
use crate::journal::Note;
use crate::tell::tell;

/// How far a broker's log line may be behind what it says, ms.
const LOG_LAG_MS: u64 = 10_000;

/// All violations of it.
pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    acquisitions(history, &mut found);
    topologies(history, &mut found);
    deliveries(history, &mut found);
    found
}

/// An epoch is given once, and later ones are higher.
fn acquisitions(history: &History, found: &mut Vec<Violation>) {
    let mut by_partition: BTreeMap<u16, Vec<(u64, u64, &str)>> = BTreeMap::new();
    for entry in &history.journal {
        if let Note::Acquired { partition, epoch } = entry.note {
            by_partition.entry(partition).or_default().push((entry.at, epoch, &entry.broker));
        }
    }
    for (partition, mut owners) in by_partition {
        owners.sort_unstable();
        let mut given: BTreeMap<u64, &str> = BTreeMap::new();
        for (i, &(at, epoch, broker)) in owners.iter().enumerate() {
            if let Some(other) = given.insert(epoch, broker) {
                let what =
                    format!("partition {partition}: epoch {epoch} was given to {other} and to {broker}");
                found.push(violation(what));
            }
            // A line may come late; of a broker that was paused or starved, very late.
            let held_up = |f: &Fault| f.excuse != Excuse::Nothing;
            let undisturbed = |from, to| {
                let mut faults = history.faults.iter().filter(|f| held_up(f));
                !faults.any(|f| f.from <= to && f.until + LOG_LAG_MS >= from)
            };
            let above = |&&(then, higher, whose): &&(u64, u64, &str)| {
                let certain = whose == broker || (at > then + LOG_LAG_MS && undisturbed(then, at));
                higher > epoch && certain
            };
            if let Some((then, higher, whose)) = owners[..i].iter().find(above) {
                let what = format!(
                    "partition {partition}: {broker} acquired it at {at} under epoch {epoch}, after {whose} at {then} \
                     under {higher}"
                );
                found.push(violation(what));
            }
        }
    }
}

/// A term has one leader, and no broker goes back to an older topology within one run.
fn topologies(history: &History, found: &mut Vec<Violation>) {
    let mut leaders: BTreeMap<u64, &str> = BTreeMap::new();
    let mut last: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for entry in &history.journal {
        let Note::Topology { term, version, leader, .. } = &entry.note else { continue };
        let first = leaders.entry(*term).or_insert(leader);
        if first != leader {
            found.push(violation(format!("term {term} is {first}'s and {leader}'s")));
        }
        let stamp = (*term, *version);
        if let Some(before) = last.insert(&entry.broker, stamp).filter(|before| *before > stamp) {
            let who = &entry.broker;
            found.push(violation(format!("{who} went back from topology {before:?} to {stamp:?}")));
        }
    }
}

/// What is delivered comes under an epoch that somebody acquired; one client never gets an older
/// one than before.
fn deliveries(history: &History, found: &mut Vec<Violation>) {
    let mut given: BTreeSet<(u16, u64)> = BTreeSet::new();
    for entry in &history.journal {
        if let Note::Acquired { partition, epoch } = entry.note {
            given.insert((partition, epoch));
        }
    }
    // Each destination of a client has its own order.
    let mut highest: BTreeMap<(u32, u16, &Destination), u64> = BTreeMap::new();
    for (serial, event) in &history.events {
        let Event::Delivered { client, id, epoch, .. } = event else { continue };
        let partition = id.partition().0;
        let mut broken = |what: String| {
            let about = tell(history, &Default::default(), *serial);
            found.push(Violation { invariant: 10, what, about });
        };
        // Without logs nothing is known of who acquired what.
        if !given.is_empty() && !given.contains(&(partition, *epoch)) {
            broken(format!("delivered under epoch {epoch}, which nobody acquired of partition {partition}"));
        }
        let seen = highest.entry((*client, partition, &history.plans[serial].dest)).or_default();
        if *seen > *epoch {
            broken(format!(
                "delivered under epoch {epoch} to client {client}, which knew {seen} of partition {partition}"
            ));
        }
        *seen = (*seen).max(*epoch);
    }
}

fn violation(what: String) -> Violation {
    Violation { invariant: 10, what, about: String::new() }
}
