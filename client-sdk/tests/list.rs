//! The list of pending timers: who is asked, in which order rows come, and what is asked again.

#![allow(clippy::unwrap_used)]

mod fake;

use std::sync::Mutex;
use std::time::Duration;

use fake::{Asked, Broker, Cluster, Peer, START, dest, id_in};
use mtimer_client::{
    Client, ErrorCode, Filter, ListCursor, ListedTimer, PartitionId, RequestError, Time, Timer, TimerId,
    TimerList, TimerState, TimerView,
};
use mtimer_protocol::{ClientMessage, PendingQuery, Query, QueryAnswer, ServerMessage};

/// Of the fake brokers' cluster.
const PARTITIONS: u16 = 8;

/// Everything before the first timer.
const BEGINNING: (Time, TimerId) = (Time::ZERO, TimerId::from_u128(0));

fn row(partition: u16, after_ms: u64, n: u64) -> ListedTimer {
    let (fire, id) = (START + after_ms, id_in(partition, n));
    let state = TimerState::Pending { fire };
    let timer = Timer::new(id, dest(), fire);
    let view = TimerView::new(timer, state);
    ListedTimer { fire, view, payload_bytes: 3 }
}

fn position(row: &ListedTimer) -> (Time, TimerId) {
    (row.fire, row.view.timer.id)
}

/// Timers of all partitions but one, in order; several fire at the same time.
fn timers() -> Vec<ListedTimer> {
    let partition = |n: u64| (n * 5 % u64::from(PARTITIONS - 1)) as u16;
    let mut all: Vec<_> = (0..60).map(|n| row(partition(n), n * 37 % 23, n)).collect();
    all.sort_by_key(position);
    all
}

/// What a store with these timers answers; a page has 3 rows at most.
fn page(all: &[ListedTimer], query: &PendingQuery) -> QueryAnswer {
    let of = |row: &&ListedTimer| {
        let (at, partition) = (position(row), PartitionId(query.partition));
        row.view.timer.id.partition() == partition && at >= query.from && row.fire <= query.until
    };
    let mut rows: Vec<ListedTimer> = all.iter().filter(of).cloned().collect();
    let rest = rows.split_off(rows.len().min(3));
    QueryAnswer::Pending { rows, next: rest.first().map(position) }
}

/// The next message, which must be a question about pending timers.
async fn asked(peer: &mut Peer) -> (u64, PendingQuery) {
    match peer.recv().await {
        ClientMessage::Query { corr, query: Query::Pending(query) } => (corr, *query),
        other => panic!("not a question about pending timers: {other:?}"),
    }
}

async fn answer(peer: &mut Peer, corr: u64, answer: QueryAnswer) {
    peer.send(ServerMessage::Answer { corr, answer }).await;
}

fn nothing(next: Option<(Time, TimerId)>) -> QueryAnswer {
    QueryAnswer::Pending { rows: vec![], next }
}

/// Answers all questions about pending timers; returns those that it was asked.
fn serve(peer: Peer, answer: impl Fn(&PendingQuery) -> QueryAnswer + Send + 'static) -> Asked<PendingQuery> {
    let pick = |query| match query {
        Query::Pending(query) => Some(*query),
        _ => None,
    };
    fake::serve(peer, pick, answer)
}

async fn rest(mut list: TimerList) -> Vec<ListedTimer> {
    let mut rows = Vec::new();
    while let Some(row) = list.next().await.unwrap() {
        rows.push(row);
    }
    assert_eq!(list.next().await, Ok(None), "the end stays the end");
    rows
}

/// One broker that owns everything, with these timers.
async fn served(all: Vec<ListedTimer>) -> (Broker, Client, Asked<PendingQuery>) {
    let broker = Broker::start().await;
    let (client, peer) = broker.connect().await;
    let asked = serve(peer, move |query| page(&all, query));
    (broker, client, asked)
}

