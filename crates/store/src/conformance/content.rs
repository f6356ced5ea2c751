//! Payloads, names and keys of every size and kind come back as they were written.

use bytes::Bytes;
use mtimer_types::extensions::VOLATILE;
use mtimer_types::{
    Destination, Extensions, Headers, Key, KeyPolicy, Mode, RetryTiers, Target, Timer, limits,
};

use super::kit::Kit;
use super::owner::Owner;
use super::seeded::mix;
use super::values::{DAY, MINUTE, NEW, YEAR, dead_verdict, schedule_op, unique};
use crate::ops::{Cancel, MoveAnswer, Park, Replay, ReplayAnswer, SettleAnswer, Unpark};
use crate::{Answer, CancelAnswer, Op, Place, RequestId, ScheduleAnswer};

/// Texts that are easily damaged: separators of every store, hash tags, other scripts, look-alikes.
const ODD: [&str; 20] = [
    " ",
    ":",
    "{}",
    "{a}",
    "}{",
    "a:b:c",
    "*",
    "?[a-z]",
    "\\",
    "\"'",
    "a b",
    "é",
    "e\u{301}",
    "ÿ",
    "ключ",
    "鍵",
    "🕰\u{fe0f}",
    "\u{202e}abc",
    "\u{10ffff}",
    "\u{feff}",
];

/// Everything that a timer can be asked for, in all places that show it.
async fn round_trip(owner: &Owner, timer: &Timer) {
    assert_eq!(owner.schedule(timer).await, NEW);
    assert_eq!(*owner.record(timer.id).await.timer, *timer, "by id");
    if let Some(key) = &timer.key {
        let target = Target::Key(timer.dest.clone(), key.clone());
        assert_eq!(*owner.lane.get(target).await.unwrap().unwrap().0.timer, *timer, "by key");
    }
    assert_eq!(*owner.pending().await[&timer.id].record.timer, *timer, "loaded");
    assert_eq!(owner.park(timer.id).await, MoveAnswer::Done);
    assert_eq!(*owner.all_parked(&timer.dest, 10).await[0].timer, *timer, "parked");
    assert_eq!(owner.unpark(timer.id, timer.due).await, MoveAnswer::Done);
    if timer.mode == Mode::AtMostOnce {
        assert_eq!(owner.take(timer.id).await, MoveAnswer::Done);
        assert_eq!(*owner.all_taken(10).await[0].record.timer, *timer, "taken");
    }
    assert_eq!(owner.settle(timer.id, dead_verdict(1)).await, SettleAnswer::Done);
    assert_eq!(*owner.all_dead().await[0].record.timer, *timer, "dead");
    assert_eq!(owner.replay(timer.id, timer.due).await, ReplayAnswer::Done);
    assert_eq!(*owner.record(timer.id).await.timer, *timer, "replayed");
    assert_eq!(owner.ack(timer.id).await, SettleAnswer::Done);
    assert_eq!(owner.census().await, Default::default());
}

pub(super) async fn an_empty_payload(mut kit: Kit) {
    let owner = kit.owner().await;
    round_trip(&owner, &Timer { payload: Bytes::new(), ..kit.timer(kit.now) }).await;
}

pub(super) async fn a_payload_of_every_byte(mut kit: Kit) {
    let owner = kit.owner().await;
    let payload: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
    round_trip(&owner, &Timer { payload: payload.into(), ..kit.amo(kit.now) }).await;
}

pub(super) async fn payloads_of_many_sizes(mut kit: Kit) {
    let owner = kit.owner().await;
    for len in [1, 2, 63, 64, 65, 127, 128, 255, 256, 1_000, 4_095, 4_096, 16_384, 65_535, 65_536] {
        let payload: Vec<u8> = (0..len).map(|n| mix(n) as u8).collect();
        round_trip(&owner, &Timer { payload: payload.into(), ..kit.timer(kit.now) }).await;
    }
}

pub(super) async fn a_batch_of_the_largest_payloads(mut kit: Kit) {
    let owner = kit.owner().await;
    let timers: Vec<_> = (0..60)
        .map(|n| {
            let payload = Bytes::from(vec![n as u8; limits::MAX_PAYLOAD_BYTES]);
            Timer { payload, ..kit.timer(kit.now + n * 300) }
        })
        .collect();
    let answers = owner.apply(timers.iter().map(schedule_op).collect()).await;
    assert!(answers.iter().all(|a| *a == Answer::Schedule(NEW)));
    let pending = owner.pending().await;
    for timer in &timers {
        assert_eq!(*pending[&timer.id].record.timer, *timer);
    }
}

