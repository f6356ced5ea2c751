//! Pages of the pending timers.

use bytes::Bytes;
use mtimer_protocol::sample::all_pending;
use mtimer_protocol::{BrokerEntry, PendingQuery, PendingRow, TimerState, TimerView, Topology, encode};
use mtimer_store::PendingRange;
use mtimer_store::pending::behind;
use mtimer_types::extensions::FIRST_UNASSIGNED;
use mtimer_types::{Extensions, Filter, limits};

use super::*;

/// Where a page goes on.
type Next = Option<(Time, TimerId)>;

fn rig() -> Rig {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    rig
}

fn ask(rig: &mut Rig, query: PendingQuery) -> QueryAnswer {
    rig.sent.clear();
    rig.session(1, SessionEvent::Query { corr: 7, query: Query::Pending(query.into()) });
    rig.turn();
    let answer = |(_, message)| match message {
        ServerMessage::Answer { corr: 7, answer } => Some(answer),
        _ => None,
    };
    rig.sent.drain(..).find_map(answer).unwrap()
}

/// Asks for a page. It has to fit a frame.
fn page(rig: &mut Rig, query: PendingQuery) -> (Vec<PendingRow>, Next) {
    let answer = ask(rig, query);
    let body = encode(&ServerMessage::Answer { corr: 7, answer: answer.clone() }).unwrap();
    assert!(body.len() <= limits::MAX_FRAME, "{} bytes", body.len());
    match answer {
        QueryAnswer::Pending { rows, next } => (rows, next),
        other => panic!("{other:?}"),
    }
}

/// Asks for one page after the other, as large as they can be.
fn pages(rig: &mut Rig, payloads: bool) -> Vec<Vec<PendingRow>> {
    let mut query = PendingQuery { limit: u32::MAX, payloads, ..all_pending(0) };
    let mut pages = Vec::new();
    loop {
        let (rows, next) = page(rig, query.clone());
        pages.push(rows);
        let Some(next) = next else { return pages };
        query.from = next;
    }
}

fn ids(pages: &[Vec<PendingRow>]) -> Vec<TimerId> {
    pages.iter().flatten().map(|row| row.view.timer.id).collect()
}

/// A timer of a far time that is as large as it may be, but for key and payload.
fn largest(rig: &mut Rig, payload: usize) -> Timer {
    let name = "n".repeat(limits::MAX_NAME_BYTES);
    let value = "v".repeat(limits::MAX_HEADERS_BYTES / 4 - 1);
    let timer = rig.timer("a", 600_000);
    Timer {
        dest: Destination::new(&name, &name).unwrap(),
        deadline: Some(timer.due),
        callback_timeout_ms: Some(limits::MAX_CALLBACK_TIMEOUT_MS),
        retry: Some(RetryTiers(vec![limits::MAX_RETRY_DELAY_MS; limits::MAX_RETRY_TIERS])),
        payload: vec![7; payload].into(),
        headers: Headers::new(["a", "b", "c", "d"].map(|name| (name, &*value))).unwrap(),
        extensions: Extensions::new([(4 * FIRST_UNASSIGNED, "x".repeat(1_000))]).unwrap(),
        ..timer
    }
}

/// Schedules so many of the largest timers. Their ids, in order.
fn schedule_largest(rig: &mut Rig, count: usize, payload: usize) -> Vec<TimerId> {
    let timers: Vec<Timer> = (0..count).map(|_| largest(rig, payload)).collect();
    timers.iter().for_each(|timer| rig.schedule(1, timer.clone()));
    rig.run(5);
    timers.iter().map(|timer| timer.id).collect()
}