#[tokio::test(start_paused = true)]
async fn rows_come_in_one_order_from_the_owners_of_all_partitions() {
    let (mut cluster, client) = Cluster::start(2).await;
    let mut asked = Vec::new();
    for (n, peer) in (0..).zip(std::mem::take(&mut cluster.peers)) {
        let all = timers();
        asked.push(serve(peer, move |query| {
            assert_eq!(query.partition % 2, n, "it goes to the owner");
            page(&all, query)
        }));
    }
    let filter = Filter { key_prefix: Some("order-".into()), ..Filter::of(&dest()) };
    let (from, until) = (START + 2, START + 20);
    let list = client.list(filter.clone()).from(from).until(until).retrying(true).with_payloads().page(1);
    let rows = rest(list).await;
    let mut expected = timers();
    expected.retain(|row| row.fire >= from && row.fire <= until);
    assert!(expected.len() > 40 && rows == expected, "{rows:#?}");
    let asked: Vec<_> = asked.iter().flat_map(|asked| asked.lock().unwrap().clone()).collect();
    let first = PendingQuery {
        partition: 0,
        filter,
        retrying: Some(true),
        from: (from, TimerId::from_u128(0)),
        until,
        limit: 16,
        payloads: true,
        staged: false,
    };
    for partition in 0..PARTITIONS {
        let of = asked.iter().find(|query| query.partition == partition).unwrap();
        assert_eq!(*of, PendingQuery { partition, ..first.clone() });
    }
    let rest_of = |query: &PendingQuery| PendingQuery { partition: 0, from: first.from, ..query.clone() };
    assert!(asked.iter().all(|query| rest_of(query) == first), "what is asked later differs in the position");
}