pub(super) async fn every_optional_field(mut kit: Kit) {
    let owner = kit.owner().await;
    for bits in 0..128u32 {
        let has = |bit: u32| bits & (1 << bit) != 0;
        let timer = Timer {
            mode: if has(0) { Mode::AtMostOnce } else { Mode::AtLeastOnce },
            key: has(1).then(|| kit.key(&format!("field-{bits}-"))),
            deadline: has(2).then_some(kit.now + DAY),
            callback_timeout_ms: has(3).then_some(limits::MAX_CALLBACK_TIMEOUT_MS),
            retry: has(4).then(|| RetryTiers(vec![1, limits::MAX_RETRY_DELAY_MS])),
            headers: if has(5) { headers(&["a", "é"]) } else { Headers::NONE },
            extensions: if has(6) { extensions(&["a", ""]) } else { Extensions::NONE },
            ..kit.timer(kit.now)
        };
        round_trip(&owner, &timer).await;
    }
}

/// Headers with these values, under names of their own.
fn headers(values: &[&str]) -> Headers {
    Headers::new((0..).zip(values).map(|(n, value)| (format!("name-{n}"), value))).unwrap()
}

pub(super) async fn headers_of_every_size_and_kind(mut kit: Kit) {
    let owner = kit.owner().await;
    let name = "n".repeat(limits::MAX_HEADER_NAME_BYTES);
    let value = "v".repeat(limits::MAX_HEADER_VALUE_BYTES);
    let most = "v".repeat(limits::MAX_HEADERS_BYTES / limits::MAX_HEADERS - "name-00".len());
    let cases = [
        headers(&[""]),
        headers(&["127 bytes".repeat(14).as_str(), &"y".repeat(127), &"z".repeat(128)]),
        headers(&["=", "a=b", "\u{2028}", "{\"a\": 1}"]),
        headers(&vec![most.as_str(); limits::MAX_HEADERS]),
        Headers::new([(name.as_str(), value.as_str())]).unwrap(),
    ];
    // Twenty odd texts, ten at a time.
    let odd = ODD.chunks(10).map(headers);
    for headers in cases.into_iter().chain(odd) {
        for payload in [Bytes::new(), Bytes::from_static(b"payload")] {
            round_trip(&owner, &Timer { payload, headers: headers.clone(), ..kit.timer(kit.now) }).await;
        }
        round_trip(&owner, &Timer { headers, ..kit.amo(kit.now) }).await;
    }
}

/// Extensions with these values, which nobody knows.
fn extensions(values: &[&str]) -> Extensions {
    Extensions::new((1..).map(|n| 400 * n).zip(values)).unwrap()
}

pub(super) async fn extensions_of_every_size(mut kit: Kit) {
    let owner = kit.owner().await;
    // Both numbers of the field take three bytes.
    let largest = "v".repeat(limits::MAX_EXTENSIONS_BYTES - 6);
    let cases = [
        extensions(&[""]),
        extensions(&[largest.as_str()]),
        extensions(&[&"x".repeat(250), &"y".repeat(251)]),
        extensions(&["v"; limits::MAX_EXTENSIONS]),
        Extensions::new([(0, [0; 4]), (VOLATILE, [1; 4]), (!3, [0xff; 4])]).unwrap(),
    ];
    for extensions in cases {
        for payload in [Bytes::new(), Bytes::from_static(b"payload")] {
            round_trip(&owner, &Timer { payload, extensions: extensions.clone(), ..kit.timer(kit.now) })
                .await;
        }
        round_trip(&owner, &Timer { extensions, ..kit.amo(kit.now) }).await;
    }
}