#[test]
fn a_page_has_the_timers_in_the_order_of_their_times_with_payloads_or_without() {
    let mut rig = rig();
    let [last, first, second] = [90_000, 60_000, 60_000].map(|due_in| rig.timer("a", due_in));
    [&last, &first, &second].into_iter().for_each(|timer| rig.schedule(1, timer.clone()));
    rig.run(5);
    let row = |timer: Timer| {
        let (fire, state) = (timer.due, TimerState::Pending { fire: timer.due });
        let view = TimerView::new(timer, state);
        PendingRow { fire, view, payload_bytes: 7 }
    };
    let without = |timer: &Timer| row(Timer { payload: Bytes::new(), ..timer.clone() });
    let rows = vec![without(&first), without(&second), without(&last)];
    assert_eq!(page(&mut rig, all_pending(0)), (rows, None));
    let rows = [&first, &second, &last].map(|timer| row(timer.clone())).into();
    assert_eq!(page(&mut rig, PendingQuery { payloads: true, ..all_pending(0) }), (rows, None));
    // In two pages.
    let (rows, next) = page(&mut rig, PendingQuery { limit: 2, ..all_pending(0) });
    assert_eq!(rows, [without(&first), without(&second)]);
    let (rows, next) = page(&mut rig, PendingQuery { from: next.unwrap(), ..all_pending(0) });
    assert_eq!((rows, next), (vec![without(&last)], None));
}

#[test]
fn the_store_is_asked_for_what_the_client_asks_and_for_no_more_rows_than_a_page_has() {
    for (limit, payloads, rows) in
        [(0, false, 1), (7, false, 7), (7, true, 7), (u32::MAX, false, 400), (u32::MAX, true, 48)]
    {
        let mut rig = rig();
        let (filter, retrying) = (Filter::of(&dest("a")), Some(true));
        let (from, until) = ((Time::from_ms(5), TimerId::from_u128(6)), Time::from_ms(7));
        let range = PendingRange { filter: filter.clone(), retrying, from, until, limit: rows };
        let query =
            PendingQuery { partition: 0, filter, retrying, from, until, limit, payloads, staged: false };
        rig.session(1, SessionEvent::Query { corr: 7, query: Query::Pending(query.into()) });
        let (now, mut effects) = (rig.now(), Vec::new());
        rig.engine.flush(now, &mut effects);
        let asked = effects.into_iter().find_map(|effect| match effect {
            Effect::Call(P, Call::Pending(range)) => Some(range),
            _ => None,
        });
        assert_eq!(asked, Some(range));
    }
}

#[test]
fn a_timer_that_is_being_delivered_is_listed_as_in_flight() {
    let mut rig = rig();
    let timer = rig.timer("a", 0);
    let d = rig.deliver(1, timer.clone());
    let far = rig.timer("a", 60_000);
    rig.schedule(1, far.clone());
    rig.run(5);
    let listed = |rig: &mut Rig, retrying| -> Vec<_> {
        let (rows, _) = page(rig, PendingQuery { retrying, ..all_pending(0) });
        rows.into_iter().map(|row| (row.fire, row.view.timer.id, row.view.state, row.view.failed)).collect()
    };
    let in_flight = |attempt| TimerState::InFlight { epoch: Epoch(1), attempt };
    let far = (far.due, far.id, TimerState::Pending { fire: far.due }, 0);
    assert_eq!(listed(&mut rig, None), [(timer.due, timer.id, in_flight(1), 0), far]);
    rig.settle(1, &d, HandlerOutcome::Retry { after_ms: Some(2_000), error: "no".into() });
    let fire = rig.now().time + 2_000;
    rig.run(5);
    let retry = |state| (fire, timer.id, state, 1);
    assert_eq!(listed(&mut rig, None), [retry(TimerState::Retrying { fire, tier: 1 }), far]);
    assert_eq!(listed(&mut rig, Some(false)), [far]);
    rig.run(2_000);
    assert_eq!(listed(&mut rig, Some(true)), [retry(in_flight(2))]);
}

#[test]
fn a_partition_that_does_not_exist_is_invalid() {
    let mut rig = rig();
    for partition in [1, u16::MAX] {
        let QueryAnswer::Failed { code: ErrorCode::Invalid, message } = ask(&mut rig, all_pending(partition))
        else {
            panic!("it is answered")
        };
        assert!(message.contains(&format!("no partition {partition}")), "{message}");
    }
}

