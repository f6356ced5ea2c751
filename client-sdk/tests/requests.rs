//! Requests: batching, repeats over a new connection, retries, and giving up.

mod fake;

use std::time::Duration;

use fake::{Broker, START, dest, ids};
use mtimer_client::{
    Cancelled, Destinations, ErrorCode, Key, KeyPolicy, PartitionId, RequestError, Rescheduled, Schedule,
    ScheduleError, Target, Time, TimerId, limits,
};
use mtimer_protocol::ops;
use mtimer_protocol::ops::{CancelReply, ReplayReply, RescheduleReply, ScheduleReply};
use mtimer_protocol::{
    ClientMessage, OpReply, Query, QueryAnswer, Request, RequestOp, ServerMessage, Status,
};

fn soon() -> Schedule {
    Schedule::after(dest(), Duration::from_secs(60))
}

fn failed(code: ErrorCode) -> OpReply {
    OpReply::Failed { code, message: "not now".into() }
}

#[tokio::test(start_paused = true)]
async fn a_schedule_arrives_as_written_and_its_answer_comes_back() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let key = Key::new("order-1").unwrap();
    let schedule = soon()
        .key(key.clone())
        .policy(KeyPolicy::Replace)
        .deadline(Duration::from_secs(90))
        .retry([Duration::from_micros(1_500)])
        .callback_timeout(Duration::from_secs(2))
        .json(&[1, 2])
        .unwrap();
    let now = client.now();
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.schedule(schedule).await }
    });
    let request = peer.request().await;
    assert!(request.first_sent >= now);
    let [RequestOp::Schedule(ops::Schedule { timer, policy })] = &request.ops[..] else {
        panic!("{request:?}")
    };
    assert_eq!(*policy, KeyPolicy::Replace);
    assert_eq!(timer.id.partition(), PartitionId::of_key(&dest(), &key, 8));
    assert_eq!((timer.id.birth_due(), timer.key.as_ref()), (timer.due, Some(&key)));
    assert!(timer.due >= now + 60_000 && timer.due <= now + 60_005, "{}", timer.due);
    assert_eq!(timer.deadline, Some(timer.due + 30_000));
    assert_eq!(timer.retry.as_ref().unwrap().0, [2], "rounded up");
    assert_eq!(timer.callback_timeout_ms, Some(2_000));
    assert_eq!(&timer.payload[..], b"[1,2]");
    let old = TimerId::from_u128(5);
    let replies = vec![OpReply::Schedule(ScheduleReply::Scheduled { new: true, replaced: Some(old) })];
    peer.send(ServerMessage::Reply { corr: request.corr, replies }).await;
    let scheduled = call.await.unwrap().unwrap();
    assert_eq!(
        (scheduled.id, scheduled.new, scheduled.replaced, scheduled.kept),
        (timer.id, true, Some(old), false)
    );
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_debounce_says_when_it_is_due() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let (quiet, max) = (Duration::from_micros(4_999_001), Duration::from_secs(60));
    let schedule = soon().key(Key::new("item-1").unwrap()).debounce(quiet, max);
    let too_long = schedule.clone().debounce(quiet, Duration::from_secs(86_401));
    let error = client.schedule(too_long).await.unwrap_err().to_string();
    assert!(error.contains("quiet 5000 ms and max 86401000 ms"), "{error}");
    let now = client.now();
    let call = tokio::spawn(async move { client.schedule(schedule).await });
    let request = peer.request().await;
    let [RequestOp::Schedule(ops::Schedule { timer, policy })] = &request.ops[..] else {
        panic!("{request:?}")
    };
    assert_eq!(*policy, KeyPolicy::Debounce { quiet_ms: 5_000, max_ms: 60_000 });
    assert!(timer.due >= now + 5_000 && timer.due <= now + 5_005, "an id for about the time");
    let (old, due) = (TimerId::from_u128(5), now + 4_000);
    let replies = vec![OpReply::Schedule(ScheduleReply::Timed { new: true, replaced: Some(old), due })];
    peer.send(ServerMessage::Reply { corr: request.corr, replies }).await;
    let scheduled = call.await.unwrap().unwrap();
    assert_eq!((scheduled.due, scheduled.replaced, scheduled.kept), (Some(due), Some(old), false));
}

