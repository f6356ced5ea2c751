//! How many timers destinations have: who is asked, how often, and what is added up.

#![allow(clippy::unwrap_used)]

mod fake;

use std::sync::Mutex;
use std::time::Duration;

use fake::{Asked, Broker, Cluster, Peer, dest};
use mtimer_client::{
    Destination, DestinationCounts, DestinationFilter, Destinations, ErrorCode, RequestError, Time, limits,
};
use mtimer_protocol::{ClientMessage, CountsQuery, Query, QueryAnswer, ServerMessage};

/// Of the fake brokers' cluster.
const PARTITIONS: u64 = 8;

fn app(n: u64) -> Destination {
    Destination::new("g", &format!("app-{n}")).unwrap()
}

/// Counts of which each is another multiple of `n`.
fn counts(dest: Destination, n: u64) -> DestinationCounts {
    let of = |factor| factor * n;
    DestinationCounts {
        dest,
        pending: of(1),
        retrying: of(2),
        parked: of(3),
        in_flight: of(4),
        taken: of(5),
        unconfirmed: of(6),
        dead: of(7),
        oldest_overdue: Some(Time::from_ms(7)),
        staged: of(8),
    }
}

/// The rows of a partition: app 0 is in all of them, and each has one of its own.
fn rows(partition: u16) -> Vec<DestinationCounts> {
    let n = u64::from(partition);
    vec![counts(app(0), n + 1), counts(app(1 + n), 1)]
}

/// What a store with these rows answers; a page has one.
fn page(query: &CountsQuery) -> QueryAnswer {
    let mut rows = rows(query.partition);
    rows.retain(|row| query.after.as_ref().is_none_or(|after| row.dest > *after));
    let has_more = rows.len() > 1;
    rows.truncate(1);
    let next = rows.last().filter(|_| has_more).map(|row| row.dest.clone());
    // Of the two pages the first one is not exact.
    let uncounted = if has_more { 10 } else { 0 };
    QueryAnswer::Counts { rows, next, uncounted }
}

/// Answers all questions about counts; returns those that it was asked.
fn serve(peer: Peer, answer: impl Fn(&CountsQuery) -> QueryAnswer + Send + 'static) -> Asked<CountsQuery> {
    let pick = |query| match query {
        Query::Counts(query) => Some(query),
        _ => None,
    };
    fake::serve(peer, pick, answer)
}

/// The next message, which must be a question about counts.
async fn asked(peer: &mut Peer) -> (u64, CountsQuery) {
    match peer.recv().await {
        ClientMessage::Query { corr, query: Query::Counts(query) } => (corr, query),
        other => panic!("not a question about counts: {other:?}"),
    }
}

/// All of them together.
fn sums() -> Destinations {
    let own = (0..PARTITIONS).map(|n| counts(app(1 + n), 1));
    let all = [counts(app(0), PARTITIONS * (PARTITIONS + 1) / 2)].into_iter().chain(own);
    Destinations { rows: all.collect(), uncounted: 10 * PARTITIONS }
}

