//! The delays between the attempts of a timer.

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::{InvalidTimer, limits};

/// Lists the delays in ms before attempt 2, 3, ...; empty means one attempt only. At most 32, each
/// of 1 ms to 30 days.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RetryTiers(#[serde(deserialize_with = "tiers")] pub Vec<u32>);

impl RetryTiers {
    /// Checks number and length of the tiers.
    ///
    /// # Errors
    ///
    /// [`InvalidTimer::Retry`] for the first one out of range.
    pub fn validate(&self) -> Result<(), InvalidTimer> {
        let (max_tiers, max_ms) = (limits::MAX_RETRY_TIERS, limits::MAX_RETRY_DELAY_MS);
        for (i, ms) in self.0.iter().enumerate() {
            if i >= max_tiers || !(1..=max_ms).contains(ms) {
                let (tier, count) = (i + 1, self.0.len());
                return Err(InvalidTimer::Retry { tier, count, ms: *ms, max_tiers, max_ms });
            }
        }
        Ok(())
    }
}

/// Reads a list without reserving memory for as many elements as it announces: serde would reserve
/// a mebibyte for a few bytes of input.
fn tiers<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u32>, D::Error> {
    d.deserialize_seq(TiersVisitor)
}

struct TiersVisitor;

impl<'de> de::Visitor<'de> for TiersVisitor {
    type Value = Vec<u32>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list of delays in ms")
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u32>, A::Error> {
        let mut all = Vec::new();
        while let Some(ms) = seq.next_element()? {
            all.push(ms);
        }
        Ok(all)
    }
}
