//! How many pending timers fire when: a forecast has each timer in one span, in which it fires.

use mtimer_types::limits::MAX_PAGE;
use mtimer_types::{Destination, DueSpan, Filter, Time, Timer, TimerId};

use super::kit::Kit;
use super::owner::Owner;
use super::values::{DAY, HOUR, MINUTE, SECOND, YEAR, dest, other_dest};
use crate::{ForecastRange, Verdict};

/// Checks that spans may be those of timers that fire at these times: before every moment fire as
/// many as the spans say, which end before it, and no more than those that begin before it.
///
/// # Errors
///
/// What is wrong, for people.
pub fn check_spans(spans: &[DueSpan], fires: &[Time], step_ms: u64) -> Result<(), String> {
    let count = |is: &dyn Fn(&DueSpan) -> bool| -> u64 {
        spans.iter().filter(|span| is(span)).map(|span| span.timers).sum()
    };
    if count(&|_| true) != fires.len() as u64 {
        return Err(format!("{} timers are not each in one span: {spans:?}", fires.len()));
    }
    let moments = spans.iter().flat_map(|span| [span.begin, span.end]);
    for moment in moments.chain(fires.iter().copied()) {
        let before = fires.iter().filter(|fire| **fire < moment).count() as u64;
        let (over, begun) = (count(&|span| span.end <= moment), count(&|span| span.begin < moment));
        if before < over || begun < before {
            return Err(format!("{before} fire before {moment}: {spans:?}"));
        }
    }
    // A span that is no step is a slot.
    let is_step = |span: &&DueSpan| (span.end - step_ms, span.begin.as_ms() % step_ms) == (span.begin, 0);
    match spans.iter().find(|span| !is_step(span) && span.end.ms_since(span.begin) > DAY) {
        Some(span) => Err(format!("{span:?} is longer than a slot")),
        None => Ok(()),
    }
}

fn assert_spans(spans: &[DueSpan], fires: &[Time], step_ms: u64) {
    check_spans(spans, fires, step_ms).unwrap();
}

async fn assert_forecast(owner: &Owner, filter: &Filter, timers: &[Timer]) {
    let fires: Vec<_> = timers.iter().filter(|t| filter.accepts(t)).map(|t| t.due).collect();
    for step_ms in [1, 7 * SECOND, MINUTE, HOUR, DAY, 10 * YEAR] {
        let range = ForecastRange { filter: filter.clone(), ..ForecastRange::of(step_ms) };
        assert_spans(&owner.forecast(range).await, &fires, step_ms);
    }
}

/// Timers near and far, so that they are in slots of every width.
async fn spread(kit: &Kit, owner: &Owner) -> Vec<Timer> {
    let distances = [0, 7, SECOND, 30 * SECOND, MINUTE, HOUR, DAY, 40 * DAY, YEAR];
    let due = distances.iter().flat_map(|far| (0..23).map(move |n| kit.now + *far + n * 41));
    let dests = [dest(), other_dest(), Destination::new("stock", "billing").unwrap()];
    let timers =
        (0..).zip(due).map(|(n, due): (usize, _)| Timer { dest: dests[n % 3].clone(), ..kit.timer(due) });
    let timers: Vec<_> = timers.collect();
    owner.add_all(&timers).await;
    timers
}

pub(super) async fn nothing_is_due_at_once(mut kit: Kit) {
    let owner = kit.owner().await;
    assert_eq!(owner.forecast(ForecastRange::of(MINUTE)).await, []);
    let (parked, taken, dead) = (kit.timer(kit.now), kit.amo(kit.now), kit.timer(kit.now));
    owner.add_parked(&parked).await;
    owner.add_taken(&taken).await;
    owner.add_dead(&dead).await;
    assert_eq!(owner.forecast(ForecastRange::of(MINUTE)).await, [], "only what is pending");
}

