//! Any bytes are a message or a refusal: no panic, no abort, no memory beyond the frame's own
//! measure.

#![allow(clippy::unwrap_used)]

mod samples;

use bytes::{Bytes, BytesMut};
use mtimer_protocol::ops::Schedule;
use mtimer_protocol::{
    ClientMessage, DecodeError, EncodeError, QueryAnswer, Request, RequestOp, ServerMessage, Settlement,
    decode, encode, frame_codec,
};
use mtimer_types::DueSpan;
use mtimer_types::limits::{
    MAX_BATCH, MAX_BROKERS, MAX_BULK_FAILURES, MAX_BULK_JOBS, MAX_CONFIGURED_DESTINATIONS, MAX_CREDIT,
    MAX_FRAME, MAX_PAGE, MAX_PARTITIONS, MAX_PAUSE_TEXT_BYTES,
};
use proptest::prelude::*;
use samples::{from_client, from_server};
use tokio_util::codec::Decoder;

fn client(body: &[u8]) -> Result<ClientMessage, DecodeError> {
    decode(&BytesMut::from(body))
}

fn server(body: &[u8]) -> Result<ServerMessage, DecodeError> {
    decode(&BytesMut::from(body))
}

fn bodies() -> Vec<Bytes> {
    let client = from_client().into_iter().map(|(_, m)| encode(&m).unwrap());
    client.chain(from_server().into_iter().map(|(_, m)| encode(&m).unwrap())).collect()
}

#[test]
fn a_message_cut_off_anywhere_is_refused() {
    for (name, message) in from_client() {
        let body = encode(&message).unwrap();
        for end in 0..body.len() {
            assert!(matches!(client(&body[..end]), Err(DecodeError::Malformed(_))), "{name} up to {end}");
        }
    }
    for (name, message) in from_server() {
        let body = encode(&message).unwrap();
        for end in 0..body.len() {
            assert!(matches!(server(&body[..end]), Err(DecodeError::Malformed(_))), "{name} up to {end}");
        }
    }
}

#[test]
fn a_message_with_a_rest_is_refused() {
    for (name, message) in from_client() {
        let mut body = encode(&message).unwrap().to_vec();
        let used = body.len();
        body.extend([0, 0]);
        assert_eq!(client(&body), Err(DecodeError::Trailing { used, extra: 2 }), "{name}");
    }
}

#[test]
fn lengths_that_lie_are_refused_before_anything_is_reserved() {
    // A settle, a request, a reply, deliveries, a hello's software: each with a length of up to
    // 2^64-1.
    let lengths: [&[u8]; 4] = [
        &[251, 255, 255],
        &[252, 255, 255, 255, 255],
        &[253, 255, 255, 255, 255, 255, 255, 255, 127],
        &[253, 255, 255, 255, 255, 255, 255, 255, 255],
    ];
    for length in lengths {
        for head in [&[4u8][..], &[3, 1, 1], &[0, 252, 0x52, 0x4d, 0x54, 0x4d, 1, 1, 5], &[10, 0]] {
            assert!(client(&[head, length].concat()).is_err());
        }
        // The last: a topology's leader, brokers and owners, a cluster's members, a broker's
        // partitions, pending timers, counts, bulk jobs, forecasts.
        let topology: &[u8] = &[9, 1, 1, 0];
        let heads = [&[2u8, 1][..], &[3, 1, 1], &[4, 1], &[5, 1], &[9, 1, 1], topology, &[9, 1, 1, 0, 0]];
        let views: [&[u8]; 5] = [
            &[3, 1, 6, 1, 1, 0, 0, 0, 0, 1],
            &[3, 1, 7, 0, 1, 2, 3, 4],
            &[3, 1, 10],
            &[3, 1, 11],
            &[3, 1, 12],
        ];
        for head in heads.into_iter().chain(views) {
            assert!(server(&[head, length].concat()).is_err());
        }
    }
}