#[tokio::test(start_paused = true)]
async fn by_default_everything_is_listed_without_payloads() {
    let (_broker, client, asked) = served(timers()).await;
    assert_eq!(rest(client.list(Filter::default())).await, timers());
    let first = asked.lock().unwrap().first().unwrap().clone();
    let expected = PendingQuery {
        partition: 0,
        filter: Filter::default(),
        retrying: None,
        from: BEGINNING,
        until: Time::MAX,
        limit: 250,
        payloads: false,
        staged: false,
    };
    assert_eq!(first, expected);
    // Durations count from now.
    let began = client.now();
    drop(client.list(dest()).from(Duration::from_secs(60)).until(Duration::from_secs(90)).next().await);
    let last = asked.lock().unwrap().last().unwrap().clone();
    assert_eq!(last.filter, Filter::of(&dest()));
    assert!(last.from.0 >= began + 60_000 && last.until <= last.from.0 + 30_001, "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_cannot_have_the_next_row_is_not_asked() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let mut list = client.list(Filter::default());
    let [far, farther] = [500, 700].map(|ms| (START + ms, TimerId::from_u128(0)));
    let script = async {
        for _ in 0..PARTITIONS {
            let (corr, query) = asked(&mut peer).await;
            assert_eq!(query.from, BEGINNING);
            let (rows, next) = match query.partition {
                0 => (vec![row(0, 10, 1), row(0, 600, 2)], Some(farther)),
                1 | 2 => (vec![], Some(farther)),
                3..6 => (vec![], Some(far)),
                _ => (vec![], None),
            };
            answer(&mut peer, corr, QueryAnswer::Pending { rows, next }).await;
        }
        peer.silent(Duration::from_millis(100)).await;
    };
    let (next, ()) = tokio::join!(list.next(), script);
    assert_eq!(next, Ok(Some(row(0, 10, 1))));
    // The next one is known, but for the partitions that may have one before it: not 1 and 2, which
    // go on behind it, nor 6 and 7, which are at their end.
    let script = async {
        for partition in 3..6 {
            let (corr, query) = asked(&mut peer).await;
            assert_eq!((query.partition, query.from), (partition, far));
            answer(&mut peer, corr, nothing(None)).await;
        }
        peer.silent(Duration::from_millis(100)).await;
    };
    let (next, ()) = tokio::join!(list.next(), script);
    assert_eq!(next, Ok(Some(row(0, 600, 2))));
}

#[tokio::test(start_paused = true)]
async fn so_many_partitions_are_asked_at_once_and_no_more() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect_to_partitions(64).await;
    let mut list = client.list(Filter::default());
    let script = async {
        for first in [0, 32] {
            let mut open = Vec::new();
            for partition in first..first + 32 {
                let (corr, query) = asked(&mut peer).await;
                assert_eq!(query.partition, partition);
                open.push(corr);
            }
            peer.silent(Duration::from_millis(100)).await;
            for corr in open {
                answer(&mut peer, corr, nothing(None)).await;
            }
        }
    };
    let (next, ()) = tokio::join!(list.next(), script);
    assert_eq!(next, Ok(None));
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_has_moved_or_is_away_is_asked_again() {
    let (mut cluster, client) = Cluster::start(2).await;
    let (first, second) = (cluster.take(0), cluster.take(0));
    let owner = cluster.brokers[1].address.clone();
    let (all, away) = (timers(), Mutex::new(3));
    serve(first, move |query| {
        let mut left = away.lock().unwrap();
        match query.partition {
            0 => QueryAnswer::Moved { owner: owner.clone() },
            2 if *left > 0 => {
                *left -= 1;
                QueryAnswer::Failed { code: ErrorCode::Unavailable, message: "not now".into() }
            }
            _ => page(&all, query),
        }
    });
    let all = timers();
    let asked = serve(second, move |query| page(&all, query));
    assert_eq!(rest(client.list(Filter::default())).await, timers());
    assert!(asked.lock().unwrap().iter().any(|query| query.partition == 0));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_or_fails_loses_no_row() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let (all, mut list) = (timers(), client.list(Filter::default()));
    let script = async {
        for _ in 0..PARTITIONS {
            let (corr, query) = asked(&mut peer).await;
            if query.partition != 5 {
                answer(&mut peer, corr, page(&all, &query)).await;
            }
        }
        peer.until_heard().await;
    };
    tokio::select! {
        biased;
        next = list.next() => panic!("{next:?}"),
        () = script => {}
    }
    // What has come stays; the rest is asked again.
    let script = async {
        let (corr, query) = asked(&mut peer).await;
        assert_eq!(query.partition, 5);
        let denied = QueryAnswer::Failed { code: ErrorCode::Unauthorized, message: "no".into() };
        answer(&mut peer, corr, denied).await;
    };
    let (next, ()) = tokio::join!(list.next(), script);
    assert!(matches!(next, Err(RequestError::Refused { code: ErrorCode::Unauthorized, .. })), "{next:?}");
    let asked = serve(peer, move |query| page(&all, query));
    assert_eq!(rest(list).await, timers());
    assert_eq!(asked.lock().unwrap().first().unwrap().partition, 5);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_go_on_is_an_error() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    for wrong in [nothing(Some(BEGINNING)), QueryAnswer::Timer(None)] {
        let mut list = client.list(Filter::default());
        let script = async {
            for _ in 0..PARTITIONS {
                let (corr, _) = asked(&mut peer).await;
                answer(&mut peer, corr, wrong.clone()).await;
            }
        };
        let (next, ()) = tokio::join!(list.next(), script);
        assert_eq!(next, Err(RequestError::Mismatched));
    }
}

#[tokio::test(start_paused = true)]
async fn a_cursor_goes_on_behind_the_last_row_that_was_returned() {
    let (_broker, client, _) = served(timers()).await;
    let all = timers();
    let mut list = client.list(Filter::default());
    for behind in 0..=all.len() {
        let text = list.cursor().to_string();
        let cursor: ListCursor = text.parse().unwrap();
        assert_eq!(cursor, list.cursor());
        assert_eq!(rest(client.list(Filter::default()).after(cursor)).await, all[behind..], "{behind}");
        assert_eq!(list.next().await, Ok(all.get(behind).cloned()));
    }
    // A list that begins later begins there, whatever the cursor says; and the other way round.
    let later = client.list(Filter::default()).from(START + 5);
    assert!(later.cursor() > client.list(Filter::default()).cursor());
    let begin = client.list(Filter::default()).cursor();
    let expected: Vec<_> = all.iter().filter(|row| row.fire >= START + 5).cloned().collect();
    assert_eq!(rest(later.after(begin)).await, expected);
    let end = list.cursor();
    assert_eq!(rest(client.list(Filter::default()).after(end).from(START)).await, []);
    assert!("behind the last one".parse::<ListCursor>().is_err());
}