#[test]
fn the_partition_of_another_broker_is_asked_for_there() {
    let address = Some("own:1".into());
    let mut rig = Rig::new(EngineOptions { address, ..EngineOptions::default() });
    rig.join(1, "a", 10);
    let broker = BrokerEntry { address: "next:1".into(), draining: false };
    let topology = Topology { brokers: vec![broker], owners: vec![Some(0)], ..Topology::default() };
    let now = rig.now();
    rig.engine.handle(now, Input::Topology(topology.into()));
    rig.answers_wait = true;
    rig.engine.handle(now, Input::Disown(P));
    assert_eq!(ask(&mut rig, all_pending(0)), QueryAnswer::Moved { owner: "next:1".into() });
}

#[test]
fn a_question_that_waits_is_answered_when_the_lane_ends() {
    let mut rig = rig();
    rig.answers_wait = true;
    for corr in 0..10 {
        rig.session(1, SessionEvent::Query { corr, query: Query::Pending(all_pending(0).into()) });
    }
    rig.turn();
    let now = rig.now();
    let health = mtimer_store::Health::Ended(LaneError::Closed);
    rig.engine.handle(now, Input::Health { partition: P, health });
    rig.turn();
    let failed = |(_, message): &(SessionId, ServerMessage)| {
        matches!(message, ServerMessage::Answer { answer: QueryAnswer::Failed { .. }, .. })
    };
    assert_eq!(rig.sent.iter().filter(|sent| failed(sent)).count(), 10);
}

#[test]
fn whatever_becomes_of_a_page_the_next_ones_are_read() {
    let mut rig = rig();
    rig.join(2, "b", 10);
    let query = |rig: &mut Rig, session: u64, corr| {
        rig.session(session, SessionEvent::Query { corr, query: Query::Pending(all_pending(0).into()) });
    };
    let pages_at_the_store = |rig: &Rig| rig.unanswered.len();
    rig.answers_wait = true;
    (0..5).for_each(|corr| query(&mut rig, 1, corr));
    rig.turn();
    assert_eq!(pages_at_the_store(&rig), 2, "two at a time");
    // Whoever asked goes away; the store is away for a while; then all are read.
    rig.session(1, SessionEvent::Closed);
    let (now, health) = (rig.now(), |health| Input::Health { partition: P, health });
    rig.engine.handle(now, health(mtimer_store::Health::Down("away".into())));
    rig.answers_wait = false;
    rig.turn();
    rig.engine.handle(now, health(mtimer_store::Health::Up));
    rig.turn();
    rig.sent.clear();
    (0..5).for_each(|corr| query(&mut rig, 2, corr));
    rig.turn();
    let pages = rig.sent.iter().filter(|(_, sent)| {
        matches!(sent, ServerMessage::Answer { answer: QueryAnswer::Pending { .. }, .. })
    });
    assert_eq!(pages.count(), 5);
}

#[test]
fn a_page_of_large_payloads_is_cut_off_and_the_next_one_goes_on_there() {
    let mut rig = rig();
    let all = schedule_largest(&mut rig, 100, limits::MAX_PAYLOAD_BYTES);
    let listed = pages(&mut rig, true);
    assert_eq!(ids(&listed), all);
    let lengths: Vec<usize> = listed.iter().map(Vec::len).collect();
    assert!(lengths.len() == 3 && (40..48).contains(&lengths[0]), "{lengths:?}");
    let (rows, next) = page(&mut rig, PendingQuery { payloads: true, ..all_pending(0) });
    let last = rows.last().unwrap();
    assert_eq!((rows.len(), next), (lengths[0], Some(behind((last.fire, last.view.timer.id)))));
    // Without them all fit.
    let listed = pages(&mut rig, false);
    assert_eq!((listed.len(), ids(&listed)), (1, all));
    assert!(listed[0].iter().all(|row| row.payload_bytes as usize == limits::MAX_PAYLOAD_BYTES));
}

#[test]
fn a_page_without_payloads_has_as_many_of_the_largest_timers_as_of_others() {
    let mut rig = rig();
    let all = schedule_largest(&mut rig, 450, 0);
    let listed = pages(&mut rig, false);
    assert_eq!(ids(&listed), all);
    assert_eq!(listed.iter().map(Vec::len).collect::<Vec<_>>(), [400, 50]);
}
