//! Checks of messages with several parts: the operations of a request, the rows of an answer.

use mtimer_protocol::{ErrorCode, PendingRow, QueryAnswer, Request};
use mtimer_types::{Destination, Filter, Time, TimerId, Verb};

use crate::needs;
use crate::principal::Principal;

/// Low bits of an id that are kept secret: too many to guess, and few enough that the timers of one
/// millisecond differ in those above.
const SECRET_BITS: u32 = 40;

/// Returns the operations of a request that are refused, by their place, and why. It allocates
/// nothing if all are allowed.
pub fn denied_ops(who: &Principal, request: &Request) -> Vec<(usize, String)> {
    let check = |(at, op)| needs::of_op(op).check(who).err().map(|denied| (at, denied.to_string()));
    request.ops.iter().enumerate().filter_map(check).collect()
}

/// Removes the rows that this principal may not read from an answer.
///
/// A timer that was asked for by its id is refused without its destination; rows of lists are left
/// out, so that a page may have fewer rows than asked for, and so are bulk jobs. A page of pending
/// timers, or of a forecast, may end before the timer of another destination. Whoever knows its id
/// could settle it, so the page names it only as far as it has to.
pub fn screen(who: &Principal, answer: &mut QueryAnswer) {
    if who.allows_everywhere(Verb::Read) {
        return;
    }
    let may_read = |dest: &Destination| who.allows(Verb::Read, dest);
    match answer {
        QueryAnswer::Timer(Some(view)) if !may_read(&view.timer.dest) => *answer = may_not_read(who),
        QueryAnswer::Story(Some(story)) if !may_read(&story.view.timer.dest) => *answer = may_not_read(who),
        QueryAnswer::Dead { rows, .. } => rows.retain(|row| may_read(&row.timer.dest)),
        QueryAnswer::Unconfirmed { rows, .. } => rows.retain(|row| may_read(&row.timer.dest)),
        QueryAnswer::Timers { rows, .. } => rows.retain(|row| may_read(&row.timer.dest)),
        QueryAnswer::Pending { rows, next } => {
            rows.retain(|row| may_read(&row.view.timer.dest));
            *next = next.map(|next| without_id(next, rows.last()));
        }
        // Timers of the same millisecond whose ids begin alike may so be counted twice.
        QueryAnswer::Forecast { next, .. } => *next = next.map(|next| without_id(next, None)),
        // Whoever asked may read them all, or the question was refused.
        QueryAnswer::Counts { rows, next, .. } => {
            rows.retain(|row| may_read(&row.dest));
            *next = next.take().filter(may_read);
        }
        // A job tells of all that its filter covers: names of keys and headers, counts, ids.
        QueryAnswer::Bulks(jobs) => jobs.retain(|job| {
            let Filter { group, app, .. } = &job.bulk.filter;
            who.allows_all(Verb::Read, &needs::pattern_of(group.as_deref(), app.as_deref()))
        }),
        QueryAnswer::Settings(rows) => rows.retain(|row| may_read(&row.dest)),
        QueryAnswer::Status(status) => {
            status.parked_destinations.retain(|parked| may_read(&parked.dest));
            status.paused_destinations.retain(|paused| may_read(&paused.dest));
        }
        // Their permission is checked before.
        QueryAnswer::Timer(_)
        | QueryAnswer::Story(_)
        | QueryAnswer::Cluster(_)
        | QueryAnswer::Broker(_)
        | QueryAnswer::Failed { .. }
        | QueryAnswer::Moved { .. }
        | QueryAnswer::Done
        | QueryAnswer::Ready(_) => {}
    }
}

fn may_not_read(who: &Principal) -> QueryAnswer {
    QueryAnswer::Failed {
        code: ErrorCode::Unauthorized,
        message: format!("token {} may not read on this timer's destination", who.id()),
    }
}

