//! Clients that are broken, malicious or dead: each is told why and counted, and nobody else
//! notices.

mod support;

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use mtimer_broker::{Broker, BrokerOptions};
use mtimer_core::EngineOptions;
use mtimer_protocol::ops::{Purge, ScheduleReply};
use mtimer_protocol::{
    ClientMessage, Delivery, ErrorCode, OpReply, Query, Request, RequestOp, ServerMessage, SettleRefusal,
};
use mtimer_types::limits::{MAX_BATCH, MAX_FRAME, MAX_RECEIVING};
use mtimer_types::{Epoch, HandlerOutcome, Target, TimerId};
use support::{
    Client, broker, count, frame, hello, options, refused, schedule, timer, wait_count, wait_sessions, works,
};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

/// Sends bytes as a welcomed client; the broker must answer with a refusal that says `text` and
/// count it.
async fn sends(bytes: &[u8], counter: &str, text: &str) {
    let broker = broker(options()).await;
    let mut client = Client::welcomed(&broker).await;
    client.send_bytes(bytes).await;
    let (code, said) = client.refused().await;
    assert_eq!(code, ErrorCode::Protocol, "{said}");
    assert!(said.contains(text), "{said}");
    assert_eq!(count(&broker, counter).await, 1, "{counter}");
    works(&broker, "others").await;
}

#[tokio::test]
async fn a_malformed_message() {
    sends(&[0, 0, 0, 5, 4, 255, 255, 255, 255], "frames_malformed_total", "malformed message").await;
}

#[tokio::test]
async fn an_unknown_message() {
    sends(&[0, 0, 0, 1, 200], "frames_malformed_total", "malformed message").await;
}

#[tokio::test]
async fn a_message_that_announces_more_than_there_is_memory() {
    // Settle with 2^63 settlements.
    let body = [4, 253, 255, 255, 255, 255, 255, 255, 255, 127];
    let mut bytes = vec![0, 0, 0, body.len() as u8];
    bytes.extend(body);
    sends(&bytes, "frames_malformed_total", "malformed message").await;
}

#[tokio::test]
async fn more_bytes_than_the_message_has() {
    let mut bytes = frame(&ClientMessage::Ping(7));
    bytes[3] += 1;
    bytes.extend([0]);
    sends(&bytes, "frames_malformed_total", "1 bytes follow a message of 2 bytes").await;
}

#[tokio::test]
async fn an_oversized_frame() {
    let length = (MAX_FRAME as u32 + 1).to_be_bytes();
    let text = format!("a frame is announced with more than {MAX_FRAME} bytes: send smaller frames");
    sends(&length, "frames_oversized_total", &text).await;
}

#[tokio::test]
async fn a_second_hello() {
    let bytes = frame(&ClientMessage::Hello(hello()));
    sends(&bytes, "frames_out_of_place_total", "a second hello is not allowed here").await;
}

#[tokio::test]
async fn a_batch_over_the_limit() {
    let ops =
        (0..=MAX_BATCH as u128).map(|n| RequestOp::Purge(Purge { id: TimerId::from_u128(n) })).collect();
    let request = ClientMessage::Request(Request { corr: 1, first_sent: support::now(), ops });
    let text = format!("{} elements where {MAX_BATCH} are the most", MAX_BATCH + 1);
    sends(&frame(&request), "frames_malformed_total", &text).await;
}

#[tokio::test]
async fn a_request_without_operations() {
    let request = ClientMessage::Request(Request { corr: 1, first_sent: support::now(), ops: Vec::new() });
    sends(&frame(&request), "sessions_broken_total", "a request has 1 to 2000 operations, this one has 0")
        .await;
}

#[tokio::test]
async fn a_truncated_frame() {
    let broker = broker(options()).await;
    let mut client = Client::welcomed(&broker).await;
    client.send_bytes(&frame(&ClientMessage::Ping(700))[..5]).await;
    drop(client);
    wait_count(&broker, "frames_truncated_total", 1).await;
    works(&broker, "others").await;
}

