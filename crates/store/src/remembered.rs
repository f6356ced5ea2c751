//! The bytes of outcomes that are remembered for the repeat horizon: how timers ended, and the
//! answers to cancels and reschedules.
//!
//! They are the same in every store. An end is one byte ([`Ended`]); an answer is a letter, and the
//! timer's id (16 bytes) if there is one:
//!
//! | letter | answer |
//! |---|---|
//! | `X`, id | [`CancelAnswer::Cancelled`] |
//! | `L`, id | [`CancelAnswer::TooLate`] |
//! | `F` | [`CancelAnswer::NotFound`] |
//! | `H`, id | [`RescheduleAnswer::Rescheduled`] |
//! | `M`, id | [`RescheduleAnswer::TooLate`] |
//! | `P`, id | [`RescheduleAnswer::PastDeadline`] |
//! | `G` | [`RescheduleAnswer::NotFound`] |
//!
//! Not in here: when it was stored, and until when it counts.

use mtimer_types::{Ended, TimerId};

use crate::answer::{Answer, CancelAnswer, RescheduleAnswer};

/// The bytes of a timer's end.
pub const fn encode_ended(how: Ended) -> [u8; 1] {
    [how as u8]
}

/// A timer's end from its bytes. `None`: they are damaged.
pub fn decode_ended(bytes: &[u8]) -> Option<Ended> {
    if let [how] = bytes { Ended::from_u8(*how) } else { None }
}

/// The bytes of an answer. `None`: it is not remembered, being none to a cancel or a reschedule, or
/// none that a repeat gets ([`CancelAnswer::to_repeat`]).
pub fn encode_answer(answer: &Answer) -> Option<Vec<u8>> {
    let (letter, id) = match answer {
        Answer::Cancel(CancelAnswer::Cancelled(id)) => (b'X', Some(id)),
        Answer::Cancel(CancelAnswer::TooLate(id)) => (b'L', Some(id)),
        Answer::Cancel(CancelAnswer::NotFound) => (b'F', None),
        Answer::Reschedule(RescheduleAnswer::Rescheduled(id)) => (b'H', Some(id)),
        Answer::Reschedule(RescheduleAnswer::TooLate(id)) => (b'M', Some(id)),
        Answer::Reschedule(RescheduleAnswer::PastDeadline(id)) => (b'P', Some(id)),
        Answer::Reschedule(RescheduleAnswer::NotFound) => (b'G', None),
        Answer::Cancel(CancelAnswer::Died { .. })
        | Answer::Schedule(_)
        | Answer::Done
        | Answer::Died
        | Answer::Gone
        | Answer::KeyTaken(_)
        | Answer::Trimmed { .. }
        | Answer::Refused(_) => return None,
    };
    let mut bytes = vec![letter];
    bytes.extend(id.iter().flat_map(|id| id.to_bytes()));
    Some(bytes)
}

/// An answer from its bytes. `None`: they are damaged.
pub fn decode_answer(bytes: &[u8]) -> Option<Answer> {
    let (letter, rest) = bytes.split_first()?;
    let id = <[u8; 16]>::try_from(rest).ok().map(TimerId::from_bytes);
    Some(match (letter, id) {
        (b'X', Some(id)) => Answer::Cancel(CancelAnswer::Cancelled(id)),
        (b'L', Some(id)) => Answer::Cancel(CancelAnswer::TooLate(id)),
        (b'F', None) if rest.is_empty() => Answer::Cancel(CancelAnswer::NotFound),
        (b'H', Some(id)) => Answer::Reschedule(RescheduleAnswer::Rescheduled(id)),
        (b'M', Some(id)) => Answer::Reschedule(RescheduleAnswer::TooLate(id)),
        (b'P', Some(id)) => Answer::Reschedule(RescheduleAnswer::PastDeadline(id)),
        (b'G', None) if rest.is_empty() => Answer::Reschedule(RescheduleAnswer::NotFound),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answers(id: TimerId) -> [(Answer, &'static [u8]); 7] {
        [
            (Answer::Cancel(CancelAnswer::Cancelled(id)), b"X"),
            (Answer::Cancel(CancelAnswer::TooLate(id)), b"L"),
            (Answer::Cancel(CancelAnswer::NotFound), b"F"),
            (Answer::Reschedule(RescheduleAnswer::Rescheduled(id)), b"H"),
            (Answer::Reschedule(RescheduleAnswer::TooLate(id)), b"M"),
            (Answer::Reschedule(RescheduleAnswer::PastDeadline(id)), b"P"),
            (Answer::Reschedule(RescheduleAnswer::NotFound), b"G"),
        ]
    }

    #[test]
    fn the_bytes_are_those_that_stores_hold() {
        let id = TimerId::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
        for (answer, letter) in answers(id) {
            let has_id = !matches!(letter, b"F" | b"G");
            let bytes = if has_id { [letter, &id.to_bytes()].concat() } else { letter.to_vec() };
            assert_eq!(encode_answer(&answer), Some(bytes));
        }
        assert_eq!(id.to_bytes()[..2], [1, 2]);
        let ends = (0..6).map(|n| Ended::from_u8(n).unwrap());
        assert!(ends.map(encode_ended).eq((0..6).map(|n| [n])));
    }

    #[test]
    fn no_other_answer_is_remembered() {
        let died = CancelAnswer::Died { id: TimerId::from_u128(1), failed: 2 };
        assert_eq!(encode_answer(&Answer::Cancel(died)), None);
        assert!(encode_answer(&Answer::Cancel(died.to_repeat())).is_some());
        assert_eq!(encode_answer(&Answer::Done), None);
    }

    proptest! {
        #[test]
        fn what_is_remembered_survives_and_what_is_cut_off_is_refused(n: u128) {
            for (answer, _) in answers(TimerId::from_u128(n)) {
                let bytes = encode_answer(&answer).unwrap();
                prop_assert_eq!(decode_answer(&bytes[..bytes.len() - 1]), None);
                prop_assert_eq!(decode_answer(&[&bytes[..], b"0"].concat()), None);
                prop_assert_eq!(decode_answer(&bytes), Some(answer));
            }
            for how in (0..6).filter_map(Ended::from_u8) {
                prop_assert_eq!(decode_ended(&encode_ended(how)), Some(how));
            }
        }

        #[test]
        fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..20)) {
            let answer = decode_answer(&bytes);
            prop_assert!(answer.is_none_or(|answer| encode_answer(&answer) == Some(bytes.clone())));
            let ended = decode_ended(&bytes);
            prop_assert!(ended.is_none_or(|how| encode_ended(how)[..] == bytes));
        }
    }
}
