//! Imports: timers of another cluster, which are staged until somebody releases them.
//!
//! A staged timer is stored as pending at its fire time plus [`STAGED_MS`]. So no broker loads it,
//! whatever its version. Its record has a [`Staging`], which says where its release puts it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::hash::Fnv64;
use crate::id::TimerId;
use crate::limits::STAGED_MS;
use crate::name::{Destination, Key};
use crate::outcome::DeadReason;
use crate::partition::{Epoch, PartitionId};
use crate::time::Time;

/// Bytes of a time.
const TIME: usize = 6;

/// The name of an import: random, the same in every repeat of it. People see 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ImportId(pub u128);

/// A text that is no [`ImportId`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no import's id: it has 32 hexadecimal digits")]
pub struct NoImportId(String);

impl fmt::Display for ImportId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ImportId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ImportId {
    type Err = NoImportId;

    fn from_str(text: &str) -> Result<Self, NoImportId> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex);
        number.map(Self).ok_or_else(|| NoImportId(text.to_owned()))
    }
}

/// What a staged timer becomes at its release.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ImportGoal {
    /// Pending at its fire time.
    Live {
        /// Its tier: 0 for the first delivery, n for the n-th retry tier.
        tier: u8,
    },
    /// A dead letter.
    Dead {
        /// Why.
        reason: DeadReason,
        /// When it died.
        died: Time,
    },
    /// Unconfirmed.
    Unconfirmed {
        /// The epoch of the owner that took it, in the cluster from which it comes.
        epoch: Epoch,
        /// Since when.
        since: Time,
    },
}

/// Of which import a staged timer is, and what its release does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Staging {
    /// Which import.
    pub import: ImportId,
    /// What the timer becomes.
    pub goal: ImportGoal,
}

impl Staging {
    /// Its bytes in a record: the import's id (16), then `l` and the tier, `d`, reason and time of
    /// death (6), or `u`, epoch (8) and since when (6). Numbers are little endian.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut out = self.import.0.to_le_bytes().to_vec();
        let time = |time: Time| time.as_ms().to_le_bytes()[..TIME].to_vec();
        match self.goal {
            ImportGoal::Live { tier } => out.extend([b'l', tier]),
            ImportGoal::Dead { reason, died } => {
                out.extend([b'd', reason as u8]);
                out.extend(time(died));
            }
            ImportGoal::Unconfirmed { epoch, since } => {
                out.push(b'u');
                out.extend(epoch.0.to_le_bytes());
                out.extend(time(since));
            }
        }
        out
    }

    /// Reads it. `None`: the bytes are nothing of the kind.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let time = |bytes: &[u8; TIME]| {
            let mut all = [0; 8];
            all[..TIME].copy_from_slice(bytes);
            Time::from_ms(u64::from_le_bytes(all))
        };
        let (import, rest) = bytes.split_first_chunk()?;
        let goal = match rest.split_first()? {
            (b'l', [tier]) => ImportGoal::Live { tier: *tier },
            (b'd', [reason, died @ ..]) => {
                ImportGoal::Dead { reason: DeadReason::from_u8(*reason)?, died: time(died.try_into().ok()?) }
            }
            (b'u', rest) => {
                let (epoch, since) = rest.split_first_chunk()?;
                let since = time(since.try_into().ok()?);
                ImportGoal::Unconfirmed { epoch: Epoch(u64::from_le_bytes(*epoch)), since }
            }
            _ => return None,
        };
        Some(Self { import: ImportId(u128::from_le_bytes(*import)), goal })
    }
}

impl Time {
    /// The last time under which a timer is stored that is not staged.
    pub const LAST_UNSTAGED: Self = Self::from_ms(STAGED_MS - 1);

    /// The fire time under which a timer is stored while it is staged.
    #[must_use]
    pub fn staged(self) -> Self {
        self + STAGED_MS
    }

    /// The true fire time of one that is stored at this time; `None`: it is not staged.
    pub const fn unstaged(self) -> Option<Self> {
        match self.as_ms().checked_sub(STAGED_MS) {
            Some(ms) => Some(Self::from_ms(ms)),
            None => None,
        }
    }

    /// Whether a timer that is stored as pending at this time is staged.
    pub const fn is_staged(self) -> bool {
        self.unstaged().is_some()
    }
}

