//! The bytes of records, and the attempts that a record counts.

use mtimer_types::PartitionId;
use mtimer_types::extensions::{MUST_BE_UNDERSTOOD, VOLATILE};
use proptest::prelude::*;

use super::*;

fn arb_extensions() -> impl Strategy<Value = Extensions> {
    let fields = proptest::collection::btree_map(0u32..1 << 20, "[a-z]{0,9}", 0..4);
    fields.prop_map(|fields| {
        let understood = fields.into_iter().filter(|(tag, _)| tag & MUST_BE_UNDERSTOOD == 0);
        Extensions::new(understood).unwrap()
    })
}

fn arb_record() -> impl Strategy<Value = Record> {
    let timer = (
        (0u64..1 << 40, any::<u64>()),
        proptest::option::of("[a-z]{1,40}"),
        any::<bool>(),
        proptest::option::of(0u64..1 << 30),
        proptest::option::of(any::<u32>()),
        proptest::option::of(proptest::collection::vec(any::<u32>(), 0..5)),
        proptest::collection::vec(any::<u8>(), 0..200),
        proptest::option::of(0u64..1 << 40),
        proptest::collection::btree_map("[a-z._-]{1,20}", "[a-zé=]{0,90}", 0..4),
    );
    let progress = (
        any::<u32>(),
        any::<u32>(),
        any::<bool>(),
        proptest::option::of(1u64..),
        proptest::option::of("[a-zé]{1,90}"),
        proptest::option::of(0..1u64 << 44),
    );
    let extensions = (arb_extensions(), arb_extensions());
    (timer, progress, extensions).prop_map(|(timer, p, (of_timer, of_record))| {
        let (id, key, amo, deadline, timeout, retry, payload, due, headers) = timer;
        let birth = Time::from_ms(id.0);
        let due = due.map_or(birth, Time::from_ms);
        let timer = Timer {
            key: key.map(|k| Key::new(&k).unwrap()),
            mode: if amo { Mode::AtMostOnce } else { Mode::AtLeastOnce },
            deadline: deadline.map(|d| due + d),
            callback_timeout_ms: timeout,
            retry: retry.map(RetryTiers),
            payload: payload.into(),
            headers: Headers::new(headers).unwrap(),
            extensions: of_timer,
            ..Timer::new(
                TimerId::new(birth, Time::ZERO, PartitionId(3), id.1),
                Destination::new("g", "a").unwrap(),
                due,
            )
        };
        let progress = Progress {
            failed: p.0,
            budget_from: p.1,
            stopped: p.2,
            fresh: p.3.map(Epoch),
            last_error: p.4.map(Into::into),
        };
        let accepted = p.5.map(|ms| timer.due + ms);
        Record { timer: Arc::new(timer), progress, accepted, extensions: of_record }
    })
}

proptest! {
    #[test]
    fn bytes_survive(record in arb_record(), dest: u32) {
        let mut out = Vec::new();
        record.encode(dest, &mut out);
        let back = Record::decode(record.timer.id, &out.into(), |n| (n == dest).then(|| record.timer.dest.clone()));
        prop_assert_eq!(back.unwrap(), record);
    }

    #[test]
    fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80), id: u128) {
        let _ = Record::decode(TimerId::from_u128(id), &bytes.into(), |_| Destination::new("g", "a").ok());
    }
}

fn plain() -> Timer {
    Timer {
        payload: Bytes::from_static(b"hi"),
        ..Timer::new(
            TimerId::new(Time::from_ms(5), Time::ZERO, PartitionId(0), 7),
            Destination::new("g", "a").unwrap(),
            Time::from_ms(5),
        )
    }
}

fn bytes_of(timer: Timer, progress: Progress) -> Vec<u8> {
    let mut out = Vec::new();
    Record { progress, ..Record::new(Arc::new(timer)) }.encode(9, &mut out);
    out
}

fn decoded(bytes: Vec<u8>) -> Result<Record, RecordError> {
    Record::decode(plain().id, &bytes.into(), |number| (number == 9).then(|| plain().dest))
}

#[test]
fn a_plain_record_costs_two_bytes() {
    assert_eq!(bytes_of(plain(), Progress::default()), [0, 9, b'h', b'i']);
}

