//! How many timers are due when: which pages are asked for, and what is added up.

#![allow(clippy::unwrap_used)]

mod fake;

use fake::{Asked, Broker, Cluster, Peer};
use mtimer_client::{DestinationFilter, DueSpan, ErrorCode, Forecast, ForecastRequest, RequestError, Time};
use mtimer_protocol::{ForecastQuery, Query, QueryAnswer};
use mtimer_types::TimerId;

/// Of the fake brokers' cluster.
const PARTITIONS: u64 = 8;

type Position = (Time, TimerId);

fn span(begin: u64, ms: u64, timers: u64) -> DueSpan {
    DueSpan { begin: Time::from_ms(begin), end: Time::from_ms(begin + ms), timers }
}

fn position(ms: u64, id: u128) -> Position {
    (Time::from_ms(ms), TimerId::from_u128(id))
}

fn answer(spans: Vec<DueSpan>, next: Option<Position>, uncounted: u64) -> QueryAnswer {
    QueryAnswer::Forecast { spans, next, uncounted }
}

/// Two pages, between which a span is divided.
fn page(query: &ForecastQuery) -> QueryAnswer {
    if query.from == position(0, 0) {
        answer(vec![span(0, 10, 1), span(10, 10, 2)], Some(position(15, 7)), 3)
    } else {
        answer(vec![span(10, 10, 4), span(10, 90, 5)], None, 0)
    }
}

fn request() -> ForecastRequest {
    let filter = DestinationFilter { group: Some("g".into()), app: None };
    ForecastRequest { filter, until: Time::from_ms(99), step_ms: 10 }
}

/// Answers all questions about a forecast; returns those that it was asked.
fn serve(
    peer: Peer,
    answer: impl Fn(&ForecastQuery) -> QueryAnswer + Send + 'static,
) -> Asked<ForecastQuery> {
    let pick = |query| match query {
        Query::Forecast(query) => Some(query),
        _ => None,
    };
    fake::serve(peer, pick, answer)
}

#[tokio::test(start_paused = true)]
async fn the_spans_of_all_partitions_are_added_up_page_by_page() {
    let (mut cluster, client) = Cluster::start(2).await;
    let mut told = Vec::new();
    for (n, peer) in (0..).zip(std::mem::take(&mut cluster.peers)) {
        told.push(serve(peer, move |query| {
            assert_eq!(query.partition % 2, n, "it goes to the owner");
            page(query)
        }));
    }
    let of_all = |timers| timers * PARTITIONS;
    let spans = vec![span(0, 10, of_all(1)), span(10, 10, of_all(6)), span(10, 90, of_all(5))];
    assert_eq!(client.forecast(request()).await, Ok(Forecast { spans, uncounted: of_all(3) }));
    let mut asked: Vec<_> = told.iter().flat_map(|asked| asked.lock().unwrap().clone()).collect();
    asked.sort_by_key(|query| (query.partition, query.from));
    let both = |partition| {
        [position(0, 0), position(15, 7)].map(|from| ForecastQuery {
            partition,
            group: Some("g".into()),
            app: None,
            from,
            until: Time::from_ms(99),
            step_ms: 10,
        })
    };
    assert_eq!(asked, (0..PARTITIONS as u16).flat_map(both).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn without_one_partition_there_are_no_sums() {
    let broker = Broker::start().await;
    let (client, peer) = broker.connect().await;
    let denied = || QueryAnswer::Failed { code: ErrorCode::Unauthorized, message: "no".into() };
    serve(peer, move |query| if query.partition == 5 { denied() } else { page(query) });
    let failed = client.forecast(request()).await;
    assert!(matches!(failed, Err(RequestError::Refused { code: ErrorCode::Unauthorized, .. })), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_go_on_is_an_error() {
    for wrong in [QueryAnswer::Timer(None), answer(vec![], Some(position(0, 0)), 0)] {
        let broker = Broker::start().await;
        let (client, peer) = broker.connect().await;
        serve(peer, move |_| wrong.clone());
        assert_eq!(client.forecast(request()).await, Err(RequestError::Mismatched));
    }
}

#[tokio::test(start_paused = true)]
async fn sums_stay_within_their_range() {
    let broker = Broker::start().await;
    let (client, peer) = broker.connect().await;
    serve(peer, |_| answer(vec![span(0, 10, u64::MAX)], None, u64::MAX));
    let spans = vec![span(0, 10, u64::MAX)];
    assert_eq!(client.forecast(request()).await, Ok(Forecast { spans, uncounted: u64::MAX }));
}