#[tokio::test(start_paused = true)]
async fn concurrent_callers_share_frames_and_a_lone_one_does_not_wait() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let began = tokio::time::Instant::now();
    let calls: Vec<_> = (0..500)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.schedule(soon()).await })
        })
        .collect();
    let (mut frames, mut seen) = (0, 0);
    while seen < 500 {
        let request = peer.request().await;
        peer.scheduled(&request).await;
        frames += 1;
        seen += request.ops.len();
    }
    assert!(frames < 20, "{frames} frames");
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let (lone, ()) = tokio::join!(client.schedule(soon()), async {
        let request = peer.request().await;
        assert_eq!(request.ops.len(), 1);
        peer.scheduled(&request).await;
    });
    lone.unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO, "no timer was waited for");
}

#[tokio::test(start_paused = true)]
async fn many_are_cut_into_frames_and_answered_in_order() {
    let broker = Broker::start().await;
    let client = broker.client().max_in_flight(3_000);
    let (client, mut peer) = tokio::join!(client.connect(), broker.accept());
    let client = client.unwrap();
    let mut schedules: Vec<_> = (0..5_000).map(|n: u32| soon().payload(n.to_be_bytes().to_vec())).collect();
    schedules[17] = soon().payload(vec![0; limits::MAX_PAYLOAD_BYTES + 1]);
    schedules[18] = soon().payload(vec![0; limits::MAX_PAYLOAD_BYTES]);
    schedules[19] = soon().header("Not lower case", "");
    let serve = async {
        let mut seen = 0;
        while seen < 4_998 {
            let request = peer.request().await;
            assert!(request.ops.len() <= limits::MAX_BATCH);
            seen += request.ops.len();
            let reply = |op: &RequestOp| match op {
                RequestOp::Schedule(ops::Schedule { timer, .. })
                    if timer.payload[..] == 4_000u32.to_be_bytes() =>
                {
                    OpReply::Schedule(ScheduleReply::Conflict)
                }
                _ => OpReply::Schedule(ScheduleReply::Scheduled { new: true, replaced: None }),
            };
            let replies = request.ops.iter().map(reply).collect();
            peer.send(ServerMessage::Reply { corr: request.corr, replies }).await;
        }
    };
    let (answers, ()) = tokio::join!(client.schedule_all(schedules), serve);
    assert_eq!(answers.len(), 5_000);
    for (n, answer) in answers.iter().enumerate() {
        match n {
            17 | 19 => assert!(matches!(answer, Err(ScheduleError::Invalid(_))), "{answer:?}"),
            4_000 => assert!(matches!(answer, Err(ScheduleError::Conflict { .. })), "{answer:?}"),
            _ => assert!(answer.as_ref().is_ok_and(|s| s.new), "{n}: {answer:?}"),
        }
    }
    let partitions: std::collections::HashSet<_> =
        answers.iter().flatten().map(|scheduled| scheduled.id.partition()).collect();
    assert_eq!(partitions.len(), 8, "they are spread");
}