#[tokio::test]
async fn the_largest_frame_is_fine_once_welcomed() {
    let broker = broker(options()).await;
    let mut client = Client::welcomed(&broker).await;
    let timers: Vec<_> = (0..60).map(|_| timer("big", 3_600_000, &[1; 64 * 1024])).collect();
    let replies = client.request(timers.iter().map(schedule).collect()).await;
    assert!(
        replies.iter().all(|r| matches!(r, OpReply::Schedule(ScheduleReply::Scheduled { new: true, .. })))
    );
}

#[tokio::test]
async fn a_half_open_connection() {
    let (heartbeat, heartbeat_timeout) = (Duration::from_millis(100), Duration::from_millis(1_000));
    let broker = broker(BrokerOptions { heartbeat, heartbeat_timeout, ..options() }).await;
    let mut lively = Client::welcomed(&broker).await;
    let mut dead = Client::welcomed(&broker).await;
    let mut pings = 0;
    let refused = loop {
        // The dead one reads (so that this test can see it) but never says anything.
        match dead.next_raw().await {
            Some(ServerMessage::Ping(_)) => {
                pings += 1;
                assert!(matches!(lively.next_raw().await, Some(ServerMessage::Ping(_))));
                lively.send(&ClientMessage::Pong(1)).await;
            }
            Some(ServerMessage::Refused { message, .. }) => break message,
            other => panic!("{other:?}"),
        }
    };
    assert!(pings >= 2, "{pings}");
    assert_eq!(refused, "nothing heard for 1000 ms");
    assert_eq!(count(&broker, "heartbeats_missed_total").await, 1);
    wait_sessions(&broker, 1).await;
    lively.send(&ClientMessage::Ping(9)).await;
    assert!(matches!(lively.next().await, Some(ServerMessage::Pong(9, _))));
}

#[tokio::test]
async fn a_large_frame_over_a_slow_line_is_not_silence() {
    let (heartbeat, heartbeat_timeout) = (Duration::from_millis(100), Duration::from_millis(1_000));
    let broker = broker(BrokerOptions { heartbeat, heartbeat_timeout, ..options() }).await;
    let mut slow = Client::welcomed(&broker).await;
    let timers: Vec<_> = (0..30).map(|_| timer("slow", 3_600_000, &[1; 60 * 1024])).collect();
    let request = Request { corr: 1, first_sent: support::now(), ops: timers.iter().map(schedule).collect() };
    let bytes = frame(&ClientMessage::Request(request));
    // A part for each of the broker's heartbeats, which are not answered: in all it is longer than
    // the broker bears silence.
    for part in bytes.chunks(bytes.len() / 14 + 1) {
        let heartbeat = slow.next_raw().await;
        assert!(matches!(heartbeat, Some(ServerMessage::Ping(_))), "{heartbeat:?}");
        slow.send_bytes(part).await;
    }
    let Some(ServerMessage::Reply { replies, .. }) = slow.next().await else { panic!("no reply") };
    assert_eq!(replies.len(), 30);
}

/// The most memory that this process has used, KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the peak");
    peak.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Announces the largest frame, sends so many bytes of it, then one byte for each heartbeat of the
/// broker until that closes the connection. Returns what the broker says.
async fn drip(broker: &Broker, bytes: usize) -> (ErrorCode, String) {
    let client = Client::welcomed(broker).await;
    let (mut read, mut write) = client.into_halves();
    let sender = tokio::spawn(async move {
        let mut sent = write.write_all(&(MAX_FRAME as u32).to_be_bytes()).await;
        // The test's own memory is measured, too.
        static ZEROS: [u8; 4096] = [0; 4096];
        for _ in 0..bytes / ZEROS.len() {
            sent = sent.and(write.write_all(&ZEROS).await);
        }
        while sent.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
            sent = write.write_all(&[0]).await;
        }
    });
    let refused = tokio::time::timeout(support::TIMEOUT, refused(&mut read)).await.expect("closed in time");
    sender.abort();
    refused
}

/// Heartbeats short enough for a test to see what follows from silence.
fn short_heartbeats() -> BrokerOptions {
    let (heartbeat, heartbeat_timeout) = (Duration::from_millis(100), Duration::from_millis(1_000));
    BrokerOptions { heartbeat, heartbeat_timeout, ..options() }
}

