use mtimer_types::limits::MAX_FRAME;
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

use super::*;

const WINDOW: Duration = Duration::from_secs(15);

fn reader(budget: &Arc<ReceiveBudget>) -> (FrameReader<DuplexStream>, DuplexStream) {
    let (here, there) = duplex(1 << 20);
    (FrameReader::new(here, MAX_FRAME, WINDOW, budget.clone()), there)
}

fn budget(bytes: usize) -> Arc<ReceiveBudget> {
    Arc::new(ReceiveBudget::new(bytes))
}

fn frame(length: usize) -> Vec<u8> {
    let mut frame = u32::try_from(length).unwrap().to_be_bytes().to_vec();
    frame.resize(LENGTH_BYTES + length, 7);
    frame
}

#[tokio::test]
async fn frames_of_any_size_arrive_whole() {
    let budget = budget(MAX_FRAME);
    let (mut reader, mut client) = reader(&budget);
    let sizes = [0, 1, FREE_BYTES - 4, FREE_BYTES - 3, FREE_BYTES, 100_000, 3, MAX_FRAME];
    let send = async {
        for size in sizes {
            client.write_all(&frame(size)).await.unwrap();
        }
        drop(client);
    };
    let receive = async {
        for size in sizes {
            let frame = reader.next().await.unwrap();
            assert_eq!(frame.body.len(), size);
            assert!(frame.body.iter().all(|b| *b == 7), "{size}");
        }
        assert!(matches!(reader.next().await, Err(FrameError::Ended)));
    };
    tokio::join!(send, receive);
    assert_eq!(budget.free(), MAX_FRAME, "everything is given back");
}

#[tokio::test]
async fn memory_follows_what_has_arrived() {
    let budget = budget(MAX_FRAME);
    let (mut reader, mut client) = reader(&budget);
    let frame = frame(MAX_FRAME);
    let mut sent = 0;
    for so_far in [4, 100, 10_000, 100_000, 1_000_000] {
        client.write_all(&frame[sent..so_far]).await.unwrap();
        sent = so_far;
        // It reads the bytes that are there, and then waits for more.
        tokio::select! {
            biased;
            _ = reader.next() => panic!("it is not complete"),
            () = tokio::task::yield_now() => {}
        }
        let allocated = reader.large.as_ref().unwrap().body.capacity();
        assert!(allocated <= FREE_BYTES.max(2 * so_far), "{allocated} bytes for {so_far}");
        let charged = MAX_FRAME - budget.free();
        assert!(charged + FREE_BYTES >= allocated, "{charged} charged of {allocated}");
    }
    drop(client);
    assert!(matches!(reader.next().await, Err(FrameError::Truncated)));
}

#[tokio::test(start_paused = true)]
async fn a_frame_with_a_byte_now_and_then_is_ended() {
    let budget = budget(MAX_FRAME);
    let (mut reader, mut client) = reader(&budget);
    let send = async move {
        tokio::time::sleep(Duration::from_secs(14)).await;
        client.write_all(&frame(MAX_FRAME)[..500_000]).await.unwrap();
        while client.write_all(&[7]).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    };
    tokio::spawn(send);
    let began = Instant::now();
    let error = reader.next().await.err().unwrap();
    // The first window brought enough, the second did not.
    assert_eq!(began.elapsed(), Duration::from_secs(14) + 2 * WINDOW);
    assert_eq!(
        error.to_string(),
        "only 3 bytes of a frame of 4194304 came within 15000 ms, 245760 are the least: send \
         smaller frames, or faster"
    );
}

#[tokio::test(start_paused = true)]
async fn a_large_frame_at_the_least_rate_arrives() {
    let budget = budget(MAX_FRAME);
    let (mut reader, mut client) = reader(&budget);
    let send = async move {
        for part in frame(MAX_FRAME).chunks(MIN_FRAME_RATE + 1_000) {
            client.write_all(part).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        client
    };
    let sender = tokio::spawn(send);
    assert_eq!(reader.next().await.unwrap().body.len(), MAX_FRAME);
    let _client = sender.await.unwrap();
    let began = Instant::now();
    assert!(matches!(reader.next().await, Err(FrameError::Silent(WINDOW))));
    assert_eq!(began.elapsed(), WINDOW);
}

#[tokio::test(start_paused = true)]
async fn a_slow_frame_is_ended_only_while_another_waits_for_memory() {
    let budget = budget(MAX_FRAME);
    let (mut slow, mut slow_client) = reader(&budget);
    slow_client.write_all(&frame(MAX_FRAME)[..1_000_000]).await.unwrap();
    let slow = tokio::spawn(async move { slow.next().await });
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(!slow.is_finished(), "nobody else wants its memory");
    // One goes on beyond the budget, so the second is the first that waits.
    let mut others = Vec::new();
    for _ in 0..2 {
        let (mut reader, mut client) = reader(&budget);
        others.push(tokio::spawn(async move { reader.next().await.unwrap().body.len() }));
        tokio::spawn(async move { client.write_all(&frame(MAX_FRAME)).await.unwrap() });
    }
    let error = slow.await.unwrap().err().unwrap();
    assert!(matches!(error, FrameError::Evicted { received: 1_000_000, .. }), "{error}");
    for other in others {
        assert_eq!(other.await.unwrap(), MAX_FRAME);
    }
    assert_eq!(budget.free(), MAX_FRAME);
}

#[tokio::test(start_paused = true)]
async fn frames_that_wait_for_each_other_all_arrive() {
    let budget = budget(MAX_FRAME);
    let mut clients = Vec::new();
    let mut readers = Vec::new();
    for _ in 0..20 {
        let (mut reader, mut client) = reader(&budget);
        readers.push(tokio::spawn(async move { reader.next().await.map(|frame| frame.body.len()) }));
        clients.push(tokio::spawn(async move { client.write_all(&frame(MAX_FRAME)).await }));
    }
    for reader in readers {
        assert_eq!(reader.await.unwrap().unwrap(), MAX_FRAME);
    }
    for client in clients {
        client.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn small_frames_need_no_memory_of_the_budget() {
    let budget = budget(0);
    let (mut reader, mut client) = reader(&budget);
    client.write_all(&frame(FREE_BYTES - LENGTH_BYTES)).await.unwrap();
    assert_eq!(reader.next().await.unwrap().body.len(), FREE_BYTES - LENGTH_BYTES);
}