/// In real time: a paused clock jumps over heartbeats while the kernel holds long frames.
#[tokio::test]
async fn frames_of_timers_with_many_headers_fit_their_limit() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    // Of the shortest text that takes most bytes on the wire beside it, and as much of it as fits.
    let many =
        |n: u32| (0..32).fold(soon(), |s, name| s.header(format!("{name:02}"), "v".repeat(n as usize % 126)));
    let schedules: Vec<_> = (0..3_000).map(many).collect();
    let serve = async {
        let mut seen = 0;
        while seen < 3_000 {
            // A frame beyond the limit ends the connection.
            let request = peer.request().await;
            seen += request.ops.len();
            peer.scheduled(&request).await;
        }
    };
    let (answers, ()) = tokio::join!(client.schedule_all(schedules), serve);
    assert!(answers.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn what_a_lost_connection_left_open_is_repeated_as_it_was() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let calls: Vec<_> = (0..3)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.schedule(soon()).await })
        })
        .collect();
    let cancel = tokio::spawn({
        let client = client.clone();
        async move { client.cancel(TimerId::from_u128(9)).await }
    });
    let open = peer.requests(4).await;
    drop(peer);
    // Again without an answer, and then with one. Frames may be put together in another way, if
    // they are of one time.
    let ops = |requests: &[Request]| -> Vec<_> {
        requests.iter().flat_map(|r| r.ops.iter().map(|op| (r.first_sent, op.clone()))).collect()
    };
    let mut peer = broker.accept().await;
    assert_eq!(ops(&peer.requests(4).await), ops(&open));
    drop(peer);
    let mut peer = broker.accept().await;
    let again = peer.requests(4).await;
    assert_eq!(ops(&again), ops(&open));
    for request in &again {
        let reply = |op: &RequestOp| match op {
            RequestOp::Cancel(_) => OpReply::Cancel(CancelReply::TooLate(TimerId::from_u128(9))),
            _ => OpReply::Schedule(ScheduleReply::Scheduled { new: false, replaced: None }),
        };
        let replies = request.ops.iter().map(reply).collect();
        peer.send(ServerMessage::Reply { corr: request.corr, replies }).await;
    }
    for call in calls {
        assert!(!call.await.unwrap().unwrap().new);
    }
    assert_eq!(cancel.await.unwrap(), Ok(Cancelled::TooLate(TimerId::from_u128(9))));
    assert_eq!((client.stats().connections, client.stats().repeated), (3, 8));
}

#[tokio::test(start_paused = true)]
async fn after_the_horizon_the_outcome_is_unknown() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let began = tokio::time::Instant::now();
    let (answer, ()) = tokio::join!(client.schedule(soon()), async {
        let request = peer.request().await;
        // Never answered, over any number of connections.
        while began.elapsed() < Duration::from_secs(29) {
            drop(peer);
            peer = broker.accept().await;
            let again = peer.request().await;
            assert_eq!((again.first_sent, &again.ops), (request.first_sent, &request.ops));
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
    });
    let error = answer.unwrap_err();
    assert!(matches!(&error, ScheduleError::Request { error: RequestError::Unknown { .. }, .. }), "{error}");
    assert!(!error.is_retryable() && !error.has_no_side_effects());
    let waited = began.elapsed().as_millis() as u64;
    assert!((limits::REPEAT_HORIZON_MS..limits::REPEAT_HORIZON_MS + 5_000).contains(&waited), "{waited} ms");
}

