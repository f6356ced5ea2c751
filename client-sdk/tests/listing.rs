//! Lists of timers that do not wait: who is asked, and where a list goes on.

#![allow(clippy::unwrap_used)]

mod fake;

use fake::{Broker, dest};
use mtimer_client::{Epoch, ErrorCode, RequestError, TimerState, TimerView};
use mtimer_protocol::{Query, QueryAnswer};
use mtimer_types::{Time, Timer, TimerId};

/// Of a question: whether it is about taken timers, its cursor, and its limit.
type Asked = (bool, Option<(u16, u64)>, u32);

fn pick(query: Query) -> Option<Asked> {
    match query {
        Query::Parked { dest: of, cursor, limit } => {
            assert_eq!(of, dest());
            Some((false, cursor, limit))
        }
        Query::Taken { cursor, limit } => Some((true, cursor, limit)),
        _ => None,
    }
}

fn view(n: u128, state: TimerState) -> TimerView {
    let timer = Timer::new(TimerId::from_u128(n), dest(), Time::from_ms(5));
    TimerView::new(timer, state)
}

/// Three pages, of which the second one is empty.
fn page(asked: &Asked) -> QueryAnswer {
    let (is_taken, cursor, _) = *asked;
    let state =
        if is_taken { TimerState::InFlight { epoch: Epoch(1), attempt: 1 } } else { TimerState::Parked };
    let (rows, next) = match cursor {
        None => (vec![view(1, state), view(2, state)], Some((0, 7))),
        Some((0, 7)) => (vec![], Some((1, 0))),
        other => {
            assert_eq!(other, Some((1, 0)));
            (vec![view(3, state)], None)
        }
    };
    QueryAnswer::Timers { rows, next }
}

#[tokio::test(start_paused = true)]
async fn parked_and_taken_timers_are_listed_page_by_page() {
    let broker = Broker::start().await;
    let (client, peer) = broker.connect().await;
    let told = fake::serve(peer, pick, page);
    let ids = |rows: Vec<TimerView>| rows.iter().map(|row| row.timer.id.as_u128()).collect::<Vec<_>>();
    let parked = client.parked(&dest()).page(2).all().await.unwrap();
    assert!(parked.iter().all(|row| row.state == TimerState::Parked));
    assert_eq!(ids(parked), [1, 2, 3]);
    let mut taken = client.taken();
    let mut rows = Vec::new();
    while let Some(row) = taken.next().await.unwrap() {
        rows.push(row);
    }
    assert_eq!(ids(rows), [1, 2, 3]);
    let cursors = [None, Some((0, 7)), Some((1, 0))];
    let of = |is_taken, limit| cursors.map(|cursor| (is_taken, cursor, limit));
    assert_eq!(*told.lock().unwrap(), [of(false, 2), of(true, 1_000)].concat());
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_another_kind_and_a_refusal_are_errors() {
    let answers: [fn(&Asked) -> QueryAnswer; 2] = [
        |_| QueryAnswer::Timer(None),
        |_| QueryAnswer::Failed { code: ErrorCode::Unauthorized, message: "no".into() },
    ];
    for (answer, is_mismatched) in answers.into_iter().zip([true, false]) {
        let broker = Broker::start().await;
        let (client, peer) = broker.connect().await;
        fake::serve(peer, pick, answer);
        let error = client.taken().next().await.unwrap_err();
        assert_eq!(error == RequestError::Mismatched, is_mismatched, "{error:?}");
    }
}
