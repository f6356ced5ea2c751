//! What scripts answer, as values.
//!
//! Purpose: every answer decoded into an enum; what cannot be decoded is an error that names the script.
//! Not in here: what is done about it.

use bytes::{Buf, Bytes};
use mtimer_store::{Answer, CancelAnswer, RescheduleAnswer, ScheduleAnswer};
use mtimer_types::{Ended, TimerId};

use crate::keys::SlotKey;
use crate::plan::Needs;
use crate::resp::Reply;

/// What a script of an owner said.
#[derive(Debug)]
pub(crate) enum Said {
    /// Done; what follows the OK.
    Ok(Vec<Reply>),
    /// Another owner has the partition (0: there is no owner record).
    Fenced(u64),
    /// Out of turn; the seq stored.
    Seq(u64),
    /// It wants more declared.
    Need(Vec<Bytes>),
    /// Redis refused to run it.
    Error(String),
}

/// An answer that makes no sense. The store is damaged, or these are not our scripts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("script {script} answered something that is no answer: {what}")]
pub(crate) struct Nonsense {
    pub(crate) script: &'static str,
    pub(crate) what: String,
}

/// Reads the envelope of an answer.
pub(crate) fn envelope(script: &'static str, reply: Reply) -> Result<Said, Nonsense> {
    let nonsense = |what: &str| Nonsense { script, what: what.to_owned() };
    let mut parts = match reply {
        Reply::Error(e) => return Ok(Said::Error(e)),
        Reply::Array(parts) if !parts.is_empty() => parts,
        other => return Err(nonsense(&format!("{other:?}").chars().take(100).collect::<String>())),
    };
    let rest = parts.split_off(1);
    let number = || rest.first().and_then(Reply::number).ok_or_else(|| nonsense("a number is missing"));
    match parts[0].text() {
        Some("OK") => Ok(Said::Ok(rest)),
        Some("FENCED") => number().map(Said::Fenced),
        Some("SEQ") => number().map(Said::Seq),
        Some("NEED") => Ok(Said::Need(rest.iter().filter_map(Reply::bytes).cloned().collect())),
        _ => Err(nonsense("an unknown word")),
    }
}

impl Needs {
    /// Takes in what a script asked for. False: it asks for the same again and again.
    pub(crate) fn add(&mut self, wanted: &[Bytes]) -> bool {
        self.rounds += 1;
        for want in wanted {
            let Some((kind, rest)) = want.split_first() else { return false };
            let id = rest.get(..16).and_then(|b| <[u8; 16]>::try_from(b).ok()).map(TimerId::from_bytes);
            match (kind, id) {
                (b's', _) => match std::str::from_utf8(rest).ok().and_then(SlotKey::parse) {
                    Some(slot) => self.slots.push(slot),
                    None => return false,
                },
                (b'i', Some(id)) => self.ids.push(id),
                (b'h', _) => self.keys = true,
                // It has to be another script, which is so from now on.
                (b'p', _) => {}
                // It gets on with a park's orders, some at a time, and is then done.
                (b'r', _) => self.rounds = 0,
                (b'k', Some(id)) => {
                    self.named.insert(rest[16..].to_vec(), id);
                }
                _ => return false,
            }
        }
        // A key leads to an id, an id to a slot, with room to spare.
        self.rounds <= 16
    }
}

/// The kept form of an answer (see `applied` in `lua/prelude.lua`): the answers, the lengths.
pub(crate) fn kept(mut bytes: Bytes) -> Option<(Bytes, Bytes)> {
    let length = bytes.try_get_u32_le().ok()? as usize;
    if length > bytes.len() {
        return None;
    }
    let answers = bytes.split_to(length);
    Some((answers, bytes))
}

/// Reads `count` answers of operations.
pub(crate) fn answers(script: &'static str, mut bytes: Bytes, count: usize) -> Result<Vec<Answer>, Nonsense> {
    let nonsense = |what: &str| Nonsense { script, what: what.to_owned() };
    let mut answers = Vec::with_capacity(count);
    for _ in 0..count {
        answers.push(answer(&mut bytes).ok_or_else(|| nonsense("an answer that is cut off or unknown"))?);
    }
    if bytes.is_empty() { Ok(answers) } else { Err(nonsense("too many answers")) }
}

