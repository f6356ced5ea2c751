use proptest::prelude::*;

use super::*;
use crate::{Attempt, AttemptEnd, Epoch};

fn of(fields: &[(u32, &str)]) -> Extensions {
    Extensions::new(fields.iter().copied()).unwrap()
}

fn refused(block: &[u8]) -> String {
    Extensions::from_bytes(block).unwrap_err().to_string()
}

#[test]
fn a_block_has_tags_lengths_and_values() {
    let extensions = of(&[(0, ""), (250, "a"), (251, "bc"), (65_535, "d"), (65_536, "e")]);
    let block: &[u8] = b"\x00\x00\xfa\x01a\xfb\xfb\x00\x02bc\xfb\xff\xff\x01d\xfc\x00\x00\x01\x00\x01e";
    assert_eq!(extensions.as_bytes(), block);
    assert_eq!(Extensions::from_bytes(block), Ok(extensions.clone()));
    let fields: Vec<(u32, &[u8])> = extensions.iter().collect();
    assert_eq!(fields, [(0, &b""[..]), (250, b"a"), (251, b"bc"), (65_535, b"d"), (65_536, b"e")]);
    let long = Extensions::new([(u32::MAX, [7; 300])]).unwrap();
    assert_eq!(long.as_bytes()[..8], *b"\xfc\xff\xff\xff\xff\xfb\x2c\x01");
    assert_eq!(format!("{:?}", of(&[(4, "a")])), "{4: [97]}");
}

#[test]
fn none_take_no_memory_and_one_word_in_place() {
    assert_eq!(Extensions::from_bytes(&[]), Ok(Extensions::NONE));
    assert_eq!(of(&[]), Extensions::NONE);
    assert!(Extensions::NONE.is_empty() && !of(&[(0, "")]).is_empty());
    assert_eq!((Extensions::NONE.as_bytes(), Extensions::NONE.iter().count()), (&[][..], 0));
    assert_eq!(size_of::<Extensions>(), size_of::<usize>());
}

#[test]
fn only_the_form_that_is_written_is_read() {
    let cut_off = "the extensions are cut off";
    for block in
        [&b"\x04"[..], b"\x04\x01", b"\x04\xfb\x01", b"\xfb\x01", b"\xfc\x00\x00\x01", b"\x04\x00\x08"]
    {
        assert_eq!(refused(block), cut_off, "{block:?}");
    }
    let number = "a tag or a length of the extensions is not a number in its shortest form";
    // Too long a form of 250 and of 65,535, as a tag and as a length; 8 and 16 bytes.
    for long in
        [&b"\xfb\xfa\x00"[..], b"\xfc\xff\xff\x00\x00", b"\xfd\x00\x00\x00\x00\x01\x00\x00\x00", b"\xfe"]
    {
        assert_eq!(refused(&[long, b"\x00"].concat()), number);
        assert_eq!(refused(&[b"\x04", long, &[0; 300]].concat()), number);
    }
    assert_eq!(refused(b"\xff\x00"), number);
    assert_eq!(refused(b"\x04\x00\x04\x00"), "extension 4 follows 4: tags ascend, and none comes twice");
    assert_eq!(refused(b"\x08\x01a\x04\x00"), "extension 4 follows 8: tags ascend, and none comes twice");
}

#[test]
fn extensions_at_the_limits_are_read_and_beyond_are_not() {
    let many = |count: u32| Extensions::new((0..count).map(|tag| (tag, "")));
    assert_eq!(many(16).unwrap().iter().count(), 16);
    assert_eq!(many(17).unwrap_err().to_string(), "there are more than 16 extensions");
    // The tag has one byte, the length three.
    let large = |len: usize| Extensions::new([(4, vec![7; len])]);
    assert_eq!(large(1_020).unwrap().as_bytes().len(), 1_024);
    assert_eq!(large(1_021).unwrap_err().to_string(), "the extensions have 1025 bytes, the limit is 1024");
}