pub(super) async fn every_timer_is_in_one_span(mut kit: Kit) {
    let owner = kit.owner().await;
    let mut timers = spread(&kit, &owner).await;
    assert_forecast(&owner, &Filter::default(), &timers).await;
    // Retries, timers that are moved, and those that have ended.
    let retry = Verdict::Retry { fire: kit.now + HOUR, tier: 2, failed: 1, error: "x".into() };
    owner.settle(timers[0].id, retry).await;
    timers[0].due = kit.now + HOUR;
    owner.reschedule(timers[1].id, kit.now + 3 * DAY).await;
    timers[1].due = kit.now + 3 * DAY;
    owner.settle(timers[2].id, Verdict::Ack).await;
    owner.cancel(timers[60].id).await;
    timers.remove(60);
    timers.remove(2);
    assert_forecast(&owner, &Filter::default(), &timers).await;
    owner.load(kit.now + 2 * DAY).await;
    assert_forecast(&owner, &Filter::default(), &timers).await;
    let next = kit.owner().await;
    assert_forecast(&next, &Filter::default(), &timers).await;
    assert_forecast(&next, &Filter::of(&dest()), &timers).await;
}

pub(super) async fn of_one_destination_or_group(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers = spread(&kit, &owner).await;
    let text = |text: &str| Some(text.to_owned());
    for filter in [
        Filter::of(&dest()),
        Filter { group: text("orders"), ..Filter::default() },
        Filter { app: text("billing"), ..Filter::default() },
        Filter { group: text("nobody"), ..Filter::default() },
    ] {
        assert_forecast(&owner, &filter, &timers).await;
    }
}

pub(super) async fn it_begins_and_ends_where_it_is_told(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers = spread(&kit, &owner).await;
    let all = owner.forecast(ForecastRange::of(HOUR)).await;
    assert!(all.len() > 4, "{all:?}");
    let begun: Vec<_> = all.iter().filter(|span| span.begin <= all[3].begin).copied().collect();
    // The span that contains the end is whole.
    for until in [all[3].begin, all[3].begin + 1, all[3].begin + MINUTE] {
        let until = ForecastRange { until, ..ForecastRange::of(HOUR) };
        assert_eq!(owner.forecast(until).await, begun);
    }
    let from = ForecastRange { from: (all[3].begin, TimerId::from_u128(0)), ..ForecastRange::of(HOUR) };
    let rest: Vec<_> = all.iter().filter(|span| span.begin >= all[3].begin).copied().collect();
    assert_eq!(owner.forecast(from).await, rest);
    let nothing = ForecastRange {
        from: (kit.now + DAY, TimerId::from_u128(0)),
        until: kit.now,
        ..ForecastRange::of(HOUR)
    };
    assert_eq!(owner.forecast(nothing).await, [], "it ends before it begins");
    let last = timers.iter().map(|t| t.due).max().unwrap();
    let beyond = ForecastRange { from: (last + DAY, TimerId::from_u128(0)), ..ForecastRange::of(HOUR) };
    assert_eq!(owner.forecast(beyond).await, []);
}

pub(super) async fn many_spans_in_pages(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<_> = (0..2_500).map(|n| kit.timer(kit.now + n * 2 * SECOND)).collect();
    owner.add_all(&timers).await;
    let fires: Vec<_> = timers.iter().map(|t| t.due).collect();
    for step_ms in [SECOND, MINUTE] {
        assert_spans(&owner.forecast(ForecastRange::of(step_ms)).await, &fires, step_ms);
    }
}

pub(super) async fn a_slot_a_day_in_pages(mut kit: Kit) {
    let owner = kit.owner().await;
    let days = u64::from(MAX_PAGE) + 200;
    let timers: Vec<_> = (0..days).map(|n| kit.timer(kit.now + n * DAY)).collect();
    owner.add_all(&timers).await;
    let first = owner.lane.forecast(ForecastRange::of(HOUR)).await.unwrap();
    assert!(first.next.is_some(), "{} spans are more than a page has", timers.len());
    let fires: Vec<_> = timers.iter().map(|t| t.due).collect();
    for step_ms in [HOUR, DAY] {
        assert_spans(&owner.forecast(ForecastRange::of(step_ms)).await, &fires, step_ms);
    }
}