impl TimerId {
    /// The id that a timer of another cluster gets in one with so many partitions: always the same,
    /// so that a repeated import is the same import. Due time and slot width stay.
    pub fn imported(self, dest: &Destination, key: Option<&Key>, partitions: u16) -> Self {
        let hash = |of: &str| {
            let mut hash = Fnv64::default();
            hash.write(of.as_bytes());
            hash.write(&self.to_bytes());
            hash.finish()
        };
        let partition = match key {
            Some(key) => PartitionId::of_key(dest, key, partitions),
            None => PartitionId((hash("partition\0") % u64::from(partitions.max(1))) as u16),
        };
        Self::with_width(self.birth_due(), self.birth_width(), partition, hash("random\0"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

    use std::collections::HashSet;

    use super::*;
    use crate::id::SlotWidth;

    const IMPORT: ImportId = ImportId(0xab);

    fn goals() -> [ImportGoal; 3] {
        [
            ImportGoal::Live { tier: 32 },
            ImportGoal::Dead { reason: DeadReason::Stopped, died: Time::MAX },
            ImportGoal::Unconfirmed { epoch: Epoch(u64::MAX), since: Time::from_ms(1) },
        ]
    }

    #[test]
    fn an_id_is_32_hexadecimal_digits() {
        assert_eq!(IMPORT.to_string(), "000000000000000000000000000000ab");
        assert_eq!(IMPORT.to_string().parse(), Ok(IMPORT));
        for text in ["ab", "", "+00000000000000000000000000000ab", "zz0000000000000000000000000000ab"] {
            assert!(text.parse::<ImportId>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_a_record_has_reads_back_and_nothing_else_is_read() {
        for goal in goals() {
            let staging = Staging { import: IMPORT, goal };
            let bytes = staging.to_bytes();
            assert_eq!(Staging::from_bytes(&bytes), Some(staging));
            for cut in 0..bytes.len() {
                assert_eq!(Staging::from_bytes(&bytes[..cut]), None, "{goal:?} without its end");
            }
            assert_eq!(Staging::from_bytes(&[&bytes[..], &[0]].concat()), None, "{goal:?} and more");
        }
        let unknown = [&IMPORT.0.to_le_bytes()[..], b"x\0"].concat();
        assert_eq!(Staging::from_bytes(&unknown), None);
        assert_eq!(Staging::from_bytes(&[&IMPORT.0.to_le_bytes()[..], b"d\x04\0\0\0\0\0\0"].concat()), None);
    }

    #[test]
    fn staged_times_are_beyond_every_other_and_in_slots_of_their_own() {
        let due = Time::from_ms(1_700_000_000_123);
        assert!(!due.is_staged() && due.staged().is_staged());
        assert_eq!((due.unstaged(), due.staged().unstaged()), (None, Some(due)));
        assert!(Time::ZERO.staged().is_staged());
        for width in SlotWidth::ALL {
            assert!(width.start_of(Time::ZERO.staged()).is_staged(), "no slot has others, too");
        }
    }

    #[test]
    fn the_new_id_is_pinned_and_follows_from_the_old_one() {
        let (due, dest) = (Time::from_ms(1_700_000_000_123), Destination::new("orders", "billing").unwrap());
        let old = TimerId::with_width(due, SlotWidth::Hour, PartitionId(9), 0x0123_4567_89ab_cdef);
        let key = Key::new("order-1").unwrap();
        let new = old.imported(&dest, None, 128);
        assert_eq!(new.to_string(), "01hf7yat3vg0efpgqmahhyp7j2");
        assert_eq!((new.birth_due(), new.birth_width()), (due, SlotWidth::Hour));
        let keyed = old.imported(&dest, Some(&key), 64);
        assert_eq!((keyed.partition(), keyed.random()), (PartitionId(9), new.random()));
        let others = (0..10_000).map(|n| TimerId::with_width(due, SlotWidth::Hour, PartitionId(9), n));
        let ids: Vec<TimerId> = others.map(|old| old.imported(&dest, None, 8)).collect();
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
        for partition in 0..8 {
            let there = ids.iter().filter(|id| id.partition() == PartitionId(partition)).count();
            assert!((1_050..1_450).contains(&there), "{there} of 10,000 in partition {partition}");
        }
    }
}
