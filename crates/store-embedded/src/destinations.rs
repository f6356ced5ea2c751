//! Destinations and their numbers: interned once, mirrored in memory, never removed.

use std::collections::HashMap;

use bytes::{Buf, BufMut};
use mtimer_types::Destination;

use crate::fault::Fault;
use crate::layout::{FactName, Space, fact_key};
use crate::tree::Tree;

/// The numbers that stand for destinations in rows.
#[derive(Debug, Default)]
pub(crate) struct DestinationNumbers {
    names: Vec<Destination>,
    numbers: HashMap<Destination, u32>,
}

impl DestinationNumbers {
    pub(crate) fn find(&self, dest: &Destination) -> Option<u32> {
        self.numbers.get(dest).copied()
    }

    pub(crate) fn name(&self, number: u32) -> Option<Destination> {
        self.names.get(number as usize).cloned()
    }

    /// A destination's number; a new one is written together with the row that uses it.
    pub(crate) fn number(&mut self, dest: &Destination, tree: &mut Tree) -> Result<u32, Fault> {
        if let Some(number) = self.find(dest) {
            return Ok(number);
        }
        let number = u32::try_from(self.names.len())
            .map_err(|_| Fault::Damaged("it has more than 2^32 destinations"))?;
        tree.put(Space::Facts, fact_key(FactName::Destination(number)), encode(dest));
        self.add(dest.clone(), number);
        Ok(number)
    }

    /// Takes in a stored destination. They are stored in the order of their numbers, without a gap.
    pub(crate) fn restore(&mut self, number: u32, bytes: &[u8]) -> Result<(), Fault> {
        let dest = decode(bytes).filter(|_| self.names.len() == number as usize);
        self.add(dest.ok_or(Fault::Damaged("a destination is unreadable"))?, number);
        Ok(())
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.names.len()).unwrap_or(u32::MAX)
    }

    /// Reads a stored name.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Destination> {
        decode(bytes)
    }

    fn add(&mut self, dest: Destination, number: u32) {
        self.names.push(dest.clone());
        self.numbers.insert(dest, number);
    }
}

fn encode(dest: &Destination) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 + dest.group().len() + dest.app().len());
    out.put_u16(dest.group().len() as u16);
    out.put_slice(dest.group().as_bytes());
    out.put_slice(dest.app().as_bytes());
    out
}

fn decode(mut bytes: &[u8]) -> Option<Destination> {
    let len = usize::from(bytes.try_get_u16().ok()?);
    let (group, app) = bytes.split_at_checked(len)?;
    Destination::new(std::str::from_utf8(group).ok()?, std::str::from_utf8(app).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        let dest = Destination::new("orders", "ü").unwrap();
        assert_eq!(decode(&encode(&dest)), Some(dest));
        assert_eq!(decode(b"\0\x09abc"), None);
        assert_eq!(decode(b"\0"), None);
    }
}