pub(super) async fn headers_and_extensions_survive_whatever_happens_to_a_timer(mut kit: Kit) {
    let owner = kit.owner().await;
    let key = kit.key("order-");
    let own = |text: &str, timer: Timer| Timer {
        headers: Headers::new([("tenant", text), ("traceparent", "00-1-2-01")]).unwrap(),
        extensions: Extensions::new([(4, text), (8 | VOLATILE, "volatile")]).unwrap(),
        ..timer
    };
    let same = |found: &Timer, expected: &Timer, when: &str| {
        assert_eq!((&found.headers, &found.extensions), (&expected.headers, &expected.extensions), "{when}");
    };
    let timer = own("one", kit.keyed(kit.now + MINUTE, &key));
    let has = async |owner: &Owner, expected: &Timer, when: &str| {
        same(&owner.record(expected.id).await.timer, expected, when);
    };
    owner.add(&timer).await;
    owner.reschedule(timer.id, kit.now).await;
    has(&owner, &timer, "rescheduled").await;
    owner.retry(timer.id, kit.now + MINUTE, 1, 1).await;
    has(&owner, &timer, "retried").await;
    same(&owner.pending().await[&timer.id].record.timer, &timer, "loaded");
    owner.park(timer.id).await;
    same(&owner.all_parked(&timer.dest, 10).await[0].timer, &timer, "parked");

    let owner = kit.owner().await;
    has(&owner, &timer, "of the next owner").await;
    owner.unpark(timer.id, kit.now).await;
    owner.settle(timer.id, dead_verdict(2)).await;
    same(&owner.all_dead().await[0].record.timer, &timer, "dead");
    owner.replay(timer.id, kit.now).await;
    has(&owner, &timer, "replayed").await;

    let other = own("two", kit.keyed(kit.now + MINUTE, &key));
    let replaced = owner.schedule_as(&other, KeyPolicy::Replace).await;
    assert_eq!(replaced, ScheduleAnswer::Scheduled { new: true, replaced: Some(timer.id) });
    has(&owner, &other, "replacing").await;
    let none = kit.keyed(kit.now + MINUTE, &key);
    owner.schedule_as(&none, KeyPolicy::Replace).await;
    has(&owner, &none, "replaced by none").await;
    let last = own("three", kit.timer(kit.now + MINUTE));
    owner.add(&last).await;
    drop(owner);
    if kit.restart().await {
        let owner = kit.owner().await;
        has(&owner, &last, "restarted").await;
        has(&owner, &none, "restarted without").await;
    }
}

pub(super) async fn retry_tiers_none_and_the_most(mut kit: Kit) {
    let owner = kit.owner().await;
    for tiers in [vec![], vec![1], vec![limits::MAX_RETRY_DELAY_MS; limits::MAX_RETRY_TIERS]] {
        round_trip(&owner, &Timer { retry: Some(RetryTiers(tiers)), ..kit.timer(kit.now) }).await;
    }
}

pub(super) async fn a_deadline_at_the_due_time_and_years_later(mut kit: Kit) {
    let owner = kit.owner().await;
    for deadline in [kit.now, kit.now + 1, kit.now + 100 * YEAR] {
        round_trip(&owner, &Timer { deadline: Some(deadline), ..kit.timer(kit.now) }).await;
    }
}

pub(super) async fn odd_keys(mut kit: Kit) {
    let owner = kit.owner().await;
    for text in ODD {
        let timer = kit.keyed(kit.now, &kit.key(text));
        round_trip(&owner, &timer).await;
    }
}

pub(super) async fn keys_that_look_alike_are_different(mut kit: Kit) {
    let owner = kit.owner().await;
    // Composed and decomposed, upper and lower case, with a space more, an extension of the other.
    let pairs = [("é", "e\u{301}"), ("A", "a"), ("x", "x "), ("k", "k:"), ("ſ", "s"), ("1", "01")];
    for (a, b) in pairs {
        // The same ending, so that only the oddity differs: both in this partition.
        let (a, b) = (kit.key(a), kit.key(b));
        if a == b {
            continue;
        }
        let (first, second) = (kit.keyed(kit.now, &a), kit.keyed(kit.now, &b));
        assert_eq!(owner.schedule(&first).await, NEW);
        assert_eq!(owner.schedule(&second).await, NEW, "{a:?} and {b:?}");
        assert_eq!(owner.cancel_key(&a).await, CancelAnswer::Cancelled(first.id));
        assert_eq!(owner.see_key(&b).await, Some(second.id));
        owner.ack(second.id).await;
    }
}

pub(super) async fn the_longest_key_and_names(mut kit: Kit) {
    let owner = kit.owner().await;
    let long = Destination::new(&"g".repeat(limits::MAX_NAME_BYTES), &"ü".repeat(limits::MAX_NAME_BYTES / 2))
        .unwrap();
    let partitions = kit.store().info().partitions;
    let key = (0..)
        .map(|n| Key::new(&format!("{n:0>width$}", width = limits::MAX_KEY_BYTES)).unwrap())
        .find(|key| mtimer_types::PartitionId::of_key(&long, key, partitions) == kit.partition)
        .unwrap();
    round_trip(&owner, &Timer { dest: long, key: Some(key), ..kit.timer(kit.now) }).await;
}

pub(super) async fn odd_names(mut kit: Kit) {
    let owner = kit.owner().await;
    for text in ODD {
        for dest in
            [Destination::new(text, "app"), Destination::new("group", text), Destination::new(text, text)]
        {
            let timer = Timer { dest: dest.unwrap(), ..kit.timer(kit.now) };
            round_trip(&owner, &timer).await;
        }
    }
}

