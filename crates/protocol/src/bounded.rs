//! Sequences that are read only up to a number of elements.
//!
//! An element can take one byte in a frame and two hundred in memory, so the frame limit alone
//! would let four megabytes ask for most of a gigabyte.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// Elements that are reserved before any is read.
const RESERVED: usize = 1_024;

/// Reads a vector of at most `N` elements.
pub(crate) fn at_most<'de, const N: usize, T, D>(d: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    d.deserialize_seq(AtMost::<N, T>(PhantomData))
}

struct AtMost<const N: usize, T>(PhantomData<T>);

impl<'de, const N: usize, T: Deserialize<'de>> Visitor<'de> for AtMost<N, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {N} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        let announced = seq.size_hint().unwrap_or(0);
        if announced > N {
            return Err(A::Error::custom(format_args!("{announced} elements where {N} are the most")));
        }
        let mut all = Vec::with_capacity(announced.min(RESERVED));
        while let Some(element) = seq.next_element()? {
            if all.len() == N {
                return Err(A::Error::custom(format_args!("more than {N} elements")));
            }
            all.push(element);
        }
        Ok(all)
    }
}