#[tokio::test]
async fn a_frame_that_makes_no_progress() {
    let broker = broker(short_heartbeats()).await;
    let (code, said) = drip(&broker, 100).await;
    assert_eq!(code, ErrorCode::Protocol, "{said}");
    assert!(said.contains(&format!("of a frame of {MAX_FRAME} came within 1000 ms")), "{said}");
    assert_eq!(count(&broker, "frames_slow_total").await, 1);
    works(&broker, "others").await;
}

#[tokio::test]
async fn partial_frames_of_many_connections() {
    const CONNECTIONS: usize = 200;
    let broker = Arc::new(broker(short_heartbeats()).await);
    let before = peak_kib();
    let mut hostile = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let broker = broker.clone();
        hostile.spawn(async move { drip(&broker, 1024 * 1024).await });
    }
    // Others are served meanwhile, and may send frames of any size.
    let mut client = Client::welcomed(&broker).await;
    let timers: Vec<_> = (0..60).map(|_| timer("big", 3_600_000, &[1; 64 * 1024])).collect();
    let replies = client.request(timers.iter().map(schedule).collect()).await;
    assert!(
        replies.iter().all(|r| matches!(r, OpReply::Schedule(ScheduleReply::Scheduled { new: true, .. }))),
        "{replies:?}"
    );
    works(&broker, "others").await;
    let ended = tokio::time::timeout(support::TIMEOUT, hostile.join_all()).await;
    let held = (peak_kib() - before) * 1024;
    // What the store and the engine have of the good client's timers comes on top.
    assert!(held < MAX_RECEIVING as u64 + (48 << 20), "{held} bytes");
    for (code, said) in ended.expect("all are closed") {
        assert!(matches!(code, ErrorCode::Protocol | ErrorCode::Overloaded), "{said}");
    }
    let slow = count(&broker, "frames_slow_total").await;
    assert_eq!(slow + count(&broker, "frames_evicted_total").await, CONNECTIONS as u64);
    works(&broker, "others").await;
}

/// Options under which a failed delivery comes again soon.
fn quick() -> BrokerOptions {
    let engine = EngineOptions { callback_timeout_ms: 200, ..options().engine };
    BrokerOptions { engine, session_outbox_bytes: 512 * 1024, ..options() }
}

#[tokio::test]
async fn one_that_never_reads() {
    let broker = broker(quick()).await;
    let mut deaf = Client::welcomed(&broker).await;
    deaf.register(1, "deaf", 10_000).await;
    let mut other = Client::welcomed(&broker).await;
    // More than the outbox and the system's buffers between the two hold.
    let timers: Vec<_> = (0..600).map(|_| timer("deaf", 1, &[7; 60 * 1024])).collect();
    for batch in timers.chunks(50) {
        let replies = other.request(batch.iter().map(schedule).collect()).await;
        assert!(
            replies
                .iter()
                .all(|r| matches!(r, OpReply::Schedule(ScheduleReply::Scheduled { new: true, .. }))),
            "{replies:?}"
        );
    }
    wait_count(&broker, "outbox_overflows_total", 1).await;
    works(&broker, "others").await;
    // Nothing is lost: the next one gets them all, none of them early.
    other.register(1, "deaf", 4).await;
    let mut missing: std::collections::HashSet<TimerId> = timers.iter().map(|t| t.id).collect();
    while !missing.is_empty() {
        for (delivery, at) in other.deliveries(1).await {
            assert!(at >= delivery.due);
            missing.remove(&delivery.id);
            other.settle(&delivery, HandlerOutcome::Ok).await;
        }
    }
}

/// Asks for a timer again and again and never reads the answers, until the broker closes the
/// connection.
async fn asks_and_never_reads(broker: &Broker, id: TimerId) {
    let (_read, mut write) = Client::welcomed(broker).await.into_halves();
    let query = Query::Get(Target::Id(id));
    let question = frame(&ClientMessage::Query { corr: 1, query });
    while write.write_all(&question).await.is_ok() {}
}