#[tokio::test(start_paused = true)]
async fn the_counts_of_all_partitions_are_added_up_page_by_page() {
    let (mut cluster, client) = Cluster::start(2).await;
    let mut told = Vec::new();
    for (n, peer) in (0..).zip(std::mem::take(&mut cluster.peers)) {
        told.push(serve(peer, move |query| {
            assert_eq!(query.partition % 2, n, "it goes to the owner");
            page(query)
        }));
    }
    let group = DestinationFilter { group: Some("g".into()), app: None };
    assert_eq!(client.destinations(group).await, Ok(sums()));
    let mut asked: Vec<_> = told.iter().flat_map(|asked| asked.lock().unwrap().clone()).collect();
    asked.sort_by_key(|query| (query.partition, query.after.clone()));
    let first = CountsQuery {
        partition: 0,
        group: Some("g".into()),
        app: None,
        after: None,
        limit: limits::MAX_PAGE,
    };
    let both =
        |partition| [None, Some(app(0))].map(|after| CountsQuery { partition, after, ..first.clone() });
    assert_eq!(asked, (0..PARTITIONS as u16).flat_map(both).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_filter_names_a_destination_or_nothing() {
    let broker = Broker::start().await;
    let (client, peer) = broker.connect().await;
    let told = serve(peer, |_| QueryAnswer::Counts { rows: vec![], next: None, uncounted: 0 });
    let names = || {
        let asked = std::mem::take(&mut *told.lock().unwrap());
        (asked.len(), asked[0].group.clone(), asked[0].app.clone())
    };
    assert_eq!(client.destinations(DestinationFilter::default()).await, Ok(Destinations::default()));
    assert_eq!(names(), (PARTITIONS as usize, None, None));
    client.destinations(&dest()).await.unwrap();
    let name = |name: &str| Some(name.to_owned());
    assert_eq!(names(), (PARTITIONS as usize, name(dest().group()), name(dest().app())));
}

#[tokio::test(start_paused = true)]
async fn so_many_partitions_are_asked_at_once_and_no_more() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect_to_partitions(40).await;
    let script = async {
        let mut open = Vec::new();
        for partition in 0..32 {
            let (corr, query) = asked(&mut peer).await;
            assert_eq!(query.partition, partition);
            open.push(corr);
        }
        peer.silent(Duration::from_millis(100)).await;
        // After each answer one more partition is asked.
        for n in 0..40 {
            let answer = QueryAnswer::Counts { rows: vec![], next: None, uncounted: 1 };
            peer.send(ServerMessage::Answer { corr: open[n], answer }).await;
            if n < 8 {
                open.push(asked(&mut peer).await.0);
            }
        }
    };
    let (sums, ()) = tokio::join!(client.destinations(DestinationFilter::default()), script);
    assert_eq!(sums, Ok(Destinations { rows: vec![], uncounted: 40 }));
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_has_moved_or_is_away_is_asked_again() {
    let (mut cluster, client) = Cluster::start(2).await;
    let (first, second) = (cluster.take(0), cluster.take(0));
    let owner = cluster.brokers[1].address.clone();
    let away = Mutex::new(3);
    serve(first, move |query| {
        let mut left = away.lock().unwrap();
        match query.partition {
            0 => QueryAnswer::Moved { owner: owner.clone() },
            2 if *left > 0 => {
                *left -= 1;
                QueryAnswer::Failed { code: ErrorCode::Unavailable, message: "not now".into() }
            }
            _ => page(query),
        }
    });
    let told = serve(second, page);
    let asking = tokio::spawn(async move { client.destinations(DestinationFilter::default()).await });
    assert_eq!(asking.await.unwrap(), Ok(sums()));
    assert!(told.lock().unwrap().iter().any(|query| query.partition == 0));
}

#[tokio::test(start_paused = true)]
async fn without_one_partition_there_are_no_sums() {
    let broker = Broker::start().await;
    let (client, peer) = broker.connect().await;
    let denied = || QueryAnswer::Failed { code: ErrorCode::Unauthorized, message: "no".into() };
    serve(peer, move |query| if query.partition == 5 { denied() } else { page(query) });
    let failed = client.destinations(DestinationFilter::default()).await;
    assert!(matches!(failed, Err(RequestError::Refused { code: ErrorCode::Unauthorized, .. })), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_go_on_is_an_error() {
    let row = |n| counts(app(n), 1);
    let answer = |rows, next| QueryAnswer::Counts { rows, next, uncounted: 0 };
    for wrong in [
        QueryAnswer::Timer(None),
        answer(vec![row(2), row(1)], None),
        answer(vec![row(1), row(1)], None),
        answer(vec![row(1), row(2)], Some(app(1))),
        // The second page is the first one again.
        answer(vec![row(1)], Some(app(1))),
        answer(vec![], Some(app(1))),
    ] {
        let broker = Broker::start().await;
        let (client, peer) = broker.connect().await;
        let told = format!("{wrong:?}");
        serve(peer, move |_| wrong.clone());
        let failed = client.destinations(DestinationFilter::default()).await;
        assert_eq!(failed, Err(RequestError::Mismatched), "{told}");
    }
}
