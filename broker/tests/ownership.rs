//! Starting, stopping, being killed, being fenced: who owns the partitions, and what becomes of
//! timers meanwhile.

mod support;

use std::sync::Arc;
use std::time::Duration;

use mtimer_broker::{BrokerError, BrokerOptions, StartError, start};
use mtimer_protocol::{ClientMessage, ErrorCode, OpReply, ServerMessage};
use mtimer_store::MemoryStore;
use mtimer_types::{HandlerOutcome, PartitionId, Term};
use support::{
    Client, broker, broker_on, count, options, schedule, timer, timer_in, until, wait_count, wait_sessions,
    works, works_with,
};

const PARTITIONS: [PartitionId; 2] = [PartitionId(0), PartitionId(1)];

#[tokio::test]
async fn a_graceful_stop_waits_for_handlers_and_hands_over_without_a_duplicate() {
    let store = MemoryStore::new(2);
    let first = broker_on(&store, options()).await;
    let mut client = Client::welcomed(&first).await;
    client.register(1, "a", 10).await;
    let (now, later) = (timer("a", 1, b"now"), timer("a", 600, b"later"));
    client.schedule(&now).await;
    client.schedule(&later).await;
    let (delivery, _) = client.deliveries(1).await.remove(0);
    let stopped = async {
        first.stop().await.unwrap();
        assert!(first.status().await.is_none());
    };
    let finishes = async {
        assert_eq!(client.next().await, Some(ServerMessage::Closing));
        // Nothing new is taken, what is there is finished.
        let refused = client.request(vec![schedule(&timer("a", 1, b"new"))]).await;
        assert!(matches!(&refused[..], [OpReply::Failed { code: ErrorCode::Stopping, .. }]), "{refused:?}");
        client.settle(&delivery, HandlerOutcome::Ok).await;
        assert_eq!(client.settled().await, (1, vec![]));
        assert_eq!(client.next().await, None, "closed when all is settled");
    };
    tokio::join!(stopped, finishes);
    let second = broker_on(&store, options()).await;
    let mut client = Client::welcomed(&second).await;
    client.register(1, "a", 10).await;
    let (delivery, at) = client.deliveries(1).await.remove(0);
    assert_eq!((delivery.id, delivery.attempt), (later.id, 1));
    assert!(at >= later.due);
    client.settle(&delivery, HandlerOutcome::Ok).await;
    client.settled().await;
    assert_eq!(count(&second, "delivered_total").await, 1);
}

#[tokio::test]
async fn a_stop_does_not_wait_for_ever() {
    let store = MemoryStore::new(2);
    let drain_timeout = Duration::from_millis(50);
    let first = broker_on(&store, BrokerOptions { drain_timeout, ..options() }).await;
    let mut client = Client::welcomed(&first).await;
    client.register(1, "a", 10).await;
    let timer = timer("a", 1, b"x");
    client.schedule(&timer).await;
    let (delivery, _) = client.deliveries(1).await.remove(0);
    let until_closed = async { while client.next().await.is_some() {} };
    let (stopped, ()) = tokio::join!(first.stop(), until_closed);
    stopped.unwrap();
    // The next owner waits for the handler until its time is up, and takes its settlement from the
    // same client.
    let second = broker_on(&store, options()).await;
    let mut client = Client::welcomed(&second).await;
    client.register(1, "a", 10).await;
    client.settle(&delivery, HandlerOutcome::Ok).await;
    assert_eq!(client.settled().await, (1, vec![]));
    assert_eq!(count(&second, "delivered_total").await, 0);
}

#[tokio::test]
async fn after_a_crash_the_next_broker_delivers_again() {
    let store = MemoryStore::new(2);
    let first = broker_on(&store, options()).await;
    let mut client = Client::welcomed(&first).await;
    client.register(1, "a", 10).await;
    let timer = timer("a", 1, b"x");
    client.schedule(&timer).await;
    let (before, _) = client.deliveries(1).await.remove(0);
    first.abort();
    first.wait().await.unwrap();
    let second = broker_on(&store, options()).await;
    let mut client = Client::welcomed(&second).await;
    client.register(1, "a", 10).await;
    let (after, _) = client.deliveries(1).await.remove(0);
    assert_eq!(after.id, timer.id);
    assert!(after.epoch > before.epoch && after.attempt > before.attempt, "{before:?} {after:?}");
    client.settle(&after, HandlerOutcome::Ok).await;
    assert_eq!(client.settled().await, (1, vec![]));
}

