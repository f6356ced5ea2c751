//! Bulk jobs as they are shown.

use std::time::Duration;

use mtimer_client::{Bulk, BulkAction, BulkObstacle, BulkProgress, BulkState, Filter, Time};
use serde_json::{Map, Value, json};

use crate::moment;
use crate::output::{Output, grouped, plain};
use crate::view;

/// The object that `show` shows.
pub(super) fn object(job: &BulkProgress) -> Map<String, Value> {
    let Bulk { action, filter, retrying, from, until, rate, dry_run } = &job.bulk;
    let Filter { group, app, key_prefix, header } = filter;
    let mut object = Map::new();
    let header = header.as_ref().map(|(name, value)| json!({ name: value }));
    let fields = [
        ("id", json!(job.id.to_string())),
        ("action", action.name().into()),
        ("group", json!(group)),
        ("app", json!(app)),
        ("key_prefix", json!(key_prefix)),
        ("header", json!(header)),
        ("retrying", json!(retrying)),
        ("rate", json!((*rate > 0).then_some(rate))),
        ("dry_run", json!(dry_run)),
    ];
    object.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    match action {
        BulkAction::Shift { ms } => _ = object.insert("by_ms".to_owned(), json!(ms)),
        BulkAction::MoveTo { due } => view::put_time(&mut object, "to", Some(*due)),
        BulkAction::Release { import } | BulkAction::Withdraw { import } => {
            object.insert("import".to_owned(), json!(import.to_string()));
        }
        BulkAction::Cancel | BulkAction::Replay | BulkAction::Purge => {}
    }
    view::put_time(&mut object, "from", Some(*from).filter(|from| *from > Time::ZERO));
    view::put_time(&mut object, "until", Some(*until).filter(|until| *until < Time::MAX));
    object.extend(progress(job));
    let failure = |(id, why): (String, BulkObstacle)| json!({ "id": id, "why": obstacle(why) });
    let failures: Vec<Value> = job.failures.iter().map(|f| failure((f.id.to_string(), f.why))).collect();
    object.insert("failures".to_owned(), failures.into());
    object
}

/// How far a job has come.
fn progress(job: &BulkProgress) -> Map<String, Value> {
    let mut object = Map::new();
    let fields = [
        ("state", state(job.state).into()),
        ("done", json!(job.done)),
        ("not_done", json!(job.not_done)),
        ("partitions", json!(job.partitions)),
        ("ended_partitions", json!(job.ended_partitions)),
        ("missing_partitions", json!(job.missing)),
    ];
    object.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    view::put_time(&mut object, "begun", Some(job.begun));
    view::put_time(&mut object, "ended", job.ended);
    object
}

/// The same for people.
pub(super) fn fields(job: &BulkProgress, out: Output) -> String {
    let mut object = progress(job);
    let rate = job.bulk.rate;
    let fields = [
        ("id", json!(job.id.to_string())),
        ("action", action(&job.bulk.action).into()),
        ("timers", timers(&job.bulk).into()),
        ("rate", json!((rate > 0).then(|| format!("{} a second at most", grouped(rate.into()))))),
        ("dry_run", json!(job.bulk.dry_run)),
    ];
    object.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    let lines = [view::fields(&object, out)].into_iter().chain(failures(job, usize::MAX));
    lines.collect::<Vec<_>>().join("\n")
}

/// Lines that name the first timers on which a job could not act, `limit` at most, and say how many
/// there are beside them.
pub(super) fn failures(job: &BulkProgress, limit: usize) -> Vec<String> {
    let mut lines: Vec<String> =
        job.failures.iter().take(limit).map(|failure| format!("{}: {}", failure.id, failure.why)).collect();
    let more = job.not_done.saturating_sub(lines.len() as u64);
    if more > 0 {
        lines.push(format!("and {} more", grouped(more)));
    }
    lines
}