pub(super) async fn names_are_not_run_together(mut kit: Kit) {
    let owner = kit.owner().await;
    let dests = [("a", "bc"), ("ab", "c"), ("a:b", "c"), ("a", "b:c"), ("a/b", "c"), ("a", "b/c")];
    for (group, app) in dests {
        let dest = Destination::new(group, app).unwrap();
        owner.add_parked(&Timer { dest, ..kit.timer(kit.now) }).await;
    }
    let counts = owner.parked_counts().await;
    assert_eq!(counts.len(), dests.len());
    assert!(counts.values().all(|n| *n == 1));
}

pub(super) async fn many_destinations_come_back_right(mut kit: Kit) {
    let first = kit.owner().await;
    let timers: Vec<_> = (0..500)
        .map(|n| {
            let dest = Destination::new(&format!("group {}", n % 40), &format!("app {n}")).unwrap();
            Timer { dest, ..kit.timer(kit.now + n) }
        })
        .collect();
    first.add_all(&timers).await;
    let second = kit.owner().await;
    let more: Vec<_> = timers.iter().map(|t| Timer { id: kit.timer(t.due).id, ..t.clone() }).collect();
    second.add_all(&more).await;
    let pending = second.pending().await;
    for timer in timers.iter().chain(&more) {
        assert_eq!(pending[&timer.id].record.timer.dest, timer.dest);
    }
}

pub(super) async fn odd_errors(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.timer(kit.now);
    owner.add(&timer).await;
    for (n, text) in (1..).zip(ODD.iter().chain(&["line one\nline two\r\n\t\u{0}end"])) {
        let error = (*text).into();
        let verdict = crate::Verdict::Retry { fire: kit.now + MINUTE, tier: 1, failed: n, error };
        assert_eq!(owner.settle(timer.id, verdict).await, SettleAnswer::Done);
        let record = owner.record(timer.id).await;
        assert_eq!(record.progress.last_error.as_deref(), Some(*text));
        assert_eq!(owner.pending().await[&timer.id].record, record);
    }
}

pub(super) async fn the_same_random_part_at_other_times(mut kit: Kit) {
    // Ids that differ only in one of their parts.
    let owner = kit.owner().await;
    let random = unique();
    let mut timers = Vec::new();
    for width in mtimer_types::SlotWidth::ALL {
        for due in [kit.now, kit.now + 1, kit.now + DAY] {
            for random in [random, random ^ 1, 0, u64::MAX] {
                let id = mtimer_types::TimerId::with_width(due, width, kit.partition, random);
                timers.push(Timer { id, ..kit.timer(due) });
            }
        }
    }
    owner.add_all(&timers).await;
    assert_eq!(owner.pending().await.len(), timers.len());
    for timer in &timers {
        let op = Op::Cancel(Cancel {
            target: Target::Id(timer.id),
            sent_attempt: None,
            request: RequestId(unique()),
        });
        assert_eq!(owner.one(op).await, Answer::Cancel(CancelAnswer::Cancelled(timer.id)));
    }
    assert_eq!(owner.pending().await.len(), 0);
}

pub(super) async fn an_id_is_dead_or_alive_in_one_place_only(mut kit: Kit) {
    let owner = kit.owner().await;
    let timer = kit.amo(kit.now);
    owner.add(&timer).await;
    let moved = MoveAnswer::Done;
    let visits = [
        (Op::Park(Park { id: timer.id, failed: 0 }), Answer::Park(moved), Place::Parked),
        (Op::take(timer.id, 0), Answer::Take(moved), Place::Taken { epoch: owner.epoch, unconfirmed: false }),
        (Op::Park(Park { id: timer.id, failed: 0 }), Answer::Park(moved), Place::Parked),
        (
            Op::Unpark(Unpark { id: timer.id, fire: kit.now }),
            Answer::Unpark(moved),
            Place::Pending { fire: kit.now, tier: 0 },
        ),
        (Op::settle(timer.id, dead_verdict(1)), Answer::Settle(SettleAnswer::Done), Place::Dead),
        (
            Op::Replay(Replay { id: timer.id, fire: kit.now + DAY }),
            Answer::Replay(ReplayAnswer::Done),
            Place::Pending { fire: kit.now + DAY, tier: 0 },
        ),
    ];
    for (op, answer, place) in visits {
        assert_eq!(owner.one(op).await, answer);
        assert_eq!(owner.place(timer.id).await, Some(place));
        let census = owner.census().await;
        let sum = census.pending + census.retrying + census.parked + census.taken + census.dead;
        assert_eq!(sum, 1, "{census:?} in {place:?}");
    }
}