#[test]
fn more_elements_than_a_message_may_have_are_refused() {
    // Two bytes each in the frame, two hundred in memory.
    let purges = |n: usize| [&[3, 1, 1, 251][..], &(n as u16).to_le_bytes(), &[4, 0].repeat(n)].concat();
    assert!(client(&purges(MAX_BATCH)).is_ok());
    let error = client(&purges(MAX_BATCH + 1)).unwrap_err();
    assert!(error.to_string().contains("2001 elements where 2000 are the most"), "{error}");
    let million = [&[3, 1, 1, 252][..], &2_000_000u32.to_le_bytes(), &[4, 0].repeat(2_000_000)].concat();
    assert!(million.len() < MAX_FRAME && client(&million).is_err());

    let outcomes = |n: usize| ClientMessage::Settle(vec![settlement(); n]);
    let credit = MAX_CREDIT as usize;
    assert!(client(&encode(&outcomes(credit)).unwrap()).is_ok());
    assert!(client(&encode(&outcomes(credit + 1)).unwrap()).is_err());
    // One byte each in the frame, four in memory; and brokers, two and forty.
    let owners = |n: usize| [&[9, 1, 1, 0, 0, 251][..], &(n as u16).to_le_bytes(), &vec![0; n]].concat();
    assert!(server(&owners(usize::from(MAX_PARTITIONS))).is_ok());
    assert!(server(&owners(usize::from(MAX_PARTITIONS) + 1)).is_err());
    let brokers = |n: usize| [&[9, 1, 1, 0, n as u8][..], &[0, 0].repeat(n), &[0]].concat();
    assert!(server(&brokers(MAX_BROKERS)).is_ok());
    assert!(server(&brokers(MAX_BROKERS + 1)).is_err());

    let pending = |n: usize| {
        let rows = vec![samples::pending_rows().remove(0); n];
        let answer = QueryAnswer::Pending { rows, next: None };
        server(&encode(&ServerMessage::Answer { corr: 1, answer }).unwrap())
    };
    let page = MAX_PAGE as usize;
    assert!(pending(page).is_ok() && pending(page + 1).is_err());

    let counts = |n: usize| {
        let answer = QueryAnswer::Counts { rows: vec![samples::counts(); n], next: None, uncounted: 0 };
        server(&encode(&ServerMessage::Answer { corr: 1, answer }).unwrap())
    };
    assert!(counts(page).is_ok() && counts(page + 1).is_err());

    let forecast = |n: usize| {
        let span = DueSpan { begin: samples::time(0), end: samples::time(1), timers: u64::MAX };
        let answer = QueryAnswer::Forecast { spans: vec![span; n], next: None, uncounted: 0 };
        server(&encode(&ServerMessage::Answer { corr: 1, answer }).unwrap())
    };
    assert!(forecast(page).is_ok() && forecast(page + 1).is_err());

    let bulks = |jobs: usize, failures: usize| {
        let mut view = samples::bulk_views().remove(0);
        view.failures = vec![view.failures[0]; failures];
        let answer = QueryAnswer::Bulks(vec![view; jobs]);
        server(&encode(&ServerMessage::Answer { corr: 1, answer }).unwrap())
    };
    assert!(bulks(MAX_BULK_JOBS, MAX_BULK_FAILURES).is_ok(), "and it fits a frame");
    assert!(bulks(MAX_BULK_JOBS + 1, 0).is_err() && bulks(1, MAX_BULK_FAILURES + 1).is_err());

    let settings = |rows: usize| {
        let mut row = samples::stored_settings();
        let pause = row.settings.pause.as_mut().unwrap();
        (pause.by, pause.reason) = ("x".repeat(MAX_PAUSE_TEXT_BYTES), "x".repeat(MAX_PAUSE_TEXT_BYTES));
        let answer = QueryAnswer::Settings(vec![row; rows]);
        server(&encode(&ServerMessage::Answer { corr: 1, answer }).unwrap())
    };
    let most = 2 * MAX_CONFIGURED_DESTINATIONS;
    assert!(settings(most).is_ok() && settings(most + 1).is_err(), "and they fit a frame");

    let replies = [&[2, 1, 252][..], &2_000_000u32.to_le_bytes(), &[3, 2].repeat(2_000_000)].concat();
    assert!(replies.len() < MAX_FRAME && server(&replies).is_err());
}

