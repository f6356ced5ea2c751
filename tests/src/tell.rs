//! Everything that happened to one timer, in words.

use std::fmt::Write as _;

use crate::history::{Event, History, Said};
use crate::journal::{Entry, Note};
use crate::left::Final;

/// One line an event, in the order of time, with the faults in between; times in ms after the due
/// time.
pub fn tell(history: &History, end: &Final, serial: u64) -> String {
    let Some(plan) = history.plans.get(&serial) else { return format!("timer {serial} was never planned") };
    let mut text = format!("timer {serial}: {plan:?}\n");
    let mut lines: Vec<(u64, String)> = Vec::new();
    for (_, event) in history.events.iter().filter(|(s, _)| *s == serial) {
        lines.push((event.at(), words(event)));
    }
    let first = lines.iter().map(|l| l.0).min().unwrap_or(0).min(plan.due);
    for fault in history.faults.iter().filter(|f| f.until >= first) {
        lines.push((fault.from, format!("{} (until {})", fault.what, fault.until)));
    }
    let last = lines.iter().map(|l| l.0).max().unwrap_or(u64::MAX);
    lines.extend(ownerships(history, serial).into_iter().filter(|l| (first..=last).contains(&l.0)));
    lines.sort();
    for (at, line) in lines {
        let after = at as i64 - plan.due as i64;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {at} ({after:+} ms): {line}");
    }
    for (_, left) in end.left.iter().filter(|(s, _)| *s == serial) {
        let _ = writeln!(text, "  in the end: {left:?}");
    }
    text
}

/// Who has had its partition, as far as brokers have logged it and a client has seen the id.
fn ownerships(history: &History, serial: u64) -> Vec<(u64, String)> {
    let mut events = history.events.iter().filter(|(s, _)| *s == serial);
    let partition = events.find_map(|(_, event)| match event {
        Event::Schedule { said: Said::Stored { id: Some(id), .. }, .. } | Event::Delivered { id, .. } => {
            Some(id.partition().0)
        }
        _ => None,
    });
    let of = |entry: &Entry| {
        let broker = &entry.broker;
        let line = match &entry.note {
            Note::Acquired { partition: p, epoch } if Some(*p) == partition => {
                format!("{broker} has acquired partition {p} under epoch {epoch}")
            }
            Note::Lost { partition: p, epoch, error } if Some(*p) == partition => {
                format!("{broker} has lost partition {p} of epoch {epoch}: {error}")
            }
            Note::Forced { partition: p } if Some(*p) == partition => {
                format!("{broker} takes partition {p} by force")
            }
            _ => return None,
        };
        Some((entry.at, line))
    };
    history.journal.iter().filter_map(of).collect()
}

fn words(event: &Event) -> String {
    match event {
        Event::Schedule { asked, said, .. } => format!("schedule, asked at {asked}: {said:?}"),
        Event::Cancel { asked, said, .. } => format!("cancel, asked at {asked}: {said:?}"),
        Event::Move { asked, due, said, .. } => format!("reschedule to {due}, asked at {asked}: {said:?}"),
        Event::Replay { asked, said, .. } => format!("replay, asked at {asked}: {said:?}"),
        Event::Purge { asked, said, .. } => format!("purge, asked at {asked}: {said:?}"),
        Event::Looked { state, .. } => format!("it is found: {state:?}"),
        Event::Ended { how, .. } => format!("a repeat of the schedule is told that it has ended: {how:?}"),
        Event::Delivered { client, id, epoch, attempt, due, .. } => {
            let partition = id.partition();
            format!(
                "delivered to client {client} as {id} of partition {partition}, due {due}, epoch {epoch}, attempt {attempt}"
            )
        }
        Event::Settled { epoch, attempt, outcome, .. } => {
            format!("handler of epoch {epoch}, attempt {attempt} says {outcome:?}")
        }
    }
}