/// Returns a position at or before `next`, and behind the last row, that does not tell the id of a
/// timer that is not in the rows.
fn without_id((fire, id): (Time, TimerId), last: Option<&PendingRow>) -> (Time, TimerId) {
    let next = (fire, TimerId::from_u128(id.as_u128() >> SECRET_BITS << SECRET_BITS));
    let behind =
        |row: &PendingRow| (row.fire, TimerId::from_u128(row.view.timer.id.as_u128().saturating_add(1)));
    last.map_or(next, |row| next.max(behind(row)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

    use mtimer_protocol::sample::{dest, id, plain_timer, time};
    use mtimer_protocol::{BulkState, BulkView, DestinationCounts, TimerState, TimerView};
    use mtimer_types::{Bulk, BulkAction, BulkId, Timer};

    use super::*;
    use crate::grant::Grant;

    fn reader(pattern: &str) -> Principal {
        let grant: Grant = format!("read:{pattern}").parse().unwrap();
        Principal::new("t", &[grant])
    }

    /// A row of the timer whose id is so much above that of the sample.
    fn row(dest: Destination, above: u128) -> PendingRow {
        let (fire, id) = (time(5_000), TimerId::from_u128(id().as_u128() + above));
        let timer = Timer { id, dest, ..plain_timer() };
        let state = TimerState::Pending { fire };
        let view = TimerView::new(timer, state);
        PendingRow { fire, view, payload_bytes: 5 }
    }

    fn at(above: u128) -> (Time, TimerId) {
        (time(5_000), TimerId::from_u128(id().as_u128() + above))
    }

    /// What is left of a page after the screen: the ids of the rows, and where it goes on.
    fn screened(
        who: &Principal,
        rows: Vec<PendingRow>,
        next: Option<(Time, TimerId)>,
    ) -> (Vec<TimerId>, Option<(Time, TimerId)>) {
        let mut answer = QueryAnswer::Pending { rows, next };
        screen(who, &mut answer);
        let QueryAnswer::Pending { rows, next } = answer else { panic!("{answer:?}") };
        (rows.iter().map(|row| row.view.timer.id).collect(), next)
    }

    #[test]
    fn pending_timers_of_other_destinations_are_left_out() {
        let other = || Destination::new("bank", "pay").unwrap();
        let page = || vec![row(dest(), 0), row(other(), 1), row(dest(), 2), row(other(), 3)];
        let ids = |above: &[u128]| above.iter().map(|n| at(*n).1).collect::<Vec<_>>();
        assert_eq!(screened(&reader("orders/billing"), page(), None), (ids(&[0, 2]), None));
        assert_eq!(screened(&reader("bank/*"), page(), None), (ids(&[1, 3]), None));
        assert_eq!(screened(&reader("*"), page(), Some(at(4))), (ids(&[0, 1, 2, 3]), Some(at(4))));
    }

    #[test]
    fn counts_of_other_destinations_are_left_out_and_not_named_by_the_end_of_a_page() {
        let other = Destination::new("bank", "pay").unwrap();
        let screened = |who: &Principal| {
            let rows = [other.clone(), dest()].map(DestinationCounts::none).into();
            let mut answer = QueryAnswer::Counts { rows, next: Some(dest()), uncounted: 3 };
            screen(who, &mut answer);
            let QueryAnswer::Counts { rows, next, uncounted: 3 } = answer else { panic!("{answer:?}") };
            (rows.into_iter().map(|row| row.dest).collect::<Vec<_>>(), next)
        };
        assert_eq!(screened(&reader("*")), (vec![other.clone(), dest()], Some(dest())));
        assert_eq!(screened(&reader("orders/*")), (vec![dest()], Some(dest())));
        assert_eq!(screened(&reader("bank/pay")), (vec![other.clone()], None));
    }

    #[test]
    fn parked_and_taken_timers_of_other_destinations_are_left_out() {
        let other = Destination::new("bank", "pay").unwrap();
        let screened = |pattern: &str| {
            let rows = [row(other.clone(), 0), row(dest(), 1)].map(|row| row.view).into();
            let mut answer = QueryAnswer::Timers { rows, next: Some((9, 300)) };
            screen(&reader(pattern), &mut answer);
            let QueryAnswer::Timers { rows, next: Some((9, 300)) } = answer else { panic!("{answer:?}") };
            rows.into_iter().map(|row| row.timer.id).collect::<Vec<_>>()
        };
        assert_eq!(screened("*"), [at(0).1, at(1).1]);
        assert_eq!(screened("orders/*"), [at(1).1]);
        assert_eq!(screened("shop/*"), []);
    }

    #[test]
    fn the_end_of_a_forecasts_page_tells_no_id() {
        let next = |pattern: &str| {
            let mut answer = QueryAnswer::Forecast { spans: vec![], next: Some(at(7)), uncounted: 0 };
            screen(&reader(pattern), &mut answer);
            let QueryAnswer::Forecast { next, .. } = answer else { panic!("{answer:?}") };
            next.unwrap()
        };
        assert_eq!(next("*"), at(7));
        let told = next("orders/*");
        assert_eq!((told.0, told.1.as_u128() % (1 << SECRET_BITS)), (at(7).0, 0));
        assert!(told <= at(7), "nothing is missed");
    }

    #[test]
    fn bulk_jobs_are_told_only_to_those_who_may_read_all_that_they_are_about() {
        let name = |name: &str| Some(name.to_owned());
        let filters = [
            Filter::of(&dest()),
            Filter { key_prefix: name("order-"), ..Filter::of(&dest()) },
            Filter { group: name("orders"), ..Filter::default() },
            Filter { app: name("billing"), ..Filter::default() },
            Filter::default(),
            // No destination has such a name.
            Filter { group: name("\n"), ..Filter::default() },
        ];
        let job = |(id, filter)| BulkView {
            id: BulkId(id),
            bulk: Bulk::new(BulkAction::Cancel, filter),
            state: BulkState::Working,
            begun: time(0),
            ended: None,
            done: 1,
            not_done: 0,
            failures: vec![],
        };
        let jobs: Vec<BulkView> = (0..).zip(filters).map(job).collect();
        let screened = |pattern: &str| {
            let mut answer = QueryAnswer::Bulks(jobs.clone());
            screen(&reader(pattern), &mut answer);
            let QueryAnswer::Bulks(jobs) = answer else { panic!("{answer:?}") };
            jobs.iter().map(|job| job.id.0).collect::<Vec<_>>()
        };
        assert_eq!(screened("*"), [0, 1, 2, 3, 4, 5]);
        assert_eq!(screened("orders/*"), [0, 1, 2]);
        assert_eq!(screened("orders/billing"), [0, 1]);
        assert_eq!(screened("bank/pay"), []);
    }

    #[test]
    fn a_page_does_not_tell_the_id_of_another_destinations_timer_by_its_end() {
        let who = reader("orders/billing");
        let next = |rows: Vec<PendingRow>, next| screened(&who, rows, Some(next)).1.unwrap();
        // Far behind the last row.
        let far = at(1 << 60);
        let hidden = next(vec![row(dest(), 0)], far);
        assert!(at(0) < hidden && hidden < far, "{hidden:?}");
        assert_eq!((hidden.0, hidden.1.as_u128() % (1 << SECRET_BITS)), (far.0, 0));
        // So near that what is not hidden would lead back to the row.
        assert_eq!(next(vec![row(dest(), 0)], at(5)), at(1));
        // Behind the row itself there is nothing to hide.
        assert_eq!(next(vec![row(dest(), 0)], at(1)), at(1));
        let other = Destination::new("bank", "pay").unwrap();
        assert_eq!(next(vec![row(other, 0)], at(1)).1.as_u128() % (1 << SECRET_BITS), 0);
    }
}
