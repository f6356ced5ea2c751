//! How urgent a timer is among those of its destination that wait.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The class of a timer, chosen by its application. It decides who goes first among the timers of
/// one destination that wait for capacity; when a timer is due has nothing to do with it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Priority {
    /// Before all others: 8 of 15 turns.
    Urgent = 0,
    /// 4 of 15 turns.
    High = 1,
    /// That of a timer that has no other: 2 of 15 turns.
    #[default]
    Normal = 2,
    /// After all others: 1 of 15 turns.
    Low = 3,
}

/// A text that names no [`Priority`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no priority: write urgent, high, normal or low")]
pub struct InvalidPriority(pub String);

impl Priority {
    /// How many there are.
    pub const COUNT: usize = 4;
    /// All of them, the most urgent first.
    pub const ALL: [Self; Self::COUNT] = [Self::Urgent, Self::High, Self::Normal, Self::Low];

    /// From its number in storage, which is its rank: 0 is the most urgent.
    pub const fn from_u8(n: u8) -> Option<Self> {
        match n {
            0 => Some(Self::Urgent),
            1 => Some(Self::High),
            2 => Some(Self::Normal),
            3 => Some(Self::Low),
            _ => None,
        }
    }

    /// Its place among them: 0 is the most urgent.
    pub const fn rank(self) -> usize {
        self as usize
    }

    /// Of 15 turns among timers of all classes that wait, how many it has.
    pub const fn weight(self) -> u32 {
        8 >> self as u8
    }

    /// Its name, as people and programs see it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Urgent => "urgent",
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Priority {
    type Err = InvalidPriority;

    fn from_str(text: &str) -> Result<Self, InvalidPriority> {
        let named = Self::ALL.into_iter().find(|priority| priority.name() == text);
        named.ok_or_else(|| InvalidPriority(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_numbers_and_weights_mean_what_they_meant() {
        let all = Priority::ALL.map(|p| (p as u8, p.name(), p.weight()));
        assert_eq!(all, [(0, "urgent", 8), (1, "high", 4), (2, "normal", 2), (3, "low", 1)]);
        for priority in Priority::ALL {
            assert_eq!(Priority::from_u8(priority as u8), Some(priority));
            assert_eq!(priority.to_string().parse(), Ok(priority));
            assert_eq!(serde_json::to_string(&priority).ok(), Some(format!("\"{priority}\"")));
        }
        assert_eq!((Priority::from_u8(4), Priority::default()), (None, Priority::Normal));
        assert!(Priority::Urgent < Priority::Low);
        let error = "critical".parse::<Priority>().unwrap_err().to_string();
        assert_eq!(error, "\"critical\" is no priority: write urgent, high, normal or low");
    }
}