#[test]
fn volatile_fields_are_not_content_and_can_be_dropped() {
    let lasting = of(&[(4, "a"), (9, "b")]);
    let both = of(&[(4, "a"), (6, "x"), (9, "b"), (11, "y")]);
    let volatile = of(&[(6, "x"), (11, "y")]);
    assert!(lasting.same_content(&both) && both.same_content(&lasting) && both.same_content(&both));
    assert!(volatile.same_content(&Extensions::NONE));
    for other in [of(&[(4, "b"), (9, "b")]), of(&[(4, "a")]), of(&[(5, "a"), (9, "b")]), volatile.clone()] {
        assert!(!lasting.same_content(&other) && !other.same_content(&both), "{other:?}");
    }
    let dropped = |mut extensions: Extensions| {
        extensions.drop_volatile();
        extensions
    };
    assert_eq!([both, lasting.clone()].map(dropped), [lasting.clone(), lasting]);
    assert_eq!([volatile, Extensions::NONE].map(dropped), [Extensions::NONE, Extensions::NONE]);
}

#[test]
fn a_mark_of_bulk_jobs_only_rises_and_leaves_the_others() {
    let mut extensions = of(&[(4, "a"), (65, "b"), (66, "c")]);
    assert_eq!(extensions.bulk_mark(), 0);
    for (raised, mark) in [(0, 0), (7, 7), (3, 7), (300, 300), (70_000, 70_000)] {
        extensions.raise_bulk_mark(raised);
        assert_eq!(extensions.bulk_mark(), mark);
    }
    assert_eq!(extensions.iter().map(|(tag, _)| tag).collect::<Vec<_>>(), [4, 64, 65, 66]);
    extensions.drop_volatile();
    assert_eq!(extensions.bulk_mark(), 70_000);
}

#[test]
fn a_debounce_knows_its_first_schedule() {
    let mut extensions = of(&[(4, "a"), (80, "c")]);
    assert_eq!(extensions.debounced_since(), None);
    for first in [Time::from_ms(7), Time::from_ms(1_700_000_000_000)] {
        extensions.set_debounced_since(first);
        assert_eq!(extensions.debounced_since(), Some(first));
    }
    extensions.drop_volatile();
    assert_eq!(extensions.iter().map(|(tag, _)| tag).collect::<Vec<_>>(), [4, 76, 80]);
    assert_eq!((extensions.not_understood_in_record(), of(&[(76, "x")]).debounced_since()), (None, None));
}

#[test]
fn a_story_grows_beside_the_other_fields_and_can_be_abridged() {
    let attempt = |number| FailedAttempt {
        attempt: Attempt { number, epoch: Epoch(1), client: 2, sent: None, late_ms: 0, late_by: None },
        ended: Time::from_ms(3),
        end: AttemptEnd::Retry,
        error: "no".into(),
    };
    let mut extensions = of(&[(4, "a"), (72, "c")]);
    extensions.abridge_story();
    assert_eq!((extensions.story(), extensions.iter().count()), (vec![], 2));
    (1..=3).for_each(|n| extensions.add_attempt(attempt(n)));
    extensions.raise_bulk_mark(7);
    assert_eq!(extensions.story(), [1, 2, 3].map(attempt));
    extensions.abridge_story();
    assert_eq!((extensions.story(), extensions.bulk_mark(), extensions.iter().count()), (vec![], 7, 4));
    // Where few fit the newest ones are kept.
    let mut full = of(&[(4, &"x".repeat(880))]);
    (1..=8).for_each(|n| full.add_attempt(attempt(n)));
    assert_eq!(full.story(), [6, 7, 8].map(attempt));
}

#[test]
fn postponed_attempts_are_counted_until_one_ends_otherwise() {
    let mut extensions = of(&[(4, "a"), (84, "c")]);
    extensions.end_postponing();
    assert_eq!((extensions.postponed(), extensions.iter().count()), (Postponed::default(), 2));
    for (n, attempt) in [(1, 1), (2, 2), (3, 300)] {
        extensions.postpone(attempt);
        assert_eq!(extensions.postponed(), Postponed { in_a_row: n, last: attempt });
    }
    extensions.end_postponing();
    assert_eq!(extensions.postponed(), Postponed { in_a_row: 0, last: 300 });
    extensions.postpone(70_000);
    extensions.drop_volatile();
    assert_eq!(extensions.postponed(), Postponed { in_a_row: 1, last: 70_000 });
    assert_eq!(extensions.iter().map(|(tag, _)| tag).collect::<Vec<_>>(), [4, 80, 84]);
    assert_eq!(of(&[(80, "")]).postponed(), Postponed::default());
}