fn settlement() -> Settlement {
    let outcome = mtimer_types::HandlerOutcome::Ok;
    Settlement { id: samples::id(), epoch: mtimer_types::Epoch(1), attempt: 1, outcome }
}

#[test]
fn values_that_no_type_has_are_refused() {
    // Register with an empty group; unregister 2^32; extend of a time-like number is fine, a pong
    // beyond u64 is not.
    assert!(client(&[1, 1, 0, 1, b'a', 5]).is_err());
    assert!(client(&[2, 253, 0, 0, 0, 0, 1, 0, 0, 0]).is_err());
    assert!(client(&[8, 254, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).is_err());
    // A key with a control character, a text that is not UTF-8, a bool of 2, an option of 2,
    // unknown variants.
    assert!(client(&[6, 1, 0, 1, 1, b'g', 1, b'a', 1, 10]).is_err());
    assert!(server(&[1, 0, 1, 0xff]).is_err());
    assert!(server(&[2, 1, 1, 2, 0, 2, 0]).is_err());
    assert!(server(&[3, 1, 0, 2]).is_err());
    assert!(client(&[11]).is_err() && server(&[11]).is_err() && client(&[255]).is_err());
    assert!(client(&[10, 1]).is_err() && server(&[10, 3]).is_err() && server(&[3, 1, 9]).is_err());
    // A request first sent after the end of time.
    assert!(client(&[3, 1, 253, 0, 0, 0, 0, 0, 0, 1, 0, 0]).is_err());
    assert!(client(&[]).is_err() && server(&[]).is_err());
}

/// A schedule whose timer has this block of extensions.
fn with_extensions(block: &[u8]) -> Vec<u8> {
    let op = Schedule { timer: samples::plain_timer().into(), policy: mtimer_types::KeyPolicy::Create };
    let request = Request { corr: 7, first_sent: samples::time(0), ops: vec![op.into()] };
    let body = encode(&ClientMessage::Request(request)).unwrap();
    let (before, end) = body.split_at(body.len() - 2);
    assert_eq!(end, [0, 0], "no extensions, and the policy");
    [before, &encode(&Bytes::copy_from_slice(block)).unwrap(), &[0]].concat()
}

#[test]
fn extensions_in_another_form_than_the_one_are_refused() {
    let field = |tag: u8, len: usize| [&[tag, 251][..], &(len as u16).to_le_bytes(), &vec![7; len]].concat();
    let fields = |count: u8| (0..count).flat_map(|n| [n * 4, 0]).collect::<Vec<_>>();
    // The last must be understood: the operation is refused, not the message.
    for block in
        [&b""[..], b"\x04\x00", b"\x04\x01a\xfb\xe8\x03\x00", &field(4, 1_020), &fields(16), b"\x05\x00"]
    {
        let body = with_extensions(block);
        assert_eq!(encode(&client(&body).unwrap()).unwrap(), body, "{block:?}");
    }
    let refused = [
        (&b"\x08\x00\x04\x00"[..], "extension 4 follows 8"),
        (b"\x04\x00\x04\x00", "extension 4 follows 4"),
        (b"\x04\xfb\x01\x00a", "shortest form"),
        (b"\xfb\x04\x00\x00", "shortest form"),
        (b"\x04\x02a", "cut off"),
        (&fields(17), "more than 16 extensions"),
        (&field(4, 1_021), "the extensions have 1025 bytes, the limit is 1024"),
        (&[0; 100_000], "the extensions have 100000 bytes, the limit is 1024"),
    ];
    for (block, why) in refused {
        let error = client(&with_extensions(block)).unwrap_err().to_string();
        assert!(error.contains(why), "{error} instead of {why}");
    }
}

#[test]
fn frames_are_bounded_both_ways() {
    let mut codec = frame_codec(16);
    let mut short = BytesMut::from(&[0, 0, 0, 16][..]);
    assert!(codec.decode(&mut short).unwrap().is_none());
    let mut long = BytesMut::from(&[0, 0, 0, 17][..]);
    assert!(frame_codec(16).decode(&mut long).is_err());

    let text = "x".repeat(MAX_FRAME);
    let message = ServerMessage::Refused { code: mtimer_protocol::ErrorCode::Invalid, message: text };
    assert!(matches!(encode(&message), Err(EncodeError::TooLarge { limit: MAX_FRAME, .. })));
}

/// The largest frames are made of many small numbers and of payloads.
#[test]
fn a_message_that_fills_a_frame_is_read() {
    let request = |payload: usize| {
        let timer = mtimer_types::Timer { payload: vec![7; payload].into(), ..samples::full_timer() };
        let op = RequestOp::Schedule(Schedule { timer: timer.into(), policy: mtimer_types::KeyPolicy::Keep });
        ClientMessage::Request(Request { corr: 7, first_sent: samples::time(0), ops: vec![op; MAX_BATCH] })
    };
    let overhead = encode(&request(1_000)).unwrap().len() / MAX_BATCH - 1_000;
    let message = request(MAX_FRAME / MAX_BATCH - overhead - 1);
    let body = encode(&message).unwrap();
    assert!(body.len() > MAX_FRAME - 5_000, "{} bytes are not a full frame", body.len());
    // The messages are too large to be shown.
    assert!(client(&body).is_ok_and(|read| read == message));
}

#[test]
fn a_short_message_reserves_no_more_than_its_own_measure() {
    // A hello whose software has a name of 4,000,000 bytes, of which none is there.
    let hello = [&[0, 252, 0x52, 0x4d, 0x54, 0x4d, 1, 1, 5, 252][..], &4_000_000u32.to_le_bytes()].concat();
    let used = allocation_counter::measure(|| assert!(client(&hello).is_err()));
    assert!(used.bytes_max < 128 * 1024, "{} bytes were reserved for {}", used.bytes_max, hello.len());
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_refused(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = client(&body);
        let _ = server(&body);
    }

    #[test]
    fn any_extensions_survive_byte_for_byte_or_are_refused(
        block in prop_oneof![
            proptest::collection::vec(0u8..5, 0..12),
            proptest::collection::vec(any::<u8>(), 0..40),
        ],
    ) {
        let body = with_extensions(&block);
        if let Ok(message) = client(&body) {
            prop_assert_eq!(encode(&message).unwrap(), body);
        }
    }

    #[test]
    fn a_damaged_message_is_a_message_or_refused(
        which: prop::sample::Index,
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let bodies = bodies();
        let mut body = which.get(&bodies).to_vec();
        for (at, byte) in damage {
            let at = at.index(body.len());
            body[at] = byte;
        }
        // A message that is read is written back as the same value.
        if let Ok(message) = client(&body) {
            prop_assert_eq!(client(&encode(&message).unwrap()), Ok(message));
        }
        if let Ok(message) = server(&body) {
            prop_assert_eq!(server(&encode(&message).unwrap()), Ok(message));
        }
    }
}

#[test]
fn a_long_frame_reserves_no_more_than_the_limit_either() {
    // A hello whose software is announced with 1 GiB, in a frame longer than those before the
    // authentication.
    let head: &[u8] = &[0, 252, 0x52, 0x4d, 0x54, 0x4d, 1, 1, 5, 252];
    let hello = [head, &(1u32 << 30).to_le_bytes(), &[b'a'; 8 * 1024]].concat();
    let used = allocation_counter::measure(|| assert!(client(&hello).is_err()));
    assert!(used.bytes_max < 2 * MAX_FRAME as u64, "{} bytes", used.bytes_max);
}
