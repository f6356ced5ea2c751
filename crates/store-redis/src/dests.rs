//! Destinations and their numbers within a partition.
//!
//! Purpose: a record holds a number instead of two names. The owner gives the numbers, from 1 without gaps, when a script
//! is laid out that files a timer of a new destination; the script stores it in the same step. A number that is stored is
//! never given back; one of a script that was not applied is given anew.

use std::collections::HashMap;

use mtimer_types::Destination;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Destinations {
    names: Vec<Destination>,
    numbers: HashMap<Destination, u32>,
    /// So many of them are stored, the first ones.
    stored: usize,
}

impl Destinations {
    /// The destination of a number.
    pub(crate) fn name(&self, number: u32) -> Option<Destination> {
        self.names.get(number.checked_sub(1)? as usize).cloned()
    }

    /// The number of a destination; 0 if it has none.
    pub(crate) fn number(&self, dest: &Destination) -> u32 {
        self.numbers.get(dest).copied().unwrap_or(0)
    }

    /// The number of a destination, if it is stored.
    pub(crate) fn stored_number(&self, dest: &Destination) -> Option<u32> {
        self.numbers.get(dest).copied().filter(|number| *number as usize <= self.stored)
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn known(&self) -> usize {
        assert_eq!(self.names.len(), self.numbers.len());
        self.names.len()
    }

    /// How many are stored.
    pub(crate) const fn stored(&self) -> usize {
        self.stored
    }

    /// The destinations up to this number are stored.
    pub(crate) fn note_stored(&mut self, number: u32) {
        self.stored = self.stored.max(number as usize);
    }

    /// Nothing is under way that could store those that are not: they lose their numbers.
    pub(crate) fn forget_unstored(&mut self) {
        for dest in self.names.drain(self.stored..) {
            self.numbers.remove(&dest);
        }
    }

    /// The number of a destination, the next one if it has none; and whether it is stored.
    pub(crate) fn intern(&mut self, dest: &Destination) -> (u32, bool) {
        if let Some(number) = self.numbers.get(dest) {
            return (*number, *number as usize <= self.stored);
        }
        self.names.push(dest.clone());
        let number = self.names.len() as u32;
        self.numbers.insert(dest.clone(), number);
        (number, false)
    }
}

/// As it is stored.
pub(crate) fn encode(dest: &Destination) -> String {
    format!("{}\0{}", dest.group(), dest.app())
}

/// From what is stored.
pub(crate) fn decode(text: &str) -> Option<Destination> {
    let (group, app) = text.split_once('\0')?;
    Destination::new(group, app).ok()
}