#[tokio::test]
async fn a_dropped_broker_is_gone() {
    let store = MemoryStore::new(2);
    let first = broker_on(&store, options()).await;
    let mut client = Client::welcomed(&first).await;
    let addr = first.local_addr();
    drop(first);
    while client.next().await.is_some() {}
    // Its address is free again.
    let second = broker_on(&store, BrokerOptions { listen: addr, ..options() }).await;
    works(&second, "a").await;
}

#[tokio::test]
async fn the_broker_started_last_wins_and_the_other_says_so() {
    // One partition: the claims of another would be told of as well.
    let store = MemoryStore::new(1);
    let first = broker_on(&store, options()).await;
    let mut client = Client::welcomed(&first).await;
    client.register(1, "a", 10).await;
    let second = broker_on(&store, options()).await;
    // The first one notices when it writes next.
    let late = timer_in(PartitionId(0), 1, "a", 1, b"x");
    client
        .send(&ClientMessage::Request(mtimer_protocol::Request {
            corr: 1,
            first_sent: support::now(),
            ops: vec![schedule(&late)],
        }))
        .await;
    let ended = first.wait().await.unwrap_err();
    let BrokerError::Fenced { partition, stored_term, our_term, .. } = ended.clone() else {
        panic!("{ended}")
    };
    assert_eq!((partition, stored_term, our_term), (late.id.partition(), Term(2), Term(1)));
    let text = ended.to_string();
    assert!(
        text.contains("another broker has taken over partition") && text.contains("only one broker"),
        "{text}"
    );
    let mut refused = None;
    while let Some(message) = client.next().await {
        match message {
            ServerMessage::Reply { replies, .. } => {
                assert!(
                    matches!(&replies[..], [OpReply::Failed { code: ErrorCode::Unknown, .. }]),
                    "{replies:?}"
                );
            }
            ServerMessage::Refused { code, .. } => refused = Some(code),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(refused, Some(ErrorCode::NotOwner));
    works_with(&second, "a", timer_in(PartitionId(0), 2, "a", 20, b"well")).await;
    // Stopping what has ended says again why.
    assert_eq!(first.stop().await.unwrap_err(), ended);
}

#[tokio::test]
async fn an_address_in_use_is_an_error_before_anything_is_taken_over() {
    let store = MemoryStore::new(2);
    let first = broker_on(&store, options()).await;
    let second = BrokerOptions { listen: first.local_addr(), ..options() };
    let error = start(second, Arc::new(store.clone())).await.unwrap_err();
    assert!(matches!(error, StartError::Listen { .. }));
    assert!(error.to_string().contains("choose another address with --listen"), "{error}");
    works(&first, "a").await;
}

#[tokio::test]
async fn a_store_that_is_away_at_start_is_waited_for() {
    let store = MemoryStore::new(2);
    PARTITIONS.iter().for_each(|p| store.faults().down(*p, "no route"));
    let startup_timeout = Some(Duration::from_millis(100));
    let error =
        start(BrokerOptions { startup_timeout, ..options() }, Arc::new(store.clone())).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, StartError::StoreAway { .. }) && text.contains("no route"), "{text}");
    let met = store.faults().met();
    let heal = async {
        until("a broker has asked the store", || store.faults().met() > met).await;
        PARTITIONS.iter().for_each(|p| store.faults().heal(*p));
    };
    let (broker, ()) = tokio::join!(broker_on(&store, options()), heal);
    assert_eq!(count(&broker, "store_outages_total").await, 1);
    works(&broker, "a").await;
}