/// What a job has done, in one line.
pub(super) fn summary(job: &BulkProgress) -> String {
    let (done, would) = (done(&job.bulk.action), if job.bulk.dry_run { "would be " } else { "" });
    let mut text = format!("{} {would}{done}", grouped(job.done));
    if job.not_done > 0 {
        text += &format!(", {} could not be", grouped(job.not_done));
    }
    match job.state {
        BulkState::Done => text,
        BulkState::Stopped => format!("{text}; the job was stopped"),
        BulkState::Waiting | BulkState::Working => format!("{text} so far"),
    }
}

/// What a timer is on which a job has acted.
pub(super) const fn done(action: &BulkAction) -> &'static str {
    match action {
        BulkAction::Cancel => "cancelled",
        BulkAction::Shift { .. } | BulkAction::MoveTo { .. } => "rescheduled",
        BulkAction::Replay => "replayed",
        BulkAction::Purge => "purged",
        BulkAction::Release { .. } => "released",
        BulkAction::Withdraw { .. } => "withdrawn",
    }
}

/// What a job does.
pub(super) fn action(action: &BulkAction) -> String {
    match action {
        BulkAction::Shift { ms } => format!("reschedule {}", shift(*ms)),
        BulkAction::MoveTo { due } => format!("reschedule to {}", moment::shown(*due)),
        other => other.name().to_owned(),
    }
}

/// The same as a sentence, for a question.
pub(super) fn effect(bulk: &Bulk) -> String {
    let timers = timers(bulk);
    match bulk.action {
        BulkAction::Cancel => format!("this cancels all {timers}"),
        BulkAction::Shift { ms } => format!("this makes all {timers} due {}", shift(ms)),
        BulkAction::MoveTo { due } => format!("this makes all {timers} due at {}", moment::shown(due)),
        BulkAction::Replay => format!("this delivers all {timers} again"),
        BulkAction::Purge => format!("this removes all {timers} for good"),
        BulkAction::Release { .. } => format!("this has all {timers} delivered"),
        BulkAction::Withdraw { .. } => format!("this removes all {timers} for good"),
    }
}

fn shift(ms: i64) -> String {
    let span = moment::span_shown(Duration::from_millis(ms.unsigned_abs()));
    format!("{span} {}", if ms < 0 { "earlier" } else { "later" })
}

/// The timers that a job is about, in words.
pub(super) fn timers(bulk: &Bulk) -> String {
    let Filter { group, app, key_prefix, header } = &bulk.filter;
    let live = bulk.action.is_of_live();
    let kind = match bulk.action.import() {
        Some(import) => format!("staged timers of import {import}"),
        None if live => "pending and parked timers".to_owned(),
        None => "dead letters and unconfirmed timers".to_owned(),
    };
    let place = match (group, app) {
        (Some(group), Some(app)) => format!("of {group}/{app}"),
        (Some(group), None) => format!("of the group {group:?}"),
        (None, Some(app)) => format!("of the app {app:?}"),
        (None, None) => "of the cluster".to_owned(),
    };
    let mut words = vec![kind];
    if bulk.action.import().is_none() || (group, app) != (&None, &None) {
        words.push(plain(&place, 300));
    }
    match key_prefix.as_deref() {
        None => {}
        Some("") => words.push("with a key".to_owned()),
        Some(prefix) => words.push(format!("with a key that begins with {prefix:?}")),
    }
    if let Some((name, value)) = header {
        words.push(plain(&format!("with the header {name}={value}"), 300));
    }
    match bulk.retrying {
        Some(true) if live => words.push("that wait for a retry".to_owned()),
        Some(false) if live => words.push("that wait for their first attempt".to_owned()),
        _ => {}
    }
    let happens = if live { "that fire" } else { "that ended" };
    let (from, until) = (moment::shown(bulk.from), moment::shown(bulk.until));
    match (bulk.from > Time::ZERO, bulk.until < Time::MAX) {
        (true, true) => words.push(format!("{happens} from {from} to {until}")),
        (true, false) => words.push(format!("{happens} at {from} or later")),
        (false, true) => words.push(format!("{happens} at {until} or earlier")),
        (false, false) => {}
    }
    words.join(" ")
}