#[tokio::test(start_paused = true)]
async fn a_client_may_wait_for_less_time_until_the_outcome_is_unknown() {
    let broker = Broker::start().await;
    for loses in [false, true] {
        let timeout = Duration::from_secs(2);
        let builder = broker.client().answer_timeout(timeout);
        let (client, mut peer) = tokio::join!(builder.connect(), broker.accept());
        let client = client.unwrap();
        let began = tokio::time::Instant::now();
        let (answer, _peer) = tokio::join!(client.schedule(soon()), async {
            peer.request().await;
            if loses {
                drop(peer);
                peer = broker.accept().await;
                peer.request().await;
            }
            peer
        });
        let error = answer.unwrap_err();
        let is_unknown = matches!(&error, ScheduleError::Request { error: RequestError::Unknown { .. }, .. });
        assert!(is_unknown && !error.has_no_side_effects(), "{error}");
        let waited = began.elapsed();
        assert!((timeout..timeout + Duration::from_millis(200)).contains(&waited), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_connection_nothing_is_sent_and_the_call_says_so() {
    let broker = Broker::start().await;
    let (client, peer) = broker.connect().await;
    drop(peer);
    client.connected().wait_for(|on| !on).await.unwrap();
    drop(broker);
    let began = tokio::time::Instant::now();
    let error = client.schedule(soon()).await.unwrap_err();
    assert!(matches!(&error, ScheduleError::Request { error: RequestError::NotSent { .. }, .. }), "{error}");
    assert!(error.is_retryable() && error.has_no_side_effects());
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
    assert_eq!(began.elapsed().as_secs(), 10);
    let error = client.get(TimerId::from_u128(1)).await.unwrap_err();
    assert!(error.is_retryable() && error.has_no_side_effects(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_done_yet_is_tried_again_for_a_while() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    for code in [
        ErrorCode::Unavailable,
        ErrorCode::Overloaded,
        ErrorCode::LimitReached,
        ErrorCode::Stopping,
        ErrorCode::NotReplicated,
    ] {
        let (answer, ()) = tokio::join!(client.schedule(soon()), async {
            let first = peer.request().await;
            peer.send(ServerMessage::Reply { corr: first.corr, replies: vec![failed(code)] }).await;
            let again = peer.request().await;
            assert_eq!(ids(&again), ids(&first));
            // A request that may have been stored keeps its time; if nothing was done it is a new
            // request.
            assert_eq!(again.first_sent == first.first_sent, code == ErrorCode::NotReplicated, "{code:?}");
            peer.scheduled(&again).await;
        });
        answer.unwrap();
    }
    assert_eq!(client.stats().retried, 5);
    // For ever: the last word comes back at the deadline.
    let began = tokio::time::Instant::now();
    let refuse = async {
        loop {
            let request = peer.request().await;
            let replies = vec![failed(ErrorCode::Unavailable); request.ops.len()];
            peer.send(ServerMessage::Reply { corr: request.corr, replies }).await;
        }
    };
    let error = tokio::select! { answer = client.schedule(soon()) => answer.unwrap_err(), () = refuse => unreachable!() };
    let ScheduleError::Request { error, .. } = error else { panic!("{error}") };
    assert_eq!(error, RequestError::Refused { code: ErrorCode::Unavailable, message: "not now".into() });
    assert!(error.is_retryable() && error.has_no_side_effects());
    assert!(began.elapsed() <= Duration::from_secs(10) && began.elapsed() >= Duration::from_secs(8));
}

#[tokio::test(start_paused = true)]
async fn a_final_refusal_comes_back_at_once() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let (answer, ()) = tokio::join!(client.cancel(TimerId::from_u128(1)), async {
        let corr = peer.request().await.corr;
        peer.send(ServerMessage::Reply { corr, replies: vec![failed(ErrorCode::Invalid)] }).await;
    });
    let error = answer.unwrap_err();
    assert!(!error.is_retryable() && error.has_no_side_effects(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_refused_repeat_says_nothing_of_what_was_sent_before() {
    let codes = [
        ErrorCode::Invalid,
        ErrorCode::Unauthorized,
        ErrorCode::StoreFull,
        ErrorCode::Version,
        ErrorCode::Protocol,
    ];
    for code in codes {
        let broker = Broker::start().await;
        let (client, mut peer) = broker.connect().await;
        let (answer, ()) = tokio::join!(client.schedule(soon()), async {
            peer.request().await;
            drop(peer);
            let mut peer = broker.accept().await;
            let again = peer.request().await;
            peer.reply(&again, failed(code)).await;
            peer.until_heard().await;
        });
        let error = answer.unwrap_err();
        let unknown = matches!(&error, ScheduleError::Request { error: RequestError::Unknown { .. }, .. });
        assert!(unknown && !error.has_no_side_effects(), "{code:?} after a lost connection: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_after_a_broker_that_did_not_know_is_unknown() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let (answer, ()) = tokio::join!(client.cancel(TimerId::from_u128(1)), async {
        let request = peer.request().await;
        peer.reply(&request, failed(ErrorCode::Unknown)).await;
        let again = peer.request().await;
        peer.reply(&again, failed(ErrorCode::Unauthorized)).await;
    });
    assert!(matches!(answer, Err(RequestError::Unknown { .. })), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn stored_and_then_refused_is_still_stored() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let (answer, ()) = tokio::join!(client.cancel(TimerId::from_u128(1)), async {
        let request = peer.request().await;
        peer.reply(&request, failed(ErrorCode::NotReplicated)).await;
        let again = peer.request().await;
        peer.reply(&again, failed(ErrorCode::Unauthorized)).await;
    });
    assert!(matches!(answer, Err(RequestError::NotReplicated { .. })), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn lost_and_then_not_possible_is_unknown_in_the_end() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let began = tokio::time::Instant::now();
    let serve = async {
        peer.request().await;
        drop(peer);
        let mut peer = broker.accept().await;
        loop {
            let request = peer.request().await;
            peer.send(ServerMessage::Reply {
                corr: request.corr,
                replies: vec![failed(ErrorCode::Unavailable)],
            })
            .await;
        }
    };
    let answer = tokio::select! { answer = client.cancel(TimerId::from_u128(1)) => answer, () = serve => unreachable!() };
    assert!(matches!(answer, Err(RequestError::Unknown { .. })), "{answer:?}");
    assert!(began.elapsed().as_secs() >= 28, "repeated up to the horizon");
}

#[tokio::test(start_paused = true)]
async fn answers_of_every_kind_reach_their_calls() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let id = TimerId::from_u128(77);
    let serve = tokio::spawn(async move {
        while let Some(message) = peer.next().await {
            match message {
                ClientMessage::Request(request) => {
                    let reply = |op: &RequestOp| match op {
                        RequestOp::Schedule(_) => {
                            OpReply::Schedule(ScheduleReply::Kept { id, being_delivered: true })
                        }
                        RequestOp::Cancel(ops::Cancel { target: Target::Id(id), .. }) => {
                            OpReply::Cancel(CancelReply::Cancelled(*id))
                        }
                        RequestOp::Cancel(_) => OpReply::Cancel(CancelReply::NotFound),
                        RequestOp::Reschedule(_) => OpReply::Reschedule(RescheduleReply::Rescheduled(id)),
                        RequestOp::Replay(_) => OpReply::Replay(ReplayReply::KeyTaken(id)),
                        op => {
                            let own = |reply: &OpReply| op.is_answered_by(reply);
                            OpReply::samples().into_iter().find(own).expect("a sample")
                        }
                    };
                    let replies = request.ops.iter().map(reply).collect();
                    peer.send(ServerMessage::Reply { corr: request.corr, replies }).await;
                }
                ClientMessage::Query { corr, query } => {
                    let answer = match query {
                        Query::Get(_) => QueryAnswer::Timer(None),
                        Query::Story(_) => QueryAnswer::Story(None),
                        Query::Dead { cursor: None, .. } => {
                            QueryAnswer::Dead { rows: vec![], next: Some((1, 2)) }
                        }
                        Query::Dead { .. } => QueryAnswer::Dead { rows: vec![], next: None },
                        Query::Unconfirmed { .. } => QueryAnswer::Unconfirmed { rows: vec![], next: None },
                        Query::Parked { .. } | Query::Taken { .. } => {
                            QueryAnswer::Timers { rows: vec![], next: None }
                        }
                        Query::Pending(_) => QueryAnswer::Pending { rows: vec![], next: None },
                        Query::Counts(_) => QueryAnswer::Counts { rows: vec![], next: None, uncounted: 2 },
                        Query::Bulks { .. } => QueryAnswer::Bulks(vec![]),
                        Query::Settings { .. } => QueryAnswer::Settings(vec![]),
                        Query::Forecast(_) => {
                            QueryAnswer::Forecast { spans: vec![], next: None, uncounted: 3 }
                        }
                        Query::Status => QueryAnswer::Status(Status { sessions: 3, ..Status::default() }),
                        Query::Cluster | Query::Broker | Query::Drain { .. } | Query::Ready => {
                            QueryAnswer::Done
                        }
                    };
                    peer.send(ServerMessage::Answer { corr, answer }).await;
                }
                _ => {}
            }
        }
    });
    let kept = client.schedule(soon()).await.unwrap();
    assert_eq!((kept.id, kept.kept, kept.being_delivered, kept.new), (id, true, true, false));
    assert_eq!(client.cancel(id).await, Ok(Cancelled::Cancelled(id)));
    assert_eq!(client.cancel(dest().key("k").unwrap()).await, Ok(Cancelled::NotFound));
    assert_eq!(client.reschedule(id, Time::from_ms(5)).await, Ok(Rescheduled::Rescheduled(id)));
    assert_eq!(client.replay_all(vec![id; 3]).await, vec![Ok(mtimer_client::Replayed::KeyTaken(id)); 3]);
    assert_eq!(client.purge_all(vec![id; 2]).await, vec![Ok(true); 2]);
    assert_eq!(client.get(id).await, Ok(None));
    assert_eq!(client.story(id).await, Ok(None));
    assert_eq!(client.dead(Default::default()).all().await, Ok(vec![]));
    assert_eq!(client.unconfirmed().next().await, Ok(None));
    assert_eq!(client.list(dest()).next().await, Ok(None));
    assert_eq!(client.destinations(dest()).await, Ok(Destinations { rows: vec![], uncounted: 16 }));
    assert_eq!(client.bulks().await, Ok(vec![]));
    assert_eq!(client.all_destination_settings().await, Ok(vec![]));
    assert_eq!(client.status().await.unwrap().sessions, 3);
    client.close().await.unwrap();
    assert_eq!(client.status().await, Err(RequestError::Closed));
    serve.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_prepared_schedule_stays_the_same_timer() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let (id, schedule) = client.prepare(soon().payload("x")).unwrap();
    let mut first = None;
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (answer, op) = tokio::join!(client.schedule(schedule.clone()), async {
            let request = peer.request().await;
            peer.scheduled(&request).await;
            request.ops.into_iter().next().unwrap()
        });
        assert_eq!(answer.unwrap().id, id);
        assert_eq!(*first.get_or_insert(op.clone()), op);
    }
    assert!(client.now() >= START + 2_000);
}

#[tokio::test(start_paused = true)]
async fn callers_wait_while_too_much_is_on_its_way() {
    let broker = Broker::start().await;
    let client = broker.client().max_in_flight(2);
    let (client, mut peer) = tokio::join!(client.connect(), broker.accept());
    let client = client.unwrap();
    let calls: Vec<_> = (0..5)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.schedule(soon()).await })
        })
        .collect();
    let mut seen = 0;
    while seen < 5 {
        let request = peer.request().await;
        assert!(request.ops.len() <= 2);
        seen += request.ops.len();
        peer.scheduled(&request).await;
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_broker_does_not_know_is_repeated_as_it_was() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let id = TimerId::from_u128(1);
    let (answer, ()) = tokio::join!(client.cancel(id), async {
        let first = peer.request().await;
        let unknown = ServerMessage::Reply { corr: first.corr, replies: vec![failed(ErrorCode::Unknown)] };
        peer.send(unknown).await;
        let again = peer.request().await;
        assert_eq!((again.first_sent, &again.ops), (first.first_sent, &first.ops));
        let reply = ServerMessage::Reply {
            corr: again.corr,
            replies: vec![OpReply::Cancel(CancelReply::Cancelled(id))],
        };
        peer.send(reply).await;
    });
    assert!(answer.is_ok(), "{answer:?}");
}