#[tokio::test]
async fn a_lost_answer_to_an_acquisition_is_asked_for_again() {
    let store = MemoryStore::new(2);
    store.faults().lose_acquisition(PARTITIONS[0]);
    let broker = broker_on(&store, options()).await;
    assert_eq!(store.faults().met(), 1, "the answer was lost");
    let epoch = mtimer_store::Store::owner(&store, PARTITIONS[0]).await.unwrap().epoch;
    assert_eq!(epoch.0, 1, "acquired once");
    works(&broker, "a").await;
}

#[tokio::test]
async fn a_store_that_goes_away_refuses_and_comes_back() {
    let store = MemoryStore::new(2);
    let broker = broker_on(&store, options()).await;
    let mut client = Client::welcomed(&broker).await;
    client.register(1, "a", 10).await;
    let kept = timer("a", 100, b"kept");
    client.schedule(&kept).await;
    PARTITIONS.iter().for_each(|p| store.faults().down(*p, "no route"));
    // Refused once it is known; what was on its way before is answered later.
    loop {
        let replies = tokio::time::timeout(
            Duration::from_millis(300),
            client.request(vec![schedule(&timer("b", 1, b""))]),
        )
        .await;
        match replies.as_deref() {
            Ok([OpReply::Failed { code: ErrorCode::Unavailable, message }]) => {
                assert!(message.contains("no route"), "{message}");
                break;
            }
            Ok(other) => panic!("{other:?}"),
            Err(_) => {}
        }
    }
    PARTITIONS.iter().for_each(|p| store.faults().heal(*p));
    let (delivery, at) = client.deliveries(1).await.remove(0);
    assert!(delivery.id == kept.id && at >= kept.due);
    works(&broker, "a2").await;
}

#[tokio::test]
async fn a_store_that_went_back_in_time_is_acquired_anew() {
    let store = MemoryStore::new(2);
    let broker = broker_on(&store, options()).await;
    PARTITIONS.iter().for_each(|p| store.faults().save(*p));
    let mut client = Client::welcomed(&broker).await;
    let far = |n: usize| (0..n).map(|_| timer("far", 3_600_000, b"")).collect::<Vec<_>>();
    client.request(far(8).iter().map(schedule).collect()).await;
    PARTITIONS.iter().for_each(|p| store.faults().roll_back(*p));
    // Noticed with the next write of each partition, which is answered all the same.
    let replies = client.request(far(8).iter().map(schedule).collect()).await;
    let unknown = |r: &OpReply| matches!(r, OpReply::Failed { code: ErrorCode::Unknown, .. });
    assert!(replies.iter().all(unknown), "{replies:?}");
    wait_count(&broker, "partitions_acquired_total", 4).await;
    works(&broker, "a").await;
    assert_eq!(count(&broker, "lanes_ended_total").await, 2);
}

#[tokio::test]
async fn a_broken_lane_is_replaced_and_the_pause_grows() {
    let store = MemoryStore::new(2);
    let broker = broker_on(&store, options()).await;
    for n in 1..=2 {
        store.faults().break_lanes(PARTITIONS[0], "a damaged record");
        wait_count(&broker, "partitions_acquired_total", 2 + n).await;
    }
    works(&broker, "a").await;
}

#[tokio::test]
async fn the_state_in_numbers() {
    let broker = broker(options()).await;
    let mut client = Client::welcomed(&broker).await;
    client.schedule(&timer("far", 86_400_000, b"x")).await;
    let own = broker.status().await.unwrap();
    assert_eq!((own.sessions, own.pending), (1, 1));
    assert!(own.counters.windows(2).all(|w| w[0].0 < w[1].0), "in order, none twice: {:?}", own.counters);
    let mtimer_protocol::QueryAnswer::Status(asked) = client.query(mtimer_protocol::Query::Status).await
    else {
        panic!("no status")
    };
    assert_eq!((asked.sessions, asked.pending), (1, 1));
    assert_eq!(support::counter(&asked, "scheduled_total"), 1);
    assert_eq!(support::counter(&asked, "connections_accepted_total"), 1);
    drop(client);
    wait_sessions(&broker, 0).await;
}