/// The name of a state.
pub(super) const fn state(state: BulkState) -> &'static str {
    match state {
        BulkState::Waiting => "waiting",
        BulkState::Working => "working",
        BulkState::Stopped => "stopped",
        BulkState::Done => "done",
    }
}

const fn obstacle(why: BulkObstacle) -> &'static str {
    match why {
        BulkObstacle::TooLate => "too-late",
        BulkObstacle::PastDeadline => "past-deadline",
        BulkObstacle::KeyTaken => "key-taken",
        BulkObstacle::TooFar => "too-far",
    }
}

#[cfg(test)]
mod tests {
    use mtimer_client::{BulkFailure, BulkId, TimerId};

    use super::*;

    const NOON: Time = Time::from_ms(1_896_091_200_000);

    fn job(bulk: Bulk, state: BulkState) -> BulkProgress {
        let failure = BulkFailure { id: TimerId::from_u128(1), why: BulkObstacle::TooLate };
        BulkProgress {
            id: BulkId(7),
            bulk,
            state,
            partitions: 8,
            ended_partitions: 8,
            missing: 0,
            begun: NOON,
            ended: None,
            done: 1_204,
            not_done: 3,
            failures: vec![failure; 3],
        }
    }

    #[test]
    fn a_question_names_what_is_done_and_all_conditions() {
        let text = |text: &str| Some(text.to_owned());
        let cancel = Bulk {
            filter: Filter {
                group: text("shop"),
                app: text("orders"),
                key_prefix: text("order-"),
                header: Some(("tenant".to_owned(), "acme".to_owned())),
            },
            retrying: Some(false),
            from: NOON,
            until: NOON + 1,
            ..Bulk::new(BulkAction::Cancel, Filter::default())
        };
        let expected = "this cancels all pending and parked timers of shop/orders with a key that begins with \
            \"order-\" with the header tenant=acme that wait for their first attempt that fire from \
            2030-01-31T12:00:00.000Z to 2030-01-31T12:00:00.001Z";
        assert_eq!(effect(&cancel), expected);
        let of = |action, filter| effect(&Bulk::new(action, filter));
        let group = || Filter { group: text("shop"), ..Filter::default() };
        let expected = "this removes all dead letters and unconfirmed timers of the group \"shop\" for good";
        assert_eq!(of(BulkAction::Purge, group()), expected);
        let earlier = of(BulkAction::Shift { ms: -1_800_000 }, Filter::default());
        assert_eq!(earlier, "this makes all pending and parked timers of the cluster due 30m earlier");
        assert!(of(BulkAction::MoveTo { due: NOON }, group()).ends_with(" due at 2030-01-31T12:00:00.000Z"));
        assert!(of(BulkAction::Replay, group()).ends_with("of the group \"shop\" again"));
    }

    #[test]
    fn a_summary_says_what_was_done_and_what_could_not_be() {
        let cancel = || Bulk::new(BulkAction::Cancel, Filter::default());
        assert_eq!(summary(&job(cancel(), BulkState::Done)), "1,204 cancelled, 3 could not be");
        let dry = Bulk { dry_run: true, ..cancel() };
        let dry = BulkProgress { not_done: 0, ..job(dry, BulkState::Done) };
        assert_eq!(summary(&dry), "1,204 would be cancelled");
        let stopped = summary(&job(cancel(), BulkState::Stopped));
        assert_eq!(stopped, "1,204 cancelled, 3 could not be; the job was stopped");
        assert!(summary(&job(cancel(), BulkState::Working)).ends_with(" so far"));
    }

    #[test]
    fn the_first_failures_are_named_and_the_others_counted() {
        let job = job(Bulk::new(BulkAction::Cancel, Filter::default()), BulkState::Done);
        let line = "00000000000000000000000001: too late: an attempt had begun";
        assert_eq!(failures(&job, 2), [line, line, "and 1 more"]);
        assert_eq!(failures(&job, 10), [line; 3]);
        let none = BulkProgress { not_done: 0, failures: vec![], ..job };
        assert_eq!(failures(&none, 10), [""; 0]);
    }
}