#[test]
fn a_normal_timer_has_no_byte_of_its_priority() {
    let before = of(&[(4, "a"), (96, "c")]);
    for priority in Priority::ALL {
        let with = before.with_priority(priority).unwrap();
        let tags = with.iter().map(|(tag, _)| tag).collect::<Vec<_>>();
        assert_eq!((with.priority(), with.not_understood()), (priority, None));
        assert_eq!(tags.contains(&92), priority != Priority::Normal);
        assert_eq!(with.same_content(&before), priority == Priority::Normal, "it is content");
        assert_eq!(with.with_priority(Priority::Normal).unwrap(), before);
    }
    for unknown in ["", "\u{9}"] {
        assert_eq!(of(&[(92, unknown)]).priority(), Priority::Normal);
    }
    assert!(Extensions::new((0..16).map(|tag| (tag, ""))).unwrap().with_priority(Priority::Low).is_err());
}

#[test]
fn a_record_is_staged_and_released() {
    let goal = crate::ImportGoal::Live { tier: 1 };
    let staging = Staging { import: crate::ImportId(7), goal };
    let before = of(&[(4, "a"), (74, "c")]);
    let staged = before.staged(staging).unwrap();
    assert_eq!((staged.staging(), before.staging()), (Some(staging), None));
    assert_eq!(staged.iter().map(|(tag, _)| tag).collect::<Vec<_>>(), [4, 73, 74]);
    assert_eq!((staged.not_understood(), staged.not_understood_in_record()), (Some(73), None));
    assert_eq!((staged.without(STAGING), before.without(STAGING)), (before.clone(), before));
    let damaged = of(&[(73, "x")]);
    assert_eq!((damaged.staging(), damaged.not_understood_in_record()), (None, Some(73)));
    assert!(Extensions::new((0..16).map(|tag| (tag, ""))).unwrap().staged(staging).is_err());
}

#[test]
fn the_first_tag_that_must_be_understood_is_named() {
    let first = |tags: &[u32]| Extensions::new(tags.iter().map(|tag| (*tag, "x"))).unwrap().not_understood();
    assert_eq!([first(&[]), first(&[4, 6]), first(&[4, 9, 11]), first(&[7])], [None, None, Some(9), Some(7)]);
}

#[test]
fn a_text_form_is_a_list_of_bytes() {
    let extensions = of(&[(4, "a")]);
    assert_eq!(serde_json::to_string(&extensions).unwrap(), "[4,1,97]");
    assert_eq!(serde_json::from_str::<Extensions>("[4,1,97]").unwrap(), extensions);
    assert_eq!(serde_json::from_str::<Extensions>("[]").unwrap(), Extensions::NONE);
    assert!(serde_json::from_str::<Extensions>("[4,1]").is_err());
}

/// Bytes that are often a block, or nearly.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let fields = proptest::collection::btree_map(0u32..1_000, "[a-z]{0,3}", 0..5);
    let block = fields.prop_map(block_of);
    let damage = proptest::option::of((any::<prop::sample::Index>(), 0u8..8));
    let damaged = (block, damage).prop_map(|(mut block, damage)| {
        if let Some((at, byte)) = damage.filter(|_| !block.is_empty()) {
            let at = at.index(block.len());
            block[at] = byte;
        }
        block
    });
    prop_oneof![
        proptest::collection::vec(0u8..4, 0..20),
        proptest::collection::vec(any::<u8>(), 0..40),
        damaged
    ]
}

proptest! {
    #[test]
    fn any_bytes_survive_or_are_refused(block in bytes()) {
        if let Ok(extensions) = Extensions::from_bytes(&block) {
            prop_assert_eq!(extensions.as_bytes(), &block[..]);
            prop_assert_eq!(Extensions::new(extensions.iter()), Ok(extensions.clone()));
            prop_assert!(extensions.iter().is_sorted_by(|(a, _), (b, _)| a < b));
        }
    }

    #[test]
    fn a_block_that_is_cut_off_has_fewer_fields_or_is_refused(
        fields in proptest::collection::btree_map(any::<u32>(), "[a-z]{0,9}", 1..9),
    ) {
        let extensions = Extensions::new(fields.clone()).unwrap();
        let block = extensions.as_bytes();
        for end in 0..block.len() {
            if let Ok(fewer) = Extensions::from_bytes(&block[..end]) {
                let expected: Vec<_> = fields.iter().map(|(tag, value)| (*tag, value.as_bytes())).collect();
                let fewer: Vec<_> = fewer.iter().collect();
                prop_assert!(fewer.len() < expected.len() && expected.starts_with(&fewer));
            }
        }
    }
}