#[test]
fn a_full_record_has_the_bytes_of_the_table() {
    let timer = Timer {
        key: Key::new("k").ok(),
        due: Time::from_ms(0x0102_0304_0506),
        mode: Mode::AtMostOnce,
        deadline: Some(Time::from_ms(0x0102_0304_0506 + 300)),
        callback_timeout_ms: Some(100),
        retry: Some(RetryTiers(vec![1, 127, 128])),
        headers: Headers::new([("b", "xyz"), ("a-1", "")]).unwrap(),
        extensions: Extensions::new([(4, "ext"), (6, "")]).unwrap(),
        ..plain()
    };
    let last_error = Some("no".into());
    let progress =
        Progress { failed: 3, budget_from: 2, stopped: true, fresh: Some(Epoch(0x0a0b)), last_error };
    let fixed = [3, 0, 0, 0, 2, 0, 0, 0, 0x0b, 0x0a, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0];
    let bytes = [
        &[0b111_1111, 0b1_1111][..],
        &fixed,
        b"no",
        &[9],
        b"\x01k",
        &[6, 5, 4, 3, 2, 1],
        &[0xac, 2],
        &[100],
        &[3, 1, 0x7f, 0x80, 1],
        b"\x02\x03a-1\x00\x01b\x03xyz",
        &[0x83, 2],
        b"\x07\x04\x03ext\x06\x00",
        b"\x03\x08\x01r",
        b"hi",
    ];
    let accepted = Some(timer.due + 259);
    let extensions = Extensions::new([(8, "r")]).unwrap();
    let record = Record { timer: Arc::new(timer), progress, accepted, extensions };
    let mut out = Vec::new();
    record.encode(9, &mut out);
    assert_eq!(out, bytes.concat());
    assert_eq!(decoded(bytes.concat()), Ok(record));
}

#[test]
fn a_record_that_is_cut_off_is_refused() {
    let timer = Timer {
        key: Key::new("key").ok(),
        due: Time::from_ms(9),
        deadline: Some(Time::from_ms(500)),
        callback_timeout_ms: Some(100),
        retry: Some(RetryTiers(vec![5, 6])),
        payload: Bytes::new(),
        headers: Headers::new([("name", "value"), ("b", "")]).unwrap(),
        extensions: Extensions::new([(4, "value"), (1_000, "")]).unwrap(),
        ..plain()
    };
    let progress = Progress { failed: 1, last_error: Some("error".into()), ..Progress::default() };
    let bytes = bytes_of(timer, progress);
    assert!(decoded(bytes.clone()).is_ok());
    for end in 0..bytes.len() {
        assert!(decoded(bytes[..end].to_vec()).is_err(), "the first {end} bytes");
    }
}

#[test]
fn a_record_may_end_with_its_key() {
    let keyed = Timer { key: Key::new("key").ok(), payload: Bytes::new(), ..plain() };
    assert_eq!(*decoded(bytes_of(keyed.clone(), Progress::default())).unwrap().timer, keyed);
}

#[test]
fn a_record_has_as_many_retry_tiers_as_a_timer_may_bring() {
    let with = |tiers| Timer { retry: Some(RetryTiers(vec![5; tiers])), ..plain() };
    let read = |tiers| decoded(bytes_of(with(tiers), Progress::default()));
    assert_eq!(*read(32).unwrap().timer, with(32));
    assert_eq!(read(33).unwrap_err().what, "it has too many retry tiers");
}

#[test]
fn a_record_has_as_many_headers_as_a_timer_may_bring() {
    let names = |count: u8| (0..count).map(|n| format!("{n:02}"));
    let headers = Headers::new(names(32).map(|n| (n, "v"))).unwrap();
    let timer = Timer { headers, ..plain() };
    assert_eq!(*decoded(bytes_of(timer.clone(), Progress::default())).unwrap().timer, timer);
    let mut bytes = vec![MORE, MORE_HEADERS, 9, 33];
    names(33).for_each(|name| bytes.extend([b"\x02", name.as_bytes(), b"\x01v"].concat()));
    assert_eq!(decoded(bytes).unwrap_err().what, "it has too many headers");
}

