//! The bytes of outcomes that are remembered for the repeat horizon: how timers ended, and the
//! answers to requests that a client repeats under a number ([`RequestId`]).
//!
//! They are the same in every store. An end is one byte ([`Ended`]); an answer is a letter, and the
//! timer's id (16 bytes) if there is one. Which letter is which answer is said by the operation, in
//! [`Repeated`]. Not in here: when it was stored, and until when it counts.

use mtimer_types::{Ended, TimerId};

/// Names a client's request, so that a repeat gets the old answer. Random, made by the client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestId(pub u64);

/// An answer that a repeat of its request gets.
///
/// No two operations share a letter.
pub trait Repeated: Copy {
    /// The answer to a repeat, which a store remembers.
    fn remember(self) -> RememberedAnswer;

    /// The answers that repeats get about a timer, and without one.
    fn recalled(id: TimerId) -> impl IntoIterator<Item = Self>;

    /// The answer that was remembered. `None`: it answers another kind of operation.
    fn recall(remembered: RememberedAnswer) -> Option<Self> {
        let id = remembered.id.unwrap_or(TimerId::from_u128(0));
        Self::recalled(id).into_iter().find(|answer| answer.remember() == remembered)
    }
}

/// The letters, A to Z, of an answer: of those with a timer and of those without.
#[cfg(test)]
pub(crate) fn letters_of<A: Repeated>() -> [String; 2] {
    let id = TimerId::from_u128(7);
    let forms: [fn(u8, TimerId) -> RememberedAnswer; 2] =
        [RememberedAnswer::of, |letter, _| RememberedAnswer::alone(letter)];
    forms.map(|form| {
        let is_one = |letter: &u8| {
            let remembered = form(*letter, id);
            A::recall(remembered).is_some_and(|answer| answer.remember() == remembered)
        };
        (b'A'..=b'Z').filter(is_one).map(char::from).collect()
    })
}

/// An answer as stores remember it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RememberedAnswer {
    pub(crate) letter: u8,
    pub(crate) id: Option<TimerId>,
}

impl RememberedAnswer {
    /// An answer about a timer.
    pub(crate) const fn of(letter: u8, id: TimerId) -> Self {
        Self { letter, id: Some(id) }
    }

    /// An answer about none.
    pub(crate) const fn alone(letter: u8) -> Self {
        Self { letter, id: None }
    }

    /// Whether the timer that the request named was not there.
    pub const fn is_unseen(self) -> bool {
        self.id.is_none()
    }

    /// Returns its bytes.
    pub fn encode(self) -> Vec<u8> {
        let mut bytes = vec![self.letter];
        bytes.extend(self.id.iter().flat_map(|id| id.to_bytes()));
        bytes
    }

    /// Reads its bytes. `None`: they are damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&letter, id) = bytes.split_first()?;
        match <[u8; 16]>::try_from(id) {
            _ if !letter.is_ascii_uppercase() => None,
            Ok(id) => Some(Self::of(letter, TimerId::from_bytes(id))),
            Err(_) if id.is_empty() => Some(Self::alone(letter)),
            Err(_) => None,
        }
    }
}

/// The bytes of a timer's end.
pub const fn encode_ended(how: Ended) -> [u8; 1] {
    [how as u8]
}

/// A timer's end from its bytes. `None`: they are damaged.
pub fn decode_ended(bytes: &[u8]) -> Option<Ended> {
    if let [how] = bytes { Ended::from_u8(*how) } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ops::CancelAnswer;

    fn answers(id: TimerId) -> impl Iterator<Item = RememberedAnswer> {
        (b'A'..=b'Z')
            .flat_map(move |letter| [RememberedAnswer::of(letter, id), RememberedAnswer::alone(letter)])
    }

    #[test]
    fn the_bytes_are_those_that_stores_hold() {
        let id = TimerId::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
        assert_eq!(id.to_bytes()[..2], [1, 2]);
        assert_eq!(CancelAnswer::Cancelled(id).remember().encode(), [b"X", &id.to_bytes()[..]].concat());
        assert_eq!(CancelAnswer::NotFound.remember().encode(), b"F");
        let ends = (0..6).map(|n| Ended::from_u8(n).unwrap());
        assert!(ends.map(encode_ended).eq((0..6).map(|n| [n])));
    }

    #[test]
    fn a_repeat_of_a_cancel_that_made_a_dead_letter_is_too_late() {
        let id = TimerId::from_u128(1);
        let died = CancelAnswer::Died { id, failed: 2 };
        assert_eq!(CancelAnswer::recall(died.remember()), Some(CancelAnswer::TooLate(id)));
    }

    proptest! {
        #[test]
        fn what_is_remembered_survives_and_what_is_cut_off_is_refused(n: u128) {
            for answer in answers(TimerId::from_u128(n)) {
                let bytes = answer.encode();
                prop_assert_eq!(RememberedAnswer::decode(&bytes[..bytes.len() - 1]), None);
                prop_assert_eq!(RememberedAnswer::decode(&[&bytes[..], b"0"].concat()), None);
                prop_assert_eq!(RememberedAnswer::decode(&bytes), Some(answer));
            }
            for how in (0..6).filter_map(Ended::from_u8) {
                prop_assert_eq!(decode_ended(&encode_ended(how)), Some(how));
            }
        }

        #[test]
        fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..20)) {
            let answer = RememberedAnswer::decode(&bytes);
            prop_assert!(answer.is_none_or(|answer| answer.encode() == bytes));
            let ended = decode_ended(&bytes);
            prop_assert!(ended.is_none_or(|how| encode_ended(how)[..] == bytes));
        }
    }
}