fn answer(bytes: &mut Bytes) -> Option<Answer> {
    let kind = bytes.try_get_u8().ok()?;
    let mut id = || bytes.try_get_u128().ok().map(TimerId::from_u128);
    Some(match kind {
        b'D' => Answer::Done,
        b'U' => Answer::Gone,
        b'N' => Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None }),
        b'R' => Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: Some(id()?) }),
        b'O' => Answer::Schedule(ScheduleAnswer::Scheduled { new: false, replaced: None }),
        b'C' => Answer::Schedule(ScheduleAnswer::Conflict),
        b'K' => Answer::Schedule(ScheduleAnswer::Kept(id()?)),
        b'B' => Answer::Schedule(ScheduleAnswer::KeyTaken(id()?)),
        b'E' => Answer::Schedule(ScheduleAnswer::Ended(Ended::from_u8(bytes.try_get_u8().ok()?)?)),
        b'X' => Answer::Cancel(CancelAnswer::Cancelled(id()?)),
        b'L' => Answer::Cancel(CancelAnswer::TooLate(id()?)),
        b'F' => Answer::Cancel(CancelAnswer::NotFound),
        b'H' => Answer::Reschedule(RescheduleAnswer::Rescheduled(id()?)),
        b'M' => Answer::Reschedule(RescheduleAnswer::TooLate(id()?)),
        b'P' => Answer::Reschedule(RescheduleAnswer::PastDeadline(id()?)),
        b'G' => Answer::Reschedule(RescheduleAnswer::NotFound),
        b'T' => Answer::KeyTaken(id()?),
        b'Y' => {
            let removed = bytes.try_get_u32_le().ok()?;
            Answer::Trimmed { removed, more: bytes.try_get_u8().ok()? == b'1' }
        }
        _ => return None,
    })
}

/// The lengths of slots by their numbers in the script, from 1.
pub(crate) fn lengths(mut bytes: Bytes) -> Vec<(usize, u32)> {
    std::iter::from_fn(|| Some((usize::from(bytes.try_get_u16_le().ok()?), bytes.try_get_u32_le().ok()?)))
        .collect()
}

/// The ids of slots, by the slots' numbers in the script, from 1, if it told of any.
pub(crate) fn ids(wanted: Option<&Reply>) -> Vec<(usize, Vec<TimerId>)> {
    let told = |pair: &[Reply]| {
        let number = usize::try_from(pair.first()?.number()?).ok()?;
        Some((number, ids_of(pair.get(1)?)?))
    };
    let pairs = wanted.and_then(Reply::array).unwrap_or_default().chunks_exact(2);
    pairs.filter_map(told).collect()
}

/// The ids of a slot one after another, if they were told.
pub(crate) fn ids_of(told: &Reply) -> Option<Vec<TimerId>> {
    let (ids, rest) = told.bytes()?.as_chunks();
    rest.is_empty().then(|| ids.iter().map(|id| TimerId::from_bytes(*id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_exactly() {
        let id = TimerId::from_u128(7);
        let bytes = [b"NDR".as_slice(), &id.to_bytes(), b"Y\x02\0\0\x001"].concat();
        let expected = vec![
            Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None }),
            Answer::Done,
            Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: Some(id) }),
            Answer::Trimmed { removed: 2, more: true },
        ];
        assert_eq!(answers("x", bytes.clone().into(), 4), Ok(expected));
        assert!(answers("x", bytes.clone().into(), 3).is_err());
        assert!(answers("x", bytes.into(), 5).is_err());
        assert!(answers("x", Bytes::from_static(b"?"), 1).is_err());
    }

    #[test]
    fn a_script_that_never_has_enough_is_stopped() {
        let mut needs = Needs::default();
        let want = [Bytes::from_static(b"s0.0.1000")];
        assert!((0..16).all(|_| needs.add(&want)));
        assert!(!needs.add(&want));
        assert!(!Needs::default().add(&[Bytes::from_static(b"i123")]));
    }
}