#[test]
fn headers_cost_nothing_when_there_are_none_and_two_bytes_beside_their_text_each() {
    let headers = Headers::new([("a", "1")]).unwrap();
    let with = bytes_of(Timer { headers, ..plain() }, Progress::default());
    assert_eq!(with, [MORE, MORE_HEADERS, 9, 1, 1, b'a', 1, b'1', b'h', b'i']);
}

#[test]
fn damaged_headers_and_unknown_parts_are_refused() {
    let refused = |bytes: &[u8]| decoded(bytes.to_vec()).unwrap_err().what;
    let headers = |rest: &[u8]| refused(&[&[MORE, MORE_HEADERS, 9], rest].concat());
    assert_eq!(headers(b"\x01\x01A\x00"), "its headers are not valid");
    assert_eq!(headers(b"\x02\x01a\x00\x01a\x00"), "its headers are not valid");
    assert_eq!(headers(b"\x01\x01a\x01\xff"), "its headers are not UTF-8");
    assert_eq!(headers(b"\x01\x01a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "it is cut off");
    for bit in 5..8 {
        let bytes = [MORE, 1 << bit, 9, b'h', b'i'];
        assert_eq!(refused(&bytes), "it has parts that this version does not know");
    }
}

#[test]
fn extensions_cost_nothing_when_there_are_none_and_two_bytes_beside_their_block() {
    let extensions = Extensions::new([(4, "x")]).unwrap();
    let with = bytes_of(Timer { extensions, ..plain() }, Progress::default());
    assert_eq!(with, [MORE, MORE_TIMER_EXTENSIONS, 9, 3, 4, 1, b'x', b'h', b'i']);
}

#[test]
fn extensions_that_are_damaged_or_must_be_understood_are_refused() {
    for bit in [MORE_TIMER_EXTENSIONS, MORE_RECORD_EXTENSIONS] {
        let read = |rest: &[u8]| decoded([&[MORE, bit, 9], rest].concat());
        let refused = |rest: &[u8]| read(rest).unwrap_err().what.into_owned();
        assert!(read(b"\x02\x06\x00hi").is_ok());
        assert_eq!(refused(b"\x00hi"), "it announces extensions and has none");
        assert_eq!(refused(b"\x05\x04\x00hi"), "it is cut off");
        assert_eq!(refused(b"\x03\x04\x02hi"), "the extensions are cut off");
        assert_eq!(
            refused(b"\x04\x04\x00\x04\x00hi"),
            "extension 4 follows 4: tags ascend, and none comes twice"
        );
        for tag in [4 | MUST_BE_UNDERSTOOD, 4 | MUST_BE_UNDERSTOOD | VOLATILE] {
            let error = read(&[2, tag as u8, 0, b'h', b'i']).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "the stored record of timer {} cannot be read: it has extension {tag}, which must be \
                     understood and is of a newer version",
                    plain().id
                )
            );
        }
    }
}

#[test]
fn a_claim_of_another_epoch_covers_what_fires_up_to_it() {
    let mut record = Record::new(Arc::new(plain()));
    let covered = |record: &Record| {
        [4, 5, 6].map(|fire| record.covered(Time::from_ms(fire), Epoch(3), Time::from_ms(5)))
    };
    assert_eq!(covered(&record), [true, true, false]);
    record.progress.fresh = Some(Epoch(2));
    assert_eq!(covered(&record), [true, true, false]);
    record.progress.fresh = Some(Epoch(3));
    assert_eq!(covered(&record), [false; 3]);
}

#[test]
fn attempts_count_failures_and_a_covered_delivery() {
    let mut record = Record::new(Arc::new(plain()));
    assert_eq!([false, true].map(|covered| record.attempt(covered)), [1, 2]);
    record.progress.failed = 4;
    assert_eq!([false, true].map(|covered| record.attempt(covered)), [5, 6]);
    record.progress.failed = u32::MAX;
    assert_eq!(record.attempt(true), u32::MAX);
}

#[test]
fn errors_are_cut_at_a_character() {
    let text = "é".repeat(400);
    assert_eq!(cut_error(&text).len(), 512);
    assert_eq!(cut_error(&format!("x{text}")).len(), 511);
}
