use super::weight::MESSAGE_BYTES;
use super::*;

fn outbox(limit: usize) -> Arc<Outbox> {
    Outbox::open(limit, &Arc::new(Outboxes::new(usize::MAX)))
}

#[tokio::test]
async fn bytes_count_until_they_are_sent() {
    let outbox = outbox(3 * MESSAGE_BYTES);
    for n in 0..3 {
        outbox.push(ServerMessage::Ping(n));
    }
    let (messages, bytes) = outbox.take(usize::MAX, || 0).await.unwrap();
    assert_eq!((messages.len(), bytes), (3, 3 * MESSAGE_BYTES));
    // An empty queue takes one.
    outbox.push(ServerMessage::Ping(4));
    assert_eq!((outbox.waiting(), outbox.why_overflowed()), (4 * MESSAGE_BYTES, None));
    outbox.sent(bytes);
    outbox.push(ServerMessage::Ping(5));
    outbox.push(ServerMessage::Ping(6));
    assert_eq!((outbox.waiting(), outbox.why_overflowed()), (3 * MESSAGE_BYTES, None));
}

#[tokio::test]
async fn a_session_that_is_over_its_limit_is_told_and_gets_nothing_else() {
    let outbox = outbox(3 * MESSAGE_BYTES);
    for n in 0..5 {
        outbox.push(ServerMessage::Ping(n));
    }
    let over = outbox.overflowed().await;
    assert_eq!(over, Overflow::Session { queued: 4 * MESSAGE_BYTES, limit: 3 * MESSAGE_BYTES });
    let (messages, bytes) = outbox.take(usize::MAX, || 0).await.unwrap();
    let (code, message) = (ErrorCode::Overloaded, over.to_string());
    assert_eq!(messages, [ServerMessage::Refused { code, message }]);
    outbox.sent(bytes);
    assert!(outbox.take(usize::MAX, || 0).await.is_none());
    assert_eq!(outbox.waiting(), 0);
}

#[tokio::test]
async fn a_writer_takes_a_part_at_a_time() {
    let outbox = outbox(1 << 20);
    for n in 0..5 {
        outbox.push(ServerMessage::Ping(n));
    }
    let (messages, bytes) = outbox.take(MESSAGE_BYTES + 1, || 0).await.unwrap();
    assert_eq!((messages.len(), bytes), (2, 2 * MESSAGE_BYTES));
    let (messages, _) = outbox.take(1, || 0).await.unwrap();
    assert_eq!(messages, [ServerMessage::Ping(2)]);
    outbox.close(None);
    let (messages, _) = outbox.take(usize::MAX, || 0).await.unwrap();
    assert_eq!(messages.len(), 2);
    assert!(outbox.take(usize::MAX, || 0).await.is_none());
}

fn outboxes(messages: usize) -> Arc<Outboxes> {
    Arc::new(Outboxes::new(messages * MESSAGE_BYTES))
}

fn push(outbox: &Outbox, messages: usize) {
    (0..messages).for_each(|n| outbox.push(ServerMessage::Ping(n as u64)));
}

fn bytes(outboxes: &Outboxes) -> usize {
    outboxes.bytes.load(Ordering::Relaxed)
}

#[test]
fn the_session_with_the_most_waiting_is_closed_and_others_go_on() {
    let all = outboxes(80);
    let [small, most, other, mine] = [(); 4].map(|()| Outbox::open(1 << 20, &all));
    push(&small, 10);
    push(&most, 35);
    push(&other, 25);
    assert!(most.why_overflowed().is_none(), "the reserve is not touched");
    push(&mine, 1);
    let over = most.why_overflowed().expect("closed");
    assert_eq!(over, Overflow::All { waiting: 35 * MESSAGE_BYTES, limit: 80 * MESSAGE_BYTES });
    assert_eq!(bytes(&all), (10 + 25 + 1) * MESSAGE_BYTES);
    assert!([small, other, mine].iter().all(|outbox| outbox.why_overflowed().is_none()));
}

#[tokio::test]
async fn no_message_is_queued_beyond_the_limit() {
    let all = outboxes(80);
    let mut taken = Vec::new();
    // Their writers have taken the waiting messages, and their connections take nothing.
    for _ in 0..200 {
        let outbox = Outbox::open(1 << 20, &all);
        push(&outbox, 3);
        let waiting = outbox.take(usize::MAX, || 0).await;
        taken.push((outbox, waiting));
    }
    let held = bytes(&all);
    assert!((70 * MESSAGE_BYTES..=80 * MESSAGE_BYTES).contains(&held), "{held} bytes are held");
    taken.clear();
    assert_eq!((bytes(&all), all.staying(), all.open().outboxes.len()), (0, 0, 0));
}

fn delivery(id: u128) -> mtimer_protocol::Delivery {
    mtimer_protocol::Delivery {
        id: TimerId::from_u128(id),
        key: None,
        due: mtimer_types::Time::ZERO,
        epoch: mtimer_types::Epoch(1),
        attempt: 1,
        mode: mtimer_types::Mode::AtLeastOnce,
        timeout_ms: 1_000,
        payload: bytes::Bytes::new(),
        headers: mtimer_types::Headers::NONE,
    }
}

#[tokio::test]
async fn deliveries_that_wait_are_taken_back_and_nothing_else() {
    let outbox = outbox(1 << 20);
    let deliver = |registration, ids: &[u128]| ServerMessage::Deliver {
        registration,
        deliveries: ids.iter().map(|id| delivery(*id)).collect(),
    };
    outbox.push(deliver(1, &[1]));
    let (left, bytes) = outbox.take(usize::MAX, || 0).await.unwrap();
    for message in [deliver(1, &[2, 3]), ServerMessage::Ping(1), deliver(2, &[4]), deliver(1, &[5])] {
        outbox.push(message);
    }
    assert_eq!(outbox.recall(1), [2, 3, 5].map(TimerId::from_u128));
    assert_eq!(outbox.recall(1), []);
    assert_eq!(left, [deliver(1, &[1])], "it has left");
    outbox.sent(bytes);
    let (messages, bytes) = outbox.take(usize::MAX, || 0).await.unwrap();
    assert_eq!(messages, [ServerMessage::Ping(1), deliver(2, &[4])]);
    outbox.sent(bytes);
    assert_eq!(outbox.waiting(), 0);
}

#[tokio::test]
async fn deliveries_that_may_not_leave_any_more_are_withdrawn_and_everything_else_leaves() {
    let all = outboxes(100);
    let outbox = Outbox::open(usize::MAX, &all);
    let deliver = |n| ServerMessage::Deliver { registration: 1, deliveries: vec![delivery(n)] };
    outbox.push_by(deliver(1), Some(10));
    outbox.push(ServerMessage::Ping(1));
    outbox.push_by(deliver(2), Some(11));
    outbox.push(deliver(3));
    let (messages, bytes) = outbox.take(usize::MAX, || 11).await.unwrap();
    assert_eq!(messages, [ServerMessage::Ping(1), deliver(2), deliver(3)]);
    assert_eq!(outbox.withdrawn().await, [TimerId::from_u128(1)]);
    assert_eq!((outbox.waiting(), all.used().0), (bytes, bytes as u64), "only what leaves counts");
    // What is withdrawn is told although nothing leaves.
    outbox.sent(bytes);
    outbox.push_by(deliver(4), Some(12));
    let taken = tokio::time::timeout(std::time::Duration::ZERO, outbox.take(usize::MAX, || 13)).await;
    assert!(taken.is_err(), "{taken:?}");
    assert_eq!((outbox.withdrawn().await, outbox.waiting()), (vec![TimerId::from_u128(4)], 0));
}