#[tokio::test]
async fn many_that_never_read() {
    const CLIENTS: u64 = 32;
    let outboxes_bytes = 16 << 20;
    let broker = Arc::new(broker(BrokerOptions { outboxes_bytes, ..options() }).await);
    let large = timer("others", 3_600_000, &[7; 64 * 1024]);
    Client::welcomed(&broker).await.schedule(&large).await;
    let before = peak_kib();
    let mut hostile = JoinSet::new();
    for _ in 0..CLIENTS {
        let (broker, id) = (broker.clone(), large.id);
        hostile.spawn(async move { asks_and_never_reads(&broker, id).await });
    }
    // Others are served meanwhile.
    for _ in 0..20 {
        works(&broker, "others").await;
    }
    tokio::time::timeout(support::TIMEOUT, hostile.join_all()).await.expect("all are closed");
    let held = (peak_kib() - before) * 1024;
    assert!(held < outboxes_bytes as u64 + (48 << 20), "{held} bytes");
    // Each was far below its own limit. On a slow machine some may have taken too little for too
    // long.
    let overflows = count(&broker, "outbox_overflows_total").await;
    assert_eq!(overflows + count(&broker, "writes_stalled_total").await, CLIENTS);
    assert!(overflows > CLIENTS / 2, "{overflows}");
    works(&broker, "others").await;
}

#[tokio::test]
async fn one_that_never_settles() {
    let broker = broker(quick()).await;
    let mut lazy = Client::welcomed(&broker).await;
    lazy.register(1, "lazy", 2).await;
    let timers: Vec<_> = (0..5).map(|_| timer("lazy", 1, b"x")).collect();
    let mut other = Client::welcomed(&broker).await;
    other.request(timers.iter().map(schedule).collect()).await;
    works(&broker, "others").await;
    // What it does not settle times out and counts as failed, so that the others have their turn.
    let mut seen = std::collections::HashSet::new();
    while seen.len() < timers.len() {
        seen.extend(lazy.deliveries(1).await.into_iter().map(|(d, _)| d.id));
    }
    while lazy.deliveries(1).await[0].0.attempt < 2 {}
    assert!(count(&broker, "timed_out_total").await >= 2);
    works(&broker, "others").await;
}

#[tokio::test]
async fn one_that_settles_what_is_not_its_own() {
    let broker = broker(options()).await;
    let (mut owner, mut thief) = (Client::welcomed(&broker).await, Client::welcomed(&broker).await);
    owner.register(1, "mine", 1).await;
    owner.schedule(&timer("mine", 1, b"x")).await;
    let (delivery, _) = owner.deliveries(1).await.remove(0);
    let fail = HandlerOutcome::Fail { error: "no".to_owned() };
    thief.settle(&delivery, fail.clone()).await;
    let not_yours = vec![(delivery.id, SettleRefusal::NotYours)];
    assert_eq!(thief.settled().await, (0, not_yours));
    // Nor one that does not exist.
    let unknown = Delivery { id: TimerId::from_u128(5), epoch: Epoch(1), ..delivery.clone() };
    thief.settle(&unknown, fail).await;
    assert_eq!(thief.settled().await.0, 0);
    assert!(count(&broker, "settle_not_yours_total").await >= 1);
    owner.settle(&delivery, HandlerOutcome::Ok).await;
    assert_eq!(owner.settled().await, (1, vec![]));
}

#[tokio::test]
async fn a_flood_of_garbage_connections() {
    let broker = broker(options()).await;
    let mut noise = BytesMut::zeroed(300);
    for n in 0..200u32 {
        // A little generator is enough: every connection says something else.
        noise.iter_mut().fold(n.wrapping_mul(2_654_435_761) | 1, |x, b| {
            let x = x ^ (x << 13);
            let x = x ^ (x >> 17);
            let x = x ^ (x << 5);
            *b = x as u8;
            x
        });
        let mut client = Client::connect(&broker).await;
        if n % 2 == 0 {
            client.shake_hands(hello()).await;
            noise[..2].fill(0);
        }
        // It may be refused before it has said everything.
        let _ = tokio::io::AsyncWriteExt::write_all(client.frames.get_mut(), &noise).await;
    }
    works(&broker, "others").await;
    wait_sessions(&broker, 0).await;
}
